"""Cleaning deletes what no snapshot needs, and no round can commit a file that cleaning took."""

from __future__ import annotations

import pytest
from pyiceberg.table.update import SetPartitionStatisticsUpdate

from faults.sim import sim_world
from interop.lake_cases import lake_of, tier, written_files
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, LakeMismatchError, OffsetRange
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.storage.memory import MemoryStorage
from unit.lake.test_maintenance_contract import rows_from

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def place():
    world = sim_world(5)
    storage = MemoryStorage(world)
    lake = lake_of(storage, world=world)
    tier(lake, rows_from(0))
    return world.clock, storage, lake


def _lost_round(lake, at: int):
    context = lake.write_context()
    rows = rows_from(at)
    files = written_files(lake, context, 0, OffsetRange(at, at + 3), ((at, b) for b in rows.to_batches()))
    return context, files


def test_a_round_that_falls_asleep_between_its_check_and_its_commit_loses_to_cleaning(place, monkeypatch):
    clock, storage, lake = place
    context, files = _lost_round(lake, 3)
    catalog, cleaner = lake.binding.catalog, lake_of(storage, world=lake.binding.world)
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
    assert lake_rows(lake, lake.plan_read()).num_rows == 3


def test_statistics_of_other_engines_stay_while_they_are_named(place):
    clock, storage, lake = place
    folder = "lake/sales/orders/metadata"
    names = [f"{folder}/partition-stats-{i}.parquet" for i in range(2)]
    for name in names:
        storage.put(name, b"statistics")
    table, head = lake.binding.load(), lake.newest().id
    named = {"snapshot-id": head, "statistics-path": f"{table.location()}/metadata/partition-stats-0.parquet"}
    update = SetPartitionStatisticsUpdate.model_validate({"partition-statistics": {**named, "file-size-in-bytes": 10}})
    lake.binding.catalog.commit_table(table, (), (update,))
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans(dry_run=True) == names[1:]
    assert lake.remove_orphans() == names[1:]
    assert storage.read(names[0]) == b"statistics"


def test_files_of_a_table_that_is_anothers_stay(place):
    clock, _, lake = place
    _lost_round(lake, 3)
    with lake.binding.load().transaction() as transaction:
        transaction.set_properties({TABLE_UUID_PROPERTY: "f" * 32})
    clock.advance(DAY_MS + 1)
    with pytest.raises(LakeMismatchError, match="belongs to table ffff"):
        lake.remove_orphans()
