"""Copy-on-write deletes of both lake formats: data files are rewritten without single rows or a dropped partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Generic, TypeVar

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import copy_live_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeRolledBackError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.lake.parquet.bucket_writer import PartitionSplitter, rewrite_files
from streamhouse_spark.lake.parquet.file_writer import FileOutput, PartitionFile, PartitionKey, parse_file_offsets
from streamhouse_spark.lake.parquet.reader import (
    FilesAt,
    FileWithOffsets,
    deleted_rows_within,
    read_file_offsets,
    read_split,
)
from streamhouse_spark.lake.snapshot_properties import LakeOffsets
from streamhouse_spark.lake.types import LakeDropReport, LakeFile, LakeProjection, LakeSplit

ATTEMPTS_MAX: Final = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """A data file, and the offsets of the rows to remove."""

    split: LakeSplit
    offsets: FileWithOffsets
    removed_offsets: OffsetSet

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def retained_offsets(self) -> OffsetSet:
        return self.offsets.runs.without(self.removed_offsets)


def rewrite_without_rows(
    file: FileRewrite, output: FileOutput, projection: LakeProjection, files_at: FilesAt
) -> list[LakeFile]:
    """Write the remaining rows of a file to new files, in order, with their offsets. They are durable on return.

    Does no I/O if no row remains. Memory is bounded by one row group. Raises `CommitConflictError` if the file has
    other rows than its footer claims.
    """
    remaining = replace(file.offsets, runs=file.retained_offsets)
    if not remaining.runs:
        return []
    numbers = file.offsets.runs.rows_at(file.removed_offsets)

    def batches() -> Iterator[tuple[FileWithOffsets, pa.RecordBatch]]:
        position = 0
        for batch in read_split(files_at(file.split.location), file.split, projection):
            deleted = deleted_rows_within(numbers, position, batch.num_rows)
            position += batch.num_rows
            yield remaining, copy_live_rows(batch, deleted)

    written = rewrite_files(output, remaining.bucket, remaining.runs.range, batches())
    if sum(written_file.num_rows for written_file in written) != remaining.runs.num_rows:
        raise CommitConflictError(
            f"lake file {file.split.location} has other rows than its footer claims; no rows were deleted, run "
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
    """Sequence numbers of its rows in the lake's manifest. They include those of the remaining rows."""
    removed_positions: OffsetSet

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def num_kept(self) -> int:
        return self.split.num_rows - self.removed_positions.num_rows


def rewrite_without_positions(
    file: ExternalFileRewrite, output: FileOutput, projection: LakeProjection, files_at: FilesAt
) -> LakeFile | None:
    """Write the remaining rows of a file to a file without offsets, in order. Returns None if no row remains.

    The name of the file shows that its rows have no offsets. Memory is bounded by one row group. The file is durable on
    return. Raises `CommitConflictError` if the file has other rows than the manifest claims.
    """
    if not file.num_kept:
        return None
    numbers, where = file.removed_positions.offsets(), file.split.location
    splitter = PartitionSplitter(output.spec, output.context.schema.names, file.bucket)
    written = PartitionFile(output, file.bucket, file.partition, file.sequences, output.ids.new_uuid())
    try:
        position = 0
        for batch in read_split(files_at(where), file.split, projection):
            deleted = deleted_rows_within(numbers, position, batch.num_rows)
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
            f"lake file {where} has other rows than its manifest claims; no rows were deleted, run streamhouse verify"
        )
    return written_file


@dataclass(frozen=True, slots=True)
class FilesToDrop(Generic[T]):
    """The data files that a partition drop removes."""

    files: tuple[T, ...]
    partial: tuple[FileRewrite, ...]
    """The files that keep some of their rows, which are rewritten."""
    is_whole: bool
    """Whether no row of the partitions remains."""
    file_rows: int
    foreign_rows: int
    """Rows in files of other engines, which never had offsets, without individually deleted rows."""
    deleted_rows: int = 0
    """Individually deleted rows, which are already counted as missing."""

    @property
    def kept_rows(self) -> int:
        return sum(file.retained_offsets.num_rows for file in self.partial)

    @property
    def rows(self) -> int:
        return self.file_rows - self.kept_rows - self.deleted_rows

    def rewrite_partial_files(
        self, output: FileOutput, projection: LakeProjection, files_at: FilesAt
    ) -> list[LakeFile]:
        """Write the remaining rows of partly dropped files, with their offsets, to new files."""
        return [
            written for file in self.partial for written in rewrite_without_rows(file, output, projection, files_at)
        ]

    def report(self) -> LakeDropReport:
        return LakeDropReport(len(self.files), self.rows, self.kept_rows)

    def properties_after(self, offsets: LakeOffsets | None, table_uuid: str) -> dict[str, str]:
        """Return the properties of the snapshot of the drop, which follows a snapshot with these offsets.

        Returns none if the lake has no offsets, because the rows of other engines' files are not counted.
        """
        return {} if offsets is None else offsets.with_dropped(self.rows, self.foreign_rows).to_properties(table_uuid)


def find_files_to_drop(
    candidates: Iterable[tuple[T, LakeSplit]], files_at: FilesAt, writers: Collection[str], below: Mapping[int, int]
) -> FilesToDrop[T]:
    """Return the files of the partitions with rows below the offsets. Files of other engines are dropped whole."""
    selected: list[tuple[T, LakeSplit]] = []
    partial: list[FileRewrite] = []
    is_whole = True
    for file, split in candidates:
        first, offset_file = _find_first_retained(files_at, writers, split.location, split.num_rows, below)
        is_whole &= first == split.num_rows
        if first > 0:
            selected.append((file, split))
        if offset_file is not None and 0 < first < split.num_rows:
            partial.append(FileRewrite(split, offset_file, offset_file.runs.rows(0, first)))
    foreign_rows = sum(split.num_rows for _, split in selected if has_external_name(split.location))
    file_rows = sum(split.num_rows for _, split in selected)
    return FilesToDrop(tuple(file for file, _ in selected), tuple(partial), is_whole, file_rows, foreign_rows)


def retry_until_committed(world: World, lake: str, chosen: PartitionMatches, drop: Callable[[], T]) -> T:
    """Call ``drop``, and retry on a conflict. Raises `CommitConflictError`."""
    for attempt in range(ATTEMPTS_MAX):
        world.wait_to_retry(attempt)
        try:
            return drop()
        except CommitConflictError as error:
            conflict = error
    raise CommitConflictError(
        f"lake table {lake}: {ATTEMPTS_MAX} attempts conflicted with concurrent writers ({conflict}); nothing of "
        f"{chosen} was dropped, retry"
    )


def _find_first_retained(
    files_at: FilesAt, writers: Collection[str], location: str, num_rows: int, below: Mapping[int, int]
) -> tuple[int, FileWithOffsets | None]:
    """Return the first row of a file to keep, and the file's offsets if they had to be read.

    Files of other engines and of a previous owner of the lake are dropped whole. Only its footer identifies a file of a
    previous owner. Reads no footer if no offsets are dropped.
    """
    named = parse_file_offsets(location)
    if named is None or named[1].end <= below.get(named[0], 0):
        return num_rows, None
    if not below:
        return 0, None
    file_offsets = read_file_offsets(files_at(location), location, writers)
    if file_offsets is None:
        return num_rows, None
    return file_offsets.runs.rows_below(below.get(file_offsets.bucket, 0)), file_offsets


def has_external_name(location: str) -> bool:
    """Return whether the name proves that another engine wrote the file, so that its rows have no offsets."""
    return parse_file_offsets(location) is None


def require_tiered(location: str, lake_offsets: Mapping[int, int], below: Mapping[int, int]) -> None:
    """Require that the lake has all rows to drop. Otherwise the next round would add them again.

    Raises `LakeRolledBackError`.
    """
    shortfall = {
        bucket: (lake_offsets.get(bucket, 0), end) for bucket, end in below.items() if lake_offsets.get(bucket, 0) < end
    }
    if shortfall:
        raise LakeRolledBackError(
            f"lake table {location} has fewer rows than were tiered (bucket: offset, expected) {shortfall}; "
            "nothing was dropped. Roll the lake forward to its latest snapshot, or rebuild it (streamhouse retier), "
            "then drop the partition again"
        )
