"""The metrics of a tiering service, in Prometheus' text format.

Names, base units and ``_total`` are as the format's own guide asks: https://prometheus.io/docs/practices/naming/. The
only importer of prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus
from streamhouse_spark.storage.requests import Requests

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
"""By names without ``_total``, which the format adds."""


def as_prometheus(tables: Sequence[TableStatus], health: ServiceHealth, requests: Requests) -> tuple[str, bytes]:
    """Return content type and text of the metrics. Counters are those of this service, and ``requests`` those of its
    process, since the start.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(tables, health, requests))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collected:
    """The metrics of one moment, as the library asks for them."""

    def __init__(self, tables: Sequence[TableStatus], health: ServiceHealth, requests: Requests) -> None:
        self._tables = tables
        self._health = health
        self._requests = requests

    def collect(self) -> Iterable[Metric]:
        health = self._health
        if health.turned_ms_ago is not None:
            seconds = health.turned_ms_ago / 1000
            yield GaugeMetricFamily("streamhouse_service_turned_seconds", "Time since the loop's last turn.", seconds)
        up = float(health.tables is not None and health.listing_error is None)
        yield GaugeMetricFamily("streamhouse_service_ready", "1 while the tables can be listed.", up)
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["table"])
            for status in self._tables:
                gauge.add_metric([status.table], value(status))
            yield gauge
        for name, (text, value) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["table"])
            for status in self._tables:
                counter.add_metric([status.table], value(status))
            yield counter
        doing = GaugeMetricFamily("streamhouse_table_doing", "1 for what is done with it.", labels=["table", "doing"])
        for status in self._tables:
            doing.add_metric([status.table, status.doing], 1)
        yield doing
        sent = CounterMetricFamily("streamhouse_store_requests", "Requests sent to object stores.", labels=["kind"])
        for kind in ("gets", "heads", "puts", "lists", "deletes"):
            sent.add_metric([kind], getattr(self._requests, kind))
        yield sent
        moved = CounterMetricFamily("streamhouse_store_bytes", "Bytes of objects.", labels=["direction"])
        moved.add_metric(["sent"], self._requests.sent_bytes)
        moved.add_metric(["received"], self._requests.received_bytes)
        yield moved
        failed = self._requests.failures
        yield CounterMetricFamily("streamhouse_store_failures", "Requests without a useful answer.", failed)
