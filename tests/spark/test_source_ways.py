"""Batch reads of ``format("streamhouse")`` take the catalog's way where the session has the jar, else Python's.

Both ways give the same rows. The executed plan shows which one a read takes.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, in_python, load, load_stream, rows
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark
LOG, BOTH, KEYED, PARTITIONED, PAIMON = (f"ways.{name}" for name in ("log", "both", "keyed", "partitioned", "paimon"))
NESTED = "id BIGINT NOT NULL, item STRUCT<name: STRING, tags: ARRAY<STRING>>, day DATE"


def explained(frame: Any) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain()
    return shown.getvalue()


def way(frame: Any) -> str:
    plan = explained(frame)
    scans = [line for line in plan.splitlines() if "BatchScan streamhouse" in line]
    assert len(scans) == 1, plan
    return "Python" if scans[0].rstrip().endswith("(Python) RuntimeFilters: []") else "catalog"


def sorted_rows(frame: Any) -> list[str]:
    return sorted(map(str, frame.collect()))


@pytest.fixture(scope="module")
def snapshots(spark: Any, wh: Warehouse) -> list[int]:
    """The tables of this module; the lake snapshots of the one that has rows in lake and log."""
    wh.create_table(LOG, NESTED).append([{"id": i, "item": {"name": f"n{i}", "tags": ["a", None]}} for i in range(50)])
    both = wh.create_table(BOTH, COLUMNS, buckets=2, properties={"bucket.key": "id"})
    found = []
    for start in (0, 300):
        both.append(rows(300, start))
        found += tier(spark, wh.url, [BOTH])[BOTH].snapshots
    both.append(rows(400, 600))
    keyed = wh.create_table(KEYED, COLUMNS, buckets=2, primary_key=["id"])
    keyed.upsert(rows(40))
    tier(spark, wh.url, [KEYED])
    keyed.upsert([{"id": 3, "name": "new", "amount": None}, *rows(5, 40)])
    keyed.delete([{"id": 7}])
    for name, lake, keys in ((PARTITIONED, "iceberg", ["name"]), (PAIMON, "paimon", ["name"])):
        table = wh.create_table(name, COLUMNS, partition_by=keys, properties={"table.datalake.format": lake})
        table.append([{"id": i, "name": f"p{i % 4}", "amount": i * 0.5} for i in range(60)])
        tier(spark, wh.url, [name])
        table.append([{"id": 100, "name": "p1", "amount": None}, {"id": 101, "name": None, "amount": 1.0}])
    return found


def catalog_reads(snapshot: int) -> list[tuple[str, dict[str, str], str | None, str]]:
    """Names, options, columns that the reader asks for, and a condition."""
    return [
        (LOG, {}, None, "true"),
        (LOG, {}, None, "item.name = 'n7' or id = 9"),
        (LOG, {}, "day date, id long", "id < 5"),
        (LOG, {}, "item struct<name: string, tags: array<string>>", "item.tags is not null"),
        (BOTH, {}, None, "true"),
        (BOTH, {}, None, "id between 590 and 610 and name like 'n6%'"),
        (BOTH, {}, "amount double", "amount > 290"),
        ("Ways.BOTH", {"failOnDataLoss": "false"}, None, "id = 12"),
        (BOTH, {"includeMetadata": "false", "readChangeFeed": "false"}, None, "id < 3"),
        (BOTH, {"asOfLakeSnapshot": str(snapshot)}, None, "id > 280"),
        (BOTH, {"startingOffsets": "earliest", "endingOffsets": '{"0": 20, "1": 30}'}, None, "true"),
        (BOTH, {"startingTimestamp": "2020-01-01T00:00:00Z"}, None, "id % 100 = 0"),
        (BOTH, {"asOfTimestamp": "2100-01-01T00:00:00Z"}, None, "id % 100 = 0"),
        (f"{BOTH}$lake", {}, None, "true"),
        (f"{BOTH}$lake", {"asOfLakeSnapshot": str(snapshot)}, "id long", "id >= 0"),
        (f"{BOTH}$changelog", {}, None, "_log_offset < 10"),
        (f"{BOTH}$changelog", {}, "id long, _change_type string", "id > 900"),
        (KEYED, {}, None, "true"),
        (KEYED, {}, "name string, id long not null", "id in (3, 7, 8)"),
        (f"{KEYED}$lake", {}, None, "true"),
        (f"{KEYED}$changelog", {}, None, "id in (3, 7)"),
        (PARTITIONED, {}, None, "name = 'p1'"),
        (PARTITIONED, {}, None, "name is null or id < 4"),
        (PAIMON, {}, None, "true"),
        (PAIMON, {}, "id long", "id > 50"),
        (PAIMON, {}, None, "name = 'p2'"),
    ]


PYTHON_READS = [
    (BOTH, {"includeMetadata": "true"}, None),  # a catalog's table has these columns hidden
    (BOTH, {"readChangeFeed": "true"}, None),  # there it is another name, `$changelog`
    (KEYED, {"readChangeFeed": "true", "includeMetadata": "true"}, None),
    (f"{BOTH}$changelog", {"includeMetadata": "true"}, None),
    (f"{KEYED}$binlog", {}, None),  # Python works its rows out
    (f"{BOTH}$buckets", {}, None),
    (f"{BOTH}$lake$files", {}, None),
    (BOTH, {}, "ID long"),  # Spark's own reader finds columns by their very names
    (LOG, {}, "item struct<name: string>"),
]
PYTHON_ERRORS = {"item struct<name: string>"}
"""Schemas that are no table's: they are refused in Python, with its text."""


@pytest.mark.spark41
def test_both_ways_have_the_same_rows(spark, wh, snapshots):
    for name, options, schema, where in catalog_reads(snapshots[0]):
        case = (name, options, schema, where)
        frame = load(spark, wh, name, schema, **options)
        assert way(frame) == "catalog", case
        with in_python(spark):
            other = load(spark, wh, name, schema, **options)
            assert way(other) == "Python", case
        assert frame.dtypes == other.dtypes, case
        assert sorted_rows(frame.where(where)) == sorted_rows(other.where(where)) != [], case
        if where == "true":
            assert frame.count() == other.count(), case


@pytest.mark.spark41
def test_reads_that_stay_with_python(spark, wh, snapshots):
    for name, options, schema in PYTHON_READS:
        frame = load(spark, wh, name, schema, **options)
        if schema in PYTHON_ERRORS:
            with pytest.raises(PySparkException, match=r"SchemaMismatchError: SCHEMA_MISMATCH: "):
                frame.collect()
            continue
        assert way(frame) == "Python", (name, options, schema)
        frame.collect()


def test_the_plan_has_the_columns_and_the_filters_of_the_query(spark, wh, snapshots):
    frame = load(spark, wh, PARTITIONED).where("name = 'p1' and amount > 3").select("id")
    plan = explained(frame)
    assert f"BatchScan streamhouse.{PARTITIONED}[" in plan
    assert "amount > 3" in plan.partition("filters [")[2]
    assert frame.count() == 13


ERRORS = [
    ("ways.gone", {}, "id long", "TABLE_NOT_FOUND"),
    ("ways.log$nothing", {}, "id long", "INVALID_NAME"),
    (LOG, {}, "day date not null", "SCHEMA_MISMATCH"),
    (LOG, {"startingOffset": "earliest"}, "id long", "INVALID_OPTION"),
    (KEYED, {"startingOffsets": "earliest"}, "id long", "INVALID_OPTION"),
    (f"{BOTH}$changelog", {"asOfTimestamp": "2100-01-01T00:00:00Z"}, "id long", "INVALID_OPTION"),
    (BOTH, {"startingOffsets": '{"0": 9000}'}, None, "INVALID_OPTION"),
    (BOTH, {"asOfLakeSnapshot": "12345"}, None, "SNAPSHOT_EXPIRED"),
]


def test_errors_have_the_same_text(spark, wh, snapshots):
    def text(name, options, schema, condition):
        with pytest.raises(PySparkException) as failure:
            load(spark, wh, name, schema, **options).collect()
        told = str(failure.value)
        lines = [line for line in told.splitlines() if f"{condition}: " in line]
        assert lines, told
        return lines[0][lines[0].index(f"{condition}: ") :]

    for name, options, schema, condition in ERRORS:
        ours = text(name, options, schema, condition)
        with in_python(spark):
            assert ours == text(name, options, schema, condition)


def test_a_frame_keeps_its_way_and_the_state_of_its_first_use(spark, wh):
    table = wh.create_table("ways.growing", COLUMNS)
    table.append(rows(10))
    first, later = load(spark, wh, "ways.growing"), load(spark, wh, "ways.growing")
    with in_python(spark):
        other = load(spark, wh, "ways.growing")
        assert [first.where("id >= 0").count(), other.where("id >= 0").count()] == [10, 10]
    table.append(rows(5, 10))
    assert (way(first), way(other), way(later)) == ("Python", "Python", "catalog")
    assert [frame.where("id >= 0").count() for frame in (first, other, later)] == [10, 10, 15]
    table.append(rows(5, 15))
    table.maintain()
    with in_python(spark):
        assert [frame.where("id >= 0").count() for frame in (first, other, later)] == [10, 10, 15]
        assert later.union(later.where("id = 1")).distinct().count() == 15
        assert way(later) == "catalog"


def test_a_view_of_a_frame_keeps_its_state_too(spark, wh):
    table = wh.create_table("ways.viewed", COLUMNS)
    table.append(rows(10))
    load(spark, wh, "ways.viewed").createOrReplaceTempView("ways_viewed")
    assert spark.sql("SELECT sum(id) FROM ways_viewed").first()[0] == 45
    table.append(rows(5, 10))
    assert spark.sql("SELECT sum(id) FROM ways_viewed v WHERE id <= (SELECT max(id) FROM ways_viewed)").first()[0] == 45


def test_two_warehouses_that_have_a_table_of_the_same_name(spark, wh, tmp_path, snapshots):
    other = Warehouse(str(tmp_path / "other"))
    other.create_table(BOTH, COLUMNS, buckets=2, properties={"bucket.key": "id"}).append(rows(7, 5000))
    ours, theirs = load(spark, wh, BOTH), load(spark, other, BOTH)
    assert (way(ours), way(theirs)) == ("catalog", "catalog")
    assert ours.union(theirs).selectExpr("count(*)", "max(id)").first() == (1007, 5006)
    assert ours.join(theirs, "id").count() == 0
    joined = ours.alias("a").join(theirs.alias("b"), on=ours.id + 5000 == theirs.id)
    assert sorted(row[0] for row in joined.select(ours.id).collect()) == list(range(7))


def test_a_statement_of_the_catalog_reads_a_frame_of_the_table_that_it_writes(spark, wh):
    wh.create_table("ways.written", COLUMNS, primary_key=["id"]).upsert(rows(10))
    load(spark, wh, "ways.written").where("id < 3").createOrReplaceTempView("ways_written")
    spark.sql("INSERT INTO streamhouse.ways.written SELECT id + 100, name, amount FROM ways_written")
    spark.sql(
        "MERGE INTO streamhouse.ways.written t USING (SELECT id + 100 AS id FROM ways_written) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = 'merged'"
    )
    found = load(spark, wh, "ways.written").where("name = 'merged'")
    assert way(found) == "catalog"
    assert sorted(row.id for row in found.collect()) == [100, 101, 102]


def test_cached_rows_are_found_by_the_frame_that_cached_them(spark, wh, snapshots):
    frame = load(spark, wh, BOTH).cache()
    try:
        assert frame.where("id < 100").count() == 100
        assert "InMemoryTableScan" in explained(frame.where("id < 5"))
    finally:
        frame.unpersist()


def test_a_stream_reads_a_frame_beside_it(spark, wh, checkpoint):
    wh.create_table("ways.names", COLUMNS).append(rows(10))
    wh.create_table("ways.events", "id BIGINT, at BIGINT").append([{"id": i, "at": i} for i in range(20)])
    out = wh.create_table("ways.named", "id BIGINT, name STRING")
    named = load_stream(spark, wh, "ways.events").join(load(spark, wh, "ways.names"), "id").select("id", "name")
    drain(named, wh, "ways.named", checkpoint)
    assert sorted(out.to_arrow()["name"].to_pylist()) == sorted(f"n{i}" for i in range(10))
