"""Load a name for ``format("streamhouse")``: with the jar, its batch reads use the catalog's scans.

Java calls this once per DataFrame, when it plans the first query. An error is never shown: `datasource.read` then reads
the DataFrame and raises its own error for an invalid name or options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.config.spark_options import parse_read_options, table_option
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource.catalog.scan.cache_validators import lake_validators
from streamhouse_spark.datasource.catalog.scan.options import parse_scan_options
from streamhouse_spark.datasource.catalog.scan.query_snapshot import take_query_snapshot, take_query_snapshot_at
from streamhouse_spark.datasource.catalog.scan.scan import describe_scan
from streamhouse_spark.datasource.read.table_reference import resolve_batch_target
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.system_views import CHANGELOG, LAKE
from streamhouse_spark.warehouse.process_cache import Connection

_ROWS = (None, LAKE, CHANGELOG)
"""Suffixes whose rows are in files. All other views are computed in Python anyway."""


def load_source(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load the name in the options as `load` does, if the catalog returns the same rows and columns.

    Raises `InvalidOptionError` if it does not (system tables, ``includeMetadata``, ``readChangeFeed``), and as reads
    do.
    """
    source_options = args["options"]
    name = parse_table_name(table_option(source_options, "read"))
    if name.suffix not in _ROWS:
        raise InvalidOptionError(f"${name.suffix} is only read in Python")
    table = connection.table(str(name.path))
    options = parse_read_options(source_options)
    resolve_batch_target(table, name.suffix, options)
    lake = lake_validators(table, is_read=name.suffix == LAKE)
    if name.suffix is None and options.as_of_timestamp_ms is not None:
        pin = take_query_snapshot_at(table, options.as_of_timestamp_ms)
    else:
        pin = take_query_snapshot(table, name.suffix, None, None)
    parse_scan_options(pin, source_options)
    return describe_scan(connection, pin, lake)
