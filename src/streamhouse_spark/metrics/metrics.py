"""Metrics as values, independent of the exporter. Names, base units and texts follow Prometheus' guidelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.commits.commit_counter import COMMITS
from streamhouse_spark.storage.request_metrics import METER, RequestCounts

Point = tuple[tuple[str, ...], float]
"""Label values, and the number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric at one moment. A counter only grows while the process lives."""

    name: str
    """Without ``_total``, which Prometheus' format adds to counters."""
    text: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    points: Sequence[Point]


MetricSource = Callable[[], Iterable[Metric]]
"""Returns the current metrics. Their names never change."""


def counter(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "counter", (), [((), value)])


def store_metrics(sent: RequestCounts) -> list[Metric]:
    """Return the requests to object stores, and their bytes."""
    kinds = [((kind,), float(getattr(sent, kind))) for kind in ("gets", "heads", "puts", "lists", "deletes")]
    moved = [(("sent",), float(sent.sent_bytes)), (("received",), float(sent.received_bytes))]
    return [
        Metric("streamhouse_store_requests", "Requests sent to object stores.", "counter", ("kind",), kinds),
        Metric("streamhouse_store_bytes", "Bytes of objects.", "counter", ("direction",), moved),
        counter("streamhouse_store_failures", "Requests without a useful answer.", sent.failures),
        counter("streamhouse_store_refused_puts", "Puts that found an object at their key.", sent.refused_puts),
    ]


def process_metrics() -> list[Metric]:
    """Return the activity of this process since its start: its commits, and its requests to object stores."""
    commits = COMMITS.now()
    return [
        counter("streamhouse_commits", "Commits, each visible to everybody.", commits.commits),
        counter(
            "streamhouse_commit_conflicts", "Races for a record that were lost, and tried again.", commits.conflicts
        ),
        counter("streamhouse_commit_failures", "Commits that failed.", commits.failures),
        counter(
            "streamhouse_commit_seconds", "Time of commits and failures, waiting included.", commits.busy_ms / 1000
        ),
        *store_metrics(METER.total()),
    ]
