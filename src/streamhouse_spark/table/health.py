"""How long a table has waited for tiering and maintenance. Pure: derived from the table's state."""

from __future__ import annotations

from typing import Final

from streamhouse_spark.config.properties import TableProperties
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.commits.state import BucketLog, TableState
from streamhouse_spark.log.lifecycle.garbage_collection import GRACE_MS

TIERING_LATE_MIN_MS: Final = 10 * 60_000
"""Shorter waits do not count as late, however small the table's freshness target is."""
TIERING_LATE_FACTOR: Final = 5
MAINTENANCE_LATE_MS: Final = 2 * 86_400_000


@dataclass(frozen=True, slots=True)
class TableHealth:
    """How long rows and files of a table have been waiting; 0 if none wait."""

    name: str
    freshness_ms: int
    """Freshness target: the permitted delay of the lake."""
    untiered_ms: int
    """Age of the oldest rows that should be in the lake but are not."""
    undeleted_ms: int
    """How long removable rows or files have waited for maintenance."""

    @property
    def is_tiering_late(self) -> bool:
        return self.untiered_ms > max(TIERING_LATE_MIN_MS, TIERING_LATE_FACTOR * self.freshness_ms)

    @property
    def is_maintenance_late(self) -> bool:
        return self.undeleted_ms > MAINTENANCE_LATE_MS


def table_health(state: TableState, properties: TableProperties, now_ms: int) -> TableHealth:
    """Compute the waiting times. ``now_ms`` is the store's time."""
    enabled = properties.datalake_enabled
    untiered = [_oldest_time_after(log, state.lake_offset(b)) for b, log in state.buckets.items()] if enabled else []
    if enabled and state.truncation is not None and state.lake_is_outdated:
        untiered.append(state.truncation.time_ms)
    undeleted = [condemned.time_ms + GRACE_MS for condemned in state.condemned.values()]
    if properties.log_ttl_ms:
        for bucket, log in state.buckets.items():
            first = log.segments[0] if log.segments else None
            is_held = first is not None and enabled and first.end_offset > state.lake_offset(bucket)
            if first is not None and not is_held:
                undeleted.append(first.last_time_ms + properties.log_ttl_ms)
    return TableHealth(
        name=state.name,
        freshness_ms=properties.datalake_freshness_ms,
        untiered_ms=max([0, *(now_ms - time_ms for time_ms in untiered if time_ms is not None)]),
        undeleted_ms=max([0, *(now_ms - due_ms for due_ms in undeleted)]),
    )


def _oldest_time_after(log: BucketLog, offset: int) -> int | None:
    """Return the store time when the oldest segment with rows at or after the offset was complete."""
    return next((s.last_time_ms for s in log.segments if s.end_offset > offset), None)
