"""Rows of dropped partitions of a table without a primary key, as far as the log still holds them.

The lake lacks them, and offsets alone do not say so. A reader of the log who has not read them yet leaves them out, and
a lake that is built anew from the log is without them. Nobody who read them before is told: a partition that is dropped
is no change of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.log.commits import deletions as masks
from streamhouse_spark.log.commits.deletions import Deletion, rows_from_json, rows_to_json

DROPPED_ROWS: Final = "dropped-rows"


@dataclass(frozen=True, slots=True)
class NameDropped:
    """The rows at these offsets are of partitions that were dropped from the lake: the table no longer has them, and
    the log still does.

    ``count`` is how many of the rows that the recorded lake snapshot lacks this accounts for, those included that the
    log does not hold any more.
    """

    rows: Mapping[int, OffsetRuns]
    count: int

    def to_json(self) -> dict[str, Any]:
        return {"type": DROPPED_ROWS, "rows": rows_to_json(self.rows), "count": self.count}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NameDropped:
        return cls(rows_from_json(data["rows"]), int(data["count"]))


@dataclass(frozen=True, slots=True)
class DroppedRows:
    """What a state knows of dropped rows."""

    named: tuple[Deletion, ...] = ()
    """Rows of dropped partitions that the log still holds, of the newest drop last."""
    accounted: int = 0
    """How many of the rows that the recorded lake snapshot lacks are known to be deleted, or named here once."""
    newest: int = 0
    """Number of the newest record that named some; 0 for none."""

    def with_pair(self, grown: int, applied: int) -> DroppedRows:
        """Return it behind a lake snapshot that lacks ``grown`` rows more, where ``applied`` deleted rows are lacking
        that were not before. Where these do not account for all, a partition was dropped.
        """
        return replace(self, accounted=self.accounted + grown) if 0 < grown <= applied else self

    def with_action(self, action: NameDropped, commit: int, time_ms: int) -> DroppedRows:
        named = masks.followed_by(self.named, action.rows, commit, time_ms)
        return DroppedRows(named, self.accounted + action.count, commit)

    def from_offsets(self, starts: Mapping[int, int]) -> DroppedRows:
        """Return it without rows below ``starts``, in buckets that these name."""
        return replace(self, named=masks.from_offsets(self.named, starts)) if self.named else self

    def to_json(self) -> dict[str, Any]:
        named = [deletion.to_json() for deletion in self.named]
        return {"accounted": self.accounted, "newest": self.newest, "named": named}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DroppedRows:
        named = tuple(Deletion.from_json(found) for found in data["named"])
        return cls(named, int(data["accounted"]), int(data["newest"]))


NO_DROPPED_ROWS: Final = DroppedRows()
