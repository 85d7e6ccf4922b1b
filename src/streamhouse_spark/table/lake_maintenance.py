"""Maintenance of the lake table: its operations, and their order in `Table.maintain` and the tiering service.

Each step is a commit of its own, or none where there is nothing to do. One that loses a race against tiering, or
against another engine, is left to the next time, and the steps behind it go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from typing import Final, Literal, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.model.manifest_report import ManifestReport
from streamhouse_spark.lake.model.values import Claim, CompactReport, ExpireReport, ExpiryRules
from streamhouse_spark.lake.parquet.compaction import RunGroups
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.lake.tiering.record_snapshot import record_newest
from streamhouse_spark.log.commits.actions import Action, MarkOrphans
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.query.projection import Filter, Projection

logger = logging.getLogger(__name__)

SNAPSHOTS_KEPT = 10
SNAPSHOTS_KEPT_MS = 24 * 3600 * 1000
SNAPSHOTS_KEPT_MAX = 200
"""Limit of kept snapshots; beyond it, those older than `SNAPSHOTS_MANY_KEPT_MS` go: every round reads and writes all of
them."""
SNAPSHOTS_MANY_KEPT_MS = 3600 * 1000

LakeStep = Literal["compact", "expire", "orphans", "metadata"]
LAKE_STEPS: Final[tuple[LakeStep, ...]] = ("compact", "expire", "orphans", "metadata")
"""The steps in the order in which they are done: each leaves work for the next."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LakeMaintainReport:
    """Changes of the lake table, or with ``dry_run`` the changes that would be made."""

    compacted: CompactReport = field(default_factory=CompactReport)
    expired: ExpireReport = field(default_factory=ExpireReport)
    orphans: tuple[str, ...] = ()
    """Keys of files that no snapshot needs."""
    metadata: tuple[str, ...] = ()
    """Keys of superseded versions of the metadata."""
    conflicts: tuple[str, ...] = ()
    """The error text of each step that lost a race."""


def maintain_lake(
    table: TableHandle,
    lake: LakeTable,
    grace_ms: int,
    *,
    dry_run: bool = False,
    steps: Collection[LakeStep] = LAKE_STEPS,
) -> LakeMaintainReport:
    """Do those of ``steps`` that the table's properties ask for, in the order of `LAKE_STEPS`.

    Raises the errors of the steps, except conflicts: these are in the report.
    """
    report = LakeMaintainReport()
    properties, conflicts = table.properties, []

    def step(name: LakeStep, work: Callable[[], T], nothing: T) -> T:
        if name not in steps:
            return nothing
        try:
            return work()
        except CommitConflictError as conflict:
            logger.info("maintenance of the lake of %s goes on next time: %s", table.name, conflict)
            conflicts.append(str(conflict))
            return nothing

    none: list[str] = []
    with lake.one_look():  # each commit is validated on what is there by then
        if properties.datalake_auto_compaction:
            compacted = step("compact", lambda: lake.compact(dry_run=dry_run), report.compacted)
            report = replace(report, compacted=compacted)
        if properties.datalake_auto_expire_snapshot:
            expired = step("expire", lambda: _expire_if_due(table, lake, dry_run=dry_run), report.expired)
            report = replace(report, expired=expired)
        orphans = step("orphans", lambda: lake.remove_orphans(grace_ms=grace_ms, dry_run=dry_run), none)
        pruned = step("metadata", lambda: lake.prune_metadata(dry_run=dry_run), none)
    return replace(report, orphans=tuple(orphans), metadata=tuple(pruned), conflicts=tuple(conflicts))


# -- verbs ------------------------------------------------------------------------------------------------------------


def compact(
    table: TableHandle,
    lake: LakeTable,
    *,
    purge: bool = False,
    dry_run: bool = False,
    run: RunGroups | None = None,
) -> CompactReport:
    """Compact all files that are worth it, a commit for about a gigabyte. **Commit point:** the lake's, of each of
    these. Files of which more than a tenth of the rows are deleted are worth it, with ``purge`` all that have any.

    Works in this process, or as ``run`` does: then of 16 gigabytes each, with a primary key as before. The properties
    need not ask for it. Raises `CommitConflictError` where tiering or another engine was faster, what was committed
    before stays; `LakeMismatchError`, `CommitStateUnknownError`.
    """
    total = lake.compact(purge=purge, dry_run=dry_run, run=run)
    last = total
    while last.snapshot is not None:
        last = lake.compact(purge=purge, run=run)
        total = _add_reports(total, last)
        if last.files_removed <= last.files_added and not last.purged_rows:
            break  # nothing becomes less
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
    """Write files again, each with a range of ``order_by``: ``a, b`` or ``zorder(a, b)``. Files that were written so
    before are left alone until about as many bytes lie beside them.

    **Commit point:** the lake's, of about a gigabyte each. ``chosen`` restricts it to files that may hold rows of a
    condition. Works by bucket and partition, in this process, or as ``run`` does: then of 16 gigabytes each. Rows,
    their offsets and older snapshots stay.

    Raises `InvalidOptionError` for a table with a primary key, for a Paimon lake and for an order that cannot be;
    `SchemaMismatchError` for an unknown column; `CommitConflictError` where rows were deleted or files replaced
    meanwhile, what was committed before stays; `LakeMismatchError`, `CommitStateUnknownError`.
    """
    from streamhouse_spark.lake.parquet.clustering import CLUSTERED_FILE_BYTES, Clustering
    from streamhouse_spark.lake.parquet.zorder import parse_order

    state = table.refresh()
    order = parse_order(order_by, state.schema)
    how = Clustering(order, order.mark(state.schema), min(CLUSTERED_FILE_BYTES, lake.place.spec.target_file_bytes))
    node = Projection.of(state.schema, None, chosen).node
    splits = lake.plan_read(node=node, schema=state.schema).splits if lake.exists() else ()
    files = {split.location for split in splits}  # not those of later rounds: beside a busy writer there is no end
    total = last = lake.cluster(how, files=files, dry_run=dry_run, run=run)
    if total is None or last is None:
        kind = "a primary key, in whose order its files are" if state.primary_key else "a Paimon lake"
        raise InvalidOptionError(f"table {table.name} has {kind}; optimize is for Iceberg lakes of tables without one")
    while last.snapshot is not None:
        last = lake.cluster(how, files=files, run=run) or CompactReport()
        total = _add_reports(total, last)
    logger.info("optimized %s by %s: %s", table.name, order, total)
    return total


def expire_snapshots(
    table: TableHandle, lake: LakeTable, *, retain_last: int, older_than_ms: int | None, dry_run: bool = False
) -> ExpireReport:
    """Drop snapshots made before a time, but for the newest ``retain_last``, and the files that only they need.

    ``older_than_ms`` is a time since 1970, a day ago where it is None. Snapshots that a tag or branch names stay, and
    so does the one with the newest offsets, which is recorded where the recorded one goes. Then a record says which go,
    so that no tag names one from then on. **Commit point:** the lake's metadata version; after a crash behind it the
    files that are left are orphans.

    Raises `InvalidOptionError` for fewer than one snapshot or a time that is yet to come, `CommitConflictError`.
    """
    if type(retain_last) is not int or retain_last < 1:
        raise InvalidOptionError(f"retain_last is {retain_last!r}, expected at least 1: the newest is in use")
    now_ms = table.storage.now_ms()
    keep_ms = SNAPSHOTS_KEPT_MS if older_than_ms is None else now_ms - older_than_ms
    if keep_ms < 0:
        raise InvalidOptionError(f"older_than lies {-keep_ms} ms in the future; give a time that has passed")
    tagged = list_tagged_snapshots(table)
    return lake.expire(
        keep_last=retain_last, keep_ms=keep_ms, dry_run=dry_run, tagged=tagged, claim=make_expiry_claim(table)
    )


def rewrite_manifests(table: TableHandle, lake: LakeTable, *, dry_run: bool = False) -> ManifestReport:
    """See `LakeTable.rewrite_manifests`. Raises `InvalidOptionError` for a lake that has nothing to join."""
    report = lake.rewrite_manifests(dry_run=dry_run)
    if report is None:
        raise InvalidOptionError(
            f"table {table.name} has a {table.properties.datalake_format} lake, whose manifests are not rewritten; "
            "only those of Iceberg are"
        )
    return report


def list_tagged_snapshots(table: TableHandle) -> frozenset[int]:
    """Return the lake snapshots that tags of the table need, as of its newest record."""
    tags = table.refresh().tags.values()
    return frozenset(tag.lake_snapshot for tag in tags if tag.lake_snapshot is not None)


def make_expiry_claim(table: TableHandle) -> Claim:
    """Return the function that lets no tag name snapshots which an expiry takes away, by one record.

    Tags are records of the same log. One before that record ends the expiry, which leaves the snapshot to the next
    time; one behind it is refused (`table.tags`). Marks stay until a later expiry finds the snapshots gone: an expiry
    that sleeps may wake up at any time.
    """

    def claim(doomed: Collection[int], present: Collection[int]) -> None:
        recorded = table.state.recorded_lake
        if recorded is not None and recorded.snapshot_id in doomed:  # as behind a compaction: the newest one stays
            record_newest(table.log, table.open_lake())

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            if state.lake is not None and state.lake.snapshot_id in doomed and state.deletions:
                raise CommitConflictError(
                    f"rows of {state.name} were deleted in a lake snapshot that was about to be expired, and no round "
                    "has deleted them in the lake yet; nothing was expired, tier the table and try again"
                )
            tag_names = {tag.lake_snapshot: name for name, tag in state.tags.items()}
            if named := sorted(tag_names[snapshot] for snapshot in doomed if snapshot in tag_names):
                raise CommitConflictError(
                    f"tag {named[0]!r} of {state.name} was given to a version whose lake snapshot was about to be "
                    "expired; nothing was expired, try again"
                )
            expiring = frozenset(doomed) | state.expiring.intersection(present)
            return () if expiring == state.expiring else (MarkOrphans((), expiring),)

        table.log.commit(plan)

    return claim


def _expire_if_due(table: TableHandle, lake: LakeTable, *, dry_run: bool) -> ExpireReport:
    """Expire snapshots older than a day or, if rounds are so quick that there are many, older than an hour."""
    tagged = list_tagged_snapshots(table)
    many = ExpiryRules(SNAPSHOTS_KEPT_MAX, SNAPSHOTS_MANY_KEPT_MS)
    return lake.expire(
        keep_last=SNAPSHOTS_KEPT,
        keep_ms=SNAPSHOTS_KEPT_MS,
        many=many,
        dry_run=dry_run,
        tagged=tagged,
        claim=make_expiry_claim(table),
    )
