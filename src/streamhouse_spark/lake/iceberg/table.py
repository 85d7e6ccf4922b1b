# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""The Iceberg lake table of one streamhouse table: format v2, only the user's columns, offsets in the summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.commit_checks import LogRange
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.location import IcebergPlace
from streamhouse_spark.lake.iceberg.maintenance.compaction import compact, expire
from streamhouse_spark.lake.iceberg.maintenance.compaction_keyed import compact_keyed
from streamhouse_spark.lake.iceberg.maintenance.drop_partition import drop_partitions
from streamhouse_spark.lake.iceberg.maintenance.orphans import GRACE_MS, remove_orphans
from streamhouse_spark.lake.iceberg.manifests import rewrite_manifests
from streamhouse_spark.lake.iceberg.metadata_tables import METADATA_TABLES, metadata_table
from streamhouse_spark.lake.iceberg.offsets import log_time_ms, newest_offsets, offsets_at
from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation
from streamhouse_spark.lake.iceberg.round import commit_round, planned_files, write_context
from streamhouse_spark.lake.iceberg.scan import (
    iceberg_filter,
    plan_splits,
    projection,
    require_snapshot,
    snapshot_schema,
)
from streamhouse_spark.lake.iceberg.scan_files import same_by_name, scan_files
from streamhouse_spark.lake.model.live_files import LiveFile
from streamhouse_spark.lake.model.manifest_report import ManifestReport
from streamhouse_spark.lake.model.scan_files import LakeScan
from streamhouse_spark.lake.model.values import (
    NEVER_TRUNCATED,
    CompactReport,
    ExpireReport,
    Filter,
    LakeDropReport,
    LakeFile,
    LakePlan,
    LakeProjection,
    LakeSnapshot,
    LakeSplit,
    Predicate,
    WriteContext,
)
from streamhouse_spark.lake.offsets import FoundOffsets
from streamhouse_spark.lake.parquet.reader import read_split
from streamhouse_spark.lake.reader import identity_projection, read_log_range, read_plan
from streamhouse_spark.lake.snapshot_times import latest_ms
from streamhouse_spark.lake.spec import LakeTableSpec
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.query.partition_match import PartitionMatches
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

__all__ = ["IcebergLake", "LakeTableSpec"]


class IcebergLake:
    """The `LakeTable` of Iceberg. Holds no state of the table: every call looks at the newest metadata."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.place = IcebergPlace(storage, spec, settings=settings, world=world)

    @property
    def location(self) -> str:
        return self.place.spec.location

    def with_schema(self, schema: TableSchema) -> IcebergLake:
        if schema == self.place.spec.schema:
            return self
        return self._with_spec(replace(self.place.spec, schema=schema))

    def with_state(self, state: TableState) -> IcebergLake:
        target_file_bytes = self.place.spec.target_file_bytes
        return self._with_spec(replace(LakeTableSpec.of(state), target_file_bytes=target_file_bytes))

    def _with_spec(self, spec: LakeTableSpec) -> IcebergLake:
        lake = copy(self)
        lake.place = self.place.with_spec(spec)
        return lake

    def exists(self) -> bool:
        return self.place.exists()

    def require_home(self, doing: str) -> None:
        self.place.require_home(doing)

    def relocation(self) -> IcebergRelocation | None:
        return IcebergRelocation(self.place) if isinstance(self.place.catalog, FileCatalog) else None

    def create_or_adopt(self) -> None:
        self.place.require_home("making the lake table")
        self.place.create_or_adopt()

    def drop(self, *, purge: bool) -> None:
        self.place.require_home("dropping the lake table")
        self.place.drop(purge=purge)

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

    def settled(self) -> LakeSnapshot | None:
        return self.newest()  # catalogs compare and swap

    def was_replaced(self, snapshot_id: int) -> bool:  # noqa: ARG002 - the interface
        return False

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

    def write_context(self) -> WriteContext:
        self.place.require_home("tiering")
        return write_context(self.place)

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:
        return planned_files(self.place, context, buckets)

    def commit(
        self,
        files: Sequence[LakeFile],
        *,
        expected: Mapping[int, int],
        new: Mapping[int, int],
        context: WriteContext,
        expected_starts: Mapping[int, int] = NEVER_TRUNCATED,
        starts: Mapping[int, int] = NEVER_TRUNCATED,
    ) -> LakeSnapshot | None:
        self.place.require_home("tiering")
        return commit_round(self.place, files, LogRange(expected_starts, expected), LogRange(starts, new), context)

    def drop_partitions(
        self, chosen: PartitionMatches, *, below: Mapping[int, int], dry_run: bool = False
    ) -> LakeDropReport:
        if not dry_run:
            self.place.require_home("dropping a partition")
        report, snapshot_id = drop_partitions(self.place, chosen, below, dry_run=dry_run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    # -- reading --------------------------------------------------------------------------------------------------

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        predicates: Sequence[Predicate] = (),
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
        row_filter = iceberg_filter(predicates, every, metadata.schema())
        splits = plan_splits(table, snapshot, row_filter, self.place.spec.num_buckets)
        return LakePlan(self._described(metadata, snapshot), how, tuple(splits))

    def _no_table(self, snapshot_id: int | None) -> SnapshotExpiredError:
        return SnapshotExpiredError(
            f"{self.place.spec.path} has no lake table, so no snapshot {snapshot_id}; tier it, which says more"
        )

    def scan_files(
        self, *, snapshot_id: int, columns: Sequence[str], schema: TableSchema, statistics_of: Sequence[str] = ()
    ) -> LakeScan:
        table = self.place.find()
        if table is None:
            raise self._no_table(snapshot_id)
        snapshot = require_snapshot(table.metadata, snapshot_id)
        lake = snapshot_schema(table.metadata, snapshot)
        known = iceberg_columns(table.metadata, self.place.spec)
        how = projection(lake, known, self.place.spec.schema, columns, schema)
        every = projection(lake, known, self.place.spec.schema, None, schema)
        files = scan_files(table, snapshot, every, statistics_of, self.place.spec.num_buckets)
        same = same_by_name(table.metadata, how, self.place.spec.schemas)
        return LakeScan(self._described(table.metadata, snapshot), how, files, same)

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]:
        return read_split(self.place.files_at(split.location), split, projection, filter=filter)

    def to_arrow(self, plan: LakePlan, *, filter: Filter = None) -> pa.Table:
        return read_plan(self.place.files_at, plan, filter=filter)

    def read_offsets(
        self, bucket: int, wanted: OffsetRange, *, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self.place.spec.primary_key:
            raise OffsetsTrimmedError(
                f"bucket {bucket} of {self.place.spec.path}: changes {wanted} were asked for, the hot log no longer "
                "has them, and the lake of a table with a primary key holds current rows only; start later, or set "
                "failOnDataLoss=false to skip them"
            )
        plan = self.plan_read(columns=columns, schema=self.place.spec.schema)
        return read_log_range(self.place.files_at, plan, self.place.spec.writers, bucket, wanted)

    def metadata_table(self, name: str) -> pa.Table:
        table = self.place.find()
        if table is not None:
            return metadata_table(table, name)
        made = IcebergPlace(MemoryStorage(self.place.world), self.place.spec, world=self.place.world)
        made.create_or_adopt()
        return metadata_table(made.require(), name).slice(0, 0)

    def metadata_table_names(self) -> tuple[str, ...]:
        return METADATA_TABLES

    # -- maintenance ----------------------------------------------------------------------------------------------

    def compact(self, *, dry_run: bool = False) -> CompactReport:
        if not dry_run:
            self.place.require_home("compaction")
        work = compact_keyed if self.place.spec.primary_key else compact
        report, snapshot_id = work(self.place, dry_run=dry_run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    def expire(self, *, keep_last: int, keep_ms: int, dry_run: bool = False) -> ExpireReport:
        if not dry_run:
            self.place.require_home("expiry")
        return expire(self.place, keep_last=keep_last, keep_ms=keep_ms, dry_run=dry_run)

    def remove_orphans(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> list[str]:
        if not dry_run:
            self.place.require_home("removing orphans")
        return remove_orphans(self.place, grace_ms=grace_ms, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        if not dry_run:
            self.place.require_home("joining manifests")
        return rewrite_manifests(self.place, dry_run=dry_run)

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        if not dry_run:
            self.place.require_home("pruning metadata")
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
