"""Split planning: cut a plan into parts of about equal size, for parallel Spark tasks or Flight streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from streamhouse_spark.log.segments.scan import split_by_size
from streamhouse_spark.read.change_rows import split_changes
from streamhouse_spark.read.scan_tasks import (
    ArchiveScanTask,
    BootstrapScanTask,
    ChangesScanTask,
    KeyedScanTask,
    LogScanTask,
    ScanPlan,
    ScanTask,
)

TARGET_BYTES_MIN = 8 << 20
TARGET_BYTES_MAX = 128 << 20
OPENING_BYTES = 256 << 10
"""Cost of opening a file, expressed as bytes to read, so that many tiny files make several tasks."""


class SizedSplit(Protocol):
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=SizedSplit)


def split_plan(plan: ScanPlan, parallelism: int | None = None) -> list[ScanPlan]:
    """Cut the plan into parts of about equal size: split large tasks, and pack small neighbours."""
    tasks = list(group_by_bucket(plan.tasks))
    target_bytes = target_partition_bytes(tasks, parallelism or os.cpu_count() or 1)
    groups = align_to_changes(
        pack_neighbours(list(split_large_tasks(tasks, target_bytes)), target_bytes), lambda piece: piece
    )
    return [plan.with_tasks(group) for group in groups] or [plan]


def split_binlog(plan: ScanPlan, starts: Mapping[int, int]) -> list[ScanPlan]:
    """Cut the plan into one part per bucket. An update is two rows of the log, which must not be separated."""
    plans: list[ScanPlan] = []
    for bucket, start in starts.items():
        tasks = [task for task in plan.tasks if _changes_bucket(task) == bucket]
        plans.append(replace(plan.with_tasks(tasks), binlog_start=start))
    return plans or [plan]


def _changes_bucket(task: ScanTask) -> int | None:
    match task:
        case LogScanTask(split):
            return split.bucket
        case ArchiveScanTask(bucket):
            return bucket
    return None


def target_partition_bytes(
    tasks: Iterable[SizedSplit], parallelism: int, *, min_bytes: int | None = None, per_core: int = 2
) -> int:
    """Return the partition size that gives every core about ``per_core`` partitions.

    ``min_bytes`` lowers the smallest size, whose default suits the start-up cost of a Python task.
    """
    total_bytes = sum(task.size_bytes + OPENING_BYTES for task in tasks)
    low_bytes = TARGET_BYTES_MIN if min_bytes is None else min(min_bytes, TARGET_BYTES_MIN)
    return min(max(total_bytes // (per_core * parallelism), low_bytes, 1), TARGET_BYTES_MAX)


def group_by_bucket(tasks: Iterable[ScanTask]) -> Iterator[ScanTask]:
    """Move tasks that merge changes to the end, grouped by bucket, because tasks of a bucket share its changes."""
    of_bucket: dict[int | None, list[ScanTask]] = {}
    for task in tasks:
        if not isinstance(task, KeyedScanTask):
            yield task
            continue
        bucket_tasks = of_bucket.setdefault(task.bucket, [])
        if task.base is None:
            bucket_tasks.append(task)
        else:
            cut = split_by_size(task.base, TARGET_BYTES_MAX)
            bucket_tasks.extend(replace(task, base=part, size_bytes=part.size_bytes) for part in cut)
    yield from of_bucket.pop(None, ())
    for _, grouped_tasks in sorted(of_bucket.items(), key=lambda item: item[0] or 0):
        yield from grouped_tasks


def split_large_tasks(tasks: Iterable[ScanTask], target_bytes: int) -> Iterable[ScanTask]:
    """Return the tasks, with large log tasks split."""
    for task in tasks:
        if isinstance(task, ChangesScanTask):
            yield from split_changes(task, target_bytes)
        elif isinstance(task, LogScanTask | BootstrapScanTask) and task.size_bytes > target_bytes * 3 // 2:
            yield from (replace(task, split=split) for split in split_by_size(task.split, target_bytes))
        else:
            yield task


def pack_neighbours(tasks: Sequence[S], target_bytes: int) -> Iterable[list[S]]:
    """Pack neighbours into groups of about equal size. Only a group with a very large task exceeds the target much."""
    sizes_bytes = [task.size_bytes + OPENING_BYTES for task in tasks]
    total_bytes = sum(sizes_bytes)
    share_bytes = total_bytes / max(1, round(total_bytes / target_bytes))
    groups: dict[int, list[S]] = {}
    before_bytes = 0
    for task, size_bytes in zip(tasks, sizes_bytes, strict=True):
        groups.setdefault(int((before_bytes + size_bytes / 2) / share_bytes), []).append(task)
        before_bytes += size_bytes
    return groups.values()


def align_to_changes(groups: Iterable[list[S]], task_of: Callable[[S], ScanTask]) -> list[list[S]]:
    """Move the tasks of a bucket from the second of two groups to the first if either has few bytes of the bucket.

    Each group reads the changes of its buckets. A group keeps tasks of a shared bucket only if they have at least as
    many bytes of older rows as the bucket has changes. That bounds the changes that are read several times.
    """
    groups = [list(group) for group in groups]
    changes: dict[int | None, int] = {}
    for item in (item for group in groups for item in group):
        task = task_of(item)
        if isinstance(task, KeyedScanTask) and task.is_of_changes:
            changes[task.bucket] = changes.get(task.bucket, 0) + item.size_bytes
    changes[None] = sum(changes.values())
    joined: list[list[S]] = groups[:1]
    for group in groups[1:]:
        left_bytes, right_bytes = _older_bytes(joined[-1], task_of), _older_bytes(group, task_of)
        moving = {
            b for b in left_bytes.keys() & right_bytes.keys() if min(left_bytes[b], right_bytes[b]) < changes.get(b, 0)
        }
        staying: list[S] = []
        for item in group:
            task = task_of(item)
            (joined[-1] if isinstance(task, KeyedScanTask) and task.bucket in moving else staying).append(item)
        if staying:
            joined.append(staying)
    return joined


def _older_bytes(group: Sequence[S], task_of: Callable[[S], ScanTask]) -> dict[int | None, int]:
    """Return bucket → bytes of older rows, for every bucket whose changes the group needs."""
    sizes_bytes: dict[int | None, int] = {}
    for item in group:
        task = task_of(item)
        if isinstance(task, KeyedScanTask):
            sizes_bytes[task.bucket] = sizes_bytes.get(task.bucket, 0) + (0 if task.is_of_changes else item.size_bytes)
    return sizes_bytes
