"""Rows of Paimon files without offsets: a statement deletes them by file and position, and every reader follows."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.foreign_paimon import (
    BUCKETS,
    BY_REGION,
    NAME,
    adopted,
    appended,
    ids,
    kept,
    paimon,
    rewritten,
    row,
    stock,
    tier,
)
from kit.change_replay import changes, replayed, version
from kit.row_replacement import replace_rows
from streamhouse_spark.cli.verification import Verification, open_lake_plan, verify_lake, verify_log
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.lake.parquet.reader import offset_file
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.log.segments.metadata_columns import CHANGES_FIELDS
from streamhouse_spark.read.change_feed.commit_changes import plan_changes
from streamhouse_spark.read.executor import read_batches
from streamhouse_spark.read.pieces import FileRowsPiece, ReadPlan, piece_from_json
from streamhouse_spark.read.planner import Pruning
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.partition_stats import partition_table
from streamhouse_spark.table.rollback import rollback_to_version
from streamhouse_spark.table.views import open_view
from unit.lake.paimon.test_races import Renaming

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
FORMS = {"plain": {}, "by region": BY_REGION, "buckets": BUCKETS, "both": {**BY_REGION, **BUCKETS}}
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=FORMS)
def table(request, store, world):
    return adopted(store, world, spec=FORMS[request.param])


@pytest.fixture
def plain(store, world):
    return adopted(store, world)


def names_of(table):
    files = StorageFiles(table.storage)
    return [files.name_of(at) for at in table.open_lake().named_files(table.refresh().lake.snapshot_id)]


def file_with(table, number):
    """Return the name of the file that begins with a row."""
    return next(name for name in names_of(table) if numbers_in(table, name)[0] == number)


def numbers_in(table, name):
    """Return the ids in a file, perhaps one that is no longer the table's."""
    return pq.read_table(pa.BufferReader(table.storage.read(name)))["id"].to_pylist()


def runs(position):
    return OffsetRuns.dense(position, 1)


def replaced(table, store):
    """Let another engine's rewrite take the place of the recorded snapshot."""
    folder, number = f"{table.state.lake_location}/snapshot", table.refresh().lake.snapshot_id
    own = json.loads(store.read(f"{folder}/snapshot-{number}"))
    rewritten(store)
    made = json.loads(store.read(f"{folder}/snapshot-{store.read(f'{folder}/LATEST').decode()}"))
    made |= {"id": number, "properties": own["properties"]}
    store.put(f"{folder}/snapshot-{number}", json.dumps(made).encode())


def kinds(table):
    return table.lake.snapshots()["commit_kind"].to_pylist()


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

    def test_the_next_round_writes_their_files_again(self, table):
        files = names_of(table)
        table.delete(where=[("id", "in", [1, 4])])
        report = tier(table)
        assert (len(report.snapshots), report.rows) == (1, 0), "though no row was ever appended"
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == [0, 2, 3, 5]
        others = [name for name in files if not {1, 4}.intersection(numbers_in(table, name))]
        assert [name for name in files if name in names_of(table)] == others, "they stay"
        (deletion,) = table.refresh().deletions
        assert (deletion.files, deletion.is_in_lake) == ({}, True), "the state forgets their places"
        assert not table.state.lake.keeps_files
        assert table.state.lake.dropped_rows == 2
        assert tier(table).snapshots == ()
        require_verified(table)

    def test_rows_of_a_file_that_was_written_again_go_too(self, table):
        for gone in ([1, 4], [2], [0, 3, 5]):
            assert table.delete(where=[("id", "in", gone)]) == len(gone)
            tier(table)
        assert ids(table.to_arrow()) == stock(table) == []
        table.append([row(1)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [1]

    def test_rows_of_log_and_lake_and_of_another_engine_go_together(self, table, store):
        table.append([row(n) for n in range(6, 12)])
        tier(table)
        appended(store, [row(20), row(21)])
        table.append([row(n) for n in range(12, 16)])
        tier(table)
        table.append([row(n) for n in range(16, 18)])
        gone = [0, 5, 7, 8, 13, 16, 21]
        assert table.delete(where=[("id", "in", gone)]) == 7
        left = [n for n in [*range(18), 20] if n not in gone]
        assert ids(table.to_arrow()) == left
        snapshots = len(kinds(table))
        tier(table)
        assert kinds(table)[snapshots:] == ["OVERWRITE", "COMPACT"], (
            "of rows and deletions, and the one that settles it"
        )
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == left
        require_verified(table)

    def test_rows_are_changed(self, table):
        replace_rows(table, lambda r: r["id"] in (1, 4), lambda r: {**r, "id": r["id"] + 10, "region": "asia"})
        assert ids(table.to_arrow()) == [0, 2, 3, 5, 11, 14]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 2, 3, 5, 11, 14]
        assert sorted(r["region"] for r in table.to_arrow().to_pylist() if r["id"] > 10) == ["asia", "asia"]

    def test_a_part_with_such_rows_is_replaced(self, table):
        table.append([row(7)])
        tier(table)
        table.append([row(1)])
        table.overwrite([row(1), row(1)], where=[("id", "in", [1, 4, 7])])
        assert ids(table.to_arrow()) == [0, 1, 1, 2, 3, 5]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 1, 1, 2, 3, 5]

    def test_partitions_of_such_rows_are_replaced_and_dropped(self, store, world):
        table = adopted(store, world, spec=BY_REGION)
        table.overwrite_partitions([row(8)])
        assert ids(table.to_arrow()) == [1, 3, 5, 8]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [1, 3, 5, 8]
        table.delete(where=[("id", "=", 3)])
        assert table.drop_partition({"region": "us"}).rows == 2, "those of other engines count"
        assert ids(table.to_arrow()) == stock(table) == [8]

    def test_columns_that_were_changed_since(self, plain):
        plain.add_columns("note STRING")
        plain.rename_column("n", "number")
        plain.append([{"id": 9, "note": "new"}])
        assert plain.delete(where=[("number", "=", 4)]) == 1
        assert plain.delete(where=[("note", "=", "new")]) == 1
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 1, 2, 3, 5]
        assert sorted(plain.lake.to_arrow()["number"].to_pylist()) == [0, 0, 1, 2, 3]
        assert sorted(r["number"] for r in paimon(plain.storage).read(NAME)) == [0, 0, 1, 2, 3]
        assert plain.delete(where=[("number", "=", 0)]) == 2
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [1, 2, 3]

    def test_files_that_are_written_again_keep_partition_bucket_and_order(self, store, world):
        table = adopted(store, world, range(30), spec=FORMS["both"])

        def places():
            found = table.lake.files().to_pylist()
            return {(f["partition"], f["bucket"], f["min_sequence_number"], f["max_sequence_number"]) for f in found}

        before = places()
        table.delete(where=[("n", "=", 3)])
        tier(table)
        assert places() <= before
        assert ids(table.to_arrow()) == stock(table) == [n for n in range(30) if n % 5 != 3]
        lake = table.open_lake()
        at = [split.location for split in lake.plan_read().splits]
        assert [offset_file(lake.place.files_at(one), one, lake.place.spec.writers) for one in at] == [None] * len(at)
        assert sum(partition_table(table)["lake_rows"].to_pylist()) == 24

    def test_a_truncation_takes_them_along(self, table):
        table.delete(where=[("id", "=", 1)])
        table.truncate()
        assert table.refresh().deletions == ()
        table.append([row(8)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [8]

    def test_a_rebuilt_lake_is_not_without_adopted_rows(self, plain):
        """Their only copy is in the lake that would be left."""
        before = plain.refresh().version
        plain.delete(where=[("id", "=", 1)])
        tier(plain)
        assert ids(plain.read_version(before)) == list(range(6)), "older versions have the row"
        assert ids(plain.read_version(plain.refresh().version)) == [0, 2, 3, 4, 5]


class TestConflicts:
    def test_two_of_one_row(self, plain, other_process):
        state = plain.refresh()
        other_process().table(NAME).delete(where=[("id", "=", 1)])
        (deletion,) = plain.refresh().deletions
        with pytest.raises(CommitConflictError, match=r"the row at position 1 of .* was deleted by another"):
            row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files=deletion.files)

    def test_a_round_in_between_is_none_where_files_stay(self, plain, other_process):
        """A service that tiers all the time must not stand in the way of statements."""
        plain.append([row(n) for n in range(9, 12)])
        tier(plain)
        state = plain.refresh()
        other = other_process().table(NAME)
        for number in (12, 13):
            other.append([row(number)])
            other.delete(where=[("id", "=", number - 3)])
            tier(other)
        other.lake.compact()
        assert plain.refresh().lake.snapshot_id > state.lake.snapshot_id + 1
        name = file_with(plain, 0)
        assert row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)}) == 1
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 11, 12, 13]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 11, 12, 13]

    def test_a_round_in_between_that_wrote_such_files_again_is_one(self, plain, other_process):
        state = plain.refresh()
        name = file_with(plain, 0)
        other = other_process().table(NAME)
        other.delete(where=[("id", "=", 4)])
        tier(other)
        with pytest.raises(CommitConflictError, match="may have other files"):
            row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)})
        assert plain.delete(where=[("id", "=", 1)]) == 1, "looked for anew"
        tier(plain)
        assert stock(plain) == [0, 2, 3, 5]

    def test_a_file_that_was_replaced_in_between_is_one(self, plain, store):
        state = plain.refresh()
        name = file_with(plain, 0)
        rewritten(store)
        plain.append([row(9)])
        tier(plain)
        with pytest.raises(CommitConflictError, match="may have other files"):
            row_deletion.commit_deletion(plain, {}, ReadBase.of(state), files={name: runs(1)})
        assert plain.delete(where=[("id", "=", 1)]) == 1
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 9]

    def test_a_snapshot_that_took_the_place_of_the_one_that_was_read_is_one(self, plain, store):
        """Files of the two are counted differently, so a row would be another's."""
        rename = Renaming(plain, plain.open_lake().newest().id + 1)
        plain.append([row(9)])
        tier(plain)
        with pytest.raises(CommitConflictError, match="put its own lake snapshot in the place"):
            replace_rows_beside(plain, rename)
        assert plain.refresh().deletions == ()


def replace_rows_beside(table, happens):
    """Something happens after the rows were read, and before they are named."""
    right = row_deletion.places_of_rows

    def places(*args):
        happens()
        return right(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_deletion, "places_of_rows", places)
        patch.setattr(row_deletion, "_CONFLICTS_MAX", 0)
        table.delete(where=[("id", "=", 1)])


class TestOtherEngines:
    """What they do between the statement and the round."""

    def test_files_are_written_again(self, table, store):
        table.delete(where=[("id", "in", [1, 4])])
        rewritten(store)
        assert stock(table) == list(range(6)), "it does not know of the deletion"
        assert ids(table.to_arrow()) == [0, 2, 3, 5], "the pinned snapshot is read"
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == [0, 2, 3, 5]
        assert tier(table).snapshots == ()
        require_verified(table)

    @pytest.mark.parametrize("is_before", [False, True])
    def test_files_with_offsets_are_written_again(self, table, store, is_before):
        table.append([row(n) for n in [6, 7, 7, 8]])
        tier(table)
        if is_before:
            rewritten(store)
        assert table.delete(where=[("id", "in", [1, 7])]) == 3
        if not is_before:
            rewritten(store)
        appended(store, [row(7)])
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
        rewritten(store)
        appended(store, [row(7)])
        assert ids(table.to_arrow()) == [0, 2, 8]
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [0, 2, 7, 8]
        assert tier(table).snapshots == ()

    def test_equal_rows_that_stay_or_come_are_told_by_their_number(self, store, world):
        table = adopted(store, world, [1, 1, 2, 2, 3, 1])
        assert table.delete(where=[("id", "=", 2)]) == 2
        rewritten(store)
        appended(store, [row(2), row(4)])
        tier(table)
        assert ids(table.to_arrow()) == stock(table) == [1, 1, 1, 2, 3, 4]

    def test_some_of_the_rows_are_gone_already(self, plain, store):
        plain.delete(where=[("id", "<", 3)])
        kept(store, lambda one: one["id"] != 1)
        assert ids(plain.to_arrow()) == [3, 4, 5]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [3, 4, 5]
        assert plain.refresh().lake.dropped_rows == 2

    def test_all_of_the_rows_are_gone_already(self, plain, store):
        plain.delete(where=[("id", "=", 1)])
        kept(store, lambda one: one["id"] != 1)
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5]
        assert not any(deletion.files for deletion in plain.refresh().deletions)
        assert tier(plain).snapshots == ()
        plain.append([row(1)])
        assert ids(plain.to_arrow()) == list(range(6))

    def test_rows_are_added_meanwhile(self, plain, store):
        plain.delete(where=[("id", "=", 1)])
        appended(store, [row(1), row(6)])
        plain.append([row(7)])
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert plain.delete(where=[("id", "=", 1)]) == 1

    def test_a_commit_while_the_round_writes(self, plain, store, monkeypatch):
        """A row that came meanwhile equals a deleted one, and stays: the round looks again."""
        plain.delete(where=[("id", "=", 1)])
        rewritten(store)
        right = PaimonLake.commit

        def commit(self, files, **more):
            monkeypatch.undo()
            appended(store, [row(1)])
            return right(self, files, **more)

        monkeypatch.setattr(PaimonLake, "commit", commit)
        assert tier(plain).conflicts == 1
        assert ids(plain.to_arrow()) == stock(plain) == list(range(6))
        assert tier(plain).snapshots == ()

    def test_a_snapshot_that_took_the_place_has_other_files(self, plain, store):
        """It has the same number and offsets, so that nothing else tells."""
        plain.delete(where=[("id", "=", 1)])
        replaced(plain, store)
        with pytest.raises(SnapshotExpiredError, match="tier the table"):
            plain.to_arrow()
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5]

    def test_the_files_and_their_snapshot_are_gone(self, plain, store):
        plain.delete(where=[("id", "=", 1)])
        recorded, name = plain.refresh().lake.snapshot_id, file_with(plain, 0)
        rewritten(store)
        store.delete(name)
        with pytest.raises(LakeMismatchError, match="nothing tells which rows these are"):
            tier(plain)
        assert stock(plain) == list(range(6)), "and nothing was deleted"
        store.delete(f"lake/{NAME.replace('.', '.db/')}/snapshot/snapshot-{recorded}")
        with pytest.raises(SnapshotExpiredError):
            plain.to_arrow()

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_our_upkeep_leaves_the_files_and_their_deleted_rows(self, plain, store, clock, is_rewritten):
        for number in range(10, 16):
            plain.append([row(number)])
            tier(plain)
        plain.delete(where=[("id", "=", 1)])
        before = plain.refresh().lake.snapshot_id
        assert plain.lake.compact().files_removed == 6
        clock.advance(3 * DAY_MS)
        assert before in plain.lake.expire_snapshots(retain_last=1).snapshots
        plain.maintain()
        left = [0, 2, 3, 4, 5, *range(10, 16)]
        assert plain.refresh().lake.snapshot_id != before, "another is recorded that has the same files of others"
        assert ids(plain.to_arrow()) == left
        rewritten(store) if is_rewritten else None
        assert ids(plain.to_arrow()) == left
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == left

    def test_a_snapshot_that_rows_wait_for_is_not_expired(self, plain, store, clock, monkeypatch):
        appended(store, [row(10), row(11)])
        plain.append([row(12)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(plain)
        plain.delete(where=[("id", "=", 1)])
        clock.advance(3 * DAY_MS)
        with pytest.raises(CommitConflictError, match="nothing was expired, tier the table"):
            plain.lake.expire_snapshots(retain_last=1)
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 10, 11, 12]


class TestHistory:
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
        middle = before + 2
        net = changes(table, before + 1, middle, is_net=True)
        assert sorted((one["id"], one["_change_type"]) for one in net) == [
            (1, "delete"),
            (4, "delete"),
            (9, "delete"),
            (12, "insert"),
        ]

    def test_a_net_change_of_rows_whose_file_a_round_wrote_again(self, plain):
        """Nobody knows whether rows of the new file were added since."""
        before = plain.refresh().version
        plain.delete(where=[("id", "=", 1)])
        middle = plain.refresh().version
        tier(plain)
        plain.delete(where=[("id", "=", 0)])
        now = plain.refresh().version
        with pytest.raises(InvalidOptionError, match="have no offsets and may have been added since version"):
            changes(plain, before + 1, now, is_net=True)
        assert [one["id"] for one in changes(plain, before + 1, middle, is_net=True)] == [1]
        assert [one["id"] for one in changes(plain, now, now, is_net=True)] == [0]

    def test_changes_of_a_snapshot_that_is_replaced_while_they_are_read(self, plain, store):
        plain.delete(where=[("id", "=", 1)])
        number = plain.refresh().version
        found = plan_changes(plain, plain.state, number, number, Pruning())
        replaced(plain, store)
        plan = ReadPlan(plain.name, plain.uuid, plain.state.schema, found.pieces)
        with pytest.raises(SnapshotExpiredError, match="compare two versions of the table"):
            list(read_batches(plain, plan, CHANGES_FIELDS))
        with pytest.raises(OffsetsTrimmedError, match="no longer has snapshot"):
            changes(plain, number, number)

    def test_changes_of_rows_that_another_engine_added(self, plain, store):
        appended(store, [row(20), row(21)])
        plain.append([row(9)])
        tier(plain)
        before = plain.refresh().version
        plain.delete(where=[("id", "in", [9, 20])])
        found = changes(plain, before + 1, plain.refresh().version)
        assert sorted((one["id"], one["_change_type"]) for one in found) == [(9, "delete"), (20, "delete")]
        assert {one["id"] for one in changes(plain, 3, before)} == {9}

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
        rewritten(store)
        plain.append([row(10)])
        tier(plain)
        plain.delete(where=[("id", "=", 1)])
        with pytest.raises(InvalidOptionError, match="of files that the lake did not have then"):
            rollback_to_version(plain, before)

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
        row_deletion.commit_deletion(table, {}, ReadBase.of(state), files={file_with(table, 1): runs(1)})
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        rewritten(store)
        other = other_process().table(NAME)
        tier(other)
        assert ids(other.to_arrow()) == stock(other) == [1, 2, 3]

    def test_a_deletion_while_a_round_runs_waits_for_the_next(self, plain, other_process, monkeypatch):
        plain.append([row(9)])
        right, done = PaimonLake.commit, []

        def commit(self, files, **more):
            if not done:
                done.append(other_process().table(NAME).delete(where=[("id", "=", 1)]))
            return right(self, files, **more)

        monkeypatch.setattr(PaimonLake, "commit", commit)
        tier(plain)
        monkeypatch.undo()
        assert done == [1]
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5, 9]
        tier(plain)
        assert ids(plain.to_arrow()) == stock(plain) == [0, 2, 3, 4, 5, 9]

    @pytest.mark.parametrize("is_recorded", [False, True])
    def test_a_rename_over_the_round_brings_no_row_back(self, plain, monkeypatch, is_recorded):
        """A writer of Paimon's that looked before the round."""
        rename = Renaming(plain, plain.open_lake().newest().id + 1)
        plain.delete(where=[("id", "=", 1)])
        with monkeypatch.context() as patch:
            if not is_recorded:
                patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(plain)
        rename()
        assert ids(plain.to_arrow()) == [0, 2, 3, 4, 5]
        plain.append([row(9)])
        tier(plain)
        assert ids(plain.to_arrow()) == ids(plain.lake.to_arrow()) == [0, 2, 3, 4, 5, 9]
