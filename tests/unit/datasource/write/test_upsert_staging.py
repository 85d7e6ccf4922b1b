"""Staging by tasks for a table with a primary key, and the driver's work with it; without a JVM."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kit.tables import TableCase
from streamhouse_spark import CommitConflictError, InvalidOptionError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options, parse_write_options
from streamhouse_spark.datasource.dml import keyed_row_writer
from streamhouse_spark.datasource.dml.keyed_row_writer import KeyedRowWriter
from streamhouse_spark.datasource.write import staging_writer
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter, StreamhouseWriter
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.warehouse.process_cache import Connection

NAME = "sales.orders"
BUCKETS = 4
SUMS = {"table.merge-engine": "aggregation", "fields.n.agg": "sum", "table.delete.behavior": "allow"}
FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("n", IntegerType())])

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def wh(warehouse_path):
    return Warehouse(warehouse_path)


TABLE = TableCase(NAME, "id BIGINT, n INT", primary_key=["id"], buckets=BUCKETS, properties=SUMS)


def connection(wh):
    return Connection.of(wh.url, {})


def writer(wh, *, is_clustered=True, overwrite=False, frame=FRAME, **options):
    parsed = parse_write_options({"path": NAME, **options})
    return StreamhouseWriter(connection(wh), NAME, parsed, frame, overwrite=overwrite, is_clustered=is_clustered)


def batch(keys, n=1):
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "n": pa.array([n] * len(keys), pa.int32())})


def by_task(table, keys, tasks=2):
    """The keys of each task, where a task owns whole buckets."""
    shape = table.keyed.keyed_schema()
    found = [[] for _ in range(tasks)]
    for bucket, places in shape.buckets([pa.array(keys, pa.int64())]):
        found[bucket % tasks].extend(keys[i] for i in places)
    return found


def run(task, parts):
    """What the tasks send to the driver, as it arrives there."""
    return [
        pickle.loads(pickle.dumps(task.write(iter([part] if isinstance(part, pa.RecordBatch) else part))))
        for part in parts
    ]


def found(table):
    table.refresh()
    return {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}


def stored_segments(table):
    return {Path(info.key).stem for info in table.storage.list(f"tables/{table.uuid}/segments/")}


@pytest.fixture(params=["inline", "objects"])
def sizes(request, monkeypatch):
    if request.param == "objects":
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        monkeypatch.setattr(staging_writer, "TASK_INLINE_BYTES_MAX", 0)
    return request.param


def test_the_driver_reads_no_rows(wh, table, on_host, sizes):
    keys = list(range(60))
    for number in range(1, 4):
        task = writer(wh)
        messages = []
        for host, part in enumerate(by_task(table, keys)):
            on_host(f"executor-{host}")
            messages += run(task, [batch(part)])
        folder = on_host("driver")
        task.commit(messages)
        assert not folder.exists()
        on_host("reader")
        assert found(table) == dict.fromkeys(keys, number)
    live = {s.uuid for s in table.state.live_segments()}
    assert stored_segments(table) == live - {None}  # intents are gone
    assert (live == {None}) == (sizes == "inline")


def test_where_rows_are_not_clustered_nothing_is_prepared(wh, table, on_host):
    task = writer(wh, is_clustered=False)
    folder = on_host("task")
    messages = run(task, [batch(range(40)), batch(range(20, 60))])
    assert [message.prepared for message in messages] == [(), ()]
    assert not folder.exists()
    task.commit(messages)
    assert found(table) == {key: 2 if 20 <= key < 40 else 1 for key in range(60)}


def test_rows_of_a_bucket_in_several_tasks_all_count(wh, table, sizes):
    """Nothing depends on it that Spark clusters rows as it was asked to."""
    first, second = by_task(table, list(range(60)))
    stray = first[0]
    task = writer(wh)
    messages = run(task, [batch(first), batch([*second, stray]), iter([])])
    assert len(messages[0].prepared) == 2
    assert len(messages[1].prepared) == 3
    task.commit(messages)
    assert found(table) == {key: 2 if key == stray else 1 for key in range(60)}


def test_a_write_without_rows_commits_nothing(wh, table):
    task = writer(wh)
    task.commit(run(task, [iter([]), iter([batch([])])]))
    assert found(table) == {}
    assert table.refresh().version == 1


def test_several_chunks_of_one_task_make_one_change_per_key(wh, table, sizes, monkeypatch):
    """A bucket's intents stand in several files; together they make its changes."""
    monkeypatch.setattr(staging_writer, "CHUNK_BYTES", 1)
    task = writer(wh)
    (message,) = run(task, [[batch(range(40)), batch(range(20, 60))]])
    assert len(message.staged.segments) == 2 * BUCKETS
    assert len(message.prepared) == BUCKETS
    task.commit([message])
    assert found(table) == {key: 2 if 20 <= key < 40 else 1 for key in range(60)}


def test_staged_overwrites_replace_concurrent_upserts(wh, table, on_host):
    table.upsert([{"id": key, "n": 5} for key in range(30)])
    task = writer(wh, overwrite=True)
    folder = on_host("task")
    messages = run(task, [batch(part) for part in by_task(table, list(range(10)))])
    table.upsert([{"id": 3, "n": 5}])
    close_tablets()
    on_host("driver")
    task.commit(messages)
    assert not (folder.parent / "driver").exists()
    assert found(table) == dict.fromkeys(range(10), 1)


def test_row_kinds_choose_between_upsert_and_delete(wh, table):
    table.upsert([{"id": key, "n": 1} for key in range(5)])
    frame = StructType([*FRAME.fields, StructField("op", StringType())])
    task = writer(wh, frame=frame, rowkindcolumn="op")
    rows = batch(range(6)).append_column("op", pa.array(["+I", "-D", "+U", "-U", "d", "c"]))
    messages = run(task, [rows])
    assert messages[0].prepared
    task.commit(messages)
    assert found(table) == {0: 2, 2: 2, 3: 1, 5: 1}


def test_a_repeated_transaction_adds_nothing(wh, table):
    for _ in range(2):
        task = writer(wh, txnappid="job", txnversion="4")
        messages = run(task, [batch(part) for part in by_task(table, list(range(20)))])
        assert sum(len(message.prepared) for message in messages) == BUCKETS
        task.commit(messages)
    assert found(table) == dict.fromkeys(range(20), 1)


def test_a_repeated_batch_of_a_stream_adds_nothing(wh, table):
    options = parse_stream_write_options({"path": NAME, "txnappid": "query"})
    for number, expected in ((0, 1), (0, 1), (1, 2), (1, 2)):
        task = StreamhouseStreamWriter(connection(wh), NAME, options, None, FRAME, is_clustered=True)
        messages = run(task, [batch(part) for part in by_task(table, list(range(20)))])
        assert sum(len(message.prepared) for message in messages) == BUCKETS
        task.commit(messages, number)
        assert found(table) == dict.fromkeys(range(20), expected)


def test_a_table_created_again_takes_nothing(wh, table):
    task = writer(wh)
    messages = run(task, [batch(range(10))])
    wh.drop_table(NAME)
    again = wh.create_table(NAME, "id BIGINT, n INT", primary_key=["id"], buckets=BUCKETS, properties=SUMS)
    with pytest.raises(Exception, match="dropped"):
        task.commit(messages)
    assert found(again) == {}


def test_a_table_dropped_while_tasks_run(wh, table):
    task = writer(wh)
    wh.drop_table(NAME)
    messages = run(task, [batch(range(10))])
    assert messages[0].prepared == ()
    with pytest.raises(Exception, match="dropped"):
        task.commit(messages)


class TestColumnsThatChangeWhileTasksRun:
    COLUMNS = "id BIGINT, n INT, m INT"
    RENAMES = ({"n": "m", "m": "n"}, {"n": "x"}, {"id": "key"})

    @pytest.fixture
    def table(self, wh):
        return wh.create_table(NAME, self.COLUMNS, primary_key=["id"], buckets=BUCKETS)

    @pytest.mark.parametrize("is_clustered", [True, False])
    @pytest.mark.parametrize("prepared_before", [True, False])
    @pytest.mark.parametrize("change", [*({"rename_columns": r} for r in RENAMES), {"drop_columns": ["n"]}])
    def test_a_name_that_moved_is_a_conflict(self, wh, table, change, prepared_before, is_clustered):
        table.upsert([{"id": i, "n": 0, "m": 9} for i in range(20)])
        task = writer(wh, is_clustered=is_clustered)
        if not prepared_before:
            table.alter(**change)
        messages = run(task, [batch(keys) for keys in by_task(table, list(range(30)))])
        if prepared_before:
            table.alter(**change)
        before = table.refresh()
        with pytest.raises(CommitConflictError, match="renamed or dropped while rows were staged"):
            task.commit(messages)
        assert table.refresh() == before

    @pytest.mark.parametrize("prepared_before", [True, False])
    def test_another_default_is_a_conflict_only_where_the_rows_lack_the_column(self, wh, table, prepared_before):
        table.alter(add_columns="more int", defaults={"m": 3})
        task, parts = writer(wh), by_task(table, list(range(30)))
        lacking = run(task, [batch(keys) for keys in parts])
        if prepared_before:
            assert all(message.prepared for message in lacking)
        table.alter(defaults={"n": 8})  # the rows have it
        if not prepared_before:
            lacking = run(task, [batch(keys) for keys in parts])
        task.commit(lacking)
        table.refresh()
        assert table.to_arrow()["m"].to_pylist() == [3] * 30
        task = writer(wh)
        lacking = run(task, [batch(keys) for keys in parts])
        table.drop_default("m")
        before = table.refresh()
        with pytest.raises(CommitConflictError, match="or have other defaults now"):
            task.commit(lacking)
        assert table.refresh() == before
        table.add_columns("late int", defaults={"late": 1})
        with pytest.raises(CommitConflictError, match="or have other defaults now"):
            task.commit(lacking)

    def test_a_partial_update_has_the_defaults_of_its_commit(self, wh, table):
        task = writer(wh, partialUpdate="true")
        messages = run(task, [batch(keys) for keys in by_task(table, list(range(30)))])
        table.alter(add_columns="late string", defaults={"m": 4, "late": "x"})
        task.commit(messages)
        table.refresh()
        assert {(r["n"], r["m"], r["late"]) for r in table.to_arrow().to_pylist()} == {(1, 4, "x")}

    def test_rows_that_lack_a_column_and_deletions(self, wh, table):
        table.alter(add_columns="p string", defaults={"m": 3, "p": "x"})
        frame = StructType([*FRAME.fields, StructField("op", StringType())])
        task = writer(wh, frame=frame, rowKindColumn="op")
        rows = batch([1, 2, 1, 3]).append_column("op", pa.array(["+I", "+I", "-D", "-D"]))
        task.commit(run(task, [rows]))
        table.refresh()
        assert table.to_arrow().to_pylist() == [{"id": 2, "n": 1, "m": 3, "p": "x"}]

    def test_a_wider_type_and_a_new_column_are_brought_up(self, wh, table):
        table.upsert([{"id": i, "n": 0} for i in range(20)])
        task = writer(wh)
        messages = run(task, [batch(keys, n=7) for keys in by_task(table, list(range(30)))])
        table.alter(widen_columns={"n": "bigint"}, add_columns="note string")
        task.commit(messages)
        assert found(table) == dict.fromkeys(range(30), 7)


class TestRowLevel:
    @pytest.fixture
    def table(self, wh):
        table = wh.create_table(NAME, "id BIGINT, n INT", primary_key=["id"], buckets=BUCKETS)
        table.upsert([{"id": key, "n": 1} for key in range(60)])
        return table

    def writer(self, wh, table):
        key = StructField("__streamhouse_read_id", LongType())
        frame = StructType([StructField("__streamhouse_kind", StringType(), nullable=False), key, *FRAME.fields])
        return KeyedRowWriter(connection(wh), NAME, ReadVersion.of(table.refresh()), frame, is_clustered=True)

    def rows(self, keys, kind="update", n=2):
        rows = batch(keys, n)
        arrays = [pa.array([kind] * len(keys)), rows["id"], rows["id"], rows["n"]]
        return pa.record_batch(arrays, names=["__streamhouse_kind", "__streamhouse_read_id", "id", "n"])

    def test_updates_and_deletions_are_staged_by_tasks(self, wh, table, on_host):
        task = self.writer(wh, table)
        messages = []
        for host, part in enumerate(by_task(table, list(range(50)))):
            on_host(f"executor-{host}")
            messages += run(task, [[self.rows(part[:-1]), self.rows(part[-1:], "delete")]])
        folder = on_host("driver")
        task.commit(messages)
        assert not folder.exists()
        deleted = {part[-1] for part in by_task(table, list(range(50)))}
        assert found(table) == {key: 2 if key < 50 else 1 for key in range(60) if key not in deleted}

    def test_a_row_that_it_writes_was_changed(self, wh, table):
        task = self.writer(wh, table)
        table.upsert([{"id": 1, "n": 100}])
        messages = run(task, [self.rows(range(1, 50))])
        assert messages[0].prepared
        with pytest.raises(CommitConflictError, match="id = 1, which the statement writes, was changed"):
            task.commit(messages)

    def test_other_rows_were_changed(self, wh, table, on_host):
        """What tasks prepared counts although each bucket moved: the driver makes nothing of its own."""
        task = self.writer(wh, table)
        on_host("executor")
        messages = run(task, [self.rows(range(50))])
        table.upsert([{"id": key, "n": 100} for key in range(50, 100)])
        folder = on_host("driver")
        task.commit(messages)
        assert not folder.exists()
        assert found(table) == {key: 2 if key < 50 else 100 for key in range(100)}

    def test_columns_that_it_writes_were_renamed(self, wh, table):
        task = self.writer(wh, table)
        messages = run(task, [self.rows(range(1, 50))])
        assert messages[0].prepared
        table.rename_column("n", "m")
        with pytest.raises(CommitConflictError, match="renamed or dropped while rows were staged"):
            task.commit(messages)
        assert set(table.to_arrow()["m"].to_pylist()) == {1}

    def test_a_part_of_a_tasks_rows_is_not_prepared(self, wh, table, monkeypatch):
        class Context:
            @staticmethod
            def getLocalProperty(name):  # noqa: N802 - Spark's name
                return {"streamhouse.part": "true"}.get(name)

        monkeypatch.setattr(keyed_row_writer.TaskContext, "get", lambda: Context)
        task = self.writer(wh, table)
        messages = run(task, [self.rows(range(30)), self.rows(range(30, 50), "delete")])
        assert [message.prepared for message in messages] == [(), ()]
        task.commit(messages)
        assert found(table) == {key: 2 if key < 30 else 1 for key in range(60) if not 30 <= key < 50}

    def test_deletions_that_the_table_does_not_take(self, wh, table):
        task = self.writer(wh, table)
        table.alter_properties({"table.delete.behavior": "ignore"})
        messages = run(task, [self.rows(range(5), "delete")])
        assert messages[0].prepared == ()
        with pytest.raises(InvalidOptionError, match="does not support deletes"):
            task.commit(messages)
        assert len(found(table)) == 60
