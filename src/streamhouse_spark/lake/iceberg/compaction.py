"""Compaction of Iceberg lakes: small adjacent files, deleted rows, clusters, manifests, and primary-key tables.

The files of a bucket and partition of a primary-key table are rewritten all together: as few files, sorted by key,
without deletes. So a key that another engine duplicated has one row afterwards, from the latest file. The commit fails
if the lake's snapshot is not the planned one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError
from streamhouse_spark.lake.file_access import PrefetchedFiles, open_group_files, read_offsets_of_files
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.file_io import prefetch_files, read_snapshot_manifests, translate_metadata_errors
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.position_deletes import describe_live_file
from streamhouse_spark.lake.iceberg.scan import is_only_of, own_projection, plan_tasks, position_deletes
from streamhouse_spark.lake.iceberg.schema import bucket_of, bucket_source
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotUpdate, commit_snapshot, group_manifests
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import (
    data_location,
    require_committable,
    require_snapshot_as_planned,
    require_written,
    write_context,
)
from streamhouse_spark.lake.parquet.bucket_writer import write_rows
from streamhouse_spark.lake.parquet.clustering import Clustering, plan_clusters, write_cluster
from streamhouse_spark.lake.parquet.compaction import (
    COMPACT_FILES_MIN,
    DELETED_SHARE_MIN,
    DISTRIBUTED_BYTES_MAX,
    CompactGroup,
    RewrittenGroup,
    RunGroups,
    StoredFile,
    limit_to_budget,
    list_new_files,
    make_local_runner,
    merge_group,
    plan_groups,
    rewrite_groups,
    rewrite_same_rows,
)
from streamhouse_spark.lake.parquet.file_writer import FileOutput, is_keyed_file
from streamhouse_spark.lake.parquet.merge_on_read import KeyMergedFiles
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import FileWithOffsets, read_deleted_positions, read_file_offsets
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import (
    CompactReport,
    LakeFile,
    LakeProjection,
    LakeSplit,
    LiveFile,
    ManifestReport,
    WriteContext,
)
from streamhouse_spark.lake.validation import warn_of_duplicates
from streamhouse_spark.storage.base import Storage

SMALL_FILES_MIN = 5
SMALL_FILES_MAX = 50
"""Number of small files that are merged even in a large bucket and partition."""
SMALL_BYTES_SHARE_MIN = 0.1
FOREIGN_BYTES_MAX = 256 << 20
"""Maximum bytes of other engines' files in a bucket that trigger a compaction. They must be sorted first."""


@dataclass(frozen=True, slots=True)
class RewriteTask(JsonSerializable):
    """The information that a process needs to rewrite a group. Implements `GroupWriter`."""

    clustering: Clustering | None
    """None to merge files in offset order."""
    context: WriteContext
    projection: LakeProjection

    def write_group(
        self, group: CompactGroup, storage: Storage, settings: Mapping[str, str], world: World
    ) -> RewrittenGroup:
        files = PrefetchedFiles(storage, settings, group.splits())
        spec = IcebergFileSpec.from_json(self.context.lake)
        write = merge_group if self.clustering is None else partial(write_cluster, self.clustering)
        written = write(group, FileOutput(self.context, spec, files, world.ids), self.projection)
        return RewrittenGroup(tuple(written), group.num_rows)


def compact(binding: IcebergTableBinding, *, purge: bool, dry_run: bool, run: RunGroups | None = None) -> CompactReport:
    """Compact a log table. See `LakeTable.compact`."""
    current = load_current_table(binding, dry_run=dry_run)
    if current is None:
        return CompactReport()
    table, planned = current
    with translate_metadata_errors(table.location()):
        groups = plan_compaction(binding, table, planned, purge=purge)
        if not dry_run:
            groups = list(limit_to_budget(groups, None if run is None else DISTRIBUTED_BYTES_MAX))
    return rewrite(binding, table, planned, groups, None, dry_run=dry_run, run=run)


def load_current_table(binding: IcebergTableBinding, *, dry_run: bool) -> tuple[Table, Snapshot] | None:
    """Return the lake table and its latest snapshot, or None. Migrates its columns, except in a dry run."""
    if not dry_run:
        binding.migrate_columns()
    table = binding.find()
    snapshot = table.metadata.current_snapshot() if table else None
    if table is None or snapshot is None:
        return None
    binding.require_owner(table.metadata)
    prefetch_files(table.io, [(snapshot.manifest_list, 0)])
    return table, snapshot


def rewrite(
    binding: IcebergTableBinding,
    table: Table,
    planned: Snapshot,
    groups: Sequence[CompactGroup],
    clustering: Clustering | None,
    *,
    dry_run: bool,
    run: RunGroups | None = None,
) -> CompactReport:
    """Rewrite groups of files of a snapshot, in this process or by ``run``.

    **Commit point:** the lake's metadata version. A crash before it leaves the new files as orphans. Raises
    `CommitConflictError` if rows were deleted or files replaced after the groups were planned.
    """
    removed = [file.location for group in groups for file in group.files]
    rows = sum(group.num_rows for group in groups)
    purged_rows = sum(file.num_deleted for group in groups for file in group.stored)
    if not groups or dry_run:
        num_written = sum(group.num_rows > 0 for group in groups)
        return CompactReport(len(removed), num_written, rows, purged_rows=purged_rows)
    context = write_context(binding)
    spec = IcebergFileSpec.from_json(context.lake)
    task = RewriteTask(clustering, context, own_projection(table.metadata, binding.spec))
    run = run or make_local_runner(binding.storage, binding.settings, binding.world)
    added = rewrite_same_rows(run, groups, task, table.location())

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        require_committable(metadata, spec)
        require_written(binding, metadata, added, spec)
        return make_compaction_change(table, planned, groups, added, metadata)

    snapshot = commit_snapshot(binding, validated)
    return CompactReport(len(removed), len(added), rows, snapshot, purged_rows=purged_rows)


def plan_compaction(
    binding: IcebergTableBinding, table: Table, snapshot: Snapshot, *, purge: bool = False
) -> list[CompactGroup]:
    """Return groups of small files with adjacent offset ranges, without a file of their partition in between.

    Also returns files with many deleted rows, or with ``purge`` any deleted rows. Files of an older partition spec are
    merged only with each other, and written with the latest spec. Skips files of other engines, and a snapshot with
    other kinds of deletes, whose deleted rows could return.
    """
    with_deletes = find_files_with_deletes(table, snapshot)
    if with_deletes is None:
        return []
    target_bytes = binding.spec.target_file_bytes
    files = binding.files_at(data_location(table))
    purged = list(
        select_files_to_purge(with_deletes, files, binding.spec.writers, share_min=0 if purge else DELETED_SHARE_MIN)
    )
    # A purged file counts as large, so that files on both sides of it are not merged.
    current = [
        replace(file.stored(), size_bytes=max(file.data.file_size_in_bytes, target_bytes))
        if file.deletes
        else file.stored()
        for file in with_deletes
    ]

    sizes = {file.data.file_path: file.data.file_size_in_bytes for file in with_deletes}
    footers = partial(read_offsets_of_files, binding.storage, binding.settings, sizes, binding.spec.writers)
    joined = plan_groups(current, footers, target_bytes=target_bytes, files_min=COMPACT_FILES_MIN)
    return [*joined, *purged]


def find_files_with_deletes(table: Table, snapshot: Snapshot) -> list[FileWithDeletes] | None:
    """Return the data files of a snapshot with their position deletes, or None if it has other kinds of deletes."""
    if not _delete_manifests(snapshot, table):
        manifests = read_snapshot_manifests(table.io, snapshot)
        prefetch_files(table.io, ((m.manifest_path, m.manifest_length) for m in manifests))
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
) -> SnapshotUpdate:
    """Return the change that stores the same rows in other files.

    It contains the offsets of ``metadata``, so that older snapshots can expire. Raises `CommitConflictError` if rows
    were deleted after it was planned.
    """
    head = metadata.current_snapshot()
    if head is None or (head.snapshot_id != planned.snapshot_id and _has_other_deletes(head, planned, table)):
        raise CommitConflictError(f"lake table {metadata.location}: rows were deleted during the compaction; retry")
    summary = carry_offsets(metadata)
    removed = [file.location for group in groups for file in group.stored]
    deletes = sorted({delete for group in groups for file in group.stored for delete in file.own_deletes})
    return SnapshotUpdate(Operation.REPLACE, added, removed, deletes, summary=summary)


def carry_offsets(metadata: TableMetadata) -> dict[str, str]:
    """Return the summary of a snapshot with the rows of the current snapshot."""
    owner = metadata.properties[TABLE_UUID_PROPERTY]
    offsets = newest_offsets(metadata, owner)
    return {} if offsets is None else offsets.to_properties(owner)


def _has_other_deletes(head: Snapshot, planned: Snapshot, table: Table) -> bool:
    """Return whether a snapshot may have deletes that an older one does not have, by its delete manifests."""
    deletes = _delete_manifests(head, table)
    return bool(deletes) and not deletes <= _delete_manifests(planned, table)


def _delete_manifests(snapshot: Snapshot, table: Table) -> frozenset[str]:
    """Return the paths of the manifests with live delete files."""
    deletes = (m for m in read_snapshot_manifests(table.io, snapshot) if m.content == ManifestContent.DELETES)
    return frozenset(m.manifest_path for m in deletes if m.has_added_files() or m.has_existing_files())


def cluster(
    binding: IcebergTableBinding,
    clustering: Clustering,
    chosen: Collection[str],
    *,
    dry_run: bool,
    run: RunGroups | None = None,
) -> CompactReport:
    """Cluster the table. See `SupportsFileRewrite.cluster`.

    A dry run reports the work of all following calls, with the planned number of files.
    """
    current = load_current_table(binding, dry_run=dry_run)
    if current is None:
        return CompactReport()
    table, planned = current
    files = binding.files_at(data_location(table))

    def make_group(stored: Sequence[StoredFile]) -> CompactGroup | None:
        sizes = {file.location: file.size_bytes for file in stored}
        footers = read_offsets_of_files(binding.storage, binding.settings, sizes, binding.spec.writers, list(sizes))
        own = [file for file in footers if file is not None]
        if len(own) < len(stored):
            return None
        live = [
            exclude_deleted(files, file, at) if at.deletes else (file, 0) for file, at in zip(own, stored, strict=True)
        ]
        stored_files = tuple(replace(at, num_deleted=deleted) for at, (_, deleted) in zip(stored, live, strict=True))
        return CompactGroup(own[0].bucket, tuple(file for file, _ in live), stored_files)

    with translate_metadata_errors(table.location()):
        files_with_deletes = find_files_with_deletes(table, planned)
        if files_with_deletes is None:
            raise LakeMismatchError(
                f"lake table {table.location()} has equality deletes of another engine; compact it with that engine "
                "first"
            )
        chosen_files = [file for file in (each.stored() for each in files_with_deletes) if file.location in chosen]
        plan = plan_clusters(chosen_files, clustering, make_group)
        groups = list(plan if dry_run else limit_to_budget(plan, None if run is None else DISTRIBUTED_BYTES_MAX))
    if dry_run:
        report = rewrite(binding, table, planned, groups, clustering, dry_run=True)
        return replace(report, files_added=sum(clustering.num_lanes(g.size_bytes) for g in groups if g.num_rows))
    return rewrite(binding, table, planned, groups, clustering, dry_run=False, run=run)


def rewrite_manifests(binding: IcebergTableBinding, *, dry_run: bool) -> ManifestReport:
    """Rewrite manifests, including those of concurrent commits. See `SupportsFileRewrite.rewrite_manifests`."""
    table = binding.find()
    snapshot = table.metadata.current_snapshot() if table else None
    if table is None or snapshot is None:
        return ManifestReport()
    binding.require_owner(table.metadata)
    with translate_metadata_errors(table.location()):
        manifests = read_snapshot_manifests(table.io, snapshot)
    groups = group_manifests(m for m in manifests if m.has_added_files() or m.has_existing_files())
    removed, added = sum(len(g) for g in groups if len(g) > 1), sum(len(g) > 1 for g in groups)
    if dry_run or not removed:
        return ManifestReport(removed, added)

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        summary = carry_offsets(metadata)
        return SnapshotUpdate(Operation.REPLACE, summary=summary, merges_all_manifests=True)

    committed = commit_snapshot(binding, validated)
    return ManifestReport(removed, added, committed.id)


@dataclass(frozen=True, slots=True)
class FileWithDeletes:
    """A data file of a snapshot, and the delete files that may apply to its rows."""

    data: DataFile
    deletes: tuple[DataFile, ...]

    @property
    def deleted_share_max(self) -> float:
        """Upper bound on the share of deleted rows. Other engines' delete files may also apply to other data files."""
        return sum(delete.record_count for delete in self.deletes) / max(self.data.record_count, 1)

    def stored(self) -> StoredFile:
        file, path = self.data, self.data.file_path
        partition = (file.spec_id, *(file.partition[i] for i in range(len(file.partition))))
        deletes = tuple(delete.file_path for delete in self.deletes)
        own = tuple(delete.file_path for delete in self.deletes if is_only_of(delete, path))
        return StoredFile(path, file.file_size_in_bytes, file.record_count, partition, deletes, own)


def select_files_to_purge(
    with_deletes: Sequence[FileWithDeletes], files: FileAccess, writers: Collection[str], *, share_min: float
) -> Iterator[CompactGroup]:
    """Yield a group for each file of the table with more than this share of deleted rows.

    The offsets of the remaining rows stay known. A file without live rows is a group without rows.
    """
    for file in with_deletes:
        if not file.deletes or file.deleted_share_max <= share_min:
            continue
        stored = file.stored()
        own = read_file_offsets(files, stored.location, writers)
        if own is None:
            continue
        live, num_deleted = exclude_deleted(files, own, stored)
        if num_deleted > share_min * stored.num_rows:
            yield CompactGroup(own.bucket, (live,), (replace(stored, num_deleted=num_deleted),))


def exclude_deleted(files: FileAccess, own: FileWithOffsets, stored: StoredFile) -> tuple[FileWithOffsets, int]:
    """Return the file with the offsets of its live rows, and the number of deleted rows."""
    positions = read_deleted_positions(files, stored.location, stored.deletes)
    live = own.runs.without(OffsetSet.of(own.runs.offsets()[positions]))
    return replace(own, runs=live), len(positions)


@dataclass(frozen=True, slots=True)
class KeyedGroup(JsonSerializable):
    """All files of one bucket and partition, oldest first."""

    bucket: int
    files: tuple[LiveFile, ...]
    num_deleted: int
    """Number of deleted positions. Each delete file is counted once."""

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files) - self.num_deleted

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def is_worth_it(self, target_bytes: int, *, purge: bool = False) -> bool:
        """Return whether a rewrite is worthwhile. With ``purge``, any deleted row suffices.

        Files of other engines suffice too, because they may have duplicates of keys that never change again.
        """
        if purge and self.num_deleted:
            return True
        if 0 < sum(file.size_bytes for file in self.files if not is_keyed_file(file.location)) <= FOREIGN_BYTES_MAX:
            return True
        # Small files are merged with the largest file, but a large file alone does not justify rewriting a bucket.
        sizes = sorted(file.size_bytes for file in self.files)
        small = [size for size in sizes[:-1] if size < target_bytes // 2]
        has_many = len(small) >= SMALL_FILES_MAX or sum(small) >= SMALL_BYTES_SHARE_MIN * sum(sizes)
        rows = sum(file.num_rows for file in self.files)
        return self.num_deleted > DELETED_SHARE_MIN * rows or (len(small) >= SMALL_FILES_MIN and has_many)


@dataclass(frozen=True, slots=True)
class KeyedCompaction:
    groups: tuple[KeyedGroup, ...]
    removed_deletes: tuple[str, ...]
    """Delete files that apply to no data file after the groups are rewritten."""

    @property
    def num_deleted(self) -> int:
        return sum(group.num_deleted for group in self.groups)

    @property
    def removed(self) -> list[str]:
        return [file.location for group in self.groups for file in group.files]


@dataclass(frozen=True, slots=True)
class KeyedRewriteTask(JsonSerializable):
    """The information that a process needs to rewrite a group. Implements `GroupWriter`."""

    context: WriteContext
    projection: LakeProjection
    lake_offsets: Mapping[int, int]
    location: str

    def write_group(
        self, group: KeyedGroup, storage: Storage, settings: Mapping[str, str], world: World
    ) -> RewrittenGroup:
        """Rewrite a group. Raises `CommitConflictError` if the new files do not have the rows that were read."""
        context, spec = self.context, IcebergFileSpec.from_json(self.context.lake)
        splits = [LakeSplit(f.location, f.size_bytes, f.num_rows, None, f.deletes) for f in group.files]
        files = open_group_files(storage, settings, splits, group.size_bytes, context.lake["data_location"])
        offsets = OffsetRange(0, self.lake_offsets.get(group.bucket, 0))
        key_ids = spec.field_ids(context.primary_key)
        rows = KeyMergedFiles(files, group.files, self.projection, key_ids, context.key_indexes)
        output = FileOutput(context, spec, files, world.ids)
        files_written = write_rows(output, group.bucket, offsets, rows.batches())
        if sum(file.num_rows for file in files_written) != rows.num_returned:
            raise CommitConflictError(
                f"lake table {self.location}: compaction wrote a different set of rows than it read; retry"
            )
        return RewrittenGroup(tuple(files_written), rows.num_read)


def compact_keyed(
    binding: IcebergTableBinding, *, purge: bool, dry_run: bool, run: RunGroups | None = None
) -> CompactReport:
    """Compact a primary-key table. See `LakeTable.compact`."""
    current = load_current_table(binding, dry_run=dry_run)
    if current is None:
        return CompactReport()
    table, snapshot = current
    plan = plan_keyed_compaction(table, snapshot, binding.spec, purge=purge, is_whole=dry_run)
    num_removed = len(plan.removed) + len(plan.removed_deletes)
    if dry_run or not num_removed:
        num_rows = sum(group.num_rows for group in plan.groups)
        return CompactReport(num_removed, len(plan.groups), num_rows, purged_rows=plan.num_deleted)
    context = write_context(binding)
    offsets_before = newest_offsets(table.metadata, binding.spec.table_uuid)
    offsets = offsets_before.offsets if offsets_before else {}
    task = KeyedRewriteTask(context, own_projection(table.metadata, binding.spec), offsets, table.location())
    run = run or make_local_runner(binding.storage, binding.settings, binding.world)
    rewrites = rewrite_groups(run, plan.groups, task, table.location())
    added, num_read = list_new_files(rewrites), sum(rewrite.num_read for rewrite in rewrites)
    num_rows = sum(file.num_rows for file in added)
    file_spec = IcebergFileSpec.from_json(context.lake)

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        require_snapshot_as_planned(metadata, snapshot.snapshot_id)
        require_committable(metadata, file_spec)
        require_written(binding, metadata, added, file_spec)
        summary = carry_offsets(metadata)
        operation = Operation.REPLACE if num_read == num_rows else Operation.OVERWRITE
        return SnapshotUpdate(operation, added, plan.removed, plan.removed_deletes, summary=summary)

    committed, healed_rows = commit_snapshot(binding, validated), num_read - num_rows
    warn_of_duplicates(str(binding.spec.path), healed_rows)
    return CompactReport(num_removed, len(added), num_rows, committed, healed_rows, plan.num_deleted)


def plan_keyed_compaction(
    table: Table, snapshot: Snapshot, table_spec: LakeTableSpec, *, purge: bool = False, is_whole: bool = False
) -> KeyedCompaction:
    """Return the groups of one commit, or with ``is_whole`` all groups.

    Files of an older partition spec are merged only with each other, and written with the latest spec. Skips files of
    another engine's spec without the table's buckets. The lake may still have older columns than the table.
    """
    tasks = plan_tasks(table, snapshot)
    ages, deletes = _list_ages_and_deletes(table, snapshot)
    specs = table.metadata.specs()
    buckets = table_spec.num_buckets, bucket_source(table.metadata, table_spec.num_buckets)
    by_partition: dict[tuple[object, ...], list[FileScanTask]] = {}
    for task in sorted(tasks, key=lambda task: ages[task.file.file_path]):
        spec, file = specs[task.file.spec_id], task.file
        if table_spec.num_buckets == 1 or bucket_of(spec, file.partition, *buckets) is not None:
            partition = (file.spec_id, *(file.partition[i] for i in range(len(spec.fields))))
            by_partition.setdefault(partition, []).append(task)
    mapping = iceberg_columns(table.metadata, table_spec)
    field_ids = (mapping.field_id(table_spec.schema.column(name).id) for name in table_spec.primary_key)
    key_ids = [field_id for field_id in field_ids if field_id is not None]
    groups = [_group(members, table, key_ids, *buckets) for members in by_partition.values()]
    worthwhile = [group for group in groups if group.is_worth_it(table_spec.target_file_bytes, purge=purge)]
    chosen = tuple(worthwhile if is_whole else limit_to_budget(worthwhile))
    rewritten = {file.location for group in chosen for file in group.files}
    needed = {d.file_path for task in tasks if task.file.file_path not in rewritten for d in task.delete_files}
    return KeyedCompaction(chosen, tuple(sorted(deletes - needed)))


def _group(
    tasks: Sequence[FileScanTask], table: Table, key_ids: Sequence[int], num_buckets: int, source_id: int | None
) -> KeyedGroup:
    deletes = {delete.file_path: delete.record_count for task in tasks for delete in task.delete_files}
    spec = table.metadata.specs()[tasks[0].file.spec_id]
    bucket = bucket_of(spec, tasks[0].file.partition, num_buckets, source_id)
    return KeyedGroup(
        bucket or 0, tuple(describe_live_file(task, table, key_ids) for task in tasks), sum(deletes.values())
    )


def _list_ages_and_deletes(table: Table, snapshot: Snapshot) -> tuple[Mapping[str, int], set[str]]:
    """Return the data files with the sequence number of their commit, and all delete files."""
    ages: dict[str, int] = {}
    deletes: set[str] = set()
    with translate_metadata_errors(table.location()):
        for manifest in read_snapshot_manifests(table.io, snapshot):
            entries = manifest.fetch_manifest_entry(table.io)
            if manifest.content == ManifestContent.DATA:
                ages.update((e.data_file.file_path, e.sequence_number or 0) for e in entries)
            else:
                deletes.update(e.data_file.file_path for e in entries)
    return ages, deletes
