"""Options of queries on catalog tables: the data source's options, except those that the catalog determines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.config.spark_options import (
    ReadOptions,
    StreamReadOptions,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
)
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.read.read_target import is_range_read, is_time_travel
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.system_views import CHANGELOG, LAKE
from streamhouse_spark.warehouse.process_cache import Connection

_CHANGES_OPTIONS = frozenset(
    {
        "startingversion",
        "endingversion",
        "startingtimestamp",
        "endingtimestamp",
        "startingboundinclusive",
        "endingboundinclusive",
        "deduplicationmode",
        "computeupdates",
    }
)
"""Options that Spark parses into the range of ``CHANGES``, in lower case."""


def check_options(_connection: Connection, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Validate options of a stream or write before Spark starts a worker that uses them."""
    raw_options = arguments["options"]
    match arguments["mode"]:
        case "readStream":
            parse_catalog_stream_options(arguments["name"], raw_options)
        case "writeStream":
            parse_stream_write_options(raw_options)
        case "write":
            options = parse_write_options(raw_options)
            if options.merge_schema:  # writes by name add the columns earlier, and do not pass the option on
                raise InvalidOptionError(
                    f"option mergeSchema of a write into {arguments['name']} matches columns by name, but insertInto, "
                    "SQL and CREATE TABLE AS match them by position; use df.writeTo(…) or "
                    "df.write.mode('append').saveAsTable(…), or ALTER TABLE first"
                )
            if options.partial_update:
                raise InvalidOptionError(
                    f"option partialUpdate of a write into {arguments['name']}: Spark sets columns that the rows omit "
                    "to NULL, which would overwrite stored values; use MERGE INTO … WHEN MATCHED THEN UPDATE SET, "
                    "or df.write.format('streamhouse') with the option"
                )
        case "changes":
            unknown = sorted(option for option in raw_options if option.lower() not in _CHANGES_OPTIONS)
            if unknown:
                raise InvalidOptionError(f"option {unknown[0]} of {arguments['name']} is unknown; omit it")
        case mode:
            raise ValueError(f"unknown mode {mode!r}")
    return {}


def parse_scan_options(snapshot: QuerySnapshot, raw_options: Mapping[str, str]) -> ReadOptions:
    """Parse options of a scan. Raises `InvalidOptionError` for options that are unknown, for streams only, or not
    supported for the name.
    """
    options = parse_read_options(raw_options)
    _reject_column_options(snapshot.name, snapshot.table, options)
    as_of = is_time_travel(options)
    if as_of and snapshot.is_chosen:
        raise InvalidOptionError(
            f"{snapshot.name}: VERSION or TIMESTAMP AS OF cannot be combined with an option 'asOf…'; use one of them"
        )
    if as_of and snapshot.suffix == CHANGELOG:
        raise InvalidOptionError(
            f"{snapshot.name}: a changelog does not support 'as of'; use endingTimestamp or endingOffsets"
        )
    if as_of and snapshot.suffix not in (None, LAKE):
        raise InvalidOptionError(
            f"{snapshot.name} does not support 'as of'; read {snapshot.table} or {snapshot.table}$lake with it"
        )
    if is_range_read(options) and snapshot.suffix not in (None, CHANGELOG):
        raise InvalidOptionError(
            f"{snapshot.name} does not support offsets, start and end times; omit them, or read {snapshot.table} or "
            f"{snapshot.table}$changelog with them"
        )
    if is_range_read(options) and snapshot.as_of_ms is not None:
        raise InvalidOptionError(
            f"{snapshot.name}: TIMESTAMP AS OF selects a state, but offsets select a range; use one of them"
        )
    return options


def parse_catalog_stream_options(name: str, raw_options: Mapping[str, str]) -> StreamReadOptions:
    """Parse the options of a stream of ``name``. A stream of a table always appends the hidden columns, because Spark
    reads the columns of a stream by position and does not pass the selected ones.

    Raises `InvalidOptionError` in the cases of `parse_scan_options`.
    """
    options = parse_stream_read_options(raw_options)
    path, suffix = parse_table_name(name).path, parse_table_name(name).suffix
    _reject_column_options(name, str(path), options)
    return replace(options, include_metadata=suffix is None, include_row_ids=suffix is None)


def _reject_column_options(name: str, table: str, options: ReadOptions | StreamReadOptions) -> None:
    """Reject options that change the columns: in a catalog, the columns of a name are fixed."""
    if options.read_change_feed:
        raise InvalidOptionError(
            f"option readChangeFeed of {name} is not supported in a catalog; read {table}$changelog"
        )
    if options.include_metadata:
        raise InvalidOptionError(
            f"option includeMetadata of {name} is not supported in a catalog; select the hidden columns of {table} by "
            "name: _bucket, _log_offset and _commit_timestamp"
        )
