"""Joining the manifests of an Iceberg table, see `LakeTable.rewrite_manifests`."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from streamhouse_spark.lake.iceberg.commit import commit_snapshot
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.maintenance.compaction import carry_offsets
from streamhouse_spark.lake.iceberg.snapshot_builder import Change, manifest_groups
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.model.manifest_report import ManifestReport


def rewrite_manifests(place: IcebergTableBinding, *, dry_run: bool) -> ManifestReport:
    """See `LakeTable.rewrite_manifests`. Whatever is committed meanwhile is joined as well."""
    table = place.find()
    snapshot = table.metadata.current_snapshot() if table else None
    if table is None or snapshot is None:
        return ManifestReport()
    place.require_owner(table.metadata)
    with lake_metadata(table.location()):
        manifests = manifests_of(table.io, snapshot)
    groups = manifest_groups(m for m in manifests if m.has_added_files() or m.has_existing_files())
    removed, added = sum(len(g) for g in groups if len(g) > 1), sum(len(g) > 1 for g in groups)
    if dry_run or not removed:
        return ManifestReport(removed, added)

    def validated(metadata: TableMetadata) -> Change:
        place.require_owner(metadata)
        summary = carry_offsets(metadata)
        return Change(Operation.REPLACE, summary=summary, moves_tag=bool(summary), joins_manifests=True)

    committed = commit_snapshot(place.catalog, place.identifier, validated, place.world)
    return ManifestReport(removed, added, committed.snapshot_id)
