"""Single rows of plain values, which a writer buffers as they are and converts to Arrow in batches.

Converting each row alone takes ten times as long. A row with a value that is not plain is converted by the sending
call, which then gets the error.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.schema.fast_path import NOT_PLAIN, SizeOf, size_of_values
from streamhouse_spark.schema.table_schema import TableSchema

ROW_BYTES_MAX: Final = 1 << 20
"""Larger rows are converted alone, where the overhead is small."""
_FORMS_MAX: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class RowSchemaKey:
    """The columns of buffered rows, in the order of the rows."""

    schema: pa.Schema
    """Fields of these columns, in table order."""
    places: tuple[int, ...]
    """The position of each field in a row."""
    _sizes: tuple[tuple[SizeOf, int], ...]
    """Functions that measure plain values, each with the size of null, in the order of the row."""

    @classmethod
    def of(cls, schema: TableSchema, names: Sequence[str]) -> Self | None:
        """Return the key for rows with these names; None if a column needs more than plain values."""
        columns = {column.name: column for column in schema.columns}
        if not names or not columns.keys() >= set(names):
            return None
        left_out = columns.keys() - set(names)
        if any(not columns[name].nullable and columns[name].default is None for name in left_out):
            return None
        sizes = []
        for name in names:
            if (size_of := size_of_values(columns[name])) is None:
                return None
            sizes.append((size_of, 1 if columns[name].nullable else NOT_PLAIN))
        table_order = [column.name for column in schema.columns if column.name not in left_out]
        fields = [schema.arrow.field(name) for name in table_order]
        return cls(pa.schema(fields), tuple(names.index(name) for name in table_order), tuple(sizes))

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the approximate bytes of a row, or `NOT_PLAIN` if a value is not plain."""
        total = 0
        for value, (size_of, null_size) in zip(values, self._sizes, strict=True):
            size = null_size if value is None else size_of(value)
            if size < 0:
                return NOT_PLAIN
            total += size
        return total if total <= ROW_BYTES_MAX else NOT_PLAIN

    def table(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        """Convert rows with these columns to Arrow."""
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(columns[place], type=self.schema.field(i).type) for i, place in enumerate(self.places)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class BufferedRow:
    """One unconverted row, with the properties of a table that the writer needs."""

    schema_key: RowSchemaKey
    values: tuple[Any, ...]

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def num_columns(self) -> int:
        return len(self.values)

    @property
    def schema(self) -> pa.Schema:
        return self.schema_key.schema


Rows: TypeAlias = pa.Table | BufferedRow


class BufferedRows:
    """Recognizes plain rows of a table. Thread-safe."""

    def __init__(self) -> None:
        self._cached_rows: tuple[TableSchema, Mapping[str, str], dict[tuple[str, ...], RowSchemaKey | None]] | None = (
            None
        )

    def buffer(self, row: Any, state: TableState) -> tuple[BufferedRow, int] | None:
        """Return a dict as a buffered row with its approximate bytes; None if it must be converted at once."""
        if type(row) is not dict:
            return None
        forms = self._cached_schema_keys(state)
        names = tuple(row)
        form = forms.get(names)
        if form is None and names not in forms:
            if len(forms) >= _FORMS_MAX:
                forms.clear()  # other threads read the cache once per row, so this is safe
            form = forms[names] = self._make_schema_key(state, names)
        if form is None:
            return None
        values = tuple(row.values())
        size = form.size_of(values)
        return None if size == NOT_PLAIN else (BufferedRow(form, values), size)

    def _cached_schema_keys(self, state: TableState) -> dict[tuple[str, ...], RowSchemaKey | None]:
        cached = self._cached_rows
        if cached is None or cached[0] is not state.schema or cached[1] is not state.properties:
            cached = self._cached_rows = (state.schema, state.properties, {})
        return cached[2]

    @staticmethod
    def _make_schema_key(state: TableState, names: tuple[str, ...]) -> RowSchemaKey | None:
        properties = state.parsed
        if properties.generated or properties.identity or properties.checks or properties.limited_columns:
            return None
        if not all(isinstance(name, str) for name in names):
            return None
        return RowSchemaKey.of(state.schema, names)


def concat_buffered_rows(parts: Sequence[Rows]) -> pa.Table:
    """Return rows with equal columns as one table, in their order."""
    tables: list[pa.Table] = []
    for form, run in itertools.groupby(parts, _schema_key_of):
        if form is None:
            tables.extend(run)
        else:
            tables.append(form.table([row.values for row in run]))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


def _schema_key_of(part: Rows) -> RowSchemaKey | None:
    return part.schema_key if isinstance(part, BufferedRow) else None
