"""Checks that a lake snapshot is of the log's history: one of the two may be restored from a backup without the
other.
"""

from __future__ import annotations

from streamhouse_spark.errors import DifferentHistoryError, LakeRolledBackError
from streamhouse_spark.lake.model.values import LakeSnapshot
from streamhouse_spark.log.commits.anchors import Relation
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState


def require_of_history(log: CommitLog, snapshot: LakeSnapshot | None) -> None:
    """Check that the rows of the snapshot were tiered from this log, before any of them counts as the table's.

    A snapshot names the newest record of the log when it was made; older ones name none and count. Costs no request if
    that record is among the newest. Raises `DifferentHistoryError`.
    """
    mark = snapshot.history if snapshot is not None else None
    if snapshot is None or mark is None or log.relation(mark) is not Relation.OTHER:
        return
    name = log.state.name
    raise DifferentHistoryError(
        f"lake snapshot {snapshot.id} of {name} holds rows up to record {mark.number} of attempt {mark.attempt}, which "
        f"the table's log does not have: the log was restored from a backup, and its lake was not. Restore both of the "
        f"same time; or rebuild the lake from the log with: streamhouse retier {name}"
    )


def require_dropped(state: TableState, snapshot: LakeSnapshot | None) -> None:
    """Check that partitions whose drop the log has recorded are not back, because the lake is older.

    Offsets do not tell: a drop leaves them as they are. The state was read before the snapshot was looked up. Raises
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
