"""Streaming reads of the log by offsets. Rows before the start of the hot log are read from the lake by offsets too.

The lake of a primary-key table has no changes. Its streams start with the rows of KV snapshots instead, see
`bootstrap`.

Spark polls a source again as soon as the last poll returns, hundreds of times per second. On an object store each poll
costs a request. Returning a cached state would be wrong, because `processAllAvailable` relies on the current state. So
a call waits until the next poll is due. A query with several sources polls only after it processed their rows, and does
not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import parse_table_name, table_prefix
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.partitions import TablePartition, read_plan
from streamhouse_spark.datasource.read.read_target import ReadTarget
from streamhouse_spark.datasource.spark_schema import SparkColumns, narrow_binlog_schema, select_columns
from streamhouse_spark.datasource.stream.batch_limits import AddedColumns, count_files_within, limit_ends
from streamhouse_spark.datasource.stream.bootstrap import find_bootstrap_files, initial_offset, needs_bootstrap
from streamhouse_spark.datasource.stream.stream_offset import (
    StreamOffset,
    StreamOffsetValidator,
    last_truncation,
    require_in_log,
    require_same_rows,
)
from streamhouse_spark.datasource.worker import ErrorBoundary
from streamhouse_spark.errors import DifferentHistoryError, OffsetsTrimmedError, SnapshotExpiredError, StreamhouseError
from streamhouse_spark.log.archive.pages import first_change_offsets
from streamhouse_spark.log.consumers import move_consumer
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.log_poller import poller_of
from streamhouse_spark.read.offset_scan import (
    has_lost_rows,
    limit_deletions,
    partition_drops_as_of,
    plan_ranges,
    require_undeleted,
)
from streamhouse_spark.read.scan_planning import Pruning, prune_tasks
from streamhouse_spark.read.scan_tasks import BootstrapScanTask, ChangesScanTask, ScanPlan
from streamhouse_spark.read.split_planning import split_binlog, split_plan
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

logger = logging.getLogger(__name__)

CONSUMER_MOVE_MS = 30_000
"""Minimum time between two records of a named consumer's position."""
SPIN_MS: Final = 50
"""Time within which Spark polls again if the query has no rows to process."""
RESOLVE_MS: Final = 10_000
"""Time after which the table's name is resolved again even without changes."""


class StreamhouseStreamReader(ErrorBoundary, DataSourceStreamReader, spark_versions.SupportsTriggerAvailableNow):
    """Reads a table's log between offsets. A repeated batch reads exactly the same rows.

    Spark keeps one instance on the driver for the whole query, and pickles another instance into each task, which only
    calls `read`. A query ends with these errors:

    * `TableNotFoundError` if the table was dropped or recreated.
    * `OffsetsTrimmedError` if the table was truncated or overwritten, because results of the old rows are stale. With
      ``failOnDataLoss=false`` the query continues after the truncation.
    * `DifferentHistoryError` if the table was restored from a backup, unless ``onDifferentHistory=continue``, see
      `stream_offset`.
    * `SchemaMismatchError` (``COLUMNS_ADDED``) with ``schemaEvolutionMode=addNewColumns``, after all rows that were
      written without the new columns are processed.
    """

    _has_pushdown: ClassVar[bool] = False
    """Whether the start of each batch contains the columns that the query reads."""

    def __init__(
        self,
        connection: Connection,
        target: ReadTarget,
        options: StreamReadOptions,
        schema: StructType,
        initial_state: TableState,
    ) -> None:
        """``initial_state`` is the table state from which ``target`` was resolved."""
        spark_versions.refuse_limits_without_admission_control(
            maxOffsetsPerTrigger=options.max_offsets_per_trigger, maxBytesPerTrigger=options.max_bytes_per_trigger
        )
        self._connection = connection
        self._table_name = str(parse_table_name(target.name).path)
        self._options = options
        self._is_strict = options.fail_on_data_loss
        self._is_binlog = target.suffix == BINLOG
        self._has_change_type = CHANGE_TYPE in target.metadata
        available = narrow_binlog_schema(schema, target.schema) if self._is_binlog else target.schema
        columns = select_columns(schema, available, target.name)
        self._name, self._columns = target.name, columns
        self._spark_columns = SparkColumns(schema, columns, target.name)
        metadata_names = {f.name for f in target.metadata}
        self._metadata = tuple(field for field in target.metadata if field.name in columns)
        self._table_columns = tuple(c for c in columns if c not in metadata_names)
        if self._is_binlog:
            row = available.field("after").type
            self._table_columns = tuple(row.field(i).name for i in range(row.num_fields))
        self._initial_schema, self._table_uuid = initial_state.schema, initial_state.table_uuid
        self._added_columns = AddedColumns(initial_state, self._table_columns) if options.adds_new_columns else None
        self._last_ends: Mapping[int, int] | None = None
        self._required_columns: tuple[str, ...] = () if self._has_pushdown else self._table_columns
        """Columns that the query is known to read. Their change ends the query."""
        self._last_checked: tuple[TableSchema, tuple[str, ...]] = (initial_state.schema, self._required_columns)
        self._initial: StreamOffset | None = None
        self._ceiling: Mapping[int, int] | None = None
        self._ceiling_commit: int | None = None
        self._consumer_moved_ms: int | None = None
        self._history = StreamOffsetValidator(continues=options.continues_in_other_history)
        self._throttle: PollThrottle | None = None
        self._last_table: tuple[TableHandle, TableState] | None = None
        self._last_end: dict[str, Any] | None = None
        """End of the latest batch."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cached table: tasks never poll."""
        return {**self.__dict__, "_throttle": None, "_last_table": None}

    # -- positions ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start position of a new query. Spark calls this twice, and the position must be equal."""
        if self._initial is None:
            table, state = self._open_table()
            self._initial = self._initial_position(table, state)
            self._move_consumer(table, self._initial.offsets)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. PySpark before 4.2 passes neither ``start`` nor ``limit``, and reads all
        rows.

        With a limit, separate batches read the initial rows, file by file, before the changes. While Spark polls in a
        loop, the call waits until a poll is due (see `read.log_poller`). The returned end is never older than the call.
        """
        table, state = self._last_table = self._poll_table()
        newest = state.ends
        if self._ceiling is not None:
            newest = {bucket: min(end, self._ceiling.get(bucket, end)) for bucket, end in newest.items()}
        ends = newest if self._added_columns is None else self._added_columns.limit_ends(newest)
        if start is None:
            if ends == self._last_ends:  # Spark calls again after it processed these rows
                self._require_readable_columns(table, ends, newest)
            self._last_ends = ends
            self._last_end = self._first_end(table, state, ends)
        else:
            self._last_end = self._next_end(table, state, start, ends, newest, limit)
        return self._last_end

    def _first_end(self, table: TableHandle, state: TableState, ends: Mapping[int, int]) -> dict[str, Any]:
        """Return the end of a batch if Spark does not pass its start."""
        begin = self._initial
        if begin is None and needs_bootstrap(state, self._options):
            begin = self._initial_position(table, state)  # Spark requests the first end before the start
        truncation, history = last_truncation(state), state.anchors.rows
        if begin is None:
            return StreamOffset(table.uuid, ends, None, truncation, None, history).to_json()
        rows = begin.rows and begin.rows.read_to(begin.rows.num_files)
        start_point = self._start_point(state, begin)
        return StreamOffset(table.uuid, ends, begin.initial, truncation, rows, history, start_point).to_json()

    def _next_end(
        self,
        table: TableHandle,
        state: TableState,
        start: dict[str, Any],
        ends: Mapping[int, int],
        newest: Mapping[int, int],
        limit: Any,
    ) -> dict[str, Any]:
        """Return the end of the batch that starts at ``start``. Returns ``start`` if there are no new rows."""
        begin, truncation = self._parse_offset(table, start), last_truncation(state)
        require_same_rows(table.name, begin.truncation, truncation, strict=self._is_strict)
        max_rows, max_bytes = spark_versions.limit_rows_and_bytes(
            limit, self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        )
        is_limited = max_rows is not None or max_bytes is not None
        initial = begin.initial if begin.is_initial else None
        rows = begin.rows if begin.rows and not begin.rows.is_read and truncation == begin.truncation else None
        if rows is not None and is_limited:
            files = self._bootstrap_files(table, state, begin)[rows.num_read :]
            read = rows.num_read + count_files_within(files, max_rows=max_rows, max_bytes=max_bytes)
            rows = rows.read_to(read if files else rows.num_files)
            return replace(begin, initial=initial, truncation=truncation, rows=rows).to_json()
        starts = {b: max(begin.offsets.get(b, 0), state.first_offset(b)) for b in ends}
        ends = {bucket: max(end, starts[bucket]) for bucket, end in ends.items()}
        if is_limited:
            ends = limit_ends(state, starts, ends, max_rows=max_rows, max_bytes=max_bytes)
        is_same = ends == dict(begin.offsets) and truncation == begin.truncation and rows is None
        if is_same and not self._history.has_moved(start) and not self._has_deletions(state, begin):
            self._require_readable_columns(table, ends, newest)
            return start  # the same text means no new rows
        rows = rows and rows.read_to(rows.num_files)
        start_point = self._start_point(state, begin) if initial is not None else None
        return StreamOffset(table.uuid, ends, initial, truncation, rows, state.anchors.rows, start_point).to_json()

    def _require_readable_columns(self, table: TableHandle, ends: Mapping[int, int], newest: Mapping[int, int]) -> None:
        """Raise `SchemaMismatchError` if the query has processed all rows up to ``ends``, and later rows have new
        columns.
        """
        if self._added_columns is not None and self._added_columns.has_end and ends != newest:
            raise self._added_columns.error(table.name)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return spark_versions.read_limit(self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log at the last `latestOffset`, regardless of limits, for the query's progress."""
        _, state = self._last_table or self._open_table()
        return self._end_of_log(state)

    def _end_of_log(self, state: TableState) -> dict[str, Any]:
        truncation, history = last_truncation(state), state.anchors.rows
        return StreamOffset(state.table_uuid, state.ends, truncation=truncation, history=history).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the current end of the log as the end of the query. Later deletions do not start another batch."""
        state = self._open_table()[1]
        self._ceiling, self._ceiling_commit = state.ends, state.version

    def commit(self, end: dict[str, Any]) -> None:
        """Record ``end``, up to which Spark has processed all rows, as the position of the named consumer."""
        if self._options.consumer_id is not None:
            table, _ = self._open_table()
            self._move_consumer(table, self._parse_offset(table, end).offsets)

    # -- rows -----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch. Raises the errors of `plan_parts`."""
        return [TablePartition(part) for part in self.plan_parts(start, end, self._table_columns, Pruning())]

    def plan_parts(
        self, start: dict[str, Any], end: Mapping[str, Any], columns: Sequence[str], pruning: Pruning
    ) -> list[ScanPlan]:
        """Plan the parts of a batch with these table columns, without segments that have no matching rows.

        Segments of ``$binlog`` are never skipped, because each of its rows combines two log rows. Raises
        `OffsetsTrimmedError` if rows are in neither log nor lake or were truncated, and `SnapshotExpiredError` if
        initial rows are no longer retained.
        """
        table, state = self._refresh_table() if end == self._last_end else self._open_table()
        final = self._parse_offset(table, end)
        begin = self._parse_offset(table, start).begin_of_batch(final)
        if self._history.has_moved(start):
            begin = replace(begin, offsets={b: min(o, final.offsets.get(b, o)) for b, o in begin.offsets.items()})
        require_same_rows(table.name, begin.truncation, final.truncation, strict=self._is_strict)
        ranges = {
            bucket: OffsetRange(begin.offsets.get(bucket, 0), stop)
            for bucket, stop in final.offsets.items()
            if stop > begin.offsets.get(bucket, 0)
        }
        require_in_log(state, ranges)
        deleted = self._deletion_tasks(table, state, begin, final)
        dropped = None if self._has_change_type and state.primary_key else partition_drops_as_of(state, final.commit)
        state = self._apply_deletions(table, state, begin, final)
        first = self._bootstrap_tasks(table, state, begin, final)
        if self._is_binlog:
            earliest = first_change_offsets(state)
            extended_ranges = {
                b: OffsetRange(max(r.start - 1, min(r.start, earliest[b])), r.end) for b, r in ranges.items()
            }
            plan = plan_ranges(table, state, extended_ranges, self._table_columns, fail_on_data_loss=self._is_strict)
            bootstrap_parts = split_plan(replace(plan, tasks=tuple(first), binlog_start=0)) if first else []
            return bootstrap_parts + split_binlog(plan, {bucket: offsets.start for bucket, offsets in ranges.items()})
        plan = plan_ranges(table, state, ranges, columns, fail_on_data_loss=self._is_strict, dropped=dropped)
        return split_plan(replace(plan, tasks=(*first, *prune_tasks(state, plan.tasks, pruning), *deleted)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        rows = read_plan(self._connection, partition.plan(), self._metadata, fail_on_data_loss=self._is_strict)
        return self._spark_columns.batches(rows)

    # -- internals ------------------------------------------------------------------------------------------------

    def _poll_table(self) -> tuple[TableHandle, TableState]:
        """Return the result of `_open_table`. On an object store, if the query is waiting for rows, wait until a poll
        is due.
        """
        throttle = self._throttle
        if throttle is not None and throttle.is_spinning():
            throttle.wait()
            if throttle.is_unchanged():
                return throttle.table, throttle.state
        table, state = self._open_table()
        is_local = table.storage.local_path(table_prefix(table.uuid)) is not None
        self._throttle = None if is_local else PollThrottle(table, state, throttle)
        return table, state

    def _open_table(self) -> tuple[TableHandle, TableState]:
        """Refresh the table, and return it with its state. Callers must use this state, because concurrent calls may
        refresh the table further.

        The name is resolved each time, so that a recreated table is detected. Raises `SchemaMismatchError` if a column
        that the query reads was renamed, dropped or widened, because Spark keeps the columns of the query's start.
        """
        return self._check_columns(self._connection.table(self._table_name))

    def _refresh_table(self) -> tuple[TableHandle, TableState]:
        """Return the result of `_open_table` without resolving the name, which `latestOffset` did for this batch."""
        table = self._last_table[0] if self._last_table is not None else None
        try:
            if table is not None and not table.refresh().dropped:
                return self._check_columns(table)
        except DifferentHistoryError:  # `_parse_offset` raises the error for the reopened table
            pass
        return self._open_table()

    def _check_columns(self, table: TableHandle) -> tuple[TableHandle, TableState]:
        """Return a refreshed table and its state. Raises `SchemaMismatchError` as described in `_open_table`."""
        state = table.state
        if table.uuid != self._table_uuid:  # `_parse_offset` raises an error
            return table, state
        if self._added_columns is not None:
            self._added_columns.update(state)
        schema, (last_schema, last_required) = state.schema, self._last_checked
        if schema is last_schema and self._required_columns == last_required:
            return table, state
        advice = "restart the query: it continues from its checkpoint with the current columns"
        require_same_columns(self._initial_schema, schema, self._required_columns, f"a stream of {table.name}", advice)
        known_ids = {column.id for column in last_schema.columns}
        if added := [column.name for column in schema.columns if column.id not in known_ids]:
            text = "%s: this stream continues without the added columns %s; restart the query to read these columns"
            if self._added_columns is not None:
                text = "%s: the columns %s were added; this stream ends before the first rows with these columns"
            logger.warning(text, table.name, ", ".join(added))
        self._last_checked = (schema, self._required_columns)
        return table, state

    def _initial_position(self, table: TableHandle, state: TableState) -> StreamOffset:
        """Return the start position of a new query.

        Raises `SchemaMismatchError` if a column was added since the query was created, because initial rows may have
        values in the column at any offset.
        """
        if self._added_columns is not None and self._added_columns.has_new_columns:
            raise self._added_columns.error(table.name)
        return initial_offset(state, self._options, table.storage)

    def _parse_offset(self, table: TableHandle, data: Mapping[str, Any]) -> StreamOffset:
        return self._history.validate_position(table, StreamOffset.from_json(data, table.name, table.uuid))

    def _apply_deletions(
        self, table: TableHandle, state: TableState, begin: StreamOffset, end: StreamOffset
    ) -> TableState:
        """Return the state without deletions after the batch's end, because a repeated batch must read the same rows.

        Raises `OffsetsTrimmedError` if rows of earlier batches were deleted after the batch's start.
        """
        if not self._options.skips_change_commits and (begin.history is None or not self._reports_deletions(state)):
            advice = (
                "start it with a new checkpointLocation, continue after the deletion with skipChangeCommits=true, or "
                f"stream {state.name}$changelog, which reports deletions"
            )
            require_undeleted(state, begin.offsets, begin.commit, who="this stream", advice=advice)
        return limit_deletions(table.storage, state, end.commit)

    def _reports_deletions(self, state: TableState) -> bool:
        """Return whether the stream of a log table emits deletions of rows that it has already read."""
        return self._has_change_type and not state.primary_key and not self._options.skips_change_commits

    def _has_deletions(self, state: TableState, begin: StreamOffset) -> bool:
        """Return whether the stream reports deletions, and rows were deleted after the position."""
        last = state.version if self._ceiling_commit is None else self._ceiling_commit
        later_deletions = (d for d in state.deletions if d.commit > begin.commit and d.first_commit <= last)
        return self._reports_deletions(state) and any(later_deletions) and begin.commit < last

    def _start_point(self, state: TableState, begin: StreamOffset) -> HistoryPoint | None:
        """Return the record at the stream's start if the stream reports deletions."""
        return begin.start_history or begin.history if self._reports_deletions(state) else None

    def _deletion_tasks(
        self, table: TableHandle, state: TableState, begin: StreamOffset, end: StreamOffset
    ) -> tuple[ChangesScanTask, ...]:
        """Return tasks for rows before the batch that were deleted between its start and its end. Rows that were
        deleted before a batch read them are in no batch.
        """
        if begin.history is None or not self._reports_deletions(state) or not has_lost_rows(state):
            return ()
        from streamhouse_spark.read.change_feed.planning import plan_deletions  # imports the lake modules

        first = max(begin.commit, last_truncation(state)) + 1
        return plan_deletions(table, state, first, end.commit, begin.offsets)

    def _bootstrap_tasks(
        self, table: TableHandle, state: TableState, begin: StreamOffset, end: StreamOffset
    ) -> list[BootstrapScanTask]:
        """Return tasks for the initial rows of the batch. They precede the changes, for sinks that preserve order."""
        numbers = begin.files_before(end)
        if not numbers:
            return []
        if any(offset > end.offsets.get(bucket, 0) for bucket, offset in begin.offsets.items()):
            raise OffsetsTrimmedError(
                f"{table.name}: the first batch of this stream ends at {dict(end.offsets)}, but the log was trimmed "
                f"since, so the initial rows now end at {dict(begin.offsets)}; start the stream with a new "
                "checkpointLocation"
            )
        newest = last_truncation(state)
        require_same_rows(table.name, begin.truncation, newest, strict=self._is_strict)
        files = self._bootstrap_files(table, state, begin) if newest == begin.truncation else []
        return [BootstrapScanTask(file, begin.offsets[file.bucket]) for file in files[numbers.start : numbers.stop]]

    def _bootstrap_files(self, table: TableHandle, state: TableState, begin: StreamOffset) -> list[LogSplit]:
        """Return the files of ``begin.rows``. Returns no files if they were deleted and data loss is allowed."""
        try:
            return find_bootstrap_files(table, state, begin)
        except SnapshotExpiredError as error:
            if self._is_strict:
                raise
            logger.warning("%s: skipping the initial rows", error)
            return []

    def _move_consumer(self, table: TableHandle, offsets: Mapping[int, int]) -> None:
        consumer_id, now_ms = self._options.consumer_id, table.world.clock.boot_ms()
        if consumer_id is None:
            return
        if self._consumer_moved_ms is None or now_ms - self._consumer_moved_ms >= CONSUMER_MOVE_MS:
            move_consumer(table.log, consumer_id, offsets, table.require_not_dropped)
            self._consumer_moved_ms = now_ms


class PollThrottle:
    """Delays polls of a table without new commits. Not thread-safe, because a stream has one thread."""

    def __init__(self, table: TableHandle, state: TableState, previous: PollThrottle | None) -> None:
        self.table = table
        self.state = state
        self._clock = table.world.clock
        self._poller = poller_of(table)
        self._resolved_ms = self._polled_ms = self._clock.boot_ms()
        self._was_quiet = previous is not None and previous.state is state

    def is_spinning(self) -> bool:
        """Return whether Spark polls again immediately although the last poll found no new commit."""
        now_ms = self._clock.boot_ms()
        is_immediate = now_ms - self._polled_ms <= SPIN_MS
        return self._was_quiet and is_immediate and now_ms - self._resolved_ms < RESOLVE_MS

    def wait(self) -> None:
        """Wait until a poll is due."""
        while (wait_ms := self._poller.wait_ms()) > 0:
            self._clock.sleep_ms(wait_ms)

    def is_unchanged(self) -> bool:
        """Poll, and return whether the table is unchanged. An error counts as a change, and the caller's next read
        raises it.
        """
        try:
            state = self._poller.poll(self.state, self.table.refresh)
        except StreamhouseError:
            return False
        self._polled_ms = self._clock.boot_ms()
        return state is self.state
