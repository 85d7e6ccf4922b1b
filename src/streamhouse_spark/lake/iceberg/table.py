"""The Iceberg lake table of a streamhouse table: format v2, with only the user's columns, and offsets in summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.lake.base import LakeTable, SupportsFileRewrite
from streamhouse_spark.lake.iceberg.metadata_versions import round_cache
from streamhouse_spark.lake.iceberg.snapshots import (
    describe_snapshot,
    iter_ancestors,
    newest_offsets,
    retains_external_files,
)
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.reader import SnapshotScan
from streamhouse_spark.lake.types import (
    NO_PENDING_DELETES,
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    LakeDropReport,
    LakeFile,
    LakeSnapshot,
    LakeValidators,
    LakeVersion,
    LiveFile,
    ManifestReport,
    PendingDeletes,
    WriteContext,
)
from streamhouse_spark.lake.validation import LogRange

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation
    from streamhouse_spark.lake.parquet.clustering import Clustering
    from streamhouse_spark.lake.parquet.compaction import RunGroups
    from streamhouse_spark.log.state import TableState


class IcebergLake(LakeTable, SupportsFileRewrite):
    """The `LakeTable` of Iceberg."""

    binding: IcebergTableBinding
    binding_type = IcebergTableBinding
    kind = "an Iceberg"
    metadata_tables = (
        "all_data_files",
        "all_delete_files",
        "all_files",
        "all_manifests",
        "data_files",
        "delete_files",
        "entries",
        "files",
        "history",
        "manifests",
        "metadata_log_entries",
        "partitions",
        "refs",
        "snapshots",
    )

    def relocation(self) -> IcebergRelocation | None:
        from streamhouse_spark.lake.iceberg.relocation import IcebergRelocation

        return IcebergRelocation(self.binding) if self.binding.uses_files else None

    # -- snapshots ------------------------------------------------------------------------------------------------

    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        return round_cache.open()

    def newest(self) -> LakeSnapshot | None:
        metadata = self.binding.snapshots()
        if metadata is None:
            return None
        self.binding.require_owner(metadata)
        offsets = newest_offsets(metadata, self.binding.spec.table_uuid)
        head = metadata.current_snapshot()
        return None if head is None else describe_snapshot(head, offsets)

    def validators(self) -> LakeValidators | None:
        return self.binding.validators()

    def latest_version(self) -> LakeVersion | None:
        file = self.binding.newest_file()
        return None if file is None else LakeVersion(file[0], self.digest_of(file[1]), file[2])

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        from streamhouse_spark.lake.iceberg.scan import snapshot

        return snapshot(self.binding, self._require_table("no snapshots").metadata, snapshot_id)

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag or branch. Raises `SnapshotExpiredError` with the existing names."""
        from streamhouse_spark.lake.iceberg.scan import snapshot_by_name

        return snapshot_by_name(self.binding, self._require_table("no snapshots").metadata, name)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        from streamhouse_spark.lake.iceberg.scan import snapshot_as_of

        return snapshot_as_of(self.binding, self._require_table("no snapshots").metadata, timestamp_ms)

    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        table = self.binding.require()
        return iter_ancestors(table.metadata, snapshot_id, self.binding.spec.table_uuid)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_context(self) -> WriteContext:
        from streamhouse_spark.lake.iceberg.tiering_commit import write_context

        return write_context(self.binding)

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:
        from streamhouse_spark.lake.iceberg.tiering_commit import plan_data_files

        return plan_data_files(self.binding, context, buckets)

    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetSet],
        added: Sequence[LakeFile],
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        from streamhouse_spark.lake.iceberg.row_deletes import write_file_deletes, write_row_deletes

        written, moved = write_row_deletes(self.binding, context, rows, added, with_older=with_older)
        return [*written, *write_file_deletes(self.binding, context, pending, moved)]

    def keeps_files(self, older: int, newer: int) -> bool:
        metadata = self.binding.snapshots()
        return metadata is not None and retains_external_files(metadata, older, newer)

    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None:
        from streamhouse_spark.lake.iceberg.tiering_commit import commit_round

        return commit_round(self.binding, files, before, after, context)

    def _drop_partitions(self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool) -> LakeDropReport:
        from streamhouse_spark.lake.iceberg.drop_partition import drop_partitions

        return drop_partitions(self.binding, chosen, below, dry_run=dry_run)

    # -- clones ---------------------------------------------------------------------------------------------------

    def require_clonable(self) -> None:
        from streamhouse_spark.lake.iceberg.clone import require_file_catalog

        self.binding.require_home("cloning the lake table")
        require_file_catalog(self.binding)

    def clone(self, state: TableState, snapshot_id: int) -> None:
        from streamhouse_spark.lake.iceberg.clone import clone

        clone(self.binding, self.with_state(state).binding, snapshot_id)

    # -- reading --------------------------------------------------------------------------------------------------

    def _open_scan(self, table: Table, snapshot_id: int | None) -> SnapshotScan:
        from streamhouse_spark.lake.iceberg.scan import IcebergScan

        return IcebergScan(self.binding, table, snapshot_id)

    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        from streamhouse_spark.lake.iceberg.row_deletes import list_data_files

        return list_data_files(self.binding, snapshot_id)

    def read_with_offsets(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        if self.binding.spec.primary_key:
            raise OffsetsTrimmedError(
                f"bucket {bucket} of {self.binding.spec.path}: the hot log no longer has the changes {offsets}, and "
                "the lake of a primary-key table has current rows only; start later, or set failOnDataLoss=false to "
                "skip them"
            )
        return super().read_with_offsets(bucket, offsets, node, snapshot_id=snapshot_id)

    def missing_metadata(self, recorded: int) -> str | None:
        return self.binding.missing_metadata(recorded)

    def metadata_problems(self) -> Iterator[str]:
        from streamhouse_spark.lake.iceberg.metadata_inspection import find_metadata_problems

        return find_metadata_problems(self.binding)

    def _metadata_table(self, table: Table, name: str) -> pa.Table:
        from streamhouse_spark.lake.iceberg.metadata_inspection import metadata_table

        return metadata_table(table, name)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport:
        from streamhouse_spark.lake.iceberg.compaction import compact, compact_keyed

        work = compact_keyed if self.binding.spec.primary_key else compact
        return work(self.binding, purge=purge, dry_run=dry_run, run=run)

    def cluster(
        self, clustering: Clustering, *, files: Collection[str], dry_run: bool = False, run: RunGroups | None = None
    ) -> CompactReport:
        from streamhouse_spark.lake.iceberg.compaction import cluster

        self._require_home_unless(dry_run, "clustering")
        return cluster(self.binding, clustering, files, dry_run=dry_run, run=run)

    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport:
        from streamhouse_spark.lake.iceberg.expiry import expire

        return expire(self.binding, rules, dry_run=dry_run, tagged=tagged, claim=claim)

    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]:
        from streamhouse_spark.lake.iceberg.expiry import remove_orphans

        return remove_orphans(self.binding, grace_ms=grace_ms, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        from streamhouse_spark.lake.iceberg.compaction import rewrite_manifests

        self._require_home_unless(dry_run, "merging manifests")
        return rewrite_manifests(self.binding, dry_run=dry_run)

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        from streamhouse_spark.lake.iceberg.catalog import FileCatalog

        self._require_home_unless(dry_run, "pruning metadata")
        catalog = self.binding.catalog
        return (
            catalog.prune_versions(self.binding.identifier, dry_run=dry_run) if isinstance(catalog, FileCatalog) else []
        )
