"""Epochs: each process that takes a name fences those that had it before, as producers and followers do.

The epoch of a name is the version of a transaction, so no two processes ever get the same one. A commit of a holder is
valid only while its epoch is the stored one.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.core.types import Transaction
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.group_commit import Plan
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import find_stored_version

CLAIMS_MAX: Final = 100


def claim_epoch(log: CommitLog, epoch_id: str, plan: Plan, who: str) -> tuple[int, TableState]:
    """Take the next epoch of a name. **Commit point:** the record with the epoch and the actions of ``plan``.

    After it no commit of an earlier holder is stored. A crash after it leaves an unused epoch, which is harmless.
    Returns the epoch and the state after the record. ``who`` names the holder in the error. Raises
    `CommitConflictError` after too many lost races for the name, and the errors of ``plan``.
    """
    for _ in range(CLAIMS_MAX):
        state = log.refresh()
        require_not_dropped(state)
        epoch = (stored_epoch(state, epoch_id) or 0) + 1
        committed = log.commit(plan, transaction=Transaction(epoch_id, epoch), is_shared=True)
        if committed.duplicate_of is None:
            return epoch, committed.state
    raise CommitConflictError(
        f"{who} of {state.name} was taken by {CLAIMS_MAX} other processes in a row; nothing was written, "
        "give each process a separate id"
    )


def stored_epoch(state: TableState, epoch_id: str) -> int | None:
    """Return the latest epoch of a name; None if it was never taken."""
    return find_stored_version(state.transactions, state.past_transactions, epoch_id)
