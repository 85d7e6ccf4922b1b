"""Rows of a table without a primary key that records deleted by their offsets, and whose bytes are still stored.

Offsets stay dense: a deleted row keeps its place in the log, and every reader leaves it out. What a state knows of
deletions goes with the rows, when these are trimmed or truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns

DELETIONS_MAX: Final = 64
"""Records whose deletions a state tells apart; those of older ones are one."""
_BEYOND: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Deletion:
    """The rows that one record deleted, or several one after another."""

    commit: int
    """Number of the record, of several the newest."""
    time_ms: int
    rows: Mapping[int, OffsetRuns]
    """Bucket → offsets, at least one."""
    first_commit: int
    """The oldest of the records."""
    first_ms: int

    def to_json(self) -> list[Any]:
        return [self.commit, self.time_ms, self.first_commit, self.first_ms, rows_to_json(self.rows)]

    @classmethod
    def from_json(cls, data: Any) -> Deletion:
        commit, time_ms, first_commit, first_ms, rows = data
        return cls(commit, time_ms, rows_from_json(rows), first_commit, first_ms)


def joined(deletions: Iterable[Deletion]) -> Mapping[int, OffsetRuns]:
    """Return bucket → all offsets that were deleted. Raises `ValueError` if an offset was deleted twice."""
    parts: dict[int, list[OffsetRuns]] = {}
    for deletion in deletions:
        for bucket, runs in deletion.rows.items():
            parts.setdefault(bucket, []).append(runs)
    return {bucket: found[0] if len(found) == 1 else OffsetRuns.union(found) for bucket, found in parts.items()}


def followed_by(deletions: tuple[Deletion, ...], newest: Deletion) -> tuple[Deletion, ...]:
    """Return the deletions with one more behind them."""
    found = (*deletions, newest)
    if len(found) <= DELETIONS_MAX:
        return found
    first, second, *others = found
    both = Deletion(second.commit, second.time_ms, joined((first, second)), first.first_commit, first.first_ms)
    return (both, *others)


def from_offsets(deletions: tuple[Deletion, ...], starts: Mapping[int, int]) -> tuple[Deletion, ...]:
    """Return the deletions of rows from ``starts`` on, in buckets that these name."""
    kept = []
    for deletion in deletions:
        rows = {
            bucket: runs.within(OffsetRange(starts[bucket], _BEYOND)) if bucket in starts else runs
            for bucket, runs in deletion.rows.items()
        }
        if rows := {bucket: runs for bucket, runs in rows.items() if runs.num_rows}:
            kept.append(Deletion(deletion.commit, deletion.time_ms, rows, deletion.first_commit, deletion.first_ms))
    return tuple(kept)


def rows_to_json(rows: Mapping[int, OffsetRuns]) -> dict[str, str]:
    return {str(bucket): runs.to_text() for bucket, runs in sorted(rows.items())}


def rows_from_json(data: Mapping[str, str]) -> dict[int, OffsetRuns]:
    where = "a record that deletes rows"
    return {int(bucket): OffsetRuns.from_text(text, where=where) for bucket, text in data.items()}
