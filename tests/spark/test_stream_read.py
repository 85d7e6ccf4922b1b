"""Streaming reads: every row once, from any start, at any rate, over restarts, trims and drops."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, forget_commit, ids, load, load_stream, rows, sink
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.spark import tier
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.spark
needs_limits = pytest.mark.skipif(
    not spark_versions.HAS_ADMISSION_CONTROL, reason="PySpark 4.1 has no admission control"
)


@pytest.fixture
def tables(wh, request):
    name = request.node.name.removeprefix("test_").split("[")[0]
    properties = {"bucket.key": "id", "table.log.ttl": "1ms"}
    source = wh.create_table(f"tail.{name}_from", COLUMNS, buckets=3, properties=properties)
    return source, wh.create_table(f"tail.{name}_to", COLUMNS)


def copy(spark, wh, tables, checkpoint, **options):
    return drain(load_stream(spark, wh, tables[0].name, **options), wh, tables[1].name, checkpoint)


def trim(spark, wh, table):
    tier(spark, wh.url, [table.name])
    table.maintain()


@pytest.mark.always
@pytest.mark.spark41
def test_restart_goes_on_where_it_ended(spark, wh, tables, checkpoint):
    source, target = tables
    for start in (0, 100, 200):
        source.append(rows(100, start))
        copy(spark, wh, tables, checkpoint, startingOffsets="latest" if start else "full")
        assert ids(target) == list(range(start + 100))
    version = target.refresh().version
    copy(spark, wh, tables, checkpoint)
    assert target.refresh().version == version


def test_full_reads_what_was_trimmed_from_the_lake(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(300))
    trim(spark, wh, source)
    source.append(rows(300, 300))
    assert all(log.start > 0 for log in source.refresh().buckets.values())
    copy(spark, wh, tables, checkpoint)
    assert ids(target) == list(range(600))


@pytest.mark.long
def test_stream_that_was_down_while_the_log_was_trimmed(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(100))
    copy(spark, wh, tables, checkpoint)
    source.append(rows(100, 100))
    trim(spark, wh, source)
    source.append(rows(100, 200))
    copy(spark, wh, tables, checkpoint)
    assert ids(target) == list(range(300))


def test_repeated_batch_reads_the_same_rows_after_merging_and_trimming(spark, wh, tables, checkpoint, tmp_path):
    source, _ = tables
    for i in range(5):
        source.append(rows(50, 50 * i))
    path = str(tmp_path / "out")
    stream = load_stream(spark, wh, source.name)

    def collect(frame, batch_id):
        frame.write.mode("overwrite").parquet(f"{path}/{batch_id}")

    def run():
        writer = stream.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(row.id for row in spark.read.parquet(f"{path}/0").collect())

    first = run()
    forget_commit(checkpoint)
    source.append(rows(50, 1000))
    trim(spark, wh, source)
    assert all(log.start > 0 for log in source.refresh().buckets.values())
    assert run() == first == list(range(250))


@needs_limits
def test_rate_limit_in_rows_is_fair_over_buckets(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(300))
    query = copy(spark, wh, tables, checkpoint, maxOffsetsPerTrigger="90")
    batches = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in batches] == [90, 90, 90, 30]
    ends = json.loads(batches[0]["sources"][0]["endOffset"])["offsets"]
    assert set(ends.values()) == {30}
    assert ids(target) == list(range(300))


@needs_limits
@pytest.mark.long
def test_rate_limit_in_bytes(spark, wh, tables, checkpoint):
    source, target = tables
    for i in range(4):
        source.append(rows(3000, 3000 * i))
    stored = sum(s["size_bytes"] for s in source.inspect.segments().to_pylist())
    query = copy(spark, wh, tables, checkpoint, maxBytesPerTrigger=str(stored // 3))
    counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert 3 <= len(counts) <= 5
    assert max(counts) <= 4200
    assert ids(target) == list(range(12_000))


@needs_limits
@pytest.mark.long
def test_available_now_ends_although_rows_keep_coming(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(60))
    query = sink(load_stream(spark, wh, source.name, maxOffsetsPerTrigger="20"), wh, target.name, checkpoint)
    added = 60
    while query.isActive:
        source.append(rows(5, added))
        added += 5
        time.sleep(0.2)
    assert query.exception() is None
    source.append(rows(5, added))
    added += 5
    copy(spark, wh, tables, checkpoint, maxOffsetsPerTrigger="100000")
    assert ids(target) == list(range(added))


@needs_limits
def test_progress_reports_the_lag(spark, wh, tables, checkpoint):
    source, _ = tables
    source.append(rows(60))
    query = copy(spark, wh, tables, checkpoint, maxOffsetsPerTrigger="20")
    progress = next(p for p in query.recentProgress if p["numInputRows"])
    reported = json.loads(progress["sources"][0]["latestOffset"])
    assert sum(reported["offsets"].values()) == 60
    assert reported["table"] == source.uuid


def test_first_batch_begins_where_the_query_began(spark, wh, tables, checkpoint):
    """A first batch that did not finish is repeated from its own beginning, whatever `earliest` means by then."""
    source, target = tables
    source.append(rows(50))
    copy(spark, wh, tables, checkpoint, startingOffsets="earliest")
    assert forget_commit(checkpoint) == 0
    target.forget_transactions(*target.refresh().transactions)
    trim(spark, wh, source)
    source.append(rows(50, 50))
    copy(spark, wh, tables, checkpoint, startingOffsets="earliest")
    assert ids(target) == sorted([*range(50), *range(100)])


@pytest.mark.spark41
def test_streams_start_at_offsets_times_and_snapshots(spark, wh, tables, tmp_path):
    source, _ = tables
    source.append(rows(90))
    trim(spark, wh, source)
    source.append(rows(90, 90))
    state = source.refresh()
    moment = dt.datetime.fromtimestamp(state.time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    half = {str(b): log.end - 1 for b, log in state.buckets.items()}

    def count(name, **options):
        target = wh.create_table(f"tail.start_{name}", COLUMNS)
        drain(load_stream(spark, wh, source.name, **options), wh, target.name, str(tmp_path / name))
        return len(ids(target))

    assert count("earliest", startingOffsets="earliest") == 90
    assert count("json", startingOffsets=json.dumps(half)) == 3
    assert count("time", startingTimestamp=moment) == 90
    assert count("latest", startingOffsets="latest") == 0
    assert count("full") == 180


@pytest.mark.spark41
def test_table_made_anew_ends_the_stream(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(10))
    copy(spark, wh, tables, checkpoint)
    wh.drop_table(source.name)
    wh.create_table(source.name, COLUMNS).append(rows(20, 500))
    with pytest.raises(PySparkException, match=r"TABLE_NOT_FOUND: .*was dropped; the name now belongs to"):
        copy(spark, wh, tables, checkpoint)
    assert ids(target) == list(range(10))


def test_lost_rows_fail_the_stream_or_are_skipped(spark, wh, checkpoint, tmp_path):
    """Rows without a lake expire while a stream is down."""
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "1ms"}
    tables = (wh.create_table("tail.lossy", COLUMNS, properties=properties), wh.create_table("tail.lossy_to", COLUMNS))
    source, target = tables
    source.append(rows(50))
    copy(spark, wh, tables, checkpoint)
    source.append(rows(50, 50))
    compact_inline_rows(source)
    while source.storage.now_ms() <= source.state.time_ms + 1:
        pass
    assert source.maintain().trimmed_to == {0: 100}
    source.append(rows(50, 100))
    with pytest.raises(PySparkException, match=r"OFFSETS_TRIMMED: .*\[50, 100\).*failOnDataLoss=false"):
        copy(spark, wh, tables, checkpoint)
    copy(spark, wh, tables, checkpoint, failOnDataLoss="false")
    assert ids(target) == [*range(50), *range(100, 150)]
    new = wh.create_table("tail.lossy_new", COLUMNS)
    copy(spark, wh, (source, new), str(tmp_path / "new"))  # a new stream misses nothing
    assert ids(new) == list(range(100, 150))
    assert load(spark, wh, "tail.lossy$changelog").count() == load(spark, wh, "tail.lossy").count() == 50


@pytest.mark.long
def test_rows_that_another_engine_deleted_are_skipped(spark, wh, tmp_path):
    """Only what the lake no longer holds is left out; the rest of the range is read."""
    source = wh.create_table("tail.deleted", COLUMNS, properties={"table.log.ttl": "1ms"})
    target = wh.create_table("tail.deleted_to", COLUMNS)
    tables = (source, target)
    source.append(rows(200))
    tier(spark, wh.url, [source.name])
    source.append(rows(200, 200))
    trim(spark, wh, source)
    FileCatalog(wh.storage).load_table(tuple(source.name.split("."))).delete("id < 20")
    with pytest.raises(PySparkException, match="OFFSETS_TRIMMED: "):
        copy(spark, wh, tables, str(tmp_path / "strict"))
    assert ids(target) == []
    copy(spark, wh, tables, str(tmp_path / "lenient"), failOnDataLoss="false")
    found = ids(target)
    assert found == sorted(set(found))
    assert set(range(200, 400)) <= set(found) <= set(range(20, 400))


def test_the_changelog_is_read_as_a_stream(spark, wh, tables, checkpoint, tmp_path):
    source, _ = tables
    source.append(rows(30))
    target = wh.create_table("tail.changes", "kind STRING, bucket INT, at BIGINT, id BIGINT")
    changes = load_stream(spark, wh, f"{source.name}$changelog", includeMetadata="true")
    assert changes.columns[:4] == ["_change_type", "_bucket", "_log_offset", "_commit_timestamp"]
    picked = changes.selectExpr("_change_type kind", "_bucket bucket", "_log_offset at", "id")
    drain(picked, wh, target.name, checkpoint)
    found = target.to_arrow().to_pylist()
    assert {r["kind"] for r in found} == {"insert"}
    assert sorted((r["bucket"], r["at"]) for r in found) == [
        (b, o) for b, log in source.refresh().buckets.items() for o in range(log.end)
    ]
    pruned = load_stream(spark, wh, source.name, "id long").selectExpr("id", "'x' name")
    other = wh.create_table("tail.pruned", COLUMNS)
    drain(pruned, wh, other.name, str(tmp_path / "pruned"))
    assert ids(other) == list(range(30))


@needs_limits
def test_named_consumer_holds_trimming_back(spark, wh, tables, checkpoint):
    source, _ = tables
    source.append(rows(30))
    copy(spark, wh, tables, checkpoint, consumerId="reader", startingOffsets="earliest")
    assert source.refresh().consumers["reader"].offsets == dict.fromkeys(range(3), 0)
    trim(spark, wh, source)
    assert [log.start for log in source.refresh().buckets.values()] == [0, 0, 0]


@pytest.mark.parametrize("suffix", ["lake", "buckets"])
def test_other_names_cannot_be_streamed(spark, wh, checkpoint, suffix):
    source = wh.create_table("tail.suffixed", COLUMNS, if_not_exists=True)
    with pytest.raises(PySparkException, match=r"INVALID_NAME: .*cannot be streamed"):
        drain(load_stream(spark, wh, f"{source.name}${suffix}"), wh, source.name, checkpoint)


@pytest.mark.spark41
@pytest.mark.skipif(spark_versions.HAS_ADMISSION_CONTROL, reason="only PySpark 4.1 lacks admission control")
def test_limits_are_refused_where_they_cannot_be_kept(spark, wh, tables, checkpoint):
    with pytest.raises(PySparkException, match=r"INVALID_OPTION: .*requires PySpark 4.2"):
        copy(spark, wh, tables, checkpoint, maxOffsetsPerTrigger="10")


@pytest.mark.spark41
@pytest.mark.long
def test_new_partitions_are_simply_rows(spark, wh, checkpoint):
    source = wh.create_table("tail.by_day", "id BIGINT, day STRING", partition_by=["day"])
    target = wh.create_table("tail.by_day_to", "id BIGINT, day STRING", partition_by=["day"])
    for day in range(3):
        source.append([{"id": i, "day": f"d{day}"} for i in range(4)])
        drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    assert target.to_arrow().group_by("day").aggregate([("id", "count")]).sort_by("day").to_pylist() == [
        {"day": f"d{day}", "id_count": 4} for day in range(3)
    ]


def test_damaged_checkpoint_is_named(spark, wh, tables, checkpoint):
    tables[0].append(rows(5))
    copy(spark, wh, tables, checkpoint)
    offsets = Path(checkpoint) / "offsets" / "0"
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:2], '{"version":9}']))
    (Path(checkpoint) / "offsets" / ".0.crc").unlink(missing_ok=True)
    tables[0].append(rows(5, 5))
    with pytest.raises(PySparkException, match=r"FORMAT_VERSION: .*version 9, expected 1"):
        copy(spark, wh, tables, checkpoint)
