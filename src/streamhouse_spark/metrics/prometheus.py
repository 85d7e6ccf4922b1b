"""Metrics in Prometheus' text format. Only this module imports prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamhouse_spark.metrics.metrics import Metric as Measure


def as_prometheus(measures: Iterable[Measure]) -> tuple[str, bytes]:
    """Return content type and text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(measures))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collected:
    """Current metrics in the form that the library collects."""

    def __init__(self, measures: Iterable[Measure]) -> None:
        self._measures = list(measures)

    def collect(self) -> Iterable[Metric]:
        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for metric in self._measures:
            family = families[metric.kind](metric.name, metric.text, labels=metric.labels)
            for values, number in metric.points:
                family.add_metric(values, number)
            yield family
