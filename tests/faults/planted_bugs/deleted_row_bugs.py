"""Planted bugs of deleted rows: by offset, and by file and position in lake files without offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from faults.planted_bugs.planting import Patch, PlantedBug
from faults.scenarios import PAIMON, Run
from faults.sim import sim_world
from interop import foreign_iceberg, foreign_paimon
from interop.foreign_iceberg import row
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, SnapshotExpiredError, Table
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml import delete, rewrite
from streamhouse_spark.lake import row_deletes as lake_row_deletes
from streamhouse_spark.lake.iceberg import compaction as iceberg_compaction
from streamhouse_spark.lake.iceberg import row_deletes as iceberg_row_deletes
from streamhouse_spark.lake.paimon import row_deletes
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.lake.paimon import tiering_commit as paimon_round
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.parquet import copy_on_write, row_positions
from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets
from streamhouse_spark.lake.parquet.reader import NO_POSITIONS
from streamhouse_spark.lake.tiering import job, record_snapshot
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.lake.tiering.round import HotLogRowReader
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log import deletion_vectors as masks
from streamhouse_spark.log import state as state_module
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.deletion_vectors import DeleteRows, Deletion
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.reader import LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, plan_range
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read import lake_row_ids, scan_executor, scan_planning
from streamhouse_spark.read.lake_row_ids import RowLocations
from streamhouse_spark.read.scan_executor import ScanTaskReader
from streamhouse_spark.storage.memory import MemoryStorage
from unit.lake.paimon.test_commit_races import Renaming

HOT = {"table.datalake.enabled": "false"}

# -- histories of rows with offsets ------------------------------------------------------------------------------------


def log_table() -> Table:
    table = Run().warehouse.create_table("sales.log", "id BIGINT", buckets=2, properties=HOT)
    for first in (0, 4, 8):
        table.append([{"id": number} for number in range(first, first + 4)])
    return table


def some_rows_are_deleted() -> None:
    table = log_table()
    table.delete(where=[("id", "in", [1, 5, 6])])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2, 3, 4, 7, 8, 9, 10, 11]


def a_tail_of_deleted_rows() -> None:
    table = log_table()
    table.delete(where=[("id", "in", [1, 5, 6])])
    found = [number for batch in table.tail("earliest", until_ms=0, poll_ms=0) for number in batch["id"].to_pylist()]
    assert sorted(found) == [0, 2, 3, 4, 7, 8, 9, 10, 11]


def rows_are_counted() -> None:
    table = log_table()
    table.delete(where=[("id", "in", [1, 5, 6])])
    state = table.refresh()
    assert sum(plan_range(state, b, log.offsets).num_rows for b, log in state.buckets.items()) == 9


def two_delete_a_row() -> None:
    table = log_table()
    read = ReadVersion.of(table.refresh())
    table.delete(where=[("id", "=", 1)])
    ((bucket, runs),) = table.state.deleted.items()
    with pytest.raises(CommitConflictError):
        delete.commit_deletion(table, {bucket: runs}, read)


def a_checkpoint_of_deleted_rows() -> None:
    table = log_table()
    table.delete(where=[("id", "=", 1)])
    assert as_stored(table.state).deleted == table.state.deleted


def a_life_with_a_lake() -> None:
    table = Run().warehouse.create_table("sales.tiered", "id BIGINT")
    table.append([{"id": number} for number in range(6)])
    tier(table)
    table.delete(where=[("id", "=", 2)])
    assert ids(table.to_arrow()) == [0, 1, 3, 4, 5]
    tier(table)
    table.delete(where=[("id", "=", 4)])
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 5]
    assert table.refresh().num_rows == 4
    found = [number for batch in table.tail("earliest", until_ms=0, poll_ms=0) for number in batch["id"].to_pylist()]
    assert found == [0, 1, 3, 5]


def a_life_with_a_paimon_lake() -> None:
    table = Run().warehouse.create_table("sales.tiered", "id BIGINT", properties=PAIMON)
    table.append([{"id": number} for number in range(6)])
    tier(table)
    table.append([{"id": number} for number in range(6, 9)])
    table.delete(where=[("id", "in", [2, 7])])
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 4, 5, 6, 8]
    table.delete(where=[("id", "=", 4)])
    assert ids(table.to_arrow()) == [0, 1, 3, 5, 6, 8]
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 5, 6, 8]
    assert table.refresh().num_rows == 6


def a_deletion_that_was_planned_before_a_round() -> None:
    table = Run().warehouse.create_table("sales.planned", "id BIGINT", properties=PAIMON)
    table.append([{"id": number} for number in range(6)])
    tier(table)
    read = ReadVersion.of(table.refresh())
    table.delete(where=[("id", "=", 2)])
    tier(table)
    delete.commit_deletion(table, {0: OffsetSet.dense(4, 1)}, read)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 5]


def a_compaction_beside_a_round_with_deletions() -> None:
    table = Run().warehouse.create_table("sales.compacted", "id BIGINT", properties=PAIMON)
    for number in range(6):
        table.append([{"id": number}])
        tier(table)
    table.delete(where=[("id", "=", 2)])
    right, left = PaimonLake.delete_rows, [0]

    def compacted(lake: PaimonLake, *given: Any, **named: Any) -> Any:
        found = right(lake, *given, **named)
        if left:
            left.pop()
            table.lake.compact()
        return found

    with mock.patch.object(PaimonLake, "delete_rows", compacted):
        tier(table)
    assert ids(table.lake.to_arrow()) == [0, 1, 3, 4, 5]


def a_rename_over_a_round_with_deletions() -> None:
    """A Paimon writer renames its own snapshot over the round's; the log has forgotten the deleted rows."""
    table = Run().warehouse.create_table("sales.renamed", "id BIGINT", properties=PAIMON)
    table.append([{"id": number} for number in range(4)])
    tier(table)
    table.log.commit(lambda state, _: [Trim(state.ends)])
    rename = Renaming(table, table.open_lake().newest().id + 1)
    table.delete(where=[("id", "=", 2)])
    tier(table)
    rename()
    table.append([{"id": 4}])
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 4]


def a_round_that_is_not_recorded() -> None:
    table = Run().warehouse.create_table("sales.unrecorded", "id BIGINT")
    table.append([{"id": number} for number in range(6)])
    tier(table)
    table.delete(where=[("id", "=", 2)])
    with mock.patch.object(tiering.TieringJob, "_record", return_value=None):
        job = tiering.TieringJob(table.log, table.open_lake(), world=table.world)
        state = job._refresh_state()
        run = tiering.run_tasks_locally(table.storage, table.settings, table.world)
        for _ in range(2):
            with mock.patch.object(tiering_round, "rows_to_delete", lambda state, _lake, _new: state.deleted):
                job._run_round(state, state.ends, run, [])
    tier(table)
    assert table.refresh().num_rows == 5


def some_rows_are_replaced() -> None:
    table = log_table()
    replace_rows(table, lambda row: row["id"] < 3, lambda row: {"id": row["id"] + 100})
    assert ids(table.to_arrow()) == [*range(3, 12), 100, 101, 102]


def a_partition_is_dropped_beside_a_replacement() -> None:
    table = Run().warehouse.create_table("sales.days", "id BIGINT, day INT", partition_by=["day"])
    table.append([{"id": number, "day": number % 2} for number in range(6)])
    tier(table)
    with pytest.raises(CommitConflictError, match="a partition was dropped"):
        replace_rows(
            table,
            lambda row: row["id"] < 2,
            lambda row: {**row, "id": row["id"] + 100},
            meanwhile=lambda: table.drop_partition({"day": 1}),
        )
    replace_rows(table, lambda row: row["id"] < 2, lambda row: {**row, "id": row["id"] + 100})
    tier(table)
    assert ids(table.to_arrow()) == [2, 4, 100]


def rows_are_trimmed_beside_a_replacement() -> None:
    table = log_table()

    def trim() -> None:
        table.log.commit(lambda state, _: [Trim(dict.fromkeys(state.buckets, 1))])

    with pytest.raises(CommitConflictError, match="were deleted concurrently"):
        replace_rows(table, lambda row: True, lambda row: row, meanwhile=trim)


def rows_are_purged() -> None:
    table = Run().warehouse.create_table("sales.purged", "id BIGINT")
    table.append([{"id": number} for number in range(6)])
    tier(table)
    table.delete(where=[("id", "=", 2)])
    tier(table)
    assert table.lake.compact(purge=True).purged_rows == 1
    table.delete(where=[("id", "=", 4)])
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [0, 1, 3, 5]


# -- histories of rows of lake files without offsets -------------------------------------------------------------------


def adopted_table(numbers: Sequence[int] = range(6)) -> tuple[Table, MemoryStorage, World]:
    world = sim_world(1)
    storage = MemoryStorage(world)
    return foreign_iceberg.adopted(storage, world, numbers), storage, world


def rows_of_adopted_files_are_deleted() -> None:
    table, *_ = adopted_table()
    assert table.delete(where=[("id", "in", [1, 5])]) == 2
    assert ids(table.to_arrow()) == [0, 2, 3, 4]
    tier(table)
    assert ids(table.to_arrow()) == foreign_iceberg.stock(table) == [0, 2, 3, 4]


def a_rewrite_before_the_round() -> None:
    table, storage, world = adopted_table([1, 1, 2, 3, 3, 3])
    files = {file_at(table, 0): OffsetSet.dense(1, 1)}
    delete.commit_deletion(table, {}, ReadVersion.of(table.refresh()), files=files)
    left = ids(table.to_arrow())
    foreign_iceberg.rewritten(storage, world)
    with mock.patch.object(job, "write_round", killed), pytest.raises(InterruptedError):
        tier(table)
    assert ids(table.to_arrow()) == left
    tier(table)
    assert ids(table.to_arrow()) == foreign_iceberg.stock(table) == left


def a_rewrite_after_a_round_that_is_not_recorded() -> None:
    table, storage, world = adopted_table([1, 1, 2, 3, 3, 3])
    files = {name: OffsetSet.dense(1, 1) for name in (file_at(table, 0), file_at(table, 1))}
    delete.commit_deletion(table, {}, ReadVersion.of(table.refresh()), files=files)
    left = ids(table.to_arrow())
    with mock.patch.object(job, "record_snapshot", return_value=None):
        tier(table)
    foreign_iceberg.rewritten(storage, world)
    tier(table)
    assert ids(table.to_arrow()) == foreign_iceberg.stock(table) == left


def a_file_is_replaced_while_a_statement_runs() -> None:
    table, storage, world = adopted_table()
    read, files = ReadVersion.of(table.refresh()), {file_at(table, 0): OffsetSet.dense(1, 1)}
    foreign_iceberg.rewritten(storage, world)
    table.append([{"id": 9}])
    tier(table)
    with pytest.raises(CommitConflictError):
        delete.commit_deletion(table, {}, read, files=files)


def a_checkpoint_of_deleted_file_rows() -> None:
    table, *_ = adopted_table()
    table.delete(where=[("id", "=", 1)])
    assert as_stored(table.state).deletions == table.state.deletions


def file_at(table: Table, place: int) -> str:
    state = table.refresh()
    read = lake_row_ids.take_read_version(table, state)
    return next(iter(lake_row_ids.locate_rows(table, state, read, {place: OffsetSet.dense(0, 1)})))


def killed(*_: Any) -> Any:
    raise InterruptedError


def paimon_table(numbers: Sequence[int] = range(6)) -> tuple[Table, MemoryStorage]:
    world = sim_world(1)
    storage = MemoryStorage(world)
    return foreign_paimon.adopted(storage, world, numbers), storage


def rows_of_paimon_files_are_deleted() -> None:
    table, _ = paimon_table()
    assert table.delete(where=[("id", "in", [1, 5])]) == 2
    assert ids(table.to_arrow()) == [0, 2, 3, 4]
    tier(table)
    assert ids(table.to_arrow()) == foreign_paimon.stock(table) == [0, 2, 3, 4]


def a_round_while_a_statement_runs() -> None:
    """The round rewrote the file in which the statement found its row; the statement knew of the deletion."""
    table, _ = paimon_table()
    table.delete(where=[("id", "=", 0)])
    state = table.refresh()
    (deletion,) = state.deletions
    tier(table)
    files = dict.fromkeys(deletion.files, OffsetSet.dense(1, 1))
    with pytest.raises(CommitConflictError, match="may have other files"):
        delete.commit_deletion(table, {}, ReadVersion.of(state), files=files)


def an_append_while_a_round_writes() -> None:
    table, storage = paimon_table()
    table.delete(where=[("id", "=", 1)])
    foreign_paimon.rewritten(storage)
    right, done = PaimonLake.commit, []

    def commit(lake: Any, files: Any, **more: Any) -> Any:
        if not done:
            done.append(foreign_paimon.appended(storage, [row(1)]))
        return right(lake, files, **more)

    with mock.patch.object(PaimonLake, "commit", commit):
        assert tier(table).conflicts == 1
    assert ids(table.to_arrow()) == foreign_paimon.stock(table) == list(range(6))


def a_rename_while_a_statement_runs() -> None:
    table, _ = paimon_table()
    newest = table.open_lake().newest()
    assert newest is not None
    rename = Renaming(table, newest.id + 1)
    table.append([row(9)])
    tier(table)
    state = table.refresh()
    read = lake_row_ids.take_read_version(table, state)
    rename()
    with pytest.raises(CommitConflictError, match="replaced lake snapshot"):
        lake_row_ids.locate_rows(table, state, read, {0: OffsetSet.dense(0, 1)})


def a_rewrite_renamed_over_the_snapshot_that_was_read() -> None:
    """The snapshot has the same offsets, so only its files differ."""
    table, storage = paimon_table()
    table.delete(where=[("id", "=", 1)])
    newest = table.refresh().lake
    assert newest is not None
    folder = f"{table.state.lake_location}/snapshot"
    own = storage.read(f"{folder}/snapshot-{newest.snapshot_id}")
    foreign_paimon.rewritten(storage)
    made = storage.read(f"{folder}/snapshot-{storage.read(f'{folder}/LATEST').decode()}")
    storage.put(f"{folder}/snapshot-{newest.snapshot_id}", _with_offsets(made, own, newest.snapshot_id))
    with pytest.raises(SnapshotExpiredError, match="tier the table"):
        table.to_arrow()


def _with_offsets(made: bytes, own: bytes, number: int) -> bytes:
    found = {**json.loads(made), "id": number, "properties": json.loads(own)["properties"]}
    return json.dumps(found).encode()


def a_paimon_rewrite_after_a_round_that_is_not_recorded() -> None:
    table, storage = paimon_table()
    table.append([row(7), row(8)])
    with mock.patch.object(job, "record_snapshot", return_value=None):
        tier(table)
    table.delete(where=[("id", "=", 7)])
    foreign_paimon.rewritten(storage)
    tier(table)
    assert ids(table.to_arrow()) == foreign_paimon.stock(table) == [*range(6), 8]


def a_rollback_to_before_another_engine_appended() -> None:
    """The row was not in the table at that version, and it has no offset that shows this."""
    table, storage = paimon_table()
    before = table.refresh().version
    foreign_paimon.appended(storage, [row(8)])
    table.append([row(10)])
    tier(table)
    table.delete(where=[("id", "=", 8)])
    with pytest.raises(InvalidOptionError, match="in files that are newer than that version"):
        table.rollback_to_version(before)


# -- how the bugs are planted ------------------------------------------------------------------------------------------


def delete_only_what_others_left(state: TableState, rows: Mapping[int, OffsetSet]) -> tuple[DeleteRows, ...]:
    def left(bucket: int, runs: OffsetSet) -> OffsetSet:
        gone = state.deleted[bucket] if bucket in state.deleted else OffsetSet.dense(0, 0)
        kept = sorted({*runs.offsets().tolist()} - {*gone.offsets().tolist()})
        return OffsetSet.union([OffsetSet.dense(offset, 1) for offset in kept])

    found = {bucket: left(bucket, runs) for bucket, runs in rows.items()}
    return (DeleteRows({bucket: runs for bucket, runs in found.items() if runs}),)


def delete_in_the_next_bucket(original: Any, state: TableState, action: DeleteRows) -> Any:
    rows = {(bucket + 1) % state.num_buckets: runs for bucket, runs in action.rows.items()}
    return original(action=replace(action, rows=rows))


def positions_after_the_right_ones(original: Any) -> tuple[Any, OffsetSet]:
    left, found = original()
    return left, OffsetSet(found.starts + 1, found.lengths)


def positions_as_if_dense(original: Any, file: Any) -> Any:
    named = parse_file_offsets(file.location)
    return original() if named is None else original(file=replace(file, num_rows=len(named[1])))


def live_wherever_they_moved(self: Any, live: Any) -> Iterator[Any]:
    gone = {*self._change.removed_at}
    yield from self._change.removed
    yield from (entry for entry in live if self._reader.location(entry) in gone)


def kept_by_count(self: copy_on_write.FileRewrite) -> OffsetSet:
    return self.offsets.runs.rows(0, self.offsets.runs.num_rows - self.removed_offsets.num_rows)


def found_in_any_number(original: Any, self: Any, batch: Any) -> Any:
    counts = self._counts.copy()
    self._counts[:] = batch.num_rows
    found = original()
    self._counts[:] = np.minimum(counts, batch.num_rows)
    return found


LIVE_IN_PAIMON = partial(Patch, paimon_commit._SnapshotBuilder, "_live_entries_to_remove")
POSITIONS_IN_LAKE = partial(Patch, scan_planning, "_split_deleted_rows")
DELETED_BY_A_ROUND = partial(Patch, tiering_round, "unapplied_file_deletes")
NO_CONFLICT = "DID NOT RAISE ...CommitConflictError"

DELETED_ROW_BUGS = (
    # rows with offsets
    PlantedBug("deleted rows are read", Patch(scan_executor, "deleted_rows_within", lambda: NO_POSITIONS)).found_by(
        some_rows_are_deleted, "[0, 1, 2, 3, 4, 5, ...] == [0, 2, 3, 4, 7, 8, ...]"
    ),
    PlantedBug("a tail returns deleted rows", Patch(LogBatch, "without", lambda self: self)).found_by(
        a_tail_of_deleted_rows, "[0, 1, 2, 3, 4, 5, ...] == [0, 2, 3, 4, 7, 8, ...]"
    ),
    PlantedBug(
        "deleted rows are counted", Patch(LogSplit, "num_live", lambda offsets: offsets.end - offsets.start)
    ).found_by(rows_are_counted, "assert 12 == 9"),
    PlantedBug(
        "rows of the next bucket are deleted", Patch(state_module, "_apply_delete", delete_in_the_next_bucket)
    ).found_by(some_rows_are_deleted, "[0, 3, 4, 6, 7, 8, ...] == [0, 2, 3, 4, 7, 8, ...]"),
    PlantedBug(
        "a deletion of rows that another writer deleted passes",
        Patch(delete, "make_delete_actions", delete_only_what_others_left),
    ).found_by(two_delete_a_row, NO_CONFLICT),
    PlantedBug(
        "checkpoints omit deleted rows",
        Patch(
            checkpoint,
            "state_to_json",
            lambda original, state: original(state=replace(state, deletions=masks.NO_DELETIONS)),
        ),
    ).found_by(a_checkpoint_of_deleted_rows, "assert {} == {1: OffsetSet"),
    PlantedBug(
        "joined deletions omit the newest", Patch(masks.Deletions, "with_rows", lambda original: original(rows={}))
    ).found_by(some_rows_are_deleted, "[0, 1, 2, 3, 4, 5, ...] == [0, 2, 3, 4, 7, 8, ...]"),
    PlantedBug(
        "pending deletes of the lake are read", Patch(scan_planning, "_exclude_deleted_rows", lambda lake: (lake, ()))
    ).found_by(a_life_with_a_lake, "[0, 1, 2, 3, 4, 5] == [0, 1, 3, 4, 5]"),
    PlantedBug("positions in lake files are one off", POSITIONS_IN_LAKE(positions_after_the_right_ones)).found_by(
        a_life_with_a_lake, "[0, 1, 2, 4, 5] == [0, 1, 3, 4, 5]"
    ),
    PlantedBug("lake files with gaps are taken for dense ones", POSITIONS_IN_LAKE(positions_as_if_dense)).found_by(
        a_life_with_a_paimon_lake, "[0, 1, 3, 4, 6, 8] == [0, 1, 3, 5, 6, 8]"
    ),
    PlantedBug(
        "positions missing from the lake are read", Patch(ScanTaskReader, "_excluded_positions", lambda: NO_POSITIONS)
    ).found_by(a_life_with_a_lake, "[0, 1, 2, 3, 4, 5] == [0, 1, 3, 4, 5]"),
    PlantedBug(
        "tiering rounds leave deleted rows in the lake", Patch(tiering_round, "rows_to_delete", lambda state: {})
    ).found_by(a_life_with_a_lake, "[0, 1, 3, 5] == [0, 1, 2, 3, 4, 5]"),
    PlantedBug(
        "any lake snapshot ends the masking of deleted rows",
        Patch(scan_planning, "unapplied_deletes", lambda original: original(applied_through=1 << 60)),
    ).found_by(a_life_with_a_lake, "[0, 1, 2, 3, 4, 5] == [0, 1, 3, 4, 5]"),
    PlantedBug(
        "every tiering round counts the deleted rows again",
        Patch(iceberg_row_deletes, "read_deleted_positions", lambda: np.zeros(0, np.int64)),
    ).found_by(a_round_that_is_not_recorded, "assert 4 == 5"),
    PlantedBug(
        "deleted rows are forgotten before the log is trimmed",
        Patch(
            state_module, "_deletions_after_apply", lambda original, held: original(held=dict.fromkeys(held, 1 << 60))
        ),
    ).found_by(a_life_with_a_lake, "[0, 1, 2, 3, 4, 5] == [0, 1, 3, 5]"),
    PlantedBug("replaced rows are not deleted", Patch(rewrite, "make_delete_actions", lambda: ())).found_by(
        some_rows_are_replaced, "CommitConflictError: ...rows that the statement replaces were deleted concurrently"
    ),
    PlantedBug(
        "rows of a dropped partition are replaced", Patch(rewrite, "has_dropped_partitions", lambda: False)
    ).found_by(a_partition_is_dropped_beside_a_replacement, NO_CONFLICT),
    PlantedBug("trimmed rows are replaced", Patch(RowLocations, "num_rows", lambda: 0)).found_by(
        rows_are_trimmed_beside_a_replacement, NO_CONFLICT
    ),
    PlantedBug(
        "purged files forget which rows were deleted",
        Patch(iceberg_compaction, "replace", lambda original, obj, changes: obj if "runs" in changes else original()),
    ).found_by(rows_are_purged, "[0, 1, 3, 4] == [0, 1, 3, 5]"),
    PlantedBug("files with deleted rows stay in a Paimon lake", LIVE_IN_PAIMON(lambda: iter(()))).found_by(
        a_life_with_a_paimon_lake, "[0, 0, 1, 1, 2, 3, ...] == [0, 1, 3, 4, 5, 6, ...]"
    ),
    PlantedBug(
        "a Paimon round replaces files whose rows were compacted", LIVE_IN_PAIMON(live_wherever_they_moved)
    ).found_by(a_compaction_beside_a_round_with_deletions, "[0, 1, 2, 3, 4, 5] == [0, 1, 3, 4, 5]"),
    PlantedBug(
        "Paimon rounds with deletions are not settled",
        Patch(PaimonLake, "wait_until_durable", lambda snapshot: snapshot),
    ).found_by(
        a_rename_over_a_round_with_deletions,
        "LakeRolledBackError: ...the lake was rolled back to before partitions were dropped",
    ),
    PlantedBug(
        "rows deleted before a round are written into a Paimon lake", Patch(PaimonLake, "omits_deleted_rows", False)
    ).found_by(a_life_with_a_paimon_lake, "At index 6 diff: 7 != 8"),
    PlantedBug(
        "rewritten Paimon files name the offsets of deleted rows",
        Patch(copy_on_write.FileRewrite, "retained_offsets", kept_by_count),
    ).found_by(a_deletion_that_was_planned_before_a_round, "[0, 1, 3, 4] == [0, 1, 3, 5]"),
    # rows of lake files without offsets
    PlantedBug(
        "rows of the next lake file are deleted",
        Patch(
            lake_row_ids,
            "locate_rows",
            lambda original, places: original(places={1 - place: runs for place, runs in places.items()}),
        ),
    ).found_by(rows_of_adopted_files_are_deleted, "[0, 1, 3, 5] == [0, 2, 3, 4]"),
    PlantedBug(
        "deleted rows of lake files are read until the next round",
        Patch(scan_planning, "deleted_file_rows", lambda snapshot: {}),
    ).found_by(rows_of_adopted_files_are_deleted, "[0, 1, 2, 3, 4, 5] == [0, 2, 3, 4]"),
    PlantedBug("tiering rounds leave deleted rows of lake files", DELETED_BY_A_ROUND(lambda: ())).found_by(
        rows_of_adopted_files_are_deleted, "[0, 2, 3, 4] == [0, 1, 2, 3, 4, 5]"
    ),
    PlantedBug(
        "the next round deletes rows of lake files again",
        DELETED_BY_A_ROUND(lambda original: original(applied_through=0)),
        Patch(iceberg_row_deletes, "require_applied", lambda: None),
    ).found_by(a_rewrite_after_a_round_that_is_not_recorded, "[2, 3] == [1, 2, 3, 3]"),
    PlantedBug(
        "deleted rows of a rewritten lake file stay",
        Patch(lake_row_deletes, "_find_rewritten_rows", lambda lost_rows: {}),
    ).found_by(a_rewrite_before_the_round, "[1, 1, 2, 3, 3, 3] == [1, "),
    PlantedBug(
        "all rows that equal a deleted one are deleted",
        Patch(row_positions.RowMultiset, "take_matches", found_in_any_number),
    ).found_by(a_rewrite_before_the_round, "] == [1, ...Right contains "),
    PlantedBug(
        "positions of an older lake snapshot are used in a newer one",
        Patch(state_module.TableState, "has_same_lake_files", lambda: True),
    ).found_by(a_file_is_replaced_while_a_statement_runs, NO_CONFLICT),
    PlantedBug(
        "a lake snapshot with other files is recorded", Patch(record_snapshot, "unapplied_file_deletes", lambda: ())
    ).found_by(a_rewrite_before_the_round, "SnapshotExpiredError: ...which may be in other files of snapshot"),
    PlantedBug(
        "checkpoints omit deleted rows of lake files",
        Patch(Deletion, "to_json", lambda original, self: original(self=replace(self, files={}, snapshot_id=None))),
    ).found_by(a_checkpoint_of_deleted_file_rows, "files={}, snapshot_id=None"),
    PlantedBug(
        "other engines are assumed to add no rows to a Paimon lake",
        Patch(PaimonLake, "adds_no_foreign_rows", lambda: True),
    ).found_by(a_rollback_to_before_another_engine_appended, "DID NOT RAISE ...InvalidOptionError"),
    PlantedBug(
        "Paimon files lose the row before the deleted one",
        Patch(
            copy_on_write,
            "deleted_rows_within",
            lambda original, deleted: original(deleted=np.maximum(deleted - 1, 0)),
        ),
    ).found_by(rows_of_paimon_files_are_deleted, "[1, 2, 3, 5] == [0, 2, 3, 4]"),
    PlantedBug(
        "a Paimon round that rewrote files counts as keeping them",
        Patch(row_deletes, "_retains_external_files", lambda: True),
    ).found_by(a_round_while_a_statement_runs, NO_CONFLICT),
    PlantedBug(
        "a Paimon round overwrites a concurrent commit",
        *(
            Patch(module, "snapshot_name", lambda snapshot: None if snapshot is None else "any")
            for module in (paimon_round, row_deletes)
        ),
    ).found_by(an_append_while_a_round_writes, "assert 0 == 1"),
    PlantedBug(
        "a Paimon snapshot is known by its number alone",
        Patch(PaimonLake, "snapshot_identity", lambda snapshot_id: f"{snapshot_id}"),
    ).found_by(a_rename_while_a_statement_runs, NO_CONFLICT),
    PlantedBug(
        "a read does not require the files of deleted rows", Patch(scan_planning, "_require_files", lambda: None)
    ).found_by(a_rewrite_renamed_over_the_snapshot_that_was_read, "DID NOT RAISE ...SnapshotExpiredError"),
    PlantedBug(
        "rows of a round that is not recorded are not searched",
        Patch(HotLogRowReader, "read", lambda self: (self.schema.arrow.empty_table(), {})),
    ).found_by(a_paimon_rewrite_after_a_round_that_is_not_recorded, "At index 6 diff: 7 != 8"),
)
