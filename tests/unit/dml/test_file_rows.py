"""Rows of lake files without offsets: a statement deletes them by file and position, and every reader follows."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, lake_of, row
from kit.change_replay import changes, replayed, version
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import require_verified, tier
from property.stream_driver import Query
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml import delete
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    FormatVersionError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import read_file_offsets
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.deletion_vectors import DeleteRows
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segments.metadata_columns import CHANGES_FIELDS
from streamhouse_spark.log.state import fold
from streamhouse_spark.read.change_feed.planning import plan_changes
from streamhouse_spark.read.offset_scan import require_undeleted
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import FileRowsScanTask, ScanPlan
from streamhouse_spark.table.partitions_table import count_partitions
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.table.versioning.rollback import rollback_to_version
from unit.lake.paimon.test_commit_races import Renaming

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
DAY_MS = 24 * 3600 * 1000
LAYOUTS = [(name, layout) for name, engine in ENGINES.items() for layout in engine.layouts]
LONG = ("iceberg", "by region")


def on(*cases):
    """Run a test on these pairs of an engine and a layout."""
    params = [pytest.param(case, id=" ".join(case), marks=[pytest.mark.long] * (case == LONG)) for case in cases]
    return pytest.mark.parametrize("engine", params, indirect=True)


on_each_layout = on(*LAYOUTS)
only_iceberg = on(("iceberg", "plain"))
only_paimon = on(("paimon", "plain"))


@pytest.fixture(params=[pytest.param((name, "plain"), id=name) for name in ENGINES])
def engine(request, store, world):
    return ENGINES[request.param[0]](store, world)


@pytest.fixture
def table(request, engine):
    """Adopt six rows in the layout that the test's engine is parametrised with."""
    _, layout = request.node.callspec.params["engine"]
    return engine.adopted(**engine.layouts[layout])


def names_of(table):
    files = StorageFiles(table.storage)
    return [files.name_of(at) for at in table.open_lake().list_named_files(table.refresh().lake.snapshot_id)]


def numbers_in(table, name):
    """Return the ids in a file, perhaps one that is no longer the table's."""
    return pq.read_table(pa.BufferReader(table.storage.read(name)))["id"].to_pylist()


def file_with(table, number):
    """Return the name of the file that begins with a row."""
    return next(name for name in names_of(table) if numbers_in(table, name)[0] == number)


def expired(table, store, world):
    """Let another engine expire the recorded snapshot, against the tag that is to keep it."""
    lake = lake_of(store, world)
    with lake.manage_snapshots() as changes:
        changes.remove_tag("__streamhouse_lake_tiering")
    lake.maintenance.expire_snapshots().by_id(table.refresh().lake.snapshot_id).commit()


def runs(position):
    return OffsetSet.dense(position, 1)


def replaced(table, engine, store):
    """Let another engine's rewrite take the place of the recorded snapshot."""
    folder, number = f"{table.state.lake_location}/snapshot", table.refresh().lake.snapshot_id
    own = json.loads(store.read(f"{folder}/snapshot-{number}"))
    engine.rewrite()
    made = json.loads(store.read(f"{folder}/snapshot-{store.read(f'{folder}/LATEST').decode()}"))
    made |= {"id": number, "properties": own["properties"]}
    store.put(f"{folder}/snapshot-{number}", json.dumps(made).encode())


class TestStatement:
    @on_each_layout
    def test_adopted_rows_are_deleted_by_one_commit_before_any_round(self, table, engine, other_process):
        before, snapshot = table.refresh().version, table.state.lake.snapshot_id
        assert table.delete(where=[("id", "in", [1, 4])]) == 2
        assert table.delete(where=[("id", "in", [1, 4])]) == 0
        assert (table.refresh().version, table.state.lake.snapshot_id) == (before + 1, snapshot)
        for reader in (table, other_process().table(NAME)):
            assert ids(reader.to_arrow()) == [0, 2, 3, 5]
            assert ids(reader.to_arrow(filter=[("id", "<", 3)])) == [0, 2]
            assert ids(reader.lake.to_arrow()) == list(range(6)), "the lake has them until the next round"
        assert engine.ids(table) == list(range(6))
        assert open_view(table, "history").to_arrow().to_pylist()[-1]["rows_deleted"] == 2
        require_verified(table)

    @on_each_layout
    def test_the_next_round_deletes_adopted_rows_in_the_lake(self, table, engine):
        files = names_of(table)
        table.delete(where=[("id", "in", [1, 4])])
        report = tier(table)
        assert (len(report.snapshots), report.rows) == (1, 0), "though no row was ever appended"
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == [0, 2, 3, 5]
        kept = [name for name in files if engine.keeps_files or not {1, 4}.intersection(numbers_in(table, name))]
        assert [name for name in files if name in names_of(table)] == kept
        (deletion,) = table.refresh().deletions
        assert (deletion.files, deletion.is_in_lake) == ({}, True), "the state forgets their places"
        assert (table.state.lake.keeps_files, table.state.lake.dropped_rows) == (engine.keeps_files, 2)
        assert tier(table).snapshots == ()
        require_verified(table)

    @on_each_layout
    def test_one_statement_deletes_rows_of_log_lake_and_another_engine(self, table, engine):
        table.append([row(n) for n in range(6, 12)])
        tier(table)
        engine.append([row(20), row(21)])
        table.append([row(n) for n in range(12, 16)])
        tier(table)
        table.append([row(n) for n in range(16, 18)])
        gone = [0, 5, 7, 8, 13, 16, 21]
        assert table.delete(where=[("id", "in", gone)]) == 7
        left = [n for n in [*range(18), 20] if n not in gone]
        assert ids(table.to_arrow()) == left
        snapshots = table.lake.snapshots().num_rows
        tier(table)
        if engine.format == "paimon":
            kinds = table.lake.snapshots()["commit_kind"].to_pylist()[snapshots:]
            assert kinds == ["OVERWRITE", "COMPACT"], "of rows and deletions, and the one that settles it"
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == left
        require_verified(table)

    @on_each_layout
    def test_a_deletion_covers_rows_with_offsets_next_to_files_without(self, table, engine):
        """The lake file that has them is told by its footer, so that the others surely have none of them."""
        table.append([row(n) for n in range(6, 10)])
        tier(table)
        assert table.delete(where=[("id", "in", [7, 8])]) == 2
        assert ids(table.to_arrow()) == [*range(7), 9]
        engine.append([row(20)])
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [*range(7), 9, 20]

    @on_each_layout
    def test_replace_where_replaces_adopted_rows(self, table, engine):
        table.append([row(7)])
        tier(table)
        table.append([row(1)])
        table.overwrite([row(1), row(1)], where=[("id", "in", [1, 4, 7])])
        assert ids(table.to_arrow()) == [0, 1, 1, 2, 3, 5]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 1, 1, 2, 3, 5]

    def test_partitions_of_adopted_rows_are_replaced_and_dropped(self, engine):
        table = engine.adopted(by_region=True)
        table.overwrite_partitions([row(8)])
        assert ids(table.to_arrow()) == [1, 3, 5, 8]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [1, 3, 5, 8]
        table.delete(where=[("id", "=", 3)])
        assert table.drop_partition({"region": "us"}).rows == 2, "those of other engines count"
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [8]

    @only_iceberg
    def test_dropping_a_partition_of_a_later_spec_deletes_adopted_rows(self, engine):
        table = engine.adopted(by_region=True)
        table.overwrite_partitions([row(8)])
        tier(table)
        table.set_partitioning(["n"])
        table.drop_partition({"n": 1})
        assert ids(table.to_arrow()) == [3, 5, 8]
        tier(table)
        assert engine.ids(table) == [3, 5, 8]

    @on_each_layout
    def test_all_rows_of_a_file_are_deleted(self, table, engine):
        assert table.delete(where=[("id", "<", 100)]) == 6
        assert ids(table.to_arrow()) == []
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == []
        table.append([row(1)])
        assert ids(table.to_arrow()) == [1]

    def test_rows_that_another_engine_deleted_are_not_deleted_again(self, engine):
        table = engine.adopted(range(8))
        engine.delete(1)
        tier(table)
        table.append([row(20)])
        tier(table)
        assert table.delete(where=[("id", "in", [1, 2])]) == 1
        assert ids(table.to_arrow()) == [0, *range(3, 8), 20]
        tier(table)
        assert engine.ids(table) == [0, *range(3, 8), 20]

    @only_iceberg
    def test_several_rounds_delete_rows_of_one_file(self, table, engine):
        for number in (0, 2):
            table.delete(where=[("id", "=", number)])
            tier(table)
        table.delete(where=[("id", "=", 1)])
        table.delete(where=[("id", "=", 5)])
        assert ids(table.to_arrow()) == [3, 4]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [3, 4]
        assert table.refresh().lake.dropped_rows == 4
        assert lake_of(table.storage, table.world).inspect.delete_files().num_rows == 2, "one a data file"

    def test_a_transaction_deletes_once(self, table):
        once = Transaction("gdpr", 1)
        assert table.delete(where=[("id", "=", 1)], transaction=once) == 1
        assert table.delete(where=[("id", "=", 2)], transaction=once) == 0
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5]

    def test_rows_are_deleted_after_column_changes(self, table, engine):
        table.add_columns("note STRING")
        table.rename_column("n", "number")
        table.append([{"id": 9, "note": "new"}])
        assert table.delete(where=[("number", "=", 4)]) == 1
        assert table.delete(where=[("note", "=", "new")]) == 1
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 1, 2, 3, 5]
        assert sorted(table.lake.to_arrow()["number"].to_pylist()) == [0, 0, 1, 2, 3]
        assert sorted(r["number"] for r in engine.rows()) == [0, 0, 1, 2, 3]
        assert table.delete(where=[("number", "=", 0)]) == 2
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [1, 2, 3]

    @only_iceberg
    def test_rows_of_several_partition_specs_are_deleted(self, engine):
        table = engine.adopted(by_region=True)
        table.set_partitioning(["n"])
        table.append([row(n) for n in range(6, 9)])
        tier(table)
        assert table.delete(where=[("n", "=", 1)]) == 2
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 7, 8]
        assert sum(count_partitions(table)["lake_rows"].to_pylist()) == 7

    @on_each_layout
    def test_a_truncation_clears_pending_deletes(self, table, engine):
        table.delete(where=[("id", "=", 1)])
        table.truncate()
        assert table.refresh().deletions == ()
        table.append([row(8)])
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [8]

    def test_a_dropped_partition_counts_rows_deleted_before(self, engine):
        table = engine.adopted(by_region=True)
        table.append([row(6), row(7)])
        table.delete(where=[("id", "in", [2, 3])])
        tier(table)
        assert table.drop_partition({"region": "eu"}).rows == 3
        assert table.refresh().lake.dropped_rows == 5, "two that were deleted, and three that went with the partition"
        assert table.state.lake.dropped_without_offsets == 2
        assert ids(table.to_arrow()) == engine.ids(table) == [1, 5, 7]
        require_verified(table)
        assert tier(table).snapshots == ()

    def test_partition_counts_leave_out_deleted_rows(self, engine):
        table = engine.adopted(by_region=True)
        table.delete(where=[("id", "in", [1, 4])])
        found = {r["region"]: r["lake_rows"] for r in count_partitions(table).to_pylist()}
        assert found == {"eu": 2, "us": 2}

    @on_each_layout
    def test_adopted_rows_are_updated(self, table, engine):
        replace_rows(table, lambda r: r["id"] in (1, 4), lambda r: {**r, "id": r["id"] + 10, "region": "asia"})
        assert ids(table.to_arrow()) == [0, 2, 3, 5, 11, 14]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 5, 11, 14]
        assert sorted(r["region"] for r in table.to_arrow().to_pylist() if r["id"] > 10) == ["asia", "asia"]

    @on_each_layout
    def test_later_statements_delete_the_other_rows_of_the_files(self, table, engine):
        for gone in ([1, 4], [2], [0, 3, 5]):
            assert table.delete(where=[("id", "in", gone)]) == len(gone)
            tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == []
        table.append([row(1)])
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [1]

    @only_paimon
    def test_rewritten_files_keep_partition_bucket_and_order(self, engine):
        table = engine.adopted(range(30), **engine.layouts["both"])

        def places():
            found = table.lake.files().to_pylist()
            return {(f["partition"], f["bucket"], f["min_sequence_number"], f["max_sequence_number"]) for f in found}

        before = places()
        table.delete(where=[("n", "=", 3)])
        tier(table)
        assert places() <= before
        assert ids(table.to_arrow()) == engine.ids(table) == [n for n in range(30) if n % 5 != 3]
        lake = table.open_lake()
        at = [split.location for split in lake.plan_read().splits]
        assert [read_file_offsets(lake.binding.files_at(one), one, lake.binding.spec.writers) for one in at] == [
            None
        ] * len(at)
        assert sum(count_partitions(table)["lake_rows"].to_pylist()) == 24

    def test_older_versions_keep_deleted_adopted_rows(self, table):
        """Their only copy is in the lake that would be left."""
        before = table.refresh().version
        table.delete(where=[("id", "=", 1)])
        tier(table)
        assert ids(table.read_version(before)) == list(range(6)), "older versions have the row"
        assert ids(table.read_version(table.refresh().version)) == [0, 2, 3, 4, 5]


class TestConflicts:
    def test_two_deletions_of_one_row_conflict(self, table, other_process):
        read = ReadVersion.of(table.refresh())
        other_process().table(NAME).delete(where=[("id", "=", 1)])
        (deletion,) = table.refresh().deletions
        with pytest.raises(CommitConflictError, match=r"a concurrent writer deleted the row at position 1 of"):
            delete.commit_deletion(table, {}, read, files=deletion.files)

    def test_deletions_of_different_rows_and_an_append_do_not_conflict(self, table, other_process):
        state = table.refresh()
        other_process().table(NAME).delete(where=[("id", "=", 1)])
        other_process().table(NAME).append([row(9)])
        (deletion,) = table.refresh().deletions
        (name,) = deletion.files
        assert delete.commit_deletion(table, {}, ReadVersion.of(state), files={name: runs(2)}) == 1
        assert ids(table.to_arrow()) == [0, 3, 4, 5, 9]

    def test_a_concurrent_round_does_not_conflict_if_the_files_stay(self, table, engine, other_process):
        """A service that tiers all the time must not stand in the way of statements."""
        table.append([row(n) for n in range(9, 12)])
        tier(table)
        state = table.refresh()
        other = other_process().table(NAME)
        for number in (12, 13):
            other.append([row(number)])
            other.delete(where=[("id", "=", number - 3)])
            tier(other)
        other.lake.compact()
        assert table.refresh().lake.snapshot_id != state.lake.snapshot_id
        name = file_with(table, 0)
        assert delete.commit_deletion(table, {}, ReadVersion.of(state), files={name: runs(1)}) == 1
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5, 11, 12, 13]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 11, 12, 13]

    def test_a_file_replaced_concurrently_conflicts(self, table, engine):
        state = table.refresh()
        name = file_with(table, 0)
        engine.rewrite()
        table.append([row(9)])
        tier(table)
        with pytest.raises(CommitConflictError, match="may have other files"):
            delete.commit_deletion(table, {}, ReadVersion.of(state), files={name: runs(1)})
        assert table.delete(where=[("id", "=", 1)]) == 1, "looked for anew"
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5, 9]

    @pytest.mark.parametrize(
        ("engine", "number", "reason"),
        [
            pytest.param(("iceberg", "plain"), 1, "their positions are no longer recorded", id="iceberg"),
            pytest.param(("paimon", "plain"), 4, "may have other files", id="paimon"),
        ],
        indirect=["engine"],
    )
    def test_a_round_that_deleted_rows_conflicts_if_their_places_changed(
        self, table, engine, other_process, number, reason
    ):
        state = table.refresh()
        name = file_with(table, 0)
        other = other_process().table(NAME)
        other.delete(where=[("id", "=", number)])
        tier(other)
        with pytest.raises(CommitConflictError, match=reason):
            delete.commit_deletion(table, {}, ReadVersion.of(state), files={name: runs(1)})
        assert table.delete(where=[("id", "=", 1)]) == (number != 1), "looked for anew"
        tier(table)
        assert engine.ids(table) == [n for n in range(6) if n not in (1, number)]

    def test_a_record_of_rows_missing_from_the_table_is_corrupt(self, table):
        table.delete(where=[("id", "=", 1)])
        (deletion,) = table.refresh().deletions
        state = table.state
        for bad in (
            DeleteRows({}, deletion.files, deletion.snapshot_id),
            DeleteRows({}, {"data/other.parquet": runs(1)}, 5),
        ):
            record = Record(state.version + 1, table.uuid, "a" * 32, state.time_ms, (bad,), after=state.attempt)
            with pytest.raises(CorruptDataError, match="that are not the table's"):
                fold(state, record)

    @only_paimon
    def test_a_replaced_lake_snapshot_conflicts(self, table):
        """Files of the two are counted differently, so a row would be another's."""
        rename = Renaming(table, table.open_lake().newest().id + 1)
        table.append([row(9)])
        tier(table)
        with pytest.raises(CommitConflictError, match="replaced lake snapshot"):
            delete_after(table, rename)
        assert table.refresh().deletions == ()


def delete_after(table, happens):
    """Delete a row while `happens` runs after the rows are read and before their places are resolved."""
    right = delete.locate_row_ids

    def places(*args):
        happens()
        return right(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delete, "locate_row_ids", places)
        patch.setattr(delete, "_CONFLICTS_MAX", 0)
        table.delete(where=[("id", "=", 1)])


class TestOtherEngines:
    """What they do between the statement and the round."""

    @on_each_layout
    def test_rows_stay_deleted_after_their_files_are_rewritten(self, table, engine):
        table.delete(where=[("id", "in", [1, 4])])
        engine.rewrite()
        assert engine.ids(table) == list(range(6)), "it does not know of the deletion"
        assert ids(table.to_arrow()) == [0, 2, 3, 5], "the pinned snapshot is read"
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == [0, 2, 3, 5]
        assert tier(table).snapshots == ()
        require_verified(table)

    @on_each_layout
    @pytest.mark.parametrize("is_before", [False, True])
    def test_rows_with_offsets_stay_deleted_after_a_rewrite(self, table, engine, is_before):
        table.append([row(n) for n in [6, 7, 7, 8]])
        tier(table)
        if is_before:
            engine.rewrite()
        assert table.delete(where=[("id", "in", [1, 7])]) == 3
        if not is_before:
            engine.rewrite()
        engine.append([row(7)])
        left = [0, 2, 3, 4, 5, 6, 8]
        assert ids(table.to_arrow()) == left
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == sorted([*left, 7])
        assert tier(table).snapshots == ()
        assert table.delete(where=[("id", "in", [6, 7])]) == 2
        tier(table)
        assert engine.ids(table) == [0, 2, 3, 4, 5, 8]

    def test_rows_of_an_unrecorded_round_stay_deleted_after_a_rewrite(self, engine, monkeypatch):
        """No recorded snapshot has it, and the log has its rows."""
        table = engine.adopted([0, 1, 2, 7])
        table.append([row(n) for n in (7, 7, 8)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        assert table.delete(where=[("id", "in", [1, 7])]) == 4
        engine.rewrite()
        engine.append([row(7)])
        assert ids(table.to_arrow()) == [0, 2, 8]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 7, 8]
        assert tier(table).snapshots == ()

    def test_equal_rows_are_matched_by_count_after_a_rewrite(self, engine):
        table = engine.adopted([1, 1, 2, 2, 3, 1])
        assert table.delete(where=[("id", "=", 2)]) == 2
        engine.rewrite()
        engine.append([row(2), row(4)])
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [1, 1, 1, 2, 3, 4]

    def test_another_engine_deleted_some_of_the_rows(self, table, engine):
        table.delete(where=[("id", "<", 3)])
        engine.delete(1)
        assert ids(table.to_arrow()) == [3, 4, 5]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [3, 4, 5]
        assert table.refresh().lake.dropped_rows == 2

    def test_a_snapshot_with_pending_deletes_is_not_expired(self, table, engine, clock, monkeypatch):
        engine.append([row(10), row(11)])
        table.append([row(12)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        table.delete(where=[("id", "=", 1)])
        clock.advance(3 * DAY_MS)
        with pytest.raises(CommitConflictError, match="nothing was expired, tier the table"):
            table.lake.expire_snapshots(retain_last=1)
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 10, 11, 12]

    def test_another_engine_deleted_all_of_the_rows(self, table, engine):
        table.delete(where=[("id", "=", 1)])
        engine.delete(1)
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5]
        assert not any(deletion.files for deletion in table.refresh().deletions)
        assert tier(table).snapshots == ()
        table.append([row(1)])
        assert ids(table.to_arrow()) == list(range(6))

    def test_rows_that_another_engine_appends_later_stay(self, table, engine):
        table.delete(where=[("id", "=", 1)])
        engine.append([row(1), row(6)])
        table.append([row(7)])
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert table.delete(where=[("id", "=", 1)]) == 1

    @only_iceberg
    def test_deletes_apply_after_the_snapshot_expired_if_its_files_are_live(self, table, engine, store, world):
        """It is another engine's, which no tag keeps."""
        table.append([row(9)])
        tier(table)
        engine.append([row(20)])
        tier(table)
        recorded = table.refresh().lake.snapshot_id
        table.delete(where=[("id", "=", 1)])
        engine.append([row(21)])
        lake_of(store, world).maintenance.expire_snapshots().by_id(recorded).commit()
        with pytest.raises(SnapshotExpiredError, match="another engine rewrote files; tier the table"):
            table.to_arrow()
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 9, 20, 21]

    @only_iceberg
    def test_no_snapshot_with_other_files_replaces_an_expired_one(self, table, engine, store, world):
        table.delete(where=[("id", "=", 1)])
        engine.rewrite()
        expired(table, store, world)
        with pytest.raises(SnapshotExpiredError):
            table.to_arrow()
        with pytest.raises(LakeMismatchError, match="the rows cannot be identified"):
            tier(table)
        assert engine.ids(table) == list(range(6)), "and nothing was deleted"

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_our_maintenance_keeps_files_with_pending_deletes(self, table, engine, clock, is_rewritten):
        for number in range(10, 16):
            table.append([row(number)])
            tier(table)
        table.delete(where=[("id", "=", 1)])
        before = table.refresh().lake.snapshot_id
        assert table.lake.compact().files_removed == 6
        clock.advance(3 * DAY_MS)
        assert before in table.lake.expire_snapshots(retain_last=1).snapshots
        table.maintain()
        left = [0, 2, 3, 4, 5, *range(10, 16)]
        assert table.refresh().lake.snapshot_id != before, "another is recorded that has the same files of others"
        assert ids(table.to_arrow()) == left
        engine.rewrite() if is_rewritten else None
        assert ids(table.to_arrow()) == left
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == left

    def test_a_commit_during_the_round_is_read_before_the_retry(self, table, engine, monkeypatch):
        """A row that came meanwhile equals a deleted one, and stays: the round looks again."""
        table.delete(where=[("id", "=", 1)])
        engine.rewrite()
        lake = type(table.open_lake())
        right = lake.commit

        def commit(self, files, **more):
            monkeypatch.undo()
            engine.append([row(1)])
            return right(self, files, **more)

        monkeypatch.setattr(lake, "commit", commit)
        assert tier(table).conflicts == 1
        assert ids(table.to_arrow()) == engine.ids(table) == list(range(6))
        assert tier(table).snapshots == ()

    @only_paimon
    def test_a_snapshot_replaced_under_its_number_is_noticed(self, table, engine, store):
        """It has the same number and offsets, so that nothing else tells."""
        table.delete(where=[("id", "=", 1)])
        replaced(table, engine, store)
        with pytest.raises(SnapshotExpiredError, match="tier the table"):
            table.to_arrow()
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5]

    @only_paimon
    def test_a_round_without_the_deleted_files_deletes_nothing(self, table, engine, store):
        table.delete(where=[("id", "=", 1)])
        recorded, name = table.refresh().lake.snapshot_id, file_with(table, 0)
        engine.rewrite()
        store.delete(name)
        with pytest.raises(LakeMismatchError, match="the rows cannot be identified"):
            tier(table)
        assert engine.ids(table) == list(range(6)), "and nothing was deleted"
        store.delete(f"lake/{NAME.replace('.', '.db/')}/snapshot/snapshot-{recorded}")
        with pytest.raises(SnapshotExpiredError):
            table.to_arrow()


class TestHistory:
    def test_time_travel_returns_rows_deleted_later(self, table, clock):
        before = table.refresh().version
        clock.advance(1000)
        at_ms = table.state.time_ms + 500
        table.delete(where=[("id", "=", 1)])
        after = table.refresh().version
        tier(table)
        assert ids(table.read_version(before)) == list(range(6))
        assert ids(table.read_version(after)) == [0, 2, 3, 4, 5]
        assert ids(table.to_arrow(as_of_timestamp_ms=at_ms)) == list(range(6))
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5]

    @on_each_layout
    def test_changes_contain_deleted_rows_with_all_columns(self, table, engine):
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
        piece = next(piece for piece in chosen.tasks if isinstance(piece.rows, FileRowsScanTask))
        assert type(piece).from_json(piece.to_json()).to_json() == piece.to_json()
        middle = before + 2
        net = changes(table, before + 1, middle, is_net=True)
        deleted = [(number, "delete") for number in (1, 4, 9)]
        assert sorted((one["id"], one["_change_type"]) for one in net) == [*deleted, (12, "insert")]
        if engine.keeps_files:
            net = changes(table, before + 1, newest, is_net=True)
            assert replayed(version(table, before), net) == version(table, newest)
            deleted = [(number, "delete") for number in (0, 1, 4, 5, 9, 10)]
            changed = sorted((one["id"], one["_change_type"]) for one in net)
            assert changed == sorted([*deleted, (0, "insert"), (12, "insert")])

    @on_each_layout
    def test_net_changes_of_rewritten_rows_are_rejected(self, table, engine):
        """They may have been added in the range: then they would be told as added, and as deleted."""
        before = table.refresh().version
        table.append([row(9)])
        tier(table)
        engine.rewrite()
        tier(table)
        middle = table.refresh().version
        table.delete(where=[("id", "=", 9)])
        now = table.refresh().version
        with pytest.raises(InvalidOptionError, match=f"may have been added since version {before}"):
            changes(table, before + 1, now, is_net=True)
        assert [one["id"] for one in changes(table, middle + 1, now, is_net=True)] == [9]

    @only_paimon
    def test_net_changes_of_rows_in_files_a_round_rewrote_are_rejected(self, table):
        """Nobody knows whether rows of the new file were added since."""
        before = table.refresh().version
        table.delete(where=[("id", "=", 1)])
        middle = table.refresh().version
        tier(table)
        table.delete(where=[("id", "=", 0)])
        now = table.refresh().version
        with pytest.raises(InvalidOptionError, match="have no offsets and may have been added since version"):
            changes(table, before + 1, now, is_net=True)
        assert [one["id"] for one in changes(table, before + 1, middle, is_net=True)] == [1]
        assert [one["id"] for one in changes(table, now, now, is_net=True)] == [0]

    @only_paimon
    def test_changes_fail_if_their_snapshot_is_replaced_concurrently(self, table, engine, store):
        table.delete(where=[("id", "=", 1)])
        number = table.refresh().version
        found = plan_changes(table, table.state, number, number, Pruning())
        replaced(table, engine, store)
        plan = ScanPlan(table.name, table.uuid, table.state.schema, found.tasks)
        with pytest.raises(SnapshotExpiredError, match="compare two versions of the table"):
            list(read_batches(table, plan, CHANGES_FIELDS))
        with pytest.raises(OffsetsTrimmedError, match=r"lake snapshot .* has expired"):
            changes(table, number, number)

    def test_changes_contain_deletes_of_rows_that_another_engine_added(self, table, engine):
        engine.append([row(20), row(21)])
        table.append([row(9)])
        tier(table)
        before = table.refresh().version
        table.delete(where=[("id", "in", [9, 20])])
        found = changes(table, before + 1, table.refresh().version)
        assert sorted((one["id"], one["_change_type"]) for one in found) == [(9, "delete"), (20, "delete")]
        assert {one["id"] for one in changes(table, 3, before)} == {9}

    @on_each_layout
    def test_the_changelog_has_deletes_without_offsets_and_fails_its_streams(self, table, wh):
        table.append([row(9)])
        query = Query(f"{table.name}$changelog")
        query.run(wh)
        table.delete(where=[("id", "in", [1, 9])])
        found = wh.view(f"{table.name}$changelog").to_arrow(columns=["id", "_change_type", "_log_offset"])
        told = [(9, "insert", 0), (9, "delete", 0), (1, "delete", -1)]
        assert [tuple(one.values()) for one in found.to_pylist()] == told
        with pytest.raises(OffsetsTrimmedError, match=r"deleted rows of .* that have no offsets, so it is unknown"):
            query.run(wh)
        query.options["skipChangeCommits"] = "true"
        query.run(wh)
        anew = Query(query.name)
        anew.run(wh)
        assert anew.rows == [], "9 came and went"

    @on_each_layout
    def test_changes_of_an_expired_snapshot_name_the_first_version_left(self, table, clock):
        table.append([row(9)])
        table.delete(where=[("id", "=", 1)])
        deleted = table.refresh().version
        tier(table)
        table.append([row(10)])
        tier(table)
        clock.advance(3 * DAY_MS)
        table.lake.expire_snapshots(retain_last=1)
        with pytest.raises(OffsetsTrimmedError, match=f"the first available version is {deleted + 1}$"):
            changes(table, deleted, table.refresh().version)
        assert [one["id"] for one in changes(table, deleted + 1, table.state.version)] == [10]

    @on_each_layout
    def test_a_rollback_restores_deleted_rows(self, table, engine, other_process):
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
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == [*range(6), 9, 10]
        require_verified(table)

    def test_a_rollback_past_another_engines_rewrite_is_rejected(self, table, engine):
        """Rows that were appended since may have lost their offsets: which of them stay is not known."""
        table.append([row(9)])
        before = table.refresh().version
        engine.rewrite()
        table.append([row(10)])
        tier(table)
        table.delete(where=[("id", "=", 1)])
        with pytest.raises(InvalidOptionError, match="in files that are newer than that version"):
            rollback_to_version(table, before)

    def test_a_stream_that_may_have_read_deleted_rows_fails(self, table):
        state = table.refresh()
        table.delete(where=[("id", "=", 1)])
        with pytest.raises(OffsetsTrimmedError, match="have lost their offsets"):
            require_undeleted(table.refresh(), {0: 0}, state.version, who="a stream", advice="start anew")

    @only_iceberg
    def test_a_clone_lacks_the_deleted_rows(self, engine, wh):
        wh.create_database("sales")
        table = wh.create_table(NAME, "id BIGINT, region STRING, n INT")
        table.append([row(n) for n in range(6)])
        tier(table)
        engine.rewrite()
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
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 9]

    def test_checkpoints_keep_pending_deletes_and_older_releases_reject_them(self, table, monkeypatch):
        table.delete(where=[("id", "in", [1, 5])])
        state = table.refresh()
        encoded = checkpoint._encode_checkpoint(state)
        assert as_stored(state).deletions == state.deletions
        assert checkpoint._format_version(state) == 13
        with monkeypatch.context() as older:
            older.setattr(checkpoint, "NEWEST_VERSION", 12)
            with pytest.raises(FormatVersionError, match="upgrade"):
                checkpoint._decode_checkpoint(encoded, table.uuid, state.version, "")
        table.log.checkpoint(state)
        opened = Warehouse("wh", storage=table.storage, world=table.world).table(NAME)
        assert ids(opened.to_arrow()) == [0, 2, 3, 4]
        tier(opened)
        assert checkpoint._format_version(opened.refresh()) == 4


class TestRounds:
    def test_the_next_round_records_a_lake_commit_after_a_crash(self, table, engine, other_process, monkeypatch):
        table.delete(where=[("id", "=", 1)])
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        assert engine.ids(table) == [0, 2, 3, 4, 5] == ids(table.to_arrow())
        other = other_process().table(NAME)
        assert tier(other).snapshots == ()
        assert not any(deletion.files for deletion in other.refresh().deletions)
        assert ids(other.to_arrow()) == [0, 2, 3, 4, 5]

    def test_a_rewrite_after_an_unrecorded_round_loses_no_equal_row(self, engine, other_process, monkeypatch):
        """Equal rows that are left are not deleted once more."""
        table = engine.adopted([1, 2, 2, 3])
        state = table.refresh()
        files = {file_with(table, 1): runs(1)}
        delete.commit_deletion(table, {}, ReadVersion.of(state), files=files)
        with monkeypatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        engine.rewrite()
        other = other_process().table(NAME)
        tier(other)
        assert ids(other.to_arrow()) == engine.ids(other) == [1, 2, 3]

    def test_a_deletion_during_a_round_is_applied_by_the_next(self, table, engine, other_process, monkeypatch):
        table.append([row(9)])
        lake = type(table.open_lake())
        right, done = lake.commit, []

        def commit(self, files, **more):
            if not done:
                done.append(other_process().table(NAME).delete(where=[("id", "=", 1)]))
            return right(self, files, **more)

        monkeypatch.setattr(lake, "commit", commit)
        tier(table)
        monkeypatch.undo()
        assert done == [1]
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5, 9]
        tier(table)
        assert ids(table.to_arrow()) == engine.ids(table) == [0, 2, 3, 4, 5, 9]

    @only_paimon
    @pytest.mark.parametrize("is_recorded", [False, True])
    def test_a_snapshot_renamed_over_the_round_restores_no_row(self, table, monkeypatch, is_recorded):
        """A writer of Paimon's that looked before the round."""
        rename = Renaming(table, table.open_lake().newest().id + 1)
        table.delete(where=[("id", "=", 1)])
        with monkeypatch.context() as patch:
            if not is_recorded:
                patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(table)
        rename()
        assert ids(table.to_arrow()) == [0, 2, 3, 4, 5]
        table.append([row(9)])
        tier(table)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 2, 3, 4, 5, 9]
