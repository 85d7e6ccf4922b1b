"""Recording of tiered snapshots in the log. **Commit point:** the record with the snapshot and its offsets.

Snapshots are recorded in the order of the lake. Lake offsets only grow, so the snapshot with higher offsets is later.
Two snapshots have equal offsets if one of them compacted files or dropped a partition. In this case, the commit attempt
reads the lake's latest snapshot after the state that precedes the record.

The record contains the rows of a dropped partition. The lake drops a partition by files, so only its files show the
dropped rows. The process that records the snapshot compares files. It is the process that dropped the partition or, if
that crashed, the next process that tiers the table. Rows whose offsets the log still holds are recorded by offset,
other rows by file and position.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError, SnapshotExpiredError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.reader import group_by_bucket, read_live_rows
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.lake.types import LakeSnapshot, has_same_offsets
from streamhouse_spark.log.actions import Action, TieredSnapshot
from streamhouse_spark.log.catalog.branches import find_branches
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import (
    FileRows,
    PartitionDropRows,
    count_rows,
    unapplied_deletes,
    unapplied_file_deletes,
    union_deleted_file_rows,
    without_rows,
)
from streamhouse_spark.log.state import TableState, count_newly_dropped

logger = logging.getLogger(__name__)
TRIES_MAX: Final = 20


def find_partition_drops(
    state: TableState, lake: LakeTable, tiered_snapshot: TieredSnapshot
) -> list[PartitionDropRows]:
    """Return the action with the rows that a lake snapshot dropped with their partition.

    Returns none if there are no such rows, or if the lake no longer shows them. Then no reader skips them.
    """
    if state.primary_key or not state.partition_by or not state.begins_at(tiered_snapshot.starts):
        return []
    applied_through, without_offsets = (
        (state.lake.applied_through, state.lake.dropped_without_offsets) if state.lake is not None else (0, 0)
    )
    of_files = (
        deletion
        for deletion in unapplied_file_deletes(state.deletions, applied_through)
        if deletion.commit <= tiered_snapshot.applied_through
    )
    grown, applied = count_newly_dropped(state.deletions, state.lake, tiered_snapshot)
    if tiered_snapshot.dropped_without_offsets == without_offsets and grown <= max(
        applied + count_rows(union_deleted_file_rows(of_files)), 0
    ):
        return []
    tiered_ranges = {
        b: OffsetRange(log.start, min(log.end, tiered_snapshot.offsets.get(b, 0))) for b, log in state.buckets.items()
    }
    ranges = {bucket: offsets for bucket, offsets in tiered_ranges.items() if offsets.start < offsets.end}
    with suppress(SnapshotExpiredError, LakeRolledBackError, LakeMismatchError):
        if (lost_rows := find_lost_rows(state, lake, tiered_snapshot)) is not None:
            return [_name_lost_rows(lost_rows, ranges)]
    with suppress(SnapshotExpiredError):
        held_runs = lake.find_stored_offsets(tiered_snapshot.snapshot_id, ranges) if ranges else {}
        if held_runs is not None:
            named = (dict(deletion.rows) for deletion in state.dropped_rows.named)
            missing = _find_missing_offsets(ranges, [dict(held_runs), dict(state.deleted), *named])
            return [PartitionDropRows(missing, grown, total=grown)]
    return []


def _name_lost_rows(lost_rows: LostLogRows, ranges: Mapping[int, OffsetRange]) -> PartitionDropRows:
    """Return an action with lost rows: by offset if the log has them, within ``ranges``, and else by file position."""
    hot_runs = {bucket: runs.within(ranges[bucket]) for bucket, runs in lost_rows.rows.items() if bucket in ranges}
    rows = {bucket: runs for bucket, runs in hot_runs.items() if runs}
    snapshot_id = lost_rows.snapshot_id if lost_rows.files else None
    return PartitionDropRows(rows, lost_rows.num_counted, lost_rows.files, snapshot_id, lost_rows.num_rows)


def _find_missing_offsets(
    ranges: Mapping[int, OffsetRange], known_runs: list[dict[int, OffsetSet]]
) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the ranges that are not in ``known_runs``."""
    missing = {}
    for bucket, offsets in ranges.items():
        missing_offsets = OffsetSet.dense(offsets.start, len(offsets))
        for rows in known_runs:
            if bucket in rows:
                missing_offsets = missing_offsets.without(rows[bucket])
        if missing_offsets:
            missing[bucket] = missing_offsets
    return missing


# -- rows of removed files --------------------------------------------------------------------------------------------


class _DropCommit(NamedTuple):
    """The only lake commit after the recorded snapshot that dropped partitions."""

    older: int
    newer: int
    num_rows: int


def _find_partition_drop(state: TableState, lake: LakeTable, tiered_snapshot: TieredSnapshot) -> _DropCommit | None:
    """Return the commit that dropped rows after the recorded snapshot. None if it expired, or if there are several."""
    dropped_rows = state.lake.dropped_rows if state.lake is not None else 0
    newer = tiered_snapshot.snapshot_id
    for snapshot in lake.ancestors(tiered_snapshot.snapshot_id):
        if not has_same_offsets(snapshot.starts, tiered_snapshot.starts):
            return None
        if snapshot.dropped_rows < tiered_snapshot.dropped_rows:
            is_only_drop = snapshot.dropped_rows == dropped_rows
            num_rows = tiered_snapshot.dropped_rows - dropped_rows
            return _DropCommit(snapshot.id, newer, num_rows) if is_only_drop else None
        newer = snapshot.id
    return None


class LostLogRows(NamedTuple):
    """Rows that a partition drop removed, without rows that were deleted before it."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    files: FileRows
    """Rows without offsets, by file and position in the snapshot."""
    snapshot_id: int
    """The lake snapshot before the drop."""
    num_counted: int
    """Number of these rows in the lake's count of dropped rows; see `PartitionDropRows.count`."""

    @property
    def num_rows(self) -> int:
        return count_rows(self.rows) + count_rows(self.files)


def find_lost_rows(state: TableState, lake: LakeTable, tiered_snapshot: TieredSnapshot) -> LostLogRows | None:
    """Return the rows that a lake snapshot dropped with their partition after the recorded snapshot of ``state``.

    Compares removed with added files. Returns None if the row counts do not match the drop, or if several commits
    dropped rows. Raises `SnapshotExpiredError`, `LakeRolledBackError`, `LakeMismatchError`.
    """
    if (drop := _find_partition_drop(state, lake, tiered_snapshot)) is None:
        return None
    schema, binding = lake.binding.spec.schema, lake.binding
    before = lake.plan_read(snapshot_id=drop.older, schema=schema)
    after = lake.plan_read(snapshot_id=drop.newer, schema=schema)
    files_after, files_before = ({split.location for split in plan.splits} for plan in (after, before))
    removed = read_live_rows(
        binding.files_at, [s for s in before.splits if s.location not in files_after], binding.spec.writers
    )
    new = read_live_rows(
        binding.files_at, [s for s in after.splits if s.location not in files_before], binding.spec.writers
    )
    if any(file.bucket is None for file in new):
        return None
    own = without_rows(group_by_bucket(removed), group_by_bucket(new))
    names = StorageFiles(binding.storage)
    files = {names.name_of(file.location): file.rows for file in removed if file.bucket is None and file.rows}
    if count_rows(own) + count_rows(files) != drop.num_rows:
        return None
    named, masked = state.dropped_rows.named.rows, union_deleted_file_rows(state.deletions)
    count = drop.num_rows - count_rows(files)
    own, files = without_rows(without_rows(own, state.deleted), named), without_rows(files, masked)
    return LostLogRows(own, files, drop.older, count)


def record_snapshot(log: CommitLog, lake: LakeTable, snapshot: LakeSnapshot) -> None:
    """Record the snapshot, unless the log has recorded an equal or later one, or the table has another lake.

    Raises `CommitConflictError` if another engine's commit replaced the snapshot.
    """
    recorded = log.state.recorded_lake
    if recorded is not None and not should_record(snapshot, recorded):
        return
    replaceable = lake.capabilities.snapshot_replacement
    if replaceable is not None and _dropped_more_rows(snapshot, recorded):
        snapshot = replaceable.wait_until_durable(snapshot)

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        if state.lake_location != lake.location:
            return []  # the lake was rebuilt at another location, and this snapshot belongs to the old one
        latest: LakeSnapshot | None = snapshot
        recorded = state.recorded_lake
        if recorded is not None and has_same_offsets(snapshot.offsets, recorded.offsets):
            latest = lake.newest()
        if latest is None or not _is_recordable(latest, state):
            return []
        waits = _has_pending_deletes(state, latest, latest.applied_through)
        must_check = waits or ADOPTED in state.properties or bool(find_branches(state))
        keeps_files = must_check and _retains_external_files(state, lake, latest)
        if waits and not keeps_files:
            return []  # other files may hold the rows here: the next round deletes them and records its own snapshot
        tiered = replace(_make_tiered_snapshot(state, latest, time_ms), keeps_files=keeps_files)
        return [tiered, *find_partition_drops(state, lake, tiered)]

    log.commit(plan)


def _is_recordable(snapshot: LakeSnapshot, state: TableState) -> bool:
    """Return whether a record after ``state`` may contain the snapshot."""
    recorded = state.recorded_lake
    return not is_lake_ahead(snapshot, state) and (recorded is None or should_record(snapshot, recorded))


def _retains_external_files(state: TableState, lake: LakeTable, snapshot: LakeSnapshot) -> bool:
    """Return whether a snapshot retains the files without offsets of the recorded snapshot."""
    recorded = state.lake
    if recorded is None or not has_same_offsets(snapshot.starts, recorded.starts):
        return False
    return lake.keeps_files(recorded.snapshot_id, snapshot.id)


def _has_pending_deletes(state: TableState, snapshot: LakeSnapshot, applied_through: int) -> bool:
    """Return whether a snapshot with deletes ``applied_through`` may hold deleted rows of the recorded snapshot."""
    if state.lake is None or not state.deletions:
        return False
    lake_offsets = state.lake.offsets
    unapplied = unapplied_deletes(state.deletions, applied_through, snapshot.offsets)
    of_lake = any(runs.within(OffsetRange(0, lake_offsets.get(bucket, 0))) for bucket, runs in unapplied.items())
    return of_lake or bool(unapplied_file_deletes(state.deletions, applied_through))


def _make_tiered_snapshot(state: TableState, snapshot: LakeSnapshot, time_ms: int) -> TieredSnapshot:
    applied_through = snapshot.applied_through if state.deletions else 0
    return TieredSnapshot(
        snapshot.id,
        dict(snapshot.offsets),
        time_ms,
        dict(snapshot.starts),
        snapshot.dropped_rows,
        applied_through,
        dropped_without_offsets=snapshot.dropped_without_offsets,
    )


def _dropped_more_rows(snapshot: LakeSnapshot, recorded: TieredSnapshot | None) -> bool:
    """Return whether the lake deleted or dropped rows after the recorded snapshot."""
    is_followed = recorded is not None and has_same_offsets(snapshot.starts, recorded.starts)
    return snapshot.dropped_rows > (recorded.dropped_rows if recorded is not None and is_followed else 0)


def record_applied_deletes(log: CommitLog, lake: LakeTable, snapshot: LakeSnapshot, applied_through: int) -> None:
    """Record that the latest snapshot has applied all deletes through the commit ``applied_through``.

    It differs from the recorded snapshot if files of these rows were replaced. See `record_snapshot`.
    """

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        recorded = state.lake
        if recorded is None or recorded.applied_through >= applied_through or state.lake_location != lake.location:
            return []
        if recorded.snapshot_id == snapshot.id:
            return [replace(recorded, applied_through=applied_through, keeps_files=True)]
        latest = lake.newest()
        if latest is None or latest.id != snapshot.id or not _is_recordable(latest, state):
            return []
        if _has_pending_deletes(state, latest, applied_through):
            return []  # rows of a later delete, which the next round applies
        tiered = replace(_make_tiered_snapshot(state, latest, time_ms), applied_through=applied_through)
        return [tiered, *find_partition_drops(state, lake, tiered)]

    log.commit(plan)


def record_latest_snapshot(log: CommitLog, lake: LakeTable) -> bool:
    """Record the lake's latest snapshot. Returns False if concurrent services always record other snapshots first."""
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


def is_lake_ahead(snapshot: LakeSnapshot, state: TableState) -> bool:
    """Return whether the lake has rows or a truncation that the log does not have in this state."""
    ends = state.ends
    return any(offset > ends.get(bucket, 0) for bucket, offset in snapshot.offsets.items()) or any(
        start > state.first_offset(bucket) for bucket, start in snapshot.starts.items()
    )


def should_record(snapshot: LakeSnapshot, recorded: TieredSnapshot) -> bool:
    """Return whether a snapshot has at least the rows, truncations and drops of the recorded snapshot.

    A snapshot with equal rows is recorded too, because after a compaction the older one is expired first.
    """
    offsets, starts = snapshot.offsets, snapshot.starts
    return (
        snapshot.id != recorded.snapshot_id
        and all(offsets.get(b, 0) >= o for b, o in recorded.offsets.items())
        and all(starts.get(b, 0) >= o for b, o in recorded.starts.items())
        and (snapshot.dropped_rows >= recorded.dropped_rows or not has_same_offsets(starts, recorded.starts))
    )
