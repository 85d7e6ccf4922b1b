"""Lists of MIN, MAX and COUNT(DISTINCT) values of a view by tablet key, from changes and from listed rows.

Cache of the first values of a view's groups, on this host's disk.

The cache is a tablet of its own: key of the view's row → top-k state of its group
(`streamhouse_spark.views.ivm.min_max`). Groups enter it on demand. If a group that is not cached loses its minimum or
maximum, the refresh lists its values from its rows, together with a share of all groups whose rows the same scan reads.
So all groups are cached after a few refreshes, and none of these costs much more than its own groups.

The tablet stores the source versions that its values reflect. If a refresh starts at other versions, as after refreshes
of another host or a crash before saving, the changes in between are applied first. If these are no longer known, the
tablet is reset. So the cache is never the source of truth, and is never used for rows of other versions. Nothing is
known of a group that is not cached, unless the view has no row of it: then it has no rows.

**Commit point** of saving: LMDB's own, for all values and the versions, after the commit of the refresh.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks, sum_by_group
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys
from streamhouse_spark.kv.row_codec import PackedStrings, RowCodec, to_bytes_list
from streamhouse_spark.kv.tablet import open_tablet
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.schema.ddl import parse_type
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.views.ivm.aggregates import IncrementalAggregate
from streamhouse_spark.views.ivm.delta_sql import Writer
from streamhouse_spark.views.ivm.min_max import (
    ALL_ROWS,
    LIST,
    NUMBER,
    ROOM,
    Bools,
    ChangesOf,
    Numbers,
    Order,
    TopKGroups,
    TopKResult,
    TopKState,
    ValueChanges,
    key_name,
    match_groups,
    value_names,
)
from streamhouse_spark.views.local_reads import max_num_rows


@dataclass(frozen=True, slots=True)
class ValueLists:
    """Groups with the values that were listed from their rows."""

    keys: list[bytes]
    """Distinct keys, encoded as in the tablet."""
    rows: Numbers
    lists: list[tuple[ValueChanges, Numbers]]
    """The values of each list, and how many rows of each group have a non-null value."""

    def top_k(self, room: Numbers, orders: Sequence[Order]) -> TopKGroups:
        return TopKGroups.from_values(self.rows, room, orders, self.lists)


@dataclass(frozen=True, slots=True)
class GroupLists:
    """The lists of a view, one per column that is a MIN, MAX or COUNT(DISTINCT)."""

    columns: tuple[str, ...]
    """Their columns in the plan."""
    types: tuple[pa.DataType, ...]
    orders: tuple[Order, ...]
    _numbers: tuple[int, ...]
    """The number of each list's argument."""
    _values: tuple[str, ...]
    """The columns of arguments, by number."""
    _groups: tuple[str, ...]
    _key: dict[str, pa.DataType]

    @classmethod
    def of(cls, view: TableHandle, incremental: IncrementalAggregate) -> Self:
        schema = view.state.schema
        shown = dict(zip(incremental.statements.root.columns, incremental.statements.names, strict=True))
        names = value_names(incremental)
        return cls(
            tuple(part.column for part in incremental.multiset_aggregates),
            tuple(
                parse_type(part.of_type) if part.of_type else schema.column(shown[part.column]).type
                for part in incremental.multiset_aggregates
            ),
            tuple(_ORDERS[part.kind] for part in incremental.multiset_aggregates),
            tuple(list(names).index(part.of) for part in incremental.multiset_aggregates),
            tuple(names.values()),
            incremental.groups,
            {name: schema.column(name).type for name in incremental.key_columns},
        )

    def tablet_keys(self, keys: pa.Table) -> list[bytes]:
        """Return the keys as encoded in the tablet, cast from any integer width."""
        return encode_lmdb_keys(
            encode_keys([combine_chunks(keys.column(name).cast(kind)) for name, kind in self._key.items()])
        )

    def convert_changes(self, changes: ChangesOf) -> list[ValueChanges] | None:
        """Return the changes of each list, cast to its type; None if there are too many."""
        converted = []
        for column, kind in zip(self.columns, self.types, strict=True):
            change = changes(column)
            if change is None:
                return None
            converted.append(ValueChanges(change.groups, change.values.cast(kind), change.weights))
        return converted

    def parse_listed(self, cut: pa.Table) -> ValueLists:
        """Return the groups in rows of `multiset_sql.listed_values_sql`."""
        is_of, by = cut.column(LIST), list(self._groups)
        names = [*by, *map(key_name, self._key)]
        totals = sum_by_group(cut.filter(pc.equal(is_of, ALL_ROWS)).select([*names, NUMBER]), names)
        rows, lists = _to_numbers(totals.column(NUMBER)), []
        for number, kind in zip(self._numbers, self.types, strict=True):
            part = cut.filter(pc.equal(is_of, number))
            numbers = np.zeros(part.num_rows, np.int64)
            if by:
                numbers = match_groups(totals.select(by), part.select(by))
            values, weights = (
                combine_chunks(part.column(self._values[number]).cast(kind)),
                _to_numbers(part.column(NUMBER)),
            )
            filled, empty = rows.copy(), values.is_null().to_numpy(zero_copy_only=False)
            np.subtract.at(filled, numbers[empty], weights[empty])
            lists.append((ValueChanges(numbers, values, weights), filled))
        keys = totals.select([key_name(name) for name in self._key]).rename_columns(list(self._key))
        return ValueLists(self.tablet_keys(keys), rows, lists)


_ORDERS: Final[Mapping[str, Order]] = {"min": "min", "max": "max", "distinct": "all"}


def _to_numbers(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.to_numpy().astype(np.int64)
    return numbers


GROUPS_MAX: Final = 5_000_000
"""Views with more groups are not cached."""
LOST_MIN: Final = 10_000
"""Number of groups that one refresh may always list."""
LOST_SHARE: Final = 1 / 8
"""Largest share of a view's groups that one refresh lists; more groups are recomputed from their rows instead."""
SMALL_ROWS: Final = 200_000
"""Number of source rows up to which all groups are listed at once."""
NUM_SHARES: Final = 8
LISTED_AT_ONCE: Final = 200_000
"""Number of groups whose values are in the driver at a time."""
_FORMAT: Final = 2
"""Version of the format of keys and values."""


@dataclass(frozen=True, slots=True)
class MinMaxRequest:
    """A request for the values of the distinct ``lost`` groups, and optionally of a share of all groups."""

    lost: pa.Table
    room: int
    like: int | None = None
    """The index of a lost group; all groups of its share are requested."""
    num_shares: int = 1


ListValues = Callable[[MinMaxRequest], pa.Table]
"""Returns the columns of `multiset_sql.listed_values_sql`."""
ChangesBetween = Callable[[Lineage], tuple[pa.Table, ChangesOf] | None]
"""Returns the distinct keys of groups that changed between the given versions and the refresh, and their changes; None
if there are too many or some are unknown."""


class MinMaxCache:
    """The first values of a view's groups, for one refresh of it."""

    def __init__(
        self,
        view: TableHandle,
        incremental: IncrementalAggregate,
        step: RefreshStep,
        between: ChangesBetween | None = None,
    ) -> None:
        self._view, self._step, self._changes_between = view, step, between
        self._lists = GroupLists.of(view, incremental)
        self._packed = TopKCodec(self._lists.types)
        self._format_digest = hashlib.sha256(_format_text(incremental, self._lists.types).encode()).digest()
        self._tablet = open_tablet(view.storage.url, f"{view.uuid}-extremes", 0, {"form": _FORMAT})
        self._extent = self._tablet.extent
        self._versions = self._decode_mark(self._extent.history)
        self._forward: dict[bytes, bytes] | None = None
        """The tablet's values that changed up to the new versions, if the refresh starts at other versions."""
        self._emptied: list[bytes] = []
        """Keys among them whose groups have no rows at the new versions."""
        self._touched: list[bytes] = []
        self._was_stored: Bools = np.zeros(0, np.bool_)
        self._top_k = TopKGroups.empty(0, self._lists.types)
        self._listed_groups: dict[bytes, bytes | None] = {}
        self._has_listed = False

    @classmethod
    def of(
        cls,
        view: TableHandle,
        incremental: IncrementalAggregate,
        step: RefreshStep,
        between: ChangesBetween | None = None,
    ) -> Self | None:
        """Return the cache; None for a view without MIN, MAX or COUNT(DISTINCT), or that recomputes groups on any
        delete.
        """
        if not incremental.multiset_aggregates or any(part.kind == "grown" for part in incremental.aggregates):
            return None
        return cls(view, incremental, step, between)

    @property
    def has_values(self) -> bool:
        """Whether the tablet has values of the versions at which the refresh starts, or that can be brought to them."""
        return self._versions is not None

    def lookup(self, keys: pa.Table, is_present: Bools, changes: ChangesOf) -> TopKResult | None:
        """Return the new values of the groups with these distinct keys, after ``changes``.

        Returns None if nothing is cached or too much changed. The mask says which groups have a row in the view.
        """
        self._touched = self._lists.tablet_keys(keys)
        self._top_k = TopKGroups.unknown(len(self._touched), self._lists.types)
        self._was_stored = np.zeros(len(self._touched), np.bool_)
        self._apply_changes_since()
        list_changes = self._lists.convert_changes(changes) if self._versions is not None else None
        packed = self._read_packed(self._touched) if list_changes is not None else None
        if list_changes is None or packed is None:
            self._reset()
            return None
        self._was_stored = np.array([value is not None for value in packed], np.bool_)
        if self._forward is not None:
            list_changes = [_filter_changes(change, ~self._was_stored[change.groups]) for change in list_changes]
        firsts = self._packed.unpack(packed).mark_unknown(is_present & ~self._was_stored)
        self._top_k = firsts.apply_changes(list_changes, self._lists.orders)
        return self.current_result()

    def current_result(self) -> TopKResult:
        """Return the new values of the same groups, including those listed since."""
        values = self._top_k.current_values(self._lists.orders)
        return TopKResult(self._top_k.is_known, self._top_k.rows, dict(zip(self._lists.columns, values, strict=True)))

    def list_lost(self, groups: pa.Table, keys: pa.Table, num_rows: int, values: ListValues) -> bool:
        """List the values of groups that lost one, and of a share of the other groups.

        ``num_rows`` is the row count of all sources. Returns whether it listed them; then all of these groups are
        known.
        """
        is_known = self._top_k.is_known
        positions = {key: place for place, key in enumerate(self._touched)}
        lost_positions = np.array([positions[key] for key in self._lists.tablet_keys(keys)], np.int64)
        groups, lost_positions = (
            groups.filter(pa.array(~is_known[lost_positions])),
            lost_positions[~is_known[lost_positions]],
        )
        num_groups = max_num_rows(self._view.state)
        if (
            not len(lost_positions)
            or num_groups > GROUPS_MAX
            or len(lost_positions) > max(LOST_MIN, num_groups * LOST_SHARE)
        ):
            return False
        absent = np.flatnonzero(~self._was_stored[lost_positions])
        request = MinMaxRequest(
            groups,
            int(self._top_k.room[lost_positions].max()),
            int(absent[0]) if len(absent) else None,
            _num_shares(num_rows, num_groups),
        )
        self._add_listed(self._lists.parse_listed(values(request)), positions, request.room)
        without_rows = lost_positions[~self._top_k.is_known[lost_positions]]
        none = TopKGroups.empty(len(without_rows), self._lists.types)
        self._top_k = self._top_k.replace_groups(without_rows, none)
        return True

    def save(self) -> None:
        """Save the values for the next refresh. Call it after the commit of this one.

        Values of other versions stay unchanged if no group was looked up, because they were not brought forward.
        """
        if not self._has_listed and (self._versions is None or self._is_at_other_versions()):
            return
        values = zip(self._touched, self._pack_groups(self._top_k), self._is_saved().tolist(), strict=True)
        touched = {key: value for key, value, is_kept in values if is_kept}
        changed = (self._forward or {}) | dict.fromkeys(self._emptied) | self._listed_groups | touched
        if self._versions is None:
            self._tablet.forget(self._extent)
            self._extent = self._extent._replace(begins=0, applied=0, history=None)
        self._tablet.apply(
            changed, self._extent.applied, self._step.number, after=self._extent.history, history=self._encode_mark()
        )

    # -- the tablet -----------------------------------------------------------------------------------------------

    def _apply_changes_since(self) -> None:
        """Apply the changes between the tablet's versions and the new ones, if the refresh starts at other versions."""
        if self._versions is None or not self._is_at_other_versions():
            return
        changes = self._changes_between(self._versions) if self._changes_between is not None else None
        list_changes = self._lists.convert_changes(changes[1]) if changes is not None else None
        stored = self._lists.tablet_keys(changes[0]) if changes is not None else []
        values = self._read_packed(stored) if list_changes is not None else None
        if list_changes is None or values is None:
            self._reset()
            return
        firsts = self._packed.unpack(values).apply_changes(list_changes, self._lists.orders)
        new = zip(stored, self._packed.pack(firsts), values, strict=True)
        self._forward = {key: value for key, value, old in new if old is not None}
        self._emptied = [stored[place] for place in np.flatnonzero(firsts.rows == 0).tolist()]

    def _is_at_other_versions(self) -> bool:
        """Return whether the values still reflect other versions than those at which the refresh starts."""
        if self._versions is None or self._forward is not None:
            return False
        return self._step.old is None or self._versions.sources != self._step.old.sources

    def _reset(self) -> None:
        self._versions = self._forward = None
        self._emptied = []
        self._extent = self._tablet.extent

    def _read_packed(self, stored: Sequence[bytes]) -> list[bytes | None] | None:
        """Return the values of keys, brought forward if needed; None if another process has changed the tablet."""
        order = sorted(range(len(stored)), key=stored.__getitem__)  # lookups of sorted keys are faster
        hits = self._tablet.find([stored[place] for place in order])
        if hits.extent != self._extent:
            return None
        values: list[bytes | None] = [None] * len(stored)
        forward = self._forward or {}
        for place, value in zip(order, hits.values, strict=True):
            values[place] = forward.get(stored[place], value)
        return values

    def _add_listed(self, listed: ValueLists, positions: Mapping[bytes, int], room: int) -> None:
        """Take up to ``room`` listed values of each group that is not known."""
        self._has_listed = True
        at = np.array([positions.get(key, -1) for key in listed.keys], np.int64)
        is_touched = at >= 0
        rooms = np.full(len(at), ROOM)
        rooms[is_touched] = self._top_k.room[at[is_touched]]
        firsts = listed.top_k(np.minimum(rooms, room), self._lists.orders)
        missing = np.flatnonzero(is_touched)
        missing = missing[~self._top_k.is_known[at[missing]]]
        untouched = np.flatnonzero(~is_touched)
        keys = [listed.keys[place] for place in untouched.tolist()]
        stored = self._read_packed(keys) if self._versions is not None else None
        new = zip(keys, self._pack_groups(firsts.take(untouched)), stored or [None] * len(keys), strict=True)
        self._listed_groups = {key: value for key, value, old_value in new if old_value is None}
        self._top_k = self._top_k.replace_groups(at[missing], firsts.take(missing))

    def _is_saved(self) -> Bools:
        """Return which touched groups are saved: known ones, and unknown ones that are stored, to keep their room."""
        is_kept: Bools = self._top_k.is_known | self._was_stored
        return is_kept

    def _pack_groups(self, firsts: TopKGroups) -> list[bytes | None]:
        """Return the packed value of each group; None for a group without rows."""
        empty = (firsts.rows == 0).tolist()
        return [None if is_empty else value for value, is_empty in zip(self._packed.pack(firsts), empty, strict=True)]

    def _encode_mark(self) -> bytes:
        """Return the identity of the rows that the values reflect: the source versions and the query."""
        return self._format_digest + Lineage(self._step.new.sources).to_text().encode()

    def _decode_mark(self, mark: bytes | None) -> Lineage | None:
        """Return the source versions of a mark; None if it is of another query."""
        if mark is None or not mark.startswith(self._format_digest):
            return None
        return Lineage.from_text(mark[len(self._format_digest) :].decode())


def _num_shares(num_rows: int, num_groups: int) -> int:
    """Return the number of shares into which groups are divided, a power of two."""
    if num_rows <= SMALL_ROWS:
        return 1
    return max(NUM_SHARES, 1 << (-(-num_groups // LISTED_AT_ONCE) - 1).bit_length())


def _filter_changes(changes: ValueChanges, chosen: Bools) -> ValueChanges:
    return ValueChanges(changes.groups[chosen], changes.values.filter(pa.array(chosen)), changes.weights[chosen])


def _format_text(incremental: IncrementalAggregate, types: Sequence[pa.DataType]) -> str:
    """Return everything that the values depend on, apart from the rows of the sources."""
    root = incremental.root
    lists = [[part.kind, part.of, str(kind)] for part, kind in zip(incremental.multiset_aggregates, types, strict=True)]
    return json.dumps([lists, root.groups, list(incremental.key_columns), Writer("", ()).rows(root.child, "new")])


_COUNT = pa.int64()


class TopKCodec:
    """Codec of the top-k states of groups whose lists have these types; vectorised in both directions.

    A group is a row: its row count and room, and for each list the values, their counts, and the overflow. Fixed-width
    values and counts are stored as Arrow buffers, other values as lists.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = tuple(types)
        of_list = [kind for value_type in types for kind in (_cell_type(value_type), pa.binary(), _COUNT)]
        self._codec = RowCodec([_COUNT, _COUNT, *of_list])

    def pack(self, firsts: TopKGroups) -> list[bytes]:
        """Return the bytes of each group."""
        columns = [pa.array(firsts.rows), pa.array(firsts.room)]
        for first in firsts.lists:
            columns += [_to_cells(first.values, first.lengths), _to_cells(pa.array(first.counts), first.lengths)]
            columns.append(pa.array(first.overflow))
        return to_bytes_list(self._codec.pack(columns))

    def unpack(self, packed: Sequence[bytes | None]) -> TopKGroups:
        """Return the groups; those without bytes have no rows."""
        is_present = np.fromiter((value is not None for value in packed), np.bool_, len(packed))
        columns = self._codec.unpack(PackedStrings.of([value for value in packed if value is not None]))
        rows, room = (_scatter(column, is_present) for column in columns[:2])
        lists = []
        for kind, (cells, counts, overflow) in zip(self._types, _chunk_in_threes(columns[2:]), strict=True):
            values, _ = _flatten_cells(cells, kind)
            numbers, lengths = _flatten_cells(counts, _COUNT)
            lengths_of_all = np.zeros(len(packed), np.int64)
            lengths_of_all[is_present] = lengths
            lists.append(TopKState(values, _to_int64(numbers), lengths_of_all, _scatter(overflow, is_present)))
        return TopKGroups(rows, np.where(is_present, room, ROOM), tuple(lists))


def _chunk_in_threes(columns: Sequence[pa.Array]) -> list[tuple[pa.Array, pa.Array, pa.Array]]:
    return [(columns[i], columns[i + 1], columns[i + 2]) for i in range(0, len(columns), 3)]


def _is_fixed_width(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal128(kind)) and not pa.types.is_boolean(kind)


def _cell_type(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if _is_fixed_width(kind) else pa.list_(kind)


def _to_cells(values: pa.Array, lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of each group as one value."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if not _is_fixed_width(values.type):
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)
    width = values.type.bit_width // 8
    data = values.buffers()[1]
    data = pa.py_buffer(b"") if data is None else data.slice(values.offset * width, len(values) * width)
    offsets = pa.py_buffer((ends * width).astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, offsets, data])


def _flatten_cells(cells: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the values of all groups, and how many each group has."""
    offsets = np.frombuffer(cells.buffers()[1], np.int32, cells.offset + len(cells) + 1)[cells.offset :]
    lengths: npt.NDArray[np.int64] = np.diff(offsets).astype(np.int64)
    if not _is_fixed_width(kind):
        return cells.flatten(), lengths
    width = kind.bit_width // 8
    size = int(lengths.sum()) // width
    data = cells.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), size * width)
    return pa.Array.from_buffers(kind, size, [None, data]), lengths // width


def _to_int64(values: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = values.to_numpy().astype(np.int64)
    return numbers


def _scatter(column: pa.Array, is_present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the numbers of the groups that are present, and 0 for the others."""
    numbers = np.zeros(len(is_present), np.int64)
    numbers[is_present] = _to_int64(column)
    return numbers
