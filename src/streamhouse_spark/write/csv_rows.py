"""Rows in CSV as of RFC 4180: a header, and fields that are quoted as a whole or not at all.

Arrow parses the rows, but takes an unclosed quote, and text after a quoted field, for data. So the quotes of each block
are checked before Arrow reads it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.json_values import decode_times, encode_json_variant, encode_values, find_form, parse_json
from streamhouse_spark.schema.variant import VARIANT, is_variant
from streamhouse_spark.write.untrusted_arrow import require_readable

BLOCK_BYTES: Final = 8 << 20
_HEADER_CHARS_MAX: Final = 1 << 20
_QUOTE: Final = ord('"')
_NEW_LINE: Final = ord("\n")
_BOM: Final = b"\xef\xbb\xbf"
_SHOWN_CHARS_MAX: Final = 60


def read_csv(
    source: Any, schema: pa.Schema | None, *, delimiter: str = ",", null_texts: Sequence[str] = ()
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of the rows. Columns match by name, ignoring case.

    Raises `SchemaMismatchError` for quotes that violate RFC 4180 and for a field that does not fit its column.
    """
    checked = _CheckedSource(source, delimiter)
    columns = _match_columns(checked.header(), schema)
    convert = pa.csv.ConvertOptions(
        column_types={name: _wire_type(column.type) for name, column in columns.items()},
        null_values=["", *null_texts],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        reader = pa.csv.open_csv(
            pa.PythonFile(checked, "r"),
            read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=convert,
        )
    except pa.ArrowException:
        while checked.read():  # an unclosed quote is a better error than Arrow's
            pass
        raise
    require_readable(reader.schema)
    decoded = _decode_batch(pa.RecordBatch.from_pylist([], reader.schema), columns)
    return decoded.schema, (_decode_batch(batch, columns) for batch in reader)


def write_csv(rows: pa.Table) -> bytes:
    """Return rows as CSV with a header. Raises `InvalidOptionError` for types without a CSV form."""
    sink = io.BytesIO()
    for place, column in enumerate(rows.schema):
        if _is_bytes(column.type) or _is_time(column.type):
            values = encode_values(rows.column(place).combine_chunks())
            rows = rows.set_column(place, column.name, pa.array(values, pa.string()))
    try:
        pa.csv.write_csv(rows.combine_chunks(), sink)  # Arrow writes a header for an empty chunk
    except pa.ArrowException as error:
        raise InvalidOptionError(
            f"the rows cannot be written as CSV: {error}; choose other columns (columns=), or another format "
            "(application/json)"
        ) from error
    return sink.getvalue()


def _match_columns(header: Sequence[str], schema: pa.Schema | None) -> dict[str, pa.Field]:
    """Return the table's columns by the names in the header."""
    exact = {column.name: column for column in schema or ()}
    folded = {column.name.casefold(): column for column in schema or ()}
    matches = {name: exact.get(name, folded.get(name.casefold())) for name in header}
    return exact | {name: column for name, column in matches.items() if column is not None}


def _wire_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's parser reads a column as: text if the column has a form of its own."""
    is_own = is_variant(data_type) or _is_bytes(data_type) or _is_time(data_type)
    return pa.string() if is_own else data_type


def _decode_batch(batch: pa.RecordBatch, columns: Mapping[str, pa.Field]) -> pa.RecordBatch:
    for place, csv_column in enumerate(batch.schema):
        column = columns.get(csv_column.name)
        if column is not None and _wire_type(column.type) != column.type:
            batch = batch.set_column(place, csv_column.name, decode_field(batch.column(place), column))
    return batch


def decode_field(texts: pa.Array, column: pa.Field) -> pa.Array:
    """Convert texts to values of a column.

    Raises `SchemaMismatchError`, or an error of Arrow's, for invalid texts.
    """
    if _wire_type(column.type) == column.type:
        return texts.cast(column.type)
    if _is_time(column.type):
        return decode_times(texts, column.type, column.name)
    if is_variant(column.type):
        values = [None if text is None else _parse_variant(text, column.name) for text in texts.to_pylist()]
        return pa.array(values, VARIANT)
    form = find_form(column.type)
    assert form is not None
    return form.decode(texts.to_pylist(), column.type, column.name)


def _parse_variant(text: str, name: str) -> dict[str, bytes] | None:
    try:
        return encode_json_variant(parse_json(text), name)
    except (ValueError, RecursionError) as error:
        shown = text[:_SHOWN_CHARS_MAX]
        raise SchemaMismatchError(f"column '{name}' has {shown!r}, which is not JSON ({error}); quote it") from error


def _is_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type))


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_date(data_type) or pa.types.is_timestamp(data_type))


class _CheckedSource(io.RawIOBase):
    """A stream of CSV whose quotes are checked as it is read."""

    def __init__(self, source: Any, delimiter: str) -> None:
        self._source = source
        self._delimiter = delimiter
        self._quotes = QuoteCheck(delimiter)
        self._pending = source.read(BLOCK_BYTES)
        self._quotes.check(self._pending.removeprefix(_BOM))
        self._is_at_end = False

    def readable(self) -> bool:
        return True

    def header(self) -> list[str]:
        """Return the names in the first record."""
        text = self._pending[:_HEADER_CHARS_MAX].removeprefix(_BOM).decode(errors="replace")
        try:
            return next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter), [])
        except csv.Error:
            return []  # Arrow reports the error

    def read(self, size: int = -1) -> bytes:
        if not self._pending and not self._is_at_end:
            self._pending = self._source.read(BLOCK_BYTES)
            self._quotes.check(self._pending)
        if not self._pending:
            self._is_at_end = True
            self._quotes.finish()
        size = size if size >= 0 else len(self._pending)
        block: bytes = self._pending[:size]
        self._pending = self._pending[size:]
        return block


class QuoteCheck:
    """Checks the quotes of CSV, block by block.

    A quote outside a quoted field opens one, or is the second of an escaped pair; it must follow the start of a field
    or another quote. A quote inside closes the field; the end of the field or another quote must follow it.
    """

    def __init__(self, delimiter: str) -> None:
        self._ends = np.array([ord(delimiter), _NEW_LINE, ord("\r")], np.uint8)
        self._is_inside = False
        self._opened_in = 0
        self._last: int | None = None
        """The byte before the block."""
        self._line = 1

    def check(self, block: bytes) -> None:
        """Raise `SchemaMismatchError` for a quote in an unquoted field, and for text after a quoted field."""
        data = np.frombuffer(block, np.uint8)
        if not len(data):
            return
        quotes = np.flatnonzero(data == _QUOTE)
        is_closing = (np.arange(len(quotes)) + self._is_inside) % 2 == 1
        self._require(data, quotes[~is_closing], -1, "a quote in a field that does not begin with one")
        self._require(data, quotes[is_closing], 1, "text behind the quote that closes a field")
        if self._last == _QUOTE and not self._is_inside and not self._is_boundary(data[:1])[0]:
            self._fail(data, 0, "text behind the quote that closes a field")
        if len(quotes):
            self._is_inside = bool(self._is_inside) != bool(len(quotes) % 2)
            self._opened_in = self._line_of(data, int(quotes[-1]))
        self._line = self._line_of(data, len(data))
        self._last = int(data[-1])

    def finish(self) -> None:
        """Raise `SchemaMismatchError` for an unclosed quote."""
        if self._is_inside:
            raise SchemaMismatchError(f"the quote in line {self._opened_in} never closes; close it, or double it")

    def _require(self, data: npt.NDArray[np.uint8], quotes: npt.NDArray[np.intp], step: int, problem: str) -> None:
        """Raise unless a field boundary or another quote is adjacent to each of these quotes."""
        adjacent = quotes + step
        is_in_block = (adjacent >= 0) & (adjacent < len(data))
        wrong = quotes[is_in_block][~self._is_boundary(data[adjacent[is_in_block]])]
        if len(wrong):
            self._fail(data, int(wrong[0]), problem)
        if step < 0 and len(quotes) and quotes[0] == 0 and self._last is not None:
            before = np.array([self._last], np.uint8)
            if not self._is_boundary(before)[0]:
                self._fail(data, 0, problem)

    def _is_boundary(self, neighbors: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        may_follow: npt.NDArray[np.bool_] = np.isin(neighbors, self._ends) | (neighbors == _QUOTE)
        return may_follow

    def _line_of(self, data: npt.NDArray[np.uint8], place: int) -> int:
        return self._line + int(np.count_nonzero(data[:place] == _NEW_LINE))

    def _fail(self, data: npt.NDArray[np.uint8], place: int, problem: str) -> None:
        raise SchemaMismatchError(
            f"the CSV has {problem}, in line {self._line_of(data, place)}; quote the whole field, and double each "
            "quote in it"
        )
