"""The Paimon lake table of one streamhouse table: an append table, or with a primary key a table that readers merge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.lake.base import LakeTable, SupportsSnapshotReplacement
from streamhouse_spark.lake.paimon import (
    compaction,
    drop_partition,
    expiry,
    metadata_inspection,
    row_deletes,
    tiering_commit,
)
from streamhouse_spark.lake.paimon.relocation import PaimonRelocation
from streamhouse_spark.lake.paimon.scan import PaimonScan
from streamhouse_spark.lake.paimon.snapshots import own_time_ms, parse_snapshot, snapshot_text
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding, round_cache
from streamhouse_spark.lake.parquet.compaction import RunGroups
from streamhouse_spark.lake.types import (
    NO_PENDING_DELETES,
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    LakeDropReport,
    LakeFile,
    LakeSnapshot,
    LakeVersion,
    PendingDeletes,
    WriteContext,
)
from streamhouse_spark.lake.validation import LogRange


class PaimonLake(LakeTable, SupportsSnapshotReplacement):
    """The `LakeTable` of Paimon."""

    binding: PaimonTableBinding
    binding_type = PaimonTableBinding
    kind = "a Paimon"
    metadata_tables = (
        "buckets",
        "consumers",
        "files",
        "manifests",
        "options",
        "partitions",
        "schemas",
        "snapshots",
        "tags",
    )

    omits_deleted_rows = True

    def relocation(self) -> PaimonRelocation:
        return PaimonRelocation(self.binding)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        return round_cache.open()

    def newest(self) -> LakeSnapshot | None:
        table = self.binding.find()
        if table is None:
            return None
        self.binding.require_owner(table)
        return tiering_commit.describe_snapshot(self.binding, table.snapshot) if table.snapshot else None

    def latest_version(self) -> LakeVersion | None:
        table = self.binding.find()
        snapshot = None if table is None else table.snapshot
        if snapshot is None:
            return None
        key, successor = self.binding.snapshots.keys_of(snapshot)
        return LakeVersion(key, super().digest_of(snapshot_text(snapshot)), successor)

    def digest_of(self, data: bytes) -> bytes:
        return super().digest_of(snapshot_text(parse_snapshot(self.location, data)))

    def missing_metadata(self, recorded: int) -> str | None:
        table = self.binding.find()
        if table is None:
            return f"lake file {self.binding.schema_key(0)}"
        number = self.binding.snapshots.first_missing(table.snapshot, recorded)
        return None if number is None else f"lake file {self.binding.snapshots.key_of(number)}"

    def metadata_problems(self) -> Iterator[str]:
        return metadata_inspection.find_metadata_problems(self.binding)

    def find_durable(self) -> LakeSnapshot | None:
        self.binding.require_home("making snapshots durable")
        return tiering_commit.find_durable(self.binding)

    def is_replaced(self, snapshot_id: int) -> bool:
        return tiering_commit.was_replaced(self.binding, snapshot_id)

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        self._require_table(f"no snapshot {snapshot_id}")
        return tiering_commit.describe_past_snapshot(self.binding, self.binding.snapshots.require(snapshot_id))

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag. Raises `SnapshotExpiredError` with the existing names."""
        self._require_table(f"no tag '{name}'")
        snapshot = self.binding.snapshots.snapshot_of_tag(name)
        if snapshot is None:
            tags = ", ".join(self.binding.snapshots.tags()) or "none"
            raise SnapshotExpiredError(f"lake table {self.binding.location} has no tag '{name}'; choose one of {tags}")
        return tiering_commit.describe_past_snapshot(self.binding, snapshot)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        snapshot = self._require_table("no snapshots").snapshot
        oldest = snapshot
        time_ms = own_time_ms(snapshot) if snapshot is not None else 0
        while snapshot is not None and time_ms > timestamp_ms:
            oldest, snapshot = snapshot, self.binding.snapshots.find(snapshot.id - 1)
            time_ms = min(time_ms, own_time_ms(snapshot)) if snapshot is not None else time_ms
        if snapshot is None:
            self.binding.snapshots.require_expired(0 if oldest is None else oldest.id - 1)
            raise SnapshotExpiredError(
                f"lake table {self.binding.location} has no snapshot at or before {timestamp_ms} ms; the oldest "
                f"retained one is from {time_ms if oldest else None} ms; choose a later time"
            )
        return tiering_commit.describe_past_snapshot(self.binding, snapshot)

    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        return tiering_commit.iter_ancestors(self.binding, snapshot_id)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_context(self) -> WriteContext:
        return tiering_commit.write_context(self.binding)

    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetSet],
        added: Sequence[LakeFile],  # noqa: ARG002 - the files of a round omit deleted rows
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        if not with_older:
            return []
        written, moved = row_deletes.rewrite_files_without(self.binding, context, rows)
        return [*written, *row_deletes.rewrite_external_files(self.binding, context, pending, moved)]

    def keeps_files(self, older: int, newer: int) -> bool:
        return row_deletes.retains_external_files(self.binding, older, newer)

    def adds_no_foreign_rows(self, older: int, newer: int) -> bool:
        return row_deletes.adds_only_own_files(self.binding, older, newer)

    def wait_until_durable(self, snapshot: LakeSnapshot) -> LakeSnapshot:
        self.binding.require_home("making snapshots durable")
        return tiering_commit.wait_until_durable(self.binding, snapshot)

    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None:
        return tiering_commit.commit_round(self.binding, files, before, after, context)

    def _drop_partitions(self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool) -> LakeDropReport:
        return drop_partition.drop_partitions(self.binding, chosen, below, dry_run=dry_run)

    # -- reading --------------------------------------------------------------------------------------------------

    def _open_scan(self, table: PaimonTable, snapshot_id: int | None) -> PaimonScan:
        return PaimonScan(self.binding, table, snapshot_id)

    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        return row_deletes.list_data_files(self.binding, self._require_table(f"no snapshot {snapshot_id}"), snapshot_id)

    def snapshot_identity(self, snapshot_id: int) -> str | None:
        return row_deletes.snapshot_identity(self.binding, snapshot_id)

    def _metadata_table(self, table: PaimonTable, name: str) -> pa.Table:
        return metadata_inspection.metadata_table(self.binding, table, name)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport:
        if self.binding.spec.primary_key:
            return compaction.compact_keyed(self.binding, purge=purge, dry_run=dry_run, run=run)
        return compaction.compact(self.binding, dry_run=dry_run, run=run)

    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport:
        return expiry.expire(self.binding, rules, dry_run=dry_run, tagged=tagged, claim=claim)

    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]:
        return expiry.remove_orphans(self.binding, grace_ms=grace_ms, dry_run=dry_run)
