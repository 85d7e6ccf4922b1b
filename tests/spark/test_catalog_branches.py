"""Write, audit, publish: branches in SQL and in frames."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark.dml import found, merge_into, opened, rows
from spark.session import append, load
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = "id BIGINT, name STRING, n INT"


@pytest.fixture(params=["log", "keyed"])
def table(spark, wh, make, request):
    """A table with ten rows ``(i, 'n<i>', i)``, most of them in its lake."""
    name = make() if request.param == "keyed" else make(columns=COLUMNS, bucket_key="id")
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(8)")
    tier(spark, wh.url, [name.removeprefix("streamhouse.")])
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(8, 10)")
    return name


def call(spark, procedure, *arguments):
    given = ", ".join(f"'{argument}'" for argument in arguments)
    return [row.asDict() for row in spark.sql(f"CALL streamhouse.system.{procedure}({given})").collect()]


def suffixed(name, suffix):
    catalog, database, table = name.split(".")
    return f"{catalog}.{database}.`{table}${suffix}`"


def branch_of(name, branch):
    return suffixed(name, f"branch_{branch}")


def test_a_branch_is_written_audited_and_published(spark, wh, table):
    short = table.removeprefix("streamhouse.")
    before = rows(spark, table)
    (made,) = call(spark, "create_branch", short, "audit")
    assert (made["table"], made["branch"]) == (short, "audit")
    assert made["lake_snapshot_id"] is not None
    branch = branch_of(table, "audit")
    assert rows(spark, branch) == before
    spark.sql(f"INSERT INTO {branch} VALUES (10, 'ten', 10), (11, 'eleven', -1)")
    spark.sql(f"UPDATE {branch} SET n = n + 100 WHERE id < 2 OR id = 9")
    spark.sql(f"DELETE FROM {branch} WHERE id = 3")
    spark.sql(
        merge_into(
            branch,
            "(4, 'four', 4), (12, 'twelve', 12)",
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        )
    )
    spark.createDataFrame([(13, "thirteen", 13)], "id BIGINT, name STRING, n INT").writeTo(branch).append()
    expected = {i: (f"n{i}", i) for i in range(10) if i != 3}
    expected |= {0: ("n0", 100), 1: ("n1", 101), 9: ("n9", 109), 4: ("four", 4)}
    expected |= {10: ("ten", 10), 11: ("eleven", -1), 12: ("twelve", 12), 13: ("thirteen", 13)}
    assert rows(spark, branch) == expected
    assert rows(spark, table) == before, "nobody sees it before it is published"
    # the audit: a bad row is found and mended on the branch
    assert found(spark, f"SELECT id FROM {branch} WHERE n < 0") == [(11,)]
    spark.sql(f"DELETE FROM {branch} WHERE n < 0")
    del expected[11]
    assert found(spark, f"SELECT count(*), count(DISTINCT id) FROM {branch}") == [(12, 12)]
    assert rows(spark, f"{table} VERSION AS OF 'audit'") == expected
    (done,) = call(spark, "fast_forward", short, "main", "audit")
    assert rows(spark, table) == expected
    assert opened(wh, table).refresh().version == done["version"]
    (again,) = call(spark, "fast_forward", short, "main", "audit")
    assert (again["version"], again["rows_written"]) == (done["version"], None)
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"INSERT INTO {branch} VALUES (99, 'late', 0)")
    assert not spark.catalog.tableExists(branch)
    tier(spark, wh.url, [short])
    assert rows(spark, suffixed(table, "lake")) == expected


@pytest.mark.long
def test_frames_and_overwrites_write_to_a_branch(spark, wh, make):
    name = make(columns=COLUMNS, bucket_key="id")
    short = name.removeprefix("streamhouse.")
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(4)")
    call(spark, "create_branch", short, "nightly")
    branch = branch_of(name, "nightly")
    append(spark.sql("SELECT 7L AS id, 'seven' AS name, 7 AS n"), wh, f"{short}$branch_nightly")
    assert sorted(row.id for row in load(spark, wh, f"{short}$branch_nightly").collect()) == [0, 1, 2, 3, 7]
    spark.sql(f"INSERT OVERWRITE {branch} SELECT id, 'new', 0 FROM range(2)")
    assert rows(spark, branch) == {0: ("new", 0), 1: ("new", 0)}
    assert len(rows(spark, name)) == 4
    call(spark, "fast_forward", short, "main", "nightly")
    assert rows(spark, name) == {0: ("new", 0), 1: ("new", 0)}


def test_what_is_refused_is_told(spark, wh, make):
    name = make(columns=COLUMNS)
    short = name.removeprefix("streamhouse.")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1)")
    call(spark, "create_branch", short, "b")
    branch = branch_of(name, "b")
    spark.sql(f"DELETE FROM {branch} WHERE id = 1")
    spark.sql(f"INSERT INTO {name} VALUES (2, 'b', 2)")
    for statement, text in [
        (f"CALL streamhouse.system.fast_forward('{short}', 'main', 'b')", "Drop the branch, create it again"),
        (f"CALL streamhouse.system.fast_forward('{short}', 'b', 'main')", "expected 'main', the table itself"),
        (f"CALL streamhouse.system.create_branch('{short}', 'b')", "publish or drop it first"),
        (f"ALTER TABLE {branch} ADD COLUMN x INT", "a branch supports only reads and writes of rows"),
        (f"DROP TABLE {branch}", "a branch supports only reads and writes of rows"),
        (f"SELECT * FROM {branch_of(name, 'none')}", "TABLE_OR_VIEW_NOT_FOUND"),
    ]:
        with pytest.raises(PySparkException, match=text):
            spark.sql(statement).collect()
    assert call(spark, "drop_branch", short, "b") == [{"table": short, "branch": "b"}]
    assert rows(spark, name) == {1: ("a", 1), 2: ("b", 2)}
