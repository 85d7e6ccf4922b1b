"""Counts the commits of this process."""

from __future__ import annotations

from streamhouse_spark.core.fork_safety import new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass, replace


@dataclass(frozen=True, slots=True)
class CommitCounts:
    commits: int = 0
    """Calls that wrote a record."""
    conflicts: int = 0
    """Lost races; the call retried."""
    failures: int = 0
    """Calls that raised an error."""
    busy_ms: int = 0
    """Total duration of all calls."""


class _Counter:
    """Thread-safe. A child process starts at zero."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counts = CommitCounts()

    def renew_in_child(self) -> None:
        self._counts = CommitCounts()

    def note(self, *, wrote: bool, failed: bool, conflicts: int, busy_ms: int) -> None:
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                commits=now.commits + wrote,
                conflicts=now.conflicts + conflicts,
                failures=now.failures + failed,
                busy_ms=now.busy_ms + busy_ms,
            )

    def now(self) -> CommitCounts:
        return self._counts


COMMITS = _Counter()
reinit_after_fork(COMMITS)
