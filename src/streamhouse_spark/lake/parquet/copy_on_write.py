"""Rewrites of a data file of the table, or of another engine, without some of its rows, in any format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.model.values import LakeFile, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.lake.parquet.bucket_writer import PartitionSplitter, rewrite_files
from streamhouse_spark.lake.parquet.file_writer import FileSpec, PartitionFile, PartitionKey
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import FilesAt, OffsetFile, deleted_places_within, read_split
from streamhouse_spark.query.row_selection import copy_live_rows


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """A data file, and the offsets of the rows to remove."""

    split: LakeSplit
    offsets: OffsetFile
    removed_offsets: OffsetSet

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def retained_offsets(self) -> OffsetSet:
        return self.offsets.runs.without(self.removed_offsets)


def rewrite_without_rows(
    file: FileRewrite, context: WriteContext, spec: FileSpec, projection: LakeProjection, files: FileAccess, ids: Ids
) -> list[LakeFile]:
    """Write the remaining rows of a file, in order and with their offsets, to new files. They are durable on return.

    If no row remains, reads and writes nothing. Memory is bounded by one row group. Raises `CommitConflictError` if the
    file has other rows than its footer says.
    """
    remaining = replace(file.offsets, runs=file.retained_offsets)
    if not remaining.runs:
        return []
    numbers = file.offsets.runs.rows_at(file.removed_offsets)

    def batches() -> Iterator[tuple[OffsetFile, pa.RecordBatch]]:
        position = 0
        for batch in read_split(files, file.split, projection):
            deleted = deleted_places_within(numbers, position, batch.num_rows)
            position += batch.num_rows
            yield remaining, copy_live_rows(batch, deleted)

    written = rewrite_files(context, spec, files, ids, remaining.bucket, remaining.runs.range, batches())
    if sum(written_file.num_rows for written_file in written) != remaining.runs.num_rows:
        raise CommitConflictError(
            f"lake file {file.split.location} had other rows than its footer says; no row was deleted there, run "
            "streamhouse verify"
        )
    return written


@dataclass(frozen=True, slots=True)
class ExternalFileRewrite:
    """A data file of another engine, whose rows have no offsets, and the positions of the rows to remove."""

    split: LakeSplit
    bucket: int
    """The lake's bucket."""
    partition: PartitionKey
    sequences: OffsetRange
    """Sequence numbers of its rows in the lake's manifest, which include those of the remaining rows."""
    removed_positions: OffsetSet

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def num_kept(self) -> int:
        return self.split.num_rows - self.removed_positions.num_rows


def rewrite_without_positions(
    file: ExternalFileRewrite,
    context: WriteContext,
    spec: FileSpec,
    projection: LakeProjection,
    files_at: FilesAt,
    ids: Ids,
) -> LakeFile | None:
    """Write the remaining rows of a file, in order, to a file without offsets. Returns None if no row remains.

    The package gives this kind of name to no file with offsets. Memory is bounded by one row group. The file is durable
    on return. Raises `CommitConflictError` if the file has other rows than the manifest says.
    """
    if not file.num_kept:
        return None
    numbers, splitter = file.removed_positions.offsets(), PartitionSplitter(spec, context.schema.arrow, file.bucket)
    files, where = files_at(spec.data_location), file.split.location
    written = PartitionFile(context, spec, files, file.bucket, file.partition, file.sequences, ids.new_uuid())
    try:
        position = 0
        for batch in read_split(files_at(where), file.split, projection):
            deleted = deleted_places_within(numbers, position, batch.num_rows)
            position += batch.num_rows
            written.add(splitter.cast_to_file_types(copy_live_rows(batch, deleted)), None)
            if written.row_group_is_full:
                written.write_row_group()
    except BaseException as error:
        written.abandon(error)
        raise
    written_file = written.close()
    if written_file.num_rows != file.num_kept:
        raise CommitConflictError(
            f"lake file {where} had other rows than its manifest says; no row was deleted there, run streamhouse verify"
        )
    return written_file
