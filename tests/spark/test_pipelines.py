"""Declarative pipelines whose target is the catalog: run, run with more rows, refreshed fully."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from pyspark import pipelines

from doc_pages import PAGES, ROOT, blocks
from spark.pipeline_runs import running
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource import spark_versions

# They start a Spark Connect server of their own, so one more before it would test nothing.
pytestmark = [pytest.mark.spark, pytest.mark.spark41, pytest.mark.long, pytest.mark.classic]

EXAMPLE = ROOT / "examples/pipeline"
TABLES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
dp.create_streaming_table("both")
dp.create_sink("out", "streamhouse", {"path": "d.sunk", "warehouse": "WAREHOUSE"})
COLUMNS = [["kind", "id"], ["kind", "id", "amount"], ["kind", "amount"]][STEP]


@dp.append_flow(target="both")
def old():
    return spark.readStream.table("streamhouse.d.orders")


@dp.append_flow(target="both")
def new():
    return spark.readStream.table("streamhouse.d.orders2")


@dp.temporary_view
def large():
    return spark.readStream.table("both").where("amount > 12")


@dp.table
def large_orders():
    return spark.readStream.table("large")


@dp.table(partition_cols=["kind"], table_properties={"bucket.num": "4", "bucket.key": "ID"})
def by_kind():
    return spark.readStream.table("streamhouse.d.orders")


@dp.table(table_properties={"partition.fields": "truncate(1,kind),truncate(2, id)"})
def hidden():
    return spark.readStream.table("streamhouse.d.orders")


@dp.materialized_view(partition_cols=["kind"])
def counts():
    return spark.read.table("by_kind").groupBy("kind").count()


@dp.materialized_view(format="streamhouse")
def totals():
    return spark.read.table("streamhouse.d.orders").groupBy("kind").agg(f.sum("amount").alias("amount"))


@dp.materialized_view(table_properties={"primary.key": "kind", "bucket.num": "2"})
def by_key():
    return spark.read.table("streamhouse.d.orders").groupBy("kind").agg(f.sum("amount").alias("amount"))


@dp.materialized_view
def none():
    return spark.read.table("streamhouse.d.orders").where(f"id >= {4 * STEP} AND {STEP} < 2")


@dp.materialized_view
def changing_view():
    return spark.read.table("streamhouse.d.orders").select(*COLUMNS)


@dp.table
def changing():
    return spark.readStream.table("streamhouse.d.orders").select(*COLUMNS)


@dp.append_flow(target="out")
def fill():
    return spark.readStream.table("streamhouse.d.orders").select("id", "amount")


@dp.table(
    comment="all options",
    table_properties={"table.log.ttl": "30d", "pipelines.reset.allowed": "false"},
    schema="id BIGINT, kind STRING, amount DOUBLE",
    format="streamhouse",
)
def options():
    return spark.readStream.table("streamhouse.d.orders")
"""
SQL = """
CREATE STREAMING TABLE sql_clean COMMENT 'orders of ten and more'
AS SELECT * FROM STREAM streamhouse.d.orders WHERE amount >= 10;

CREATE MATERIALIZED VIEW sql_totals
AS SELECT kind, sum(amount) AS amount FROM sql_clean GROUP BY kind;
"""
CDC = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, expr

METADATA = "__spark_autocdc_metadata STRUCT<deleteSequence: BIGINT, upsertSequence: BIGINT> NOT NULL"
HOW = {"keys": ["id"], "sequence_by": col("seq"), "apply_as_deletes": expr("op = 'D'")}
ONE = {**HOW, "except_column_list": ["op", "seq"], "stored_as_scd_type": 1}

dp.create_streaming_table("plain")
dp.create_auto_cdc_flow(target="plain", source="streamhouse.d.cdc", **ONE)

dp.create_streaming_table("keyed", table_properties={"primary.key": "id", "bucket.num": "2"})
dp.create_auto_cdc_flow(target="keyed", source="streamhouse.d.cdc", **ONE)

dp.create_streaming_table(
    "declared", schema=f"id BIGINT NOT NULL, name STRING, {METADATA}", table_properties={"primary.key": "id"}
)
dp.create_auto_cdc_flow(target="declared", source="streamhouse.d.cdc2", **ONE)
"""
HISTORY = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, expr

HOW = {"keys": ["id"], "sequence_by": col("seq"), "apply_as_deletes": expr("op = 'D'")}
TWO = {**HOW, "except_column_list": ["op", "seq"], "stored_as_scd_type": 2}

dp.create_streaming_table("history", table_properties={"bucket.num": "2", "bucket.key": "id"})
dp.create_auto_cdc_flow(target="history", source="streamhouse.d.cdc", **TWO)
"""
CHANGES = (
    [(1, "ann", "I", 1), (2, "bob", "I", 2), (3, "cy", "I", 3)],
    [(1, "anna", "U", 5), (1, "stale", "U", 4), (2, None, "D", 6), (4, "di", "I", 7)],
    [(2, "late", "U", 5), (3, None, "D", 9)],
)
NEWEST = (
    {(1, "ann"), (2, "bob"), (3, "cy")},
    {(1, "anna"), (3, "cy"), (4, "di")},
    {(1, "anna"), (4, "di")},
)
HISTORIES = (
    {(1, "ann", 1, None), (2, "bob", 2, None), (3, "cy", 3, None)},
    {
        (1, "ann", 1, 4),
        (1, "stale", 4, 5),
        (1, "anna", 5, None),
        (2, "bob", 2, 6),
        (3, "cy", 3, None),
        (4, "di", 7, None),
    },
    {
        (1, "ann", 1, 4),
        (1, "stale", 4, 5),
        (1, "anna", 5, None),
        (2, "bob", 2, 5),
        (2, "late", 5, 6),
        (3, "cy", 3, 9),
        (4, "di", 7, None),
    },
)


def _order(i):
    return (i, "ab"[i % 2], 8.0 + i)


def _more_orders(warehouse, step):
    rows = [dict(zip(("id", "kind", "amount"), _order(4 * step + i), strict=True)) for i in range(4)]
    warehouse.table("d.orders").append(rows)
    warehouse.table("d.orders2").append([{"id": 100 + step, "kind": "c", "amount": 1.0}])


def _more_changes(warehouse, step):
    changes = [dict(zip(("id", "name", "op", "seq"), change, strict=True)) for change in CHANGES[step]]
    for name in ("d.cdc", "d.cdc2"):
        warehouse.table(name).append(changes)


def _rows(warehouse, name, *columns):
    found = warehouse.table(f"d.{name}").to_arrow().to_pylist()
    return sorted((tuple(row[column] for column in columns or row) for row in found), key=repr)


def _expected(step):
    orders = [_order(i) for i in range(4 * (step + 1))]
    both = orders + [(100 + i, "c", 1.0) for i in range(step + 1)]
    clean = [order for order in orders if order[2] >= 10]
    sums = {kind: sum(order[2] for order in orders if order[1] == kind) for kind in "ab"}
    clean_sums = {kind: sum(order[2] for order in clean if order[1] == kind) for kind in "ab"}
    places = ([1, 0], [1, 0, 2], [1, 2])[step]
    changed = [tuple(order[place] for place in places) for order in orders]
    return {
        "both": both,
        "large_orders": [order for order in both if order[2] > 12],
        "by_kind": orders,
        "hidden": orders,
        "counts": [(kind, len(orders) // 2) for kind in "ab"],
        "totals": list(sums.items()),
        "by_key": list(sums.items()),
        "none": orders[4 * step :] if step < 2 else [],
        "changing_view": changed,
        "options": orders,
        "sql_clean": clean,
        "sql_totals": list(clean_sums.items()),
    }


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    with running(tmp_path_factory.mktemp("pipelines")) as it:
        yield it


@pytest.fixture(scope="module")
def warehouse(runner):
    warehouse = Warehouse(runner.warehouse)
    for name in ("orders", "orders2"):
        warehouse.create_table(f"d.{name}", "id BIGINT, kind STRING, amount DOUBLE")
    for name, null in (("cdc", ""), ("cdc2", " NOT NULL")):
        warehouse.create_table(f"d.{name}", f"id BIGINT{null}, name STRING, op STRING, seq BIGINT")
    warehouse.create_table("d.sunk", "id BIGINT, amount DOUBLE")
    return warehouse


def _steps(runner, warehouse, files, add):
    """Run the pipeline, run it with more rows, refresh it fully; each time one looks at the tables."""
    for step, words in enumerate((["run"], ["run"], ["run", "--full-refresh-all"])):
        add(warehouse, step)
        texts = {
            file: text.replace("WAREHOUSE", warehouse.url).replace("STEP", str(step)) for file, text in files.items()
        }
        done = runner.run(texts, *words, name=next(iter(files)))
        assert done.code == 0, done.said
        yield step


def test_every_kind_of_dataset_is_updated_by_a_pipeline(runner, warehouse):
    for step in _steps(runner, warehouse, {"tables.py": TABLES, "all.sql": SQL}, _more_orders):
        for name, rows in _expected(step).items():
            assert _rows(warehouse, name) == sorted(rows, key=repr), (step, name)
        for name in ("totals", "none", "by_key", "counts"):
            assert warehouse.table(f"d.{name}").state.version == 2 + step, "the table's record, and one for each run"
    assert warehouse.table("d.sql_clean").state.properties["comment"] == "orders of ten and more"
    assert warehouse.table("d.options").state.properties["pipelines.reset.allowed"] == "false"
    assert warehouse.table("d.by_kind").state.num_buckets == 4
    assert warehouse.table("d.by_kind").state.partition_by == ("kind",)
    assert len(warehouse.table("d.hidden").state.parsed.partition_fields) == 2
    assert warehouse.table("d.by_key").state.primary_key == ("kind",)
    assert len(_rows(warehouse, "sunk")) == 8 + 12, "a full refresh writes a sink's rows again, as Spark means it"


@pytest.mark.skipif(not hasattr(pipelines, "create_auto_cdc_flow"), reason="AUTO CDC came with Spark 4.2")
def test_auto_cdc_flows_leave_the_newest_rows(runner, warehouse):
    files = {"cdc.py": CDC, **({"history.py": HISTORY} if spark_versions.spark_version() >= (4, 3) else {})}
    for step in _steps(runner, warehouse, files, _more_changes):
        for name in ("plain", "keyed", "declared"):
            assert set(_rows(warehouse, name, "id", "name")) == NEWEST[step], (step, name)
        if "history.py" in files:
            found = _rows(warehouse, "history", "id", "name", "__START_AT", "__END_AT")
            assert found == sorted(HISTORIES[step], key=repr), step


def test_a_dry_run_writes_nothing(runner, warehouse):
    before = set(warehouse.tables("d"))
    assert runner.run({"tables.sql": SQL.replace("sql_", "dry_")}, "dry-run", name="dry").code == 0
    assert set(warehouse.tables("d")) == before


def test_a_run_that_fails_leaves_a_views_rows(runner, warehouse):
    view = "CREATE MATERIALIZED VIEW kept AS SELECT id, {} AS amount FROM streamhouse.d.kept_source"
    warehouse.create_table("d.kept_source", "id BIGINT").append([{"id": 1}])
    assert runner.run({"kept.sql": view.format("1")}, "run", name="kept").code == 0
    table = warehouse.table("d.kept")
    before = table.refresh().version
    done = runner.run({"kept.sql": view.format("CAST(raise_error(CAST(id AS STRING)) AS INT)")}, "run", name="kept")
    assert done.code != 0
    assert table.refresh().version == before
    assert _rows(warehouse, "kept") == [(1, 1)]


@pytest.mark.skipif(not hasattr(pipelines, "create_auto_cdc_flow"), reason="the example has AUTO CDC, of Spark 4.2")
def test_the_example_pipeline_runs_as_documented(runner):
    folder = runner.folder / "example"
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/streamhouse-pipeline", str(folder)))
    printed = []
    for _ in range(2):
        _call(folder, "append")
        done = runner.run_spec(spec, "run")
        assert done.code == 0, done.said
        printed.append(_call(folder, "show").splitlines()[1:])
    assert printed[0] == ["silver: [(1, 'ann', 10.0), (2, 'bob', 20.0)]", "gold: [('ann', 1, 10.0), ('bob', 1, 20.0)]"]
    assert printed[1] == ["silver: [(1, 'ann', 12.5)]", "gold: [('ann', 1, 12.5)]"]


def _call(folder, command):
    script = [sys.executable, str(folder / "events.py"), command, str(folder / "warehouse")]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout


def test_the_guide_shows_the_example():
    (shown,) = blocks(PAGES["docs/guides/pipelines.md"], "yaml")
    assert shown == (EXAMPLE / "spark-pipeline.yml").read_text()
