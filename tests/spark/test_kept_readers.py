"""Queries of the same columns with the same settings share what Spark's Parquet readers send to the executors."""

from __future__ import annotations

import pytest

from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41, pytest.mark.classic]
NAME = "kept_readers.rows"
LAKE = f"streamhouse.{NAME.replace('.rows', '.`rows$lake`')}"


@pytest.fixture(scope="module", autouse=True)
def rows(spark, wh):
    table = wh.create_table(NAME, "kept_id BIGINT, kept_v BIGINT, at TIMESTAMP_LTZ", properties={"bucket.num": "2"})
    table.append([{"kept_id": i, "kept_v": i, "at": None} for i in range(1000)])
    tier(spark, wh.url, [NAME])


@pytest.fixture
def sent(spark):
    """Gives the numbers of the broadcasts of settings that are kept, for readers of all columns in their order."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kept = loader.loadClass("io.streamhouse.spark.read.ParquetReaderCache").getDeclaredField("READERS")
    kept.setAccessible(True)

    def found(*columns: str) -> set[int]:
        readers = [kept.get(None).get(key) for key in list(kept.get(None).keySet())]
        return {one.broadcastedConf().id() for one in readers if tuple(one.readDataSchema().fieldNames()) == columns}

    return found


def total(session, where: str = "true") -> int:
    return session.sql(f"SELECT sum(kept_id), sum(kept_v) FROM {LAKE} WHERE {where}").collect()[0][0]


def test_queries_with_other_filters_share_settings(spark, sent):
    spark, other = spark.newSession(), spark.newSession()  # equal settings, whatever other tests have set
    assert total(spark) == 499_500
    first = sent("kept_id", "kept_v")
    assert first
    wanted = {
        "kept_id < 10": 45,
        "kept_id BETWEEN 20 AND 29": 245,
        "kept_v = 7": 7,
        "kept_id IN (1, 2) OR kept_v = 3": 6,
    }
    assert {where: total(spark, where) for where in wanted} == wanted
    assert total(other, "kept_id < 10") == 45
    assert sent("kept_id", "kept_v") == first
    assert spark.sql(f"SELECT count(kept_id) FROM {LAKE} WHERE kept_id < 10").collect()[0][0] == 10
    assert sent("kept_id", "kept_v") == first
    assert len(sent("kept_id")) == 1


@pytest.mark.parametrize("setting", ["spark.sql.session.timeZone", "spark.sql.parquet.enableVectorizedReader"])
def test_a_session_with_another_setting_has_readers_of_its_own(spark, sent, setting):
    assert total(spark) == 499_500
    before = sent("kept_id", "kept_v")
    other = spark.newSession()
    other.conf.set(setting, "Asia/Tokyo" if "Zone" in setting else "false")
    assert total(other) == 499_500
    assert before < sent("kept_id", "kept_v")
    after = sent("kept_id", "kept_v")
    assert total(spark) == total(other, "kept_id >= 0") == 499_500
    assert sent("kept_id", "kept_v") == after


def test_a_reader_reads_as_its_own_session_wants(spark):
    """The first session made what is sent, and then wants rows: the second's tasks still give columns."""
    first, second = spark.newSession(), spark.newSession()
    for session in (first, second):
        session.conf.set("streamhouse.test.session", "own")
    assert total(first) == 499_500
    first.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    for session, is_columnar in ((second, True), (first, False)):
        query = session.sql(f"SELECT sum(kept_id), sum(kept_v) FROM {LAKE}")
        assert query.collect()[0][0] == 499_500
        assert ("ColumnarToRow" in query._jdf.queryExecution().executedPlan().toString()) == is_columnar


def test_a_setting_of_hadoop_that_changed_is_sent(spark, sent):
    assert total(spark) == 499_500
    before = sent("kept_id", "kept_v")
    hadoop = spark._jsc.hadoopConfiguration()
    hadoop.set("streamhouse.test.setting", "new")
    try:
        assert total(spark) == 499_500
        assert before < sent("kept_id", "kept_v")
    finally:
        hadoop.unset("streamhouse.test.setting")


def test_few_readers_are_kept(spark, sent):
    for number in range(40):
        session = spark.newSession()
        session.conf.set("streamhouse.test.session", str(number))
        assert total(session, "kept_id < 2") == 1
    assert len(sent("kept_id", "kept_v")) <= 32
