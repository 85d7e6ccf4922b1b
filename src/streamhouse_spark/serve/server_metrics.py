"""Counters and metrics of a server, and metrics of its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.metrics import Metric

_GAUGES: Final = {
    "streamhouse_table_rows": ("rows", "Rows of the table, or changes of a primary-key table."),
    "streamhouse_table_lag_rows": ("lag_rows", "Rows that are not tiered yet."),
    "streamhouse_table_lag_seconds": ("untiered_s", "Age of the oldest row that is not tiered yet."),
    "streamhouse_table_hot_bytes": ("hot_bytes", "Bytes of the hot log."),
    "streamhouse_table_version": ("version", "Latest commit of the table."),
}
"""Name of a metric → the field of a table's description, and the help text."""
_COUNTERS: Final = {
    "streamhouse_serve_requests": ("Completed requests.", ("method", "area", "status")),
    "streamhouse_serve_busy_seconds": ("Time until responses began.", ("method", "area")),
    "streamhouse_serve_rows": ("Rows written over HTTP.", ("table", "mode")),
    "streamhouse_serve_lake_alone": (
        "Responses to Iceberg clients without hot rows, because these took too long or failed.",
        ("table",),
    ),
}
"""Name of a counter → the help text and the labels."""


class ServerCounters:
    """Counts requests and rows since the server's start. Safe for threads."""

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
        """Count a response without hot rows."""
        self._add("streamhouse_serve_lake_alone", (table,), 1)

    def _add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            self._values[name][labels] += value

    def metrics(self) -> list[Metric]:
        with self._lock:
            points = {name: list(values.items()) for name, values in self._values.items()}
        return [Metric(name, text, "counter", labels, points[name]) for name, (text, labels) in _COUNTERS.items()]


def make_server_metrics(tables: Sequence[Mapping[str, Any]], counts: ServerCounters) -> list[Metric]:
    """Return the metrics of tables, from their descriptions, and of requests."""
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
        Metric("streamhouse_table_unreadable", "1 if the table is unreadable.", "gauge", ("table",), failed),
        Metric("streamhouse_table_failing", "1 while tiering rounds of the table fail.", "gauge", ("table",), failing),
        *counts.metrics(),
    ]
