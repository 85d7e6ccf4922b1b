"""Rows in JSON: an array of objects, one object, or one object per line.

Arrow parses many lines at once. Values that it does not support, or reads differently from `schema.json_values`, are
parsed row by row, so the result is the same.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.json_values import decode_rows, decode_times, parse_json

_BLANKS: Final = " \t\r\n"
_SHOWN_CHARS_MAX: Final = 60
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}\s*n")
"""The first letter of a possible ``null`` after an object."""
_PLAIN_NAME: Final = re.compile(r"[\w .$-]+", re.ASCII)
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads rows of one table. ``defaults`` are the values of columns that a row lacks."""

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
                    f"the line {line[:_SHOWN_CHARS_MAX]!r} is not JSON ({error}); send one object per line"
                ) from error
        return decode_rows(rows, self.schema, self.defaults)

    def _read_at_once(self, lines: bytes) -> pa.Table | None:
        """Read the lines with Arrow; None if the rows could differ from those of `decode_rows`."""
        if not can_be_parsed_at_once(lines):
            return None
        folded = lines.lower()
        mentions = {name: _may_mention(folded, name) for name in self.schema.names}
        wire = {column.name: wire for column in self.schema if (wire := _wire_type(column.type)) is not None}
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
            return None  # several objects in a line
        columns = {name: rows.column(name) for name in wire}
        columns = {name: column for name, column in columns.items() if mentions[name] or not _is_null(column)}
        if not columns and rows.num_rows:
            return None
        if any(name in self.defaults and column.null_count for name, column in columns.items()):
            return None  # null or absent: Arrow does not say
        if not all(map(_is_finite, columns.values())):
            return None
        return pa.table({name: self._convert_column(name, column) for name, column in columns.items()})

    def _convert_column(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        target = self.schema.field(name).type
        if not _is_time(target):
            return column
        return pa.chunked_array([decode_times(chunk, target, name) for chunk in column.chunks], target)


def can_be_parsed_at_once(lines: bytes) -> bool:
    """Return whether Arrow's parser may read these lines: a ``null`` in place of an object crashes the process."""
    return lines.lstrip().startswith(b"{") and _NULL_AFTER_OBJECT.search(lines) is None


def json_lines(body: bytes) -> bytes:
    """Return an array of objects, or one object, as lines, each with the object's original text.

    Raises `SchemaMismatchError` for other or invalid JSON.
    """
    return "\n".join(json_objects(body)).encode()


def json_objects(body: bytes) -> list[str]:
    """Return the text of each object of an array, or of one object, each on one line. Raises as `json_lines`."""
    try:
        text = body.decode(json.detect_encoding(body))
        objects = list(_split_objects(text))
    except (ValueError, IndexError, RecursionError) as error:
        problem = "the array does not end" if isinstance(error, IndexError) else error
        raise SchemaMismatchError(f"request body is not JSON: {problem}; send an array of objects") from error
    if not all(element.startswith("{") for element in objects):
        raise SchemaMismatchError(
            'request body is valid JSON but not an array of objects; send an array of objects, such as [{"id": 1}]'
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
        raise ValueError(f"text behind the value, at character {end}")
    return _on_one_line(text[begin:end])


def _on_one_line(text: str) -> str:
    """Replace line breaks, which occur in JSON only between values: inside texts they are escaped."""
    return text.replace("\n", " ").replace("\r", " ")


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatchError(f"the rows are no UTF-8: {error}; send text in UTF-8") from error


def _may_mention(folded: bytes, name: str) -> bool:
    """Return whether lower-cased lines may contain the name. Names with special characters may be escaped."""
    return not _PLAIN_NAME.fullmatch(name) or f'"{name.lower()}"'.encode() in folded


def _wire_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type that Arrow's parser reads a column as; None if it does not support the column."""
    if _is_time(data_type):
        return pa.string()
    return data_type if _is_plain(data_type) else None


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_date(data_type) or pa.types.is_timestamp(data_type))


def _is_null(column: pa.ChunkedArray) -> bool:
    return bool(column.null_count == len(column))


def _is_plain(data_type: pa.DataType) -> bool:
    """Return whether Arrow's parser reads values of the type as this module does."""
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


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Return whether no number in the column is NaN or infinite; Arrow accepts such tokens, JSON has none."""
    return all(map(_is_finite_array, column.chunks))


def _is_finite_array(array: pa.Array) -> bool:
    types = pa.types
    if types.is_floating(array.type):
        return bool(np.isfinite(array.fill_null(0).to_numpy(zero_copy_only=False)).all())
    if types.is_list(array.type):
        return _is_finite_array(pc.list_flatten(array))
    if types.is_struct(array.type):
        return all(map(_is_finite_array, array.flatten()))
    return True
