"""Commits of this process, counted since its start."""

from __future__ import annotations

from streamhouse_spark.core.fork_safety import new_lock, renew_in_children
from streamhouse_spark.core.lazy_dataclass import dataclass, replace


@dataclass(frozen=True, slots=True)
class CommitCounts:
    commits: int = 0
    """Calls that wrote something."""
    conflicts: int = 0
    """Races for a record that were lost: the call tried again."""
    failures: int = 0
    """Calls that ended with an error."""
    busy_ms: int = 0
    """Time of all calls, from their begin to their answer."""


class _Counter:
    """Safe for threads. A child process begins at zero."""

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
renew_in_children(COMMITS)
