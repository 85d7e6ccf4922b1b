"""Change events: the JVM function that parses them, and the conversion of their values from text to column types.

The function is in the package's jar. It implements the formats, returns the effect of each event on each row, and uses
an embedded schema of the event. Numbers remain text until the type of their column is known, because Spark's JSON
reader would convert them to double. Invalid text becomes null and is reported separately.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EventFormat = Literal["debezium-json", "debezium-avro", "maxwell-json", "canal-json"]
FORMATS: Final = get_args(EventFormat)
AVRO: Final = "debezium-avro"
"""Format whose events are converted to JSON with their schemas."""

UPSERT: Final = "update_after"
DELETE: Final = "delete"
_CLASS: Final = "io.streamhouse.spark.cdc.JsonEvents"
TimeUnit = Literal["millis", "micros", "nanos", "schema"]
DecimalForm = Literal["text", "base64", "schema"]


@dataclass(frozen=True, slots=True)
class EventParserUdf:
    """The function that parses a query's events."""

    spec: str
    result: StructType
    """Result of the function. ``changes`` is an array of structs of ``kind`` (`UPSERT`, `DELETE`) and ``row``, a struct
    of texts by column; a deleted row has only the key. ``reason`` is why an event cannot be read, null for a valid
    event. ``names`` are columns of the event that the table does not have.
    """

    @classmethod
    def of(
        cls, event_format: EventFormat, columns: StructType, key: Sequence[str], forms: ValueForms
    ) -> EventParserUdf:
        """Return the reader for a format and a table with these columns and primary key."""
        spec = {"format": event_format, "columns": columns.jsonValue(), "key": list(key)}
        change = StructType().add("kind", StringType()).add("row", text_type(columns))
        fields = [StructField("changes", ArrayType(change)), StructField("reason", StringType())]
        result = StructType([*fields, StructField("names", ArrayType(StringType()))])
        return cls(json.dumps({**spec, "times": forms.times, "decimals": forms.decimals}), result)

    def register(self, session: SparkSession) -> str:
        """Register the function and return its name. Raises `InvalidOptionError` in a session without the jar."""
        name = f"streamhouse_events_{hashlib.sha256(self.spec.encode()).hexdigest()[:16]}"
        try:
            session.udf.registerJavaFunction(name, _CLASS, self.result)
        except AnalysisException as error:
            raise missing_jar_error() from error
        return name

    def read(self, session: SparkSession, text: Column) -> Column:
        """Return the parsed event of each text."""
        return f.call_function(self.register(session), text, f.lit(self.spec))


def missing_jar_error() -> InvalidOptionError:
    return InvalidOptionError(
        "cdc requires the package's jar, which the Spark session does not have; create the session with "
        'streamhouse_spark.configure, or start Spark with --jars "$(streamhouse jar)"'
    )


@dataclass(frozen=True, slots=True)
class ValueForms:
    """Encodings of values that cannot be inferred from the text. An embedded schema of an event takes precedence."""

    times: TimeUnit | None
    """Unit of numeric timestamps."""
    decimals: DecimalForm | None

    def require(self, columns: t.StructType, *, are_numbers: bool, has_event_schemas: bool) -> None:
        """Raise `InvalidOptionError` for an invalid form, and for a missing form that the columns require.

        With ``are_numbers``, the format may encode timestamps as numbers and decimals as bytes. With
        ``has_event_schemas``, schemas define the encoding.
        """
        for name, form, forms in (("times", self.times, TimeUnit), ("decimals", self.decimals, DecimalForm)):
            if form is not None and form not in get_args(forms):
                raise InvalidOptionError(f"{name} is {form!r}, expected one of {', '.join(get_args(forms))}")
            if form == "schema" and not are_numbers:
                raise InvalidOptionError(
                    f"{name}='schema' is only for format debezium-json with embedded schemas; omit it"
                )
        if has_event_schemas and self.decimals is not None:
            raise InvalidOptionError(
                "decimals is only for JSON events, because Avro schemas define the encoding; omit it"
            )
        if not are_numbers:
            return
        for path, kind in _leaves("", columns):
            if isinstance(kind, t.TimestampType | t.TimestampNTZType) and self.times is None:
                raise InvalidOptionError(
                    f"column '{path}' is a timestamp, and Debezium writes most timestamps as numbers, in a unit that "
                    "depends on the source's type; set times='micros' (PostgreSQL, MySQL with a precision above 3), "
                    "'millis' or 'nanos', or 'schema' if the events have embedded schemas"
                )
            if isinstance(kind, t.DecimalType) and self.decimals is None:
                raise InvalidOptionError(
                    f"column '{path}' is a decimal, and Debezium writes decimals as bytes unless the connector has "
                    "decimal.handling.mode=string; set decimals='base64' for bytes, 'text' for the other modes, or "
                    "'schema' if the events have embedded schemas"
                )


def _leaves(path: str, kind: t.DataType) -> Iterator[tuple[str, t.DataType]]:
    """Yield the path and the type of each non-nested part of a type."""
    match kind:
        case t.StructType():
            parts = {field.name: field.dataType for field in kind}
        case t.ArrayType():
            parts = {"element": kind.elementType}
        case t.MapType():
            parts = {"key": kind.keyType, "value": kind.valueType}
        case _:
            yield path, kind
            return
    for name, part in parts.items():
        yield from _leaves(f"{path}.{name}" if path else name, part)


def text_type(kind: t.DataType) -> t.DataType:
    """Return the type with text instead of each value. A map becomes an array of pairs."""
    match kind:
        case t.StructType():
            return t.StructType([t.StructField(field.name, text_type(field.dataType)) for field in kind])
        case t.ArrayType():
            return t.ArrayType(text_type(kind.elementType))
        case t.MapType():
            pair = t.StructType().add("key", text_type(kind.keyType)).add("value", text_type(kind.valueType))
            return t.ArrayType(pair)
    return t.StringType()


def convert_text(text: Column, kind: t.DataType) -> Column:
    """Convert text to a value of the type; null for null and for invalid text."""
    match kind:
        case t.StringType():
            return text
        case t.ArrayType():
            return f.transform(text, lambda item: convert_text(item, kind.elementType))
        case t.StructType():
            fields = [convert_text(text.getField(field.name), field.dataType).alias(field.name) for field in kind]
            return f.when(text.isNotNull(), f.struct(*fields))
        case t.MapType():
            pairs = f.transform(
                text,
                lambda pair: f.struct(
                    convert_text(pair["key"], kind.keyType).alias("key"),
                    convert_text(pair["value"], kind.valueType).alias("value"),
                ),
            )
            return f.when(_has_unique_keys(text, kind), f.map_from_entries(pairs))
        case t.VariantType():  # sources send JSON columns as text
            return f.try_parse_json(text)
        case t.BinaryType():
            return f.try_to_binary(text, f.lit("base64"))
    return text.try_cast(kind)


def _has_unique_keys(pairs: Column, kind: t.MapType) -> Column:
    keys = f.transform(pairs, lambda pair: convert_text(pair["key"], kind.keyType))
    distinct = f.array_distinct(f.filter(keys, lambda key: key.isNotNull()))
    return f.size(distinct) == f.size(pairs)


def describe_fault(path: str, text: Column, kind: t.DataType) -> Column | None:
    """Return the reason why a text is not a valid value of the column, null if it is valid. None if all texts are
    valid.
    """
    match kind:
        case t.StringType():
            return None
        case t.ArrayType():
            return _first_item_fault(text, lambda item: describe_fault(f"{path}.element", item, kind.elementType))
        case t.StructType():
            fields = ((f"{path}.{field.name}", text.getField(field.name), field.dataType) for field in kind)
            return _coalesce_faults([describe_fault(*field) for field in fields])
        case t.MapType():
            pair_type = t.StructType().add("key", kind.keyType).add("value", kind.valueType)
            inside = _first_item_fault(text, lambda pair: describe_fault(path, pair, pair_type))
            if isinstance(kind.keyType, t.StringType):  # the JVM function has checked them
                return inside
            twice = f.when(~_has_unique_keys(text, kind), f.lit(f"column '{path}.key' has a duplicate value"))
            return twice if inside is None else f.coalesce(inside, twice)
    shown = f.concat(f.lit(f"column '{path}' is '"), f.left(text, f.lit(100)), f.lit("', expected "))
    return f.when(text.isNotNull() & convert_text(text, kind).isNull(), f.concat(shown, f.lit(kind.simpleString())))


def _coalesce_faults(faults: Sequence[Column | None]) -> Column | None:
    present = [fault for fault in faults if fault is not None]
    return f.coalesce(*present) if present else None


def _first_item_fault(items: Column, of_item: Callable[[Column], Column | None]) -> Column | None:
    if of_item(f.lit(None)) is None:
        return None
    faults = f.transform(items, lambda item: cast("Column", of_item(item)))
    return f.get(f.array_compact(faults), f.lit(0))
