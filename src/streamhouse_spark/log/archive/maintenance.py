"""Maintenance of the change archive: adds new changes as a page, merges small pages, and drops expired pages.

**Commit point:** the one record that sets the archive. Files written before it are orphans until it is committed. The
record condemns the files of removed pages, which are deleted after the grace period, so that active readers can finish.
The log is trimmed only up to the end of the archive (`gc.retention`).

Eight pages of a level are merged into one page of the next level. The number of pages, and the number of times that a
change is rewritten, therefore grow with the logarithm of the archive's size. Pages whose changes span more than an
eighth of the retention time are not merged, because they would expire too late.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import manifest_key
from streamhouse_spark.errors import CorruptDataError, SnapshotExpiredError
from streamhouse_spark.log.actions import NO_ARCHIVE, Action, Archive, ArchivePage, SetArchive
from streamhouse_spark.log.append_commit import is_retained
from streamhouse_spark.log.archive.pages import (
    CommitRows,
    PageContent,
    encode_page,
    find_usable_archive,
    list_page_keys,
    read_page,
    read_pages,
)
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_reader import LOGGED_ACTIONS, Commit, read_commits
from streamhouse_spark.log.compaction import Part, write_runs
from streamhouse_spark.log.object_existence import must_check_stored
from streamhouse_spark.log.record import RecentRows
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.multi_bucket_writer import pack_by_size
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import plan_range
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage, object_exists
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.storage.put_if_absent import ensure_stored

logger = logging.getLogger(__name__)

PAGES_TO_JOIN: Final = 8
PAGE_BYTES_MAX: Final = 1 << 30
"""Pages with more bytes in memory are not merged."""
SHARES_OF_TIME: Final = 8
ROUND_BYTES_MAX: Final = 1 << 30
"""Estimated bytes in memory of the new changes of one page. A single commit may have more."""
_BEYOND: Final = 1 << 62
OBJECT_BYTES: Final = 32 << 20
"""Bytes in memory of the segments that share an object. A larger segment has a separate object."""


def update_archive(
    log: CommitLog, storage: Storage, world: World, options: SegmentOptions, retention_ms: int | None
) -> int:
    """Archive the new changes, and drop changes older than ``retention_ms``; None drops all changes.

    Returns the number of archived changes; 0 after a lost race. Raises `CorruptDataError`, `StorageError`.
    """
    num_changes = 0
    while num_archived := _archive_once(log, storage, world, options, retention_ms):
        num_changes += num_archived
    return num_changes


def _archive_once(
    log: CommitLog, storage: Storage, world: World, options: SegmentOptions, retention_ms: int | None
) -> int:
    """Run one round of `update_archive`. Return the number of changes that it archived; 0 ends the rounds."""
    state = log.refresh()
    if retention_ms is None:
        if state.archive:
            _commit(log, storage, state, NO_ARCHIVE, [], storage.now_ms())
        return 0
    began_ms = storage.now_ms()
    archive = find_usable_archive(state)
    base = archive or Archive((), {bucket: bucket_log.start for bucket, bucket_log in state.buckets.items()})
    unexpired = _drop_expired_pages(base, began_ms - retention_ms)
    new_ranges = {b: OffsetRange(base.end(b), log_.end) for b, log_ in state.buckets.items() if log_.end > base.end(b)}
    if not new_ranges:
        if unexpired is not base:
            _commit(log, storage, state, unexpired, [], began_ms)
        return 0
    merged = _select_pages_to_merge(unexpired, state.time_ms, retention_ms)
    packed = replace(options, codec="zstd")
    round_ = _ArchiveRound(storage, world, state, packed, unexpired, not archive, log.recent_rows)
    written = round_.write(merged, new_ranges)
    is_done = _commit(log, storage, state, written.archive, written.uuids, began_ms)
    return written.num_changes if is_done else 0


def _drop_expired_pages(archive: Archive, before_ms: int) -> Archive:
    """Return the archive without the oldest pages with only changes before ``before_ms``. Retains the last page."""
    pages, starts, first = archive.pages, dict(archive.starts), archive.first_commit
    while len(pages) > 1 and pages[0].last_ms < before_ms:
        starts.update(pages[0].ends)
        first = max(first, pages[0].last_commit + 1)
        pages = pages[1:]
    return archive if len(pages) == len(archive.pages) else Archive(pages, starts, first)


def _select_pages_to_merge(archive: Archive, now_ms: int, retention_ms: int) -> tuple[ArchivePage, ...]:
    """Return the latest pages that are merged with the new changes into one page."""
    pages, level, count = archive.pages, 0, 0
    oldest_ms = now_ms - retention_ms // SHARES_OF_TIME
    while True:
        run = 0
        for page in reversed(pages[: len(pages) - count]):
            if page.level != level or page.memory_bytes > PAGE_BYTES_MAX or page.first_ms < oldest_ms:
                break
            run += 1
        if run < PAGES_TO_JOIN - 1:
            return pages[len(pages) - count :]
        count += run
        level += 1


def _commit(
    log: CommitLog, storage: Storage, state: TableState, archive: Archive, uuids: Sequence[str], began_ms: int
) -> bool:
    """Set the archive, unless the archive changed or the table was truncated after ``state``.

    ``uuids`` are the new objects: the page, then the objects of its segments.
    """
    left = {page.uuid for page in archive.pages}
    condemned_keys: set[str] = set()
    for page in state.archive.pages:
        if page.uuid not in left:
            condemned_keys |= _list_page_keys(storage, state, page.uuid)
    page_key = manifest_key(state.table_uuid, uuids[0]) if uuids else None

    def plan(current: TableState, time_ms: int) -> Sequence[Action]:
        is_same = current.archive == state.archive and current.truncation == state.truncation
        if not is_same or page_key in current.condemned or not is_retained(current, uuids[1:], began_ms, time_ms):
            return ()
        if page_key is not None and must_check_stored(storage, began_ms) and not object_exists(storage, page_key):
            return ()  # a restore of the table removed it
        return (SetArchive(archive, tuple(sorted(condemned_keys))),)

    return log.commit(plan, staged_ms=began_ms).wrote


def _list_page_keys(storage: Storage, state: TableState, uuid: str) -> set[str]:
    """Return the keys of a removed page. Segments of an unreadable page are later deleted as orphans."""
    try:
        return list_page_keys(state.table_uuid, uuid, read_page(storage, state, uuid))
    except (CorruptDataError, SnapshotExpiredError) as error:
        logger.warning("%s: its segments are deleted as orphans (%s)", state.name, error)
        return {manifest_key(state.table_uuid, uuid)}


@dataclass(frozen=True, slots=True)
class _WrittenPage:
    archive: Archive
    uuids: list[str]
    num_changes: int


@dataclass(frozen=True, slots=True)
class _ArchiveRound:
    storage: Storage
    world: World
    state: TableState
    options: SegmentOptions
    archive: Archive
    """The archive that the new changes follow; without pages for the first changes."""
    is_first: bool
    recent: RecentRows

    def write(self, merged: Sequence[ArchivePage], new_ranges: Mapping[int, OffsetRange]) -> _WrittenPage:
        """Write a page with the changes of the ``merged`` pages and the new changes. It is durable when this
        returns.
        """
        state, storage, archive = self.state, self.storage, self.archive
        after_us = archive.pages[-1].last_us if archive else None
        commits, _ = read_commits(storage, state, archive.last_commit + 1, state.version, after_us)
        first_listed = commits[0].record.number if commits else state.version + 1
        all_rows = CommitRows.of(commits)
        last, new_ranges = self._limit_size(all_rows, new_ranges)
        rows = all_rows.between(0, last)
        contents = self._contents(merged)
        if contents is None:
            merged, contents = (), ()
        segments, uuids = self._segments(contents, new_ranges, last)
        content = PageContent(
            segments,
            {s.schema_id: state.schemas[s.schema_id] for s in segments},
            CommitRows.joined([*(content.commits for content in contents), _select_rows(rows, new_ranges)]),
            _find_first_complete_commit(contents, merged, first_listed),
            (*(number for content in contents for number in content.altered), *_find_schema_changes(commits, last)),
        )
        uuid = self.world.ids.new_uuid()
        ensure_stored(storage, manifest_key(state.table_uuid, uuid), encode_page(state.table_uuid, content))
        last_us = int(content.commits.times_us.max(initial=after_us or 0))
        page = _describe_page(uuid, last, merged, segments, last_us)
        pages = (*archive.pages[: len(archive.pages) - len(merged)], page)
        first = self._first_commit(rows, new_ranges, first_listed)
        num_changes = sum(map(len, new_ranges.values()))
        return _WrittenPage(Archive(pages, dict(archive.starts), first), [uuid, *uuids], num_changes)

    def _limit_size(
        self, rows: CommitRows, new_ranges: Mapping[int, OffsetRange]
    ) -> tuple[int, Mapping[int, OffsetRange]]:
        """Return the last commit of a page of bounded size, and the new changes up to this commit."""
        hot = self.state.live_segments()
        row_bytes = max(1, sum(s.memory_bytes for s in hot) // max(1, sum(s.num_rows for s in hot)))
        limit = max(1, ROUND_BYTES_MAX // row_bytes)
        num_changes = sum(map(len, new_ranges.values()))
        if num_changes <= limit or not len(rows.versions):
            return self.state.version, new_ranges
        inside = _select_rows(rows, new_ranges)
        versions, place = np.unique(inside.versions, return_inverse=True)
        num_per_commit = np.bincount(place, inside.ends - inside.starts).astype(np.int64)
        before = num_changes - int(num_per_commit.sum())  # changes of unknown, older commits
        count = int(np.searchsorted(np.cumsum(num_per_commit), limit - before, side="right"))
        last = int(versions[min(max(count, 1), len(versions)) - 1])
        if last == versions[-1]:
            return self.state.version, new_ranges
        later = inside.select(inside.versions > last)
        ends = {b: int(later.starts[later.buckets == b].min(initial=offsets.end)) for b, offsets in new_ranges.items()}
        return last, {b: OffsetRange(o.start, ends[b]) for b, o in new_ranges.items() if ends[b] > o.start}

    def _contents(self, merged: Sequence[ArchivePage]) -> tuple[PageContent, ...] | None:
        try:
            return tuple(read_pages(self.storage, self.state, [page.uuid for page in merged]))
        except (CorruptDataError, SnapshotExpiredError) as error:
            logger.warning("%s: pages of its change archive are not merged: %s", self.state.name, error)
            return None

    def _segments(
        self, contents: Sequence[PageContent], new_ranges: Mapping[int, OffsetRange], last: int
    ) -> tuple[tuple[Segment, ...], list[str]]:
        """Write one segment per run of a bucket's changes, and return them by bucket and offset."""
        runs = [
            run for bucket in sorted(self.state.buckets) for run in self._runs(contents, bucket, new_ranges.get(bucket))
        ]
        groups = [(self.world.ids.new_uuid(), group) for group in pack_by_size(runs, _memory_bytes, OBJECT_BYTES)]
        written = map_with_store_concurrency(self.storage, lambda group: self._object(*group, last), groups)
        archived = [segment for segments in written for segment in segments]
        return tuple(sorted(archived, key=lambda s: (s.bucket, s.base_offset))), [uuid for uuid, _ in groups]

    def _runs(
        self, contents: Sequence[PageContent], bucket: int, new_range: OffsetRange | None
    ) -> Iterator[list[Part]]:
        """Yield the changes of a bucket as runs of adjacent segment parts that share a schema."""
        parts = [(s, s.offsets) for content in contents for s in content.segments if s.bucket == bucket]
        if new_range is not None:
            hot = plan_range(self.state, bucket, new_range).segments
            parts += [(segment, segment.offsets.intersect(new_range)) for segment in hot]
        for _, run in groupby(parts, key=lambda part: part[0].schema_id):
            yield list(run)

    def _object(self, uuid: str, runs: Sequence[list[Part]], last: int) -> list[Segment]:
        records = InlineRecords(self.storage, self.state.table_uuid, self.recent)
        records.expect(segment for run in runs for segment, _ in run)
        return write_runs(self.state, self.storage, uuid, runs, self.options, records, last)

    def _first_commit(self, rows: CommitRows, new_ranges: Mapping[int, OffsetRange], first_listed: int) -> int:
        """Return the first commit after which the archive has the commit number of every change."""
        archive = self.archive
        if not self.is_first:
            covered = all(_covers(rows, bucket, offsets) for bucket, offsets in new_ranges.items())
            return archive.first_commit if covered else first_listed
        starts = np.array([archive.starts[bucket] for bucket in rows.buckets.tolist()], np.int64)
        before = rows.versions[rows.starts < starts]
        state = self.state
        truncated = state.truncation.commit if state.truncation is not None else 0
        adopted = 1 if ADOPTED in state.properties else 0
        return max(first_listed, int(before.max(initial=0)) + 1, truncated + 1, adopted + 1)


def _memory_bytes(run: Iterable[Part]) -> int:
    return sum(s.memory_bytes * len(offsets) // s.num_rows for s, offsets in run)


def _select_rows(rows: CommitRows, new_ranges: Mapping[int, OffsetRange]) -> CommitRows:
    """Return the part of the runs within the new ranges."""
    starts = np.array(
        [new_ranges[bucket].start if bucket in new_ranges else _BEYOND for bucket in rows.buckets.tolist()], np.int64
    )
    clipped = replace(rows, starts=np.maximum(rows.starts, starts))
    return clipped.select(clipped.starts < clipped.ends)


def _covers(rows: CommitRows, bucket: int, offsets: OffsetRange) -> bool:
    """Return whether the commits of all these offsets are known. The commits of the last offsets always are."""
    return int(rows.starts[rows.buckets == bucket].min(initial=_BEYOND)) <= offsets.start


def _find_schema_changes(commits: Iterable[Commit], last: int) -> Iterator[int]:
    for commit in commits:
        if commit.record.number <= last and not all(
            isinstance(action, LOGGED_ACTIONS) for action in commit.record.actions
        ):
            yield commit.record.number


def _find_first_complete_commit(
    contents: Sequence[PageContent], merged: Sequence[ArchivePage], first_listed: int
) -> int:
    """Return the first commit after which all records were read."""
    for content, page in zip(reversed(contents), reversed(merged), strict=True):
        if first_listed > page.last_commit + 1:
            break
        first_listed = content.complete_from
    return first_listed


def _describe_page(
    uuid: str, last_commit: int, merged: Sequence[ArchivePage], segments: Sequence[Segment], last_us: int
) -> ArchivePage:
    ends: dict[int, int] = {}
    for segment in segments:
        ends[segment.bucket] = segment.end_offset
    return ArchivePage(
        uuid,
        last_commit,
        ends,
        sum(segment.num_rows for segment in segments),
        sum(segment.memory_bytes for segment in segments),
        min(int(segment.time_runs[1].min()) for segment in segments),
        max(segment.last_time_ms for segment in segments),
        last_us,
        max((page.level + 1 for page in merged), default=0),
    )
