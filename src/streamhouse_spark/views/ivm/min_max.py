"""The first values of groups, so that a smallest or largest value that goes has a next one; and all values of groups
that have few, so that distinct ones are counted. Pure.

Of each group and order up to ``room`` distinct values are kept, the first ones, each with the number of rows that have
it. Of all rows behind the last kept value nothing but their number is known. So the kept values are exact: a change of
a value among them, or before them, is counted; one behind them changes that number alone. Values that no longer have
room join those behind. A group whose kept values are all gone while rows are left behind them is *unknown* until it is
listed again from its rows. A group that nothing is known to have has no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_chunking import one_array
from streamhouse_spark.core.lazy_dataclass import dataclass

ROOM: Final = 8
"""Values that are kept of a group at first."""
ROOM_MAX: Final = 512
ALL_ROOM: Final = 1_024
"""Values that are kept of a group where all are asked for."""
_GROWTH: Final = 4
"""A group that ran out gets this many times the room: where values go in their order, as the oldest do, more are kept,
and they are looked for less often."""
UNKNOWN: Final = -1
"""The number of rows of an unknown group."""
_NO_BOUND: Final = np.iinfo(np.int64).max

Order = Literal["min", "max", "all"]
"""``all`` are the first ones too, as many as there is room for."""
Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ValueChanges:
    """Values that came to groups, or went from them."""

    groups: Numbers
    """The number of each change's group."""
    values: pa.Array
    weights: Numbers
    """How many rows with the value came; of those that went it is negative."""


@dataclass(frozen=True, slots=True)
class TopKState:
    """The first values of groups in one order, those of a group behind those of the group before it."""

    values: pa.Array
    """Distinct values in their order, none of them null."""
    counts: Numbers
    """How many rows have each value."""
    lengths: Numbers
    """How many values each group has."""
    overflow: Numbers
    """How many rows of each group have a value behind the last kept one."""

    def first_values(self) -> pa.Array:
        """Return the very first value of each group, null where there is none."""
        nonempty = self.lengths > 0
        positions = np.where(nonempty, np.cumsum(self.lengths) - self.lengths, 0)
        return self.values.take(pa.array(positions, mask=~nonempty))

    def count_values(self) -> pa.Array:
        """Return how many values each group has, null where not all are kept."""
        return pa.array(self.lengths, pa.int64(), mask=self.overflow > 0)

    def concat(self, other: TopKState) -> TopKState:
        """Return these groups, and the other ones behind them."""
        values = pa.concat_arrays([self.values, other.values])
        counts, lengths, overflow = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("counts", "lengths", "overflow")
        )
        return TopKState(values, counts, lengths, overflow)

    def take(self, positions: Numbers) -> TopKState:
        """Return the groups at ``positions``, in their order."""
        starts, lengths = np.cumsum(self.lengths) - self.lengths, self.lengths[positions]
        shift = starts[positions] - (np.cumsum(lengths) - lengths)
        of_values = np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
        return TopKState(
            self.values.take(pa.array(of_values)), self.counts[of_values], lengths, self.overflow[positions]
        )


@dataclass(frozen=True, slots=True)
class TopKGroups:
    """The rows of some groups as far as they are known."""

    rows: Numbers
    """How many rows each group has; negative where it is unknown."""
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
        """Return groups that have so many rows. For each list there are the values that have room, and perhaps others,
        and how many rows have a value at all.
        """
        lists = []
        for (values, filled), order in zip(listed, orders, strict=True):
            state, _ = _apply_changes(_empty_state(len(rows), values.values.type), values, order, room)
            kept_rows = _sum_by_group(np.repeat(np.arange(len(rows)), state.lengths), state.counts, len(rows))
            lists.append(TopKState(state.values, state.counts, state.lengths, filled - kept_rows))
        return cls(rows, room, tuple(lists))

    @classmethod
    def unknown(cls, num_groups: int, types: Sequence[pa.DataType]) -> TopKGroups:
        """Return groups of which nothing is known."""
        return cls.empty(num_groups, types).mark_unknown(np.ones(num_groups, np.bool_))

    @property
    def is_known(self) -> Bools:
        return self.rows >= 0

    def mark_unknown(self, chosen: Bools) -> TopKGroups:
        """Return the groups with the chosen ones as unknown."""
        lists = tuple(_keep_known(~chosen, first) for first in self.lists)
        return TopKGroups(np.where(chosen, UNKNOWN, self.rows), self.room, lists)

    def replace_groups(self, positions: Numbers, replacements: TopKGroups) -> TopKGroups:
        """Return the groups with those at ``positions`` replaced by the others, in their order."""
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
        """Return the groups at ``positions``, in their order."""
        return TopKGroups(
            self.rows[positions], self.room[positions], tuple(first.take(positions) for first in self.lists)
        )

    def first_values(self) -> list[pa.Array]:
        """Return the very first value of each group in each order; null for unknown groups."""
        return [first.first_values() for first in self.lists]

    def current_values(self, orders: Sequence[Order]) -> list[pa.Array]:
        """Return the very first value of each group, or where all are asked for their number; null for unknown ones."""
        values = []
        for first, order in zip(self.lists, orders, strict=True):
            values.append(first.count_values() if order == "all" else first.first_values())
        return values

    def apply_changes(self, changes: Sequence[ValueChanges], orders: Sequence[Order]) -> TopKGroups:
        """Return the groups behind some changes, as each list has them: all are of the same rows."""
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
    """Return the first values of groups behind some changes, and of which groups they are right."""
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
    right[groups[positions[begins]][totals < 0]] = False  # more went than there were

    stay = totals > 0
    positions, totals = positions[begins][stay], totals[stay]
    of_group = groups[positions]
    is_kept = positions_in_groups(of_group, size) < (ALL_ROOM if order == "all" else room[of_group])
    overflow = overflow + _sum_by_group(of_group[~is_kept], totals[~is_kept], size)
    lengths = np.bincount(of_group[is_kept], minlength=size)
    right &= (overflow >= 0) & ~((lengths == 0) & (overflow > 0))
    return TopKState(values.take(pa.array(positions[is_kept])), totals[is_kept], lengths, overflow), right


def rank_values(values: pa.Array, order: Order) -> Numbers:
    """Return numbers in the order of the values, equal ones for equal values. NaN is the largest, and -0.0 is 0.0."""
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
    """Return the rank up to which all values of a group are kept: that of the last one, where rows are behind it."""
    bounds = np.full(len(first.lengths), _NO_BOUND)
    ends = np.cumsum(first.lengths)
    cut = (first.overflow > 0) & (first.lengths > 0)
    bounds[cut] = ranks[ends[cut] - 1]
    return bounds


def run_starts(*sorted_columns: Numbers) -> Numbers:
    """Return the places at which a row differs from the one before it."""
    size = len(sorted_columns[0])
    differs = np.ones(size, np.bool_)
    if size:
        differs[1:] = False
        for column in sorted_columns:
            differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def positions_in_groups(groups: Numbers, size: int) -> Numbers:
    """Return the place of each row within its group, for rows in the order of their groups."""
    counts = np.bincount(groups, minlength=size)
    return np.arange(len(groups)) - (np.cumsum(counts) - counts)[groups]


def _sum_by_group(groups: Numbers, weights: Numbers, size: int) -> Numbers:
    totals = np.zeros(size, np.int64)
    np.add.at(totals, groups, weights)
    return totals


def _keep_known(is_known: Bools, first: TopKState) -> TopKState:
    """Return the values without those of groups that are not known."""
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
    """The facts about groups that their first values tell."""

    is_known: Bools
    rows: Numbers
    """How many rows each known group has."""
    values: dict[str, pa.Array]
    """Column of the plan → its new value in each known group."""


ChangesOf = Callable[[str], ValueChanges | None]
"""Gives the changes of the values of a column of the plan; None where they are too many."""
TopKLookup = Callable[[pa.Table, Bools, ChangesOf], TopKResult | None]
"""Tells the new values of groups with the given keys, of each of which the view has a row or not; None where nothing is
kept.
"""


def match_groups(groups: pa.Table, rows: pa.Table) -> Numbers:
    """Return for each row which of the groups it is of. Both have the same columns, and each group is there once."""
    size = groups.num_rows
    columns = {
        name: pa.concat_arrays([one_array(part.column(name)) for part in (groups, rows)])
        for name in groups.column_names
    }
    numbers = encode_rows(pa.table(columns)) if columns else np.zeros(size + rows.num_rows, np.int64)
    place = np.zeros(int(numbers.max(initial=0)) + 1, np.int64)
    place[numbers[:size]] = np.arange(size)
    return place[numbers[size:]]


def encode_rows(rows: pa.Table) -> Numbers:
    """Return a number of each row, from 0 on: the same for rows that are equal, nulls counting as equal."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for place, column in enumerate(rows.columns):
        encoded = one_array(column).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        numbers = numbers * (int(codes.max(initial=0)) + 1) + codes
        if place:
            numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers
