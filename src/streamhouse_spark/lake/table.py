# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""`LakeTable`: the interface of a lake, whatever its format, to the rest of the package."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.lake.model.live_files import LiveFile
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
from streamhouse_spark.lake.relocation import LakeRelocation
from streamhouse_spark.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from streamhouse_spark.log.commits.state import TableState
    from streamhouse_spark.query.partition_match import PartitionMatches


class LakeTable(Protocol):
    """The lake table of one streamhouse table. Every call looks at the newest state of the lake."""

    @property
    def location(self) -> str:
        """The key of its location in the warehouse, as the table's state has it: see `TableState.lake_location`."""

    def with_schema(self, schema: TableSchema) -> Self:
        """Return the same lake table, read by the columns of another of the table's schemas."""

    def with_state(self, state: TableState) -> Self:
        """Return the same lake table, for the table in another state."""

    def require_home(self, doing: str) -> None:
        """Check the warehouse's home, before anything of the lake is written or deleted. Raises
        `WarehouseMovedError`.
        """

    def relocation(self) -> LakeRelocation | None:
        """Return the relocation of its metadata to the files' present locations; None if a catalog outside keeps it."""

    def create_or_adopt(self) -> None:
        """Make the lake table exist and fit: its columns become those of the table, by adding, renaming, dropping and
        widening.

        Raises `LakeMismatchError` with the difference if a table at its location does not fit, `CommitConflictError` if
        it has the columns of a newer state of the table already.
        """

    def exists(self) -> bool: ...

    def drop(self, *, purge: bool) -> None:
        """Close the table; with ``purge`` delete its files as well. An absent table is no error."""

    def newest(self) -> LakeSnapshot | None:
        """Return the current snapshot with the offsets it holds; None before the first. Raises
        `LakeRolledBackError`.
        """

    def settled(self) -> LakeSnapshot | None:
        """Return a durable snapshot, as new as possible: no commit under way in another engine can take away its rows.

        None if there is none. May commit an empty snapshot to make those before it durable. Raises as `commit` does.
        """

    def was_replaced(self, snapshot_id: int) -> bool:
        """Whether the lake holds less than it did because another engine's snapshot replaced this one of the package,
        and no file of the lake holds any of the missing rows: then they can be tiered again.
        """

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        """Return a snapshot by its id. Raises `SnapshotExpiredError`."""

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag or branch. Raises `SnapshotExpiredError`."""

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        """Return the snapshot that was current at a time. Raises `SnapshotExpiredError`."""

    def write_context(self) -> WriteContext:
        """Return the context of a round that begins now, for its tasks. With a primary key it is of the current
        snapshot: once the lake has another one, files that were written by it may no longer be committed, see `commit`.
        """

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:
        """Return for each of the buckets the data files of the context's snapshot that may hold its rows.

        Raises `CommitConflictError` if that snapshot was expired meanwhile.
        """

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
        """Add files and move the offsets from ``expected`` to ``new`` in one snapshot; None when nothing is new.

        With a primary key, files of deleted positions come among the others, and replace their older versions.

        ``starts`` are the first offsets of the table. If the lake has others, the table was truncated: the same
        snapshot drops all that the lake table held, so that it holds the added files alone, or nothing.

        Validated on every attempt. Raises `CommitConflictError` when the offsets or the table's shape moved, or, with
        a primary key, when the current snapshot is not the one that the context is of and, in a lake whose readers
        merge, has rows that would count as newer than these, `LakeRolledBackError`, `LakeMismatchError`, or
        `CommitStateUnknownError`.
        """

    def drop_partitions(
        self, chosen: PartitionMatches, *, below: Mapping[int, int], dry_run: bool = False
    ) -> LakeDropReport:
        """Remove the rows of these partitions that have offsets below some, in one snapshot; offsets stay as they are.

        Only for tables without a primary key. Rows that other engines added to the partitions go too. **Commit point:**
        the snapshot. Validated on every attempt: the removed rows are those of the then newest snapshot, which has to
        hold all rows below the offsets; else `LakeRolledBackError`. Raises `CommitConflictError` when others keep
        winning, `LakeMismatchError`, or `CommitStateUnknownError`.
        """

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        predicates: Sequence[Predicate] = (),
        schema: TableSchema | None = None,
    ) -> LakePlan:
        """Plan a read of a snapshot. Raises `SnapshotExpiredError`, `SchemaMismatchError` for unknown columns."""

    def scan_files(
        self, *, snapshot_id: int, columns: Sequence[str], schema: TableSchema, statistics_of: Sequence[str] = ()
    ) -> LakeScan:
        """Return the files that `plan_read` plans, whole, with their metadata; statistics for the columns of
        ``statistics_of``.

        Raises as `plan_read` does.
        """

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]: ...

    def to_arrow(self, plan: LakePlan, *, filter: Filter = None) -> pa.Table: ...

    def read_offsets(
        self, bucket: int, wanted: OffsetRange, *, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the rows of a log range: (base offset, rows) in offset order.

        Raises `OffsetsTrimmedError` before the first row when the lake's files do not hold the range exactly; those of
        a table with a primary key never do, they hold current rows and not changes.
        """

    def metadata_table(self, name: str) -> pa.Table:
        """Return a metadata table. Raises `InvalidNameError` naming the existing ones."""

    def metadata_table_names(self) -> tuple[str, ...]: ...

    def compact(self, *, dry_run: bool = False) -> CompactReport: ...

    def remove_orphans(self, *, grace_ms: int = ..., dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot needs and that are older than ``grace_ms``; returns their keys."""

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        """Delete metadata versions that were superseded more than a day ago; returns their keys."""

    def expire(self, *, keep_last: int, keep_ms: int, dry_run: bool = False) -> ExpireReport: ...
