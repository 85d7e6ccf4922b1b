"""Events as Debezium's connector for PostgreSQL and Confluent's converter write them in Avro, with their schemas."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import fastavro

KIND = dict[str, Any]


def semantic(kind: str, name: str, **more: Any) -> KIND:
    """A plain type whose meaning Connect names."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 10, "connect.version": 1, "logicalType": "decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}  # fmt: skip
VARIABLE = {
    "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.doc": "Variable scaled decimal", "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}  # fmt: skip
DATE = semantic("int", "io.debezium.time.Date")
CONNECT_DATE = semantic("int", "org.apache.kafka.connect.data.Date", logicalType="date")
MILLIS = semantic("long", "io.debezium.time.Timestamp")
CONNECT_MILLIS = semantic("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis")
MICROS = semantic("long", "io.debezium.time.MicroTimestamp")
NANOS = semantic("long", "io.debezium.time.NanoTimestamp")
ZONED = semantic("string", "io.debezium.time.ZonedTimestamp")
AVRO_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL_MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
MICRO_TIME = semantic("long", "io.debezium.time.MicroTime")

SOURCE = {
    "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"}, {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"}, {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "default": "false",
         "type": [semantic("string", "io.debezium.data.Enum", **{"connect.default": "false"}), "null"]},
        {"name": "db", "type": "string"}, {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "schema", "type": "string"}, {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}  # fmt: skip
BLOCK = {
    "type": "record", "name": "block", "namespace": "event", "connect.version": 1, "connect.name": "event.block",
    "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"},
               {"name": "data_collection_order", "type": "long"}],
}  # fmt: skip


def envelope(columns: dict[str, Any], key: Sequence[str] = ("id",)) -> KIND:
    """The schema of a table's events; columns that are not of the key may be null."""
    fields = [
        {"name": name, "type": kind} if name in key else {"name": name, "type": ["null", kind], "default": None}
        for name, kind in columns.items()
    ]
    value = {"type": "record", "name": "Value", "fields": fields, "connect.name": "shop.public.t.Value"}
    return {
        "type": "record", "name": "Envelope", "namespace": "shop.public.t", "connect.version": 2,
        "connect.name": "shop.public.t.Envelope",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": SOURCE},
            {"name": "transaction", "type": ["null", BLOCK], "default": None},
            {"name": "op", "type": "string"},
            *({"name": f"ts_{unit}", "type": ["null", "long"], "default": None} for unit in ("ms", "us", "ns")),
        ],
    }  # fmt: skip


def event(op: str, before: KIND | None = None, after: KIND | None = None) -> KIND:
    source = {"version": "3.0.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1, "db": "shop", "schema":
              "public", "table": "t", "lsn": 24023128, "sequence": '["1","2"]'}  # fmt: skip
    block = {"id": "571:53195829", "total_order": 1, "data_collection_order": 1}
    return {"op": op, "before": before, "after": after, "source": source, "transaction": block, "ts_ms": 1}


def bare(schema: KIND, value: object) -> bytes:
    """Avro and nothing else."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def wired(number: int, schema: KIND, value: object) -> bytes:
    """Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big", signed=True) + bare(schema, value)
