"""The records that gave a table other columns, by which reads as of a time find the columns of then. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A record with which another schema began: other columns, or another partitioning of the same ones."""

    former_id: int
    """The schema up to that record."""
    commit: int
    time_ms: int

    def to_json(self) -> list[int]:
        return [self.former_id, self.commit, self.time_ms]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SchemaChange:
        return cls(*data)


def append_schemas(
    changes: tuple[SchemaChange, ...], before: int, after: int, commit: int, time_ms: int
) -> tuple[SchemaChange, ...]:
    """Return the changes of a table behind a record, before and after which it has these schemas."""
    return changes if before == after else (*changes, SchemaChange(before, commit, time_ms))


def first_after(changes: Sequence[SchemaChange], now_ms: int, timestamp_ms: int) -> SchemaChange | None:
    """Return the first change that is later than a time; None where there is none, or it is not known.

    ``now_ms`` is the time of the newest record: a later record with a smaller time corrects a clock that ran ahead.
    """
    latest_ms, earliest = now_ms, None
    for change in reversed(changes):
        latest_ms = min(latest_ms, change.time_ms)
        if latest_ms <= timestamp_ms:
            break
        earliest = change
    return earliest
