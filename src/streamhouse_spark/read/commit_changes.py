"""Changes of a table between two commits, as Spark's ``CHANGES`` shows them: which rows each commit added and removed.

Commits are told by their records, and rows by the log. A log table's rows at offsets that a record appends are
inserts, those that it deletes by their offsets are deletes, and so are those of a partition that was dropped while the
log had them all. With a primary key the log has the changes themselves. What no record tells row by row (a truncation,
a partition some of whose rows the log no longer had) is refused with the number of its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from streamhouse_spark.config.properties import ADOPTED, CHANGELOG_IMAGE, NOTHING_ADOPTED
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.log.archive.pages import archived
from streamhouse_spark.log.commits.actions import Action, Append, LakePair, Retier, moves_rows
from streamhouse_spark.log.commits.deletions import DeleteRows, NameDropped, num_rows_of
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import LogSplit, whole_range
from streamhouse_spark.log.told import (
    Commit,
    Deleted,
    commits_back,
    deletions_in,
    dropped_in,
    drops_adopted,
    drops_rows,
    newest_first,
)
from streamhouse_spark.read.archived_changes import archived_commits, first_archived_after, last_archived_before
from streamhouse_spark.read.commit_runs import CommitRuns
from streamhouse_spark.read.history import operation_of
from streamhouse_spark.read.pieces import ChangesPiece, FileRowsPiece, LogPiece, OffsetsPiece
from streamhouse_spark.read.planner import Pruning
from streamhouse_spark.read.ranges import LAKE_RANGE_ROWS, row_bytes
from streamhouse_spark.storage.base import Storage

Parts = dict[int, list[tuple[OffsetRuns, int, int, bool]]]
"""Bucket → offsets, each with number, time and whether it is grouped of their commit: see `CommitRuns.of`."""
_FIRST: Final = 1


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
    if first == reached > _FIRST:
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
    if last < max(first, _FIRST):
        return ChangesPlan(state, ())
    require_changes(state)
    first = max(first, _FIRST)
    older = archived_commits(table, state, first, last, after_us)
    if older is None:
        return _plan_of_records(table, state, first, last, pruning, is_net=is_net, after_us=after_us)
    pieces = tuple(older.pieces(pruning))
    if last <= older.last or older.has_all:
        return ChangesPlan(state, pieces)
    begin, after_us = older.last + 1, older.after_us(after_us)
    newer = _plan_of_records(table, state, begin, last, pruning, is_net=is_net, after_us=after_us)
    return replace(newer, pieces=(*pieces, *newer.pieces))


def _plan_of_records(
    table: TableHandle,
    state: TableState,
    first: int,
    last: int,
    pruning: Pruning,
    *,
    is_net: bool,
    after_us: int | None,
) -> ChangesPlan:
    then = _state_at(table, state, first, last)
    commits = _commits(table.storage, then, first, last, after_us)
    _require_told(table, then, commits, is_net=is_net)
    source = state
    if state.truncation is not None and state.truncation.commit > last:
        source = replace(then, schema_id=state.schema_id, schemas=state.schemas)
    added, removed = _parts(commits)
    _require_kept(source, commits, first)
    of_files = _file_pieces(table, source, commits, first)
    if is_net and removed:
        added, removed = _without(added, removed), _without(removed, added)
    return ChangesPlan(source, (*_pieces(source, added, removed, pruning), *of_files))


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
    first = max(first, _FIRST)
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


def _not_kept(state: TableState, first: int, reached: int) -> OffsetsTrimmedError:
    if held := archived(state):
        reached = min(reached, held.first_commit)
    return OffsetsTrimmedError(
        f"CHANGES of {state.name} from version {first}: its record is no longer kept; the first version that is there "
        f"is {reached}"
    )


def _require_told(table: TableHandle, then: TableState, commits: Sequence[Commit], *, is_net: bool) -> None:
    """Require that records tell the rows that each commit added and removed. Raises `InvalidOptionError`.

    A row without an offset may have been added in the same range, at an offset that it lost: then no net is known.
    """
    first = commits[0].record.number
    truncated = then.truncation.commit if then.truncation is not None else 0
    if found := next((commit.record for commit in commits if commit.record.number == truncated), None):
        raise _untold(then, found, "removed all rows at once")
    if first == _FIRST and then.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED:
        raise _untold(then, commits[0].record, "took over the rows of a lake table")
    if then.primary_key:
        return
    before: LakePair | None = None
    deleted = _ever_deleted(then, commits)
    for commit in commits:
        dropped = dropped_in(commit.record.actions)
        is_untold = dropped is not None and not dropped.tells_all(is_adopted=ADOPTED in then.properties)
        if dropped is not None and dropped.files and is_net:
            raise _untold(then, commit.record, "removed rows that have no offsets, with their partition")
        for action in (action for part in commit.record.attempts for action in part.actions):
            if isinstance(action, DeleteRows) and action.files and is_net:
                raise _untold(then, commit.record, "deleted rows that have no offsets")
            if isinstance(action, Retier) and action.starts:
                raise _untold(then, commit.record, "gave up rows that only the lake had")
            if not isinstance(action, LakePair):
                continue
            before = before if before is not None else _pair_before(table, then, action, first)
            is_more = action.dropped_rows > (before.dropped_rows if before is not None else 0)
            is_drop = is_more and _drops(table, then, before, action, commits, deleted)
            if is_untold or (is_drop and dropped is None):
                raise _untold(then, commit.record, "removed rows from the lake that no record names")
            before = action


def _drops(
    table: TableHandle,
    then: TableState,
    before: LakePair | None,
    pair: LakePair,
    commits: Sequence[Commit],
    deleted: Mapping[int, OffsetRuns],
) -> bool:
    """Tell whether a lake snapshot lacks more rows than the one before, and not for deletions that records name.

    Rows that were adopted have no offsets, so of their table each row that it lacks has to be one that a record
    deleted: of the range, or before it, where the lake had it until then.
    """
    if ADOPTED not in then.properties:
        return drops_rows(before, pair, deleted)
    first, told = commits[0].record.number, before.told if before is not None else 0
    older = state_at(table.log, table.storage, first - 1).deletions if told < first - 1 else ()
    named = [Deleted(one.commit, one.rows, num_rows_of(one.files)) for one in older]
    for record in (commit.record for commit in commits):
        actions = (action for part in record.attempts for action in part.actions)
        rows = (action for action in actions if isinstance(action, DeleteRows))
        named += [Deleted(record.number, action.rows, num_rows_of(action.files)) for action in rows]
    return drops_adopted(before, pair, deleted, named)


def _ever_deleted(then: TableState, commits: Sequence[Commit]) -> Mapping[int, OffsetRuns]:
    """Return the rows that records deleted, as far as the commits and the state behind them tell."""
    parts = {bucket: [runs] for bucket, runs in then.deleted.items()}
    for bucket, found in _parts(commits)[1].items():
        parts.setdefault(bucket, []).extend(runs for runs, *_ in found)
    return {bucket: OffsetRuns.merged(found) for bucket, found in parts.items()}


def _pair_before(table: TableHandle, then: TableState, pair: LakePair, first: int) -> LakePair | None:
    """Return the lake snapshot that was recorded before one, the first since the commit ``first``."""
    if not pair.dropped_rows or first == _FIRST:
        return None
    place = next((i for i, known in enumerate(then.lake_history) if known == pair), 0)
    return then.lake_history[place - 1] if place else state_at(table.log, table.storage, first - 1).recorded_lake


def _untold(then: TableState, record: Record, what: str) -> InvalidOptionError:
    added = [s for part in record.attempts for a in part.actions if isinstance(a, Append) for s in a.segments]
    operation = operation_of(record.actions, added, is_keyed=bool(then.primary_key))
    return InvalidOptionError(
        f"CHANGES of {then.name}: commit {record.number} ({operation}) {what}, which is no change of single rows; "
        f"begin at version {record.number + 1}, or compare the table VERSION AS OF {max(record.number - 1, 1)} and of "
        f"{record.number}"
    )


# -- rows -------------------------------------------------------------------------------------------------------------


def _parts(commits: Sequence[Commit]) -> tuple[Parts, Parts]:
    """Return the offsets that the commits appended, and those that they deleted."""
    added: Parts = {}
    removed: Parts = {}
    for commit in commits:
        number, attempts = commit.record.number, commit.record.attempts
        writers: dict[int, set[int]] = {}
        appended: dict[int, list[OffsetRuns]] = {}
        for place, part in enumerate(attempts):
            is_told = _tells_dropped(part.actions)
            for action in part.actions:
                if isinstance(action, Append):
                    for segment in action.segments:
                        writers.setdefault(segment.bucket, set()).add(place)
                        runs = OffsetRuns.dense(segment.base_offset, segment.num_rows)
                        appended.setdefault(segment.bucket, []).append(runs)
                elif isinstance(action, DeleteRows) and not is_told:
                    for bucket, runs in action.rows.items():
                        removed.setdefault(bucket, []).append((runs, number, commit.time_us, False))
        if (dropped := dropped_in(commit.record.actions)) is not None:
            for bucket, runs in dropped.rows.items():
                removed.setdefault(bucket, []).append((runs, number, commit.time_us, False))
        for bucket, parts in appended.items():
            joined = OffsetRuns.union(parts), number, commit.time_us, len(writers[bucket]) > 1
            added.setdefault(bucket, []).append(joined)
    return added, removed


def _file_pieces(
    table: TableHandle, source: TableState, commits: Sequence[Commit], first: int
) -> Iterator[ChangesPiece]:
    """Return the rows without offsets that the commits deleted, or that went with a partition, of each file of a lake
    snapshot as one piece.

    Raises `OffsetsTrimmedError` where the lake snapshot that had the file is gone.
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
    """Require that the lake still has the files in which a commit deleted rows. Raises `OffsetsTrimmedError`."""
    assert action.snapshot_id is not None
    try:
        names = StorageFiles(table.storage)
        files = table.open_lake().with_state(source).named_files(action.snapshot_id)
        if action.files.keys() <= set(map(names.name_of, files)):
            return
    except SnapshotExpiredError:
        pass
    raise OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: commit {number} deleted rows that have no offsets, and the "
        f"lake no longer has snapshot {action.snapshot_id} with them; the first version that is there is {number + 1}"
    )


def _tells_dropped(actions: Sequence[Action]) -> bool:
    """Tell whether the rows that a record with these actions deletes were dropped with their partition before."""
    return any(isinstance(action, Retier) for action in actions)


def _without(parts: Parts, others: Parts) -> Parts:
    """Return the offsets that the others do not have."""
    found: Parts = {}
    for bucket, of_bucket in parts.items():
        gone = OffsetRuns.union([runs for runs, *_ in others.get(bucket, [])])
        left = [(runs.without(gone), version, time_us, False) for runs, version, time_us, _ in of_bucket]
        found[bucket] = [part for part in left if part[0]]
    return {bucket: of_bucket for bucket, of_bucket in found.items() if of_bucket}


def _require_kept(source: TableState, commits: Sequence[Commit], first: int) -> None:
    """Require that log or lake still have the rows of all commits. Raises `OffsetsTrimmedError`."""
    gone = [commit.record.number for commit in commits if _has_gone(source, commit.record)]
    if not gone:
        return
    reached = gone[-1] + 1
    rest = f"the first version that is there is {reached}"
    if reached > source.version:
        rest = f"none of its versions is there until more is committed, as version {reached}"
    raise OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: the log no longer has the rows of commit {gone[-1]}; {rest}"
    )


def _has_gone(source: TableState, record: Record) -> bool:
    told = (part.actions for part in record.attempts if not _tells_dropped(part.actions))
    for action in (action for actions in told for action in actions):
        if isinstance(action, Append):
            if any(not _is_there(source, s.bucket, s.offsets) for s in action.segments):
                return True
        elif isinstance(action, DeleteRows | NameDropped):
            starts: Mapping[int, int] = {bucket: log.start for bucket, log in source.buckets.items()}
            if any(runs.range.start < starts[bucket] for bucket, runs in action.rows.items() if runs):
                return True
    return False


def _is_there(source: TableState, bucket: int, offsets: OffsetRange) -> bool:
    """Tell whether the log has the rows, or else the lake, which lacks deleted ones and knows no changes."""
    start = source.buckets[bucket].start
    if offsets.start >= start:
        return True
    is_whole = source.has_lake and not source.primary_key and not source.deletions
    return is_whole and min(offsets.end, start) <= source.lake_offset(bucket)


def _pieces(source: TableState, added: Parts, removed: Parts, pruning: Pruning) -> Iterator[ChangesPiece]:
    allowed = pruning.buckets(source)
    for is_deleted, parts in ((False, added), (True, removed)):
        for bucket, of_bucket in sorted(parts.items()):
            if allowed is None or bucket in allowed:
                yield from _of_bucket(source, bucket, CommitRuns.of(of_bucket), pruning, is_deleted=is_deleted)


def _of_bucket(
    source: TableState, bucket: int, commits: CommitRuns, pruning: Pruning, *, is_deleted: bool
) -> Iterator[ChangesPiece]:
    start = source.buckets[bucket].start
    trimmed = commits.within(OffsetRange(0, start))
    for begin in range(trimmed.range.start, trimmed.range.end, LAKE_RANGE_ROWS) if trimmed else ():
        part = OffsetRange(begin, min(begin + LAKE_RANGE_ROWS, trimmed.range.end))
        piece = OffsetsPiece(bucket, part, len(part) * row_bytes(source, bucket))
        yield ChangesPiece(piece, trimmed.within(part), is_deleted)
    if not (held := commits.within(OffsetRange(start, max(start, commits.range.end)))):
        return
    is_grouped = bool(held.is_grouped.any())
    split = _chosen(source, whole_range(source, bucket, held.range), held, Pruning() if is_grouped else pruning)
    if split.segments:
        yield ChangesPiece(LogPiece(split), held, is_deleted, source.primary_key if is_grouped else ())


def _chosen(source: TableState, split: LogSplit, commits: CommitRuns, pruning: Pruning) -> LogSplit:
    """Leave out the segments without rows of the commits, and those that a filter surely does not want."""
    kept = tuple(
        s for s in split.segments if commits.reaches(s.offsets) and pruning.keeps_segment(source, s, split.offsets)
    )
    return replace(split, segments=kept, schemas={s.schema_id: split.schemas[s.schema_id] for s in kept})
