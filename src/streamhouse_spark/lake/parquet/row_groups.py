"""Selection of the row groups that can match a read's filter, by the file's footer.

The rows of the selected groups are read as one sequence. `RowGroups` maps places in it to row numbers of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.query.predicates import (
    ONLY_NULLS,
    UNKNOWN_BOUNDS,
    Bounds,
    Node,
    family_of,
    may_match,
    to_comparable,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from streamhouse_spark.lake.parquet.file_columns import FileColumns

Numbers = npt.NDArray[np.int64]

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_UNTOLD = (pa.ArrowException, OverflowError, ValueError, TypeError, ArithmeticError)
"""Errors of Arrow, and of Python's values, on statistics that they cannot show."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Ascending row groups of one file."""

    places: tuple[int, ...]
    starts: Numbers
    """The row number in the file of each group's first row."""
    begins: Numbers
    """The place of each group's first row in the sequence, followed by the number of all rows."""

    @classmethod
    def of(cls, sizes: Sequence[int], places: Sequence[int]) -> RowGroups:
        """Select row groups of a file whose groups have these ``sizes``."""
        starts = np.cumsum([0, *sizes], dtype=np.int64)
        chosen = np.asarray(places, np.int64)
        lengths = starts[chosen + 1] - starts[chosen]
        return cls(tuple(places), starts[chosen], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @property
    def num_rows(self) -> int:
        return int(self.begins[-1])

    def select(self, is_kept: npt.NDArray[np.bool_]) -> RowGroups:
        """Return the groups where ``is_kept``."""
        lengths = np.diff(self.begins)[is_kept]
        places = tuple(
            place for place, is_group_kept in zip(self.places, is_kept.tolist(), strict=True) if is_group_kept
        )
        return RowGroups(places, self.starts[is_kept], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def numbers(self, place: int, num_rows: int) -> Numbers:
        """Return the row numbers in the file of ``num_rows`` rows from a place on."""
        numbers = np.arange(place, place + num_rows, dtype=np.int64)
        if not num_rows:
            return numbers
        shifts = self.starts - self.begins[:-1]
        first, last = self.groups_of(numbers[[0, -1]])
        return numbers + (shifts[first] if first == last else shifts[self.groups_of(numbers)])

    def groups_of(self, places: Numbers) -> Numbers:
        """Return the index of the group that holds each place."""
        groups: Numbers = np.searchsorted(self.begins, places, side="right") - 1
        return groups

    def places_of(self, numbers: Numbers) -> Numbers:
        """Return the places of rows with these ascending row numbers, without rows of other groups."""
        if not len(numbers) or not self.places:
            return np.zeros(0, np.int64)
        group = np.searchsorted(self.starts, numbers, side="right") - 1
        places: Numbers = numbers - self.starts[group] + self.begins[group]
        return places[(group >= 0) & (places < self.begins[group + 1])]


def select_matching_groups(
    footer: pq.FileMetaData, places: Sequence[int], columns: FileColumns, node: Node
) -> list[int]:
    """Return the row groups that can match the filter, which uses the names of ``columns``.

    Missing statistics match anything; a column missing from the file is null.
    """
    missing = {name: ONLY_NULLS for name, stored in columns.stored.items() if stored is None}
    bounded = _columns_with_bounds(footer, columns, node.columns())
    groups = []
    for place in places:
        group = footer.row_group(place)
        bounds = {name: _bounds(group.column(leaf), kind) for name, (leaf, kind) in bounded.items()}
        if may_match(node, missing | bounds):
            groups.append(place)
    return groups


def _columns_with_bounds(
    footer: pq.FileMetaData, columns: FileColumns, names: Collection[str]
) -> Mapping[str, tuple[int, pa.DataType]]:
    """Return the columns whose footer statistics compare as the table's values, with their leaf index and type."""
    if not names:
        return {}
    paths = [footer.schema.column(place).path for place in range(len(footer.schema))]
    leaf_of = {path: place for place, path in enumerate(paths)}
    for path, number in Counter(paths).items():
        if number > 1:  # a column "a.b" next to a field "b" of a column "a"
            del leaf_of[path]
    type_of = {field.name: field.type for field in columns.schema}
    return {
        name: (leaf_of[stored.name], stored.type)
        for name, stored in columns.stored.items()
        if name in names
        and stored is not None
        and stored.name in leaf_of
        and _is_comparable(stored.type, type_of[name])
    }


def _is_comparable(stored: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values keep their order and filter semantics when cast to the table's type."""
    types = pa.types
    if family_of(stored) is None or family_of(stored) != family_of(target):
        return False
    if types.is_decimal(stored) or types.is_decimal(target):
        return types.is_decimal(stored) and types.is_decimal(target) and bool(stored.scale == target.scale)
    if types.is_timestamp(stored):
        return stored.unit in _MICROSECONDS and bool(target.unit == "us")
    return stored.equals(target) or bool(stored.bit_width < target.bit_width)


def _bounds(chunk: pq.ColumnChunkMetaData, stored: pa.DataType) -> Bounds:
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN_BOUNDS
    nulls = statistics.null_count if statistics.has_null_count else None
    low, high = _low_and_high(statistics, stored, is_integer=chunk.physical_type in ("INT32", "INT64"))
    return Bounds(
        low,
        high,
        may_be_null=nulls != 0,
        may_have_value=nulls is None or nulls < chunk.num_values,
        may_be_nan=pa.types.is_floating(stored),  # writers leave NaN out of statistics and do not count it
    )


def _low_and_high(statistics: pq.Statistics, stored: pa.DataType, *, is_integer: bool) -> tuple[Any, Any]:
    """Return the least and greatest value in the form of `Bounds`; None if unknown."""
    if not statistics.has_min_max:
        return None, None
    types = pa.types
    try:
        if types.is_timestamp(stored) and is_integer:
            return statistics.min_raw * _MICROSECONDS[stored.unit], statistics.max_raw * _MICROSECONDS[stored.unit]
        if types.is_date(stored) and is_integer:
            return statistics.min_raw, statistics.max_raw
        if types.is_decimal(stored) and is_integer:
            return Decimal(statistics.min_raw).scaleb(-stored.scale), Decimal(statistics.max_raw).scaleb(-stored.scale)
        low, high = statistics.min, statistics.max
    except _UNTOLD:
        return None, None
    if low != low or high != high:  # noqa: PLR0124 - a writer that let NaN into them
        return None, None
    return to_comparable(low), to_comparable(high)
