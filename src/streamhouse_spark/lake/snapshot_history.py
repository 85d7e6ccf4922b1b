"""Checks that a lake snapshot belongs to the log's history, and that the lake lost no metadata file. A backup may
restore either without the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamhouse_spark.errors import CorruptDataError, DifferentHistoryError, LakeRolledBackError
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history_index import HistoryRelation
from streamhouse_spark.log.state import TableState

if TYPE_CHECKING:
    from streamhouse_spark.lake.base import LakeTable  # it imports pyarrow.parquet, which plans rarely need


def newest_snapshot(log: CommitLog, lake: LakeTable) -> LakeSnapshot | None:
    """Return the lake's latest snapshot, checked against the log as last read, or None before the first.

    Raises `DifferentHistoryError`, or `CorruptDataError` with the missing file.
    """
    newest = lake.newest()
    require_same_history(log, newest)
    require_metadata(log.state, lake, newest)
    return newest


def require_metadata(state: TableState, lake: LakeTable, newest: LakeSnapshot | None) -> None:
    """Require that no lost metadata file hides the snapshot that the log recorded, if ``newest`` is older or None. A
    lake that another engine rolled back has lost none.

    Free while the latest snapshot holds what the log recorded. Raises `CorruptDataError` with the file.
    """
    recorded = state.recorded_lake
    if recorded is None or lake.location != state.lake_location:
        return
    lake_offsets = {} if newest is None else newest.offsets
    if newest is not None and all(lake_offsets.get(bucket, 0) >= offset for bucket, offset in recorded.offsets.items()):
        return
    missing = lake.missing_metadata(recorded.snapshot_id)
    if missing is not None:
        raise CorruptDataError(
            f"table {state.name}: {missing} is missing, and the log recorded lake snapshot {recorded.snapshot_id}, "
            "which needs it; restore it, or rebuild the lake from the log (streamhouse retier)"
        )


def require_same_history(log: CommitLog, snapshot: LakeSnapshot | None) -> None:
    """Require that the rows of the snapshot were tiered from this log.

    A snapshot names the latest record of the log at its time; older snapshots name none and pass. Sends no request if
    that record is recent. Raises `DifferentHistoryError`.
    """
    mark = snapshot.history if snapshot is not None else None
    if snapshot is None or mark is None or log.relation(mark) is not HistoryRelation.OTHER:
        return
    name = log.state.name
    raise DifferentHistoryError(
        f"lake snapshot {snapshot.id} of {name} holds rows up to record {mark.number} of attempt {mark.attempt}, which "
        "the table's log does not have: the log was restored from a backup, and its lake was not. Restore both from "
        f"the same time, or rebuild the lake from the log with: streamhouse retier {name}"
    )


def require_drops_applied(state: TableState, snapshot: LakeSnapshot | None) -> None:
    """Require that the lake is not older than a partition drop that the log recorded.

    Offsets do not show this, because a drop keeps them. The state must be read before the snapshot. Raises
    `LakeRolledBackError`.
    """
    recorded = state.lake
    if snapshot is None or recorded is None or not state.begins_at(snapshot.starts):
        return
    if snapshot.dropped_rows >= recorded.dropped_rows:
        return
    raise LakeRolledBackError(
        f"table {state.name}: {recorded.dropped_rows} rows of dropped partitions were gone from the lake in snapshot "
        f"{recorded.snapshot_id}, in the newest one, {snapshot.id}, it is {snapshot.dropped_rows}: the lake went back "
        "to before partitions were dropped. Roll it forward to its newest snapshot, or drop these partitions again, "
        "with what was written into them since"
    )
