"""Rows of a dropped partition, named in the record of the lake snapshot that dropped them.

The lake drops a partition by files, so only its files show which rows were dropped. The process that records the
snapshot compares them: the one that dropped the partition or, if it died, the next to tier the table. Rows with offsets
are named by offset if the log still holds them, others by file and position.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError, SnapshotExpiredError
from streamhouse_spark.lake.model.values import same_offsets
from streamhouse_spark.lake.parquet.live_rows import group_by_bucket, read_live_rows
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.log.commits.actions import TieredSnapshot
from streamhouse_spark.log.commits.delete_vectors import (
    FileRows,
    PartitionDropRows,
    count_newly_dropped,
    count_rows,
    unapplied_file_deletes,
    union_deleted_file_rows,
    without_rows,
)
from streamhouse_spark.log.commits.state import TableState


def make_partition_drops(state: TableState, lake: LakeTable, pair: TieredSnapshot) -> list[PartitionDropRows]:
    """Return the action that names the rows that a lake snapshot dropped with their partition.

    Returns none if there are no such rows, or if the lake no longer shows which: then no reader leaves them out.
    """
    if state.primary_key or not state.partition_by or not state.begins_at(pair.starts):
        return []
    applied_through, without_offsets = (
        (state.lake.applied_through, state.lake.dropped_without_offsets) if state.lake is not None else (0, 0)
    )
    of_files = (
        deletion
        for deletion in unapplied_file_deletes(state.deletions, applied_through)
        if deletion.commit <= pair.applied_through
    )
    grown, applied = count_newly_dropped(state.deletions, state.lake, pair)
    if pair.dropped_without_offsets == without_offsets and grown <= max(
        applied + count_rows(union_deleted_file_rows(of_files)), 0
    ):
        return []
    tiered = {b: OffsetRange(log.start, min(log.end, pair.offsets.get(b, 0))) for b, log in state.buckets.items()}
    ranges = {bucket: offsets for bucket, offsets in tiered.items() if offsets.start < offsets.end}
    with suppress(SnapshotExpiredError, LakeRolledBackError, LakeMismatchError):
        if (lost_rows := find_lost_rows(state, lake, pair)) is not None:
            return [_name_lost_rows(lost_rows, ranges)]
    with suppress(SnapshotExpiredError):
        held_runs = lake.find_held_offsets(pair.snapshot_id, ranges) if ranges else {}
        if held_runs is not None:
            named = (dict(deletion.rows) for deletion in state.dropped_rows.named)
            missing = _find_missing_offsets(ranges, [dict(held_runs), dict(state.deleted), *named])
            return [PartitionDropRows(missing, grown, total=grown)]
    return []


def _name_lost_rows(lost_rows: LostLogRows, ranges: Mapping[int, OffsetRange]) -> PartitionDropRows:
    """Name lost rows by offset where the log holds them, within ``ranges``, and by file position otherwise."""
    hot_runs = {bucket: runs.within(ranges[bucket]) for bucket, runs in lost_rows.rows.items() if bucket in ranges}
    rows = {bucket: runs for bucket, runs in hot_runs.items() if runs}
    snapshot_id = lost_rows.snapshot_id if lost_rows.files else None
    return PartitionDropRows(rows, lost_rows.num_counted, lost_rows.files, snapshot_id, lost_rows.num_rows)


def _find_missing_offsets(
    ranges: Mapping[int, OffsetRange], known_runs: list[dict[int, OffsetSet]]
) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the ranges that are in none of ``known_runs``."""
    missing = {}
    for bucket, offsets in ranges.items():
        left = OffsetSet.dense(offsets.start, len(offsets))
        for rows in known_runs:
            if bucket in rows:
                left = left.without(rows[bucket])
        if left:
            missing[bucket] = left
    return missing


# -- by the files that went -------------------------------------------------------------------------------------------


class _PartitionDrop(NamedTuple):
    """The single lake commit that dropped partitions since the recorded snapshot."""

    older: int
    newer: int
    num_rows: int


def _find_partition_drop(state: TableState, lake: LakeTable, pair: TieredSnapshot) -> _PartitionDrop | None:
    """Return the first lake commit after the recorded snapshot that dropped rows, or None if there are several or it
    has expired.
    """
    dropped_rows = state.lake.dropped_rows if state.lake is not None else 0
    newer = pair.snapshot_id
    for snapshot in lake.ancestors(pair.snapshot_id):
        if not same_offsets(snapshot.starts, pair.starts):
            return None
        if snapshot.dropped_rows < pair.dropped_rows:
            return (
                _PartitionDrop(snapshot.id, newer, pair.dropped_rows - dropped_rows)
                if snapshot.dropped_rows == dropped_rows
                else None
            )
        newer = snapshot.id
    return None


class LostLogRows(NamedTuple):
    """Rows removed by a partition drop, without those deleted before."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    files: FileRows
    """Rows without offsets, by their place in the snapshot."""
    snapshot_id: int
    """The lake snapshot before the drop."""
    num_counted: int
    """Number of the lake's dropped rows that these explain; see `PartitionDropRows.count`."""

    @property
    def num_rows(self) -> int:
        return count_rows(self.rows) + count_rows(self.files)


def find_lost_rows(state: TableState, lake: LakeTable, pair: TieredSnapshot) -> LostLogRows | None:
    """Return the rows that a lake snapshot dropped with their partition since the snapshot of a state.

    Compares the removed files with the added ones. Returns None if the row counts disagree with the drop, or if several
    commits dropped rows. Raises `SnapshotExpiredError`, `LakeRolledBackError`, `LakeMismatchError`.
    """
    if (drop := _find_partition_drop(state, lake, pair)) is None:
        return None
    schema, place = lake.place.spec.schema, lake.place
    before = lake.plan_read(snapshot_id=drop.older, schema=schema)
    after = lake.plan_read(snapshot_id=drop.newer, schema=schema)
    files_after, files_before = ({split.location for split in plan.splits} for plan in (after, before))
    removed = read_live_rows(
        place.files_at, [s for s in before.splits if s.location not in files_after], place.spec.writers
    )
    new = read_live_rows(
        place.files_at, [s for s in after.splits if s.location not in files_before], place.spec.writers
    )
    if any(file.bucket is None for file in new):
        return None
    own = without_rows(group_by_bucket(removed), group_by_bucket(new))
    names = StorageFiles(place.storage)
    files = {names.name_of(file.location): file.rows for file in removed if file.bucket is None and file.rows}
    if count_rows(own) + count_rows(files) != drop.num_rows:
        return None
    named, masked = state.dropped_rows.named.rows, union_deleted_file_rows(state.deletions)
    count = drop.num_rows - count_rows(files)
    own, files = without_rows(without_rows(own, state.deleted), named), without_rows(files, masked)
    return LostLogRows(own, files, drop.older, count)
