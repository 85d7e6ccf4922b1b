"""Compaction of a primary-key table: rewrites files of a bucket and partition as few, sorted by key, without deletes.

All files of a bucket and partition are rewritten, or none: so a key that another engine added twice has one row
afterwards, that of its latest file. The commit fails if the lake has another snapshot than the planned one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, SnapshotExpiredError
from streamhouse_spark.lake.duplicate_keys import warn_of_duplicates
from streamhouse_spark.lake.file_access import files_of_group
from streamhouse_spark.lake.iceberg.commit import commit_snapshot
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.key_index import describe_live_file
from streamhouse_spark.lake.iceberg.maintenance.compaction import carry_offsets
from streamhouse_spark.lake.iceberg.offsets import newest_offsets
from streamhouse_spark.lake.iceberg.scan import own_projection, plan_tasks
from streamhouse_spark.lake.iceberg.schema import bucket_of, bucket_source
from streamhouse_spark.lake.iceberg.snapshot_builder import Change
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import (
    require_shape,
    require_snapshot_as_planned,
    require_written,
    write_context,
)
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.model.values import CompactReport, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.lake.parquet.bucket_writer import write_rows
from streamhouse_spark.lake.parquet.compaction import (
    DELETED_SHARE_MIN,
    Rewritten,
    RunGroups,
    limit_to_budget,
    list_new_files,
    make_local_runner,
    rewrite_groups,
)
from streamhouse_spark.lake.parquet.file_writer import is_keyed_file
from streamhouse_spark.lake.parquet.sorted_merge import MergedRows
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.storage.base import Storage

SMALL_FILES_MIN = 5
SMALL_FILES_MAX = 50
"""Number of small files that are merged even into a large bucket and partition."""
SMALL_BYTES_SHARE_MIN = 0.1
FOREIGN_BYTES_MAX = 256 << 20
"""Bytes of other engines' files in a bucket and partition above which they trigger no compaction, because they must be
sorted first."""


@dataclass(frozen=True, slots=True)
class KeyedGroup(Portable):
    """All files of one bucket and partition, oldest first."""

    bucket: int
    files: tuple[LiveFile, ...]
    num_deleted: int
    """Number of deleted positions; each file that names them is counted once."""

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files) - self.num_deleted

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def is_worth_it(self, target_bytes: int, *, purge: bool = False) -> bool:
        """Return whether a rewrite is worth it, also for files of other engines, which may have duplicates of keys that
        never change again. With ``purge`` any deleted row suffices.
        """
        if purge and self.num_deleted:
            return True
        if 0 < sum(file.size_bytes for file in self.files if not is_keyed_file(file.location)) <= FOREIGN_BYTES_MAX:
            return True
        # Small files are merged with the largest, but a large file alone is no reason to rewrite a bucket.
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
class KeyedRewriteTask(Portable):
    """Everything that a process needs to rewrite a group; a `GroupWriter`."""

    context: WriteContext
    projection: LakeProjection
    held: Mapping[int, int]
    """The lake's offsets."""
    location: str

    def written(self, group: KeyedGroup, storage: Storage, settings: Mapping[str, str], world: World) -> Rewritten:
        """Rewrite a group. Raises `CommitConflictError` if the files do not hold the rows that were read."""
        context, spec = self.context, IcebergFileSpec.from_json(self.context.lake)
        splits = [LakeSplit(f.location, f.size_bytes, f.num_rows, None, f.deletes) for f in group.files]
        files = files_of_group(storage, settings, splits, group.size_bytes, context.lake["data_location"])
        offsets = OffsetRange(0, self.held.get(group.bucket, 0))
        key_ids = spec.field_ids(context.primary_key)
        rows = MergedRows(files, group.files, self.projection, key_ids, context.key_indexes)
        files_written = write_rows(context, spec, files, world.ids, group.bucket, offsets, rows.batches())
        if sum(file.num_rows for file in files_written) != rows.num_given:
            raise CommitConflictError(
                f"lake table {self.location}: compaction wrote a different set of rows than it read; try again"
            )
        return Rewritten(tuple(files_written), rows.num_read)


def compact_keyed(
    place: IcebergTableBinding, *, purge: bool, dry_run: bool, run: RunGroups | None = None
) -> tuple[CompactReport, int | None]:
    """Compact as `LakeTable.compact` does; returns the report and the id of the new snapshot."""
    try:
        return _compact_keyed(place, run, purge=purge, dry_run=dry_run)
    except SnapshotExpiredError as error:
        raise CommitConflictError(f"another process compacted and expired these files; try again ({error})") from error


def _compact_keyed(
    place: IcebergTableBinding, run: RunGroups | None, *, purge: bool, dry_run: bool
) -> tuple[CompactReport, int | None]:
    if not dry_run:
        place.migrate_columns()
    table = place.find()
    snapshot = table.metadata.current_snapshot() if table else None
    if table is None or snapshot is None:
        return CompactReport(), None
    place.require_owner(table.metadata)
    plan = plan_keyed_compaction(table, snapshot, place.spec, purge=purge, is_whole=dry_run)
    num_removed = len(plan.removed) + len(plan.removed_deletes)
    if dry_run or not num_removed:
        num_rows = sum(group.num_rows for group in plan.groups)
        return CompactReport(num_removed, len(plan.groups), num_rows, purged_rows=plan.num_deleted), None
    context = write_context(place)
    offsets_before = newest_offsets(table.metadata, place.spec.table_uuid)
    offsets = offsets_before.offsets if offsets_before else {}
    task = KeyedRewriteTask(context, own_projection(table.metadata, place.spec), offsets, table.location())
    run = run or make_local_runner(place.storage, place.settings, place.world)
    rewrites = rewrite_groups(run, plan.groups, task, table.location())
    added, num_read = list_new_files(rewrites), sum(rewrite.num_read for rewrite in rewrites)
    num_rows = sum(file.num_rows for file in added)
    file_spec = IcebergFileSpec.from_json(context.lake)

    def validated(metadata: TableMetadata) -> Change:
        place.require_owner(metadata)
        require_snapshot_as_planned(metadata, snapshot.snapshot_id)
        require_shape(metadata, file_spec)
        require_written(place, metadata, added, file_spec)
        summary = carry_offsets(metadata)
        operation = Operation.REPLACE if num_read == num_rows else Operation.OVERWRITE
        return Change(operation, added, plan.removed, plan.removed_deletes, summary=summary, moves_tag=bool(summary))

    committed = commit_snapshot(place.catalog, place.identifier, validated, place.world)
    warn_of_duplicates(str(place.spec.path), num_read - num_rows)
    healed_rows = num_read - num_rows
    report = CompactReport(num_removed, len(added), num_rows, healed_rows=healed_rows, purged_rows=plan.num_deleted)
    return report, committed.snapshot_id


def plan_keyed_compaction(
    table: Table, snapshot: Snapshot, table_spec: LakeTableSpec, *, purge: bool = False, is_whole: bool = False
) -> KeyedCompaction:
    """Plan the groups of one commit, or with ``is_whole`` all. Files of an older partition spec are merged only with
    each other, and written by the latest. Skips files of another engine's spec without the table's buckets. The lake
    may still have older columns than the table.
    """
    tasks = plan_tasks(table, snapshot)
    ages, deletes = _list_ages_and_deletes(table, snapshot)
    specs, buckets = (
        table.metadata.specs(),
        (table_spec.num_buckets, bucket_source(table.metadata, table_spec.num_buckets)),
    )
    by_place: dict[tuple[object, ...], list[FileScanTask]] = {}
    for task in sorted(tasks, key=lambda task: ages[task.file.file_path]):
        spec, file = specs[task.file.spec_id], task.file
        if table_spec.num_buckets == 1 or bucket_of(spec, file.partition, *buckets) is not None:
            partition = (file.spec_id, *(file.partition[i] for i in range(len(spec.fields))))
            by_place.setdefault(partition, []).append(task)
    mapping = iceberg_columns(table.metadata, table_spec)
    field_ids = (mapping.field_id(table_spec.schema.column(name).id) for name in table_spec.primary_key)
    key_ids = [field_id for field_id in field_ids if field_id is not None]
    groups = [_group(members, table, key_ids, *buckets) for members in by_place.values()]
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
    """Return the data files with the numbers of the commits that added them, and all delete files."""
    ages: dict[str, int] = {}
    deletes: set[str] = set()
    with lake_metadata(table.location()):
        for manifest in manifests_of(table.io, snapshot):
            entries = manifest.fetch_manifest_entry(table.io)
            if manifest.content == ManifestContent.DATA:
                ages.update((e.data_file.file_path, e.sequence_number or 0) for e in entries)
            else:
                deletes.update(e.data_file.file_path for e in entries)
    return ages, deletes
