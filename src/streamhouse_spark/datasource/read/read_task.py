"""Reading the pieces of a plan in a task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.datasource.read.keyed_read_task import read_keyed_pieces
from streamhouse_spark.datasource.read.pieces import (
    BinlogPiece,
    KeyedPiece,
    LakePiece,
    LogPiece,
    OffsetsPiece,
    Piece,
    ReadPlan,
    StartPiece,
    ViewPiece,
)
from streamhouse_spark.datasource.spark_schema import canonical_schema
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.lake.file_access import lake_files
from streamhouse_spark.lake.model.values import LakeProjection
from streamhouse_spark.lake.parquet.access import FileAccess
from streamhouse_spark.lake.parquet.merge_on_read import read_split as read_lake_split
from streamhouse_spark.lake.parquet.reader import offset_file, read_numbered
from streamhouse_spark.log.commits.state import CHANGE_COLUMN
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, add_metadata, add_places, with_metadata
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import read_split, require_not_truncated
from streamhouse_spark.read.binlog import binlog_batches
from streamhouse_spark.schema.conversion import Conversion
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.views import BINLOG, open_view
from streamhouse_spark.warehouse.connection import Connection

logger = logging.getLogger(__name__)


def read_plan(
    connection: Connection, plan: ReadPlan, metadata: Sequence[pa.Field], *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Read the rows of all pieces, each with the metadata columns and then the plan's columns."""
    table = connection.table_by_uuid(plan.table, plan.table_uuid)
    records = InlineRecords(table.storage, table.uuid)
    records.expect(s for piece in plan.pieces if isinstance(piece, LogPiece) for s in piece.split.segments)
    if plan.binlog_start is not None:
        changes = (batch for piece in plan.pieces for batch in _read(table, plan, piece, CHANGELOG_FIELDS, records))
        yield from binlog_batches(_from(changes, plan.binlog_start), plan.schema.arrow)
        return
    if plan.keyed is not None:
        yield from read_keyed_pieces(table, plan, plan.keyed)
        return
    for piece in plan.pieces:
        yield from _read(table, plan, piece, metadata, records, fail_on_data_loss=fail_on_data_loss)


def _from(changes: Iterator[pa.RecordBatch], start: int) -> Iterator[pa.RecordBatch]:
    """Return the changes from the offset ``start`` on, and the row before an update whose row after is the first of
    them.
    """
    for batch in changes:
        is_earlier = batch.num_rows and batch.column("_log_offset")[0].as_py() < start
        drop = is_earlier and batch.column("_change_type")[0].as_py() != "update_before"
        yield batch.slice(1) if drop else batch


def _read(
    table: Table,
    plan: ReadPlan,
    piece: Piece,
    metadata: Sequence[pa.Field],
    records: InlineRecords,
    *,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    match piece:
        case LogPiece(split):
            has_changes = split.has_changes
            wanted = TableSchema((CHANGE_COLUMN, *plan.schema.columns)) if has_changes else plan.schema
            for found in read_split(table.storage, split, wanted, records=records):
                yield with_metadata(found, metadata) if metadata or has_changes else found.batch
        case LakePiece(split, _):
            assert plan.projection is not None
            files = lake_files(table.storage, table.settings, split.location)
            if metadata:
                yield from _read_lake_places(
                    files, (table.uuid, *table.state.former_uuids), piece, plan.projection, metadata
                )
            else:
                yield from read_lake_split(files, split, plan.projection)
        case OffsetsPiece(bucket, offsets):
            for base_offset, batch in _read_offsets(table, plan, bucket, offsets, skip=not fail_on_data_loss):
                yield add_metadata(batch, metadata, bucket, base_offset, None) if metadata else batch
        case StartPiece(split, offset):
            for found in read_split(table.storage, split, plan.schema):
                last = pa.repeat(pa.scalar(offset - 1, pa.int64()), found.batch.num_rows)
                yield add_places(found.batch, metadata, split.bucket, last) if metadata else found.batch
        case BinlogPiece(split, schema):
            written = TableSchema((CHANGE_COLUMN, *schema.columns))
            changes = (with_metadata(found, CHANGELOG_FIELDS) for found in read_split(table.storage, split, written))
            yield from _canonical(f"{table.name}${BINLOG}", binlog_batches(changes, schema.arrow))
        case ViewPiece(suffix):
            yield from _read_view(table, suffix)
        case KeyedPiece():
            raise ValueError("a piece by key outside of a plan by key")


def _read_lake_places(
    files: FileAccess,
    writers: Sequence[str],
    piece: LakePiece,
    projection: LakeProjection,
    metadata: Sequence[pa.Field],
) -> Iterator[pa.RecordBatch]:
    """Read lake rows with their log positions: null if another engine wrote the file, and for merged files."""
    if piece.split.merge is not None:
        for batch in read_lake_split(files, piece.split, projection):
            yield add_places(batch, metadata, piece.split.bucket, None)
        return
    ours = offset_file(files, piece.split.location, writers)
    offsets = ours.runs.offsets() if ours is not None else None
    bucket = ours.bucket if ours is not None else piece.bucket
    for numbers, batch in read_numbered(files, piece.split, projection):
        yield add_places(batch, metadata, bucket, None if offsets is None else pa.array(offsets[numbers]))


def _read_offsets(
    table: Table, plan: ReadPlan, bucket: int, offsets: OffsetRange, *, skip: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read a trimmed range from the lake. With ``skip``, offsets that the lake does not hold are found by halving, and
    left out.
    """
    try:
        lake = table.open_lake().with_schema(plan.schema)  # this process may know an older schema of the table
        yield from lake.read_offsets(bucket, offsets)
    except OffsetsTrimmedError:  # raised before the first row
        state = table.refresh()
        if not skip:
            require_not_truncated(state, bucket, offsets.start)  # which says more, where that is why
            raise
        if len(offsets) == 1 or offsets.end <= state.first_offset(bucket):
            logger.warning("%s: offsets %s of bucket %d are lost, skipping them", table.name, offsets, bucket)
            return
        middle = (offsets.start + offsets.end) // 2
        yield from _read_offsets(table, plan, bucket, OffsetRange(offsets.start, middle), skip=skip)
        yield from _read_offsets(table, plan, bucket, OffsetRange(middle, offsets.end), skip=skip)


def _read_view(table: Table, suffix: str) -> Iterator[pa.RecordBatch]:
    table.refresh()
    yield from _canonical(f"{table.name}${suffix}", open_view(table, suffix).to_arrow().to_batches())


def _canonical(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches of a view, with the types that Spark has."""
    for batch in batches:
        wanted = canonical_schema(batch.schema)
        arrays = [
            Conversion(name, field.name).cast(array, field.type)
            for array, field in zip(batch.columns, wanted, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
