"""Commits of one process that wait for a table's log at the same time, so that one of them commits for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from streamhouse_spark.core.model import Transaction
from streamhouse_spark.errors import CommitStateUnknownError, StorageError
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.record import Attempt, Member, Record
from streamhouse_spark.log.commits.state import TableState, with_attempt
from streamhouse_spark.log.commits.transactions import TransactionEntry

MEMBERS_MAX = 256
"""Attempts in one record."""

Plan = Callable[[TableState, int], Sequence[Action]]
"""Returns the actions of a record, from the newest state and the record's time. Called again after each lost race;
raises to give up. An empty result commits nothing."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of `CommitLog.commit`."""

    before: TableState
    state: TableState
    replay_of: TransactionEntry | None = None
    """Set when the transaction was stored earlier: nothing was written now, and these were its offsets."""
    ends: tuple[Mapping[int, int], Mapping[int, int]] | None = None
    """Ends of the buckets before and behind this attempt, where the record holds others too."""


@dataclass(eq=False, slots=True)
class Waiting:
    """One call of `commit` on its way. Everything here is read and written under the log's lock."""

    plan: Plan
    transaction: Transaction | None
    staged_ms: int
    attempt: str
    is_shared: bool
    """Whether the record may hold attempts of others too."""
    failures: int = 0
    """Puts that failed and left nothing to be seen."""
    conflicts: int = 0
    """Races that were lost."""
    refusals: int = 0
    failure: StorageError | None = None
    """The failure of the newest put."""
    outcome: Committed | None = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.outcome is not None or self.error is not None

    @property
    def tries(self) -> int:
        return self.failures + self.conflicts


class Group:
    """The attempts that go into one record, judged one after another: each on the state that those before it leave."""

    def __init__(self, before: TableState, record: Record) -> None:
        self._record = record
        self.state = before
        """The state behind the attempts so far, with the version of the record before."""
        self.members: list[Waiting] = []
        self._parts: list[Attempt] = []

    def add(self, waiting: Waiting, actions: tuple[Action, ...]) -> None:
        part = Attempt(waiting.attempt, actions, waiting.transaction)
        self.state = with_attempt(self.state, part, self._record)
        self.members.append(waiting)
        self._parts.append(part)

    def record(self, attempt: str) -> Record:
        """Return the record of all attempts; of one alone it is that one's, else ``attempt`` names this choice."""
        if len(self._parts) == 1:
            (part,) = self._parts
            return replace(self._record, attempt=part.attempt, actions=part.actions, transaction=part.transaction)
        actions = tuple(action for part in self._parts for action in part.actions)
        members = tuple(Member(part.attempt, len(part.actions), part.transaction) for part in self._parts)
        return replace(self._record, attempt=attempt, actions=actions, members=members)


def outcomes(before: TableState, state: TableState, record: Record) -> Iterator[tuple[str, Committed]]:
    """Return each attempt of a stored record with its own outcome; ``state`` is the one behind the record."""
    if not record.members:
        yield record.attempt, Committed(before, state)
        return
    within = before
    for part in record.attempts:
        start, within = within, with_attempt(within, part, record)
        yield part.attempt, Committed(before, state, ends=(start.ends, within.ends))


def in_doubt(error: BaseException, attempt: str) -> CommitStateUnknownError:
    """Return the error of a call whose record another call of the process put, and failed with ``error``."""
    return CommitStateUnknownError(
        f"a commit of several calls ended with {type(error).__name__}: {error}; look whether a record with attempt "
        f"{attempt} is in $commits before writing the rows again"
    )
