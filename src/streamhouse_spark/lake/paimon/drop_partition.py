"""Partition drops in a Paimon lake of a log table, in one snapshot with unchanged offsets.

**Commit point:** the snapshot file, of Paimon's kind OVERWRITE; an empty one above it keeps other engines from
replacing it. Every attempt validates that it is based on the snapshot whose files were selected; after another commit,
files are selected again. Files whose rows were all appended before the drop are removed whole. A file that also has
later rows, after concurrent tiering or compaction, is rewritten with these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import to_plan_value
from streamhouse_spark.lake.paimon.commit import Change, commit_snapshot
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import own_projection
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import (
    carry_offsets,
    offsets_at,
    require_shape,
    seal_snapshot,
    write_context,
)
from streamhouse_spark.lake.parquet.copy_on_write import (
    FilesToDrop,
    find_files_to_drop,
    require_tiered,
    retry_until_committed,
    rewrite_partial_files,
)
from streamhouse_spark.lake.types import LakeDropReport, LakeSplit
from streamhouse_spark.lake.validation import require_present


def drop_partitions(
    place: PaimonTableBinding, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
) -> tuple[LakeDropReport, Snapshot | None]:
    """Drop partitions as `LakeTable.drop_partitions` does; returns the report and the new snapshot."""
    return retry_until_committed(
        place.world, place.location, chosen, lambda: _drop(place, chosen, below, dry_run=dry_run)
    )


def _drop(
    place: PaimonTableBinding, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
) -> tuple[LakeDropReport, Snapshot | None]:
    if not dry_run:
        place.migrate_columns()
    table = place.find()
    if table is None or table.snapshot is None:
        return LakeDropReport(), None
    place.require_owner(table)
    planned = table.snapshot
    files_to_drop = _find_files_to_drop(place, table, planned, chosen, below)
    report = files_to_drop.report()
    if not files_to_drop.files or dry_run:
        return report, None
    context = write_context(place)
    spec, files = PaimonFileSpec.from_json(context.lake), place.files_at(table.location)
    how = own_projection(table, place.spec)
    added = rewrite_partial_files(files_to_drop.cut, context, spec, how, place.files_at, files, place.world.ids)

    def validated(newest: PaimonTable) -> Change:
        place.require_owner(newest)
        offsets = offsets_at(place, newest.snapshot) if newest.snapshot is not None else None
        require_tiered(newest.location, offsets.offsets if offsets else {}, below)
        _require_as_planned(newest, planned)
        if added:
            require_shape(place, newest, spec)
            require_present(place.files_at, added)
        # Files of other engines have no offsets: if the lake has none, there is nothing to count.
        rows, without_offsets = files_to_drop.rows, files_to_drop.foreign_rows
        carried = carry_offsets(place, newest.snapshot, dropped_rows=rows, dropped_without_offsets=without_offsets)
        return Change(
            added, removed=files_to_drop.files, is_overwrite=True, properties=carried if offsets is not None else {}
        )

    return report, seal_snapshot(place, commit_snapshot(place, validated))


def _require_as_planned(table: PaimonTable, planned: Snapshot) -> None:
    """Require that nothing was committed since the files were selected. Names of manifest lists are unique."""
    newest = table.snapshot
    if newest is None or newest.delta_manifest_list != planned.delta_manifest_list:
        raise CommitConflictError(
            f"lake table {table.location}: the newest snapshot is {newest.id if newest else None}, files were looked "
            f"up in snapshot {planned.id}; try again"
        )


def _find_files_to_drop(
    place: PaimonTableBinding,
    table: PaimonTable,
    snapshot: Snapshot,
    chosen: PartitionMatches,
    below: Mapping[int, int],
) -> FilesToDrop[ManifestEntry]:
    reader = MetadataReader(table, PaimonFiles(place.files))
    spelled = {name.casefold(): name for name in table.schema.partition_keys}
    chosen = chosen.renamed({name: spelled[name.casefold()] for name in chosen.columns})

    def candidates() -> Iterator[tuple[ManifestEntry, LakeSplit]]:
        for entry in reader.live_entries(snapshot):
            names = [field.name for field in entry.partition.fields]
            partition = dict(zip(names, map(to_plan_value, entry.partition.values), strict=True))
            if chosen.holds(partition):
                yield entry, LakeSplit(reader.location(entry), entry.file.file_size, entry.file.row_count)

    return find_files_to_drop(candidates(), place.files_at, place.spec.writers, below)
