"""Changes that only the archive has, as each reader sees them: ranges, times, tails, the binlog and CHANGES."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from kit.change_replay import changes
from streamhouse_spark import CorruptDataError, OffsetRange, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.config.spark_options import parse_read_options, parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import commit_key, segment_key
from streamhouse_spark.datasource.read.read_target import batch_ranges
from streamhouse_spark.datasource.stream.bootstrap import initial_offset, needs_bootstrap
from streamhouse_spark.log.archive import maintenance
from streamhouse_spark.log.archive.pages import read_page
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS
from streamhouse_spark.read.change_feed.planning import commits_between, find_new_commits, plan_changes
from streamhouse_spark.read.offset_scan import plan_binlog_tasks, plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ArchiveScanTask, LogScanTask, ScanPlan
from streamhouse_spark.read.split_planning import split_binlog
from streamhouse_spark.table.system_views import open_view

HOUR_MS = 3_600_000
KEEPING = {
    "table.datalake.enabled": "false",
    "table.log.ttl": "1h",
    "table.changelog.retention": "100h",
}


@pytest.fixture
def table(wh, clock):
    """One bucket: the changes of versions 2, 3 and 4, an hour apart, are archived; that of the last is hot."""
    table = wh.create_table("t", "id BIGINT, n INT", primary_key=["id"], buckets=1, properties=KEEPING)
    for number in range(3):
        table.upsert([{"id": 1, "n": number}, {"id": 10 + number, "n": 0}])
        clock.advance(HOUR_MS)
    clock.advance(HOUR_MS)
    assert table.maintain().trimmed_to == {0: 8}
    table.upsert([{"id": 1, "n": 9}])
    return table


def read(table, offsets, columns=("id", "n")):
    plan = plan_ranges(table, table.refresh(), {0: offsets}, columns, fail_on_data_loss=True)
    plan = ScanPlan.from_json(json.loads(json.dumps(plan.to_json())))
    return plan, [row for batch in read_batches(table, plan, CHANGELOG_FIELDS) for row in batch.to_pylist()]


def shown(rows):
    return [(row["_log_offset"], row["_change_type"], row["id"], row["n"]) for row in rows]


ALL = [
    (0, "insert", 1, 0),
    (1, "insert", 10, 0),
    (2, "update_before", 1, 0),
    (3, "update_after", 1, 1),
    (4, "insert", 11, 0),
    (5, "update_before", 1, 1),
    (6, "update_after", 1, 2),
    (7, "insert", 12, 0),
    (8, "update_before", 1, 2),
    (9, "update_after", 1, 9),
]


class TestRanges:
    @pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 3), (1, 2), (3, 9), (8, 10), (5, 5)])
    def test_they_are_read_from_archive_and_log(self, table, start, end):
        plan, rows = read(table, OffsetRange(start, end))
        assert shown(rows) == ALL[start:end]
        kinds = [type(piece) for piece in plan.tasks]
        assert kinds == [ArchiveScanTask] * (start < min(end, 8)) + [LogScanTask] * (end > max(start, 8))

    def test_times_of_commits_stay(self, table, clock):
        _, rows = read(table, OffsetRange(0, 10))
        times = [row["_commit_timestamp"] for row in rows]
        assert times[0] == times[1]
        assert times[2] - times[1] == times[5] - times[4] == dt.timedelta(hours=1)

    def test_large_ones_are_cut(self, table, monkeypatch):
        monkeypatch.setattr("streamhouse_spark.read.offset_scan.LAKE_RANGE_ROWS", 3)
        plan, rows = read(table, OffsetRange(1, 10))
        assert [len(piece.offsets) for piece in plan.tasks if isinstance(piece, ArchiveScanTask)] == [3, 3, 1]
        assert shown(rows) == ALL[1:]

    def test_a_reader_goes_on_while_pages_are_joined_and_the_log_is_trimmed(self, table, clock, monkeypatch):
        plan = plan_ranges(table, table.refresh(), {0: OffsetRange(0, 10)}, ("id", "n"), fail_on_data_loss=True)
        monkeypatch.setattr(maintenance, "PAGES_TO_JOIN", 2)
        clock.advance(2 * HOUR_MS)
        assert table.maintain().trimmed_to == {0: 10}
        assert len(table.refresh().archive.pages) == 1

        def rows():
            return [row for batch in read_batches(table, plan, CHANGELOG_FIELDS) for row in batch.to_pylist()]

        assert shown(rows()) == ALL
        clock.advance(GRACE_MS + 1)
        table.maintain()
        with pytest.raises(SnapshotExpiredError, match="merged or expired"):
            rows()
        assert shown(read(table, OffsetRange(0, 10))[1]) == ALL

    def test_a_missing_file_is_damage(self, table):
        page = table.refresh().archive.pages[0].uuid
        for segment in read_page(table.storage, table.state, page).segments:
            table.storage.delete(segment_key(table.uuid, segment.uuid))
        with pytest.raises(CorruptDataError, match=r"change archive of default\.t is missing; restore it"):
            read(table, OffsetRange(0, 3))

    def test_columns_are_those_of_now(self, table):
        table.add_columns("c STRING")
        table.rename_column("n", "number")
        table.widen_column("number", "BIGINT")
        _, rows = read(table, OffsetRange(0, 10), ("c", "id", "number"))
        assert [(r["_log_offset"], r["_change_type"], r["id"], r["number"]) for r in rows] == ALL
        assert {row["c"] for row in rows} == {None}

    def test_offsets_before_the_archive_are_refused(self, table, clock):
        for _ in range(2):
            clock.advance(101 * HOUR_MS)
            table.upsert([{"id": 1, "n": 3}])
            table.maintain()
        with pytest.raises(OffsetsTrimmedError, match=r"offsets \[0, \d+\) of bucket 0 were trimmed"):
            read(table, OffsetRange(0, 14))


class TestStarts:
    def test_the_earliest_change_is_in_the_archive(self, table):
        state = table.refresh()
        for spec in ({}, {"startingoffsets": "earliest"}, {"startingoffsets": '{"0": -2}'}):
            assert batch_ranges(state, parse_read_options({**spec, "endingoffsets": "latest"})) == {
                0: OffsetRange(0, 10)
            }
        options = parse_stream_read_options({})
        assert not needs_bootstrap(state, options), "every change is there"
        assert initial_offset(state, options).offsets == {0: 0}

    @pytest.mark.parametrize(("hours", "offset"), [(0, 0), (0.5, 2), (1, 2), (2, 5), (2.1, 8), (4, 8), (9, 10)])
    def test_a_start_time_resolves_to_archived_offsets(self, table, clock, hours, offset):
        state = table.refresh()
        time_ms = int(state.created_ms + hours * HOUR_MS)
        options = parse_read_options({"startingtimestamp": str(time_ms)})
        found = batch_ranges(state, options, table.storage)
        assert found == ({0: OffsetRange(offset, 10)} if offset < 10 else {})
        start = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
        rows = [row for batch in table.tail(start, include_metadata=True, until_ms=0) for row in batch.to_pylist()]
        assert shown(rows) == ALL[offset:] or [r["_log_offset"] for r in rows] == list(range(offset, 10))

    def test_times_before_the_archive_are_not_known(self, table, clock):
        created_ms = table.refresh().created_ms
        for _ in range(2):
            clock.advance(101 * HOUR_MS)
            table.upsert([{"id": 1, "n": 3}])
            table.maintain()
        options = parse_read_options({"startingtimestamp": str(created_ms + HOUR_MS)})
        with pytest.raises(OffsetsTrimmedError):
            batch_ranges(table.refresh(), options, table.storage)

    def test_a_tail_begins_in_the_archive(self, table):
        for start, first in (("earliest", 0), ({0: 3}, 3), ({}, 0)):
            tail = table.tail(start, include_metadata=True, until_ms=0)
            assert [row["_log_offset"] for batch in tail for row in batch.to_pylist()] == list(range(first, 10))
            assert tail.position[0] == 10

    def test_changelog_and_binlog_have_archived_changes(self, table):
        assert shown(open_view(table, "changelog").to_arrow().to_pylist()) == ALL
        binlog = open_view(table, "binlog").to_arrow().to_pylist()
        assert [
            (r["_change_type"], r["after"] and r["after"]["n"]) for r in binlog if r["_change_type"] == "update"
        ] == [
            ("update", 1),
            ("update", 2),
            ("update", 9),
        ]
        (piece,) = plan_binlog_tasks(table.refresh())
        assert type(piece).from_json(json.loads(json.dumps(piece.to_json()))) == piece
        plan = ScanPlan(table.name, table.uuid, table.state.schema, (piece,))
        assert [row for batch in read_batches(table, plan) for row in batch.to_pylist()] == binlog


TOLD = [
    (2, "insert", 1, 0),
    (2, "insert", 10, 0),
    (3, "update_preimage", 1, 0),
    (3, "update_postimage", 1, 1),
    (3, "insert", 11, 0),
    (4, "update_preimage", 1, 1),
    (4, "update_postimage", 1, 2),
    (4, "insert", 12, 0),
]


def test_a_stream_of_the_binlog_takes_archive_and_log(table):
    plan = plan_ranges(table, table.refresh(), {0: OffsetRange(2, 10)}, ("id", "n"), fail_on_data_loss=True)
    (part,) = split_binlog(plan, {0: 3})
    rows = [row for batch in read_batches(table, part) for row in batch.to_pylist()]
    assert [(row["before"] and row["before"]["n"], row["after"]["n"]) for row in rows] == [
        (0, 1),
        (None, 0),
        (1, 2),
        (None, 0),
        (2, 9),
    ]


class TestCommits:
    """CHANGES, whose records are gone too."""

    @pytest.fixture
    def forgotten(self, table):
        for number in range(1, table.refresh().archive.last_commit + 1):
            table.storage.delete(commit_key(table.uuid, number))
        return table

    def told(self, table, first, last=None):
        rows = changes(table, first, last or table.refresh().version)
        return [(row["_commit_version"], row["_change_type"], row["id"], row["n"]) for row in rows]

    def test_they_are_told_by_the_archive(self, forgotten):
        newest = forgotten.refresh().version
        last = [(newest, "update_preimage", 1, 2), (newest, "update_postimage", 1, 9)]
        for first in (1, 2, 3, 4):
            assert self.told(forgotten, first) == [c for c in TOLD if c[0] >= first] + last
        assert self.told(forgotten, 3, 3) == [c for c in TOLD if c[0] == 3]
        assert self.told(forgotten, 5) == last

    def test_times_are_those_that_the_records_told(self, table):
        version = table.refresh().version

        def times():
            return [(row["_commit_version"], row["_commit_timestamp"]) for row in changes(table, 2, version)]

        before = times()
        for number in range(1, table.refresh().archive.last_commit + 1):
            table.storage.delete(commit_key(table.uuid, number))
        assert times() == before
        state = table.refresh()
        last_us = int(before[-1][1].timestamp() * 1e6)
        plan = plan_changes(table, state, 3, version, Pruning(), after_us=last_us)
        after = sorted({int(t) for piece in plan.tasks for t in piece.commits.times_us})
        assert len(after) == 3
        assert after[0] > last_us

    def test_changes_between_times_come_from_the_archive(self, forgotten, clock):
        state, both = forgotten.refresh(), (True, True)
        at = [state.created_ms + hours * HOUR_MS for hours in range(5)]

        def range_of(start_ms, end_ms=None, includes=both):
            end_us = None if end_ms is None else end_ms * 1000
            return commits_between(forgotten.storage, state, start_ms * 1000, end_us, includes=includes)

        assert range_of(at[0]) == (2, state.version)
        assert range_of(at[1]) == (3, state.version)
        assert range_of(at[1], includes=(False, True))[0] == 4
        assert range_of(at[1], at[2]) == (3, 4)
        assert range_of(at[1], at[2], includes=(True, False)) == (3, 3)
        assert range_of(at[2] + 1, at[3])[0] > 4

    def test_a_stream_hears_of_them(self, forgotten):
        state = forgotten.refresh()
        assert find_new_commits(forgotten, state, 2, 3, None)[:2] == (3, None)
        assert find_new_commits(forgotten, state, 2, state.version, None).commit == state.version
        assert find_new_commits(forgotten, state, 4, state.archive.last_commit, None).commit == 4

    def test_those_before_the_archive_are_refused(self, table, clock):
        for _ in range(2):
            clock.advance(101 * HOUR_MS)
            table.upsert([{"id": 1, "n": 3}])
            table.maintain()
        first = table.refresh().archive.first_commit
        assert first > 4
        for number in range(1, table.refresh().archive.last_commit + 1):
            table.storage.delete(commit_key(table.uuid, number))
        with pytest.raises(OffsetsTrimmedError, match=rf"the first available version is {first}$"):
            changes(table, 2, table.state.version)
        assert changes(table, first, table.state.version)
