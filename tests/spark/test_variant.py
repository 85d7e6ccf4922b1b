"""VARIANT columns in Spark: in SQL and frames, hot and in a Paimon lake, by key, in streams, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from faults.scenarios import tier
from kit.variants import readable_rows
from spark.session import append, drain, in_python, load, load_stream
from streamhouse_spark import Warehouse
from streamhouse_spark.errors import LakeMismatchError

pytestmark = [pytest.mark.spark, pytest.mark.spark41]
PAIMON = "TBLPROPERTIES ('table.datalake.format' = 'paimon')"
DOCUMENTS = [
    {"a": 1, "b": ["x", None, {"c": 2.5}], "long": "t" * 100},
    [1, -200, 70_000, 2**40, 1.25, 1e300, True, False, None],
    "text",
    7,
    {},
    {f"key {i:03}": i for i in range(300)},
]


@pytest.fixture
def name(spark, request) -> str:
    """The name of a table of this test, in a database of its own."""
    database = f"db_{abs(hash(request.node.nodeid)) % 10**9}"
    spark.sql(f"CREATE DATABASE streamhouse.{database}")
    return f"{database}.t"


def insert(spark, name: str, first: int, documents: list) -> None:
    rows = [(first + i, None if one is None else json.dumps(one)) for i, one in enumerate(documents)]
    frame = spark.createDataFrame(rows, "id BIGINT, text STRING")
    frame.selectExpr("id", "parse_json(text) AS v").writeTo(f"streamhouse.{name}").append()


def read(frame) -> dict:
    """What Spark itself makes of each variant."""
    rows = frame.selectExpr("id", "to_json(v) AS text").collect()
    return {row["id"]: None if row["text"] is None else json.loads(row["text"]) for row in rows}


def tiered(wh: Warehouse, name: str) -> None:
    tier(wh.table(name))


def expected(documents: list, first: int = 0) -> dict:
    return {first + i: one for i, one in enumerate(documents)}


def test_hot_rows_and_those_of_the_lake_are_what_was_written(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT) {PAIMON}")
    insert(spark, name, 0, [*DOCUMENTS, None])
    assert read(spark.table(f"streamhouse.{name}")) == expected([*DOCUMENTS, None])
    tiered(wh, name)
    insert(spark, name, 100, DOCUMENTS)
    both = expected([*DOCUMENTS, None]) | expected(DOCUMENTS, 100)
    assert read(spark.table(f"streamhouse.{name}")) == both
    assert read(spark.table("streamhouse." + name.replace(".t", ".`t$lake`"))) == expected([*DOCUMENTS, None])
    with in_python(spark):
        assert read(load(spark, wh, name)) == both
    assert {row["id"]: row["v"] for row in readable_rows(wh.table(name).to_arrow())} == both
    got = spark.sql(
        f"SELECT variant_get(v, '$.a', 'int') a, variant_get(v, '$.b[2].c', 'double') c FROM streamhouse.{name} "
        "WHERE v IS NOT NULL AND variant_get(v, '$.b[0]', 'string') = 'x'"
    ).collect()
    assert [tuple(row) for row in got] == [(1, 2.5)] * 2
    assert spark.sql(f"SELECT id FROM streamhouse.{name} WHERE v IS NULL").collect()[0]["id"] == len(DOCUMENTS)


def test_values_as_sql_has_them(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT COMMENT 'anything') {PAIMON}")
    values = "CAST(DATE'2026-01-31' AS VARIANT), CAST(1.50BD AS VARIANT), parse_json('null'), NULL"
    spark.sql(f"INSERT INTO streamhouse.{name} SELECT id, v FROM (SELECT posexplode(array({values})) AS (id, v))")
    tiered(wh, name)
    shown = "SELECT id, schema_of_variant(v) kind, is_variant_null(v) is_null, v IS NULL absent"
    got = spark.sql(f"{shown} FROM streamhouse.{name} ORDER BY id").collect()
    assert [tuple(row)[1:] for row in got] == [
        ("DATE", False, False),
        ("DECIMAL(2,1)", False, False),
        ("VOID", True, False),
        (None, False, True),
    ]
    assert "v VARIANT COMMENT 'anything'" in spark.sql(f"SHOW CREATE TABLE streamhouse.{name}").collect()[0][0]
    assert wh.table(name).state.schema.ddl() == "id BIGINT, v VARIANT COMMENT 'anything'"
    other = name.replace(".t", ".u")
    spark.sql(f"CREATE TABLE streamhouse.{other} {PAIMON} AS SELECT * FROM streamhouse.{name}")
    assert spark.table(f"streamhouse.{other}").count() == 4
    assert wh.table(other).state.schema.ddl() == "id BIGINT, v VARIANT COMMENT 'anything'"


def test_rows_are_updated_merged_and_deleted(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT) {PAIMON}")
    insert(spark, name, 0, [{"n": i} for i in range(6)])
    tiered(wh, name)
    insert(spark, name, 6, [{"n": i} for i in range(6, 10)])
    sql = f"streamhouse.{name}"
    spark.sql(f"UPDATE {sql} SET v = parse_json('[\"new\"]') WHERE variant_get(v, '$.n', 'int') IN (1, 7)")
    spark.sql(f"DELETE FROM {sql} WHERE variant_get(v, '$.n', 'int') = 2")
    spark.sql(
        f"MERGE INTO {sql} t USING (SELECT explode(array(3L, 8L, 20L)) id, parse_json('{{\"m\": 1}}') v) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    after = {i: {"n": i} for i in range(10) if i != 2}
    after |= {1: ["new"], 7: ["new"], 3: {"m": 1}, 8: {"m": 1}, 20: {"m": 1}}
    assert read(spark.table(sql)) == after
    tiered(wh, name)
    assert read(spark.table(sql)) == after


def test_variants_are_upserted_by_key(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT, PRIMARY KEY (id)) {PAIMON}")
    sql = f"streamhouse.{name}"
    insert(spark, name, 0, DOCUMENTS)
    insert(spark, name, 1, [{"again": True}, None])
    after = expected(DOCUMENTS) | {1: {"again": True}, 2: None}
    assert read(spark.table(sql)) == after
    tiered(wh, name)
    spark.sql(f"UPDATE {sql} SET v = parse_json('3') WHERE id = 0")
    spark.sql(f"DELETE FROM {sql} WHERE id = 3")
    after = {**after, 0: 3}
    del after[3]
    assert read(spark.table(sql)) == after
    tiered(wh, name)
    assert read(spark.table(sql)) == after
    changes = "streamhouse." + name.replace(".t", ".`t$binlog`")
    old = spark.sql(f"SELECT to_json(before.v) v FROM {changes} WHERE _change_type = 'delete'").collect()
    assert [row["v"] for row in old] == ["7"]
    assert readable_rows(wh.table(name).lookup([{"id": 1}]))[0]["v"] == {"again": True}


def test_streams_in_and_out(spark, wh: Warehouse, name, tmp_path):
    source, target = name, name.replace(".t", ".u")
    for table in (source, target):
        spark.sql(f"CREATE TABLE streamhouse.{table} (id BIGINT, v VARIANT) {PAIMON}")
    insert(spark, source, 0, DOCUMENTS)
    tiered(wh, source)
    insert(spark, source, 100, DOCUMENTS)
    drain(load_stream(spark, wh, source), wh, target, str(tmp_path / "checkpoint"))
    both = expected(DOCUMENTS) | expected(DOCUMENTS, 100)
    assert read(spark.table(f"streamhouse.{target}")) == both


def test_columns_are_added_renamed_and_dropped(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT) {PAIMON}")
    sql = f"streamhouse.{name}"
    spark.sql(f"INSERT INTO {sql} VALUES (1)")
    tiered(wh, name)
    spark.sql(f"ALTER TABLE {sql} ADD COLUMN v VARIANT")
    insert(spark, name, 2, [{"a": 1}])
    assert read(spark.table(sql)) == {1: None, 2: {"a": 1}}
    tiered(wh, name)
    assert read(spark.table(sql)) == {1: None, 2: {"a": 1}}
    spark.sql(f"ALTER TABLE {sql} RENAME COLUMN v TO w")
    spark.sql(f"INSERT INTO {sql} VALUES (3, parse_json('{{\"b\": 2}}'))")
    assert read(spark.table(sql).withColumnRenamed("w", "v")) == {1: None, 2: {"a": 1}, 3: {"b": 2}}
    tiered(wh, name)
    assert read(spark.table(sql).withColumnRenamed("w", "v")) == {1: None, 2: {"a": 1}, 3: {"b": 2}}
    spark.sql(f"ALTER TABLE {sql} DROP COLUMN w")
    assert spark.table(sql).columns == ["id"]


def test_a_table_without_a_lake_holds_variants(spark, wh: Warehouse, name):
    spark.sql(
        f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT) TBLPROPERTIES ('table.datalake.enabled' = 'false')"
    )
    insert(spark, name, 0, DOCUMENTS)
    append(spark.sql("SELECT 10L AS id, parse_json('[1]') AS v"), wh, name)
    assert read(spark.table(f"streamhouse.{name}")) == expected(DOCUMENTS) | {10: [1]}


def a_document(draw: random.Random, depth: int = 0) -> Any:
    kinds = ["null", "bool", "int", "wide", "float", "text"] + ["list", "object"] * (depth < 4)
    match draw.choice(kinds):
        case "null":
            return None
        case "bool":
            return draw.random() < 0.5
        case "int":
            return draw.randint(-(2 ** draw.randint(1, 63)), 2 ** draw.randint(1, 62))
        case "wide":
            return draw.randint(-(10**38) + 1, 10**38 - 1)
        case "float":
            return draw.choice(
                [draw.random(), draw.uniform(-1e9, 1e9), draw.uniform(-1, 1) * 10 ** draw.randint(-290, 290)]
            )
        case "text":
            return "".join(draw.choices('ab "\\\n\u00e9\u6f22\U0001f600', k=draw.randint(0, 90)))
        case "list":
            return [a_document(draw, depth + 1) for _ in range(draw.randint(0, 9))]
    return {
        f"{draw.choice('abc漢')}{draw.randint(0, 400)}": a_document(draw, depth + 1) for _ in range(draw.randint(0, 40))
    }


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"], ids=["log", "keyed"])
def test_random_documents_from_sql_and_from_python(spark, wh: Warehouse, name, key):
    """Hot, in the lake and after compaction they are what Python's json makes of them; all readers agree."""
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT{key}) {PAIMON}")
    draw, after = random.Random(len(key)), {}
    table = wh.table(name)
    for part in range(4):
        documents = [a_document(draw) for _ in range(60)]
        documents = [{"of": one} if one is None else one for one in documents]
        after |= expected(documents, part * 100)
        if part % 2:
            table.refresh()
            write = table.upsert if key else table.append
            write([{"id": part * 100 + i, "v": one} for i, one in enumerate(documents)])
        else:
            insert(spark, name, part * 100, documents)
        assert read(spark.table(f"streamhouse.{name}")) == after
        if part != 2:
            tiered(wh, name)
        assert read(spark.table(f"streamhouse.{name}")) == after
    wh.table(name).open_lake().compact()
    assert read(spark.table(f"streamhouse.{name}")) == after
    assert {row["id"]: row["v"] for row in readable_rows(wh.table(name).to_arrow())} == after


def test_spark_reads_shredded_variants_and_python_rejects_them(spark, wh: Warehouse, name):
    """Paimon's writers can put parts of values into columns: Spark's reader puts them together, Python's refuses."""
    from pypaimon import CatalogFactory
    from pypaimon.data.generic_variant import GenericVariant

    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, v VARIANT) {PAIMON}")
    insert(spark, name, 0, [{"a": 0}])
    tiered(wh, name)
    shredded = {"type": "ROW", "fields": [{"id": 1, "name": "a", "type": "BIGINT"}]}
    shredded = {"type": "ROW", "fields": [{"id": 0, "name": "v", "type": shredded}]}
    stock = CatalogFactory.create({"warehouse": f"{wh.url}/lake"}).get_table(name)
    builder = stock.copy({"variant.shreddingSchema": json.dumps(shredded)}).new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    theirs = [{"a": 1, "b": ["x"]}, {"b": "text"}, [5], None]
    values = GenericVariant.to_arrow_array([one if one is None else GenericVariant.from_python(one) for one in theirs])
    write.write_arrow(pa.table({"id": pa.array(range(1, 5), pa.int64()), "v": values}))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()
    lake = "streamhouse." + name.replace(".t", ".`t$lake`")
    assert read(spark.table(lake)) == {0: {"a": 0}, **expected(theirs, 1)}
    with pytest.raises(LakeMismatchError, match="shredded"):
        wh.table(name).lake.to_arrow()


LAKE = "'table.datalake.format' = 'paimon'"


@pytest.mark.parametrize(
    ("columns", "properties", "message"),
    [
        ("(v VARIANT)", "'bucket.num' = '1'", "which requires Iceberg's format 3"),
        ("(a ARRAY<VARIANT>)", LAKE, "VARIANT inside another type"),
        ("(id INT, v VARIANT) PARTITIONED BY (v)", LAKE, "partition"),
        ("(id INT, v VARIANT NOT NULL, PRIMARY KEY (v))", LAKE, "choose columns of scalar types"),
        ("(id INT, v VARIANT)", f"{LAKE}, 'bucket.key' = 'v'", "expected integers, decimals"),
        ("(id INT, v VARIANT)", f"{LAKE}, 'table.statistics.columns' = 'v'", "has no statistics"),
        ("(id INT, v VARIANT)", f"{LAKE}, 'table.constraint.c' = 'v > 1'", r"constraint 'c' CHECK \(v > 1\)"),
    ],
    ids=["iceberg", "inside", "partition", "key", "bucket", "statistics", "check"],
)
def test_tables_that_cannot_hold_variants_are_refused(spark, name, columns, properties, message):
    with pytest.raises(AnalysisException, match=message):
        spark.sql(f"CREATE TABLE streamhouse.{name} {columns} TBLPROPERTIES ({properties})")
    assert not spark.catalog.tableExists(f"streamhouse.{name}")


def test_an_iceberg_lake_gets_no_variant_later(spark, wh: Warehouse, name):
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT)")
    with pytest.raises(Exception, match="which requires Iceberg's format 3"):
        spark.sql(f"ALTER TABLE streamhouse.{name} ADD COLUMN v VARIANT")
    assert wh.table(name).schema.names == ["id"]
