"""The history of a tablet's rows: a table that was restored from a backup, or copied, has the uuid and the offsets of
another.

A tablet names the newest record of the state that it was applied from (`log.commits.history_epochs`), in the same
transaction as its rows. They are the table's where that record is one of the table's log.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.kv.tablet import Tablet, TabletState
from streamhouse_spark.log.commits.history_epochs import SPACING, HistoryPoint, HistoryRelation
from streamhouse_spark.log.commits.record import read_attempt
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage

RENEW_AFTER_RECORDS: Final = 4 * SPACING
"""Age after which the history of an unchanged bucket is renewed, in records: later, storage would have to be asked."""


def history_of(state: TableState) -> bytes | None:
    """Return the history that a tablet with the rows of ``state`` keeps. None if the state knows no record, as the
    tablet then.
    """
    newest = state.anchors.newest
    return f"{newest.number} {newest.attempt}".encode() if newest is not None else None


def belongs_to_table(tablet: Tablet, extent: TabletState, storage: Storage, state: TableState) -> bool:
    """Tell whether rows found with ``extent`` are of the log of ``state``, perhaps of newer records of it.

    Asks storage for one record if the state cannot tell: after another process of this host applied newer records, and
    once if the bucket did not change for long.
    """
    history = extent.history
    if history is None:
        return extent[:2] == (0, 0) or not state.anchors.marks
    newest = state.anchors.newest
    if tablet.verified_lineage == (history, newest):
        return True
    if not _is_same_history(tablet.verified_lineage, history, storage, state):
        return False
    if not is_ahead(extent, state):  # else the log may be restored to just this state, and nobody would notice
        tablet.verified_lineage = (history, newest)
    return True


def is_ahead(extent: TabletState, state: TableState) -> bool:
    """Tell whether the rows are of a newer record than the state's: reading the log on is then cheaper than asking for
    that record.
    """
    return extent.history is not None and _parse_history(extent.history).number > state.version


def forget_other_history(tablet: Tablet, storage: Storage, state: TableState) -> TabletState:
    """Return the extent of the tablet after it forgot rows of another log."""
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
        relation = state.anchors.relation(checked[1])  # it was right for a state that this one follows
    if relation is not HistoryRelation.SAME:
        return read_attempt(storage, state.table_uuid, mark.number) == mark.attempt
    return True


def _parse_history(history: bytes) -> HistoryPoint:
    number, attempt = history.decode().split(" ")
    return HistoryPoint(int(number), attempt)
