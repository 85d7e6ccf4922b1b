"""Random histories of several writers of a table with an identity column: every row has a number of its own."""

from __future__ import annotations

import random
import threading

import pytest

from faults.sim import SimClock
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse

HOT = {"table.datalake.enabled": "false"}


def hosts(seed, num_hosts, **properties):
    clock = SimClock()
    storage = new_store(seed, clock)
    return [open_warehouse(storage, seed + n, clock) for n in range(num_hosts)]


def run(seed, steps):
    rng = random.Random(seed)
    start, step = rng.choice([(1, 1), (100, 7), (0, -3)])
    warehouses = hosts(seed, 3)
    text = f"ALWAYS START WITH {start} INCREMENT BY {step}"
    made = warehouses[0].create_table("t", "w INT, v INT, id BIGINT", properties={"table.identity.id": text})
    tables = [made, *(warehouse.table("t") for warehouse in warehouses[1:])]
    written, commits = 0, {}
    for _ in range(steps):
        writer = rng.randrange(3)
        match rng.choice(["append"] * 8 + ["reopen", "tier", "maintain", "truncate"]):
            case "append":
                count = rng.choice([1, 1, 2, 5, 40])
                tables[writer].append([{"w": writer, "v": written + n} for n in range(count)])
                commits[written] = (writer, count)
                written += count
            case "reopen":
                tables[writer] = warehouses[writer].table("t")
            case "tier":
                tier(tables[writer])
            case "maintain":
                tables[writer].maintain()
            case "truncate" if rng.random() < 0.2:
                tables[writer].truncate()
                commits.clear()
    rows = {row["v"]: row for row in warehouses[0].table("t").to_arrow().to_pylist()}
    numbers = [(row["id"] - start) // step for row in rows.values()]
    assert all((row["id"] - start) % step == 0 for row in rows.values())
    assert len(rows) == sum(count for _, count in commits.values())
    assert len(set(numbers)) == len(numbers)
    assert min(numbers, default=0) >= 0
    for begin, (_, count) in commits.items():
        of_commit = [(rows[v]["id"] - start) // step for v in range(begin, begin + count)]
        assert of_commit == sorted(of_commit)


@pytest.mark.parametrize("seed", range(6))
def test_identity_numbers_are_unique_in_random_histories(seed):
    run(seed, 40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_identity_numbers_are_unique_in_long_random_histories(seed):
    run(seed, 80)


def test_identity_numbers_of_concurrent_threads_and_processes_are_unique():
    warehouses = hosts(0, 2)
    table = warehouses[0].create_table("t", "id BIGINT, v INT", properties={**HOT, "table.identity.id": "ALWAYS"})
    handles = [table, table, warehouses[1].table("t"), warehouses[1].table("t")]
    failures = []

    def work(number, handle):
        try:
            for n in range(15):
                handle.append([{"v": number * 1000 + n}] * (1 + n % 3))
        except Exception as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=one) for one in enumerate(handles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = warehouses[0].table("t").to_arrow()["id"].to_pylist()
    assert len(found) == len(set(found)) == 4 * 30
