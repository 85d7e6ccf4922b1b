"""Calls of real-time streams: start, work of the tasks, and position of the consumer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource.catalog.scan.log_files import MICRO_BATCH_ADVICE, LogFolder, log_folder
from streamhouse_spark.datasource.catalog.scan.options import parse_catalog_stream_options
from streamhouse_spark.datasource.catalog.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.read.table_reference import resolve_stream_target
from streamhouse_spark.datasource.stream.bootstrap import initial_offset
from streamhouse_spark.datasource.stream.log_following import (
    InitialBacklog,
    describe_tasks,
    plan_backlog,
    require_followable,
)
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.consumers import move_consumer
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG
from streamhouse_spark.warehouse.process_cache import Connection


@dataclass(frozen=True, slots=True)
class _Stream:
    """A refreshed table and the options of a stream of it."""

    name: str
    suffix: str | None
    table: TableHandle
    state: TableState
    options: StreamReadOptions
    log: LogFolder


def begin_real_time(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer the start ``offset`` of a new query and its columns as ``begun``.

    Raises as `require_followable` and `resolve_stream_target` do.
    """
    pin = QuerySnapshot.from_text(args["pin"])
    stream = _open_stream(connection, args, pin)
    resolve_stream_target(stream.table, stream.suffix, stream.options)
    _, state = open_at_snapshot(connection, pin)
    offset = initial_offset(stream.state, stream.options)
    return {"offset": offset.to_json(), "begun": json.dumps(state.schema.to_json())}


def follow_log(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer the ``tasks`` of a batch that begins at ``start``, and its position as ``offset``.

    ``begun`` has the columns of the query, or is null at its first batch. Raises as `plan_backlog` does, and
    `InvalidOptionError` for more tasks than can run at once.
    """
    pin = QuerySnapshot.from_text(args["pin"])
    stream = _open_stream(connection, args, pin)
    initial_schema = (
        open_at_snapshot(connection, pin)[1].schema
        if args["begun"] is None
        else TableSchema.from_json(json.loads(args["begun"]))
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
        tells_changes=stream.suffix == CHANGELOG and not stream.state.primary_key,
    )
    num_tasks = _num_tasks(stream, initial_backlog, args["parallelism"], args["tasks"], args["taken"])
    return {
        "offset": initial_backlog.begin.to_json(),
        "begun": json.dumps(initial_schema.to_json()),
        "tasks": describe_tasks(initial_backlog, stream.table, stream.log.folder, initial_schema, columns, num_tasks),
        "file_systems": [setting.to_json() for setting in stream.log.settings],
    }


def finish_real_time(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record that a query processed everything below ``end``, as the position of its named consumer.

    The commit point is that of `move_consumer`.
    """
    stream = _open_stream(connection, args, QuerySnapshot.from_text(args["pin"]))
    end = StreamOffset.from_json(args["end"], stream.table.name, stream.table.uuid)
    if stream.options.consumer_id is not None:
        move_consumer(stream.table.log, stream.options.consumer_id, end.offsets, stream.table.require_not_dropped)
    return {}


def _open_stream(connection: Connection, args: Mapping[str, Any], pin: QuerySnapshot) -> _Stream:
    """Open the table by name and refresh it, so that a recreated table is noticed."""
    name = parse_table_name(pin.name)
    options = parse_catalog_stream_options(pin.name, args["options"])
    if name.suffix == BINLOG:
        raise InvalidOptionError(
            f"{pin.name} has two rows of the log in one, which real-time mode cannot read; stream "
            f"{pin.table}$changelog, or {MICRO_BATCH_ADVICE}"
        )
    table = connection.table(str(name.path))
    state = table.state
    if table.uuid != pin.uuid:
        raise TableNotFoundError(
            f"table {table.name} ({pin.uuid}) was dropped and created again since this query was made; run the query "
            "again, a stream with a new checkpoint",
        )
    require_followable(pin.name, options)
    log = log_folder(table, pin.name, args["native_schemes"], args["hadoop_version"])
    return _Stream(pin.name, name.suffix, table, state, options, log)


def _num_tasks(stream: _Stream, initial_backlog: InitialBacklog, slots: int, num_needed: int, num_running: int) -> int:
    """Return the number of tasks. Raises `InvalidOptionError` if the query needs more slots than the session has,
    because Spark would silently delay rows. ``num_needed`` counts the tasks of all sources in the query's plan,
    ``num_running`` those of other running queries.
    """
    num_tasks = min(stream.options.real_time_tasks, len(initial_backlog.begin.offsets))
    if num_tasks > slots:
        raise InvalidOptionError(
            f"a stream of {stream.name} with realTimeTasks={stream.options.real_time_tasks} needs {num_tasks} tasks "
            f"that run at once, and this session has {slots}; give it more cores, or use a smaller realTimeTasks"
        )
    if num_needed > slots:
        raise InvalidOptionError(
            f"a query that reads {stream.name} and other streams in real-time mode needs {num_needed} tasks that run "
            f"at once, each as long as a batch, and this session has {slots}: rows of some streams would never come. "
            "Give it more cores, or use a smaller realTimeTasks for these streams"
        )
    num_together = num_running + max(num_tasks, num_needed)
    if num_together > slots:
        raise InvalidOptionError(
            f"a query that reads {stream.name} in real-time mode would make {num_together} tasks that run at once, "
            f"with {num_running} of the real-time queries that run already, and this session has {slots}: rows of some "
            f"queries would never come. Give it {num_together} cores, use a smaller realTimeTasks, or end another "
            "query first"
        )
    return num_tasks
