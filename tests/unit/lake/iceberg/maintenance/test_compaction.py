"""Merging small files keeps rows, offsets and order; expiry removes what nothing needs and nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from interop.lake_cases import EVENTS, PLAIN, by_bucket, event_rows, lake_of, sorted_rows, tier
from kit.lake_rows import lake_rows
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError
from streamhouse_spark.lake.iceberg.maintenance.compaction import COMPACT_FILES_MIN
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.parquet.reader import offset_file


def _rows(first: int, num_rows: int = 3) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _read(lake: IcebergLake) -> list[dict]:
    return sorted_rows(lake_rows(lake, lake.plan_read()))


def _by_offset(lake: IcebergLake, bucket: int, wanted: OffsetRange) -> pa.Table:
    position = wanted.start
    batches = []
    for base, batch in lake.read_offsets(bucket, wanted):
        assert base == position
        position += batch.num_rows
        batches.append(batch)
    assert position == wanted.end
    return pa.Table.from_batches(batches)


def _locations(lake: IcebergLake) -> set[str]:
    return set(lake.metadata_table("files")["file_path"].to_pylist())


@pytest.fixture
def lake(store, world) -> IcebergLake:
    lake = lake_of(store, world=world)
    for i in range(8):
        tier(lake, _rows(3 * i))
    return lake


@pytest.fixture
def partitioned(store, world) -> tuple[IcebergLake, dict[int, pa.Table]]:
    """Seven rounds over two buckets and three days, and each bucket's rows in offset order."""
    lake = lake_of(store, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2, world=world)
    rounds = [by_bucket(event_rows(30, seed=i), "id", 2) for i in range(7)]
    for rows in rounds:
        tier(lake, rows)
    return lake, {b: pa.concat_tables([r[b] for r in rounds if b in r]) for b in (0, 1)}


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_any_range_is_read_back_with_its_offsets(partitioned):
    lake, in_order = partitioned
    for bucket, rows in in_order.items():
        end = rows.num_rows
        for wanted in (OffsetRange(0, end), OffsetRange(1, 2), OffsetRange(17, end - 11), OffsetRange(end // 2, end)):
            assert _by_offset(lake, bucket, wanted).to_pylist() == rows.slice(wanted.start, len(wanted)).to_pylist()
        assert list(lake.read_offsets(bucket, OffsetRange(5, 5))) == []


def test_columns_of_a_range(partitioned):
    lake, in_order = partitioned
    amounts = lake.with_schema(lake.place.spec.schema.select(["amount"]))
    batches = [b for _, b in amounts.read_offsets(1, OffsetRange(0, 20))]
    assert pa.Table.from_batches(batches).to_pylist() == in_order[1].slice(0, 20).select(["amount"]).to_pylist()


@pytest.mark.parametrize("wanted", [OffsetRange(0, 25), OffsetRange(24, 25), OffsetRange(100, 101)])
def test_a_range_beyond_the_lake_is_refused_before_the_first_row(lake, wanted):
    with pytest.raises(OffsetsTrimmedError, match="bucket 0"):
        lake.read_offsets(0, wanted)
    with pytest.raises(OffsetsTrimmedError, match="bucket 1"):
        lake.read_offsets(1, OffsetRange(0, 1))


def test_a_range_that_another_engine_rewrote_is_refused(lake):
    table = lake.place.load()
    table.delete("id = 4")
    with pytest.raises(OffsetsTrimmedError, match="from 3 on"):
        lake.read_offsets(0, OffsetRange(0, 24))
    assert _by_offset(lake, 0, OffsetRange(6, 24))["id"].to_pylist() == list(range(6, 24))


def test_windows_are_smaller_than_files(partitioned, monkeypatch):
    import streamhouse_spark.lake.parquet.reader as read

    monkeypatch.setattr(read, "BATCH_ROWS", 4)
    lake, in_order = partitioned
    got = _by_offset(lake, 0, OffsetRange(3, in_order[0].num_rows))
    assert got.to_pylist() == in_order[0].slice(3).to_pylist()


# -- compaction -------------------------------------------------------------------------------------------------------


def test_small_neighbours_become_one_file(lake):
    before = _read(lake)
    planned = lake.compact(dry_run=True)
    assert (planned.files_removed, planned.rows, planned.snapshot) == (8, 24, None)
    report = lake.compact()
    assert (report.files_removed, report.files_added, report.rows) == (8, 1, 24)
    assert _read(lake) == before
    assert report.snapshot.offsets == {0: 24}
    assert _by_offset(lake, 0, OffsetRange(5, 20))["id"].to_pylist() == list(range(5, 20))
    summary = lake.place.load().metadata.current_snapshot().summary
    assert summary.operation.value == "replace"
    assert (summary["total-records"], summary["total-data-files"]) == ("24", "1")
    assert lake.compact().files_removed == 0
    tier(lake, _rows(24))
    assert lake.newest().offsets == {0: 27}


def test_files_of_other_engines_are_left_alone(lake):
    table, mine = lake.place.load(), _locations(lake)
    for _ in range(COMPACT_FILES_MIN):
        table.append(_rows(900).cast(table.schema().as_arrow()))
    foreign = _locations(lake) - mine
    before = _read(lake)
    lake.compact()
    assert foreign <= _locations(lake)
    assert _read(lake) == before


def test_a_delete_that_lands_during_a_compaction_wins(lake, store, monkeypatch):
    import streamhouse_spark.lake.iceberg.maintenance.compaction as module

    merge = module.merge_group

    def merge_late(*args):
        merged = merge(*args)
        lake_of(store).place.load().delete("id = 4")
        return merged

    monkeypatch.setattr(module, "merge_group", merge_late)
    with pytest.raises(CommitConflictError, match="no longer live"):
        lake.compact()
    assert 4 not in [row["id"] for row in _read(lake)]


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_expiry_removes_old_snapshots_and_their_files(lake, store, world, clock):
    lake.compact()
    before, kept_files = _read(lake), _locations(lake)
    clock.advance(60_000)
    planned = lake.expire(keep_last=1, keep_ms=0, dry_run=True)
    report = lake.expire(keep_last=1, keep_ms=0)
    assert planned == report
    metadata = lake.place.load().metadata
    assert len(report.snapshots) == 8
    assert {s.snapshot_id for s in metadata.snapshots} == {r.snapshot_id for r in metadata.refs.values()}
    assert _read(lake) == before
    assert kept_files <= _locations(lake)
    assert lake.newest().offsets == {0: 24}
    for location in report.files:
        assert location.removeprefix(f"{store.url}/") not in {info.key for info in store.list("lake/")}
    tagged = lake.snapshot_by_name("__streamhouse_lake_tiering")
    assert lake_rows(lake, lake.plan_read(snapshot_id=tagged.id)).num_rows == 24


def test_old_metadata_versions_go_a_day_later(lake, store, clock):
    assert lake.prune_metadata() == []
    if store.local_path("x") is not None:
        return  # files have real times
    clock.advance(25 * 60 * 60 * 1000)
    assert len(lake.prune_metadata()) == 8
    assert lake.newest().offsets == {0: 24}


def test_footers_tell_bucket_and_offsets(lake):
    (location, *_) = sorted(_locations(lake))
    files = lake.place.files_at(location)
    found = offset_file(files, location, ("0123456789abcdef0123456789abcdef",))
    assert (found.bucket, found.runs.range) == (0, OffsetRange(0, 3))
    assert offset_file(files, location, ("f" * 32,)) is None
