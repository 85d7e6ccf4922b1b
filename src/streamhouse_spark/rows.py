"""Rows as users have them → an Arrow table in exactly the schema of a table.

Columns match by name, without regard to case. Values are converted only where nothing can be lost: an integer may
widen, ``large_string`` becomes ``string``, a timestamp changes its unit when no digit is dropped. Nothing is parsed
from text, and a time without a zone is never taken for one with a zone.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.ddl import type_name
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema import Column, TableSchema, canonical_type


def coerce(rows: Any, schema: TableSchema, *, table: str) -> pa.Table:
    """The rows as an Arrow table whose schema is ``schema.arrow``; ``table`` is named in errors.

    ``rows`` is a ``pyarrow`` Table, RecordBatch or RecordBatchReader, a pandas or polars frame, anything else with
    the Arrow C stream interface, or a list of dicts. Missing nullable columns become null. A pandas index is not a
    column. Rows already in the schema pass through without a copy.

    Raises `SchemaMismatchError`, naming the column, for an unknown column, a missing or null NOT NULL column, and
    a value that cannot be converted without loss.
    """
    source = _source_of(rows, table)
    if source.table is not None and source.table.schema.equals(schema.arrow, check_metadata=True):
        result = source.table
    else:
        result = _aligned(source, schema, table)
    for position, column in enumerate(schema.columns):
        if not column.nullable and (null_count := result.column(position).null_count):
            _refuse(table, column.name, f"is NOT NULL, and {null_count} of {result.num_rows} rows have null in it")
    return result


@dataclass(frozen=True, slots=True)
class _Source:
    """A user's rows, column by column. ``get`` gives Arrow data, or a list of Python values."""

    names: Sequence[str]
    num_rows: int
    get: Callable[[str], Any]
    table: pa.Table | None = None


def _source_of(rows: Any, table: str) -> _Source:
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
        rows = pa.table(rows)
    if isinstance(rows, pa.Table):
        return _Source(rows.column_names, rows.num_rows, rows.column, rows)
    found = type(rows)
    hint = {"dict": "; put it into a list", "LazyFrame": "; call collect() first"}.get(found.__name__, "")
    raise SchemaMismatchError(
        f"rows for {table} are a {found.__module__}.{found.__name__}, expected a pyarrow Table or RecordBatch, a pandas "
        f"or polars frame, or a list of dicts{hint}",
    )


def _source_of_dicts(rows: list[Any], table: str) -> _Source:
    for kind in set(map(type, rows)):
        if not issubclass(kind, dict):
            position = next(i for i, row in enumerate(rows) if type(row) is kind)
            raise SchemaMismatchError(
                f"row {position} for {table} is a {kind.__name__}, expected a dict of column name and value",
            )
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return _Source(_text_names(names, table), len(rows), lambda name: [row.get(name) for row in rows])


def _is_pandas_frame(rows: Any) -> bool:
    # Known by its shape: pandas is an extra, and a user who passes a frame has imported it.
    kind = type(rows)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def _source_of_pandas(frame: Any, table: str) -> _Source:
    def get(name: str) -> Any:
        series = frame[name]
        if series.dtype == object:
            return series.where(series.notna(), None).tolist()
        return pa.array(series, from_pandas=True)

    return _Source(_text_names(list(frame.columns), table), len(frame), get)


def _text_names(names: list[Any], table: str) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise SchemaMismatchError(f"rows for {table} have the column name {name!r}, expected a text")
    return names


def _aligned(source: _Source, schema: TableSchema, table: str) -> pa.Table:
    given: dict[str, str] = {}
    for name in source.names:
        column = schema.find(name)
        if column is None:
            _refuse(table, name, f"of the rows is not in the table{schema.hint(name)}")
        other = given.setdefault(column.name, name)
        if other is not name or source.names.count(name) > 1:
            _refuse(table, column.name, f"is in the rows twice, as '{other}' and '{name}'; keep one")
    arrays = [_column_values(source, given.get(column.name), column, table) for column in schema.columns]
    return pa.Table.from_arrays(arrays, schema=schema.arrow)


def _column_values(source: _Source, name: str | None, column: Column, table: str) -> Any:
    if name is None:
        if not column.nullable and source.num_rows:
            _refuse(table, column.name, f"is NOT NULL and missing in the rows, which have {', '.join(source.names)}")
        return pa.nulls(source.num_rows, column.type)
    conversion = _Conversion(table, column.name)
    values = source.get(name)
    if isinstance(values, list):
        return conversion.from_python(values, column.type)
    if values.type.equals(column.type, check_metadata=True):
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([conversion.cast(chunk, column.type) for chunk in values.chunks], type=column.type)
    return conversion.cast(values, column.type)


def _refuse(table: str, column: str, problem: str) -> NoReturn:
    raise SchemaMismatchError(f"column '{column}' of {table} {problem}")


_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


@dataclass(frozen=True, slots=True)
class _Conversion:
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
        self._check_python(values, target)
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
            _Conversion(self.table, f"{self.path}.{field.name}").cast(children[given[field.name]], field.type)
            if field.name in given
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null())

    def _cast_list(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        plain = array.cast(pa.list_(array.type.value_type))
        first, last = plain.offsets[0].as_py(), plain.offsets[-1].as_py()
        elements = _Conversion(self.table, f"{self.path}.element").cast(
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

    def _check_python(self, values: list[Any], target: pa.DataType) -> None:
        """Refuse what Arrow would convert without a word: zones dropped, days counted from 1970, fields left out."""
        family = _family(target, self.path)
        wanted = _PYTHON_TYPES[family]
        for kind in set(map(type, values)):
            if kind is type(None):
                continue
            unwanted = (issubclass(kind, bool) and family != "boolean") or (
                family == "date" and issubclass(kind, datetime.datetime)
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
            _Conversion(self.table, f"{self.path}.element")._check_python(list(chain(*values)), target.value_type)
        elif types.is_map(target):
            pairs = list(chain(*(value.items() if isinstance(value, dict) else value for value in values)))
            _Conversion(self.table, f"{self.path}.key")._check_python([p[0] for p in pairs], target.key_type)
            _Conversion(self.table, f"{self.path}.value")._check_python([p[1] for p in pairs], target.item_type)
        else:
            fields = {field.name for field in target}
            for name in dict.fromkeys(chain(*values)):
                if name not in fields:
                    self._fail(f"has a field {name!r} that the table's struct lacks; its fields are {_listed(fields)}")
            for field in target:
                inner = _Conversion(self.table, f"{self.path}.{field.name}")
                inner._check_python([value.get(field.name) for value in values], field.type)

    def _fail(self, problem: str) -> NoReturn:
        _refuse(self.table, self.path, problem)


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
    "date": (datetime.date,),
    "timestamp": (datetime.datetime,),
    "timestamp_ntz": (datetime.datetime, np.datetime64),
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
