"""Merge engines merge rows of a batch with the stored rows, over Arrow columns.

The engines are those of Apache Fluss: last row (the default), ``first_row``, ``versioned`` and ``aggregation``. A
partial update names its target columns. Other columns retain their values, or get their defaults in a new row. A
partial deletion sets the target columns to null, and deletes the row if no column but the key has a value.

The engine ``aggregation`` folds a column's values per key. A fold gets the values of all keys in one array, grouped by
key and in order, and returns one value per key. The first value of a key may be an earlier result, because results are
stored. Numbers are folded as in Spark. Nulls are ignored. NaN is larger than any other number: it is the maximum if
present, and the minimum only if all values are NaN. Positive and negative zero are equal. If a ``sum`` or ``product``
of integers or decimals does not fit the column, the write fails with ``AGGREGATE_OVERFLOW``; floats become infinite.
Decimal products are rounded half up to their scale after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, SchemaMismatchError
from streamhouse_spark.expressions.generated_columns import Generated, recompute_generated_columns
from streamhouse_spark.keys.keyed_batch import Bools, KeyedBatch, KeyedRows, Places

Fold = Callable[[pa.Array, Places, int], pa.Array]
"""``fold(values, keys, num_keys)`` returns one value per key, null for a key without values. ``keys`` ascend."""

DELIMITER: Final = ","
_DIVISOR_DIGITS: Final = 9
"""Digits that a cast of a decimal drops. Arrow 19 divides 256 bits wrongly by some divisors of more than 32 bits. It
returns 4294967293 for 429496729499810911067751394114218404872527544320 + 5e37 over 1e38, expected 4294967295.
"""
DEFAULT_FUNCTION: Final = "last_value_ignore_nulls"


def last_value(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
    """Return the last value of each key, null or not."""
    last = np.full(num_keys, -1, np.int64)
    last[keys] = np.arange(len(keys))
    return values.take(pa.array(last, mask=last < 0))


def first_value(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
    """Return the first value of each key, null or not."""
    first = np.full(num_keys, -1, np.int64)
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    return values.take(pa.array(first, mask=first < 0))


def ignore_nulls(fold: Fold) -> Fold:
    def folded(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
        if not values.null_count:
            return fold(values, keys, num_keys)
        valid = values.is_valid()
        return fold(values.filter(valid), keys[valid.to_numpy(zero_copy_only=False)], num_keys)

    return folded


def _arrow_fold(function: str) -> Fold:
    """Return the fold that applies Arrow's aggregate ``function``, ignoring nulls."""

    def folded(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
        groups = pa.table({"key": keys, "value": values}).group_by("key", use_threads=False)
        aggregated = groups.aggregate([("value", function)]).combine_chunks()
        place = np.full(num_keys, -1, np.int64)
        place[aggregated["key"].to_numpy()] = np.arange(len(aggregated))
        column = pa.chunked_array(aggregated[f"value_{function}"]).combine_chunks()
        return column.take(pa.array(place, mask=place < 0))

    return folded


def _extreme_fold(function: str, of_floats: np.ufunc) -> Fold:
    def folded(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
        if not pa.types.is_floating(values.type):
            return _arrow_fold(function)(values, keys, num_keys)
        place = np.full(num_keys, -1, np.int64)
        starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), np.bool_), keys[1:] != keys[:-1]]))
        place[keys[starts]] = np.arange(len(starts))
        extremes = of_floats.reduceat(values.to_numpy(zero_copy_only=False), starts) if len(starts) else np.zeros(0)
        return pa.array(extremes, values.type).take(pa.array(place, mask=place < 0))

    return ignore_nulls(folded)


def _sum(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
    data_type = values.type
    if pa.types.is_decimal(data_type):
        wide = values.cast(pa.decimal256(76, data_type.scale))
        return _fit_sum(_arrow_fold("sum")(wide, keys, num_keys), data_type, "sum")
    if pa.types.is_floating(data_type):
        return _arrow_fold("sum")(values.cast(pa.float64()), keys, num_keys).cast(data_type)
    # Arrow's sum wraps around silently, so the halves of 64 bits are summed separately.
    integers = values.cast(pa.int64())
    raw = integers.fill_null(0).to_numpy()
    high = _arrow_fold("sum")(pa.array(raw >> 32), keys, num_keys).fill_null(0).to_numpy()
    low = _arrow_fold("sum")(pa.array(raw & 0xFFFFFFFF), keys, num_keys).fill_null(0).to_numpy()
    carried = high + (low >> 32)
    if ((carried > 2**31 - 1) | (carried < -(2**31))).any():
        raise _overflow_error(data_type, "sum")
    total = (carried << 32) | (low & 0xFFFFFFFF)
    valid = _arrow_fold("count")(integers, keys, num_keys).fill_null(0).to_numpy() > 0
    return _fit_sum(pa.array(total, mask=~valid), data_type, "sum")


def _product(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
    """Multiply the values of each key. Step n multiplies by the n-th values of all keys. Rounds decimals half up."""
    data_type = values.type
    if pa.types.is_floating(data_type):
        return _arrow_fold("product")(values.cast(pa.float64()), keys, num_keys).cast(data_type)
    scale = data_type.scale if pa.types.is_decimal(data_type) else 0
    factors = values.cast(pa.decimal256(38, scale))
    begins = np.concatenate([np.ones(min(1, len(keys)), np.bool_), keys[1:] != keys[:-1]])
    rank = np.arange(len(keys)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    product = first_value(factors, keys, num_keys)
    for n in range(1, int(rank.max(initial=0)) + 1):
        chosen = np.flatnonzero(rank == n)
        place = np.full(num_keys, -1, np.int64)
        place[keys[chosen]] = chosen
        times = factors.take(pa.array(place, mask=place < 0))
        # The product of two 38-digit numbers has at most 76 digits and fits. Arrow's result type would need one more.
        exact = pc.multiply(
            _cast_decimal_bits(product, pa.decimal256(37, scale)), _cast_decimal_bits(times, pa.decimal256(37, scale))
        )
        fitting = _fit_sum(_round_decimals(exact, scale), data_type, "product").cast(pa.decimal256(38, scale))
        product = pc.coalesce(fitting, product)  # keys with fewer values are unchanged
    return _fit_sum(product, data_type, "product")


def _round_decimals(values: pa.Array, scale: int) -> pa.Array:
    """Round decimals to half their scale, half away from zero. `pyarrow.compute.round` rounds halves wrong here."""
    if not scale:
        return values
    half, whole = 5 * 10 ** (scale - 1), pa.decimal256(75, 0)
    values = _cast_decimal_bits(values, whole)
    halves = pc.if_else(pc.less(values, pa.scalar(0, whole)), pa.scalar(-half, whole), pa.scalar(half, whole))
    shifted = _cast_decimal_bits(pc.add(values, halves), pa.decimal256(76, 2 * scale))
    for digits in range(2 * scale, scale, -_DIVISOR_DIGITS):
        narrower = pa.decimal256(76, max(digits - _DIVISOR_DIGITS, scale))
        shifted = shifted.cast(options=pc.CastOptions(narrower, allow_decimal_truncate=True))
    return shifted


def _cast_decimal_bits(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Reinterpret the 256 bits of each value as decimals of ``data_type``, which may have any precision."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return pa.Array.from_buffers(data_type, len(values), values.buffers(), offset=values.offset)


def _list_fold(delimiter: str) -> Fold:
    """Return the fold that joins texts with ``delimiter``, ignoring nulls."""

    def folded(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
        counts = np.bincount(keys, minlength=num_keys)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(bounds), values, mask=pa.array(counts == 0))
        return pc.binary_join(lists, delimiter)

    return folded


def _bitmap_fold(name: str) -> Fold:
    """Return the fold that unions serialized roaring bitmaps."""

    def folded(values: pa.Array, keys: Places, num_keys: int) -> pa.Array:
        bitmap = _bitmap_class(name)
        unions: dict[int, Any] = {}
        for key, value in zip(keys.tolist(), values.to_pylist(), strict=True):
            try:
                decoded = bitmap.deserialize(value)
            except Exception as error:
                raise SchemaMismatchError(
                    f"a value for {name} is not a serialized roaring bitmap: {error}; write serialized bitmaps"
                ) from error
            unions[key] = unions[key] | decoded if key in unions else decoded
        return pa.array([unions[k].serialize() if k in unions else None for k in range(num_keys)], pa.binary())

    return folded


def _bitmap_class(name: str) -> Any:
    try:
        import pyroaring
    except ImportError as error:
        raise MissingExtraError(f"aggregate function {name} needs pyroaring; pip install pyroaring") from error
    return pyroaring.BitMap if name == "rbm32" else pyroaring.BitMap64


def _fit_sum(values: pa.Array, data_type: pa.DataType, function: str) -> pa.Array:
    try:
        return values.cast(data_type)
    except pa.ArrowInvalid as error:
        raise _overflow_error(data_type, function) from error


def _overflow_error(data_type: pa.DataType, function: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"the {function} of a key's values does not fit into {data_type}; nothing was written; change the column to a "
        "wider type and retry, or copy the rows to a table with a wider type",
        condition="AGGREGATE_OVERFLOW",
    )


# -- names and types --------------------------------------------------------------------------------------------------


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_signed_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type))


def _is_ordered(data_type: pa.DataType) -> bool:
    types = pa.types
    return _is_number(data_type) or bool(
        types.is_string(data_type) or types.is_date(data_type) or types.is_timestamp(data_type)
    )


_ACCEPTED_TYPES: Final[Mapping[str, tuple[str, Callable[[pa.DataType], bool]]]] = {
    "sum": ("numbers", _is_number),
    "product": ("numbers", _is_number),
    "max": ("numbers, texts, dates and timestamps", _is_ordered),
    "min": ("numbers, texts, dates and timestamps", _is_ordered),
    "last_value": ("any column", lambda _type: True),
    "last_value_ignore_nulls": ("any column", lambda _type: True),
    "first_value": ("any column", lambda _type: True),
    "first_value_ignore_nulls": ("any column", lambda _type: True),
    "listagg": ("texts", pa.types.is_string),
    "string_agg": ("texts", pa.types.is_string),
    "bool_and": ("booleans", pa.types.is_boolean),
    "bool_or": ("booleans", pa.types.is_boolean),
    "rbm32": ("binaries", pa.types.is_binary),
    "rbm64": ("binaries", pa.types.is_binary),
}
FUNCTIONS: Final = tuple(_ACCEPTED_TYPES)


def fold_of(name: str, column: str, data_type: pa.DataType, *, delimiter: str = DELIMITER) -> Fold:
    """Return the fold that ``fields.<column>.agg`` names. Raises `InvalidOptionError`."""
    if name not in _ACCEPTED_TYPES:
        raise InvalidOptionError(f"fields.{column}.agg is {name!r}, expected one of {', '.join(FUNCTIONS)}")
    accepted, accepts = _ACCEPTED_TYPES[name]
    if not accepts(data_type):
        raise InvalidOptionError(
            f"fields.{column}.agg is {name}, which aggregates {accepted}, but column '{column}' has type {data_type}",
        )
    if name in ("listagg", "string_agg"):
        return ignore_nulls(_list_fold(delimiter))
    if name in ("rbm32", "rbm64"):
        return ignore_nulls(_bitmap_fold(name))
    return _FOLDS[name]


_FOLDS: Final[Mapping[str, Fold]] = {
    "sum": _sum,
    "product": ignore_nulls(_product),
    "max": _extreme_fold("max", np.maximum),  # NaN if either is
    "min": _extreme_fold("min", np.fmin),  # NaN only if both are
    "last_value": last_value,
    "last_value_ignore_nulls": ignore_nulls(last_value),
    "first_value": first_value,
    "first_value_ignore_nulls": ignore_nulls(first_value),
    "bool_and": _arrow_fold("all"),
    "bool_or": _arrow_fold("any"),
}


class MergeEngine(Protocol):
    @property
    def replaces(self) -> bool:
        """Whether a row of a batch replaces the stored row unconditionally."""

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        """Return the rows of the batch's keys after the batch, given the ``old`` rows."""


@dataclass(frozen=True, slots=True)
class ColumnwiseMerge:
    """Folds the old value and the values of the batch for each column: the default engine, and ``aggregation``.

    ``targets`` are the indexes of the columns of a partial update; None means all columns.
    """

    key_columns: frozenset[int]
    folds: Mapping[int, Fold]
    """Index → fold. For other columns the last value wins, even if it is null."""
    targets: Collection[int] | None = None
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)
    """Index → default of a column in new rows of partial updates that do not name the column."""

    @property
    def replaces(self) -> bool:
        return self.targets is None and not self.folds

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        targets = frozenset(range(len(batch.columns)) if self.targets is None else self.targets) - self.key_columns
        survives = self._surviving_rows(batch, old, targets)
        exists = batch.has_active | survives
        columns = []
        for i, (values, before) in enumerate(zip(batch.columns, old.columns, strict=True)):
            if i in self.key_columns:
                columns.append(_null_absent(exists, _choose_values(batch, values, batch.starts)))
            elif i in targets:
                columns.append(self._fold_column(i, batch, values, before, old.exists & ~batch.has_deletion))
            else:
                columns.append(self._keep_column(i, before, survives, exists & ~survives))
        return KeyedRows(tuple(columns), exists)

    def _keep_column(self, column: int, before: pa.Array, survives: Bools, is_new: Bools) -> pa.Array:
        values = _null_absent(survives, before)
        if column in self.defaults and is_new.any():
            values = pc.if_else(pa.array(is_new), self.defaults[column], values)
        return values

    def _surviving_rows(self, batch: KeyedBatch, old: KeyedRows, targets: Collection[int]) -> Bools:
        """Return whether each old row remains after the batch's deletions, before later rows of the batch."""
        if not batch.has_deletion.any():
            return old.exists
        has_other_values = np.zeros(len(batch), np.bool_)
        for i, before in enumerate(old.columns):
            if i not in self.key_columns and i not in targets:
                has_other_values |= _validity(before)
        survives: Bools = old.exists & (~batch.has_deletion | has_other_values)
        return survives

    def _fold_column(
        self, column: int, batch: KeyedBatch, values: pa.Array, before: pa.Array, begins: Bools
    ) -> pa.Array:
        """Fold the active values of the column. The fold of a key starts with the old value if ``begins`` is true."""
        fold = self.folds.get(column, last_value)
        if fold is last_value:  # the old value and rows before the last row do not matter
            return _null_absent(batch.has_active, _choose_values(batch, values, batch.ends - 1))
        old_keys = np.flatnonzero(begins)
        rows = np.flatnonzero(batch.active)
        keys = np.concatenate([old_keys, batch.key_of_row[rows]])
        order = np.argsort(keys, kind="stable")  # the old value comes first
        combined = pa.concat_arrays([before.take(pa.array(old_keys)), values.take(pa.array(rows))])
        return fold(combined.take(pa.array(order)), keys[order], len(batch))


@dataclass(frozen=True, slots=True)
class GeneratingMerge:
    """Merges rows and then computes the generated columns of the result."""

    inner: ColumnwiseMerge
    generated: tuple[Generated, ...]
    schema: pa.Schema

    replaces: ClassVar[bool] = False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        merged = self.inner.merge(batch, old)
        rows = recompute_generated_columns(
            self.generated, pa.RecordBatch.from_arrays(list(merged.columns), names=self.schema.names), "the table"
        )
        return KeyedRows(tuple(_null_absent(merged.exists, column) for column in rows.columns), merged.exists)


@dataclass(frozen=True, slots=True)
class NumberingMerge:
    """Merges rows. Existing rows retain their identity value; new rows have the identity value of the batch."""

    inner: MergeEngine
    identity: int
    """Index of the identity column."""

    replaces: ClassVar[bool] = False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        merged = self.inner.merge(batch, old)
        new = _choose_values(batch, batch.columns[self.identity], batch.ends - 1)
        columns = list(merged.columns)
        columns[self.identity] = _null_absent(merged.exists, pc.coalesce(old.columns[self.identity], new))
        return KeyedRows(tuple(columns), merged.exists)


@dataclass(frozen=True, slots=True)
class FirstRowMerge:
    """Keeps the first row of each key. Tables with this engine ignore or reject deletes."""

    replaces: ClassVar[bool] = False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        return _choose_rows(batch, old, np.where(old.exists, -1, batch.starts))


@dataclass(frozen=True, slots=True)
class VersionedMerge:
    """Keeps the row with the largest version, or the last of several. Rows without a version are ignored."""

    version_column: int

    replaces: ClassVar[bool] = False

    def merge(self, batch: KeyedBatch, old: KeyedRows) -> KeyedRows:
        versions, is_versioned = _versions(batch.columns[self.version_column])
        old_versions, is_old_versioned = _versions(old.columns[self.version_column])
        rows = np.flatnonzero(is_versioned)
        rows = rows[np.lexsort((rows, versions[rows], batch.key_of_row[rows]))]
        newest = np.full(len(batch), -1, np.int64)
        newest[batch.key_of_row[rows]] = rows  # the last assignment per key wins
        wins = (newest >= 0) & (~old.exists | ~is_old_versioned | (versions[newest] >= old_versions))
        return _choose_rows(batch, old, np.where(wins, newest, -1))


def _choose_rows(batch: KeyedBatch, old: KeyedRows, rows: Places) -> KeyedRows:
    """Return for each key the row of the batch at ``rows``, or the old row for -1."""
    new = rows >= 0
    places = np.where(new, rows + len(batch), np.arange(len(batch)))
    columns = (
        pa.concat_arrays([before, values]).take(pa.array(places))
        for before, values in zip(old.columns, batch.columns, strict=True)
    )
    return KeyedRows(tuple(columns), new | old.exists)


def _choose_values(batch: KeyedBatch, values: pa.Array, rows: Places) -> pa.Array:
    """Return for each key the value at its row."""
    return values if len(values) == len(batch) else values.take(pa.array(rows))


def _null_absent(exists: Bools, values: pa.Array) -> pa.Array:
    """Return the values, with nulls for absent rows."""
    return values if exists.all() else values.take(pa.array(np.arange(len(values)), mask=~exists))


def _validity(values: pa.Array) -> Bools:
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _versions(values: pa.Array) -> tuple[Places, Bools]:
    """Return integers or timestamps as 64-bit integers, and whether each value is not null."""
    integers = values.view(pa.int64()) if pa.types.is_timestamp(values.type) else values.cast(pa.int64())
    return integers.fill_null(0).to_numpy(), _validity(values)
