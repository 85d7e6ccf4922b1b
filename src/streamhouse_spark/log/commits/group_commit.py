"""Commits of one process that wait for a table's log at the same time, so that one of them commits for all."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.core.fork_safety import new_event
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.errors import CommitStateUnknownError, ObjectExistsError, StorageError, StreamhouseError
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.bootstrap import PrefetchedLog
from streamhouse_spark.log.commits.commit_counter import COMMITS
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.transactions import TransactionEntry
from streamhouse_spark.storage.prefetch import Prefetch

FOLLOWER_WAIT_S_MAX = 1.0
"""Time after which a call asks for the log although another seems to be at work: its thread may have been interrupted
before it could say that it is done.
"""
GROUP_WAIT_S_MAX = 0.001
"""Time for which a leader waits for calls that may come at once: less than the fsyncs of a record take."""
PREFETCH_VALID_MS = 1_000
"""Time for which records that were read behind a lost race count as read just now."""
_BACKOFF_MS = 5.0
_BACKOFF_MS_MAX = 2_000.0
_boot_ms = SystemClock().boot_ms
"""The machine's own time, also in a simulated world: it is only counted."""
E = TypeVar("E", bound=StreamhouseError)

Plan = Callable[[TableState, int], Sequence[Action]]
"""Returns the actions of a record, from the newest state and the record's time. Called again after each lost race;
raises to give up. An empty result commits nothing."""


class DependentPlan(ABC):
    """A `Plan` whose actions depend on what the attempts before it in the record write."""

    @abstractmethod
    def follow(self, before: TableState, earlier: Sequence[Plan]) -> None:
        """Note the stored state and the plans that the record has so far. Called before each call of the plan; raises
        if it cannot follow them.
        """

    @abstractmethod
    def __call__(self, state: TableState, time_ms: int) -> Sequence[Action]:
        """See `Plan`."""


@dataclass(slots=True)
class ContentionStats:
    """The share of this process's last commits before which others had committed, and their records behind the last
    race that it lost.

    The share tells whether to look before a put. A look takes one round trip of a commit, two where it finds records. A
    put that loses takes two more than one that wins: the record that came before it is read together with those behind
    it. So a look saves no time; where nearly all puts lose it saves these.
    """

    _lost_share: float = 0.0
    _prefetched: PrefetchedLog | None = None

    def note(self, *, were_first: bool) -> None:
        """Add a commit: whether a put lost, or a look found others' records."""
        self._lost_share += (were_first - self._lost_share) / 4

    @property
    def should_read_first(self) -> bool:
        """Whether a commit looks first: behind five in a row that lost, and where a race was lost just now."""
        return self._lost_share > 0.75 or self._prefetched is not None

    def note_put(self, prefetched: PrefetchedLog | None) -> None:
        """Take note of a put, and of what was read behind it if it lost."""
        self._prefetched = prefetched

    def take_prefetched(self, call: PendingCommit, now_ms: int) -> Prefetch | None:
        """Return the records behind the race that a call lost, once, unless they were read long ago."""
        prefetched, self._prefetched = self._prefetched, None
        is_new = prefetched is not None and now_ms - prefetched.since_ms <= PREFETCH_VALID_MS
        return prefetched.ahead if prefetched is not None and is_new and call.conflicts else None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of `CommitLog.commit`."""

    before: TableState
    state: TableState
    duplicate_of: TransactionEntry | None = None
    """Set when the transaction was stored earlier: nothing was written now, and these were its offsets."""
    ends: tuple[Mapping[int, int], Mapping[int, int]] | None = None
    """Ends of the buckets before and behind this attempt, where the record holds others too."""
    is_first: bool = True
    """Whether the attempt is the record's first: its call alone does the work that is due behind the record."""


@dataclass(eq=False, slots=True)
class PendingCommit:
    """One call of `commit` on its way. Written under the log's lock; its own thread may look for the answer at any
    time.
    """

    plan: Plan
    transaction: Transaction | None
    staged_ms: int
    attempt: str
    is_shared: bool
    """Whether the record may hold attempts of others too."""
    failures: int = 0
    """Puts that failed and left nothing to be seen."""
    unanswered: int = 0
    """Puts that another call made, and whose answer an interrupt of its thread took away."""
    conflicts: int = 0
    """Races that were lost."""
    rejections: int = 0
    failure: StorageError | None = None
    """The failure of the newest put."""
    landed: CommitResult | None = None
    """The outcome of the attempt by the log's newest state; it counts once the record is durable."""
    outcome: CommitResult | None = None
    error: BaseException | None = None
    is_foreign: bool = False
    """Whether it is another process's, which was offered to this one."""
    started_ms: int | None = None
    """Boot time at which a call of this process came; None before."""
    ready: threading.Event | None = None
    """Set when there is an answer, or nobody leads; only of a call that found another at work."""

    @property
    def is_done(self) -> bool:
        return self.outcome is not None or self.error is not None

    @property
    def tries(self) -> int:
        return self.failures + self.conflicts

    @property
    def may_be_in_flight(self) -> bool:
        """Whether a request that was given up may still store the attempt."""
        return self.failures + self.unanswered > 0

    @property
    def is_rejected_by_store(self) -> bool:
        """Whether the store refused each put: the record is not there, and no request that could put it is under
        way.
        """
        return self.rejections == self.failures + self.unanswered

    @property
    def retry_delay_ms(self) -> float:
        """The time to wait for before the next try, without its jitter."""
        if not self.failures:
            return _BACKOFF_MS * min(self.conflicts, 20) / 5
        has_failed = self.failure is not None and not isinstance(self.failure, ObjectExistsError)
        return min(_BACKOFF_MS_MAX, _BACKOFF_MS * 2.0 ** (self.failures if has_failed else min(self.conflicts, 6)))


@dataclass(slots=True)
class CommitQueue:
    """The calls of `commit` that are under way, in the order in which they came.

    A thread adds and takes out its own call at any time; one that is interrupted in between leaves a call that is done.
    """

    _by_attempt: dict[str, PendingCommit] = field(default_factory=dict)
    is_led: bool = False
    """Whether one of them commits for all just now."""
    _last_group_size: int = 1
    """Calls that were under way when the newest leader was done: their threads may be back at once."""
    _followers_ready: threading.Event = field(default_factory=new_event)

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._by_attempt

    def __len__(self) -> int:
        return len(self._by_attempt)

    def add(self, call: PendingCommit) -> None:
        self._by_attempt[call.attempt] = call
        call.started_ms = _boot_ms()
        if 1 < self._last_group_size <= len(self._by_attempt):
            self._followers_ready.set()

    def remove(self, call: PendingCommit) -> None:
        self._by_attempt.pop(call.attempt, None)
        if call.started_ms is not None and not call.is_foreign:
            done = call.outcome
            wrote = done is not None and done.state is not done.before
            busy_ms = _boot_ms() - call.started_ms
            COMMITS.note(wrote=wrote, failed=done is None, conflicts=call.conflicts, busy_ms=busy_ms)
        if not call.is_done:
            self.wake()  # it may have been the one to lead

    def wait(self, call: PendingCommit) -> bool:
        """Wait while another call leads, until this one is to lead, or has an answer: returns which.

        Who waits for the log's lock instead gets it long after the answer, and is not back in time for the next record.
        """
        if self.is_led:
            call.ready = call.ready or new_event()
            if self.is_led and not call.is_done:  # type: ignore[redundant-expr]  # others change it meanwhile
                call.ready.wait(FOLLOWER_WAIT_S_MAX)
                call.ready.clear()
        return call.is_done

    def wait_for_followers(self, leader: PendingCommit) -> None:
        """Wait a moment until as many calls are under way as when the leader before was done.

        The threads that it answered stage their next rows meanwhile. Without this the first one back leads alone, the
        others wait for its fsyncs, and two threads write as many records as they have batches. A call that was alone
        waits for nobody; where nobody comes, only the first call behind it waits.
        """
        if self._last_group_size > 1 and leader.is_shared:
            self._drop_answered()
            self._followers_ready.clear()
            if len(self._by_attempt) < self._last_group_size:
                self._followers_ready.wait(GROUP_WAIT_S_MAX)

    def note_group_size(self) -> None:
        """Note how many calls are under way, those that the leader has just answered included."""
        self._last_group_size = len(self._by_attempt)

    def wake(self) -> None:
        """Wake all calls that have an answer, and the first of the others, which may lead."""
        may_lead = True
        for call in list(self._by_attempt.values()):
            if call.ready is not None and (call.is_done or may_lead):
                may_lead = may_lead and call.is_done
                call.ready.set()

    def rename(self, call: PendingCommit, attempt: str) -> None:
        """Make the call a new attempt. It is under one of the two names at each moment."""
        before = call.attempt
        self._by_attempt[attempt] = call
        call.attempt = attempt
        self._by_attempt.pop(before, None)

    def landed(self, outcomes: Mapping[str, CommitResult]) -> None:
        """Note the outcomes of attempts whose record is in the log, before the log's state goes past it."""
        for attempt, outcome in outcomes.items():
            if (call := self._by_attempt.get(attempt)) is not None:
                call.landed = outcome

    def eligible_for(self, leader: PendingCommit) -> list[PendingCommit]:
        """Return the calls that the leader may commit, itself first."""
        self._drop_answered()
        queued = list(self._by_attempt.values()) if leader.is_shared else []
        calls = [leader, *(call for call in queued if call is not leader and call.is_shared)]
        return [call for call in calls if not call.is_done]

    def fail_unresolved(self, where: str) -> None:
        """Give up the calls whose attempt may be among records that were deleted unread.

        A transaction goes on: the state at the checkpoint tells whether it is stored.
        """
        for call in list(self._by_attempt.values()):
            may_be_stored = call.is_foreign or (call.may_be_in_flight and not call.is_rejected_by_store)
            if may_be_stored and call.transaction is None and call.landed is None and not call.is_done:
                call.error = CommitStateUnknownError(
                    f"commit to {where} may be stored, and the log's records since then are deleted; look for attempt "
                    f"{call.attempt} in $commits, or for its rows, before writing them again",
                )

    def _drop_answered(self) -> None:
        for attempt, call in list(self._by_attempt.items()):
            if call.is_done or call.attempt != attempt:
                self._by_attempt.pop(attempt, None)


def error_for_attempt(error: E, named: str, attempt: str) -> E:
    """Return an ``error`` about the attempt ``named`` as the call with ``attempt`` gets it: each thread raises an
    object of its own.
    """
    if named == attempt:
        return error
    own = type(error)(str(error).replace(named, attempt), condition=error.condition)
    own.__cause__ = error.__cause__
    return own
