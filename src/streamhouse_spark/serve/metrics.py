"""Counters and metrics of a server, and metrics of its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.metrics import Metric

_GAUGES: Final = {
    "streamhouse_table_rows": ("rows", "Rows of the table, hot and cold; with a primary key its changes."),
    "streamhouse_table_lag_rows": ("lag_rows", "Rows that the lake does not hold yet."),
    "streamhouse_table_lag_seconds": ("untiered_s", "Age of the oldest row that the lake does not hold."),
    "streamhouse_table_hot_bytes": ("hot_bytes", "Bytes of the hot log."),
    "streamhouse_table_version": ("version", "Newest commit of the table."),
}
"""Name of a metric → the field of a table's description, and the help text."""
_COUNTERS: Final = {
    "streamhouse_serve_requests": ("Requests that were answered.", ("method", "area", "status")),
    "streamhouse_serve_busy_seconds": ("Time to answers.", ("method", "area")),
    "streamhouse_serve_rows": ("Rows written over HTTP.", ("table", "mode")),
    "streamhouse_serve_lake_alone": (
        "Answers to Iceberg clients without the hot rows, which took too long or could not be made.",
        ("table",),
    ),
}
"""Name of a counter → the help text and the labels."""


class ServerCounters:
    """Requests and rows by kind since the server's start. Safe for threads."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._values: dict[str, defaultdict[tuple[str, ...], float]] = {name: defaultdict(float) for name in _COUNTERS}

    def count_request(self, method: str, area: str, status: int, busy_s: float) -> None:
        """Count a request of an area, such as ``iceberg``, and the time until its response began."""
        self._add("streamhouse_serve_requests", (method, area, str(status)), 1)
        self._add("streamhouse_serve_busy_seconds", (method, area), busy_s)

    def count_rows(self, table: str, mode: str, num_rows: int) -> None:
        self._add("streamhouse_serve_rows", (table, mode), num_rows)

    def count_lake_only_answer(self, table: str) -> None:
        """Count a response that fell back to the lake alone."""
        self._add("streamhouse_serve_lake_alone", (table,), 1)

    def _add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            self._values[name][labels] += value

    def metrics(self) -> list[Metric]:
        with self._lock:
            points = {name: list(values.items()) for name, values in self._values.items()}
        return [Metric(name, text, "counter", labels, points[name]) for name, (text, labels) in _COUNTERS.items()]


def server_measures(tables: Sequence[Mapping[str, Any]], counts: ServerCounters) -> list[Metric]:
    """Return the metrics of tables, by their descriptions, and of requests."""
    gauges = [
        Metric(
            name,
            text,
            "gauge",
            ("table",),
            [((str(t["table"]),), float(t[of])) for t in tables if t.get(of) is not None],
        )
        for name, (of, text) in _GAUGES.items()
    ]
    failing = [((str(t["table"]),), float(t["failing"] is not None)) for t in tables if "failing" in t]
    failed = [((str(table["table"]),), float("error" in table)) for table in tables]
    return [
        *gauges,
        Metric("streamhouse_table_unreadable", "1 for a table that cannot be read.", "gauge", ("table",), failed),
        Metric("streamhouse_table_failing", "1 while rounds of the table fail.", "gauge", ("table",), failing),
        *counts.metrics(),
    ]
