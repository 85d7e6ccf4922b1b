"""Offsets that commits appended and deleted, per bucket, from their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from streamhouse_spark.core.offset_ranges import NO_RUNS, OffsetSet
from streamhouse_spark.log.commit_reader import Commit, find_partition_drop
from streamhouse_spark.log.commits.actions import Action, Append, ResetLake
from streamhouse_spark.log.commits.delete_vectors import DeleteRows
from streamhouse_spark.log.commits.record import CommitAttempt
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.read.commit_ranges import CommitRange

Parts = dict[int, list[CommitRange]]
"""Bucket → offsets of commits."""
Rows = Mapping[int, OffsetSet]
"""Bucket → offsets."""
NO_LOST_ROWS: Final[Mapping[int, Rows]] = MappingProxyType({})
FIRST: Final = 1
"""The number of the first commit."""


def diff_commits(
    commits: Sequence[Commit], lost: Mapping[int, Rows] = NO_LOST_ROWS, *, by_key: bool = False
) -> tuple[Parts, Parts]:
    """Return the offsets that the commits appended, and those that they deleted.

    ``lost`` is commit number → rows of dropped partitions that its record does not name. ``by_key`` tells that a commit
    of several writers may have changed a key several times.
    """
    added: Parts = {}
    removed: Parts = {}
    for commit in commits:
        number, time_us, attempts = commit.record.number, commit.time_us, commit.record.attempts
        appended: dict[int, list[Segment]] = {}
        writers: dict[int, set[int]] = {}
        for place, part in enumerate(attempts):
            for segment in _appended_segments(part.actions):
                appended.setdefault(segment.bucket, []).append(segment)
                writers.setdefault(segment.bucket, set()).add(place)
        for bucket, segments in appended.items():
            is_grouped = by_key and len(writers[bucket]) > 1
            rows, updated = _split_updated_rows(segments)
            added.setdefault(bucket, []).extend(
                make_commit_ranges(rows, updated, number, time_us, is_grouped=is_grouped)
            )
        for action in _deletions(attempts):
            for bucket, rows in action.rows.items():
                before = action.updated.get(bucket, NO_RUNS)
                not_updated = rows.without(before) if before else rows
                removed.setdefault(bucket, []).extend(make_commit_ranges(not_updated, before, number, time_us))
        dropped = find_partition_drop(commit.record.actions)
        for of_buckets in (dropped.rows if dropped is not None else {}, lost.get(number, {})):
            for bucket, rows in of_buckets.items():
                removed.setdefault(bucket, []).extend(make_commit_ranges(rows, NO_RUNS, number, time_us))
    return added, removed


def make_commit_ranges(
    rows: OffsetSet, updated: OffsetSet, number: int, time_us: int, *, is_grouped: bool = False
) -> list[CommitRange]:
    """Return rows of one commit, and those that are pre-images or post-images of an update."""
    parts = [CommitRange(rows, number, time_us, is_grouped), CommitRange(updated, number, time_us, is_updated=True)]
    return [part for part in parts if part.rows]


def _appended_segments(actions: Sequence[Action]) -> Iterator[Segment]:
    return (segment for action in actions if isinstance(action, Append) for segment in action.segments)


def _split_updated_rows(segments: Sequence[Segment]) -> tuple[OffsetSet, OffsetSet]:
    """Return the offsets of new rows, and those of post-images."""
    parts = [OffsetSet.dense(segment.base_offset, segment.num_rows) for segment in segments]
    all_rows = parts[0] if len(parts) == 1 else OffsetSet.union(parts)
    updated = [segment.updated_rows for segment in segments if segment.updated]
    if not updated:
        return all_rows, NO_RUNS
    after_update = OffsetSet.union(updated)
    return all_rows.without(after_update), after_update


def _deletions(attempts: Sequence[CommitAttempt]) -> Iterator[DeleteRows]:
    for part in attempts:
        if not repeats_partition_drop(part.actions):
            yield from (action for action in part.actions if isinstance(action, DeleteRows))


def repeats_partition_drop(actions: Sequence[Action]) -> bool:
    """Return whether the rows that a record with these actions deletes were dropped with their partition before."""
    return any(isinstance(action, ResetLake) for action in actions)


def cancel_out(added: Parts, removed: Parts) -> tuple[Parts, Parts]:
    """Return the rows that remain after removing those both added and removed.

    A post-image counts as an added row, because its pre-image may have been added in the same range.
    """
    return _subtract(added, removed), _subtract(removed, added)


def _subtract(parts: Parts, subtracted: Parts) -> Parts:
    remaining: Parts = {}
    for bucket, of_bucket in parts.items():
        excluded = OffsetSet.union([part.rows for part in subtracted.get(bucket, [])])
        left = [part._replace(rows=part.rows.without(excluded), is_updated=False) for part in of_bucket]
        remaining[bucket] = [part for part in left if part.rows]
    return {bucket: of_bucket for bucket, of_bucket in remaining.items() if of_bucket}
