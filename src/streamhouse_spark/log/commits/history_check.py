"""Checks that the log still has the history that a process read: the table may be restored while processes use it."""

from __future__ import annotations

from collections.abc import Callable

from streamhouse_spark.core.paths import commit_key
from streamhouse_spark.errors import DifferentHistoryError, ObjectNotFoundError
from streamhouse_spark.log.commits.bootstrap import load_start_state
from streamhouse_spark.log.commits.checkpoint import DROPPED_FLOOR
from streamhouse_spark.log.commits.history_epochs import HistoryPoint, HistoryRelation
from streamhouse_spark.log.commits.record import Record, begins_as, has_record, read_attempt, read_record
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch


def is_current_history(storage: Storage, state: TableState, check_floor: Callable[[], int]) -> bool:
    """Return whether the state's last record is stored under the same attempt id, or may be.

    The common case reads only the head of the record: on a local disk this check runs before each commit.
    """
    newest = state.anchors.newest
    if newest is None or newest.number < check_floor():
        return True
    if begins_as(storage, state.table_uuid, newest.number, newest.attempt):
        return True
    stored_attempt = read_attempt(storage, state.table_uuid, newest.number)
    if stored_attempt is not None:
        return stored_attempt == newest.attempt
    if has_record(storage, state.table_uuid, newest.number):
        return True  # damaged: the next reader that needs the record raises
    return newest.number < check_floor()


def find_relation(
    storage: Storage, state: TableState, mark: HistoryPoint, check_floor: Callable[[], int]
) -> HistoryRelation:
    """Return the relation of a position to the history of ``state``, which must be the latest.

    Takes one request if the state's index does not cover the record. Below the floor a slow writer may have put another
    record where one was deleted, so that a different attempt proves nothing there.
    """
    relation = state.anchors.relation(mark)
    if relation is not HistoryRelation.UNKNOWN:
        return relation
    if mark.number > state.version:
        return HistoryRelation.OTHER
    attempt = read_attempt(storage, state.table_uuid, mark.number)
    if attempt == mark.attempt:
        return HistoryRelation.SAME
    is_void = mark.number < check_floor()
    return HistoryRelation.UNKNOWN if attempt is None or is_void else HistoryRelation.OTHER


def classify_below_floor(storage: Storage, stored: Record, floor: int) -> HistoryRelation:
    """Return the relation to the log of a record that this process put, and that lies below the floor.

    The record after it names its attempt. If that one is deleted, a checkpoint may still have the attempt. The result
    is `UNKNOWN` if neither does: then the grace period has passed since the put, or the record was void from the start.
    Raises `StorageError`, `CorruptDataError`.
    """
    if floor >= DROPPED_FLOOR:
        return HistoryRelation.OTHER
    ahead = Prefetch(storage)
    try:
        following, _ = read_record(storage, stored.table_uuid, stored.number + 1, ahead)
    except ObjectNotFoundError:
        checkpoint, _ = load_start_state(storage, stored.table_uuid, floor - 1, ahead)
        mark = HistoryPoint(stored.number, stored.attempt)
        return HistoryRelation.UNKNOWN if checkpoint is None else checkpoint.state.anchors.relation(mark)
    if following.after is None:
        return HistoryRelation.UNKNOWN
    return HistoryRelation.SAME if following.after == stored.attempt else HistoryRelation.OTHER


def restored_log_message(storage: Storage, state: TableState) -> str:
    """Return the error text for a process whose last record is no longer in the log."""
    return (
        f"{state.name} ({state.table_uuid}): this process read record {state.version} of attempt {state.attempt}, and "
        f"{url_of(storage, commit_key(state.table_uuid, state.version))} is not that record now: the table was "
        "restored from a backup, or another copy was put in its place. Nothing was written. Open the table again; "
        "running streams must be restarted"
    )


def different_history_error(table: str, mark: HistoryPoint, who: str) -> DifferentHistoryError:
    return DifferentHistoryError(
        f"{who} at record {mark.number} of attempt {mark.attempt}, which the log of {table} does not have: the table "
        "was restored from a backup. Nothing was written; run it again on the table as it is now"
    )
