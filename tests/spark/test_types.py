"""Every type, with its hardest values, through both tiers, both engines and a stream: exactly what was written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from spark.session import append, drain, load, load_stream
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark

COLUMNS = {
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "large": "BIGINT",
    "single": "FLOAT",
    "twice": "DOUBLE",
    "money": "DECIMAL(38,10)",
    "few": "DECIMAL(5,2)",
    "text": "STRING",
    "bytes": "BINARY",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "list": "ARRAY<INT>",
    "words": "MAP<STRING, DECIMAL(12,2)>",
    "pair": "STRUCT<a: BIGINT, b: STRING>",
    "deep": "ARRAY<STRUCT<m: MAP<INT, ARRAY<TIMESTAMP>>, n: TIMESTAMP_NTZ, s: STRUCT<x: BINARY>>>",
    "nothing": "STRING",
}
DDL = "id BIGINT NOT NULL, " + ", ".join(f"`{name}` {ddl}" for name, ddl in COLUMNS.items())
_EARLY = dt.datetime(1901, 12, 13, 20, 45, 52, 123456)
_UTC_EARLY = _EARLY.replace(tzinfo=dt.UTC)
_LATE = dt.datetime(2999, 12, 31, 23, 59, 59, 999999)
VALUES = {
    "flag": [True, False],
    "tiny": [-128, 127],
    "small": [-(2**15), 2**15 - 1],
    "number": [-(2**31), 2**31 - 1],
    "large": [-(2**63), 2**63 - 1],
    "single": [float("-inf"), 1.5],
    "twice": [2.0**-1074, float("inf")],
    "money": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    "few": [Decimal("-999.99"), Decimal("0.01")],
    "text": ["", "ünïcödé \N{GRINNING FACE}\x00 \n'\""],
    "bytes": [b"", bytes(range(256))],
    "day": [dt.date(1601, 1, 1), dt.date(9999, 12, 31)],
    "moment": [_UTC_EARLY, _LATE.replace(tzinfo=dt.UTC)],
    "wall": [_EARLY, dt.datetime(2026, 3, 8, 2, 30)],  # an hour that New York skipped
    "list": [[], [1, None, 3]],
    "words": [[], [("a", Decimal("1.50")), ("b", None)]],
    "pair": [{"a": None, "b": "x"}, {"a": 1, "b": None}],
    "deep": [[], [None, {"m": [(1, [_UTC_EARLY, None]), (2, None)], "n": _LATE, "s": {"x": b"\x00"}}]],
    "nothing": [None, None],
}


@pytest.fixture(scope="module")
def written(wh):
    table = wh.create_table("types.all", DDL)
    schema = TableSchema.of(DDL).arrow
    values = {"id": [0, 1, 2], **{name: [*found, None] for name, found in VALUES.items()}}
    table.append(pa.table(values, schema=schema))
    return table


def sorted_rows(table):
    return table.to_arrow().sort_by("id").combine_chunks()


@pytest.mark.always
@pytest.mark.spark41
def test_every_type_comes_back_through_spark(spark, wh, written):
    copy = wh.create_table("types.copied", DDL)
    frame = load(spark, wh, "types.all")
    assert {f.name: f.dataType.simpleString() for f in frame.schema} == {
        f.name: f.dataType.simpleString() for f in spark.createDataFrame([], DDL).schema
    }
    append(frame, wh, "types.copied")
    assert sorted_rows(copy).equals(sorted_rows(written))


def test_every_type_comes_back_from_the_lake(spark, wh, written):
    copy = wh.create_table("types.from_lake", DDL)
    tier(spark, wh.url, ["types.all"])
    append(load(spark, wh, "types.all$lake"), wh, "types.from_lake")
    assert sorted_rows(copy).equals(sorted_rows(written))


@pytest.mark.spark41
@pytest.mark.long
def test_every_type_comes_back_from_a_stream(spark, wh, written, checkpoint):
    copy = wh.create_table("types.streamed", DDL)
    drain(load_stream(spark, wh, "types.all"), wh, "types.streamed", checkpoint)
    assert sorted_rows(copy).equals(sorted_rows(written))


@pytest.mark.long
def test_trimmed_range_from_the_lake(spark, wh, written, checkpoint):
    source = wh.create_table("types.trimmed", DDL, properties={"table.log.ttl": "1ms"})
    source.append(written.to_arrow())
    tier(spark, wh.url, ["types.trimmed"])
    source.maintain()
    assert source.refresh().buckets[0].start == 3
    copy = wh.create_table("types.restored", DDL)
    drain(load_stream(spark, wh, "types.trimmed"), wh, "types.restored", checkpoint)
    assert sorted_rows(copy).equals(sorted_rows(written))


def test_nan_comes_back_from_spark(spark, wh):
    table = wh.create_table("types.nan", "id BIGINT, x DOUBLE, y FLOAT")
    append(spark.sql("SELECT 1L id, double('NaN') x, float('NaN') y"), wh, "types.nan")
    assert load(spark, wh, "types.nan").selectExpr("isnan(x) AND isnan(y)").first() == (True,)
    assert table.to_arrow().num_rows == 1


def test_zone_of_the_session_does_not_matter(spark, wh):
    table = wh.create_table("types.zones", "id BIGINT, moment TIMESTAMP, wall TIMESTAMP_NTZ")
    frame = spark.sql("SELECT 1L id, timestamp'2026-06-01 12:00:00' moment, timestamp_ntz'2026-06-01 12:00:00' wall")
    append(frame, wh, "types.zones")
    row = table.to_arrow().to_pylist()[0]
    assert row["moment"] == dt.datetime(2026, 6, 1, 16, tzinfo=dt.UTC)  # noon in New York
    assert row["wall"] == dt.datetime(2026, 6, 1, 12)
