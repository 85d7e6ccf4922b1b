"""Sort order of `optimize`: columns in sequence, or interleaved as ``zorder(a, b)``.

Each value becomes the number of cut points not above it. A row's numbers are concatenated for columns, and interleaved
bitwise for a z-order (Morton, 1966). Cut points come from a sample of the rows and divide them evenly, whatever their
distribution. Null ranks with the lowest values, NaN with the highest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.partition_fields import split_fields
from streamhouse_spark.schema.table_schema import TableSchema

COLUMNS_MAX: Final = 8
_BITS_MAX: Final = 12
"""Bits per column: 4,095 cut points are finer than a file's bounds can use."""
_ZORDER: Final = re.compile(r"\s*zorder\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_PLAIN: Final = re.compile(r"\w+")

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SortOrder:
    """Terms in order, each one column or several interleaved ones."""

    terms: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return the order as ``order_by`` text, for `parse_sort_order`."""
        texts = (", ".join(_quote_name(name) for name in term) for term in self.terms)
        return ", ".join(
            text if len(term) == 1 else f"zorder({text})" for term, text in zip(self.terms, texts, strict=True)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for term in self.terms for column in term)

    def mark(self, schema: TableSchema) -> str:
        """Return 8 hexadecimal digits that identify this order, independent of the current column names."""
        ids = [[schema.column(column).id for column in term] for term in self.terms]
        return hashlib.sha256(str(ids).encode()).hexdigest()[:8]


def parse_sort_order(text: str, schema: TableSchema) -> SortOrder:
    """Parse ``a, zorder(b, c)``. Raises `SchemaMismatchError` for an unknown column; `InvalidOptionError` for an
    unordered or repeated column, and for none or too many.
    """
    terms = []
    for piece in split_fields(text):
        call = None if schema.find(piece) else _ZORDER.fullmatch(piece)
        names = parse_names(call[1] if call else piece)
        if call is None and len(names) == 1 and re.search(r"\s(asc|desc|nulls)\b", piece, re.IGNORECASE):
            raise InvalidOptionError(
                f"order_by {text!r}: {piece!r} has a direction; files have bounds, which have none: name the column "
                "alone"
            )
        if not names or (call is None and len(names) > 1):
            raise InvalidOptionError(f"order_by {text!r}: {piece!r} names no column; expected a, b or zorder(a, b)")
        terms.append(tuple(schema.column(name).name for name in names))
    order = SortOrder(tuple(terms))
    if not 1 <= len(order.columns) <= COLUMNS_MAX:
        raise InvalidOptionError(f"order_by {text!r} names {len(order.columns)} columns, expected 1 to {COLUMNS_MAX}")
    for name in order.columns:
        column = schema.column(name)
        if order.columns.count(name) > 1:
            raise InvalidOptionError(f"order_by {text!r}: column '{name}' is there twice")
        if pa.types.is_nested(column.type):
            raise InvalidOptionError(
                f"order_by {text!r}: column '{name}' has type {type_name(column.type)}, which has no order"
            )
    return order


def _quote_name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


class ZOrderRanks:
    """Ranks rows by a sort order, from a sample of them. A row with a greater rank is not lower in the order."""

    def __init__(self, order: SortOrder, sample: pa.Table) -> None:
        self._order = order
        self._bits = min(_BITS_MAX, 62 // len(order.columns))
        self._cuts = {name: _cut_points(sample[name], (1 << self._bits) - 1) for name in order.columns}

    def of(self, rows: pa.RecordBatch | pa.Table) -> Int64Array:
        """Return the rank of each row."""
        z_values = np.zeros(rows.num_rows, dtype=np.int64)
        for term in self._order.terms:
            ranks = [self._rank(name, rows) for name in term]
            z_values = (z_values << (self._bits * len(term))) | _interleave_bits(ranks, self._bits)
        return z_values

    def _rank(self, name: str, rows: pa.RecordBatch | pa.Table) -> Int64Array:
        """Return ranks below 2 ** bits. Their first bit halves the cut points, as a z-order needs."""
        cuts = self._cuts[name]
        return _count_cuts_below(cuts, rows.column(name)) << (self._bits - len(cuts).bit_length())

    def lane_bounds(self, sample: pa.Table, num_lanes: int) -> Int64Array:
        """Return at most ``num_lanes`` - 1 ascending ranks that divide the sample's rows about evenly."""
        numbers = np.sort(self.of(sample))
        at = (np.arange(1, num_lanes) * len(numbers)) // num_lanes
        return np.unique(numbers[at]) if len(numbers) else numbers


def _cut_points(values: pa.ChunkedArray, cuts_max: int) -> pa.Array:
    distinct = pc.unique(values.combine_chunks()).drop_null()
    ordered = distinct.take(pc.sort_indices(distinct))
    if len(ordered) <= cuts_max:
        return ordered[1:]  # all values are at least the first
    present = values.combine_chunks().drop_null()
    ordered = present.take(pc.sort_indices(present))
    cuts = pc.unique(ordered.take(pa.array((np.arange(1, cuts_max + 1) * len(ordered)) // (cuts_max + 1))))
    return cuts.take(pc.sort_indices(cuts))


def _count_cuts_below(cuts: pa.Array, values: pa.Array | pa.ChunkedArray) -> Int64Array:
    """Return the number of cut points not above each value, 0 for null; for any type with an order."""
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    with_cuts = pa.concat_arrays([cuts, column.cast(cuts.type)])
    order = pc.sort_indices(with_cuts).to_numpy()  # stable: a cut sorts before equal values
    is_cut = order < len(cuts)
    ranks = np.empty(len(with_cuts), dtype=np.int64)
    ranks[order] = np.cumsum(is_cut)
    ranks[len(cuts) :][column.is_null().to_numpy(zero_copy_only=False)] = 0  # nulls sort after all others
    return ranks[len(cuts) :]


def _interleave_bits(ranks: Sequence[Int64Array], bits: int) -> Int64Array:
    if len(ranks) == 1:
        return ranks[0]
    interleaved = np.zeros(len(ranks[0]), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        for rank in ranks:
            interleaved = (interleaved << 1) | ((rank >> bit) & 1)
    return interleaved
