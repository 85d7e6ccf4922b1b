"""The errors of commits that failed, and of those whose outcome nobody can tell."""

from __future__ import annotations

from streamhouse_spark.core.paths import commits_prefix
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError, StreamhouseError
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.waiting import Waiting
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.slots import Holder, Taken

CONFLICTS_MAX = 1000
FAILURES_MAX = 5


def given_up(call: Waiting, storage: Storage, table_uuid: str, *, has_failed: bool) -> StreamhouseError | None:
    """Return the error of a call that is not to be tried again. Asked under the log's lock: nobody commits it then."""
    failures, failure, url = call.failures, call.failure, storage.url
    if has_failed and call.is_refused:
        return failure
    if failures >= FAILURES_MAX and failure is not None:
        if storage.local_path("") is not None:
            return failure
        return CommitStateUnknownError(  # a request may still be under way, and land after we looked
            f"commit to {url} failed {failures} times, and the record is not there now: {failure}; look at $commits "
            "before writing the rows again",
        )
    if call.conflicts >= CONFLICTS_MAX:
        return CommitConflictError(
            f"commit to {url}/{commits_prefix(table_uuid)} lost {call.conflicts} races in a row; nothing was written, "
            "try again or write fewer, larger batches",
        )
    return None


def require_known(record: Record, taken: Taken[Record], url: str) -> None:
    """Raises `CommitStateUnknownError` where nobody can tell whose record is there, or whether it stays."""
    if taken.holder is Holder.UNREADABLE:
        raise CommitStateUnknownError(
            f"commit of record {record.number} to {url}: the record cannot be read back ({taken.doubt}); look whether "
            f"a record with attempt {record.attempt} is in $commits before writing the rows again",
        ) from taken.doubt
    if taken.holder is Holder.UNSURE:
        raise unsure(url, record.number, record.attempt, taken.failure) from taken.doubt


def unsure(url: str, number: int, attempt: str, failure: Exception | None) -> CommitStateUnknownError:
    """Make the error of a record that is there, and may be gone after a power loss."""
    return CommitStateUnknownError(
        f"record {number} of {url} is visible but may not survive a power loss ({failure}); check the disk, then look "
        f"for attempt {attempt} in $commits",
    )
