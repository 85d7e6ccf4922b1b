"""Changes of a table between two commits, as Spark's ``CHANGES`` shows them: which rows each commit added and removed.

Commits are told by their records, and rows by the log. A log table's rows at offsets that a record appends are
inserts, those that it deletes by their offsets are deletes, and so are those of a partition that was dropped while the
log had them all. With a primary key the log has the changes themselves. What no record tells row by row (a truncation,
a partition some of whose rows the log no longer had) is refused with the number of its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamhouse_spark.config.properties import CHANGELOG_IMAGE
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.log.archive.pages import archived
from streamhouse_spark.log.commits.actions import moves_rows
from streamhouse_spark.log.commits.deletions import DeleteRows
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import LogSplit, whole_range
from streamhouse_spark.log.told import Commit, commits_back, deletions_in, dropped_in, newest_first
from streamhouse_spark.read.change_feed.archived_changes import (
    archived_commits,
    first_archived_after,
    last_archived_before,
)
from streamhouse_spark.read.change_feed.cold_rows import ColdRows, find_added, find_removed
from streamhouse_spark.read.change_feed.commit_parts import FIRST, Parts, parts_of
from streamhouse_spark.read.change_feed.untold import NotTold, require_told
from streamhouse_spark.read.commit_runs import CommitRuns
from streamhouse_spark.read.pieces import ChangesPiece, FileRowsPiece, LogPiece, OffsetsPiece
from streamhouse_spark.read.planner import Pruning
from streamhouse_spark.read.ranges import LAKE_RANGE_ROWS, row_bytes
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    state: TableState
    """The state whose log has the rows, with the columns of the state that was asked for."""
    pieces: tuple[ChangesPiece, ...]


def range_of_times(
    storage: Storage, state: TableState, start_us: int | None, end_us: int | None, *, includes: tuple[bool, bool]
) -> tuple[int, int]:
    """Return the first and the last commit between two times; ``includes`` says whether at the times themselves, too.

    A later record with an earlier time corrects a clock that ran ahead, as in `pin_as_of`. Raises `OffsetsTrimmedError`
    where the records that may be the first are no longer kept.
    """
    first, last, earliest_ms, reached = state.version + 1, 0, state.time_ms, state.version + 1
    for record in newest_first(storage, state):
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
            f"CHANGES of {state.name} from {start_us} µs: records of commits before {reached} are no longer kept, so "
            f"that the first of that time is not known; the first version that is there is {reached}"
        )
    return first, last


def last_before(storage: Storage, state: TableState, end_us: int) -> int:
    """Return the last commit before a time, told as `range_of_times` tells it; 0 where none is kept."""
    earliest_ms = state.time_ms
    for record in newest_first(storage, state):
        earliest_ms = min(earliest_ms, record.time_ms)
        if earliest_ms * 1000 < end_us:
            return record.number
    return 0


def require_changes(state: TableState) -> None:
    """Require that the log tells changes in full. Raises `InvalidOptionError` for ``table.changelog.image`` WAL."""
    if state.primary_key and state.properties.get(CHANGELOG_IMAGE, "full").lower() == "wal":
        raise InvalidOptionError(
            f"CHANGES of {state.name}: its log has no rows before updates, and tells no insert from an update "
            f"({CHANGELOG_IMAGE} is wal); read {state.name}$changelog, which has what there is"
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
    """Find the changes of the commits from ``first`` to ``last`` of a state. ``is_net`` leaves out the rows of a log
    table that were both added and removed between them.

    Raises `OffsetsTrimmedError`, naming the first commit from which on all are there, `SnapshotExpiredError` as
    `state_at`, `InvalidOptionError` for a commit whose changes no record tells.
    """
    if last < max(first, FIRST):
        return ChangesPlan(state, ())
    require_changes(state)
    first = max(first, FIRST)
    with _its_error():
        older = archived_commits(table, state, first, last, after_us)
        if older is None:
            return _plan_of_records(table, state, first, last, pruning, is_net=is_net, after_us=after_us)
        pieces = tuple(older.pieces(pruning))
        if last <= older.last or older.has_all:
            return ChangesPlan(state, pieces)
        begin, after_us = older.last + 1, older.after_us(after_us)
        newer = _plan_of_records(table, state, begin, last, pruning, is_net=is_net, after_us=after_us)
        return replace(newer, pieces=(*pieces, *newer.pieces))


def plan_told(table: TableHandle, state: TableState, last: int) -> ChangesPlan:
    """Find the changes of a table without a primary key up to the commit ``last``, from the first one on from which
    all are there: that which emptied the table last, if there is one, with the rows that came instead.
    """
    first = emptied = state.truncation.commit if state.truncation is not None else FIRST
    while first <= last:
        try:
            return _plan_of_records(table, state, first, last, Pruning(), is_emptied=first == emptied)
        except NotTold as found:
            first = found.first
    return ChangesPlan(state, ())


def plan_deleted(
    table: TableHandle, state: TableState, first: int, last: int, below: Mapping[int, int]
) -> tuple[ChangesPiece, ...]:
    """Find the rows of a table without a primary key that the commits from ``first`` to ``last`` deleted, those that
    went with their partition too, as far as their offsets are below some.

    Raises `OffsetsTrimmedError` where commits or rows are no longer kept, or deleted rows have no offsets,
    `InvalidOptionError` for a commit whose deletions no record tells.
    """
    if last < max(first, FIRST):
        return ()
    with _its_error():
        commits = _commits(table.storage, state, first, last, None)
        lost = require_told(table, state, commits)
        for commit in commits:
            if any(action.files for action in deletions_in(commit.record)):
                raise OffsetsTrimmedError(
                    f"commit {commit.record.number} deleted rows of {state.name} that have no offsets, so that nobody "
                    "knows whether this stream told of them; start it with a new checkpointLocation, or go on behind "
                    "the deletion with skipChangeCommits=true"
                )
        told = ((bucket, CommitRuns.of(parts)) for bucket, parts in sorted(parts_of(commits, lost)[1].items()))
        read = [(bucket, runs.within(OffsetRange(0, below.get(bucket, 0)))) for bucket, runs in told]
        changes = _with_cold(table, state, [_Changes(runs, bucket, is_deleted=True) for bucket, runs in read if runs])
        _require_kept(state, changes, first)
        return tuple(_pieces(state, changes, Pruning()))


@contextmanager
def _its_error() -> Iterator[None]:
    """Raise in place of `NotTold` the error that it has."""
    try:
        yield
    except NotTold as found:
        raise found.error from found.__cause__


def _plan_of_records(
    table: TableHandle,
    state: TableState,
    first: int,
    last: int,
    pruning: Pruning,
    *,
    is_net: bool = False,
    after_us: int | None = None,
    is_emptied: bool = False,
) -> ChangesPlan:
    """``is_emptied`` says that no row from before ``first`` is asked for, should this commit have emptied the table."""
    then = _state_at(table, state, first, last)
    commits = _commits(table.storage, then, first, last, after_us)
    lost = require_told(table, then, commits, is_net=is_net, is_emptied=is_emptied)
    source = state
    if state.truncation is not None and state.truncation.commit > last:
        source = replace(then, schema_id=state.schema_id, schemas=state.schemas)
    added, removed = parts_of(commits, lost)
    if is_net and removed:
        added, removed = _without(added, removed), _without(removed, added)
    changes = [_Changes(CommitRuns.of(parts), bucket) for bucket, parts in sorted(added.items())]
    changes += [_Changes(CommitRuns.of(parts), bucket, is_deleted=True) for bucket, parts in sorted(removed.items())]
    changes = _with_cold(table, source, changes)
    _require_kept(source, changes, first)
    of_files = _file_pieces(table, source, commits, first)
    return ChangesPlan(source, (*_pieces(source, changes, pruning), *of_files))


class News(NamedTuple):
    """The last commit of a range that added or removed rows."""

    commit: int
    attempt: str | None
    """Attempt of its record; None where only the archive tells of it."""
    time_us: int
    """The time that it is shown with."""


def news(table: TableHandle, state: TableState, first: int, last: int, after_us: int | None) -> News | None:
    """Return the last commit from ``first`` to ``last`` that added or removed rows; None where none did.

    Raises as `plan_changes` does for records that are no longer kept.
    """
    first = max(first, FIRST)
    if last < first:
        return None
    older = archived_commits(table, state, first, last, after_us)
    found = None
    if older is not None and len(older.rows.versions):
        found = News(int(older.rows.versions.max()), None, int(older.rows.times_us.max()))
    if older is not None and (last <= older.last or older.has_all):
        return found
    if older is not None:
        first, after_us = older.last + 1, older.after_us(after_us)
    with _its_error():
        commits = _commits(table.storage, _state_at(table, state, first, last), first, last, after_us)
    moving = (c for c in reversed(commits) if moves_rows(c.record.actions) or dropped_in(c.record.actions) is not None)
    newest = next(moving, None)
    return found if newest is None else News(newest.record.number, newest.record.attempt, newest.time_us)


def _state_at(table: TableHandle, state: TableState, first: int, last: int) -> TableState:
    """Return the state behind the range, or the one that was asked for, which tells as much of the range unless the
    table was truncated in between.
    """
    if last == state.version:
        return state
    try:
        return state_at(table.log, table.storage, last)
    except SnapshotExpiredError as error:
        if state.truncation is not None and state.truncation.commit > last:
            raise _not_kept(state, first, state.truncation.commit + 1) from error
        return state


# -- commits ----------------------------------------------------------------------------------------------------------


def _commits(storage: Storage, then: TableState, first: int, last: int, after_us: int | None) -> list[Commit]:
    """Read the records from ``first`` to ``last``, and as many before as decide about their times."""
    found, reached = commits_back(storage, then, first, last, after_us)
    if not found or found[0].record.number > first:
        raise _not_kept(then, first, reached)
    return found


def _not_kept(state: TableState, first: int, reached: int) -> NotTold:
    if held := archived(state):
        reached = min(reached, held.first_commit)
    error = OffsetsTrimmedError(
        f"CHANGES of {state.name} from version {first}: its record is no longer kept; the first version that is there "
        f"is {reached}"
    )
    return NotTold(error, reached)


# -- rows -------------------------------------------------------------------------------------------------------------


def _file_pieces(
    table: TableHandle, source: TableState, commits: Sequence[Commit], first: int
) -> Iterator[ChangesPiece]:
    """Return the rows without offsets that the commits deleted, or that went with a partition, of each file of a lake
    snapshot as one piece.

    Raises `NotTold` where the lake snapshot that had the file is gone.
    """
    found: dict[tuple[int, str], list[tuple[OffsetRuns, int, int, bool]]] = {}
    for commit in commits:
        for action in deletions_in(commit.record):
            if not action.files:
                continue
            assert action.snapshot_id is not None
            _require_files(table, source, action, commit.record.number, first)
            for name, runs in action.files.items():
                parts = found.setdefault((action.snapshot_id, name), [])
                parts.append((runs, commit.record.number, commit.time_us, False))
    for (snapshot_id, name), parts in sorted(found.items()):
        rows = CommitRuns.of(parts)
        yield ChangesPiece(FileRowsPiece(name, snapshot_id, rows.num_rows * row_bytes(source, 0)), rows, True)


def _require_files(table: TableHandle, source: TableState, action: DeleteRows, number: int, first: int) -> None:
    """Require that the lake still has the files in which a commit deleted rows. Raises `NotTold`."""
    assert action.snapshot_id is not None
    try:
        names = StorageFiles(table.storage)
        files = table.open_lake().with_state(source).named_files(action.snapshot_id)
        if action.files.keys() <= set(map(names.name_of, files)):
            return
    except SnapshotExpiredError:
        pass
    error = OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: commit {number} deleted rows that have no offsets, and the "
        f"lake no longer has snapshot {action.snapshot_id} with them; the first version that is there is {number + 1}"
    )
    raise NotTold(error, number + 1)


def _without(parts: Parts, others: Parts) -> Parts:
    """Return the offsets that the others do not have."""
    found: Parts = {}
    for bucket, of_bucket in parts.items():
        gone = OffsetRuns.union([runs for runs, *_ in others.get(bucket, [])])
        left = [(runs.without(gone), version, time_us, False) for runs, version, time_us, _ in of_bucket]
        found[bucket] = [part for part in left if part[0]]
    return {bucket: of_bucket for bucket, of_bucket in found.items() if of_bucket}


@dataclass(frozen=True, slots=True)
class _Changes:
    """The rows of a bucket that commits appended, or those that they deleted."""

    commits: CommitRuns
    bucket: int
    is_deleted: bool = False
    cold: tuple[ColdRows, ...] = ()
    """Rows that the log no longer has, where the lake has them."""


def _with_cold(table: TableHandle, source: TableState, changes: Sequence[_Changes]) -> list[_Changes]:
    """Look in the lake for the rows that the log no longer has. With a primary key it has rows and no changes."""
    if source.primary_key:
        return list(changes)
    trimmed = [(one, one.commits.within(OffsetRange(0, source.buckets[one.bucket].start))) for one in changes]
    added = {one.bucket: rows.offsets for one, rows in trimmed if rows and not one.is_deleted}
    removed = [
        (number, {one.bucket: rows.of_commit(number)})
        for one, rows in trimmed
        if one.is_deleted
        for number in np.unique(rows.versions).tolist()
    ]
    of_added = tuple(find_added(table, source, added)) if added else ()
    of_removed = tuple(find_removed(table, source, removed)) if removed else ()
    return [
        replace(one, cold=tuple(c for c in (of_removed if one.is_deleted else of_added) if c.bucket == one.bucket))
        for one in changes
    ]


def _require_kept(source: TableState, changes: Sequence[_Changes], first: int) -> None:
    """Require that log or lake still have the rows of all commits. Raises `NotTold`."""
    gone = 0
    for one in changes:
        trimmed = one.commits.within(OffsetRange(0, source.buckets[one.bucket].start))
        lost = trimmed.offsets.without(OffsetRuns.merged([cold.rows for cold in one.cold]))
        gone = max(gone, int(trimmed.among(lost).versions.max(initial=0)))
    if not gone:
        return
    rest = f"the first version that is there is {gone + 1}"
    if gone >= source.version:
        rest = f"none of its versions is there until more is committed, as version {gone + 1}"
    error = OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: the log no longer has the rows of commit {gone}; {rest}"
    )
    raise NotTold(error, gone + 1)


def _pieces(source: TableState, changes: Sequence[_Changes], pruning: Pruning) -> Iterator[ChangesPiece]:
    allowed = pruning.buckets(source)
    for one in changes:
        if allowed is None or one.bucket in allowed:
            yield from _of_bucket(source, one, pruning)


def _of_bucket(source: TableState, of_bucket: _Changes, pruning: Pruning) -> Iterator[ChangesPiece]:
    bucket, commits, is_deleted = of_bucket.bucket, of_bucket.commits, of_bucket.is_deleted
    start = source.buckets[bucket].start
    for cold in of_bucket.cold:
        yield from _of_lake(source, cold, commits.among(cold.rows), is_deleted=is_deleted)
    if not (held := commits.within(OffsetRange(start, max(start, commits.range.end)))):
        return
    is_grouped = bool(held.is_grouped.any())
    split = _chosen(source, whole_range(source, bucket, held.range), held, Pruning() if is_grouped else pruning)
    if split.segments:
        yield ChangesPiece(LogPiece(split), held, is_deleted, source.primary_key if is_grouped else ())


def _of_lake(source: TableState, cold: ColdRows, commits: CommitRuns, *, is_deleted: bool) -> Iterator[ChangesPiece]:
    """Cut rows that only the lake has into pieces, which begin and end with one of them."""
    while commits:
        begin = commits.range.start
        part = commits.within(OffsetRange(begin, begin + LAKE_RANGE_ROWS))
        size_bytes = part.num_rows * row_bytes(source, cold.bucket)
        yield ChangesPiece(OffsetsPiece(cold.bucket, part.range, size_bytes, cold.snapshot_id), part, is_deleted)
        commits = commits.within(OffsetRange(part.range.end, max(part.range.end, commits.range.end)))


def _chosen(source: TableState, split: LogSplit, commits: CommitRuns, pruning: Pruning) -> LogSplit:
    """Leave out the segments without rows of the commits, and those that a filter surely does not want."""
    kept = tuple(
        s for s in split.segments if commits.reaches(s.offsets) and pruning.keeps_segment(source, s, split.offsets)
    )
    return replace(split, segments=kept, schemas={s.schema_id: split.schemas[s.schema_id] for s in kept})
