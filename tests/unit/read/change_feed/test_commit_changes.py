"""The range that CHANGES read, the times that they show, and one change a key and commit."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from kit.change_replay import changes, check_history
from kit.tables import TableCase, tier
from streamhouse_spark import InvalidOptionError, OffsetRange, OffsetsTrimmedError
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.datasource.scan.changes_clause import resolve_version_range
from streamhouse_spark.expressions.predicates import Compare
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.actions import ResetLake, Trim, Truncate
from streamhouse_spark.log.commit_reader import compute_display_times_us
from streamhouse_spark.log.segments.scan import plan_whole_range
from streamhouse_spark.read.change_feed.planning import commits_between, find_new_commits, plan_changes
from streamhouse_spark.read.change_rows import net_changes, split_changes
from streamhouse_spark.read.commit_ranges import CommitRange, CommitRanges
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ChangesScanTask, LogScanTask, OffsetsScanTask

INSERT, BEFORE, AFTER, DELETE = map(int, ChangeType)
TABLE = TableCase("t", "id BIGINT", buckets=1)


def append(table, number, rows=1):
    table.append([{"id": number}] * rows)


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer_time_ms", "after_us", "shown_us"),
    [
        ([], None, []),
        ([5, 6, 9], None, [5000, 6000, 9000]),
        ([5, 5, 5, 6], None, [5000, 5001, 5002, 6000]),
        ([9, 5, 9, 10], None, [9000, 9001, 9002, 10000]),
        ([5, 6], 4999, [5000, 6000]),
        ([5, 6], 5000, [5001, 6000]),
        ([5, 6], 7000, [7001, 7002]),
        ([], 7000, []),
    ],
)
def test_times_rise_from_commit_to_commit(writer_time_ms, after_us, shown_us):
    assert compute_display_times_us(writer_time_ms, after_us).tolist() == shown_us


def test_a_commit_has_one_time_wherever_the_range_begins(table, clock):
    for number in range(4):
        append(table, number)  # in the millisecond of the creation
    clock.advance(3)
    append(table, 4)
    shown = {c["_commit_version"]: c["_commit_timestamp"] for c in changes(table, 0, 6)}
    assert len(set(shown.values())) == 5
    for first in range(2, 7):
        assert changes(table, first, first)[0]["_commit_timestamp"] == shown[first]


# -- ranges -----------------------------------------------------------------------------------------------------------


def test_changes_are_bounded_by_versions_and_tags(table):
    append(table, 1)
    append(table, 2)
    table.create_tag("two", 2)
    state = table.refresh()
    both = (True, True)
    assert resolve_version_range(state, "2", None, includes=both) == (2, 4)
    assert resolve_version_range(state, "two", "3", includes=both) == (2, 3)
    assert resolve_version_range(state, "2", "3", includes=(False, True)) == (3, 3)
    assert resolve_version_range(state, "0", "3", includes=(True, False)) == (0, 2)
    assert resolve_version_range(state, "3", "3", includes=(False, False)) == (4, 2)
    for start, end in (("5", None), ("1", "5"), ("3", "2"), ("three", None), ("-1", None)):
        with pytest.raises(InvalidOptionError):
            resolve_version_range(state, start, end, includes=both)


def test_changes_are_bounded_by_commit_times(table, clock):
    times = [clock.now_ms()]
    for number, later_ms in enumerate([10, 0, 10]):
        clock.advance(later_ms)
        append(table, number)
        times.append(clock.now_ms())

    def range_of(start_ms, end_ms=None, includes=(True, True)):
        end_us = None if end_ms is None else end_ms * 1000
        return commits_between(table.storage, table.refresh(), start_ms * 1000, end_us, includes=includes)

    assert range_of(0) == (1, 4)
    assert range_of(times[1]) == (2, 4)
    assert range_of(times[1], includes=(False, True)) == (4, 4)
    assert range_of(times[1] + 1) == (4, 4)
    assert range_of(times[3] + 1) == (5, 4)
    assert range_of(0, times[1]) == (1, 3)
    assert range_of(0, times[1], includes=(True, False)) == (1, 1)
    assert range_of(0, times[0] - 1) == (1, 0)
    assert changes(table, *range_of(0, times[0] - 1)) == changes(table, *range_of(times[3] + 1)) == []


def test_a_clock_that_ran_ahead_is_corrected_by_the_next_commit(table, clock):
    now_ms = clock.now_ms()
    clock.jump(3_600_000)
    append(table, 1)
    clock.jump(-3_600_000)
    clock.advance(10)
    append(table, 2)
    state, both = table.refresh(), (True, True)
    assert commits_between(table.storage, state, 0, (now_ms + 10) * 1000, includes=both) == (1, 3)
    assert commits_between(table.storage, state, (now_ms + 11) * 1000, None, includes=both) == (4, 3)
    assert table.to_arrow(as_of_timestamp_ms=now_ms + 10).num_rows == 2
    shown = [change["_commit_timestamp"] for change in changes(table, 2, 3)]
    assert shown[0] < shown[1]


def test_records_that_are_gone(table):
    for number in range(90):
        append(table, number)
    newest = table.refresh().version
    for number in range(1, 12):
        table.storage.delete(commit_key(table.uuid, number))
    with pytest.raises(OffsetsTrimmedError, match=r"from version 11: .* first available version is 12$"):
        changes(table, 11, newest)
    with pytest.raises(OffsetsTrimmedError, match=r"from version 2: .* first available version is 12$"):
        changes(table, 2, 5)
    assert [c["id"] for c in changes(table, 12, 14)] == [10, 11, 12]
    with pytest.raises(OffsetsTrimmedError, match=r"first available version is 12$"):
        commits_between(table.storage, table.refresh(), 0, None, includes=(True, True))


# -- what no record tells ---------------------------------------------------------------------------------------------


def test_changes_of_a_commit_that_emptied_the_table_are_deletions(table):
    append(table, 1, rows=2)
    table.overwrite([{"id": 2}])
    append(table, 3)
    table.truncate()
    append(table, 4)

    def told(first, last, **how):
        return [(c["_commit_version"], c["id"], c["_change_type"]) for c in changes(table, first, last, **how)]

    of_third = [(3, 1, "delete"), (3, 1, "delete"), (3, 2, "insert")]
    assert told(3, 3) == of_third
    every = [(2, 1, "insert"), (2, 1, "insert"), *of_third, (4, 3, "insert"), (5, 2, "delete"), (5, 3, "delete")]
    assert told(1, 6) == [*every, (6, 4, "insert")]
    assert told(1, 2) == every[:2], "as they were before it"
    assert told(1, 6, is_net=True) == told(6, 6) == [(6, 4, "insert")]
    assert told(3, 6, is_net=True) == [(3, 1, "delete"), (3, 1, "delete"), (6, 4, "insert")]
    check_history(table)


def test_rows_from_before_a_commit_that_emptied_the_table_are_refused_once_they_are_gone(table):
    append(table, 1)
    tier(table)
    table.overwrite([{"id": 2}])
    overwritten = table.refresh().version
    assert [c["id"] for c in changes(table, overwritten, overwritten)] == [1, 2]
    tier(table)
    table.open_lake().expire(keep_last=1, keep_ms=0)
    for first in (1, overwritten):
        text = rf"commit {overwritten} \(overwrite\) removed all rows at once.*version {overwritten + 1}"
        with pytest.raises(InvalidOptionError, match=text):
            changes(table, first, table.refresh().version)
    append(table, 3)
    assert [c["id"] for c in changes(table, overwritten + 1, table.refresh().version)] == [3]


def test_a_truncation_of_nothing_is_no_change(table):
    table.log.commit(lambda *_: (Truncate({0: 0}),))
    append(table, 1)
    table.truncate()
    table.log.commit(lambda *_: (Truncate({0: 1}),))
    append(table, 2)
    assert table.refresh().version == 6
    assert [c["id"] for c in changes(table, 1, 3)] == [1]
    assert [c["id"] for c in changes(table, 5, 6)] == [2]


def test_rows_that_a_lake_built_anew_gave_up_are_refused(table):
    append(table, 1)
    table.log.commit(lambda state, _: (ResetLake("lake/elsewhere", {0: 1}),))
    with pytest.raises(InvalidOptionError, match=r"commit 3 \(retier\)"):
        changes(table, 1, 3)


def test_changes_before_a_truncation_have_the_current_columns(wh):
    table = wh.create_table("old", "id BIGINT, a INT, b INT", buckets=1)
    table.append([{"id": 1, "a": 5, "b": 6}])
    table.truncate()
    table.alter(drop_columns=["a"], rename_columns={"b": "c"}, add_columns="d STRING")
    assert [(c["id"], c["c"], c["d"]) for c in changes(table, 1, 2)] == [(1, 6, None)]


# -- one change a key -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "net"),
    [
        ([INSERT, BEFORE, AFTER], [(INSERT, 2)]),
        ([INSERT, DELETE], []),
        ([BEFORE, AFTER, DELETE], [(DELETE, 0)]),
        ([DELETE, INSERT], [(BEFORE, 0), (AFTER, 1)]),
        ([BEFORE, AFTER, BEFORE, AFTER], [(BEFORE, 0), (AFTER, 3)]),
        ([INSERT, DELETE, INSERT], [(INSERT, 2)]),
        ([DELETE, INSERT, DELETE], [(DELETE, 0)]),
    ],
)
def test_the_net_change_of_a_key(kinds, net):
    schema = pa.schema([pa.field("_change_type", pa.int8()), pa.field("id", pa.int64()), pa.field("n", pa.int64())])

    def of_key(key):
        columns = [pa.array(kinds, pa.int8()), pa.array([key] * len(kinds)), pa.array(range(len(kinds)))]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    together = pa.Table.from_batches([of_key(7), of_key(3)]).take(
        [i for j in range(len(kinds)) for i in (j, j + len(kinds))]
    )
    rows = net_changes(together.to_batches(), ["id"]).to_pylist()
    assert [(row["id"], row["_change_type"], row["n"]) for row in rows] == [
        (key, *one) for key in (3, 7) for one in net
    ]


# -- pieces -----------------------------------------------------------------------------------------------------------


def runs(*parts):
    return CommitRanges.of(
        CommitRange(OffsetSet.dense(start, n), version, version * 10, grouped) for start, n, version, grouped in parts
    )


def test_runs_find_the_commit_of_an_offset():
    found = runs((10, 5, 3, True), (0, 4, 2, False))
    assert found.num_rows == 9
    assert found.range == OffsetRange(0, 15)
    assert found.find(np.array([0, 3, 4, 9, 10, 14, 15])).tolist() == [0, 0, -1, -1, 1, 1, -1]
    assert [found.overlaps(OffsetRange(*r)) for r in ((3, 5), (4, 10), (9, 11), (15, 20))] == [True, False, True, False]
    part = found.within(OffsetRange(2, 12))
    assert (part.starts.tolist(), part.ends.tolist(), part.versions.tolist()) == ([2, 10], [4, 12], [2, 3])
    assert not found.within(OffsetRange(4, 10))
    read = CommitRanges.from_json(found.to_json())
    assert read.to_json() == found.to_json()
    assert read.is_grouped.tolist() == [False, True]


def test_pieces_travel_as_json(table):
    append(table, 1, 3)
    log = LogScanTask(plan_whole_range(table.refresh(), 0, OffsetRange(0, 3)))
    for rows in (log, OffsetsScanTask(0, OffsetRange(0, 3), 9)):
        piece = ChangesScanTask(rows, runs((0, 3, 2, True)), True, ("id",))
        read = type(piece).from_json(piece.to_json())
        assert isinstance(read, ChangesScanTask)
        assert read.to_json() == piece.to_json()
        assert (read.bucket, read.size_bytes) == (0, rows.size_bytes)


def test_a_large_piece_is_cut_between_commits_that_are_grouped(table):
    for number in range(12):
        append(table, number, 1000)
    state = table.refresh()
    log = LogScanTask(plan_whole_range(state, 0, OffsetRange(0, 12_000)))
    ranges = [(0, 2000, 2, False), (2000, 3000, 3, True), (5000, 1000, 4, False), (6000, 6000, 5, True)]
    piece = ChangesScanTask(log, runs(*ranges), key=("id",))
    parts = list(split_changes(piece, log.size_bytes // 12))
    ends = [part.rows.split.offsets.end for part in parts]
    assert ends == [1000, 2000, 5000, 6000, 12_000]
    assert sum(part.commits.num_rows for part in parts) == 12_000
    assert [s.base_offset for part in parts for s in part.rows.split.segments] == list(range(0, 12_000, 1000))
    assert list(split_changes(piece, log.size_bytes)) == [piece]


def test_segments_are_left_out_by_filters_and_commits(wh):
    table = wh.create_table("parts", "id BIGINT, n INT", buckets=1, partition_by=["id"])
    for number in range(5):
        append(table, number)
    state = table.refresh()

    def segments(first, last, pruning=Pruning()):  # noqa: B008 - immutable
        pieces = plan_changes(table, state, first, last, pruning).tasks
        return [s.base_offset for piece in pieces for s in piece.rows.split.segments]

    assert segments(1, 6) == [0, 1, 2, 3, 4]
    assert segments(3, 4) == [1, 2]
    assert segments(1, 6, Pruning(Compare("=", "id", 3))) == [3]
    assert segments(1, 1) == []


def test_deleted_rows_are_looked_for_where_they_are(table):
    for number in range(5):
        append(table, number)
    table.delete(where=[("id", "in", [0, 4])])
    version = table.refresh().version
    (piece,) = plan_changes(table, table.state, version, version, Pruning()).tasks
    assert piece.is_deleted
    assert [s.base_offset for s in piece.rows.split.segments] == [0, 4]
    assert [(c["id"], c["_change_type"]) for c in changes(table, version, version)] == [(0, "delete"), (4, "delete")]
    check_history(table)


def test_rows_of_a_dropped_partition_are_deleted(wh):
    table = wh.create_table("parts", "id BIGINT, day INT", buckets=1, partition_by=["day"])
    table.append([{"id": number, "day": number % 2} for number in range(4)])
    table.delete(where=[("id", "=", 3)])
    table.drop_partition({"day": 1})
    dropped = table.refresh().version
    assert [(c["id"], c["_change_type"]) for c in changes(table, dropped, dropped)] == [(1, "delete")]
    assert find_new_commits(table, table.state, dropped, dropped, None).commit == dropped
    table.append([{"id": 5, "day": 1}])
    check_history(table)


def test_a_partition_whose_rows_the_log_did_not_have_is_refused_once_the_lake_does_not_tell_them(wh):
    table = wh.create_table("parts", "id BIGINT, day INT", buckets=1, partition_by=["day"])
    table.append([{"id": number, "day": number % 2} for number in range(4)])
    table.drop_partition({"day": 5})
    table.log.commit(lambda *_: [Trim({0: 2})])
    table.drop_partition({"day": 1})
    dropped = table.refresh().version
    assert [(c["id"], c["_change_type"]) for c in changes(table, dropped, dropped)] == [(1, "delete"), (3, "delete")]
    table.open_lake().expire(keep_last=1, keep_ms=0)
    with pytest.raises(InvalidOptionError, match=f"commit {dropped} .*removed rows from the lake that no record names"):
        changes(table, dropped, dropped)


def test_a_log_without_images_of_updates_is_refused(wh):
    wal = {"table.changelog.image": "wal"}
    table = wh.create_table("wal", "id BIGINT, n INT", primary_key=["id"], buckets=1, properties=wal)
    table.upsert([{"id": 1, "n": 1}])
    with pytest.raises(InvalidOptionError, match=re.escape("wal$changelog")):
        changes(table, 1, 2)
