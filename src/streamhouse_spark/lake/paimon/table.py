"""The Paimon lake table of one streamhouse table: an append table, or with a primary key one that readers merge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pyarrow as pa
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.paimon.compaction import compact_keyed, compact_log
from streamhouse_spark.lake.paimon.drop_partition import drop_partitions
from streamhouse_spark.lake.paimon.evolution import paimon_columns
from streamhouse_spark.lake.paimon.expiry import expire, remove_orphans
from streamhouse_spark.lake.paimon.metadata_inspection import METADATA_TABLES, find_metadata_problems, metadata_table
from streamhouse_spark.lake.paimon.relocation import PaimonRelocation
from streamhouse_spark.lake.paimon.row_deletes import (
    adds_only_own_files,
    list_data_files,
    retains_external_files,
    rewrite_external_files,
    rewrite_files_without,
    snapshot_mark,
)
from streamhouse_spark.lake.paimon.scan import columns_same_by_name, projection, scan_files
from streamhouse_spark.lake.paimon.snapshots import own_time_ms, parse_snapshot, snapshot_text
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding, cache_metadata_for_round
from streamhouse_spark.lake.paimon.tiering_commit import (
    commit_round,
    describe_past_snapshot,
    describe_snapshot,
    find_durable,
    iter_ancestors,
    wait_until_durable,
    was_replaced,
    write_context,
)
from streamhouse_spark.lake.parquet.compaction import RunGroups
from streamhouse_spark.lake.reader import identity_projection
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
    LakeVersion,
    PendingDeletes,
    WriteContext,
)
from streamhouse_spark.lake.validation import LogRange
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage


class PaimonLake(LakeTable):
    """The `LakeTable` of Paimon."""

    has_file_names = True
    leaves_out_deleted = True

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.place: PaimonTableBinding = PaimonTableBinding(storage, spec, settings=settings, world=world)

    def relocation(self) -> PaimonRelocation:
        return PaimonRelocation(self.place)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        return cache_metadata_for_round()

    def newest(self) -> LakeSnapshot | None:
        table = self.place.find()
        if table is None:
            return None
        self.place.require_owner(table)
        return describe_snapshot(self.place, table.snapshot) if table.snapshot else None

    def head(self) -> LakeVersion | None:
        table = self.place.find()
        snapshot = None if table is None else table.snapshot
        if snapshot is None:
            return None
        key, following = self.place.snapshots.keys_of(snapshot)
        return LakeVersion(key, super().content_of(snapshot_text(snapshot)), following)

    def content_of(self, data: bytes) -> bytes:
        return super().content_of(snapshot_text(parse_snapshot(self.location, data)))

    def missing_metadata(self, recorded: int) -> str | None:
        table = self.place.find()
        if table is None:
            return f"lake file {self.place.schema_key(0)}"
        number = self.place.snapshots.first_missing(table.snapshot, recorded)
        return None if number is None else f"lake file {self.place.snapshots.key_of(number)}"

    def metadata_problems(self) -> Iterator[str]:
        return find_metadata_problems(self.place)

    def find_durable(self) -> LakeSnapshot | None:
        self.place.require_home("settling snapshots")
        return find_durable(self.place)

    def is_replaced(self, snapshot_id: int) -> bool:
        return was_replaced(self.place, snapshot_id)

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        self._require_table(f"no snapshot {snapshot_id}")
        return describe_past_snapshot(self.place, self.place.snapshots.require(snapshot_id))

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag. Raises `SnapshotExpiredError` with the existing names."""
        self._require_table(f"no tag '{name}'")
        snapshot = self.place.snapshots.snapshot_of_tag(name)
        if snapshot is None:
            tags = ", ".join(self.place.snapshots.tags()) or "none"
            raise SnapshotExpiredError(f"lake table {self.place.location} has no tag '{name}'; there are {tags}")
        return describe_past_snapshot(self.place, snapshot)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        snapshot = self._require_table("no snapshots").snapshot
        oldest = snapshot
        time_ms = own_time_ms(snapshot) if snapshot is not None else 0
        while snapshot is not None and time_ms > timestamp_ms:
            oldest, snapshot = snapshot, self.place.snapshots.find(snapshot.id - 1)
            time_ms = min(time_ms, own_time_ms(snapshot)) if snapshot is not None else time_ms
        if snapshot is None:
            self.place.snapshots.require_expired(0 if oldest is None else oldest.id - 1)
            raise SnapshotExpiredError(
                f"lake table {self.place.location} has no snapshot from {timestamp_ms} ms or before; the oldest that "
                f"is kept is from {time_ms if oldest else None} ms; choose a later time"
            )
        return describe_past_snapshot(self.place, snapshot)

    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        return iter_ancestors(self.place, snapshot_id)

    def _require_table(self, consequence: str) -> PaimonTable:
        table = self.place.find()
        if table is None:
            raise SnapshotExpiredError(
                f"{self.place.spec.path} has no lake table, so {consequence}: there is no "
                f"{self.place.schema_key(0)}; tier it first, or if it was tiered, restore the file"
            )
        return table

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_context(self) -> WriteContext:
        return write_context(self.place)

    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetSet],
        added: Sequence[LakeFile],  # noqa: ARG002 - files of a round lack deleted rows
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        if not with_older:
            return []
        written, moved = rewrite_files_without(self.place, context, rows)
        return [*written, *rewrite_external_files(self.place, context, pending, moved)]

    def keeps_files(self, older: int, newer: int) -> bool:
        return retains_external_files(self.place, older, newer)

    def adds_only_own_rows(self, older: int, newer: int) -> bool:
        return adds_only_own_files(self.place, older, newer)

    def wait_until_durable(self, snapshot: LakeSnapshot) -> LakeSnapshot:
        self.place.require_home("settling snapshots")
        return wait_until_durable(self.place, snapshot)

    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None:
        return commit_round(self.place, files, before, after, context)

    def _drop_partitions(self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool) -> LakeDropReport:
        report, snapshot = drop_partitions(self.place, chosen, below, dry_run=dry_run)
        return report if snapshot is None else replace(report, snapshot=describe_snapshot(self.place, snapshot))

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
        table = table or self._require_table(f"no snapshot {snapshot_id}")
        newest = table.snapshot
        snapshot = newest if snapshot_id is None else self.place.snapshots.require(snapshot_id, newest)
        lake = table.schema if snapshot is None or snapshot_id is None else table.schema_of(snapshot)
        mapping = paimon_columns(table.schema, self.place.spec, table.schemas)
        how = projection(lake, mapping, self.place.spec.schema, columns, schema)
        if snapshot is None:
            return LakePlan(None, how, ())
        every = projection(lake, mapping, self.place.spec.schema, None, schema)
        files = scan_files(self.place, table, snapshot, lake, every, node=node)
        read_snapshot = (describe_snapshot if snapshot_id is None else describe_past_snapshot)(self.place, snapshot)
        return LakePlan(read_snapshot, how, tuple(s for file in files for s in file.splits()))

    def scan_files(
        self,
        *,
        snapshot_id: int,
        columns: Sequence[str],
        schema: TableSchema,
        statistics_of: Sequence[str] = (),
        node: Node = ALWAYS_TRUE,
        buckets: Collection[int] | None = None,  # noqa: ARG002 - the caller leaves files of others out
    ) -> LakeScan:
        table = self._require_table(f"no snapshot {snapshot_id}")
        snapshot: Snapshot = self.place.snapshots.require(snapshot_id, table.snapshot)
        lake = table.schema_of(snapshot)
        mapping = paimon_columns(table.schema, self.place.spec, table.schemas)
        how = projection(lake, mapping, self.place.spec.schema, columns, schema)
        every = projection(lake, mapping, self.place.spec.schema, None, schema)
        files = scan_files(self.place, table, snapshot, lake, every, statistics_of, node)
        return LakeScan(describe_past_snapshot(self.place, snapshot), how, files, columns_same_by_name(table, how))

    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        return list_data_files(self.place, self._require_table(f"no snapshot {snapshot_id}"), snapshot_id)

    def snapshot_mark(self, snapshot_id: int) -> str | None:
        return snapshot_mark(self.place, snapshot_id)

    def metadata_table(self, name: str) -> pa.Table:
        table = self.place.find()
        if table is not None:
            return metadata_table(self.place, table, name)
        binding = PaimonTableBinding(MemoryStorage(self.place.world), self.place.spec, world=self.place.world)
        binding.create_or_evolve()
        return metadata_table(binding, binding.require(), name).slice(0, 0)

    def metadata_table_names(self) -> tuple[str, ...]:
        return METADATA_TABLES

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport:
        if self.place.spec.primary_key:
            return compact_keyed(self.place, purge=purge, dry_run=dry_run, run=run)
        report, snapshot = compact_log(self.place, dry_run=dry_run, run=run)
        return report if snapshot is None else replace(report, snapshot=describe_snapshot(self.place, snapshot))

    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport:
        return expire(self.place, rules, dry_run=dry_run, tagged=tagged, claim=claim)

    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]:
        return remove_orphans(self.place, grace_ms=grace_ms, dry_run=dry_run)
