"""Lake snapshots visible to a read: any retained one for a table, and the initial one for a branch.

The lake belongs to the table. Later snapshots have rows of the table that the branch never had.
"""

from __future__ import annotations

from streamhouse_spark.config.branch_metadata import BRANCH
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.model.values import LakeSnapshot
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import require_no_branch
from streamhouse_spark.read.read_snapshot import require_recorded


def require_visible_snapshot(state: TableState, snapshot_id: int | None) -> None:
    """Require that the table or branch sees a lake snapshot, None for the latest.

    Raises `InvalidOptionError` for a branch, with the snapshot that it sees.
    """
    if BRANCH not in state.properties:
        return
    if snapshot_id is None:
        require_no_branch(state, "reading the newest lake snapshot")
    visible_ids = [tiered.snapshot_id for tiered in state.lake_history]
    if snapshot_id not in visible_ids:
        visible = f"lake snapshot {visible_ids[-1]}" if visible_ids else "no lake snapshot"
        raise InvalidOptionError(
            f"{state.name} is a branch and sees {visible}, with which it began; "
            f"snapshot {snapshot_id} is of the lake of its table: read it there"
        )


def require_initial_snapshot(state: TableState, snapshot: LakeSnapshot | None) -> None:
    """Require that a branch's lake snapshot, already accepted by `require_visible_snapshot`, still is the one it
    started with.

    Raises `SnapshotExpiredError` if another engine reused its id for other rows.
    """
    if BRANCH not in state.properties or snapshot is None:
        return
    tiered = next((tiered for tiered in state.lake_history if tiered.snapshot_id == snapshot.id), None)
    if tiered is not None:
        require_recorded(state, tiered, snapshot)
