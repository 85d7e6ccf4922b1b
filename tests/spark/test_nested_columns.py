"""Fields inside columns that are added, renamed, dropped, widened and come back, for SQL, DataFrames and streams."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from spark.session import drain, load, load_stream
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = (
    "id INT NOT NULL, s STRUCT<a: INT, gone: STRING, deep: STRUCT<x: INT>>, "
    "items ARRAY<STRUCT<x: INT, y: STRING>>, m MAP<STRING, STRUCT<v: FLOAT>>"
)
ROWS = (
    "(1, named_struct('a', 1, 'gone', 'g', 'deep', named_struct('x', 5)), "
    "array(named_struct('x', 1, 'y', 'y1')), map('k', named_struct('v', 0.5F))), (2, null, null, map())"
)
BIG = 2**40


def plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: plain(inner) for name, inner in value.asDict().items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return {key: plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def rows_of(frame: Any) -> list[Any]:
    return sorted((plain(row) for row in frame.collect()), key=lambda row: row["id"])


def changed(spark: Any, name: str) -> None:
    for change in (
        "RENAME COLUMN s.a TO b",
        "DROP COLUMN s.gone",
        "ADD COLUMN s.gone INT",
        "ADD COLUMNS (s.deep.y STRING, items.element.z BOOLEAN)",
        "ALTER COLUMN s.b TYPE BIGINT",
        "ALTER COLUMN m.value.v TYPE DOUBLE",
        "RENAME COLUMN items.element.x TO w",
        "RENAME COLUMN items.element.y TO x",
    ):
        spark.sql(f"ALTER TABLE {name} {change}")


BEFORE = [
    {
        "id": 1,
        "s": {"b": 1, "deep": {"x": 5, "y": None}, "gone": None},
        "items": [{"w": 1, "x": "y1", "z": None}],
        "m": {"k": {"v": 0.5}},
    },
    {"id": 2, "s": None, "items": None, "m": {}},
]
AFTER = {
    "id": 3,
    "s": {"b": BIG, "deep": {"x": 6, "y": "d"}, "gone": 9},
    "items": [None, {"w": 2, "x": "y2", "z": True}],
    "m": {"k": {"v": 0.1}},
}
NEW_ROW = (
    f"(3, named_struct('b', {BIG}L, 'deep', named_struct('x', 6, 'y', 'd'), 'gone', 9), "
    "array(null, named_struct('w', 2, 'x', 'y2', 'z', true)), map('k', named_struct('v', 0.1D)))"
)


@pytest.mark.long
@pytest.mark.parametrize("key", [False, True], ids=["log", "keyed"])
def test_sql_reads_what_every_schema_wrote_as_the_newest(spark: Any, wh: Any, make: Any, key: bool) -> None:
    name = make(columns=COLUMNS + (", PRIMARY KEY (id)" if key else ""), bucket_key="id")
    table = wh.table(name.removeprefix("streamhouse."))
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    tier(spark, wh.url, [table.name])
    before = table.refresh()
    old = rows_of(spark.table(name))
    changed(spark, name)
    for tiered in (False, True):  # the lake has the older fields first, then the newest
        if tiered:
            tier(spark, wh.url, [table.name])
        assert rows_of(spark.table(name)) == rows_of(load(spark, wh, table.name)) == BEFORE
        assert rows_of(load(spark, wh, f"{table.name}$lake")) == BEFORE
    spark.sql(f"INSERT INTO {name} VALUES {NEW_ROW}")
    for tiered in (False, True):
        if tiered:
            tier(spark, wh.url, [table.name])
        assert rows_of(spark.table(name)) == [*BEFORE, AFTER]
        found = spark.sql(f"SELECT id, s.b, items.x[0] x, m['k'].v v FROM {name} WHERE s.b > 0 AND s.deep.x > 0")
        assert sorted(map(tuple, found.collect())) == [(1, 1, "y1", 0.5), (3, BIG, None, 0.1)]
        assert [row.id for row in spark.sql(f"SELECT id FROM {name} WHERE s.gone IS NULL ORDER BY id").collect()] == [
            1,
            2,
        ]
    assert rows_of(spark.sql(f"SELECT * FROM {name} VERSION AS OF {before.version}")) == old
    at = load(spark, wh, f"{table.name}$lake", asOfLakeSnapshot=str(before.lake.snapshot_id))
    assert rows_of(at) == BEFORE, "a lake snapshot is read by the newest fields"
    if key:
        spark.sql(f"UPDATE {name} SET s.b = 7 WHERE id = 1")
        database, _, short = name.rpartition(".")
        kinds = spark.sql(
            f"SELECT s.b, s.gone FROM {database}.`{short}$changelog` WHERE id = 1 AND _change_type LIKE 'update%'"
        )
        assert sorted(map(tuple, kinds.collect())) == [(1, None), (7, None)]
    spark.sql(f"DELETE FROM {name} WHERE s.b = {BIG}")
    assert [row["id"] for row in rows_of(spark.table(name))] == [1, 2]


def test_what_cannot_be_is_refused_with_the_reason(spark: Any, make: Any) -> None:
    name = make(columns="id BIGINT, s STRUCT<a: BIGINT, t: STRING>, m MAP<STRUCT<k: INT>, INT>")
    for change, says in {
        "ADD COLUMN s.a2 INT FIRST": "nested fields do not support",
        "ADD COLUMN s.a2 INT NOT NULL": "NOT NULL",
        "ADD COLUMN s.a2 INT COMMENT 'x'": "COMMENT",
        "ALTER COLUMN s.a TYPE STRING": "bigint cannot become string|BIGINT.*STRING",
        "ALTER COLUMN s.a COMMENT 'x'": "nested fields do not support",
        "RENAME COLUMN m.key.k TO j": "keys, which cannot change",
    }.items():
        with pytest.raises((AnalysisException, PySparkException), match=says):
            spark.sql(f"ALTER TABLE {name} {change}")
    assert spark.table(name).columns == ["id", "s", "m"]


@pytest.mark.long
def test_a_stream_ends_where_a_column_of_its_changed_inside_and_goes_on_when_started_again(
    spark: Any, wh: Any, checkpoint: str
) -> None:
    source = wh.create_table("nested.read_from", "id BIGINT, s STRUCT<a: INT>")
    target = wh.create_table("nested.read_to", "id BIGINT, s STRUCT<a: INT, b: INT>")
    source.append([{"id": 1, "s": {"a": 1}}])
    writer = load_stream(spark, wh, source.name).writeStream.format("streamhouse").option("warehouse", wh.url)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start(target.name)
    try:
        query.processAllAvailable()
        source.add_columns("s.b INT")
        with pytest.raises(PySparkException, match="column 's' changed from struct<a:int> to struct<a:int,b:int>"):
            query.awaitTermination()
    finally:
        query.stop()
    source.append([{"id": 2, "s": {"a": 2, "b": 3}}])
    drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    assert target.to_arrow().to_pylist() == [
        {"id": 1, "s": {"a": 1, "b": None}},
        {"id": 2, "s": {"a": 2, "b": 3}},
    ]


def test_spark_adds_fields_that_its_rows_have(spark: Any, make: Any) -> None:
    name = make(columns="id BIGINT, s STRUCT<a: INT>, r ARRAY<STRUCT<x: INT>>, PRIMARY KEY (id)")
    spark.sql(f"INSERT INTO {name} VALUES (1, named_struct('a', 1), array(named_struct('x', 1)))")
    spark.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {name} t USING (SELECT 2L id, named_struct('a', 2, 'b', 'x') s, "
        "array(named_struct('x', 2, 'y', 2.5D)) r) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    rows = spark.sql(
        "SELECT 3L id, named_struct('a', 3, 'b', 'y', 'c', named_struct('d', 9)) s, "
        "array(named_struct('x', 3, 'y', 3.5D)) r"
    )
    rows.writeTo(name).option("mergeSchema", "true").append()
    assert rows_of(spark.table(name)) == [
        {"id": 1, "s": {"a": 1, "b": None, "c": None}, "r": [{"x": 1, "y": None}]},
        {"id": 2, "s": {"a": 2, "b": "x", "c": None}, "r": [{"x": 2, "y": 2.5}]},
        {"id": 3, "s": {"a": 3, "b": "y", "c": {"d": 9}}, "r": [{"x": 3, "y": 3.5}]},
    ]


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"], ids=["log", "primary key"])
def test_evolution_takes_rows_that_lack_fields_of_a_struct(spark: Any, make: Any, key: str) -> None:
    if spark.version < "4.2":
        pytest.skip("Spark 4.1 has no setting for it")
    name = make(columns=f"id BIGINT, s STRUCT<a: INT, b: STRING, c: STRUCT<x: INT, y: INT>>{key}")
    spark.sql(f"INSERT INTO {name} VALUES (1, named_struct('a', 1, 'b', 'x', 'c', named_struct('x', 1, 'y', 2)))")
    settings = [f"spark.sql.{statement}NestedTypeCoercion.enabled" for statement in ("insert", "merge")]
    for setting in settings:
        spark.conf.set(setting, "true")
    try:
        spark.sql(
            f"INSERT WITH SCHEMA EVOLUTION INTO {name} BY NAME SELECT 2L id, named_struct('a', 2, 'd', 5) s",
        )
        spark.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO {name} t USING (SELECT explode(array(1L, 3L)) id, "
            "named_struct('a', 9, 'e', 7) s) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        for setting in settings:
            spark.conf.unset(setting)
    assert rows_of(spark.table(name)) == [
        {"id": 1, "s": {"a": 9, "b": "x", "c": {"x": 1, "y": 2}, "d": None, "e": 7}},
        {"id": 2, "s": {"a": 2, "b": None, "c": None, "d": 5, "e": None}},
        {"id": 3, "s": {"a": 9, "b": None, "c": None, "d": None, "e": 7}},
    ]
