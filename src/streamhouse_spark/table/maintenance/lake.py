"""Maintenance of the lake table: its operations, and their order in `Table.maintain` and the tiering service.

Each step has its own commits, if there is something to do. A step that conflicts with tiering or another engine is
deferred to the next run, and later steps continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from typing import Final, Literal, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.expressions.filters import Filter, Projection
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.parquet.compaction import RunGroups
from streamhouse_spark.lake.tiering.record_snapshot import record_latest_snapshot
from streamhouse_spark.lake.types import SNAPSHOTS_KEPT, Claim, CompactReport, ExpireReport, ExpiryRules, ManifestReport
from streamhouse_spark.log.actions import Action, MarkOrphans
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

SNAPSHOTS_KEPT_MS = 24 * 3600 * 1000
SNAPSHOTS_KEPT_MAX = 200
"""If there are more snapshots, those older than `SNAPSHOTS_MANY_KEPT_MS` expire, because every round reads and writes
the metadata of all snapshots.
"""
SNAPSHOTS_MANY_KEPT_MS = 3600 * 1000

LakeStep = Literal["compact", "expire", "orphans", "metadata"]
LAKE_STEPS: Final[tuple[LakeStep, ...]] = ("compact", "expire", "orphans", "metadata")
"""The steps in order. Each step leaves files for the next steps to delete."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LakeMaintainReport:
    """The changes of the lake table, or with ``dry_run`` the changes that would be made."""

    compacted: CompactReport = field(default_factory=CompactReport)
    expired: ExpireReport = field(default_factory=ExpireReport)
    orphans: tuple[str, ...] = ()
    """Keys of orphan files."""
    metadata: tuple[str, ...] = ()
    """Keys of superseded metadata versions."""
    conflicts: tuple[str, ...] = ()
    """The error text of each step that failed with a conflict."""


def maintain_lake(
    table: TableHandle,
    lake: LakeTable,
    grace_ms: int,
    *,
    dry_run: bool = False,
    steps: Collection[LakeStep] = LAKE_STEPS,
) -> LakeMaintainReport:
    """Run the ``steps`` that the properties of the table enable, in the order of `LAKE_STEPS`.

    Raises the errors of the steps, except for conflicts, which are reported.
    """
    report = LakeMaintainReport()
    properties, conflicts = table.properties, []

    def step(name: LakeStep, work: Callable[[], T], nothing: T) -> T:
        if name not in steps:
            return nothing
        try:
            return work()
        except CommitConflictError as conflict:
            logger.info("maintenance of the lake of %s is deferred to the next run: %s", table.name, conflict)
            conflicts.append(str(conflict))
            return nothing

    none: list[str] = []
    with lake.cache_metadata_for_round():  # commits are validated against the latest metadata
        if properties.datalake_auto_compaction:
            compacted = step("compact", lambda: lake.compact(dry_run=dry_run), report.compacted)
            report = replace(report, compacted=compacted)
        if properties.datalake_auto_expire_snapshot:
            expired = step("expire", lambda: _expire_if_due(table, lake, dry_run=dry_run), report.expired)
            report = replace(report, expired=expired)
        orphans = step("orphans", lambda: lake.remove_orphans(grace_ms=grace_ms, dry_run=dry_run), none)
        files = lake.capabilities.file_rewrite
        pruned = [] if files is None else step("metadata", lambda: files.prune_metadata(dry_run=dry_run), none)
    return replace(report, orphans=tuple(orphans), metadata=tuple(pruned), conflicts=tuple(conflicts))


# -- operations -------------------------------------------------------------------------------------------------------


def compact(
    table: TableHandle,
    lake: LakeTable,
    *,
    purge: bool = False,
    dry_run: bool = False,
    run: RunGroups | None = None,
) -> CompactReport:
    """Compact all eligible files; see `LakeView.compact`.

    The work is done in this process in commits of about a gigabyte or, except for primary-key tables, by ``run`` in
    commits of 16 gigabytes.
    """
    total = lake.compact(purge=purge, dry_run=dry_run, run=run)
    last = total
    while last.snapshot is not None:
        last = lake.compact(purge=purge, run=run)
        total = _add_reports(total, last)
        if last.files_removed <= last.files_added and not last.purged_rows:
            break  # no further progress
    logger.info("compacted %s: %s", table.name, total)
    return total


def _add_reports(total: CompactReport, last: CompactReport) -> CompactReport:
    return CompactReport(
        total.files_removed + last.files_removed,
        total.files_added + last.files_added,
        total.rows + last.rows,
        last.snapshot or total.snapshot,
        total.healed_rows + last.healed_rows,
        total.purged_rows + last.purged_rows,
    )


def optimize(
    table: TableHandle,
    lake: LakeTable,
    order_by: str,
    *,
    chosen: Filter | None = None,
    dry_run: bool = False,
    run: RunGroups | None = None,
) -> CompactReport:
    """Cluster the rows of files; see `LakeView.optimize`.

    The work is done in this process in commits of about a gigabyte, or by ``run`` in commits of 16 gigabytes.
    """
    from streamhouse_spark.lake.parquet.clustering import CLUSTERED_FILE_BYTES, Clustering, parse_sort_order

    state = table.refresh()
    order = parse_sort_order(order_by, state.schema)
    clustering = Clustering(
        order, order.fingerprint(state.schema), min(CLUSTERED_FILE_BYTES, lake.binding.spec.target_file_bytes)
    )
    node = Projection.of(state.schema, None, chosen).node
    splits = lake.plan_read(node=node, schema=state.schema).splits if lake.exists() else ()
    files = {split.location for split in splits}  # not files of later rounds, or it might never end
    rewritable = lake.capabilities.file_rewrite
    if rewritable is None or state.primary_key:
        kind = "a primary key" if state.primary_key else "a Paimon lake"
        raise InvalidOptionError(
            f"cannot optimize table {table.name}: it has {kind}; optimize supports log tables with an Iceberg lake"
        )
    total = last = rewritable.cluster(clustering, files=files, dry_run=dry_run, run=run)
    while last.snapshot is not None:
        last = rewritable.cluster(clustering, files=files, run=run)
        total = _add_reports(total, last)
    logger.info("optimized %s by %s: %s", table.name, order, total)
    return total


def expire_snapshots(
    table: TableHandle, lake: LakeTable, *, retain_last: int, older_than_ms: int | None, dry_run: bool = False
) -> ExpireReport:
    """Expire snapshots and delete files that only they need; see `LakeView.expire_snapshots`.

    The snapshot with the latest offsets is kept too, and recorded if the recorded snapshot expires. A record marks the
    expiring snapshots, so that no tag can name them. **Commit point:** the lake's metadata version. A crash after it
    leaves orphan files.
    """
    if type(retain_last) is not int or retain_last < 1:
        raise InvalidOptionError(f"retain_last is {retain_last!r}, expected at least 1")
    now_ms = table.storage.now_ms()
    keep_ms = SNAPSHOTS_KEPT_MS if older_than_ms is None else now_ms - older_than_ms
    if keep_ms < 0:
        raise InvalidOptionError(f"older_than is {-keep_ms} ms in the future, expected a past time")
    tagged = list_tagged_snapshots(table)
    return lake.expire(
        keep_last=retain_last, keep_ms=keep_ms, dry_run=dry_run, tagged=tagged, claim=make_expiry_claim(table)
    )


def rewrite_manifests(table: TableHandle, lake: LakeTable, *, dry_run: bool = False) -> ManifestReport:
    """Combine small manifests; see `SupportsFileRewrite.rewrite_manifests`."""
    rewritable = lake.capabilities.file_rewrite
    if rewritable is None:
        raise InvalidOptionError(
            f"cannot rewrite manifests of table {table.name}: it has a {table.properties.datalake_format} lake, "
            "expected Iceberg"
        )
    return rewritable.rewrite_manifests(dry_run=dry_run)


def list_tagged_snapshots(table: TableHandle) -> frozenset[int]:
    """Return the lake snapshots of all tags in the latest state."""
    tags = table.refresh().tags.values()
    return frozenset(tag.lake_snapshot for tag in tags if tag.lake_snapshot is not None)


def make_expiry_claim(table: TableHandle) -> Claim:
    """Return a function that commits a record before an expiry, so that no tag can name the expiring snapshots.

    Tags are records of the same log. A tag before the record aborts the expiry, and a tag after it is rejected
    (`table.versioning.tags`). The marks are kept until a later expiry finds the snapshots deleted, because a stalled
    expiry may resume at any time.
    """

    def claim(doomed: Collection[int], present: Collection[int]) -> None:
        recorded = table.state.recorded_lake
        if recorded is not None and recorded.snapshot_id in doomed:  # for example after a compaction of the lake
            record_latest_snapshot(table.log, table.open_lake())

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            if state.lake is not None and state.lake.snapshot_id in doomed and state.deletions:
                raise CommitConflictError(
                    f"lake snapshot {state.lake.snapshot_id} of {state.name} cannot expire: it has pending deletes; "
                    "nothing was expired, tier the table and retry"
                )
            tag_names = {tag.lake_snapshot: name for name, tag in state.tags.items()}
            if named := sorted(tag_names[snapshot] for snapshot in doomed if snapshot in tag_names):
                raise CommitConflictError(
                    f"a lake snapshot of {state.name} cannot expire: tag {named[0]!r} was created for its version; "
                    "nothing was expired, retry"
                )
            expiring = frozenset(doomed) | state.expiring.intersection(present)
            return () if expiring == state.expiring else (MarkOrphans((), expiring),)

        table.log.commit(plan)

    return claim


def _expire_if_due(table: TableHandle, lake: LakeTable, *, dry_run: bool) -> ExpireReport:
    """Expire snapshots older than a day or, if frequent rounds create many, older than an hour."""
    tagged = list_tagged_snapshots(table)
    extra_rules = ExpiryRules(SNAPSHOTS_KEPT_MAX, SNAPSHOTS_MANY_KEPT_MS)
    return lake.expire(
        keep_last=SNAPSHOTS_KEPT,
        keep_ms=SNAPSHOTS_KEPT_MS,
        extra_rules=extra_rules,
        dry_run=dry_run,
        tagged=tagged,
        claim=make_expiry_claim(table),
    )
