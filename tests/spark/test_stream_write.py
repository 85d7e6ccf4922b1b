"""The streaming sink stores each batch of a query once, whatever fails, is repeated or restarted."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from spark.session import COLUMNS, append, drain, forget_commit, ids, load_stream, rows
from streamhouse_spark import Transaction
from streamhouse_spark.datasource.source import StreamhouseDataSource
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    TableNotFoundError,
    TransactionConflictError,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(wh, request):
    """A source and a sink of this test's own."""
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    return wh.create_table(f"sink.{name}_from", COLUMNS), wh.create_table(f"sink.{name}_to", COLUMNS)


def copy(spark, wh, tables, checkpoint, change=None, **options):
    stream = load_stream(spark, wh, tables[0].name)
    return drain(stream if change is None else change(stream), wh, tables[1].name, checkpoint, **options)


@pytest.mark.always
@pytest.mark.spark41
def test_repeated_batch_adds_nothing(spark, wh, tables, checkpoint):
    source, target = tables
    for start in (0, 50):
        source.append(rows(50, start))
        copy(spark, wh, tables, checkpoint)
    version = target.refresh().version
    assert ids(target) == list(range(100))
    assert forget_commit(checkpoint) == 1
    copy(spark, wh, tables, checkpoint)
    assert target.refresh().version == version
    source.append(rows(10, 100))
    copy(spark, wh, tables, checkpoint)
    assert ids(target) == list(range(110))
    stored = target.inspect.commits().to_pylist()[-1]
    query_id = json.loads((Path(checkpoint) / "metadata").read_text())["id"]
    assert (stored["txn_app_id"], stored["txn_version"]) == (query_id, 2)


@pytest.mark.long
def test_repeated_batch_with_other_rows_adds_nothing(spark, wh, tables, checkpoint):
    """A batch that is repeated is the same batch, even where the query is not deterministic."""
    source, target = tables
    source.append(rows(20))
    copy(spark, wh, tables, checkpoint, lambda s: s.selectExpr("id", "uuid() name"))
    before = target.to_arrow()
    forget_commit(checkpoint)
    copy(spark, wh, tables, checkpoint, lambda s: s.selectExpr("id + 1000 id", "uuid() name").repartition(3))
    assert target.to_arrow().equals(before)


def _unlucky(stream):
    return stream.selectExpr("if(id = 33, raise_error('no luck'), id) id")


def test_a_stream_with_a_failed_task_stores_each_row_once(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(40))
    query = None
    with pytest.raises(PySparkException, match="no luck"):
        query = copy(
            spark, wh, tables, checkpoint, lambda s: s.selectExpr("if(id = 33, raise_error('no luck'), id) id")
        )
    assert query is None
    assert ids(target) == []
    copy(spark, wh, tables, checkpoint)
    assert ids(target) == list(range(40))


@pytest.mark.long
def test_failing_commit_then_restart(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(10))
    target.append(rows(1, 900), transaction=Transaction("mine", 0, "another-query"))
    with pytest.raises(PySparkException, match="TRANSACTION_CONFLICT: application id 'mine'"):
        copy(spark, wh, tables, checkpoint, txnAppId="mine")
    assert ids(target) == [900]
    target.forget_transactions("mine")
    copy(spark, wh, tables, checkpoint, txnAppId="mine")
    assert ids(target) == [*range(10), 900]


@pytest.mark.long
def test_application_id_outlives_the_checkpoint(spark, wh, tables, checkpoint, tmp_path):
    """With a new checkpoint the batch ids begin anew under another query: that must not be skipped in silence."""
    source, target = tables
    source.append(rows(10))
    copy(spark, wh, tables, checkpoint, txnAppId="app")
    with pytest.raises(PySparkException, match=r"TRANSACTION_CONFLICT: .*was the checkpoint deleted"):
        copy(spark, wh, tables, str(tmp_path / "other"), txnAppId="app")
    assert ids(target) == list(range(10))


@pytest.mark.long
def test_table_created_again_is_refused_by_a_running_stream(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(10))
    writer = load_stream(spark, wh, source.name).writeStream.format("streamhouse").option("warehouse", wh.url)
    query = writer.option("checkpointLocation", checkpoint).start(target.name)
    try:
        query.processAllAvailable()
        wh.drop_table(target.name)
        again = wh.create_table(target.name, COLUMNS)
        source.append(rows(10, 10))
        with pytest.raises(PySparkException, match=r"TABLE_NOT_FOUND: batch 1 .*dropped and created again"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert ids(again) == []
    with pytest.raises(PySparkException, match="TABLE_NOT_FOUND: batch 1 "):
        copy(spark, wh, tables, checkpoint)
    query_id = json.loads((Path(checkpoint) / "metadata").read_text())["id"]
    again.append([], transaction=Transaction(query_id, 0, query_id))  # as the message says
    copy(spark, wh, tables, checkpoint)
    assert ids(again) == list(range(10, 20))


@pytest.mark.spark41
def test_complete_mode_is_refused(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(10))
    counted = load_stream(spark, wh, source.name).groupBy("name").count().selectExpr("count id", "name")
    writer = counted.writeStream.format("streamhouse").option("warehouse", wh.url).outputMode("complete")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target.name)
    with pytest.raises(PySparkException, match=r"INVALID_OPTION: .*output mode complete"):
        query.awaitTermination()
    assert ids(target) == []


def test_batch_writes_in_foreach_batch_are_not_deduplicated(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(10))

    def write(frame, batch_id):
        append(frame, wh, target.name)
        append(frame.selectExpr("id + 100 id", "name"), wh, target.name)
        for _ in range(2):
            append(frame.selectExpr("id + 200 id"), wh, target.name, txnAppId="both", txnVersion=str(batch_id))

    query = load_stream(spark, wh, source.name).writeStream.foreachBatch(write)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    assert ids(target) == [*range(10), *range(100, 110), *range(200, 210)]


@pytest.mark.always
def test_windows_behind_a_watermark_are_stored_once(spark, wh, checkpoint):
    source = wh.create_table("sink.events", "ts TIMESTAMP, amount DOUBLE")
    target = wh.create_table("sink.windows", "start TIMESTAMP, total DOUBLE")
    minutes = pa.array([60_000_000 * i for i in range(60)], pa.timestamp("us", "UTC"))
    source.append(pa.table({"ts": minutes, "amount": [1.0] * 60}))
    stream = load_stream(spark, wh, source.name).withWatermark("ts", "1 minute")
    totals = stream.groupBy(f.window("ts", "10 minutes")).agg(f.sum("amount").alias("total"))
    totals = totals.selectExpr("window.start start", "total")
    drain(totals, wh, target.name, checkpoint)
    assert target.to_arrow()["total"].to_pylist() == [10.0] * 5  # the last window is still open


def test_tasks_with_few_rows_carry_them_and_others_stage_them(spark, wh, checkpoint):
    """Where the session has the jar: rows of two tasks travel in the record, a task of more writes an object."""
    source = wh.create_table("sink.carried_from", "id BIGINT, name STRING, at TIMESTAMP, n DECIMAL(20,3)")
    target = wh.create_table("sink.carried_to", source.schema)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def stored(ids):
        source.append([{"id": i, "name": None if i % 3 else f"n{i}", "at": moment, "n": Decimal(i)} for i in ids])
        query = drain(load_stream(spark, wh, source.name).repartition(2), wh, target.name, checkpoint)
        assert query.exception() is None
        commit = target.refresh().version
        found = [s for s in target.inspect.segments().to_pylist() if s["commit"] == commit]
        assert sorted(target.to_arrow().to_pylist(), key=itemgetter("id")) == source.to_arrow().to_pylist()
        return [s["file"] is None for s in found]

    assert stored(range(10)) == [True]
    assert not any(stored(range(10, 20_000)))
    assert stored(range(20_000, 20_010)) == [True]


# -- the writer alone, without a JVM ----------------------------------------------------------------------------------


@pytest.fixture
def writer(wh, tables, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"0d7e"}')
    schema = StructType([StructField("id", LongType())])

    def make(checkpoint=f"file://{tmp_path}/checkpoint", **options):
        given = {"warehouse": wh.url, "path": tables[1].name, **options}
        if checkpoint is not None:
            given["checkpointlocation"] = checkpoint
        return StreamhouseDataSource(given).streamWriter(schema=schema, overwrite=False)

    return make


def batch(*values):
    return iter([pa.RecordBatch.from_pydict({"id": list(values)})])


def test_an_abort_after_a_commit_deletes_nothing(writer, tables):
    """Spark calls abort with all messages after a commit whose outcome it does not know."""
    big = list(range(20_000))  # more than travels inline, so that there are files
    one = writer()
    message = one.write(batch(*big))
    one.commit([message], 0)
    one.abort([message], 0)
    assert ids(tables[1]) == big
    two = writer()
    two.abort([two.write(batch(-1)), None], 1)
    two.commit([two.write(batch(20_000))], 1)
    two.commit([two.write(batch(-2))], 1)
    assert ids(tables[1]) == [*big, 20_000]


def test_identity_comes_from_the_checkpoint_where_tasks_have_none(writer, tables):
    one = writer()
    one.commit([one.write(batch(1))], 5)
    entry = tables[1].refresh().transactions["0d7e"]
    assert (entry.version, entry.owner) == (5, "0d7e")


def test_without_any_identity_the_stream_is_refused(writer, tables):
    one = writer(checkpoint=None)
    with pytest.raises(InvalidOptionError, match="set the option txnAppId"):
        one.commit([one.write(batch(1))], 0)
    assert ids(tables[1]) == []
    named = writer(checkpoint=None, txnAppId="mine")
    named.commit([named.write(batch(1))], 0)
    assert ids(tables[1]) == [1]


@pytest.mark.long
def test_tasks_of_two_queries_are_refused(writer, tables):
    one = writer()
    messages = [dataclasses.replace(one.write(batch(1)), query_id=q) for q in ("a", "b")]
    with pytest.raises(TransactionConflictError):
        one.commit(messages, 0)


class TestNameThatMeantAnotherTable:
    """The writer is made by name for each batch; the table knows which queries wrote into it."""

    @pytest.fixture
    def again(self, wh, tables):
        def make():
            wh.drop_table(tables[1].name)
            return wh.create_table(tables[1].name, COLUMNS)

        return make

    @staticmethod
    def store(writer, batch_id, *values, **options):
        one = writer(**options)
        one.commit([one.write(batch(*values) if values else iter(()))], batch_id)

    @pytest.mark.parametrize("options", [{}, {"txnAppId": "mine"}], ids=["query", "named"])
    @pytest.mark.parametrize("values", [(2,), ()], ids=["rows", "no rows"])
    def test_later_batch_is_refused(self, writer, again, options, values):
        self.store(writer, 0, 1, **options)
        table = again()
        with pytest.raises(TableNotFoundError, match=r"batch 1 .*dropped and created again.*new checkpointLocation"):
            self.store(writer, 1, *values, **options)
        assert (ids(table), table.refresh().transactions) == ([], {})

    @pytest.mark.long
    def test_between_staging_and_commit(self, writer, again):
        one = writer()
        message = one.write(batch(1))
        table = again()
        with pytest.raises(CommitConflictError, match="dropped and created again"):
            writer().commit([message], 0)
        with pytest.raises(TableNotFoundError, match="dropped"):
            one.commit([message], 0)
        assert ids(table) == []

    @pytest.mark.long
    def test_query_that_begins_here_is_known_even_without_rows(self, writer, again):
        table = again()
        self.store(writer, 0)
        self.store(writer, 0)
        version = table.refresh().version
        self.store(writer, 1)
        assert table.refresh().version == version
        self.store(writer, 2, 5)
        assert ids(table) == [5]

    def test_name_for_the_application_may_be_added_later(self, writer, again):
        table = again()
        self.store(writer, 0, 1)
        self.store(writer, 1, 2, txnAppId="mine")
        assert ids(table) == [1, 2]

    @pytest.mark.long
    def test_going_on_without_the_earlier_rows(self, writer, again):
        self.store(writer, 4, 1)
        table = again()
        table.append([], transaction=Transaction("0d7e", 4, "0d7e"))
        self.store(writer, 4, 1)
        self.store(writer, 5, 2)
        assert ids(table) == [2]

    @pytest.mark.long
    def test_another_table_with_a_name_of_its_own_is_a_new_sink(self, writer, tables):
        self.store(writer, 7, 1)
        assert ids(tables[1]) == [1]


def test_batch_without_rows_leaves_no_record(writer, tables):
    one = writer()
    version = tables[1].refresh().version
    one.commit([one.write(iter(()))], 0)
    assert tables[1].refresh().version == version
    one.commit([one.write(batch(1))], 0)  # nothing of this version was stored, so this is not a repetition
    assert ids(tables[1]) == [1]
