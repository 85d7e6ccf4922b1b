"""Rewrites of a data file of the table, or of another engine, without some of its rows, in any format.

Partition drops in a log table's lake, in any format: retries, and the rows of a file that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Generic, TypeVar

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import copy_live_rows
from streamhouse_spark.core.clock import Ids, World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeRolledBackError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.lake.parquet.bucket_writer import PartitionSplitter, rewrite_files
from streamhouse_spark.lake.parquet.file_writer import FileSpec, PartitionFile, PartitionKey, parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import (
    FilesAt,
    OffsetFile,
    deleted_places_within,
    read_offset_file,
    read_split,
)
from streamhouse_spark.lake.types import LakeDropReport, LakeFile, LakeProjection, LakeSplit, WriteContext


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


ATTEMPTS_MAX: Final = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A data file that loses some of its rows."""

    split: LakeSplit
    offsets: OffsetFile
    first_retained: int

    @property
    def kept_rows(self) -> int:
        return self.offsets.runs.num_rows - self.first_retained


@dataclass(frozen=True, slots=True)
class FilesToDrop(Generic[T]):
    """The data files that a snapshot loses."""

    files: tuple[T, ...]
    cut: tuple[PartialFile, ...]
    """The files that keep some of their rows."""
    is_whole: bool
    """No row of the partitions stays."""
    file_rows: int
    foreign_rows: int
    """Rows in files of other engines, which never had offsets, without individually deleted rows."""
    deleted_rows: int = 0
    """Individually deleted rows, which count as missing already."""

    @property
    def kept_rows(self) -> int:
        return sum(file.kept_rows for file in self.cut)

    @property
    def rows(self) -> int:
        return self.file_rows - self.kept_rows - self.deleted_rows

    def report(self) -> LakeDropReport:
        return LakeDropReport(len(self.files), self.rows, self.kept_rows)


def find_files_to_drop(
    candidates: Iterable[tuple[T, LakeSplit]], files_at: FilesAt, writers: Collection[str], below: Mapping[int, int]
) -> FilesToDrop[T]:
    """Find the files of the partitions with rows below the offsets. Files of other engines are dropped whole."""
    selected: list[tuple[T, LakeSplit]] = []
    cut: list[PartialFile] = []
    is_whole = True
    for file, split in candidates:
        first, offset_file_of_split = find_first_retained(files_at, writers, split.location, split.num_rows, below)
        is_whole &= first == split.num_rows
        if first > 0:
            selected.append((file, split))
        if offset_file_of_split is not None and 0 < first < split.num_rows:
            cut.append(PartialFile(split, offset_file_of_split, first))
    foreign_rows = sum(split.num_rows for _, split in selected if has_external_name(split.location))
    file_rows = sum(split.num_rows for _, split in selected)
    return FilesToDrop(tuple(file for file, _ in selected), tuple(cut), is_whole, file_rows, foreign_rows)


def retry_until_committed(world: World, lake: str, chosen: PartitionMatches, drop: Callable[[], T]) -> T:
    """Call ``drop``, and retry on a conflict. Raises `CommitConflictError`."""
    for attempt in range(ATTEMPTS_MAX):
        world.wait_to_retry(attempt)
        try:
            return drop()
        except CommitConflictError as error:
            conflict = error
    raise CommitConflictError(
        f"lake table {lake}: other writers won {ATTEMPTS_MAX} times in a row ({conflict}); nothing of {chosen} was "
        "dropped, try again"
    )


def find_first_retained(
    files_at: FilesAt, writers: Collection[str], location: str, num_rows: int, below: Mapping[int, int]
) -> tuple[int, OffsetFile | None]:
    """Return the first row of a file that stays, and the file's offsets if they had to be read.

    Files of other engines are dropped whole, and so are those of a previous owner of the lake, which only their footers
    distinguish. Reads no footer if no offsets are dropped.
    """
    named = parse_file_offsets(location)
    if named is None or named[1].end <= below.get(named[0], 0):
        return num_rows, None
    if not below:
        return 0, None
    file_offsets = read_offset_file(files_at(location), location, writers)
    if file_offsets is None:
        return num_rows, None
    return file_offsets.runs.rows_below(below.get(file_offsets.bucket, 0)), file_offsets


def has_external_name(location: str) -> bool:
    """Return whether a file is certainly another engine's: its rows have no offsets."""
    return parse_file_offsets(location) is None


def rewrite_partial_files(
    cuts: Iterable[PartialFile],
    context: WriteContext,
    spec: FileSpec,
    projection: LakeProjection,
    files_at: FilesAt,
    files: FileAccess,
    ids: Ids,
) -> list[LakeFile]:
    """Write the remaining rows of partly dropped files, with their offsets, to new files that ``files`` can reach."""
    return [
        file for cut in cuts for file in _rewrite_partial_file(cut, context, spec, projection, files_at, files, ids)
    ]


def _rewrite_partial_file(
    cut: PartialFile,
    context: WriteContext,
    spec: FileSpec,
    projection: LakeProjection,
    files_at: FilesAt,
    files: FileAccess,
    ids: Ids,
) -> list[LakeFile]:
    remaining = replace(cut.offsets, runs=cut.offsets.runs.rows(cut.first_retained, cut.offsets.runs.num_rows))

    def batches() -> Iterator[tuple[OffsetFile, pa.RecordBatch]]:
        position = 0
        for batch in read_split(files_at(cut.split.location), cut.split, projection):
            skipped = min(max(cut.first_retained - position, 0), batch.num_rows)
            position += batch.num_rows
            if skipped < batch.num_rows:
                yield remaining, batch.slice(skipped)

    written = rewrite_files(context, spec, files, ids, remaining.bucket, remaining.runs.range, batches())
    if sum(f.num_rows for f in written) != remaining.runs.num_rows:
        raise CommitConflictError(
            f"lake file {cut.split.location} had other rows than its footer says; nothing was dropped, run "
            "streamhouse verify"
        )
    return written


def require_tiered(location: str, lake_offsets: Mapping[int, int], below: Mapping[int, int]) -> None:
    """Require that the lake holds all rows to drop: otherwise the next round would add them again.

    ``lake_offsets`` are the lake's offsets. Raises `LakeRolledBackError`.
    """
    shortfall = {
        bucket: (lake_offsets.get(bucket, 0), end) for bucket, end in below.items() if lake_offsets.get(bucket, 0) < end
    }
    if shortfall:
        raise LakeRolledBackError(
            f"lake table {location}: it holds less than was tiered before (bucket: found, expected) {shortfall}; "
            "nothing was dropped. Roll the lake forward to its newest snapshot, or rebuild it (streamhouse retier), "
            "then drop the partition again"
        )
