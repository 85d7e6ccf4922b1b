"""Compaction of a Paimon lake of a log table: merges adjacent small files of a bucket and partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.commit_validation import require_present
from streamhouse_spark.lake.file_access import FilesAhead, offset_files
from streamhouse_spark.lake.model.values import CompactReport, LakeFile, LakeProjection, WriteContext
from streamhouse_spark.lake.paimon.commit import Change, commit_snapshot
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import own_projection
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import carry_offsets, require_shape, write_context
from streamhouse_spark.lake.parquet.compaction import (
    COMPACT_FILES_MIN,
    SPREAD_BYTES_MAX,
    CompactGroup,
    Rewritten,
    RunGroups,
    StoredFile,
    limit_to_budget,
    list_new_files,
    make_local_runner,
    merge_group,
    plan_groups,
    rewrite_groups,
)
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class RewriteTask(Portable):
    """Everything that a process needs to rewrite a group; a `GroupWriter`."""

    context: WriteContext
    projection: LakeProjection

    def written(self, group: CompactGroup, storage: Storage, settings: Mapping[str, str], world: World) -> Rewritten:
        files = FilesAhead(storage, settings, group.splits())
        spec = PaimonFileSpec.from_json(self.context.lake)
        files_written = merge_group(group, self.context, spec, self.projection, files, world.ids)
        return Rewritten(tuple(files_written), group.num_rows)


def compact_log(
    place: PaimonTableBinding, *, dry_run: bool, run: RunGroups | None = None
) -> tuple[CompactReport, Snapshot | None]:
    """Compact as `LakeTable.compact` does; returns the report and the new snapshot.

    **Commit point:** a snapshot of Paimon's kind COMPACT, which removes the small files, adds their replacements and
    repeats the offsets. Every attempt validates that all removed files are live, the schema is unchanged, and no rows
    were deleted.
    """
    if not dry_run:
        place.migrate_columns()
    table = place.find()
    if table is None or table.snapshot is None:
        return CompactReport(), None
    place.require_owner(table)
    if table.snapshot.index_manifest is not None:
        return CompactReport(), None  # rows that another engine deleted could return
    num_buckets = PaimonFileSpec(table.schema, table.location, place.storage.now_ms()).num_buckets
    reader = MetadataReader(table, PaimonFiles(place.files))
    entries = {
        reader.location(entry): entry
        for entry in reader.live_entries(table.snapshot)
        if entry.total_buckets == num_buckets
    }

    stored = [_stored_file(location, entry) for location, entry in entries.items()]
    sizes = {file.location: file.size_bytes for file in stored}
    footers = partial(offset_files, place.storage, place.settings, sizes, place.spec.writers)
    groups = plan_groups(stored, footers, target_bytes=place.spec.target_file_bytes, files_min=COMPACT_FILES_MIN)
    if not dry_run:
        groups = list(limit_to_budget(groups, None if run is None else SPREAD_BYTES_MAX))
    removed = [entries[file.location] for group in groups for file in group.files]
    rows = sum(group.num_rows for group in groups)
    if not groups or dry_run:
        return CompactReport(len(removed), len(groups), rows), None
    context = write_context(place)
    spec = PaimonFileSpec.from_json(context.lake)
    task = RewriteTask(context, own_projection(table, place.spec))
    run = run or make_local_runner(place.storage, place.settings, place.world)
    added = list_new_files(rewrite_groups(run, groups, task, table.location))
    if sum(file.num_rows for file in added) != rows:
        raise CommitConflictError(
            f"lake table {table.location}: compaction read a different set of rows than planned; try again"
        )
    snapshot = _commit(place, spec, removed, added)
    return CompactReport(len(removed), len(added), rows), snapshot


def _stored_file(location: str, entry: ManifestEntry) -> StoredFile:
    return StoredFile(location, entry.file.file_size, entry.file.row_count, (entry.bucket, *entry.partition.values))


def _commit(
    place: PaimonTableBinding, spec: PaimonFileSpec, removed: Sequence[ManifestEntry], added: Sequence[LakeFile]
) -> Snapshot:
    def validated(table: PaimonTable) -> Change:
        place.require_owner(table)
        require_shape(place, table, spec)
        require_present(place.files_at, added)
        if table.snapshot is None or table.snapshot.index_manifest is not None:
            raise CommitConflictError(
                f"lake table {table.location}: another engine deleted rows while files were being merged; try again"
            )
        return Change(added, removed=removed, is_compaction=True, properties=carry_offsets(place, table.snapshot))

    return commit_snapshot(place, validated)
