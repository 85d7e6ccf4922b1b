"""Readers of row files: Parquet, Arrow, CSV and JSON Lines, in batches of bounded size.

JSON is an array of objects, one object, or one object per line. Arrow parses many lines in one call. Lines with values
that Arrow does not support, or reads differently from `schema.json_values`, are parsed row by row.

CSV follows RFC 4180: a header, and fields that are unquoted or quoted as a whole. Arrow accepts an unclosed quote, and
text after a quoted field, as data. So `QuoteCheck` checks the quotes of each block before Arrow reads the block.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.json_values import (
    decode_rows,
    decode_times,
    encode_json_variant,
    find_form,
    parse_json,
)
from streamhouse_spark.schema.variant import VARIANT, is_variant
from streamhouse_spark.write.untrusted_arrow import (
    IpcLimits,
    require_supported_columns,
    validate_batches,
    validate_messages,
)

_BLANKS: Final = " \t\r\n"
_SHOWN_CHARS_MAX: Final = 60
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}\s*n")
"""The first letter of a possible ``null`` after an object."""
_PLAIN_NAME: Final = re.compile(r"[\w .$-]+", re.ASCII)
_DECODER: Final = json.JSONDecoder()
BLOCK_BYTES: Final = 8 << 20
_HEADER_CHARS_MAX: Final = 1 << 20
_QUOTE: Final = ord('"')
_NEW_LINE: Final = ord("\n")
_CARRIAGE_RETURN: Final = ord("\r")
_BOM: Final = b"\xef\xbb\xbf"
FORMATS: Final = ("parquet", "arrow", "csv", "json")
STDIN: Final = "-"
_FORMAT_OF_SUFFIX: Final = {
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4")
_PARQUET_BATCH_ROWS: Final = 65_536
_TEXT_BLOCK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads rows of one table. ``defaults`` are the values of columns that are missing from a row."""

    schema: pa.Schema
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)

    def read(self, lines: bytes) -> pa.Table:
        """Read lines of objects. Raises `SchemaMismatchError` for an invalid line or value."""
        rows = self._read_at_once(lines)
        return self._read_each(lines) if rows is None else rows

    def _read_each(self, lines: bytes) -> pa.Table:
        rows = []
        for line in filter(str.strip, _decode_text(lines).split("\n")):
            try:
                rows.append(parse_json(line))
            except (ValueError, RecursionError) as error:
                raise SchemaMismatchError(
                    f"line {line[:_SHOWN_CHARS_MAX]!r} is not JSON ({error}); send one object per line"
                ) from error
        return decode_rows(rows, self.schema, self.defaults)

    def _read_at_once(self, lines: bytes) -> pa.Table | None:
        """Read the lines with Arrow, or return None if the rows might differ from the result of `decode_rows`."""
        if not can_be_parsed_at_once(lines):
            return None
        folded = lines.lower()
        mentions = {name: _may_mention(folded, name) for name in self.schema.names}
        wire = {column.name: wire for column in self.schema if (wire := _json_wire_type(column.type)) is not None}
        if b"\\u" in folded or any(mentions[name] for name in mentions if name not in wire):
            return None
        schema = pa.schema(list(wire.items()))
        options = pa.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="error"
        )
        block = pa.json.ReadOptions(block_size=max(len(lines) + 1, 1024))
        try:
            rows = pa.json.read_json(io.BytesIO(lines), read_options=block, parse_options=options)
        except pa.ArrowException:
            return None
        if rows.num_rows != sum(map(bool, map(bytes.strip, lines.split(b"\n")))):
            return None  # a line has several objects
        columns = {name: rows.column(name) for name in wire}
        columns = {
            name: column for name, column in columns.items() if mentions[name] or column.null_count < len(column)
        }
        if not columns and rows.num_rows:
            return None
        if any(name in self.defaults and column.null_count for name, column in columns.items()):
            return None  # Arrow does not distinguish null from absent
        if not all(_is_finite(chunk) for column in columns.values() for chunk in column.chunks):
            return None
        return pa.table({name: self._convert_column(name, column) for name, column in columns.items()})

    def _convert_column(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        target = self.schema.field(name).type
        if not is_time(target):
            return column
        return pa.chunked_array([decode_times(chunk, target, name) for chunk in column.chunks], target)


def can_be_parsed_at_once(lines: bytes) -> bool:
    """Return whether Arrow can parse the lines. A ``null`` in place of an object would crash the process."""
    return lines.lstrip().startswith(b"{") and _NULL_AFTER_OBJECT.search(lines) is None


def to_json_lines(body: bytes) -> bytes:
    """Convert an array of objects, or one object, to one line per object, with its original text.

    Raises `SchemaMismatchError` for other or invalid JSON.
    """
    return "\n".join(split_json_objects(body)).encode()


def split_json_objects(body: bytes) -> list[str]:
    """Return the text of each object, without line breaks. See `to_json_lines`."""
    try:
        text = body.decode(json.detect_encoding(body))
        objects = list(_split_objects(text))
    except (ValueError, IndexError, RecursionError) as error:
        problem = "the array does not end" if isinstance(error, IndexError) else error
        raise SchemaMismatchError(f"the rows are not JSON: {problem}; send an array of objects") from error
    if not all(element.startswith("{") for element in objects):
        raise SchemaMismatchError(
            'the rows are valid JSON but not an array of objects; send an array of objects, such as [{"id": 1}]'
        )
    return objects


def _split_objects(text: str) -> list[str]:
    begin = _skip_blanks(text, 0)
    if not text.startswith("[", begin):
        _, end = _DECODER.raw_decode(text, begin)
        return [_single_value(text, begin, end)]
    objects: list[str] = []
    at = _skip_blanks(text, begin + 1)
    while text[at] != "]":  # an IndexError at the end of the text
        _, end = _DECODER.raw_decode(text, at)
        objects.append(_on_one_line(text[at:end]))
        at = _skip_blanks(text, end)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
            if text[at] == "]":
                raise ValueError("a comma before the end of the array")
        elif text[at] != "]":
            raise ValueError(f"expected a comma at character {at}")
    _single_value(text, begin, at + 1)
    return objects


def _single_value(text: str, begin: int, end: int) -> str:
    if text[end:].strip(_BLANKS):
        raise ValueError(f"text after the value, at character {end}")
    return _on_one_line(text[begin:end])


def _on_one_line(text: str) -> str:
    """Replace line breaks. In JSON they occur only between values, because strings escape them."""
    return text.replace("\n", " ").replace("\r", " ")


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatchError(f"the rows are not UTF-8: {error}; send text in UTF-8") from error


def _may_mention(folded: bytes, name: str) -> bool:
    """Return whether lines in lower case may contain the name. Names with special characters may be escaped."""
    return not _PLAIN_NAME.fullmatch(name) or f'"{name.lower()}"'.encode() in folded


def _json_wire_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type with which Arrow parses a column; None for an unsupported column."""
    if is_time(data_type):
        return pa.string()
    return data_type if _is_plain(data_type) else None


def is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_date(data_type) or pa.types.is_timestamp(data_type))


def _is_plain(data_type: pa.DataType) -> bool:
    """Return whether Arrow parses values of the type as `decode_rows` does."""
    types = pa.types
    if types.is_list(data_type):
        return _is_plain(data_type.value_type)
    if types.is_struct(data_type):
        return all(_is_plain(inner.type) for inner in data_type)
    return bool(
        types.is_boolean(data_type)
        or types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
        or types.is_string(data_type)
    )


def _is_finite(array: pa.Array) -> bool:
    """Return whether no number is NaN or infinite. Arrow accepts these tokens, but they are not JSON."""
    types = pa.types
    if types.is_floating(array.type):
        return bool(np.isfinite(array.fill_null(0).to_numpy(zero_copy_only=False)).all())
    if types.is_list(array.type):
        return _is_finite(pc.list_flatten(array))
    if types.is_struct(array.type):
        return all(map(_is_finite, array.flatten()))
    return True


def read_csv(
    source: Any, schema: pa.Schema | None, *, delimiter: str = ",", null_texts: Sequence[str] = ()
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of the rows. Columns match by name, ignoring case.

    Raises `SchemaMismatchError` with the line, for quotes that violate RFC 4180 and a field that does not fit its
    column.
    """
    blocks = _csv_blocks(source, delimiter)
    first, line = next(blocks, (b"", 1))
    header = _csv_header(first, delimiter)
    columns = _match_columns(header, schema)
    types = {name: _csv_wire_type(column.type) for name, column in columns.items()}

    def parse(data: bytes, names: Sequence[str] | None) -> pa.Table:
        # Parse from memory: if Arrow's threads called `source`, an error would abort the process at exit.
        rows = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(block_size=len(data) + 1, column_names=names),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                null_values=["", *null_texts],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        require_supported_columns(rows.schema)
        types.update({field.name: field.type for field in rows.schema if field.name not in columns})
        return _decode_table(rows, columns)

    def parse_block(data: bytes, line: int, names: Sequence[str] | None) -> pa.Table:
        try:
            return parse(data, names)
        except (pa.ArrowException, SchemaMismatchError) as error:
            records = _records_of(data, QuoteCheck(delimiter).check(data))[1 if names is None else 0 :]
            problem, bad_line = _locate(error, data, records, line, lambda part: parse(part, names or header))
            raise _csv_error(problem, bad_line, header) from error

    rows = parse_block(first, line, None)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.to_batches()
        for data, line in blocks:
            yield from parse_block(data, line, rows.column_names).to_batches()

    return rows.schema, batches()


def _csv_blocks(source: Any, delimiter: str) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole records with checked quotes, and the line of the first record in each block."""
    quotes = QuoteCheck(delimiter)
    record_parts: list[bytes] = []  # the start of a record that ends in a later block
    line = 1
    block = source.read(BLOCK_BYTES).removeprefix(_BOM)
    while block:
        ends = quotes.check(block)
        if len(ends):
            data = b"".join([*record_parts, block[: ends[-1]]])
            yield data, line
            line += data.count(b"\n")
            record_parts = []
            block = block[ends[-1] :]
        record_parts.append(block)
        block = source.read(BLOCK_BYTES)
    quotes.finish()
    if data := b"".join(record_parts):
        yield data, line


def _csv_header(data: bytes, delimiter: str) -> list[str]:
    """Return the names in the first record."""
    text = data.lstrip(b"\r\n")[:_HEADER_CHARS_MAX].decode(errors="replace")
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error:
        return []  # Arrow reports the error


def _locate(
    error: Exception, data: bytes, records: Sequence[tuple[int, int]], line: int, parse: Callable[[bytes], object]
) -> tuple[Exception, int | None]:
    """Return the error and line of the first invalid record, or ``error`` and None if each record alone is valid.

    ``records`` are ranges of ``data``, which starts at ``line``. Each record is parsed about twice.
    """
    low, high = 0, len(records)
    while high - low > 1:
        middle = (low + high) // 2
        if _problem_of(data[records[low][0] : records[middle - 1][1]], parse) is None:
            low = middle
        else:
            high = middle
    begin, end = records[low] if records else (0, 0)
    problem = _problem_of(data[begin:end], parse) if records else None
    return (error, None) if problem is None else (problem, line + data[:begin].count(b"\n"))


def _problem_of(data: bytes, parse: Callable[[bytes], object]) -> Exception | None:
    try:
        parse(data)
    except (pa.ArrowException, SchemaMismatchError) as error:
        return error
    return None


def _records_of(data: bytes, ends: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges of the records that are not blank."""
    bounds = sorted({0, *map(int, ends), len(data)})
    return [(begin, end) for begin, end in itertools.pairwise(bounds) if data[begin:end].strip()]


def _csv_error(error: Exception, line: int | None, header: Sequence[str]) -> Exception:
    """Return an error that names the line, and the column by name instead of by Arrow's number."""
    text = _text_of(error)
    text = re.sub(r"(?<=: )Row #\d+: ", "", text)
    text = re.sub(
        r"^In CSV column #(\d+): (?:CSV )?",
        lambda match: f"column '{header[int(match[1])]}': " if int(match[1]) < len(header) else match[0],
        text,
    )
    text = text if line is None else f"line {line}: {text}"
    return SchemaMismatchError(text) if isinstance(error, SchemaMismatchError) else pa.ArrowInvalid(text)


def _text_of(error: Exception) -> str:
    """Return the first line of the message, without the error condition."""
    return (str(error) or type(error).__name__).splitlines()[0].removeprefix("SCHEMA_MISMATCH: ")


def _match_columns(header: Sequence[str], schema: pa.Schema | None) -> dict[str, pa.Field]:
    """Return name → column, for the names in the header and in the table."""
    exact = {column.name: column for column in schema or ()}
    folded = {column.name.casefold(): column for column in schema or ()}
    matches = {name: exact.get(name, folded.get(name.casefold())) for name in header}
    return exact | {name: column for name, column in matches.items() if column is not None}


def _csv_wire_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type with which Arrow parses a column: text if this module decodes the values."""
    is_decoded_here = is_variant(data_type) or is_bytes(data_type) or is_time(data_type)
    return pa.string() if is_decoded_here else data_type


def _decode_table(rows: pa.Table, columns: Mapping[str, pa.Field]) -> pa.Table:
    for place, csv_column in enumerate(rows.schema):
        column = columns.get(csv_column.name)
        if column is not None and _csv_wire_type(column.type) != column.type:
            texts = rows.column(place).combine_chunks()
            rows = rows.set_column(place, csv_column.name, decode_field(texts, column))
    return rows


def decode_field(texts: pa.Array, column: pa.Field) -> pa.Array:
    """Convert texts to values of a column. Raises `SchemaMismatchError` or an Arrow error for invalid texts."""
    if _csv_wire_type(column.type) == column.type:
        return texts.cast(column.type)
    if is_time(column.type):
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


def is_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type))


class QuoteCheck:
    """Checks the quotes of CSV, block by block.

    A quote outside of a quoted field opens a field, or is the second quote of an escaped pair. A field boundary or a
    quote must precede it. A quote inside of a quoted field closes the field. A field boundary or a quote must follow
    it.
    """

    def __init__(self, delimiter: str) -> None:
        self._ends = np.array([ord(delimiter), _NEW_LINE, _CARRIAGE_RETURN], np.uint8)
        self._is_inside = False
        self._opened_in = 0
        self._last: int | None = None
        """The last byte of the previous block."""
        self._line = 1

    def check(self, block: bytes) -> npt.NDArray[np.intp]:
        """Return the end positions of the records that end in the block.

        Raises `SchemaMismatchError` for a quote in an unquoted field, and for text after a quoted field.
        """
        data = np.frombuffer(block, np.uint8)
        if not len(data):
            return np.array([], np.intp)
        quotes = np.flatnonzero(data == _QUOTE)
        is_closing = (np.arange(len(quotes)) + self._is_inside) % 2 == 1
        self._require(data, quotes[~is_closing], -1, "a quote in an unquoted field")
        self._require(data, quotes[is_closing], 1, "text after the closing quote of a field")
        if self._last == _QUOTE and not self._is_inside and not self._is_boundary(data[:1])[0]:
            self._fail(data, 0, "text after the closing quote of a field")
        breaks = np.flatnonzero((data == _NEW_LINE) | (data == _CARRIAGE_RETURN))
        ends: npt.NDArray[np.intp] = breaks[(np.searchsorted(quotes, breaks) + self._is_inside) % 2 == 0] + 1
        if len(quotes):
            self._is_inside = bool(self._is_inside) != bool(len(quotes) % 2)
            self._opened_in = self._line_of(data, int(quotes[-1]))
        self._line = self._line_of(data, len(data))
        self._last = int(data[-1])
        return ends

    def finish(self) -> None:
        """Raise `SchemaMismatchError` for an unclosed quote."""
        if self._is_inside:
            raise SchemaMismatchError(
                f"the quote in line {self._opened_in} is not closed; close it, or double a quote that is part of the "
                "value"
            )

    def _require(self, data: npt.NDArray[np.uint8], quotes: npt.NDArray[np.intp], step: int, problem: str) -> None:
        """Raise unless a field boundary or another quote is adjacent to each quote, in direction ``step``."""
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


@dataclass(frozen=True, slots=True)
class RowFile:
    """An open file: its schema, its number of rows if known, and its batches, which can be read once."""

    schema: pa.Schema
    num_rows: int | None
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How texts of CSV and JSON are converted to values."""

    schema: pa.Schema | None = None
    """The columns of the table. The types of other columns are inferred."""
    null_texts: Sequence[str] = ()
    """Texts of CSV fields that mean null, in addition to the empty text."""
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Values of columns that are missing from a row; null without a default. A column that no row has is omitted."""


def resolve_file_format(path: str, explicit: str | None) -> str:
    """Return the explicit format, or the format of the suffix of the file name. Raises `InvalidOptionError`."""
    if explicit is not None:
        return explicit
    suffixes = [s.lower() for s in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    by_suffix = _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if by_suffix is None:
        raise InvalidOptionError(
            f"the format of {'standard input' if path == STDIN else path} is unknown; specify --format "
            f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        )
    return by_suffix


def open_rows(path: str, format_: str, rules: CsvOptions, stack: ExitStack, stdin: IO[bytes]) -> RowFile:
    """Open a file, or ``stdin`` for ``-``; ``stack`` closes it.

    This call and reads of the batches raise `InvalidOptionError` if the file cannot be read, and `SchemaMismatchError`
    if its content is invalid.
    """
    try:
        match format_:
            case "parquet":
                file = pq.ParquetFile(_seekable(path, stack, stdin))
                batches = file.iter_batches(batch_size=_PARQUET_BATCH_ROWS)
                opened = RowFile(file.schema_arrow, file.metadata.num_rows, batches)
            case "arrow":
                opened = _open_arrow(_seekable(path, stack, stdin))
            case "csv":
                opened = _open_csv(path, _stream(path, stack, stdin), rules)
            case _:
                opened = _open_json(_stream(path, stack, stdin), rules)
        require_supported_columns(opened.schema)
        return _with_error_mapping(path, opened)
    except (pa.ArrowException, OSError, UnicodeError, SchemaMismatchError) as error:
        raise _unreadable(path, error) from error


def read_body(body: bytes, format_: str, rules: CsvOptions, limits: IpcLimits | None = None) -> pa.Table:
    """Read the rows of a request body: an Arrow stream or file, CSV or JSON Lines.

    Raises `SchemaMismatchError` for invalid content, and for Arrow data that exceeds the limits.
    """
    source = pa.BufferReader(body)
    try:
        match format_:
            case "arrow":
                opened = _open_arrow(source, limits)
            case "csv":
                opened = _open_csv("", source, rules)
            case _ if rules.schema is not None:
                return JsonReader(rules.schema, rules.defaults).read(body)
            case _:
                opened = _open_json(source, rules)
        require_supported_columns(opened.schema)
        return pa.Table.from_batches(list(opened.batches), opened.schema)
    except (pa.ArrowException, UnicodeError, OSError) as error:  # Arrow raises OSError for some damaged streams
        raise SchemaMismatchError(
            f"cannot read the body as {format_} rows of the table: {_text_of(error)}; check Content-Type and the types "
            "of the columns"
        ) from error


def _with_error_mapping(path: str, opened: RowFile) -> RowFile:
    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from opened.batches
        except (pa.ArrowException, OSError, UnicodeError, SchemaMismatchError) as error:
            raise _unreadable(path, error) from error

    return RowFile(opened.schema, opened.num_rows, batches())


def _unreadable(path: str, error: Exception) -> Exception:
    first_line = _text_of(error)
    name = "standard input" if path == STDIN else path
    if isinstance(error, SchemaMismatchError):
        return SchemaMismatchError(f"{name}: {first_line}")
    if isinstance(error, FileNotFoundError):
        return InvalidOptionError(f"file {name} does not exist; check the path")
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return InvalidOptionError(f"cannot read {name}: {first_line}")
    return SchemaMismatchError(
        f"{name}: {first_line}; check --format and the column's type (--null TEXT names texts that mean null in CSV)"
    )


def _stream(path: str, stack: ExitStack, stdin: IO[bytes]) -> Any:
    if path == STDIN:
        return stdin
    return stack.enter_context(pa.input_stream(path, compression="detect"))


def _seekable(path: str, stack: ExitStack, stdin: IO[bytes]) -> Any:
    if path != STDIN:
        return stack.enter_context(pa.memory_map(path))
    file = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(stdin, file)
    file.flush()
    return stack.enter_context(pa.OSFile(file.name))  # Arrow's threads must not call Python, as in `read_csv`


def _open_arrow(source: Any, limits: IpcLimits | None = None) -> RowFile:
    validate_messages(source, limits)
    source.seek(0)
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        return RowFile(reader.schema, None, validate_batches(reader))
    batches = validate_batches(file.get_batch(i) for i in range(file.num_record_batches))
    return RowFile(file.schema, None, batches)


def _open_csv(path: str, source: Any, rules: CsvOptions) -> RowFile:
    delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
    schema, batches = read_csv(source, rules.schema, delimiter=delimiter, null_texts=rules.null_texts)
    return RowFile(schema, None, batches)


def _open_json(source: Any, rules: CsvOptions) -> RowFile:
    batches = _json_batches(source, rules)
    first = next(batches, None)
    if first is None:
        return RowFile(pa.schema([]), 0, iter(()))
    return RowFile(first.schema, None, itertools.chain([first], batches))


def _json_batches(source: Any, rules: CsvOptions) -> Iterator[pa.RecordBatch]:
    """Read JSON Lines in blocks of whole lines, or one array. Without a schema, types are inferred per block."""
    reader = JsonReader(rules.schema, rules.defaults) if rules.schema is not None else None
    unit, line, rest = "line", 1, b""
    block = source.read(BLOCK_BYTES)
    if block.lstrip().startswith(b"["):  # an array must be parsed before it can be divided
        unit, block = "row", to_json_lines(block + source.read())
    while block:
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline and lines.strip():
            yield from _read_lines(lines, reader, unit, line)
        line += lines.count(b"\n") + len(newline)
        block = source.read(BLOCK_BYTES)
    if rest.strip():
        yield from _read_lines(rest, reader, unit, line)


def _read_lines(lines: bytes, reader: JsonReader | None, unit: str, line: int) -> Iterator[pa.RecordBatch]:
    parse = reader.read if reader is not None else _infer_rows
    try:
        rows = parse(lines)
    except SchemaMismatchError as error:
        records = _records_of(lines, (match.end() for match in re.finditer(b"\n", lines)))
        problem, bad_line = _locate(error, lines, records, line, parse)
        place = "" if bad_line is None else f"{unit} {bad_line}: "
        raise SchemaMismatchError(f"{place}{_text_of(problem)}") from error
    yield from rows.to_batches()


def _infer_rows(lines: bytes) -> pa.Table:
    if not can_be_parsed_at_once(lines):
        raise SchemaMismatchError("the rows are not JSON objects; send one per line, or an array of objects")
    block = pa.json.ReadOptions(block_size=max(len(lines) + 1, 1024))
    return pa.json.read_json(io.BytesIO(lines), read_options=block)
