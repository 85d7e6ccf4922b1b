"""The changes of a table that stores a join, computed from changes of the joined tables, without Spark.

The target table T stores the join of the tables L and R. The primary keys of L and R start with the join columns. The
key of T is the key of L, followed by the other columns of the key of R.

A change is used only for its key: the values are looked up. For a changed key of L, the row of L, its matches in R and
its rows in T are looked up. The join of L and R is upserted into T, and all other rows of the key in T are deleted. A
changed key of R is handled in the same way. So the values, order and repetitions of the changes do not matter.

T is eventually correct. Consider a key t of T, made of the keys l and r, and the micro-batch m with the last change of
l and r:

1. The tasks of m and of all later batches look up the final rows of l and r: the end of a batch is read from the logs
   before its tasks start, and each task then reads the logs to their ends.
2. A task of m handles t. If t is in the join, the task finds both rows and upserts t. If not, the task deletes t,
   because it finds the row in T by l or, if r changed, by the join columns and r, even if the other row was deleted.
3. No older write of t follows. One query reads the changes of both tables, so m reads T with the writes of all earlier
   batches. A batch number is committed only once, even for a batch without writes, so late writes of an earlier run
   have no effect. All later batches write the same row for t, see 1.

Before m is committed, T may combine a row of L with a row of R that never existed at the same time. All delta joins use
the same application id for T, so a second query that writes to T is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks, distinct_rows, take_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.lookup_join import (
    Find,
    How,
    KeyColumns,
    add_unmatched,
    parse_join_columns,
    parse_join_type,
)
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import Column, TableSchema

SideName = Literal["left", "right"]
KIND_COLUMN = "_change_type"
"""The column with the kind of change of each target row. No table may have a column with this name."""
UPSERT = "upsert"
DELETE = "delete"


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of the join."""

    name: str
    side: SideName
    source: str
    """Name of the column in the joined table."""
    type: pa.DataType
    nullable: bool


@dataclass(frozen=True, slots=True)
class JoinLookups:
    """Lookups of current rows that include the handled changes."""

    left: Find
    right: Find
    target: Find
    """Returns rows of the target, with at least the key columns."""


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """A plan for a join of two tables into a third."""

    how: How
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    right_join: tuple[str, ...]
    """The join columns of the right table, in the order of its key."""
    right_of: Mapping[str, str]
    """Join column of the left table → join column of the right table."""
    target_of_left: Mapping[str, str]
    """Key column of the left table → target column."""
    target_of_right: Mapping[str, str]
    """Key column of the right table → target column."""
    target_key: tuple[str, ...]
    columns: tuple[tuple[Column, JoinColumn], ...]
    """The target columns with their sources."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of changes: the kind of change, then the target columns."""
        fields = [pa.field(column.name, column.type) for column, _ in self.columns]
        return pa.schema([pa.field(KIND_COLUMN, pa.string()), *fields])

    def columns_of(self, side: SideName) -> list[str]:
        """Return the columns to look up on one side."""
        key = self.left_key if side == "left" else self.right_key
        sources = (source.source for _, source in self.columns if source.side == side)
        return list(dict.fromkeys([*key, *sources]))

    # -- changes --------------------------------------------------------------------------------------------------

    def changes(self, side: SideName, keys: pa.Table, find: JoinLookups) -> pa.Table:
        """Return the changes of the target after changes of these keys of one side.

        ``keys`` has the primary key columns of that side. Keys may repeat.
        """
        keys = distinct_rows(keys)
        joined, existing = self._join_left_keys(keys, find) if side == "left" else self._join_right_keys(keys, find)
        joined_keys = _encode_keys(joined, self.target_key)
        deleted = existing.filter(pc.invert(pc.is_in(_encode_keys(existing, self.target_key), value_set=joined_keys)))
        return pa.concat_tables([self._with_kind(UPSERT, joined), self._with_kind(DELETE, deleted)])

    def _join_left_keys(self, keys: pa.Table, find: JoinLookups) -> tuple[pa.Table, pa.Table]:
        """Return the joined rows of some keys of the left table, and their rows in the target."""
        left = find.left(keys).rows
        right = find.right(_rename_columns(left, self.right_of))
        row_of, partner = right.places, np.arange(len(right.places))
        if self.how == "left":
            row_of, partner = add_unmatched(row_of, left.num_rows)
        joined = self._join_columns(take_rows(left, row_of), take_rows(right.rows, partner))
        return joined, find.target(_rename_columns(keys, self.target_of_left)).rows

    def _join_right_keys(self, keys: pa.Table, find: JoinLookups) -> tuple[pa.Table, pa.Table]:
        """Return the joined rows of some keys of the right table, and their rows in the target."""
        right = find.right(keys)
        if self.how == "left":  # the join columns are the whole right key, and left rows without a match are kept
            row_of_key = np.full(keys.num_rows, -1)
            row_of_key[right.places] = np.arange(len(right.places))
            lookup_keys = keys
        else:
            row_of_key = np.arange(len(right.places))
            lookup_keys = take_rows(keys, right.places)
        left = find.left(_rename_columns(lookup_keys, {theirs: ours for ours, theirs in self.right_of.items()}))
        partner = row_of_key[left.places]
        joined = self._join_columns(left.rows, take_rows(right.rows, partner))
        prefixes = _rename_columns(keys, {name: self.target_of_right[name] for name in self.right_join})
        existing = find.target(distinct_rows(prefixes)).rows
        changed = _encode_keys(keys, self.right_key)
        of_keys = _encode_keys(existing, [self.target_of_right[name] for name in self.right_key])
        return joined, existing.filter(pc.is_in(of_keys, value_set=changed))

    def _join_columns(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Return the target columns of rows of both sides, which are joined by position."""
        rows = {"left": left, "right": right}
        arrays = [rows[source.side].column(source.source) for _, source in self.columns]
        return pa.Table.from_arrays(arrays, names=[column.name for column, _ in self.columns])

    def _with_kind(self, kind: str, rows: pa.Table) -> pa.Table:
        """Convert rows to the schema of changes. Missing columns become null."""
        names = set(rows.column_names)
        columns = [
            rows.column(column.name) if column.name in names else pa.nulls(rows.num_rows, column.type)
            for column, _ in self.columns
        ]
        return pa.Table.from_arrays([pa.array([kind] * rows.num_rows, pa.string()), *columns], schema=self.schema)

    # -- planning -------------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, join: Join, target: TableState, columns: Sequence[str] | None = None) -> DeltaPlan:
        """Plan a join into this table. Raises `InvalidOptionError`, `SchemaMismatchError`."""
        _require_target(target, join)
        own = {column.name.casefold(): column for column in target.schema.columns}
        sources = join.select_columns(columns)
        for name in columns or ():
            target.schema.column(name)
        return cls(
            join.how,
            join.left_key,
            join.right_key,
            join.on_right.key,
            dict(join.pairs),
            {name: own[name.casefold()].name for name in join.left_key},
            {name: own[target_name.casefold()].name for name, target_name in join.target_of_right.items()},
            tuple(own[name.casefold()].name for name in join.target_key),
            tuple((column, _resolve_source(column, target, join, sources)) for column in target.schema.columns),
        )


@dataclass(frozen=True, slots=True)
class Join:
    """A join of two tables, independent of its target."""

    left: TableState
    right: TableState
    how: How
    prefix: str
    pairs: tuple[tuple[str, str], ...]
    on_right: KeyColumns

    @classmethod
    def of(cls, left: TableState, right: TableState, on: object, how: str, prefix: str) -> Join:
        """Validate and create the join. Raises `InvalidOptionError`, `SchemaMismatchError`."""
        pairs = [(left.schema.column(a).name, right.schema.column(b).name) for a, b in parse_join_columns(on)]
        KeyColumns.of([(b, a) for a, b in pairs], right.schema.names, left)  # raises unless they begin the left key
        on_right = KeyColumns.of(pairs, left.schema.names, right)
        types = [left.schema.column(name).type for name in on_right.row_columns]
        for name, key, actual, expected in zip(on_right.row_columns, on_right.key, types, on_right.types, strict=True):
            if not actual.equals(expected):
                raise SchemaMismatchError(
                    f"column '{name}' of {left.name} is {type_name(actual)}, but '{key}' of {right.name} is "
                    f"{type_name(expected)}; a delta join needs join columns of equal types"
                )
        if parse_join_type(how) == "left" and not on_right.is_whole:
            raise InvalidOptionError(
                f"a left delta join needs the whole primary key of the right table {right.name} "
                f"({', '.join(right.primary_key)}) in on=, because a row without a match would have no key in the "
                "target; use how='inner'"
            )
        return cls(left, right, parse_join_type(how), prefix, tuple(pairs), on_right)

    @property
    def left_key(self) -> tuple[str, ...]:
        return tuple(self.left.schema.column(name).name for name in self.left.primary_key)

    @property
    def right_key(self) -> tuple[str, ...]:
        return tuple(self.right.schema.column(name).name for name in self.right.primary_key)

    @property
    def target_of_right(self) -> dict[str, str]:
        """Key column of the right table → its name in the target."""
        left_of = {theirs: ours for ours, theirs in self.pairs}
        return {name: left_of.get(name, self.prefix + name) for name in self.right_key}

    @property
    def target_key(self) -> tuple[str, ...]:
        return (*self.left_key, *(name for name in self.target_of_right.values() if name not in self.left_key))

    @property
    def columns(self) -> list[JoinColumn]:
        """The columns of the left table, then those of the right table without the join columns."""
        right_nullable = self.how == "left"
        of_left = [JoinColumn(c.name, "left", c.name, c.type, c.nullable) for c in self.left.schema.columns]
        of_right = [
            JoinColumn(self.prefix + c.name, "right", c.name, c.type, c.nullable or right_nullable)
            for c in self.right.schema.columns
            if c.name not in self.on_right.key
        ]
        return of_left + of_right

    def select_columns(self, columns: Sequence[str] | None) -> dict[str, list[JoinColumn]]:
        """Return the columns to write by case-folded name. Both tables may have a column of a name."""
        by_name: dict[str, list[JoinColumn]] = {}
        for column in self.columns:
            by_name.setdefault(column.name.casefold(), []).append(column)
        if columns is None:
            return by_name
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise InvalidOptionError(f"columns is {columns!r}, expected a list of column names")
        for name in columns:
            if name.casefold() not in by_name:
                join_columns = ", ".join(c.name for c in self.columns)
                raise SchemaMismatchError(f"columns= names '{name}', expected columns of the join: {join_columns}")
        names = {name.casefold() for name in (*columns, *self.target_key)}
        return {name: column for name, column in by_name.items() if name in names}

    def ddl(self, columns: Sequence[str] | None = None) -> str:
        """Return the columns and primary key, as DDL, of a table that can hold the join."""
        key = {name.casefold() for name in self.target_key}
        parts = []
        for name, sources in self.select_columns(columns).items():
            column = Column(1, sources[0].name, sources[0].type, name not in key and sources[0].nullable)
            parts.append(TableSchema((column,)).ddl())
        return f"{', '.join(parts)}, PRIMARY KEY ({', '.join(self.target_key)})"


def _require_target(target: TableState, join: Join) -> None:
    """Raise `InvalidOptionError` unless the target has the key of the join and replaces the row of a key."""
    key = [target.schema.column(name).name for name in target.primary_key]
    if [name.casefold() for name in key] != [name.casefold() for name in join.target_key]:
        actual = f"the primary key ({', '.join(key)})" if key else "no primary key"
        raise InvalidOptionError(
            f"into is {target.name} with {actual}, expected the key columns of {join.left.name} and {join.right.name} "
            f"in this order: PRIMARY KEY ({', '.join(join.target_key)})"
        )
    if target.table_uuid in (join.left.table_uuid, join.right.table_uuid):
        raise InvalidOptionError(f"into is {target.name}, which is one of the joined tables; choose another table")
    properties = parse_keyed_properties(target.properties, target.schema, target.partition_by)
    if (properties.merge_engine, properties.delete_behavior) != ("last_row", "allow"):
        raise InvalidOptionError(
            f"into is {target.name} with merge engine {properties.merge_engine} and table.delete.behavior "
            f"{properties.delete_behavior}, expected the default merge engine and table.delete.behavior allow; choose "
            "another table"
        )


def _resolve_source(
    column: Column, target: TableState, join: Join, sources: Mapping[str, list[JoinColumn]]
) -> JoinColumn:
    """Return the source of a target column. Raises `InvalidOptionError`, `SchemaMismatchError`."""
    candidates = sources.get(column.name.casefold(), [])
    if len(candidates) > 1:
        raise InvalidOptionError(
            f"column '{column.name}' of {target.name} is ambiguous: {join.left.name} and {join.right.name} have it; "
            "set prefix= to rename the right table's columns"
        )
    if not candidates:
        if column.name.casefold() not in {c.name.casefold() for c in join.columns}:
            raise SchemaMismatchError(
                f"column '{column.name}' of {target.name} is not in the join, expected only its columns: "
                f"{', '.join(c.name for c in join.columns)}"
            )
        raise SchemaMismatchError(
            f"column '{column.name}' of {target.name} is missing from columns=, but the join writes whole rows, so its "
            "upserts would write null to the column; name it in columns=, or use a table without the column"
        )
    if not candidates[0].type.equals(column.type):
        raise SchemaMismatchError(
            f"column '{column.name}' of {target.name} is {type_name(column.type)}, expected the type of the join: "
            f"{type_name(candidates[0].type)}"
        )
    if candidates[0].nullable and not column.nullable:
        raise SchemaMismatchError(
            f"column '{column.name}' of {target.name} is NOT NULL, but it may be null in the join"
        )
    return candidates[0]


def _rename_columns(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Return some columns of the rows under other names."""
    return pa.Table.from_arrays([rows.column(name) for name in names], names=list(names.values()))


def _encode_keys(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    return encode_keys([combine_chunks(rows.column(name)) for name in key])
