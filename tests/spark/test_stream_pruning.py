"""Streams read the columns that their query needs, and leave out what its filters surely do not want."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark.session import drain, in_python, load_stream
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.spark
NAME = "pruned.events"
METRICS = ("segmentsRead", "segmentsSkipped", "storeRequests", "bytesFromPython")
COLUMNS = "id BIGINT NOT NULL, kind STRING, amount DOUBLE, item STRUCT<name: STRING, size: INT>, day DATE"


def events(count: int, start: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "kind": "abc"[i % 3], "amount": i / 2, "item": {"name": f"n{i % 7}", "size": i}, "day": None}
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def table(spark: Any, wh: Warehouse) -> Any:
    """Rows 0 to 59 are in the lake alone, in two files; 60 to 99 in the log, in four segments."""
    properties = {"table.log.ttl": "1ms", "table.statistics.columns": "*"}
    table = wh.create_table(NAME, COLUMNS, buckets=1, properties=properties)
    for start in (0, 30):
        table.append(events(30, start))
        tier(spark, wh.url, [NAME])
    table.maintain()
    for start in range(60, 100, 10):
        table.append(events(10, start))
        compact_inline_rows(table)
    return table


class Ran:
    """A query that ran to its end: its rows, its plans, and the rows that its scans gave."""

    def __init__(self, stream: Any, folder: Any, mode: str = "append") -> None:
        writer = stream.writeStream.format("memory").queryName("pruned").outputMode(mode)
        query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
        query.awaitTermination()
        self.rows = sorted(map(str, stream.sparkSession.table("pruned").collect()))
        self.num_read = sum(progress["numInputRows"] for progress in query.recentProgress)
        self.end = query.lastProgress["sources"][0]["endOffset"]
        self.metrics = query.lastProgress["sources"][0]["metrics"]
        execution = query._jsq.streamingQuery().lastExecution()
        self.plan = execution.executedPlan().toString()
        self.counts = scan_metrics(execution.executedPlan())

    @property
    def scans(self) -> list[str]:
        return [line.partition("MicroBatchScan")[2] for line in self.plan.splitlines() if "MicroBatchScan" in line]


def scan_metrics(plan: Any) -> dict[str, int]:
    """Sums of the metrics that Spark's pages show of the plan's scans."""
    leaves, found = plan.collectLeaves(), dict.fromkeys(METRICS, 0)
    for number in range(leaves.size()):
        for name in METRICS:
            metric = leaves.apply(number).metrics().get(name)
            found[name] += metric.get().value() if metric.isDefined() else 0
    return found


def streams(spark: Any, wh: Warehouse, name: str = NAME) -> dict[str, Any]:
    return {"catalog": spark.readStream.table(f"streamhouse.{name}"), "source": load_stream(spark, wh, name)}


@pytest.mark.spark41
@pytest.mark.classic
@pytest.mark.parametrize("way", ["catalog", "source"])
def test_a_batch_has_the_columns_and_the_rows_that_its_query_needs(spark, wh, table, way, tmp_path):
    stream = streams(spark, wh)[way]
    ran = Ran(stream.where("id >= 85").select("kind"), tmp_path / "filtered")
    assert ran.rows == sorted(f"Row(kind='{row['kind']}')" for row in events(15, 85))
    assert len(ran.scans) == 1
    assert "[id, kind], filters [id >= 85]" in ran.scans[0]
    assert ran.num_read == 15
    assert (ran.counts["segmentsRead"], ran.counts["segmentsSkipped"], ran.counts["storeRequests"]) == (2, 2, 0)
    assert ran.counts["bytesFromPython"] > 0
    counted = Ran(stream.groupBy().count(), tmp_path / "counted", "complete")
    assert counted.rows == ["Row(count=100)"]
    assert "[], filters []" in counted.scans[0]
    assert (ran.end, counted.num_read) == (counted.end, 100)
    assert counted.metrics["lagRows"] == "0"


def test_batch_reads_have_the_metrics_too(spark, wh, table):
    frame = spark.table(f"streamhouse.{NAME}").where("id >= 85").select("kind")
    plan = frame._jdf.queryExecution().executedPlan()
    assert frame.count() == 15
    assert len(frame.collect()) == 15
    assert scan_metrics(plan) == {**scan_metrics(plan), "segmentsRead": 2, "segmentsSkipped": 2, "storeRequests": 0}


def test_a_stream_that_is_used_twice_gives_each_place_its_rows(spark, wh, table, tmp_path):
    """Exchanges of equal scans are reused, so scans of other columns or rows must not be equal."""
    for number, stream in enumerate(streams(spark, wh).values()):
        low = stream.where("id < 40").selectExpr("kind as word").distinct()
        high = stream.where("id = 97").selectExpr("item.name as word").distinct()
        with_two = Ran(low.union(high), tmp_path / f"{number}")
        assert with_two.rows == [f"Row(word='{word}')" for word in ("a", "b", "c", "n6")]
        assert len(with_two.scans) == 2
        other = streams(spark, wh)["catalog"].where("id > 97").selectExpr("amount as id")
        apart = Ran(stream.where("amount < 1").select("id").union(other), tmp_path / f"{number}-apart")
        assert apart.rows == sorted(f"Row(id={float(i)})" for i in (0, 1, 49, 49.5))
        assert {scan.partition("[")[2].partition("]")[0].count("#") for scan in apart.scans} == {2}


CONDITIONS = [
    "id between 20 and 70",
    "kind = 'a' or id > 95",
    "item.size > 50 and amount is not null",
    "not (id < 90)",
    "day is null and id in (1, 61, 99, null)",
    "kind like 'b%' and amount + 1 > 20",
    "_log_offset > 93",
    "id > 200",
]
SELECTIONS = [
    "id",
    "kind, id",
    "item.name",
    "amount * 2",
    "count(*)",
    "max(item.size), min(kind)",
    "*",
    "_bucket, kind",
]


@pytest.mark.long
def test_random_queries_have_the_rows_of_the_unpruned_stream(spark, wh, table, tmp_path):
    rng = random.Random(8)
    for number in range(12):
        condition, selection = rng.choice(CONDITIONS), rng.choice(SELECTIONS)
        mode = "complete" if "(" in selection else "append"
        stream = spark.readStream.table(f"streamhouse.{NAME}")
        found = Ran(stream.where(condition).selectExpr(*selection.split(", ")), tmp_path / f"{number}", mode)
        with in_python(spark):
            stream = spark.readStream.table(f"streamhouse.{NAME}")
            whole = Ran(stream.where(condition).selectExpr(*selection.split(", ")), tmp_path / f"{number}-whole", mode)
        assert (found.rows, found.end) == (whole.rows, whole.end), (condition, selection)
        assert found.num_read <= whole.num_read == 100, (condition, selection)


def test_a_query_goes_on_with_other_columns_from_the_same_checkpoint(spark, wh, table, tmp_path):
    """A checkpoint says where a stream is, and nothing of what its query needs."""
    target = wh.create_table("pruned.copied", "id BIGINT, amount DOUBLE")
    stream = load_stream(spark, wh, NAME, startingOffsets="earliest")
    drain(stream.where("id < 70").select("id"), wh, target.name, str(tmp_path))
    table.append(events(5, 100))
    drain(stream.where("id > 0").select("amount"), wh, target.name, str(tmp_path))
    found = target.to_arrow().to_pylist()
    assert [row["id"] for row in found if row["id"] is not None] == list(range(60, 70))
    assert [row["amount"] for row in found if row["id"] is None] == [i / 2 for i in range(100, 105)]
