"""Commit of staged rows to a log table. **Commit point:** the one record that names all of them.

Also the actions of such a record: appends of staged rows, and truncations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.log.actions import Action, Append, Truncate
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.group_commit import CommitResult
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import written_ranges
from streamhouse_spark.schema.column_defaults import same_defaults
from streamhouse_spark.schema.evolution import is_same_column
from streamhouse_spark.schema.table_schema import TableSchema

STAGED_AGE_MS_MAX = 12 * 3600 * 1000
"""Maximum age of staged rows that are committed."""
StateCheck = Callable[[TableState], None]
"""Raises if the rows must not be committed on top of a state."""
DeleteActionsFactory = Callable[[TableState], Sequence[Action]]
"""Returns the actions that delete rows of a state before rows are added. Every attempt calls it."""


def commit_append(
    log: CommitLog,
    staged: StagedRows,
    *,
    transaction: Transaction | None = None,
    overwrite: bool = False,
    removing: DeleteActionsFactory | None = None,
    require: StateCheck | None = None,
) -> tuple[BucketOffsets, CommitResult]:
    """Commit staged rows as one record, and return their offsets.

    With ``overwrite`` the record first truncates the table; with ``removing`` it first deletes the rows of these
    actions. ``require`` is called with the state before the record, in each attempt. A transaction that is already
    stored writes nothing and returns the offsets of its first commit, after ``require`` was called with the latest
    state. A transaction without rows is committed too, so that its version is stored.
    """

    def plan_append(state: TableState, time_ms: int) -> Sequence[Action]:
        require_not_dropped(state)  # also if there is nothing to append
        if require is not None:
            require(state)
        truncates = make_truncate_actions(state) if overwrite else ()
        added: tuple[Action, ...] = ()
        if staged.segments or transaction is not None:
            added = (make_append_action(state, staged, time_ms, ends_after_truncation(state, truncates)),)
        return (*(truncates if removing is None else removing(state)), *added)

    is_shared = not overwrite and removing is None
    result = log.commit(plan_append, transaction=transaction, staged_ms=staged.staged_ms, is_shared=is_shared)
    if result.duplicate_of is not None and require is not None:
        require(result.state)
    return offsets_of_commit(result), result


def offsets_of_commit(result: CommitResult) -> BucketOffsets:
    """Return the offsets that an attempt wrote, or that its transaction wrote before."""
    if result.duplicate_of is not None:
        return BucketOffsets(result.duplicate_of.offsets)
    if result.ends is not None:
        return BucketOffsets(written_ranges(result.ends))
    before, after = result.before.buckets, result.state.buckets
    written = {b: OffsetRange(max(before[b].end, log.start), log.end) for b, log in after.items()}
    return BucketOffsets({b: r for b, r in written.items() if r})


def make_truncate_actions(state: TableState) -> tuple[Truncate, ...]:
    """Return the actions that empty the table; none if no row was appended since it was created or last truncated.

    If all rows are those of an adopted lake, which have no offsets, each bucket skips one offset. The truncation is
    then visible in the first offsets.
    """
    if state.has_adopted_rows_alone:
        return (Truncate({bucket: end + 1 for bucket, end in state.ends.items()}),)
    return () if state.begins_at(state.ends) else (Truncate(state.ends),)


def ends_after_truncation(state: TableState, truncation: Sequence[Truncate]) -> dict[int, int]:
    """Return the bucket ends after the result of `make_truncate_actions` for the state."""
    return dict(truncation[0].offsets) if truncation else state.ends


def make_append_action(
    state: TableState, staged: StagedRows, time_ms: int, ends: dict[int, int] | None = None
) -> Append:
    """Return the action that appends staged rows at the ends of a state, or at the given ``ends``.

    Raises `CommitConflictError` for rows that the table does not accept, or no longer accepts.
    """
    _require_valid(state, staged, time_ms)
    ends = state.ends if ends is None else ends
    placed = []
    for staged_segment in staged.segments:
        bucket = staged_segment.segment.bucket
        placed.append(staged_segment.segment.placed(ends[bucket], state.version + 1, time_ms))
        ends[bucket] += staged_segment.segment.num_rows
    return Append(tuple(placed), tuple(s.inline_rows for s in staged.segments))


def _require_valid(state: TableState, staged: StagedRows, now_ms: int) -> None:
    """Raise `CommitConflictError` for staged rows that the table does not accept, or no longer accepts."""
    if state.primary_key:
        raise CommitConflictError(
            f"cannot append to {state.name}: it has a primary key; nothing was written, upsert the rows"
        )
    if staged.table_uuid != state.table_uuid:
        raise CommitConflictError(
            f"rows were staged for table {staged.table_uuid}, but {state.name} is now {state.table_uuid}: it was "
            "dropped and created again; nothing was written, write the rows again",
        )
    for schema_id in {s.segment.schema_id for s in staged.segments} - {state.schema_id}:
        written = state.schemas[schema_id]
        if not has_same_meaning(written, state.schema) or not same_defaults(written, state.schema, staged.missing):
            raise schema_changed_error(state)
    if staged.segments and not {(c.name, c.text) for c in state.parsed.checks} <= {
        (c.name, c.text) for c in staged.checks
    }:
        raise CommitConflictError(
            f"{state.name}: a constraint was added while rows were staged; nothing was written, write them again"
        )
    if staged.segments and not is_retained(state, (s.segment.uuid for s in staged.segments), staged.staged_ms, now_ms):
        age_ms = now_ms - staged.staged_ms
        raise CommitConflictError(
            f"{state.name}: rows were staged {age_ms} ms ago, and maintenance may have deleted them since; nothing was "
            "written, write them again",
        )


def is_retained(state: TableState, segments: Iterable[str | None], staged_ms: int, now_ms: int) -> bool:
    """Return whether segments of these uuids, staged at ``staged_ms`` and never committed, cannot have been deleted.

    Maintenance condemns orphans in the log before it deletes them. It removes these log entries only long after the
    segments are rejected for their age. Every attempt must check this, because its process may have been suspended.
    """
    if now_ms - staged_ms > STAGED_AGE_MS_MAX:
        return False
    return not any(uuid and segment_key(state.table_uuid, uuid) in state.condemned for uuid in segments)


def schema_changed_error(state: TableState) -> CommitConflictError:
    """Return the error for staged rows whose columns changed concurrently."""
    return CommitConflictError(
        f"{state.name}: its columns were renamed or dropped while rows were staged, or have other defaults now; "
        f"nothing was written, write the rows again with its columns {', '.join(state.schema.names)}",
    )


def has_same_meaning(written: TableSchema, current: TableSchema) -> bool:
    """Return whether rows that were staged with an older schema are valid for the ``current`` schema.

    Input columns match by name, so each name must still denote its column, with the same or a wider type.
    """
    current_columns = {c.id: c for c in current.columns}
    for before in written.columns:
        column = current_columns.get(before.id)
        if column is None or not is_same_column(before, column):
            return False
        if before.nullable and not column.nullable:
            return False
    written_ids = {c.id for c in written.columns}
    return all(column.nullable for column in current.columns if column.id not in written_ids)
