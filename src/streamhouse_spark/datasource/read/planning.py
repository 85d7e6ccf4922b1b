"""Planning a read on the driver: one state of the table, and the pieces that together are its rows, each once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.datasource.read.keyed_planning import keyed_columns, keyed_pieces
from streamhouse_spark.datasource.read.pieces import (
    BinlogPiece,
    LakePiece,
    LogPiece,
    Piece,
    ReadPlan,
    ViewPiece,
    lake_ranges,
)
from streamhouse_spark.errors import OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.model.values import LakePlan
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import plan_range, require_not_truncated, snapshot_split
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read.pin import Pin, pin_as_of, pin_newest, require_recorded
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.views import BINLOG

logger = logging.getLogger(__name__)

_ROW_BYTES_UNKNOWN = 64


def plan_union(table: Table, columns: Sequence[str], *, as_of_timestamp_ms: int | None = None) -> ReadPlan:
    """Plan the union: the lake snapshot and the log beyond exactly its offsets.

    If another engine expired the recorded snapshot, the lake's newest one is taken. Raises `OffsetsTrimmedError`,
    `SnapshotExpiredError`, `SchemaMismatchError`.
    """
    state = table.refresh()
    if as_of_timestamp_ms is not None:
        return _plan_pin(table, pin_as_of(state, as_of_timestamp_ms), columns)
    try:
        return _plan_pin(table, pin_newest(state), columns)
    except SnapshotExpiredError:
        return _plan_pin(table, table.repinned(), columns)


def _plan_pin(table: Table, pin: Pin, columns: Sequence[str]) -> ReadPlan:
    schema = pin.state.schema.select(columns)
    if pin.state.primary_key:
        return _plan_keyed_pin(table, pin, schema)
    pieces: list[Piece] = []
    projection = None
    if pin.lake is not None:
        plan = table.open_lake().plan_read(
            snapshot_id=pin.lake.snapshot_id, columns=schema.names, schema=pin.state.schema
        )
        require_recorded(pin.state, pin.lake, plan.snapshot)
        projection = plan.projection
        pieces.extend(LakePiece(split) for split in plan.splits)
    pieces.extend(LogPiece(plan_range(pin.state, bucket, offsets)) for bucket, offsets in pin.hot.items())
    return ReadPlan(table.name, table.uuid, schema, tuple(pieces), projection)


def _plan_keyed_pin(table: Table, pin: Pin, schema: TableSchema) -> ReadPlan:
    keyed = keyed_columns(pin.state, schema.names, pin.hot)
    scan = None
    if pin.lake is not None:
        scan = table.open_lake().scan_files(
            snapshot_id=pin.lake.snapshot_id, columns=keyed.schema.names, schema=pin.state.schema
        )
    bases = [snapshot_split(pin.state, base) for base in pin.bases.values()]
    pieces = keyed_pieces(scan.files if scan else (), keyed.tails, bases)
    return ReadPlan(table.name, table.uuid, schema, tuple(pieces), scan.projection if scan else None, keyed)


def plan_lake(
    table: Table, columns: Sequence[str], *, as_of_snapshot: int | None, as_of_timestamp_ms: int | None
) -> ReadPlan:
    """Plan a lake snapshot alone. Returns no pieces before the first tiering round."""
    state = table.refresh()
    projection = Projection.of(state.schema, columns, None)
    plan: LakePlan | None = table.lake.plan(
        state, projection, as_of_snapshot=as_of_snapshot, as_of_timestamp_ms=as_of_timestamp_ms
    )
    schema = state.schema.select(columns)
    if plan is None:
        return ReadPlan(table.name, table.uuid, schema, ())
    return ReadPlan(table.name, table.uuid, schema, tuple(LakePiece(s) for s in plan.splits), plan.projection)


def plan_view(table: Table, state: TableState, suffix: str) -> ReadPlan:
    pieces = binlog_pieces(state) if suffix == BINLOG else (ViewPiece(suffix),)
    return ReadPlan(table.name, table.uuid, state.schema, pieces)


def binlog_pieces(state: TableState) -> tuple[BinlogPiece, ...]:
    """Return the pieces of ``$binlog``: the changes of each bucket that has some."""
    return tuple(
        BinlogPiece(plan_range(state, bucket, log.offsets), state.schema)
        for bucket, log in state.buckets.items()
        if log.offsets
    )


def plan_ranges(
    table: Table,
    state: TableState,
    ranges: Mapping[int, OffsetRange],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool,
) -> ReadPlan:
    """Plan offset ranges of a state, from the hot log and below its start from the lake.

    Raises `OffsetsTrimmedError` if neither has them, or a truncation took them away; with ``fail_on_data_loss`` False
    they are left out, with a warning.
    """
    schema = state.schema.select(columns) if columns else TableSchema(state.schema.columns[:1])
    pieces: list[Piece] = []
    for bucket, asked in ranges.items():
        offsets = _not_truncated(state, bucket, asked, fail_on_data_loss=fail_on_data_loss)
        start = state.buckets[bucket].start
        if offsets.start < start:
            trimmed = OffsetRange(offsets.start, min(offsets.end, start))
            pieces.extend(_trimmed_pieces(state, bucket, trimmed, fail_on_data_loss=fail_on_data_loss))
        if offsets.end > start:
            pieces.append(LogPiece(plan_range(state, bucket, OffsetRange(max(offsets.start, start), offsets.end))))
    return ReadPlan(table.name, table.uuid, schema, tuple(pieces))


def _not_truncated(state: TableState, bucket: int, wanted: OffsetRange, *, fail_on_data_loss: bool) -> OffsetRange:
    """Return the part of a range that is still the table's."""
    try:
        require_not_truncated(state, bucket, wanted.start)
    except OffsetsTrimmedError as error:
        if fail_on_data_loss:
            raise
        logger.warning("%s: skipping them", error)
    first = state.first_offset(bucket)
    return OffsetRange(max(wanted.start, first), max(wanted.end, first))


def _trimmed_pieces(state: TableState, bucket: int, wanted: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Piece]:
    in_lake = state.has_lake and not state.primary_key  # of which the lake has no changes
    tiered = state.lake_offset(bucket) if in_lake else 0
    held = OffsetRange(wanted.start, max(wanted.start, min(wanted.end, tiered)))
    if held != wanted:
        text = (
            f"{state.name}: offsets {OffsetRange(held.end, wanted.end)} of bucket {bucket} were trimmed from the hot "
            "log and are not in the lake"
        )
        if fail_on_data_loss:
            raise OffsetsTrimmedError(
                f"{text}; begin at startingOffsets=earliest, or skip them with failOnDataLoss=false"
            )
        logger.warning("%s: skipping them", text)
    if held:
        yield from lake_ranges(bucket, held, row_bytes(state, bucket))


def row_bytes(state: TableState, bucket: int) -> int:
    """Estimate the bytes in memory of a row of the bucket."""
    segments = state.buckets[bucket].segments[-8:]
    rows = sum(s.num_rows for s in segments)
    return max(1, sum(s.memory_bytes for s in segments) // rows) if rows else _ROW_BYTES_UNKNOWN
