"""Resolve a table name and read options to a read target, before anything is planned."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from streamhouse_spark.config.spark_options import FULL, LATEST, ReadOptions, StreamReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.read.offset_resolution import require_complete_offsets
from streamhouse_spark.datasource.spark_schema import canonical_schema
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.segments.metadata_columns import (
    CHANGE_TYPE,
    CHANGELOG_FIELDS,
    METADATA_FIELDS,
    ROW_ID,
    with_fields,
)
from streamhouse_spark.read.binlog import binlog_schema
from streamhouse_spark.read.historical_schema import state_as_of
from streamhouse_spark.read.previous_table import table_as_of
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE, open_view

Kind = Literal["union", "range", "lake", "view"]


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """The source of a read's rows, and its available columns.

    ``union`` is the table as one consistent state. ``range`` is offset ranges of the log, read from the lake below the
    hot log's start. ``lake`` is a lake snapshot. ``view`` is a system table or a metadata table of the lake.
    """

    kind: Kind
    name: str
    suffix: str | None
    schema: pa.Schema
    metadata: tuple[pa.Field, ...] = ()
    """Columns before the table's columns; for ``range``."""
    table_schema: TableSchema | None = None
    """The table schema that the target was made from; for ``union``."""


def resolve_batch_target(table: TableHandle, suffix: str | None, options: ReadOptions) -> ReadTarget:
    """Return the target of a batch read. Raises `InvalidNameError` for an unknown suffix, `InvalidOptionError` for
    options that it does not support.
    """
    name = table.name if suffix is None else f"{table.name}${suffix}"
    as_of = options.as_of_lake_snapshot is not None or options.as_of_timestamp_ms is not None
    bounded = (options.starting_offsets, options.ending_offsets) != (FULL, LATEST) or (
        options.starting_timestamp_ms is not None or options.ending_timestamp_ms is not None
    )
    logged = bounded or options.read_change_feed or options.include_metadata
    if as_of and options.include_metadata:
        raise InvalidOptionError(f"{name}: includeMetadata reads the log, and 'as of' a state; use one of them")
    if suffix is None:
        if options.as_of_lake_snapshot is not None:
            return ReadTarget("lake", name, suffix, table.state.schema.arrow)
        if logged:
            _require_change_feed(table, name, options.read_change_feed)
            require_complete_offsets(table.state, options)
            return _range_target(
                table, name, suffix, changes=options.read_change_feed, metadata=options.include_metadata
            )
        schema = _schema_as_of(table, options.as_of_timestamp_ms)
        return ReadTarget("union", name, suffix, schema.arrow, table_schema=schema)
    view = open_view(table, suffix)
    if suffix == CHANGELOG:
        if as_of:
            raise InvalidOptionError(f"{name}: a changelog has no 'as of'; use endingTimestamp or endingOffsets")
        return _range_target(table, name, suffix, changes=True, metadata=options.include_metadata)
    if logged:
        raise InvalidOptionError(
            f"{name}: offsets, start and end times, readChangeFeed and includeMetadata belong to {table.name} and "
            f"{table.name}$changelog; leave them out here",
        )
    if suffix == LAKE:
        return ReadTarget("lake", name, suffix, table.state.schema.arrow)
    if as_of:
        raise InvalidOptionError(f"{name} has no 'as of'; it belongs to {table.name} and {table.name}$lake")
    return ReadTarget("view", name, suffix, canonical_schema(view.schema))


def _schema_as_of(table: TableHandle, as_of_ms: int | None) -> TableSchema:
    """Return the schema of a current read, or of a read as of a time."""
    if as_of_ms is None:
        return table.state.schema
    source_table, state = table_as_of(table, table.state, as_of_ms)
    return state_as_of(source_table, state, as_of_ms).schema


def resolve_stream_target(table: TableHandle, suffix: str | None, options: StreamReadOptions) -> ReadTarget:
    """Return the target of a stream. Raises `InvalidNameError` for a suffix that cannot be streamed."""
    if suffix is None:
        _require_change_feed(table, table.name, options.read_change_feed)
        require_complete_offsets(table.state, options)
        if options.include_row_ids:
            fields = (*METADATA_FIELDS, ROW_ID)
            return ReadTarget("range", table.name, None, with_fields(fields, table.state.schema.arrow), fields)
        return _range_target(
            table, table.name, None, changes=options.read_change_feed, metadata=options.include_metadata
        )
    open_view(table, suffix)
    if suffix == BINLOG:
        if options.include_metadata:
            raise InvalidOptionError(f"{table.name}$binlog has the places of its changes; leave includeMetadata out")
        return ReadTarget("range", f"{table.name}${suffix}", suffix, binlog_schema(table.state.schema.arrow))
    if suffix != CHANGELOG:
        raise InvalidNameError(
            f"{table.name}${suffix} cannot be streamed; stream {table.name} or {table.name}$changelog, or read it with "
            "spark.read",
        )
    return _range_target(table, f"{table.name}${suffix}", suffix, changes=True, metadata=options.include_metadata)


def _require_change_feed(table: TableHandle, name: str, read_change_feed: bool) -> None:  # noqa: FBT001 - private
    if table.state.primary_key and not read_change_feed:
        raise InvalidOptionError(
            f"{name} has a primary key, so that its log holds changes: streams, offsets, start and end times and "
            f"includeMetadata read them with readChangeFeed=true, or as {name}$changelog; a batch read without these "
            "options gives the current rows"
        )


def _range_target(table: TableHandle, name: str, suffix: str | None, *, changes: bool, metadata: bool) -> ReadTarget:
    fields = (CHANGE_TYPE, *METADATA_FIELDS) if changes and metadata else CHANGELOG_FIELDS if changes else ()
    if metadata and not changes:
        fields = METADATA_FIELDS
    return ReadTarget("range", name, suffix, with_fields(fields, table.state.schema.arrow), tuple(fields))
