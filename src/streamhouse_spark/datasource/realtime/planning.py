"""Planning of real-time streams: the existing rows, and the first record from which Java follows the commit log.

A real-time batch has no end when it starts. At the start, Python describes which bytes contain the existing rows of
each bucket, and how rows of each schema map to Spark's columns. After them, Java itself reads the rows of appends from
new records. A record with any other change of rows or columns ends the batch. Python interprets that record at the
start of the next batch, as for micro-batches.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.rpc_arguments import require_loaded_table
from streamhouse_spark.datasource.scan.catalog_options import parse_catalog_stream_options
from streamhouse_spark.datasource.scan.file_systems import MICRO_BATCH_ADVICE, LogFolder, log_folder
from streamhouse_spark.datasource.scan.pushed_filters import METADATA_TYPES
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.stream.bootstrap import initial_offset
from streamhouse_spark.datasource.stream.stream_offset import (
    StreamOffset,
    StreamOffsetValidator,
    last_truncation,
    require_in_log,
    require_same_rows,
)
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.consumers import move_consumer
from streamhouse_spark.log.deletion_vectors import DROPPED_FILE_ROWS, DROPPED_ROWS
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.metadata_columns import COMMIT_VERSION, first_row_id
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import partition_drops_as_of, plan_range_tasks, require_undeleted
from streamhouse_spark.read.scan_tasks import ArchiveScanTask, LogScanTask
from streamhouse_spark.schema.evolution import has_same_storage, require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

SEGMENTS_MAX: Final = 1_000
"""Maximum number of existing segments per batch. If there are more, the batch ends after these."""
ALLOWED_ACTIONS: Final = (
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
"""Actions that change neither columns nor existing rows. Java reads the rows of appends, and skips all others."""
CATCH_UP_ADVICE: Final = (
    "run the query once with trigger(availableNow=True) and its checkpoint, then with the real-time trigger"
)
_HIDDEN_COLUMNS: Final = METADATA_TYPES.keys() - {COMMIT_VERSION.name}
"""Hidden columns, which log rows do not store."""


@dataclass(frozen=True, slots=True)
class _Stream:
    name: str
    suffix: str | None
    table: TableHandle
    state: TableState
    options: StreamReadOptions
    log: LogFolder


def begin_real_time(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the start ``offset`` of a new query, and its columns as ``initial_schema``.

    Raises the errors of `require_real_time_options` and `resolve_stream_target`.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    stream = _open_stream(connection, args, snapshot)
    resolve_stream_target(stream.table, stream.suffix, stream.options)
    _, state = open_at_snapshot(connection, snapshot)
    offset = initial_offset(stream.state, stream.options)
    return {"offset": offset.to_json(), "initial_schema": json.dumps(state.schema.to_json())}


def plan_real_time_batch(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``tasks`` of a batch that begins at ``start``, and the position of the batch as ``offset``.

    ``initial_schema`` contains the columns of the query; it is null for the first batch. Raises the errors of
    `plan_backlog`, and `InvalidOptionError` for more tasks than can run concurrently.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    stream = _open_stream(connection, args, snapshot)
    initial_schema = (
        open_at_snapshot(connection, snapshot)[1].schema
        if args["initial_schema"] is None
        else TableSchema.from_json(json.loads(args["initial_schema"]))
    )
    start = StreamOffset.from_json(args["start"], stream.table.name, stream.table.uuid)
    columns = tuple(args["columns"])
    table_columns = [name for name in columns if initial_schema.find(name) is not None]
    initial_backlog = plan_backlog(
        stream.table,
        stream.state,
        initial_schema,
        table_columns,
        start,
        stream.options,
        has_change_types=stream.suffix == CHANGELOG and not stream.state.primary_key,
    )
    num_tasks = _num_tasks(stream, initial_backlog, args["parallelism"], args["tasks"], args["taken"])
    return {
        "offset": initial_backlog.begin.to_json(),
        "initial_schema": json.dumps(initial_schema.to_json()),
        "tasks": describe_tasks(initial_backlog, stream.table, stream.log.folder, initial_schema, columns, num_tasks),
        "file_systems": [setting.to_json() for setting in stream.log.settings],
    }


def finish_real_time(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record ``end``, up to which a query has processed all rows, as the position of its named consumer.

    See `move_consumer` for the commit point.
    """
    stream = _open_stream(connection, args, QuerySnapshot.from_text(args["snapshot"]))
    end = StreamOffset.from_json(args["end"], stream.table.name, stream.table.uuid)
    if stream.options.consumer_id is not None:
        move_consumer(stream.table.log, stream.options.consumer_id, end.offsets, stream.table.require_not_dropped)
    return {}


def _open_stream(connection: Connection, args: Mapping[str, Any], snapshot: QuerySnapshot) -> _Stream:
    """Open the table by name and refresh it, so that a recreated table is detected."""
    name = parse_table_name(snapshot.name)
    options = parse_catalog_stream_options(snapshot.name, args["options"])
    if name.suffix == BINLOG:
        raise InvalidOptionError(
            f"{snapshot.name} combines two log rows in a row, which real-time mode does not support; stream "
            f"{snapshot.table}$changelog, or {MICRO_BATCH_ADVICE}"
        )
    table = connection.table(str(name.path))
    state = table.state
    require_loaded_table(table.name, table.uuid, snapshot.uuid)
    require_real_time_options(snapshot.name, options)
    log = log_folder(table, snapshot.name, args["native_schemes"], args["hadoop_version"])
    return _Stream(snapshot.name, name.suffix, table, state, options, log)


def _num_tasks(stream: _Stream, initial_backlog: InitialBacklog, slots: int, num_needed: int, num_running: int) -> int:
    """Return the number of tasks. Raises `InvalidOptionError` if the query needs more slots than the session has,
    because Spark would silently delay rows.

    ``num_needed`` counts the tasks of all sources in the query's plan, ``num_running`` the tasks of other running
    queries.
    """
    num_tasks = min(stream.options.real_time_tasks, len(initial_backlog.begin.offsets))
    if num_tasks > slots:
        raise InvalidOptionError(
            f"a stream of {stream.name} with realTimeTasks={stream.options.real_time_tasks} needs {num_tasks} "
            f"concurrent tasks, but this session has {slots} slots; add cores, or set a smaller realTimeTasks"
        )
    if num_needed > slots:
        raise InvalidOptionError(
            f"a query that reads {stream.name} and other streams in real-time mode needs {num_needed} concurrent "
            f"tasks, but this session has {slots} slots, so it would never read some streams; add cores, or set a "
            "smaller realTimeTasks for these streams"
        )
    num_together = num_running + max(num_tasks, num_needed)
    if num_together > slots:
        raise InvalidOptionError(
            f"a query that reads {stream.name} in real-time mode needs {num_together} concurrent tasks, including "
            f"{num_running} of running real-time queries, but this session has {slots} slots, so some queries would "
            f"never read rows; use {num_together} cores, set a smaller realTimeTasks, or stop another query first"
        )
    return num_tasks


@dataclass(frozen=True, slots=True)
class InitialBacklog:
    """The start position of a batch, and the existing log rows after it."""

    begin: StreamOffset
    splits: Mapping[int, LogSplit]
    """Bucket → its rows; buckets without rows are absent."""
    state: TableState
    is_whole: bool
    """Whether the splits contain all existing rows, so that the reader can follow the log after them."""


def require_real_time_options(name: str, options: StreamReadOptions) -> None:
    """Raise `InvalidOptionError` for an option that real-time mode does not support."""
    if options.adds_new_columns:
        raise InvalidOptionError(
            f"option schemaEvolutionMode=addNewColumns of a stream of {name} is not supported in real-time mode, "
            f"because a batch cannot end before rows with new columns; omit the option, or {MICRO_BATCH_ADVICE}"
        )
    if options.max_offsets_per_trigger is not None or options.max_bytes_per_trigger is not None:
        raise InvalidOptionError(
            f"options maxOffsetsPerTrigger and maxBytesPerTrigger of a stream of {name} are not supported in real-time "
            f"mode, because a batch reads all rows that arrive while it runs; omit them, or {MICRO_BATCH_ADVICE}"
        )


def plan_backlog(
    table: TableHandle,
    state: TableState,
    query_schema: TableSchema,
    columns: Sequence[str],
    start: StreamOffset,
    options: StreamReadOptions,
    *,
    has_change_types: bool,
) -> InitialBacklog:
    """Return the rows after a position, for a query of these ``columns`` of ``query_schema``.

    Raises the errors that end a micro-batch stream: `SchemaMismatchError`, `OffsetsTrimmedError`,
    `DifferentHistoryError`, `InvalidOptionError`. Also raises `InvalidOptionError` for rows that only Python can read.
    """
    name = table.name
    advice = "restart the query: it continues from its checkpoint with the current columns"
    require_same_columns(query_schema, state.schema, columns, f"a stream of {name}", advice)
    begin = StreamOffsetValidator(continues=options.continues_in_other_history).validate_position(table, start)
    strict = options.fail_on_data_loss
    newest = last_truncation(state)
    require_same_rows(name, begin.truncation, newest, strict=strict)
    if begin.rows is not None and not begin.rows.is_read and begin.truncation == newest:
        raise InvalidOptionError(
            f"a stream of {name} starts with rows of key snapshots, which real-time mode cannot read; {CATCH_UP_ADVICE}"
        )
    require_in_log(state, {b: OffsetRange(0, end) for b, end in begin.offsets.items() if end > 0})
    if not options.skips_change_commits:
        advice = "start it with a new checkpointLocation, or continue after the deletion with skipChangeCommits=true"
        if has_change_types:
            advice = (
                f"{CATCH_UP_ADVICE}, because micro-batches report deletions; or continue after the deletion with "
                "skipChangeCommits=true"
            )
        require_undeleted(state, begin.offsets, begin.commit, who="this stream", advice=advice)
    starts = {b: max(begin.offsets.get(b, 0), state.first_offset(b)) for b in state.buckets}
    ranges = {b: OffsetRange(o, state.buckets[b].end) for b, o in starts.items() if o < state.buckets[b].end}
    dropped = None if has_change_types and state.primary_key else partition_drops_as_of(state, state.version)
    pieces = plan_range_tasks(state, ranges, fail_on_data_loss=strict, dropped=dropped)
    splits: dict[int, LogSplit] = {}
    for piece in pieces:
        if not isinstance(piece, LogScanTask):
            is_archived = isinstance(piece, ArchiveScanTask)
            where, other = ("the change archive", "latest") if is_archived else ("the lake", "earliest")
            raise InvalidOptionError(
                f"a stream of {name} starts with rows that are only in {where}, which real-time mode cannot read; "
                f"{CATCH_UP_ADVICE}, or set startingOffsets={other}"
            )
        splits[piece.split.bucket] = piece.split
    starts = {bucket: max(start, state.buckets[bucket].start) for bucket, start in starts.items()}  # after skipped rows
    begin = StreamOffset(table.uuid, starts, truncation=newest, history=state.anchors.rows)
    chosen, is_whole = _limit_segments(splits)
    return InitialBacklog(begin, chosen, state, is_whole)


def _limit_segments(splits: Mapping[int, LogSplit]) -> tuple[dict[int, LogSplit], bool]:
    """Return the first segments of each bucket, limited for one batch, and whether these are all segments."""
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
    """Describe the tasks for Java. Each task follows some buckets of the log in ``folder``."""
    state = initial.state
    shared = {
        "folder": folder,
        "uuid": table.uuid,
        "next": state.version + 1,
        "attempt": state.attempt,
        "mark": list(initial.begin.history) if initial.begin.history is not None else None,
        "follows": initial.is_whole,
        "allowed_actions": list(ALLOWED_ACTIONS),
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
            if column_name in _HIDDEN_COLUMNS:
                chosen.append(column_name)
                continue
            column = query_schema.column(column_name)
            at = places.get(column.id)
            if at is not None and not has_same_storage(written.columns[at], column):
                raise InvalidOptionError(
                    f"a stream of {name} starts with rows that were written before the type of column '{column_name}' "
                    f"changed, which real-time mode cannot read; {CATCH_UP_ADVICE}"
                )
            chosen.append(-1 if at is None else at)
        arrow = base64.b64encode(written.arrow.serialize().to_pybytes()).decode()
        layouts[str(schema_id)] = {"arrow": arrow, "columns": chosen}
    return layouts
