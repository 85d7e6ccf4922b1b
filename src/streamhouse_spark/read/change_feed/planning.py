"""Planning of the change feed: the rows that each commit of a range added and removed, in the form of ``CHANGES``.

In a log table, appended rows are inserts. Deleted rows, rows of a dropped partition and all rows before a truncation
are deletes. The log of a primary-key table contains the changes. Changes that may have been trimmed from the log are
read from the change archive. If the rows of a commit are no longer retained, planning fails with its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamhouse_spark.config.table_properties import CHANGELOG_IMAGE
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.log.actions import Archive, moves_rows, pages_between
from streamhouse_spark.log.archive.pages import CommitRows, find_usable_archive, read_page, read_pages
from streamhouse_spark.log.commit_reader import (
    Commit,
    find_partition_drop,
    iter_deletions,
    iter_records_backwards,
    read_commits,
)
from streamhouse_spark.log.history import require_retained_segments, state_at
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_feed.change_scan_tasks import (
    CommitDiff,
    find_truncated_rows,
    list_commit_diffs,
    locate_trimmed_rows,
    plan_change_tasks,
    plan_file_tasks,
    plan_version_tasks,
    require_available_rows,
    truncation_scan_tasks,
)
from streamhouse_spark.read.change_feed.commit_diff import FIRST, Parts, cancel_out, diff_commits
from streamhouse_spark.read.change_feed.feed_validation import (
    ChangesUnavailableError,
    PreexistingFiles,
    not_row_level_error,
    require_row_level_changes,
)
from streamhouse_spark.read.commit_ranges import CommitRanges
from streamhouse_spark.read.offset_scan import plan_archive_tasks
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ArchiveScanTask, ChangesScanTask, LogScanTask
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table_handle import TableHandle


@dataclass(frozen=True, slots=True)
class ArchiveScan:
    """The archived changes of a range of commits."""

    state: TableState
    archive: Archive
    rows: CommitRows

    @property
    def last(self) -> int:
        """The latest archived commit."""
        return self.archive.last_commit

    @property
    def covers_hot_log(self) -> bool:
        """Whether the archive has all changes of the hot log, up to the state."""
        return all(log.end <= self.archive.end(bucket) for bucket, log in self.state.buckets.items())

    def last_time_us(self, after_us: int | None) -> int | None:
        """Return the display time of the last commit, or ``after_us`` if the range has no changes."""
        return int(self.rows.times_us.max()) if len(self.rows.times_us) else after_us

    def plan_tasks(self, pruning: Pruning) -> Iterator[ChangesScanTask]:
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
        for page, start, end in pages_between(self.archive, bucket):
            if not (in_page := commits.within(OffsetRange(start, end))):
                continue
            tasks = list(plan_archive_tasks(self.archive, bucket, in_page.range))
            if in_page.is_grouped.any():  # a net change needs all changes of a commit
                tasks = [ArchiveScanTask(bucket, in_page.range, page.uuid, sum(task.size_bytes for task in tasks))]
            for task in tasks:
                if part := in_page.within(task.offsets):
                    yield ChangesScanTask(task, part, key=self.state.primary_key if part.is_grouped.any() else ())


def scan_archived_commits(
    table: TableHandle, state: TableState, first: int, last: int, after_us: int | None
) -> ArchiveScan | None:
    """Return the archived changes from ``first`` to ``last``, or None if the commit ``first`` is not archived.

    Display times are ascending and later than ``after_us``.
    """
    archive = find_usable_archive(state)
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
    """Return the rows with display times that are later than ``after_us`` and increase with each commit."""
    versions, first, place = np.unique(rows.versions, return_index=True, return_inverse=True)
    steps = np.arange(len(versions), dtype=np.int64)
    shown = np.maximum.accumulate(np.maximum(rows.times_us[first] - steps, after_us + 1)) + steps
    return replace(rows, times_us=shown[place])


def first_archived_after(
    storage: Storage, state: TableState, start_us: int | None, reached: int, *, includes: bool
) -> int | None:
    """Return the first archived commit displayed after ``start_us``, or at that time if ``includes``.

    If there is none, returns ``reached``, the first commit whose record is retained. Returns None if an earlier commit,
    which is no longer archived, may be the first.
    """
    archive = find_usable_archive(state)
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
    """Return the last archived commit displayed before ``end_us``, or at that time if ``includes``; 0 for none."""
    most_us = end_us if includes else end_us - 1
    version = 0
    for page in find_usable_archive(state).pages:
        rows = read_page(storage, state, page.uuid).commits
        version = max(version, int(rows.versions[rows.times_us <= most_us].max(initial=0)))
        if page.last_us > most_us:
            break
    return version


def _has_earlier(storage: Storage, state: TableState, archive: Archive, number: int) -> bool:
    """Return whether the archive has a commit before ``number``."""
    for page in archive.pages:
        versions = read_page(storage, state, page.uuid).commits.versions
        versions = versions[versions >= archive.first_commit]
        if len(versions):
            return int(versions.min()) < number
    return False


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    state: TableState
    """The state whose log contains the rows, with the columns of the requested state."""
    tasks: tuple[ChangesScanTask, ...]


def commits_between(
    storage: Storage, state: TableState, start_us: int | None, end_us: int | None, *, includes: tuple[bool, bool]
) -> tuple[int, int]:
    """Return the first and the last commit between two times. ``includes`` is whether each bound is inclusive.

    A later record with an earlier time corrects a clock that ran ahead, as in `take_snapshot_as_of`. Raises
    `OffsetsTrimmedError` if the first commit may be one whose record is no longer retained.
    """
    first, last, earliest_ms, reached = state.version + 1, 0, state.time_ms, state.version + 1
    for record in iter_records_backwards(storage, state):
        earliest_ms, reached = min(earliest_ms, record.time_ms), record.number
        time_us = earliest_ms * 1000
        if end_us is None or time_us < end_us or (includes[1] and time_us == end_us):
            last = max(last, record.number)
        if start_us is None or time_us > start_us or (includes[0] and time_us == start_us):
            first = record.number
        elif last:
            break
    if first == reached > FIRST:
        first = first_archived_after(storage, state, start_us, reached, includes=includes[0]) or 0
        if end_us is not None and not last:
            last = last_archived_before(storage, state, end_us, includes=includes[1])
        if first:
            return first, last
        raise OffsetsTrimmedError(
            f"CHANGES of {state.name} from {start_us} µs: records of commits before {reached} have expired, so the "
            f"first commit of that time is unknown; the first available version is {reached}"
        )
    return first, last


def last_commit_before(storage: Storage, state: TableState, end_us: int) -> int:
    """Return the last commit before ``end_us``, or 0 if no record of such a commit is retained.

    As in `commits_between`, the time of a commit is at most the time of each later record.
    """
    earliest_ms = state.time_ms
    for record in iter_records_backwards(storage, state):
        earliest_ms = min(earliest_ms, record.time_ms)
        if earliest_ms * 1000 < end_us:
            return record.number
    return 0


def require_full_changelog(state: TableState) -> None:
    """Require that the changelog has pre-images. Raises `InvalidOptionError` for ``table.changelog.image`` WAL."""
    if state.primary_key and state.properties.get(CHANGELOG_IMAGE, "full").lower() == "wal":
        raise InvalidOptionError(
            f"CHANGES of {state.name}: the log has no pre-images and does not distinguish inserts from updates "
            f"({CHANGELOG_IMAGE} is wal); read {state.name}$changelog, which has the stored changes"
        )


def plan_changes(
    table: TableHandle,
    state: TableState,
    first: int,
    last: int,
    pruning: Pruning,
    *,
    is_net: bool = False,
    after_us: int | None = None,
) -> ChangesPlan:
    """Plan a scan of the changes of the commits ``first`` to ``last``.

    ``is_net`` omits rows of a log table that were added and removed within the range.

    Raises `OffsetsTrimmedError` with the commit since which all changes are available, `SnapshotExpiredError` if a
    state is no longer retained, and `InvalidOptionError` for a commit whose changes are not recorded row by row.
    """
    if last < max(first, FIRST):
        return ChangesPlan(state, ())
    require_full_changelog(state)
    planner = _RecordPlanner(table, state, pruning, is_net=is_net and not state.primary_key)
    first = max(first, FIRST)
    with _raise_underlying_error():
        archived = scan_archived_commits(table, state, first, last, after_us)
        if archived is None:
            return planner.plan(first, last, after_us)
        tasks = tuple(archived.plan_tasks(pruning))
        if last <= archived.last or archived.covers_hot_log:
            return ChangesPlan(state, tasks)
        newer = planner.plan(archived.last + 1, last, archived.last_time_us(after_us))
        return replace(newer, tasks=(*tasks, *newer.tasks))


def plan_changelog_rows(table: TableHandle, state: TableState, last: int) -> ChangesPlan:
    """Plan the ``$changelog`` of a log table, up to the commit ``last``.

    It starts at the commit since which all changes are available. If that is the last truncation, the truncated rows
    are omitted.
    """
    first = truncating = state.truncation.commit if state.truncation is not None else FIRST
    planner = _RecordPlanner(table, state, Pruning())
    while first <= last:
        try:
            return with_changelog_types(planner.plan(first, last, skips_truncated=first == truncating))
        except ChangesUnavailableError as unavailable:
            first = unavailable.first
    return ChangesPlan(state, ())


def with_changelog_types(plan: ChangesPlan) -> ChangesPlan:
    """Return the plan with change types named as in ``$changelog``."""
    return replace(plan, tasks=tuple(replace(task, is_changelog=True) for task in plan.tasks))


def plan_deletions(
    table: TableHandle, state: TableState, first: int, last: int, below: Mapping[int, int]
) -> tuple[ChangesScanTask, ...]:
    """Plan a scan of the rows of a log table that the commits ``first`` to ``last`` deleted or dropped.

    Only rows ``below`` some offsets are included. Raises `OffsetsTrimmedError` if commits or rows are no longer
    retained or deleted rows have no offsets, and `InvalidOptionError` for a commit whose deletions are not recorded.
    """
    if last < max(first, FIRST):
        return ()
    with _raise_underlying_error():
        commits = _read_commits(table.storage, state, first, last, None)
        lost = require_row_level_changes(table, state, commits)
        for commit in commits:
            if any(action.files for action in iter_deletions(commit.record)):
                raise OffsetsTrimmedError(
                    f"commit {commit.record.number} deleted rows of {state.name} that have no offsets, so it is "
                    "unknown whether this stream returned them; use a new checkpointLocation, or set "
                    "skipChangeCommits=true to skip the deletion"
                )
        deletions = (
            (bucket, CommitRanges.of(parts)) for bucket, parts in sorted(diff_commits(commits, lost)[1].items())
        )
        read = [(bucket, runs.within(OffsetRange(0, below.get(bucket, 0)))) for bucket, runs in deletions]
        deleted = [CommitDiff(runs, bucket, is_deleted=True) for bucket, runs in read if runs]
        changes = locate_trimmed_rows(table, state, deleted, was_truncated=False)
        require_available_rows(state, changes, first)
        return with_changelog_types(ChangesPlan(state, tuple(plan_change_tasks(state, changes, Pruning())))).tasks


@contextmanager
def _raise_underlying_error() -> Iterator[None]:
    """Convert a `ChangesUnavailableError` to the underlying error."""
    try:
        yield
    except ChangesUnavailableError as unavailable:
        raise unavailable.error from unavailable.__cause__


class _RecordPlanner:
    """Plans the changes of commits from their records. ``state`` is the requested state."""

    def __init__(self, table: TableHandle, state: TableState, pruning: Pruning, *, is_net: bool = False) -> None:
        self._table = table
        self._state = state
        self._pruning = pruning
        self._is_net = is_net

    def plan(self, first: int, last: int, after_us: int | None = None, *, skips_truncated: bool = False) -> ChangesPlan:
        """Plan a range of commits. If ``first`` truncated the table, ``skips_truncated`` omits the truncated rows."""
        as_of_state = _state_at(self._table, self._state, first, last)
        commits = _read_commits(self._table.storage, as_of_state, first, last, after_us)
        truncating = as_of_state.truncation.commit if as_of_state.truncation is not None else 0
        place = next((i for i, commit in enumerate(commits) if commit.record.number == truncating), None)
        if place is None or (skips_truncated and not place):
            return self._plan_commits(as_of_state, commits, skips_truncated=skips_truncated)
        older = self._plan_truncation(commits[: place + 1])
        newer = self._plan_commits(as_of_state, commits[place:], skips_truncated=True)
        return replace(newer, tasks=(*older, *newer.tasks))

    def _plan_truncation(self, commits: Sequence[Commit]) -> list[ChangesScanTask]:
        """Return the scan tasks of commits whose last one truncated the table, which deleted all rows.

        A net change omits rows that the commits added. Raises `ChangesUnavailableError` if the rows are no longer
        retained or cannot be determined.
        """
        table, state = self._table, self._state
        first, last = commits[0].record, commits[-1]
        added = diff_commits(commits[:-1])[0] if self._is_net else {}
        try:
            before = state_at(table.log, table.storage, last.record.number - 1)
            if before.primary_key:
                tasks = list(plan_version_tasks(table, before, state.schema, last, self._pruning))
            else:
                tasks = self._plan_truncated_rows(before, last, added, PreexistingFiles(table, first.number))
            if first.number < last.record.number:
                after_us = commits[0].time_us - 1  # so that the commits keep their display times
                older = self.plan(first.number, last.record.number - 1, after_us)
                tasks = [*(task for task in older.tasks if task.is_deleted or not self._is_net), *tasks]
            segments = [s for task in tasks if isinstance(task.rows, LogScanTask) for s in task.rows.split.segments]
            require_retained_segments(table.log, before, segments)
        except SnapshotExpiredError as error:
            raise not_row_level_error(state, last.record, "removed all rows at once") from error
        return tasks

    def _plan_truncated_rows(
        self, before: TableState, last: Commit, added: Parts, older: PreexistingFiles
    ) -> list[ChangesScanTask]:
        """Return the scan tasks of all rows of a log table, except rows ``added`` within the range of a net change."""
        rows = find_truncated_rows(self._table, before)
        if not rows.is_sure or (added and not older.contain(rows.files)):
            raise not_row_level_error(before, last.record, "removed all rows at once")
        source = replace(before, schema_id=self._state.schema_id, schemas=self._state.schemas)
        snapshot_id = before.lake.snapshot_id if before.lake is not None else None
        rows = rows.without({b: OffsetSet.union([part.rows for part in parts]) for b, parts in added.items()})
        return list(truncation_scan_tasks(source, rows, last, snapshot_id))

    def _plan_commits(
        self, as_of_state: TableState, commits: Sequence[Commit], *, skips_truncated: bool
    ) -> ChangesPlan:
        table, state, is_net = self._table, self._state, self._is_net
        first, last = commits[0].record.number, commits[-1].record.number
        lost = require_row_level_changes(table, as_of_state, commits, is_net=is_net, skips_truncated=skips_truncated)
        source, was_truncated = state, state.truncation is not None and state.truncation.commit > last
        if was_truncated:
            source = replace(as_of_state, schema_id=state.schema_id, schemas=state.schemas)
        added, removed = diff_commits(commits, lost, by_key=bool(as_of_state.primary_key))
        if is_net and removed:
            added, removed = cancel_out(added, removed)
        changes = locate_trimmed_rows(table, source, list_commit_diffs(added, removed), was_truncated=was_truncated)
        require_available_rows(source, changes, first)
        file_tasks = plan_file_tasks(table, source, commits, first)
        return ChangesPlan(source, (*plan_change_tasks(source, changes, self._pruning), *file_tasks))


class NewCommits(NamedTuple):
    """The last commit of a range that added or removed rows."""

    commit: int
    attempt: str | None
    """Attempt of the commit record; None if only the archive has the commit."""
    time_us: int
    """Display time of the commit."""


def find_new_commits(
    table: TableHandle, state: TableState, first: int, last: int, after_us: int | None
) -> NewCommits | None:
    """Return the last commit from ``first`` to ``last`` that added or removed rows, or None.

    Raises the errors of `plan_changes` if records are no longer retained.
    """
    first = max(first, FIRST)
    if last < first:
        return None
    archived = scan_archived_commits(table, state, first, last, after_us)
    latest = None
    if archived is not None:
        if len(archived.rows.versions):
            latest = NewCommits(int(archived.rows.versions.max()), None, int(archived.rows.times_us.max()))
        if last <= archived.last or archived.covers_hot_log:
            return latest
        first, after_us = archived.last + 1, archived.last_time_us(after_us)
    with _raise_underlying_error():
        commits = _read_commits(table.storage, _state_at(table, state, first, last), first, last, after_us)
    for commit in reversed(commits):
        if moves_rows(commit.record.actions) or find_partition_drop(commit.record.actions) is not None:
            return NewCommits(commit.record.number, commit.record.attempt, commit.time_us)
    return latest


def _state_at(table: TableHandle, state: TableState, first: int, last: int) -> TableState:
    """Return the state after the commit ``last``, or the requested state if records have expired.

    The requested state is equivalent unless the table was truncated in between.
    """
    if last == state.version:
        return state
    try:
        return state_at(table.log, table.storage, last)
    except SnapshotExpiredError as error:
        if state.truncation is not None and state.truncation.commit > last:
            raise _expired_commits_error(state, first, state.truncation.commit + 1) from error
        return state


# -- commits ----------------------------------------------------------------------------------------------------------


def _read_commits(
    storage: Storage, as_of_state: TableState, first: int, last: int, after_us: int | None
) -> list[Commit]:
    """Read the records from ``first`` to ``last``, and the earlier records that affect their display times."""
    commits, reached = read_commits(storage, as_of_state, first, last, after_us)
    if not commits or commits[0].record.number > first:
        raise _expired_commits_error(as_of_state, first, reached)
    return commits


def _expired_commits_error(state: TableState, first: int, reached: int) -> ChangesUnavailableError:
    if archive := find_usable_archive(state):
        reached = min(reached, archive.first_commit)
    error = OffsetsTrimmedError(
        f"CHANGES of {state.name} from version {first}: its record has expired; the first available version is "
        f"{reached}"
    )
    return ChangesUnavailableError(error, reached)
