"""The identity of a writer over restarts: an id of which one writer at a time may write, and the last sequence stored.

A producer's batches are transactions: the version is the sequence of the batch's last rows. So whatever is at or below
the stored version is stored, wherever batches were cut. Versions alone would not do where two writers have the id: both
may send the rows behind the stored version, cut at other places. So each writer first takes the next *epoch*, which is
the version of a transaction beside the producer's own, and its rows may follow no state with another epoch.
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
"""Ends the application id under which a producer's epoch is stored."""
CLAIMS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer id in the hands of one writer."""

    producer_id: str
    epoch: int
    stored_sequence: int | None
    """The last sequence that earlier writers of the id stored; nothing of theirs can follow."""

    def transaction(self, sequence: int) -> Transaction:
        return Transaction(self.producer_id, sequence)

    def require_newest(self, state: TableState) -> None:
        """Raise `ProducerFencedError` where another writer took the id."""
        if find_stored_version(state.transactions, state.past_transactions, _epoch_id(self.producer_id)) != self.epoch:
            raise ProducerFencedError(
                f"producer {self.producer_id!r} of {state.name}: a newer writer has this id. The rows of this batch "
                "are stored only if the newer writer's last_sequence says so; end this one, and give each writer that "
                "runs beside others an id of its own"
            )


def take_over(table: TableHandle, producer_id: str) -> Producer:
    """Take a producer id from the writers that had it. **Commit point:** the record with the next epoch.

    From there on no row of an earlier writer is added. A crash before it changes nothing, one after it leaves an epoch
    that the next writer follows.

    Raises `InvalidOptionError` for an id that cannot be, `TransactionConflictError` for that of a streaming query.
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
