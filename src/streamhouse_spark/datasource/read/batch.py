"""Batch reads of ``format("streamhouse")`` without the catalog: system tables, and all names if the jar is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import ReadOptions
from streamhouse_spark.datasource.read.partitions import TablePartition, make_partitions, read_plan
from streamhouse_spark.datasource.read.read_target import ReadTarget, batch_ranges
from streamhouse_spark.datasource.spark_schema import SparkColumns, select_columns
from streamhouse_spark.datasource.worker import ErrorBoundary, release_memory_after
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import has_lost_rows, plan_binlog_tasks, plan_ranges
from streamhouse_spark.read.scan_planning import plan_lake
from streamhouse_spark.read.scan_tasks import ScanPlan, ViewScanTask
from streamhouse_spark.read.snapshot_reader import plan_union
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection


class StreamhouseReader(ErrorBoundary, DataSourceReader):
    """Reads one state of a table. The driver chooses the state when Spark plans the partitions.

    The reader applies no filters. Spark shares a reader between all uses of a DataFrame, so filters of one use would
    drop rows of another use.
    """

    def __init__(
        self,
        connection: Connection,
        target: ReadTarget,
        options: ReadOptions,
        schema: StructType,
        schema_at_planning: TableSchema,
    ) -> None:
        """``schema_at_planning`` is the table's schema, for a target without a schema."""
        self._planned_schema = target.table_schema or schema_at_planning
        self._connection = connection
        self._target = target
        self._options = options
        self._columns = select_columns(schema, target.schema, target.name)
        self._spark_columns = SparkColumns(schema, self._columns, target.name)
        column_names = set(self._columns)
        self._metadata = tuple(field for field in target.metadata if field.name in column_names)
        self._table_columns = tuple(c for c in self._columns if c not in {f.name for f in target.metadata})

    @release_memory_after
    def partitions(self) -> list[InputPartition]:
        """Plan the partitions. Raises the errors of reads, and `SchemaMismatchError` if the columns changed since Spark
        read the schema.
        """
        plan = self._plan()
        if self._target.kind != "view":
            reader, advice = f"a read of {self._target.name}", "load it again"
            require_same_columns(self._planned_schema, plan.schema, self._table_columns, reader, advice)
        return make_partitions(plan)

    @release_memory_after
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        rows = read_plan(
            self._connection, partition.plan(), self._metadata, fail_on_data_loss=self._options.fail_on_data_loss
        )
        return self._spark_columns.batches(rows)

    def _plan(self) -> ScanPlan:
        target, options = self._target, self._options
        table = self._connection.table(target.name)
        state = table.state
        match target.kind:
            case "union":
                return plan_union(table, self._table_columns, as_of_timestamp_ms=options.as_of_timestamp_ms)
            case "lake":
                state = table.refresh()
                return plan_lake(
                    table,
                    state,
                    Projection.of(state.schema, self._table_columns, None),
                    as_of_snapshot=options.as_of_lake_snapshot,
                    as_of_timestamp_ms=options.as_of_timestamp_ms,
                )
            case "range":
                if CHANGE_TYPE in target.metadata and has_lost_rows(state):
                    from streamhouse_spark.datasource.read.changelog import plan_changelog  # imports the lake modules

                    changes = plan_changelog(table, state, options)
                    schema = state.schema.select(self._table_columns or state.schema.names[:1])
                    return ScanPlan(table.name, table.uuid, schema, changes.tasks)
                return plan_ranges(
                    table,
                    state,
                    batch_ranges(state, options, table.storage),
                    self._table_columns,
                    fail_on_data_loss=options.fail_on_data_loss,
                )
            case "view":
                return plan_view(table, state, target.suffix or "")


def plan_view(table: TableHandle, state: TableState, suffix: str) -> ScanPlan:
    """Plan a read of all rows of a system table."""
    pieces = plan_binlog_tasks(state) if suffix == BINLOG else (ViewScanTask(suffix),)
    return ScanPlan(table.name, table.uuid, state.schema, pieces)
