"""Status of a table: its size, the delay of tiering and maintenance, and failed rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from streamhouse_spark.config.table_properties import TableProperties
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.state import BucketLog, TableState
from streamhouse_spark.log.tiering_failures import TieringFailure, list_failures
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table_handle import TableHandle

TIERING_LATE_MIN_MS: Final = 10 * 60_000
"""Shorter delays do not count as late, even with a small freshness target."""
TIERING_LATE_FACTOR: Final = 5
MAINTENANCE_LATE_MS: Final = 2 * 86_400_000


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The delay of tiering and maintenance of a table."""

    name: str
    freshness_ms: int
    """Freshness target: the permitted delay of the lake."""
    untiered_ms: int
    """Age of the oldest untiered rows, or 0."""
    undeleted_ms: int
    """How long removable rows or files have been waiting for maintenance, or 0."""

    @property
    def is_tiering_late(self) -> bool:
        return self.untiered_ms > max(TIERING_LATE_MIN_MS, TIERING_LATE_FACTOR * self.freshness_ms)

    @property
    def is_maintenance_late(self) -> bool:
        return self.undeleted_ms > MAINTENANCE_LATE_MS


def table_health(state: TableState, properties: TableProperties, now_ms: int) -> TableHealth:
    """Compute the delays at the store time ``now_ms``."""
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
    """Return the store time of the last row of the oldest segment that ends after ``offset``."""
    return next((s.last_time_ms for s in log.segments if s.end_offset > offset), None)


@dataclass(frozen=True, slots=True)
class TableOverview:
    """The status of a table from its cached state, without a request."""

    table: str
    version: int
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    buckets: int
    rows: int
    rows_unit: str
    """The unit of ``rows`` and ``lag_rows``: ``rows``, or ``changes`` of a primary-key table."""
    lag_rows: int | None
    """Untiered rows; None without a lake."""
    untiered_s: float | None
    """Age of the oldest untiered row; None without a lake."""
    freshness_s: float
    is_late: bool
    """Whether tiering or maintenance is overdue."""
    hot_bytes: int
    hot_segments: int
    lake_format: str | None
    failing: str | None = None
    """The error class of failing tiering rounds, if recorded."""
    failed_s: float | None = None
    """Age of the last failure."""

    @classmethod
    def of(cls, table: TableHandle, failures: Sequence[TieringFailure] = ()) -> TableOverview:
        """Return the status of a table. ``failures`` are from `read_overdue_failures`."""
        state = table.state
        of = state.parsed
        enabled = of.datalake_enabled
        now_ms = table.storage.now_ms()
        health = table_health(state, of, now_ms)
        failure = next((candidate for candidate in failures if not candidate.is_resolved(state)), None)
        segments = [segment for log in state.buckets.values() for segment in log.segments]
        return cls(
            table=table.name,
            version=state.version,
            primary_key=tuple(state.primary_key),
            partition_by=state.parsed.partitioned_by,
            buckets=state.num_buckets,
            rows=state.num_rows,
            rows_unit="changes" if state.primary_key else "rows",
            lag_rows=sum(bucket_lags(state).values()) if enabled else None,
            untiered_s=health.untiered_ms / 1000 if enabled else None,
            freshness_s=health.freshness_ms / 1000,
            is_late=health.is_tiering_late or health.is_maintenance_late,
            hot_bytes=sum(segment.size_bytes for segment in segments),
            hot_segments=len(segments),
            lake_format=of.datalake_format if enabled else None,
            failing=None if failure is None else failure.error,
            failed_s=None if failure is None else (now_ms - failure.last_ms) / 1000,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_overdue_failures(storage: Storage, tables: Sequence[TableHandle]) -> Mapping[str, Sequence[TieringFailure]]:
    """Return uuid → recorded failures of the tables whose tiering or maintenance is overdue.

    Failures are read in parallel. Other tables cost no request.
    """
    overdue = [table for table in tables if _is_overdue(table)]
    failures_by_table = map_with_store_concurrency(
        storage, lambda table: list_failures(table.storage, table.uuid), overdue
    )
    return {table.uuid: failures for table, failures in zip(overdue, failures_by_table, strict=True)}


def _is_overdue(table: TableHandle) -> bool:
    try:
        health = table_health(table.state, table.state.parsed, table.storage.now_ms())
    except StreamhouseError:  # using the table raises the error
        return False
    return health.untiered_ms > health.freshness_ms or health.is_maintenance_late
