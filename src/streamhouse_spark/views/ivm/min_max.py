"""Top-k state per group: the first values, so that a deleted minimum or maximum has a successor, and for groups with
few values all of them, so that distinct values can be counted. Pure.

For each group and order, up to ``room`` distinct values are kept, each with its row count. Of the rows after the last
kept value only their number is known (the overflow). The kept values are exact: a change at or before the last kept
value updates its count, and a change after it updates the overflow. Values beyond the room move to the overflow. A
group without kept values but with overflow is *unknown* until its values are listed again from its rows. A group that
is not stored has no rows.

First and last values of groups, computed per task and merged over all tasks. Pure.

A task returns up to ``room`` distinct values from each end of a group, each with its row count. A value among the first
of all rows is among the first in every task that has it. So the counts of all tasks add up exactly for as many values
as there is room, however rows are divided into tasks.

SQL that lists the values of groups: changed values, and the input and output of `FirstValues`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.aggregates import Aggregate, IncrementalAggregate
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, Writer, coalesce_tasks, null_safe_equal, quote_name
from streamhouse_spark.views.ivm.logical_plan import Group
from streamhouse_spark.views.ivm.refresh_sql import KEY, hash_sql

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


LIST: Final = "__streamhouse_list"
"""The number of the list that a value belongs to; `ALL_ROWS` for the row count of a group."""
NUMBER: Final = "__streamhouse_number"
"""Number of rows of the group with the value; for changes, inserts minus deletes."""
ALL_ROWS: Final = -1
_STEP_ROWS: Final = 1 << 18
"""Rows that are merged at a time."""
_BATCH_ROWS: Final = 1 << 16


class FirstValues:
    """Reduces rows with grouping columns and one column per list. Null is a value that always has room.

    Output rows have the input columns, `LIST` and `NUMBER`. In a row of one list, the columns of the other lists are
    null.
    """

    def __init__(
        self, groups: Sequence[str], values: Sequence[str], room: int, whole: Collection[str] = frozenset()
    ) -> None:
        """``whole`` are columns whose values are all needed: they get `ALL_ROOM`."""
        self._groups, self._values = list(groups), list(values)
        self._rooms = {name: ALL_ROOM if name in whole else room for name in values}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partial: pa.Table | None = None
        pending: list[pa.RecordBatch] = []
        num_rows = 0
        for batch in batches:
            pending.append(batch)
            num_rows += batch.num_rows
            if num_rows >= _STEP_ROWS:
                partial, pending, num_rows = self._merge_batches(partial, pending), [], 0
        if num_rows:
            partial = self._merge_batches(partial, pending)
        if partial is not None:
            yield from partial.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    def _merge_batches(self, partial: pa.Table | None, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return the reduction of ``batches`` and of the earlier partial result."""
        rows = pa.Table.from_batches(batches)
        rows = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)))  # make each column nullable
        if partial is None:
            partial = _output_schema(rows.schema).empty_table()
        all_rows = pa.concat_tables([partial.select(rows.column_names), rows])
        lists = _merge_numbers(partial.column(LIST), np.zeros(rows.num_rows, np.int64))
        numbers = _merge_numbers(partial.column(NUMBER), np.ones(rows.num_rows, np.int64))
        groups = encode_rows(all_rows.select(self._groups))
        is_new = np.arange(all_rows.num_rows) >= partial.num_rows
        parts = [self._count_rows(all_rows, groups, numbers, is_new | (lists == ALL_ROWS))]
        for place, name in enumerate(self._values):
            chosen = is_new | (lists == place)
            parts.append(
                self._extreme_values(all_rows.filter(pa.array(chosen)), groups[chosen], numbers[chosen], place, name)
            )
        return pa.concat_tables(parts)

    def _count_rows(self, rows: pa.Table, groups: Numbers, numbers: Numbers, chosen: Bools) -> pa.Table:
        """Return the row count of each group."""
        totals = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
        np.add.at(totals, groups[chosen], numbers[chosen])
        present, first = np.unique(groups[chosen], return_index=True)
        return self._build_rows(rows, np.flatnonzero(chosen)[first], totals[present], ALL_ROWS, None)

    def _extreme_values(self, rows: pa.Table, groups: Numbers, numbers: Numbers, place: int, name: str) -> pa.Table:
        """Return the distinct values from both ends of each group that have room, and null."""
        values = combine_chunks(rows.column(name))
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        ranks = rank_values(values.filter(pa.array(valid)), "min")
        size = int(groups.max(initial=-1)) + 1
        filled, of_group = np.flatnonzero(valid), groups[valid]
        order = np.lexsort((ranks, of_group))
        begins = run_starts(of_group[order], ranks[order])
        totals = np.add.reduceat(numbers[filled[order]], begins) if len(begins) else numbers[:0]
        of_value = of_group[order][begins]
        within, counts = positions_in_groups(of_value, size), np.bincount(of_value, minlength=size)[of_value]
        stay = (within < self._rooms[name]) | (within >= counts - self._rooms[name])
        nulls = np.zeros(size, np.int64)
        np.add.at(nulls, groups[~valid], numbers[~valid])
        empty, first = np.unique(groups[~valid], return_index=True)
        places = np.concatenate([filled[order][begins][stay], np.flatnonzero(~valid)[first]])
        return self._build_rows(rows, places, np.concatenate([totals[stay], nulls[empty]]), place, name)

    def _build_rows(
        self, rows: pa.Table, positions: Numbers, numbers: Numbers, number: int, name: str | None
    ) -> pa.Table:
        selected = rows.select([*self._groups, *([] if name is None else [name])]).take(pa.array(positions))
        columns = {c: selected.column(c) for c in selected.column_names}
        schema = _output_schema(rows.schema)
        columns |= {field.name: pa.nulls(len(positions), field.type) for field in schema if field.name not in columns}
        columns |= {LIST: pa.array(np.full(len(positions), number, np.int32)), NUMBER: pa.array(numbers, pa.int64())}
        return pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)


def _output_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, (LIST, pa.int32()), (NUMBER, pa.int64())])


def _merge_numbers(column: pa.ChunkedArray, more: Numbers) -> Numbers:
    return np.concatenate([column.to_numpy().astype(np.int64), more])


VALUE: Final = "__streamhouse_value"
CHANGES_MAX: Final = 1_000_000
"""Largest number of changed values per refresh for the driver to read. The statement returns one more to detect
excess."""
_LOST: Final = "__streamhouse_lost"


def key_name(column: str) -> str:
    """Return the name of a key column of the view's table, next to the grouping columns."""
    return f"__streamhouse_key_{column}"


def value_names(incremental: IncrementalAggregate) -> dict[str, str]:
    """Return aggregate argument → the name of its column, in list order."""
    of = dict.fromkeys(part.of for part in incremental.multiset_aggregates)
    return {argument: f"__streamhouse_value_{number}" for number, argument in enumerate(of)}


def whole_names(incremental: IncrementalAggregate) -> list[str]:
    """Return the columns whose values are all needed, as far as there is room."""
    names = value_names(incremental)
    return [
        names[of]
        for of in dict.fromkeys(part.of for part in incremental.multiset_aggregates if part.kind == "distinct")
    ]


def changed_values_sql(
    incremental: IncrementalAggregate, part: Aggregate, writer: Writer, *, one_task: bool = False
) -> str | None:
    """Return the SQL of an aggregate's changed values with their `NUMBER` of rows; None if nothing changed.

    The rows also have the key of the view's row, named as in its table.
    """
    root = incremental.root
    delta = writer.delta(root.child)
    if delta is None:
        return None
    columns = _column_list(root, VALUE)
    values = _column_list(root, f"{part.of} AS {VALUE}", WEIGHT)
    rows = f"SELECT {values} FROM ({coalesce_tasks(delta, one_task=one_task)}) q"
    net = f"SUM({WEIGHT})"
    net_rows = f"SELECT {columns}, {net} AS {NUMBER} FROM ({rows}) q GROUP BY {columns} HAVING {net} <> 0"
    key = ", ".join(f"{value} AS {quote_name(name)}" for name, value in _key_values(incremental).items())
    return f"SELECT {key}, {VALUE}, {NUMBER} FROM ({net_rows}) q LIMIT {CHANGES_MAX + 1}"


def values_sql(incremental: IncrementalAggregate, rows: str) -> str:
    """Return the columns that `FirstValues` reads, for rows below the groups. Equal groups have equal Arrow values."""
    types = incremental.statements.types
    groups = [f"{_canonical_sql(name, types)} AS {name}" for name in incremental.groups]
    values = [f"{of} AS {name}" for of, name in value_names(incremental).items()]
    return f"SELECT {', '.join([*groups, *values])} FROM ({rows}) q"


def share_sql(incremental: IncrementalAggregate, rows: str, lost: str, like: str, num_shares: int) -> str:
    """Return the rows of groups in ``lost``, and of all groups in the same share as the one group in ``like``.

    Groups are divided into ``num_shares`` shares by hash, a power of two.
    """
    groups, types = incremental.groups, incremental.statements.types
    share = f"(SELECT {_share_number_sql(groups, types, '', num_shares)} FROM {like})"
    joined = f"LEFT JOIN (SELECT *, TRUE AS {_LOST} FROM {lost}) b ON {null_safe_equal(groups, 'a', 'b')}"
    is_in = f"b.{_LOST} OR {_share_number_sql(groups, types, 'a.', num_shares)} = {share}"
    return f"SELECT a.* FROM ({rows}) a {joined} WHERE {is_in}"


def listed_values_sql(incremental: IncrementalAggregate, cut: str) -> str:
    """Return the rows of the relation ``cut`` that `FirstValues` wrote, with the keys of the view's rows.

    Only rows that count all rows of a group have a key: hashing is the most expensive part.
    """
    key = {key_name(name): value for name, value in _key_values(incremental).items()}
    keys = [f"CASE WHEN {LIST} = {ALL_ROWS} THEN {value} END AS {quote_name(name)}" for name, value in key.items()]
    return (
        f"SELECT {_column_list(incremental.root, *value_names(incremental).values(), LIST, NUMBER, *keys)} FROM {cut}"
    )


def _share_number_sql(groups: tuple[str, ...], types: Mapping[str, str], of: str, num_shares: int) -> str:
    """Return the number of a group's share, equal for equal groups of any integer or float width."""
    hashed_columns = ", ".join(f"CAST({_canonical_sql(name, types, of)} AS {types[name]})" for name in groups)
    return f"(hash({hashed_columns}) & {num_shares - 1})"


def _canonical_sql(column: str, types: Mapping[str, str], of: str = "") -> str:
    """Return a column whose equal values have equal bytes: -0.0 becomes 0.0, and every NaN the same NaN."""
    kind = types[column]
    if kind not in ("float", "double"):
        return f"{of}{column}"
    return f"CASE WHEN isnan({of}{column}) THEN CAST('NaN' AS {kind}) ELSE {of}{column} + CAST(0 AS {kind}) END"


def _column_list(root: Group, *more: str) -> str:
    return ", ".join([*root.groups, *more])


def _key_values(incremental: IncrementalAggregate) -> dict[str, str]:
    """Return key column of the view's table → its value over the grouping columns."""
    if incremental.statements.identity == "hash":
        return {KEY: hash_sql(incremental.groups, incremental.statements.types)}
    return incremental.key_columns
