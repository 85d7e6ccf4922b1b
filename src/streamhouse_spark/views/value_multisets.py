"""Lists of MIN, MAX and COUNT(DISTINCT) values of a view by tablet key, from changes and from listed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_chunking import combine_chunks
from streamhouse_spark.core.arrow_groupby import sum_by_group
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys
from streamhouse_spark.schema.ddl import parse_type
from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
from streamhouse_spark.views.ivm.min_max import ChangesOf, Numbers, Order, TopKGroups, ValueChanges, match_groups
from streamhouse_spark.views.ivm.multiset_sql import key_name, value_names
from streamhouse_spark.views.ivm.top_k import ALL_ROWS, LIST, NUMBER


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
        rows, lists = _to_int64(totals.column(NUMBER)), []
        for number, kind in zip(self._numbers, self.types, strict=True):
            part = cut.filter(pc.equal(is_of, number))
            numbers = np.zeros(part.num_rows, np.int64)
            if by:
                numbers = match_groups(totals.select(by), part.select(by))
            values, weights = (
                combine_chunks(part.column(self._values[number]).cast(kind)),
                _to_int64(part.column(NUMBER)),
            )
            filled, empty = rows.copy(), values.is_null().to_numpy(zero_copy_only=False)
            np.subtract.at(filled, numbers[empty], weights[empty])
            lists.append((ValueChanges(numbers, values, weights), filled))
        keys = totals.select([key_name(name) for name in self._key]).rename_columns(list(self._key))
        return ValueLists(self.tablet_keys(keys), rows, lists)


_ORDERS: Final[Mapping[str, Order]] = {"min": "min", "max": "max", "distinct": "all"}


def _to_int64(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.to_numpy().astype(np.int64)
    return numbers
