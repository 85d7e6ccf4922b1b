"""Upkeep of the change archive: the pages that it makes, joins and drops, and the files that they leave behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.tables import TableCase
from streamhouse_spark import CorruptDataError, OffsetsTrimmedError
from streamhouse_spark.core.warehouse_layout import commit_key, manifest_key, manifests_prefix, segments_prefix
from streamhouse_spark.log.actions import NO_ARCHIVE, KvSnapshot, Trim
from streamhouse_spark.log.archive import maintenance
from streamhouse_spark.log.archive.maintenance import update_archive
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys, find_usable_archive, first_change_offsets, read_page
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, clean
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.auto_compaction import compact_inline_rows

HOUR_MS = 3_600_000
KEEPING = {
    "table.datalake.enabled": "false",
    "table.log.ttl": "2h",
    "table.changelog.retention": "100h",
}
TABLE = TableCase("t", "id BIGINT, n INT", primary_key=["id"], buckets=2, properties=KEEPING)


def put(table, *numbers, n=0):
    table.upsert([{"id": number, "n": n} for number in numbers])


def kept(table) -> list[tuple]:
    rows = open_view(table, "changelog").to_arrow().to_pylist()
    return sorted((row["id"], row["n"], row["_change_type"]) for row in rows)


def archive(table, hours=100) -> int:
    return update_archive(table.log, table.storage, table.world, table.segment_options(), hours * HOUR_MS)


def pages(table):
    return table.refresh().archive.pages


class TestMaintenance:
    def test_changes_outlive_the_log(self, table, clock):
        put(table, 1, 2, 3)
        put(table, 1, n=1)
        before = kept(table)
        clock.advance(3 * HOUR_MS)
        report = table.maintain()
        assert report.archived == 5
        assert sum(report.trimmed_to.values()) == 5
        assert kept(table) == before
        assert all(not log.segments for log in table.refresh().buckets.values())
        put(table, 2, n=5)
        assert kept(table) == sorted([*before, (2, 0, "update_before"), (2, 5, "update_after")])

    def test_without_news_nothing_is_written(self, table):
        put(table, 1)
        assert table.maintain().archived == 1
        version = table.refresh().version
        assert archive(table) == 0
        assert table.refresh().version == version

    def test_the_log_is_never_trimmed_further(self, table, clock):
        put(table, 1, 2, 3)
        table.maintain()
        put(table, 4, 5, 6)
        clock.advance(3 * HOUR_MS)
        state = table.refresh()
        starts = plan_trim(replace(state, snapshots=_snapshots(state)), clock.now_ms(), HOUR_MS, lake_enabled=False)
        assert starts == {b: state.archive.end(b) for b in state.buckets if state.archive.end(b)}
        none = replace(state, snapshots=_snapshots(state), archive=NO_ARCHIVE)
        assert plan_trim(none, clock.now_ms(), HOUR_MS, lake_enabled=False) == {}

    def test_a_table_that_begins_to_keep_changes_begins_with_those_of_its_log(self, wh, clock):
        table = wh.create_table(
            "u", "id BIGINT, n INT", primary_key=["id"], properties={**KEEPING, "table.changelog.retention": "9h"}
        )
        table.alter_properties(removed=["table.changelog.retention"])
        put(table, 1)
        clock.advance(3 * HOUR_MS)
        table.maintain()
        put(table, 2)
        assert kept(table) == [(2, 0, "insert")]
        table.alter_properties({"table.changelog.retention": "9h"})
        clock.advance(3 * HOUR_MS)
        assert table.maintain().archived == 1
        assert kept(table) == [(2, 0, "insert")]
        assert first_change_offsets(table.refresh()) == {0: 1}
        assert table.state.archive.first_commit > 1

    def test_a_table_that_no_longer_keeps_changes_drops_its_archive(self, table, clock):
        put(table, 1)
        clock.advance(3 * HOUR_MS)
        table.maintain()
        keys = ArchiveObjectKeys(table.storage)(table.refresh())
        table.alter_properties(removed=["table.changelog.retention"])
        table.maintain()
        assert not table.refresh().archive
        assert keys <= set(table.state.condemned)
        assert kept(table) == []
        clock.advance(GRACE_MS + 1)
        assert keys <= set(table.maintain().cleaned.deleted)

    def test_a_truncation_ends_the_change_archive(self, table, clock):
        put(table, 1, 2)
        table.maintain()
        table.truncate()
        assert not table.refresh().archive
        put(table, 3)
        assert table.maintain().archived == 1
        assert kept(table) == [(3, 0, "insert")]
        clock.advance(2 * GRACE_MS + 2)
        table.maintain()
        clock.advance(GRACE_MS + 1)
        table.maintain()
        stored = {
            o.key for prefix in (segments_prefix, manifests_prefix) for o in table.storage.list(prefix(table.uuid))
        }
        assert ArchiveObjectKeys(table.storage)(table.refresh()) <= stored
        assert len(stored) < 9, "the files of the first archive are orphans, which go"

    def test_a_gap_is_no_archive(self, table):
        """An archive that the log no longer reaches is begun anew: another program trimmed it."""
        put(table, 1)
        archive(table)
        put(table, 1, n=2)
        ends = table.refresh().ends
        table.log.commit(lambda _state, _ms: (Trim({b: end for b, end in ends.items() if end}),))
        assert not find_usable_archive(table.refresh())
        assert kept(table) == []
        put(table, 1, n=3)
        assert archive(table) == 2
        assert [row[1] for row in kept(table)] == [2, 3]


def _snapshots(state):
    return {b: KvSnapshot(b, 0, log.end, ()) for b, log in state.buckets.items() if log.end}


class TestPages:
    def test_eight_of_a_level_become_one(self, table, clock):
        levels = []
        for number in range(20):
            put(table, number, 100 + number)
            archive(table)
            clock.advance(60_000)
            levels.append([page.level for page in pages(table)])
        assert levels[:9] == [*([0] * k for k in range(1, 8)), [1], [1, 0]]
        assert levels[-1] == [1, 1, 0, 0, 0, 0]
        assert len(kept(table)) == 40
        assert [page.last_commit for page in pages(table)] == sorted(page.last_commit for page in pages(table))

    def test_old_ones_are_not_joined_with_new_ones(self, table, clock):
        for number in range(7):
            put(table, number)
            archive(table)
        clock.advance(20 * HOUR_MS)
        put(table, 8)
        archive(table)
        assert len(pages(table)) == 8, "an eighth of 100 hours is less"

    def test_large_ones_are_not_joined(self, table, monkeypatch):
        monkeypatch.setattr(maintenance, "PAGE_BYTES_MAX", 0)
        for number in range(9):
            put(table, number)
            archive(table)
        assert len(pages(table)) == 9

    def test_they_expire_from_the_oldest_on(self, table, clock):
        for number in range(4):
            put(table, number)
            table.maintain()
            clock.advance(40 * HOUR_MS)
        put(table, 9)
        assert table.maintain().archived == 1
        assert [row[0] for row in kept(table)][:1] == [2]
        assert len(pages(table)) == 3
        first = table.state.archive.first_commit
        clock.advance(1000 * HOUR_MS)
        archive(table)
        assert len(pages(table)) == 1, "the newest stays: the log joins it"
        assert table.state.archive.first_commit > first
        table.maintain()
        with pytest.raises(OffsetsTrimmedError):
            list(table.tail({0: 0, 1: 0}, until_ms=0))

    def test_few_changes_of_many_buckets_share_an_object(self, wh):
        table = wh.create_table("m", "id BIGINT, n INT", primary_key=["id"], buckets=32, properties=KEEPING)
        put(table, *range(500))
        archive(table)
        segments = read_page(table.storage, table.state, pages(table)[0].uuid).segments
        assert len(segments) == 32
        assert len({segment.uuid for segment in segments}) == 1
        assert len(kept(table)) == 500

    def test_a_large_backlog_is_archived_commit_by_commit(self, table, monkeypatch):
        monkeypatch.setattr(maintenance, "ROUND_BYTES_MAX", 1)
        for number in range(5):
            put(table, number, number + 10)
        assert archive(table) == 10
        assert len(pages(table)) == 5
        assert [page.num_rows for page in pages(table)] == [2] * 5
        assert len(kept(table)) == 10
        assert table.state.archive.first_commit == 1

    def test_a_damaged_page_is_told_and_not_joined(self, table, caplog):
        for number in range(7):
            put(table, number)
            archive(table)
        key = manifest_key(table.uuid, pages(table)[3].uuid)
        whole = table.storage.read(key)
        table.storage.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
        put(table, 8)
        assert archive(table) == 1
        assert "are not merged" in caplog.text
        assert len(pages(table)) == 8
        with pytest.raises(CorruptDataError, match="does not match its checksum"):
            kept_of_archive(table)
        table.storage.delete(key)
        with pytest.raises(CorruptDataError, match=r"a page of the change archive of default\.t, is missing"):
            kept_of_archive(table)


def kept_of_archive(table):
    ends = table.refresh().ends
    table.log.commit(lambda _state, _ms: (Trim({b: end for b, end in ends.items() if end}),))
    return kept(table)


class TestRecords:
    def test_floors_wait_for_changes_that_are_not_archived(self, table, clock):
        put(table, 0)
        archive(table)
        first = table.state.archive.last_commit + 1
        for number in range(130):
            put(table, number % 9, n=number)
        for _ in range(3):
            clock.advance(GRACE_MS + 1)
            compact_inline_rows(table)
            table.log.checkpoint(table.state)
            clean(table.log, table.storage)
        assert table.log.refresh_low_watermark() <= first
        assert table.storage.size_bytes(commit_key(table.uuid, first))
        archive(table)
        assert table.refresh().archive.first_commit == 1

    def test_commits_of_lost_records_are_not_told(self, table):
        put(table, 0)
        archive(table)
        put(table, 1)
        put(table, 2)
        lost = table.refresh().version - 1
        compact_inline_rows(table)
        table.storage.delete(commit_key(table.uuid, lost))
        archive(table)
        held = table.refresh().archive
        assert held.first_commit == held.last_commit - 1
        assert len(kept(table)) == 3
