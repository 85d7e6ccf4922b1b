"""Targets of reads: a table name and options, resolved to rows, columns and offsets before planning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from streamhouse_spark.config.spark_options import (
    EARLIEST_OFFSET,
    FULL,
    LATEST,
    LATEST_OFFSET,
    OffsetSpec,
    ReadOptions,
    StreamReadOptions,
)
from streamhouse_spark.config.table_properties import ADOPTED, NOTHING_ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.spark_schema import canonical_schema
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, OffsetsTrimmedError
from streamhouse_spark.log.archive.pages import first_change_offsets
from streamhouse_spark.log.segments.metadata_columns import (
    CHANGE_TYPE,
    CHANGELOG_FIELDS,
    METADATA_FIELDS,
    ROW_ID,
    with_fields,
)
from streamhouse_spark.log.state import BucketLog, TableState
from streamhouse_spark.read.archive_scan import ArchiveTimeIndex
from streamhouse_spark.read.change_rows import binlog_schema
from streamhouse_spark.read.read_snapshot import offset_at
from streamhouse_spark.read.time_travel import state_as_of, table_as_of
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE, open_view
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

Kind = Literal["union", "range", "lake", "view"]


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """The source of a read's rows, and its available columns.

    ``union`` is one consistent state of the table. ``range`` is a range of log offsets per bucket; offsets before the
    hot log are read from the lake. ``lake`` is a lake snapshot. ``view`` is a system table or a metadata table of the
    lake.
    """

    kind: Kind
    name: str
    suffix: str | None
    schema: pa.Schema
    metadata: tuple[pa.Field, ...] = ()
    """Metadata columns before the table's columns; only for ``range``."""
    table_schema: TableSchema | None = None
    """The table schema at resolution; only for ``union``."""


def is_time_travel(options: ReadOptions) -> bool:
    """Return whether the query reads a past state."""
    return options.as_of_lake_snapshot is not None or options.as_of_timestamp_ms is not None


def is_range_read(options: ReadOptions) -> bool:
    """Return whether the query reads a range of the log."""
    return (options.starting_offsets, options.ending_offsets) != (FULL, LATEST) or (
        options.starting_timestamp_ms is not None or options.ending_timestamp_ms is not None
    )


def resolve_batch_target(table: TableHandle, suffix: str | None, options: ReadOptions) -> ReadTarget:
    """Return the target of a batch read. Raises `InvalidNameError` for an unknown suffix, and `InvalidOptionError` for
    options that the target does not support.
    """
    name = table.name if suffix is None else f"{table.name}${suffix}"
    as_of = is_time_travel(options)
    logged = is_range_read(options) or options.read_change_feed or options.include_metadata
    if as_of and options.include_metadata:
        raise InvalidOptionError(f"{name}: includeMetadata cannot be combined with 'as of'; use one of them")
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
            raise InvalidOptionError(
                f"{name}: a changelog does not support 'as of'; use endingTimestamp or endingOffsets"
            )
        return _range_target(table, name, suffix, changes=True, metadata=options.include_metadata)
    if logged:
        raise InvalidOptionError(
            f"{name} does not support offsets, start and end times, readChangeFeed and includeMetadata; omit them, or "
            f"read {table.name} or {table.name}$changelog with them"
        )
    if suffix == LAKE:
        return ReadTarget("lake", name, suffix, table.state.schema.arrow)
    if as_of:
        raise InvalidOptionError(f"{name} does not support 'as of'; read {table.name} or {table.name}$lake with it")
    return ReadTarget("view", name, suffix, canonical_schema(view.schema))


def _schema_as_of(table: TableHandle, as_of_ms: int | None) -> TableSchema:
    """Return the schema of a read as of a time, or of a current read for None."""
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
            raise InvalidOptionError(
                f"{table.name}$binlog already has the offsets of its changes; omit includeMetadata"
            )
        return ReadTarget("range", f"{table.name}${suffix}", suffix, binlog_schema(table.state.schema.arrow))
    if suffix != CHANGELOG:
        raise InvalidNameError(
            f"{table.name}${suffix} cannot be streamed; stream {table.name} or {table.name}$changelog, or read it with "
            "spark.read"
        )
    return _range_target(table, f"{table.name}${suffix}", suffix, changes=True, metadata=options.include_metadata)


def _require_change_feed(table: TableHandle, name: str, read_change_feed: bool) -> None:  # noqa: FBT001 - private
    if table.state.primary_key and not read_change_feed:
        raise InvalidOptionError(
            f"{name} has a primary key, so streams, offsets, start and end times and includeMetadata read changes; set "
            f"readChangeFeed=true, or read {name}$changelog, or read the current rows in a batch without these options"
        )


def _range_target(table: TableHandle, name: str, suffix: str | None, *, changes: bool, metadata: bool) -> ReadTarget:
    fields = (CHANGE_TYPE, *METADATA_FIELDS) if changes and metadata else CHANGELOG_FIELDS if changes else ()
    if metadata and not changes:
        fields = METADATA_FIELDS
    return ReadTarget("range", name, suffix, with_fields(fields, table.state.schema.arrow), tuple(fields))


def require_complete_offsets(state: TableState, options: ReadOptions | StreamReadOptions) -> None:
    """Raise `InvalidOptionError` for a read from the beginning of an adopted table. Adopted rows have no offsets, so
    they would be silently missing. Change feeds are allowed, because they contain only later changes.
    """
    is_full = options.starting_offsets == FULL and options.starting_timestamp_ms is None
    adopts_rows = state.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED and state.truncation is None
    if is_full and adopts_rows and not options.read_change_feed:
        raise InvalidOptionError(
            f"{state.name} was adopted from a lake table, whose rows have no offsets and cannot be streamed; set "
            "startingOffsets=earliest to read the rows added since, and read the adopted rows once, in batch"
        )


def batch_ranges(state: TableState, options: ReadOptions, storage: Storage | None = None) -> dict[int, OffsetRange]:
    """Return bucket → offsets of a batch read, without empty ranges. With ``storage``, times are also looked up in the
    change archive.

    Raises `InvalidOptionError` for offsets that never existed, and `OffsetsTrimmedError` for times that are no longer
    retained.
    """
    starts = resolve_starting_offsets(state, options, storage)
    if options.ending_timestamp_ms is not None:
        ends = _resolve_timestamp(state, options, options.ending_timestamp_ms, "endingTimestamp", storage)
    else:
        ends = _resolve_offsets(
            state, options.ending_offsets, "endingOffsets", dict.fromkeys(state.buckets, EARLIEST_OFFSET)
        )
    ranges = {}
    for bucket, start in starts.items():
        if start > ends[bucket] and options.starting_timestamp_ms is None and options.ending_timestamp_ms is None:
            raise InvalidOptionError(
                f"{state.name}: bucket {bucket} starts at offset {start} and ends at {ends[bucket]}, expected an end "
                "that is not before the start; the range is half-open, [startingOffsets, endingOffsets)"
            )
        if start < ends[bucket]:
            ranges[bucket] = OffsetRange(start, ends[bucket])
    return ranges


def resolve_starting_offsets(
    state: TableState, options: ReadOptions | StreamReadOptions, storage: Storage | None = None
) -> dict[int, int]:
    """Return bucket → first offset to read. A timestamp overrides offsets. Buckets that are missing in the option start
    at the earliest offset.

    If data loss is allowed, a time that is no longer retained becomes the start of the hot log. The earliest change of
    a primary-key table may be in its change archive.
    """
    if options.starting_timestamp_ms is not None:
        return _resolve_timestamp(state, options, options.starting_timestamp_ms, "startingTimestamp", storage)
    earliest = first_change_offsets(state)
    # Without a lake, trimmed rows are expired on purpose. The lake of a primary-key table contains no changes.
    if options.starting_offsets.kind == "full" and state.lake is not None and not state.primary_key:
        return {bucket: state.first_offset(bucket) for bucket in state.buckets}
    return _resolve_offsets(state, options.starting_offsets, "startingOffsets", earliest)


def _resolve_offsets(state: TableState, spec: OffsetSpec, option: str, earliest: Mapping[int, int]) -> dict[int, int]:
    """Return bucket → the offset of a spec. The default is the latest offset for an end, the earliest for a start."""
    _require_buckets(state, spec, option)
    is_latest = spec.kind == "latest" or option == "endingOffsets"
    offsets = {}
    for bucket, log in state.buckets.items():
        requested = spec.offsets.get(bucket, LATEST_OFFSET if is_latest else EARLIEST_OFFSET)
        if requested > log.end:
            raise InvalidOptionError(
                f"{option} of {state.name}: bucket {bucket} ends at {log.end}, found {requested}; use {LATEST_OFFSET} "
                "for the latest"
            )
        named_offsets = {LATEST_OFFSET: log.end, EARLIEST_OFFSET: earliest[bucket]}
        offsets[bucket] = named_offsets.get(requested, requested)
    return offsets


def _require_buckets(state: TableState, spec: OffsetSpec, option: str) -> None:
    unknown = sorted(set(spec.offsets) - set(state.buckets))
    if unknown:
        raise InvalidOptionError(
            f"{option} of {state.name}: unknown bucket {unknown[0]}, expected 0 to {state.num_buckets - 1}"
        )


def _resolve_timestamp(
    state: TableState, options: ReadOptions | StreamReadOptions, timestamp_ms: int, option: str, storage: Storage | None
) -> dict[int, int]:
    times = ArchiveTimeIndex(storage, state) if storage is not None and state.archive else None
    return {
        bucket: _resolve_bucket_timestamp(
            state, bucket, log, timestamp_ms, option, times, strict=options.fail_on_data_loss
        )
        for bucket, log in state.buckets.items()
    }


def _resolve_bucket_timestamp(
    state: TableState,
    bucket: int,
    log: BucketLog,
    timestamp_ms: int,
    option: str,
    times: ArchiveTimeIndex | None,
    *,
    strict: bool,
) -> int:
    """Return the first offset that was committed at ``timestamp_ms`` or later.

    Trimmed rows that are not in the archive have no commit times. If the offset may be that of such a row, raise
    `OffsetsTrimmedError`, or without ``strict`` return the start of the hot log.
    """
    first = state.first_offset(bucket)
    if timestamp_ms <= state.created_ms:
        return first
    hot_offset = offset_at(log, timestamp_ms)
    if hot_offset > log.start or log.start == first or _is_committed_before(state, bucket, log.start, timestamp_ms):
        return hot_offset
    if state.truncation is not None and timestamp_ms <= state.truncation.time_ms:
        return first
    if times is not None and (archived_offset := times.offset_at(bucket, timestamp_ms)) is not None:
        return archived_offset
    text = (
        f"{option} {timestamp_ms} ms of {state.name}: rows of bucket {bucket} below offset {log.start} are only in the "
        "lake, which stores no commit times"
    )
    if strict:
        raise OffsetsTrimmedError(f"{text}; set offsets, a later time, or failOnDataLoss=false to start at {log.start}")
    logger.warning("%s: starting at offset %d", text, log.start)
    return hot_offset


def _is_committed_before(state: TableState, bucket: int, offset: int, timestamp_ms: int) -> bool:
    """Return whether every row below the offset was certainly committed before ``timestamp_ms``."""
    first = state.buckets[bucket].segments[:1]
    if first and first[0].base_offset < offset and first[0].last_time_ms < timestamp_ms:
        return True
    pairs = state.lake_history
    return any(p.offsets.get(bucket, 0) >= offset and 0 < p.time_ms <= timestamp_ms for p in pairs)


def offsets_from_json(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in offsets.items()}


def offsets_to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    """Return offsets as JSON, sorted by bucket, because Spark compares offsets as text."""
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}
