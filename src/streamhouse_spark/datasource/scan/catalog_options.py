"""Options of queries on catalog tables: the data source's, without those that the catalog sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.config.spark_options import (
    ReadOptions,
    StreamReadOptions,
    WriteOptions,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
)
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.read.read_target import reads_past, reads_range
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.system_views import CHANGELOG, LAKE
from streamhouse_spark.warehouse.process_cache import Connection

_OF_CHANGES = frozenset(
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
            _refuse_merge_schema(arguments["name"], options)
            if options.partial_update:
                raise InvalidOptionError(
                    f"option partialUpdate of a write into {arguments['name']}: Spark gives the columns that the rows "
                    "lack the value NULL before they come here, so they would be overwritten; use MERGE INTO … WHEN "
                    "MATCHED THEN UPDATE SET, or df.write.format('streamhouse') with the option"
                )
        case "changes":
            _refuse_non_changes_options(arguments["name"], raw_options)
        case mode:
            raise ValueError(f"unknown mode {mode!r}")
    return {}


def _refuse_non_changes_options(name: str, raw_options: Mapping[str, str]) -> None:
    unknown = sorted(option for option in raw_options if option.lower() not in _OF_CHANGES)
    if unknown:
        raise InvalidOptionError(f"option {unknown[0]} of {name} is unknown; leave it out")


def _refuse_merge_schema(name: str, options: WriteOptions) -> None:
    """Reject the option if it arrives here: writes by name drop it after they added the columns."""
    if options.merge_schema:
        raise InvalidOptionError(
            f"option mergeSchema of a write into {name}: it adds columns by their names, and insertInto, SQL and "
            "queries that make the table go by positions; use df.writeTo(…) or "
            "df.write.mode('append').saveAsTable(…), or ALTER TABLE first"
        )


def parse_scan_options(pin: QuerySnapshot, raw_options: Mapping[str, str]) -> ReadOptions:
    """Parse options of a scan. Raises `InvalidOptionError` for options that are unknown, for streams only, or not
    supported by the name.
    """
    options = parse_read_options(raw_options)
    _refuse_column_options(pin.name, pin.table, options)
    as_of = reads_past(options)
    if as_of and pin.is_chosen:
        raise InvalidOptionError(
            f"{pin.name}: VERSION or TIMESTAMP AS OF and an option 'asOf…' cannot be used together; keep one"
        )
    if as_of and pin.suffix == CHANGELOG:
        raise InvalidOptionError(f"{pin.name}: a changelog has no 'as of'; use endingTimestamp or endingOffsets")
    if as_of and pin.suffix not in (None, LAKE):
        raise InvalidOptionError(f"{pin.name} has no 'as of'; it belongs to {pin.table} and {pin.table}$lake")
    if reads_range(options) and pin.suffix not in (None, CHANGELOG):
        raise InvalidOptionError(
            f"{pin.name}: offsets, start and end times belong to {pin.table} and {pin.table}$changelog; leave them out "
            "here"
        )
    if reads_range(options) and pin.as_of_ms is not None:
        raise InvalidOptionError(f"{pin.name}: TIMESTAMP AS OF reads one state, and offsets a range; keep one")
    return options


def parse_catalog_stream_options(name: str, raw_options: Mapping[str, str]) -> StreamReadOptions:
    """Parse the options of a stream of ``name``. Every stream of a table appends the hidden columns, because Spark
    passes no selected columns to a stream and reads columns by position.

    Raises `InvalidOptionError` as `parse_scan_options` does.
    """
    options = parse_stream_read_options(raw_options)
    path, suffix = parse_table_name(name).path, parse_table_name(name).suffix
    _refuse_column_options(name, str(path), options)
    return replace(options, include_metadata=suffix is None, include_row_ids=suffix is None)


def _refuse_column_options(name: str, table: str, options: ReadOptions | StreamReadOptions) -> None:
    """Reject options that change the columns: in a catalog, the columns of a name are fixed."""
    if options.read_change_feed:
        raise InvalidOptionError(f"option readChangeFeed of {name}: read {table}$changelog instead")
    if options.include_metadata:
        raise InvalidOptionError(
            f"option includeMetadata of {name}: in a catalog, {table} has the hidden columns _bucket, "
            "_log_offset and _commit_timestamp; select them by name"
        )
