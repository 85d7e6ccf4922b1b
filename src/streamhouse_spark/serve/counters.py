"""Counts of a server since its start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from streamhouse_spark.core.fork_safety import new_lock


class ServerCounters:
    """Requests and rows by kind. Safe for threads."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._rows: Counter[tuple[str, str]] = Counter()
        self._busy_s: Counter[tuple[str, str]] = Counter()
        self._lake_only_answers: Counter[str] = Counter()

    def count_request(self, method: str, area: str, status: int, busy_s: float) -> None:
        """Count a request of an area, such as ``iceberg``, and the time until its answer began."""
        with self._lock:
            self._requests[method, area, status] += 1
            self._busy_s[method, area] += busy_s  # type: ignore[assignment]

    def count_rows(self, table: str, mode: str, num_rows: int) -> None:
        with self._lock:
            self._rows[table, mode] += num_rows

    def count_lake_only_answer(self, table: str) -> None:
        """Count an answer with the lake in the place of hot rows."""
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
