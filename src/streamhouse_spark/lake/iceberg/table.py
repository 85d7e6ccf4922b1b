"""The Iceberg lake table of one streamhouse table: format v2, only the user's columns, offsets in the summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.commit_checks import LogRange
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.location import IcebergLocation
from streamhouse_spark.lake.iceberg.metadata_tables import METADATA_TABLES, metadata_table
from streamhouse_spark.lake.iceberg.offsets import log_time_ms, newest_offsets, offsets_at
from streamhouse_spark.lake.iceberg.scan import projection, require_snapshot, snapshot_schema
from streamhouse_spark.lake.iceberg.scan_files import same_by_name, scan_files
from streamhouse_spark.lake.model.live_files import LiveFile
from streamhouse_spark.lake.model.manifest_report import ManifestReport
from streamhouse_spark.lake.model.marks import LakeMarks
from streamhouse_spark.lake.model.scan_files import LakeScan
from streamhouse_spark.lake.model.values import (
    CompactReport,
    ExpireReport,
    LakeDropReport,
    LakeFile,
    LakePlan,
    LakeSnapshot,
    WriteContext,
)
from streamhouse_spark.lake.offsets import FoundOffsets
from streamhouse_spark.lake.reader import identity_projection
from streamhouse_spark.lake.snapshot_times import latest_ms
from streamhouse_spark.lake.spec import LakeTableSpec
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.query.partition_match import PartitionMatches
from streamhouse_spark.query.predicate_tree import ALWAYS_TRUE, Node
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation

__all__ = ["IcebergLake", "LakeTableSpec"]


class IcebergLake(LakeTable):
    """See `LakeTable`."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.place: IcebergLocation = IcebergLocation(storage, spec, settings=settings, world=world)

    def relocation(self) -> IcebergRelocation | None:
        from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation

        return IcebergRelocation(self.place) if isinstance(self.place.catalog, FileCatalog) else None

    # -- snapshots ------------------------------------------------------------------------------------------------

    def newest(self) -> LakeSnapshot | None:
        table = self.place.find()
        if table is None:
            return None
        metadata = table.metadata
        self.place.require_owner(metadata)
        found = newest_offsets(metadata, self.place.spec.table_uuid)
        head = metadata.current_snapshot()
        if head is None:
            return None
        return _snapshot(head, found)

    def marks(self) -> LakeMarks | None:
        catalog = self.place.catalog
        if not isinstance(catalog, FileCatalog) or (table := self.place.find()) is None:
            return None
        return catalog.marks(table)

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        metadata = self._metadata_with_snapshots()
        return self._described(metadata, require_snapshot(metadata, snapshot_id))

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag or branch. Raises `SnapshotExpiredError` naming the existing ones."""
        metadata = self._metadata_with_snapshots()
        found = metadata.snapshot_by_name(name)
        if found is None:
            raise SnapshotExpiredError(
                f"lake table {metadata.location} has no tag or branch '{name}'; there are {', '.join(metadata.refs)}"
            )
        return self._described(metadata, found)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        metadata = self._metadata_with_snapshots()
        times_ms = latest_ms([log_time_ms(metadata, entry) for entry in metadata.snapshot_log])
        entries = [e for e, time_ms in zip(metadata.snapshot_log, times_ms, strict=True) if time_ms <= timestamp_ms]
        if not entries:
            first = min(times_ms, default=None)
            raise SnapshotExpiredError(
                f"lake table {metadata.location} has no snapshot from {timestamp_ms} ms or before; the oldest that is "
                f"kept is from {first} ms; choose a later time"
            )
        # The last in the log's order: while a clock is behind, all snapshots get the time of the newest before them.
        return self._described(metadata, require_snapshot(metadata, entries[-1].snapshot_id))

    def _metadata_with_snapshots(self) -> TableMetadata:
        table = self.place.find()
        if table is None:
            raise SnapshotExpiredError(f"{self.place.spec.path} has no lake table yet, so no snapshots; tier it first")
        return table.metadata

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_context(self) -> WriteContext:
        from streamhouse_spark.lake.iceberg.round import write_context

        return write_context(self.place)

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:
        from streamhouse_spark.lake.iceberg.round import planned_files

        return planned_files(self.place, context, buckets)

    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None:
        from streamhouse_spark.lake.iceberg.round import commit_round

        return commit_round(self.place, files, before, after, context)

    def _drop_partitions(self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool) -> LakeDropReport:
        from streamhouse_spark.lake.iceberg.maintenance.drop_partition import drop_partitions

        report, snapshot_id = drop_partitions(self.place, chosen, below, dry_run=dry_run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    # -- reading --------------------------------------------------------------------------------------------------

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        node: Node = ALWAYS_TRUE,
        schema: TableSchema | None = None,
    ) -> LakePlan:
        table = self.place.find()
        if table is None and snapshot_id is None:
            return LakePlan(None, identity_projection(schema or self.place.spec.schema, columns), ())
        if table is None:
            raise self._no_table(snapshot_id)
        metadata = table.metadata
        snapshot = metadata.current_snapshot() if snapshot_id is None else require_snapshot(metadata, snapshot_id)
        lake = metadata.schema() if snapshot is None or snapshot_id is None else snapshot_schema(metadata, snapshot)
        known = iceberg_columns(metadata, self.place.spec)
        how = projection(lake, known, self.place.spec.schema, columns, schema)
        if snapshot is None:
            return LakePlan(None, how, ())
        every = projection(lake, known, self.place.spec.schema, None, schema)
        files = scan_files(table, snapshot, every, self.place.spec.num_buckets, node=node)
        return LakePlan(self._described(metadata, snapshot), how, tuple(s for file in files for s in file.splits()))

    def _no_table(self, snapshot_id: int | None) -> SnapshotExpiredError:
        return SnapshotExpiredError(
            f"{self.place.spec.path} has no lake table, so no snapshot {snapshot_id}; tier it, which says more"
        )

    def scan_files(
        self,
        *,
        snapshot_id: int,
        columns: Sequence[str],
        schema: TableSchema,
        statistics_of: Sequence[str] = (),
        node: Node = ALWAYS_TRUE,
    ) -> LakeScan:
        table = self.place.find()
        if table is None:
            raise self._no_table(snapshot_id)
        snapshot = require_snapshot(table.metadata, snapshot_id)
        lake = snapshot_schema(table.metadata, snapshot)
        known = iceberg_columns(table.metadata, self.place.spec)
        how = projection(lake, known, self.place.spec.schema, columns, schema)
        every = projection(lake, known, self.place.spec.schema, None, schema)
        files = scan_files(table, snapshot, every, self.place.spec.num_buckets, statistics_of, node)
        same = same_by_name(table.metadata, how, self.place.spec.schemas)
        return LakeScan(self._described(table.metadata, snapshot), how, files, same)

    def read_offsets(self, bucket: int, wanted: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self.place.spec.primary_key:
            raise OffsetsTrimmedError(
                f"bucket {bucket} of {self.place.spec.path}: changes {wanted} were asked for, the hot log no longer "
                "has them, and the lake of a table with a primary key holds current rows only; start later, or set "
                "failOnDataLoss=false to skip them"
            )
        return super().read_offsets(bucket, wanted)

    def metadata_table(self, name: str) -> pa.Table:
        table = self.place.find()
        if table is not None:
            return metadata_table(table, name)
        made = IcebergLocation(MemoryStorage(self.place.world), self.place.spec, world=self.place.world)
        made.create_or_evolve()
        return metadata_table(made.require(), name).slice(0, 0)

    def metadata_table_names(self) -> tuple[str, ...]:
        return METADATA_TABLES

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _compact(self, *, dry_run: bool) -> CompactReport:
        from streamhouse_spark.lake.iceberg.maintenance.compaction import compact
        from streamhouse_spark.lake.iceberg.maintenance.compaction_keyed import compact_keyed

        work = compact_keyed if self.place.spec.primary_key else compact
        report, snapshot_id = work(self.place, dry_run=dry_run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    def _expire(self, *, keep_last: int, keep_ms: int, dry_run: bool) -> ExpireReport:
        from streamhouse_spark.lake.iceberg.maintenance.compaction import expire

        return expire(self.place, keep_last=keep_last, keep_ms=keep_ms, dry_run=dry_run)

    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]:
        from streamhouse_spark.lake.iceberg.maintenance.orphans import remove_orphans

        return remove_orphans(self.place, grace_ms=grace_ms, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        from streamhouse_spark.lake.iceberg.maintenance.manifests import rewrite_manifests

        self._require_home_unless(dry_run, "joining manifests")
        return rewrite_manifests(self.place, dry_run=dry_run)

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        self._require_home_unless(dry_run, "pruning metadata")
        catalog = self.place.catalog
        return (
            catalog.prune_versions(self.place.identifier, dry_run=dry_run) if isinstance(catalog, FileCatalog) else []
        )

    def _described(self, metadata: TableMetadata, snapshot: Snapshot) -> LakeSnapshot:
        try:
            found = offsets_at(metadata, snapshot, self.place.spec.table_uuid)
        except LakeMismatchError:
            if snapshot.snapshot_id == metadata.current_snapshot_id:
                raise
            return _snapshot(snapshot, None)  # of a table that had the lake before
        if found is None and snapshot.snapshot_id == metadata.current_snapshot_id:
            found = newest_offsets(metadata, self.place.spec.table_uuid)
        return _snapshot(snapshot, found)


def _snapshot(snapshot: Snapshot, found: FoundOffsets | None) -> LakeSnapshot:
    if found is None:
        return LakeSnapshot(snapshot.snapshot_id, {}, snapshot.timestamp_ms)
    offsets, starts = dict(found.offsets), dict(found.starts)
    held = found.dropped_rows, found.history
    return LakeSnapshot(snapshot.snapshot_id, offsets, snapshot.timestamp_ms, starts, *held)
