"""Compaction of an Iceberg lake next to files and deletes of other engines, old metadata, and file footers."""

from __future__ import annotations

import pytest

from interop.lake_cases import lake_of, tier
from streamhouse_spark import CommitConflictError, OffsetRange, OffsetsTrimmedError
from streamhouse_spark.lake.iceberg.compaction import COMPACT_FILES_MIN
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.parquet.reader import read_file_offsets
from unit.lake.test_maintenance_contract import all_rows, rows_by_offset, rows_from


@pytest.fixture
def lake(store, world) -> IcebergLake:
    lake = lake_of(store, world=world)
    for i in range(8):
        tier(lake, rows_from(3 * i))
    return lake


def _locations(lake: IcebergLake) -> set[str]:
    return set(lake.metadata_table("files")["file_path"].to_pylist())


def test_a_range_that_another_engine_rewrote_is_refused(lake):
    table = lake.binding.load()
    table.delete("id = 4")
    with pytest.raises(OffsetsTrimmedError, match="from 3, because"):
        lake.read_offsets(0, OffsetRange(0, 24))
    assert rows_by_offset(lake, 0, OffsetRange(6, 24))["id"].to_pylist() == list(range(6, 24))


def test_files_of_other_engines_are_left_alone(lake):
    table, mine = lake.binding.load(), _locations(lake)
    for _ in range(COMPACT_FILES_MIN):
        table.append(rows_from(900).cast(table.schema().as_arrow()))
    foreign = _locations(lake) - mine
    before = all_rows(lake)
    lake.compact()
    assert foreign <= _locations(lake)
    assert all_rows(lake) == before


def test_a_delete_that_lands_during_a_compaction_wins(lake, store, monkeypatch):
    import streamhouse_spark.lake.iceberg.compaction as module

    merge = module.merge_group

    def merge_late(*args):
        merged = merge(*args)
        lake_of(store).binding.load().delete("id = 4")
        return merged

    monkeypatch.setattr(module, "merge_group", merge_late)
    with pytest.raises(CommitConflictError, match="no longer live"):
        lake.compact()
    assert 4 not in [row["id"] for row in all_rows(lake)]


def test_old_metadata_versions_go_a_day_later(lake, store, clock):
    assert lake.prune_metadata() == []
    if store.local_path("x") is not None:
        return  # files have real times
    clock.advance(25 * 60 * 60 * 1000)
    assert len(lake.prune_metadata()) == 8
    assert lake.newest().offsets == {0: 24}


def test_footers_tell_bucket_and_offsets(lake):
    (location, *_) = sorted(_locations(lake))
    files = lake.binding.files_at(location)
    found = read_file_offsets(files, location, ("0123456789abcdef0123456789abcdef",))
    assert (found.bucket, found.runs.range) == (0, OffsetRange(0, 3))
    assert read_file_offsets(files, location, ("f" * 32,)) is None
