"""UPDATE, DELETE and MERGE while others write, and random ones of them against a dictionary."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, PySparkException

from spark.dml import at_once, found, merge_into, rows
from spark.random_statements import statement
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.spark


# -- conflicts ---------------------------------------------------------------------------------------------------------


STATEMENTS = {
    "update": "UPDATE {} SET n = meanwhile(n) + 1 WHERE id < 3",
    "delete": "DELETE FROM {} WHERE meanwhile(n) < 3",
    "merge that inserts": merge_into(
        "{}", "(50, 5)", "WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, meanwhile(s.n))", columns="id, n"
    ),
    "merge": merge_into("{}", "(1, 5)", "WHEN MATCHED THEN UPDATE SET n = meanwhile(s.n)", columns="id, n"),
}
CONFLICTS = {
    "upsert": (
        lambda t: t.upsert([{"id": key, "name": "x", "n": 1} for key in (1, 50)]),
        r"id = (1|50), which the statement writes, was changed at offset \d+ of bucket \d \(commit \d+\)",
    ),
    "truncation": (lambda t: t.truncate(), r"it was truncated at offset"),
}


@pytest.mark.spark41
@pytest.mark.parametrize("happens", CONFLICTS)
@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_change_of_what_it_writes_is_a_conflict(spark, wh, filled, meanwhile, statement, happens):
    do, message = CONFLICTS[happens]
    url, table = wh.url, filled.removeprefix("streamhouse.")
    meanwhile(lambda: do(Warehouse(url).table(table)))
    model = rows(spark, filled)
    with pytest.raises(PySparkException, match=f"COMMIT_CONFLICT.*{message}.*run the statement again"):
        spark.sql(statement.format(filled))
    expected = {"upsert": model | {1: ("x", 1), 50: ("x", 1)}, "truncation": {}}
    assert rows(spark, filled) == expected[happens]


@pytest.mark.spark41
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_change_of_other_rows_is_none(spark, wh, filled, meanwhile, statement):
    url, table = wh.url, filled.removeprefix("streamhouse.")

    def change():
        opened = Warehouse(url).table(table)
        opened.upsert([{"id": key, "name": "x", "n": 1} for key in (7, 99)])
        opened.delete([4])

    meanwhile(change)
    spark.sql(STATEMENTS[statement].format(filled))
    others = {key: (f"n{key}", key) for key in range(10) if key != 4} | {7: ("x", 1), 99: ("x", 1)}
    expected = {
        "update": others | {key: (f"n{key}", key + 1) for key in range(3)},
        "delete": {key: row for key, row in others.items() if key > 2},
        "merge that inserts": others | {50: (None, 5)},
        "merge": others | {1: ("n1", 5)},
    }
    assert rows(spark, filled) == expected[statement]


@pytest.mark.always
@pytest.mark.spark41
def test_a_statement_that_reads_the_table_twice_minds_every_change(spark, wh, filled, meanwhile):
    url, table = wh.url, filled.removeprefix("streamhouse.")
    meanwhile(lambda: Warehouse(url).table(table).upsert([{"id": 99}]))
    with pytest.raises(PySparkException, match=r"COMMIT_CONFLICT.*the statement reads the table more than once"):
        spark.sql(f"UPDATE {filled} SET n = meanwhile(n) + 1 WHERE id = 1 AND n < (SELECT max(n) FROM {filled})")
    assert rows(spark, filled)[1] == ("n1", 1)


def test_a_table_that_was_made_anew_meanwhile_is_not_written(spark, wh, filled, meanwhile):
    url, table = wh.url, filled.removeprefix("streamhouse.")

    def remake():
        warehouse = Warehouse(url)
        warehouse.drop_table(table)
        warehouse.create_table(table, "id BIGINT, name STRING, n INT", primary_key=["id"])

    meanwhile(remake)
    with pytest.raises(PySparkException, match="was dropped"):
        spark.sql(f"UPDATE {filled} SET n = meanwhile(n) + 1")
    assert rows(spark, filled) == {}


@pytest.mark.classic
@pytest.mark.parametrize(
    ("statement", "happens", "message"),
    [
        ("UPDATE {} SET n = meanwhile(n) + 1", lambda w, t: w.table(t).delete([4]), "COMMIT_CONFLICT: {} changed "),
        ("INSERT INTO {} SELECT 1, 'x', meanwhile(2)", lambda w, t: w.drop_table(t), "TABLE_NOT_FOUND: table {} "),
    ],
    ids=["update", "insert"],
)
def test_what_a_commit_says_is_told_plainly(spark, wh, filled, meanwhile, statement, happens, message):
    """The text of our error is all that is shown; Spark's own error, with Python's traceback, is its cause."""
    url, table = wh.url, filled.removeprefix("streamhouse.")
    meanwhile(lambda: happens(Warehouse(url), table))
    with pytest.raises(AnalysisException) as error:
        spark.sql(statement.format(filled))
    assert str(error.value).startswith(message.format(table))
    assert "Traceback" not in str(error.value)
    assert "Traceback" in error.value._cause.getMessage()


@pytest.mark.parametrize("does", ["columns", "properties", "nothing else"])
def test_what_changes_no_rows_is_no_conflict(spark, wh, filled, meanwhile, does):
    url, table = wh.url, filled.removeprefix("streamhouse.")

    def change():
        opened = Warehouse(url).table(table)
        if does == "columns":
            opened.add_columns("more STRING")
        if does == "properties":
            opened.alter_properties({"comment": "changed"})

    meanwhile(change)
    spark.sql(f"UPDATE {filled} SET n = meanwhile(n) + 1 WHERE id = 1")
    assert found(spark, f"SELECT name, n FROM {filled} WHERE id = 1") == [("n1", 2)]


def test_what_a_statement_reads_elsewhere_is_as_old_as_what_it_writes(spark, filled):
    """Spark loads tables of subqueries anew when a statement runs, the table that is written when it is analyzed."""
    if not hasattr(spark, "_jsparkSession"):
        pytest.skip("needs the plan of a classic session")
    state = spark._jsparkSession.sessionState()
    statement = f"DELETE FROM {filled} WHERE n > (SELECT count(*) FROM {filled})"
    modes = spark._jvm.org.apache.spark.sql.execution.CommandExecutionMode
    query = state.executePlan(state.sqlParser().parsePlan(statement), modes.SKIP())
    query.analyzed()
    spark.sql(f"INSERT INTO {filled} VALUES (20, 'new', 5)")
    with pytest.raises(Exception, match="COMMIT_CONFLICT"):
        query.executedPlan()


@pytest.mark.spark41
@pytest.mark.long
def test_concurrent_increments_of_two_sessions_are_never_lost(spark, filled):
    """None is lost: who lost a race was told, and ran again."""
    conflicts = at_once(spark, [f"UPDATE {filled} SET n = n + 1"] * 2, times=3)
    assert rows(spark, filled) == {i: (f"n{i}", i + 6) for i in range(10)}
    assert conflicts is not None


@pytest.mark.spark41
@pytest.mark.long
def test_concurrent_statements_about_other_rows_do_not_conflict(spark, filled):
    """What Spark pushes of their conditions tells that neither read what the other changed."""
    statements = [f"UPDATE {filled} SET n = n + 1 WHERE id = {key}" for key in (1, 2)]
    assert at_once(spark, statements, times=4) == 0
    assert {key: rows(spark, filled)[key] for key in (1, 2)} == {1: ("n1", 5), 2: ("n2", 6)}


@pytest.mark.spark41
@pytest.mark.long
def test_statements_next_to_a_writer_of_other_keys_do_not_conflict(spark, wh, filled):
    """None of them is in conflict, however often it writes while they run."""
    stop, written = threading.Event(), []

    def write():
        table = Warehouse(wh.url).table(filled.removeprefix("streamhouse."))
        while not stop.wait(0.5):
            written.append({"id": 1000 + len(written) % 7, "name": "w", "n": len(written)})
            table.upsert(written[-1:])

    statements = [
        f"UPDATE {filled} SET n = n + 1 WHERE n < 100 AND id < 1000",
        f"DELETE FROM {filled} WHERE name = 'gone'",
        merge_into(
            filled,
            "(1, 'm', 1), (50, 'gone', 0)",
            "WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT *",
        ),
    ]
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for number in range(12):
                spark.sql(statements[number % 3])
        finally:
            stop.set()
        writing.result()
    found = rows(spark, filled)
    expected = {key: (f"n{key}", key + 4) for key in range(10)} | {1: ("n1", 9), 50: ("gone", 0)}
    assert {key: row for key, row in found.items() if key < 1000} == expected
    assert {key: row for key, row in found.items() if key >= 1000} == {r["id"]: ("w", r["n"]) for r in written}
    assert len(written) > 3


# -- random statements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.long
def test_random_statements_agree_with_a_dictionary(spark, make, seed):
    name = make()
    rng, model, said = random.Random(seed), {}, []
    for _ in range(14):
        text, model = statement(rng, model, name)
        said.append(text)
        spark.sql(text)
        assert rows(spark, name) == model, said
