"""Joins rows with the current rows of a table by its primary key or a prefix of the key, without Spark.

A plan is made once from the schemas, and then applied to Arrow batches in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.keys.keyed_batch import Places
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.batch_lookup import Matches
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema, canonical_type

How = Literal["left", "inner"]
Find = Callable[[pa.Table], Matches]
"""Returns the current rows of keys, see `batch_lookup.BatchLookup.matches`."""

ROWS_MAX: Final = 1 << 16
"""Rows per returned batch."""
PREFIX_ROWS_MAX: Final = 1 << 12
"""Rows per step of a join in which a row may match many rows."""


# -- columns ----------------------------------------------------------------------------------------------------------


def parse_join_type(how: str) -> How:
    """Parse the join type. Raises `InvalidOptionError`."""
    if how not in ("left", "inner"):
        raise InvalidOptionError(f"how is {quote(how)}, expected 'left' or 'inner'")
    return how  # type: ignore[return-value] # mypy does not narrow by a tuple


def parse_join_columns(on: object) -> list[tuple[str, str]]:
    """Parse pairs of join columns. Raises `InvalidOptionError`."""
    if isinstance(on, str):
        on = [on]
    if isinstance(on, Mapping):
        pairs = list(on.items())
    elif isinstance(on, Sequence):
        pairs = [(name, name) for name in on]
    else:
        pairs = []
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise InvalidOptionError(
            f"on is {quote(on)}, expected a list of column names, or a mapping of column names to column names"
        )
    return pairs


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of rows that are joined with the first columns of a table's primary key, in key order."""

    row_columns: tuple[str, ...]
    key: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    """Types of the key columns."""
    is_whole: bool
    """Whether the columns form the whole primary key, so that at most one row matches."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], columns: Sequence[str], state: TableState) -> KeyColumns:
        """Resolve pairs of a row column and a table column, given all columns of the rows.

        Raises `InvalidOptionError` for a log table, and `SchemaMismatchError` for an unknown column or columns that are
        not a prefix of the primary key.
        """
        if not state.primary_key:
            raise InvalidOptionError(
                f"table {state.name} has no primary key, so its rows cannot be looked up; join it with DataFrame.join"
            )
        key_names = [state.schema.column(name).name for name in state.primary_key]
        by_key: dict[str, str] = {}
        for name, key_name in pairs:
            column = state.schema.column(key_name).name
            if column in by_key:
                raise SchemaMismatchError(f"on names column '{column}' of {state.name} twice; name it once")
            by_key[column] = resolve_column(name, columns)
        key = tuple(key_names[: len(by_key)])
        if set(key) != set(by_key):
            raise SchemaMismatchError(
                f"on names the columns {', '.join(by_key)} of {state.name}, whose rows are looked up by the primary "
                f"key ({', '.join(key_names)}); join on all of its columns, or on the first one or more of them"
            )
        types = tuple(state.schema.column(name).type for name in key)
        return cls(tuple(by_key[name] for name in key), key, types, len(key) == len(key_names))

    def require_types(self, types: Sequence[pa.DataType], table: str) -> None:
        """Raise `SchemaMismatchError` if the join columns cannot be compared with the primary key columns."""
        for name, key, actual, expected in zip(self.row_columns, self.key, types, self.types, strict=True):
            canonical = canonical_type(actual, column=name)
            if not (canonical.equals(expected) or _can_widen(canonical, expected)):
                raise SchemaMismatchError(
                    f"column '{name}' is {type_name(canonical)}, but column '{key}' of the primary key of {table} is "
                    f"{type_name(expected)}; cast '{name}' to {type_name(expected)} before the join"
                )

    def keys(self, columns: Sequence[pa.Array]) -> tuple[Places, pa.Table]:
        """Return the indexes and keys of the rows without nulls, given the row columns in key order."""
        is_valid = np.ones(len(columns[0]), np.bool_)
        for column in columns:
            if column.null_count:
                is_valid &= column.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(is_valid)
        valid_columns = columns if is_valid.all() else [column.take(pa.array(places)) for column in columns]
        arrays = [
            column if column.type == t else column.cast(t) for column, t in zip(valid_columns, self.types, strict=True)
        ]
        return places, pa.Table.from_arrays(arrays, names=list(self.key))


def resolve_column(name: str, columns: Sequence[str]) -> str:
    """Return the column with this name, or else the one with this name in another case.

    Raises `SchemaMismatchError` if there is none, or several.
    """
    matches = [g for g in columns if g == name] or [g for g in columns if g.casefold() == name.casefold()]
    if len(matches) == 1:
        return matches[0]
    near = find_nearest(name, columns)
    hint = f"did you mean '{near}'?" if near and not matches else f"the columns are {', '.join(columns[:30])}"
    raise SchemaMismatchError(f"the rows have {'several columns' if matches else 'no column'} '{name}'; {hint}")


def _can_widen(value_type: pa.DataType, key: pa.DataType) -> bool:
    """Return whether every value of ``value_type`` is a value of the type ``key``."""
    if pa.types.is_signed_integer(value_type) and pa.types.is_signed_integer(key):
        return bool(value_type.bit_width <= key.bit_width)
    if pa.types.is_decimal128(value_type) and pa.types.is_decimal128(key):
        return bool(value_type.scale == key.scale and value_type.precision <= key.precision)
    return False


def require_no_clash(names: Sequence[str], added: Sequence[str], table: str) -> None:
    """Raise `InvalidOptionError` if an added column has the name of another column of the result."""
    folded = {name.casefold() for name in names}
    clashes = [name for name in added if name.casefold() in folded]
    if clashes:
        raise InvalidOptionError(
            f"column '{clashes[0]}' of {table} conflicts with another column of the join; set prefix= to rename the "
            "table's columns, or omit the column from columns="
        )


# -- lookup joins -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """A plan for joining rows with the rows of one table."""

    on: KeyColumns
    on_places: tuple[int, ...]
    """Indexes of the key columns in the rows."""
    columns: tuple[str, ...]
    """Columns of the table to add."""
    fields: tuple[pa.Field, ...]
    """The added columns as fields of the result."""
    how: How

    @classmethod
    def of(
        cls,
        state: TableState,
        row_columns: Sequence[str],
        on: object,
        columns: Sequence[str] | None,
        how: str,
        prefix: str,
    ) -> LookupPlan:
        """Plan the join with rows that have ``row_columns``. Raises `InvalidOptionError`, `SchemaMismatchError`."""
        key = KeyColumns.of(parse_join_columns(on), row_columns, state)
        schema = state.schema
        if columns is None:
            chosen = tuple(column for column in schema.columns if column.name not in key.key)
        elif isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise InvalidOptionError(f"columns is {columns!r}, expected a list of column names")
        else:
            chosen = TableSchema(tuple(schema.column(name) for name in columns)).columns if columns else ()
        nullable = parse_join_type(how) == "left"
        fields = tuple(pa.field(prefix + c.name, c.type, nullable=nullable or c.nullable) for c in chosen)
        require_no_clash(row_columns, [field.name for field in fields], state.name)
        places = tuple(list(row_columns).index(name) for name in key.row_columns)
        return cls(key, places, tuple(column.name for column in chosen), fields, parse_join_type(how))

    def batches(self, rows: pa.RecordBatch, find: Find) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows in the order of ``rows``."""
        step = rows.num_rows if self.on.is_whole else PREFIX_ROWS_MAX
        for start in range(0, rows.num_rows, max(step, 1)):
            yield from self.join_rows(rows.slice(start, step), find).to_batches(max_chunksize=ROWS_MAX)

    def join_rows(self, rows: pa.RecordBatch, find: Find) -> pa.Table:
        """Join the rows. Rows with a null or missing key get nulls, or are dropped by an inner join."""
        places, keys = self.on.keys([rows.column(place) for place in self.on_places])
        matches = find(keys)
        row_of, partner = places[matches.places], np.arange(len(matches.places))
        if self.how == "left":
            row_of, partner = add_unmatched(row_of, rows.num_rows)
        row_columns = [arrow_rows.take_values(column, row_of) for column in rows.columns]
        added = [arrow_rows.take_values(matches.rows.column(name), partner) for name in self.columns]
        return pa.Table.from_arrays([*row_columns, *added], schema=pa.schema([*rows.schema, *self.fields]))


def add_unmatched(row_of: Places, num_rows: int) -> tuple[Places, Places]:
    """Return the row of each match and of each row without a match, in row order, and the index of the match or -1.

    ``row_of`` is the row of each match, ascending.
    """
    alone = np.ones(num_rows, np.bool_)
    alone[row_of] = False
    all_rows = np.concatenate([row_of, np.flatnonzero(alone)])
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], np.where(order < len(row_of), order, -1)
