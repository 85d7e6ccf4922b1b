"""Group commit: concurrent commits of one process share one commit record.

Threads that commit to the same table enqueue a `PendingCommit` in the log's `CommitQueue`. The first of them becomes
the leader. It validates every eligible request against the state, builds one record for all of them with a
`RecordBuilder`, and sets each request's result. The other threads are followers and wait for their results. `CommitLog`
runs the protocol; this module holds its data structures, which do no I/O.

Invariants:

1. The requests of one record are validated in order, each against the state that the requests before it leave.
2. A rejected request fails alone. It is never part of the record, and never the reason why another request fails.
3. A request is in at most one stored record. Its attempt id finds it there, even if the leader was interrupted.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.core.concurrency import new_event, new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.errors import CommitStateUnknownError, ObjectExistsError, StorageError, StreamhouseError
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.commit_validation import find_stored_transaction, require_actions_allowed
from streamhouse_spark.log.record import CommitAttempt, GroupMember, Record, RecordBody
from streamhouse_spark.log.state import TableState, with_attempt
from streamhouse_spark.log.transactions import TransactionEntry

FOLLOWER_WAIT_S_MAX = 1.0
"""A follower that waited this long tries to lead: the leader may have been interrupted before it woke the follower."""
GROUP_WAIT_S_MAX = 0.001
"""A leader waits this long for new requests of the threads that were in the last record. Its fsyncs take longer."""
MEMBERS_MAX = 256
"""Requests in one record."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of a record with several requests. One request alone may have more."""
_BACKOFF_MS = 5.0
_BACKOFF_MS_MAX = 2_000.0
_boot_ms = SystemClock().boot_ms
"""Durations in metrics are measured by the machine's clock, also in a simulated world."""
E = TypeVar("E", bound=StreamhouseError)

Plan = Callable[[TableState, int], Sequence[Action]]
"""Returns the actions to commit on top of a state, given the time of the record. It is called again after each lost
race, and raises to reject the commit. An empty result commits nothing.
"""
RequireStored = Callable[[TableState, Sequence[Action], int], None]
"""Raises if files that actions add, staged since a time, may have been deleted."""


class DependentPlan(ABC):
    """A `Plan` whose actions depend on the requests before it in the same record."""

    @abstractmethod
    def follow(self, before: TableState, earlier: Sequence[Plan]) -> None:
        """Take the stored state and the plans before this one in the record. Called before each call of the plan.

        Raises if this plan cannot be in one record with them.
        """

    @abstractmethod
    def __call__(self, state: TableState, time_ms: int) -> Sequence[Action]:
        """See `Plan`."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of `CommitLog.commit`."""

    before: TableState
    state: TableState
    duplicate_of: TransactionEntry | None = None
    """The entry of the transaction, if it was stored by an earlier commit. Nothing was written then."""
    ends: tuple[Mapping[int, int], Mapping[int, int]] | None = None
    """End offsets of the buckets before and after this request, if the record holds several requests."""
    is_first: bool = True
    """Whether the request is the first of its record. Only its thread does the post-commit work of the record."""


@dataclass(eq=False, slots=True)
class PendingCommit:
    """One call of `CommitLog.commit`. The leader writes it under the log's lock; its own thread reads it without."""

    plan: Plan
    transaction: Transaction | None
    staged_ms: int
    attempt: str
    is_shared: bool
    """Whether the record may hold other requests too."""
    failures: int = 0
    """Puts that failed and left no record."""
    unanswered: int = 0
    """Puts whose outcome is unknown because the leader's thread was interrupted."""
    conflicts: int = 0
    """Lost races."""
    has_unchecked_race: bool = False
    """Whether the record that won the last race was not yet compared with the low watermark. Below the watermark it may
    be a void record that took the number of this request's own, deleted record.
    """
    rejections: int = 0
    failure: StorageError | None = None
    """The failure of the last put."""
    landed: CommitResult | None = None
    """The result of the attempt if a record in the log has it. It becomes `outcome` once the record is durable."""
    outcome: CommitResult | None = None
    error: BaseException | None = None
    started_ms: int | None = None
    """Boot time at which the request was enqueued; None before."""
    ready: threading.Event | None = None
    """Set when the request is done or its thread may lead. Created only by a follower."""

    @property
    def is_done(self) -> bool:
        return self.outcome is not None or self.error is not None

    @property
    def tries(self) -> int:
        return self.failures + self.conflicts

    @property
    def may_be_in_flight(self) -> bool:
        """Whether a request to the store that timed out may still store the record."""
        return self.failures + self.unanswered > 0

    @property
    def is_rejected_by_store(self) -> bool:
        """Whether the store rejected every put: the record is not stored, and no request in flight can store it."""
        return self.rejections == self.failures + self.unanswered

    @property
    def retry_delay_ms(self) -> float:
        """The delay before the next attempt, without jitter."""
        if not self.failures:
            return _BACKOFF_MS * min(self.conflicts, 20) / 5
        has_failed = self.failure is not None and not isinstance(self.failure, ObjectExistsError)
        return min(_BACKOFF_MS_MAX, _BACKOFF_MS * 2.0 ** (self.failures if has_failed else min(self.conflicts, 6)))


@dataclass(slots=True)
class CommitQueue:
    """The requests of one log that are not done, in order of arrival.

    Each thread adds and removes its own request. An interrupt between the two leaves a request that is done; the next
    leader drops it.
    """

    _by_attempt: dict[str, PendingCommit] = field(default_factory=dict)
    is_led: bool = False
    """Whether a leader is at work."""
    _last_group_size: int = 1
    """Requests in the queue when the last leader finished: their threads may be back with new ones at once."""
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
        if call.started_ms is not None:
            done = call.outcome
            wrote = done is not None and done.state is not done.before
            busy_ms = _boot_ms() - call.started_ms
            COMMITS.note(wrote=wrote, failed=done is None, conflicts=call.conflicts, busy_ms=busy_ms)
        if not call.is_done:
            self.wake()  # the next thread may lead

    def wait(self, call: PendingCommit) -> bool:
        """Block while another thread leads. Return whether the request is done; if not, its thread may lead.

        A thread that blocked on the log's lock instead would get it long after its request was done, too late to be
        part of the next record.
        """
        if self.is_led:
            call.ready = call.ready or new_event()
            if self.is_led and not call.is_done:  # type: ignore[redundant-expr]  # changed by other threads
                call.ready.wait(FOLLOWER_WAIT_S_MAX)
                call.ready.clear()
        return call.is_done

    def wait_for_followers(self, leader: PendingCommit) -> None:
        """Block for up to `GROUP_WAIT_S_MAX` until as many requests are queued as in the last group.

        The threads that the last leader answered are staging their next rows. Without this wait the first thread to
        return leads alone while the others wait for its fsyncs, so that two threads write one record per batch. A
        thread that was alone does not wait. Four threads write 1.7 times as many batches with the wait.
        """
        if self._last_group_size > 1 and leader.is_shared:
            self._drop_answered()
            self._followers_ready.clear()
            if len(self._by_attempt) < self._last_group_size:
                self._followers_ready.wait(GROUP_WAIT_S_MAX)

    def note_group_size(self) -> None:
        """Note the number of queued requests, including those that the leader has just answered."""
        self._last_group_size = len(self._by_attempt)

    def wake(self) -> None:
        """Wake every follower that is done, and the first one that is not, which may lead."""
        may_lead = True
        for call in list(self._by_attempt.values()):
            if call.ready is not None and (call.is_done or may_lead):
                may_lead = may_lead and call.is_done
                call.ready.set()

    def rename(self, call: PendingCommit, attempt: str) -> None:
        """Give the request a new attempt id. The queue contains it under one of the two ids at every moment."""
        before = call.attempt
        self._by_attempt[attempt] = call
        call.attempt = attempt
        self._by_attempt.pop(before, None)

    def landed(self, outcomes: Mapping[str, CommitResult]) -> None:
        """Set the results of attempts that are in the log. Must be called before the log's state includes them."""
        for attempt, outcome in outcomes.items():
            if (call := self._by_attempt.get(attempt)) is not None:
                call.landed = outcome

    def confirm_races(self) -> None:
        """Note that the low watermark permits what was read back after lost races."""
        for call in list(self._by_attempt.values()):
            call.has_unchecked_race = False

    def eligible_for(self, leader: PendingCommit) -> list[PendingCommit]:
        """Return the requests that the leader may commit, its own first."""
        self._drop_answered()
        queued = list(self._by_attempt.values()) if leader.is_shared else []
        calls = [leader, *(call for call in queued if call is not leader and call.is_shared)]
        return [call for call in calls if not call.is_done]

    def fail_unresolved(self, where: str) -> None:
        """Fail the requests whose attempt may be in records that were deleted before this process read them.

        A request with a transaction continues: the state of the checkpoint shows whether it is stored.
        """
        for call in list(self._by_attempt.values()):
            is_in_flight = call.may_be_in_flight and not call.is_rejected_by_store
            may_be_stored = is_in_flight or call.has_unchecked_race
            if may_be_stored and call.transaction is None and call.landed is None and not call.is_done:
                call.error = CommitStateUnknownError(
                    f"commit to {where} may be stored, and the records that show its outcome have expired; look for "
                    f"attempt {call.attempt} in $commits, or for its rows, before writing them again",
                )

    def _drop_answered(self) -> None:
        for attempt, call in list(self._by_attempt.items()):
            if call.is_done or call.attempt != attempt:
                self._by_attempt.pop(attempt, None)


def error_for_attempt(error: E, named: str, attempt: str) -> E:
    """Return a copy of an ``error`` about the attempt ``named`` that names ``attempt``: threads must not share an
    exception object.
    """
    if named == attempt:
        return error
    own = type(error)(str(error).replace(named, attempt), condition=error.condition)
    own.__cause__ = error.__cause__
    return own


class RecordBuilder:
    """Builds one commit record of the requests that are added to it. ``blank`` is the record without actions."""

    def __init__(self, before: TableState, blank: Record) -> None:
        self._blank, self.before = blank, before
        self._state, self._num_folded = before, 0
        self.members: list[PendingCommit] = []
        self.body = RecordBody()
        self._parts: list[CommitAttempt] = []

    @property
    def state(self) -> TableState:
        """The state after the requests so far, with the version of `before`. Computed on demand: a record of one
        request never needs it.
        """
        for part in self._parts[self._num_folded :]:
            self._state = with_attempt(self._state, part, self._blank)
        self._num_folded = len(self._parts)
        return self._state

    @property
    def is_full(self) -> bool:
        return len(self.members) >= MEMBERS_MAX

    def plan(self, call: PendingCommit) -> Sequence[Action]:
        """Return the actions of the request on top of the requests so far."""
        if isinstance(call.plan, DependentPlan):
            call.plan.follow(self.before, [member.plan for member in self.members])
        return call.plan(self.state, self._blank.time_ms)

    def try_add(self, call: PendingCommit, require_stored: RequireStored) -> bool:
        """Add a new request to a record on a possibly stale state.

        Returns False if that state would reject the request or need no record for it: the latest state decides then.
        """
        if call.landed is not None or call.tries or call.unanswered:
            return False
        try:
            if find_stored_transaction(self.state, call.transaction) is not None:
                return False
            actions = tuple(self.plan(call))
            require_actions_allowed(self.state, actions, call.transaction)
            require_stored(self.before, actions, call.staged_ms)
            return bool(actions) and self.add(call, actions)
        except Exception:  # noqa: BLE001 - the request is validated again on the latest state
            return False

    def add(self, call: PendingCommit, actions: tuple[Action, ...]) -> bool:
        """Add a request, unless the record would exceed `GROUP_BYTES_MAX`. Return whether it was added."""
        bytes_max = GROUP_BYTES_MAX if self.members else None
        if not self.body.add(actions, bytes_max=bytes_max):
            return False
        self.members.append(call)
        self._parts.append(CommitAttempt(call.attempt, actions, call.transaction))
        return True

    def record(self, attempt: str) -> Record:
        """Return the record. A record of several requests has the attempt id ``attempt``."""
        if len(self._parts) == 1:
            (part,) = self._parts
            return replace(self._blank, attempt=part.attempt, actions=part.actions, transaction=part.transaction)
        actions = tuple(action for part in self._parts for action in part.actions)
        members = tuple(GroupMember(part.attempt, len(part.actions), part.transaction) for part in self._parts)
        return replace(self._blank, attempt=attempt, actions=actions, members=members)


def results_of_record(before: TableState, state: TableState, record: Record) -> Iterator[tuple[str, CommitResult]]:
    """Return each attempt id of a stored record with its result. ``state`` is the state after the record."""
    if not record.members:
        yield record.attempt, CommitResult(before, state)
        return
    within = before
    for part in record.attempts:
        start, within = within, with_attempt(within, part, record)
        yield part.attempt, CommitResult(before, state, ends=(start.ends, within.ends), is_first=start is before)


# -- metrics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitCounts:
    """The commits of this process, for metrics."""

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
