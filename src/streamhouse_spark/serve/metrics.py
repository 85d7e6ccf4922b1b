"""Counters and metrics of a server, and metrics of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.metrics.metrics import Metric


class ServerCounters:
    """Requests and rows by kind since the server's start. Safe for threads."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._rows: Counter[tuple[str, str]] = Counter()
        self._busy_s: Counter[tuple[str, str]] = Counter()
        self._lake_only_answers: Counter[str] = Counter()

    def count_request(self, method: str, area: str, status: int, busy_s: float) -> None:
        """Count a request of an area, such as ``iceberg``, and the time until its response began."""
        with self._lock:
            self._requests[method, area, status] += 1
            self._busy_s[method, area] += busy_s  # type: ignore[assignment]

    def count_rows(self, table: str, mode: str, num_rows: int) -> None:
        with self._lock:
            self._rows[table, mode] += num_rows

    def count_lake_only_answer(self, table: str) -> None:
        """Count a response that fell back to the lake alone."""
        with self._lock:
            self._lake_only_answers[table] += 1

    @property
    def requests(self) -> Mapping[tuple[str, str, int], int]:
        with self._lock:
            return dict(self._requests)

    @property
    def rows(self) -> Mapping[tuple[str, str], int]:
        with self._lock:
            return dict(self._rows)

    @property
    def lake_only_answers(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._lake_only_answers)

    @property
    def busy_s(self) -> Mapping[tuple[str, str], float]:
        with self._lock:
            return dict(self._busy_s)


_GAUGES: Final = {
    "streamhouse_table_rows": ("rows", "Rows of the table, hot and cold; with a primary key its changes."),
    "streamhouse_table_lag_rows": ("lag_rows", "Rows that the lake does not hold yet."),
    "streamhouse_table_lag_seconds": ("untiered_s", "Age of the oldest row that the lake does not hold."),
    "streamhouse_table_hot_bytes": ("hot_bytes", "Bytes of the hot log."),
    "streamhouse_table_version": ("version", "Newest commit of the table."),
}
"""Name of a metric → the field of a table's description, and the help text."""


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
    answered = [((method, area, str(status)), float(n)) for (method, area, status), n in counts.requests.items()]
    busy = [(labels, seconds) for labels, seconds in counts.busy_s.items()]
    rows = [(labels, float(n)) for labels, n in counts.rows.items()]
    lake_alone = [((table,), float(n)) for table, n in counts.lake_only_answers.items()]
    return [
        *gauges,
        Metric("streamhouse_table_unreadable", "1 for a table that cannot be read.", "gauge", ("table",), failed),
        Metric("streamhouse_table_failing", "1 while rounds of the table fail.", "gauge", ("table",), failing),
        Metric(
            "streamhouse_serve_requests",
            "Requests that were answered.",
            "counter",
            ("method", "area", "status"),
            answered,
        ),
        Metric("streamhouse_serve_busy_seconds", "Time to answers.", "counter", ("method", "area"), busy),
        Metric("streamhouse_serve_rows", "Rows written over HTTP.", "counter", ("table", "mode"), rows),
        Metric(
            "streamhouse_serve_lake_alone",
            "Answers to Iceberg clients without the hot rows, which took too long or could not be made.",
            "counter",
            ("table",),
            lake_alone,
        ),
    ]
