"""Rounds without news: a process that found nothing to do asks next time only whether anything is new.

What a round found is remembered with the log that it looked at. While the log has no other record, and the newest
object of the lake is as it was and has no successor, the next round would find the same: so it ends there. Whatever
changes the lake, of this package or of another engine, puts such a successor, or takes the newest object away. Nothing
is written on the ground of what is remembered: a round that has something to do looks at everything itself.
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
from streamhouse_spark.storage.prefetch import ReadsMany, at_once

LASTS_MS: Final = 10 * 60_000
"""Boot time after which a round looks at everything again: columns of the lake that another engine altered, without a
snapshot, show then at the latest."""


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
    """Remember that a round, which looked at the lake not before ``checked_ms``, found nothing to do for the state."""
    if head is None or log.known is not state:
        return
    with _lock:
        _no_op_rounds[log] = _NoOpRound(state.version, state.attempt, state.lake_location, head, checked_ms)


def forget(log: CommitLog) -> None:
    with _lock:
        _no_op_rounds.pop(log, None)


def find_unchanged_state(
    log: CommitLog, lake: LakeTable, now_ms: int, refreshed: Callable[[], TableState]
) -> TableState | None:
    """Return the newest state, where nothing is new since a round found nothing to do. None where something is, where
    no such round is known, and where a look at everything costs no more.

    Three requests at the same time. ``refreshed`` reads the log to its end.
    """
    storage = lake.place.storage
    with _lock:
        last_round = _no_op_rounds.get(log)
    if last_round is None or not isinstance(storage, ReadsMany):
        return None
    if not last_round.is_state(log.known) or now_ms - last_round.checked_ms > LASTS_MS:
        forget(log)
        return None
    objects: list[bytes | None] = []
    looks: list[Callable[[], TableState | None]] = [
        refreshed,
        lambda: objects.extend(storage.read_many([last_round.head.key, last_round.head.following])),
    ]
    state, _ = at_once(storage, lambda look: look(), looks)
    newest, following = objects
    is_same = newest is not None and following is None and lake.content_of(newest) == last_round.head.content
    if is_same and last_round.is_state(state):
        return state
    forget(log)
    return None
