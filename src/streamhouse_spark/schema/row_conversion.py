"""Row conversion: from rows in any supported Python form to an Arrow table in the table's schema.

Columns match by name, case-insensitively. Values are converted only without loss: integers widen, ``large_string``
becomes ``string``, timestamps change their unit if no digit is lost. Strings are never parsed, and a zone is never
added to a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError, count_of
from streamhouse_spark.schema.column_defaults import default_values
from streamhouse_spark.schema.conversion import Conversion, refuse_column
from streamhouse_spark.schema.ddl import TextLength, TextTooLongError
from streamhouse_spark.schema.evolution import describe_later_column
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.schema.variant import contains_type, find_first_malformed, is_variant

_ADD_COLUMN = "; add a column with add_columns(…), ALTER TABLE … ADD COLUMN, or Spark's write option mergeSchema"

PIECE_BYTES_MAX: Final = 128 << 20
FEW_ROWS: Final = 2048
"""Strings of at most this many rows are validated by one Arrow call for all columns. More rows are validated faster
column by column, although the thread waits for the GIL after each call."""
_MAKE_VARIANT = "create it in SQL with parse_json, or give a Python value"
Indexes: TypeAlias = npt.NDArray[np.int64]


def convert_to_schema(
    rows: Any, schema: TableSchema, *, table: str, older: Mapping[int, TableSchema] | None = None
) -> pa.Table:
    """Convert the rows to an Arrow table whose schema is ``schema.arrow``. Errors name ``table``.

    ``rows`` is a ``pyarrow`` Table, RecordBatch or RecordBatchReader, a pandas or polars frame, any object with the
    Arrow C stream interface, or a list of dicts. A missing column gets its default, or null. A pandas index is ignored.
    Rows that already have the schema are not copied. ``older`` are the table's earlier schemas, by which errors explain
    that a column was renamed or dropped.

    Raises `SchemaMismatchError`, naming the column, for an unknown column, a missing NOT NULL column without default, a
    null in a NOT NULL column, a map with a duplicate key, a value that cannot be converted without loss, a string that
    is not UTF-8 or exceeds CHAR(n) or VARCHAR(n), and a row larger than `arrow_rows.ROW_BYTES_MAX`.
    """
    return convert_rows(rows, schema, table=table, older=older)[0]


def convert_rows(
    rows: Any, schema: TableSchema, *, table: str, older: Mapping[int, TableSchema] | None = None
) -> tuple[pa.Table, frozenset[int]]:
    """Convert as `convert_to_schema` does, and also return the ids of the columns that the rows, or some dicts, omit.

    The defaults of these columns may change before the rows are stored.
    """
    source = _to_source(rows, table)
    missing: frozenset[int] = frozenset()
    if source.table is not None and source.table.schema.equals(schema.arrow, check_metadata=True):
        result = source.table
    else:
        result, missing = _align_columns(source, schema, table, older or {})
    require_small_rows(result, table)
    texts = [position for position, column in enumerate(schema.columns) if contains_type(column.type, types.is_string)]
    unsure = () if _have_valid_texts(result, texts) else texts
    for position, column in enumerate(schema.columns):
        values = result.column(position)
        if not column.nullable and (null_count := values.null_count):
            refuse_column(
                table, column.name, f"is NOT NULL, and null in {null_count} of {count_of(result.num_rows, 'row')}"
            )
        if position in unsure:
            _check_text(values, table, column.name)
        if is_variant(column.type) and (row := find_first_malformed(values)) is not None:
            refuse_column(table, column.name, f"has a malformed variant in row {row} of these rows; {_MAKE_VARIANT}")
        if contains_type(column.type, types.is_map) and (row := first_repeated_key(values)) is not None:
            refuse_column(
                table,
                column.name,
                f"has a map with a duplicate key in row {row} of these rows; keep one entry per key",
            )
        if column.size is not None:
            fitted = _fit_texts(values, column.size, table, column.name)
            if fitted is not values:
                result = result.set_column(position, schema.arrow.field(position), fitted)
                require_small_rows(result, table)  # padding makes rows larger
    return result, missing


def is_rereadable(rows: Any) -> bool:
    """Return whether rows can be read twice. False for a possible stream, which is exhausted after one read."""
    return isinstance(rows, pa.Table | pa.RecordBatch | list) or _is_frame_in_memory(rows)


def open_stream(rows: Any, table: str) -> pa.RecordBatchReader | None:
    """Open rows that arrive batch by batch, such as a reader or the result of a query; None for rows in memory.

    Raises `SchemaMismatchError` for a stream that is not a table.
    """
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    in_memory = isinstance(rows, pa.Table | pa.RecordBatch) or _is_frame_in_memory(rows)
    if in_memory or not hasattr(rows, "__arrow_c_stream__"):
        return None
    with _as_no_table(rows, table):
        return pa.RecordBatchReader.from_stream(rows)


def iter_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join consecutive batches with equal columns to tables of about `PIECE_BYTES_MAX` at most."""
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        if pending and batch.schema != pending[-1].schema:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= PIECE_BYTES_MAX:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


@dataclass(frozen=True, slots=True)
class _Source:
    """A user's rows by column.

    ``get`` returns a column as Arrow data or as a list of Python values. Its second argument is the value for dicts
    that omit the column.
    """

    names: Sequence[str]
    num_rows: int
    get: Callable[[str, Any], Any]
    table: pa.Table | None = None
    incomplete: frozenset[str] = frozenset()
    """Columns that some dicts omit."""


def _to_source(rows: Any, table: str) -> _Source:
    if isinstance(rows, list) and not rows:
        rows = pa.table({})
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.RecordBatchReader):
        rows = rows.read_all()
    elif isinstance(rows, list):
        return _source_of_dicts(rows, table)
    elif _is_pandas_frame(rows):
        return _source_of_pandas(rows, table)
    elif not isinstance(rows, pa.Table) and hasattr(rows, "__arrow_c_stream__"):
        rows = _to_table(rows, table)
    if isinstance(rows, pa.Table):
        return _Source(rows.column_names, rows.num_rows, lambda name, _: rows.column(name), rows)
    rows_type = type(rows)
    hint = {"dict": "; pass a list of dicts", "LazyFrame": "; call collect() first"}.get(rows_type.__name__, "")
    raise SchemaMismatchError(
        f"rows for {table} are a {rows_type.__module__}.{rows_type.__name__}, expected a pyarrow Table or RecordBatch, "
        f"a pandas or polars frame, or a list of dicts{hint}"
    )


def _to_table(rows: Any, table: str) -> pa.Table:
    """Read an object with the Arrow C stream interface."""
    with _as_no_table(rows, table):
        return pa.table(rows)


@contextmanager
def _as_no_table(rows: Any, table: str) -> Iterator[None]:
    """Refuse an object with the Arrow C stream interface that is not a table. A single column has it as well."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatchError(
            f"rows for {table} are a {type(rows).__module__}.{type(rows).__name__} that is not a table "
            f"({str(error)[:200]}); pass named columns"
        ) from error


def _source_of_dicts(rows: list[Any], table: str) -> _Source:
    for kind in set(map(type, rows)):
        if not issubclass(kind, dict):
            position = next(i for i, row in enumerate(rows) if type(row) is kind)
            raise SchemaMismatchError(
                f"row {position} for {table} is a {kind.__name__}, expected a dict of column name and value"
            )
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    is_complete = sum(map(len, rows)) == len(rows) * len(names)
    incomplete = () if is_complete else (name for name in names if any(name not in row for row in rows))
    return _Source(
        _text_names(names, table),
        len(rows),
        lambda name, absent: [row.get(name, absent) for row in rows],
        incomplete=frozenset(incomplete),
    )


def _is_pandas_frame(rows: Any) -> bool:
    # Detected by name, because pandas is optional and slow to import.
    kind = type(rows)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def _is_frame_in_memory(rows: Any) -> bool:
    """Return whether rows are a frame of pandas or polars. Those of DataFusion and others are queries."""
    return _is_pandas_frame(rows) or (
        type(rows).__name__ == "DataFrame" and type(rows).__module__.partition(".")[0] == "polars"
    )


def _source_of_pandas(frame: Any, table: str) -> _Source:
    def get(name: str, _: Any) -> Any:
        series = frame[name]
        if series.dtype == object:
            return series.where(series.notna(), None).tolist()
        return pa.array(series, from_pandas=True)

    return _Source(_text_names(list(frame.columns), table), len(frame), get)


def _text_names(names: list[Any], table: str) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise SchemaMismatchError(f"rows for {table} have the column name {name!r}, expected a string")
    return names


def _align_columns(
    source: _Source, schema: TableSchema, table: str, older: Mapping[int, TableSchema]
) -> tuple[pa.Table, frozenset[int]]:
    source_names: dict[str, str] = {}
    for name in source.names:
        column = schema.find(name)
        if column is None:
            change = describe_later_column(name, older)
            hint = (
                f": {change}; the columns are {', '.join(schema.names[:30])}"
                if change
                else schema.hint(name) + _ADD_COLUMN
            )
            raise SchemaMismatchError(f"column '{name}' of the rows is not in {table}{hint}")
        other = source_names.setdefault(column.name, name)
        if other is not name or source.names.count(name) > 1:
            refuse_column(table, column.name, f"is in the rows twice, as '{other}' and '{name}'; keep one column")
    arrays = [_column_values(source, source_names.get(column.name), column, table) for column in schema.columns]
    given_columns = {name for name, source_name in source_names.items() if source_name not in source.incomplete}
    missing = frozenset(column.id for column in schema.columns if column.name not in given_columns)
    return pa.Table.from_arrays(arrays, schema=schema.arrow), missing


def _column_values(source: _Source, name: str | None, column: Column, table: str) -> Any:
    if name is None:
        if not column.nullable and column.default is None and source.num_rows:
            refuse_column(
                table, column.name, f"is NOT NULL and missing from the rows, which have {', '.join(source.names)}"
            )
        return default_values(column, source.num_rows)
    conversion = Conversion(table, column.name)
    values = source.get(name, column.default_scalar.as_py() if name in source.incomplete else None)
    if isinstance(values, list):
        return conversion.from_python(values, column.type)
    if values.type.equals(column.type, check_metadata=True):
        return values
    _require_small(values, column.name, table)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    parts = [conversion.cast(part, column.type) for chunk in chunks for part in arrow_rows.slice_for_cast(chunk)]
    return pa.chunked_array(parts, type=column.type)


def _require_small(values: arrow_rows.Column, name: str, table: str) -> None:
    """Reject a value that is larger than the maximum of a row, before a cast that would fail without naming the row."""
    if not arrow_rows.is_small_column(values, arrow_rows.ROW_BYTES_MAX):
        sizes = arrow_rows.estimate_row_bytes(values)
        if len(sizes) and (largest := int(sizes.max())) > arrow_rows.ROW_BYTES_MAX:
            _refuse_row(table, name, int(np.argmax(sizes)), largest)


def require_small_rows(rows: pa.Table, table: str) -> None:
    """Raise `SchemaMismatchError` for a row larger than `arrow_rows.ROW_BYTES_MAX`."""
    if not arrow_rows.may_have_large_row(rows):
        return
    sizes = arrow_rows.table_row_bytes(rows)
    row = int(np.argmax(sizes))
    if sizes[row] > arrow_rows.ROW_BYTES_MAX:
        of_column = [int(arrow_rows.estimate_row_bytes(column.slice(row, 1))[0]) for column in rows.columns]
        _refuse_row(table, rows.column_names[int(np.argmax(of_column))], row, int(sizes[row]))


def _refuse_row(table: str, name: str, row: int, num_bytes: int) -> None:
    refuse_column(
        table,
        name,
        f"has the largest value in row {row} of these rows, which has {num_bytes} bytes, expected at most "
        f"{arrow_rows.ROW_BYTES_MAX}; store the value in parts, or as a file that the row names",
    )


def _have_valid_texts(rows: pa.Table, columns: list[int]) -> bool:
    """Return whether all strings in these columns are UTF-8. False if unknown, as for more than `FEW_ROWS` rows."""
    if rows.num_rows > FEW_ROWS:
        return False
    try:
        rows.select(columns).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check_text(values: pa.ChunkedArray, table: str, column: str) -> None:
    """Reject strings that are not UTF-8. Arrow accepts them silently, but other readers fail or change them."""
    row = 0
    for chunk in values.chunks:
        if not _is_valid(chunk) and (position := _first_invalid(chunk)) is not None:
            refuse_column(
                table,
                column,
                f"has a string that is not UTF-8 in row {row + position} of these rows; repair it (in Spark with "
                "make_valid_utf8), or use a BINARY column",
            )
        row += len(chunk)


def _fit_texts(values: pa.ChunkedArray, size: TextLength, table: str, column: str) -> pa.ChunkedArray:
    """Fit strings to the length of their column as `TextLength.fit_texts` does, in slices that each fit into an array.

    A row that would become too large is rejected first.
    """
    sizes = _sizes_with_blanks(values, size)
    if sizes is None:
        return _fit_slice(values, size, table, column, 0)
    if (largest := int(sizes.max())) > arrow_rows.ROW_BYTES_MAX:
        refuse_column(
            table,
            column,
            f"is {size}, so the string in row {int(np.argmax(sizes))} of these rows has {largest} bytes, expected at "
            f"most {arrow_rows.ROW_BYTES_MAX}; change the column to VARCHAR or STRING",
        )
    cuts = arrow_rows.cut_by_size(sizes)
    parts = [_fit_slice(values.slice(a, b - a), size, table, column, a) for a, b in cuts]
    return arrow_rows.concat_columns(parts, values.type)


def _sizes_with_blanks(values: pa.ChunkedArray, size: TextLength) -> arrow_rows.Sizes | None:
    """Return the padded size of each string in bytes; None if one array holds all strings."""
    if size.kind != "char" or values.nbytes + size.length * len(values) <= arrow_rows.SLICE_BYTES_MAX:
        return None
    characters = pc.utf8_length(values).fill_null(size.length).to_numpy()
    blanks: arrow_rows.Sizes = np.maximum(size.length - characters.astype(np.int64), 0)
    return arrow_rows.estimate_row_bytes(values) + blanks


def _fit_slice(values: pa.ChunkedArray, size: TextLength, table: str, column: str, first_row: int) -> pa.ChunkedArray:
    try:
        return size.fit_texts(values)
    except TextTooLongError as error:
        length = len(values[error.row].as_py())
        row = first_row + error.row
        refuse_column(
            table, column, f"is {size}, and the string in row {row} of these rows has {length} characters; shorten it"
        )


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate()
        if not (pa.types.is_string(array.type) and _is_ascii(array)):
            array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(array: pa.Array) -> bool:
    """Return whether all bytes of the strings are ASCII, by one vectorised check. False for unsorted offsets."""
    _, offsets, data = array.buffers()
    if offsets is None or data is None or not len(array):
        return False
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    size = int(bounds[-1]) - int(bounds[0])
    if size <= 0 or not (bounds[1:] >= bounds[:-1]).all():
        return False
    return int(np.frombuffer(data, np.int8, size, int(bounds[0])).min()) >= 0


def _first_invalid(array: pa.Array) -> int | None:
    """Return the index of the first invalid row; None if only unreferenced values are invalid."""

    def valid(first: int, last: int) -> bool:
        return _is_valid(array.take(pa.array(range(first, last), pa.int64())))

    first, last = 0, len(array)
    if valid(first, last):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if valid(first, middle) else (first, middle)
    return first


def first_repeated_key(values: pa.ChunkedArray) -> int | None:
    """Return the first row with a map that contains a key twice, at any nesting depth; None without one.

    Keys are compared as in Spark: zeros of either sign are one key, and so are all NaN.
    """
    before = 0
    for chunk in values.chunks:
        rows = np.concatenate([np.zeros(0, np.int64), *_find_duplicate_key_maps(chunk)])
        if len(rows):
            return before + int(rows.min())
        before += len(chunk)
    return None


def _find_duplicate_key_maps(array: pa.Array) -> Iterator[Indexes]:
    """Yield the positions of values that contain a map with a duplicate key."""
    if not contains_type(array.type, types.is_map):
        return
    if types.is_struct(array.type):
        for child in array.flatten():
            yield from _find_duplicate_key_maps(child)
        return
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    offsets, is_valid = np.asarray(array.offsets, np.int64), np.asarray(array.is_valid())
    first, last = int(offsets[0]), int(offsets[-1])
    parents = np.repeat(np.arange(len(array)), np.diff(offsets))
    children = [array.items, array.keys] if types.is_map(array.type) else [array.values]
    repeating_rows = [rows for child in children for rows in _find_duplicate_key_maps(child.slice(first, last - first))]
    if types.is_map(array.type) and len(parents) and int(np.diff(offsets).max()) > 1:
        repeating_rows.append(
            _find_duplicate_keys(parents, _encode_keys_as_integers(array.keys.slice(first, last - first)))
        )
    yield from (rows[is_valid[rows]] for rows in (parents[positions] for positions in repeating_rows))


def _find_duplicate_keys(parents: Indexes, codes: Indexes) -> Indexes:
    """Return the positions of keys that occur at an earlier position of the same map."""
    order = np.lexsort((codes, parents))
    is_same = (np.diff(parents[order]) == 0) & (np.diff(codes[order]) == 0)
    repeated: Indexes = order[1:][is_same]
    return repeated


def _encode_keys_as_integers(keys: pa.Array) -> Indexes:
    """Return an integer for each key. Two integers are equal only if the keys are equal."""
    if types.is_struct(keys.type):
        codes = np.zeros(len(keys), np.int64)
        for child in keys.flatten():
            codes = _pairs(codes, _encode_keys_as_integers(child))
        return codes
    if types.is_list(keys.type) or types.is_large_list(keys.type):
        return _codes_of_lists(keys)
    if types.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))
    encoded: Any = keys.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1), np.int64)


def _codes_of_lists(keys: pa.Array) -> Indexes:
    offsets = np.asarray(keys.offsets, np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    of_values = np.append(_encode_keys_as_integers(keys.values.slice(first, last - first)), -2)
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    codes = np.where(np.asarray(keys.is_valid()), lengths, -1)
    for place in range(int(lengths.max(initial=0))):
        codes = _pairs(codes, of_values[np.where(place < lengths, starts + place, -1)])
    return codes


def _pairs(left: Indexes, right: Indexes) -> Indexes:
    _, codes = np.unique(np.stack([left, right]), axis=1, return_inverse=True)
    return np.asarray(codes, np.int64).reshape(-1)
