"""Cleaning deletes what no snapshot needs, and no round can commit a file that cleaning took."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.sim import sim_world
from interop.lake_cases import PLAIN, lake_of, tier
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, ObjectNotFoundError
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


def test_files_of_a_lost_round_go_after_the_grace_and_nothing_else_does(place):
    clock, storage, lake = place
    _, files = _lost_round(lake, 3)
    assert lake.remove_orphans() == []
    clock.advance(DAY_MS + 1)
    expected = [files[0].location.removeprefix(storage.url + "/")]
    assert lake.remove_orphans(dry_run=True) == expected
    assert storage.size_bytes(expected[0])
    assert lake.remove_orphans() == expected
    assert lake.remove_orphans() == []
    with pytest.raises(ObjectNotFoundError):
        storage.size_bytes(expected[0])
    assert lake.to_arrow(lake.plan_read()).num_rows == 3


def test_a_round_that_slept_through_cleaning_is_refused_and_a_new_one_goes_on(place):
    clock, _, lake = place
    context, files = _lost_round(lake, 3)
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans()
    with pytest.raises(CommitConflictError):
        lake.commit(files, expected={0: 3}, new={0: 6}, context=context)
    tier(lake, _rows(3))
    assert lake.to_arrow(lake.plan_read()).num_rows == 6


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


def test_a_grace_that_protects_nobody_is_refused(place):
    with pytest.raises(InvalidOptionError, match="grace"):
        place[2].remove_orphans(grace_ms=1000)
