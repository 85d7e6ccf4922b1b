"""Rows that the driver reads without Spark: changes of sources from the log, and rows by primary key.

Starting a Spark job costs more than reading few changes. A lookup returns the latest rows. Rows of a source are rewound
to the version that the refresh reads, by undoing the later changes. Rows of the view are not rewound: if another
refresh changes them concurrently, the commit of this refresh conflicts.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import ADOPTED, CHANGELOG_IMAGE, NOTHING_ADOPTED
from streamhouse_spark.core.arrow_rows import combine_chunks, distinct_rows, sum_by_group, take_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SchemaMismatchError, SnapshotExpiredError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.table.table import Table
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, IndexedSide
from streamhouse_spark.views.ivm.refresh_sql import KEY, ORDINAL

LOCAL_ROWS_MAX: Final = 200_000
"""Maximum number of changes that the driver reads. Spark reads larger numbers."""
LOCAL_BYTES_MAX: Final = 64 << 20
MOSTLY_CHANGED_SHARE: Final = 1 / 3
"""If at least this share of a source's rows changed, recomputing the full query is cheaper."""
MOSTLY_CHANGED_ROWS_MIN: Final = 200_000
"""Up to this number of changes, a source never counts as mostly changed."""
INSERT_KINDS: Final = ("insert", "update_after")

Weights = npt.NDArray[np.int64]
_STALENESS_MS: Final = 600_000
"""Maximum staleness of repeated lookups. The first lookup reads the log to its end, and the others need no newer rows.
"""


@dataclass(frozen=True, slots=True)
class LocalChanges:
    """Changes of a source, in log order per bucket."""

    rows: pa.Table
    weights: Weights
    """1 for an insert, -1 for a delete."""

    def net(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the changes and `WEIGHT`, without inserts and deletes that cancel each other out."""
        rows = self.rows.select(list(columns))
        weights = self.weights
        if len(weights) and not (weights == weights[0]).all() and all(map(_is_flat, rows.schema.types)):
            summed = sum_by_group(rows.append_column(WEIGHT, pa.array(weights)), list(columns))
            totals = summed.column(WEIGHT).to_numpy()
            positions = np.repeat(np.arange(len(totals)), np.abs(totals))
            rows, weights = take_rows(summed.drop_columns([WEIGHT]), positions), np.sign(totals)[positions]
        return rows.append_column(WEIGHT, pa.array(weights, pa.int64()))


def read_changes(
    table: TableHandle, state: TableState, ends: Mapping[int, int], until: Mapping[int, int], columns: Sequence[str]
) -> LocalChanges | None:
    """Read the changes between two log positions. Returns None if there are too many, or if they are not retained."""
    ranges = {
        bucket: OffsetRange(ends.get(bucket, 0), end) for bucket, end in until.items() if end > ends.get(bucket, 0)
    }
    if sum(map(len, ranges.values())) > LOCAL_ROWS_MAX:
        return None
    metadata = (CHANGE_TYPE,) if state.primary_key else ()
    try:
        plan = plan_ranges(table, state, ranges, columns, fail_on_data_loss=True)
        if sum(piece.size_bytes for piece in plan.tasks) > LOCAL_BYTES_MAX:
            return None
        batches = list(read_batches(table, plan, metadata))
    except (OffsetsTrimmedError, SnapshotExpiredError):
        return None
    rows = pa.Table.from_batches(batches, pa.schema([*metadata, *plan.schema.arrow]))
    if not metadata:
        return LocalChanges(rows, np.ones(len(rows), np.int64))
    is_insert = pc.is_in(rows[CHANGE_TYPE.name], value_set=pa.array(INSERT_KINDS))
    weights = np.where(is_insert.to_numpy(zero_copy_only=False), 1, -1).astype(np.int64)
    return LocalChanges(rows.drop_columns([CHANGE_TYPE.name]), weights)


def rewind_rows(rows: pa.Table, changes: LocalChanges, key: Sequence[str]) -> pa.Table:
    """Return the rows before the changes, from rows after the changes or between them.

    The first change of a key determines the old row of the key.
    """
    changed = _encode_row_keys(changes.rows, key)
    _, first = np.unique(changed.to_numpy(zero_copy_only=False), return_index=True)
    deleted = np.sort(first[changes.weights[first] < 0])
    unchanged = rows.filter(pc.invert(pc.is_in(_encode_row_keys(rows, key), value_set=changed)))
    older = take_rows(changes.rows.select(rows.column_names), deleted)
    return pa.concat_tables([unchanged, pa.Table.from_arrays(older.columns, schema=rows.schema)])


def _encode_row_keys(rows: pa.Table, key: Sequence[str]) -> pa.BinaryArray:
    return encode_keys([combine_chunks(rows.column(name)) for name in key])


def may_be_local(state: TableState, columns: Collection[str]) -> bool:
    """Return whether the driver reads the same values of these columns as Spark, which pads CHAR values."""
    chosen = [state.schema.column(name) for name in columns]
    return all(_is_flat(c.type) and (c.size is None or c.size.kind != "char") for c in chosen)


def is_mostly_changed(step: RefreshStep, states: Mapping[str, TableState]) -> bool:
    """Return whether so many rows changed that recomputing the full query is cheaper."""
    if step.old is None:
        return True
    old_ends = {source.name: source.ends for source in step.old.sources}
    for source in step.new.sources:
        if source.name in step.changed:
            changes = sum(end - old_ends[source.name].get(bucket, 0) for bucket, end in source.ends.items())
            num_rows = max_num_rows(states[source.name])
            if changes > MOSTLY_CHANGED_ROWS_MIN and changes >= MOSTLY_CHANGED_SHARE * num_rows:
                return True
    return False


def max_num_rows(state: TableState) -> int:
    """Return an upper bound of the table's row count."""
    if state.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED:
        return sys.maxsize
    if not state.primary_key:
        return state.num_rows
    num_rows = 0
    for bucket, log in state.buckets.items():
        snapshot = state.snapshots.get(bucket)
        base_rows, since = (0, state.first_offset(bucket)) if snapshot is None else (snapshot.num_rows, snapshot.offset)
        num_rows += base_rows + log.end - since
    return num_rows


def _is_flat(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def columns_to_read(state: TableState, columns: Collection[str]) -> list[str]:
    """Return ``columns`` and the primary key columns, in the table's order."""
    return [name for name in state.schema.names if name in columns or name in state.primary_key]


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of a source that match changes of another source, at the old and the new version."""

    old: pa.Table
    new: pa.Table


def lookup_joined_rows(
    use: IndexedSide, table: Table, state: TableState, key_changes: pa.Table, own_changes: LocalChanges | None
) -> JoinedRows | None:
    """Look up the rows whose keys are in ``key_changes``. Returns None if Spark must read the table instead.

    ``own_changes`` are the changes of the table itself between the two versions; None if it did not change.
    """
    keys = _to_keys(key_changes.select(list(use.lookup_columns)), state, use.key)
    columns = columns_to_read(state, use.columns)
    if keys is None:
        return None
    if not keys.num_rows:
        empty = state.schema.select(columns).arrow.empty_table()
        return JoinedRows(empty, empty)
    try:
        rows = BatchLookup(table.keyed).matches(keys, columns=columns, max_staleness_ms=0).rows
    except (SchemaMismatchError, InvalidOptionError):  # the table was altered concurrently
        return None
    now = table.refresh()  # at least as new as the rows
    if now.version != state.version:
        since = _read_changes_since(table, state, now, columns)
        if since is None:
            return None
        rows = rewind_rows(rows, since, use.key)
    return JoinedRows(rows if own_changes is None else rewind_rows(rows, own_changes, use.key), rows)


def lookup_view_rows(view: Table, keys: pa.Table) -> pa.Table:
    """Return the view's row for each key, null if it does not exist. The last column is whether the row exists."""
    return BatchLookup(view.keyed).rows(keys, max_staleness_ms=0)


def count_equal_rows(view: Table, keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return how many equal rows the view has for each `KEY`, by a binary search for the largest ordinal. Ordinals
    start at 1.
    """
    lookup = BatchLookup(view.keyed)
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    low = np.zeros(len(keys), np.int64)
    high = np.ones(len(keys), np.int64)
    active = np.arange(len(keys))
    while len(active):  # double ``high`` until the ordinal does not exist
        exists = _have_ordinals(lookup, keys, active, high[active])
        active = active[exists]
        low[active] = high[active]
        high[active] *= 2
    while len(active := np.flatnonzero(high - low > 1)):
        middle = (low[active] + high[active]) // 2
        exists = _have_ordinals(lookup, keys, active, middle)
        low[active[exists]] = middle[exists]
        high[active[~exists]] = middle[~exists]
    return low


def _have_ordinals(
    lookup: BatchLookup, keys: pa.Array, places: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    lookup_keys = pa.table({KEY: keys.take(pa.array(places)), ORDINAL: pa.array(ordinals)})
    rows = lookup.rows(lookup_keys, columns=[KEY], max_staleness_ms=_STALENESS_MS)
    return np.asarray(rows.column(rows.num_columns - 1).to_numpy(), np.bool_)


def _read_changes_since(
    table: Table, state: TableState, now: TableState, columns: Sequence[str]
) -> LocalChanges | None:
    """Return the changes after a state, or None if they do not determine the rows of that state."""
    if (now.schema_id, now.truncation, _drop_index(now)) != (state.schema_id, state.truncation, _drop_index(state)):
        return None
    if now.properties.get(CHANGELOG_IMAGE, "full").lower() != "full":
        return None
    return read_changes(table, now, state.ends, now.ends, columns)


def _drop_index(state: TableState) -> int:
    return state.recorded_lake.dropped_rows if state.recorded_lake is not None else 0


def _to_keys(values: pa.Table, state: TableState, key: Sequence[str]) -> pa.Table | None:
    """Convert distinct values to keys. Returns None if Spark's comparison of values differs from equality of keys."""
    columns = [
        _to_key_column(column, state.schema.column(name).type) for column, name in zip(values.columns, key, strict=True)
    ]
    if any(column is None for column in columns):
        return None
    return distinct_rows(pa.Table.from_arrays(columns, names=list(key)).drop_null())


def _to_key_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    if column.type == kind:
        return None if pa.types.is_floating(kind) else column
    if not (pa.types.is_integer(kind) and pa.types.is_integer(column.type)):
        return None
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:  # a value that no key can have
        return None
