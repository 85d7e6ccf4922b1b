"""Rolling a table back: one record after which it has the rows of an older version, and nothing of history is lost."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from kit.change_replay import check_history
from kit.tables import new_table, tier, trim_tiered
from streamhouse_spark import CommitConflictError, InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.table.versioning import rollback

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
KEY = {"primary_key": ["id"]}


def rows(*numbers, day=None):
    return [{"id": number, "day": number % 3 if day is None else day} for number in numbers]


def content(table):
    return content_of(table.to_arrow())


def content_of(found):
    return sorted((row["id"], row["day"]) for row in found.to_pylist())


def partitioned(wh, lake):
    properties = {"table.datalake.format": lake}
    return wh.create_table("d.p", "id BIGINT NOT NULL, day INT", partition_by=["day"], properties=properties)


class TestLogTables:
    def test_rows_beyond_go_and_deleted_rows_come_back_in_one_record(self, wh, other_process):
        table = new_table(wh)
        table.append(rows(*range(10)))
        version, before = table.refresh().version, content(table)
        table.append(rows(*range(10, 20)))
        table.delete(where=pc.field("id") < 4)
        table.delete(where=pc.field("id") > 17)
        ends, newest = table.refresh().ends, table.state.version
        planned = table.rollback_to_version(version, dry_run=True)
        assert (planned.rows_deleted, planned.rows_added, planned.dry_run) == (8, 4, True)
        assert table.refresh().version == newest
        report = table.rollback_to_version(version)
        assert (report.rows_deleted, report.rows_added, report.seen_version) == (8, 4, newest)
        assert table.refresh().version == newest + 1
        for reader in (table, other_process().table("d.t")):
            assert content(reader) == before
            assert reader.state.num_rows == 10
        assert sum(table.state.ends.values()) == sum(ends.values()) + 4, "an offset was used again"

    def test_a_rollback_can_be_rolled_back_and_one_to_the_newest_version_writes_nothing(self, wh):
        table = new_table(wh)
        table.append(rows(1, 2, 3))
        first = table.refresh().version
        table.append(rows(4))
        table.delete(where=pc.field("id") == 2)
        second, newest = table.refresh().version, content(table)
        table.rollback_to_version(first)
        third = table.refresh().version
        table.rollback_to_version(third)
        assert table.refresh().version == third
        table.rollback_to_version(first)
        assert content(table) == [(1, 1), (2, 2), (3, 0)]
        table.rollback_to_version(second)
        assert content(table) == newest

    @pytest.mark.parametrize("meanwhile", ["append", "delete", "alter"])
    def test_changes_of_others_are_a_conflict_and_stay(self, wh, other_process, monkeypatch, meanwhile):
        table, other = new_table(wh), other_process()
        table.append(rows(1, 2, 3))
        version = table.refresh().version
        table.append(rows(4, 5))
        really = rollback._commit_rollback

        def late(*given):
            found = other.table("d.t")
            if meanwhile == "append":
                found.append(rows(6))
            elif meanwhile == "delete":
                found.delete(where=pc.field("id") == 1)
            else:
                found.add_columns("note STRING")
            really(*given)

        monkeypatch.setattr(rollback, "_commit_rollback", late)
        with pytest.raises(CommitConflictError, match="nothing was written"):
            table.rollback_to_version(version)
        left = {"append": [1, 2, 3, 4, 5, 6], "delete": [2, 3, 4, 5], "alter": [1, 2, 3, 4, 5]}[meanwhile]
        assert sorted(table.to_arrow()["id"].to_pylist()) == left

    def test_a_time_means_the_newest_commit_of_it_or_before(self, wh, clock):
        table = new_table(wh)
        table.append(rows(1))
        at_ms = table.refresh().time_ms
        clock.advance(60_000)
        table.append(rows(2))
        assert table.rollback_to_timestamp(at_ms + 30_000, dry_run=True).rows_deleted == 1
        assert table.rollback_to_timestamp(at_ms).rows_deleted == 1
        assert content(table) == [(1, 1)]
        with pytest.raises(SnapshotExpiredError, match="no commit at or before that time"):
            table.rollback_to_timestamp(5)

    def test_what_cannot_be_told_is_refused_before_anything_is_written(self, wh):
        table = new_table(wh)
        table.append(rows(1))
        newest = table.refresh().version
        table.add_columns("note STRING")
        with pytest.raises(InvalidOptionError, match="its columns changed since"):
            table.rollback_to_version(newest)
        with pytest.raises(InvalidOptionError, match="has no commit 99"):
            table.rollback_to_version(99)
        assert table.refresh().version == newest + 1

    @pytest.mark.parametrize("lake", ["iceberg", "paimon"])
    @pytest.mark.parametrize("tiers", [False, True])
    def test_all_rows_that_were_removed_at_once_come_back(self, wh, lake, tiers):
        table = new_table(wh, lake=lake)
        table.append(rows(1, 2, 3))
        table.delete(where=pc.field("id") == 2)
        if tiers:
            tier(table)
            trim_tiered(table)
        table.append(rows(4))
        version = table.refresh().version
        table.truncate()
        emptied = table.refresh().version
        assert table.rollback_to_version(version, dry_run=True).rows_added == 3
        assert content(table) == []
        table.overwrite(rows(7, 8))
        if tiers:
            tier(table)
        report = table.rollback_to_version(version)
        assert (report.rows_deleted, report.rows_added) == (2, 3)
        assert content(table) == [(1, 1), (3, 0), (4, 1)]
        tier(table)
        assert content_of(table.lake.to_arrow()) == content(table)
        check_history(table)
        table.rollback_to_version(emptied)
        assert content(table) == []
        table.rollback_to_version(emptied - 1)
        assert content(table) == [(1, 1), (3, 0), (4, 1)]

    def test_an_empty_table_is_rolled_back_to_an_empty_version(self, wh):
        table = new_table(wh)
        version = table.refresh().version
        table.append(rows(1))
        table.truncate()
        report = table.rollback_to_version(version)
        assert (report.rows_deleted, report.rows_added, content(table)) == (0, 0, [])
        table.append(rows(2))
        assert content(table) == [(2, 2)]

    def test_a_row_that_comes_after_a_removal_of_all_is_a_conflict(self, wh, other_process, monkeypatch):
        table = new_table(wh)
        table.append(rows(1))
        version, other = table.refresh().version, other_process()
        table.truncate()
        really = rollback.commit_append

        def late(*given, **named):
            other.table("d.t").append(rows(9))
            return really(*given, **named)

        monkeypatch.setattr(rollback, "commit_append", late)
        with pytest.raises(CommitConflictError, match="rows were added"):
            table.rollback_to_version(version)
        assert content(table) == [(9, 0)]

    def test_rows_without_offsets_cannot_come_back_and_a_later_commit_can(self, wh, monkeypatch):
        """As those of lake files that another engine wrote."""
        table = new_table(wh)
        table.append(rows(1, 2))
        version = table.refresh().version
        table.delete(where=pc.field("id") == 1)
        later = table.refresh().version
        table.append(rows(3))
        monkeypatch.setattr(rollback, "read_batches", lambda *_: iter(()))
        newest = table.refresh().version
        with pytest.raises(OffsetsTrimmedError, match="found 0 of the 1 rows that were deleted since commit 2"):
            table.rollback_to_version(version)
        assert table.refresh().version == newest
        monkeypatch.undo()
        table.rollback_to_version(later)
        assert content(table) == [(2, 2)]

    @pytest.mark.parametrize("lake", ["iceberg", "paimon"])
    def test_a_dropped_partition_comes_back(self, wh, lake):
        table = partitioned(wh, lake)
        table.append(rows(1, 2, 3))
        version = table.refresh().version
        table.drop_partition({"day": 1})
        table.append(rows(4, 5))
        table.delete(where=[("id", "=", 2)])
        report = table.rollback_to_version(version)
        assert (report.rows_deleted, report.rows_added) == (2, 2)
        assert content(table) == [(1, 1), (2, 2), (3, 0)]
        tier(table)
        assert sorted(table.lake.to_arrow()["id"].to_pylist()) == [1, 2, 3]
        dropped = version + 2
        assert content_of(table.read_version(dropped)) == [(2, 2), (3, 0)]
        table.rollback_to_version(dropped)
        assert content(table) == [(2, 2), (3, 0)]

    def test_a_partition_that_neither_log_nor_lake_has_any_more_is_refused(self, wh):
        table = partitioned(wh, "iceberg")
        table.append(rows(1, 2, 3))
        version = table.refresh().version
        tier(table)
        trim_tiered(table)
        table.drop_partition({"day": 1})
        left = content(table)
        assert table.rollback_to_version(version, dry_run=True).rows_added == 1
        table.open_lake().expire(keep_last=1, keep_ms=0)
        with pytest.raises(InvalidOptionError, match="dropped partition"):
            table.rollback_to_version(version)
        assert content(table) == left == [(2, 2), (3, 0)]

    def test_a_partition_that_others_drop_meanwhile_is_a_conflict(self, wh, other_process, monkeypatch):
        table = wh.create_table("d.p", "id BIGINT NOT NULL, day INT", partition_by=["day"])
        table.append(rows(1, 2, 3))
        version, other = table.refresh().version, other_process()
        table.append(rows(4))
        really = rollback._commit_rollback

        def late(*given):
            other.table("d.p").drop_partition({"day": 2})
            really(*given)

        monkeypatch.setattr(rollback, "_commit_rollback", late)
        with pytest.raises(CommitConflictError, match="a partition was dropped"):
            table.rollback_to_version(version)
        assert content(table) == [(1, 1), (3, 0), (4, 1)]

    @pytest.mark.parametrize("lake", ["iceberg", "paimon"])
    def test_tiering_and_trimming_meanwhile_are_no_conflict(self, wh, other_process, monkeypatch, lake):
        table, other = new_table(wh, lake=lake), other_process()
        table.append(rows(1, 2, 3))
        version = table.refresh().version
        table.append(rows(4))
        table.delete(where=pc.field("id") == 1)
        really = rollback._commit_rollback

        def late(*given):
            tier(other.table("d.t"))
            trim_tiered(other.table("d.t"))
            really(*given)

        monkeypatch.setattr(rollback, "_commit_rollback", late)
        table.rollback_to_version(version)
        tier(table)
        assert content(table) == [(1, 1), (2, 2), (3, 0)]
        assert sorted(table.lake.to_arrow()["id"].to_pylist()) == [1, 2, 3]


class TestKeyedTables:
    def test_each_key_has_its_net_change(self, wh, other_process):
        table = new_table(wh, keyed=True)
        table.upsert(rows(*range(10)))
        version, before = table.refresh().version, content(table)
        table.upsert(rows(0, 1, 20, day=9))
        table.delete([5, 6])
        ends = sum(table.refresh().ends.values())
        report = table.rollback_to_version(version)
        assert (report.rows_deleted, report.rows_added) == (1, 2)
        assert content(table) == content(other_process().table("d.t")) == before
        written = sum(table.refresh().ends.values()) - ends
        assert written == 2 * 2 + 1 + 2, "an update has two rows, and what is as it was has none"
        assert table.lookup_one(5)["day"] == 2
        assert table.lookup_one(20) is None

    def test_changes_of_others_are_a_conflict_and_stay(self, wh, other_process, monkeypatch):
        table, other = new_table(wh, keyed=True), other_process()
        table.upsert(rows(1, 2))
        version = table.refresh().version
        table.upsert(rows(3))
        really = rollback.engine_of

        def late(*given):
            other.table("d.t").upsert(rows(7))
            return really(*given)

        monkeypatch.setattr(rollback, "engine_of", late)
        with pytest.raises(CommitConflictError):
            table.rollback_to_version(version)
        assert [number for number, _ in content(table)] == [1, 2, 3, 7]

    def test_changes_tell_it_and_a_truncation_is_undone(self, wh):
        table = new_table(wh, keyed=True)
        table.upsert(rows(1, 2))
        version = table.refresh().version
        table.truncate()
        table.upsert(rows(2, 3))
        first = sum(table.refresh().ends.values())
        table.rollback_to_version(version)
        assert content(table) == [(1, 1), (2, 2)]
        assert sum(table.refresh().ends.values()) == first + 2
        found = wh.view("d.t$changelog").to_arrow().to_pylist()
        assert sorted((row["_change_type"], row["id"]) for row in found) == [
            ("delete", 3),
            ("insert", 1),
            ("insert", 2),
            ("insert", 3),
        ]

    def test_a_merge_engine_is_refused(self, wh):
        table = wh.create_table(
            "d.f",
            "id BIGINT NOT NULL",
            properties={"table.datalake.enabled": "false", "table.merge-engine": "first_row"},
            **KEY,
        )
        with pytest.raises(InvalidOptionError, match="merge engine"):
            table.rollback_to_version(1)


@pytest.mark.parametrize("key", [(), ("id",)], ids=["log", "keyed"])
@pytest.mark.parametrize("is_emptied", [False, True], ids=["changed", "emptied"])
def test_the_history_tells_a_rollback_with_its_version(wh, key, is_emptied):
    table = wh.create_table("a.rolled", "id bigint not null, n int", primary_key=key)
    store = table.upsert if key else table.append
    store([{"id": 1, "n": 1}])
    version = table.refresh().version
    store([{"id": 2, "n": 2}])
    if is_emptied:
        table.truncate()
    table.rollback_to_version(version)
    assert table.to_arrow().column("id").to_pylist() == [1]
    last = table.inspect.history(limit=1).to_pylist()[0]
    assert (last["operation"], last["details"]) == ("rollback", f'{{"to_version": {version}}}')
    if key or not is_emptied:
        before = table.refresh().version
        table.rollback_to_version(version)
        assert table.refresh().version == before, "nothing changed"
