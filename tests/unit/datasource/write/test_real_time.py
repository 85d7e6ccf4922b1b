"""Commits of tasks in real-time mode: each row once, by its place in the log that the query reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.datasource.catalog.scan.real_time_write import begin_real_time_write
from streamhouse_spark.datasource.write.query_identity import SourceOfRows
from streamhouse_spark.datasource.write.real_time import RealTimeStreamWriter
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError, TransactionConflictError
from streamhouse_spark.log.commits.actions import ExpireTransactions
from streamhouse_spark.warehouse.connection import Connection
from streamhouse_spark.warehouse.warehouse import Warehouse

NAME = "d.t"
QUERY = "6c0d0c3c-6d3a-4c39-8d8a-0d8a3c9b7f10"
FRAME = StructType(
    [
        StructField("__bucket", IntegerType(), nullable=False),
        StructField("__begin", LongType(), nullable=False),
        StructField("__end", LongType(), nullable=False),
        StructField("id", LongType()),
    ]
)
SCHEMA = pa.schema([("__bucket", pa.int32()), ("__begin", pa.int64()), ("__end", pa.int64()), ("id", pa.int64())])

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=[False, True], ids=["log", "keyed"])
def table(request, warehouse_path):
    columns = "id BIGINT NOT NULL" if request.param else "id BIGINT"
    return Warehouse(warehouse_path).create_table(NAME, columns, **({"primary_key": ["id"]} if request.param else {}))


def write(url: str, *rows: tuple[int, int, int, int]) -> None:
    options = parse_stream_write_options({"path": NAME})
    rows_of = SourceOfRows(QUERY, "source")
    writer = RealTimeStreamWriter(Connection.of(url, {}), NAME, options, None, FRAME, rows=rows_of)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    message = writer.write(iter([pa.RecordBatch.from_arrays(columns, schema=SCHEMA)]))
    writer.commit([message], 0)


def begun(url: str, table: Any, batch: int = 0, **options: str) -> dict[str, int]:
    args = {"name": NAME, "uuid": table.uuid, "query": QUERY, "source": "source", "buckets": 3, "batch": batch}
    return dict(begin_real_time_write(Connection.of(url, {}), {**args, "options": options})["offsets"])


def ids(table: Any) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def test_what_is_stored_says_where_a_batch_goes_on(warehouse_path, table):
    assert begun(warehouse_path, table) == {}
    write(warehouse_path, (0, -1, 4, 10), (2, -1, 7, 20), (0, -1, 4, 11))
    assert ids(table) == [10, 11, 20]
    assert begun(warehouse_path, table, 1) == {"0": 4, "2": 7}
    write(warehouse_path, (0, 4, 6, 12))
    assert begun(warehouse_path, table, 1) == {"0": 6, "2": 7}


def test_rows_that_come_again_add_nothing(warehouse_path, table):
    begun(warehouse_path, table)
    for _ in range(2):
        write(warehouse_path, (0, -1, 4, 10))
    assert ids(table) == [10]


@pytest.mark.parametrize("rows", [(0, -1, 6, 99), (0, -1, 3, 99), (0, 3, 6, 99), (0, 5, 6, 99)])
def test_an_older_run_of_the_query_writes_nothing(warehouse_path, table, rows):
    """Its rows may be cut elsewhere: only those behind the stored ones are new."""
    begun(warehouse_path, table)
    write(warehouse_path, (0, -1, 4, 10))
    with pytest.raises(CommitConflictError, match=r"another writer of this application was faster.*begin again"):
        write(warehouse_path, rows)
    assert ids(table) == [10]


def test_rows_do_not_follow_what_is_not_stored(warehouse_path, table):
    begun(warehouse_path, table)
    with pytest.raises(CommitConflictError, match="follows 4, and -1 is stored"):
        write(warehouse_path, (0, 4, 6, 10))
    assert ids(table) == []


def test_positions_outlive_their_entries(warehouse_path, table):
    begun(warehouse_path, table)
    write(warehouse_path, (0, -1, 4, 10))
    state = table.refresh()
    table.log.commit(lambda *_: [ExpireTransactions(tuple(state.transactions))])
    assert not table.refresh().transactions
    assert begun(warehouse_path, table, 1) == {"0": 4}


def test_a_query_of_micro_batches_cannot_go_on_in_real_time_mode(warehouse_path, table):
    (table.upsert if table.state.primary_key else table.append)([{"id": 1}], transaction=Transaction("app", 5, QUERY))
    with pytest.raises(TransactionConflictError, match=rf"query {QUERY} of micro-batches.*new checkpointLocation"):
        begun(warehouse_path, table, 6, txnAppId="app")


def test_another_table_of_the_name_is_noticed(warehouse_path, table):
    begun(warehouse_path, table)
    warehouse = Warehouse(warehouse_path)
    warehouse.drop_table(NAME)
    new = warehouse.create_table(NAME, "id BIGINT")
    with pytest.raises(TableNotFoundError, match=r"has none of its earlier batches.*new checkpointLocation"):
        begun(warehouse_path, new, 1)
    assert begun(warehouse_path, new, 0) == {}
