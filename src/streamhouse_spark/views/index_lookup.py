"""Index lookups of a refresh: the unchanged side of a join, and the view's own rows, by primary key.

A lookup returns the latest rows. Rows of a source are rewound, by the changes since, to the version that the refresh
reads. Rows of the view need no rewind: if another refresh changed them meanwhile, this commit conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.config.properties import CHANGELOG_IMAGE
from streamhouse_spark.core.arrow_groupby import distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.lookup.lookup import Lookup
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.ivm.indexed_join import IndexedSide
from streamhouse_spark.views.ivm.refresh_sql import KEY, ORDINAL
from streamhouse_spark.views.local_changes import LocalChanges, columns_to_read, read_changes, rewind_rows

_STALENESS_MS: Final = 600_000
"""The first lookup of a `Lookup` reads the log to its end; later lookups need no newer rows."""


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of one use of a source that match changes of another source, at the old and the new version."""

    old: pa.Table
    new: pa.Table


def lookup_joined_rows(
    use: IndexedSide, table: Table, state: TableState, naming_changes: pa.Table, own_changes: LocalChanges | None
) -> JoinedRows | None:
    """Look up the rows whose keys appear in ``naming_changes``; None if Spark must read the table instead.

    ``own_changes`` are the changes of the table itself between the two versions, if any.
    """
    keys = _to_keys(naming_changes.select(list(use.lookup_columns)), state, use.key)
    columns = columns_to_read(state, use.columns)
    if keys is None:
        return None
    if not keys.num_rows:
        empty = state.schema.select(columns).arrow.empty_table()
        return JoinedRows(empty, empty)
    try:
        rows = Lookup(table.keyed).matches(keys, columns=columns, max_staleness_ms=0).rows
    except (SchemaMismatchError, InvalidOptionError):  # the table was altered concurrently
        return None
    now = table.refresh()  # at least as new as the rows that were found
    if now.version != state.version:
        since = _read_changes_since(table, state, now, columns)
        if since is None:
            return None
        rows = rewind_rows(rows, since, use.key)
    return JoinedRows(rows if own_changes is None else rewind_rows(rows, own_changes, use.key), rows)


def lookup_view_rows(view: Table, keys: pa.Table) -> pa.Table:
    """Return the view's rows with these keys, null where missing; the last column says whether the row exists."""
    return Lookup(view.keyed).rows(keys, max_staleness_ms=0)


def count_equal_rows(view: Table, keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return how many equal rows the view has for each `KEY`, by binary search over their ordinals, which start
    at 1.
    """
    lookup = Lookup(view.keyed)
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    low = np.zeros(len(keys), np.int64)
    high = np.ones(len(keys), np.int64)
    active = np.arange(len(keys))
    while len(active):  # doubled until no such ordinal exists
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
    lookup: Lookup, keys: pa.Array, places: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    lookup_keys = pa.table({KEY: keys.take(pa.array(places)), ORDINAL: pa.array(ordinals)})
    rows = lookup.rows(lookup_keys, columns=[KEY], max_staleness_ms=_STALENESS_MS)
    return np.asarray(rows.column(rows.num_columns - 1).to_numpy(), np.bool_)


def _read_changes_since(
    table: Table, state: TableState, now: TableState, columns: Sequence[str]
) -> LocalChanges | None:
    """Return the changes after a state; None if they do not determine the rows of that state."""
    if (now.schema_id, now.truncation, _drop_index(now)) != (state.schema_id, state.truncation, _drop_index(state)):
        return None
    if now.properties.get(CHANGELOG_IMAGE, "full").lower() != "full":
        return None
    return read_changes(table, now, state.ends, now.ends, columns)


def _drop_index(state: TableState) -> int:
    return state.recorded_lake.dropped_rows if state.recorded_lake is not None else 0


def _to_keys(values: pa.Table, state: TableState, key: Sequence[str]) -> pa.Table | None:
    """Return the distinct values as keys; None if Spark compares them differently from keys."""
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
    except pa.ArrowInvalid:  # no key can have this value
        return None
