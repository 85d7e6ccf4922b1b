"""Cleaning deletes what no snapshot needs, and no round can commit a file that cleaning took."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.sim import sim_world
from interop.lake_cases import PLAIN, lake_of, tier
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.storage_memory import MemoryStorage

DAY_MS = 24 * 3600 * 1000


def _rows(first: int, num_rows: int = 3) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


@pytest.fixture
def place():
    world = sim_world(5)
    storage = MemoryStorage(world)
    lake = lake_of(storage, world=world)
    tier(lake, _rows(0))
    return world.clock, storage, lake


def _lost_round(lake, at: int):
    context = lake.write_context()
    rows = _rows(at)
    files = lake.write_files(context, 0, OffsetRange(at, at + 3), ((at, b) for b in rows.to_batches()))
    return context, files


def test_a_round_that_falls_asleep_between_its_check_and_its_commit_loses_to_cleaning(place, monkeypatch):
    clock, storage, lake = place
    context, files = _lost_round(lake, 3)
    catalog, cleaner = lake.place.catalog, lake_of(storage, world=lake.place.world)
    commit_table = catalog.commit_table

    def asleep(*arguments):
        monkeypatch.undo()
        clock.advance(DAY_MS + 1)
        assert len(cleaner.remove_orphans()) >= 1
        return commit_table(*arguments)

    monkeypatch.setattr(catalog, "commit_table", asleep)
    with pytest.raises(CommitConflictError):
        lake.commit(files, expected={0: 3}, new={0: 6}, context=context)
    assert lake.newest().offsets == {0: 3}
    assert lake.to_arrow(lake.plan_read()).num_rows == 3
