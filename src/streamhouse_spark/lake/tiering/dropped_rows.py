"""The rows of a dropped partition that the log still holds: named in the record of the lake snapshot that lacks them.

The lake drops a partition by files, so only its files tell which rows went. Whoever records the snapshot looks: the
process that dropped the partition, or, where that died, the next one that tiers the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.log.commits.actions import LakePair
from streamhouse_spark.log.commits.deletions import NameDropped, newly_lacking
from streamhouse_spark.log.commits.state import TableState


def dropped_with(state: TableState, lake: LakeTable, pair: LakePair) -> list[NameDropped]:
    """Return the action that names the rows that a lake snapshot lacks first, because their partition was dropped.

    Returns none where there are no such rows, or a file of another engine may have them (rows that it wrote again have
    lost their offsets), or the snapshot is gone already: then nobody leaves them out.
    """
    if state.primary_key or not state.partition_by or not state.begins_at(pair.starts):
        return []
    grown, applied = newly_lacking(state.deletions, state.lake, pair)
    if grown <= max(applied, 0):
        return []
    tiered = {b: OffsetRange(log.start, min(log.end, pair.offsets.get(b, 0))) for b, log in state.buckets.items()}
    ranges = {bucket: offsets for bucket, offsets in tiered.items() if offsets.start < offsets.end}
    with suppress(SnapshotExpiredError):
        held = lake.held_offsets(pair.snapshot_id, ranges) if ranges else {}
        if held is not None:
            named = (dict(deletion.rows) for deletion in state.dropped_rows.named)
            return [NameDropped(_missing(ranges, [dict(held), dict(state.deleted), *named]), grown)]
    return []


def _missing(ranges: Mapping[int, OffsetRange], known: list[dict[int, OffsetRuns]]) -> dict[int, OffsetRuns]:
    """Return bucket → offsets of the ranges that none of the others has."""
    found = {}
    for bucket, wanted in ranges.items():
        left = OffsetRuns.dense(wanted.start, len(wanted))
        for rows in known:
            if bucket in rows:
                left = left.without(rows[bucket])
        if left:
            found[bucket] = left
    return found
