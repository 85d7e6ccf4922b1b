"""Retention: how far the start of each bucket may advance, and which transaction entries are compacted.

Segments are trimmed by their age or that of their partitions (`AutoPartition`). Trimming never passes the offsets of
the recorded lake snapshot, the end of the change archive, or the position of a named consumer that reported within
`CONSUMER_LIMIT_MS`. The trim record condemns files. Maintenance deletes them after the grace period, so that readers of
an earlier state can finish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamhouse_spark.log.actions import Action, ExpireTransactions, Trim
from streamhouse_spark.log.archive.pages import find_usable_archive
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import AutoPartition, partition_columns_at

CONSUMER_LIMIT_MS = 7 * 24 * 3600 * 1000
"""Time without a report, in addition to the time to live, after which trimming no longer waits for a consumer."""


def effective_times_ms(segments: Sequence[Segment]) -> list[int]:
    """Return for each segment the latest possible commit time of its last row, in ascending order.

    Rows were committed in offset order. A smaller time of a later row therefore shows that an earlier clock was fast. A
    single record with a wrong time neither expires nor retains other rows.
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
    """Return bucket → new start, for the buckets whose start advances.

    A segment is trimmed if every segment before it is trimmed, and if it is older than ``ttl_ms``, or all its rows are
    known to be in expired partitions. ``ttl_ms`` 0 means no time limit. Rows of expired partitions therefore remain
    until the rows before them are trimmed. Trimming stops at the ``limits``, 0 for a bucket without an entry.

    A primary-key table is not trimmed beyond its latest KV snapshot, because current rows are computed from that
    snapshot and all later changes. With ``table.changelog.retention`` only changes in the change archive are trimmed.

    A disabled lake still limits trimming if it held rows: the union read needs the log from the end of the lake's
    rows, also after a truncation.
    """
    if ttl_ms <= 0 and auto_partition is None:
        return {}
    in_lake = lake_enabled or state.recorded_lake is not None
    active = [c for c in state.consumers.values() if ttl_ms <= 0 or c.time_ms > now_ms - ttl_ms - CONSUMER_LIMIT_MS]

    archives_changes, archive = state.parsed.changelog_retention_ms is not None, find_usable_archive(state)
    starts = {}
    for bucket, log in state.buckets.items():
        consumed = (consumer.offsets.get(bucket, 0) for consumer in active)
        limit = min(state.lake_offset(bucket) if in_lake else log.end, log.end, *consumed)
        if limits is not None:
            limit = min(limit, limits.get(bucket, 0))
        if state.primary_key:
            limit = min(limit, state.snapshots[bucket].offset if bucket in state.snapshots else log.start)
        if archives_changes:
            limit = min(limit, archive.end(bucket) if archive else log.start)
        start = log.start
        for segment, time_ms in zip(log.segments, effective_times_ms(log.segments), strict=True):
            # A later record of a slow clock makes rows look old: use their own times if plausible.
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
    columns = partition_columns_at(state.former_partitionings, state.partition_by, segment.schema_id)
    if rule.column not in columns:  # the segment has another partition spec
        return False
    return replace(rule, place=columns.index(rule.column)).all_expired(segment.partitions, now_ms)


def is_trimmed(
    state: TableState, now_ms: int, ttl_ms: int, *, lake_enabled: bool, auto_partition: AutoPartition | None = None
) -> bool:
    """Return whether `plan_trim` trims any bucket without ``limits``."""
    return bool(plan_trim(state, now_ms, ttl_ms, lake_enabled=lake_enabled, auto_partition=auto_partition))


def trim(
    log: CommitLog,
    ttl_ms: int,
    *,
    lake_enabled: bool,
    limits: Mapping[int, int] | None = None,
    auto_partition: AutoPartition | None = None,
) -> dict[int, int]:
    """Commit the result of `plan_trim`. Return the new starts, empty if nothing was trimmed."""

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        starts = plan_trim(
            state, time_ms, ttl_ms, lake_enabled=lake_enabled, limits=limits, auto_partition=auto_partition
        )
        return (Trim(starts),) if starts else ()

    committed = log.commit(plan)
    before, after = committed.before.buckets, committed.state.buckets
    return {b: after[b].start for b in after if after[b].start != before[b].start}


def find_due_transactions(state: TableState, now_ms: int, ttl_ms: int) -> tuple[str, ...]:
    """Return the application ids whose writers have not written for ``ttl_ms``; empty if ``ttl_ms`` is 0."""
    if ttl_ms <= 0:
        return ()
    return tuple(app_id for app_id, entry in state.transactions.items() if entry.time_ms <= now_ms - ttl_ms)


def expire_transactions(log: CommitLog, ttl_ms: int) -> int:
    """Compact the due transactions to their last versions. Return their number.

    **Commit point:** one record, or none if nothing is due. The clock only decides when an entry is compacted. A
    repeated version is detected before and after that.
    """

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        due = find_due_transactions(state, time_ms, ttl_ms)
        return (ExpireTransactions(due),) if due else ()

    committed = log.commit(plan)
    return len(committed.before.transactions) - len(committed.state.transactions)
