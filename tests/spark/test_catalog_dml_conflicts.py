"""UPDATE, DELETE and MERGE while others write, and random ones of them against a dictionary."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as f

from spark.dml import found, merge_into, rows
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.spark


# -- conflicts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def meanwhile(spark, tmp_path):
    """Registers a function of SQL that does something while the statement that calls it runs; it gives its argument."""
    done = tmp_path / "done"

    def once(do):
        with contextlib.suppress(FileExistsError):
            done.touch(exist_ok=False)
            do()

    return lambda do: spark.udf.register("meanwhile", f.udf(lambda value: (once(do), value)[1], "int"))


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
        r"id = (1|50), which it writes, was changed at offset \d+ of bucket \d \(commit \d+\)",
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


@pytest.mark.spark41
def test_a_statement_that_reads_the_table_twice_minds_every_change(spark, wh, filled, meanwhile):
    url, table = wh.url, filled.removeprefix("streamhouse.")
    meanwhile(lambda: Warehouse(url).table(table).upsert([{"id": 99}]))
    with pytest.raises(PySparkException, match=r"COMMIT_CONFLICT.*it reads the table more than once"):
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
def test_increments_of_two_sessions_at_once(spark, filled):
    """None is lost: who lost a race was told, and ran again."""
    conflicts = at_once(spark, [f"UPDATE {filled} SET n = n + 1"] * 2, times=3)
    assert rows(spark, filled) == {i: (f"n{i}", i + 6) for i in range(10)}
    assert conflicts is not None


@pytest.mark.spark41
@pytest.mark.long
def test_statements_about_other_rows_at_once(spark, filled):
    """What Spark pushes of their conditions tells that neither read what the other changed."""
    statements = [f"UPDATE {filled} SET n = n + 1 WHERE id = {key}" for key in (1, 2)]
    assert at_once(spark, statements, times=4) == 0
    assert {key: rows(spark, filled)[key] for key in (1, 2)} == {1: ("n1", 5), 2: ("n2", 6)}


def at_once(spark, statements, times):
    """Run each statement some times, side by side, until it succeeded; how many were in conflict."""
    barrier = threading.Barrier(len(statements))

    def run(statement):
        session = spark.newSession()
        barrier.wait(240)
        conflicts = 0
        for _ in range(times):
            while True:
                try:
                    session.sql(statement)
                    break
                except PySparkException as error:
                    assert "COMMIT_CONFLICT" in str(error), error  # noqa: PT017 - any other is a failure
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(len(statements)) as pool:
        return sum(pool.map(run, statements))


@pytest.mark.spark41
@pytest.mark.long
def test_statements_beside_a_writer_of_other_keys(spark, wh, filled):
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


def null_safe(compute):
    """As SQL does it: null where a value is null."""
    return lambda *values: None if None in values else compute(*values)


def condition(rng, model, name, alias=""):
    """A condition in SQL and on ``(id, name, n)``."""
    k = rng.randrange(12)
    ns = {row[1] for key, row in model.items() if key < k}
    in_ns = lambda _id, _name, n: n is not None and n in ns  # noqa: E731 - one of a list
    return rng.choice(
        [
            (f"{alias}n > {k}", lambda _id, _name, n: bool(null_safe(lambda n: n > k)(n))),
            (f"{alias}id % 3 = {k % 3}", lambda key, _name, _n: key % 3 == k % 3),
            (f"{alias}name IS NULL OR {alias}n IS NULL", lambda _id, name, n: name is None or n is None),
            (f"NOT ({alias}n = {k})", lambda _id, _name, n: n is not None and n != k),
            (f"{alias}id IN ({k}, {k + 1}, {k + 2})", lambda key, _name, _n: k <= key <= k + 2),
            *([] if alias else [(f"n IN (SELECT n FROM {name} WHERE id < {k})", in_ns)]),
        ]
    )


def delete(rng, model, name):
    sql, holds = condition(rng, model, name)
    return f"DELETE FROM {name} WHERE {sql}", {k: v for k, v in model.items() if not holds(k, *v)}


def update(rng, model, name):
    sql, holds = condition(rng, model, name)
    plus, bang = null_safe(lambda n, key: n + key), null_safe(lambda text: text + "!")
    changed = {k: (bang(v[0]), plus(v[1], k)) if holds(k, *v) else v for k, v in model.items()}
    return f"UPDATE {name} SET n = n + id, name = concat(name, '!') WHERE {sql}", changed


def merge(rng, model, name):
    keys = rng.sample(range(16), rng.randint(1, 6))
    source = {k: (rng.choice([None, "s", "t"]), rng.choice([None, *range(12)])) for k in keys}
    text = ", ".join(
        f"({k}, {'NULL' if s is None else repr(s)}, {'NULL' if n is None else n})" for k, (s, n) in source.items()
    )
    deletes, updates, stale = (condition(rng, model, name, alias) for alias in ("s.", "t.", "t."))
    after = {}
    for key, row in model.items():
        if key not in source:
            if not stale[1](key, *row):
                after[key] = row
        elif deletes[1](key, *source[key]):
            pass
        elif updates[1](key, *row):
            after[key] = source[key]
        else:
            after[key] = (row[0], source[key][1])
    after |= {key: row for key, row in source.items() if key not in model and row[1] != 3}
    clauses = (
        f"WHEN MATCHED AND {deletes[0]} THEN DELETE WHEN MATCHED AND {updates[0]} THEN UPDATE SET * "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED AND s.n IS DISTINCT FROM 3 THEN INSERT * "
        f"WHEN NOT MATCHED BY SOURCE AND {stale[0]} THEN DELETE"
    )
    return merge_into(name, text, clauses), after


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.long
def test_random_statements(spark, make, seed):
    name = make()
    rng, model, said = random.Random(seed), {}, []
    for _ in range(14):
        if len(model) < 4:
            model |= {k: (f"v{k}", k) for k in range(10)}
            said.append(f"INSERT INTO {name} SELECT id, concat('v', id), id FROM range(10)")
        else:
            statement, model = rng.choice([delete, update, merge, merge])(rng, model, name)
            said.append(statement)
        spark.sql(said[-1])
        assert rows(spark, name) == model, said
