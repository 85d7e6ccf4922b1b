"""Builds one commit record of several requests. Pure: each request is planned on the state that earlier ones leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.group_commit import CommitResult, DependentPlan, PendingCommit
from streamhouse_spark.log.commits.idempotency import find_stored_transaction, require_actions_allowed
from streamhouse_spark.log.commits.record import CommitAttempt, GroupMember, Record, RecordBody
from streamhouse_spark.log.commits.state import TableState, with_attempt

MEMBERS_MAX = 256
"""Requests in one record."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of a record with several requests. One request alone may have more."""
RequireStored = Callable[[TableState, Sequence[Action], int], None]
"""Raises if files that actions add, staged since a time, may have been deleted."""


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


def outcomes(before: TableState, state: TableState, record: Record) -> Iterator[tuple[str, CommitResult]]:
    """Return each attempt id of a stored record with its result. ``state`` is the state after the record."""
    if not record.members:
        yield record.attempt, CommitResult(before, state)
        return
    within = before
    for part in record.attempts:
        start, within = within, with_attempt(within, part, record)
        yield part.attempt, CommitResult(before, state, ends=(start.ends, within.ends), is_first=start is before)
