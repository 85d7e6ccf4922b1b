"""Expiry of transaction entries, see `streamhouse_spark.log.transactions`.

Trimming: the offsets up to which the start of each bucket may advance.

The limits are the time to live or the age of partitions (`AutoPartition`), **and**, if the table has a lake, the
offsets of the recorded lake snapshot, **and** the end of the change archive, if the table has one, **and** the position
of each named consumer that reported within `CONSUMER_LIMIT_MS`. Pure, except `trim`, whose commit point is one record.
No files are deleted here: the record condemns them, and maintenance deletes them after the grace period, so that
readers of an earlier state continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamhouse_spark.config.table_properties import partition_columns_at
from streamhouse_spark.log.actions import Action, ExpireTransactions, Trim
from streamhouse_spark.log.archive.pages import usable_archive
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import AutoPartition


def find_due_transactions(state: TableState, now_ms: int, ttl_ms: int) -> tuple[str, ...]:
    """Return the application ids whose writers have not written for longer than ``ttl_ms``; empty if that is 0."""
    if ttl_ms <= 0:
        return ()
    return tuple(app_id for app_id, entry in state.transactions.items() if entry.time_ms <= now_ms - ttl_ms)


def expire_transactions(log: CommitLog, ttl_ms: int) -> int:
    """Compact the due transactions to their last versions. Return their number.

    **Commit point:** one record, or none if nothing is due. The clock only decides when an entry is compacted: every
    version is stored once before and after.
    """

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        due = find_due_transactions(state, time_ms, ttl_ms)
        return (ExpireTransactions(due),) if due else ()

    committed = log.commit(plan)
    return len(committed.before.transactions) - len(committed.state.transactions)


CONSUMER_LIMIT_MS = 7 * 24 * 3600 * 1000
"""Time without a report, in addition to the time to live, after which trimming no longer waits for a consumer."""
CONSUMER_RENEW_MS = 3600 * 1000
"""Minimum interval between records of a consumer that repeats its position."""


def effective_times_ms(segments: Sequence[Segment]) -> list[int]:
    """Return for each segment the latest time at which its last row can have been committed, never decreasing.

    Rows were committed in offset order, so a later, smaller time corrects a clock that ran ahead. One record from the
    future neither expires nor retains other rows.
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
    """Return bucket → new start, for the buckets whose start advances. ``ttl_ms`` 0 retains rows without a time limit.

    A segment is trimmed when it is older than ``ttl_ms``, or when all its rows are known to be in expired partitions,
    and every segment before it is trimmed too. Rows of expired partitions therefore wait for the rows before them.

    ``limits`` are offsets that no bucket is trimmed beyond, 0 for a bucket without an entry.

    A primary-key table is not trimmed beyond its latest snapshot by key, because current rows are computed from that
    snapshot and all later changes. With ``table.changelog.retention`` only changes in the change archive are trimmed.

    A disabled lake that held rows still limits trimming: the union read must connect to it without a gap, also after a
    truncation.
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
            # A later record from a clock that ran behind makes rows look old: use their own times if plausible.
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
    if rule.column not in columns:  # the table had another partition spec then
        return False
    return replace(rule, place=columns.index(rule.column)).all_expired(segment.partitions, now_ms)


def is_trimmed(
    state: TableState, now_ms: int, ttl_ms: int, *, lake_enabled: bool, auto_partition: AutoPartition | None = None
) -> bool:
    """Return whether `plan_trim` returns anything, without limits of the lake."""
    return bool(plan_trim(state, now_ms, ttl_ms, lake_enabled=lake_enabled, auto_partition=auto_partition))


def trim(
    log: CommitLog,
    ttl_ms: int,
    *,
    lake_enabled: bool,
    limits: Mapping[int, int] | None = None,
    auto_partition: AutoPartition | None = None,
) -> dict[int, int]:
    """Commit the trimming that `plan_trim` allows. Return the new starts, empty if there was nothing to trim."""

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        starts = plan_trim(
            state, time_ms, ttl_ms, lake_enabled=lake_enabled, limits=limits, auto_partition=auto_partition
        )
        return (Trim(starts),) if starts else ()

    committed = log.commit(plan)
    before, after = committed.before.buckets, committed.state.buckets
    return {b: after[b].start for b in after if after[b].start != before[b].start}
