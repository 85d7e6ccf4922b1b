"""Metrics of a tiering service.

Names and base units follow Prometheus' guide: https:

prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streamhouse_spark.metrics.metrics import Metric
from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus

GAUGES: Final[dict[str, tuple[str, Callable[[TableStatus], float]]]] = {
    "streamhouse_table_lag_rows": ("Rows that the lake does not hold yet.", lambda s: s.lag_rows),
    "streamhouse_table_lag_seconds": ("Age of the oldest row that the lake does not hold.", lambda s: s.lag_ms / 1000),
    "streamhouse_table_freshness_seconds": (
        "Age that no row outside the lake should reach: table.datalake.freshness.",
        lambda s: s.freshness_ms / 1000,
    ),
    "streamhouse_tiering_failures": ("Failures since the last round that succeeded.", lambda s: s.failures),
    "streamhouse_tiering_last_round_seconds": (
        "Duration of the last round.",
        lambda s: s.last_report.duration_ms / 1000 if s.last_report is not None else 0,
    ),
    "streamhouse_maintenance_failures": (
        "Failures since the last maintenance that succeeded.",
        lambda s: s.upkeep.failures,
    ),
}
COUNTERS: Final[dict[str, tuple[str, Callable[[TableStatus], float]]]] = {
    "streamhouse_tiering_rounds": ("Rounds that moved rows.", lambda s: s.rounds),
    "streamhouse_tiering_rows": ("Rows moved into the lake.", lambda s: s.rows),
    "streamhouse_healed_rows": ("Duplicates of other engines removed from the lake.", lambda s: s.healed_rows),
    "streamhouse_compactions": ("Lake snapshots by compaction.", lambda s: s.upkeep.compactions),
    "streamhouse_compacted_files": ("Lake files that compaction replaced.", lambda s: s.upkeep.compacted_files),
    "streamhouse_expired_snapshots": ("Lake snapshots that were expired.", lambda s: s.upkeep.expired_snapshots),
    "streamhouse_deleted_lake_files": ("Lake files that were deleted.", lambda s: s.upkeep.deleted_files),
    "streamhouse_maintenance_conflicts": ("Steps of maintenance that lost a race.", lambda s: s.upkeep.conflicts),
}
"""Names without ``_total``, which the format adds."""


def service_measures(tables: Sequence[TableStatus], health: ServiceHealth) -> list[Metric]:
    """Return the metrics of a service and its tables. Counters start with the service."""
    turned = [] if health.turned_ms_ago is None else [((), health.turned_ms_ago / 1000)]
    up = float(health.tables is not None and health.listing_error is None)
    return [
        Metric("streamhouse_service_turned_seconds", "Time since the loop's last turn.", "gauge", (), turned),
        Metric("streamhouse_service_ready", "1 while the tables can be listed.", "gauge", (), [((), up)]),
        *(
            Metric(name, text, "gauge", ("table",), [((status.table,), value(status)) for status in tables])
            for name, (text, value) in GAUGES.items()
        ),
        *(
            Metric(name, text, "counter", ("table",), [((status.table,), value(status)) for status in tables])
            for name, (text, value) in COUNTERS.items()
        ),
        Metric(
            "streamhouse_table_doing",
            "1 for what is done with it.",
            "gauge",
            ("table", "doing"),
            [((status.table, status.doing), 1) for status in tables],
        ),
    ]
