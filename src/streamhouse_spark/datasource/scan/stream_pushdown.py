"""Column and filter pushdown for streams, and their lag.

Spark pushes neither columns nor filters to a stream's scan. If the session has the jar, an optimizer rule passes
columns and filters with each batch, in the start offset that Python plans from. Spark does not store them in the
checkpoint, so a checkpoint works with any query. Pushdown reduces what a batch reads, and never changes where the batch
ends. Spark applies every filter again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.read.read_target import offsets_from_json
from streamhouse_spark.datasource.rpc_arguments import LAG_OPTION, NEED_OPTION
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.arrow_reader import read_ipc_rows
from streamhouse_spark.datasource.scan.input_splits import narrowest_column
from streamhouse_spark.datasource.scan.pushed_filters import comparable_types, parse_filters
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader
from streamhouse_spark.datasource.worker import release_memory
from streamhouse_spark.log.state import BucketLog, TableState
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.warehouse.process_cache import Connection


class StreamPart(InputPartition):
    """The part of a batch that one task reads, and its read settings, as JSON text."""

    def __init__(self, plan: ArrowReadPlan) -> None:
        """``plan`` must have exactly one group."""
        super().__init__(plan.to_text())

    def plan(self) -> ArrowReadPlan:
        return ArrowReadPlan.from_text(self.value)

    def __repr__(self) -> str:
        return f"StreamPart({len(self.value)} bytes)"


class PrunedStreamReader(StreamhouseStreamReader):
    """Plans batches with the query's columns and filters for `StreamPartReader`, and reports the stream's lag.

    A changed column ends the query only if a batch has read that column. Before the first batch, the columns that the
    query reads are unknown.
    """

    _has_pushdown = True

    def _end_of_log(self, state: TableState) -> dict[str, Any]:
        offset = super()._end_of_log(state)
        if self._last_end is None:
            return offset
        read = offsets_from_json(self._last_end["offsets"])
        return {**offset, LAG_OPTION: {"offsets": self._last_end["offsets"], "ms": lag_ms(state, read)}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch with pushdown if its start contains columns and filters."""
        begin = dict(start)
        need = begin.pop(NEED_OPTION, None)
        if need is None:
            self._required_columns = self._table_columns
            return super().partitions(begin, end)
        release_memory()
        by_folded_name = {name.casefold(): name for name in self._columns}
        columns = tuple(by_folded_name[name.casefold()] for name in need["columns"])
        table_columns = tuple(name for name in columns if name in self._table_columns)
        read = self._table_columns if self._is_binlog else table_columns
        self._required_columns = tuple(
            dict.fromkeys((*self._required_columns, *read))
        )  # a query may scan several times
        filters = () if self._is_binlog else tuple(need["filters"])
        pruning = Pruning(parse_filters(filters, comparable_types(self._initial_schema))) if filters else Pruning()
        parts = self.plan_parts(begin, end, read or (narrowest_column(self._open_table()[1].schema),), pruning)
        metadata = tuple(field.name for field in self._metadata if field.name in columns)
        settings = (self._name, columns, need["schema"], metadata, self._options.fail_on_data_loss, filters)
        plans = [ArrowReadPlan(*settings, part.with_tasks(()), (part.tasks,)) for part in parts]
        plans[0] = replace(plans[0], skipped=pruning.num_skipped)
        return [StreamPart(plan) for plan in plans]


class StreamPartReader(DataSourceReader):
    """Reads the parts of batches that `PrunedStreamReader` planned. It plans no partitions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def partitions(self) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPart)
        release_memory()
        plan = partition.plan()
        return read_ipc_rows(self._connection, plan, plan.common.with_tasks(plan.groups[0]))


def lag_ms(state: TableState, read: Mapping[int, int]) -> int | None:
    """Return the milliseconds from the commit of the first unread row to the latest commit with rows; 0 if all are
    read.

    ``read`` is bucket → first unread offset. Returns None if the first unread row is no longer in the hot log, because
    its commit time is unknown. The times are from the clocks of the writers.
    """
    waiting = [(log, read.get(bucket, 0)) for bucket, log in state.buckets.items() if log.end > read.get(bucket, 0)]
    if not waiting:
        return 0
    if any(offset < log.start for log, offset in waiting):
        return None
    newest = max(int(log.segments[-1].time_runs[1][-1]) for log in state.buckets.values() if log.segments)
    return max(0, newest - min(_time_ms(log, offset) for log, offset in waiting))


def _time_ms(log: BucketLog, offset: int) -> int:
    segment = next(s for s in log.segments if s.offsets.end > offset)
    return int(segment.commit_times_ms(OffsetRange(offset, offset + 1))[0])
