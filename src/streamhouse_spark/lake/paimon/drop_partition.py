"""Partition drops in a Paimon lake of a log table, in one snapshot with unchanged offsets.

**Commit point:** the snapshot file, of Paimon's kind OVERWRITE. An empty snapshot after it prevents other engines from
replacing it. Every attempt validates that it is based on the snapshot whose files were selected; after another commit,
files are selected again. Files whose rows were all appended before the drop are removed whole. A file that also has
later rows, because of concurrent tiering or compaction, is rewritten with these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import to_plan_value
from streamhouse_spark.lake.paimon.compaction import load_current_table
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import own_projection
from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import (
    describe_snapshot,
    make_snapshot_durable,
    offsets_at,
    require_committable,
    write_context,
)
from streamhouse_spark.lake.parquet.copy_on_write import FilesToDrop, find_files_to_drop, require_tiered
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.types import LakeDropReport, LakeSplit
from streamhouse_spark.lake.validation import require_present


def drop_partitions(
    binding: PaimonTableBinding, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
) -> LakeDropReport:
    """Attempt the drop of `LakeTable.drop_partitions` once. Raises `CommitConflictError` if the caller should retry."""
    current = load_current_table(binding, dry_run=dry_run)
    if current is None:
        return LakeDropReport()
    table, planned = current
    files_to_drop = _find_files_to_drop(binding, table, planned, chosen, below)
    report = files_to_drop.report()
    if not files_to_drop.files or dry_run:
        return report
    context = write_context(binding)
    spec = PaimonFileSpec.from_json(context.lake)
    output = FileOutput(context, spec, binding.files_at(table.location), binding.world.ids)
    added = files_to_drop.rewrite_partial_files(output, own_projection(table, binding.spec), binding.files_at)

    def validated(newest: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(newest)
        offsets = offsets_at(binding, newest.snapshot) if newest.snapshot is not None else None
        require_tiered(newest.location, offsets.offsets if offsets else {}, below)
        _require_as_planned(newest, planned)
        if added:
            require_committable(binding, newest, spec)
            require_present(binding.files_at, added)
        properties = files_to_drop.properties_after(offsets, binding.spec.table_uuid)
        return SnapshotUpdate(added, removed=files_to_drop.files, is_overwrite=True, properties=properties)

    sealed = make_snapshot_durable(binding, commit_snapshot(binding, validated))
    return replace(report, snapshot=describe_snapshot(binding, sealed))


def _require_as_planned(table: PaimonTable, planned: Snapshot) -> None:
    """Require that the latest snapshot is the planned one. Names of manifest lists identify snapshots."""
    newest = table.snapshot
    if newest is None or newest.delta_manifest_list != planned.delta_manifest_list:
        raise CommitConflictError(
            f"lake table {table.location}: the latest snapshot is {newest.id if newest else None}, expected "
            f"{planned.id}, from which files were selected; retry"
        )


def _find_files_to_drop(
    binding: PaimonTableBinding,
    table: PaimonTable,
    snapshot: Snapshot,
    chosen: PartitionMatches,
    below: Mapping[int, int],
) -> FilesToDrop[ManifestEntry]:
    reader = MetadataReader(table, StorageFileIO(binding.files))
    spelled = {name.casefold(): name for name in table.schema.partition_keys}
    chosen = chosen.renamed({name: spelled[name.casefold()] for name in chosen.columns})

    def candidates() -> Iterator[tuple[ManifestEntry, LakeSplit]]:
        for entry in reader.live_entries(snapshot):
            names = [field.name for field in entry.partition.fields]
            partition = dict(zip(names, map(to_plan_value, entry.partition.values), strict=True))
            if chosen.holds(partition):
                yield entry, LakeSplit(reader.location(entry), entry.file.file_size, entry.file.row_count)

    return find_files_to_drop(candidates(), binding.files_at, binding.spec.writers, below)
