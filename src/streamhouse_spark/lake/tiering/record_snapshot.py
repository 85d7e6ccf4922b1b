"""Recording of tiered snapshots in the log. **Commit point:** the record with the pair (snapshot, offsets).

Records follow the order of the lake: after a snapshot, no earlier one is recorded. Lake offsets only grow, so the
snapshot with higher offsets is later. Two snapshots can have equal offsets, if one compacted files or dropped a
partition. Then the commit attempt asks the lake, after it read the state that the record will follow.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.model.values import LakeSnapshot, same_offsets
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.lake.tiering.partition_drops import make_partition_drops
from streamhouse_spark.log.commits.actions import Action, TieredSnapshot
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.delete_vectors import unapplied_deletes, unapplied_file_deletes
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import find_branches

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 20


def record_snapshot(log: CommitLog, lake: LakeTable, snapshot: LakeSnapshot) -> None:
    """Record the snapshot, unless the log has recorded as much or more, or has another lake by now.

    Raises `CommitConflictError` if another engine's commit replaced the snapshot.
    """
    recorded = log.state.recorded_lake
    if recorded is not None and not should_record(snapshot, recorded):
        return
    if _dropped_more_rows(snapshot, recorded):
        snapshot = lake.wait_until_durable(snapshot)

    def pair(state: TableState, time_ms: int) -> Sequence[Action]:
        if state.lake_location != lake.location:
            return []  # the lake was rebuilt elsewhere: this snapshot is of the old one
        latest: LakeSnapshot | None = snapshot
        recorded = state.recorded_lake
        if recorded is not None and same_offsets(snapshot.offsets, recorded.offsets):
            latest = lake.newest()
        if (
            latest is None
            or lake_is_ahead(latest, state)
            or (recorded is not None and not should_record(latest, recorded))
        ):
            return []
        waits = lake.has_file_names and _has_pending_deletes(state, latest, latest.applied_through)
        must_check = waits or ADOPTED in state.properties or bool(find_branches(state))
        keeps_files = must_check and _retains_external_files(state, lake, latest)
        if waits and not keeps_files:
            return []  # the rows may be in other files here: the next round deletes them and records its own snapshot
        tiered = replace(_make_tiered_snapshot(state, latest, time_ms), keeps_files=keeps_files)
        return [tiered, *make_partition_drops(state, lake, tiered)]

    log.commit(pair)


def _retains_external_files(state: TableState, lake: LakeTable, snapshot: LakeSnapshot) -> bool:
    """Return whether a snapshot retains the files without offsets of the recorded one."""
    recorded = state.lake
    if recorded is None or not same_offsets(snapshot.starts, recorded.starts):
        return False
    return lake.keeps_files(recorded.snapshot_id, snapshot.id)


def _has_pending_deletes(state: TableState, snapshot: LakeSnapshot, applied_through: int) -> bool:
    """Return whether this snapshot may hold deleted rows of the recorded one. It has applied deletions through
    ``applied_through``.
    """
    if state.lake is None or not state.deletions:
        return False
    lake_offsets = state.lake.offsets
    left = unapplied_deletes(state.deletions, applied_through, snapshot.offsets)
    of_lake = any(runs.within(OffsetRange(0, lake_offsets.get(bucket, 0))) for bucket, runs in left.items())
    return of_lake or bool(unapplied_file_deletes(state.deletions, applied_through))


def _make_tiered_snapshot(state: TableState, snapshot: LakeSnapshot, time_ms: int) -> TieredSnapshot:
    applied_through = snapshot.applied_through if state.deletions else 0
    offsets, starts, without_offsets = dict(snapshot.offsets), dict(snapshot.starts), snapshot.dropped_without_offsets
    return TieredSnapshot(
        snapshot.id,
        offsets,
        time_ms,
        starts,
        snapshot.dropped_rows,
        applied_through,
        dropped_without_offsets=without_offsets,
    )


def _dropped_more_rows(snapshot: LakeSnapshot, recorded: TieredSnapshot | None) -> bool:
    """Return whether the lake deleted or dropped rows since the recorded snapshot."""
    is_followed = recorded is not None and same_offsets(snapshot.starts, recorded.starts)
    return snapshot.dropped_rows > (recorded.dropped_rows if recorded is not None and is_followed else 0)


def record_applied_deletes(log: CommitLog, lake: LakeTable, snapshot: LakeSnapshot, applied_through: int) -> None:
    """Record that the latest snapshot applied all deletions through the commit ``applied_through``.

    It may differ from the recorded snapshot if files of these rows were replaced since; see `record_snapshot`.
    """

    def pair(state: TableState, time_ms: int) -> Sequence[Action]:
        recorded = state.lake
        if recorded is None or recorded.applied_through >= applied_through or state.lake_location != lake.location:
            return []
        if recorded.snapshot_id == snapshot.id:
            return [replace(recorded, applied_through=applied_through, keeps_files=True)]
        newest = lake.newest()
        if (
            newest is None
            or newest.id != snapshot.id
            or lake_is_ahead(newest, state)
            or not should_record(newest, recorded)
        ):
            return []
        if lake.has_file_names and _has_pending_deletes(state, newest, applied_through):
            return []  # of a later deletion, which the next round applies
        tiered = replace(_make_tiered_snapshot(state, newest, time_ms), applied_through=applied_through)
        return [tiered, *make_partition_drops(state, lake, tiered)]

    log.commit(pair)


def record_newest(log: CommitLog, lake: LakeTable) -> bool:
    """Record the lake's latest snapshot. Returns False if concurrent services keep recording other snapshots."""
    for _ in range(TRIES_MAX):
        newest = newest_snapshot(log, lake)
        state = log.refresh()
        if newest is None:
            return state.recorded_lake is None
        record_snapshot(log, lake, newest)
        recorded = log.state.recorded_lake
        if recorded is not None and recorded.snapshot_id == newest.id:
            return True
    return False


def lake_is_ahead(snapshot: LakeSnapshot, state: TableState) -> bool:
    """Return whether the lake has rows or a truncation that this state of the log does not have yet."""
    ends = state.ends
    return any(offset > ends.get(bucket, 0) for bucket, offset in snapshot.offsets.items()) or any(
        start > state.first_offset(bucket) for bucket, start in snapshot.starts.items()
    )


def should_record(snapshot: LakeSnapshot, recorded: TieredSnapshot) -> bool:
    """Return whether a snapshot holds at least as much of every bucket as the recorded one, and no fewer truncations or
    drops.

    An equal snapshot is recorded too: after a compaction the older one is expired first.
    """
    offsets, starts = snapshot.offsets, snapshot.starts
    return (
        snapshot.id != recorded.snapshot_id
        and all(offsets.get(b, 0) >= o for b, o in recorded.offsets.items())
        and all(starts.get(b, 0) >= o for b, o in recorded.starts.items())
        and (snapshot.dropped_rows >= recorded.dropped_rows or not same_offsets(starts, recorded.starts))
    )
