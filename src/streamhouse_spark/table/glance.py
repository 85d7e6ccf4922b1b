"""A table at a glance: its size, and how far the lake is behind the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table.health import table_health
from streamhouse_spark.table.table import Table


@dataclass(frozen=True, slots=True)
class TableGlance:
    """A line about a table, from the state that was read last: it costs no request."""

    table: str
    version: int
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    buckets: int
    rows: int
    lag_rows: int | None
    """Rows that the lake does not hold; None without a lake."""
    untiered_s: float | None
    """Age of the oldest of them."""
    freshness_s: float
    is_late: bool
    """Whether tiering or maintenance should have come long ago."""
    hot_bytes: int
    hot_segments: int
    lake_format: str | None

    @classmethod
    def of(cls, table: Table) -> TableGlance:
        """Look at the table's last known state."""
        state = table.state
        of = state.parsed
        enabled = of.datalake_enabled
        health = table_health(state, of, table.storage.now_ms())
        segments = [segment for log in state.buckets.values() for segment in log.segments]
        return cls(
            table=table.name,
            version=state.version,
            primary_key=tuple(state.primary_key),
            partition_by=state.parsed.partitioned_by,
            buckets=state.num_buckets,
            rows=state.num_rows,
            lag_rows=sum(bucket_lags(state).values()) if enabled else None,
            untiered_s=health.untiered_ms / 1000 if enabled else None,
            freshness_s=health.freshness_ms / 1000,
            is_late=health.is_tiering_late or health.is_maintenance_late,
            hot_bytes=sum(segment.size_bytes for segment in segments),
            hot_segments=len(segments),
            lake_format=of.datalake_format if enabled else None,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
