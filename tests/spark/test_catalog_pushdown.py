"""What Spark hands over really saves work: counted by what Python plans, by Spark's metrics and by its plans."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from spark.differential.compare import configured
from streamhouse_spark.datasource.scan import scan
from streamhouse_spark.spark import tier
from streamhouse_spark.warehouse.process_cache import Connection

pytestmark = pytest.mark.spark

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
COLUMNS = "id BIGINT, day STRING, n INT, text STRING, wide STRING"


def part(start, count, day):
    ids = list(range(start, start + count))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": [day] * count,
            "n": pa.array([start] * count, pa.int32()),
            "text": [f"t{i % 7}" for i in ids],
            "wide": [f"{i:0300d}" for i in ids],
        }
    )


@pytest.fixture(scope="module")
def events(spark, wh):
    """Of each day one part in the lake and one in the log, 1,000 rows each, in segments of their own."""
    properties = {"bucket.key": "id", "table.statistics.columns": "*"}
    table = wh.create_table("push.events", COLUMNS, buckets=4, partition_by=("day",), properties=properties)
    for number, day in enumerate(DAYS):
        table.append(part(1000 * number, 1000, day))
    tier(spark, wh.url, ["push.events"])
    for number, day in enumerate(DAYS, start=3):
        table.append(part(1000 * number, 1000, day))
    return table


@pytest.fixture(scope="module")
def connection(wh):
    return Connection.of(wh.url, {})


def sql(spark, text):
    return [tuple(row) for row in spark.sql(text).collect()]


def explain(spark, text):
    return spark.sql(f"EXPLAIN FORMATTED {text}").first()[0]


def scans(spark, text):
    """What the scans of a query say of themselves: columns, filters, limit."""
    return re.findall(r"streamhouse push\.\S+ \[.*", explain(spark, text))


def metrics(spark, text):
    """The name → sum of a query's SQL metrics over its scans, after it ran."""
    frame = spark.sql(text)
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    if "AdaptiveSparkPlan" in plan.nodeName():
        plan = plan.executedPlan()
    found = {"rows": 0, "partitions": 0}
    pending = [plan]
    while pending:
        node = pending.pop()
        children = node.children()
        pending += [children.apply(i) for i in range(children.size())]
        if "QueryStage" in node.nodeName():
            pending.append(node.plan())
        if "BatchScan" in node.nodeName():
            found["rows"] += node.metrics().apply("numOutputRows").value()
            found["partitions"] += node.inputRDD().getNumPartitions()
    return found


def planned(connection, name, *, columns=("id",), filters=(), limit=None):
    database, table = name.split(".")
    loaded = scan.load(connection, {"database": database, "table": table})
    arguments = {"snapshot": loaded["snapshot"], "columns": list(columns), "filters": list(filters), "limit": limit}
    return scan.plan(connection, {**arguments, "options": {}, "parallelism": 2, "native_schemes": ["file"]})


def equals(column, value, kind):
    return {"op": "=", "children": [{"column": [column]}, {"literal": value, "type": f'"{kind}"'}]}


# -- one scan ----------------------------------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.spark41
def test_only_needed_columns_are_read(spark, events, connection):
    (scan_text,) = scans(spark, "SELECT n FROM streamhouse.push.events WHERE id > 7")
    assert "[id, n]" in scan_text
    (scan_text,) = scans(spark, "SELECT count(text) FROM streamhouse.push.events GROUP BY day")
    assert "[day, text]" in scan_text
    narrow = planned(connection, "push.events", columns=["n"])["bytes"]
    assert narrow * 5 < planned(connection, "push.events", columns=["n", "wide"])["bytes"]


@pytest.mark.classic
def test_filtered_partitions_are_not_read(spark, events, connection):
    assert metrics(spark, "SELECT wide FROM streamhouse.push.events")["rows"] == 6000
    for where in ("day = '2024-01-02'", "day > '2024-01-01' AND day < '2024-01-03'", "day LIKE '%2'"):
        assert metrics(spark, f"SELECT wide FROM streamhouse.push.events WHERE {where}")["rows"] == 2000, where
    either = "day = '2024-01-02' AND n >= 0 OR day = '2024-01-03'"
    assert metrics(spark, f"SELECT wide FROM streamhouse.push.events WHERE {either}")["rows"] == 4000
    assert metrics(spark, "SELECT wide FROM streamhouse.push.events WHERE day = 'never'")["rows"] == 0


@pytest.mark.classic
def test_filtered_buckets_are_not_read(spark, events):
    assert sql(spark, "SELECT n FROM streamhouse.push.events WHERE id = 17") == [(0,)]
    one = metrics(spark, "SELECT wide FROM streamhouse.push.events WHERE id IN (4321) AND n >= 0")["rows"]
    assert 0 < one < 400, "of one bucket the one segment that may hold it"
    assert metrics(spark, "SELECT wide FROM streamhouse.push.events WHERE _bucket = 2")["rows"] < 2500


@pytest.mark.classic
def test_segments_and_files_are_pruned_by_statistics(spark, events):
    for where in ("n = 4000", "n > 3000 AND n < 5000", "n = 1000", "n <=> 2000", "n IN (1000, 999)"):
        assert metrics(spark, f"SELECT wide FROM streamhouse.push.events WHERE {where}")["rows"] == 1000, where
    assert metrics(spark, "SELECT wide FROM streamhouse.push.events WHERE NOT (n < 4000 OR n > 4000)")["rows"] == 1000
    assert metrics(spark, "SELECT wide FROM streamhouse.push.`events$lake` WHERE n = 1000")["rows"] == 1000


@pytest.mark.classic
def test_a_limit_reads_few_rows(spark, events, connection):
    assert len(sql(spark, "SELECT id FROM streamhouse.push.events LIMIT 5")) == 5
    assert metrics(spark, "SELECT id FROM streamhouse.push.events LIMIT 5")["rows"] <= 1000
    few = planned(connection, "push.events", limit=5)
    assert few["rows"] <= 1000
    assert len(few["native"]) + len(few["hot"]) == 1
    everything = planned(connection, "push.events", limit=1_000_000)
    assert everything["rows"] == 6000
    assert len(sql(spark, "SELECT id FROM streamhouse.push.events WHERE n >= 5000 LIMIT 5")) == 5


@pytest.mark.spark41
def test_aggregates_of_metadata_need_no_scan(spark, events):
    query = "SELECT count(*), count(n), min(id), max(id), min(n), max(n), min(day) FROM streamhouse.push.events"
    plan = explain(spark, query)
    assert "LocalTableScan" in plan
    assert "BatchScan" not in plan
    assert sql(spark, query) == [(6000, 6000, 0, 5999, 0, 5000, DAYS[0])]
    assert "LocalTableScan" in explain(spark, "SELECT count(*) FROM streamhouse.push.`events$lake`")
    assert sql(spark, "SELECT count(*), max(n) FROM streamhouse.push.`events$lake`") == [(3000, 2000)]
    filtered = "SELECT count(*) FROM streamhouse.push.events WHERE n = 4000"
    assert "BatchScan" in explain(spark, filtered)
    assert sql(spark, filtered) == [(1000,)]
    assert "BatchScan" in explain(spark, "SELECT count(DISTINCT n) FROM streamhouse.push.events")


@pytest.mark.spark41
def test_hidden_columns_filter_and_group_rows(spark, events, wh):
    name = "streamhouse.push.events"
    assert spark.table(name).columns == ["id", "day", "n", "text", "wide"]
    found = sql(spark, f"SELECT _bucket, count(*), min(_log_offset), max(_log_offset) FROM {name} GROUP BY _bucket")
    state = events.refresh()
    assert sorted(found) == [(bucket, log.end, 0, log.end - 1) for bucket, log in sorted(state.buckets.items())]
    assert sql(spark, f"SELECT count(*) FROM {name} WHERE _log_offset = 0") == [(4,)]
    start = state.lake.offsets[1]
    hot = sql(
        spark, f"SELECT count(_commit_timestamp), count(*) FROM {name} WHERE _bucket = 1 AND _log_offset >= {start}"
    )
    assert hot == [(state.buckets[1].end - start,) * 2]
    assert sql(spark, f"SELECT count(*) FROM {name} WHERE _commit_timestamp > timestamp'2999-01-01'") == [(0,)]


# -- joins and groups --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucketed(spark, wh):
    """Two tables bucketed alike, with null keys, one of them with empty buckets; one with another count of buckets."""
    columns = "k BIGINT, v STRING"
    made = {}
    for name, buckets, keys in (
        ("left", 4, [None, None, *range(200)]),
        ("right", 4, [None, *range(100, 300, 2)]),
        ("few", 4, [5, 5, None]),
        ("other", 8, [None, *range(150, 250)]),
    ):
        table = wh.create_table(f"push.{name}", columns, buckets=buckets, properties={"bucket.key": "k"})
        half = len(keys) // 2
        table.append([{"k": k, "v": f"{name}{k}"} for k in keys[:half]])
        if name != "few":
            tier(spark, wh.url, [f"push.{name}"])
        table.append([{"k": k, "v": f"{name}{k}"} for k in keys[half:]])
        spark.createDataFrame([(k, f"{name}{k}") for k in keys], columns).createOrReplaceTempView(f"push_{name}")
        made[name] = table
    return made


NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
JOINS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]


def both(spark, template):
    """The rows of a query over the catalog's tables, which must be those over views of the same rows."""
    found = sorted(map(repr, sql(spark, template.format("streamhouse.push.", "streamhouse.push."))))
    assert found == sorted(map(repr, sql(spark, template.format("push_", "push_")))), template
    return found


@pytest.mark.spark41
@pytest.mark.parametrize("kind", JOINS)
def test_join_on_the_bucket_key_needs_no_exchange(spark, bucketed, kind):
    columns = "l.k, l.v" if "SEMI" in kind or "ANTI" in kind else "l.k, l.v, r.k, r.v"
    with configured(spark, NO_BROADCAST):
        for right in ("right", "few"):
            query = f"SELECT {columns} FROM {{}}left l {kind} {{}}{right} r ON l.k = r.k"
            assert "Exchange" not in explain(spark, query.format("streamhouse.push.", "streamhouse.push."))
            assert both(spark, query) or "SEMI" in kind


@pytest.mark.parametrize("kind", JOINS[:4])
@pytest.mark.parametrize("setting", ["partiallyClusteredDistribution", "shuffle", "allowCompatibleTransforms", None])
@pytest.mark.long
def test_join_with_other_buckets_gives_the_same_rows(spark, bucketed, kind, setting):
    settings = {**NO_BROADCAST}
    if setting is not None:
        settings[f"spark.sql.sources.v2.bucketing.{setting}.enabled"] = "true"
    with configured(spark, settings):
        for right in ("other", "right"):
            both(spark, f"SELECT l.k, l.v, r.k, r.v FROM {{}}left l {kind} {{}}{right} r ON l.k = r.k")
            both(spark, f"SELECT l.k, r.v FROM {{}}left l {kind} push_{right} r ON l.k = r.k AND '{{}}' <> ''")
            both(
                spark,
                f"SELECT l.k, r.v FROM {{}}left l {kind} {{}}{right} r ON l.k <=> r.k WHERE l.k < 170 OR r.k IS NULL",
            )


@pytest.mark.spark41
def test_group_by_the_bucket_key_needs_no_exchange(spark, bucketed):
    query = "SELECT k, count(*), max(v) FROM {}left /* {} */ GROUP BY k"
    assert "Exchange" not in explain(spark, query.format("streamhouse.push.", ""))
    both(spark, query)
    distinct = "SELECT count(DISTINCT k) FROM {}left /* {} */"
    assert both(spark, distinct) == ["(200,)"]


@pytest.mark.spark41
def test_small_side_is_broadcast_without_analyze(spark, bucketed, events):
    plan = explain(
        spark, "SELECT * FROM streamhouse.push.events e JOIN streamhouse.push.few f ON e.n = f.k WHERE e.wide > ''"
    )
    assert "BroadcastHashJoin" in plan or "BroadcastExchange" in plan
    with configured(spark, {"spark.sql.autoBroadcastJoinThreshold": "100000"}):
        query = "SELECT e.wide FROM streamhouse.push.events e JOIN streamhouse.push.events f ON e.n = f.n + 1"
        assert "BroadcastHashJoin" not in explain(spark, query.replace("e.wide", "e.wide, f.wide"))


@pytest.mark.classic
@pytest.mark.parametrize("table", ["events", "`events$lake`"])
def test_values_of_a_join_prune_at_run_time(spark, wh, events, table):
    if not wh.exists("push.days"):
        days = wh.create_table("push.days", "day STRING, id BIGINT, kind STRING")
        days.append([{"day": day, "id": 7, "kind": f"k{i}"} for i, day in enumerate(DAYS)])
    name = f"streamhouse.push.{table}"
    rows = 1000 if "lake" in table else 2000
    with configured(spark, {"spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly": "false"}):
        query = f"SELECT e.wide FROM {name} e JOIN streamhouse.push.days d ON e.day = d.day WHERE d.kind = 'k1'"
        assert len(sql(spark, query)) == rows
        assert "dynamicpruning" in explain(spark, query).lower()
        assert metrics(spark, query)["rows"] <= rows + 3
        nothing = query.replace("'k1'", "'none'")
        assert sql(spark, nothing) == []
        by_bucket = query.replace("e.day = d.day", "e.id = d.id")
        assert len(sql(spark, by_bucket)) == 1
        with configured(spark, NO_BROADCAST):
            assert len(sql(spark, query)) == rows
            assert len(sql(spark, by_bucket)) == 1
