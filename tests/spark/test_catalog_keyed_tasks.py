"""Changes of writes by key through the catalog are made by the tasks, but for buckets that move meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.waiting import wait_for
from spark.dml import found, merge_into, opened, rows
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.spark

SUMS = "id BIGINT, n BIGINT, PRIMARY KEY (id)"
AGGREGATION = {"table.merge__engine": "aggregation", "fields.n.agg": "sum"}


def changed(table, do):
    """Bucket → how many changes ``do`` made of it, and how many of them no tablet of this host has yet.

    Who makes changes when committing applies them to its tablets at once. Those of tasks are applied by the next use.
    """
    before = table.refresh().ends
    do()
    return waiting_since(table, before)


def waiting_since(table, before):
    state = table.refresh()
    shape = table.keyed.keyed_schema()
    return {
        bucket: (state.buckets[bucket].end - end, state.buckets[bucket].end - shape.tablet_of(bucket).extent.applied)
        for bucket, end in before.items()
        if state.buckets[bucket].end > end
    }


STATEMENTS = {
    "insert": "INSERT INTO {} SELECT id, 'new', id FROM range(5, 40)",
    "overwrite": "INSERT OVERWRITE {} SELECT id, 'new', id FROM range(5, 40)",
    "update": "UPDATE {} SET name = 'new', n = n + 1 WHERE id > 3",
    "delete": "DELETE FROM {} WHERE id BETWEEN 2 AND 8",
    "merge": merge_into(
        "{}",
        "(3, 'new', 33), (4, 'new', NULL), (50, 'new', 50), (51, 'new', 51), (52, 'new', 52)",
        "WHEN MATCHED AND s.n IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    ),
    "merge that inserts": merge_into(
        "{}", "(3, 'new', 33), (50, 'new', 50), (51, 'new', 51)", "WHEN NOT MATCHED THEN INSERT *"
    ),
}


def expected(kind):
    model = {key: (f"n{key}", key) for key in range(10)}
    inserted = {key: ("new", key) for key in range(5, 40)}
    return {
        "insert": model | inserted,
        "overwrite": inserted,
        "update": model | {key: ("new", key + 1) for key in range(4, 10)},
        "delete": {key: model[key] for key in (0, 1, 9)},
        "merge": {k: v for k, v in model.items() if k != 4}
        | {3: ("new", 33), 50: ("new", 50), 51: ("new", 51), 52: ("new", 52)},
        "merge that inserts": model | {50: ("new", 50), 51: ("new", 51)},
    }[kind]


@pytest.mark.spark41
@pytest.mark.parametrize("kind", STATEMENTS)
def test_tasks_make_the_changes(spark, wh, filled, kind):
    table = opened(wh, filled)
    made = changed(table, lambda: spark.sql(STATEMENTS[kind].format(filled)))
    assert made
    # The driver applied none. An overwrite needs no tablet, so what was there before waits too.
    assert all(waiting == changes if kind != "overwrite" else waiting >= changes for changes, waiting in made.values())
    assert rows(spark, filled) == expected(kind)
    assert table.lookup(list(range(60)))["_found"].to_pylist() == [key in expected(kind) for key in range(60)]


def test_writes_without_before_images_read_no_old_rows(spark, wh, make):
    """Tasks look at no row for whole rows; statements that name rows decide as ever."""
    name = make(table_changelog_image="wal")
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(10)")
    table = opened(wh, name)
    made = changed(table, lambda: spark.sql(STATEMENTS["insert"].format(name)))
    assert sum(changes for changes, _ in made.values()) == 35
    assert all(waiting >= changes for changes, waiting in made.values())
    for kind in ("update", "merge", "delete"):
        spark.sql(STATEMENTS[kind].format(name))
    model = {key: ("new", key + 1) for key in range(9, 40)} | {key: (f"n{key}", key) for key in range(2)}
    model |= {key: ("new", key) for key in (50, 51, 52)}
    assert rows(spark, name) == model
    changelog = f"{name.rpartition('.')[0]}.`{name.rpartition('.')[2]}$changelog`"
    kinds = dict(found(spark, f"SELECT _change_type, count(*) FROM {changelog} GROUP BY 1"))
    assert kinds == {"update_after": 10 + 35 + 36 + 1, "delete": 1 + 6, "insert": 3}
    tailed = spark.readStream.table(changelog).writeStream.format("memory")
    tailed.queryName("unseen").trigger(availableNow=True).start().awaitTermination()
    assert found(spark, "SELECT count(*) FROM unseen") == [(sum(kinds.values()),)]


@pytest.mark.long
def test_streams_in_update_mode(spark, wh, make, checkpoint):
    name, source = make(), make("_source", "id BIGINT")
    counts = spark.readStream.table(source).groupBy("id").count().selectExpr("id", "'c' AS name", "INT(count) AS n")
    for number in range(1, 3):
        spark.sql(f"INSERT INTO {source} SELECT id FROM range(20)")
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        made = changed(
            opened(wh, name), lambda writer=writer: writer.trigger(availableNow=True).toTable(name).awaitTermination()
        )
        assert made
        assert all(changes == waiting for changes, waiting in made.values())
        assert rows(spark, name) == dict.fromkeys(range(20), ("c", number))


def test_without_the_catalog_the_driver_makes_them(spark, wh, filled):
    table = opened(wh, filled)
    frame = spark.sql("SELECT id, 'new' AS name, INT(id) AS n FROM range(5, 40)")
    writer = frame.write.format("streamhouse").option("warehouse", wh.url).mode("append")
    made = changed(table, lambda: writer.save(table.name))
    assert {waiting for _, waiting in made.values()} == {0}
    assert rows(spark, filled) == expected("insert")


def test_an_update_of_more_rows_than_are_handed_over_at_once(spark, wh, make):
    """Its parts are not prepared: the driver makes changes of all of them together."""
    name = make()
    table = opened(wh, name)
    spark.sql(f"INSERT INTO {name} SELECT id, 'a', 1 FROM range(150000)")
    table.lookup([0, 1, 2, 3, 4, 5, 6, 7])
    before = table.refresh().ends
    made = changed(table, lambda: spark.sql(f"UPDATE {name} SET n = n + id % 3"))
    assert sum(changes for changes, _ in made.values()) == 2 * 100_000
    assert len(made) == 3
    # Two buckets were one task's, in parts; the third one may have been prepared. Many changes are applied behind the
    # answer, by the process that committed them.
    wait_for(
        lambda: sorted(waiting for _, waiting in waiting_since(table, before).values())[:2] == [0, 0],
        "that the driver's process applies the changes that it made",
    )
    assert found(spark, f"SELECT count(*), sum(n), max(n) FROM {name}") == [(150_000, 300_000, 3)]


@pytest.mark.spark41
@pytest.mark.long
def test_racing_writers_add_to_the_same_sums(spark, wh, make):
    """Whoever loses has its changes worked out again: no addition is lost, and none counts twice."""
    name = make(columns=SUMS, **AGGREGATION)
    url, table = wh.url, opened(wh, name).name
    rounds = 6

    def insert(amount):
        for _ in range(rounds):
            spark.sql(f"INSERT INTO {name} SELECT id, {amount}L FROM range(50)")

    def upsert(amount):
        process = Warehouse(url).table(table)
        for _ in range(5 * rounds):
            process.upsert([{"id": key, "n": amount} for key in range(0, 50, 7)])

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(insert, 1), pool.submit(insert, 100), pool.submit(upsert, 10_000)]:
            future.result()
    model = {key: (101 * rounds + (0 if key % 7 else 50_000 * rounds),) for key in range(50)}
    assert rows(spark, name) == model
    last = found(spark, f"SELECT id, max(n) FROM `streamhouse`.dml.`{name.split('.')[2]}$changelog` GROUP BY id")
    assert {key: (n,) for key, n in last} == model
