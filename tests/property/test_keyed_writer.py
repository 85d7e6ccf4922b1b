"""Upserts and deletions that a writer puts into one commit leave what a commit for each would."""

from __future__ import annotations

import random
from typing import NamedTuple

import pyarrow as pa
import pytest

from faults.share import few_of
from kit.rows import rows_by_id
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.usefixtures("own_cache")
ENGINES = {
    "last row": {},
    "sums": {"table.merge-engine": "aggregation", "fields.v.agg": "sum", "fields.w.agg": "listagg"},
    "first row": {"table.merge-engine": "first_row", "table.delete.behavior": "ignore"},
    "newest version": {
        "table.merge-engine": "versioned",
        "table.merge-engine.versioned.ver-column": "v",
        "table.delete.behavior": "ignore",
    },
    "without rows before updates": {"table.changelog.image": "wal"},
}
KEYS = 4


class Call(NamedTuple):
    """Keys that are deleted, or rows that are upserted."""

    keys: list[int]
    values: list[int] | None

    @property
    def rows(self) -> pa.Table:
        assert self.values is not None
        columns = {"id": pa.array(self.keys, pa.int32()), "v": pa.array(self.values, pa.int64())}
        return pa.table(columns | {"w": [f"w{value}" for value in self.values]})


def some_calls(chance: random.Random) -> list[Call]:
    found = []
    for _ in range(chance.randrange(9)):
        keys = [chance.randrange(KEYS) for _ in range(chance.randint(1, 3))]
        found.append(Call(keys, [chance.randrange(9) for _ in keys] if chance.random() < 0.6 else None))
    return found


def new_table(engine: str, calls: list[Call]) -> Table:
    """Make a table, and write calls one by one."""
    warehouse = Warehouse("wh", storage=MemoryStorage(World()))
    columns = "id INT, v BIGINT, w STRING"
    table = warehouse.create_table("a.t", columns, primary_key=["id"], buckets=2, properties=ENGINES[engine])
    for call in calls:
        if call.values is None:
            table.delete(call.keys)
        else:
            table.upsert(call.rows)
    return table


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", few_of(range(40), 3))
def test_one_commit_leaves_what_one_for_each_call_would(engine, seed):
    chance = random.Random(seed)
    before, calls = some_calls(chance), some_calls(chance)
    one_by_one, table = new_table(engine, before + calls), new_table(engine, before)
    version = table.refresh().version
    with table.writer(flush_ms=3_600_000) as writer:
        for call in calls:
            if call.values is None:
                writer.delete(call.keys)
            else:
                writer.send(call.rows)
    assert rows_by_id(table) == rows_by_id(one_by_one)
    assert table.refresh().version <= version + 1
