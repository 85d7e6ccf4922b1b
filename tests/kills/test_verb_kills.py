"""SIGKILL against relocating, building a lake anew, switching it off and on, and statements beside writers."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import shutil
import signal

import pytest

from kills.rounds import PRELOADED, Figures, check, journal, kill_processes, worked
from kills.verb_workers import COUNTED, KEYS, OTHER_KEY
from kills.workers import NAME, SCHEMA, read_journal, run_for
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.catalog.names import read_warehouse_file

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_cache")]

KILLS_MAX = 8
ROUNDS_MIN = 8
STATEMENTS_MIN = 10


def filled(location: str) -> None:
    warehouse = Warehouse(location)
    for name, lake, key in (("d.log", "iceberg", []), ("d.keyed", "iceberg", ["id"]), ("d.paimon", "paimon", [])):
        properties = {"table.datalake.format": lake}
        table = warehouse.create_table(name, "id BIGINT NOT NULL, text STRING", primary_key=key, properties=properties)
        for start in (0, 3):
            rows = [{"id": i, "text": "x" * 400} for i in range(start, start + 4)]
            table.upsert(rows) if key else table.append(rows)
            if not start:
                tier(table)


def ids(table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"])["id"].to_pylist())


def bytes_of(folder) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def num_begun(file) -> int:
    return sum(event["kind"] == "begun" for event in read_journal(file))


def kill_until_it_ends(role: str, location: str, directory, number: int, seed: int) -> int:
    """Run it, kill it, run it again, a few times, and then to its end. Returns how often it was killed at work."""
    chance, kills, context = random.Random(seed), 0, multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    file = journal(directory, role, number)
    for turn in range(KILLS_MAX + 1):
        begun = num_begun(file)
        cpu_s = chance.uniform(0.001, 0.02 * (turn + 1)) if turn < KILLS_MAX else 0  # the first before it can end
        process = context.Process(target=run_for, args=(cpu_s, role, location, str(file), number))
        process.start()
        process.join()
        kills += process.exitcode == -signal.SIGPROF and num_begun(file) > begun
    events = list(read_journal(file))
    assert not [event for event in events if event["kind"] == "error"], events
    assert events[-1]["kind"] == "ended"
    return kills


@pytest.mark.parametrize("copy", [False, True], ids=["move", "copy"])
def test_relocating_is_killed_and_run_again(tmp_path, copy):
    first, second = tmp_path / "first", tmp_path / "second"
    filled(str(first))
    wanted = {name: ids(Warehouse(str(first)).table(name)) for name in Warehouse(str(first)).tables()}
    first_id = read_warehouse_file(Warehouse(str(first)).storage).id
    shutil.copytree(first, second)
    original = bytes_of(first)
    if not copy:
        shutil.rmtree(first)
    kills = kill_until_it_ends("relocator", str(second), tmp_path, 1 + copy, seed=5)
    print(f"{kills} kills")  # noqa: T201
    assert kills, "it was never killed at work"
    close_tablets()
    warehouse = Warehouse(str(second))
    assert (read_warehouse_file(warehouse.storage).id == first_id) == (not copy)
    assert not (second / "relocation.json").exists()
    assert set(warehouse.tables()) == set(wanted)
    for name, expected in wanted.items():
        table = warehouse.table(name)
        assert ids(table) == expected
        row = [{"id": 99, "text": "new"}]
        table.upsert(row) if table.state.primary_key else table.append(row)
        tier(table)
        assert ids(table) == [*expected, 99]
        assert sorted(table.lake.to_arrow()["id"].to_pylist()) == [*expected, 99]
    if copy:
        assert bytes_of(first) == original


def test_a_lake_is_built_anew_and_switched_off_and_on_beside_writers(tmp_path):
    """No row is lost, doubled or hidden, and batches with an identity that has expired are stored once."""
    location = str(tmp_path / "warehouse")
    properties = {"bucket.key": "id", "table.transactions.ttl": "1ms"}
    Warehouse(location).create_table(NAME, SCHEMA, buckets=2, properties=properties)
    figures = Figures()
    processes = (("writer", 1), ("writer", 2), ("rebuilder", 1), ("reader", 1))

    def events_of(role: str, kind: str) -> list[dict]:
        return [event for event in read_journal(journal(tmp_path, role, 1)) if event["kind"] == kind]

    def expired() -> int:
        return sum(event["writers"] for event in events_of("rebuilder", "expired"))

    def is_enough() -> bool:
        return bool(expired() and events_of("rebuilder", "rebuilt") and worked(tmp_path, "writer", "reader"))

    kill_processes(tmp_path, ROUNDS_MIN, 3, processes, figures, until=is_enough)
    Warehouse(location).table(NAME).alter_properties({"table.datalake.enabled": "true"})
    check(location, tmp_path, figures)
    print(figures, f"{len(events_of('rebuilder', 'rebuilt'))} times rebuilt, {expired()} writers expired")  # noqa: T201


def test_statements_beside_writers_are_all_there_or_not_at_all(tmp_path):
    location = str(tmp_path / "warehouse")
    properties = {"table.datalake.enabled": "false"}
    columns = "id BIGINT NOT NULL, n BIGINT"
    table = Warehouse(location).create_table(COUNTED, columns, primary_key=["id"], buckets=2, properties=properties)
    table.upsert([{"id": key, "n": 0} for key in KEYS])
    close_tablets()
    figures = Figures()
    processes = (("updater", 1), ("updater", 2), ("neighbour", 1), ("neighbour", 2))

    def kinds() -> list[str]:
        return [event["kind"] for number in (1, 2) for event in read_journal(journal(tmp_path, "updater", number))]

    def are_enough() -> bool:
        return kinds().count("acknowledged") > STATEMENTS_MIN

    kill_processes(tmp_path, ROUNDS_MIN, 4, processes, figures, until=are_enough)
    table = Warehouse(location).table(COUNTED)
    found = {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}
    told, refused = kinds().count("acknowledged"), kinds().count("conflict")
    n = {found[key] for key in KEYS}
    print(f"{figures.kills} kills, {told} statements, {refused} conflicts, n = {n}")  # noqa: T201
    assert len(n) == 1, "a statement is there in part"
    assert told <= min(n) <= kinds().count("attempt") - refused
    for number in (1, 2):
        events = list(read_journal(journal(tmp_path, "neighbour", number)))
        last = {kind: max(e["n"] for e in events if e["kind"] == kind) for kind in ("attempt", "acknowledged")}
        assert last["acknowledged"] <= found[OTHER_KEY + number] <= last["attempt"]
