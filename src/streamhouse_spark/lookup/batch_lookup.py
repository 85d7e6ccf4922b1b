"""Lookups of rows by primary key in this host's tablets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import commit_key, table_prefix
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, StorageError, quote
from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys, encode_lmdb_prefix
from streamhouse_spark.keys.keyed_batch import Places
from streamhouse_spark.kv.log_replay import belongs_to_table, catch_up, is_ahead
from streamhouse_spark.kv.row_codec import UnknownSchemaError
from streamhouse_spark.kv.tablet import Tablet, TabletState
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import FOUND, TableSchema, require_distinct_names
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable

REMOTE_STALENESS_MS = 1_000
DAMAGED_MAX = 3
"""Times that a damaged tablet is recreated for one lookup."""
_Result = TypeVar("_Result")
LOOK_MS_MAX = 1_000
"""Time after a refresh of the log for which the absence of the next record proves that the state is the latest."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Current rows whose primary keys start with the given keys."""

    places: Places
    """The index of each row's key, ascending."""
    rows: pa.Table


class BatchLookup:
    """Lookups in one table. Thread-safe."""

    def __init__(self, keyed: PrimaryKeyTable) -> None:
        self._keyed = keyed
        self._table = keyed.table
        self._refreshed_ms: int | None = None
        self._is_local = self._table.storage.local_path(table_prefix(self._table.uuid)) is not None
        self._next_record: tuple[int, str] = (-1, "")

    def require_no_found_column(self, columns: Sequence[str] | None) -> None:
        """Raise `SchemaMismatchError` if the table, created by an older version, has a column named `FOUND`."""
        keyed_schema = self._keyed.keyed_schema()
        names = (*keyed_schema.key_schema.names, *_value_names(keyed_schema, columns))
        require_distinct_names(
            names, [FOUND], f"a lookup in {keyed_schema.name}", ", or use lookup_one, or columns= without it"
        )

    def rows(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
        insert_if_absent: bool = False,
    ) -> pa.Table:
        """Look up keys; see `Table.lookup`. The last column shows whether each key was found."""
        state = self.state(max_staleness_ms, at_least)
        keyed_schema = self._keyed.keyed_schema(state)
        value_names = _value_names(keyed_schema, columns)
        key_rows = self._keyed.keys(keys, keyed_schema)
        if key_rows.nbytes > arrow_rows.KEYS_BYTES_MAX:
            raise InvalidOptionError(
                f"a lookup in {keyed_schema.name} has {key_rows.nbytes} bytes of keys, expected at most "
                f"{arrow_rows.KEYS_BYTES_MAX}; look up the keys in several calls"
            )
        key_rows = key_rows.combine_chunks()
        if insert_if_absent and key_rows.num_rows:
            self._keyed.insert_if_absent(key_rows)
            state = self._table.state

        def look(newest: TableState, current_schema: PrimaryKeySchema) -> pa.Table:
            if current_schema is keyed_schema:
                return self._lookup_keys(newest, current_schema, key_rows, value_names)
            keys = pa.Table.from_arrays(
                key_rows.columns, schema=current_schema.key_schema.arrow
            )  # the key columns may have been renamed
            return self._lookup_keys(newest, current_schema, keys, _value_names(current_schema, columns))

        return self._retry_unknown_schema(state, look)

    def with_prefix(
        self,
        prefix: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> pa.Table:
        """Look up rows by key prefix; see `Table.prefix_lookup`."""
        state = self.state(max_staleness_ms, at_least)
        return self._retry_unknown_schema(
            state, lambda state, keyed_schema: self._with_prefix(state, keyed_schema, prefix, columns)
        )

    def _with_prefix(
        self, state: TableState, keyed_schema: PrimaryKeySchema, prefix: Any, columns: Sequence[str] | None
    ) -> pa.Table:
        projection = keyed_schema.schema if columns is None else keyed_schema.schema.select(column_names(columns))
        prefix_row = _prefix_row(keyed_schema, prefix)
        encoded = encode_keys([column.chunk(0) for column in prefix_row.columns])[0].as_py()
        bucket_columns = [
            self._scan_prefix(state, keyed_schema, bucket, encoded)
            for bucket, _ in _keys_by_bucket(keyed_schema, prefix_row)
        ]
        columns_read = [
            arrow_rows.concat_columns((rows[place] for rows in bucket_columns), column.type)
            for place, column in enumerate(keyed_schema.schema.columns)
        ]
        keys = keyed_schema.layout.keys(columns_read)
        inside = pc.starts_with(keys, pattern=encoded) if len(keys) else pa.array([], pa.bool_())
        order = np.flatnonzero(inside)[pc.sort_indices(keys.filter(inside)).to_numpy()]
        rows = pa.Table.from_arrays(
            [arrow_rows.take_values(c, order, distinct=True) for c in columns_read], schema=keyed_schema.schema.arrow
        )
        return rows.select(list(projection.names))

    def matches(
        self,
        keys: pa.Table,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> Matches:
        """Return the current rows that match many keys or key prefixes. A prefix may match several rows.

        ``keys`` contains all primary key columns or the leading ones, with the table's names and types and without
        nulls. Keys may repeat. ``columns`` selects the returned columns; the default is all.
        """
        state = self.state(max_staleness_ms, at_least)
        return self._retry_unknown_schema(
            state, lambda state, keyed_schema: self._matches(state, keyed_schema, keys, columns)
        )

    def _matches(
        self, state: TableState, keyed_schema: PrimaryKeySchema, keys: pa.Table, columns: Sequence[str] | None
    ) -> Matches:
        projection = (
            keyed_schema.schema.columns if columns is None else [keyed_schema.schema.column(name) for name in columns]
        )
        names = keyed_schema.key_schema.names[: keys.num_columns]
        if not set(names) <= set(keys.column_names):
            raise SchemaMismatchError(
                f"keys for {keyed_schema.name}: found the columns {', '.join(keys.column_names)}, expected the primary "
                f"key columns {', '.join(names)}: was a column renamed concurrently? Retry with these names"
            )
        keys = keys.select(names).combine_chunks()
        encoded = encode_keys([arrow_rows.combine_chunks(column) for column in keys.columns])
        find = _match_keys if len(names) == len(keyed_schema.key_schema.names) else _match_prefixes
        parts, values = [np.zeros(0, np.int64)], []
        for bucket, places in _keys_by_bucket(keyed_schema, keys):
            order = places[pc.sort_indices(encoded.take(pa.array(places))).to_numpy()]
            read = partial(find, keyed_schema, encoded.take(pa.array(order)), order)
            matched_places, bucket_values = self._read(state, keyed_schema, bucket, read)
            parts.append(matched_places)
            values += bucket_values
        places = np.concatenate(parts)
        order = np.argsort(places, kind="stable")
        unpacked, _ = keyed_schema.layout.values.unpack_all(values, projection)
        rows = [arrow_rows.take_values(column, order, distinct=True) for column in unpacked]
        schema = pa.schema([pa.field(column.name, column.type, column.nullable) for column in projection])
        return Matches(places[order], pa.Table.from_arrays(rows, schema=schema))

    def state(
        self, max_staleness_ms: int | None = None, at_least: Mapping[int, OffsetRange] | None = None
    ) -> TableState:
        """Return a state of the log that is as recent as required; see `Table.lookup`."""
        table, now_ms = self._table, self._table.world.clock.boot_ms()
        refreshed_ms, state = self._refreshed_ms, table.state
        if max_staleness_ms is None:
            if (
                self._is_local
                and refreshed_ms is not None
                and now_ms - refreshed_ms < LOOK_MS_MAX
                and self._is_newest(state)
            ):
                max_staleness_ms = LOOK_MS_MAX
            else:
                max_staleness_ms = 0 if self._is_local else REMOTE_STALENESS_MS
        elif type(max_staleness_ms) is not int or max_staleness_ms < 0:
            raise InvalidOptionError(f"max_staleness_ms is {quote(max_staleness_ms)}, expected at least 0 milliseconds")
        if (
            refreshed_ms is None
            or now_ms - refreshed_ms >= max_staleness_ms
            or (at_least and _is_behind(state, at_least))
        ):
            state = table.refresh()
            self._refreshed_ms = now_ms
        if at_least and _is_behind(state, at_least):
            raise InvalidOptionError(
                f"lookup in {table.name}: at_least is {dict(at_least)}, but the log ends at {state.ends}; pass the "
                "offsets that a write to this table returned"
            )
        return state

    def owns(self, tablet: Tablet, extent: TabletState, state: TableState) -> bool:
        """Return whether rows with this ``extent`` are of the table's log, at this state or a later state."""
        if tablet.verified_lineage == (extent.history, state.anchors.newest):
            return True
        if is_ahead(extent, state):
            state = self._table.refresh()
        return belongs_to_table(tablet, extent, self._table.storage, state)

    # -- internals ------------------------------------------------------------------------------------------------

    def _retry_unknown_schema(
        self, state: TableState, look: Callable[[TableState, PrimaryKeySchema], _Result]
    ) -> _Result:
        """Call ``look``, and retry if another process of this host applied rows of an unknown schema."""
        try:
            return look(state, self._keyed.keyed_schema(state))
        except UnknownSchemaError:
            state = self._table.refresh()
            return look(state, self._keyed.keyed_schema(state))

    def _is_newest(self, state: TableState) -> bool:
        """Return whether a log on a local disk has no record after this state, with one stat instead of a failing read.

        Valid only briefly after a refresh: after a longer pause the low watermark must also be read.
        """
        version, path = self._next_record
        if version != state.version:
            path = self._table.storage.local_path(commit_key(state.table_uuid, state.version + 1)) or ""
            self._next_record = (state.version, path)
        return not (state.dropped or os.access(path, os.F_OK))  # half the time of a failing `stat`

    def _lookup_keys(
        self, state: TableState, keyed_schema: PrimaryKeySchema, key_rows: pa.Table, names: Sequence[str]
    ) -> pa.Table:
        key_columns = [arrow_rows.combine_chunks(key_rows.column(name)) for name in keyed_schema.key_schema.names]
        keys = encode_keys(key_columns)
        values: list[bytes | None] = [None] * key_rows.num_rows
        stored = encode_lmdb_keys(keys)
        for bucket, places in _keys_by_bucket(keyed_schema, key_rows):
            order = places[pc.sort_indices(keys.take(pa.array(places))).to_numpy()]
            bucket_keys = [stored[place] for place in order.tolist()]
            bucket_values = self._read(state, keyed_schema, bucket, partial(Tablet.find, keys=bucket_keys))
            for place, value in zip(order.tolist(), bucket_values, strict=True):
                values[place] = value
        projection = [keyed_schema.schema.column(name) for name in names]
        value_fields = [pa.field(column.name, column.type) for column in projection]
        columns, exists = keyed_schema.layout.values.unpack_all(values, projection)
        schema = pa.schema([*keyed_schema.key_schema.arrow, *value_fields, pa.field(FOUND, pa.bool_())])
        return pa.Table.from_arrays([*key_columns, *columns, pa.array(exists)], schema=schema)

    def _read(
        self,
        state: TableState,
        keyed_schema: PrimaryKeySchema,
        bucket: int,
        read: Callable[[Tablet], tuple[TabletState, _Result]],
    ) -> _Result:
        """Call ``read`` on the bucket's tablet, after applying all changes, and return its result.

        A damaged tablet is recreated empty during the read. The result of such a read is discarded.
        """
        storage = self._table.storage
        for _ in range(DAMAGED_MAX):
            tablet = keyed_schema.tablet_of(bucket)
            catch_up(tablet, keyed_schema.layout, storage, state, bucket)
            extent, values = read(tablet)
            if extent.applied >= state.buckets[bucket].end and self.owns(tablet, extent, state):
                return values
        raise damaged_tablet_error(state, bucket)

    def _scan_prefix(
        self, state: TableState, keyed_schema: PrimaryKeySchema, bucket: int, prefix: bytes
    ) -> Sequence[pa.ChunkedArray]:
        """Return the bucket's rows whose stored keys start with the prefix, and possibly other rows."""

        def read(tablet: Tablet) -> tuple[TabletState, list[bytes]]:
            values: list[bytes] = []
            extent = tablet.scan(lambda items: values.extend(value for _, value in items), encode_lmdb_prefix(prefix))
            return extent, values

        return keyed_schema.layout.values.unpack_all(self._read(state, keyed_schema, bucket, read))[0]


def _is_behind(state: TableState, at_least: Mapping[int, OffsetRange]) -> bool:
    if not all(isinstance(offsets, OffsetRange) for offsets in at_least.values()):
        raise InvalidOptionError(
            f"at_least is {quote(dict(at_least))}, expected the offsets that a write returned: bucket → OffsetRange"
        )
    return any(state.ends.get(bucket, -1) < offsets.end for bucket, offsets in at_least.items())


def column_names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidOptionError(f"columns is {quote(columns)}, expected a list of column names")
    return columns


def _value_names(keyed_schema: PrimaryKeySchema, columns: Sequence[str] | None) -> list[str]:
    """Return the non-key columns that a lookup returns."""
    projection = keyed_schema.schema if columns is None else keyed_schema.schema.select(column_names(columns))
    return [name for name in projection.names if name not in keyed_schema.key_schema.names]


def _prefix_row(keyed_schema: PrimaryKeySchema, prefix: Any) -> pa.Table:
    """Convert a prefix to one row of its key columns."""
    names = keyed_schema.key_schema.names
    if isinstance(prefix, Mapping):
        key_values = {keyed_schema.schema.column(name).name: value for name, value in prefix.items()}
    else:
        values = list(prefix) if isinstance(prefix, list | tuple) else [prefix]
        key_values = dict(zip(names, values, strict=False)) if len(values) <= len(names) else {}
    if not key_values or set(key_values) != set(names[: len(key_values)]):
        raise SchemaMismatchError(
            f"prefix {prefix!r} of {keyed_schema.name}: expected values for one or more of the first columns of the "
            f"primary key ({', '.join(names)})"
        )
    columns = TableSchema(keyed_schema.key_schema.columns[: len(key_values)])
    return convert_to_schema([key_values], columns, table=keyed_schema.name).combine_chunks()


Matched = tuple[TabletState, tuple[Places, list[bytes]]]
"""The state of the tablet, and the indexes of found keys with their values."""


def damaged_tablet_error(state: TableState, bucket: int) -> StorageError:
    return StorageError(
        f"the local tablet of bucket {bucket} of {state.name} was damaged {DAMAGED_MAX} times in a row; check the disk "
        "of the cache, or set STREAMHOUSE_CACHE_DIR to another disk"
    )


def _match_keys(_shape: PrimaryKeySchema, keys: pa.BinaryArray, places: Places, tablet: Tablet) -> Matched:
    """Return the indexes of found keys with their values."""
    lookup = tablet.find(encode_lmdb_keys(keys))
    exists = np.fromiter((value is not None for value in lookup.values), np.bool_, len(lookup.values))
    return lookup.extent, (places[exists], [value for value in lookup.values if value is not None])


def _match_prefixes(keyed_schema: PrimaryKeySchema, keys: pa.BinaryArray, places: Places, tablet: Tablet) -> Matched:
    """Return all rows whose key starts with one of ``keys``: the indexes of these keys, and the rows' values."""
    prefixes: list[bytes] = keys.to_pylist()
    cut = [encode_lmdb_prefix(prefix) for prefix in prefixes]
    extent, values, counts = tablet.find_prefixes(cut)
    owners = np.repeat(np.arange(len(prefixes)), counts)
    if cut != prefixes:  # a tablet stores only the first bytes of long keys: compare the rows
        real = encode_keys(
            keyed_schema.layout.values.unpack(values, keyed_schema.key_schema.columns).columns
        ).to_pylist()
        inside = [key.startswith(prefixes[owner]) for key, owner in zip(real, owners.tolist(), strict=True)]
        owners = owners[np.array(inside, np.bool_)]
        values = [value for value, is_inside in zip(values, inside, strict=True) if is_inside]
    return extent, (places[owners], values)


def _keys_by_bucket(keyed_schema: PrimaryKeySchema, keys: pa.Table) -> Iterator[tuple[int, Places]]:
    """Yield each bucket with the keys to look up in it: all keys if they lack a column of the bucket key."""
    everywhere = np.arange(keys.num_rows)
    if not keyed_schema.bucket_key or not set(keyed_schema.bucket_key) <= set(keys.column_names):
        yield from ((bucket, everywhere) for bucket in range(keyed_schema.num_buckets) if keys.num_rows)
        return
    numbers = keyed_schema.bucket_numbers([keys.column(name) for name in keyed_schema.bucket_key])
    for bucket in np.unique(numbers).tolist():
        yield bucket, np.flatnonzero(numbers == bucket)
