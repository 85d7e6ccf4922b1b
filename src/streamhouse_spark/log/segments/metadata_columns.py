"""Metadata columns with the log position of a row, for changelogs, tails and reads with metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.segments.reader import LogBatch
from streamhouse_spark.log.segments.row_ids import NO_PLACE, row_ids

CHANGE_TYPE = pa.field("_change_type", pa.string(), nullable=False)
BUCKET = pa.field("_bucket", pa.int32(), nullable=False)
LOG_OFFSET = pa.field("_log_offset", pa.int64(), nullable=False)
COMMIT_TIMESTAMP = pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=True)
COMMIT_VERSION = pa.field("_commit_version", pa.int64(), nullable=False)
ROW_ID = pa.field("_row_id", pa.int64(), nullable=False)
"""The row id, see `log.segments.row_ids`: identifies a row that an UPDATE, DELETE or MERGE read."""

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
    """Return the names of the change types."""
    return pa.array([kind.name.lower() for kind in ChangeType])


def without_metadata(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return rows of a tail as rows to write, without the metadata columns that the table does not have.

    Raises `SchemaMismatchError` for changes that are not new rows: deletes, and before-images of updates.
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
    """Return the batch with these metadata columns before its own.

    In a primary-key table its first column is the change type, which becomes `CHANGE_TYPE` if that is among the fields.
    In a log table rows are inserts, or after-images of updates.
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
    offsets = pa.array(log_batch.row_offsets()) if _has_places(fields) else None
    return add_log_positions(
        batch, fields, log_batch.bucket, offsets, times_us, kinds, num_rows=log_batch.batch.num_rows
    )


def _has_places(fields: Sequence[pa.Field]) -> bool:
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
    offsets = pa.array(np.arange(base_offset, base_offset + batch.num_rows)) if _has_places(fields) else None
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

    ``kinds`` are the change types, by default all inserts. ``ids`` are the row ids of rows without offsets.
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
