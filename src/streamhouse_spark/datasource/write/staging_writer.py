"""Writes in Spark tasks: tasks stage rows as segments and return descriptions of them, which the driver commits.

A task opens the commit log only to allocate identity values. The driver determines schema, segment options and routing
when it plans the write.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from streamhouse_spark.core.arrow_rows import distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.expressions.check_constraints import Check
from streamhouse_spark.expressions.generated_columns import Generated
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.log.segments.multi_bucket_writer import group_into_objects, stage_shared_object
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_inline
from streamhouse_spark.log.staging import (
    INLINE_BYTES_MAX,
    BucketRouter,
    RowStager,
    StagedRows,
    inline_bytes_total,
    merge_staged_rows,
)
from streamhouse_spark.schema.column_defaults import evaluate_defaults, without_defaults
from streamhouse_spark.schema.conversion import refuse_column
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.identity import Identity
from streamhouse_spark.schema.row_conversion import convert_rows, convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.request_metrics import METER
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
    from streamhouse_spark.kv.change_staging import PreparedChanges

Message = TypeVar("Message", bound=WriterCommitMessage)
COUNTS_KEY = "streamhouse.counts"
TASK_INLINE_BYTES_MAX = 32 << 10
"""Maximum bytes of rows that a task returns to the driver, and that a record contains inline, instead of an object."""
CHUNK_BYTES = 128 << 20
"""Approximate bytes of rows that a task buffers before it stages them."""


@dataclass(frozen=True)
class StagedCommitMessage(WriterCommitMessage):
    """The staged files of one task, and the id of its streaming query."""

    staged: StagedRows | None
    query_id: str | None = None
    prepared: tuple[PreparedChanges, ...] = ()
    """Prepared changes of buckets of a primary-key table, from the staged rows."""
    history: HistoryPoint | None = None
    """The latest log record when the write was planned."""
    partitions: pa.Table | None = None
    """The distinct partitions of the rows; only for a write that replaces partitions."""
    counts: str = ""
    """Task metrics for Spark's UI. Java reads them from the last text in the pickled message."""


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """Everything that a task needs to stage rows of a table."""

    connection: Connection
    table: str
    table_uuid: str
    schema: TableSchema
    segment_options: SegmentOptions
    routing: BucketRouter
    history: HistoryPoint | None
    replaced: ReplacedPart | None = None
    checks: tuple[Check, ...] = ()
    generated: tuple[Generated, ...] = ()
    now: StatementContext | None = None
    """Values of functions in column defaults, which are equal for all rows of the statement."""
    identity: Identity | None = None
    keeps_given: bool = False
    """Whether the rows were read from this table and keep their identity values."""

    @classmethod
    def of(cls, connection: Connection, table: Table, replaced: ReplacedPart | None = None) -> StagingPlan:
        state = table.state
        properties = state.parsed
        routing = BucketRouter.of(state.num_buckets, properties)
        segment_options, newest = table.segment_options(state), state.anchors.newest
        of_rows = (properties.checks, properties.generated, StatementContext.of(table.world), properties.identity)
        return cls(
            connection, table.name, table.uuid, state.schema, segment_options, routing, newest, replaced, *of_rows
        )

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        query_id: str | None = None,
        *,
        inline_bytes_max: int = TASK_INLINE_BYTES_MAX,
        num_updated: int = 0,
    ) -> StagedCommitMessage:
        """Stage all rows of a task. When this returns, they are durable but not visible. The first ``num_updated`` rows
        are post-images of updates.

        Raises `SchemaMismatchError` for values that do not fit.
        """
        numbers = make_identity_ranges(self.connection, self.table, self.table_uuid, self.identity)
        stager = make_stager(
            self.connection,
            self.table_uuid,
            self.segment_options,
            self.routing,
            inline_bytes_max=inline_bytes_max,
            checks=self.checks,
            generated=self.generated,
            numbers=numbers,
            keeps_given=self.keeps_given,
            table=self.table,
        )
        parts, partitions = [], []
        schema = self.schema if self.now is None else evaluate_defaults(self.schema, self.now)
        for chunk in iter_chunks(batches):
            rows, missing = convert_rows(chunk, schema, table=self.table)
            if self.replaced is not None:
                rows = stager.fill_generated(rows)  # partitions may be generated
                partitions.append(self.replaced.partitions_of_rows(rows, self.schema, self.table))
            updated = min(num_updated, rows.num_rows)
            parts.append(stager.stage(rows, missing, updated))
            num_updated -= updated
        staged = merge_staged_rows(parts) if parts else None
        history = self.history if numbers is None else numbers.newest
        return StagedCommitMessage(staged, query_id, history=history, partitions=concat_partitions(partitions))


def with_task_metrics(stage: Callable[[], StagedCommitMessage]) -> StagedCommitMessage:
    """Return the message of ``stage`` with the number of segments, and of store requests by this process meanwhile."""
    before = METER.total()
    message = stage()
    segments = message.staged.segments if message.staged is not None else ()
    return replace(message, counts=format_counts(segments, (METER.total() - before).total))


def format_counts(segments: Sequence[StagedSegment], num_requests: int) -> str:
    """Format task metrics as the text that Java parses."""
    counts = {
        "segmentsWritten": len(segments),
        "bytesWritten": sum(staged.segment.size_bytes for staged in segments),
        "storeRequests": num_requests,
    }
    return COUNTS_KEY + json.dumps(counts)


def concat_partitions(partitions: Sequence[pa.Table]) -> pa.Table | None:
    """Merge the partitions that `ReplacedPart.partitions_of_rows` returned for the chunks of a task."""
    return distinct_rows(pa.concat_tables(partitions)) if partitions and partitions[0].num_columns else None


def make_stager(
    connection: Connection, table_uuid: str, segment_options: SegmentOptions, routing: BucketRouter, **options: Any
) -> RowStager:
    warehouse = connection.warehouse()
    return RowStager(warehouse.storage, table_uuid, segment_options, routing, warehouse.world, **options)


def make_identity_ranges(
    connection: Connection, table: str, table_uuid: str, identity: Identity | None
) -> IdentityRanges | None:
    """Return the allocator of identity values for a task. Returns None if the table has no identity column."""
    if identity is None:
        return None
    return IdentityRanges(connection.table_by_uuid(table, table_uuid).log, identity, table)


def iter_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= CHUNK_BYTES:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def require_fitting_columns(frame: pa.Schema, schema: TableSchema, older: Mapping[int, TableSchema], name: str) -> None:
    """Raise `SchemaMismatchError` for an unknown or missing column, and for a type whose values never fit."""
    names = {field.name.casefold() for field in frame}
    for column in schema.columns:
        if not column.nullable and column.default is None and column.name.casefold() not in names:
            refuse_column(
                name, column.name, f"is NOT NULL and missing in the rows, which have {', '.join(frame.names)}"
            )
    plain = pa.schema([field.remove_metadata() for field in frame])
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in plain], schema=plain)  # does not load pandas
    convert_to_schema(empty, without_defaults(schema), table=name, older=older)


def require_messages(messages: Sequence[WriterCommitMessage | None], kind: type[Message]) -> list[Message]:
    """Return the messages of all tasks. Raises `CommitConflictError` if a task has no message."""
    task_messages = [m for m in messages if isinstance(m, kind)]
    if len(task_messages) != len(messages):
        raise CommitConflictError("a task of this write returned no result; nothing was written, retry the write")
    return task_messages


def require_planned(table: Table, messages: Sequence[StagedCommitMessage]) -> None:
    """Raise `DifferentHistoryError` if the table was restored from a backup since the write was planned.

    The restore may have removed the staged files. Rows staged for an earlier table of the same name are rejected by the
    commit.
    """
    own = (m.history for m in messages if m.staged is None or m.staged.table_uuid == table.uuid)
    table.log.require_history(own, f"a write to {table.name} was planned")


def require_same_table(table: Table, staged: StagedRows) -> None:
    """Raise `CommitConflictError` if the rows were staged for an earlier table of the same name."""
    if staged.table_uuid != table.uuid:
        raise CommitConflictError(
            f"rows were staged for table {staged.table_uuid}, but {table.name} is now {table.uuid}: it was dropped and "
            "created again; nothing was written, retry the write"
        )


def merge_staged_messages(messages: Sequence[StagedCommitMessage]) -> StagedRows | None:
    """Return the staged files of all tasks in order. Returns None if no task had a row."""
    parts = [message.staged for message in messages if message.staged is not None]
    return merge_staged_rows(parts) if parts else None


def combine_staged_rows(table: Table, messages: Sequence[StagedCommitMessage]) -> StagedRows | None:
    """Combine the staged files of all tasks. Returns None if no task had a row.

    Inline rows of several tasks become one inline segment per bucket, or objects if they are too large for a commit
    record. So record size and segment count do not grow with the number of tasks. Raises `CommitConflictError` if the
    rows were staged for another table.
    """
    parts = [message.staged for message in messages if message.staged is not None and message.staged.segments]
    if not parts:
        return None
    staged = merge_staged_rows(parts)
    require_same_table(table, staged)
    inline: dict[int, list[StagedSegment]] = defaultdict(list)
    for segment in staged.segments:
        if segment.inline_rows is not None:
            inline[segment.segment.bucket].append(segment)
    inline_bytes = sum(len(s.inline_rows or b"") for bucket_segments in inline.values() for s in bucket_segments)
    fits = inline_bytes <= inline_bytes_total(INLINE_BYTES_MAX, table.num_buckets)
    if fits and all(len(bucket_segments) == 1 for bucket_segments in inline.values()):
        return staged
    if staged.schema_id not in table.state.schemas:
        table.refresh()  # another process on the driver planned the write with a newer schema
    rows = (
        (bucket, _concat_tables(table, staged, bucket_segments)) for bucket, bucket_segments in sorted(inline.items())
    )
    segment_options = table.segment_options(table.state).of_schema(staged.schema_id, table.state.schemas)
    if fits:
        combined = [stage_inline(part, bucket, segment_options) for bucket, part in rows]
    else:
        combined = []
        for group in group_into_objects(rows, lambda part: part[1].nbytes):
            combined += stage_shared_object(
                table.storage, table.uuid, table.world.ids.new_uuid(), group, segment_options
            )
    objects = [s for s in staged.segments if s.inline_rows is None]
    return replace(staged, segments=(*objects, *combined))


def _concat_tables(table: Table, staged: StagedRows, bucket_segments: list[StagedSegment]) -> pa.Table:
    schema = table.state.schemas[staged.schema_id].arrow
    return pa.Table.from_batches(
        [pa.ipc.read_record_batch(pa.py_buffer(s.inline_rows), schema) for s in bucket_segments]
    )
