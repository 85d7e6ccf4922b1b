"""Each semantic type of Debezium, at each depth, in JSON with and without a schema and in Avro; and values in JSON."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import streamhouse_spark as sh
from spark.debezium_avro import bare, envelope, event

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

MICROS = -1_767_225_600_123_456
WALL = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=MICROS)
MILLIS = WALL.replace(microsecond=WALL.microsecond // 1000 * 1000)
DAY = dt.date(1969, 12, 29)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unscaled(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


@dataclass(frozen=True)
class Semantic:
    """A value of one type as Connect's converters write it, and the value of its column."""

    connect: dict[str, Any]
    json: Any
    ddl: str
    value: Any
    avro: Any = None
    """The value in Avro, where it is another one."""
    unit: str | None = None
    """The ``times`` that it needs where its event has no schema."""
    needs_schema: bool = False


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": 1, **({"parameters": parameters} if parameters else {})}


def connect(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return named(kind, f"org.apache.kafka.connect.data.{name}", **parameters)


def time(kind: str, name: str) -> dict[str, Any]:
    return named(kind, f"io.debezium.time.{name}")


def data(name: str, kind: str = "string") -> dict[str, Any]:
    return named(kind, f"io.debezium.data.{name}")


def struct(name: str, **fields: Any) -> dict[str, Any]:
    parts = [{**(kind if isinstance(kind, dict) else {"type": kind}), "field": field} for field, kind in fields.items()]
    return {"type": "struct", "name": name, "fields": parts}


def decimal(scale: int) -> dict[str, Any]:
    return connect("bytes", "Decimal", scale=str(scale), **{"connect.decimal.precision": "38"})


LOWEST = -(10**38 - 1)
POINT = {"x": 1.5, "y": -2.0, "wkb": b64(b"\x01\x02"), "srid": None}
SEMANTICS = {
    "boolean": Semantic({"type": "boolean"}, True, "BOOLEAN", True),
    "int16": Semantic({"type": "int16"}, -5, "SMALLINT", -5),
    "int32": Semantic({"type": "int32"}, 2**31 - 1, "INT", 2**31 - 1),
    "int64": Semantic({"type": "int64"}, -(2**63), "BIGINT", -(2**63)),
    "float32": Semantic({"type": "float"}, 0.5, "FLOAT", 0.5),
    "float64": Semantic({"type": "double"}, 1 / 3, "DOUBLE", 1 / 3),
    "infinity": Semantic({"type": "double"}, "-Infinity", "DOUBLE", -math.inf, avro=-math.inf),
    "string": Semantic({"type": "string"}, 'ü€\n"{1.10}', "STRING", 'ü€\n"{1.10}'),
    "bytes": Semantic({"type": "bytes"}, b64(b"\x00\xff"), "BINARY", b"\x00\xff", avro=b"\x00\xff"),
    "date": Semantic(time("int32", "Date"), -3, "DATE", DAY),
    "connect_date": Semantic(connect("int32", "Date"), -3, "DATE", DAY),
    "iso_date": Semantic(time("string", "IsoDate"), "2026-01-31", "DATE", dt.date(2026, 1, 31)),
    "millis": Semantic(time("int64", "Timestamp"), MICROS // 1000, "TIMESTAMP_NTZ", MILLIS, unit="millis"),
    "micros": Semantic(time("int64", "MicroTimestamp"), MICROS, "TIMESTAMP_NTZ", WALL, unit="micros"),
    "nanos": Semantic(time("int64", "NanoTimestamp"), MICROS * 1000 + 999, "TIMESTAMP_NTZ", WALL, unit="nanos"),
    "connect_millis": Semantic(
        connect("int64", "Timestamp"), MICROS // 1000, "TIMESTAMP", MILLIS.replace(tzinfo=dt.UTC), unit="millis"
    ),
    "micros_utc": Semantic(
        time("int64", "MicroTimestamp"), MICROS, "TIMESTAMP", WALL.replace(tzinfo=dt.UTC), unit="micros"
    ),
    "millis_as_date": Semantic(
        time("int64", "Timestamp"), MICROS // 1000, "DATE", WALL.date(), unit="millis", needs_schema=True
    ),
    "zoned": Semantic(
        time("string", "ZonedTimestamp"), "2026-01-31T10:00:00.5+02:00", "TIMESTAMP",
        dt.datetime(2026, 1, 31, 8, 0, 0, 500_000, tzinfo=dt.UTC),
    ),
    "iso_timestamp": Semantic(
        time("string", "IsoTimestamp"), "2026-01-31T10:00:00.000001", "TIMESTAMP_NTZ",
        dt.datetime(2026, 1, 31, 10, 0, 0, 1),
    ),
    "time_of_day": Semantic(time("int32", "Time"), 86_399_999, "INT", 86_399_999),
    "connect_time": Semantic(connect("int32", "Time"), 86_399_999, "INT", 86_399_999),
    "micro_time": Semantic(time("int64", "MicroTime"), 86_399_999_999, "BIGINT", 86_399_999_999),
    "nano_time": Semantic(time("int64", "NanoTime"), 86_399_999_999_999, "BIGINT", 86_399_999_999_999),
    "zoned_time": Semantic(time("string", "ZonedTime"), "10:00:00Z", "STRING", "10:00:00Z"),
    "year": Semantic(time("int32", "Year"), 2026, "INT", 2026),
    "interval": Semantic(time("string", "Interval"), "P1Y2M3DT4H5M6.78S", "STRING", "P1Y2M3DT4H5M6.78S"),
    "micro_duration": Semantic(time("int64", "MicroDuration"), 7, "BIGINT", 7),
    "nano_duration": Semantic(time("int64", "NanoDuration"), 7, "BIGINT", 7),
    "decimal": Semantic(
        decimal(2), b64(unscaled(-123450)), "DECIMAL(10, 2)", Decimal("-1234.50"), avro=Decimal("-1234.50")
    ),
    "lowest_decimal": Semantic(
        decimal(0), b64(LOWEST.to_bytes(16, "big", signed=True)), "DECIMAL(38, 0)", Decimal(LOWEST),
        avro=Decimal(LOWEST),
    ),
    "decimal_of_another_scale": Semantic(
        decimal(1), b64(unscaled(-15)), "DECIMAL(10, 3)", Decimal("-1.500"), avro=Decimal("-1.5"), needs_schema=True
    ),
    "unsigned_bigint": Semantic(
        decimal(0), b64(unscaled(2**64 - 1)), "DECIMAL(20, 0)", Decimal(2**64 - 1), avro=Decimal(2**64 - 1)
    ),
    "decimal_of_digits": Semantic(  # its bytes are three, whose base64 looks like a number
        decimal(0), "1234", "BIGINT", int.from_bytes(base64.b64decode("1234"), "big", signed=True),
        avro=Decimal(int.from_bytes(base64.b64decode("1234"), "big", signed=True)),
    ),
    "variable_scale": Semantic(
        struct("io.debezium.data.VariableScaleDecimal", scale="int32", value="bytes"),
        {"scale": 3, "value": b64(b"\xff\x85")}, "DECIMAL(20, 4)", Decimal("-0.1230"),
        avro={"scale": 3, "value": b"\xff\x85"},
    ),
    "decimal_as_string": Semantic({"type": "string"}, "1.50", "DECIMAL(9, 2)", Decimal("1.50"), needs_schema=True),
    "decimal_as_double": Semantic({"type": "double"}, 1.5, "DECIMAL(9, 2)", Decimal("1.50")),
    "bits": Semantic(data("Bits", "bytes"), b64(b"\x01\x02"), "BINARY", b"\x01\x02", avro=b"\x01\x02"),
    "enum": Semantic(data("Enum"), "b", "STRING", "b"),
    "enum_set": Semantic(data("EnumSet"), "a,b", "STRING", "a,b"),
    "json": Semantic(data("Json"), '{"a": 1.10}', "STRING", '{"a": 1.10}'),
    "xml": Semantic(data("Xml"), "<a/>", "STRING", "<a/>"),
    "uuid": Semantic(data("Uuid"), "a" * 8, "STRING", "a" * 8),
    "ltree": Semantic(data("Ltree"), "a.b", "STRING", "a.b"),
    "point": Semantic(
        struct("io.debezium.data.geometry.Point", x="double", y="double", wkb="bytes",
               srid={"type": "int32", "optional": True}),
        POINT, "STRUCT<x: DOUBLE, y: DOUBLE, wkb: BINARY, srid: INT>", {**POINT, "wkb": b"\x01\x02"},
        avro={**POINT, "wkb": b"\x01\x02"},
    ),
    "double_vector": Semantic(
        {"type": "array", "items": {"type": "double"}, "name": "io.debezium.data.DoubleVector"}, [1.5, -2.0],
        "ARRAY<DOUBLE>", [1.5, -2.0],
    ),
    "sparse_vector": Semantic(
        struct("io.debezium.data.SparseVector", dimensions="int16",
               vector={"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}}),
        {"dimensions": 9, "vector": [[1, 1.5], [7, 2.5]]},
        "STRUCT<dimensions: SMALLINT, vector: MAP<SMALLINT, DOUBLE>>",
        {"dimensions": 9, "vector": [(1, 1.5), (7, 2.5)]},
        avro={"dimensions": 9, "vector": [{"key": 1, "value": 1.5}, {"key": 7, "value": 2.5}]},
    ),
}  # fmt: skip

DEPTHS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "top": ("{}", lambda value: value, lambda value: value),
    "list": ("ARRAY<{}>", lambda value: [value, None, value], lambda value: [value, None, value]),
    "part": ("STRUCT<v: {}>", lambda value: {"v": value}, lambda value: {"v": value}),
    "map": ("MAP<STRING, {}>", lambda value: {"k": value, "n": None}, lambda value: [("k", value), ("n", None)]),
    "deep": (
        "ARRAY<STRUCT<m: MAP<STRING, {}>>>",
        lambda value: [{"m": {"k": value}}],
        lambda value: [{"m": [("k", value)]}],
    ),
}
"""Where a value stands: the type of its column, how events have it, and how rows do."""


def connect_at(depth: str, kind: dict[str, Any]) -> dict[str, Any]:
    """The schema of Connect at a depth."""
    kind = {**kind, "optional": True}
    match depth:
        case "list":
            return {"type": "array", "items": kind}
        case "part":
            return {"type": "struct", "fields": [{**kind, "field": "v"}]}
        case "map":
            return {"type": "map", "keys": {"type": "string"}, "values": kind}
        case "deep":
            inside = {"type": "map", "keys": {"type": "string"}, "values": kind, "field": "m"}
            return {"type": "array", "items": {"type": "struct", "fields": [inside]}}
    return kind


def wrapped(payload: dict[str, Any], columns: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """An event as Connect's JSON converter writes it with ``schemas.enable``."""
    fields = [{**kind, "field": name, "optional": True} for name, kind in columns.items()]
    rows = [{"type": "struct", "fields": fields, "optional": True, "field": part} for part in ("before", "after")]
    return {"schema": {"type": "struct", "fields": [*rows, {"type": "string", "field": "op"}]}, "payload": payload}


PRIMITIVES = {"int16": "int", "int32": "int", "int64": "long"}


def avro_of(kind: dict[str, Any], names: Iterator[int]) -> Any:
    """A schema of Connect as its Avro converter has it."""
    more = {"connect.name": kind["name"], "connect.version": 1} if "name" in kind else {}
    match kind["type"]:
        case "array":
            made: Any = {"type": "array", "items": avro_of(kind["items"], names), **more}
        case "map" if kind["keys"]["type"] == "string":
            made = {"type": "map", "values": avro_of(kind["values"], names), **more}
        case "map":
            pair = [{"name": part, "type": avro_of(kind[f"{part}s"], names)} for part in ("key", "value")]
            made = {"type": "array", "items": {"type": "record", "name": f"Entry{next(names)}", "fields": pair}}
        case "struct":
            fields = [{"name": field["field"], "type": avro_of(field, names)} for field in kind["fields"]]
            made = {"type": "record", "name": f"Record{next(names)}", "fields": fields, **more}
        case _ if more.get("connect.name", "").endswith("Decimal"):
            scale = int(kind["parameters"]["scale"])
            made = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale, **more}
        case plain:
            made = {"type": PRIMITIVES.get(plain, plain), **more}
    return ["null", made] if kind.get("optional") else made


EPOCH_S = 1_767_225_600


class Events:
    """A folder of values of bytes, one a line behind its offset, as a stream of Kafka would have them."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder, self.offset = spark, folder, 0
        folder.mkdir()

    def put(self, *values: bytes | str) -> None:
        lines = []
        for value in values:
            text = b64(value.encode() if isinstance(value, str) else value)
            lines.append(json.dumps({"offset": self.offset, "value": text}))
            self.offset += 1
        path = self.folder / f"{self.offset:06d}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (EPOCH_S + self.offset,) * 2)  # the order in which Spark reads files

    def stream(self, **options: Any) -> Any:
        reader = self.spark.readStream.options(**options)
        return reader.schema("offset BIGINT, value BINARY").json(str(self.folder))


@pytest.fixture
def events(spark, tmp_path) -> Events:
    return Events(spark, tmp_path / "events")


@pytest.fixture
def keep(wh, events, tmp_path) -> Callable[..., None]:
    def keep(table: Any, max_files: int | None = None, **options: Any) -> None:
        limits = {} if max_files is None else {"maxFilesPerTrigger": max_files}
        options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}, **options}
        sh.cdc(events.stream(**limits), table.name, warehouse=wh.url, **options).awaitTermination()
        table.refresh()

    return keep


def of_encoding(name: str) -> dict[str, Semantic]:
    """The types that events in this encoding tell, or that ``times`` and ``decimals`` tell."""
    if name in ("schema", "avro"):
        return SEMANTICS
    return {key: of for key, of in SEMANTICS.items() if of.unit in (None, name) and not of.needs_schema}


@pytest.mark.parametrize(
    "encoding", ["schema", "millis", "micros", "nanos", pytest.param("avro", marks=pytest.mark.classic)]
)
def test_each_semantic_type_is_decoded_at_each_depth(wh, events, keep, encoding):
    """``millis``, ``micros`` and ``nanos`` are JSON without schemas, and the unit that is given for it."""
    kinds = of_encoding(encoding)
    columns = {f"{name}_{depth}": (of, depth) for name, of in kinds.items() for depth in DEPTHS}
    ddl = ", ".join(f"{name} {DEPTHS[depth][0].format(of.ddl)}" for name, (of, depth) in columns.items())
    table = wh.create_table(f"cdctypes.{encoding}", f"id BIGINT, {ddl}", primary_key=["id"])
    in_json = {name: DEPTHS[depth][1](of.json) for name, (of, depth) in columns.items()}
    schemas = {
        "id": {"type": "int64"},
        **{name: connect_at(depth, of.connect) for name, (of, depth) in columns.items()},
    }
    rows = [{"id": 1, **in_json}, {"id": 2, **dict.fromkeys(columns)}]
    match encoding:
        case "avro":
            names = iter(range(10_000))
            schema = envelope({name: avro_of({**kind, "optional": False}, names) for name, kind in schemas.items()})
            in_avro = {
                name: DEPTHS[depth][1](of.json if of.avro is None else of.avro) for name, (of, depth) in columns.items()
            }
            rows[0] = {"id": 1, **in_avro}
            events.put(*(bare(copy.deepcopy(schema), event("c", None, row)) for row in rows))
            keep(table, format="debezium-avro", avro_schema=json.dumps(schema))
        case "schema":
            events.put(*(json.dumps(wrapped({"op": "c", "after": row}, schemas)) for row in rows))
            keep(table, times="schema", decimals="schema")
        case unit:
            events.put(*(json.dumps({"op": "c", "after": row}) for row in rows))
            keep(table, times=unit, decimals="base64")
    stored = {row["id"]: row for row in table.to_arrow().to_pylist()}
    expected = {name: DEPTHS[depth][2](of.value) for name, (of, depth) in columns.items()}
    wrong = {name: (stored[1][name], value) for name, value in expected.items() if stored[1][name] != value}
    assert not wrong
    assert stored[2] == {"id": 2, **dict.fromkeys(columns)}


@dataclass(frozen=True)
class Bad:
    """A part of the reason why a value is none of its column."""

    says: str


MISSING = Bad("does not log unchanged large values")
WORD = b"__debezium_unavailable_value"
BIG = "1234567890123456.7891"
VALUES: dict[str, list[tuple[str, str, Any]]] = {
    "debezium-json base64": [
        ("DECIMAL(20, 4)", BIG, Decimal(BIG)),
        ("ARRAY<DECIMAL(20, 4)>", f"[{BIG}]", [Decimal(BIG)]),
        ("DECIMAL(38, 0)", "12300000000000000001", Decimal(12300000000000000001)),
        ("DECIMAL(38, 0)", "1.23E19", Decimal("1.23E19")),
        ("DECIMAL(38, 0)", f'"{b64((-(2**127)).to_bytes(16, "big", signed=True))}"', Bad("expected decimal(38,0)")),
        ("DECIMAL(4, 2)", "123.4", Bad("'123.4', expected decimal(4,2)")),
        ("DECIMAL(4, 2)", "1.500", Decimal("1.50")),
        ("DECIMAL(4, 2)", "1.505", Bad("'1.505', expected decimal(4,2)")),
        ("DECIMAL(4, 2)", "1e999999999", Bad("expected decimal(4,2)")),
        ("DECIMAL(4, 2)", '""', Bad("expected decimal(4,2)")),
        ("ARRAY<DECIMAL(4, 2)>", '["!"]', Bad("column '{}.element' is '!', expected decimal(4,2)")),
        ("DECIMAL(9, 2)", f'{{"scale": 1, "value": "{b64(unscaled(15))}"}}', Decimal("1.50")),
        ("BIGINT", '"1234"', int.from_bytes(base64.b64decode("1234"), "big", signed=True)),
        ("STRING", "1.10", "1.10"),
        ("STRING", "1e5", "1e5"),
        ("STRING", "-0.0", "-0.0"),
        ("STRING", "123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("STRING", '{"a": [1.10, "x"]}', '{"a": [1.10, "x"]}'),
        ("ARRAY<STRING>", "[1.10, true, null]", ["1.10", "true", None]),
        ("MAP<STRING, STRING>", '{"k": 1.10}', [("k", "1.10")]),
        ("STRING", r'"\ud800"', Bad("an unpaired surrogate")),
        ("STRING", r'"\ud83d\ude00"', "\U0001f600"),
        ("DOUBLE", "-0.0", -0.0),
        ("DOUBLE", "1e400", Bad("expected double")),
        ("FLOAT", "1e39", Bad("expected float")),
        ("DOUBLE", '"Infinity"', math.inf),
        ("DOUBLE", "NaN", Bad("it is not a JSON object: Non-standard token 'NaN'")),
        ("DOUBLE", "-Infinity", Bad("it is not a JSON object")),
        ("SMALLINT", "32768", Bad("'32768', expected smallint")),
        ("TINYINT", "-129", Bad("expected tinyint")),
        ("BIGINT", str(2**63), Bad("expected bigint")),
        ("INT", "1.0", Bad("expected int")),
        ("INT", "true", Bad("expected int")),
        ("BINARY", "1234", Bad("expected binary")),
        ("BINARY", "true", Bad("expected binary")),
        ("BINARY", '"!"', Bad("expected binary")),
        ("MAP<STRING, BINARY>", '{"k": "AP8="}', [("k", b"\x00\xff")]),
        ("DATE", "-3", DAY),
        ("ARRAY<DATE>", "[-3, null]", [DAY, None]),
        ("DATE", '"10:00:00"', Bad("expected date")),
        ("TIMESTAMP", '"10:00:00"', Bad("expected timestamp")),
        ("TIMESTAMP", '"2026"', dt.datetime(1970, 1, 1, 0, 0, 0, 2026, tzinfo=dt.UTC)),
        ("TIMESTAMP", "1.5", Bad("expected timestamp")),
        ("TIMESTAMP", str(2**63 - 1) + "0", Bad("expected timestamp")),
        ("ARRAY<TIMESTAMP_NTZ>", f"[{MICROS}]", [WALL]),
        ("STRUCT<a: STRUCT<b: TIMESTAMP_NTZ>>", f'{{"a": {{"b": {MICROS}}}}}', {"a": {"b": WALL}}),
        ("MAP<STRING, TIMESTAMP_NTZ>", f'{{"k": {MICROS}}}', [("k", WALL)]),
        ("MAP<INT, STRING>", '[[1, "a"], [2, null]]', [(1, "a"), (2, None)]),
        ("MAP<INT, STRING>", '{"1": "a", "01": "b"}', Bad("column '{}.key' has a duplicate value")),
        ("MAP<INT, STRING>", '{"x": "a"}', Bad("column '{}.key' is 'x', expected int")),
        ("MAP<STRING, INT>", '{"k": 1, "k": 2}', Bad("column '{}.key' is 'k', a duplicate")),
        ("STRUCT<a: INT>", '{"a": "x"}', Bad("column '{}.a' is 'x', expected int")),
        ("STRUCT<a: INT>", "5", Bad("'5', expected struct<a:int>")),
        ("ARRAY<INT>", '"[1]"', Bad("'[1]', expected array<int>")),
        ("STRUCT<a: INT>", '{"a": 1, "a": 2}', Bad("has field 'a' twice")),
        ("INT", '1}} {"x": {"y": 1', Bad("text follows its JSON object")),
        ("STRING", f'"{WORD.decode()}"', MISSING),
        ("BINARY", f'"{b64(WORD)}"', MISSING),
        ("ARRAY<STRING>", f'["{WORD.decode()}"]', MISSING),
        ("ARRAY<INT>", json.dumps(list(WORD)), MISSING),
        ("ARRAY<TIMESTAMP>", json.dumps(list(WORD)), MISSING),
        ("ARRAY<BINARY>", f'["{b64(WORD)}"]', MISSING),
        ("MAP<STRING, STRING>", f'{{"{WORD.decode()}": "{WORD.decode()}"}}', MISSING),
        ("STRUCT<a: ARRAY<STRING>>", f'{{"a": ["{WORD.decode()}"]}}', MISSING),
    ],
    "debezium-json text": [
        ("DECIMAL(20, 4)", f'"{BIG}"', Decimal(BIG)),
        ("ARRAY<DECIMAL(20, 4)>", f'["{BIG}", {BIG}]', [Decimal(BIG), Decimal(BIG)]),
        ("DECIMAL(9, 2)", '"NaN"', Bad("expected decimal(9,2)")),
    ],
    "maxwell-json": [
        ("DECIMAL(20, 4)", BIG, Decimal(BIG)),
        ("STRING", "1.10", "1.10"),
        ("STRING", '{"a": 1.10}', '{"a": 1.10}'),
        ("DATE", '"2026-01-31"', dt.date(2026, 1, 31)),
        ("DATE", "2026", Bad("expected date")),
        ("TIMESTAMP_NTZ", '"2026-01-31 10:00:00.5"', dt.datetime(2026, 1, 31, 10, 0, 0, 500_000)),
        ("TIMESTAMP", "2026", Bad("expected timestamp")),
        ("BINARY", '"AP8="', b"\x00\xff"),
        ("STRING", f'"{WORD.decode()}"', WORD.decode()),
    ],
    "canal-json": [
        ("DECIMAL(20, 4)", f'"{BIG}"', Decimal(BIG)),
        ("BINARY", '"ab\\u00ff\\u0000"', b"ab\xff\x00"),
        ("BINARY", '"\u20ac"', Bad("expected binary")),
        ("DATE", '"2026"', Bad("expected date")),
        ("DATE", '"0000-00-00"', Bad("expected date")),
        ("BIGINT", f'"{2**63}"', Bad("expected bigint")),
        ("BOOLEAN", '"1"', True),
    ],
}
"""By format and options: the type of a column, a value in the event's text, and the value or the reason."""


@pytest.mark.parametrize("forms", VALUES)
def test_a_value_is_stored_as_it_is_or_has_a_reason(wh, events, keep, forms):
    how, _, decimals = forms.partition(" ")
    cases = VALUES[forms]
    columns = ", ".join(f"c{number} {ddl}" for number, (ddl, _, _) in enumerate(cases))
    table = wh.create_table(
        f"cdctypes.{forms}".translate({45: 95, 32: 95}), f"id BIGINT, {columns}", primary_key=["id"]
    )
    shape = {
        "debezium-json": '{{"op": "c", "after": {}}}',
        "maxwell-json": '{{"type": "insert", "data": {}}}',
        "canal-json": '{{"type": "INSERT", "data": [{}]}}',
    }[how]
    rows = (f'{{"id": {number}, "c{number}": {text}}}' for number, (_, text, _) in enumerate(cases))
    events.put(*map(shape.format, rows))
    options = {"times": "micros", "decimals": decimals} if decimals else {}
    letters = f"{table.name}_letters"
    keep(table, format=how, dead_letter=letters, **options)
    stored = {row["id"]: row[f"c{row['id']}"] for row in table.to_arrow().to_pylist()}
    reasons = {int(row["position"].strip("{}")): row["reason"] for row in wh.table(letters).to_arrow().to_pylist()}
    for number, (ddl, text, expected) in enumerate(cases):
        if isinstance(expected, Bad):
            assert expected.says.format(f"c{number}") in reasons.get(number, "it was stored"), (ddl, text)
        else:
            assert (number in stored, stored.get(number)) == (True, expected), (ddl, text, reasons.get(number))
            assert str(stored[number]) == str(expected) or isinstance(expected, Decimal), (ddl, text)


def test_the_unit_of_an_event_wins_over_the_option(wh, events, keep):
    """An event's schema goes before ``times``, which is for events and values without one."""
    table = wh.create_table(
        "cdctypes.units", "id BIGINT, at TIMESTAMP_NTZ, xs ARRAY<TIMESTAMP_NTZ>", primary_key=["id"]
    )

    def put(number: int, unit: str | None, value: int) -> None:
        plain = {"type": "int64", "optional": True}
        kind = plain if unit is None else {**plain, **time("int64", unit)}
        row = {"op": "c", "after": {"id": number, "at": value, "xs": [value]}}
        columns = {"id": plain, "at": kind, "xs": {"type": "array", "items": kind}}
        events.put(json.dumps(wrapped(row, columns)))

    put(1, "Timestamp", MICROS // 1000)
    put(2, "MicroTimestamp", MICROS)
    put(3, "NanoTimestamp", MICROS * 1000)
    put(4, None, MICROS)
    put(5, "MicroTime", 5)
    events.put(json.dumps({"op": "c", "after": {"id": 6, "at": MICROS, "xs": [MICROS]}}))
    keep(table, times="micros", dead_letter="cdctypes.units_letters")
    rows = {row["id"]: (row["at"], row["xs"]) for row in table.to_arrow().to_pylist()}
    assert rows == {1: (MILLIS, [MILLIS]), **{number: (WALL, [WALL]) for number in (2, 3, 4, 6)}}
    (letter,) = wh.table("cdctypes.units_letters").to_arrow().to_pylist()
    assert "column 'at' is '5', expected timestamp_ntz" in letter["reason"]


def test_decimal_keys_that_a_double_cannot_tell_apart(wh, events, keep):
    table = wh.create_table("cdctypes.keys", "id DECIMAL(20, 4), v STRING", primary_key=["id"])
    events.put(*(f'{{"type": "insert", "data": {{"id": 1234567890123456.789{end}, "v": 1.{end}0}}}}' for end in "12"))
    events.put('{"type": "update", "data": {"id": 1234567890123456.78910, "v": "x"}, "old": {"v": "1.10"}}')
    keep(table, format="maxwell-json")
    rows = {str(row["id"]): row["v"] for row in table.to_arrow().to_pylist()}
    assert rows == {"1234567890123456.7891": "x", "1234567890123456.7892": "1.20"}


def test_nested_fields_that_the_table_lacks_are_new_columns(wh, events, keep):
    table = wh.create_table("cdctypes.nested", "id BIGINT, part STRUCT<a: INT>", primary_key=["id"])
    events.put('{"op": "c", "after": {"id": 1, "part": {"a": 1, "b": 2}}}')
    with pytest.raises(StreamingQueryException, match=r"have columns that the table does not have: part\.b"):
        keep(table)
    keep(table, new_columns="ignore")
    assert table.to_arrow().to_pylist() == [{"id": 1, "part": {"a": 1}}]


def test_bytes_that_are_no_text_are_no_event(wh, events, keep):
    table = wh.create_table("cdctypes.latin", "id BIGINT, v STRING", primary_key=["id"])
    bad = b'{"op": "c", "after": {"id": 1, "v": "\xff"}}'
    events.put(bad)
    keep(table, dead_letter="cdctypes.latin_letters")
    (letter,) = wh.table("cdctypes.latin_letters").to_arrow().to_pylist()
    assert (letter["reason"], base64.b64decode(letter["event"])) == ("its bytes are not UTF-8", bad)
    assert table.to_arrow().num_rows == 0


class Generator:
    """Random columns, values of these, and events with them in one of the ways that connectors write them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.columns = {f"c{number}": self._type(2) for number in range(6)}

    @property
    def ddl(self) -> str:
        return ", ".join(["id DECIMAL(20, 4)", *(f"{name} {_ddl(kind)}" for name, kind in self.columns.items())])

    def _type(self, depth: int) -> Any:
        """The name of a plain type, or how others are inside."""
        match self.rng.randrange(6) if depth else 5:
            case 0:
                return ("list", self._type(depth - 1))
            case 1:
                return ("map", self._type(depth - 1))
            case 2:
                return ("part", self._type(depth - 1))
        return self.rng.choice(list(PLAIN))

    def value(self, kind: Any) -> Any:
        rng = self.rng
        if rng.random() < 0.1:
            return None
        if isinstance(kind, tuple):
            items = [self.value(kind[1]) for _ in range(rng.randrange(3))]
            match kind[0]:
                case "list":
                    return items
                case "map":
                    return [(rng.choice("abü") + str(place), item) for place, item in enumerate(items)]
            return {"v": self.value(kind[1])}
        match kind:
            case "decimal":
                return Decimal(rng.randrange(-(10 ** rng.randrange(1, 19)), 10**18)).scaleb(-4)
            case "date":
                return dt.date(1970, 1, 1) + dt.timedelta(rng.randrange(-700_000, 2_900_000))
            case "moment":
                return dt.datetime(1970, 1, 1) + dt.timedelta(
                    microseconds=rng.randrange(-(10**16), 10**16) // 1000 * 1000
                )
            case "bigint":
                return rng.choice([0, 2**63 - 1, -(2**63), rng.getrandbits(40)])
            case "double":
                return rng.choice([0.1, -0.0, 1e300, 5e-324, math.inf, rng.random()])
            case "bytes":
                return rng.randbytes(rng.randrange(5))
        return rng.choice(["", "1.10", "null", "NaN", "{}", "ü\n", "2026-01-31", str(rng.random())])

    def event(self, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
        """An event with its schema, whose units and forms are its own, or one without."""
        kinds: dict[str, Any] = {"id": "decimal", **self.columns}
        has_schema = self.rng.random() < 0.5
        unit = self.rng.choice(["Timestamp", "MicroTimestamp", "NanoTimestamp"]) if has_schema else "MicroTimestamp"
        form = self.rng.choice(["base64", "number", "text"]) if has_schema else self.rng.choice(["base64", "number"])

        def rows(row: dict[str, Any] | None) -> Any:
            return row and {name: _json(kinds[name], value, unit, form) for name, value in row.items()}

        payload = {"op": op, "before": rows(before), "after": rows(after)}
        schemas = {name: _connect(kind, unit, form) for name, kind in kinds.items()}
        text = json.dumps(wrapped(payload, schemas) if has_schema else payload, ensure_ascii=self.rng.random() < 0.5)
        return text.replace('"<', "").replace('>"', "")


PLAIN = {
    "decimal": "DECIMAL(22, 4)", "date": "DATE", "moment": "TIMESTAMP_NTZ", "bigint": "BIGINT", "double": "DOUBLE",
    "bytes": "BINARY", "text": "STRING",
}  # fmt: skip
PER_SECOND = {"Timestamp": 10**3, "MicroTimestamp": 10**6, "NanoTimestamp": 10**9}


def _ddl(kind: Any) -> str:
    return DEPTHS[kind[0]][0].format(_ddl(kind[1])) if isinstance(kind, tuple) else PLAIN[kind]


def _connect(kind: Any, unit: str, form: str) -> dict[str, Any]:
    if isinstance(kind, tuple):
        return connect_at(kind[0], _connect(kind[1], unit, form))
    match kind:
        case "decimal":
            return {"base64": decimal(4), "number": {"type": "double"}, "text": {"type": "string"}}[form]
        case "date":
            return time("int32", "Date")
        case "moment":
            return time("int64", unit)
        case "bytes":
            return {"type": "bytes"}
    return {"type": {"bigint": "int64", "double": "double", "text": "string"}[kind]}


def _json(kind: Any, value: Any, unit: str, form: str) -> Any:
    """A value as events have it; a number whose text counts stands between two marks, which are taken off later."""
    if value is None:
        return None
    if isinstance(kind, tuple):
        match kind[0]:
            case "list":
                return [_json(kind[1], item, unit, form) for item in value]
            case "map":
                return {key: _json(kind[1], item, unit, form) for key, item in value}
        return {"v": _json(kind[1], value["v"], unit, form)}
    match kind:
        case "decimal" if form == "base64":
            return b64(unscaled(int(value.scaleb(4))))
        case "decimal":
            return str(value) if form == "text" else f"<{value}>"
        case "date":
            return (value - dt.date(1970, 1, 1)).days
        case "moment":
            return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * PER_SECOND[unit] // 10**6
        case "double" if math.isinf(value):
            return "Infinity"
        case "bytes":
            return b64(value)
    return value


def random_history(wh: Any, events: Events, keep: Callable[..., None], seed: int, batches: int) -> None:
    """Batches of random changes, each a file and a micro-batch, leave the rows of a dictionary."""
    made = Generator(seed)
    rng = made.rng
    table = wh.create_table(f"cdctypes.random{seed}", made.ddl, primary_key=["id"], buckets=2)
    model: dict[Decimal, dict[str, Any]] = {}
    for _ in range(batches):
        texts = []
        for _ in range(rng.randrange(1, 12)):
            key = Decimal(f"123456789012345.{rng.randrange(8):04}")
            old = model.get(key)
            new = {"id": key, **{name: made.value(kind) for name, kind in made.columns.items()}}
            match rng.randrange(4) if old else 3:
                case 0:
                    texts.append(made.event("d", model.pop(key), None))
                case 1:
                    model.pop(key)
                    new["id"] = Decimal(f"123456789012345.{rng.randrange(8, 12):04}")
                    model[new["id"]] = new
                    texts.append(made.event("u", old, new))
                case _:
                    model[key] = new
                    texts.append(made.event("u" if old else "c", old, new))
        events.put(*texts)
    keep(table, max_files=1, times="micros", decimals="base64")
    stored = {row["id"]: row for row in table.to_arrow().to_pylist()}
    assert stored == model
    assert repr(sorted(stored.items())) == repr(sorted(model.items())), "zeros with their signs"


@pytest.mark.parametrize("seed", range(3))
def test_random_values_of_random_types_are_decoded(wh, events, keep, seed):
    random_history(wh, events, keep, seed, batches=4)
