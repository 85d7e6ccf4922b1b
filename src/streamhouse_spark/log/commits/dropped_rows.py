"""Rows that recorded lake snapshots lack and that no record names: those of dropped partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.log.commits.actions import LakePair


def drops_rows(before: LakePair | None, after: LakePair, deleted: Mapping[int, OffsetRuns]) -> bool:
    """Tell whether a snapshot lacks rows that the one recorded ``before`` has, and not because records deleted them.

    Both are of one truncation. ``deleted`` are the rows that records deleted, as far as that is known: a round that
    goes on with the rows of earlier records lacks those among them, and tells of no newer record.
    """
    dropped_rows, told, offsets = (before.dropped_rows, before.told, before.offsets) if before else (0, 0, {})
    if after.told != told:
        return False
    ranges = {bucket: (offsets.get(bucket, 0), end) for bucket, end in after.offsets.items()}
    new = [deleted[b].within(OffsetRange(start, end)) for b, (start, end) in ranges.items() if b in deleted]
    return after.dropped_rows - dropped_rows > sum(runs.num_rows for runs in new)
