"""Validation of a round and its offsets within the lake commit, in any format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Final

from streamhouse_spark.core.concurrency import THREADS_MAX, parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import (
    CommitConflictError,
    LakeMismatchError,
    LakeRolledBackError,
    ObjectNotFoundError,
    count_of,
)
from streamhouse_spark.lake.metadata_errors import InconsistentMetadataError
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.snapshot_properties import LakeOffsets
from streamhouse_spark.lake.types import LakeFile, has_same_offsets
from streamhouse_spark.log.history_index import HistoryPoint

logger = logging.getLogger(__name__)

NOTHING_ABSENT: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LogRange:
    """The rows ``[starts[bucket], ends[bucket])`` of each bucket."""

    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    absent: Mapping[int, int] = field(default_factory=dict)
    """Bucket → number of new rows that are in no file, because they were deleted before they were written."""

    def __str__(self) -> str:
        ranges = (f"{b}: [{self.starts.get(b, 0)}, {self.ends.get(b, 0)})" for b in sorted({*self.starts, *self.ends}))
        return f"offsets {{{', '.join(ranges)}}}"


def require_offsets(location: str, offsets: LakeOffsets | None, expected: LogRange) -> None:
    """Require that the lake holds the rows that it held when the round was planned, with the same truncation.

    Raises `CommitConflictError`, or `LakeRolledBackError` if the lake has fewer rows.
    """
    current = LogRange(offsets.starts, offsets.offsets) if offsets else LogRange()
    if not has_same_offsets(current.starts, expected.starts):
        text = f"lake table {location}: found {current}, expected {expected} from before a truncation"
    elif moved := [b for b in {*current.ends, *expected.ends} if current.ends.get(b, 0) != expected.ends.get(b, 0)]:
        bucket = min(moved)
        text = (
            f"lake table {location}: bucket {bucket} of the lake is at offset {current.ends.get(bucket, 0)}, expected "
            f"{expected.ends.get(bucket, 0)}, where this round started"
        )
    else:
        return
    if _is_below(current.ends, expected.ends) or _is_below(current.starts, expected.starts):
        raise LakeRolledBackError(
            f"{text}: the lake was rolled back; roll it forward, or rebuild it (streamhouse retier)"
        )
    raise CommitConflictError(f"{text}: another tiering service committed concurrently; retry")


def next_offsets(
    before: LakeOffsets | None, expected: LogRange, new: LogRange, num_deleted: int, history: HistoryPoint | None
) -> LakeOffsets:
    """Return the offsets of the snapshot of a round, which advances the lake from ``expected`` to ``new``.

    ``num_deleted`` rows of the lake and the round are in no file. After a truncation, earlier rows do not count.
    """
    if before is None or not has_same_offsets(expected.starts, new.starts):
        before = LakeOffsets({})
    num_dropped = num_deleted + before.dropped_rows
    return LakeOffsets(new.ends, new.starts, num_dropped, history, before.dropped_without_offsets)


def _is_below(left: Mapping[int, int], right: Mapping[int, int]) -> bool:
    return any(left.get(bucket, 0) < offset for bucket, offset in right.items())


def require_present(files_at: Callable[[str], FileAccess], files: Sequence[LakeFile]) -> None:
    """Require that the files exist with their written size. Raises `CommitConflictError`."""

    def check(file: LakeFile) -> None:
        access = files_at(file.location)
        try:
            with access.open_input(file.location) as opened:
                size_bytes = opened.size()
        except ObjectNotFoundError as error:
            raise CommitConflictError(
                f"lake file {file.location} was deleted before it was committed; retry the round"
            ) from error
        if size_bytes != file.size_bytes:
            raise CommitConflictError(
                f"lake file {file.location} has {size_bytes} bytes, expected {file.size_bytes}; retry the round"
            )

    for _ in parallel_map(check, files, threads_max=THREADS_MAX):
        pass


def require_deletes_resolved(table: str, remaining: Mapping[int, OffsetSet], foreign: str | None) -> None:
    """Require that no row of ``remaining``, whose delete is unresolved, can be in the file ``foreign`` without offsets.

    Raises `LakeMismatchError`.
    """
    if foreign is not None and any(remaining.values()):
        raise LakeMismatchError(
            f"lake table {table}: deleted rows may be in {foreign}, which another engine wrote, so their positions are "
            "unknown; delete the rows with that engine"
        )


def require_dense(
    files: Sequence[LakeFile],
    expected: Mapping[int, int],
    new: Mapping[int, int],
    absent: Mapping[int, int] = NOTHING_ABSENT,
) -> None:
    """Require that the files of each bucket have as many rows as its offsets advance, minus ``absent`` rows."""
    rows: dict[int, int] = {}
    for file in files:
        rows[file.bucket] = rows.get(file.bucket, 0) + file.num_left
    for bucket in {*rows, *new, *expected}:
        advance = new.get(bucket, 0) - expected.get(bucket, 0) - absent.get(bucket, 0)
        if advance != rows.get(bucket, 0):
            raise InconsistentMetadataError(
                f"bucket {bucket}: {count_of(rows.get(bucket, 0), 'row')} for an advance of "
                f"{count_of(advance, 'offset')}"
            )


def warn_of_duplicates(table: str, healed_rows: int) -> None:
    """Log the number of removed duplicates, if any. A duplicate is an additional live row of a primary key.

    Only other engines add duplicates. A round removes those of changed keys, compaction those of a bucket and
    partition.
    """
    if healed_rows:
        logger.warning(
            "the lake table of %s had several rows for some primary keys, which only other engines add: %d rows were "
            "removed; let only tiering add rows to this table",
            table,
            healed_rows,
        )
