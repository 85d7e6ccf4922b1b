"""Streams through the catalog: where they start, that each row comes once, and what they refuse."""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, forget_commit, ids, rows
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark
needs_limits = pytest.mark.skipif(
    not spark_versions.HAS_ADMISSION_CONTROL, reason="PySpark 4.1 has no admission control"
)


@pytest.fixture
def tables(wh, request):
    """A source of two buckets and a sink, of this test alone."""
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:50]
    properties = {"bucket.num": "2", "bucket.key": "id", "table.log.ttl": "1ms"}
    return wh.create_table(f"streams.{name}_from", COLUMNS, properties=properties), wh.create_table(
        f"streams.{name}_to", COLUMNS, properties={"bucket.num": "3", "bucket.key": "id"}
    )


def stream_of(spark, table, suffix="", **options):
    database, _, name = table.name.partition(".")
    return spark.readStream.options(**options).table(f"streamhouse.{database}.`{name}{suffix}`")


def drain(stream, table, checkpoint, mode="append", **options):
    writer = stream.writeStream.options(**options).option("checkpointLocation", checkpoint).outputMode(mode)
    query = writer.trigger(availableNow=True).toTable(f"streamhouse.{table.name}")
    query.awaitTermination()
    return query


# -- where a stream starts ---------------------------------------------------------------------------------------------


@pytest.mark.spark41
@pytest.mark.long
def test_a_stream_starts_where_its_option_says(spark, wh, tables, tmp_path):
    """Rows 0 to 9 are in the lake alone, 10 to 19 in the log."""
    source, _ = tables
    source.append(rows(10))
    tier(spark, wh.url, [source.name])
    source.maintain()
    source.append(rows(10, 10))
    ends = source.refresh().ends
    starts = {bucket: log.start for bucket, log in source.state.buckets.items()}
    committed = source.inspect.commits().to_pylist()[-1]["committed_at"]
    cases = {
        "full": ({}, range(20)),
        "earliest": ({"startingOffsets": "earliest"}, range(10, 20)),
        "latest": ({"startingOffsets": "latest"}, ()),
        "json": ({"startingOffsets": f'{{"0": {ends[0] - 1}, "1": -1}}'}, None),
        "time": ({"startingTimestamp": committed.isoformat()}, range(10, 20)),
    }
    assert all(start > 0 for start in starts.values())
    for case, (options, expected) in cases.items():
        target = wh.create_table(f"{source.name}_{case}", COLUMNS)
        drain(stream_of(spark, source, **options), target, str(tmp_path / case))
        if expected is None:
            assert len(ids(target)) == 1, case
        else:
            assert ids(target) == list(expected), case


@needs_limits
@pytest.mark.long
def test_rows_of_a_batch_are_limited(spark, tables, checkpoint):
    source, target = tables
    source.append(rows(100))
    query = drain(stream_of(spark, source, maxOffsetsPerTrigger="40"), target, checkpoint)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [40, 40, 20]
    assert ids(target) == list(range(100))


@pytest.mark.spark41
def test_columns_filters_and_hidden_columns(spark, wh, tables, tmp_path):
    """Spark finds the hidden columns of a stream by their places behind the others."""
    source, _ = tables
    source.append(rows(20))
    tier(spark, wh.url, [source.name])
    source.append(rows(20, 20))
    wide = "id BIGINT, bucket INT, log_offset BIGINT, at TIMESTAMP"
    target = wh.create_table(f"{source.name}_hidden", wide)
    stream = stream_of(spark, source)
    chosen = stream.where("id % 2 = 0 AND _bucket >= 0").selectExpr(
        "_log_offset AS log_offset", "id", "_commit_timestamp AS at", "_bucket AS bucket"
    )
    drain(chosen, target, str(tmp_path / "hidden"))
    database, _, name = source.name.partition(".")
    expected = spark.table(f"streamhouse.{database}.{name}").where("id % 2 = 0").select("id", "_bucket", "_log_offset")
    found = target.to_arrow().to_pylist()
    assert sorted((r["id"], r["bucket"], r["log_offset"]) for r in found) == sorted(
        tuple(r) for r in expected.collect()
    )
    assert all(row["at"] is not None for row in found if row["id"] >= 20)
    one = wh.create_table(f"{source.name}_one", "amount DOUBLE")
    drain(stream.where("name = 'n30'").select("amount"), one, str(tmp_path / "one"))
    assert one.to_arrow().to_pylist() == [{"amount": 15.0}]
    counted = wh.create_table(f"{source.name}_counted", "id BIGINT, name STRING")
    drain(stream.dropDuplicates(["id"]).select("id", "name"), counted, str(tmp_path / "counted"))
    assert ids(counted) == list(range(40))
    assert {row["name"] for row in counted.to_arrow().to_pylist()} == {f"n{i}" for i in range(40)}


@pytest.mark.spark41
def test_the_changelog_is_a_stream(spark, wh, tables, checkpoint):
    source, _ = tables
    source.append(rows(6))
    target = wh.create_table(f"{source.name}_changes", "id BIGINT, kind STRING, log_offset BIGINT, at TIMESTAMP")
    changes = stream_of(spark, source, "$changelog").selectExpr(
        "id", "_change_type AS kind", "_log_offset AS log_offset", "_commit_timestamp AS at"
    )
    drain(changes, target, checkpoint)
    found = target.to_arrow().to_pylist()
    assert sorted(row["id"] for row in found) == list(range(6))
    assert {row["kind"] for row in found} == {"insert"}
    assert all(row["at"] is not None for row in found)


# -- exactly once ------------------------------------------------------------------------------------------------------


@pytest.mark.spark41
@pytest.mark.long
def test_a_repeated_batch_adds_nothing(spark, tables, checkpoint):
    source, target = tables
    for start in (0, 50):
        source.append(rows(50, start))
        drain(stream_of(spark, source), target, checkpoint)
    version = target.refresh().version
    assert ids(target) == list(range(100))
    assert forget_commit(checkpoint) == 1
    drain(stream_of(spark, source), target, checkpoint)
    assert target.refresh().version == version
    source.append(rows(10, 100))
    drain(stream_of(spark, source), target, checkpoint)
    assert ids(target) == list(range(110))
    segments = target.inspect.segments().to_pylist()
    assert sorted(s["bucket"] for s in segments if s["commit"] == target.refresh().version) == [0, 1, 2]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("mode", "says"),
    [("complete", "output mode complete would append all results again"), ("update", "does not support Update mode")],
)
def test_output_modes_other_than_append_are_refused(spark, tables, checkpoint, mode, says):
    source, target = tables
    source.append(rows(10))
    counted = stream_of(spark, source).groupBy("name").count().selectExpr("count AS id", "name")
    with pytest.raises(PySparkException, match=says):
        drain(counted, target, checkpoint, mode)
    assert ids(target) == []


@pytest.mark.spark41
def test_unknown_options_name_ours(spark, tables, tmp_path):
    source, target = tables
    source.append(rows(1))
    reads = {
        "startingOffset": "did you mean startingOffsets",
        "startingVersion": "use startingOffsets",
        "endingOffsets": "is not supported in readStream",
        "readChangeFeed": r"read streams\.\w+\$changelog",
        "includeMetadata": "by name: _bucket, _log_offset and _commit_timestamp",
    }
    for option, says in reads.items():
        with pytest.raises(PySparkException, match=says) as refused:
            drain(stream_of(spark, source, **{option: "true"}), target, str(tmp_path / option))
        assert "Traceback" not in str(refused.value)
    with pytest.raises(PySparkException, match="is not supported in writeStream") as refused:
        drain(stream_of(spark, source), target, str(tmp_path / "txnVersion"), txnVersion="true")
    assert "Traceback" not in str(refused.value)
    with pytest.raises(PySparkException, match=r"does not support .*micro-batch"):
        drain(stream_of(spark, source, "$lake"), target, str(tmp_path / "lake"))
    assert ids(target) == []


@pytest.mark.spark41
def test_merge_schema_adds_the_columns_of_a_stream(spark, tables, tmp_path):
    source, target = tables
    source.append(rows(3))
    more = stream_of(spark, source).selectExpr("id", "name", "id * 2 AS twice")
    drain(more, target, str(tmp_path / "merging"), mergeSchema="true")
    assert target.refresh().schema.names[-1] == "twice"
    assert {(row["id"], row["twice"]) for row in target.to_arrow().to_pylist()} == {(0, 0), (1, 2), (2, 4)}


def test_rows_that_do_not_fit_are_refused(spark, tables, tmp_path):
    source, target = tables
    source.append(rows(3))
    stream = stream_of(spark, source)
    for frame, says in (
        (stream.selectExpr("id", "1 AS x"), "'x'"),
        (stream.select("name"), "'id' of .* is NOT NULL and missing"),
        (stream.selectExpr("name AS id"), "SCHEMA_MISMATCH.*id"),
    ):
        with pytest.raises(PySparkException, match=f"(?s){says}"):
            drain(frame, target, str(tmp_path / re.sub(r"\W", "", says)))
    assert ids(target) == []


@pytest.mark.parametrize("which", ["source", "sink"])
@pytest.mark.long
def test_a_table_created_again_ends_the_stream(spark, wh, tables, checkpoint, which):
    source, target = tables
    source.append(rows(10))
    drain(stream_of(spark, source), target, checkpoint)
    dropped = source if which == "source" else target
    wh.drop_table(dropped.name)
    again = wh.create_table(dropped.name, COLUMNS, properties={"bucket.num": "2", "bucket.key": "id"})
    (again if which == "source" else source).append(rows(10, 10))
    with pytest.raises(PySparkException, match=r"(?s)TABLE_NOT_FOUND: .*dropped.*checkpoint"):
        drain(stream_of(spark, wh.table(source.name)), wh.table(target.name), checkpoint)
    assert ids(wh.table(target.name)) == (list(range(10)) if which == "source" else [])


@pytest.mark.parametrize("which", ["source", "sink"])
def test_a_table_created_again_ends_a_running_stream(spark, wh, tables, checkpoint, which):
    source, target = tables
    source.append(rows(10))
    writer = stream_of(spark, source).writeStream.option("checkpointLocation", checkpoint)
    query = writer.toTable(f"streamhouse.{target.name}")
    try:
        query.processAllAvailable()
        dropped = source if which == "source" else target
        wh.drop_table(dropped.name)
        again = wh.create_table(dropped.name, COLUMNS, properties={"bucket.num": "2", "bucket.key": "id"})
        (again if which == "source" else source).append(rows(10, 10))
        with pytest.raises(PySparkException, match=r"(?s)TABLE_NOT_FOUND: .*(dropped|does not exist)"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert ids(wh.table(target.name)) == (list(range(10)) if which == "source" else [])
