"""Streaming reads: the log by offsets, and below the hot log's start the lake by the same offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.datasource import compat
from streamhouse_spark.datasource.admission import limited_ends
from streamhouse_spark.datasource.bounds import starting_offsets
from streamhouse_spark.datasource.connection import Connection
from streamhouse_spark.datasource.pieces import TablePartition, binlog_partitions, partitions
from streamhouse_spark.datasource.planning import plan_ranges
from streamhouse_spark.datasource.read_target import ReadTarget
from streamhouse_spark.datasource.read_task import read_plan
from streamhouse_spark.datasource.spark_schema import SparkShape, requested_columns
from streamhouse_spark.datasource.stream_offset import StreamOffset
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.options import FULL, StreamReadOptions
from streamhouse_spark.paths import parse_table_name
from streamhouse_spark.table import Table
from streamhouse_spark.views import BINLOG

logger = logging.getLogger(__name__)

CONSUMER_MOVE_MS = 30_000
"""A named consumer's position is recorded at most so often: each time is one commit record."""


class StreamhouseStreamReader(DataSourceStreamReader, compat.SupportsTriggerAvailableNow):
    """Reads a table's log from offsets to offsets; a batch that is repeated reads exactly the same rows.

    Spark keeps one of these on the driver for the whole query, and pickles another one into each task, which only uses
    `read`. A table that was dropped and created again ends the query with `TableNotFoundError`, one that was truncated
    or overwritten with `OffsetsTrimmedError`: what the query made of the old rows is no longer right. With
    ``failOnDataLoss=false`` it goes on behind the truncation.
    """

    def __init__(
        self, connection: Connection, target: ReadTarget, options: StreamReadOptions, schema: StructType
    ) -> None:
        compat.refuse_limits_without_admission_control(
            maxOffsetsPerTrigger=options.max_offsets_per_trigger, maxBytesPerTrigger=options.max_bytes_per_trigger
        )
        self._connection = connection
        self._table_name = str(parse_table_name(target.name).path)
        self._options = options
        columns = requested_columns(schema, target.schema, target.name)
        self._shape = SparkShape(schema, columns, target.name)
        metadata_names = {f.name for f in target.metadata}
        self._metadata = tuple(field for field in target.metadata if field.name in columns)
        self._is_binlog = target.suffix == BINLOG
        self._table_columns = tuple(c for c in columns if c not in metadata_names)
        if self._is_binlog:
            row = target.schema.field("after").type
            self._table_columns = tuple(row.field(i).name for i in range(row.num_fields))
        self._initial: StreamOffset | None = None
        self._ceiling: Mapping[int, int] | None = None
        self._consumer_moved_ms: int | None = None

    # -- positions ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins. Spark asks twice: both times it is the same."""
        if self._initial is None:
            table = self._table()
            options = self._options
            _require_all_changes(table.state, options)
            offsets = starting_offsets(
                table.state,
                options.starting_offsets,
                options.starting_timestamp_ms,
                strict=options.fail_on_data_loss,
            )
            self._initial = StreamOffset(table.uuid, offsets, offsets, _truncation_of(table.state))
            self._move_consumer(table, offsets)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends. ``start`` and ``limit`` come with PySpark 4.2; before, everything is read."""
        table = self._table()
        truncation = _truncation_of(table.state)
        ends = self._newest(table)
        if start is None:
            initial = self._initial.initial if self._initial is not None else None
            return StreamOffset(table.uuid, ends, initial, truncation).to_json()
        begin = self._offset(table, start)
        self._require_same_rows(table, begin.truncation, truncation)
        max_rows, max_bytes = compat.limit_rows_and_bytes(
            limit, self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        )
        starts = {b: max(begin.offsets.get(b, 0), table.state.first_offset(b)) for b in ends}
        ends = {bucket: max(end, starts[bucket]) for bucket, end in ends.items()}
        if max_rows is not None or max_bytes is not None:
            ends = limited_ends(table.state, starts, ends, max_rows=max_rows, max_bytes=max_bytes)
        if ends == dict(begin.offsets) and truncation == begin.truncation:
            return start  # the same text: nothing new
        return StreamOffset(table.uuid, ends, begin.initial if begin.is_initial else None, truncation).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return compat.read_limit(self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The log's end, whatever the limits: what the query's progress shows as the latest offset."""
        table = self._table()
        return StreamOffset(table.uuid, table.state.ends, truncation=_truncation_of(table.state)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._ceiling = self._table().state.ends

    def commit(self, end: dict[str, Any]) -> None:
        """Spark finished everything below ``end``: a named consumer says so."""
        if self._options.consumer_id is not None:
            table = self._table()
            self._move_consumer(table, self._offset(table, end).offsets)

    # -- rows -----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises `OffsetsTrimmedError` where rows are kept neither in the log nor in the lake, or were truncated."""
        table = self._table()
        final = self._offset(table, end)
        begin = self._offset(table, start).begin_of_batch(final)
        self._require_same_rows(table, begin.truncation, final.truncation)
        ranges = {
            bucket: OffsetRange(begin.offsets.get(bucket, 0), stop)
            for bucket, stop in final.offsets.items()
            if stop > begin.offsets.get(bucket, 0)
        }
        _require_held(table.state, ranges)
        if self._is_binlog:
            logs = table.state.buckets
            wider = {b: OffsetRange(max(r.start - 1, min(r.start, logs[b].start)), r.end) for b, r in ranges.items()}
            strict = self._options.fail_on_data_loss
            plan = plan_ranges(table, wider, self._table_columns, fail_on_data_loss=strict)
            return binlog_partitions(plan, {bucket: offsets.start for bucket, offsets in ranges.items()})
        plan = plan_ranges(table, ranges, self._table_columns, fail_on_data_loss=self._options.fail_on_data_loss)
        return partitions(plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        strict = self._options.fail_on_data_loss
        return self._shape.batches(
            read_plan(self._connection, partition.plan(), self._metadata, fail_on_data_loss=strict)
        )

    def stop(self) -> None:
        """Nothing is held open."""

    # -- internals ------------------------------------------------------------------------------------------------

    def _table(self) -> Table:
        """The table, read to its tail. Its name is resolved each time, so that a table made anew is noticed."""
        return self._connection.table(self._table_name)

    def _offset(self, table: Table, data: Mapping[str, Any]) -> StreamOffset:
        return StreamOffset.from_json(data, table.name, table.uuid)

    def _require_same_rows(self, table: Table, begun: int, ended: int) -> None:
        if begun == ended:
            return
        text = f"{table.name} was truncated or overwritten by commit {ended}, after this stream read rows of it"
        if self._options.fail_on_data_loss:
            raise OffsetsTrimmedError(
                f"{text}: what it made of them is out of date; start it with a new checkpointLocation, or go on behind "
                "the truncation with failOnDataLoss=false",
            )
        logger.warning("%s: going on with the rows behind", text)

    def _newest(self, table: Table) -> dict[int, int]:
        ends = table.state.ends
        return {b: min(e, self._ceiling.get(b, e)) for b, e in ends.items()} if self._ceiling is not None else ends

    def _move_consumer(self, table: Table, offsets: Mapping[int, int]) -> None:
        consumer_id, now_ms = self._options.consumer_id, table.world.clock.boot_ms()
        if consumer_id is None:
            return
        if self._consumer_moved_ms is None or now_ms - self._consumer_moved_ms >= CONSUMER_MOVE_MS:
            table.move_consumer(consumer_id, offsets)
            self._consumer_moved_ms = now_ms


def _require_all_changes(state: TableState, options: StreamReadOptions) -> None:
    """Of a table with a primary key the lake has rows, not changes: what was trimmed cannot be made up for."""
    if not state.primary_key or options.starting_offsets != FULL or options.starting_timestamp_ms is not None:
        return
    trimmed = [bucket for bucket, log in state.buckets.items() if log.start > state.first_offset(bucket)]
    if trimmed and options.fail_on_data_loss:
        raise OffsetsTrimmedError(
            f"{state.name}: startingOffsets=full wants every change, and those of bucket {trimmed[0]} below offset "
            f"{state.buckets[trimmed[0]].start} were trimmed; read the table once as a batch and its changes with "
            "startingOffsets=latest, or begin with startingOffsets=earliest"
        )


def _truncation_of(state: TableState) -> int:
    return state.truncation.commit if state.truncation is not None else 0


def _require_held(state: TableState, ranges: Mapping[int, OffsetRange]) -> None:
    for bucket, offsets in ranges.items():
        if bucket not in state.buckets or offsets.end > state.buckets[bucket].end:
            end = state.buckets[bucket].end if bucket in state.buckets else 0
            raise OffsetsTrimmedError(
                f"the checkpoint says that bucket {bucket} of {state.name} reaches offset {offsets.end}, it ends at "
                f"{end}: the table was restored from an older copy; start with a new checkpointLocation",
            )
