"""Rows of the hot log, and of lake files that Spark cannot read, as Arrow IPC streams in one binary column.

Spark converts the rows of Python sources one at a time. Binary values pass through unchanged, and Java turns them into
column vectors. Therefore each row here is an Arrow IPC stream with one batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.partitions import TablePartition, read_plan
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.pushed_filters import comparable_types, parse_filters
from streamhouse_spark.datasource.spark_schema import SparkColumns
from streamhouse_spark.datasource.worker import release_memory
from streamhouse_spark.expressions.row_masks import drop_mismatches
from streamhouse_spark.read.scan_tasks import ScanPlan, count_segments
from streamhouse_spark.storage.request_metrics import METER
from streamhouse_spark.warehouse.process_cache import Connection

BATCH_COLUMN = StructType([StructField("batch", BinaryType(), nullable=True)])
"""The schema of every read by `ArrowReader` in Spark."""
STREAM_BYTES_MAX = 32 << 20
COUNTS_KEY = "streamhouse.counts"


class ArrowReader(DataSourceReader):
    """Reads the groups of a plan. ``text`` is the field ``read`` of the result of `plan`."""

    def __init__(self, connection: Connection, text: str) -> None:
        self._connection = connection
        self._plan = ArrowReadPlan.from_text(text)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the reader without the groups: each partition holds its own."""
        return {**self.__dict__, "_plan": self._plan.without_groups()}

    def partitions(self) -> list[InputPartition]:
        release_memory()
        return make_partitions(self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        release_memory()
        return read_ipc_rows(self._connection, self._plan, partition.plan())


def read_ipc_rows(connection: Connection, python_plan: ArrowReadPlan, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Read ``plan`` with the settings of ``python_plan``, ignoring its groups. Each row is an Arrow stream of one
    batch.

    The last row has no data. Its schema metadata contains the metrics of the read.
    """
    before = METER.total()
    yield from _read_ipc_rows(connection, python_plan, plan)
    counts = {
        "segmentsRead": count_segments(plan),
        "segmentsSkipped": python_plan.skipped,
        "storeRequests": (METER.total() - before).total,
    }
    schema = pa.schema([], metadata={COUNTS_KEY: json.dumps(counts)})
    yield _encode_batch(pa.RecordBatch.from_arrays([], schema=schema), spark_versions.arrow_schema_of(BATCH_COLUMN))


def _read_ipc_rows(connection: Connection, python_plan: ArrowReadPlan, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    node = parse_filters(python_plan.filters, comparable_types(plan.schema))
    rows = read_plan(
        connection, plan, python_plan.metadata_fields, node=node, fail_on_data_loss=python_plan.fail_on_data_loss
    )
    if python_plan.filters:
        rows = (selected for batch in rows if (selected := drop_mismatches(node, batch)).num_rows)
    schema = StructType.fromJson(python_plan.schema)
    out = spark_versions.arrow_schema_of(BATCH_COLUMN)
    if not python_plan.columns:
        for batch in rows:
            yield _encode_batch(batch.select([]), out)
        return
    for batch in SparkColumns(schema, python_plan.columns, python_plan.name).batches(rows):
        for part in _split_large_batch(batch):
            yield _encode_batch(part, out)


def make_partitions(plan: ArrowReadPlan) -> list[InputPartition]:
    return [TablePartition(plan.common.with_tasks(group)) for group in plan.groups]


def _split_large_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve the batch until each part fits into `STREAM_BYTES_MAX`, the maximum of the Java reader."""
    if batch.nbytes <= STREAM_BYTES_MAX or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _split_large_batch(batch.slice(0, middle))
    yield from _split_large_batch(batch.slice(middle))


def _encode_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    offsets = pa.py_buffer(b"\0\0\0\0" + len(data).to_bytes(4, "little"))
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], schema=schema)
