"""Reads as of a time show the columns that the table had then, as reads as of a version do.

Where columns were only added since, the newest state says all else, so that such a read reaches as far back as log and
lake do. Where they were renamed, dropped or widened, names in properties and filters mean other columns by now: then
the state before that change is read, as long as its records are kept.
"""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.history import require_kept, state_at
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_snapshot_as_of
from streamhouse_spark.schema.schema_log import first_after
from streamhouse_spark.schema.table_schema import TableSchema


def state_of_time(table: TableHandle, state: TableState, timestamp_ms: int) -> TableState:
    """Return the state by which rows of ``timestamp_ms`` or before are read, with the columns of that time: this one,
    this one with an earlier schema, or an earlier one.

    Raises `SnapshotExpiredError` where records are no longer kept that say what the columns were.
    """
    change = first_after(state.schema_changes, state.time_ms, timestamp_ms)
    if change is None:
        return state
    earlier = with_schema(state, change.former_id)
    if _has_columns(state.schema, earlier.schema) and _is_consistent(earlier):
        return earlier
    try:
        return state_at(table.log, table.storage, change.commit - 1)
    except SnapshotExpiredError as error:
        raise SnapshotExpiredError(
            f"{state.name} as of {timestamp_ms} ms: commit {change.commit} changed its columns later, and the records "
            f"that say what they were are no longer kept; choose a time from {change.time_ms} ms on, or read the lake "
            f"as of that time ({state.name}$lake)"
        ) from error


def take_historical_snapshot(table: TableHandle, state: TableState, timestamp_ms: int) -> ReadSnapshot:
    """Pin the rows committed at ``timestamp_ms`` or before, with the columns of that time.

    Raises as `state_of_time` and `take_snapshot_as_of`.
    """
    pin = take_snapshot_as_of(state_of_time(table, state, timestamp_ms), timestamp_ms)
    if pin.state.version != state.version:
        require_kept(
            table.log,
            pin.state,
            (
                segment
                for bucket, offsets in pin.hot.items()
                for segment in pin.state.buckets[bucket].segments
                if segment.base_offset < offsets.end and offsets.start < segment.end_offset
            ),
        )
    return pin


def with_schema(state: TableState, schema_id: int) -> TableState:
    """Return the state as one of its former schemas shows it."""
    return state if schema_id == state.schema_id else replace(state, schema_id=schema_id)


def same_columns(schema: TableSchema, other: TableSchema) -> bool:
    """Tell whether two schemas show the same columns in the same order, whatever else they say of them."""
    return schema.names == other.names and _has_columns(schema, other)


def _has_columns(schema: TableSchema, earlier: TableSchema) -> bool:
    """Tell whether a schema has all columns of an earlier one, as they were."""
    columns_by_id = {column.id: (column.name, column.type, column.inner_ids) for column in schema.columns}
    return all(columns_by_id.get(c.id) == (c.name, c.type, c.inner_ids) for c in earlier.columns)


def _is_consistent(state: TableState) -> bool:
    """Tell whether the properties speak of columns of the state alone, and not of one that came later."""
    try:
        _ = state.parsed, state.primary_key
    except (InvalidOptionError, SchemaMismatchError):
        return False
    return True
