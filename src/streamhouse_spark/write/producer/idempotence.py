"""Idempotent producer: at most one live writer per producer id, and the last sequence that was stored.

Each batch of a producer is a transaction whose version is the sequence of its last rows. So all rows at or below the
stored version are stored, wherever batches were cut. That alone does not suffice if two writers have the same id,
because both may send rows after the stored version, cut differently. So each writer first takes the next *epoch*, a
transaction of its own, and its batches are rejected after a record with a later epoch (fencing).
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.errors import CommitConflictError, ProducerFencedError, TransactionConflictError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Append
from streamhouse_spark.log.commits.idempotency import require_not_dropped
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.transactions import find_stored_version, name_sum

EPOCH_SUFFIX: Final = "/epoch"
"""Suffix of the application id under which the epoch of a producer is stored."""
CLAIMS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer id that one writer holds."""

    producer_id: str
    epoch: int
    stored_sequence: int | None
    """The last sequence that earlier writers of the id stored; they are fenced and cannot store more."""

    def transaction(self, sequence: int) -> Transaction:
        return Transaction(self.producer_id, sequence)

    def require_newest(self, state: TableState) -> None:
        """Raise `ProducerFencedError` if a later writer took the id."""
        if find_stored_version(state.transactions, state.past_transactions, _epoch_id(self.producer_id)) != self.epoch:
            raise ProducerFencedError(
                f"producer {self.producer_id!r} of {state.name}: a newer writer has this id. The rows of this batch "
                "are stored only if the newer writer's last_sequence says so; end this one, and give each writer that "
                "runs beside others an id of its own"
            )


def take_over(table: TableHandle, producer_id: str) -> Producer:
    """Fence the earlier writers of a producer id and return the new epoch. **Commit point:** the record with the epoch.

    After it no row of an earlier writer is stored. A crash after it leaves an unused epoch, which is harmless.

    Raises `InvalidOptionError` for an invalid id, `TransactionConflictError` for the id of a streaming query.
    """
    epoch_id = _epoch_id(Transaction(producer_id, 0).app_id)
    for _ in range(CLAIMS_MAX):
        state = table.refresh()
        _require_producer(state, producer_id)
        epoch = (find_stored_version(state.transactions, state.past_transactions, epoch_id) or 0) + 1
        committed = table.log.commit(_plan_epoch, transaction=Transaction(epoch_id, epoch), is_shared=True)
        if committed.duplicate_of is None:
            state = committed.state
            stored = find_stored_version(state.transactions, state.past_transactions, producer_id)
            return Producer(producer_id, epoch, stored)
    raise CommitConflictError(
        f"producer {producer_id!r} of {table.name} was taken by {CLAIMS_MAX} other writers, one after the other; "
        "nothing was written, give each writer an id of its own"
    )


def _plan_epoch(state: TableState, _time_ms: int) -> tuple[Append]:
    require_not_dropped(state)
    return (Append((), ()),)


def _epoch_id(producer_id: str) -> str:
    return producer_id + EPOCH_SUFFIX


def _require_producer(state: TableState, producer_id: str) -> None:
    entry, past = state.transactions.get(producer_id), state.past_transactions.get(name_sum(producer_id))
    if (entry is not None and (entry.owner is not None or entry.batch is not None)) or (
        entry is None and past is not None and past.owner_sum
    ):
        raise TransactionConflictError(
            f"producer id {producer_id!r} of {state.name} is the application id of a streaming query; choose another"
        )
