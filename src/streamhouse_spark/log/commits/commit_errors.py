"""Errors of commits: which failures end a request, and the text that tells the caller what is known about the rows."""

from __future__ import annotations

from typing import TypeVar

from streamhouse_spark.core.paths import commit_key, commits_prefix
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError, StorageError, StreamhouseError
from streamhouse_spark.log.commits.group_commit import CommitResult, PendingCommit
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult

E = TypeVar("E", bound=BaseException)
CONFLICTS_MAX = 1000
FAILURES_MAX = 5


def terminal_error(
    call: PendingCommit, storage: Storage, table_uuid: str, *, has_failed: bool
) -> StreamhouseError | None:
    """Return the error of a request that must not be retried; None to retry.

    The caller holds the log's lock, so that no other thread commits the request afterwards. ``has_failed`` says that
    the last put was one of its failures.
    """
    failures, failure, url = call.failures, call.failure, storage.url
    if has_failed and call.is_rejected_by_store:
        return failure
    if failures >= FAILURES_MAX and failure is not None:
        if not may_still_be_stored(call, storage):
            return failure
        return CommitStateUnknownError(  # a request in flight may still store it
            f"commit to {url} failed {failures} times, and the record is not there now: {failure}; look at $commits "
            "before writing the rows again",
        )
    if call.conflicts >= CONFLICTS_MAX:
        error = CommitConflictError(
            f"commit to {url}/{commits_prefix(table_uuid)} lost {call.conflicts} races in a row; nothing was written, "
            "try again or write fewer, larger batches",
        )
        return rejection_error(error, call, storage)
    return None


def may_still_be_stored(call: PendingCommit, storage: Storage) -> bool:
    """Return whether an attempt that is not in the log may still be stored.

    A request to the store that timed out may store it, or an interrupted thread. A local disk has no requests in
    flight.
    """
    return call.unanswered > 0 or (call.may_be_in_flight and storage.local_path("") is None)


def rejection_error(error: E, call: PendingCommit, storage: Storage) -> E | CommitStateUnknownError:
    """Return the error to raise for a request that the latest state rejects with ``error``.

    A conflict promises that nothing was written. That promise cannot be made while an interrupted thread may have
    stored the attempt. Every other rejection depends on the state alone and holds for that attempt too.
    """
    if not call.unanswered or not isinstance(error, CommitConflictError):
        return error
    unknown = CommitStateUnknownError(
        f"commit to {storage.url} conflicts ({error}), and the thread that first wrote it was interrupted; look for "
        f"attempt {call.attempt} in $commits before writing the rows again",
    )
    unknown.__cause__ = error
    return unknown


def require_durable(storage: Storage, table_uuid: str, call: PendingCommit, landed: CommitResult) -> CommitResult:
    """Return the result of an attempt that was found in the log, after its record was synced to disk."""
    if call.unanswered:
        try:
            storage.ensure_durable(commit_key(table_uuid, landed.state.version))
        except StorageError as error:
            raise not_durable_error(storage.url, landed.state.version, call.attempt, error) from error
    return landed


def require_known_outcome(record: Record, result: PutResult[Record], url: str) -> None:
    """Raise `CommitStateUnknownError` if it is unknown whose record is stored, or whether it survives a power loss."""
    if result.outcome is PutOutcome.UNREADABLE:
        raise CommitStateUnknownError(
            f"commit of record {record.number} to {url}: the record cannot be read back ({result.read_error}); look "
            f"for attempt {record.attempt} in $commits before writing the rows again",
        ) from result.read_error
    if result.outcome is PutOutcome.NOT_DURABLE:
        raise not_durable_error(url, record.number, record.attempt, result.failure) from result.read_error


def not_durable_error(url: str, number: int, attempt: str, failure: Exception | None) -> CommitStateUnknownError:
    """Return the error of a record that is visible but may be lost by a power loss."""
    return CommitStateUnknownError(
        f"record {number} of {url} is visible but may not survive a power loss ({failure}); check the disk, then look "
        f"for attempt {attempt} in $commits",
    )


def unreadable_log_error(url: str, error: Exception) -> CommitStateUnknownError:
    """Return the error of a failed put whose outcome is unknown because the log cannot be read."""
    return CommitStateUnknownError(
        f"commit to {url} failed, then its log could not be read: {error}; look at $commits before writing the rows "
        "again",
    )


def unknown_outcome_error(url: str, stored: Record, reason: str) -> CommitStateUnknownError:
    """Return the error of a record that was put below a floor, so that it may not be part of the log."""
    return CommitStateUnknownError(
        f"commit of record {stored.number} to {url} took so long that its record may be void, and whether it is "
        f"cannot be read ({reason}); look for attempt {stored.attempt} in $commits, or for its rows, "
        "before writing them again",
    )
