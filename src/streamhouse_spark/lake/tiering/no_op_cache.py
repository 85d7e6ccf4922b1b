"""Cache of no-op rounds: a process that found nothing to tier checks only for changes next time.

The cache holds the log state and the lake's latest metadata object. While both are unchanged, and the object has no
successor, the round ends early. Any change to the lake adds a successor or removes the object, whichever engine makes
it. No write relies on the cache: a round with work reads everything again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.lake.model.change_detection import LakeVersion
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.prefetch import ReadsMany, map_with_store_concurrency

LASTS_MS: Final = 10 * 60_000
"""Boot time after which a round reads everything again, to notice columns that another engine altered without a
snapshot."""


@dataclass(frozen=True, slots=True)
class _NoOpRound:
    version: int
    attempt: str | None
    location: str
    head: LakeVersion
    checked_ms: int

    def is_state(self, state: TableState | None) -> bool:
        identity = None if state is None else (state.version, state.attempt, state.lake_location)
        return identity == (self.version, self.attempt, self.location)


_no_op_rounds: WeakKeyDictionary[CommitLog, _NoOpRound] = WeakKeyDictionary()
_lock = new_lock()


def remember_no_op(log: CommitLog, state: TableState, head: LakeVersion | None, checked_ms: int) -> None:
    """Remember that a round found nothing to tier. It read the lake at ``checked_ms`` or later."""
    if head is None or log.cached_state is not state:
        return
    with _lock:
        _no_op_rounds[log] = _NoOpRound(state.version, state.attempt, state.lake_location, head, checked_ms)


def forget(log: CommitLog) -> None:
    with _lock:
        _no_op_rounds.pop(log, None)


def find_unchanged_state(
    log: CommitLog, lake: LakeTable, now_ms: int, refreshed: Callable[[], TableState]
) -> TableState | None:
    """Return the latest state if nothing changed since a no-op round. Returns None on a change, without such a round,
    or if the full check is as cheap.

    Sends three concurrent requests. ``refreshed`` reads the log to its end.
    """
    storage = lake.place.storage
    with _lock:
        last_round = _no_op_rounds.get(log)
    if last_round is None or not isinstance(storage, ReadsMany):
        return None
    if not last_round.is_state(log.cached_state) or now_ms - last_round.checked_ms > LASTS_MS:
        forget(log)
        return None
    objects: list[bytes | None] = []
    looks: list[Callable[[], TableState | None]] = [
        refreshed,
        lambda: objects.extend(storage.read_many([last_round.head.key, last_round.head.following])),
    ]
    state, _ = map_with_store_concurrency(storage, lambda look: look(), looks)
    newest, following = objects
    is_same = newest is not None and following is None and lake.content_of(newest) == last_round.head.content
    if is_same and last_round.is_state(state):
        return state
    forget(log)
    return None
