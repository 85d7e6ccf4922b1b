"""Lossless JSON encoding and decoding of rows, with one JSON form per type (`FORMS`).

All rows in JSON are written by `encode_rows`, and `decode_rows` reads all that it writes. A JSON string never becomes a
number, and a number is converted to a decimal without rounding.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import is_any_binary, is_any_list, is_any_text
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import add_year_sign
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.variant import VARIANT, encode_variant, is_variant, readable_value

_ENCODED_ROWS: Final = 16_384
"""Rows that are converted to Python values together."""
_SHOWN_CHARS_MAX: Final = 60
_VARIANT_DIGITS_MAX: Final = 38
_NOT_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_NOT_FINITE_TEXTS: Final = {text: name for name, text in _NOT_FINITE.items()}
_DECIMAL: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,4})?", re.ASCII)
_WIDE_TIME: Final = re.compile(
    r"(?P<year>[+-]\d{4,7})-(?P<day>\d\d-\d\d)"
    r"(?P<time>[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_NOT_A_TIME: Final = "NaT"
_UNITS_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_ARROW_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)


def json_text(value: Any) -> str:
    return json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False)


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types, without loss.

    Decimals, NaN and infinities become strings, bytes base64, times ISO 8601. A map becomes an object if its keys are
    strings, else a list of pairs.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _NOT_FINITE_TEXTS[str(value)]
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Mapping():
            return {str(k): to_json_value(v) for k, v in value.items()}
        case list() if value and all(isinstance(item, tuple) for item in value):
            if all(isinstance(key, str) for key, _ in value):
                return {key: to_json_value(item) for key, item in value}
            return [[to_json_value(key), to_json_value(item)] for key, item in value]
        case list() | tuple():
            return [to_json_value(item) for item in value]
    return str(value)


class JsonNumber(str):
    """The text of a JSON number with a fraction or an exponent. The column's type determines its value."""

    __slots__ = ()


_MISSING: Final = object()
"""The value of a column that an object omits."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The JSON form of a type's values."""

    type_name: str
    json_form: str
    holds: Callable[[pa.DataType], bool]
    encode: Callable[[pa.Array], list[Any]]
    decode: Callable[[list[Any], pa.DataType, str], pa.Array]


# -- objects ----------------------------------------------------------------------------------------------------------


def parse_json(text: str) -> Any:
    """Parse strict JSON, with numbers as `JsonNumber` or int.

    Raises ``ValueError`` for invalid JSON, unquoted NaN and Infinity, and a duplicate name in an object, and
    ``RecursionError`` for nesting that is too deep.
    """
    return _DECODER.decode(text)


def _unique_pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {_format_value(twice)} twice")
    return value


def _not_a_number(text: str) -> NoReturn:
    raise ValueError(f'{text} is not JSON, write "{text}"')


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_pairs, parse_float=JsonNumber, parse_constant=_not_a_number, strict=True
)


def encode_rows(rows: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict that ``json.dumps`` can write."""
    names = rows.schema.names
    batches = rows.to_batches(max_chunksize=_ENCODED_ROWS) if isinstance(rows, pa.Table) else [rows]
    for batch in batches:
        columns = [encode_values(column, name) for column, name in zip(batch.columns, names, strict=True)]
        if not columns:
            yield from ({} for _ in range(batch.num_rows))
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))


def encode_row_texts(rows: pa.Table | pa.RecordBatch) -> Iterator[str]:
    """Yield each row as a JSON string."""
    for row in encode_rows(rows):
        yield json.dumps(row, ensure_ascii=False, allow_nan=False)


def decode_rows(rows: Sequence[Any], schema: pa.Schema, defaults: Mapping[str, pa.Scalar]) -> pa.Table:
    """Convert objects of `parse_json` to rows, with those columns of ``schema`` that occur in an object.

    Names match case-insensitively. Objects that omit a column get its default, or null. Unknown names become additional
    columns, which the table rejects. Raises `SchemaMismatchError` for a value that is not an object, a duplicate column
    in an object, and a value that does not have the form of its type.
    """
    columns: dict[str, list[Any]] = {}
    matched_names: dict[str, str] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise SchemaMismatchError(
                f"a row is the JSON value {_format_value(row)}, expected an object; send one object per row"
            )
        for name, value in row.items():
            column = matched_names.get(name)
            if column is None:
                column = matched_names[name] = _match(name, schema.names) or name
                columns.setdefault(column, [_MISSING] * len(rows))
            values = columns[column]
            if values[place] is not _MISSING:
                raise SchemaMismatchError(f"a row has column '{column}' twice, in different case; keep one of them")
            values[place] = value
    if not columns and rows:
        columns[schema.names[0]] = [_MISSING] * len(rows)
    arrays = {}
    for name, values in columns.items():
        place = schema.get_field_index(name)
        arrays[name] = (
            _infer_array(values) if place < 0 else _with_default(values, schema.field(place), defaults.get(name))
        )
    return pa.table(arrays)


def _infer_array(values: list[Any]) -> pa.Array:
    scalars = [None if value is _MISSING or isinstance(value, list | dict) else value for value in values]
    scalars = [float(value) if isinstance(value, JsonNumber) else value for value in scalars]
    try:
        return pa.array(scalars)
    except _ARROW_ERRORS:
        return pa.nulls(len(values))


def _with_default(values: list[Any], field: pa.Field, default: pa.Scalar | None) -> pa.Array:
    missing = [value is _MISSING for value in values]
    if not any(missing):
        return decode_values(values, field.type, field.name)
    array = decode_values([None if value is _MISSING else value for value in values], field.type, field.name)
    return array if default is None or not default.is_valid else pc.if_else(pa.array(missing), default, array)


def _match(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is equal, or else equal case-insensitively."""
    names = list(names)
    if name in names:
        return name
    folded = name.casefold()
    return next((candidate for candidate in names if candidate.casefold() == folded), None)


# -- values -----------------------------------------------------------------------------------------------------------


def encode_values(array: pa.Array, name: str = "") -> list[Any]:
    """Convert the values of a column to the JSON form of its type."""
    if is_variant(array.type):
        return [None if value is None else to_json_value(readable_value(value, name)) for value in array.to_pylist()]
    if pa.types.is_dictionary(array.type):
        return encode_values(array.dictionary_decode(), name)
    if pa.types.is_run_end_encoded(array.type):
        return encode_values(pc.run_end_decode(array), name)
    if isinstance(array.type, pa.BaseExtensionType):
        return encode_values(array.storage, name)
    form = find_form(array.type)
    return _to_plain_list(array) if form is None else form.encode(array)


def decode_values(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    """Convert values of `parse_json` to a column. Raises `SchemaMismatchError` with ``path`` and the value."""
    form = find_form(data_type)
    if form is None:
        raise SchemaMismatchError(f"column '{path}' has type {data_type}, which has no JSON form; send Arrow")
    return form.decode(values, data_type, path)


def find_form(data_type: pa.DataType) -> JsonForm | None:
    return next((form for form in FORMS if form.holds(data_type)), None)


def _fail(path: str, value: Any, expected: str) -> NoReturn:
    raise SchemaMismatchError(f"column '{path}' has {_format_value(value)}, expected {expected}; correct the value")


def _format_value(value: Any) -> str:
    """Format a JSON value for an error."""
    try:
        text = value if isinstance(value, JsonNumber) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "a value that is nested too deeply"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _build(
    values: list[Any], path: str, expected: str, convert: Callable[[list[Any]], pa.Array], *kinds: type
) -> pa.Array:
    """Convert values of these Python types and nulls. Raises `SchemaMismatchError` for the first invalid value."""
    wrong = {type(value) for value in values} - {*kinds, type(None)}
    if wrong:
        _fail(path, next(value for value in values if type(value) in wrong), expected)
    try:
        return convert(values)
    except _ARROW_ERRORS:
        for value in values:
            try:
                convert([value])
            except _ARROW_ERRORS:
                _fail(path, value, expected)
        raise


def _to_pylist(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _to_plain_list(array: pa.Array) -> list[Any]:
    return list(map(to_json_value, _to_pylist(array)))


def _decode_as(kind: type, expected: str) -> Callable[[list[Any], pa.DataType, str], pa.Array]:
    """Return the decoder of values whose JSON and Python types are the same."""

    def decode(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
        form = expected.format(bits=data_type.bit_width) if kind is int else expected
        return _build(values, path, form, lambda items: pa.array(items, data_type), kind)

    return decode


def _encode_floats(array: pa.Array) -> list[Any]:
    values = _to_pylist(array)
    if pc.all(pc.is_finite(array.cast(pa.float64())), min_count=0).as_py():
        return values
    return [_NOT_FINITE_TEXTS.get(str(value), value) for value in values]


def _decode_floats(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    expected = f'a number of {data_type.bit_width} bits, or "NaN", "Infinity" or "-Infinity"'

    def convert(items: list[Any]) -> pa.Array:
        texts = [_NOT_FINITE[value] if type(value) is str else None if value is None else str(value) for value in items]
        # Arrow parses the text directly. A Python float would be rounded twice.
        values = pa.array(texts, pa.string()).cast(data_type)
        is_text = pa.array([type(value) is str for value in items], pa.bool_())
        if not pc.all(pc.or_(pc.is_finite(values), is_text), min_count=0).as_py():
            raise ValueError("too large")
        return values

    try:
        return _build(values, path, expected, convert, int, JsonNumber, str)
    except KeyError:
        bad = next(value for value in values if type(value) is str and value not in _NOT_FINITE)
        _fail(path, bad, expected)


def _decode_decimals(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    def convert(items: list[Any]) -> pa.Array:
        return pa.array([None if value is None else _exact(value) for value in items], data_type)

    expected = f"a number of at most {data_type.precision} digits, {data_type.scale} of them after the decimal point"
    return _build(values, path, expected, convert, int, JsonNumber, str)


def _exact(value: Any) -> Decimal:
    if not _DECIMAL.fullmatch(str(value)):
        raise ValueError("not a number")
    return Decimal(str(value))


def _decode_binaries(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    def convert(items: list[Any]) -> pa.Array:
        return pa.array([None if v is None else binascii.a2b_base64(v, strict_mode=True) for v in items], data_type)

    return _build(values, path, 'bytes in base64, such as "AAEC/w=="', convert, str)


def _encode_times(array: pa.Array) -> list[Any]:
    """Format dates and timestamps of any year in ISO 8601. Python supports years up to 9999 only."""
    if pa.types.is_date64(array.type):
        array = array.cast(pa.date32())
    is_day = pa.types.is_date32(array.type)
    unit = "D" if is_day else array.type.unit
    integers = array.cast(pa.int32() if is_day else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    texts = np.datetime_as_string(integers.astype(f"datetime64[{unit}]")).tolist()
    if _NOT_A_TIME in texts:  # numpy formats the smallest integer as NaT
        texts = [_least_time(unit) if text == _NOT_A_TIME else text for text in texts]
    zero = {"ms": ".000", "us": ".000000", "ns": ".000000000"}.get(unit)
    zone = "Z" if not is_day and array.type.tz is not None else ""
    if zero is not None:
        texts = [text.removesuffix(zero) for text in texts]
    valid = array.is_valid().to_pylist()
    return [add_year_sign(text) + zone if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def decode_times(texts: pa.Array, data_type: pa.DataType, path: str) -> pa.Array:
    """Parse dates and timestamps in ISO 8601. A zone is required if the type has a zone, else rejected."""
    try:
        return texts.cast(data_type)
    except pa.ArrowException:
        values = [None if text is None else _time(text, data_type, path) for text in texts.to_pylist()]
    return pa.array(values, pa.int32() if pa.types.is_date(data_type) else pa.int64()).cast(data_type)


def _least_time(unit: str) -> str:
    days, remainder = divmod(np.iinfo(np.int64).min, _UNITS_PER_DAY[unit])
    day = np.datetime_as_string(np.array(days, "datetime64[D]"))
    return f"{day}{np.datetime_as_string(np.array(remainder, f'datetime64[{unit}]')).item()[len('1970-01-01') :]}"


def _time(text: str, data_type: pa.DataType, path: str) -> int:
    is_day = pa.types.is_date(data_type)
    integers = pa.int32() if is_day else pa.int64()
    with suppress(pa.ArrowException):
        return int(pa.array([text]).cast(data_type).cast(integers)[0].as_py())
    match = _WIDE_TIME.fullmatch(text)
    zoned = not is_day and data_type.tz is not None
    expected = "a day such as 2026-01-31" if is_day else f"a time such as 2026-01-31T12:00:00{'Z' if zoned else ''}"
    hint = "" if is_day else ", with Z or an offset" if zoned else ", without a zone"
    if match is None or (match["zone"] is not None) is not zoned or (is_day and match["time"]):
        _fail(path, text, expected + hint)
    try:
        days = np.array(f"{match['year'].removeprefix('+')}-{match['day']}", "datetime64[D]").astype(np.int64).item()
        time_us = pa.array([f"1970-01-01{match['time'] or ''}"]).cast(pa.timestamp("us")).cast(pa.int64())[0].as_py()
        ticks = days if is_day else days * _UNITS_PER_DAY["us"] + time_us - _offset_us(match["zone"])
        return int(pa.scalar(ticks, integers).as_py())
    except (ValueError, OverflowError, pa.ArrowException):
        _fail(path, text, expected + hint)


def _offset_us(zone: str | None) -> int:
    if zone in (None, "Z"):
        return 0
    digits = zone.replace(":", "")
    minutes = int(digits[1:3]) * 60 + int(digits[3:5])
    return (-minutes if digits[0] == "-" else minutes) * 60_000_000


def _decode_times(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    expected = "a day in ISO 8601" if pa.types.is_date(data_type) else "a time in ISO 8601"
    texts = _build(values, path, expected, lambda some: pa.array(some, pa.string()), str)
    return decode_times(texts, data_type, path)


# -- nested values ----------------------------------------------------------------------------------------------------


def _ranges(array: pa.Array) -> tuple[int, int, list[tuple[int, int] | None]]:
    """Return the first and the last child offset of lists or maps, and the child range of each; None for null."""
    offsets = array.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    bounds = zip((offsets[:-1] - first).tolist(), (offsets[1:] - first).tolist(), strict=True)
    valid = array.is_valid().to_pylist()
    return first, last, [bound if is_valid else None for bound, is_valid in zip(bounds, valid, strict=True)]


def _encode_lists(array: pa.Array) -> list[Any]:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        array = array.cast(pa.list_(array.type.value_field))
    first, last, ranges = _ranges(array)
    elements = encode_values(array.values.slice(first, last - first))
    return [None if bounds is None else elements[slice(*bounds)] for bounds in ranges]


def _encode_maps(array: pa.Array) -> list[Any]:
    first, last, ranges = _ranges(array)
    keys = encode_values(array.keys.slice(first, last - first))
    items = encode_values(array.items.slice(first, last - first))
    as_objects = is_any_text(array.type.key_type)
    values: list[Any] = []
    for bounds in ranges:
        if bounds is None:
            values.append(None)
            continue
        pairs = list(zip(keys[slice(*bounds)], items[slice(*bounds)], strict=True))
        entries = dict(pairs) if as_objects else {}
        values.append(entries if as_objects and len(entries) == len(pairs) else [list(pair) for pair in pairs])
    return values


def _encode_structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [encode_values(child, name) for child, name in zip(array.flatten(), names, strict=True)]
    rows = zip(*columns, strict=True) if columns else (() for _ in range(len(array)))
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _offsets(values: list[Any]) -> pa.Array:
    lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _require(values: list[Any], path: str, expected: str, *kinds: type) -> None:
    bad = next((value for value in values if value is not None and type(value) not in kinds), None)
    if bad is not None:
        _fail(path, bad, expected)


def _decode_lists(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    _require(values, path, "an array", list)
    elements = [element for value in values if value is not None for element in value]
    children = decode_values(elements, data_type.value_type, f"{path}.element")
    return pa.ListArray.from_arrays(_offsets(values), children, type=data_type, mask=_nulls(values))


def _decode_maps(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    by_names = is_any_text(data_type.key_type)
    expected = "an object, or an array of pairs [key, value]" if by_names else "an array of pairs [key, value]"
    _require(values, path, expected, *((dict, list) if by_names else (list,)))
    entries = [list(value.items()) if isinstance(value, dict) else value for value in values]
    pairs = [pair for entry in entries if entry is not None for pair in entry]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or pair[0] is None:
            _fail(path, pair, expected)
    keys = decode_values([key for key, _ in pairs], data_type.key_type, f"{path}.key")
    items = decode_values([item for _, item in pairs], data_type.item_type, f"{path}.value")
    return pa.MapArray.from_arrays(_offsets(entries), keys, items, type=data_type, mask=_nulls(values))


def _decode_structs(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    _require(values, path, "an object", dict)
    names = [field.name for field in data_type]
    columns: dict[str, list[Any]] = {name: [None] * len(values) for name in names}
    for place, value in enumerate(values):
        used_names = set()
        for field_name, item in (value or {}).items():
            name = _match(field_name, names)
            if name is None:
                _fail(path, {field_name: item}, f"an object with the names {', '.join(names[:30])}")
            if name in used_names:
                _fail(path, {field_name: item}, f"an object with the name {name} once")
            used_names.add(name)
            columns[name][place] = item
    fields = list(data_type)
    children = [decode_values(columns[field.name], field.type, f"{path}.{field.name}") for field in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(values))


def _decode_variants(values: list[Any], data_type: pa.DataType, path: str) -> pa.Array:
    return pa.array([encode_json_variant(value, path) for value in values], VARIANT).cast(data_type)


def encode_json_variant(value: Any, path: str) -> dict[str, bytes] | None:
    """Encode a value of `parse_json` as a variant; null becomes None.

    Numbers without an exponent remain exact, as in Spark's ``parse_json``.
    """
    try:
        return None if value is None else encode_variant(_with_numbers(value))
    except (ValueError, OverflowError, RecursionError) as error:
        raise SchemaMismatchError(
            f"column '{path}' has a value that a variant cannot hold: {error}; shorten it"
        ) from error


def _with_numbers(value: Any) -> Any:
    match value:
        case JsonNumber():
            digits = value.lstrip("-").replace(".", "")
            is_exact = digits.isdigit() and len(digits) <= _VARIANT_DIGITS_MAX
            return Decimal(value) if is_exact else float(value)
        case dict():
            return {name: _with_numbers(part) for name, part in value.items()}
        case list():
            return [_with_numbers(part) for part in value]
    return value


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_date(data_type) or pa.types.is_timestamp(data_type))


FORMS: Final = (
    JsonForm("BOOLEAN", "true, false", pa.types.is_boolean, _to_pylist, _decode_as(bool, "true or false")),
    JsonForm("TINYINT to BIGINT", "whole number", pa.types.is_integer, _to_pylist,
         _decode_as(int, "a whole number of {bits} bits")),
    JsonForm("FLOAT, DOUBLE", 'number, or "NaN", "Infinity", "-Infinity"', pa.types.is_floating, _encode_floats,
         _decode_floats),
    JsonForm("DECIMAL", "string with all digits; numbers are also read exactly", pa.types.is_decimal, _to_plain_list,
         _decode_decimals),
    JsonForm("STRING, CHAR, VARCHAR", "string", is_any_text, _to_pylist, _decode_as(str, "a string")),
    JsonForm("BINARY", "string in base64", is_any_binary, _to_plain_list, _decode_binaries),
    JsonForm("DATE, TIMESTAMP, TIMESTAMP_NTZ", "string in ISO 8601", _is_time, _encode_times, _decode_times),
    JsonForm("ARRAY", "array", is_any_list, _encode_lists, _decode_lists),
    JsonForm("MAP", "object if keys are STRING, else array of pairs", pa.types.is_map, _encode_maps, _decode_maps),
    JsonForm("VARIANT", "any value", is_variant, _to_pylist, _decode_variants),
    JsonForm("STRUCT", "object", pa.types.is_struct, _encode_structs, _decode_structs),
)  # fmt: skip
"""The types of tables with their JSON forms. The first entry that holds a type applies."""
