"""Lag of a stream behind its table. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.log.commits.state import BucketLog, TableState


def lag_ms(state: TableState, read: Mapping[int, int]) -> int | None:
    """Return the time from the commit of the first unread row to the latest commit with rows; 0 if all rows were read.

    ``read`` is bucket → first unread offset. Returns None if that row is no longer in the hot log, because its commit
    time is unknown. Times come from the writers' clocks.
    """
    waiting = [(log, read.get(bucket, 0)) for bucket, log in state.buckets.items() if log.end > read.get(bucket, 0)]
    if not waiting:
        return 0
    if any(offset < log.start for log, offset in waiting):
        return None
    newest = max(int(log.segments[-1].time_runs[1][-1]) for log in state.buckets.values() if log.segments)
    return max(0, newest - min(_time_ms(log, offset) for log, offset in waiting))


def _time_ms(log: BucketLog, offset: int) -> int:
    segment = next(s for s in log.segments if s.offsets.end > offset)
    return int(segment.commit_times_ms(OffsetRange(offset, offset + 1))[0])
