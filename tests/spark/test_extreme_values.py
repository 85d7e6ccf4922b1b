"""Dates and times outside the years 1 to 9999 through every entrance of Spark: stored and found, or rejected whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import streamhouse_spark as sh
from spark.dml import found, opened
from spark.session import append, drain
from streamhouse_spark.core.python_values import to_ticks
from streamhouse_spark.expressions.functions import FIELDS
from streamhouse_spark.expressions.generated_columns import Generated, fill_generated_columns
from streamhouse_spark.expressions.sql import parse_expression
from streamhouse_spark.schema.table_schema import TableSchema

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

INFINITY = 9_223_372_036_825_200_000
"""PostgreSQL's infinity, as Debezium sends it."""
FAR_DAY, FAR_TIME = "date_from_unix_date(2147483647)", f"timestamp_micros({INFINITY}L)"
EARLY_TIME = "timestamp_micros(-9223372036854775808L)"


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"])
def test_sql_finds_what_it_stored(spark: Any, make: Callable[..., str], wh: Any, lake: str, key: str) -> None:
    columns = f"id BIGINT NOT NULL, day DATE, at TIMESTAMP, n TIMESTAMP_NTZ{key}"
    name = make(lake, columns, **{"table.datalake.format": lake})
    spark.sql(f"INSERT INTO {name} SELECT 1L, {FAR_DAY}, {FAR_TIME}, CAST(NULL AS TIMESTAMP_NTZ)")
    spark.sql(f"INSERT INTO {name} VALUES (2, DATE'2026-01-31', TIMESTAMP'2026-01-31', NULL)")
    spark.sql(f"INSERT INTO {name} SELECT 3L, date_from_unix_date(-2147483648), {EARLY_TIME}, NULL")
    for _ in range(2):
        shown = f"SELECT id, unix_date(day), unix_micros(at) FROM {name} WHERE "
        far = (1, 2**31 - 1, INFINITY)
        assert found(spark, shown + f"day = {FAR_DAY}") == [far]
        assert found(spark, shown + f"at = {FAR_TIME}") == [far]
        assert found(spark, shown + "day > DATE'9999-12-31' AND at > TIMESTAMP'9999-12-31'") == [far]
        assert found(spark, shown + "at < TIMESTAMP'0001-01-01'") == [(3, -(2**31), -(2**63))]
        assert found(spark, f"SELECT max(unix_date(day)), min(unix_micros(at)) FROM {name}") == [(2**31 - 1, -(2**63))]
        later = f"SELECT id FROM {name} WHERE day BETWEEN DATE'2026-01-01' AND {FAR_DAY} ORDER BY id"
        assert found(spark, later) == [(1,), (2,)]
        spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
    spark.sql(f"UPDATE {name} SET day = date_sub(day, 1) WHERE at = {FAR_TIME}")
    assert found(spark, f"SELECT unix_date(day) FROM {name} WHERE id = 1") == [(2**31 - 2,)]
    spark.sql(f"DELETE FROM {name} WHERE day > DATE'9999-12-31'")
    spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
    database, _, table = name.rpartition(".")
    assert found(spark, f"SELECT id FROM {database}.`{table}$lake` ORDER BY id") == [(2,), (3,)]


def test_partitions_of_such_values_are_dropped_and_overwritten(spark: Any, make: Callable[..., str]) -> None:
    name = make(columns="id BIGINT, day DATE")
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (id BIGINT, day DATE) PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO {name} SELECT 1L, {FAR_DAY} UNION ALL SELECT 2L, DATE'2026-01-31'")
    spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
    assert len(found(spark, f"SHOW PARTITIONS {name}")) == 2
    spark.sql(f"INSERT INTO {name} REPLACE WHERE day = {FAR_DAY} SELECT 3L, {FAR_DAY}")
    assert found(spark, f"SELECT id FROM {name} ORDER BY id") == [(2,), (3,)]
    spark.sql(f"DELETE FROM {name} WHERE day = {FAR_DAY}")
    assert found(spark, f"SELECT id FROM {name}") == [(2,)]


ENTRANCES = {
    "INSERT": lambda spark, wh, name, at: spark.sql(f"INSERT INTO {name} SELECT 7L, {FAR_DAY}"),
    "MERGE": lambda spark, wh, name, at: spark.sql(
        f"MERGE INTO {name} t USING (SELECT 7L AS id, {FAR_DAY} AS day) s ON t.id = s.id AND t.day = s.day "
        "WHEN NOT MATCHED THEN INSERT *"
    ),
    "UPDATE": lambda spark, wh, name, at: spark.sql(f"UPDATE {name} SET day = {FAR_DAY}"),
    "writeTo": lambda spark, wh, name, at: spark.sql(f"SELECT 7L AS id, {FAR_DAY} AS day").writeTo(name).append(),
    "format": lambda spark, wh, name, at: append(
        spark.sql(f"SELECT 7L AS id, {FAR_DAY} AS day"), wh, name.removeprefix("streamhouse.")
    ),
    "stream": lambda spark, wh, name, at: drain(
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .load()
        .selectExpr("value AS id", f"{FAR_DAY} AS day"),
        wh,
        name.removeprefix("streamhouse."),
        at,
    ),
}


@pytest.mark.parametrize("is_keyed", [False, True])
def test_every_entrance_rejects_a_partition_that_paimon_lacks(
    spark: Any, wh: Any, tmp_path: Any, is_keyed: bool
) -> None:
    wh.create_database("extreme")
    name = f"streamhouse.extreme.{'keyed' if is_keyed else 'log'}"
    key = ", PRIMARY KEY (id, day)" if is_keyed else ""
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, day DATE NOT NULL{key}) PARTITIONED BY (day) "
        "TBLPROPERTIES ('table.datalake.format' = 'paimon')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, DATE'9999-12-31')")
    before = opened(wh, name).refresh().version
    for entrance, write in ENTRANCES.items():
        if is_keyed and entrance == "UPDATE":
            continue  # no statement changes a key
        with pytest.raises(PySparkException, match=r"(?s)column 'day' of \S+ has the value \+5881580-07-11"):
            write(spark, wh, name, str(tmp_path / entrance))
        assert opened(wh, name).refresh().version == before, entrance
    assert found(spark, f"SELECT id FROM {name}") == [(1,)]


def test_change_events_with_infinity(spark: Any, wh: Any, tmp_path: Any) -> None:
    ordinary = wh.create_table("extreme_cdc.ordinary", "id BIGINT, at TIMESTAMP", primary_key=["id"])
    lacking = wh.create_table(
        "extreme_cdc.lacking",
        "id BIGINT, at TIMESTAMP",
        primary_key=["id", "at"],
        properties={"table.datalake.format": "paimon"},
    )
    events = [
        {"op": "c", "before": None, "after": {"id": number, "at": micros}, "source": {"connector": "postgresql"}}
        for number, micros in ((1, INFINITY), (2, 0), (3, -(2**63)))
    ]
    (tmp_path / "events").mkdir()
    lines = (json.dumps({"offset": place, "value": json.dumps(event)}) for place, event in enumerate(events))
    (tmp_path / "events" / "0.json").write_text("\n".join(lines))
    for table in (ordinary, lacking):
        sh.cdc(
            spark.readStream.schema("offset BIGINT, value STRING").json(str(tmp_path / "events")),
            table.name,
            warehouse=wh.url,
            times="micros",
            dead_letter="extreme_cdc.letters",
            checkpoint=str(tmp_path / table.name),
            trigger={"availableNow": True},
        ).awaitTermination()
    assert ordinary.lookup_one(1) == {"id": 1, "at": "+294247-01-10T04:00:25.200000Z"}
    assert sorted(ordinary.to_arrow().column("id").to_pylist()) == [1, 2, 3]
    assert lacking.to_arrow().column("id").to_pylist() == [2]
    letters = wh.table("extreme_cdc.letters").to_arrow()
    assert letters.num_rows == 2
    assert all("the years 1 to 9999" in reason for reason in letters.column("reason").to_pylist())


def test_generated_columns_have_the_values_of_spark(spark: Any) -> None:
    days, times = (-(2**31) + 400, 2**31 - 1), (-9 * 10**18, INFINITY)
    ours = pa.table(
        {
            "d": pa.array(days, pa.int32()).cast(pa.date32()),
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    schema = TableSchema.of(ours.schema)
    texts = [
        *(f"{name}({column})" for name in FIELDS for column in ("d", "ts")),
        *(f"trunc(d, '{unit}')" for unit in ("year", "quarter", "month", "week")),
        *(f"date_trunc('{unit}', ts)" for unit in ("year", "quarter", "month", "week", "day", "hour", "second")),
        "CAST(ts AS DATE)",
    ]
    theirs = spark.range(2).selectExpr(
        f"date_from_unix_date(CASE id WHEN 0 THEN {days[0]} ELSE {days[1]} END) AS d",
        f"timestamp_micros(CASE id WHEN 0 THEN {times[0]}L ELSE {times[1]}L END) AS ts",
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        found = theirs.selectExpr(*(f"{text} AS c{place}" for place, text in enumerate(texts))).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    for text, column in zip(texts, found.columns, strict=True):
        part = parse_expression(text, schema, "column 'g'", ())
        rows = ours.append_column(pa.field("g", part.type), pa.nulls(2, part.type))
        computed = fill_generated_columns([Generated("g", part.type, text, part)], rows, "t").column("g")
        assert to_ticks(computed).to_pylist() == to_ticks(column).to_pylist(), text
