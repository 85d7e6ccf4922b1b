"""Mistakes about rows that are deleted by their offsets, and who finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from faults.plants import patched, plant
from faults.scenarios import PAIMON, Run
from kit.row_replacement import replace_rows
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.iceberg import round as iceberg_round
from streamhouse_spark.lake.iceberg.maintenance import purging
from streamhouse_spark.lake.paimon import commit as paimon_commit
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.parquet import row_rewrite
from streamhouse_spark.lake.parquet.file_writer import named_offsets
from streamhouse_spark.lake.parquet.reader import NO_POSITIONS
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.log.commits import checkpoint, state_json
from streamhouse_spark.log.commits import deletions as masks
from streamhouse_spark.log.commits import state as state_module
from streamhouse_spark.log.commits.actions import Trim
from streamhouse_spark.log.commits.checkpoint import as_stored
from streamhouse_spark.log.commits.deletions import DeleteRows, Deletion
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.reader import LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, plan_range
from streamhouse_spark.read import executor, planner
from streamhouse_spark.read.executor import PieceReader
from streamhouse_spark.read.file_rows import Places
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.table import Table
from unit.lake.paimon.test_races import Renaming

HOT = {"table.datalake.enabled": "false"}


@plant
def deleted_rows_are_read() -> Iterator[None]:
    with patched(
        (LogBatch, "without", lambda batch, _: batch),
        (executor, "places_within", lambda *_: NO_POSITIONS),
    ):
        yield


@plant
def deleted_rows_are_counted() -> Iterator[None]:
    with patched((LogSplit, "num_live", lambda _, offsets: len(offsets))):
        yield


@plant
def rows_of_the_next_bucket_are_deleted() -> Iterator[None]:
    right = state_module._with_deleted

    def with_deleted(state: TableState, action: DeleteRows, record: Any) -> tuple[Deletion, ...]:
        rows = {(bucket + 1) % state.num_buckets: runs for bucket, runs in action.rows.items()}
        return right(state, replace(action, rows=rows), record)

    with patched((state_module, "_with_deleted", with_deleted)):
        yield


@plant
def deletions_of_rows_that_others_deleted_pass() -> Iterator[None]:
    def deleting(
        state: TableState, rows: Mapping[int, OffsetRuns], _read: ReadBase, _files: Any
    ) -> tuple[DeleteRows, ...]:
        def left(bucket: int, runs: OffsetRuns) -> OffsetRuns:
            gone = state.deleted[bucket] if bucket in state.deleted else OffsetRuns.dense(0, 0)
            kept = sorted({*runs.offsets().tolist()} - {*gone.offsets().tolist()})
            return OffsetRuns.union([OffsetRuns.dense(offset, 1) for offset in kept])

        found = {bucket: left(bucket, runs) for bucket, runs in rows.items()}
        return (DeleteRows({bucket: runs for bucket, runs in found.items() if runs}),)

    with patched((row_deletion, "deleting", deleting)):
        yield


@plant
def checkpoints_forget_deleted_rows() -> Iterator[None]:
    right = state_json.state_to_json

    def without(state: TableState, payload: Any) -> dict[str, Any]:
        return right(replace(state, deletions=masks.NO_DELETIONS), payload)

    with patched((checkpoint, "state_to_json", without)):
        yield


@plant
def the_lakes_deleted_rows_are_read() -> Iterator[None]:
    with patched((planner, "_without_masked", lambda _table, _pin, lake, **_: (lake, ()))):
        yield


@plant
def positions_in_lake_files_are_one_off() -> Iterator[None]:
    right = planner._positions_in

    def positions_in(file: Any, deleted: Any) -> tuple[Any, OffsetRuns]:
        left, found = right(file, deleted)
        return left, OffsetRuns(found.starts + 1, found.lengths)

    with patched((planner, "_positions_in", positions_in)):
        yield


@plant
def files_with_gaps_are_taken_for_dense_ones() -> Iterator[None]:
    right = planner._positions_in

    def positions_in(file: Any, deleted: Any) -> tuple[Any, OffsetRuns]:
        named = named_offsets(file.location)
        return right(file if named is None else replace(file, num_rows=len(named[1])), deleted)

    with patched((planner, "_positions_in", positions_in)):
        yield


@plant
def positions_that_the_lake_lacks_are_read() -> Iterator[None]:
    with patched((PieceReader, "_left_out", lambda *_: NO_POSITIONS)):
        yield


@plant
def joined_deletions_lack_the_newest() -> Iterator[None]:
    right = masks.Deletions.and_rows
    with patched((masks.Deletions, "and_rows", lambda before, found, _: right(before, found, {}))):
        yield


@plant
def rounds_leave_deleted_rows_in_the_lake() -> Iterator[None]:
    with patched((tiering_round, "rows_to_delete", lambda *_: {})):
        yield


@plant
def deleted_rows_are_forgotten_with_any_snapshot() -> Iterator[None]:
    right = masks.pending

    def pending(deletions: Any, _told: int, offsets: Mapping[int, int]) -> Mapping[int, OffsetRuns]:
        return right(deletions, 1 << 60, offsets)

    with patched((planner, "pending", pending)):
        yield


@plant
def deleted_rows_are_counted_by_each_round() -> Iterator[None]:
    with patched((iceberg_round, "deleted_positions", lambda *_: np.zeros(0, np.int64))):
        yield


@plant
def deleted_rows_are_forgotten_before_the_log_is_trimmed() -> Iterator[None]:
    right = masks.without_those_of_the_lake

    def forgotten(deletions: Any, told: int, held: Mapping[int, int]) -> Any:
        return right(deletions, told, dict.fromkeys(held, 1 << 60))

    with patched((masks, "without_those_of_the_lake", forgotten)):
        yield


@plant
def replaced_rows_stay() -> Iterator[None]:
    with patched((row_deletion, "deleting", lambda *_: ())):
        yield


@plant
def rows_of_dropped_partitions_are_replaced() -> Iterator[None]:
    with patched((row_deletion, "lost_partitions", lambda *_: False)):
        yield


@plant
def rows_that_were_trimmed_are_replaced() -> Iterator[None]:
    with patched((Places, "num_rows", property(lambda _: 0))):
        yield


@plant
def purged_files_forget_which_rows_went() -> Iterator[None]:
    with patched(
        (purging, "replace", lambda found, **changed: found if "runs" in changed else replace(found, **changed))
    ):
        yield


@plant
def files_that_lost_rows_stay_in_a_paimon_lake() -> Iterator[None]:
    with patched((paimon_commit._SnapshotBuilder, "_still_live", lambda *_: iter(()))):
        yield


@plant
def paimon_files_are_replaced_though_their_rows_were_moved() -> Iterator[None]:
    def still_live(builder: Any, live: Any) -> Iterator[Any]:
        gone = {*builder._change.removed_at}
        yield from builder._change.removed
        yield from (entry for entry in live if builder._reader.location(entry) in gone)

    with patched((paimon_commit._SnapshotBuilder, "_still_live", still_live)):
        yield


@plant
def paimon_rounds_with_deletions_are_not_settled() -> Iterator[None]:
    with patched((PaimonLake, "settle", lambda _, snapshot: snapshot)):
        yield


@plant
def rows_that_were_deleted_before_are_written_into_a_paimon_lake() -> Iterator[None]:
    with patched((PaimonLake, "leaves_out_deleted", False)):
        yield


@plant
def paimon_files_that_lost_rows_name_the_offsets_of_others() -> Iterator[None]:
    def kept(file: row_rewrite.TouchedFile) -> OffsetRuns:
        return file.offsets.runs.rows(0, file.offsets.runs.num_rows - file.gone.num_rows)

    with patched((row_rewrite.TouchedFile, "kept", property(kept))):
        yield


def new_table() -> Table:
    table = Run().warehouse.create_table("sales.log", "id BIGINT", buckets=2, properties=HOT)
    for first in (0, 4, 8):
        table.append([{"id": number} for number in range(first, first + 4)])
    return table


def some_rows_are_deleted() -> None:
    table = new_table()
    table.delete(where=[("id", "in", [1, 5, 6])])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2, 3, 4, 7, 8, 9, 10, 11]


def rows_are_counted() -> None:
    table = new_table()
    table.delete(where=[("id", "in", [1, 5, 6])])
    state = table.refresh()
    assert sum(plan_range(state, b, log.offsets).num_rows for b, log in state.buckets.items()) == 9


def two_delete_a_row() -> None:
    table = new_table()
    read = ReadBase.of(table.refresh())
    table.delete(where=[("id", "=", 1)])
    ((bucket, runs),) = table.state.deleted.items()
    with pytest.raises(CommitConflictError):
        row_deletion.commit_deletion(table, {bucket: runs}, read)


def a_checkpoint_of_deleted_rows() -> None:
    table = new_table()
    table.delete(where=[("id", "=", 1)])
    assert as_stored(table.state).deleted == table.state.deleted


def tier(table: Table) -> None:
    job = tiering.TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(tiering.run_tasks_locally(table.storage, table.settings, table.world))


def ids(found: Any) -> list[int]:
    return sorted(found["id"].to_pylist())


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
    read = ReadBase.of(table.refresh())
    table.delete(where=[("id", "=", 2)])
    tier(table)
    row_deletion.commit_deletion(table, {0: OffsetRuns.dense(4, 1)}, read)
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

    with patched((PaimonLake, "delete_rows", compacted)):
        tier(table)
    assert ids(table.lake.to_arrow()) == [0, 1, 3, 4, 5]


def a_rename_over_a_round_with_deletions() -> None:
    """By a writer of Paimon's own that looked for the number before; the log had forgotten the deleted rows."""
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
    with patched((tiering.TieringJob, "_record", lambda *_: None)):
        job = tiering.TieringJob(table.log, table.open_lake(), world=table.world)
        state = job._refreshed()
        run = tiering.run_tasks_locally(table.storage, table.settings, table.world)
        for _ in range(2):
            with patched((tiering_round, "rows_to_delete", lambda state, _lake, _new: state.deleted)):
                job._round(state, state.ends, run, [])
    tier(table)
    assert table.refresh().num_rows == 5


def some_rows_are_replaced() -> None:
    table = new_table()
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
    table = new_table()

    def trim() -> None:
        table.log.commit(lambda state, _: [Trim(dict.fromkeys(state.buckets, 1))])

    with pytest.raises(CommitConflictError, match="were removed by others"):
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


FINDERS: dict[str, Callable[[], Any]] = {
    "files_that_lost_rows_stay_in_a_paimon_lake": a_life_with_a_paimon_lake,
    "paimon_files_are_replaced_though_their_rows_were_moved": a_compaction_beside_a_round_with_deletions,
    "paimon_rounds_with_deletions_are_not_settled": a_rename_over_a_round_with_deletions,
    "rows_that_were_deleted_before_are_written_into_a_paimon_lake": a_life_with_a_paimon_lake,
    "paimon_files_that_lost_rows_name_the_offsets_of_others": a_deletion_that_was_planned_before_a_round,
    "purged_files_forget_which_rows_went": rows_are_purged,
    "replaced_rows_stay": some_rows_are_replaced,
    "rows_of_dropped_partitions_are_replaced": a_partition_is_dropped_beside_a_replacement,
    "rows_that_were_trimmed_are_replaced": rows_are_trimmed_beside_a_replacement,
    "deleted_rows_are_read": some_rows_are_deleted,
    "deleted_rows_are_counted": rows_are_counted,
    "rows_of_the_next_bucket_are_deleted": some_rows_are_deleted,
    "deletions_of_rows_that_others_deleted_pass": two_delete_a_row,
    "checkpoints_forget_deleted_rows": a_checkpoint_of_deleted_rows,
    "the_lakes_deleted_rows_are_read": a_life_with_a_lake,
    "positions_in_lake_files_are_one_off": a_life_with_a_lake,
    "files_with_gaps_are_taken_for_dense_ones": a_life_with_a_paimon_lake,
    "positions_that_the_lake_lacks_are_read": a_life_with_a_lake,
    "joined_deletions_lack_the_newest": some_rows_are_deleted,
    "rounds_leave_deleted_rows_in_the_lake": a_life_with_a_lake,
    "deleted_rows_are_forgotten_with_any_snapshot": a_life_with_a_lake,
    "deleted_rows_are_counted_by_each_round": a_round_that_is_not_recorded,
    "deleted_rows_are_forgotten_before_the_log_is_trimmed": a_life_with_a_lake,
}
