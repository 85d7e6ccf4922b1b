"""Trimming: the offsets up to which the start of each bucket may advance.

At most as far as the time to live or the age of partitions (`AutoPartition`) allows, **and**, if the table has a lake,
up to the offsets of the recorded lake snapshot, **and** as far as the change archive reaches, where the table has one,
**and** to the position of each named consumer that reported within `CONSUMER_LIMIT_MS`. Pure, but for `trim`, whose
commit point is one record. Files are not touched here: the record condemns them, and cleaning deletes them after the
grace, so readers that pinned an earlier state go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamhouse_spark.config.auto_partition import AutoPartition
from streamhouse_spark.config.partition_specs import columns_at
from streamhouse_spark.log.archive.pages import usable_archive
from streamhouse_spark.log.commits.actions import Action, Trim
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState

CONSUMER_LIMIT_MS = 7 * 24 * 3600 * 1000
"""Silence, beyond the time to live, after which a consumer no longer holds trimming back."""
CONSUMER_RENEW_MS = 3600 * 1000
"""Shortest time after which a consumer that repeats its position is recorded again."""


def effective_times_ms(segments: Sequence[Segment]) -> list[int]:
    """Return for each segment the latest time at which its last row can have been committed, never decreasing.

    Rows before a row were committed before it, so a later, smaller time corrects a clock that ran ahead: one record
    from the future neither expires anything nor keeps everything.
    """
    times: list[int] = []
    latest = None
    for segment in reversed(segments):
        times_ms = segment.time_runs[1]
        last = int(times_ms[-1]) if latest is None else min(latest, int(times_ms[-1]))
        times.append(last)
        latest = min(last, int(times_ms.min()))
    return times[::-1]


def plan_trim(
    state: TableState,
    now_ms: int,
    ttl_ms: int,
    *,
    lake_enabled: bool,
    limits: Mapping[int, int] | None = None,
    auto_partition: AutoPartition | None = None,
) -> dict[int, int]:
    """Return bucket → new start, for the buckets whose start advances. ``ttl_ms`` 0 keeps everything that does not
    expire.

    A segment goes when it is older than ``ttl_ms``, or when the partitions of all its rows are known and have expired,
    and everything before it goes too: the log of a bucket is one row of offsets. Rows whose partitions have expired so
    wait for those before them.

    ``limits`` are offsets that no bucket is trimmed beyond, 0 for a bucket that they leave out.

    Of a table with a primary key nothing beyond the newest snapshot of its rows is trimmed, because current rows by key
    are made of that and all later changes. With ``table.changelog.retention`` nothing is that the change archive does
    not hold.

    A lake that was disabled after it held rows still limits trimming: the union read has to meet it without a gap, and
    after a truncation the lake goes on from there.
    """
    if ttl_ms <= 0 and auto_partition is None:
        return {}
    in_lake = lake_enabled or state.recorded_lake is not None
    active = [c for c in state.consumers.values() if ttl_ms <= 0 or c.time_ms > now_ms - ttl_ms - CONSUMER_LIMIT_MS]

    def waiting(bucket: int, end: int) -> list[int]:
        return [end, *(c.offsets.get(bucket, 0) for c in active)]

    keeps_changes, held = state.parsed.changelog_retention_ms is not None, usable_archive(state)
    starts = {}
    for bucket, log in state.buckets.items():
        limit = min(state.lake_offset(bucket) if in_lake else log.end, *waiting(bucket, log.end))
        if limits is not None:
            limit = min(limit, limits.get(bucket, 0))
        if state.primary_key:
            limit = min(limit, state.snapshots[bucket].offset if bucket in state.snapshots else log.start)
        if keeps_changes:
            limit = min(limit, held.end(bucket) if held else log.start)
        start = log.start
        for segment, time_ms in zip(log.segments, effective_times_ms(log.segments), strict=True):
            # A later record from a clock that ran behind makes rows look old: believe their own times, if they can be.
            own_ms = segment.time_runs[1]
            newest_ms = int(own_ms[own_ms <= now_ms].max(initial=time_ms))
            is_old = ttl_ms > 0 and newest_ms <= now_ms - ttl_ms
            if segment.end_offset > limit or not (is_old or _has_expired(state, segment, now_ms, auto_partition)):
                break
            start = segment.end_offset
        if start > log.start:
            starts[bucket] = start
    return starts


def _has_expired(state: TableState, segment: Segment, now_ms: int, rule: AutoPartition | None) -> bool:
    if rule is None:
        return False
    columns = columns_at(state.former_partitionings, state.partition_by, segment.schema_id)
    if rule.column not in columns:  # it names partitions by others, as the table was partitioned then
        return False
    return replace(rule, place=columns.index(rule.column)).are_expired(segment.partitions, now_ms)


def is_trimmed(
    state: TableState, now_ms: int, ttl_ms: int, *, lake_enabled: bool, auto_partition: AutoPartition | None = None
) -> bool:
    """Tell whether `plan_trim` finds something, where the lake sets no further limits."""
    return bool(plan_trim(state, now_ms, ttl_ms, lake_enabled=lake_enabled, auto_partition=auto_partition))


def trim(
    log: CommitLog,
    ttl_ms: int,
    *,
    lake_enabled: bool,
    limits: Mapping[int, int] | None = None,
    auto_partition: AutoPartition | None = None,
) -> dict[int, int]:
    """Commit the trimming that `plan_trim` allows. Returns the new starts, empty if there was nothing to trim."""

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        starts = plan_trim(
            state, time_ms, ttl_ms, lake_enabled=lake_enabled, limits=limits, auto_partition=auto_partition
        )
        return (Trim(starts),) if starts else ()

    committed = log.commit(plan)
    before, after = committed.before.buckets, committed.state.buckets
    return {b: after[b].start for b in after if after[b].start != before[b].start}
