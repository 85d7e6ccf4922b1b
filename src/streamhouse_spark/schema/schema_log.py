"""Schema changes of a table by commit, with which reads as of a time find the columns of that time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A commit that changed the columns or the partitioning."""

    former_id: int
    """The schema before that commit."""
    commit: int
    time_ms: int

    def to_json(self) -> list[int]:
        return [self.former_id, self.commit, self.time_ms]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SchemaChange:
        return cls(*data)


def append_schema_change(
    changes: tuple[SchemaChange, ...], before: int, after: int, commit: int, time_ms: int
) -> tuple[SchemaChange, ...]:
    """Return the changes of a table after a record, given the schemas before and after it."""
    return changes if before == after else (*changes, SchemaChange(before, commit, time_ms))


def first_after(changes: Sequence[SchemaChange], now_ms: int, timestamp_ms: int) -> SchemaChange | None:
    """Return the first change after a time; None if there is none, or if it is unknown.

    ``now_ms`` is the time of the latest record. A later record with a smaller time corrects a clock that ran ahead.
    """
    latest_ms, earliest = now_ms, None
    for change in reversed(changes):
        latest_ms = min(latest_ms, change.time_ms)
        if latest_ms <= timestamp_ms:
            break
        earliest = change
    return earliest
