"""Status of a table: its size, the lag of the lake, and whether tiering rounds fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.log.lifecycle.tiering_failures import TieringFailure, list_failures
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.health import table_health
from streamhouse_spark.table.table import Table


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
    """The unit of ``rows`` and ``lag_rows``: ``rows``, or ``changes`` of a primary-key table, whose rows only a read
    can count."""
    lag_rows: int | None
    """Rows that the lake does not hold; None without a lake."""
    untiered_s: float | None
    """Age of the oldest of these rows."""
    freshness_s: float
    is_late: bool
    """Whether tiering or maintenance is overdue."""
    hot_bytes: int
    hot_segments: int
    lake_format: str | None
    failing: str | None = None
    """The error class with which its rounds fail, as far as recorded; None if they do not."""
    failed_s: float | None = None
    """Age of the last such failure."""

    @classmethod
    def of(cls, table: Table, failures: Sequence[TieringFailure] = ()) -> TableOverview:
        """Return the status of a table, given the failures that `read_overdue_failures` read for it."""
        state = table.state
        of = state.parsed
        enabled = of.datalake_enabled
        now_ms = table.storage.now_ms()
        health = table_health(state, of, now_ms)
        failure = next((candidate for candidate in failures if not candidate.is_over(state)), None)
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


def read_overdue_failures(storage: Storage, tables: Sequence[Table]) -> Mapping[str, Sequence[TieringFailure]]:
    """Return the recorded failures by uuid of tables whose rows or files wait too long, read in parallel.

    Other tables cost no request.
    """
    overdue = [table for table in tables if _is_overdue(table)]
    failures_by_table = map_with_store_concurrency(
        storage, lambda table: list_failures(table.storage, table.uuid), overdue
    )
    return {table.uuid: failures for table, failures in zip(overdue, failures_by_table, strict=True)}


def _is_overdue(table: Table) -> bool:
    try:
        health = table_health(table.state, table.state.parsed, table.storage.now_ms())
    except StreamhouseError:  # using the table raises the error
        return False
    return health.untiered_ms > health.freshness_ms or health.is_maintenance_late
