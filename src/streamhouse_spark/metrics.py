"""Metrics of a process and its work, for Prometheus and OpenTelemetry.

Names, units and texts follow the guidelines of Prometheus. Only this module imports opentelemetry and
prometheus_client. OpenTelemetry's instruments are observed only when an SDK collects, so they cost nothing without one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from streamhouse_spark.core.argument_validation import require_part
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import MissingExtraError, StreamhouseError
from streamhouse_spark.log.group_commit import COMMITS
from streamhouse_spark.storage.request_metrics import METER, RequestCounts

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation


Point = tuple[tuple[str, ...], float]
"""Label values, and the number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The values of a metric at one moment. A counter never decreases while the process runs."""

    name: str
    """The name without ``_total``, which the format of Prometheus adds to counters."""
    text: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    points: Sequence[Point]


MetricSource = Callable[[], Iterable[Metric]]
"""Returns the current metrics, always with the same names."""


def counter(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "counter", (), [((), value)])


def store_metrics(sent: RequestCounts) -> list[Metric]:
    """Return metrics of the requests to object stores."""
    kinds = [((kind,), float(getattr(sent, kind))) for kind in ("gets", "heads", "puts", "lists", "deletes")]
    moved = [(("sent",), float(sent.sent_bytes)), (("received",), float(sent.received_bytes))]
    return [
        Metric("streamhouse_store_requests", "Requests sent to object stores.", "counter", ("kind",), kinds),
        Metric("streamhouse_store_bytes", "Bytes of objects.", "counter", ("direction",), moved),
        counter("streamhouse_store_failures", "Requests that failed: throttled, denied or interrupted.", sent.failures),
        counter("streamhouse_store_refused_puts", "Puts that found an object at their key.", sent.refused_puts),
    ]


def process_metrics() -> list[Metric]:
    """Return metrics of this process since its start: its commits, and its requests to object stores."""
    commits = COMMITS.now()
    return [
        counter("streamhouse_commits", "Commits.", commits.commits),
        counter("streamhouse_commit_conflicts", "Lost commit races, each followed by a retry.", commits.conflicts),
        counter("streamhouse_commit_failures", "Commits that failed.", commits.failures),
        counter("streamhouse_commit_seconds", "Duration of commits, including failed ones.", commits.busy_ms / 1000),
        *store_metrics(METER.total()),
    ]


logger = logging.getLogger(__name__)

SCOPE: Final = "streamhouse_spark"
"""The name of our meter."""


def export_metrics(meter_provider: MeterProvider | None = None) -> None:
    """Export the metrics of this process through OpenTelemetry: its commits, and its requests to object stores.

    By default it uses the process's ``meter_provider``, which may also be set later. Repeated calls have no effect.
    Raises `MissingExtraError` without the extra ``otel``, `InvalidOptionError` for an invalid provider.
    """
    if meter_provider is not None:
        require_part("meter_provider", meter_provider, "a MeterProvider of OpenTelemetry", "get_meter")
    try:
        _exports_to(meter_provider).add(process_metrics)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise MissingExtraError(
            "metrics of OpenTelemetry need its API, which is not installed; run: pip install 'streamhouse-spark[otel]'"
        ) from error


@contextmanager
def export_until_exit(measures: MetricSource, meter_provider: MeterProvider | None = None) -> Iterator[None]:
    """Export these metrics and the process's own through OpenTelemetry during the block, if its API is installed."""
    try:
        exports = _exports_to(meter_provider)
    except ModuleNotFoundError:
        yield
        return
    exports.add(process_metrics)
    exports.add(measures)
    try:
        yield
    finally:
        exports.remove(measures)


class _Exports:
    """The metric sources registered with one provider. Safe for threads."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._lock = new_lock()
        self._sources: list[MetricSource] = []
        self._exported: set[str] = set()

    def add(self, source: MetricSource) -> None:
        with self._lock:
            if source in self._sources:
                return
            self._sources = [*self._sources, source]
        for metric in _collect_metrics(source):
            with self._lock:
                if metric.name in self._exported:
                    continue
                self._exported.add(metric.name)
            create = {"counter": self._meter.create_observable_counter, "gauge": self._meter.create_observable_gauge}[
                metric.kind
            ]
            create(metric.name, callbacks=[partial(self._observe, metric.name)], description=metric.text)

    def remove(self, source: MetricSource) -> None:
        with self._lock:
            self._sources = [registered for registered in self._sources if registered != source]

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:  # noqa: ARG002 - required by the API
        from opentelemetry.metrics import Observation

        for source in self._sources:
            for metric in _collect_metrics(source):
                if metric.name == name:
                    for values, number in metric.points:
                        yield Observation(number, dict(zip(metric.labels, values, strict=True)))


def _collect_metrics(source: MetricSource) -> list[Metric]:
    """Return the metrics of a source, or none if it fails, so that other sources are still exported."""
    try:
        return list(source())
    except StreamhouseError as error:
        logger.warning("metrics could not be collected until the next collection: %s", error)
        return []


_lock = new_lock()
_exports: dict[int, tuple[object, _Exports]] = {}
"""By the provider's id, which cannot be reused because the provider is referenced here."""


def _exports_to(provider: MeterProvider | None) -> _Exports:
    from opentelemetry.metrics import get_meter

    with _lock:
        if id(provider) not in _exports:
            _exports[id(provider)] = provider, _Exports(get_meter(SCOPE, meter_provider=provider))
        return _exports[id(provider)][1]


def format_prometheus(metrics: Iterable[Metric]) -> tuple[str, bytes]:
    """Return the content type and the text of metrics in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    families = []
    for metric in metrics:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.text, labels=metric.labels)
        for values, number in metric.points:
            family.add_metric(values, number)
        families.append(family)

    class Collector:
        def collect(self) -> Iterable[Any]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return CONTENT_TYPE_LATEST, generate_latest(registry)
