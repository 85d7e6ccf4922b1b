"""Live rows of data files, by offset or by position; reads no rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.lake.model.values import LakeSplit
from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets
from streamhouse_spark.lake.parquet.reader import FilesAt, num_rows_in, read_deleted_positions, read_offset_file


@dataclass(frozen=True, slots=True)
class LiveRows:
    location: str
    bucket: int | None
    """None for a file whose rows have no offsets."""
    rows: OffsetSet
    """Offsets, or positions in the file."""


def read_live_rows(files_at: FilesAt, splits: Sequence[LakeSplit], writers: Collection[str]) -> list[LiveRows]:
    """Return the live rows of the files of these splits, from footers and position deletes.

    ``writers`` are the tables whose files have offsets. Raises `SnapshotExpiredError`, `CorruptDataError`.
    """

    def of_file(split: LakeSplit) -> LiveRows:
        files = files_at(split.location)
        own = (
            read_offset_file(files, split.location, writers) if parse_file_offsets(split.location) is not None else None
        )
        deleted = OffsetSet.of(read_deleted_positions(files, split.location, split.position_deletes))
        if own is None:
            positions = OffsetSet.dense(0, num_rows_in(files, split.location))
            return LiveRows(split.location, None, positions.without(deleted))
        offsets = own.runs.without(OffsetSet.of(own.runs.offsets()[deleted.offsets()])) if deleted else own.runs
        return LiveRows(split.location, own.bucket, offsets)

    return list(parallel_map(of_file, list({split.location: split for split in splits}.values())))


def group_by_bucket(files: Iterable[LiveRows]) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the files whose rows have offsets."""
    parts: dict[int, list[OffsetSet]] = {}
    for file in files:
        if file.bucket is not None:
            parts.setdefault(file.bucket, []).append(file.rows)
    return {bucket: OffsetSet.merged(runs) for bucket, runs in parts.items()}
