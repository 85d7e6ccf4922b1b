"""Offsets that commits appended and deleted, by bucket, as their records tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.log.commits.actions import Action, Append, Retier
from streamhouse_spark.log.commits.deletions import DeleteRows
from streamhouse_spark.log.told import Commit, dropped_in

Parts = dict[int, list[tuple[OffsetRuns, int, int, bool]]]
"""Bucket → offsets, each with number, time and whether it is grouped of their commit: see `CommitRuns.of`."""
Rows = Mapping[int, OffsetRuns]
"""Bucket → offsets."""
NOTHING_LOST: Final[Mapping[int, Rows]] = MappingProxyType({})
FIRST: Final = 1
"""The number of the first commit."""


def parts_of(commits: Sequence[Commit], lost: Mapping[int, Rows] = NOTHING_LOST) -> tuple[Parts, Parts]:
    """Return the offsets that the commits appended, and those that they deleted: ``lost`` are those of dropped
    partitions that their records do not name, by the numbers of the commits.
    """
    added: Parts = {}
    removed: Parts = {}
    for commit in commits:
        number, attempts = commit.record.number, commit.record.attempts
        writers: dict[int, set[int]] = {}
        appended: dict[int, list[OffsetRuns]] = {}
        for place, part in enumerate(attempts):
            is_told = tells_dropped(part.actions)
            for action in part.actions:
                if isinstance(action, Append):
                    for segment in action.segments:
                        writers.setdefault(segment.bucket, set()).add(place)
                        runs = OffsetRuns.dense(segment.base_offset, segment.num_rows)
                        appended.setdefault(segment.bucket, []).append(runs)
                elif isinstance(action, DeleteRows) and not is_told:
                    for bucket, runs in action.rows.items():
                        removed.setdefault(bucket, []).append((runs, number, commit.time_us, False))
        dropped = dropped_in(commit.record.actions)
        for rows in (dropped.rows if dropped is not None else {}, lost.get(number, {})):
            for bucket, runs in rows.items():
                removed.setdefault(bucket, []).append((runs, number, commit.time_us, False))
        for bucket, parts in appended.items():
            joined = OffsetRuns.union(parts), number, commit.time_us, len(writers[bucket]) > 1
            added.setdefault(bucket, []).append(joined)
    return added, removed


def tells_dropped(actions: Sequence[Action]) -> bool:
    """Tell whether the rows that a record with these actions deletes were dropped with their partition before."""
    return any(isinstance(action, Retier) for action in actions)


def without_parts(parts: Parts, others: Parts) -> Parts:
    """Return the offsets that the others do not have."""
    found: Parts = {}
    for bucket, of_bucket in parts.items():
        gone = OffsetRuns.union([runs for runs, *_ in others.get(bucket, [])])
        left = [(runs.without(gone), version, time_us, False) for runs, version, time_us, _ in of_bucket]
        found[bucket] = [part for part in left if part[0]]
    return {bucket: of_bucket for bucket, of_bucket in found.items() if of_bucket}
