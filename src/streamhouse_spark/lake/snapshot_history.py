"""Checks that a lake snapshot belongs to the log's history, and that the lake has all its metadata files.

A backup may restore the log without the lake, or the lake without the log.
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
    """Return the lake's latest snapshot, or None before the first. Checks it against the cached state of the log.

    Raises `DifferentHistoryError`, or `CorruptDataError` with the missing file.
    """
    newest = lake.newest()
    require_same_history(log, newest)
    require_metadata(log.state, lake, newest)
    return newest


def require_metadata(state: TableState, lake: LakeTable, newest: LakeSnapshot | None) -> None:
    """Require that no lost metadata file hides the snapshot that the log recorded.

    ``newest`` is the lake's latest snapshot. Sends no request if it has the recorded offsets. A lake that another
    engine rolled back has lost no file. Raises `CorruptDataError` with the file.
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
            f"table {state.name}: {missing} is missing, but lake snapshot {recorded.snapshot_id}, which the log "
            "recorded, needs it; restore the file, or rebuild the lake from the log (streamhouse retier)"
        )


def require_same_history(log: CommitLog, snapshot: LakeSnapshot | None) -> None:
    """Require that the rows of the snapshot were tiered from this log.

    A snapshot contains the log's latest record at the time of tiering. Older snapshots do not, and pass. Sends no
    request if the record is recent. Raises `DifferentHistoryError`.
    """
    mark = snapshot.history if snapshot is not None else None
    if snapshot is None or mark is None or log.relation(mark) is not HistoryRelation.OTHER:
        return
    name = log.state.name
    raise DifferentHistoryError(
        f"lake snapshot {snapshot.id} of {name} has rows up to record {mark.number} of attempt {mark.attempt}, but "
        "the table's log does not have this record: the log was restored from a backup without the lake; restore both "
        f"from the same time, or rebuild the lake from the log with: streamhouse retier {name}"
    )


def require_drops_applied(state: TableState, snapshot: LakeSnapshot | None) -> None:
    """Require that the lake has applied the partition drops that the log recorded.

    Offsets do not show this, because a drop does not change them. The state must be read before the snapshot. Raises
    `LakeRolledBackError`.
    """
    recorded = state.lake
    if snapshot is None or recorded is None or not state.begins_at(snapshot.starts):
        return
    if snapshot.dropped_rows >= recorded.dropped_rows:
        return
    raise LakeRolledBackError(
        f"table {state.name}: the lake was rolled back to before partitions were dropped: snapshot "
        f"{recorded.snapshot_id} had dropped {recorded.dropped_rows} rows, the latest snapshot {snapshot.id} "
        f"{snapshot.dropped_rows}; roll the lake forward to its latest snapshot, or drop these partitions again, which "
        "also drops rows that were written to them since"
    )
