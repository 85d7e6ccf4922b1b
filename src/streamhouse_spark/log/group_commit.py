"""Group commit: concurrent commits of one process share one commit record.

Threads that commit to the same table enqueue a `PendingCommit` in the log's `CommitQueue`. The first thread becomes the
leader. It validates every eligible request against the state, builds one record for all of them with a `RecordBuilder`,
and sets each request's result. The other threads are followers and wait for their results. `CommitLog` runs the
protocol; this module holds its data structures, which do no I/O.

Invariants:

1. The requests of one record are validated in order, each against the state that the requests before it leave.
2. A rejected request fails alone. It is never part of the record, and never causes another request to fail.
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
"""A leader waits this long for the threads of the last record to enqueue new requests. Its fsyncs take longer."""
MEMBERS_MAX = 256
"""Requests in one record."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of a record with several requests. One request alone may have more."""
_BACKOFF_MS = 5.0
_BACKOFF_MS_MAX = 2_000.0
_boot_ms = SystemClock().boot_ms
"""The machine's clock measures the durations of metrics, also in a simulated world."""
E = TypeVar("E", bound=StreamhouseError)

Plan = Callable[[TableState, int], Sequence[Action]]
"""Returns the actions to commit on top of a state, given the time of the record. It is called again after each lost
race, and raises to reject the commit. An empty result commits nothing.
"""
RequireStored = Callable[[TableState, Sequence[Action], int], None]
"""Raises if files that the actions add may have been deleted, given the store time at which staging started."""


class DependentPlan(ABC):
    """A `Plan` whose actions depend on the requests before it in the same record."""

    @abstractmethod
    def follow(self, before: TableState, earlier: Sequence[Plan]) -> None:
        """Receive the stored state and the earlier plans of the record. Called before each call of the plan.

        Raises if this plan cannot share a record with them.
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

    @property
    def wrote(self) -> bool:
        return self.state is not self.before


@dataclass(eq=False, slots=True)
class PendingCommit:
    """One call of `CommitLog.commit`. Only a leader, which holds the log's lock, changes it."""

    plan: Plan
    transaction: Transaction | None
    staged_ms: int
    attempt: str
    is_shared: bool
    """Whether the record may hold other requests."""
    failures: int = 0
    """Puts that failed and left no record."""
    unanswered: int = 0
    """Puts whose outcome is unknown because the leader's thread was interrupted."""
    conflicts: int = 0
    """Lost races."""
    has_unchecked_race: bool = False
    """Whether the record that won the last race was not yet compared with the low watermark. If it is below, it may be
    void, and this request's own record may have had that number before it was deleted.
    """
    rejections: int = 0
    failure: StorageError | None = None
    """The failure of the last put."""
    stored_result: CommitResult | None = None
    """The result of the attempt if the log has its record. It becomes `result` once the record is durable."""
    result: CommitResult | None = None
    error: BaseException | None = None
    started_ms: int | None = None
    """Boot time at which the request was enqueued; None before."""
    ready: threading.Event | None = None
    """Set when the request is done or its thread may lead. Created only by a follower."""

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None

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
    """The pending requests of one log, in order of arrival.

    Each thread adds and removes its own request. If the thread is interrupted before it removes a finished request, the
    next leader drops the request.
    """

    _by_attempt: dict[str, PendingCommit] = field(default_factory=dict)
    is_led: bool = False
    """Whether a thread leads."""
    _last_group_size: int = 1
    """Requests in the queue when the last leader finished. Their threads may soon enqueue new requests."""
    _followers_ready: threading.Event = field(default_factory=new_event)

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._by_attempt

    def __len__(self) -> int:
        return len(self._by_attempt)

    def add(self, request: PendingCommit) -> None:
        self._by_attempt[request.attempt] = request
        request.started_ms = _boot_ms()
        if 1 < self._last_group_size <= len(self._by_attempt):
            self._followers_ready.set()

    def remove(self, request: PendingCommit) -> None:
        self._by_attempt.pop(request.attempt, None)
        if request.started_ms is not None:
            result, busy_ms = request.result, _boot_ms() - request.started_ms
            wrote = result is not None and result.wrote
            COMMITS.note(wrote=wrote, failed=result is None, conflicts=request.conflicts, busy_ms=busy_ms)
        if not request.is_done:
            self.wake()  # the next thread may lead

    def wait(self, request: PendingCommit) -> bool:
        """Block while another thread leads. Return whether the request is done; if not, its thread may lead.

        A thread that blocked on the log's lock would acquire it long after its request is done. Its next request would
        then miss the next record.
        """
        if self.is_led:
            request.ready = request.ready or new_event()
            if self.is_led and not request.is_done:  # type: ignore[redundant-expr]  # changed by other threads
                request.ready.wait(FOLLOWER_WAIT_S_MAX)
                request.ready.clear()
        return request.is_done

    def wait_for_followers(self, leader: PendingCommit) -> None:
        """Block for up to `GROUP_WAIT_S_MAX` until as many requests are queued as in the last group.

        The threads of the last group are staging their next rows. Without this wait, the first thread to return leads
        alone while the other threads wait for its fsyncs, and two threads write one record per batch. A leader whose
        last group was a single request does not wait. Four threads write 1.7 times as many batches with the wait.
        """
        if self._last_group_size > 1 and leader.is_shared:
            self._drop_answered()
            self._followers_ready.clear()
            if len(self._by_attempt) < self._last_group_size:
                self._followers_ready.wait(GROUP_WAIT_S_MAX)

    def note_group_size(self) -> None:
        """Record the number of queued requests, including the finished requests of the group."""
        self._last_group_size = len(self._by_attempt)

    def wake(self) -> None:
        """Wake every follower whose request is done, and the first follower whose request is pending: it may lead."""
        may_lead = True
        for request in list(self._by_attempt.values()):
            if request.ready is not None and (request.is_done or may_lead):
                may_lead = may_lead and request.is_done
                request.ready.set()

    def renew_attempt(self, request: PendingCommit, attempt: str) -> None:
        """Give the request a new attempt id. Meanwhile the queue always contains the request under an id."""
        before = request.attempt
        self._by_attempt[attempt] = request
        request.attempt = attempt
        self._by_attempt.pop(before, None)

    def set_stored_results(self, results: Mapping[str, CommitResult]) -> None:
        """Set the results of attempts that are in the log. Called before the log's state includes their records."""
        for attempt, result in results.items():
            if (request := self._by_attempt.get(attempt)) is not None:
                request.stored_result = result

    def mark_races_checked(self) -> None:
        """Mark the records that were read back after lost races as compared with the low watermark."""
        for request in list(self._by_attempt.values()):
            request.has_unchecked_race = False

    def eligible_for(self, leader: PendingCommit) -> list[PendingCommit]:
        """Return the requests that the leader may commit, starting with its own."""
        self._drop_answered()
        queued = list(self._by_attempt.values()) if leader.is_shared else []
        requests = [leader, *(request for request in queued if request is not leader and request.is_shared)]
        return [request for request in requests if not request.is_done]

    def fail_unresolved(self, where: str) -> None:
        """Fail the requests whose attempts may be in records that were deleted before this process read them.

        A request with a transaction continues: the state of the checkpoint shows whether the transaction is stored.
        """
        for request in list(self._by_attempt.values()):
            is_in_flight = request.may_be_in_flight and not request.is_rejected_by_store
            may_be_stored = is_in_flight or request.has_unchecked_race
            if may_be_stored and request.transaction is None and request.stored_result is None and not request.is_done:
                request.error = CommitStateUnknownError(
                    f"commit to {where} may be stored, and the records that show its outcome have expired; search "
                    f"$commits for attempt {request.attempt}, or the table for its rows, before writing them again",
                )

    def _drop_answered(self) -> None:
        for attempt, request in list(self._by_attempt.items()):
            if request.is_done or request.attempt != attempt:
                self._by_attempt.pop(attempt, None)


def error_for_attempt(error: E, named: str, attempt: str) -> E:
    """Return a copy of an ``error`` about the attempt ``named`` that names ``attempt`` instead.

    Threads must not share an exception object.
    """
    if named == attempt:
        return error
    own = type(error)(str(error).replace(named, attempt), condition=error.condition)
    own.__cause__ = error.__cause__
    return own


class RecordBuilder:
    """Builds one commit record from the requests that are added to it. ``blank`` is the record without actions."""

    def __init__(self, before: TableState, blank: Record) -> None:
        self._blank, self.before = blank, before
        self._state, self._num_folded = before, 0
        self.requests: list[PendingCommit] = []
        self.body = RecordBody()
        self._parts: list[CommitAttempt] = []

    @property
    def state(self) -> TableState:
        """The state after the added requests, with the version of `before`.

        Computed on demand: a record of one request never needs it.
        """
        for part in self._parts[self._num_folded :]:
            self._state = with_attempt(self._state, part, self._blank)
        self._num_folded = len(self._parts)
        return self._state

    @property
    def is_full(self) -> bool:
        return len(self.requests) >= MEMBERS_MAX

    def plan(self, request: PendingCommit) -> Sequence[Action]:
        """Return the actions of the request on top of the added requests."""
        if isinstance(request.plan, DependentPlan):
            request.plan.follow(self.before, [earlier.plan for earlier in self.requests])
        return request.plan(self.state, self._blank.time_ms)

    def try_add(self, request: PendingCommit, require_stored: RequireStored) -> bool:
        """Add a new request to a record that is built on a possibly stale state.

        Returns False if the request would be rejected or need no record: then only the latest state can decide it.
        """
        if request.stored_result is not None or request.tries or request.unanswered:
            return False
        try:
            if find_stored_transaction(self.state, request.transaction) is not None:
                return False
            actions = tuple(self.plan(request))
            require_actions_allowed(self.state, actions, request.transaction)
            require_stored(self.before, actions, request.staged_ms)
            return bool(actions) and self.add(request, actions)
        except Exception:  # noqa: BLE001 - the request is validated again on the latest state
            return False

    def add(self, request: PendingCommit, actions: tuple[Action, ...]) -> bool:
        """Add a request, unless the record would exceed `GROUP_BYTES_MAX`. Return whether it was added."""
        bytes_max = GROUP_BYTES_MAX if self.requests else None
        if not self.body.add(actions, bytes_max=bytes_max):
            return False
        self.requests.append(request)
        self._parts.append(CommitAttempt(request.attempt, actions, request.transaction))
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
    """Yield each attempt id of a stored record with its result. ``state`` is the state after the record."""
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
    """Lost races, after which the call retried."""
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
