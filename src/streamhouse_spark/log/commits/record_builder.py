"""The attempts of one record, judged one after another: each on the state that those before it leave. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.group_commit import CommitResult, DependentPlan, PendingCommit
from streamhouse_spark.log.commits.idempotency import find_stored_transaction, require_actions_allowed
from streamhouse_spark.log.commits.record import CommitAttempt, GroupMember, Record, RecordBody
from streamhouse_spark.log.commits.state import TableState, with_attempt

MEMBERS_MAX = 256
"""Attempts in one record."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of the attempts in one record, if it is not one alone: a caller waits for its neighbours' bytes too."""
RequireStored = Callable[[TableState, Sequence[Action], int], None]
"""Raises where files that actions name, staged since a time, may be gone."""


class RecordBuilder:
    """The attempts that go into one record, and the record of them."""

    def __init__(self, before: TableState, blank: Record) -> None:
        self._blank, self.before = blank, before
        self._state, self._num_folded = before, 0
        self.members: list[PendingCommit] = []
        self.body = RecordBody()
        self._parts: list[CommitAttempt] = []

    @property
    def state(self) -> TableState:
        """The state behind the attempts so far, with the version of the record before. One alone never asks for it."""
        for part in self._parts[self._num_folded :]:
            self._state = with_attempt(self._state, part, self._blank)
        self._num_folded = len(self._parts)
        return self._state

    @property
    def is_full(self) -> bool:
        return len(self.members) >= MEMBERS_MAX

    def plan(self, call: PendingCommit) -> Sequence[Action]:
        """Return the actions of ``call`` behind the attempts so far."""
        if isinstance(call.plan, DependentPlan):
            call.plan.follow(self.before, [member.plan for member in self.members])
        return call.plan(self.state, self._blank.time_ms)

    def try_add(self, call: PendingCommit, require_stored: RequireStored) -> bool:
        """Add an attempt of ``call`` to a group on a state that may be old, unless the call would be decided by it.

        Whatever prevents it is judged once more, on the log's newest state.
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
        except Exception:  # noqa: BLE001 - as above
            return False

    def add(self, call: PendingCommit, actions: tuple[Action, ...]) -> bool:
        """Add an attempt of ``call``, unless the record would hold too much."""
        bytes_max = GROUP_BYTES_MAX if self.members else None
        if not self.body.add(actions, bytes_max=bytes_max):
            return False
        self.members.append(call)
        self._parts.append(CommitAttempt(call.attempt, actions, call.transaction))
        return True

    def record(self, attempt: str) -> Record:
        """Return the record of all attempts; of one alone it is that one's, else ``attempt`` names this choice."""
        if len(self._parts) == 1:
            (part,) = self._parts
            return replace(self._blank, attempt=part.attempt, actions=part.actions, transaction=part.transaction)
        actions = tuple(action for part in self._parts for action in part.actions)
        members = tuple(GroupMember(part.attempt, len(part.actions), part.transaction) for part in self._parts)
        return replace(self._blank, attempt=attempt, actions=actions, members=members)


def outcomes(before: TableState, state: TableState, record: Record) -> Iterator[tuple[str, CommitResult]]:
    """Return each attempt of a stored record with its own outcome; ``state`` is the one behind the record."""
    if not record.members:
        yield record.attempt, CommitResult(before, state)
        return
    within = before
    for part in record.attempts:
        start, within = within, with_attempt(within, part, record)
        yield part.attempt, CommitResult(before, state, ends=(start.ends, within.ends), is_first=start is before)
