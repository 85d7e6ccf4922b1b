"""A fault at every storage call of work on a table with a VARIANT column: each value is whole and as it was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.row_replacement import replace_rows
from kit.tables import tier
from kit.variants import readable_rows
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.schema.variant import encode_variant
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(3)
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
DOCUMENT = {"a": [1, None, {"b": 2.5}], "text": "x" * 40}
BEFORE: dict[int, Any] = {0: DOCUMENT, 1: [], 2: "text", 3: 5, 4: None, 5: {"n": 5}, 6: [None]}
CHANGED = {0: {"new": [1.5]}, 6: DOCUMENT}
NEW = {7: {"c": {}}, 8: None}


@dataclass(frozen=True)
class Work:
    """Work that is done once, however often it is run."""

    run: Callable[[Table], object]
    after: dict[int, Any]
    """The values when it is done."""


def rows(values: dict[int, Any]) -> list[dict[str, Any]]:
    return [{"id": number, "v": value} for number, value in values.items()]


def append(table: Table) -> None:
    table.append(rows(NEW), transaction=Transaction("job", 1))


def update(table: Table) -> None:
    """Change a row of the lake and one of the log, unless that was done."""
    if values(table)[0] == DOCUMENT:
        replace_rows(
            table, lambda row: row["id"] in CHANGED, lambda row: row | {"v": encode_variant(CHANGED[row["id"]])}
        )


def delete(table: Table) -> None:
    table.delete(where=[("id", "in", [0, 5])], transaction=Transaction("clean", 1))


def publish(table: Table) -> None:
    """Make a branch, change it and publish it, or what is left of that to do."""
    table.refresh()
    if 7 in values(table):
        return
    if not table.branches():
        table.create_branch("b")
    branch = table.branch("b")
    branch.append(rows(NEW), transaction=Transaction("job", 1))
    branch.delete(where=[("id", "=", 0)], transaction=Transaction("clean", 1))
    table.fast_forward("b")


def take_back(table: Table) -> None:
    """Roll back to the version with all rows."""
    table.rollback_to_version("whole")


def without(*numbers: int) -> dict[int, Any]:
    return {number: value for number, value in BEFORE.items() if number not in numbers}


WORKS = {
    "append": Work(append, BEFORE | NEW),
    "update": Work(update, BEFORE | CHANGED),
    "delete": Work(delete, without(0, 5)),
    "publish": Work(publish, without(0) | NEW),
    "rollback": Work(take_back, BEFORE),
    "tier": Work(tier, BEFORE),
}


def opened(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")


def values(table: Table) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in readable_rows(table.to_arrow())}


@pytest.mark.parametrize("name", WORKS)
def test_variants_are_whole_whichever_call_fails(name, share):
    work = WORKS[name]

    start = MemoryStorage(sim_world())
    warehouse = Warehouse("wh", storage=start, world=sim_world(1))
    properties = {"table.datalake.format": "paimon"}
    table = warehouse.create_table("t", "id INT, v VARIANT", buckets=1, properties=properties)
    table.append(rows({number: BEFORE[number] for number in range(4)}))
    tier(table)
    table.append(rows({number: BEFORE[number] for number in range(4, 7)}))
    table.create_tag("whole")
    if name == "rollback":
        table.delete(where=[("id", "in", [0, 3, 5])])
    before = values(opened(start, 2))
    whole = WRITES - {"create.write", "create.open"}
    with one_thing_at_a_time():
        for attempt in sweep(
            start,
            lambda storage: work.run(opened(storage, 3)),
            share=share,
            methods=whole,
            faults=FEW,
            each_state_once=True,
        ):
            found = values(opened(attempt.store, 4))
            assert found in ((before, work.after) if attempt.raised else (work.after,)), attempt
            work.run(opened(attempt.store, 5))
            tier(opened(attempt.store, 6))
            table = opened(attempt.store, 7)
            assert values(table) == work.after, f"{attempt}: it did not happen once"
            in_lake = {row["id"]: row["v"] for row in readable_rows(table.lake.to_arrow())}
            assert in_lake == work.after, attempt
