"""Rows of lake files without offsets: a statement deletes them by file and position, and every reader follows."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.foreign_iceberg import BY_REGION, NAME, adopted, appended, ids, lake_of, rewritten, row, stock, tier
from kit.change_replay import changes, replayed, version
from property.stream_driver import Query
from streamhouse_spark.cli.verification import Verification, open_lake_plan, verify_lake, verify_log
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    FormatVersionError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.model.values import LakeFile
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.log.commits import checkpoint
from streamhouse_spark.log.commits.checkpoint import as_stored
from streamhouse_spark.log.commits.deletions import DeleteRows
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import fold
from streamhouse_spark.read.change_feed.commit_changes import plan_changes
from streamhouse_spark.read.deleted_rows import require_undeleted
from streamhouse_spark.read.pieces import FileRowsPiece, piece_from_json
from streamhouse_spark.read.planner import Pruning
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.partition_stats import partition_table
from streamhouse_spark.table.rollback import rollback_to_version
from streamhouse_spark.table.views import open_view
from streamhouse_spark.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture(params=["plain", pytest.param("by region", marks=pytest.mark.long)])
def table(request, store, world):
    return adopted(store, world, spec=BY_REGION if request.param == "by region" else None)


@pytest.fixture
def plain(store, world):
    return adopted(store, world)


def names_of(table):
    files = StorageFiles(table.storage)
    return [files.name_of(at) for at in table.open_lake().named_files(table.refresh().lake.snapshot_id)]


def file_with(table, number):
    """Return the name of the file that begins with a row."""
    read = (pq.read_table(pa.BufferReader(table.storage.read(name)))["id"][0].as_py() for name in names_of(table))
    return next(name for name, first in zip(names_of(table), read, strict=True) if first == number)


def expired(table, store, world):
    """Let another engine expire the recorded snapshot, against the tag that is to keep it."""
    lake = lake_of(store, world)
    with lake.manage_snapshots() as changes:
        changes.remove_tag("__streamhouse_lake_tiering")
    lake.maintenance.expire_snapshots().by_id(table.refresh().lake.snapshot_id).commit()


def runs(position):
    return OffsetRuns.dense(position, 1)


def require_verified(table):
    state, result = table.refresh(), Verification(table.name)
    verify_log(table, state, result, lambda _: None)
    if (plan := open_lake_plan(table, state, result)) is not None:
        verify_lake(table, state, plan, result, lambda _: None)
    assert result.problems == []


class TestStatement:
    def test_adopted_rows_go_in_one_record_before_any_round(self, table, other_process):
        before, snapshot = table.refresh().version, table.state.lake.snapshot_id
        assert table.delete(where=[("id", "in", [1, 4])]) == 2
        assert table.delete(where=[("id", "in", [1, 4])]) == 0
        assert (table.refresh().version, table.state.lake.snapshot_id) == (before + 1, snapshot)
        for reader in (table, other_process().table(NAME)):
            assert ids(reader.to_arrow()) == [0, 2, 3, 5]
            assert ids(reader.to_arrow(filter=[("id", "<", 3)])) == [0, 2]
            assert ids(reader.lake.to_arrow()) == list(range(6)), "the lake has them until the next round"
        assert stock(table) == list(range(6))
        assert open_view(table, "history").to_arrow().to_pylist()[-1]["rows_deleted"] == 2
        require_verified(table)

    def test_the_next_round_deletes_them_in_the_lake(self, table):
        files = set(table.lake.files()["file_path"].to_pylist())
        table.delete(where=[("id", "in", [1, 4])])
        assert len(tier(table).snapshots) == 1, "though no row was ever appended"
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == [0, 2, 3, 5]
        assert files <= set(table.lake.files()["file_path"].to_pylist()), "no file is written again"
        (deletion,) = table.refresh().deletions
        assert (deletion.files, deletion.is_in_lake) == ({}, True), "the state forgets their places"
        assert table.state.lake.keeps_files
        assert tier(table).snapshots == ()
        require_verified(table)

    def test_rows_of_log_and_lake_and_of_another_engine_go_together(self, table, store, world):
        table.append([row(n) for n in range(6, 12)])
        tier(table)
        table.append([row(n) for n in range(12, 16)])
        gone = [0, 5, 7, 8, 13]
        assert table.delete(where=[("id", "in", gone)]) == 5
        left = [n for n in range(16) if n not in gone]
        assert ids(table.to_arrow()) == left
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == left
        require_verified(table)

    def test_rows_with_offsets_beside_files_without(self, table, store, world):
        """The lake file that has them is told by its footer, so that the others surely have none of them."""
        table.append([row(n) for n in range(6, 10)])
        tier(table)
        assert table.delete(where=[("id", "in", [7, 8])]) == 2
        assert ids(table.to_arrow()) == [*range(7), 9]
        appended(store, world, [row(20)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [*range(7), 9, 20]

    def test_a_part_with_such_rows_is_replaced(self, table):
        table.append([row(7)])
        tier(table)
        table.append([row(1)])
        table.overwrite([row(1), row(1)], where=[("id", "in", [1, 4, 7])])
        assert ids(table.to_arrow()) == [0, 1, 1, 2, 3, 5]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 1, 1, 2, 3, 5]

    def test_a_partition_of_such_rows_is_replaced_and_dropped(self, store, world):
        table = adopted(store, world, spec=BY_REGION)
        table.overwrite_partitions([row(8)])
        assert ids(table.to_arrow()) == [1, 3, 5, 8]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [1, 3, 5, 8]
        table.set_partitioning(["n"])
        table.drop_partition({"n": 1})
        assert ids(table.to_arrow()) == [3, 5, 8]
        tier(table)
        assert stock(table) == [3, 5, 8]

    def test_all_rows_of_a_file(self, table):
        assert table.delete(where=[("id", "<", 100)]) == 6
        assert ids(table.to_arrow()) == []
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == []
        table.append([row(1)])
        assert ids(table.to_arrow()) == [1]

    def test_rows_that_another_engine_deleted_before_are_none(self, store, world):
        table = adopted(store, world, range(8))
        lake_of(store, world).delete("id = 1")
        tier(table)
        table.append([row(20)])
        tier(table)
        assert table.delete(where=[("id", "in", [1, 2])]) == 1
        assert ids(table.to_arrow()) == [0, *range(3, 8), 20]
        tier(table)
        assert stock(table) == [0, *range(3, 8), 20]

    def test_deletions_of_several_rounds_in_one_file(self, plain):
        for number in (0, 2):
            plain.delete(where=[("id", "=", number)])
            tier(plain)
        plain.delete(where=[("id", "=", 1)])
        plain.delete(where=[("id", "=", 5)])
        assert ids(plain.to_arrow()) == [3, 4]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [3, 4]
        assert plain.refresh().lake.dropped_rows == 4
        assert lake_of(plain.storage, plain.world).inspect.delete_files().num_rows == 2, "one a data file"

    def test_a_transaction_is_once(self, plain):
        once = Transaction("gdpr", 1)
        assert plain.delete(where=[("id", "=", 1)], transaction=once) == 1
        assert plain.delete(where=[("id", "=", 2)], transaction=once) == 0
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5]

    def test_columns_that_were_changed_since(self, plain):
        plain.add_columns("note STRING")
        plain.rename_column("n", "number")
        plain.append([{"id": 9, "note": "new"}])
        assert plain.delete(where=[("number", "=", 4)]) == 1
        assert plain.delete(where=[("note", "=", "new")]) == 1
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 1, 2, 3, 5]

    def test_files_of_several_partition_specs(self, store, world):
        table = adopted(store, world, spec=BY_REGION)
        table.set_partitioning(["n"])
        table.append([row(n) for n in range(6, 9)])
        tier(table)
        assert table.delete(where=[("n", "=", 1)]) == 2
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 2, 3, 4, 5, 7, 8]
        assert sum(partition_table(table)["lake_rows"].to_pylist()) == 7

    def test_a_truncation_takes_them_along(self, table):
        table.delete(where=[("id", "=", 1)])
        table.truncate()
        assert table.refresh().deletions == ()
        table.append([row(8)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [8]

    def test_their_partition_is_dropped_later(self, store, world):
        table = adopted(store, world, spec=BY_REGION)
        table.append([row(6), row(7)])
        table.delete(where=[("id", "in", [2, 3])])
        tier(table)
        assert table.drop_partition({"region": "eu"}).rows == 3
        assert table.refresh().lake.dropped_rows == 5, "two that were deleted, and three that went with the partition"
        assert table.state.lake.dropped_others == 2
        assert ids(table.to_arrow()) == stock(table) == [1, 5, 7]
        require_verified(table)
        assert tier(table).snapshots == ()

    def test_counts_of_partitions(self, store, world):
        table = adopted(store, world, spec=BY_REGION)
        table.delete(where=[("id", "in", [1, 4])])
        found = {r["region"]: r["lake_rows"] for r in partition_table(table).to_pylist()}
        assert found == {"eu": 2, "us": 2}


class TestConflicts:
    def test_two_of_one_row(self, plain, other_process):
        read = ReadBase.of(plain.refresh())
        other_process().table(NAME).delete(where=[("id", "=", 1)])
        (deletion,) = plain.refresh().deletions
        with pytest.raises(CommitConflictError, match=r"the row at position 1 of .* was deleted by another"):
            row_deletion.commit_deletion(plain, {}, read, files=deletion.files)

    def test_two_of_two_rows_beside_an_append(self, plain, other_process):
        state = plain.refresh()
        other_process().table(NAME).delete(where=[("id", "=", 1)])
        other_process().table(NAME).append([row(9)])
        (deletion,) = plain.refresh().deletions
        (name,) = deletion.files
        assert row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(2)}) == 1
        assert ids(plain.to_arrow()) == [0, 3, 4, 5, 9]

    def test_a_round_in_between_is_none_where_files_stay(self, plain, other_process):
        """A service that tiers all the time must not stand in the way of statements."""
        state = plain.refresh()
        plain.append([row(9)])
        other = other_process().table(NAME)
        tier(other)
        other.append([row(10)])
        tier(other)
        assert plain.refresh().lake.snapshot_id != state.lake.snapshot_id
        name = file_with(plain, 0)
        assert row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)}) == 1
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 9, 10]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 9, 10]

    def test_a_file_that_was_replaced_in_between_is_one(self, plain, store, world):
        state = plain.refresh()
        name = file_with(plain, 0)
        rewritten(store, world)
        plain.append([row(9)])
        tier(plain)
        with pytest.raises(CommitConflictError, match="may have other files"):
            row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)})
        assert plain.delete(where=[("id", "=", 1)]) == 1, "looked for anew"
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 9]

    def test_places_that_are_forgotten(self, plain, other_process):
        state = plain.refresh()
        name = file_with(plain, 0)
        other = other_process().table(NAME)
        other.delete(where=[("id", "=", 1)])
        tier(other)
        with pytest.raises(CommitConflictError, match="their places are forgotten"):
            row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)})

    def test_a_record_of_rows_that_are_not_there(self, plain):
        plain.delete(where=[("id", "=", 1)])
        (deletion,) = plain.refresh().deletions
        state = plain.state
        for bad in (
            DeleteRows({}, deletion.files, deletion.snapshot_id),
            DeleteRows({}, {"data/other.parquet": runs(1)}, 5),
        ):
            record = Record(state.version + 1, plain.uuid, "a" * 32, state.time_ms, (bad,), after=state.attempt)
            with pytest.raises(CorruptDataError, match="that are not the table's"):
                fold(state, record)


class TestOtherEngines:
    """What they do between the statement and the round."""

    def test_a_file_is_written_again(self, table, store, world):
        table.delete(where=[("id", "in", [1, 4])])
        rewritten(store, world)
        assert stock(table) == list(range(6)), "it does not know of the deletion"
        assert ids(table.to_arrow()) == [0, 2, 3, 5], "the pinned snapshot is read"
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == [0, 2, 3, 5]
        assert tier(table).snapshots == ()
        require_verified(table)

    @pytest.mark.parametrize("is_before", [False, True])
    def test_a_file_with_offsets_is_written_again(self, table, store, world, is_before):
        table.append([row(n) for n in [6, 7, 7, 8]])
        tier(table)
        if is_before:
            rewritten(store, world)
        assert table.delete(where=[("id", "in", [1, 7])]) == 3
        if not is_before:
            rewritten(store, world)
        appended(store, world, [row(7)])
        left = [0, 2, 3, 4, 5, 6, 8]
        assert ids(table.to_arrow()) == left
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == sorted([*left, 7])
        assert tier(table).snapshots == ()
        assert table.delete(where=[("id", "in", [6, 7])]) == 2
        tier(table)
        assert stock(table) == [0, 2, 3, 4, 5, 8]

    def test_a_file_of_a_round_that_is_not_recorded_is_replaced(self, store, world, monkeypatch):
        """No recorded snapshot has it, and the log has its rows."""
        table = adopted(store, world, [0, 1, 2, 7])
        table.append([row(n) for n in (7, 7, 8)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        assert table.delete(where=[("id", "in", [1, 7])]) == 4
        rewritten(store, world)
        appended(store, world, [row(7)])
        assert ids(table.to_arrow()) == [0, 2, 8]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 2, 7, 8]
        assert tier(table).snapshots == ()

    def test_equal_rows_that_stay_or_come_are_told_by_their_number(self, store, world):
        table = adopted(store, world, [1, 1, 2, 2, 3, 1])
        assert table.delete(where=[("id", "=", 2)]) == 2
        rewritten(store, world)
        appended(store, world, [row(2), row(4)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [1, 1, 1, 2, 3, 4]

    def test_some_of_the_rows_are_gone_already(self, plain, store, world):
        plain.delete(where=[("id", "<", 3)])
        lake_of(store, world).delete("id = 1")
        assert ids(plain.to_arrow()) == [3, 4, 5]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [3, 4, 5]
        assert plain.refresh().lake.dropped_rows == 2

    def test_a_snapshot_that_rows_wait_for_is_not_expired(self, plain, store, world, clock, monkeypatch):
        appended(store, world, [row(10), row(11)])
        plain.append([row(12)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(plain)
        plain.delete(where=[("id", "=", 1)])
        clock.advance(3 * 24 * 3600 * 1000)
        with pytest.raises(CommitConflictError, match="nothing was expired, tier the table"):
            plain.lake.expire_snapshots(retain_last=1)
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 10, 11, 12]

    def test_all_of_the_rows_are_gone_already(self, plain, store, world):
        plain.delete(where=[("id", "=", 1)])
        lake_of(store, world).delete("id = 1")
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5]
        assert not any(deletion.files for deletion in plain.refresh().deletions)
        assert tier(plain).snapshots == ()
        plain.append([row(1)])
        assert ids(plain.to_arrow()) == list(range(6))

    def test_rows_are_added_meanwhile(self, plain, store, world):
        plain.delete(where=[("id", "=", 1)])
        appended(store, world, [row(1), row(6)])
        plain.append([row(7)])
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert plain.delete(where=[("id", "=", 1)]) == 1

    def test_a_recorded_snapshot_is_expired_whose_files_are_live(self, plain, store, world):
        """It is another engine's, which no tag keeps."""
        plain.append([row(9)])
        tier(plain)
        appended(store, world, [row(20)])
        tier(plain)
        recorded = plain.refresh().lake.snapshot_id
        plain.delete(where=[("id", "=", 1)])
        appended(store, world, [row(21)])
        lake_of(store, world).maintenance.expire_snapshots().by_id(recorded).commit()
        with pytest.raises(SnapshotExpiredError, match="another engine rewrote some; tier the table"):
            plain.to_arrow()
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 9, 20, 21]

    def test_a_snapshot_with_other_files_stands_in_for_none(self, plain, store, world):
        plain.delete(where=[("id", "=", 1)])
        rewritten(store, world)
        expired(plain, store, world)
        with pytest.raises(SnapshotExpiredError):
            plain.to_arrow()
        with pytest.raises(LakeMismatchError, match="nothing tells which rows these are"):
            tier(plain)
        assert stock(plain) == list(range(6)), "and nothing was deleted"

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_our_upkeep_leaves_the_files_and_their_deleted_rows(self, plain, store, world, clock, is_rewritten):
        for number in range(10, 16):
            plain.append([row(number)])
            tier(plain)
        plain.delete(where=[("id", "=", 1)])
        before = plain.refresh().lake.snapshot_id
        assert plain.lake.compact().files_removed == 6
        clock.advance(3 * 24 * 3600 * 1000)
        assert before in plain.lake.expire_snapshots(retain_last=1).snapshots
        plain.maintain()
        left = [0, 2, 3, 4, 5, *range(10, 16)]
        assert plain.refresh().lake.snapshot_id != before, "another is recorded that has the same files of others"
        assert ids(plain.to_arrow()) == left
        rewritten(store, world) if is_rewritten else None
        assert ids(plain.to_arrow()) == left
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == left


class TestHistory:
    def test_older_versions_have_the_rows(self, plain, clock):
        before = plain.refresh().version
        clock.advance(1000)
        at_ms = plain.state.time_ms + 500
        plain.delete(where=[("id", "=", 1)])
        after = plain.refresh().version
        tier(plain)
        assert ids(plain.read_version(before)) == list(range(6))
        assert ids(plain.read_version(after)) == [0, 2, 3, 4, 5]
        assert ids(plain.to_arrow(as_of_timestamp_ms=at_ms)) == list(range(6))
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5]

    def test_changes_have_them_with_all_columns(self, table):
        table.append([row(n) for n in range(9, 12)])
        before = table.refresh().version
        table.delete(where=[("id", "in", [1, 4, 9])])
        table.append([row(12)])
        tier(table)
        table.delete(where=[("id", "in", [0, 10])])
        table.append([row(0)])
        table.delete(where=[("id", "=", 5)])
        tier(table)
        newest = table.refresh().version
        found = changes(table, before + 1, newest)
        assert [one["id"] for one in found if one["_change_type"] == "delete"].count(0) == 1
        assert replayed(version(table, before), found) == version(table, newest)
        for number in range(before + 1, newest + 1):
            own = [one for one in found if one["_commit_version"] == number]
            assert replayed(version(table, number - 1), own) == version(table, number), number
            assert changes(table, number, number) == own
        chosen = plan_changes(table, table.state, before + 1, newest, Pruning())
        piece = next(piece for piece in chosen.pieces if isinstance(piece.rows, FileRowsPiece))
        assert piece_from_json(piece.to_json()).to_json() == piece.to_json()
        net = changes(table, before + 1, newest, is_net=True)
        assert replayed(version(table, before), net) == version(table, newest)
        told = sorted((one["id"], one["_change_type"]) for one in net)
        gone = [(number, "delete") for number in (0, 1, 4, 5, 9, 10)]
        assert told == sorted([*gone, (0, "insert"), (12, "insert")])

    def test_a_net_change_of_rows_that_another_engine_wrote_again(self, table, store, world):
        """They may have been added in the range: then they would be told as added, and as deleted."""
        before = table.refresh().version
        table.append([row(9)])
        tier(table)
        rewritten(store, world)
        tier(table)
        middle = table.refresh().version
        table.delete(where=[("id", "=", 9)])
        now = table.refresh().version
        with pytest.raises(InvalidOptionError, match=f"may have been added since version {before}"):
            changes(table, before + 1, now, is_net=True)
        assert [one["id"] for one in changes(table, middle + 1, now, is_net=True)] == [9]

    def test_the_changelog_has_them_without_an_offset_and_its_streams_end(self, table, wh):
        table.append([row(9)])
        query = Query(f"{table.name}$changelog")
        query.run(wh)
        table.delete(where=[("id", "in", [1, 9])])
        found = wh.view(f"{table.name}$changelog").to_arrow(columns=["id", "_change_type", "_log_offset"])
        told = [(9, "insert", 0), (9, "delete", 0), (1, "delete", -1)]
        assert [tuple(one.values()) for one in found.to_pylist()] == told
        with pytest.raises(OffsetsTrimmedError, match=r"deleted rows of .* that have no offsets, so that nobody knows"):
            query.run(wh)
        query.options["skipChangeCommits"] = "true"
        query.run(wh)
        anew = Query(query.name)
        anew.run(wh)
        assert anew.rows == [], "9 came and went"

    def test_changes_of_a_snapshot_that_is_gone(self, table, clock):
        table.append([row(9)])
        table.delete(where=[("id", "=", 1)])
        deleted = table.refresh().version
        tier(table)
        table.append([row(10)])
        tier(table)
        clock.advance(3 * 24 * 3600 * 1000)
        table.lake.expire_snapshots(retain_last=1)
        with pytest.raises(OffsetsTrimmedError, match=f"the first version that is there is {deleted + 1}$"):
            changes(table, deleted, table.refresh().version)
        assert [one["id"] for one in changes(table, deleted + 1, table.state.version)] == [10]

    def test_a_rollback_brings_them_back(self, table, other_process):
        table.append([row(9), row(10)])
        before = table.refresh().version
        rows = version(table, before)
        table.delete(where=[("id", "in", [1, 4, 9])])
        table.append([row(12)])
        tier(table)
        report = rollback_to_version(table, before, dry_run=True)
        assert (report.rows_deleted, report.rows_added) == (1, 3)
        assert rollback_to_version(table, before) == replace(report, dry_run=False)
        assert version(table, table.refresh().version) == rows
        assert ids(other_process().table(NAME).to_arrow()) == [*range(6), 9, 10]
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == [*range(6), 9, 10]
        require_verified(table)

    def test_a_rollback_to_before_another_engine_wrote_their_files(self, plain, store, world):
        """Rows that were appended since may have lost their offsets: which of them stay is not known."""
        plain.append([row(9)])
        before = plain.refresh().version
        rewritten(store, world)
        plain.append([row(10)])
        tier(plain)
        plain.delete(where=[("id", "=", 1)])
        with pytest.raises(InvalidOptionError, match="of files that the lake did not have then"):
            rollback_to_version(plain, before)

    def test_a_stream_that_may_have_read_them_is_told(self, plain):
        state = plain.refresh()
        plain.delete(where=[("id", "=", 1)])
        with pytest.raises(OffsetsTrimmedError, match="have no offsets any more"):
            require_undeleted(plain.refresh(), {0: 0}, state.version, who="a stream", advice="start anew")

    def test_a_clone_has_none_of_them(self, wh, store, world):
        wh.create_database("sales")
        table = wh.create_table(NAME, "id BIGINT, region STRING, n INT")
        table.append([row(n) for n in range(6)])
        tier(table)
        rewritten(store, world)
        table.append([row(9)])
        tier(table)
        table.delete(where=[("id", "=", 1)])
        wh.clone_table(NAME, "sales.copy")
        clone = wh.table("sales.copy")
        assert ids(clone.to_arrow()) == [0, 2, 3, 4, 5, 9]
        assert clone.delete(where=[("id", "=", 2)]) == 1
        tier(clone)
        tier(table)
        assert ids(clone.to_arrow()) == ids(clone.lake.to_arrow()) == [0, 3, 4, 5, 9]
        assert ids(table.to_arrow()) == stock(table) == [0, 2, 3, 4, 5, 9]

    def test_checkpoints_keep_them_and_older_releases_refuse_them(self, plain, monkeypatch):
        plain.delete(where=[("id", "in", [1, 5])])
        state = plain.refresh()
        encoded = checkpoint._encoded(state)
        assert as_stored(state).deletions == state.deletions
        assert checkpoint._version(state) == 13
        with monkeypatch.context() as older:
            older.setattr(checkpoint, "NEWEST_VERSION", 12)
            with pytest.raises(FormatVersionError, match="upgrade"):
                checkpoint._decoded(encoded, plain.uuid, state.version, "")
        plain.log.checkpoint(state)
        opened = Warehouse("wh", storage=plain.storage, world=plain.world).table(NAME)
        assert ids(opened.to_arrow()) == [0, 2, 3, 4]
        tier(opened)
        assert checkpoint._version(opened.refresh()) == 4


class TestRounds:
    def test_a_crash_between_the_lakes_commit_and_the_record(self, plain, other_process, monkeypatch):
        plain.delete(where=[("id", "=", 1)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(plain)
        assert stock(plain) == [0, 2, 3, 4, 5] == ids(plain.to_arrow())
        other = other_process().table(NAME)
        assert tier(other).snapshots == ()
        assert not any(deletion.files for deletion in other.refresh().deletions)
        assert ids(other.to_arrow()) == [0, 2, 3, 4, 5]

    def test_a_rewrite_behind_a_round_that_is_not_recorded(self, store, world, other_process, monkeypatch):
        """Equal rows that are left are not deleted once more."""
        table = adopted(store, world, [1, 2, 2, 3])
        state = table.refresh()
        files = {file_with(table, 1): runs(1)}
        row_deletion.commit_deletion(table, {}, ReadBase.of(state), files=files)
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        rewritten(store, world)
        other = other_process().table(NAME)
        tier(other)
        assert ids(other.to_arrow()) == stock(other) == [1, 2, 3]

    def test_a_deletion_while_a_round_runs_waits_for_the_next(self, plain, other_process, monkeypatch):
        plain.append([row(9)])
        lake = plain.open_lake()
        right, done = type(lake).commit, []

        def commit(self, files: list[LakeFile], **more):
            if not done:
                done.append(other_process().table(NAME).delete(where=[("id", "=", 1)]))
            return right(self, files, **more)

        monkeypatch.setattr(type(lake), "commit", commit)
        tier(plain)
        monkeypatch.undo()
        assert done == [1]
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 9]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 9]
