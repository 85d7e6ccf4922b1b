"""Data files of a log table's lake that are written again without their deleted rows: until then the bytes stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pyiceberg.manifest import DataFile

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.lake.iceberg.scan import is_only_of
from streamhouse_spark.lake.parquet.compaction import CompactGroup, StoredFile
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import OffsetFile, offset_file, read_deleted_positions


@dataclass(frozen=True, slots=True)
class FileWithDeletes:
    """A data file of a snapshot, and the files that may name deleted rows of it."""

    data: DataFile
    deletes: tuple[DataFile, ...]

    @property
    def deleted_share_max(self) -> float:
        """The share of its rows that are deleted, or less: files of other engines may name rows of other files too."""
        return sum(delete.record_count for delete in self.deletes) / max(self.data.record_count, 1)

    def stored(self) -> StoredFile:
        file, path = self.data, self.data.file_path
        partition = (file.spec_id, *(file.partition[i] for i in range(len(file.partition))))
        deletes = tuple(delete.file_path for delete in self.deletes)
        own = tuple(delete.file_path for delete in self.deletes if is_only_of(delete, path))
        return StoredFile(path, file.file_size_in_bytes, file.record_count, partition, deletes, own)


def select_files_to_purge(
    with_deletes: Sequence[FileWithDeletes], files: FileAccess, writers: Collection[str], *, share_min: float
) -> Iterator[CompactGroup]:
    """Return a group for each file of which more than this share of the rows is deleted, if a tiering round of the
    table wrote it.

    The offsets of the rows that are left stay known. A file without such rows is a group without rows.
    """
    for file in with_deletes:
        if not file.deletes or file.deleted_share_max <= share_min:
            continue
        stored = file.stored()
        own = offset_file(files, stored.location, writers)
        if own is None:
            continue
        live, num_deleted = exclude_deleted(files, own, stored)
        if num_deleted > share_min * stored.num_rows:
            yield CompactGroup(own.bucket, (live,), (replace(stored, num_deleted=num_deleted),))


def exclude_deleted(files: FileAccess, own: OffsetFile, stored: StoredFile) -> tuple[OffsetFile, int]:
    """Return the file with the offsets of its rows that are not deleted, and how many are."""
    positions = read_deleted_positions(files, stored.location, stored.deletes)
    live = own.runs.without(OffsetRuns.of(own.runs.offsets()[positions]))
    return replace(own, runs=live), len(positions)
