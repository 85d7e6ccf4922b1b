"""The errors of commits that failed, and of those whose outcome nobody can tell."""

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
    """Return the error of a call that is not to be tried again. Asked under the log's lock: nobody commits it then."""
    failures, failure, url = call.failures, call.failure, storage.url
    if has_failed and call.is_rejected_by_store:
        return failure
    if failures >= FAILURES_MAX and failure is not None:
        if not may_still_be_stored(call, storage):
            return failure
        return CommitStateUnknownError(  # a request may still be under way, and land after we looked
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
    """Tell whether an attempt that is not in the log may yet come there: by a request that was given up, or by another
    process that was offered it. A local disk leaves no requests behind.
    """
    return call.unanswered > 0 or (call.may_be_in_flight and storage.local_path("") is None)


def rejection_error(error: E, call: PendingCommit, storage: Storage) -> E | CommitStateUnknownError:
    """Return the error of a call whose rows are not in the log.

    A conflict says that nothing was written, so of an attempt that another may yet write it is not the answer. Other
    refusals rest on the log's state alone, on which that other would meet them too.
    """
    if not call.unanswered or not isinstance(error, CommitConflictError):
        return error
    unknown = CommitStateUnknownError(
        f"commit to {storage.url} was left to another writer of this host, which has not made it: {error}; look for "
        f"attempt {call.attempt} in $commits before writing the rows again",
    )
    unknown.__cause__ = error
    return unknown


def require_durable(storage: Storage, table_uuid: str, call: PendingCommit, landed: CommitResult) -> CommitResult:
    """Return the outcome of an attempt that was found in the log, once its record is sure to stay."""
    if call.unanswered:
        try:
            storage.ensure_durable(commit_key(table_uuid, landed.state.version))
        except StorageError as error:
            raise not_durable_error(storage.url, landed.state.version, call.attempt, error) from error
    return landed


def require_known_outcome(record: Record, result: PutResult[Record], url: str) -> None:
    """Raises `CommitStateUnknownError` where nobody can tell whose record is there, or whether it stays."""
    if result.outcome is PutOutcome.UNREADABLE:
        raise CommitStateUnknownError(
            f"commit of record {record.number} to {url}: the record cannot be read back ({result.read_error}); look "
            f"whether a record with attempt {record.attempt} is in $commits before writing the rows again",
        ) from result.read_error
    if result.outcome is PutOutcome.NOT_DURABLE:
        raise not_durable_error(url, record.number, record.attempt, result.failure) from result.read_error


def not_durable_error(url: str, number: int, attempt: str, failure: Exception | None) -> CommitStateUnknownError:
    """Make the error of a record that is there, and may be gone after a power loss."""
    return CommitStateUnknownError(
        f"record {number} of {url} is visible but may not survive a power loss ({failure}); check the disk, then look "
        f"for attempt {attempt} in $commits",
    )


def unreadable_log_error(url: str, error: Exception) -> CommitStateUnknownError:
    """Make the error of a commit that failed, and whose outcome the log does not tell because it cannot be read."""
    return CommitStateUnknownError(
        f"commit to {url} failed, then its log could not be read: {error}; look at $commits before writing the rows "
        "again",
    )


def unknown_outcome_error(url: str, stored: Record, reason: str) -> CommitStateUnknownError:
    """Return the error of a record that was put under a low watermark, so that it may not be a part of the log."""
    return CommitStateUnknownError(
        f"commit of record {stored.number} to {url} took so long that the log was cleaned before it ended, and whether "
        f"the record counts cannot be read ({reason}); look for attempt {stored.attempt} in $commits, or for its rows, "
        "before writing them again",
    )
