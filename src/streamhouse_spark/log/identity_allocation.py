"""Allocates the numbers of a table's identity column. Each process reserves ranges and assigns their numbers to rows.

The log records how many numbers were allocated as the version of a transaction. **Commit point** of a reservation: the
one record with the next version. The reservation is rejected if another process reserved numbers after the state on
which it is based, so no number is allocated twice. Numbers of rows that are not committed are lost, so the column has
gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError
from streamhouse_spark.log.actions import Action, Append
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import find_stored_version
from streamhouse_spark.schema.identity import Identity, fill_identity_column, reject_identity_values

RANGE_MAX: Final = 1 << 16
"""Maximum size of a range that is reserved in advance."""
TRIES_MAX: Final = 1_000


class _OvertakenError(Exception):
    """Another process reserved numbers concurrently."""


class IdentityRanges:
    """The numbers that this object has reserved and not assigned yet. Thread-safe; a forked child has none.

    The first range has exactly the numbers that are needed. Each later range is up to twice as large as the range
    before. A process that writes row by row soon needs few reservations, and a process that writes once leaves no gap.
    """

    def __init__(self, log: CommitLog, identity: Identity, table: str) -> None:
        self._log = log
        self._identity = identity
        self._table = table
        self._lock = new_lock()
        self._first = self._end = self._size = 0
        reinit_after_fork(self)

    @property
    def newest(self) -> HistoryPoint | None:
        """The last known record of the log, which is not before the last reservation of this object."""
        return self._log.state.anchors.newest

    def renew_in_child(self) -> None:
        """Drop the numbers in a forked child, because the parent continues to assign them."""
        self._first = self._end = self._size = 0

    def assign_numbers(self, rows: pa.Table, *, keeps_given: bool = False) -> pa.Table:
        """Return the rows with numbers in place of missing values, in row order.

        With ``keeps_given`` rows may already have numbers. Otherwise raises `ConstraintViolatedError` for a value that
        is not allowed. Also raises it if the numbers are exhausted, and the errors of `CommitLog.commit`.
        """
        if not keeps_given:
            reject_identity_values(self._identity, rows, self._table)
        return self.fill_numbers(rows)

    def fill_numbers(self, rows: pa.Table, stays: npt.NDArray[np.bool_] | None = None) -> pa.Table:
        """Return the rows with numbers in place of missing values, except rows in ``stays``."""
        return fill_identity_column(self._identity, rows, self.take, stays)

    def take(self, count: int) -> pa.Array:
        """Return the next ``count`` numbers."""
        with self._lock:
            own = self._identity.values(self._first, min(count, self._end - self._first))
            self._first += len(own)
            if len(own) == count:
                return own
            missing = count - len(own)
            first, self._size = self._reserve(missing, max(missing, min(2 * self._size, RANGE_MAX)))
            self._first, self._end = first + missing, first + self._size
            return pa.concat_arrays([own, self._identity.values(first, missing)])

    def _reserve(self, needed: int, preferred: int) -> tuple[int, int]:
        """Reserve the next ``preferred`` numbers, or ``needed`` if no more are left. Return the first and the count."""
        for attempt in range(TRIES_MAX):
            first = count_allocated(self._log.refresh() if attempt else self._log.state, self._identity)
            self._identity.require_room(first + needed, self._table)
            count = preferred if self._identity.has_room(first + preferred) else needed
            try:
                if self._commit(first, count):
                    return first, count
            except (_OvertakenError, CommitStateUnknownError):
                continue  # if the record is stored, its numbers are a gap
        raise CommitConflictError(
            f"{self._table}: cannot reserve identity values of column '{self._identity.name}': {TRIES_MAX} attempts "
            "conflicted with concurrent writers; nothing was written, retry the write"
        )

    def _commit(self, first: int, count: int) -> bool:
        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            require_not_dropped(state)
            if count_allocated(state, self._identity) != first:
                raise _OvertakenError
            return (Append((), ()),)

        transaction = Transaction(self._identity.app_id, first + count)
        return self._log.commit(plan, transaction=transaction).duplicate_of is None


def count_allocated(state: TableState, identity: Identity) -> int:
    """Return how many numbers of the table were allocated."""
    return find_stored_version(state.transactions, state.past_transactions, identity.app_id) or 0
