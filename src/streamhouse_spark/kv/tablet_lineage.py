"""The lineage of a tablet's rows. A restored or copied table has the uuid and offsets of another log.

A tablet stores, in the transaction of its rows, the latest record of the state that it was applied from
(`log.commits.history_epochs`). Its rows are valid if that record is in the table's log.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.kv.tablet import Tablet, TabletState
from streamhouse_spark.log.commits.history_epochs import SPACING, HistoryPoint, HistoryRelation
from streamhouse_spark.log.commits.record import read_attempt
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage

RENEW_AFTER_RECORDS: Final = 4 * SPACING
"""Age in records after which the history of an unchanged bucket is renewed; later, checking it would need a request."""


def history_of(state: TableState) -> bytes | None:
    """Return the history to store with the rows of ``state``; None if the state has no record."""
    newest = state.anchors.newest
    return f"{newest.number} {newest.attempt}".encode() if newest is not None else None


def belongs_to_table(tablet: Tablet, extent: TabletState, storage: Storage, state: TableState) -> bool:
    """Return whether rows with this ``extent`` are of the log of ``state``, possibly of later records.

    Reads one record if the state does not suffice: after another process of this host applied later records, and once
    if the bucket did not change for long.
    """
    history = extent.history
    if history is None:
        return extent[:2] == (0, 0) or not state.anchors.marks
    newest = state.anchors.newest
    if tablet.verified_lineage == (history, newest):
        return True
    if not _is_same_history(tablet.verified_lineage, history, storage, state):
        return False
    if not is_ahead(extent, state):  # else the log may have been restored to just this state
        tablet.verified_lineage = (history, newest)
    return True


def is_ahead(extent: TabletState, state: TableState) -> bool:
    """Return whether the rows are of a later record than the state's. Refreshing the log is then cheaper than reading
    that record.
    """
    return extent.history is not None and _parse_history(extent.history).number > state.version


def forget_other_history(tablet: Tablet, storage: Storage, state: TableState) -> TabletState:
    """Discard rows of another log, and return the tablet's extent afterwards."""
    while not belongs_to_table(tablet, extent := tablet.extent, storage, state):
        tablet.forget(extent)
    if extent.history is not None and _parse_history(extent.history).number < state.version - RENEW_AFTER_RECORDS:
        renewed = history_of(state)
        if renewed is not None:
            tablet.renew(extent, renewed)
            return tablet.extent
    return extent


def _is_same_history(checked: object, history: bytes, storage: Storage, state: TableState) -> bool:
    mark = _parse_history(history)
    relation = state.anchors.relation(mark)
    if (
        relation is HistoryRelation.UNKNOWN
        and isinstance(checked, tuple)
        and checked[0] == history
        and checked[1] is not None
    ):
        relation = state.anchors.relation(checked[1])  # verified for a state that precedes this one
    if relation is not HistoryRelation.SAME:
        return read_attempt(storage, state.table_uuid, mark.number) == mark.attempt
    return True


def _parse_history(history: bytes) -> HistoryPoint:
    number, attempt = history.decode().split(" ")
    return HistoryPoint(int(number), attempt)
