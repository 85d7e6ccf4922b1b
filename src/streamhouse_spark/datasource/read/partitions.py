"""Spark partitions of about equal size that consist of scan tasks, and the reader of a partition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from streamhouse_spark.datasource.spark_schema import canonical_schema
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_tasks import BinlogScanTask, ScanPlan, ViewScanTask
from streamhouse_spark.read.split_planning import split_plan
from streamhouse_spark.schema.conversion import Conversion
from streamhouse_spark.table.system_views import BINLOG, open_view
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection


class TablePartition(InputPartition):
    """The part of a plan that one Spark task reads, as JSON. Contains no settings of the warehouse."""

    def __init__(self, plan: ScanPlan) -> None:
        super().__init__(json.dumps(plan.to_json(), separators=(",", ":")))

    def plan(self) -> ScanPlan:
        return ScanPlan.from_json(json.loads(self.value))

    def __repr__(self) -> str:
        return f"TablePartition({len(self.value)} bytes)"


def make_partitions(plan: ScanPlan, parallelism: int | None = None) -> list[InputPartition]:
    """Split the plan into Spark partitions with `split_plan`."""
    return [TablePartition(part) for part in split_plan(plan, parallelism)]


def read_plan(
    connection: Connection,
    plan: ScanPlan,
    metadata: Sequence[pa.Field],
    *,
    node: Node = ALWAYS_TRUE,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read all scan tasks. Batches have the metadata columns followed by the plan's columns, or the columns of a system
    table.

    Rows that do not match ``node`` may be included.
    """
    table = connection.table_by_uuid(plan.table, plan.table_uuid)
    match plan.tasks[:1]:
        case (ViewScanTask(suffix),):
            yield from _read_view(table, suffix)
        case (BinlogScanTask(),):
            yield from _convert_to_spark_types(f"{table.name}${BINLOG}", read_batches(table, plan))
        case _:
            yield from read_batches(table, plan, metadata, node=node, fail_on_data_loss=fail_on_data_loss)


def _read_view(table: TableHandle, suffix: str) -> Iterator[pa.RecordBatch]:
    table.refresh()
    yield from _convert_to_spark_types(f"{table.name}${suffix}", open_view(table, suffix).to_arrow().to_batches())


def _convert_to_spark_types(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        schema = canonical_schema(batch.schema)
        arrays = [
            Conversion(name, field.name).cast(array, field.type)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
