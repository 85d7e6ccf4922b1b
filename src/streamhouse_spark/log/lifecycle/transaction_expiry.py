"""Expiry of transaction entries, see `streamhouse_spark.log.commits.transactions`."""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse_spark.log.commits.actions import Action, ExpireTransactions
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState


def find_due_transactions(state: TableState, now_ms: int, ttl_ms: int) -> tuple[str, ...]:
    """Return the application ids whose writers have not written for longer than ``ttl_ms``; empty if that is 0."""
    if ttl_ms <= 0:
        return ()
    return tuple(app_id for app_id, entry in state.transactions.items() if entry.time_ms <= now_ms - ttl_ms)


def expire_transactions(log: CommitLog, ttl_ms: int) -> int:
    """Compact the due transactions to their last versions. Return their number.

    **Commit point:** one record, or none if nothing is due. The clock only decides when an entry is compacted: every
    version is stored once before and after.
    """

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        due = find_due_transactions(state, time_ms, ttl_ms)
        return (ExpireTransactions(due),) if due else ()

    committed = log.commit(plan)
    return len(committed.before.transactions) - len(committed.state.transactions)
