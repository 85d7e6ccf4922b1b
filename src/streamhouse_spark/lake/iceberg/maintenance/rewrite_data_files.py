"""Clustering of an Iceberg table of a log: its files are written again by the values of columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.file_access import offset_files
from streamhouse_spark.lake.iceberg.file_io import lake_metadata
from streamhouse_spark.lake.iceberg.maintenance.compaction import find_current, find_files_with_deletes, rewrite
from streamhouse_spark.lake.iceberg.maintenance.delete_compaction import exclude_deleted
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import data_location
from streamhouse_spark.lake.model.values import CompactReport
from streamhouse_spark.lake.parquet.clustering import Clustering, plan_clusters
from streamhouse_spark.lake.parquet.compaction import (
    SPREAD_BYTES_MAX,
    CompactGroup,
    RunGroups,
    StoredFile,
    limit_to_budget,
)


def cluster(
    place: IcebergTableBinding,
    how: Clustering,
    chosen: Collection[str],
    *,
    dry_run: bool,
    run: RunGroups | None = None,
) -> tuple[CompactReport, int | None]:
    """Cluster as `LakeTable.cluster` does; returns the report and the id of the new snapshot.

    A dry run reports all that a call after another would do, with the number of files that is aimed at.
    """
    newest = find_current(place, dry_run=dry_run)
    if newest is None:
        return CompactReport(), None
    table, planned = newest
    files = place.files_at(data_location(table))

    def group_of(stored: Sequence[StoredFile]) -> CompactGroup | None:
        sizes = {file.location: file.size_bytes for file in stored}
        offset_files_of_sizes = offset_files(place.storage, place.settings, sizes, place.spec.writers, list(sizes))
        own = [file for file in offset_files_of_sizes if file is not None]
        if len(own) < len(stored):
            return None
        live = [
            exclude_deleted(files, file, at) if at.deletes else (file, 0) for file, at in zip(own, stored, strict=True)
        ]
        stored_files = tuple(replace(at, num_deleted=deleted) for at, (_, deleted) in zip(stored, live, strict=True))
        return CompactGroup(own[0].bucket, tuple(file for file, _ in live), stored_files)

    with lake_metadata(table.location()):
        offset_files_of_sizes = find_files_with_deletes(table, planned)
        if offset_files_of_sizes is None:
            raise LakeMismatchError(
                f"lake table {table.location()} has deletes of another engine that name no file; compact it there first"
            )
        chosen_files = [file for file in (each.stored() for each in offset_files_of_sizes) if file.location in chosen]
        plan = plan_clusters(chosen_files, how, group_of)
        groups = list(plan if dry_run else limit_to_budget(plan, None if run is None else SPREAD_BYTES_MAX))
    if dry_run:
        report, _ = rewrite(place, table, planned, groups, how, dry_run=True)
        return replace(report, files_added=sum(how.num_lanes(g.size_bytes) for g in groups if g.num_rows)), None
    return rewrite(place, table, planned, groups, how, dry_run=False, run=run)
