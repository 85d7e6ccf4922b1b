"""The smallest and largest values of a view's groups, kept beside its rows in the cache of this host.

They lie in a tablet of their own: key of the view's row → the first values of its group, which
`streamhouse_spark.zset.extremes` works out. They belong to one refresh, whose number and lineage the tablet names, and
count only for the refresh that begins there. So they are never the truth. Where they are not there, as after a crash
between the commit of a refresh and the keeping, a refresh of another host, or a restart of the machine, a group whose
smallest or largest value goes is computed from its rows, and all groups are listed behind that.

**Commit point** of keeping: LMDB's own, of all groups and the lineage. It comes behind the commit of the refresh.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lineage import Lineage
from streamhouse_spark.core.slicing import one_array
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.views.changes import rows_at_most
from streamhouse_spark.datasource.views.packed_firsts import PackedFirsts
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.key_codec import encode_keys, stored_keys
from streamhouse_spark.kv.tablet import Extent
from streamhouse_spark.kv.tablets import tablet
from streamhouse_spark.table.refreshing import RefreshStep
from streamhouse_spark.zset.added import Added
from streamhouse_spark.zset.aggregates import Aggregate
from streamhouse_spark.zset.extremes import (
    ROOM,
    ChangesOf,
    Firsts,
    Numbers,
    Order,
    Told,
    ValueChanges,
    group_numbers,
)
from streamhouse_spark.zset.listing import FILLED, FIRST, NUMBER, ROWS, VALUE, key_name
from streamhouse_spark.zset.writer import Writer

GROUPS_MAX: Final = 5_000_000
"""Views with more groups keep nothing."""
LISTED_AT_ONCE: Final = 200_000
"""Groups whose values are in the driver at a time."""
_FORM: Final = 1
"""Number of the form of keys and values."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The groups whose values are asked for: all, or those that were computed from their rows; a part of them."""

    are_all: bool
    room: int
    part: int = 0
    num_parts: int = 1


ListValues = Callable[[Aggregate, Asked], pa.Table]
"""Gives the columns of `listing.listed_values` of some groups."""


class KeptExtremes:
    """The first values of a view's groups, for one refresh of it."""

    def __init__(self, view: TableHandle, added: Added, step: RefreshStep) -> None:
        self._view, self._step = view, step
        self._key, self._groups = tuple(added.key_columns), added.groups
        self._extremes = added.extremes
        shown = dict(zip(added.statements.root.columns, added.statements.names, strict=True))
        self._types = [view.state.schema.column(shown[part.column]).type for part in self._extremes]
        self._orders: list[Order] = ["min" if part.kind == "min" else "max" for part in self._extremes]
        self._packed = PackedFirsts(self._types)
        self._form = _form_of(added, self._types)
        self._tablet = tablet(view.storage.url, f"{view.uuid}-extremes", 0, {"form": _FORM})
        self._touched: list[bytes] = []
        self._firsts = Firsts.of_none(0, self._types)
        self._lost: list[bytes] | None = None
        self._before = Extent(0, step.number - 1, None if step.old is None else self._mark(step.old))
        self.are_there = self._before.history is not None and self._tablet.extent == self._before

    @classmethod
    def of(cls, view: TableHandle, added: Added, step: RefreshStep) -> Self | None:
        """Return the values; None for a view without smallest and largest values, or whose groups are computed from
        their rows whenever something goes.
        """
        if not added.extremes or any(part.kind == "grown" for part in added.aggregates):
            return None
        return cls(view, added, step)

    def told(self, keys: pa.Table, changes: ChangesOf) -> Told | None:
        """Return the new values of groups with these keys, each once, behind the changes; None where nothing is kept,
        or too much changed.
        """
        each = self._changes(changes) if self.are_there else None
        self.are_there = each is not None
        if each is None:
            return None
        stored = self._stored(keys)
        order = sorted(range(len(stored)), key=stored.__getitem__)  # sorted keys are found faster
        found = self._tablet.find([stored[place] for place in order])
        if found.extent != self._before:  # another process took it over
            self.are_there = False
            return None
        values = dict(zip(order, found.values, strict=True))
        self._touched = stored
        self._firsts = self._packed.unpack([values[place] for place in range(len(stored))]).changed(each, self._orders)
        columns = (part.column for part in self._extremes)
        return Told(self._firsts.known, self._firsts.rows, dict(zip(columns, self._firsts.shown(), strict=True)))

    def lose(self, keys: pa.Table) -> bool:
        """Take note of the groups that are computed from their rows. Returns whether they will be listed from them."""
        self._lost = self._stored(keys)
        return self.are_there and len(self._lost) > 0

    def keep(self, values: ListValues) -> None:
        """Keep the values for the next refresh. To be called behind the commit of this one."""
        if self.are_there:
            changed = self._bytes_of(self._touched, self._firsts)
            if self._lost:
                changed |= self._relisted(self._lost, values)
            after, mark = self._before, self._mark(self._step.new)
            self._tablet.apply(changed, after.applied, self._step.number, after=after.history, history=mark)
        elif self._lost and rows_at_most(self._view.state) <= GROUPS_MAX:
            self._list_all(values)

    # -- lists ----------------------------------------------------------------------------------------------------

    def _relisted(self, lost: Sequence[bytes], values: ListValues) -> dict[bytes, bytes | None]:
        """Return the groups that were computed from their rows; those that ran out have more room than before."""
        rooms = dict(zip(self._touched, self._firsts.room.tolist(), strict=True))
        asked = Asked(False, max(ROOM, *(rooms.get(key, ROOM) for key in lost)))
        return dict.fromkeys(lost) | self._listed(values, asked, rooms)

    def _list_all(self, values: ListValues) -> None:
        """List all groups, a part of them at a time. They count when the last part is there."""
        token = f"being listed {self._view.world.ids.new_uuid()}".encode()
        self._tablet.forget(self._tablet.extent)
        if not self._tablet.apply({}, 0, 0, history=token):
            return  # another process lists them
        num_parts = -(-rows_at_most(self._view.state) // LISTED_AT_ONCE) or 1
        for part in range(num_parts):
            listed = self._listed(values, Asked(True, ROOM, part, num_parts), {})
            if not self._tablet.apply(listed, 0, 0, after=token, history=token):
                return
        self._tablet.apply({}, 0, self._step.number, after=token, history=self._mark(self._step.new))

    def _listed(self, values: ListValues, asked: Asked, rooms: dict[bytes, int]) -> dict[bytes, bytes | None]:
        found = {of: values(part, asked) for of, part in {part.of: part for part in self._extremes}.items()}
        any_of_all = next(iter(found.values()))
        groups = any_of_all.filter(any_of_all.column(FIRST))
        stored = self._stored(groups.select([key_name(name) for name in self._key]).rename_columns(list(self._key)))
        by, rows = list(self._groups), _numbers(groups, ROWS)
        listed = []
        for part, kind in zip(self._extremes, self._types, strict=True):
            table, filled = found[part.of], np.zeros(len(stored), np.int64)
            numbers = group_numbers(groups.select(by), table.select(by))
            filled[numbers] = _numbers(table, FILLED)
            of_part = one_array(table.column(VALUE).cast(kind))
            listed.append((ValueChanges(numbers, of_part, _numbers(table, NUMBER)), filled))
        room = np.array([rooms.get(key, ROOM) for key in stored], np.int64)
        return self._bytes_of(stored, Firsts.of_rows(rows, room, self._orders, listed))

    # -- form -----------------------------------------------------------------------------------------------------

    def _changes(self, changes: ChangesOf) -> list[ValueChanges] | None:
        """Return the changes of each list, in its type; None where they are too many."""
        found = []
        for part, kind in zip(self._extremes, self._types, strict=True):
            change = changes(part.column)
            if change is None:
                return None
            found.append(ValueChanges(change.groups, change.values.cast(kind), change.weights))
        return found

    def _stored(self, keys: pa.Table) -> list[bytes]:
        """Return the keys as the tablet has them, whatever numbers they came as."""
        schema = self._view.state.schema
        columns = [one_array(keys.column(name).cast(schema.column(name).type)) for name in self._key]
        return stored_keys(encode_keys(columns))

    def _bytes_of(self, keys: Sequence[bytes], firsts: Firsts) -> dict[bytes, bytes | None]:
        """Return the value of each key; None for a group without rows."""
        values = zip(keys, self._packed.pack(firsts), (firsts.rows == 0).tolist(), strict=True)
        return {key: None if is_empty else value for key, value, is_empty in values}

    def _mark(self, lineage: Lineage) -> bytes:
        """Return a text of the rows that values are of: of these versions of the sources, by this query."""
        return hashlib.sha256(f"{self._form}\n{lineage.to_text()}".encode()).digest()


def _form_of(added: Added, types: Sequence[pa.DataType]) -> str:
    """Return a text of all that the values depend on besides the rows of the sources."""
    root = added.root
    lists = [[part.kind, part.of, str(kind)] for part, kind in zip(added.extremes, types, strict=True)]
    return json.dumps([lists, root.groups, list(added.key_columns), Writer("", ()).rows(root.child, "new")])


def _numbers(rows: pa.Table, name: str) -> Numbers:
    found: Numbers = rows.column(name).to_numpy().astype(np.int64)
    return found
