"""The metrics of a server, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamhouse_spark.serve.counts import ServedCounts
from streamhouse_spark.storage.requests import Requests

Gauges = Mapping[str, tuple[str, str]]
"""Name of a metric → the field of a table's description, and the text about it."""


def as_prometheus(
    tables: Sequence[Mapping[str, Any]], gauges: Gauges, counts: ServedCounts, requests: Requests
) -> tuple[str, bytes]:
    """Return content type and text of the metrics. Counters are those of this process, since its start."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(tables, gauges, counts, requests))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collected:
    """The metrics of one moment, as the library asks for them."""

    def __init__(
        self, tables: Sequence[Mapping[str, Any]], gauges: Gauges, counts: ServedCounts, requests: Requests
    ) -> None:
        self._tables = tables
        self._gauges = gauges
        self._counts = counts
        self._requests = requests

    def collect(self) -> Iterable[Metric]:
        for name, (column, text) in self._gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["table"])
            for table in self._tables:
                if table.get(column) is not None:
                    gauge.add_metric([str(table["table"])], float(table[column]))
            yield gauge
        failed = GaugeMetricFamily(
            "streamhouse_table_unreadable", "1 for a table that cannot be read.", labels=["table"]
        )
        for table in self._tables:
            failed.add_metric([str(table["table"])], float("error" in table))
        yield failed
        labels = ["method", "area", "status"]
        answered = CounterMetricFamily("streamhouse_serve_requests", "Requests that were answered.", labels=labels)
        for (method, area, status), count in self._counts.requests.items():
            answered.add_metric([method, area, str(status)], count)
        yield answered
        busy = CounterMetricFamily("streamhouse_serve_busy_seconds", "Time to answers.", labels=labels[:2])
        for (method, area), seconds in self._counts.busy_s.items():
            busy.add_metric([method, area], seconds)
        yield busy
        rows = CounterMetricFamily("streamhouse_serve_rows", "Rows written over HTTP.", labels=["table", "mode"])
        for (table_name, mode), count in self._counts.rows.items():
            rows.add_metric([table_name, mode], count)
        yield rows
        sent = CounterMetricFamily("streamhouse_store_requests", "Requests sent to object stores.", labels=["kind"])
        for kind in ("gets", "heads", "puts", "lists", "deletes"):
            sent.add_metric([kind], getattr(self._requests, kind))
        yield sent
