"""Compaction of a log table's lake, in any format: selects small files and merges them.

Merges files that are adjacent in offset order, without a file of their bucket and partition in between. So all offsets
remain known, and a range below the log start offset is in fewer files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import THREADS_MAX, parallel_map
from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.parquet.bucket_writer import rewrite_files
from streamhouse_spark.lake.parquet.file_writer import FileOutput, parse_clustered_file_name
from streamhouse_spark.lake.parquet.reader import FileWithOffsets, read_split
from streamhouse_spark.lake.types import LakeFile, LakeProjection, LakeSplit
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads

COMPACT_FILES_MIN = 5
"""Minimum number of small adjacent files to rewrite."""
DELETED_SHARE_MIN = 0.1
"""Minimum share of deleted rows for rewriting a file without them. Below it, reads cost little more."""
SMALL_GROUP_BYTES_MAX: Final = 8 << 20
COMPACT_BYTES_MAX = 1 << 30
"""Maximum bytes of one call, so that a tiering service returns to its rounds. The next call continues."""
DISTRIBUTED_BYTES_MAX: Final = 16 << 30
"""This maximum if several processes write the groups of a call in parallel."""

R = TypeVar("R")
Footers = Callable[[Sequence[str]], Iterable[FileWithOffsets | None]]
"""Returns the offsets of files in order, and None for a file of another engine, which is skipped."""


class SizedFile(Protocol):
    @property
    def size_bytes(self) -> int: ...


G = TypeVar("G", bound=SizedFile)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file of a snapshot."""

    location: str
    size_bytes: int
    num_rows: int
    partition: tuple[Any, ...]
    """The lake's bucket and partition. Only files of one log bucket with equal values may be merged."""
    deletes: tuple[str, ...] = ()
    """Position delete files that may delete its rows."""
    own_deletes: tuple[str, ...] = ()
    """The part of ``deletes`` that applies to this file alone."""
    num_deleted: int = 0


@dataclass(frozen=True, slots=True)
class CompactGroup(JsonSerializable):
    """Adjacent files of one bucket and partition, in offset order, to merge into one."""

    bucket: int
    files: tuple[FileWithOffsets, ...]
    """Their offsets, without those of deleted rows."""
    stored: tuple[StoredFile, ...]

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows - file.num_deleted for file in self.stored)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.stored)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, without the partitions of files, which no task needs."""
        return JsonSerializable.to_json(
            replace(self, stored=tuple(replace(file, partition=()) for file in self.stored))
        )

    def splits(self) -> list[LakeSplit]:
        """Return the files as splits, in order."""
        return [LakeSplit(s.location, s.size_bytes, s.num_rows, position_deletes=s.deletes) for s in self.stored]


@dataclass(frozen=True, slots=True)
class RewrittenGroup(JsonSerializable):
    """A rewritten group."""

    files: tuple[LakeFile, ...]
    num_read: int
    """Number of rows read for the rewrite."""


class GroupWriter(Protocol):
    """Rewrites groups in this or another process. The writer and the groups are sent as JSON or pickled."""

    def to_json(self) -> dict[str, Any]: ...

    def write_group(
        self, group: Any, storage: Storage, settings: Mapping[str, str], world: World
    ) -> RewrittenGroup: ...


RunGroups = Callable[[Sequence[SizedFile], GroupWriter], Sequence[RewrittenGroup]]
"""Rewrites groups, and returns each result once, in any order.

A failed attempt may be repeated: only the files in the result are committed, and other files are orphans.
"""


def plan_groups(
    stored: Sequence[StoredFile], footers: Footers, *, target_bytes: int, files_min: int
) -> list[CompactGroup]:
    """Return runs of at least ``files_min`` small files with adjacent offset ranges.

    Calls ``footers`` only for a bucket and partition with enough small files.
    """
    candidates = list(_candidates(stored, target_bytes, files_min))
    by_partition: dict[tuple[object, ...], list[tuple[StoredFile, FileWithOffsets]]] = {}
    offsets_of_files = footers([file.location for file in candidates])
    for file, offsets in zip(candidates, offsets_of_files, strict=True):
        if offsets is not None:
            by_partition.setdefault((offsets.bucket, *file.partition), []).append((file, offsets))
    return [group for files in by_partition.values() for group in _group_files(files, target_bytes, files_min)]


def limit_to_budget(groups: Iterable[G], bytes_max: int | None = None) -> Iterator[G]:
    """Yield the first groups within ``bytes_max`` bytes, by default `COMPACT_BYTES_MAX`; at least one group."""
    most = COMPACT_BYTES_MAX if bytes_max is None else bytes_max
    num_bytes = 0
    for group in groups:
        num_bytes += group.size_bytes
        if num_bytes > group.size_bytes and num_bytes > most:
            return
        yield group


def _candidates(stored: Sequence[StoredFile], target_bytes: int, files_min: int) -> Iterator[StoredFile]:
    small: dict[tuple[object, ...], int] = {}
    stored = [file for file in stored if parse_clustered_file_name(file.location) is None]
    for file in stored:
        small[file.partition] = small.get(file.partition, 0) + (file.size_bytes < target_bytes // 2)
    return (file for file in stored if small[file.partition] >= files_min)


def _group_files(
    files: list[tuple[StoredFile, FileWithOffsets]], target_bytes: int, files_min: int
) -> Iterator[CompactGroup]:
    files.sort(key=lambda pair: pair[1].runs.range.start)
    run: list[tuple[StoredFile, FileWithOffsets]] = []
    for pair in files:
        is_small = pair[0].size_bytes < target_bytes // 2
        run_bytes = sum(file.size_bytes for file, _ in run)
        follows = not run or run[-1][1].runs.range.end <= pair[1].runs.range.start
        if run and (not is_small or not follows or run_bytes + pair[0].size_bytes > target_bytes):
            yield from _make_worthwhile_group(run, files_min)
            run = []
        if is_small:
            run.append(pair)
    yield from _make_worthwhile_group(run, files_min)


def _make_worthwhile_group(run: list[tuple[StoredFile, FileWithOffsets]], files_min: int) -> Iterator[CompactGroup]:
    """Yield the run without leading files that are as large as all later files together, if enough files remain.

    So a row is rewritten only a few times, and the number of files grows with the logarithm of their size.
    """
    sizes = [file.size_bytes for file, _ in run]
    while len(run) >= files_min and sizes[0] >= sum(sizes[1:]):
        run, sizes = run[1:], sizes[1:]
    if len(run) >= files_min:
        yield CompactGroup(run[0][1].bucket, tuple(o for _, o in run), tuple(f for f, _ in run))


def make_local_runner(storage: Storage, settings: Mapping[str, str], world: World) -> RunGroups:
    """Return a function that rewrites groups in this process. See `write_groups`."""

    def run(groups: Sequence[SizedFile], writer: GroupWriter) -> list[RewrittenGroup]:
        return write_groups(storage, groups, lambda group: writer.write_group(group, storage, settings, world))

    return run


def write_groups(storage: Storage, groups: Sequence[G], write: Callable[[G], R]) -> list[R]:
    """Rewrite groups in this process. Small groups on a remote store are written concurrently."""
    are_small = all(group.size_bytes <= SMALL_GROUP_BYTES_MAX for group in groups)
    threads = THREADS_MAX if are_small and isinstance(storage, SupportsBatchReads) else 1
    return list(parallel_map(write, groups, threads_max=threads))


def rewrite_groups(
    run: RunGroups, groups: Sequence[SizedFile], writer: GroupWriter, location: str
) -> list[RewrittenGroup]:
    """Rewrite groups. Raises `CommitConflictError` if a result is missing, because its rows would be lost."""
    rewrites = list(run(groups, writer))
    if len(rewrites) != len(groups):
        raise CommitConflictError(
            f"lake table {location}: {len(rewrites)} of {len(groups)} file groups were rewritten; retry"
        )
    return rewrites


def rewrite_same_rows(
    run: RunGroups, groups: Sequence[CompactGroup], writer: GroupWriter, location: str
) -> list[LakeFile]:
    """Rewrite groups of a log table, and return the new files. Raises `CommitConflictError` if they have other rows."""
    files = list_new_files(rewrite_groups(run, groups, writer, location))
    if sum(file.num_rows for file in files) != sum(group.num_rows for group in groups):
        raise CommitConflictError(f"lake table {location}: compaction read a different set of rows than planned; retry")
    return files


def list_new_files(rewrites: Iterable[RewrittenGroup]) -> list[LakeFile]:
    return [file for rewrite in rewrites for file in rewrite.files]


def merge_group(group: CompactGroup, output: FileOutput, projection: LakeProjection) -> list[LakeFile]:
    """Write the group's rows in offset order, with their offsets in the footer.

    Returns no file for a group whose rows are all deleted.
    """
    if not group.num_rows:
        return []

    def batches() -> Iterator[tuple[FileWithOffsets, pa.RecordBatch]]:
        for file, split in zip(group.files, group.splits(), strict=True):
            for batch in read_split(output.files, split, projection):
                yield file, batch

    offsets = OffsetRange(group.files[0].runs.range.start, group.files[-1].runs.range.end)
    return rewrite_files(output, group.bucket, offsets, batches())
