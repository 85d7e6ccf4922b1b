"""CHANGES of Spark 4.2 and newer: the rows that each commit of a table added, removed and changed."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC

import pytest
from pyspark.errors import PySparkException

from kit.change_replay import ADDS
from spark.dml import found, opened
from spark.random_statements import statement
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.spark import tier
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.spark41,
    pytest.mark.skipif(spark_versions.spark_version() < (4, 2), reason="PySpark 4.1 has no CHANGES"),
]
LOG = "id BIGINT, name STRING, n INT"
SHOWN = "id, n, _change_type, _commit_version"


def row(number, n):
    return {"id": number, "name": f"n{number}", "n": n}


@pytest.fixture
def keyed(make, wh):
    """A table with a primary key, whose versions 2 to 6 change rows."""
    name = make()
    table = opened(wh, name)
    table.upsert([row(1, 0), row(2, 0), row(3, 0)])
    table.upsert([row(1, 1), row(4, 0)])
    table.delete([2])
    table.upsert([row(1, 2), row(4, 1)])
    table.delete([4])
    return name


@pytest.fixture
def log(make, wh):
    """A table without a primary key, whose versions 2 and 3 add rows."""
    return made_log(make(columns=LOG), wh)


def made_log(name, wh):
    table = opened(wh, name)
    table.append([row(1, 0), row(2, 0)])
    table.append([row(3, 0)])
    return name


def changes(spark, name, clause, columns=SHOWN):
    return sorted(found(spark, f"SELECT {columns} FROM {name} CHANGES {clause}"), key=repr)


ALL = [
    (1, 0, "insert", 2),
    (2, 0, "insert", 2),
    (3, 0, "insert", 2),
    (1, 0, "update_preimage", 3),
    (1, 1, "update_postimage", 3),
    (4, 0, "insert", 3),
    (2, 0, "delete", 4),
    (1, 1, "update_preimage", 5),
    (1, 2, "update_postimage", 5),
    (4, 0, "update_preimage", 5),
    (4, 1, "update_postimage", 5),
    (4, 1, "delete", 6),
]


def between(first, last):
    return sorted((change for change in ALL if first <= change[3] <= last), key=repr)


def test_changes_are_bounded_by_versions(spark, keyed):
    assert changes(spark, keyed, "FROM VERSION 0") == between(0, 6)
    assert changes(spark, keyed, "FROM VERSION 3 TO VERSION 5") == between(3, 5)
    assert changes(spark, keyed, "FROM VERSION 3 EXCLUSIVE TO VERSION 5 INCLUSIVE") == between(4, 5)
    assert changes(spark, keyed, "FROM VERSION 3 INCLUSIVE TO VERSION 5 EXCLUSIVE") == between(3, 4)
    assert changes(spark, keyed, "FROM VERSION 4 EXCLUSIVE TO VERSION 4") == []
    assert changes(spark, keyed, "FROM VERSION 6 EXCLUSIVE") == []
    assert changes(spark, keyed, "FROM VERSION 1 TO VERSION 1") == []


def test_a_tag_is_a_version(spark, keyed, wh):
    opened(wh, keyed).create_tag("before", 3)
    assert changes(spark, keyed, "FROM VERSION 'before' EXCLUSIVE TO VERSION 5") == between(4, 5)


@pytest.mark.always
def test_dataframes_read_changes_by_version(spark, keyed):
    def read(**options):
        shown = spark.read.options(**options).changes(keyed).select(*SHOWN.split(", ")).collect()
        return sorted(map(tuple, shown), key=repr)

    assert read() == between(0, 6)
    assert read(startingVersion=3, endingVersion=5) == between(3, 5)
    assert read(startingVersion=3, endingVersion=5, startingBoundInclusive="false") == between(4, 5)
    assert read(startingTimestamp="2001-01-01") == between(0, 6)
    columns = spark.read.changes(keyed).schema
    assert columns.names == ["id", "name", "n", "_change_type", "_commit_version", "_commit_timestamp"]
    assert [columns[name].nullable for name in columns.names[3:]] == [False] * 3


def test_changes_are_bounded_by_times(spark, keyed, wh):
    table = opened(wh, keyed)
    table.world.clock.sleep_ms(5)
    table.upsert([row(7, 0)])
    shown = [*ALL, (7, 0, "insert", 7)]
    kept = table.inspect.history().select(["version", "timestamp"]).to_pylist()
    times = {commit["version"]: commit["timestamp"] for commit in kept}
    text = {version: f"TIMESTAMP '{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z'" for version, time in times.items()}

    def of_times(holds):
        """The changes of commits whose time the condition holds for: several commits may have one time."""
        return sorted((change for change in shown if holds(times[change[3]])), key=repr)

    first, last = times[3], times[5]
    assert changes(spark, keyed, f"FROM {text[3]} TO {text[5]}") == of_times(lambda at: first <= at <= last)
    both = f"FROM {text[3]} EXCLUSIVE TO {text[5]} EXCLUSIVE"
    assert changes(spark, keyed, both) == of_times(lambda at: first < at < last)
    assert changes(spark, keyed, f"FROM {text[6]} EXCLUSIVE") == of_times(lambda at: at > times[6])
    assert (7, 0, "insert", 7) in changes(spark, keyed, f"FROM {text[6]} EXCLUSIVE")
    assert changes(spark, keyed, "FROM TIMESTAMP '2001-01-01' TO TIMESTAMP '2002-01-01'") == []
    assert changes(spark, keyed, "FROM TIMESTAMP '2101-01-01'") == []
    with pytest.raises(PySparkException, match=r"CHANGES of .* swap the two times"):
        changes(spark, keyed, f"FROM {text[7]} TO {text[3]}")
    at = found(spark, f"SELECT DISTINCT _commit_version, _commit_timestamp FROM {keyed} CHANGES FROM VERSION 2")
    in_order = [time for _, time in sorted(at)]
    assert in_order == sorted(set(in_order))


def test_net_changes_have_one_change_per_key(spark, keyed):
    net = "WITH (deduplicationMode = 'netChanges')"
    both = "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    assert changes(spark, keyed, f"FROM VERSION 2 TO VERSION 6 {net}") == [(1, 2, "insert", 5), (3, 0, "insert", 2)]
    assert changes(spark, keyed, f"FROM VERSION 3 TO VERSION 6 {net}") == [
        (1, 0, "delete", 3),
        (1, 2, "insert", 5),
        (2, 0, "delete", 4),
    ]
    assert changes(spark, keyed, f"FROM VERSION 3 TO VERSION 6 {both}") == [
        (1, 0, "update_preimage", 3),
        (1, 2, "update_postimage", 5),
        (2, 0, "delete", 4),
    ]
    others = "WITH (deduplicationMode = 'dropCarryovers', computeUpdates = 'true')"
    assert changes(spark, keyed, f"FROM VERSION 2 TO VERSION 6 {others}") == between(2, 6)


def test_filters_and_columns_of_changes_are_applied(spark, keyed):
    def counted(where):
        return found(spark, f"SELECT count(*) FROM {keyed} CHANGES FROM VERSION 2 WHERE {where}")[0][0]

    assert counted("id = 1") == 5
    assert counted("n = 1") == 4
    assert counted("_commit_version BETWEEN 4 AND 5") == 5
    assert counted("_change_type = 'delete'") == 2
    assert counted("_commit_timestamp > TIMESTAMP '2001-01-01' AND _change_type LIKE 'update%'") == 6
    most = f"SELECT count(*), max(id), max(_commit_version) FROM {keyed} CHANGES FROM VERSION 2"
    assert found(spark, most) == [(12, 4, 6)]
    plan = found(spark, f"EXPLAIN SELECT name FROM {keyed} CHANGES FROM VERSION 2 WHERE id = 1")[0][0]
    assert "[id, name], filters [id = 1]" in plan, plan


def test_changes_of_a_log_table_tell_updates_from_deletions(spark, log):
    spark.sql(f"UPDATE {log} SET n = 9 WHERE id = 2")
    spark.sql(f"DELETE FROM {log} WHERE id = 1")
    spark.sql(
        f"MERGE INTO {log} t USING (SELECT * FROM VALUES (3, 5), (4, 0) AS v(id, n)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT (id, name, n) VALUES (s.id, 'new', s.n)"
    )
    expected = [
        (1, 0, "insert", 2),
        (2, 0, "insert", 2),
        (3, 0, "insert", 3),
        (2, 0, "update_preimage", 4),
        (2, 9, "update_postimage", 4),
        (1, 0, "delete", 5),
        (3, 0, "update_preimage", 6),
        (3, 5, "update_postimage", 6),
        (4, 0, "insert", 6),
    ]
    assert changes(spark, log, "FROM VERSION 0") == sorted(expected, key=repr)
    assert changes(spark, log, "FROM VERSION 3 TO VERSION 5") == sorted(expected[2:6], key=repr)
    for mode in ("computeUpdates = 'true'", "deduplicationMode = 'dropCarryovers', computeUpdates = 'true'"):
        assert changes(spark, log, f"FROM VERSION 0 WITH ({mode})") == sorted(expected, key=repr)
    net = changes(spark, log, "FROM VERSION 3 WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')")
    plain = {"update_preimage": "delete", "update_postimage": "insert"}
    left = [(*row[:2], plain.get(row[2], row[2]), row[3]) for row in (expected[i] for i in (3, 4, 5, 7, 8))]
    assert net == sorted(left, key=repr)


def trim(table):
    compact_inline_rows(table)
    state = table.refresh()
    table.log.commit(lambda *_: (Trim({bucket: log.end for bucket, log in state.buckets.items()}),))


def first_there(spark, name):
    with pytest.raises(
        PySparkException, match=r"OFFSETS_TRIMMED: CHANGES of .* the rows of commit .* were trimmed"
    ) as error:
        changes(spark, name, "FROM VERSION 2")
    first = int(str(error.value).split("the first available version is ")[1].split()[0])
    with pytest.raises(PySparkException, match="OFFSETS_TRIMMED"):
        changes(spark, name, f"FROM VERSION {first - 1}")
    return first


@pytest.mark.always
def test_changes_of_a_keyed_table_begin_where_its_trimmed_log_does(spark, wh, keyed):
    table = opened(wh, keyed)
    tier(spark, wh.url, [table.name])
    assert changes(spark, keyed, "FROM VERSION 0") == between(0, 6)
    trim(table)
    table.upsert([row(9, 0)])
    assert first_there(spark, keyed) == 7
    assert changes(spark, keyed, "FROM VERSION 7") == [(9, 0, "insert", table.state.version)]


def test_changes_of_a_log_table_survive_tiering_and_trimming(spark, wh, log):
    table = opened(wh, log)
    before = changes(spark, log, "FROM VERSION 0", "*")
    tier(spark, wh.url, [table.name])
    assert changes(spark, log, "FROM VERSION 0", "*") == before
    trim(table)
    assert changes(spark, log, "FROM VERSION 0", "*") == before, "the lake has the rows"
    older = changes(spark, log, "FROM VERSION 0")
    table.delete(where=[("id", "=", 1)])
    table.append([row(9, 0)])
    newest = table.state.version
    more = [(1, 0, "delete", newest - 1), (9, 0, "insert", newest)]
    both = f"FROM VERSION {newest - 1} TO VERSION {newest}"
    assert changes(spark, log, both) == more, "a lake snapshot has the deleted row"
    assert changes(spark, log, "FROM VERSION 0") == sorted([*older, *more], key=repr)
    table.open_lake().compact(purge=True)
    tier(spark, wh.url, [table.name])
    assert changes(spark, log, both) == more
    table.open_lake().compact(purge=True)
    table.open_lake().expire(keep_last=1, keep_ms=0)
    assert first_there(spark, log) == newest, "the deleted row is nowhere"
    assert changes(spark, log, f"FROM VERSION {newest} TO VERSION {newest}") == more[1:]


def test_columns_are_those_of_now(spark, keyed, wh):
    spark.sql(f"ALTER TABLE {keyed} RENAME COLUMN n TO number")
    spark.sql(f"ALTER TABLE {keyed} ADD COLUMN more STRING")
    spark.sql(f"ALTER TABLE {keyed} DROP COLUMN name")
    opened(wh, keyed).upsert([{"id": 1, "number": 7, "more": "m"}])
    newest = opened(wh, keyed).refresh().version
    shown = changes(spark, keyed, "FROM VERSION 5", "id, number, more, _change_type, _commit_version")
    older = [(id_, n, None, kind, version) for id_, n, kind, version in between(5, 6)]
    last = [(1, 2, None, "update_preimage", newest), (1, 7, "m", "update_postimage", newest)]
    assert shown == sorted([*older, *last], key=repr)


def test_changes_that_cannot_be_read_are_refused(spark, keyed, make, wh):
    log = made_log(make("log", LOG), wh)

    def refused(name, clause, text):
        with pytest.raises(PySparkException, match=text):
            changes(spark, name, clause)

    refused(keyed, "FROM VERSION 7", r"INVALID_OPTION: \S+ has no version 7: the newest is 6")
    refused(keyed, "FROM VERSION 2 TO VERSION 7", "INVALID_OPTION: .* has no version 7")
    refused(keyed, "FROM VERSION 5 TO VERSION 2", "INVALID_OPTION: .* swap the two versions")
    refused(keyed, "FROM VERSION 'x'", "INVALID_OPTION: .* expected a commit number")
    refused("streamhouse.dml.missing", "FROM VERSION 1", "TABLE_OR_VIEW_NOT_FOUND")
    with pytest.raises(PySparkException, match=r"INVALID_OPTION: option maxRows of .* is unknown"):
        spark.read.option("maxRows", 1).option("startingVersion", 1).changes(keyed).collect()
    refused(
        make("wal", table_changelog_image="wal"), "FROM VERSION 1", r"INVALID_OPTION: .* is wal\); read .*\$changelog"
    )
    database, _, table = log.rpartition(".")
    refused(f"{database}.`{table}$changelog`", "FROM VERSION 1", "INVALID_NAME: .* found a system table")


@pytest.mark.parametrize(
    "statement", ["TRUNCATE TABLE {}", "INSERT OVERWRITE {} SELECT 9L AS id, 'n9' AS name, 0 AS n"]
)
def test_a_table_that_was_emptied(spark, make, wh, statement):
    log = made_log(make("log", LOG), wh)
    spark.sql(statement.format(log))
    opened(wh, log).append([row(5, 0)])
    inserted = [(1, 0, "insert", 2), (2, 0, "insert", 2), (3, 0, "insert", 3)]
    emptied = [(number, 0, "delete", 4) for number in (1, 2, 3)]
    instead = [(9, 0, "insert", 4)] if statement.startswith("INSERT") else []
    every = sorted([*inserted, *emptied, *instead, (5, 0, "insert", 5)], key=repr)
    assert changes(spark, log, "FROM VERSION 0") == every
    assert changes(spark, log, "FROM VERSION 0 TO VERSION 3") == inserted
    net = sorted([*instead, (5, 0, "insert", 5)], key=repr)
    assert changes(spark, log, "FROM VERSION 0 WITH (deduplicationMode = 'netChanges')") == net
    spark.sql(f"CALL streamhouse.system.rollback_to_version('{log.partition('.')[2]}', 3)")
    assert sorted(row.id for row in spark.table(log).collect()) == [1, 2, 3]


@pytest.mark.parametrize("is_tiered", [False, True])
def test_a_table_with_a_key_that_was_overwritten(spark, wh, keyed, is_tiered):
    table = opened(wh, keyed)
    if is_tiered:
        tier(spark, wh.url, [table.name])
    before = spark.table(keyed).collect()
    spark.sql(f"INSERT OVERWRITE {keyed} SELECT * FROM VALUES (1L, 'new', 8), (9L, 'new', 9) AS v(id, name, n)")
    version = table.refresh().version
    own = [
        *((row.id, row.n, "delete", version) for row in before),
        (1, 8, "insert", version),
        (9, 9, "insert", version),
    ]
    assert changes(spark, keyed, f"FROM VERSION {version}") == sorted(own, key=repr)
    assert changes(spark, keyed, "FROM VERSION 0") == sorted([*between(0, 6), *own], key=repr)
    net = "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    assert changes(spark, keyed, f"FROM VERSION {version} {net}") == sorted(
        [
            *((row.id, row.n, "delete", version) for row in before if row.id != 1),
            *((1, row.n, "update_preimage", version) for row in before if row.id == 1),
            (1, 8, "update_postimage", version),
            (9, 9, "insert", version),
        ],
        key=repr,
    )


def test_changes_across_a_dropped_partition_are_refused_or_whole(spark, wh):
    table = wh.create_table("changed.parts", "id BIGINT, part STRING", buckets=1, partition_by=["part"])
    table.append([{"id": 1, "part": "a"}, {"id": 2, "part": "b"}])
    name = "streamhouse.changed.parts"
    spark.sql(f"ALTER TABLE {name} DROP PARTITION (part = 'a')")
    newest = table.refresh().version
    shown = changes(spark, name, f"FROM VERSION 1 TO VERSION {newest - 1}", "id, _change_type")
    assert shown == [(1, "insert"), (2, "insert")]
    assert changes(spark, name, f"FROM VERSION {newest}", "id, _change_type") == [(1, "delete")]
    net = changes(spark, name, "FROM VERSION 1 WITH (deduplicationMode = 'netChanges')", "id, _change_type")
    assert net == [(2, "insert")]
    table.log.commit(lambda *_: [Trim({0: 2})])
    spark.sql(f"ALTER TABLE {name} DROP PARTITION (part = 'b')")
    assert changes(spark, name, f"FROM VERSION {newest + 1}", "id, _change_type") == [(2, "delete")]
    table.open_lake().expire(keep_last=1, keep_ms=0)
    text = r"INVALID_OPTION: .* commit \d+ \(tier\) removed rows from the lake that no record names"
    with pytest.raises(PySparkException, match=text):
        changes(spark, name, f"FROM VERSION {newest + 1}", "*")


def streamed(frame, checkpoint, name, **trigger):
    """Run a stream to the end of what is there; all rows that its runs gave so far."""
    target = f"{checkpoint}-rows-{name}"
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{checkpoint}-{name}")
    writer.trigger(**(trigger or {"availableNow": True})).start(target).awaitTermination()
    found_rows = frame.sparkSession.read.schema(frame.schema).parquet(target).select(*SHOWN.split(", ")).collect()
    return sorted(map(tuple, found_rows), key=repr)


def test_streams_go_on_where_they_ended(spark, wh, keyed, checkpoint):
    table = opened(wh, keyed)

    def run():
        return streamed(spark.readStream.option("startingVersion", 3).changes(keyed), checkpoint, "plain")

    assert run() == between(3, 6)
    assert run() == between(3, 6), "nothing is new"
    tier(spark, wh.url, [table.name])
    assert run() == between(3, 6)
    table.upsert([row(1, 9)])
    newest = table.refresh().version
    last = [(1, 2, "update_preimage", newest), (1, 9, "update_postimage", newest)]
    assert run() == sorted([*between(3, 6), *last], key=repr)
    once = spark.sql(f"SELECT * FROM STREAM {keyed} CHANGES FROM VERSION 4 EXCLUSIVE")
    assert streamed(once, checkpoint, "sql") == sorted([*between(5, 6), *last], key=repr)
    assert streamed(spark.readStream.changes(keyed), checkpoint, "all") == sorted([*ALL, *last], key=repr)


@pytest.fixture
def rocksdb(spark):
    """The state store that Spark wants for net changes."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize("is_keyed", [True, False])
def test_streams_of_net_changes_lose_no_commit(spark, wh, make, checkpoint, is_keyed):
    """Commits come faster than milliseconds pass, and by a clock that runs behind."""
    name = make() if is_keyed else make(columns=LOG)
    table = opened(wh, name)
    write = table.upsert if is_keyed else table.append
    source = spark.readStream.option("deduplicationMode", "netChanges").option("computeUpdates", "true").changes(name)
    replay: Counter = Counter()
    for part in range(3):
        for number in range(20):
            write([row(number % 3, 100 * part + number)])
        shown = streamed(source, checkpoint, "net")
    expected = Counter((r["id"], r["n"]) for r in table.to_arrow().to_pylist())
    for id_, n, kind, _ in shown:
        replay[id_, n] += ADDS[kind]
    assert +replay == expected
    assert min(replay.values()) >= 0


def test_streams_that_cannot_go_on(spark, wh, keyed, checkpoint):
    table = opened(wh, keyed)
    source = spark.readStream.changes(keyed)
    streamed(source, checkpoint, "stopped")
    spark.sql(f"ALTER TABLE {keyed} ADD COLUMN more STRING")
    table.upsert([row(5, 5)])
    if "connect" not in type(spark).__module__:  # there the columns are those of when the query begins
        with pytest.raises(PySparkException, match=r"INVALID_OPTION: the columns of .* changed since its stream"):
            streamed(source, checkpoint, "stopped")
    spark.sql(f"DROP TABLE {keyed}")
    spark.sql(f"CREATE TABLE {keyed} (id BIGINT, name STRING, n INT, PRIMARY KEY (id))")
    with pytest.raises(PySparkException, match="DIFFERENT_HISTORY: the checkpoint belongs to table"):
        streamed(spark.readStream.changes(keyed), checkpoint, "stopped")


@pytest.mark.parametrize("is_keyed", [True, False])
def test_changes_of_random_statements_add_up_to_the_rows(spark, wh, make, is_keyed):
    """The changes of all statements are the rows of the last version, and each commit's the difference of two."""
    rng = random.Random(7)
    name = make() if is_keyed else make(columns=LOG, bucket_key="id")
    table, model = opened(wh, name), {}
    for _ in range(12):
        text, model = statement(rng, model, name)
        spark.sql(text)
        if rng.random() < 0.2:
            tier(spark, wh.url, [table.name])
    newest = table.refresh().version
    found_changes = found(spark, f"SELECT * FROM {name} CHANGES FROM VERSION 0")
    for clause in ("none", "netChanges"):
        shown = found(spark, f"SELECT * FROM {name} CHANGES FROM VERSION 0 WITH (deduplicationMode = '{clause}')")
        assert replayed(Counter(), shown) == version(spark, name, newest)
    before = Counter()
    for number in range(1, newest + 1):
        after = version(spark, name, number)
        own = [change for change in found_changes if change[4] == number]
        assert replayed(before, own) == after, number
        before = after
    assert dict(before) == {(key, *values): 1 for key, values in model.items()}


def version(spark, name, number):
    return Counter(found(spark, f"SELECT * FROM {name} VERSION AS OF {number}"))


def replayed(rows, shown):
    rows = Counter(rows)
    for id_, name, n, kind, *_ in shown:
        rows[id_, name, n] += ADDS[kind]
    assert min(rows.values(), default=0) >= 0
    return +rows
