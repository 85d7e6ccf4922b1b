"""Start and end of a real-time batch of a stream into a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.datasource.write.realtime_progress import RealTimeBatch
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress
from streamhouse_spark.warehouse.process_cache import Connection


def begin_real_time_write(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer bucket → stored source offset as ``offsets``; buckets of which nothing is stored are absent.

    The commit point and errors are those of `RealTimeBatch.begin`.
    """
    batch = _open_batch(connection, args)
    source = connection.table_by_uuid(args["source_name"], args["source"])
    offsets = batch.begin(source, args["buckets"])
    return {"offsets": {str(bucket): offset for bucket, offset in offsets.items()}}


def end_real_time_write(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record that a batch ended, before Spark stores its end. The commit point is that of `RealTimeBatch.end`."""
    _open_batch(connection, args).end()
    return {}


def _open_batch(connection: Connection, args: Mapping[str, Any]) -> RealTimeBatch:
    options = parse_stream_write_options(args["options"])
    table = connection.table_by_uuid(args["name"], args["uuid"])
    return RealTimeBatch(table, SourceProgress(args["query"], args["source"]), options.app_id, args["batch"])
