"""Compaction of Paimon lakes: adjacent small files of a log table, or all files of a bucket of a primary-key table.

The files of a bucket and partition of a primary-key table are rewritten all together, because only then may deletes be
omitted. They become one sorted run at the last level, with unique keys and without deletes, so that readers that do not
merge return correct rows.

**Commit point:** the snapshot file. Every attempt validates that the removed files are still live, and with a primary
key that no other file has rows that may be older than theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.file_access import PrefetchedFiles, open_group_files, read_offsets_of_files
from streamhouse_spark.lake.paimon.evolution import paimon_columns
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec, encode_field
from streamhouse_spark.lake.paimon.manifests import FileKey, MetadataReader, key_of, live_entries
from streamhouse_spark.lake.paimon.merge_tree import (
    LEVEL_MAX,
    KeyValueFileSpec,
    group_files,
    is_raw,
    merge_projection,
    write_key_values,
)
from streamhouse_spark.lake.paimon.scan import key_projection, names_in_file, own_projection, projection
from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import (
    carry_offsets,
    describe_snapshot,
    offsets_at,
    require_committable,
    write_context,
)
from streamhouse_spark.lake.parquet.compaction import (
    COMPACT_FILES_MIN,
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
from streamhouse_spark.lake.parquet.file_writer import FileOutput, PartitionKey
from streamhouse_spark.lake.parquet.merge_on_read import SequenceMergedFiles
from streamhouse_spark.lake.types import (
    CompactReport,
    FieldNames,
    LakeProjection,
    LakeSplit,
    MergedFile,
    MergedFiles,
    WriteContext,
)
from streamhouse_spark.lake.validation import require_present
from streamhouse_spark.storage.base import Storage

UNMERGED_SHARE_MIN = 0.1
"""Minimum share of rows of a bucket and partition in unmerged files for a merge. Below it, reads cost little more."""
UNMERGED_FILES_MAX = 50
"""Number of unmerged files that are merged even in a large bucket and partition."""


@dataclass(frozen=True, slots=True)
class RewriteTask(JsonSerializable):
    """The information that a process needs to rewrite a group. Implements `GroupWriter`."""

    context: WriteContext
    projection: LakeProjection

    def write_group(
        self, group: CompactGroup, storage: Storage, settings: Mapping[str, str], world: World
    ) -> RewrittenGroup:
        files = PrefetchedFiles(storage, settings, group.splits())
        spec = PaimonFileSpec.from_json(self.context.lake)
        files_written = merge_group(group, FileOutput(self.context, spec, files, world.ids), self.projection)
        return RewrittenGroup(tuple(files_written), group.num_rows)


def load_current_table(binding: PaimonTableBinding, *, dry_run: bool) -> tuple[PaimonTable, Snapshot] | None:
    """Return the lake table and its latest snapshot, or None. Migrates its columns, except in a dry run."""
    if not dry_run:
        binding.migrate_columns()
    table = binding.find()
    if table is None or table.snapshot is None:
        return None
    binding.require_owner(table)
    return table, table.snapshot


def compact(binding: PaimonTableBinding, *, dry_run: bool, run: RunGroups | None = None) -> CompactReport:
    """Compact a log table. See `LakeTable.compact`.

    **Commit point:** a snapshot of Paimon's kind COMPACT, which removes the small files, adds their replacements and
    repeats the offsets. Every attempt validates that all removed files are live, and that neither schema nor deletes
    changed.
    """
    current = load_current_table(binding, dry_run=dry_run)
    if current is None or current[1].index_manifest is not None:  # rows that another engine deleted could return
        return CompactReport()
    table, planned = current
    num_buckets = PaimonFileSpec(table.schema, table.location, binding.storage.now_ms()).num_buckets
    reader = MetadataReader(table, StorageFileIO(binding.files))
    entries = {
        reader.location(entry): entry for entry in reader.live_entries(planned) if entry.total_buckets == num_buckets
    }

    stored = [
        StoredFile(location, entry.file.file_size, entry.file.row_count, (entry.bucket, *entry.partition.values))
        for location, entry in entries.items()
    ]
    sizes = {file.location: file.size_bytes for file in stored}
    footers = partial(read_offsets_of_files, binding.storage, binding.settings, sizes, binding.spec.writers)
    groups = plan_groups(stored, footers, target_bytes=binding.spec.target_file_bytes, files_min=COMPACT_FILES_MIN)
    if not dry_run:
        groups = list(limit_to_budget(groups, None if run is None else DISTRIBUTED_BYTES_MAX))
    removed = [entries[file.location] for group in groups for file in group.files]
    rows = sum(group.num_rows for group in groups)
    if not groups or dry_run:
        return CompactReport(len(removed), len(groups), rows)
    context = write_context(binding)
    spec = PaimonFileSpec.from_json(context.lake)
    task = RewriteTask(context, own_projection(table, binding.spec))
    run = run or make_local_runner(binding.storage, binding.settings, binding.world)
    added = rewrite_same_rows(run, groups, task, table.location)

    def validated(table: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(table)
        require_committable(binding, table, spec)
        require_present(binding.files_at, added)
        if table.snapshot is None or table.snapshot.index_manifest is not None:
            raise CommitConflictError(
                f"lake table {table.location}: another engine deleted rows during the compaction; retry"
            )
        return SnapshotUpdate(
            added, removed=removed, is_compaction=True, properties=carry_offsets(binding, table.snapshot)
        )

    snapshot = describe_snapshot(binding, commit_snapshot(binding, validated))
    return CompactReport(len(removed), len(added), rows, snapshot)


@dataclass(frozen=True, slots=True)
class KeyedGroup:
    """All files of one bucket and partition."""

    entries: tuple[ManifestEntry, ...]

    @property
    def bucket(self) -> int:
        return int(self.entries[0].bucket)

    @property
    def num_rows(self) -> int:
        return sum(entry.file.row_count for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        return sum(int(entry.file.file_size) for entry in self.entries)

    @property
    def sequence_end(self) -> int:
        """End of the sequence numbers of all rows."""
        return 1 + max(int(entry.file.max_sequence_number) for entry in self.entries)

    def is_worth_it(self, *, purge: bool) -> bool:
        """Return whether many rows cannot be read directly at the last level. With ``purge``, one such row suffices."""
        last_level = max(1, *(entry.file.level for entry in self.entries))
        unmerged = [entry for entry in self.entries if entry.file.level < last_level or not is_raw(entry)]
        if purge and unmerged:
            return True
        num_unmerged = sum(entry.file.row_count for entry in unmerged)
        return num_unmerged > UNMERGED_SHARE_MIN * self.num_rows or len(unmerged) >= UNMERGED_FILES_MAX


@dataclass(frozen=True, slots=True)
class GroupFiles(JsonSerializable):
    """The files of a group, as a task merges them."""

    bucket: int
    partition: PartitionKey
    merge: MergedFiles

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.merge.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.merge.files)


@dataclass(frozen=True, slots=True)
class KeyedRewriteTask(JsonSerializable):
    """The information that a process needs to merge and rewrite a group. Implements `GroupWriter`."""

    context: WriteContext
    projection: LakeProjection
    lake_offsets: Mapping[int, int]

    def write_group(
        self, group: GroupFiles, storage: Storage, settings: Mapping[str, str], world: World
    ) -> RewrittenGroup:
        """Merge and rewrite a group. Raises `CommitConflictError` if the files do not have the planned rows."""
        spec = KeyValueFileSpec.from_json(self.context.lake)
        location = group.merge.files[0].location
        split = LakeSplit(location, group.size_bytes, group.num_rows, merge=group.merge)
        files = open_group_files(storage, settings, [split], group.size_bytes, spec.data_location)
        rows = SequenceMergedFiles(files, group.merge, self.projection)
        offsets = OffsetRange(0, self.lake_offsets.get(group.bucket, 0))
        output = FileOutput(self.context, spec, files, world.ids)
        files_written = write_key_values(output, group.bucket, offsets, rows.batches(), level=LEVEL_MAX)
        if rows.num_read != group.num_rows or any(file.partition != group.partition for file in files_written):
            raise CommitConflictError(
                f"lake table {spec.data_location}: {rows.num_read} rows of a bucket and partition were read, expected "
                f"{group.num_rows}, or rows belong to other partitions; retry, or restore the files"
            )
        return RewrittenGroup(tuple(files_written), rows.num_read)


def compact_keyed(
    binding: PaimonTableBinding, *, purge: bool, dry_run: bool, run: RunGroups | None = None
) -> CompactReport:
    """Compact a primary-key table. See `LakeTable.compact`."""
    table = binding.find()
    if table is None or table.snapshot is None:
        return CompactReport()
    binding.require_owner(table)
    entries = live_entries(binding, table)
    num_buckets = binding.spec.num_buckets
    groups = [
        KeyedGroup(tuple(members))
        for (*_, total_buckets), members in group_files(entries).items()
        if total_buckets == num_buckets
    ]
    chosen = [group for group in groups if group.is_worth_it(purge=purge)]
    removed = [entry for group in chosen for entry in group.entries]
    if dry_run or not chosen:
        return CompactReport(len(removed), len(chosen), sum(group.num_rows for group in chosen))
    resolver = _GroupResolver(binding, table)
    run = run or make_local_runner(binding.storage, binding.settings, binding.world)
    groups_of_files = [resolver.files_of(group) for group in chosen]
    added = list_new_files(rewrite_groups(run, groups_of_files, resolver.task, table.location))
    limits = {_partition_and_bucket(group.entries[0]): group.sequence_end for group in chosen}

    def validated(newest: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(newest)
        require_committable(binding, newest, resolver.file_spec)
        _require_untouched(newest.location, live_entries(binding, newest), removed, limits)
        require_present(binding.files_at, added)
        return SnapshotUpdate(
            added, removed=removed, is_compaction=True, properties=carry_offsets(binding, newest.snapshot)
        )

    committed = describe_snapshot(binding, commit_snapshot(binding, validated))
    num_rows = sum(file.num_rows for file in added)
    purged_rows = sum(group.num_rows for group in chosen) - num_rows
    return CompactReport(len(removed), len(added), num_rows, committed, purged_rows=purged_rows)


class _GroupResolver:
    """Resolves groups to files for tasks, which write the lake's columns."""

    def __init__(self, binding: PaimonTableBinding, table: PaimonTable) -> None:
        self._table = table
        lake = table.schema
        self._reader = MetadataReader(table, StorageFileIO(binding.files))
        self._by: LakeProjection = merge_projection(key_projection(lake, table, binding.spec))
        table_projection = projection(
            lake, paimon_columns(lake, binding.spec, table.schemas), binding.spec.schema, None, None
        )
        self.file_spec = KeyValueFileSpec(lake, table.location, binding.storage.now_ms())
        offsets = offsets_at(binding, table.snapshot) if table.snapshot else None
        spec, keys = self.file_spec.to_json(), tuple(lake.primary_keys)
        context = WriteContext(
            binding.spec.table_uuid, table_projection.schema, binding.spec.target_file_bytes, spec, keys
        )
        self.task = KeyedRewriteTask(context, table_projection, offsets.offsets if offsets else {})

    def files_of(self, group: KeyedGroup) -> GroupFiles:
        parts = [
            MergedFile(self._reader.location(entry), entry.file.file_size, entry.file.row_count, self._names(entry))
            for entry in sorted(group.entries, key=lambda e: (e.file.min_sequence_number, e.file.file_name))
        ]
        merge = MergedFiles(tuple(parts), self._by)
        return GroupFiles(group.bucket, self._partition_of(group.entries[0]), merge)

    def _names(self, entry: ManifestEntry) -> FieldNames:
        return names_in_file(self._table, self._table.schema, entry, inside=True)

    def _partition_of(self, entry: ManifestEntry) -> PartitionKey:
        fields = self.file_spec.partition_fields
        return tuple(encode_field(value, field) for value, field in zip(entry.partition.values, fields, strict=True))


def _partition_and_bucket(entry: ManifestEntry) -> tuple[tuple[object, ...], int]:
    return tuple(entry.partition.values), entry.bucket


def _require_untouched(
    location: str,
    live: Sequence[ManifestEntry],
    removed: Sequence[ManifestEntry],
    limits: dict[tuple[tuple[object, ...], int], int],
) -> None:
    """Require that the removed files are live, and that all other files are newer. Raises `CommitConflictError`.

    An older file could have a row whose delete was omitted.
    """
    removed_keys: set[FileKey] = {key_of(entry) for entry in removed}
    missing = removed_keys - {key_of(entry) for entry in live}
    if missing:
        raise CommitConflictError(
            f"lake table {location}: file {min(name for *_, name in missing)} was removed during its compaction; retry"
        )
    for entry in live:
        limit = limits.get(_partition_and_bucket(entry), 0)
        if key_of(entry) not in removed_keys and entry.file.min_sequence_number < limit:
            raise CommitConflictError(
                f"lake table {location}: file {entry.file.file_name} was added during the compaction of its bucket, "
                f"with sequence number {entry.file.min_sequence_number} (expected at least {limit}); retry"
            )
