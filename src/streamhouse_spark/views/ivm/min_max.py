"""Top-k state per group: the first values, so that a deleted minimum or maximum has a successor, and for groups with
few values all of them, so that distinct values can be counted. Pure.

For each group and order, up to ``room`` distinct values are kept, each with its row count. Of the rows after the last
kept value only their number is known (the overflow). The kept values are exact: a change at or before the last kept
value updates its count, and a change after it updates the overflow. Values beyond the room move to the overflow. A
group without kept values but with overflow is *unknown* until its values are listed again from its rows. A group that
is not stored has no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_chunking import combine_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass

ROOM: Final = 8
"""Initial number of values kept per group."""
ROOM_MAX: Final = 512
ALL_ROOM: Final = 1_024
"""Number of values kept per group if all values are needed."""
_GROWTH: Final = 4
"""Growth of the room of a group that ran out. Values that are deleted in order, such as the oldest, then need fewer
listings."""
UNKNOWN: Final = -1
"""Row count of an unknown group."""
_NO_BOUND: Final = np.iinfo(np.int64).max

Order = Literal["min", "max", "all"]
"""``all`` keeps the first values too, as many as there is room for."""
Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ValueChanges:
    """Values inserted into groups or deleted from them."""

    groups: Numbers
    """The group number of each change."""
    values: pa.Array
    weights: Numbers
    """Number of rows with the value that were inserted; negative for deletes."""


@dataclass(frozen=True, slots=True)
class TopKState:
    """The first values of groups in one order, concatenated in group order."""

    values: pa.Array
    """Distinct non-null values in their order."""
    counts: Numbers
    """Number of rows with each value."""
    lengths: Numbers
    """Number of kept values per group."""
    overflow: Numbers
    """Number of rows per group with a value after the last kept one."""

    def first_values(self) -> pa.Array:
        """Return the first value of each group, null if it has none."""
        nonempty = self.lengths > 0
        positions = np.where(nonempty, np.cumsum(self.lengths) - self.lengths, 0)
        return self.values.take(pa.array(positions, mask=~nonempty))

    def count_values(self) -> pa.Array:
        """Return the number of values of each group, null if not all are kept."""
        return pa.array(self.lengths, pa.int64(), mask=self.overflow > 0)

    def concat(self, other: TopKState) -> TopKState:
        """Return these groups followed by the other ones."""
        values = pa.concat_arrays([self.values, other.values])
        counts, lengths, overflow = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("counts", "lengths", "overflow")
        )
        return TopKState(values, counts, lengths, overflow)

    def take(self, positions: Numbers) -> TopKState:
        """Return the groups at ``positions``, in that order."""
        starts, lengths = np.cumsum(self.lengths) - self.lengths, self.lengths[positions]
        shift = starts[positions] - (np.cumsum(lengths) - lengths)
        of_values = np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
        return TopKState(
            self.values.take(pa.array(of_values)), self.counts[of_values], lengths, self.overflow[positions]
        )


@dataclass(frozen=True, slots=True)
class TopKGroups:
    """Row counts and top-k states of some groups."""

    rows: Numbers
    """Number of rows per group; negative if unknown."""
    room: Numbers
    lists: tuple[TopKState, ...]

    @classmethod
    def empty(cls, num_groups: int, types: Sequence[pa.DataType]) -> TopKGroups:
        """Return groups without rows."""
        none = np.zeros(num_groups, np.int64)
        return cls(none, np.full(num_groups, ROOM), tuple(_empty_state(num_groups, kind) for kind in types))

    @classmethod
    def from_values(
        cls, rows: Numbers, room: Numbers, orders: Sequence[Order], listed: Sequence[tuple[ValueChanges, Numbers]]
    ) -> TopKGroups:
        """Return groups built from listed values.

        For each list, ``listed`` contains at least the values that have room, and how many rows have a non-null value.
        """
        lists = []
        for (values, filled), order in zip(listed, orders, strict=True):
            state, _ = _apply_changes(_empty_state(len(rows), values.values.type), values, order, room)
            kept_rows = _sum_by_group(np.repeat(np.arange(len(rows)), state.lengths), state.counts, len(rows))
            lists.append(TopKState(state.values, state.counts, state.lengths, filled - kept_rows))
        return cls(rows, room, tuple(lists))

    @classmethod
    def unknown(cls, num_groups: int, types: Sequence[pa.DataType]) -> TopKGroups:
        """Return groups in the unknown state."""
        return cls.empty(num_groups, types).mark_unknown(np.ones(num_groups, np.bool_))

    @property
    def is_known(self) -> Bools:
        return self.rows >= 0

    def mark_unknown(self, chosen: Bools) -> TopKGroups:
        """Return the groups with the chosen ones marked unknown."""
        lists = tuple(_keep_known(~chosen, first) for first in self.lists)
        return TopKGroups(np.where(chosen, UNKNOWN, self.rows), self.room, lists)

    def replace_groups(self, positions: Numbers, replacements: TopKGroups) -> TopKGroups:
        """Return the groups with those at ``positions`` replaced by ``replacements``, in order."""
        size = len(self.rows)
        chosen = np.arange(size)
        chosen[positions] = size + np.arange(len(replacements.rows))
        lists = tuple(
            state.concat(other).take(chosen) for state, other in zip(self.lists, replacements.lists, strict=True)
        )
        rows, room = (
            np.concatenate(pair)[chosen] for pair in ((self.rows, replacements.rows), (self.room, replacements.room))
        )
        return TopKGroups(rows, room, lists)

    def take(self, positions: Numbers) -> TopKGroups:
        """Return the groups at ``positions``, in that order."""
        return TopKGroups(
            self.rows[positions], self.room[positions], tuple(first.take(positions) for first in self.lists)
        )

    def first_values(self) -> list[pa.Array]:
        """Return the first value of each group in each order; null for unknown groups."""
        return [first.first_values() for first in self.lists]

    def current_values(self, orders: Sequence[Order]) -> list[pa.Array]:
        """Return the first value of each group, or the number of values for order ``all``; null if unknown."""
        values = []
        for first, order in zip(self.lists, orders, strict=True):
            values.append(first.count_values() if order == "all" else first.first_values())
        return values

    def apply_changes(self, changes: Sequence[ValueChanges], orders: Sequence[Order]) -> TopKGroups:
        """Return the groups after some changes. There are changes for each list, all of the same rows."""
        rows = self.rows.copy()
        np.add.at(rows, changes[0].groups, changes[0].weights)
        are_right, lists = self.is_known & (rows >= 0), []
        for first, change, order in zip(self.lists, changes, orders, strict=True):
            state, is_right = _apply_changes(first, change, order, self.room)
            lists.append(state)
            are_right = are_right & is_right
        room = np.where(self.is_known & ~are_right, np.minimum(self.room * _GROWTH, ROOM_MAX), self.room)
        return TopKGroups(
            np.where(are_right, rows, UNKNOWN), room, tuple(_keep_known(are_right, first) for first in lists)
        )


def _empty_state(num_groups: int, kind: pa.DataType) -> TopKState:
    none = np.zeros(num_groups, np.int64)
    return TopKState(pa.nulls(0, kind), none[:0], none, none)


def _apply_changes(first: TopKState, changes: ValueChanges, order: Order, room: Numbers) -> tuple[TopKState, Bools]:
    """Return the state after some changes, and a mask of the groups for which it is correct."""
    size = len(first.lengths)
    valid = changes.values.is_valid().to_numpy(zero_copy_only=False)
    values = pa.concat_arrays([first.values, changes.values.filter(pa.array(valid))])
    groups = np.concatenate([np.repeat(np.arange(size), first.lengths), changes.groups[valid]])
    weights = np.concatenate([first.counts, changes.weights[valid]])
    ranks = rank_values(values, order)
    inside = ranks <= _rank_bounds(first, ranks)[groups]
    overflow = first.overflow + _sum_by_group(groups[~inside], weights[~inside], size)

    positions = np.flatnonzero(inside)
    positions = positions[np.lexsort((ranks[positions], groups[positions]))]
    begins = run_starts(groups[positions], ranks[positions])
    totals = np.add.reduceat(weights[positions], begins) if len(begins) else weights[:0]
    right = np.ones(size, np.bool_)
    right[groups[positions[begins]][totals < 0]] = False  # more rows were deleted than existed

    stay = totals > 0
    positions, totals = positions[begins][stay], totals[stay]
    of_group = groups[positions]
    is_kept = positions_in_groups(of_group, size) < (ALL_ROOM if order == "all" else room[of_group])
    overflow = overflow + _sum_by_group(of_group[~is_kept], totals[~is_kept], size)
    lengths = np.bincount(of_group[is_kept], minlength=size)
    right &= (overflow >= 0) & ~((lengths == 0) & (overflow > 0))
    return TopKState(values.take(pa.array(positions[is_kept])), totals[is_kept], lengths, overflow), right


def rank_values(values: pa.Array, order: Order) -> Numbers:
    """Return numbers in the order of the values, equal for equal values. NaN is the largest, and -0.0 equals 0.0."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        numbers = values.view(pa.int32()) if pa.types.is_date32(kind) else values.cast(pa.int64())
    else:
        numbers = (
            pc.rank(values, sort_keys="ascending", tiebreaker="dense") if len(values) else pa.array([], pa.int64())
        )
    ranks: Numbers = numbers.to_numpy().astype(np.int64)
    return ~ranks if order == "max" else ranks


def _rank_bounds(first: TopKState, ranks: Numbers) -> Numbers:
    """Return the rank up to which all values of a group are kept: that of the last value if the group has overflow."""
    bounds = np.full(len(first.lengths), _NO_BOUND)
    ends = np.cumsum(first.lengths)
    cut = (first.overflow > 0) & (first.lengths > 0)
    bounds[cut] = ranks[ends[cut] - 1]
    return bounds


def run_starts(*sorted_columns: Numbers) -> Numbers:
    """Return the positions at which a row differs from its predecessor."""
    size = len(sorted_columns[0])
    differs = np.ones(size, np.bool_)
    if size:
        differs[1:] = False
        for column in sorted_columns:
            differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def positions_in_groups(groups: Numbers, size: int) -> Numbers:
    """Return the position of each row in its group, for rows in group order."""
    counts = np.bincount(groups, minlength=size)
    return np.arange(len(groups)) - (np.cumsum(counts) - counts)[groups]


def _sum_by_group(groups: Numbers, weights: Numbers, size: int) -> Numbers:
    totals = np.zeros(size, np.int64)
    np.add.at(totals, groups, weights)
    return totals


def _keep_known(is_known: Bools, first: TopKState) -> TopKState:
    """Return the state without the values of unknown groups."""
    if is_known.all():
        return first
    stays = np.repeat(is_known, first.lengths)
    values = first.values.filter(pa.array(stays))
    return TopKState(
        values, first.counts[stays], np.where(is_known, first.lengths, 0), np.where(is_known, first.overflow, 0)
    )


# -- groups as numbers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopKResult:
    """New values of groups according to their top-k state."""

    is_known: Bools
    rows: Numbers
    """Number of rows of each known group."""
    values: dict[str, pa.Array]
    """Column of the plan → its new value in each known group."""


ChangesOf = Callable[[str], ValueChanges | None]
"""Returns the value changes of a column of the plan; None if there are too many."""
TopKLookup = Callable[[pa.Table, Bools, ChangesOf], TopKResult | None]
"""Returns the new values of the groups with these keys; None if nothing is cached. The mask says which groups have a
row in the view."""


def match_groups(groups: pa.Table, rows: pa.Table) -> Numbers:
    """Return the number of the group of each row. Both tables have the same columns, and ``groups`` has no
    duplicates.
    """
    size = groups.num_rows
    columns = {
        name: pa.concat_arrays([combine_chunks(part.column(name)) for part in (groups, rows)])
        for name in groups.column_names
    }
    numbers = encode_rows(pa.table(columns)) if columns else np.zeros(size + rows.num_rows, np.int64)
    place = np.zeros(int(numbers.max(initial=0)) + 1, np.int64)
    place[numbers[:size]] = np.arange(size)
    return place[numbers[size:]]


def encode_rows(rows: pa.Table) -> Numbers:
    """Return a number from 0 for each row, equal for equal rows, with NULL equal to NULL."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for place, column in enumerate(rows.columns):
        encoded = combine_chunks(column).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        numbers = numbers * (int(codes.max(initial=0)) + 1) + codes
        if place:
            numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers
