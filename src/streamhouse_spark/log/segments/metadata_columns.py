"""Metadata columns with the log position of a row, for changelogs, tails and reads with metadata; and row ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.segments.reader import LogBatch

CHANGE_TYPE = pa.field("_change_type", pa.string(), nullable=False)
BUCKET = pa.field("_bucket", pa.int32(), nullable=False)
LOG_OFFSET = pa.field("_log_offset", pa.int64(), nullable=False)
COMMIT_TIMESTAMP = pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=True)
COMMIT_VERSION = pa.field("_commit_version", pa.int64(), nullable=False)
ROW_ID = pa.field("_row_id", pa.int64(), nullable=False)
"""The row id, by which an UPDATE, DELETE or MERGE identifies a row that it read."""

CHANGELOG_FIELDS = (CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP)
"""Columns of ``<table>$changelog`` before the table's columns."""
CHANGES_FIELDS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP.with_nullable(False))
"""Columns of Spark's ``CHANGES`` after the table's columns."""
METADATA_FIELDS = (BUCKET, LOG_OFFSET, COMMIT_TIMESTAMP)
"""Columns that ``includeMetadata`` puts before the table's columns."""


def with_fields(fields: Sequence[pa.Field], schema: pa.Schema) -> pa.Schema:
    return pa.schema([*fields, *schema])


@cache
def change_type_names() -> pa.Array:
    return pa.array([kind.name.lower() for kind in ChangeType])


def without_metadata(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return rows of a tail without metadata columns, unless the table has such a column, so that they can be written.

    Raises `SchemaMismatchError` for deletes and before-images of updates.
    """
    added = [field.name for field in (CHANGE_TYPE, *METADATA_FIELDS) if field.name not in columns]
    if CHANGE_TYPE.name in added and CHANGE_TYPE.name in rows.schema.names:
        kinds = set(rows.column(CHANGE_TYPE.name).to_pylist())
        if old := kinds - {None, *(kind.name.lower() for kind in (ChangeType.INSERT, ChangeType.UPDATE_AFTER))}:
            raise SchemaMismatchError(
                f"the rows contain changes of type {min(map(str, old))!r}, which cannot be written as rows; remove "
                "them, and delete the keys of deleted rows"
            )
    return rows.drop_columns([name for name in rows.schema.names if name in added])


def with_metadata(log_batch: LogBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """Return the batch with these metadata columns before its own columns.

    The first column of changes of a primary-key table becomes `CHANGE_TYPE`, or is dropped. Rows of a log table are
    inserts, or after-images of updates.
    """
    batch, kinds = log_batch.batch, None
    if batch.schema.names[:1] == [CHANGE_TYPE.name]:
        kinds = change_type_names().take(batch.column(0))
        batch = pa.RecordBatch.from_arrays(batch.columns[1:], schema=pa.schema(list(batch.schema)[1:]))
    elif CHANGE_TYPE in fields and log_batch.segment.updated:
        updated = log_batch.segment.updated_rows.holds(log_batch.row_offsets())
        kinds = change_type_names().take(pa.array(np.where(updated, ChangeType.UPDATE_AFTER, ChangeType.INSERT)))
    times_us = None
    if COMMIT_TIMESTAMP in fields:
        times_us = pa.array(log_batch.of_rows(log_batch.segment.commit_times_ms(log_batch.offsets)) * 1000)
    offsets = pa.array(log_batch.row_offsets()) if _needs_offsets(fields) else None
    return add_log_positions(
        batch, fields, log_batch.bucket, offsets, times_us, kinds, num_rows=log_batch.batch.num_rows
    )


def _needs_offsets(fields: Sequence[pa.Field]) -> bool:
    return LOG_OFFSET in fields or ROW_ID in fields


def _row_ids(bucket: int | None, offsets: pa.Array | None, num_rows: int) -> pa.Array:
    """Return the row ids; `NO_PLACE` for rows without a known log position."""
    if bucket is None or offsets is None:
        return pa.repeat(pa.scalar(NO_PLACE, pa.int64()), num_rows)
    return pa.array(row_ids(bucket, offsets.to_numpy()))


def add_metadata(
    batch: pa.RecordBatch, fields: Sequence[pa.Field], bucket: int, base_offset: int, times_us: pa.Array | None
) -> pa.RecordBatch:
    """Return the batch with metadata columns. ``times_us`` is None for lake rows, whose commit times are unknown."""
    offsets = pa.array(np.arange(base_offset, base_offset + batch.num_rows)) if _needs_offsets(fields) else None
    return add_log_positions(batch, fields, bucket, offsets, times_us)


def add_log_positions(
    batch: pa.RecordBatch,
    fields: Sequence[pa.Field],
    bucket: int | None,
    offsets: pa.Array | None,
    times_us: pa.Array | None = None,
    kinds: pa.Array | None = None,
    *,
    num_rows: int | None = None,
    ids: pa.Array | None = None,
) -> pa.RecordBatch:
    """Return the batch with metadata columns. None for ``bucket``, ``offsets`` or ``times_us`` yields nulls.

    ``kinds`` are the change types; by default all rows are inserts. ``ids`` are the row ids of rows without offsets.
    """
    rows = batch.num_rows if num_rows is None else num_rows
    values = {
        CHANGE_TYPE.name: lambda: pa.repeat(pa.scalar("insert"), rows) if kinds is None else kinds,
        BUCKET.name: lambda: pa.repeat(pa.scalar(bucket, pa.int32()), rows),
        LOG_OFFSET.name: lambda: pa.nulls(rows, pa.int64()) if offsets is None else offsets,
        ROW_ID.name: lambda: _row_ids(bucket, offsets, rows) if ids is None else ids,
        COMMIT_TIMESTAMP.name: lambda: (pa.nulls(rows, pa.int64()) if times_us is None else times_us).cast(
            COMMIT_TIMESTAMP.type
        ),
    }
    arrays = [values[f.name]() for f in fields]
    return pa.RecordBatch.from_arrays([*arrays, *batch.columns], schema=with_fields(fields, batch.schema))


# -- row ids ----------------------------------------------------------------------------------------------------------
#
# Spark identifies rows by columns that are never null. The id of a row with an offset combines bucket and offset in a
# number of at least 0. Adopted rows, and rows in files of another engine, have no offset. Their ids combine the index
# of the file in a lake snapshot and the position in the file in a number below `NO_PLACE`. Such ids are valid only with
# that snapshot.

_OFFSET_BITS: Final = 47
OFFSETS_MAX: Final = 1 << _OFFSET_BITS
"""Offsets per bucket that fit into a row id: 140 trillion, with 65,536 buckets."""
NO_PLACE: Final = -1
"""The id of rows that cannot be identified."""
_POSITION_BITS: Final = 38
POSITIONS_MAX: Final = 1 << _POSITION_BITS
"""Rows per file that fit into a row id: 274 billion."""
FILES_MAX: Final = 1 << 24
"""Files of a lake snapshot that fit into a row id."""

Int64Array = npt.NDArray[np.int64]


def row_ids(bucket: int, offsets: Int64Array) -> Int64Array:
    """Return the ids of rows of a bucket. Raises `ValueError` for an offset of `OFFSETS_MAX` or more."""
    if len(offsets) and int(offsets.max()) >= OFFSETS_MAX:
        raise ValueError(f"offset {int(offsets.max())} of bucket {bucket} does not fit into a row id")
    return (np.int64(bucket) << _OFFSET_BITS) | offsets


def first_row_id(bucket: int) -> int:
    """Return the id of the row at offset 0 of a bucket; the ids of its other rows follow."""
    return bucket << _OFFSET_BITS


def file_row_ids(place: int, positions: Int64Array) -> Int64Array:
    """Return the ids of rows of the lake file with index ``place`` in its snapshot.

    Raises `ValueError` for an index or a position that does not fit.
    """
    if place >= FILES_MAX or (len(positions) and int(positions.max()) >= POSITIONS_MAX):
        raise ValueError(f"rows of file {place} of a lake snapshot do not fit into a row id")
    return (NO_PLACE - 1) - ((np.int64(place) << _POSITION_BITS) | positions)


def offsets_by_bucket(ids: Int64Array) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the rows with these ids. Skips ids of rows that are identified by file."""
    return _group_by_high_part(np.unique(ids[ids > NO_PLACE]), _OFFSET_BITS)


def positions_by_file(ids: Int64Array) -> dict[int, OffsetSet]:
    """Return index of a lake file → positions of the rows with these ids. Skips ids of rows with offsets."""
    return _group_by_high_part(np.unique((NO_PLACE - 1) - ids[ids < NO_PLACE]), _POSITION_BITS)


def _group_by_high_part(ids: Int64Array, bits: int) -> dict[int, OffsetSet]:
    """Return the high part of ascending numbers → their low parts of ``bits`` bits."""
    groups, numbers = ids >> bits, ids & ((1 << bits) - 1)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    parts = np.split(numbers, firsts[1:]) if len(ids) else []
    return {int(groups[first]): OffsetSet.of(part) for first, part in zip(firsts, parts, strict=True)}
