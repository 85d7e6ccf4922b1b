"""Lossless conversion of Arrow and Python values to the canonical types of a table.

Single rows have a fast path: `size_of_values` recognises Python values that need no conversion. A writer buffers many
such rows and converts them to Arrow together.
"""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import is_any_binary, is_any_list, is_any_text
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import Column
from streamhouse_spark.schema.variant import as_variant, encode_variant, has_variant_fields, is_marked, is_variant

_ARROW_ERRORS: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    UnicodeEncodeError,
)
_IS = pa.types
_LOSSLESS: Final = {
    ("integer", "float"),
    ("integer", "decimal"),
    ("float", "integer"),
    ("decimal", "integer"),
    ("timestamp_ntz", "date"),
    ("struct", "variant"),
}
"""Pairs of type families for which Arrow's cast detects a loss."""
_INT32_MAX: Final = (1 << 31) - 1
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_ADD_ZONE: Final = "add a zone, or declare the column timestamp_ntz"
_DROP_ZONE: Final = "drop the zone explicitly, or declare the column timestamp"
_REMEDIES: Final = {
    ("timestamp_ntz", "timestamp"): _ADD_ZONE,
    ("timestamp", "timestamp_ntz"): _DROP_ZONE,
    ("string", "timestamp"): "parse the strings first",
    ("string", "timestamp_ntz"): "parse the strings first",
    ("string", "date"): "parse the strings first",
    ("string", "variant"): "parse the strings first (in SQL with parse_json)",
    ("variant", "struct"): "extract the fields first (in SQL with variant_get)",
}
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool, np.bool_),
    "integer": (numbers.Real,),
    "float": (numbers.Real,),
    "decimal": (decimal.Decimal, numbers.Integral),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "date": (dt.date,),
    "timestamp": (dt.datetime,),
    "timestamp_ntz": (dt.datetime,),
    "list": (list, tuple, np.ndarray),
    "map": (dict, list, tuple),
    "struct": (dict,),
}
_PYTHON_REMEDIES: Final = {
    "boolean": "give True or False",
    "integer": "give an int",
    "float": "give a float",
    "decimal": "give a decimal.Decimal, because floats are inexact",
    "string": "give a str",
    "binary": "give bytes",
    "date": "give a datetime.date",
    "timestamp": "give a datetime.datetime with a zone",
    "timestamp_ntz": "give a datetime.datetime without a zone",
    "list": "give a list",
    "map": "give a dict",
    "struct": "give a dict of field name and value",
}
NOT_PLAIN: Final = -1
SizeOf = Callable[[Any], int]
"""Returns the approximate bytes of a value, or `NOT_PLAIN` if the value needs conversion or is invalid."""


def refuse_column(table: str, column: str, problem: str) -> NoReturn:
    raise SchemaMismatchError(f"column '{column}' of {table} {problem}")


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts values of one column, or of a nested field, to a canonical type."""

    table: str
    path: str

    def cast(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        """Cast Arrow data of any type. Raises `SchemaMismatchError` if a value would be lost."""
        source = array.type
        types = pa.types
        if source.equals(target, check_metadata=True):
            return array
        if types.is_null(source):
            return pa.nulls(len(array), target)
        if types.is_dictionary(source):
            words = self.cast(array.dictionary, target)
            return pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()
        if types.is_run_end_encoded(source):
            return self.cast(pc.run_end_decode(array), target)
        if isinstance(source, pa.BaseExtensionType):
            return self.cast(array.storage, target)
        families = _family(source, self.path), _family(target, self.path)
        if families[0] != families[1] and families not in _LOSSLESS:
            remedy = _REMEDIES.get(families, "cast the values first")
            self._fail(f"has type {source} in the rows and {type_name(target)} in the table; {remedy}")
        try:
            return self._cast_value(array, target)
        except _ARROW_ERRORS as error:
            self._fail(
                f"has values of type {source} that do not fit {type_name(target)} without loss ({_first_line(error)})"
            )

    def from_python(self, values: list[Any], target: pa.DataType) -> pa.ChunkedArray:
        """Convert Python values, in several chunks if one array cannot hold them.

        Raises `SchemaMismatchError` for a value of another type family, and if a value would be lost.
        """
        if any(issubclass(kind, pa.Scalar) for kind in set(map(type, values))):
            return self._from_scalars(values, target)
        if is_variant(target):
            values = [None if value is None else self._encode(value) for value in values]
        else:
            self.check_python(values, target)
        try:
            return pa.chunked_array(list(self._build_arrays(values, target)), type=target)
        except (*_ARROW_ERRORS, pa.ArrowCapacityError) as error:
            self._fail(f"has values that do not fit {type_name(target)} ({_first_line(error)})")

    def _from_scalars(self, values: list[Any], target: pa.DataType) -> pa.ChunkedArray:
        """Convert values, some of which are Arrow scalars, such as dates beyond Python's range."""
        parts: list[pa.Array] = []
        for value in values:
            if isinstance(value, pa.Scalar):
                parts.append(self.cast(pa.array([value], value.type), target))
            else:
                parts += self.from_python([value], target).chunks
        return pa.chunked_array([pa.concat_arrays(parts)], target)

    def _encode(self, value: Any) -> dict[str, bytes]:
        try:
            return encode_variant(value)
        except (TypeError, ValueError, OverflowError) as error:
            self._fail(f"has a value that a variant cannot hold: {error}")

    def _build_arrays(self, values: list[Any], target: pa.DataType) -> Iterator[pa.Array]:
        """Convert the values, recursively in halves while they are too large for one array."""
        try:
            converted = pa.array(values, type=target)
        except pa.ArrowCapacityError:
            if len(values) <= 1:
                raise
            middle = len(values) // 2
            yield from self._build_arrays(values[:middle], target)
            yield from self._build_arrays(values[middle:], target)
        else:
            yield from converted.chunks if isinstance(converted, pa.ChunkedArray) else [converted]

    def _cast_value(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        source, types = array.type, pa.types
        if is_variant(target):
            if not has_variant_fields(array.type):
                self._fail(f"has type {array.type}, expected a struct of the binary fields value and metadata")
            return as_variant(array)
        if types.is_struct(target):
            return self._cast_struct(array, target)
        if types.is_list(target):
            return self._cast_list(array, target)
        if types.is_map(target):
            return self._cast_map(array, target)
        if types.is_integer(source) and types.is_decimal(target):
            # A direct cast requires digits for every value of the integer type, not only for the actual ones.
            return array.cast(pa.decimal256(20 + target.scale, target.scale)).cast(target)
        if types.is_large_string(source) or types.is_large_binary(source):
            return _from_zero(array).cast(target)
        if types.is_float64(source) and types.is_float32(target):
            return self._require_exact(array, array.cast(target))
        if types.is_timestamp(source) and types.is_date(target):
            return self._require_exact(array, array.cast(target))
        return array.cast(target)

    def _require_exact(self, array: pa.Array, result: pa.Array) -> pa.Array:
        # Arrow's cast rounds silently here.
        back, original = result.cast(array.type), array
        if pa.types.is_floating(array.type):
            is_number = pc.invert(pc.is_nan(array))
            back, original = back.filter(is_number), array.filter(is_number)
        if not pc.all(pc.equal(back, original), min_count=0).as_py():
            self._fail(
                f"has values of type {array.type} that {type_name(result.type)} cannot hold exactly; round them first"
            )
        return result

    def _cast_struct(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        positions = {field.name: position for position, field in enumerate(array.type)}
        fields = {field.name for field in target}
        for name in positions:
            if name not in fields:
                self._fail_field(name, fields)
        children = array.flatten()
        parts = [
            self._for_field(field.name).cast(children[positions[field.name]], field.type)
            if field.name in positions
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null())

    def _cast_list(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        # Arrow's cast is wrong for list views. In lists, it parses strings and drops zones.
        elements = self._for_field("element").cast(array.flatten(), target.value_type)
        lengths = pc.if_else(array.is_valid(), pc.list_value_length(array), 0).cast(pa.int32())
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=array.is_null())

    def _cast_map(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        keys = self._for_field("key").cast(array.keys.slice(first, last - first), target.key_type)
        items = self._for_field("value").cast(array.items.slice(first, last - first), target.item_type)
        offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=array.is_null())

    def _for_field(self, name: str) -> Conversion:
        return Conversion(self.table, f"{self.path}.{name}")

    def check_python(self, values: list[Any], target: pa.DataType) -> None:
        """Reject values that Arrow would convert with a silent loss, such as of zones or struct fields."""
        family = _family(target, self.path)
        allowed_types = _PYTHON_TYPES[family]
        for kind in set(map(type, values)):
            if kind is type(None):
                continue
            unwanted = (issubclass(kind, bool) and family != "boolean") or (
                family == "date" and issubclass(kind, dt.datetime)
            )
            if unwanted or not issubclass(kind, allowed_types):
                position = next(i for i, value in enumerate(values) if type(value) is kind)
                where = "" if "." in self.path else f" in row {position}"
                self._fail(
                    f"has a Python {kind.__name__}{where}, expected {type_name(target)}; {_PYTHON_REMEDIES[family]}"
                )
        if family in ("integer", "float"):
            self._check_numbers(values, target)
        elif family.startswith("timestamp"):
            self._check_zones(values, zoned=family == "timestamp")
        elif family in ("list", "map", "struct"):
            self._check_nested([value for value in values if value is not None], target)

    def _check_zones(self, values: list[Any], *, zoned: bool) -> None:
        for value in values:
            if value is not None and (value.tzinfo is not None) is not zoned:
                actual, remedy = ("no zone", _ADD_ZONE) if zoned else ("a zone", _DROP_ZONE)
                expected = "timestamp" if zoned else "timestamp_ntz"
                self._fail(f"has a time with {actual}, expected {expected}; {remedy}")

    def _check_numbers(self, values: list[Any], target: pa.DataType) -> None:
        floats = [float(value) for value in values if isinstance(value, float | np.floating)]
        if pa.types.is_integer(target):
            inexact = next((value for value in floats if not value.is_integer()), None)  # such as NaN and infinity
        elif pa.types.is_float32(target):
            inexact = next((value for value in floats if _FLOAT32_MAX < abs(value) < np.inf), None)
        else:
            inexact = None
        if inexact is not None:
            self._fail(f"has the value {inexact}, which {type_name(target)} cannot hold")

    def _check_nested(self, values: list[Any], target: pa.DataType) -> None:
        types = pa.types
        if types.is_list(target):
            self._for_field("element").check_python(list(chain(*values)), target.value_type)
        elif types.is_map(target):
            pairs = list(chain(*(value.items() if isinstance(value, dict) else value for value in values)))
            for pair in pairs:
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    self._fail(
                        f"has a {type(pair).__name__} in a map, expected pairs of a key and a value; give a dict"
                    )
            self._for_field("key").check_python([p[0] for p in pairs], target.key_type)
            self._for_field("value").check_python([p[1] for p in pairs], target.item_type)
        else:
            fields = {field.name for field in target}
            for name in dict.fromkeys(chain(*values)):
                if name not in fields:
                    self._fail_field(name, fields)
            for field in target:
                self._for_field(field.name).check_python([value.get(field.name) for value in values], field.type)

    def _fail_field(self, name: str, fields: set[str]) -> NoReturn:
        listed = ", ".join(sorted(fields))
        self._fail(f"has a field {name!r} that is missing from the table's struct; its fields are {listed}")

    def _fail(self, problem: str) -> NoReturn:
        refuse_column(self.table, self.path, problem)


def _family(arrow: pa.DataType, column: str) -> str:
    """Return the family of a type: types of one family differ in width, unit or layout only."""
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is not None else "timestamp_ntz"
    for family, belongs in _FAMILIES:
        if belongs(arrow):
            return family
    raise SchemaMismatchError(
        f"column '{column}' has the Arrow type {arrow}, which a table cannot store; cast it first"
    )


def _from_zero(array: pa.Array) -> pa.Array:
    """Copy a slice whose data is beyond the first 2 GiB of its buffer, because Arrow cannot cast such a slice."""
    offsets = np.frombuffer(array.buffers()[1], np.int64, array.offset + len(array) + 1) if len(array) else [0]
    return array if offsets[-1] <= _INT32_MAX else array.take(pa.array(np.arange(len(array))))


_FAMILIES: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("boolean", _IS.is_boolean),
    ("integer", _IS.is_integer),
    ("float", _IS.is_floating),
    ("decimal", _IS.is_decimal),
    ("string", is_any_text),
    ("binary", is_any_binary),
    ("date", _IS.is_date),
    ("list", is_any_list),
    ("map", _IS.is_map),
    ("variant", is_marked),
    ("struct", _IS.is_struct),
)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def size_of_values(column: Column) -> SizeOf | None:
    """Return the `SizeOf` function for non-null values of a column, or None if all its values need conversion."""
    kind, types = column.type, pa.types
    if column.size is not None:
        return None
    if types.is_signed_integer(kind):
        return _integers(kind.bit_width)
    if types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return _times(None if kind.tz is None else dt.UTC)
    for is_kind, size_of in _SIZES:
        if is_kind(kind):
            return size_of
    return None


def _integers(num_bits: int) -> SizeOf:
    end = 1 << (num_bits - 1)
    return lambda value: num_bits // 8 if type(value) is int and -end <= value < end else NOT_PLAIN


def _decimals(precision: int, scale: int) -> SizeOf:
    def size_of(value: Any) -> int:
        if type(value) is not decimal.Decimal:
            return NOT_PLAIN
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):  # NaN or infinity
            return NOT_PLAIN
        fits = -scale <= exponent <= 0 and len(digits) + exponent <= precision - scale
        return 16 if fits else NOT_PLAIN

    return size_of


def _texts(value: Any) -> int:
    if type(value) is not str:
        return NOT_PLAIN
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return NOT_PLAIN


def _times(zone: dt.tzinfo | None) -> SizeOf:
    return lambda value: 8 if type(value) is dt.datetime and value.tzinfo is zone else NOT_PLAIN


_SIZES: Final[tuple[tuple[Callable[[pa.DataType], bool], SizeOf], ...]] = (
    (pa.types.is_string, _texts),
    (pa.types.is_binary, lambda value: len(value) if type(value) is bytes else NOT_PLAIN),
    (pa.types.is_float64, lambda value: 8 if type(value) is float else NOT_PLAIN),
    (pa.types.is_boolean, lambda value: 1 if type(value) is bool else NOT_PLAIN),
    (pa.types.is_date32, lambda value: 4 if type(value) is dt.date else NOT_PLAIN),
)
