"""Deletes of rows of a log table: locate the rows, commit, and locate them again after a conflict.

A row is identified by its bucket and log offset. A row without an offset is identified by its lake file and position
(`read/lake_row_ids.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import Transaction, check_transaction
from streamhouse_spark.dml.conflict_check import commit_with_conflict_check, make_delete_actions
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.expressions.partition_filter import (
    OverwriteFilter,
    OverwriteFilterFactory,
)
from streamhouse_spark.expressions.where import parse_condition
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.deletion_vectors import NO_FILE_ROWS, DeleteRows, FileRows, count_rows
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.metadata_columns import ROW_ID
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.lake_row_ids import RowLocations, locate_row_ids, take_read_version
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import Pruning, ScanRequest, plan_scan
from streamhouse_spark.read.scan_tasks import LakeScanTask
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.table_handle import TableHandle

_CONFLICTS_MAX: Final = 20
"""Maximum number of retries after conflicts with deletes of the same rows."""


def delete_matching(table: TableHandle, where: Any, transaction: Transaction | None) -> int:
    """Delete the rows that match a filter. Returns their number, or 0 if the transaction is already stored.

    **Commit point:** the one record that names the rows. Concurrently appended rows are not deleted. Raises
    `InvalidOptionError` for a primary-key table, and `CommitConflictError` if other writers repeatedly delete the same
    rows.
    """
    check_transaction(transaction)
    filter_ = parse_condition(where)
    if filter_ is None:
        raise InvalidOptionError(
            "delete(where=None): found no condition, expected one; use truncate() to delete all rows"
        )
    return delete_rows(
        table,
        lambda schema: filter_.bind(schema.arrow),
        InitialSchema(None, reader="a deletion of rows of {name}", advice="run it again"),
        transaction,
    )


def delete_rows(
    table: TableHandle, choose: OverwriteFilterFactory, initial: InitialSchema, transaction: Transaction | None = None
) -> int:
    """Delete the chosen rows of the latest state. Locate them again if other writers deleted some of them.

    Returns the number of deleted rows. **Commit point:** one record. Raises the errors of `delete_matching`.
    """
    for attempt in itertools.count():
        table.world.wait_to_retry(attempt)
        state = table.refresh()
        snapshot, located = locate_latest_rows(table, state, choose, initial)
        try:
            return commit_deletion(table, located.rows, ReadVersion.of(snapshot.state), transaction, located.files)
        except CommitConflictError:
            if attempt == _CONFLICTS_MAX:
                raise
    raise AssertionError


def locate_latest_rows(
    table: TableHandle, state: TableState, choose: OverwriteFilterFactory, initial: InitialSchema
) -> tuple[ReadSnapshot, RowLocations]:
    """Locate the chosen rows of a state, or of a fallback snapshot if another engine expired the lake snapshot."""
    require_deletable(state)
    return read_with_fallback(
        table,
        take_latest_snapshot(state),
        initial,
        lambda snapshot: (snapshot, locate_rows(table, snapshot, choose(snapshot.state.schema))),
    )


def locate_rows(table: TableHandle, snapshot: ReadSnapshot, choice: OverwriteFilter) -> RowLocations:
    """Locate the chosen rows of a read snapshot. Raises `InvalidOptionError` for a row that cannot be identified.

    Rows without offsets need the read version of the lake snapshot, which costs a request. If the plan may contain such
    rows, the read version is taken, and then the read is planned again.
    """
    request = ScanRequest(choice.columns, Pruning(choice.node), names_rows=True)
    read, plan = ReadVersion.of(snapshot.state), plan_scan(table, snapshot, request).plan(table)
    if any(isinstance(task, LakeScanTask) and task.place is not None for task in plan.tasks):
        read = take_read_version(table, snapshot.state)
        plan = plan_scan(table, snapshot, request).plan(table)
    ids = [np.zeros(0, np.int64)]
    for batch in read_batches(table, plan, (ROW_ID,), filter=choice.expression, node=choice.node):
        is_filtered = choice.expression is not None
        chosen = batch if is_filtered else batch.filter(pa.array(choice.mask(pa.Table.from_batches([batch]))))
        ids.append(chosen.column(ROW_ID.name).to_numpy())
    return locate_row_ids(table, snapshot.state, read, np.concatenate(ids))


def commit_deletion(
    table: TableHandle,
    rows: Mapping[int, OffsetSet],
    read: ReadVersion,
    transaction: Transaction | None = None,
    files: FileRows = NO_FILE_ROWS,
) -> int:
    """Delete the rows at these offsets and file positions in one record, its **commit point**. Returns their number.

    ``read`` is the version in which the rows were located. Raises `CommitConflictError`, without deleting a row, if the
    table was truncated or a row was deleted since.
    """

    def plan(state: TableState, _time_ms: int, base: ReadVersion) -> Sequence[Action]:
        actions = make_delete_actions(state, rows, base, files)
        return actions or ((DeleteRows({}),) if transaction is not None else ())

    committed = commit_with_conflict_check(table, rows, read, plan, transaction=transaction)
    if committed.duplicate_of is not None or committed.state is committed.before:
        return 0
    deletion = next((d for d in committed.state.deletions if d.commit == committed.state.version), None)
    return count_rows(deletion.rows) + count_rows(deletion.files) if deletion is not None else 0
