"""Split planning: cut a plan into parts of about equal size, for parallel readers such as Spark tasks or server
streams.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from streamhouse_spark.log.segments.scan import split_by_size
from streamhouse_spark.read.change_rows import split_changes
from streamhouse_spark.read.scan_tasks import (
    ArchiveScanTask,
    ChangesScanTask,
    KeyedScanTask,
    LogScanTask,
    Piece,
    ScanPlan,
    StartScanTask,
)

TARGET_BYTES_MIN = 8 << 20
TARGET_BYTES_MAX = 128 << 20
OPENING_BYTES = 256 << 10
"""Cost of opening a file, as bytes read instead, so that many tiny files still make several tasks."""


class SizedSplit(Protocol):
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=SizedSplit)


def parts(plan: ScanPlan, parallelism: int | None = None) -> list[ScanPlan]:
    """Cut the plan into parts of about equal size: large tasks are split, small neighbours are packed."""
    pieces = list(by_bucket(plan.pieces))
    target_bytes = partition_bytes(pieces, parallelism or os.cpu_count() or 1)
    groups = align_to_changes(
        pack_neighbours(list(split_large_tasks(pieces, target_bytes)), target_bytes), lambda piece: piece
    )
    return [plan.with_pieces(group) for group in groups] or [plan]


def binlog_parts(plan: ScanPlan, starts: Mapping[int, int]) -> list[ScanPlan]:
    """Cut the plan into one part per bucket, because an update is two rows of the log that must stay together."""
    plans: list[ScanPlan] = []
    for bucket, start in starts.items():
        pieces = [piece for piece in plan.pieces if _changes_bucket(piece) == bucket]
        plans.append(replace(plan.with_pieces(pieces), binlog_start=start))
    return plans or [plan]


def _changes_bucket(piece: Piece) -> int | None:
    match piece:
        case LogScanTask(split):
            return split.bucket
        case ArchiveScanTask(bucket):
            return bucket
    return None


def partition_bytes(
    pieces: Iterable[SizedSplit], parallelism: int, *, min_bytes: int | None = None, per_core: int = 2
) -> int:
    """Return the partition size that gives every core about ``per_core`` partitions.

    By default a partition is not smaller than is worthwhile for a Python task.
    """
    total_bytes = sum(piece.size_bytes + OPENING_BYTES for piece in pieces)
    low_bytes = TARGET_BYTES_MIN if min_bytes is None else min(min_bytes, TARGET_BYTES_MIN)
    return min(max(total_bytes // (per_core * parallelism), low_bytes, 1), TARGET_BYTES_MAX)


def by_bucket(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Move tasks that need changes to the end, grouped by bucket, because tasks of a bucket share its changes."""
    of_bucket: dict[int | None, list[Piece]] = {}
    for piece in pieces:
        if not isinstance(piece, KeyedScanTask):
            yield piece
            continue
        bucket_tasks = of_bucket.setdefault(piece.bucket, [])
        if piece.base is None:
            bucket_tasks.append(piece)
        else:
            cut = split_by_size(piece.base, TARGET_BYTES_MAX)
            bucket_tasks.extend(replace(piece, base=part, size_bytes=part.size_bytes) for part in cut)
    yield from of_bucket.pop(None, ())
    for _, tasks in sorted(of_bucket.items(), key=lambda item: item[0] or 0):
        yield from tasks


def split_large_tasks(pieces: Iterable[Piece], target_bytes: int) -> Iterable[Piece]:
    """Return the tasks, with large log tasks split."""
    for piece in pieces:
        if isinstance(piece, ChangesScanTask):
            yield from split_changes(piece, target_bytes)
        elif isinstance(piece, LogScanTask | StartScanTask) and piece.size_bytes > target_bytes * 3 // 2:
            yield from (replace(piece, split=split) for split in split_by_size(piece.split, target_bytes))
        else:
            yield piece


def pack_neighbours(pieces: Sequence[S], target_bytes: int) -> Iterable[list[S]]:
    """Pack neighbours into groups of about equal size. A group is much larger than the target only if one task is."""
    sizes_bytes = [piece.size_bytes + OPENING_BYTES for piece in pieces]
    total_bytes = sum(sizes_bytes)
    share_bytes = total_bytes / max(1, round(total_bytes / target_bytes))
    groups: dict[int, list[S]] = {}
    before_bytes = 0
    for piece, size_bytes in zip(pieces, sizes_bytes, strict=True):
        groups.setdefault(int((before_bytes + size_bytes / 2) / share_bytes), []).append(piece)
        before_bytes += size_bytes
    return groups.values()


def align_to_changes(groups: Iterable[list[S]], piece_of: Callable[[S], Piece]) -> list[list[S]]:
    """Move the tasks of a bucket that spans two groups to one of them if a side has fewer bytes of the bucket than its
    changes.

    Each group merges the changes of its buckets itself. So regardless of the number of groups, the changes read for a
    bucket are at most the bytes of its older rows.
    """
    groups = [list(group) for group in groups]
    changes: dict[int | None, int] = {}
    for item in (item for group in groups for item in group):
        piece = piece_of(item)
        if isinstance(piece, KeyedScanTask) and piece.is_of_changes:
            changes[piece.bucket] = changes.get(piece.bucket, 0) + item.size_bytes
    changes[None] = sum(changes.values())
    joined: list[list[S]] = groups[:1]
    for group in groups[1:]:
        left_bytes, right_bytes = _older_bytes(joined[-1], piece_of), _older_bytes(group, piece_of)
        moving = {
            b for b in left_bytes.keys() & right_bytes.keys() if min(left_bytes[b], right_bytes[b]) < changes.get(b, 0)
        }
        staying: list[S] = []
        for item in group:
            piece = piece_of(item)
            (joined[-1] if isinstance(piece, KeyedScanTask) and piece.bucket in moving else staying).append(item)
        if staying:
            joined.append(staying)
    return joined


def _older_bytes(group: Sequence[S], piece_of: Callable[[S], Piece]) -> dict[int | None, int]:
    """Return bucket → bytes of older rows, for every bucket whose changes the group needs."""
    sizes_bytes: dict[int | None, int] = {}
    for item in group:
        piece = piece_of(item)
        if isinstance(piece, KeyedScanTask):
            sizes_bytes[piece.bucket] = sizes_bytes.get(piece.bucket, 0) + (
                0 if piece.is_of_changes else item.size_bytes
            )
    return sizes_bytes
