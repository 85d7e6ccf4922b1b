"""Changes of commits from the change archive. Their rows and records may no longer be in the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.archive.commit_rows import CommitRows
from streamhouse_spark.log.archive.pages import read_page, read_pages, usable_archive
from streamhouse_spark.log.commits.archive_metadata import Archive, pages_between
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.commit_ranges import CommitRanges
from streamhouse_spark.read.offset_range_scan import plan_archive_tasks
from streamhouse_spark.read.planner import Pruning
from streamhouse_spark.read.scan_tasks import ArchiveScanTask, ChangesScanTask
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class ArchiveScan:
    """The archived changes of the commits from a first one on."""

    state: TableState
    held: Archive
    rows: CommitRows

    @property
    def last(self) -> int:
        """The latest archived commit."""
        return self.held.last_commit

    @property
    def covers_hot_log(self) -> bool:
        """Whether the archive has all changes of the hot log, up to the state."""
        return all(log.end <= self.held.end(bucket) for bucket, log in self.state.buckets.items())

    def last_time_us(self, after_us: int | None) -> int | None:
        """Return the time after which later commits are displayed."""
        return int(self.rows.times_us.max()) if len(self.rows.times_us) else after_us

    def pieces(self, pruning: Pruning) -> Iterator[ChangesScanTask]:
        """Yield the scan tasks of the buckets that may have matching changes, in offset order within each bucket."""
        allowed = pruning.buckets(self.state)
        for bucket in np.unique(self.rows.buckets).tolist():
            if allowed is None or bucket in allowed:
                yield from self._plan_bucket(bucket)

    def _plan_bucket(self, bucket: int) -> Iterator[ChangesScanTask]:
        rows = self.rows.select(self.rows.buckets == bucket)
        grouped = rows.grouped.astype(np.bool_)
        commits = CommitRanges(
            rows.starts, rows.ends, rows.versions, rows.times_us, grouped, np.zeros(len(grouped), np.bool_)
        )
        for page, start, end in pages_between(self.held, bucket):
            if not (of_page := commits.within(OffsetRange(start, end))):
                continue
            tasks = list(plan_archive_tasks(self.held, bucket, of_page.range))
            if of_page.is_grouped.any():  # a net change needs all changes of a commit
                tasks = [ArchiveScanTask(bucket, of_page.range, page.uuid, sum(task.size_bytes for task in tasks))]
            for task in tasks:
                if part := of_page.within(task.offsets):
                    yield ChangesScanTask(task, part, key=self.state.primary_key if part.is_grouped.any() else ())


def scan_archived_commits(
    table: TableHandle, state: TableState, first: int, last: int, after_us: int | None
) -> ArchiveScan | None:
    """Return the archived changes from ``first`` to ``last``, or None if the archive does not have ``first``.

    Display times are ascending and later than ``after_us``.
    """
    archive = usable_archive(state)
    if not archive or not archive.first_commit <= first <= archive.last_commit:
        return None
    previous_last_commits = [0, *(page.last_commit for page in archive.pages)]
    page_ids = [
        page.uuid
        for page, before in zip(archive.pages, previous_last_commits, strict=False)
        if before < last and page.last_commit >= first
    ]
    contents = read_pages(table.storage, state, page_ids)
    rows = CommitRows.joined([content.commits for content in contents]).between(first, last)
    return ArchiveScan(state, archive, rows if after_us is None else _with_ascending_times(rows, after_us))


def _with_ascending_times(rows: CommitRows, after_us: int) -> CommitRows:
    """Return the rows with the first commit displayed after ``after_us``, and each later than its predecessor."""
    versions, first, place = np.unique(rows.versions, return_index=True, return_inverse=True)
    steps = np.arange(len(versions), dtype=np.int64)
    shown = np.maximum.accumulate(np.maximum(rows.times_us[first] - steps, after_us + 1)) + steps
    return replace(rows, times_us=shown[place])


def first_archived_after(
    storage: Storage, state: TableState, start_us: int | None, reached: int, *, includes: bool
) -> int | None:
    """Return the first archived commit displayed after a time, or at it if ``includes``.

    Returns ``reached``, the first commit whose record is retained, if no archived commit qualifies, and None if an
    earlier commit that is no longer archived may.
    """
    archive = usable_archive(state)
    if not archive:
        return None
    if start_us is None:
        return 1 if archive.first_commit == 1 else None
    min_us = start_us if includes else start_us + 1
    earliest = archive.first_commit
    for page in archive.pages:
        if page.last_commit < earliest or page.last_us < min_us:
            continue
        rows = read_page(storage, state, page.uuid).commits
        rows = rows.select((rows.versions >= earliest) & (rows.times_us >= min_us))
        if len(rows.versions):
            version = int(rows.versions.min())
            return version if earliest == 1 or _has_earlier(storage, state, archive, version) else None
    return reached if _has_earlier(storage, state, archive, reached) else None


def last_archived_before(storage: Storage, state: TableState, end_us: int, *, includes: bool) -> int:
    """Return the last archived commit displayed before a time, or at it if ``includes``; 0 for none."""
    most_us = end_us if includes else end_us - 1
    version = 0
    for page in usable_archive(state).pages:
        rows = read_page(storage, state, page.uuid).commits
        version = max(version, int(rows.versions[rows.times_us <= most_us].max(initial=0)))
        if page.last_us > most_us:
            break
    return version


def _has_earlier(storage: Storage, state: TableState, archive: Archive, number: int) -> bool:
    """Return whether the archive has a commit before this one."""
    for page in archive.pages:
        versions = read_page(storage, state, page.uuid).commits.versions
        versions = versions[versions >= archive.first_commit]
        if len(versions):
            return int(versions.min()) < number
    return False
