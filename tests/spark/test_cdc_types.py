"""Each semantic type of Debezium, at each depth, in JSON with and without a schema and in Avro; and values in JSON."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

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
        (self.folder / f"{self.offset:06d}.json").write_text("\n".join(lines) + "\n")

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
def test_each_semantic_type_at_each_depth(wh, events, keep, encoding):
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
