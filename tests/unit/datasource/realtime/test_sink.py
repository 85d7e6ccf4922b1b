"""Commits of tasks in real-time mode: each row once, by its place in the log that the query reads."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kit.rows import ids
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.datasource.realtime.sink import STORED_KEY, RealTimeStreamWriter
from streamhouse_spark.datasource.realtime.sink_progress import begin_real_time_write, end_real_time_write
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress
from streamhouse_spark.errors import (
    CommitConflictError,
    DifferentHistoryError,
    TableNotFoundError,
    TransactionConflictError,
)
from streamhouse_spark.log.actions import ExpireTransactions
from streamhouse_spark.log.commit_validation import IN_REAL_TIME
from streamhouse_spark.log.transactions import find_stored_version
from streamhouse_spark.warehouse.process_cache import Connection, _open_process

NAME, SOURCE = "d.t", "d.source"
QUERY, ANOTHER = "6c0d0c3c-6d3a-4c39-8d8a-0d8a3c9b7f10", "0f6f1f0e-58a2-4f0b-9d3b-2a4f5c6d7e8f"
FRAME = StructType(
    [
        StructField("__bucket", IntegerType(), nullable=False),
        StructField("__begin", LongType(), nullable=False),
        StructField("__end", LongType(), nullable=False),
        StructField("__record", LongType()),
        StructField("__attempt", StringType()),
        StructField("id", LongType()),
    ]
)
SCHEMA = pa.schema(
    [
        ("__bucket", pa.int32()),
        ("__begin", pa.int64()),
        ("__end", pa.int64()),
        ("__record", pa.int64()),
        ("__attempt", pa.string()),
        ("id", pa.int64()),
    ]
)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=[False, True], ids=["log", "keyed"])
def table(request, warehouse_path):
    columns = "id BIGINT NOT NULL" if request.param else "id BIGINT"
    return Warehouse(warehouse_path).create_table(NAME, columns, **({"primary_key": ["id"]} if request.param else {}))


@pytest.fixture
def source(warehouse_path):
    """A log of three buckets, each of which ends at 20."""
    source = Warehouse(warehouse_path).create_table(SOURCE, "id BIGINT", buckets=3, properties={"bucket.key": "id"})
    while min(source.state.ends.values()) < 20:
        source.append([{"id": i} for i in range(60)])
    return source


def write(
    url: str, source: Any, *rows: tuple[int, int, int, int], app_id: str | None = None, query: str = QUERY
) -> Any:
    """Write rows of (bucket, begin, end, id), as read at the newest record of the source."""
    options = parse_stream_write_options({"path": NAME, **({"txnAppId": app_id} if app_id else {})})
    writer = RealTimeStreamWriter(
        Connection.of(url, {}), NAME, options, None, FRAME, rows=SourceProgress(query, source.uuid)
    )
    record = source.refresh().anchors.rows
    placed = [dict(zip(SCHEMA.names, (*place, *record, value), strict=True)) for *place, value in rows]
    message = writer.write(iter([pa.RecordBatch.from_pylist(placed, schema=SCHEMA)]))
    writer.commit([message], 0)
    return message


def asked(table: Any, source: Any, batch: int, query: str, options: dict[str, str]) -> dict[str, Any]:
    named = {"name": NAME, "uuid": table.uuid, "query": query, "source": source.uuid, "batch": batch}
    return {**named, "options": options}


def begun(url: str, table: Any, source: Any, batch: int = 0, query: str = QUERY, **options: str) -> dict[str, int]:
    args = {**asked(table, source, batch, query, options), "source_name": SOURCE, "buckets": 3}
    return dict(begin_real_time_write(Connection.of(url, {}), args)["offsets"])


def end(url: str, table: Any, source: Any, batch: int, query: str = QUERY, **options: str) -> None:
    end_real_time_write(Connection.of(url, {}), asked(table, source, batch, query, options))


def test_what_is_stored_says_where_a_batch_goes_on(warehouse_path, table, source):
    assert begun(warehouse_path, table, source) == {}
    write(warehouse_path, source, (0, -1, 4, 10), (2, -1, 7, 20), (0, -1, 4, 11))
    assert ids(table) == [10, 11, 20]
    end(warehouse_path, table, source, 0)
    assert begun(warehouse_path, table, source, 1) == {"0": 4, "2": 7}
    write(warehouse_path, source, (0, 4, 6, 12))
    assert begun(warehouse_path, table, source, 1) == {"0": 6, "2": 7}


def test_rows_that_come_again_add_nothing(warehouse_path, table, source):
    begun(warehouse_path, table, source)
    for _ in range(2):
        write(warehouse_path, source, (0, -1, 4, 10))
    assert ids(table) == [10]


@pytest.mark.parametrize("rows", [(0, -1, 6, 99), (0, -1, 3, 99), (0, 3, 6, 99), (0, 5, 6, 99)])
def test_an_older_run_of_the_query_writes_nothing(warehouse_path, table, source, rows):
    """Its rows may be cut elsewhere: only those behind the stored ones are new."""
    begun(warehouse_path, table, source)
    write(warehouse_path, source, (0, -1, 4, 10))
    with pytest.raises(
        CommitConflictError, match=r"another writer of this application committed first.*continue after"
    ):
        write(warehouse_path, source, rows)
    assert ids(table) == [10]


def test_rows_do_not_follow_what_is_not_stored(warehouse_path, table, source):
    begun(warehouse_path, table, source)
    with pytest.raises(CommitConflictError, match="follows version 4, but version -1 is stored"):
        write(warehouse_path, source, (0, 4, 6, 10))
    assert ids(table) == []


def test_rows_of_the_same_place_and_another_history_are_not_taken_for_those_that_are_stored(
    warehouse_path, table, source
):
    begun(warehouse_path, table, source)
    write(warehouse_path, source, (0, -1, 4, 10))
    source.append([{"id": 1}])
    with pytest.raises(CommitConflictError, match="another writer"):
        write(warehouse_path, source, (0, -1, 4, 11))
    assert ids(table) == [10]


def test_a_task_that_runs_again_asks_how_far_rows_are_stored(warehouse_path, table, source):
    begun(warehouse_path, table, source)
    assert json.loads(write(warehouse_path, source).counts.removeprefix(STORED_KEY)) == {}
    write(warehouse_path, source, (0, -1, 4, 10), (2, -1, 7, 20))
    found = write(warehouse_path, source)
    assert json.loads(found.counts.removeprefix(STORED_KEY)) == {"0": 4, "2": 7}
    assert pickle.dumps(found).rindex(STORED_KEY.encode()) > pickle.dumps(found).rindex(b"partitions")


def test_positions_outlive_their_entries(warehouse_path, table, source):
    begun(warehouse_path, table, source)
    write(warehouse_path, source, (0, -1, 4, 10))
    end(warehouse_path, table, source, 0)
    expire(table)
    assert begun(warehouse_path, table, source, 1) == {"0": 4}


def expire(table: Any) -> None:
    state = table.refresh()
    table.log.commit(lambda *_: [ExpireTransactions(tuple(state.transactions))])
    assert not table.refresh().transactions


@pytest.mark.parametrize("is_past", [False, True])
def test_a_query_of_micro_batches_cannot_go_on_in_real_time_mode(warehouse_path, table, source, is_past):
    """Also where it wrote them so long ago that the table keeps sums of names alone."""
    (table.upsert if table.state.primary_key else table.append)([{"id": 1}], transaction=Transaction("app", 5, QUERY))
    if is_past:
        expire(table)
    with pytest.raises(
        TransactionConflictError, match=rf"query {QUERY}, which wrote micro-batches.*new checkpointLocation"
    ):
        begun(warehouse_path, table, source, 6, txnAppId="app")
    assert ids(table) == [1]


def test_another_table_of_the_name_is_noticed(warehouse_path, table, source):
    begun(warehouse_path, table, source)
    warehouse = Warehouse(warehouse_path)
    warehouse.drop_table(NAME)
    new = warehouse.create_table(NAME, "id BIGINT")
    with pytest.raises(TableNotFoundError, match=r"has no earlier batches.*new checkpointLocation"):
        begun(warehouse_path, new, source, 1)
    assert begun(warehouse_path, new, source, 0) == {}


class TestForgetting:
    """A later query of the same ``txnAppId`` writes all of its rows."""

    @pytest.mark.parametrize("is_past", [False, True])
    def test_the_places_go_with_the_mark(self, warehouse_path, table, source, is_past):
        begun(warehouse_path, table, source, txnAppId="app")
        write(warehouse_path, source, (0, -1, 4, 10), app_id="app")
        others = Transaction(f"apple/{source.uuid}/0", 7)
        (table.upsert if table.state.primary_key else table.append)([], transaction=others)
        if is_past:
            expire(table)
        with pytest.raises(TransactionConflictError, match=r"forget_transactions\('app'\)"):
            begun(warehouse_path, table, source, query=ANOTHER, txnAppId="app")
        table.forget_transactions("app")
        assert begun(warehouse_path, table, source, query=ANOTHER, txnAppId="app") == {}
        write(warehouse_path, source, (0, -1, 5, 11), app_id="app", query=ANOTHER)
        assert ids(table) == [10, 11]
        state = table.refresh()
        assert find_stored_version(state.transactions, state.past_transactions, others.app_id) == 7

    def test_nothing_of_them_is_left(self, warehouse_path, table, source):
        begun(warehouse_path, table, source, txnAppId="app")
        write(warehouse_path, source, (0, -1, 4, 10), (1, -1, 4, 12), app_id="app")
        table.forget_transactions("app")
        assert not table.refresh().transactions


class TestRestoring:
    """Copies that are put in the place of a table are noticed where rows would be lost."""

    @pytest.mark.parametrize("num_ended", [0, 1])
    def test_a_target_without_batches_that_the_checkpoint_has(self, warehouse_path, table, source, num_ended):
        for batch in range(num_ended):
            begun(warehouse_path, table, source, batch)
            end(warehouse_path, table, source, batch)
        if num_ended:
            begun(warehouse_path, table, source, num_ended)
        copy = saved(warehouse_path, table)
        begun(warehouse_path, table, source, num_ended)
        write(warehouse_path, source, (0, -1, 4, 10))
        end(warehouse_path, table, source, num_ended)
        table = restored(warehouse_path, table, copy)
        with pytest.raises(
            DifferentHistoryError, match=r"restored from an older copy.*startingOffsets.*first run"
        ) as told:
            begun(warehouse_path, table, source, num_ended + 1)
        assert ids(table) == []
        exec(advised(told.value), {"Table": table, "Transaction": Transaction})
        assert begun(warehouse_path, table, source, num_ended + 1) == {}

    def test_a_target_of_a_batch_that_runs_again_needs_nothing(self, warehouse_path, table, source):
        begun(warehouse_path, table, source)
        copy = saved(warehouse_path, table)
        write(warehouse_path, source, (0, -1, 4, 10))
        table = restored(warehouse_path, table, copy)
        assert begun(warehouse_path, table, source) == {}
        write(warehouse_path, source, (0, -1, 4, 10))
        assert ids(table) == [10]

    def test_an_older_checkpoint_leaves_out_what_is_stored(self, warehouse_path, table, source):
        for batch in range(3):
            begun(warehouse_path, table, source, batch)
            write(warehouse_path, source, (0, 2 * batch or -1, 2 * batch + 2, batch))
            end(warehouse_path, table, source, batch)
        assert begun(warehouse_path, table, source, 1) == {"0": 6}
        with pytest.raises(CommitConflictError, match="another writer of this application committed first"):
            end(warehouse_path, table, source, 1)
        assert begun(warehouse_path, table, source, 3) == {"0": 6}

    @pytest.mark.parametrize("grows", [False, True], ids=["ends before", "has other rows"])
    def test_a_source_that_does_not_have_the_rows_that_are_stored(self, warehouse_path, table, source, grows):
        begun(warehouse_path, table, source)
        copy, ends = saved(warehouse_path, source), source.state.ends
        source.append([{"id": i} for i in range(60)])
        write(warehouse_path, source, (0, -1, source.state.ends[0], 10))
        source = restored(warehouse_path, source, copy)
        if grows:
            source.append([{"id": i} for i in range(99)])
            assert source.state.ends[0] > ends[0]
        with pytest.raises(DifferentHistoryError, match=rf"of {SOURCE}.*restored.*startingOffsets"):
            begun(warehouse_path, table, source)
        assert ids(table) == [10]

    def test_the_mark_of_an_older_version_counts_no_batches(self, warehouse_path, table, source):
        mark = Transaction(QUERY, 0, f"{QUERY}{IN_REAL_TIME}")
        place = Transaction(f"{QUERY}/{source.uuid}/0", 4)
        for one in (mark, place):
            (table.upsert if table.state.primary_key else table.append)([], transaction=one)
        assert begun(warehouse_path, table, source, 7) == {"0": 4}
        end(warehouse_path, table, source, 7)
        assert begun(warehouse_path, table, source, 8) == {"0": 4}
        with pytest.raises(DifferentHistoryError, match="only the batches below 8"):
            begun(warehouse_path, table, source, 9)


def saved(url: str, table: Any) -> Path:
    copy = Path(url).parent / "copy"
    shutil.copytree(Path(url) / "tables" / table.uuid, copy)
    return copy


def restored(url: str, table: Any, copy: Path) -> Any:
    """Put the copy in the table's place, as seen by a process that starts then."""
    folder = Path(url) / "tables" / table.uuid
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    _open_process.cache_clear()
    return Warehouse(url).table(table.name)


def advised(error: Exception) -> str:
    return str(error).partition("first run ")[2]
