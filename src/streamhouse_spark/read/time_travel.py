"""Time travel: the table, state and columns of a read as of a time.

The read returns the columns that the table had at the time. If columns were only added since, the latest state is
sufficient, and the read reaches back as far as the log and the lake. If columns were renamed, dropped or widened, names
in properties and filters have another meaning. Then the state before the change is read, if its records are retained.

A read as of a time before CREATE OR REPLACE TABLE reads the replaced table, if it is still retained.
"""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, SnapshotExpiredError
from streamhouse_spark.log.catalog.name_changes import find_replaced_table
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history import require_retained_segments, state_at
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_snapshot_as_of
from streamhouse_spark.schema.evolution import first_change_after
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle


def state_as_of(table: TableHandle, state: TableState, timestamp_ms: int) -> TableState:
    """Return the state for reading rows committed at or before ``timestamp_ms``, with the columns of that time.

    It is ``state``, if necessary with an earlier schema, or an earlier state. Raises `SnapshotExpiredError` if the
    records with the earlier columns are no longer retained.
    """
    change = first_change_after(state.schema_changes, state.time_ms, timestamp_ms)
    if change is None:
        return state
    earlier = with_schema(state, change.former_id)
    if _has_columns(state.schema, earlier.schema) and _is_consistent(earlier):
        return earlier
    try:
        return state_at(table.log, table.storage, change.commit - 1)
    except SnapshotExpiredError as error:
        raise SnapshotExpiredError(
            f"{state.name} as of {timestamp_ms} ms: commit {change.commit} changed the columns later, and the records "
            f"with the earlier columns have expired; choose {change.time_ms} ms or later, or read the lake as of that "
            f"time ({state.name}$lake)"
        ) from error


def take_historical_snapshot(table: TableHandle, state: TableState, timestamp_ms: int) -> ReadSnapshot:
    """Return the read snapshot of the rows committed at or before ``timestamp_ms``, with the columns of that time.

    Raises the errors of `state_as_of` and `take_snapshot_as_of`.
    """
    snapshot = take_snapshot_as_of(state_as_of(table, state, timestamp_ms), timestamp_ms)
    if snapshot.state.version != state.version:
        require_retained_segments(
            table.log,
            snapshot.state,
            (
                segment
                for bucket, offsets in snapshot.hot.items()
                for segment in snapshot.state.buckets[bucket].segments
                if segment.base_offset < offsets.end and offsets.start < segment.end_offset
            ),
        )
    return snapshot


def with_schema(state: TableState, schema_id: int) -> TableState:
    """Return the state with the schema ``schema_id``."""
    return state if schema_id == state.schema_id else replace(state, schema_id=schema_id)


def has_same_columns(schema: TableSchema, other: TableSchema) -> bool:
    """Return whether two schemas have the same columns in the same order, regardless of defaults and comments."""
    return schema.names == other.names and _has_columns(schema, other)


def _has_columns(schema: TableSchema, earlier: TableSchema) -> bool:
    """Return whether ``schema`` has all columns of ``earlier``, unchanged."""
    columns_by_id = {column.id: (column.name, column.type, column.inner_ids) for column in schema.columns}
    return all(columns_by_id.get(c.id) == (c.name, c.type, c.inner_ids) for c in earlier.columns)


def _is_consistent(state: TableState) -> bool:
    """Return whether the properties refer only to columns of the schema."""
    try:
        _ = state.parsed, state.primary_key
    except (InvalidOptionError, SchemaMismatchError):
        return False
    return True


class PreviousTable(TableHandle):
    """A replaced table in its last state. Read-only."""

    def __init__(self, table: TableHandle, log: CommitLog, last: TableState) -> None:
        super().__init__(table.storage, table.settings, table.path, log, table.world)
        self._last = last

    @property
    def state(self) -> TableState:
        return self._last

    def refresh(self) -> TableState:
        return self._last

    def refresh_at_most(self, num_records: int) -> TableState:  # noqa: ARG002 - a replaced table has no new commits
        return self._last


def table_as_of(table: TableHandle, state: TableState, timestamp_ms: int) -> tuple[TableHandle, TableState]:
    """Return the table that the name referred to at a time, and its state.

    It is ``table``, or the last state of a table that was replaced directly or indirectly. Costs one listing of the
    name's pointers, and a read of the log of each replaced table. Raises `SnapshotExpiredError` if files of the
    replaced table are being deleted.
    """
    if table.path.branch is not None:
        return table, state
    while (replaced := find_replaced_table(table.storage, table.world, table.path, table.uuid)) is not None:
        if timestamp_ms >= replaced.dropped.time_ms:
            break
        if replaced.log.state.buried:
            raise SnapshotExpiredError(
                f"{table.name} as of {timestamp_ms} ms: until {replaced.dropped.time_ms} ms the name belonged to "
                "another table, which was deleted; choose a later time"
            )
        state = replaced.last_state(table.storage)
        table = PreviousTable(table, replaced.log, state)
    return table, state
