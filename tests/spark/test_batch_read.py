"""Batch reads of every name, from both tiers."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import streamhouse_spark as sh
from spark.session import COLUMNS, append, in_python, load, rows
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=["catalog", "Python"])
def way(spark, request):
    """The planner and the readers of the reads: the catalog's, or Python's, as in a session without the jar."""
    if request.param == "catalog":
        yield request.param
        return
    with in_python(spark):
        yield request.param


@pytest.fixture(scope="module")
def wh(way, tmp_path_factory):
    """A warehouse for each way, so that tables of one name are made twice."""
    return Warehouse(str(tmp_path_factory.mktemp(way) / "warehouse"))


@pytest.fixture(scope="module")
def orders(spark, wh):
    """Rows 0 to 599 in the lake and the log, 600 to 999 in the log only."""
    table = wh.create_table("read.orders", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    table.append(rows(600))
    tier(spark, wh.url, ["read.orders"])
    table.append(rows(400, 600))
    return table


@pytest.fixture(scope="module")
def trimmed(spark, wh):
    """Rows 0 to 499 in the lake only, 500 to 799 in the log only; one bucket, so a row's id is its offset."""
    table = wh.create_table("read.trimmed", COLUMNS, properties={"table.log.ttl": "1ms"})
    table.append(rows(500))
    tier(spark, wh.url, ["read.trimmed"])
    table.maintain()
    table.append(rows(300, 500))
    assert table.refresh().buckets[0].start == 500
    return table


@pytest.mark.always
@pytest.mark.spark41
def test_union_is_lake_and_log(spark, wh, orders):
    found = load(spark, wh, "read.orders").toArrow()
    assert sorted(found["id"].to_pylist()) == list(range(1000))
    assert found.schema.names == ["id", "name", "amount"]
    assert load(spark, wh, "read.orders$lake").count() == 600
    assert load(spark, wh, "READ.Orders").where("id >= 590 and id < 610").count() == 20


def test_a_read_has_all_rows_after_trimming(spark, wh, trimmed):
    assert load(spark, wh, "read.trimmed").selectExpr("count(*)", "sum(id)").first() == (800, 799 * 400)


@pytest.mark.spark41
def test_a_given_schema_selects_columns(spark, wh, orders):
    found = load(spark, wh, "read.orders", "AMOUNT double, id long").where("id = 7 or id = 800")
    assert sorted(found.collect()) == [(3.5, 7), (400.0, 800)]
    assert found.schema.names == ["AMOUNT", "id"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("idd long", "column 'idd' of the schema"),
        ("id int", "as int"),
        ("name string not null", "NOT NULL"),
    ],
)
def test_a_given_schema_that_does_not_fit_is_refused(spark, wh, orders, schema, text):
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH: ") as failure:
        load(spark, wh, "read.orders", schema).count()
    line = next(line for line in str(failure.value).splitlines() if "SCHEMA_MISMATCH: " in line)
    assert text.split()[0] in line or text in line


def test_frame_is_one_state_however_often_it_is_used(spark, wh):
    table = wh.create_table("read.growing", COLUMNS)
    table.append(rows(10))
    frame = load(spark, wh, "read.growing")
    both = frame.where("id = 1").union(frame.where("id = 2"))
    assert sorted(row.id for row in both.collect()) == [1, 2]
    assert frame.count() == 10
    table.append(rows(5, 10))
    assert frame.count() == 10  # the state of its first use
    assert load(spark, wh, "read.growing").count() == 15


@pytest.mark.spark41
def test_system_tables_are_read_in_batches(spark, wh, orders):
    buckets = load(spark, wh, "read.orders$buckets").collect()
    assert sum(row.log_end_offset for row in buckets) == 1000
    assert sum(row.lag for row in buckets) == 400
    assert load(spark, wh, "read.orders$segments").count() == orders.inspect.segments().num_rows
    assert load(spark, wh, "read.orders$commits").where("rows_added > 0").count() == 2
    assert {row.operation for row in load(spark, wh, "read.orders$history").collect()} >= {"create", "append", "tier"}
    assert dict(load(spark, wh, "read.orders$options").collect())["bucket.key"] == "id"
    assert load(spark, wh, "read.orders$tiering").count() == 2
    assert load(spark, wh, "read.orders$schemas", "schema_id int").collect() == [(1,)]


@pytest.mark.parametrize("name", ["snapshots", "files", "manifests", "history", "refs", "partitions", "entries"])
def test_metadata_tables_of_the_lake_are_read(spark, wh, orders, name):
    found = load(spark, wh, f"read.orders$lake${name}")
    assert found.count() == orders.lake.metadata(name).num_rows > 0
    found.collect()


def test_lake_is_empty_before_the_first_round(spark, wh):
    wh.create_table("read.untiered", COLUMNS).append(rows(3))
    found = load(spark, wh, "read.untiered$lake")
    assert found.columns == ["id", "name", "amount"]
    assert found.count() == 0


@pytest.mark.always
def test_the_changelog_is_read_in_batches(spark, wh, orders, trimmed):
    found = load(spark, wh, "read.orders$changelog").toArrow()
    assert found.schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "id", "name", "amount"]
    assert set(found["_change_type"].to_pylist()) == {"insert"}
    assert sorted(found["id"].to_pylist()) == list(range(1000))
    change = load(spark, wh, "read.trimmed", readChangeFeed="true")
    assert change.where("id = _log_offset").count() == 800  # below the log's start from the lake, with the same offsets
    assert load(spark, wh, "read.trimmed$changelog", startingOffsets="earliest").count() == 300


def test_a_read_includes_metadata_columns_if_asked(spark, wh, trimmed):
    found = load(spark, wh, "read.trimmed", includeMetadata="true")
    assert found.columns == ["_bucket", "_log_offset", "_commit_timestamp", "id", "name", "amount"]
    counted = found.selectExpr("count_if(_log_offset = id)", "count(_commit_timestamp)", "max(_bucket)").first()
    assert counted == (800, 300, 0)  # the lake stores no commit times
    pruned = load(spark, wh, "read.trimmed", "_log_offset long", includeMetadata="true")
    assert pruned.selectExpr("sum(_log_offset)").first()[0] == 799 * 400


def test_a_read_of_offsets_has_exactly_their_rows(spark, wh, trimmed):
    def read(**options):
        return sorted(row.id for row in load(spark, wh, "read.trimmed", **options).collect())

    assert read(startingOffsets='{"0": 495}', endingOffsets='{"0": 505}') == list(range(495, 505))
    assert read(startingOffsets="earliest") == list(range(500, 800))
    assert read(startingOffsets='{"0": -2}', endingOffsets='{"0": -1}') == list(range(500, 800))
    assert read(endingOffsets='{"0": 3}') == [0, 1, 2]
    assert read(startingOffsets='{"0": 800}') == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": '{"3": 1}'}, "unknown bucket 3, expected 0 to"),
        ({"startingOffsets": '{"0": 900}'}, "ends at 800, found 900"),
        ({"startingOffsets": '{"0": 9}', "endingOffsets": '{"0": 4}'}, "from offset 9 to 4"),
    ],
)
def test_offsets_that_never_were(spark, wh, trimmed, options, text):
    with pytest.raises(PySparkException, match=rf"INVALID_OPTION: .*{text}"):
        load(spark, wh, "read.trimmed", **options).count()


def test_time_range_is_half_open(spark, wh):
    table = wh.create_table("read.timed", COLUMNS)
    times_ms = []
    for i in range(4):
        table.append(rows(10, 10 * i))
        times_ms.append(table.state.time_ms)
        while table.storage.now_ms() <= times_ms[-1]:
            pass

    def read(**options):
        return sorted({row.id // 10 for row in load(spark, wh, "read.timed", **options).collect()})

    def stamp(ms):
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="milliseconds")

    assert read(startingTimestamp=stamp(times_ms[1]), endingTimestamp=stamp(times_ms[3])) == [1, 2]
    assert read(startingTimestamp=stamp(times_ms[1] + 1)) == [2, 3]
    assert read(endingTimestamp=stamp(times_ms[0])) == []
    assert read(startingTimestamp="2000-01-01T00:00:00Z") == [0, 1, 2, 3]
    assert read(asOfTimestamp=stamp(times_ms[2])) == [0, 1, 2]


def test_times_that_are_no_longer_known(spark, wh, trimmed):
    lost = dt.datetime.fromtimestamp((trimmed.state.created_ms + 1) / 1000, dt.UTC).isoformat()
    with pytest.raises(PySparkException, match=r"OFFSETS_TRIMMED: .*stores no commit times"):
        load(spark, wh, "read.trimmed", startingTimestamp=lost).count()
    assert load(spark, wh, "read.trimmed", startingTimestamp=lost, failOnDataLoss="false").count() == 300


def test_a_read_as_of_a_lake_snapshot_has_its_rows(spark, wh):
    table = wh.create_table("read.history", COLUMNS)
    snapshots = []
    for i in range(2):
        table.append(rows(10, 10 * i))
        snapshots += tier(spark, wh.url, ["read.history"])["read.history"].snapshots
    for name in ("read.history", "read.history$lake"):
        counts = [load(spark, wh, name, asOfLakeSnapshot=str(s)).count() for s in snapshots]
        assert counts == [10, 20]
    with pytest.raises(PySparkException, match="SNAPSHOT_EXPIRED: "):
        load(spark, wh, "read.history$lake", asOfLakeSnapshot="12345").count()


def test_expired_snapshot_is_pinned_anew(spark, wh):
    """Another engine may expire the snapshot that the log has recorded last."""
    table = wh.create_table("read.expired", COLUMNS)
    table.append(rows(10))
    tier(spark, wh.url, ["read.expired"])
    recorded = table.refresh().lake
    table.append(rows(10, 10))
    lake = table.open_lake()
    from streamhouse_spark.log.actions import TieredSnapshot

    tier(spark, wh.url, ["read.expired"])
    newest = table.refresh().lake
    assert newest.snapshot_id != recorded.snapshot_id
    table.log.commit(lambda _state, time_ms: [TieredSnapshot(recorded.snapshot_id, recorded.offsets, time_ms)])
    lake.expire(keep_last=1, keep_ms=0)
    assert sorted(row.id for row in load(spark, wh, "read.expired").collect()) == list(range(20))


def test_large_buckets_are_split_and_small_segments_packed(spark, wh, way):
    big = wh.create_table("read.big", "id BIGINT, a DOUBLE, b DOUBLE")
    count = 1_500_000
    values = pa.array(range(count))
    big.append(pa.table({"id": values, "a": values.cast("double"), "b": values.cast("double")}))
    frame = load(spark, wh, "read.big")
    assert 3 <= frame.rdd.getNumPartitions() <= 6
    assert frame.selectExpr("count(*)", "sum(id)", "sum(a)").first() == (
        count,
        count * (count - 1) // 2,
        (count - 1) * count / 2,
    )
    small = wh.create_table("read.small", COLUMNS, buckets=4, properties={"bucket.key": "id"})
    for i in range(20):
        small.append(rows(20, 20 * i))
    by_bucket = 4  # for joins by the bucket key, which need no shuffle then
    assert load(spark, wh, "read.small").rdd.getNumPartitions() == (1 if way == "Python" else by_bucket)
    assert load(spark, wh, "read.small").count() == 400


@pytest.mark.spark41
@pytest.mark.long
def test_registering_is_possible_too(spark, wh, orders):
    assert sh.spark.register(spark) is spark
    assert load(spark, wh, "read.orders").count() == 1000
    frame = spark.range(5).selectExpr("id", "'x' name", "0D amount")
    wh.create_table("read.registered", COLUMNS)
    append(frame, wh, "read.registered")
    assert load(spark, wh, "read.registered").count() == 5
