"""Mistakes about rows that are deleted by their offsets, and who finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from faults.plants import patched, plant
from faults.scenarios import Run
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.log.commits import checkpoint, state_json
from streamhouse_spark.log.commits import state as state_module
from streamhouse_spark.log.commits.actions import DeleteRows
from streamhouse_spark.log.commits.checkpoint import as_stored
from streamhouse_spark.log.commits.deletions import Deletion
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.reader import LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, plan_range
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.table import Table

HOT = {"table.datalake.enabled": "false"}


@plant
def deleted_rows_are_read() -> Iterator[None]:
    with patched((LogBatch, "without", lambda batch, _: batch)):
        yield


@plant
def deleted_rows_are_counted() -> Iterator[None]:
    with patched((LogSplit, "num_live", lambda _, offsets: len(offsets))):
        yield


@plant
def rows_of_the_next_bucket_are_deleted() -> Iterator[None]:
    right = state_module._with_deleted

    def with_deleted(state: TableState, rows: Mapping[int, OffsetRuns], record: Any) -> tuple[Deletion, ...]:
        return right(state, {(bucket + 1) % state.num_buckets: runs for bucket, runs in rows.items()}, record)

    with patched((state_module, "_with_deleted", with_deleted)):
        yield


@plant
def deletions_of_rows_that_others_deleted_pass() -> Iterator[None]:
    def deleting(state: TableState, rows: Mapping[int, OffsetRuns], _read: ReadBase) -> tuple[DeleteRows, ...]:
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
        return right(replace(state, deletions=()), payload)

    with patched((checkpoint, "state_to_json", without)):
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


FINDERS: dict[str, Callable[[], Any]] = {
    "deleted_rows_are_read": some_rows_are_deleted,
    "deleted_rows_are_counted": rows_are_counted,
    "rows_of_the_next_bucket_are_deleted": some_rows_are_deleted,
    "deletions_of_rows_that_others_deleted_pass": two_delete_a_row,
    "checkpoints_forget_deleted_rows": a_checkpoint_of_deleted_rows,
}
