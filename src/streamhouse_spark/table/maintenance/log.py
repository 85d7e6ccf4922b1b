"""Maintenance of a table, for `Table.maintain`, the command line and the tiering service.

Each step has its own commit, and can be interrupted and repeated. Changes are archived before the log is trimmed, and
trimming stops at the archive. The log is trimmed before it is compacted, because a compacted segment is trimmed as a
whole, when its latest row may be trimmed. The lake is maintained last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, LakeRolledBackError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.snapshot_history import require_drops_applied, require_metadata, require_same_history
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.log.archive.maintenance import update_archive
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.gc.garbage_collection import CleanReport, check_grace, clean
from streamhouse_spark.log.gc.retention import expire_transactions, find_due_transactions, is_trimmed, trim
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.maintenance.lake import LAKE_STEPS, LakeMaintainReport, LakeStep, maintain_lake
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintainReport:
    """The changes of `Table.maintain`."""

    segments_merged: int
    """Number of segments that were replaced by larger ones."""
    trimmed_to: Mapping[int, int]
    """Bucket → new log start offset."""
    cleaned: CleanReport
    lake: LakeMaintainReport | None = None
    """None for a table without a lake table, or if ``table.datalake.enabled`` is false."""
    snapshots: int = 0
    """Number of KV snapshots that were written, one per bucket of a primary-key table."""
    archived: int = 0
    """Number of archived changes of a table with ``table.changelog.retention``."""


def maintain(
    table: TableHandle, *, grace_ms: int, dry_run: bool, lake_steps: Collection[LakeStep] = LAKE_STEPS
) -> MaintainReport:
    """Maintain the table; see `Table.maintain`. ``lake_steps`` selects the steps for the lake."""
    check_grace(grace_ms)
    require_no_branch(table.state, "maintenance")
    lake = table.open_lake() if table.refresh().recorded_lake is not None else None
    if lake is not None and not dry_run:
        reads: list[Callable[[], LakeSnapshot | None]] = [partial(lake.require_home, "maintenance"), lake.newest]
        _, latest = map_with_store_concurrency(table.storage, lambda read: read(), reads)
        _require_lake_complete(table, lake, latest)
    merged, trimmed, snapshots, archived = 0, {}, 0, 0
    if not dry_run:
        properties = table.properties
        archived = _archive(table)
        snapshots = _publish_snapshots(table)
        if _has_rows_to_trim(table):  # avoids a commit without effect
            trimmed = trim(
                table.log,
                properties.log_ttl_ms,
                lake_enabled=properties.datalake_enabled,
                limits=_durable_offsets(table, lake) if lake is not None else None,
                auto_partition=properties.auto_partition,
            )
        if find_due_transactions(table.state, table.storage.now_ms(), properties.transactions_ttl_ms):
            expire_transactions(table.log, properties.transactions_ttl_ms)
        merged = compact_inline_rows(table, table.state)
        merged += compact_small_segments(table, table.state)
        table.log.checkpoint(table.state)
    cleaned = clean(table.log, table.storage, grace_ms=grace_ms, dry_run=dry_run)
    lake_report = None
    if lake is not None and table.properties.datalake_enabled:
        lake_report = maintain_lake(table, lake, grace_ms, dry_run=dry_run, steps=lake_steps)
    return MaintainReport(merged, trimmed, cleaned, lake_report, snapshots, archived)


def _archive(table: TableHandle) -> int:
    """Archive new changes, if the table has a change archive. Returns their number."""
    retention_ms = table.properties.changelog_retention_ms
    if retention_ms is None and not table.state.archive:
        return 0
    return update_archive(table.log, table.storage, table.world, table.segment_options(), retention_ms)


def _publish_snapshots(table: TableHandle) -> int:
    """Write due key-value snapshots, up to which the log can be trimmed. Returns their number."""
    state = table.state
    if not state.primary_key:
        return 0
    from streamhouse_spark.kv.kv_snapshots import find_buckets_due_for_snapshot, write_snapshots
    from streamhouse_spark.write.upsert import PrimaryKeySchema

    properties = table.properties
    due = find_buckets_due_for_snapshot(
        state,
        table.storage.now_ms(),
        properties.log_ttl_ms,
        lake_enabled=properties.datalake_enabled,
        auto_partition=properties.auto_partition,
    )
    tablet_of = PrimaryKeySchema.of(state, table.storage.url).tablet_of
    return write_snapshots(table.log, table.storage, table.world, table.segment_options(), due, tablet_of)


def _has_rows_to_trim(table: TableHandle) -> bool:
    """Return whether rows in the cached state can be trimmed."""
    properties = table.properties
    return is_trimmed(
        table.state,
        table.storage.now_ms(),
        properties.log_ttl_ms,
        lake_enabled=properties.datalake_enabled,
        auto_partition=properties.auto_partition,
    )


def _durable_offsets(table: TableHandle, lake: LakeTable) -> Mapping[int, int]:
    """Return the offsets of a durable lake snapshot, up to which the log may be trimmed."""
    try:
        replaceable = lake.capabilities.snapshot_replacement
        durable = lake.newest() if replaceable is None else replaceable.find_durable()
    except CommitConflictError as conflict:
        logger.info("trimming the log of %s is deferred to the next run: %s", table.name, conflict)
        return {}
    return durable.offsets if durable is not None else {}


def _require_lake_complete(table: TableHandle, lake: LakeTable, latest: LakeSnapshot | None) -> None:
    """Raise if rows with recorded offsets are missing from the ``latest`` lake snapshot, before trimming loses them."""
    state = table.state
    recorded = state.lake
    require_same_history(table.log, latest)
    require_metadata(state, lake, latest)
    require_drops_applied(state, latest)
    lake_offsets = latest.offsets if latest is not None else {}
    offsets = recorded.offsets if recorded is not None else {}
    starts = latest.starts if latest is not None else {}
    if recorded is not None and not table.state.begins_at(starts):
        lake_offsets = starts  # a snapshot from before the truncation has no row of the table
    lost = {b: (lake_offsets.get(b, 0), offset) for b, offset in offsets.items() if lake_offsets.get(b, 0) < offset}
    replaceable = lake.capabilities.snapshot_replacement
    if lost and recorded is not None and replaceable is not None and replaceable.is_replaced(recorded.snapshot_id):
        raise CommitConflictError(
            f"{table.name}: another engine replaced lake snapshot {recorded.snapshot_id}, so rows are missing from the "
            f"lake (bucket: found, recorded) {lost}; nothing was trimmed. Tier the table to write these rows again"
        )
    if lost:
        raise LakeRolledBackError(
            f"{table.name}: the lake table was rolled back below the recorded offsets (bucket: found, recorded) "
            f"{lost}; nothing was trimmed. Roll the lake forward to its latest snapshot, or rebuild it from the log "
            "(streamhouse retier)",
        )
