"""Variants in rows that come as text: members of JSON objects, and fields of CSV that are JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.variant import VARIANT, is_variant
from streamhouse_spark.schema.variant_values import encoded

_DIGITS_MAX: Final = 38
_BLANKS: Final = re.compile(r"[ \t\r\n]*")


def variant_columns(schema: pa.Schema | None) -> dict[str, str]:
    """Return the names of the VARIANT columns by their names in small letters."""
    return {field.name.casefold(): field.name for field in schema or () if is_variant(field.type)}


def json_batches(
    lines: bytes, names: Mapping[str, str], parsed: Callable[[bytes], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Read lines of JSON objects: the members of these columns, see `variant_columns`, as variants, and all others by
    ``parsed``, from their own text.

    A null, or no member, is null, and no variant of JSON's null. Numbers are read as Spark's ``parse_json`` does:
    exactly where they are written without an exponent. Raises `SchemaMismatchError` for a line that is no object, or
    has a member twice.
    """
    found: dict[str, list[Any]] = {name: [] for name in names}
    rest: list[str] = []
    for line in filter(str.strip, lines.decode().split("\n")):
        others = [f'"{_NUMBER}":{len(rest)}']
        for name, value, member in _members(line):
            if (given := found.get(name.casefold())) is None:
                others.append(member)
            elif len(given) > len(rest):
                raise SchemaMismatchError(f"the line {line[:60]!r} has the column '{name}' twice; keep one")
            else:
                given.append(_variant(value, name))
        rest.append("{" + ",".join(others) + "}")
        for values in found.values():
            values.extend([None] * (len(rest) - len(values)))
    for batch in parsed("\n".join(rest).encode()):
        rows = batch.column(batch.schema.get_field_index(_NUMBER)).to_pylist()
        columns = [pa.array([found[name][row] for row in rows], VARIANT) for name in names]
        plain = batch.drop_columns([_NUMBER])
        fields = [*plain.schema, *(pa.field(name, VARIANT) for name in names.values())]
        yield pa.RecordBatch.from_arrays([*plain.columns, *columns], schema=pa.schema(fields))


_NUMBER: Final = "__streamhouse_line"
"""A member that each line gets, by which its variants are found again."""


def _members(line: str) -> Iterator[tuple[str, Any, str]]:
    """Return name, value and text of each member of an object."""
    try:
        at = _after_blanks(line, 0)
        if line[at] != "{":
            raise ValueError("no object")
        at = _after_blanks(line, at + 1)
        while line[at] != "}":
            begin = at
            name, at = _DECODER.raw_decode(line, at)
            at = _after_blanks(line, at)
            if not isinstance(name, str) or line[at] != ":":
                raise ValueError("no member")
            value, at = _DECODER.raw_decode(line, _after_blanks(line, at + 1))
            yield name, value, line[begin:at]
            at = _after_blanks(line, at)
            if line[at] == ",":
                at = _after_blanks(line, at + 1)
            elif line[at] != "}":
                raise ValueError("no comma")
        if line[at + 1 :].strip():
            raise ValueError("more behind it")
    except (ValueError, IndexError, RecursionError) as error:
        raise SchemaMismatchError(f"the line {line[:60]!r} is no JSON object ({error}); send one a line") from error


def _after_blanks(line: str, at: int) -> int:
    found = _BLANKS.match(line, at)
    return at if found is None else found.end()


def _number(text: str) -> Any:
    digits = text.lstrip("-").replace(".", "")
    return Decimal(text) if digits.isdigit() and len(digits) <= _DIGITS_MAX else float(text)


_DECODER: Final = json.JSONDecoder(parse_float=_number)


def csv_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types as which columns are read from CSV: variants as texts."""
    return {field.name: pa.string() if is_variant(field.type) else field.type for field in schema}


def parsed_variants(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows of CSV with the JSON in these columns as variants. Raises `SchemaMismatchError` for other texts."""
    for place, field in enumerate(batch.schema):
        if field.name.casefold() in names:
            values = [None if text is None else _of_text(text, field.name) for text in batch.column(place).to_pylist()]
            batch = batch.set_column(place, field.name, pa.array(values, VARIANT))
    return batch


def _of_text(text: str, name: str) -> dict[str, bytes] | None:
    try:
        return _variant(_DECODER.decode(text), name)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"column '{name}' has {text[:60]!r}, which is no JSON ({error}); quote it") from error


def _variant(value: Any, name: str) -> dict[str, bytes] | None:
    try:
        return None if value is None else encoded(value)
    except (ValueError, OverflowError) as error:
        raise SchemaMismatchError(f"column '{name}' has a value that no variant can be: {error}; shorten it") from error
