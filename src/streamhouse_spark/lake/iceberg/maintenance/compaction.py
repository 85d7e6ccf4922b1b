"""Upkeep of an Iceberg table of a log: joining adjacent small files, and expiring snapshots with their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import in_parallel
from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError
from streamhouse_spark.lake.file_access import FilesAhead, offset_files
from streamhouse_spark.lake.iceberg.clones.shared_files import select_own_files
from streamhouse_spark.lake.iceberg.commit import commit_snapshot
from streamhouse_spark.lake.iceberg.errors import commit_answers
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO, expect, lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.maintenance.delete_compaction import FileWithDeletes, select_files_to_purge
from streamhouse_spark.lake.iceberg.offsets import iter_ancestor_snapshots, newest_offsets, own_time_ms
from streamhouse_spark.lake.iceberg.refs import require_unchanged_refs
from streamhouse_spark.lake.iceberg.scan import own_projection, plan_tasks, position_deletes
from streamhouse_spark.lake.iceberg.snapshot_builder import Change
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import data_location, require_shape, require_written, write_context
from streamhouse_spark.lake.model.values import (
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    LakeFile,
    LakeProjection,
    WriteContext,
)
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY, TABLE_UUID_PROPERTY, offsets_text
from streamhouse_spark.lake.parquet.clustering import Clustering, write_cluster
from streamhouse_spark.lake.parquet.compaction import (
    COMPACT_FILES_MIN,
    DELETED_SHARE_MIN,
    SPREAD_BYTES_MAX,
    CompactGroup,
    Rewritten,
    RunGroups,
    in_this_process,
    limit_to_budget,
    list_new_files,
    merge_group,
    plan_groups,
    rewrite_groups,
)
from streamhouse_spark.lake.timestamp_correction import effective_times_ms
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import at_once


@dataclass(frozen=True, slots=True)
class RewriteTask(Portable):
    """All that a process needs to write a group; a `GroupWriter`."""

    how: Clustering | None
    """None to join files in the order of offsets."""
    context: WriteContext
    projection: LakeProjection

    def written(self, group: CompactGroup, storage: Storage, settings: Mapping[str, str], world: World) -> Rewritten:
        files = FilesAhead(storage, settings, group.splits())
        spec = IcebergFileSpec.from_json(self.context.lake)
        write = merge_group if self.how is None else partial(write_cluster, self.how)
        written = write(group, self.context, spec, self.projection, files, world.ids)
        return Rewritten(tuple(written), group.num_rows)


# -- compaction -------------------------------------------------------------------------------------------------------


def compact(
    place: IcebergTableBinding, *, purge: bool, dry_run: bool, run: RunGroups | None = None
) -> tuple[CompactReport, int | None]:
    """Compact as `LakeTable.compact` does; returns the report and the id of the new snapshot."""
    current_plan = find_current(place, dry_run=dry_run)
    if current_plan is None:
        return CompactReport(), None
    table, planned = current_plan
    with lake_metadata(table.location()):
        groups = plan_compaction(place, table, planned, purge=purge)
        if not dry_run:
            groups = list(limit_to_budget(groups, None if run is None else SPREAD_BYTES_MAX))
    return rewrite(place, table, planned, groups, None, dry_run=dry_run, run=run)


def find_current(place: IcebergTableBinding, *, dry_run: bool) -> tuple[Table, Snapshot] | None:
    """Return the lake table and its newest snapshot, brought up to the table's schema but for a dry run; None where
    there is none.
    """
    if not dry_run:
        place.migrate_columns()
    table = place.find()
    snapshot = table.metadata.current_snapshot() if table else None
    if table is None or snapshot is None:
        return None
    place.require_owner(table.metadata)
    expect(table.io, [(snapshot.manifest_list, 0)])
    return table, snapshot


def rewrite(
    place: IcebergTableBinding,
    table: Table,
    planned: Snapshot,
    groups: Sequence[CompactGroup],
    how: Clustering | None,
    *,
    dry_run: bool,
    run: RunGroups | None = None,
) -> tuple[CompactReport, int | None]:
    """Write groups of files of a snapshot again; returns the report and the id of the new snapshot.

    The groups are written in this process, or as ``run`` does. **Commit point:** the lake's metadata version; after a
    crash before it the new files are orphans. Raises `CommitConflictError` if rows were deleted, or one of the files
    was replaced, since the groups were planned.
    """
    removed = [file.location for group in groups for file in group.files]
    rows = sum(group.num_rows for group in groups)
    purged_rows = sum(file.num_deleted for group in groups for file in group.stored)
    if not groups or dry_run:
        num_written = sum(group.num_rows > 0 for group in groups)
        return CompactReport(len(removed), num_written, rows, purged_rows=purged_rows), None
    context = write_context(place)
    spec = IcebergFileSpec.from_json(context.lake)
    task = RewriteTask(how, context, own_projection(table.metadata, place.spec))
    run = run or in_this_process(place.storage, place.settings, place.world)
    added = list_new_files(rewrite_groups(run, groups, task, table.location()))
    if sum(file.num_rows for file in added) != rows:
        raise CommitConflictError(f"lake table {table.location()}: merging read other rows than planned; try again")

    def validated(metadata: TableMetadata) -> Change:
        place.require_owner(metadata)
        require_shape(metadata, spec)
        require_written(place, metadata, added, spec)
        return make_compaction_change(table, planned, groups, added, metadata)

    snapshot = commit_snapshot(place.catalog, place.identifier, validated, place.world)
    return CompactReport(len(removed), len(added), rows, purged_rows=purged_rows), snapshot.snapshot_id


def plan_compaction(
    place: IcebergTableBinding, table: Table, snapshot: Snapshot, *, purge: bool = False
) -> list[CompactGroup]:
    """Plan runs of small files whose offset ranges follow each other, with nothing of their partition in between, and
    each file of which many rows are deleted, with ``purge`` any.

    Files of an older partition spec are joined with each other alone, and written by the newest. Files of other engines
    are left alone, and so is a snapshot that has deletes of another kind: deleted rows could come back.
    """
    with_deletes = find_files_with_deletes(table, snapshot)
    if with_deletes is None:
        return []
    target_bytes = place.spec.target_file_bytes
    files = place.files_at(data_location(table))
    purged = list(
        select_files_to_purge(with_deletes, files, place.spec.writers, share_min=0 if purge else DELETED_SHARE_MIN)
    )
    # One that is as large as those which are left alone stands between its neighbours.
    current = [
        replace(file.stored(), size_bytes=max(file.data.file_size_in_bytes, target_bytes))
        if file.deletes
        else file.stored()
        for file in with_deletes
    ]

    sizes = {file.data.file_path: file.data.file_size_in_bytes for file in with_deletes}
    footers = partial(offset_files, place.storage, place.settings, sizes, place.spec.writers)
    joined = plan_groups(current, footers, target_bytes=target_bytes, files_min=COMPACT_FILES_MIN)
    return [*joined, *purged]


def find_files_with_deletes(table: Table, snapshot: Snapshot) -> list[FileWithDeletes] | None:
    """Return the data files of a snapshot; None if it has deletes that are not known by the file."""
    if not _delete_manifests(snapshot, table):
        manifests = manifests_of(table.io, snapshot)
        expect(table.io, ((m.manifest_path, m.manifest_length) for m in manifests))
        return [FileWithDeletes(e.data_file, ()) for m in manifests for e in m.fetch_manifest_entry(table.io)]
    try:
        tasks = plan_tasks(table, snapshot)
        for delete in (delete for task in tasks for delete in task.delete_files):
            position_deletes(delete, table.location())
    except LakeMismatchError:
        return None
    return [FileWithDeletes(task.file, tuple(task.delete_files)) for task in tasks]


def make_compaction_change(
    table: Table, planned: Snapshot, groups: Sequence[CompactGroup], added: Sequence[LakeFile], metadata: TableMetadata
) -> Change:
    """Return the change to the same rows in other files, with the offsets of ``metadata``, so that older snapshots can
    go.

    Raises `CommitConflictError` if rows were deleted since it was planned.
    """
    head = metadata.current_snapshot()
    if head is None or (head.snapshot_id != planned.snapshot_id and _has_other_deletes(head, planned, table)):
        raise CommitConflictError(
            f"lake table {metadata.location}: rows were deleted while files were being merged; try again"
        )
    summary = carry_offsets(metadata)
    removed = [file.location for group in groups for file in group.stored]
    deletes = sorted({delete for group in groups for file in group.stored for delete in file.own_deletes})
    return Change(Operation.REPLACE, added, removed, deletes, summary=summary, moves_tag=bool(summary))


def carry_offsets(metadata: TableMetadata) -> dict[str, str]:
    """Return the summary of a snapshot with the rows of the current one."""
    owner = metadata.properties[TABLE_UUID_PROPERTY]
    offsets = newest_offsets(metadata, owner)
    if offsets is None:
        return {}
    text = offsets_text(
        owner,
        offsets.offsets,
        offsets.starts,
        dropped_rows=offsets.dropped_rows,
        history=offsets.history,
        dropped_without_offsets=offsets.dropped_others,
    )
    return {OFFSETS_PROPERTY: text}


def _has_other_deletes(head: Snapshot, planned: Snapshot, table: Table) -> bool:
    """Tell whether a snapshot may have deletes that an older one lacks: manifests of deletes that it does not have."""
    deletes = _delete_manifests(head, table)
    return bool(deletes) and not deletes <= _delete_manifests(planned, table)


def _delete_manifests(snapshot: Snapshot, table: Table) -> frozenset[str]:
    """Return the paths of the manifests that name files of deletes."""
    deletes = (m for m in manifests_of(table.io, snapshot) if m.content == ManifestContent.DELETES)
    return frozenset(m.manifest_path for m in deletes if m.has_added_files() or m.has_existing_files())


# -- expiry -----------------------------------------------------------------------------------------------------------


def expire(
    place: IcebergTableBinding,
    rules: Sequence[ExpiryRules],
    *,
    dry_run: bool,
    tagged: Collection[int] = (),
    claim: Claim | None = None,
) -> ExpireReport:
    """Expire snapshots as `LakeTable.expire` does."""
    table = place.find()
    if table is None:
        return ExpireReport()
    place.require_owner(table.metadata)
    now_ms = place.storage.now_ms()
    metadata, owner = table.metadata, place.spec.table_uuid
    expirable_ids = [
        find_expirable(metadata, owner, keep_last=rule.last, now_ms=now_ms, keep_ms=rule.ms) for rule in rules
    ]
    doomed = tuple(
        snapshot_id for snapshot_id in dict.fromkeys(chain.from_iterable(expirable_ids)) if snapshot_id not in tagged
    )
    if not doomed:
        return ExpireReport()
    if dry_run:
        left = [s for s in table.metadata.snapshots if s.snapshot_id not in doomed]
        after = table.metadata.model_copy(update={"snapshots": left})
        return ExpireReport(doomed, tuple(find_unreachable_files(table, table.metadata, after)))
    if claim is not None:
        claim(doomed, [snapshot.snapshot_id for snapshot in metadata.snapshots])
    after = remove_snapshots(place.catalog, table, doomed)
    files = find_unreachable_files(table, table.metadata, after)

    def delete(location: str) -> None:
        with suppress(FileNotFoundError):
            table.io.delete(location)

    for _, some in groupby(files, key=_depth):  # data, what names them, what names that
        for _ in at_once(place.storage, delete, list(some)):
            pass
    return ExpireReport(doomed, tuple(files))


def find_expirable(
    metadata: TableMetadata, table_uuid: str, *, keep_last: int, now_ms: int, keep_ms: int
) -> tuple[int, ...]:
    """Return the snapshots that nothing needs: not the newest ``keep_last``, no tag's, no branch's, not the one with
    the offsets.
    """
    head = metadata.current_snapshot()
    if head is None:
        return ()
    retained = {ref.snapshot_id for ref in metadata.refs.values()}
    retained.update(s.snapshot_id for s in list(iter_ancestor_snapshots(metadata, head))[: max(keep_last, 1)])
    offsets = newest_offsets(metadata, table_uuid)
    if offsets is not None:
        retained.add(offsets.snapshot_id)
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type == "branch" and ref.snapshot_id != head.snapshot_id:
            branch_head = metadata.snapshot_by_id(ref.snapshot_id)
            retained.update(
                s.snapshot_id for s in iter_ancestor_snapshots(metadata, branch_head)
            ) if branch_head else None
    in_commit_order = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
    times_ms = effective_times_ms([own_time_ms(s) for s in in_commit_order], now_ms)
    age_of = {s.snapshot_id: now_ms - time_ms for s, time_ms in zip(in_commit_order, times_ms, strict=True)}
    return tuple(
        s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained and age_of[s.snapshot_id] >= keep_ms
    )


def remove_snapshots(catalog: Catalog, table: Table, snapshot_ids: Sequence[int]) -> TableMetadata:
    """Drop snapshots from the metadata. **Commit point:** the metadata version without them.

    Dropping a snapshot drops each tag and branch of it, so the commit is refused if one changed since the snapshots
    were chosen. Raises `CommitConflictError` if the table changed meanwhile, `CommitStateUnknownError`.
    """
    requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), *require_unchanged_refs(catalog, table.metadata))
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})
    try:
        with commit_answers(f"expiring snapshots of {table.metadata.location}"):
            return catalog.commit_table(table, requirements, (update,)).metadata
    except CommitFailedException as error:
        raise CommitConflictError(
            f"lake table {table.metadata.location} changed while snapshots were being expired; try again"
        ) from error


def list_files(table: Table, snapshots: Sequence[Snapshot]) -> dict[str, None]:
    """Return every file that the snapshots need: manifest lists, manifests, data and delete files; in no
    special order.
    """
    needed: dict[str, None] = {}
    manifests: dict[str, ManifestFile] = {}

    def locations(manifest: ManifestFile) -> list[str]:
        return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]

    with lake_metadata(table.location()):
        expect(table.io, ((snapshot.manifest_list, 0) for snapshot in snapshots))
        for snapshot, manifests_of_snapshot in zip(
            snapshots, in_parallel(lambda s: manifests_of(table.io, s), snapshots), strict=True
        ):
            needed[snapshot.manifest_list] = None
            manifests.update((manifest.manifest_path, manifest) for manifest in manifests_of_snapshot)
        needed.update(dict.fromkeys(manifests))
        expect(table.io, ((path, manifest.manifest_length) for path, manifest in manifests.items()))
        for locations_of_manifest in in_parallel(locations, list(manifests.values())):
            needed.update(dict.fromkeys(locations_of_manifest))
    return needed


def find_unreachable_files(table: Table, before: TableMetadata, after: TableMetadata) -> list[str]:
    """Return the files that only the removed snapshots needed, data first, so that after a crash the rest can still be
    found.
    """
    left = {s.snapshot_id for s in after.snapshots}
    expired = [s for s in before.snapshots if s.snapshot_id not in left]
    retained: Mapping[str, None] = list_files(table, after.snapshots)
    doomed = [location for location in list_files(table, expired) if location not in retained]
    if isinstance(table.io, StorageFileIO):  # files of other engines outside the warehouse are theirs
        files = table.io.files
        doomed = select_own_files(
            (expired_location for expired_location in doomed if files.holds(expired_location)), files, before.properties
        )
    return sorted(doomed, key=lambda location: (*_depth(location), location))


def _depth(location: str) -> tuple[bool, bool]:
    """Tell data files from manifests and those from lists of manifests: each is named by files of the next kind."""
    return location.endswith(".avro"), "/snap-" in location
