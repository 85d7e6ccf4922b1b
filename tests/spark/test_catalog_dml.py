"""DELETE, UPDATE and MERGE INTO on tables with a primary key, and streams in update mode, through the catalog."""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from spark.dml import found, merge_into, opened, rows

pytestmark = pytest.mark.spark


@pytest.fixture
def name(make):
    return make()


def changes(spark, name):
    """How often each kind of change is in the log."""
    database, _, table = name.rpartition(".")
    return dict(found(spark, f"SELECT _change_type, count(*) FROM {database}.`{table}$changelog` GROUP BY 1"))


# -- statements --------------------------------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.spark41
def test_delete_is_one_record_of_matching_rows(spark, wh, filled):
    version = opened(wh, filled).state.version
    spark.sql(f"DELETE FROM {filled} WHERE n > 7 OR name = 'n3'")
    assert sorted(rows(spark, filled)) == [0, 1, 2, 4, 5, 6, 7]
    assert opened(wh, filled).state.version == version + 1  # one record
    spark.sql(f"DELETE FROM {filled} WHERE id = 77")
    assert opened(wh, filled).state.version == version + 1  # nothing was deleted
    assert changes(spark, filled) == {"insert": 10, "delete": 3}


@pytest.mark.spark41
def test_delete_takes_subqueries_of_other_tables(spark, filled, make):
    other = make("_other")
    spark.sql(f"INSERT INTO {other} VALUES (2, 'x', 1), (4, 'x', 9)")
    spark.sql(f"DELETE FROM {filled} WHERE id IN (SELECT id FROM {other})")
    spark.sql(f"DELETE FROM {filled} t WHERE EXISTS (SELECT 1 FROM {other} o WHERE o.n = t.n)")
    spark.sql(f"DELETE FROM {filled} WHERE n < (SELECT max(n) FROM {filled}) - 3")
    assert sorted(rows(spark, filled)) == [5, 6, 7, 8]
    spark.sql(f"DELETE FROM {filled} WHERE id NOT IN (SELECT id + 1 FROM {filled})")
    assert sorted(rows(spark, filled)) == [6, 7, 8]


@pytest.mark.always
@pytest.mark.spark41
def test_update_changes_matching_rows_and_their_changelog(spark, wh, filled):
    spark.sql(f"UPDATE {filled} SET n = n * 10 + id, name = upper(name) WHERE id >= 8")
    spark.sql(f"UPDATE {filled} SET name = NULL, id = id WHERE n = 0")
    spark.sql(f"UPDATE {filled} SET n = (SELECT max(n) FROM {filled}) WHERE id = 1")
    expected = {i: (f"n{i}", i) for i in range(2, 8)}
    assert rows(spark, filled) == expected | {0: (None, 0), 1: ("n1", 99), 8: ("N8", 88), 9: ("N9", 99)}
    spark.sql(f"UPDATE {filled} SET n = n + 1")
    assert found(spark, f"SELECT sum(n) FROM {filled}") == [(27 + 0 + 99 + 88 + 99 + 10,)]
    assert changes(spark, filled) == {"insert": 10, "update_before": 14, "update_after": 14}


@pytest.mark.always
@pytest.mark.spark41
def test_merge_applies_every_clause_in_one_commit(spark, wh, filled):
    version = opened(wh, filled).state.version
    clauses = """
        WHEN MATCHED AND s.n = 0 THEN DELETE
        WHEN MATCHED AND s.id < 3 THEN UPDATE SET *
        WHEN MATCHED THEN UPDATE SET n = t.n + s.n
        WHEN NOT MATCHED AND s.n > 0 THEN INSERT *
        WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'late')
        WHEN NOT MATCHED BY SOURCE AND t.id > 8 THEN DELETE
        WHEN NOT MATCHED BY SOURCE AND t.id > 6 THEN UPDATE SET name = 'old'"""
    values = "(1, 'a', 5), (2, 'b', 0), (3, 'c', 5), (20, 'd', 1), (21, 'e', 0)"
    spark.sql(merge_into(filled, values, clauses))
    assert rows(spark, filled) == {
        0: ("n0", 0),
        1: ("a", 5),
        3: ("n3", 8),
        **{i: (f"n{i}", i) for i in (4, 5, 6)},
        7: ("old", 7),
        8: ("old", 8),
        20: ("d", 1),
        21: ("late", None),
    }
    assert opened(wh, filled).state.version == version + 1


def test_a_frame_is_merged_by_clauses(spark, filled):
    source = spark.createDataFrame([(1, "a", 100), (50, "b", 500)], "id long, name string, n int")
    merge = source.alias("s").mergeInto(filled, f.expr(f"{filled}.id = s.id"))
    merge.whenMatched().updateAll().whenNotMatched().insertAll().whenNotMatchedBySource(
        f.expr("n > 3")
    ).delete().merge()
    assert rows(spark, filled) == {0: ("n0", 0), 1: ("a", 100), 2: ("n2", 2), 3: ("n3", 3), 50: ("b", 500)}


@pytest.mark.spark41
def test_a_merge_that_reads_its_own_table_reads_one_state(spark, filled):
    for times in (1, 2):
        spark.sql(f"""
            MERGE INTO {filled} t USING (SELECT id + {10 * times} AS id, name, n FROM {filled} UNION ALL
                                         SELECT id, name, n FROM {filled} WHERE id < 5) s
            ON t.id = s.id WHEN MATCHED AND s.n = t.n THEN UPDATE SET n = s.n + 1
            WHEN NOT MATCHED THEN INSERT *""")
    first = {i: (f"n{i}", i + 1 if i < 5 else i) for i in range(10)} | {10 + i: (f"n{i}", i) for i in range(10)}
    again = {20 + i: values for i, values in first.items()}
    assert rows(spark, filled) == first | {i: (f"n{i}", i + 2) for i in range(5)} | again


@pytest.mark.long
def test_statements_change_rows_of_several_chunks(spark, name):
    """A task hands its rows to Python in parts of 65,536."""
    spark.sql(f"INSERT INTO {name} SELECT id, 'x', 0 FROM range(0, 250000, 1, 2)")
    spark.sql(f"UPDATE {name} SET n = id % 1000 WHERE id >= 1000")
    spark.sql(f"DELETE FROM {name} WHERE id % 2 = 1")
    assert found(spark, f"SELECT count(*), sum(n), count_if(n <> id % 1000 AND id >= 1000) FROM {name}") == [
        (125000, sum(i % 1000 for i in range(1000, 250000, 2)), 0)
    ]


def test_a_cached_table_is_read_anew(spark, filled):
    spark.sql(f"CACHE TABLE {filled}")
    try:
        spark.sql(f"UPDATE {filled} SET n = 50 WHERE id = 5")
        spark.sql(f"DELETE FROM {filled} WHERE id < 5")
        assert found(spark, f"SELECT min(id), max(n) FROM {filled}") == [(5, 50)]
    finally:
        spark.sql(f"UNCACHE TABLE {filled}")


@pytest.mark.parametrize("clause", ["n > 3", "id IN (1, 2)", "true"])
def test_explaining_an_update_writes_nothing(spark, wh, filled, clause):
    version = opened(wh, filled).state.version
    spark.sql(f"EXPLAIN UPDATE {filled} SET n = 0 WHERE {clause}").collect()
    assert opened(wh, filled).state.version == version


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "types",
    [
        ("STRING", "''", "'é\\0x'"),
        ("BINARY", "X''", "X'00FF'"),
        ("DECIMAL(20,3)", "-1.5", "12345678901234567.125"),
        ("TIMESTAMP", "TIMESTAMP'1969-12-31 23:59:59.999999'", "TIMESTAMP'2026-11-01 01:30:00'"),
        ("DATE", "DATE'1969-01-01'", "DATE'2026-01-01'"),
        ("DOUBLE", "double('NaN')", "double('-0.0')"),
    ],
    ids=lambda types: types[0].partition("(")[0].lower(),
)
def test_statements_match_keys_of_every_type(spark, make, types):
    kind, first, second = types
    columns = f"k {kind}, part INT, v INT, PRIMARY KEY (k, part)"
    name = make(columns=columns, bucket_key="part" if kind == "DOUBLE" else "k")
    spark.sql(f"INSERT INTO {name} VALUES ({first}, 1, 1), ({first}, 2, 2), ({second}, 1, 3)")
    spark.sql(f"UPDATE {name} SET v = v + 10 WHERE k = {first}")
    spark.sql(f"DELETE FROM {name} WHERE k = {first} AND part = 2")
    values, on = f"({second}, 1, 7), ({second}, 9, 8)", "t.k = s.k AND t.part = s.part"
    clauses = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    spark.sql(merge_into(name, values, clauses, on, "k, part, v"))
    assert found(spark, f"SELECT part, v FROM {name} ORDER BY v") == [(1, 7), (9, 8), (1, 11)]


@pytest.mark.spark41
def test_a_key_that_would_change_is_refused(spark, filled):
    before = rows(spark, filled)
    merge = merge_into(filled, "(30, 'n3', 1)", "WHEN MATCHED THEN UPDATE SET *", on="t.name = s.name")
    for statement in (f"UPDATE {filled} SET id = id + 1 WHERE id = 3", merge):
        with pytest.raises(PySparkException, match=r"primary key \(id = 3 would become (4|30)\).*INSERT rows"):
            spark.sql(statement)
    assert rows(spark, filled) == before


def test_a_merge_deletes_and_inserts_the_same_key(spark, filled):
    """The row that is matched by name goes, another one gets its key."""
    clauses = "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    spark.sql(merge_into(filled, "(5, 'n3', 0), (3, 'new', 33)", clauses, on="t.name = s.name"))
    assert rows(spark, filled)[3] == ("new", 33)


def test_two_rows_of_one_key_are_refused(spark, filled):
    before = rows(spark, filled)
    with pytest.raises(PySparkException, match=r"2 rows with the primary key \(id = 70\).*deduplicate the rows"):
        spark.sql(merge_into(filled, "(70, 'a', 1), (70, 'b', 2)", "WHEN NOT MATCHED THEN INSERT *"))
    with pytest.raises(PySparkException, match="MERGE_CARDINALITY_VIOLATION"):
        spark.sql(merge_into(filled, "(7, 'a', 1), (7, 'b', 2)", "WHEN MATCHED THEN UPDATE SET *"))
    assert rows(spark, filled) == before


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_of(spark, statement):
    return spark.sql(f"EXPLAIN {statement}").collect()[0][0]


def test_the_table_that_is_written_is_scanned_once_and_only_for_what_is_needed(spark, filled, make):
    source = make("_source")
    spark.sql(f"INSERT INTO {source} VALUES (1, 'a', 1)")
    plan = plan_of(
        spark,
        f"""
        MERGE INTO {filled} t USING (SELECT * FROM {source} WHERE n < 5) s ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET *""",
    )
    short = filled.removeprefix("streamhouse.")
    assert len(re.findall(rf"BatchScan.*streamhouse {short} ", plan)) == 1, plan
    assert "dynamicpruning" not in plan.lower()
    assert "BucketShuffleHash@" in plan  # tasks own whole buckets
    plan = plan_of(spark, f"DELETE FROM {filled} WHERE id = 3")
    assert re.search(rf"streamhouse {short} \[id\], filters \[id", plan), plan


# -- what is refused ---------------------------------------------------------------------------------------------------

STATEMENTS = {
    "DELETE": "DELETE FROM {} WHERE id = 1",
    "UPDATE": "UPDATE {} SET n = 1 WHERE id = 1",
    "MERGE": merge_into("{}", "(1, 'a', 1)", "WHEN MATCHED THEN UPDATE SET *"),
    "MERGE that inserts": merge_into("{}", "(5, 'a', 1)", "WHEN NOT MATCHED THEN INSERT *"),
}


@pytest.mark.parametrize("command", STATEMENTS)
@pytest.mark.parametrize("engine", ["aggregation", "first_row", "versioned"])
def test_merge_engines_that_make_something_else_of_rows(spark, make, engine, command):
    more = {"table_merge__engine_versioned_ver__column": "n"} if engine == "versioned" else {}
    name = make(table_merge__engine=engine, **more)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1)")
    with pytest.raises(PySparkException, match=rf"table.merge-engine is {engine}; use INSERT INTO"):
        spark.sql(STATEMENTS[command].format(name))
    assert rows(spark, name) == {1: ("a", 1)}


@pytest.mark.parametrize("behavior", ["ignore", "disable"])
def test_tables_that_take_no_deletions(spark, make, behavior):
    name = make(table_delete_behavior=behavior)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1), (2, 'b', 2)")
    merge = merge_into(name, "(1, 'A', 5)", "WHEN MATCHED")
    for statement in (f"DELETE FROM {name} WHERE id = 1", f"{merge} THEN DELETE"):
        with pytest.raises(
            PySparkException, match=rf"does not support deletes \(table.delete.behavior is {behavior}\)"
        ):
            spark.sql(statement)
    spark.sql(f"{merge} AND s.n = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET *")
    assert rows(spark, name) == {1: ("A", 5), 2: ("b", 2)}


def test_deleting_every_row_truncates_the_table(spark, wh, filled, make):
    log = make("_log", columns="id BIGINT, n INT")
    for name in (filled, log):
        spark.sql(f"INSERT INTO {name} (id) VALUES (100)")
        spark.sql(f"DELETE FROM {name}")
        assert rows(spark, name) == {}
        assert opened(wh, name).state.truncation is not None


def test_other_names_of_a_table_are_only_read(spark, filled):
    database, _, table = filled.rpartition(".")
    for suffix in ("lake", "changelog"):
        with pytest.raises(PySparkException, match=r"(?i)does not support DELETE|delete from"):
            spark.sql(f"DELETE FROM {database}.`{table}${suffix}` WHERE id = 1")


def test_a_partial_update_is_refused_where_spark_fills_the_columns(spark, filled):
    frame = spark.range(1).selectExpr("id", "'new' AS name")
    with pytest.raises(PySparkException, match=r"partialUpdate.*MERGE INTO"):
        frame.writeTo(filled).option("partialUpdate", "true").append()
    assert rows(spark, filled)[0] == ("n0", 0)


# -- streams in update mode --------------------------------------------------------------------------------------------


def counted(spark, source, target, checkpoint, mode="update"):
    query = (
        spark.readStream.table(source).groupBy("id").agg(f.max("name").alias("name"), f.sum("n").cast("int").alias("n"))
    )
    writer = query.writeStream.outputMode(mode).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.toTable(target).awaitTermination()


@pytest.mark.spark41
def test_a_stream_of_changing_rows_upserts(spark, name, make, checkpoint):
    source = make("_source", columns="id BIGINT, name STRING, n INT")
    for values, expected in (
        ("(1, 'a', 1), (2, 'b', 2)", {1: ("a", 1), 2: ("b", 2)}),
        ("(1, 'c', 5), (3, 'd', 0)", {1: ("c", 6), 2: ("b", 2), 3: ("d", 0)}),
    ):
        spark.sql(f"INSERT INTO {source} VALUES {values}")
        counted(spark, source, name, checkpoint)
        assert rows(spark, name) == expected


@pytest.mark.parametrize("engine", [None, "aggregation"])
def test_update_mode_is_refused_where_rows_would_add_up(spark, make, checkpoint, engine):
    source = make("_source", columns="id BIGINT, name STRING, n INT")
    spark.sql(f"INSERT INTO {source} VALUES (1, 'a', 1)")
    target = (
        make("_target", table_merge__engine=engine)
        if engine
        else make("_target", columns="id BIGINT, name STRING, n INT")
    )
    with pytest.raises(PySparkException, match="does not support Update mode"):
        counted(spark, source, target, checkpoint)
    assert rows(spark, target) == {}


def test_complete_mode_is_refused(spark, name, make, checkpoint):
    source = make("_source", columns="id BIGINT, name STRING, n INT")
    spark.sql(f"INSERT INTO {source} VALUES (1, 'a', 1)")
    with pytest.raises(PySparkException, match="output mode complete would append all results again"):
        counted(spark, source, name, checkpoint, "complete")
