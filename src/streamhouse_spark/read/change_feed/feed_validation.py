"""Validation of the change feed: find commits whose added and removed rows are not known row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamhouse_spark.config.table_properties import ADOPTED, NOTHING_ADOPTED
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.actions import Append, ResetLake, TieredSnapshot
from streamhouse_spark.log.commit_reader import (
    Commit,
    RecordDeletion,
    find_partition_drop,
    has_dropped_adopted_rows,
    has_dropped_rows,
    iter_deletions,
)
from streamhouse_spark.log.deletion_vectors import DeleteRows, FileRows, count_rows
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_feed.commit_diff import EXPIRED_ERRORS, FIRST, Rows, diff_commits, find_dropped_rows
from streamhouse_spark.read.system_tables import operation_of
from streamhouse_spark.table_handle import TableHandle


class ChangesUnavailableError(Exception):  # internal: callers get `error`
    """Changes of a range are unavailable. Changes since commit ``first`` may be available."""

    def __init__(self, error: StreamhouseError, first: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.first = first


def require_row_level_changes(
    table: TableHandle,
    as_of_state: TableState,
    commits: Sequence[Commit],
    *,
    is_net: bool = False,
    skips_truncated: bool = False,
) -> Mapping[int, Rows]:
    """Require that all changes are known row by row, from the records or, for dropped partitions, from the lake.

    Returns commit number → rows that only the lake names. Raises `ChangesUnavailableError`.

    With ``is_net``, a deleted row without an offset must be in a lake file from before the range. Otherwise it may have
    been added in the range, at an offset that is no longer known. With ``skips_truncated``, the first commit may be a
    truncation, because rows from before it are not requested.
    """
    _require_no_replaced_rows(as_of_state, commits, skips_truncated=skips_truncated)
    first = commits[0].record.number
    lost: dict[int, Rows] = {}
    if as_of_state.primary_key:
        return lost
    before: TieredSnapshot | None = None
    older = PreexistingFiles(table, first)
    deleted = _all_deleted_offsets(as_of_state, commits)
    for commit in commits:
        dropped = find_partition_drop(commit.record.actions)
        is_partial = dropped is not None and not dropped.names_all_rows(is_adopted=ADOPTED in as_of_state.properties)
        if is_net and not all(older.contain(deletion.files) for deletion in iter_deletions(commit.record)):
            reason = f"removed rows that have no offsets and may have been added since version {first - 1}"
            raise not_row_level_error(as_of_state, commit.record, reason)
        for action in (action for part in commit.record.attempts for action in part.actions):
            if isinstance(action, ResetLake) and action.starts:
                raise not_row_level_error(as_of_state, commit.record, "discarded rows that only the lake had")
            if not isinstance(action, TieredSnapshot):
                continue
            before = before if before is not None else _previous_snapshot(table, as_of_state, action, first)
            is_more = action.dropped_rows > (before.dropped_rows if before is not None else 0)
            is_drop = is_more and _drops_unrecorded_rows(table, as_of_state, before, action, commits, deleted)
            if is_partial or (is_drop and dropped is None):
                if (rows := find_dropped_rows(table, commit.record.number, action, dropped)) is None:
                    raise not_row_level_error(
                        as_of_state, commit.record, "removed rows from the lake that no record names"
                    )
                lost[commit.record.number] = rows
            before = action
    return lost


def _require_no_replaced_rows(as_of_state: TableState, commits: Sequence[Commit], *, skips_truncated: bool) -> None:
    """Require that no commit truncated the table or adopted a lake table. Raises `ChangesUnavailableError`."""
    first = commits[0].record
    emptied = as_of_state.truncation.commit if as_of_state.truncation is not None else 0
    truncating = next((commit.record for commit in commits if commit.record.number == emptied), None)
    if truncating is not None and not (skips_truncated and truncating is first):
        raise not_row_level_error(as_of_state, truncating, "removed all rows at once")
    if first.number == FIRST and as_of_state.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED:
        raise not_row_level_error(as_of_state, first, "adopted the rows of a lake table")


def _drops_unrecorded_rows(
    table: TableHandle,
    as_of_state: TableState,
    before: TieredSnapshot | None,
    tiered: TieredSnapshot,
    commits: Sequence[Commit],
    deleted: Mapping[int, OffsetSet],
) -> bool:
    """Return whether ``tiered`` dropped more rows than ``before`` for other reasons than recorded deletions.

    Adopted rows have no offsets. So in an adopted table, dropped rows are compared with the rows that records deleted:
    in the range, or before it but not yet applied to ``before``.
    """
    if ADOPTED not in as_of_state.properties:
        return has_dropped_rows(before, tiered, deleted)
    first, applied_through = commits[0].record.number, before.applied_through if before is not None else 0
    older = state_at(table.log, table.storage, first - 1).deletions if applied_through < first - 1 else ()
    named = [RecordDeletion(deletion.commit, deletion.rows, count_rows(deletion.files)) for deletion in older]
    for record in (commit.record for commit in commits):
        actions = (action for part in record.attempts for action in part.actions)
        rows = (action for action in actions if isinstance(action, DeleteRows))
        named += [RecordDeletion(record.number, action.rows, count_rows(action.files)) for action in rows]
    return has_dropped_adopted_rows(before, tiered, deleted, named)


def _all_deleted_offsets(as_of_state: TableState, commits: Sequence[Commit]) -> Mapping[int, OffsetSet]:
    """Return the rows that the commits deleted, and all deleted rows of the state after the commits."""
    parts = {bucket: [runs] for bucket, runs in as_of_state.deleted.items()}
    for bucket, deleted_parts in diff_commits(commits)[1].items():
        parts.setdefault(bucket, []).extend(part.rows for part in deleted_parts)
    return {bucket: OffsetSet.merged(deleted_parts) for bucket, deleted_parts in parts.items()}


def _previous_snapshot(
    table: TableHandle, as_of_state: TableState, tiered: TieredSnapshot, first: int
) -> TieredSnapshot | None:
    """Return the tiered snapshot before ``tiered``, which is the first snapshot recorded since the commit ``first``."""
    if not tiered.dropped_rows or first == FIRST:
        return None
    place = next((i for i, recorded in enumerate(as_of_state.lake_history) if recorded == tiered), 0)
    return as_of_state.lake_history[place - 1] if place else state_at(table.log, table.storage, first - 1).recorded_lake


def not_row_level_error(as_of_state: TableState, record: Record, reason: str) -> ChangesUnavailableError:
    added = [s for part in record.attempts for a in part.actions if isinstance(a, Append) for s in a.segments]
    operation = operation_of(record.actions, added, is_keyed=bool(as_of_state.primary_key))
    error = InvalidOptionError(
        f"CHANGES of {as_of_state.name}: commit {record.number} ({operation}) {reason}, which is not a row-level "
        f"change; start at version {record.number + 1}, or compare the table VERSION AS OF "
        f"{max(record.number - 1, 1)} and of {record.number}"
    )
    return ChangesUnavailableError(error, record.number + 1)


class PreexistingFiles:
    """The lake files from before the commit ``first``, loaded on demand."""

    def __init__(self, table: TableHandle, first: int) -> None:
        self._table, self._first = table, first

    def contain(self, rows: FileRows) -> bool:
        """Return whether all rows are in these files. False if the lake snapshot is no longer retained."""
        return rows.keys() <= self._names if rows else True

    @cached_property
    def _names(self) -> frozenset[str]:
        table = self._table
        try:
            before = state_at(table.log, table.storage, self._first - 1)
            if before.lake is None:
                return frozenset()
            files = table.open_lake().with_state(before).list_named_files(before.lake.snapshot_id)
        except EXPIRED_ERRORS:
            return frozenset()
        return frozenset(map(StorageFiles(table.storage).name_of, files))
