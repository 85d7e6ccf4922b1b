"""Validation of a commit against a state: repeated transactions, and actions that the table does not accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamhouse_spark.config.table_properties import BRANCH, VIEW, BranchMetadata
from streamhouse_spark.core.types import TablePath, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    DifferentHistoryError,
    IdempotencyKeyReusedError,
    InvalidOptionError,
    TableNotFoundError,
    TransactionConflictError,
)
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.actions import Action, ConfirmDeleted, MarkOrphans, Rename, Tombstone, Undrop
from streamhouse_spark.log.deletion_vectors import PartitionDropRows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import REFRESHES, TransactionEntry, hash_name
from streamhouse_spark.schema.partitioning import SetPartitioning

IN_REAL_TIME: Final = " in real-time mode"
"""Suffix of a transaction's owner if the query runs in Spark's real-time mode."""
_NOT_ON_A_BRANCH: Final = (
    act.TieredSnapshot
    | PartitionDropRows
    | act.ResetLake
    | act.SetSchema
    | act.SetProperties
    | SetPartitioning
    | act.Trim
    | act.Tag
    | act.Undrop
    | act.KvSnapshot
)


def find_stored_outcome(
    entry: TransactionEntry | None, transaction: Transaction, table: str
) -> TransactionEntry | None:
    """Return the stored outcome of a transaction; None if the transaction must be written.

    A version below the stored one was stored before. The outcome of such a batch write has no offsets. For a stream the
    version is an error: Spark repeats at most its last batch, so the query's checkpoint is older than the table.

    Raises `TransactionConflictError` for another query's id, `DifferentHistoryError` for a batch that contradicts the
    stored batches, `CommitConflictError` if the transaction must follow another version than the stored one.
    """
    _require_followed(entry, transaction, table)
    if entry is None:
        return None
    if transaction.owner is not None and entry.owner == transaction.owner + IN_REAL_TIME:
        raise TransactionConflictError(
            f"query {transaction.owner} wrote to {table} in real-time mode, and the number of a micro-batch does not "
            "show which of its rows are stored; continue with a real-time trigger. A new checkpointLocation starts at "
            "its startingOffsets: choose offsets after the stored rows, or these are written again",
        )
    if transaction.owner is not None and entry.owner is not None and transaction.owner != entry.owner:
        raise TransactionConflictError(
            f"application id {transaction.app_id!r} of {table} belongs to query {entry.owner}, found query "
            f"{transaction.owner}: was the checkpoint deleted? Choose another txnAppId. If the rows may be written "
            f"again, run Table.forget_transactions({transaction.app_id!r})",
        )
    batch = transaction.batch
    if transaction.version > entry.version:
        _require_next(entry, transaction, table)
        return None
    if transaction.version < entry.version:
        if batch is None:
            return TransactionEntry(entry.version, entry.owner, entry.commit, {})
        raise _older_checkpoint_error(entry, transaction, table, f"batch {entry.version} is stored")
    stored_fingerprint = entry.batch.fingerprint if entry.batch is not None else None
    if (
        batch is not None
        and None not in (batch.fingerprint, stored_fingerprint)
        and batch.fingerprint != stored_fingerprint
    ):
        raise _older_checkpoint_error(entry, transaction, table, "the stored batch of this number has other offsets")
    return entry


def _require_followed(entry: TransactionEntry | None, transaction: Transaction, table: str) -> None:
    stored, batch = -1 if entry is None else entry.version, transaction.batch
    if transaction.follows is None or stored == transaction.follows:
        return
    if entry is not None and stored == transaction.version and (None in (entry.batch, batch) or entry.batch == batch):
        return
    raise CommitConflictError(
        f"version {transaction.version} of application {transaction.app_id!r} of {table} follows version "
        f"{transaction.follows}, but version {stored} is stored: another writer of this application committed first; "
        "nothing was written, continue after the stored version"
    )


def _require_next(entry: TransactionEntry, transaction: Transaction, table: str) -> None:
    """Raise if a batch is known to be missing between the stored one and this one."""
    records_each = transaction.batch is not None and transaction.batch.is_each_recorded
    recorded_each = entry.batch is not None and entry.batch.is_each_recorded
    if records_each and recorded_each and transaction.version != entry.version + 1:
        before = f"Transaction({transaction.app_id!r}, {transaction.version - 1}, {transaction.owner!r})"
        raise DifferentHistoryError(
            f"batch {transaction.version} of stream {transaction.app_id!r} into {table}: the table has the batches up "
            f"to {entry.version}, but the query's checkpoint has completed later batches: the table was restored from "
            "an older copy. Nothing was written. Start with a new checkpointLocation and another txnAppId to write all "
            f"rows; or, to skip the rows of the missing batches, first run Table.append([], transaction={before})"
        )


def _older_checkpoint_error(
    entry: TransactionEntry, transaction: Transaction, table: str, finding: str
) -> DifferentHistoryError:
    where = f" (commit {entry.commit})" if entry.commit else ""
    return DifferentHistoryError(
        f"batch {transaction.version} of stream {transaction.app_id!r} into {table}: {finding}{where}, "
        "so the query's checkpoint is an older copy, or was truncated, and the stored batch may have other rows than "
        "this batch. Nothing was written. Restore the latest checkpoint; or, if rows may be written twice, run "
        f"Table.forget_transactions({transaction.app_id!r}), or start with a new checkpointLocation (and txnAppId)"
    )


def find_stored_transaction(state: TableState, transaction: Transaction | None) -> TransactionEntry | None:
    """Return the stored outcome of a transaction, if its version or a later version is stored.

    The outcome has no offsets if a later version is stored, or if the writer has not written for
    ``table.transactions.ttl``. Raises the errors of `find_stored_outcome`, `TableNotFoundError`, and
    `IdempotencyKeyReusedError` for another request with a stored key.
    """
    if transaction is None:
        return None
    require_not_dropped(state)  # the rows of a stored outcome were dropped with the table
    if transaction.request_key is not None:
        return _find_request_outcome(state, transaction, transaction.request_key)
    entry = state.transactions.get(transaction.app_id)
    past = state.past_transactions.get(hash_name(transaction.app_id)) if entry is None else None
    if past is not None:
        owners = (transaction.owner, f"{transaction.owner}{IN_REAL_TIME}")
        owner = next((owner for owner in owners if past.is_of(owner)), "another")
        entry = TransactionEntry(past.version, owner, 0, {})
    return find_stored_outcome(entry, transaction, state.name)


def _find_request_outcome(state: TableState, transaction: Transaction, key: str) -> TransactionEntry | None:
    """Return the stored outcome of a request. Raises `IdempotencyKeyReusedError` if another request has the key."""
    entry = state.request_keys.get(key)
    if entry is None:
        return None
    if transaction.batch is None or transaction.batch.fingerprint != entry.fingerprint:
        raise IdempotencyKeyReusedError(
            f"the Idempotency-Key of this request to {state.name} belongs to another request (commit {entry.commit}), "
            "with another body or other parameters; nothing was written, send new requests with a new key"
        )
    return TransactionEntry(0, None, entry.commit, entry.offsets, transaction.batch, entry.time_ms)


def unsupported_on_branch_error(name: TablePath | str, operation: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"{name} is a branch, which supports only reads and writes of rows, not {operation}; use its table, or publish "
        "the branch first (fast_forward)"
    )


def _require_allowed_on_branch(state: TableState, actions: Sequence[Action]) -> None:
    """Raise for actions that a branch does not accept, so that its publication loses no change.

    Raises `CommitConflictError` for rows while the branch is being published, `InvalidOptionError` for actions that
    only a table supports.
    """
    mark = BranchMetadata.of_properties(state.properties)
    if mark is None:
        return
    if mark.is_sealed and act.moves_rows(actions):
        raise CommitConflictError(
            f"branch {mark.name!r} ({state.name}) is being published and accepts no more rows; nothing was written, "
            "write to the table, or create another branch"
        )
    for action in actions:
        is_seal = isinstance(action, act.SetProperties) and set(action.changed) == {BRANCH} and not action.removed
        if isinstance(action, _NOT_ON_A_BRANCH) and not is_seal:
            raise unsupported_on_branch_error(state.name, f"an action {type(action).__name__}")


def require_writable(state: TableState, transaction: Transaction | None) -> None:
    """Raise `InvalidOptionError` for rows of a materialized table that are not from its refresh.

    The next refresh would not correct them: it only adds to the existing rows.
    """
    if VIEW in state.properties and (transaction is None or transaction.app_id != REFRESHES):
        raise InvalidOptionError(
            f"{state.name} is a materialized table, and only its refreshes may write to it; write to the tables "
            "that its query reads, or to a clone of it"
        )


def require_actions_allowed(
    state: TableState, actions: Sequence[Action], transaction: Transaction | None = None
) -> None:
    """Raise for actions that a dropped table, a branch or a materialized table does not accept."""
    if not all(isinstance(a, Undrop | Tombstone | Rename | MarkOrphans | ConfirmDeleted) for a in actions):
        require_not_dropped(state)
    _require_allowed_on_branch(state, actions)
    if act.moves_rows(actions):
        require_writable(state, transaction)


def require_not_dropped(state: TableState) -> None:
    """Raise `TableNotFoundError` for a dropped table."""
    if state.dropped and BRANCH in state.properties:
        raise TableNotFoundError(
            f"branch {state.name} was published or dropped; read its table, or create another branch"
        )
    if state.dropped:
        raise TableNotFoundError(f"table {state.name} ({state.table_uuid}) was dropped; open it again by its name")
