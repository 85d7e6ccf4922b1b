"""Promises of maintenance in every lake: the same rows at the same offsets, and nothing deleted that is needed."""

from __future__ import annotations

import importlib

import pyarrow as pa
import pytest

from interop.lake_cases import (
    EVENTS,
    PLAIN,
    by_bucket,
    event_rows,
    lake_of,
    sorted_rows,
    tier,
    write_round,
    written_files,
)
from kit.lake_rows import lake_rows
from streamhouse_spark import (
    CommitConflictError,
    InvalidOptionError,
    OffsetRange,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.lake.parquet.compaction import COMPACT_FILES_MIN
from streamhouse_spark.lake.types import COMMIT_USER

DAY_MS = 24 * 3600 * 1000


def rows_from(first: int, num_rows: int = 3) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def all_rows(lake) -> list[dict]:
    return sorted_rows(lake_rows(lake, lake.plan_read()))


def rows_by_offset(lake, bucket: int, wanted: OffsetRange) -> pa.Table:
    position = wanted.start
    batches = []
    for base, batch in lake.read_offsets(bucket, wanted):
        assert base == position
        position += batch.num_rows
        batches.append(batch)
    assert position == wanted.end
    return pa.Table.from_batches(batches)


def _keys(storage) -> set[str]:
    return {info.key for info in storage.list("lake/")}


@pytest.fixture(params=["iceberg", "paimon"])
def new_lake(request):
    """Makes a handle of the lake table, as another process would have it."""
    return lambda store, *args, **shape: lake_of(store, *args, lake_format=request.param, **shape)


@pytest.fixture
def module(request):
    return importlib.import_module(f"streamhouse_spark.lake.{request.node.callspec.params['new_lake']}.compaction")


@pytest.fixture
def lake(new_lake, memory, world):
    lake = new_lake(memory, world=world)
    for i in range(8):
        tier(lake, rows_from(3 * i))
    return lake


@pytest.fixture
def partitioned(request, new_lake, memory, world):
    """Seven rounds over two buckets and three days, and each bucket's rows in offset order."""
    lake = new_lake(memory, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2, world=world)
    lake_format = request.node.callspec.params["new_lake"]
    rounds = [by_bucket(event_rows(30, seed=i), "id", 2, lake_format) for i in range(7)]
    for rows in rounds:
        tier(lake, rows)
    return lake, {b: pa.concat_tables([r[b] for r in rounds if b in r]) for b in (0, 1)}


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_any_range_is_read_back_with_its_offsets(partitioned):
    lake, in_order = partitioned
    for bucket, rows in in_order.items():
        end = rows.num_rows
        for wanted in (OffsetRange(0, end), OffsetRange(1, 2), OffsetRange(17, end - 11), OffsetRange(end // 2, end)):
            assert rows_by_offset(lake, bucket, wanted).to_pylist() == rows.slice(wanted.start, len(wanted)).to_pylist()
        assert list(lake.read_offsets(bucket, OffsetRange(5, 5))) == []


def test_a_range_is_read_with_chosen_columns(partitioned):
    lake, in_order = partitioned
    amounts = lake.with_schema(lake.binding.spec.schema.select(["amount"]))
    batches = [b for _, b in amounts.read_offsets(1, OffsetRange(0, 20))]
    assert pa.Table.from_batches(batches).to_pylist() == in_order[1].slice(0, 20).select(["amount"]).to_pylist()


@pytest.mark.parametrize("wanted", [OffsetRange(0, 25), OffsetRange(24, 25), OffsetRange(100, 101)])
def test_a_range_beyond_the_lake_fails_before_the_first_row(lake, wanted):
    with pytest.raises(OffsetsTrimmedError, match="bucket 0"):
        lake.read_offsets(0, wanted)
    with pytest.raises(OffsetsTrimmedError, match="bucket 1"):
        lake.read_offsets(1, OffsetRange(0, 1))


def test_a_range_is_read_in_windows_smaller_than_files(partitioned, monkeypatch):
    monkeypatch.setattr("streamhouse_spark.lake.parquet.reader.BATCH_ROWS", 4)
    lake, in_order = partitioned
    got = rows_by_offset(lake, 0, OffsetRange(3, in_order[0].num_rows))
    assert got.to_pylist() == in_order[0].slice(3).to_pylist()


# -- compaction -------------------------------------------------------------------------------------------------------


def test_small_neighbours_become_one_file(request, lake, memory):
    before = all_rows(lake)
    keys = _keys(memory)
    planned = lake.compact(dry_run=True)
    assert (planned.files_removed, planned.rows, planned.snapshot) == (8, 24, None)
    assert _keys(memory) == keys
    report = lake.compact()
    assert (report.files_removed, report.files_added, report.rows) == (8, 1, 24)
    assert all_rows(lake) == before
    assert lake.newest() == report.snapshot
    assert report.snapshot.offsets == {0: 24}
    if request.node.callspec.params["new_lake"] == "iceberg":
        summary = lake.binding.load().metadata.current_snapshot().summary
        assert summary.operation.value == "replace"
        assert (summary["total-records"], summary["total-data-files"]) == ("24", "1")
    assert rows_by_offset(lake, 0, OffsetRange(5, 20))["id"].to_pylist() == list(range(5, 20))
    assert lake.compact().files_removed == 0
    tier(lake, rows_from(24))
    assert lake.newest().offsets == {0: 27}


def test_buckets_and_partitions_are_merged_apart(partitioned):
    lake, in_order = partitioned
    before = all_rows(lake)
    report = lake.compact()
    assert report.files_added == 6
    assert all_rows(lake) == before
    for bucket, rows in in_order.items():
        assert rows_by_offset(lake, bucket, OffsetRange(0, rows.num_rows)).to_pylist() == rows.to_pylist()
    assert len(lake.metadata_table("files")) == 6


def test_large_files_end_a_run(new_lake, memory):
    lake = new_lake(memory, target_file_bytes=4_500)
    for i in range(4):
        tier(lake, rows_from(3 * i))
    big = 12 + 2_000
    tier(lake, rows_from(12, 2_000))
    for i in range(COMPACT_FILES_MIN):
        tier(lake, rows_from(big + 3 * i))
    assert lake.compact().files_removed == COMPACT_FILES_MIN
    end = big + 3 * COMPACT_FILES_MIN
    assert rows_by_offset(lake, 0, OffsetRange(0, end))["id"].to_pylist() == list(range(end))


def test_a_truncated_lake_is_compacted_with_its_start(new_lake, memory):
    lake = new_lake(memory)
    tier(lake, rows_from(0))
    context = lake.write_context()
    lake.commit([], expected={0: 3}, new={0: 3}, context=context, starts={0: 3})
    for i in range(COMPACT_FILES_MIN):
        files, new = write_round(lake, {0: rows_from(3 + 3 * i)}, {0: 3 + 3 * i})
        lake.commit(
            files,
            expected={0: 3 + 3 * i},
            new=new,
            context=lake.write_context(),
            expected_starts={0: 3},
            starts={0: 3},
        )
    before = all_rows(lake)
    report = lake.compact()
    assert (report.snapshot.offsets, report.snapshot.starts) == ({0: 18}, {0: 3})
    assert all_rows(lake) == before
    with pytest.raises(OffsetsTrimmedError):
        lake.read_offsets(0, OffsetRange(0, 4))


def test_older_columns_read_null_from_a_compacted_file(new_lake, memory):
    from streamhouse_spark.schema.table_schema import TableSchema

    lake = new_lake(memory)
    for i in range(COMPACT_FILES_MIN):
        tier(lake, rows_from(3 * i))
    wider = new_lake(memory, TableSchema.of("id bigint, name string, more int"))
    tier(wider, pa.table({"id": [15], "name": ["n15"], "more": pa.array([7], pa.int32())}))
    with pytest.raises(CommitConflictError, match=r"has the columns more|are more besides"):
        lake.compact()
    assert wider.compact().files_removed == COMPACT_FILES_MIN + 1
    read = lake_rows(wider, wider.plan_read()).sort_by("id")
    assert read["id"].to_pylist() == list(range(16))
    assert read["more"].to_pylist() == [None] * 15 + [7]


def _during_the_merge(monkeypatch, module, do) -> None:
    """Do something once the files are merged and before they are committed."""
    merge = module.merge_group

    def merge_late(*args):
        merged = merge(*args)
        monkeypatch.setattr(module, "merge_group", merge)
        do()
        return merged

    monkeypatch.setattr(module, "merge_group", merge_late)


def test_a_round_that_lands_during_a_compaction_stays(lake, module, new_lake, memory, monkeypatch):
    _during_the_merge(monkeypatch, module, lambda: tier(new_lake(memory), rows_from(24)))
    report = lake.compact()
    assert report.snapshot.offsets == {0: 27}
    assert len(all_rows(lake)) == 27


def test_two_compactions_at_once_keep_every_row_once(lake, module, new_lake, memory, monkeypatch):
    _during_the_merge(monkeypatch, module, lambda: new_lake(memory).compact())
    with pytest.raises(CommitConflictError, match="no longer live"):
        lake.compact()
    assert sorted(row["id"] for row in all_rows(lake)) == list(range(24))


def test_a_truncation_that_lands_during_a_compaction_wins(lake, module, new_lake, memory, monkeypatch):
    def truncate() -> None:
        other = new_lake(memory)
        other.commit([], expected={0: 24}, new={0: 24}, context=other.write_context(), starts={0: 24})

    _during_the_merge(monkeypatch, module, truncate)
    with pytest.raises(CommitConflictError, match="no longer live"):
        lake.compact()
    assert all_rows(lake) == []


def test_maintenance_of_an_absent_lake_does_nothing(new_lake, memory, clock):
    lake = new_lake(memory)
    for _ in range(2):
        assert lake.compact().files_removed == 0
        assert lake.expire(keep_last=1, keep_ms=0).snapshots == ()
        assert lake.remove_orphans() == []
        assert lake.exists() == bool(memory.list("lake/")), "maintenance creates nothing"
        lake.create_or_evolve()
        clock.advance(2 * DAY_MS)


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_expiry_removes_old_snapshots_and_their_files(lake, memory, clock):
    lake.compact()
    before, keys, newest = all_rows(lake), _keys(memory), lake.newest()
    clock.advance(60_000)
    planned = lake.expire(keep_last=1, keep_ms=0, dry_run=True)
    assert _keys(memory) == keys
    report = lake.expire(keep_last=1, keep_ms=0)
    assert planned == report
    assert len(report.snapshots) == 8
    gone = {location.removeprefix(f"{memory.url}/") for location in report.files}
    assert gone <= keys - _keys(memory)
    assert len([key for key in gone if key.endswith(".parquet")]) == 8
    assert (lake.newest(), all_rows(lake)) == (newest, before)
    assert rows_by_offset(lake, 0, OffsetRange(0, 24))["id"].to_pylist() == list(range(24))
    assert lake.metadata_table("snapshots")["snapshot_id"].to_pylist() == [newest.id]
    for snapshot_id in report.snapshots:
        with pytest.raises(SnapshotExpiredError):
            lake.plan_read(snapshot_id=snapshot_id)
    tagged = lake.snapshot_by_name(COMMIT_USER)
    assert lake_rows(lake, lake.plan_read(snapshot_id=tagged.id)).num_rows == 24
    tier(lake, rows_from(24))
    assert len(all_rows(lake)) == 27


def test_expiry_keeps_what_is_young_or_among_the_last(lake, clock):
    clock.advance(10_000)
    assert lake.expire(keep_last=1, keep_ms=20_000).snapshots == ()
    assert len(lake.expire(keep_last=5, keep_ms=0).snapshots) == 3
    assert lake.expire(keep_last=5, keep_ms=0).snapshots == ()
    clock.advance(10_000)
    newest = tier(lake, rows_from(24))
    assert len(lake.expire(keep_last=0, keep_ms=5_000).snapshots) == 5
    assert lake.newest() == newest


def test_kept_snapshots_are_read_as_they_were(lake, clock):
    then = {i: all_rows(lake) for i in [lake.newest().id]}
    lake.compact()
    tier(lake, rows_from(24))
    then[lake.newest().id] = all_rows(lake)
    clock.advance(60_000)
    assert len(lake.expire(keep_last=3, keep_ms=0).snapshots) == 7
    for snapshot_id, rows in then.items():
        assert sorted_rows(lake_rows(lake, lake.plan_read(snapshot_id=snapshot_id))) == rows


def test_expiry_leaves_files_of_rounds_under_way(lake, clock):
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(24)}, {0: 24})
    clock.advance(60_000)
    lake.expire(keep_last=1, keep_ms=0)
    assert lake.commit(files, expected={0: 24}, new=new, context=context).offsets == {0: 27}
    assert len(all_rows(lake)) == 27


def test_a_snapshot_that_expired_before_an_offset_read(lake, clock):
    reader = lake.read_offsets(0, OffsetRange(0, 24))
    lake.compact()
    clock.advance(60_000)
    lake.expire(keep_last=1, keep_ms=0)
    with pytest.raises(SnapshotExpiredError, match="retry the query"):
        next(reader)


# -- orphans ----------------------------------------------------------------------------------------------------------


def _lost_round(lake, at: int):
    context = lake.write_context()
    rows = rows_from(at)
    files = written_files(lake, context, 0, OffsetRange(at, at + 3), ((at, b) for b in rows.to_batches()))
    return context, files


def test_files_of_a_lost_round_go_after_the_grace_and_nothing_else_does(lake, memory, clock):
    lake.compact()
    _, files = _lost_round(lake, 24)
    before = all_rows(lake)
    assert lake.remove_orphans() == []
    clock.advance(DAY_MS + 1)
    expected = [files[0].location.removeprefix(memory.url + "/")]
    assert lake.remove_orphans(dry_run=True) == expected
    assert memory.size_bytes(expected[0])
    assert lake.remove_orphans() == expected
    assert lake.remove_orphans() == []
    with pytest.raises(ObjectNotFoundError):
        memory.size_bytes(expected[0])
    assert all_rows(lake) == before
    for snapshot_id in lake.metadata_table("snapshots")["snapshot_id"].to_pylist():
        lake_rows(lake, lake.plan_read(snapshot_id=snapshot_id))
    assert lake.newest().offsets == {0: 24}
    assert rows_by_offset(lake, 0, OffsetRange(0, 24)).num_rows == 24


def test_a_lost_first_round_leaves_orphans(new_lake, memory, world, clock):
    lake = new_lake(memory, world=world)
    lake.create_or_evolve()
    _, files = _lost_round(lake, 0)
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans() == [files[0].location.removeprefix(memory.url + "/")]
    assert tier(lake, rows_from(0)).offsets == {0: 3}
    assert len(all_rows(lake)) == 3


def test_a_round_that_slept_through_cleaning_is_refused_and_a_new_one_goes_on(lake, clock):
    context, files = _lost_round(lake, 24)
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans()
    with pytest.raises(CommitConflictError):
        lake.commit(files, expected={0: 24}, new={0: 27}, context=context)
    tier(lake, rows_from(24))
    assert len(all_rows(lake)) == 27


def test_a_compaction_that_slept_through_cleaning_is_refused(lake, module, new_lake, memory, monkeypatch, clock):
    def clean() -> None:
        clock.advance(DAY_MS + 1)
        assert new_lake(memory, world=lake.binding.world).remove_orphans()

    _during_the_merge(monkeypatch, module, clean)
    with pytest.raises(CommitConflictError):
        lake.compact()
    assert len(all_rows(lake)) == 24


def test_what_an_interrupted_expiry_left_goes_after_the_grace(lake, memory, clock, monkeypatch):
    lake.compact()
    clock.advance(60_000)
    delete = memory.delete
    monkeypatch.setattr(memory, "delete", lambda key: None if key.endswith((".parquet", ".avro")) else delete(key))
    report = lake.expire(keep_last=1, keep_ms=0)
    monkeypatch.undo()
    left = {f.removeprefix(memory.url + "/") for f in report.files} & _keys(memory)
    assert len([key for key in left if key.endswith(".parquet")]) == 8
    clock.advance(DAY_MS + 1)
    before = all_rows(lake)
    assert left <= set(lake.remove_orphans())
    assert all_rows(lake) == before


def test_a_grace_that_protects_nobody_is_refused(lake):
    with pytest.raises(InvalidOptionError, match="grace"):
        lake.remove_orphans(grace_ms=1000)
