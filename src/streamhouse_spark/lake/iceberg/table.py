"""The Iceberg lake table of one streamhouse table: format v2, only the user's columns, offsets in the summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.iceberg.metadata_versions import cache_metadata_for_round
from streamhouse_spark.lake.iceberg.snapshots import (
    describe_snapshot,
    iter_ancestors,
    newest_offsets,
    retains_external_files,
)
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import (
    NO_PENDING_DELETES,
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    LakeDropReport,
    LakeFile,
    LakePlan,
    LakeScan,
    LakeSnapshot,
    LakeValidators,
    LakeVersion,
    LiveFile,
    ManifestReport,
    PendingDeletes,
    WriteContext,
)
from streamhouse_spark.lake.validation import LogRange
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation
    from streamhouse_spark.lake.parquet.clustering import Clustering
    from streamhouse_spark.lake.parquet.compaction import RunGroups
    from streamhouse_spark.log.state import TableState

__all__ = ["IcebergLake", "LakeTableSpec"]


class IcebergLake(LakeTable):
    """The `LakeTable` of Iceberg."""

    has_file_names = True

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.place: IcebergTableBinding = IcebergTableBinding(storage, spec, settings=settings, world=world)

    def relocation(self) -> IcebergRelocation | None:
        from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation

        return IcebergRelocation(self.place) if self.place.uses_files else None

    # -- snapshots ------------------------------------------------------------------------------------------------

    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        return cache_metadata_for_round()

    def newest(self) -> LakeSnapshot | None:
        metadata = self.place.snapshots()
        if metadata is None:
            return None
        self.place.require_owner(metadata)
        offsets = newest_offsets(metadata, self.place.spec.table_uuid)
        head = metadata.current_snapshot()
        return None if head is None else describe_snapshot(head, offsets)

    def marks(self) -> LakeValidators | None:
        return self.place.marks()

    def head(self) -> LakeVersion | None:
        file = self.place.newest_file()
        return None if file is None else LakeVersion(file[0], self.content_of(file[1]), file[2])

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        from streamhouse_spark.lake.iceberg.scan import snapshot

        return snapshot(self.place, snapshot_id)

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag or branch. Raises `SnapshotExpiredError` with the existing names."""
        from streamhouse_spark.lake.iceberg.scan import snapshot_by_name

        return snapshot_by_name(self.place, name)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        from streamhouse_spark.lake.iceberg.scan import snapshot_as_of

        return snapshot_as_of(self.place, timestamp_ms)

    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        table = self.place.require()
        return iter_ancestors(table.metadata, snapshot_id, self.place.spec.table_uuid)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_context(self) -> WriteContext:
        from streamhouse_spark.lake.iceberg.tiering_commit import write_context

        return write_context(self.place)

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:
        from streamhouse_spark.lake.iceberg.tiering_commit import plan_data_files

        return plan_data_files(self.place, context, buckets)

    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetSet],
        added: Sequence[LakeFile],
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        from streamhouse_spark.lake.iceberg.row_deletes import write_file_deletes
        from streamhouse_spark.lake.iceberg.tiering_commit import write_row_deletes

        written, moved = write_row_deletes(self.place, context, rows, added, with_older=with_older)
        return [*written, *write_file_deletes(self.place, context, pending, moved)]

    def keeps_files(self, older: int, newer: int) -> bool:
        metadata = self.place.snapshots()
        return metadata is not None and retains_external_files(metadata, older, newer)

    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None:
        from streamhouse_spark.lake.iceberg.tiering_commit import commit_round

        return commit_round(self.place, files, before, after, context)

    def _drop_partitions(self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool) -> LakeDropReport:
        from streamhouse_spark.lake.iceberg.drop_partition import drop_partitions

        report, snapshot_id = drop_partitions(self.place, chosen, below, dry_run=dry_run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    # -- clones ---------------------------------------------------------------------------------------------------

    def require_clonable(self) -> None:
        from streamhouse_spark.lake.iceberg.clone import require_files

        self.place.require_home("cloning the lake table")
        require_files(self.place)

    def clone(self, state: TableState, snapshot_id: int) -> None:
        from streamhouse_spark.lake.iceberg.clone import clone

        clone(self.place, self.with_state(state).place, snapshot_id)

    # -- reading --------------------------------------------------------------------------------------------------

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        node: Node = ALWAYS_TRUE,
        schema: TableSchema | None = None,
    ) -> LakePlan:
        from streamhouse_spark.lake.iceberg.scan import plan_read

        return plan_read(self.place, snapshot_id, columns, node, schema)

    def scan_files(
        self,
        *,
        snapshot_id: int,
        columns: Sequence[str],
        schema: TableSchema,
        statistics_of: Sequence[str] = (),
        node: Node = ALWAYS_TRUE,
        buckets: Collection[int] | None = None,
    ) -> LakeScan:
        from streamhouse_spark.lake.iceberg.scan import scan_snapshot

        return scan_snapshot(self.place, snapshot_id, columns, schema, statistics_of, node, buckets)

    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        from streamhouse_spark.lake.iceberg.row_deletes import list_data_files

        return list_data_files(self.place, snapshot_id)

    def read_with_offsets(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        if self.place.spec.primary_key:
            raise OffsetsTrimmedError(
                f"bucket {bucket} of {self.place.spec.path}: changes {offsets} were asked for, the hot log no longer "
                "has them, and the lake of a table with a primary key holds current rows only; start later, or set "
                "failOnDataLoss=false to skip them"
            )
        return super().read_with_offsets(bucket, offsets, node, snapshot_id=snapshot_id)

    def missing_metadata(self, recorded: int) -> str | None:
        return self.place.missing_metadata(recorded)

    def metadata_problems(self) -> Iterator[str]:
        from streamhouse_spark.lake.iceberg.metadata_inspection import find_metadata_problems

        return find_metadata_problems(self.place)

    def metadata_table(self, name: str) -> pa.Table:
        from streamhouse_spark.lake.iceberg.metadata_inspection import metadata_table

        table = self.place.find()
        if table is not None:
            return metadata_table(table, name)
        binding = IcebergTableBinding(MemoryStorage(self.place.world), self.place.spec, world=self.place.world)
        binding.create_or_evolve()
        return metadata_table(binding.require(), name).slice(0, 0)

    def metadata_table_names(self) -> tuple[str, ...]:
        from streamhouse_spark.lake.iceberg.metadata_inspection import METADATA_TABLES

        return METADATA_TABLES

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport:
        from streamhouse_spark.lake.iceberg.compaction import compact, compact_keyed

        work = compact_keyed if self.place.spec.primary_key else compact
        report, snapshot_id = work(self.place, purge=purge, dry_run=dry_run, run=run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    def _cluster(
        self, how: Clustering, files: Collection[str], *, dry_run: bool, run: RunGroups | None
    ) -> CompactReport | None:
        from streamhouse_spark.lake.iceberg.compaction import cluster

        if self.place.spec.primary_key:
            return None
        report, snapshot_id = cluster(self.place, how, files, dry_run=dry_run, run=run)
        return report if snapshot_id is None else replace(report, snapshot=self.snapshot(snapshot_id))

    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport:
        from streamhouse_spark.lake.iceberg.expiry import expire

        return expire(self.place, rules, dry_run=dry_run, tagged=tagged, claim=claim)

    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]:
        from streamhouse_spark.lake.iceberg.expiry import remove_orphans

        return remove_orphans(self.place, grace_ms=grace_ms, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        from streamhouse_spark.lake.iceberg.compaction import rewrite_manifests

        self._require_home_unless(dry_run, "joining manifests")
        return rewrite_manifests(self.place, dry_run=dry_run)

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        from streamhouse_spark.lake.iceberg.catalog import FileCatalog

        self._require_home_unless(dry_run, "pruning metadata")
        catalog = self.place.catalog
        return (
            catalog.prune_versions(self.place.identifier, dry_run=dry_run) if isinstance(catalog, FileCatalog) else []
        )
