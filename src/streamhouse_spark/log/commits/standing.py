"""Checks that a process's known log still is the log: the table may be restored while processes use it."""

from __future__ import annotations

from collections.abc import Callable

from streamhouse_spark.core.paths import commit_key
from streamhouse_spark.errors import DifferentHistoryError
from streamhouse_spark.log.commits.anchors import HistoryMark, Relation
from streamhouse_spark.log.commits.record import begins_as, has_record, read_attempt
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage


def stands(storage: Storage, state: TableState, check_floor: Callable[[], int]) -> bool:
    """Tell whether the state's newest record is stored, by the same attempt; also if that cannot be told.

    Reads few bytes where it is: on a local disk this is asked before each commit, and the record may hold many rows.
    """
    newest = state.anchors.newest
    if newest is None or newest.number < check_floor():
        return True
    if begins_as(storage, state.table_uuid, newest.number, newest.attempt):
        return True
    found = read_attempt(storage, state.table_uuid, newest.number)
    if found is not None:
        return found == newest.attempt
    if has_record(storage, state.table_uuid, newest.number):
        return True  # it is damaged, and the next reader that needs it raises
    return newest.number < check_floor()


def relation(storage: Storage, state: TableState, mark: HistoryMark, check_floor: Callable[[], int]) -> Relation:
    """Return the relation of a position to the history of this state, which is the newest one.

    Costs nothing if the state's anchors tell, else one request. Below a floor a record may be one that a slow writer
    put anew where cleaning had deleted one: another attempt says nothing there.
    """
    found = state.anchors.relation(mark)
    if found is not Relation.UNKNOWN:
        return found
    if mark.number > state.version:
        return Relation.OTHER
    attempt = read_attempt(storage, state.table_uuid, mark.number)
    if attempt == mark.attempt:
        return Relation.SAME
    is_void = mark.number < check_floor()
    return Relation.UNKNOWN if attempt is None or is_void else Relation.OTHER


def restored(storage: Storage, state: TableState) -> str:
    """Return the text for a process whose log no longer `stands`."""
    return (
        f"{state.name} ({state.table_uuid}): this process read record {state.version} of attempt {state.attempt}, and "
        f"{storage.url}/{commit_key(state.table_uuid, state.version)} is not that record now: the table was restored "
        "from a backup, or another copy was put in its place. Nothing was written. Open the table again; streams that "
        "were running have to be restarted"
    )


def other_history(table: str, mark: HistoryMark, who: str) -> DifferentHistoryError:
    return DifferentHistoryError(
        f"{who} at record {mark.number} of attempt {mark.attempt}, which the log of {table} does not have: the table "
        "was restored from a backup meanwhile. Nothing was written; run it again on the table as it is now"
    )
