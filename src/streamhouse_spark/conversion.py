"""Values of other types → the canonical types of a table, wherever nothing can be lost."""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.ddl import type_name
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema import canonical_type


def refuse_column(table: str, column: str, problem: str) -> NoReturn:
    raise SchemaMismatchError(f"column '{column}' of {table} {problem}")


_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Values of one column, or of a field inside it, to a canonical type."""

    table: str
    path: str

    def cast(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        """Arrow data of any type. Raises `SchemaMismatchError` where a value would be lost."""
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
        self._check_family(source, target)
        try:
            return self._cast_value(array, target)
        except _ARROW_ERRORS as error:
            self._fail(
                f"has values of type {source} that do not fit {type_name(target)} without loss ({_first_line(error)})"
            )

    def from_python(self, values: list[Any], target: pa.DataType) -> pa.Array:
        """Python values. Raises `SchemaMismatchError` where one is of another kind or would be lost."""
        self.check_python(values, target)
        try:
            return pa.array(values, type=target)
        except _ARROW_ERRORS as error:
            self._fail(f"has values that do not fit {type_name(target)} ({_first_line(error)})")

    def _cast_value(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        source, types = array.type, pa.types
        if types.is_struct(target):
            return self._cast_struct(array, target)
        if types.is_list(target):
            return self._cast_list(array, target)
        if types.is_integer(source) and types.is_decimal(target):
            # A direct cast wants room for every value of the integer type, not only for those that are there.
            return array.cast(pa.decimal256(20 + target.scale, target.scale)).cast(target)
        if types.is_float64(source) and types.is_float32(target):
            return self._exact(array, array.cast(target))
        if types.is_timestamp(source) and types.is_date(target):
            return self._exact(array, array.cast(target))
        return array.cast(target)

    def _exact(self, array: pa.Array, result: pa.Array) -> pa.Array:
        # Arrow's own cast rounds here without a word.
        back, given = result.cast(array.type), array
        if pa.types.is_floating(array.type):
            is_number = pc.invert(pc.is_nan(array))
            back, given = back.filter(is_number), array.filter(is_number)
        if not pc.all(pc.equal(back, given), min_count=0).as_py():
            self._fail(
                f"has values of type {array.type} that {type_name(result.type)} cannot hold exactly; round them first"
            )
        return result

    def _cast_struct(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        given = {field.name: position for position, field in enumerate(array.type)}
        fields = {field.name for field in target}
        for name in given:
            if name not in fields:
                self._fail(f"has a field '{name}' that the table's struct lacks; its fields are {_listed(fields)}")
        children = array.flatten()
        parts = [
            Conversion(self.table, f"{self.path}.{field.name}").cast(children[given[field.name]], field.type)
            if field.name in given
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null())

    def _cast_list(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        plain = array.cast(pa.list_(array.type.value_type))
        first, last = plain.offsets[0].as_py(), plain.offsets[-1].as_py()
        elements = Conversion(self.table, f"{self.path}.element").cast(
            plain.values.slice(first, last - first),
            target.value_type,
        )
        offsets = pc.subtract(plain.offsets, pa.scalar(first, pa.int32()))
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=plain.is_null())

    def _check_family(self, source: pa.DataType, target: pa.DataType) -> None:
        pair = _family(source, self.path), _family(target, self.path)
        if pair[0] != pair[1] and pair not in _LOSSLESS:
            remedy = _REMEDIES.get(pair, "cast the values first")
            self._fail(f"has type {source} in the rows and {type_name(target)} in the table; {remedy}")

    def check_python(self, values: list[Any], target: pa.DataType) -> None:
        """Refuse what Arrow would convert without a word: zones dropped, days counted from 1970, fields left out."""
        family = _family(target, self.path)
        wanted = _PYTHON_TYPES[family]
        for kind in set(map(type, values)):
            if kind is type(None):
                continue
            unwanted = (issubclass(kind, bool) and family != "boolean") or (
                family == "date" and issubclass(kind, dt.datetime)
            )
            if unwanted or not issubclass(kind, wanted):
                position = next(i for i, value in enumerate(values) if type(value) is kind)
                where = "" if "." in self.path else f" in row {position}"
                self._fail(
                    f"has a Python {kind.__name__}{where}, which is no {type_name(target)}; {_PYTHON_REMEDIES[family]}"
                )
        if family.startswith("timestamp"):
            self._check_zones(values, zoned=family == "timestamp")
        elif family in ("list", "map", "struct"):
            self._check_nested([value for value in values if value is not None], target)

    def _check_zones(self, values: list[Any], *, zoned: bool) -> None:
        for value in values:
            if value is not None and (getattr(value, "tzinfo", None) is not None) is not zoned:
                found, remedy = ("no zone", _ADD_ZONE) if zoned else ("a zone", _DROP_ZONE)
                self._fail(f"has a time with {found}, {'a timestamp' if zoned else 'timestamp_ntz'} here; {remedy}")

    def _check_nested(self, values: list[Any], target: pa.DataType) -> None:
        types = pa.types
        if types.is_list(target):
            Conversion(self.table, f"{self.path}.element").check_python(list(chain(*values)), target.value_type)
        elif types.is_map(target):
            pairs = list(chain(*(value.items() if isinstance(value, dict) else value for value in values)))
            Conversion(self.table, f"{self.path}.key").check_python([p[0] for p in pairs], target.key_type)
            Conversion(self.table, f"{self.path}.value").check_python([p[1] for p in pairs], target.item_type)
        else:
            fields = {field.name for field in target}
            for name in dict.fromkeys(chain(*values)):
                if name not in fields:
                    self._fail(f"has a field {name!r} that the table's struct lacks; its fields are {_listed(fields)}")
            for field in target:
                inner = Conversion(self.table, f"{self.path}.{field.name}")
                inner.check_python([value.get(field.name) for value in values], field.type)

    def _fail(self, problem: str) -> NoReturn:
        refuse_column(self.table, self.path, problem)


def _family(arrow: pa.DataType, column: str) -> str:
    """What kind of values a type has, whatever their width."""
    canonical = canonical_type(arrow, column=column)
    types = pa.types
    if types.is_timestamp(canonical):
        return "timestamp" if canonical.tz is not None else "timestamp_ntz"
    if types.is_integer(arrow):
        return "integer"
    for family, belongs in _FAMILIES:
        if belongs(canonical):
            return family
    raise AssertionError(f"no family for the canonical type {canonical}")


_FAMILIES: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("boolean", pa.types.is_boolean),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("string", pa.types.is_string),
    ("binary", pa.types.is_binary),
    ("date", pa.types.is_date),
    ("list", pa.types.is_list),
    ("map", pa.types.is_map),
    ("struct", pa.types.is_struct),
)
_LOSSLESS: Final = {
    ("integer", "float"),
    ("integer", "decimal"),
    ("float", "integer"),
    ("decimal", "integer"),
    ("timestamp_ntz", "date"),
}
"""Pairs of families where the cast itself finds the values that would be lost."""

_ADD_ZONE: Final = "add a zone (UTC, or where the clock stood), or declare the column timestamp_ntz"
_DROP_ZONE: Final = "drop the zone on purpose, or declare the column timestamp"
_REMEDIES: Final = {
    ("timestamp_ntz", "timestamp"): _ADD_ZONE,
    ("timestamp", "timestamp_ntz"): _DROP_ZONE,
    ("string", "timestamp"): "text is not parsed: parse it first",
    ("string", "timestamp_ntz"): "text is not parsed: parse it first",
    ("string", "date"): "text is not parsed: parse it first",
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
    "timestamp_ntz": (dt.datetime, np.datetime64),
    "list": (list, tuple, np.ndarray),
    "map": (dict, list, tuple),
    "struct": (dict,),
}
_PYTHON_REMEDIES: Final = {
    "boolean": "give True or False",
    "integer": "give an int",
    "float": "give a float",
    "decimal": "give a decimal.Decimal, as floats have no exact value",
    "string": "give a str",
    "binary": "give bytes",
    "date": "give a datetime.date",
    "timestamp": "give a datetime.datetime with a zone",
    "timestamp_ntz": "give a datetime.datetime without a zone",
    "list": "give a list",
    "map": "give a dict",
    "struct": "give a dict of field name and value",
}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
