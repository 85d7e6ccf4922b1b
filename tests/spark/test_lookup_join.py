"""`lookup_join`: batches and streams with the current rows of a table, by its primary key or a part of it."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

from spark.session import drain, load_stream
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, TableNotFoundError, lookup_join

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def customers(wh):
    table = wh.create_table(
        "joins.customers", "id BIGINT, name STRING, since TIMESTAMP, tags ARRAY<STRING>", primary_key=["id"], buckets=3
    )
    table.upsert([{"id": i, "name": f"c{i}", "tags": ["x"] * (i % 3)} for i in range(0, 1000, 2)])
    return table


@pytest.fixture(scope="module")
def items(wh):
    table = wh.create_table("joins.items", "order INT, line INT, what STRING", primary_key=["order", "line"], buckets=2)
    table.upsert([{"order": o, "line": n, "what": f"{o}.{n}"} for o in range(10) for n in range(o % 4)])
    return table


def found(frame):
    return [tuple(row) for row in frame.collect()]


@pytest.mark.always
@pytest.mark.spark41
def test_rows_with_their_partners_in_their_order(spark, wh, customers):
    frame = spark.range(0, 1000, 1, 3).withColumn("n", f.col("id") * 2)
    joined = lookup_join(frame, customers.name, on=["id"], warehouse=wh.url)
    assert joined.columns == ["id", "n", "name", "since", "tags"]
    expected = [(i, 2 * i, *((f"c{i}", None, ["x"] * (i % 3)) if i % 2 == 0 else (None,) * 3)) for i in range(1000)]
    assert found(joined) == expected
    inner = lookup_join(frame, customers.name, on="ID", warehouse=wh.url, columns=["NAME"], how="inner", prefix="c_")
    assert inner.columns == ["id", "n", "c_name"]
    assert found(inner) == [(i, 2 * i, f"c{i}") for i in range(0, 1000, 2)]


def test_it_is_a_join(spark, wh, customers):
    """The same as Spark's own join says, with keys of another name and type, null keys, and keys that are absent."""
    frame = spark.range(0, 3000, 1, 2).select(
        f.when(f.col("id") % 7 != 0, (f.col("id") * 31 % 1200).cast("int")).alias("customer"), "id"
    )
    table = spark.read.format("streamhouse").option("warehouse", wh.url).load(customers.name)
    for how in ("left", "inner"):
        ours = lookup_join(frame, customers.name, on={"customer": "id"}, warehouse=wh.url, columns=["name"], how=how)
        theirs = frame.join(table.select(f.col("id").alias("key"), "name"), f.col("customer") == f.col("key"), how)
        assert sorted(found(ours), key=str) == sorted(found(theirs.drop("key")), key=str)


def test_a_part_of_the_key_may_give_several_rows(spark, wh, items):
    frame = spark.createDataFrame([(3, "a"), (None, "b"), (4, "c"), (2, "d"), (77, "e")], "o int, text string")
    left = lookup_join(frame.coalesce(1), items.name, on={"o": "order"}, warehouse=wh.url, columns=["line", "what"])
    lines = [(3, "a", 0, "3.0"), (3, "a", 1, "3.1"), (3, "a", 2, "3.2"), (None, "b", None, None), (4, "c", None, None)]
    assert found(left) == [*lines, (2, "d", 0, "2.0"), (2, "d", 1, "2.1"), (77, "e", None, None)]
    inner = lookup_join(frame, items.name, on={"o": "order"}, warehouse=wh.url, columns=[], how="inner")
    assert sorted(row[1] for row in found(inner)) == ["a"] * 3 + ["d"] * 2
    assert found(lookup_join(frame.limit(0), items.name, on={"o": "order"}, warehouse=wh.url)) == []


def test_a_lookup_join_finds_its_warehouse_by_catalog_or_environment(spark, wh, customers, monkeypatch, tmp_path):
    frame = spark.range(4, 5)
    assert found(lookup_join(frame, customers.name, on="id", columns=["name"])) == [(4, "c4")]
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", str(tmp_path))
    with pytest.raises(Exception, match=str(tmp_path)):
        lookup_join(frame, customers.name, on="id")
    assert found(lookup_join(frame, customers.name, on="id", columns=["name"], warehouse=wh.url)) == [(4, "c4")]


@pytest.mark.spark41
def test_a_stream_sees_the_rows_of_the_moment(spark, wh, checkpoint):
    wh.create_table("joins.events", "id BIGINT, n INT").append([{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    names = wh.create_table("joins.names", "id BIGINT, name STRING", primary_key=["id"])
    out = wh.create_table("joins.out", "id BIGINT, n INT, name STRING")
    names.upsert([{"id": 1, "name": "a"}])

    def run():
        stream = load_stream(spark, wh, "joins.events")
        drain(lookup_join(stream, names.name, on="id", warehouse=wh.url), wh, out.name, checkpoint)
        return sorted(tuple(row.values()) for row in out.to_arrow().to_pylist())

    assert run() == [(1, 1, "a"), (2, 1, None)]
    names.upsert([{"id": 1, "name": "A"}, {"id": 2, "name": "b"}])
    wh.table("joins.events").append([{"id": 1, "n": 2}, {"id": 2, "n": 2}])
    assert run() == [(1, 1, "a"), (1, 2, "A"), (2, 1, None), (2, 2, "b")]


def test_a_bad_lookup_join_is_refused(spark, wh, customers, items):
    frame = spark.range(1).withColumn("name", f.lit("x"))

    def refused(error, match, table=customers.name, **options):
        with pytest.raises(error, match=match):
            lookup_join(frame, table, **{"on": "id", "warehouse": wh.url, **options})

    refused(InvalidOptionError, r"column 'name' of joins\.customers conflicts with .* set prefix=")
    refused(SchemaMismatchError, "no column 'idd'; did you mean 'id'", on={"idd": "id"})
    refused(SchemaMismatchError, "no column 'nope'", on={"id": "nope"})
    refused(SchemaMismatchError, "no column 'nope'", columns=["nope"])
    refused(
        SchemaMismatchError, r"'name' is string, but column 'id' .* is bigint; cast", on={"name": "id"}, prefix="c_"
    )
    refused(SchemaMismatchError, r"looked up by the primary key \(order, line\)", items.name, on={"id": "line"})
    refused(SchemaMismatchError, "'id' is bigint, but column 'order' .* is int", items.name, on={"id": "order"})
    refused(InvalidOptionError, "expected 'left' or 'inner'", how="full", columns=[])
    refused(InvalidOptionError, "on is 5, expected", on=5)
    refused(InvalidOptionError, "on is \\[\\], expected", on=[])
    refused(InvalidOptionError, "max_staleness_ms", max_staleness_ms=-1, columns=[])
    refused(TableNotFoundError, "joins.nothing", "joins.nothing")
    wh.create_table("joins.plain", "id BIGINT")
    refused(InvalidOptionError, "has no primary key", "joins.plain")
