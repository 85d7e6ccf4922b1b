"""UPDATE, DELETE and MERGE on tables without a primary key, where a row is known by its place in the log."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest
from duckdb_extensions import import_extension
from pyspark.errors import PySparkException

from spark.dml import at_once, found, merge_into, opened, rows
from spark.random_statements import statement
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = "id BIGINT, name STRING, n INT"


@pytest.fixture
def lake():
    return "iceberg"


@pytest.fixture
def log(spark, make, lake):
    """A table without a primary key and ten rows: ``(i, 'n<i>', i)``."""
    name = make(columns=COLUMNS, bucket_key="id", table_datalake_format=lake)
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(10)")
    return name


def tiered(spark, wh, name):
    tier(spark, wh.url, [name.removeprefix("streamhouse.")])


# -- statements --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lake", "is_tiered"),
    [("iceberg", False), ("iceberg", True), ("paimon", True), pytest.param("paimon", False, marks=pytest.mark.long)],
)
def test_one_record_a_statement(spark, wh, log, is_tiered):
    table = opened(wh, log)
    for sql, changed in [
        (f"UPDATE {log} SET n = n * 10 + id, name = upper(name) WHERE id >= 8", 2),
        (f"DELETE FROM {log} WHERE upper(name) = 'N3' OR id % 5 = 0", 3),
        (
            merge_into(
                log,
                "(1, 'a', 5), (2, 'b', 0), (20, 'd', 1), (21, 'e', 0)",
                """WHEN MATCHED AND s.n = 0 THEN DELETE
                   WHEN MATCHED THEN UPDATE SET n = t.n + s.n
                   WHEN NOT MATCHED AND s.n > 0 THEN INSERT *
                   WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'late')
                   WHEN NOT MATCHED BY SOURCE AND t.id > 8 THEN DELETE
                   WHEN NOT MATCHED BY SOURCE AND t.id > 6 THEN UPDATE SET name = 'old'""",
            ),
            5,
        ),
    ]:
        if is_tiered:
            tiered(spark, wh, log)
        version = table.refresh().version
        spark.sql(sql)
        assert table.refresh().version == version + 1, sql
        last = table.inspect.history().to_pylist()[-1]
        assert last["rows_deleted"] == changed, last
    expected = {
        1: ("n1", 6),
        4: ("n4", 4),
        6: ("n6", 6),
        7: ("old", 7),
        8: ("old", 88),
        20: ("d", 1),
        21: ("late", None),
    }
    assert rows(spark, log) == expected
    assert table.refresh().num_rows == len(expected)
    assert last["operation"] == "change"
    version = table.refresh().version
    spark.sql(f"UPDATE {log} SET n = 0 WHERE id + 0 = 77")
    assert table.refresh().version == version, "a statement that touches no row leaves no record"


def test_subqueries_and_rows_that_are_equal(spark, wh, log, make):
    other = make("_other", columns=COLUMNS)
    spark.sql(f"INSERT INTO {other} VALUES (2, 'x', 1), (2, 'x', 1), (4, 'x', 9)")
    spark.sql(f"INSERT INTO {log} VALUES (2, 'n2', 2), (2, 'n2', 2)")
    spark.sql(f"UPDATE {log} SET n = (SELECT max(n) FROM {log}) WHERE id = 1")
    assert rows(spark, log)[1] == ("n1", 9)
    spark.sql(f"DELETE FROM {log} WHERE id IN (SELECT id FROM {other})")
    spark.sql(f"DELETE FROM {log} t WHERE EXISTS (SELECT 1 FROM {other} o WHERE o.n = t.n)")
    assert sorted(rows(spark, log)) == [0, 3, 5, 6, 7, 8]
    spark.sql(f"DELETE FROM {log} WHERE n < (SELECT max(n) FROM {log}) - 3")
    assert sorted(rows(spark, log)) == [5, 6, 7, 8]
    spark.sql(f"INSERT INTO {log} SELECT * FROM {log}")
    spark.sql(f"UPDATE {log} SET name = concat(name, '!') WHERE id % 2 = 0")
    assert sorted(found(spark, f"SELECT name, count(*) FROM {log} GROUP BY 1")) == [
        ("n5", 2),
        ("n6!", 2),
        ("n7", 2),
        ("n8!", 2),
    ]


def test_a_merge_with_two_source_rows_of_one_row_fails(spark, log):
    twice = "(1, 'a', 1), (1, 'b', 2)"
    with pytest.raises(PySparkException, match="MERGE_CARDINALITY_VIOLATION"):
        spark.sql(merge_into(log, twice, "WHEN MATCHED THEN UPDATE SET *"))
    assert rows(spark, log)[1] == ("n1", 1)
    spark.sql(merge_into(log, twice, "WHEN MATCHED THEN DELETE"))  # here Spark does not mind
    assert 1 not in rows(spark, log)


@pytest.mark.paimon
@pytest.mark.parametrize("lake", ["paimon"])
def test_pypaimon_reads_the_lakes_part(spark, wh, log):
    """Rows in the lake, rows in the log and both are changed by one statement."""
    tiered(spark, wh, log)
    spark.sql(f"INSERT INTO {log} SELECT id, concat('n', id), id FROM range(10, 16)")
    spark.sql(f"UPDATE {log} SET n = n + 100 WHERE id % 4 = 0")
    spark.sql(f"DELETE FROM {log} WHERE id IN (3, 9, 13)")
    hot = rows(spark, log)
    for _ in range(2):
        assert rows(spark, log) == hot
        tiered(spark, wh, log)
    assert rows(spark, f"{log.rpartition('.')[0]}.`{log.rpartition('.')[2]}$lake`") == hot
    stock = _catalog(wh).get_table(log.removeprefix("streamhouse.")).new_read_builder()
    there = stock.new_read().to_arrow(stock.new_scan().plan().splits()).to_pylist()
    assert {row["id"]: (row["name"], row["n"]) for row in there} == hot
    assert found(spark, f"SELECT count(*), sum(n) FROM {log}") == [(13, sum(n for _, n in hot.values()))]


def _catalog(wh):
    from pypaimon import CatalogFactory

    return CatalogFactory.create({"warehouse": f"{wh.url}/lake"})


def test_other_engines_read_the_lakes_part(spark, wh, log):
    tiered(spark, wh, log)
    spark.sql(f"UPDATE {log} SET n = n + 100 WHERE id % 2 = 0")
    spark.sql(f"DELETE FROM {log} WHERE id % 3 = 0")
    hot = rows(spark, log)
    tiered(spark, wh, log)
    assert rows(spark, log) == hot
    database, _, table = log.rpartition(".")
    assert rows(spark, f"{database}.`{table}$lake`") == hot
    import_extension("avro")
    import_extension("iceberg")
    duck = duckdb.connect()
    duck.load_extension("avro")
    duck.load_extension("iceberg")
    path = f"{wh.url}/{opened(wh, log).state.lake_location}"
    assert {i: tuple(row) for i, *row in duck.execute(f"SELECT * FROM iceberg_scan('{path}')").fetchall()} == hot


def test_rows_of_partitions_move(spark, wh, make):
    name = make(columns="id BIGINT, day DATE, n INT")
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (id BIGINT, day DATE, n INT) PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO {name} SELECT id, date_add(DATE'2026-01-01', cast(id % 3 AS int)), id FROM range(9)")
    tiered(spark, wh, name)
    spark.sql(f"UPDATE {name} SET day = date_add(day, 10) WHERE id = 4")
    spark.sql(f"UPDATE {name} SET n = -1 WHERE day = DATE'2026-01-03'")
    tiered(spark, wh, name)
    assert found(spark, f"SELECT day, count(*), sum(n) FROM {name} GROUP BY 1 ORDER BY 1") == found(
        spark,
        "SELECT * FROM VALUES (DATE'2026-01-01', 3L, 9L), (DATE'2026-01-02', 2L, 8L), (DATE'2026-01-03', 3L, -3L), "
        "(DATE'2026-01-12', 1L, 4L)",
    )


@pytest.mark.long
def test_statements_change_log_rows_of_several_chunks(spark, wh, make):
    """A task hands its rows to Python in parts of 65,536."""
    name = make(columns=COLUMNS)
    spark.sql(f"INSERT INTO {name} SELECT id, 'x', 0 FROM range(0, 250000, 1, 2)")
    spark.sql(f"UPDATE {name} SET n = id % 1000 WHERE id >= 1000")
    tiered(spark, wh, name)
    spark.sql(f"DELETE FROM {name} WHERE id % 2 = 1")
    for _ in range(2):
        assert found(spark, f"SELECT count(*), sum(n), count_if(n <> id % 1000 AND id >= 1000) FROM {name}") == [
            (125000, sum(i % 1000 for i in range(1000, 250000, 2)), 0)
        ]
        tiered(spark, wh, name)


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["UPDATE {} SET n = 1", "DELETE FROM {} WHERE n + 0 = 1"])
def test_constraints_hold_before_anything_is_written(spark, wh, make, command):
    name = make(columns="id BIGINT NOT NULL, n INT")
    spark.sql(f"INSERT INTO {name} VALUES (1, 1)")
    version = opened(wh, name).state.version
    with pytest.raises(PySparkException, match="NOT_NULL"):
        spark.sql(f"UPDATE {name} SET id = CAST(NULL AS BIGINT)")
    assert opened(wh, name).refresh().version == version
    spark.sql(command.format(name))
    assert found(spark, f"SELECT id FROM {name}") == ([(1,)] if command.startswith("UPDATE") else [])


# -- others beside -----------------------------------------------------------------------------------------------------


CHANGES = {
    "appends": lambda t: t.append([{"id": 1, "name": "x", "n": 1}, {"id": 50}]),
    "deletes another row": lambda t: t.delete(where=[("id", "=", 8)]),
}
STATEMENTS = {
    "update": "UPDATE {} SET n = meanwhile(n) + 1 WHERE id < 3",
    "delete": "DELETE FROM {} WHERE meanwhile(n) < 3",
    "merge": merge_into("{}", "(1, 5)", "WHEN MATCHED THEN UPDATE SET n = meanwhile(s.n)", columns="id, n"),
}


@pytest.mark.parametrize("happens", CHANGES)
@pytest.mark.parametrize("sql", STATEMENTS)
def test_changes_of_other_rows_are_no_conflict(spark, wh, log, meanwhile, sql, happens):
    url, table = wh.url, log.removeprefix("streamhouse.")
    meanwhile(lambda: CHANGES[happens](Warehouse(url).table(table)))
    spark.sql(STATEMENTS[sql].format(log))
    expected = {i: ("n" + str(i), i) for i in range(10)}
    match sql:
        case "update":
            expected |= {i: (f"n{i}", i + 1) for i in range(3)}
        case "delete":
            expected = {i: row for i, row in expected.items() if i > 2}
        case "merge":
            expected[1] = ("n1", 5)
    after = sorted((i, *row) for i, row in expected.items())
    after = [row for row in after if happens == "appends" or row[0] != 8]
    more = [(1, "x", 1), (50, None, None)] if happens == "appends" else []
    assert sorted(found(spark, f"SELECT * FROM {log}"), key=repr) == sorted([*after, *more], key=repr)


CONFLICTS = {
    "a row that it writes is deleted": (
        lambda t: t.delete(where=[("id", "=", 1)]),
        r"the row at offset \d+ of bucket \d was deleted concurrently",
    ),
    "truncation": (lambda t: t.truncate(), "it was truncated at offset"),
}


@pytest.mark.parametrize("happens", CONFLICTS)
@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_change_of_a_row_that_it_writes_is_a_conflict(spark, wh, log, meanwhile, sql, happens):
    do, message = CONFLICTS[happens]
    url, table = wh.url, log.removeprefix("streamhouse.")
    meanwhile(lambda: do(Warehouse(url).table(table)))
    with pytest.raises(PySparkException, match=f"COMMIT_CONFLICT.*{message}.*run the statement again"):
        spark.sql(STATEMENTS[sql].format(log))
    assert len(rows(spark, log)) == {"truncation": 0}.get(happens, 9)


def test_a_statement_that_reads_the_table_twice_minds_every_append(spark, wh, log, meanwhile):
    url, table = wh.url, log.removeprefix("streamhouse.")
    meanwhile(lambda: Warehouse(url).table(table).append([{"id": 99}]))
    with pytest.raises(PySparkException, match=r"COMMIT_CONFLICT.*the statement reads the table more than once"):
        spark.sql(f"UPDATE {log} SET n = meanwhile(n) + 1 WHERE id = 1 AND n < (SELECT max(n) FROM {log})")
    assert rows(spark, log)[1] == ("n1", 1)


def test_two_merges_without_a_key_may_insert_the_same_row(spark, wh, log, meanwhile):
    """No key says that they mean one row."""
    url, table = wh.url, log.removeprefix("streamhouse.")
    meanwhile(lambda: Warehouse(url).table(table).append([{"id": 50, "n": 5}]))
    values = merge_into(
        "{}",
        "(50, 5), (1, 7)",
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, meanwhile(s.n))",
        columns="id, n",
    )
    spark.sql(values.format(log))
    assert found(spark, f"SELECT count(*) FROM {log} WHERE id = 50") == [(2,)]


def test_the_hidden_row_id_stays_when_rows_are_tiered(spark, wh, log):
    ids = found(spark, f"SELECT id, _row_id FROM {log}")
    tiered(spark, wh, log)
    assert sorted(found(spark, f"SELECT id, _row_id FROM {log}")) == sorted(ids)
    assert len({row_id for _, row_id in ids}) == 10
    assert "_row_id" not in spark.table(log).columns
    stream = spark.readStream.table(log).select("id", "_row_id").writeStream.format("memory").queryName("row_ids")
    stream.trigger(availableNow=True).start().awaitTermination()
    assert sorted(found(spark, "SELECT * FROM row_ids")) == sorted(ids)


def test_a_stream_that_goes_on_reads_new_versions(spark, wh, log, checkpoint, make):
    copy = make("_copy", columns=COLUMNS)

    def stream(**options):
        reader = spark.readStream.options(**options).table(log)
        query = reader.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True).toTable(copy)
        query.awaitTermination()

    stream()
    spark.sql(f"UPDATE {log} SET n = n + 100 WHERE id < 2")
    with pytest.raises(PySparkException, match=r"skipChangeCommits=true"):
        stream()
    stream(skipChangeCommits="true")
    assert sorted(found(spark, f"SELECT id, n FROM {copy} WHERE id < 2")) == [(0, 0), (0, 100), (1, 1), (1, 101)]


@pytest.mark.long
def test_updates_next_to_a_writer_and_a_tiering_service_do_not_conflict(spark, wh, log):
    """50 of 50 succeed beside two commits a second and rounds."""
    stop, written = threading.Event(), []

    def write():
        table = Warehouse(wh.url).table(log.removeprefix("streamhouse."))
        while not stop.wait(0.5):
            written.append({"id": 1000 + len(written), "name": "w", "n": 0})
            table.append(written[-1:])

    def service():
        while not stop.wait(1):
            tiered(spark, wh, log)

    with ThreadPoolExecutor(2) as pool:
        beside = [pool.submit(write), pool.submit(service)]
        try:
            for number in range(50):
                spark.sql(f"UPDATE {log} SET n = n + 1 WHERE id = {number % 10}")
        finally:
            stop.set()
        for each in beside:
            each.result()
    now = rows(spark, log)
    assert {i: row for i, row in now.items() if i < 1000} == {i: (f"n{i}", i + 5) for i in range(10)}
    assert len(written) > 10
    assert {i for i in now if i >= 1000} == {row["id"] for row in written}


@pytest.mark.long
def test_concurrent_increments_of_log_rows_are_never_lost(spark, log):
    """None is lost: who lost a race was told, and ran again."""
    at_once(spark, [f"UPDATE {log} SET n = n + 1"] * 2, times=3)
    assert rows(spark, log) == {i: (f"n{i}", i + 6) for i in range(10)}


# -- random statements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "lake"),
    [*((seed, "iceberg") for seed in range(4)), *(pytest.param(n, "paimon", marks=pytest.mark.long) for n in range(4))],
)
def test_random_statements_on_log_tables_agree_with_a_dictionary(spark, wh, make, seed, lake):
    name = make(columns=COLUMNS, bucket_key="id", table_datalake_format=lake)
    rng, model, said = random.Random(seed), {}, []
    for _ in range(14):
        text, model = statement(rng, model, name)
        said.append(text)
        spark.sql(text)
        assert rows(spark, name) == model, said
        assert found(spark, f"SELECT count(*) FROM {name}") == [(len(model),)], said
        if rng.random() < 0.4:
            said.append("tier")
            tiered(spark, wh, name)
            if rng.random() < 0.5:
                said.append("maintain")
                opened(wh, name).maintain()
            assert rows(spark, name) == model, said
