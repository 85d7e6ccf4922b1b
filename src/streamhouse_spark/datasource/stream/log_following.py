"""The start of a real-time batch: the existing rows, and the record after them from which Java follows the commit log.

A real-time batch has no end when it starts. At the start, Python reports once which bytes hold the existing rows of
each bucket, and how rows of each schema map to Spark's columns. From there, Java reads appends from new records by
itself. A record with any other change of rows or columns ends the batch. Python interprets that record at the start of
the next batch, as for micro-batches.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.catalog.scan.log_files import MICRO_BATCH_ADVICE
from streamhouse_spark.datasource.stream.bootstrap import last_truncation
from streamhouse_spark.datasource.stream.checkpoint_validation import StreamHistory
from streamhouse_spark.datasource.stream.micro_batch_stream import position_commit, require_in_log, require_same_rows
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.commits.delete_vectors import DROPPED_FILE_ROWS, DROPPED_ROWS
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.metadata_columns import BUCKET, CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ROW_ID
from streamhouse_spark.log.segments.row_ids import first_row_id
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.read.delete_filter import partition_drops_as_of, require_undeleted
from streamhouse_spark.read.offset_range_scan import plan_range_tasks
from streamhouse_spark.read.scan_tasks import ArchiveScanTask, LogScanTask
from streamhouse_spark.schema.evolution import has_same_storage, require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema

SEGMENTS_MAX: Final = 1_000
"""Maximum segments per batch. A batch with fewer segments than exist ends after them."""
IGNORED_ACTIONS: Final = (
    "append",
    "append-parts",
    "replace",
    "replace-parts",
    "lake",
    "properties",
    "properties-checked",
    "rename",
    "trim",
    "condemn",
    "purge",
    "kv",
    "kv-parts",
    "forget",
    "expire",
    "consumer",
    "tag",
    "untag",
    "archive",
    DROPPED_ROWS,
    DROPPED_FILE_ROWS,
)
"""Actions that change neither columns nor existing rows: readers skip them."""
CATCH_UP_ADVICE: Final = (
    "run the query once with trigger(availableNow=True) and its checkpoint, then with the real-time trigger"
)


@dataclass(frozen=True, slots=True)
class InitialBacklog:
    """The start position of a batch, and all log rows after it."""

    begin: StreamOffset
    splits: Mapping[int, LogSplit]
    """Bucket → its rows; buckets without rows are absent."""
    state: TableState
    is_whole: bool
    """Whether the splits hold all rows, so that the reader can follow the log."""


def require_followable(name: str, options: StreamReadOptions) -> None:
    """Raise `InvalidOptionError` for an option that real-time mode does not support."""
    if options.adds_new_columns:
        raise InvalidOptionError(
            f"option schemaEvolutionMode=addNewColumns of a stream of {name} in real-time mode: a batch there cannot "
            f"end before rows that have new columns; leave the option out, or {MICRO_BATCH_ADVICE}"
        )
    if options.max_offsets_per_trigger is not None or options.max_bytes_per_trigger is not None:
        raise InvalidOptionError(
            f"options maxOffsetsPerTrigger and maxBytesPerTrigger of a stream of {name} in real-time mode: a batch "
            f"there takes the rows that come while it lasts; leave them out, or {MICRO_BATCH_ADVICE}"
        )


def plan_backlog(
    table: TableHandle,
    state: TableState,
    query_schema: TableSchema,
    columns: Sequence[str],
    start: StreamOffset,
    options: StreamReadOptions,
    *,
    tells_changes: bool,
) -> InitialBacklog:
    """Return the rows after a position, for a query of these ``columns`` of ``query_schema``.

    Raises the errors that end a micro-batch stream: `SchemaMismatchError`, `OffsetsTrimmedError`,
    `DifferentHistoryError`, `InvalidOptionError`. Also raises `InvalidOptionError` for rows that only Python can read.
    """
    name = table.name
    advice = "restart the query: it continues from its checkpoint with the current columns"
    require_same_columns(query_schema, state.schema, columns, f"a stream of {name}", advice)
    begin = StreamHistory(continues=options.continues_in_other_history).validate_position(table, start)
    strict = options.fail_on_data_loss
    newest = last_truncation(state)
    require_same_rows(name, begin.truncation, newest, strict=strict)
    if begin.rows is not None and not begin.rows.is_read and begin.truncation == newest:
        raise InvalidOptionError(
            f"a stream of {name} begins with rows of its snapshots by key, which real-time mode cannot read; "
            f"{CATCH_UP_ADVICE}"
        )
    require_in_log(state, {b: OffsetRange(0, end) for b, end in begin.offsets.items() if end > 0})
    if not options.skips_change_commits:
        advice = "start it with a new checkpointLocation, or go on behind the deletion with skipChangeCommits=true"
        if tells_changes:
            advice = (
                f"{CATCH_UP_ADVICE}: micro-batches tell of deletions; or go on behind this one with "
                "skipChangeCommits=true"
            )
        require_undeleted(state, begin.offsets, position_commit(begin), who="this stream", advice=advice)
    starts = {b: max(begin.offsets.get(b, 0), state.first_offset(b)) for b in state.buckets}
    ranges = {b: OffsetRange(o, state.buckets[b].end) for b, o in starts.items() if o < state.buckets[b].end}
    dropped = None if tells_changes and state.primary_key else partition_drops_as_of(state, state.version)
    pieces = plan_range_tasks(state, ranges, fail_on_data_loss=strict, dropped=dropped)
    splits: dict[int, LogSplit] = {}
    for piece in pieces:
        if not isinstance(piece, LogScanTask):
            is_archived = isinstance(piece, ArchiveScanTask)
            where, other = ("the archive of changes", "latest") if is_archived else ("the lake", "earliest")
            raise InvalidOptionError(
                f"a stream of {name} begins with rows that are in {where} only, which real-time mode cannot read; "
                f"{CATCH_UP_ADVICE}, or begin at startingOffsets={other}"
            )
        splits[piece.split.bucket] = piece.split
    starts = {bucket: max(start, state.buckets[bucket].start) for bucket, start in starts.items()}  # after skipped rows
    begin = StreamOffset(table.uuid, starts, truncation=newest, history=state.anchors.rows)
    chosen, is_whole = _limit_segments(splits)
    return InitialBacklog(begin, chosen, state, is_whole)


def _limit_segments(splits: Mapping[int, LogSplit]) -> tuple[dict[int, LogSplit], bool]:
    """Return the first segments of each bucket, limited to one batch, and whether these are all."""
    share = max(1, SEGMENTS_MAX // max(1, len(splits)))
    cut = {b: LogSplit(s.table_uuid, b, s.offsets, s.segments[:share], s.schemas, s.deleted) for b, s in splits.items()}
    return cut, all(len(split.segments) <= share for split in splits.values())


def describe_tasks(
    initial: InitialBacklog,
    table: TableHandle,
    folder: str,
    query_schema: TableSchema,
    columns: Sequence[str],
    num_tasks: int,
) -> list[Any]:
    """Describe each task for Java: it follows some buckets of the log in ``folder``."""
    state = initial.state
    shared = {
        "folder": folder,
        "uuid": table.uuid,
        "next": state.version + 1,
        "attempt": state.attempt,
        "mark": list(initial.begin.history) if initial.begin.history is not None else None,
        "follows": initial.is_whole,
        "passes": list(IGNORED_ACTIONS),
        "kinds": [kind.name.lower() for kind in ChangeType],
        "layouts": _describe_layouts(initial, table.name, query_schema, columns),
    }
    buckets = [_describe_bucket(initial, bucket) for bucket in sorted(initial.begin.offsets)]
    return [{**shared, "buckets": buckets[i::num_tasks]} for i in range(min(num_tasks, len(buckets)))]


def _describe_bucket(initial: InitialBacklog, bucket: int) -> dict[str, Any]:
    split = initial.splits.get(bucket)
    runs = split.deleted if split is not None else None
    return {
        "bucket": bucket,
        "offset": initial.begin.offsets[bucket],
        "row_id": first_row_id(bucket),
        "segments": [_describe_segment(segment) for segment in split.segments] if split is not None else [],
        "deleted": [runs.starts.tolist(), (runs.starts + runs.lengths).tolist()] if runs else [[], []],
    }


def _describe_segment(segment: Segment) -> dict[str, Any]:
    described = segment.to_json()
    for name in ("stats", "partitions"):
        described.pop(name, None)
    return {**described, "sums": base64.b64encode(segment.index_bytes).decode()}


def _describe_layouts(
    initial: InitialBacklog, name: str, query_schema: TableSchema, columns: Sequence[str]
) -> dict[str, Any]:
    """Describe the rows of each schema in the log: the Arrow schema and the positions of Spark's columns.

    Raises `InvalidOptionError` for rows whose column types differ from the query's.
    """
    state = initial.state
    ids = {state.schema_id, *(s.schema_id for split in initial.splits.values() for s in split.segments)}
    layouts: dict[str, Any] = {}
    for schema_id in sorted(ids):
        written = state.written_schema(schema_id)
        places = {column.id: i for i, column in enumerate(written.columns)}
        chosen: list[Any] = []
        for column_name in columns:
            if column_name in _PLACES:
                chosen.append(column_name)
                continue
            column = query_schema.column(column_name)
            at = places.get(column.id)
            if at is not None and not has_same_storage(written.columns[at], column):
                raise InvalidOptionError(
                    f"a stream of {name} begins with rows whose column '{column_name}' had another type when they were "
                    f"written, which real-time mode cannot read; {CATCH_UP_ADVICE}"
                )
            chosen.append(-1 if at is None else at)
        arrow = base64.b64encode(written.arrow.serialize().to_pybytes()).decode()
        layouts[str(schema_id)] = {"arrow": arrow, "columns": chosen}
    return layouts


_PLACES: Final = frozenset(field.name for field in (CHANGE_TYPE, BUCKET, LOG_OFFSET, COMMIT_TIMESTAMP, ROW_ID))
