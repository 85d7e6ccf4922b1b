"""Rows by their primary key, from the tablets of this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, StorageError
from streamhouse_spark.keyed_table import KeyedShape, as_keys
from streamhouse_spark.keys.key_codec import encode_keys, stored_keys, stored_prefix
from streamhouse_spark.kv.replay import catch_up
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.rows import coerce
from streamhouse_spark.schema import TableSchema

if TYPE_CHECKING:
    from streamhouse_spark.table import Table

FOUND = "_found"
REMOTE_STALENESS_MS = 1_000
DAMAGED_MAX = 3
"""How often a tablet that is found damaged is made anew for one lookup."""


class Lookup:
    """Lookups in one table; keeps when the log was last read. Safe for threads."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._refreshed_ms: int | None = None

    def rows(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
        insert_if_absent: bool = False,
    ) -> pa.Table:
        """See `Table.lookup`."""
        state = self._state(max_staleness_ms, at_least)
        shape = self._table.keyed.shape(state)
        wanted = _value_schema(shape, columns)
        given = coerce(as_keys(keys, shape), shape.key_schema, table=shape.name).combine_chunks()
        if insert_if_absent and given.num_rows:
            self._table.keyed.insert_if_absent(given)
            state = self._table.state
        return self._looked_up(state, shape, given, wanted)

    def with_prefix(
        self,
        prefix: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> pa.Table:
        """See `Table.prefix_lookup`."""
        state = self._state(max_staleness_ms, at_least)
        shape = self._table.keyed.shape(state)
        wanted = shape.schema if columns is None else shape.schema.select(_names(columns))
        given = _prefix_row(shape, prefix)
        encoded = encode_keys([column.chunk(0) for column in given.columns])[0].as_py()
        found = [self._scanned(state, shape, bucket, encoded) for bucket in _buckets_of_prefix(shape, given)]
        columns_found = [
            pa.concat_arrays([rows[place] for rows in found]) if found else pa.nulls(0, column.type)
            for place, column in enumerate(shape.schema.columns)
        ]
        keys = shape.layout.keys(columns_found)
        inside = pc.starts_with(keys, pattern=encoded) if len(keys) else pa.array([], pa.bool_())
        order = pc.sort_indices(keys.filter(inside))
        rows = pa.Table.from_arrays([c.filter(inside).take(order) for c in columns_found], schema=shape.schema.arrow)
        return rows.select(list(wanted.names))

    # -- internals ------------------------------------------------------------------------------------------------

    def _state(self, max_staleness_ms: int | None, at_least: Mapping[int, OffsetRange] | None) -> TableState:
        """A state of the log that is as new as was asked for."""
        table, now_ms = self._table, self._table.world.clock.boot_ms()
        if max_staleness_ms is None:
            max_staleness_ms = 0 if table.storage.local_path("") is not None else REMOTE_STALENESS_MS
        elif type(max_staleness_ms) is not int or max_staleness_ms < 0:
            raise InvalidOptionError(f"max_staleness_ms is {max_staleness_ms!r}, expected milliseconds, at least 0")
        known = self._refreshed_ms
        state = table.state
        if known is None or now_ms - known >= max_staleness_ms or _lacks(state, at_least):
            state = table.refresh()
            self._refreshed_ms = now_ms
        if _lacks(state, at_least):
            raise InvalidOptionError(
                f"lookup in {table.name}: at_least is {dict(at_least or {})}, the log ends at {state.ends}; give the "
                "offsets that a write to this table returned"
            )
        return state

    def _looked_up(self, state: TableState, shape: KeyedShape, given: pa.Table, wanted: TableSchema) -> pa.Table:
        by_name = {name: given.column(name) for name in given.schema.names}
        key_columns = [_array(by_name[name]) for name in shape.key_schema.names]
        keys = encode_keys(key_columns)
        numbers = self._bucket_numbers(shape, by_name)
        values: list[bytes | None] = [None] * given.num_rows
        stored = stored_keys(keys)
        for bucket in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == bucket)
            order = places[pc.sort_indices(keys.take(pa.array(places))).to_numpy()]
            found = self._found(state, shape, bucket, [stored[place] for place in order.tolist()])
            for place, value in zip(order.tolist(), found, strict=True):
                values[place] = value
        rows = shape.layout.values.unpack(values, wanted)
        there = pa.array(rows.there)
        fields = [*shape.key_schema.arrow, *(f.with_nullable(True) for f in wanted.arrow), pa.field(FOUND, pa.bool_())]
        return pa.Table.from_arrays([*key_columns, *rows.columns, there], schema=pa.schema(fields))

    def _bucket_numbers(self, shape: KeyedShape, by_name: Mapping[str, pa.ChunkedArray]) -> Any:
        rows = len(next(iter(by_name.values())))
        if shape.bucket_place is None:
            return np.zeros(rows, np.int32)
        return iceberg_buckets(by_name[shape.schema.names[shape.bucket_place]], shape.num_buckets)

    def _found(self, state: TableState, shape: KeyedShape, bucket: int, keys: list[bytes]) -> list[bytes | None]:
        for _ in range(DAMAGED_MAX):
            found = self._caught_up(state, shape, bucket).find(keys)
            if found.applied >= state.buckets[bucket].end:
                return found.values
        raise _damaged(state, bucket)

    def _caught_up(self, state: TableState, shape: KeyedShape, bucket: int) -> Tablet:
        tablet = shape.tablet_of(bucket)
        catch_up(tablet, shape.layout, self._table.storage, state, bucket)
        return tablet

    def _scanned(self, state: TableState, shape: KeyedShape, bucket: int, prefix: bytes) -> Sequence[pa.Array]:
        """The rows of a bucket whose stored keys begin as the prefix does: all that have it, and perhaps others."""
        for _ in range(DAMAGED_MAX):
            values: list[bytes] = []

            def take(items: list[tuple[bytes, bytes]], found: list[bytes] = values) -> None:
                found.extend(value for _, value in items)

            _, applied = self._caught_up(state, shape, bucket).scan(take, stored_prefix(prefix))
            if applied >= state.buckets[bucket].end:
                return shape.layout.values.unpack(values).columns
        raise _damaged(state, bucket)


def _damaged(state: TableState, bucket: int) -> StorageError:
    return StorageError(
        f"the local rows by key of bucket {bucket} of {state.name} were found damaged {DAMAGED_MAX} times in a row; "
        "check the disk of the cache, or choose another with STREAMHOUSE_CACHE_DIR"
    )


def _lacks(state: TableState, at_least: Mapping[int, OffsetRange] | None) -> bool:
    return any(state.ends.get(bucket, -1) < offsets.end for bucket, offsets in (at_least or {}).items())


def _names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidOptionError(f"columns is {columns!r}, expected a list of column names")
    return columns


def _value_schema(shape: KeyedShape, columns: Sequence[str] | None) -> TableSchema:
    """The columns beside the key that a lookup returns."""
    key = set(shape.key_schema.names)
    wanted = shape.schema if columns is None else shape.schema.select(_names(columns))
    return TableSchema(tuple(column for column in wanted.columns if column.name not in key))


def _prefix_row(shape: KeyedShape, prefix: Any) -> pa.Table:
    """One row with the key columns of the prefix."""
    names = shape.key_schema.names
    if isinstance(prefix, Mapping):
        given = {shape.schema.column(name).name: value for name, value in prefix.items()}
    else:
        values = list(prefix) if isinstance(prefix, list | tuple) else [prefix]
        given = dict(zip(names, values, strict=False)) if len(values) <= len(names) else {}
    if not given or set(given) != set(names[: len(given)]):
        raise SchemaMismatchError(
            f"prefix {prefix!r} of {shape.name}: expected values for the first columns of the primary key "
            f"({', '.join(names)}), one or more of them"
        )
    columns = TableSchema(shape.key_schema.columns[: len(given)])
    return coerce([given], columns, table=shape.name).combine_chunks()


def _buckets_of_prefix(shape: KeyedShape, given: pa.Table) -> Iterator[int]:
    if shape.bucket_place is None:
        yield 0
        return
    name = shape.schema.names[shape.bucket_place]
    if name in given.schema.names:
        yield int(iceberg_buckets(given.column(name), shape.num_buckets)[0])
    else:
        yield from range(shape.num_buckets)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.nulls(0, column.type)
