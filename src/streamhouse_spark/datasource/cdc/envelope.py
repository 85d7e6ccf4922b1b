"""Events of change data capture: from the text of an event to its kind and to the columns of its row, still as text.

Sources: Debezium's documentation ("change events" of its connectors, JSON converter with and without schemas),
Maxwell's data format, Canal's flat messages. All of it is expressions of Spark: its own JSON reader decodes events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from streamhouse_spark.core.values import dataclass

EventFormat = Literal["debezium-json", "debezium-avro", "maxwell-json", "canal-json"]
FORMATS: Final = get_args(EventFormat)
AVRO: Final = "debezium-avro"
"""Its events were made JSON before, by their schemas."""

UPSERT: Final = "update_after"
DELETE: Final = "delete"
_CORRUPT: Final = "_streamhouse_corrupt"
_UPSERTED: Final = {
    "debezium-json": ("r", "c", "u"),
    "debezium-avro": ("r", "c", "u"),
    "maxwell-json": ("insert", "update", "bootstrap-insert"),
    "canal-json": ("INSERT", "UPDATE"),
}
_DELETED: Final = {
    "debezium-json": ("d",),
    "debezium-avro": ("d",),
    "maxwell-json": ("delete",),
    "canal-json": ("DELETE",),
}
_PASSED: Final = {
    "debezium-json": ("m",),
    "debezium-avro": ("m",),
    "maxwell-json": ("bootstrap-start", "bootstrap-complete", "table-create", "table-alter", "database-create"),
    "canal-json": ("CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY"),
}
"""Kinds of events that say nothing about a row."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Expressions over a column of event texts."""

    changes: Column
    """An array of structs: ``kind`` (`UPSERT`, `DELETE`), ``row``, a struct of texts by column."""
    reason: Column
    """The reason why an event cannot be read, null for one that can."""
    new_columns: Column
    """Names of columns in the event's rows, an array; null where there is none."""


def text_schema(columns: StructType) -> StructType:
    """Return the columns as JSON's reader gives them: scalars as text, nested values as they are."""
    return StructType([StructField(field.name, _text_type(field.dataType)) for field in columns])


def _text_type(kind: DataType) -> DataType:
    return kind if isinstance(kind, ArrayType | MapType | StructType) else StringType()


def envelope(text: Column, how: EventFormat, columns: StructType, key: Sequence[str]) -> Envelope:
    """Read events of a format, for a table with these columns and primary key."""
    row = text_schema(columns)
    match how:
        case "debezium-json" | "debezium-avro":
            return _debezium(text, row, key)
        case "maxwell-json":
            return _maxwell(text, row, key)
        case "canal-json":
            return _canal(text, row, key)


def _debezium(text: Column, row: StructType, key: Sequence[str]) -> Envelope:
    body = StructType().add("op", StringType()).add("before", row).add("after", row)
    parsed = _parsed(text, StructType([*body, StructField("payload", body)]))
    is_wrapped = parsed["payload"].isNotNull()

    def part(name: str) -> Column:
        return f.when(is_wrapped, parsed["payload"][name]).otherwise(parsed[name])

    def names(path: str) -> Column:
        return f.json_object_keys(f.get_json_object(text, path))

    op, before, after = part("op"), part("before"), part("after")
    both = f.when(is_wrapped, names("$.payload.after")).otherwise(names("$.after"))
    return _of_parts("debezium-json", parsed, op, before, after, key, both)


def _maxwell(text: Column, row: StructType, key: Sequence[str]) -> Envelope:
    parsed = _parsed(text, StructType().add("type", StringType()).add("data", row).add("old", row))
    kind, data = parsed["type"], parsed["data"]
    is_deleted = kind.isin(*_DELETED["maxwell-json"])
    # "old" has the changed columns alone; the others of the old row are those of the new one.
    before = f.when(is_deleted, data).otherwise(_laid_over(data, parsed["old"], row))
    after = f.when(~is_deleted, data)
    return _of_parts(
        "maxwell-json", parsed, kind, before, after, key, f.json_object_keys(f.get_json_object(text, "$.data"))
    )


def _canal(text: Column, row: StructType, key: Sequence[str]) -> Envelope:
    body = StructType().add("type", StringType()).add("data", ArrayType(row)).add("old", ArrayType(row))
    parsed = _parsed(text, body)
    kind, data, old = parsed["type"], parsed["data"], parsed["old"]
    is_deleted = kind.isin(*_DELETED["canal-json"])

    def of_one(new: Column, place: Column) -> Column:
        before = f.when(is_deleted, new).otherwise(_laid_over(new, f.try_element_at(old, place + 1), row))
        return _changes(before, f.when(~is_deleted, new), key)

    names = f.json_object_keys(f.get_json_object(text, "$.data[0]"))
    no_key = f.exists(data, lambda one: _lacks(one, key))
    reason = (
        f.when(_is_broken(parsed), f.lit("it is no JSON object"))
        .when(kind.isNull(), f.lit("it has no type"))
        .when(kind.isin(*_PASSED["canal-json"]), None)
        .when(~kind.isin(*_UPSERTED["canal-json"], *_DELETED["canal-json"]), _unknown("type", kind))
        .when(data.isNull() | no_key, _no_key(key))
    )
    return Envelope(f.flatten(f.transform(data, of_one)), reason, names)


def _of_parts(
    how: EventFormat, parsed: Column, kind: Column, before: Column, after: Column, key: Sequence[str], names: Column
) -> Envelope:
    is_deleted = kind.isin(*_DELETED[how])
    word = "op" if how.startswith("debezium") else "type"
    reason = (
        f.when(_is_broken(parsed), f.lit("it is no JSON object"))
        .when(kind.isNull(), f.lit(f"it has no {word}"))
        .when(kind.isin(*_PASSED[how]), None)
        .when(~kind.isin(*_UPSERTED[how], *_DELETED[how]), _unknown(word, kind))
        .when(f.when(is_deleted, _lacks(before, key)).otherwise(_lacks(after, key)), _no_key(key))
    )
    passed = kind.isin(*_PASSED[how])
    changes = _changes(before, f.when(~is_deleted, after), key)
    return Envelope(f.when(~passed, changes), reason, names)


def _parsed(text: Column, schema: StructType) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return f.from_json(text, schema.add(_CORRUPT, StringType()), options)


def _is_broken(parsed: Column) -> Column:
    return parsed.isNull() | parsed[_CORRUPT].isNotNull()


def _unknown(word: str, kind: Column) -> Column:
    return f.concat(f.lit(f"its {word} is '"), kind, f.lit("', which says nothing about a row"))


def _no_key(key: Sequence[str]) -> Column:
    return f.lit(f"its row lacks the primary key {', '.join(key)}")


def _lacks(row: Column, key: Sequence[str]) -> Column:
    missing = row.isNull()
    for name in key:
        missing = missing | row.getField(name).isNull()
    return missing


def _laid_over(row: Column, changed: Column, schema: StructType) -> Column:
    """Return the row before a change, of which only the old values of changed columns are known. None if not needed."""
    fields = [f.coalesce(changed.getField(c.name), row.getField(c.name)).alias(c.name) for c in schema]
    return f.when(changed.isNotNull(), f.struct(*fields))


def _changes(before: Column, after: Column, key: Sequence[str]) -> Column:
    """Return what an event does: the row by its key, and the old key goes where it changed."""
    moved = f.lit(False)
    for name in key:
        old = before.getField(name)
        moved = moved | (old.isNotNull() & (old != after.getField(name)))
    deleted = f.struct(f.lit(DELETE).alias("kind"), before.alias("row"))
    upserted = f.struct(f.lit(UPSERT).alias("kind"), after.alias("row"))
    return f.when(after.isNull(), f.array(deleted)).when(moved, f.array(deleted, upserted)).otherwise(f.array(upserted))
