# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""The interfaces of a lake table in any format, and the code that all formats share.

`LakeTable` is the table, and `LakeTableBinding` its location. `LakeAdoption` adopts a table of another engine, and
`LakeRelocation` rewrites the metadata of a copied or moved table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange, TablePath
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.lake.column_mapping import ColumnMapping
from streamhouse_spark.lake.file_access import open_lake_files
from streamhouse_spark.lake.metadata_errors import guard_metadata_errors
from streamhouse_spark.lake.metadata_tables import require_metadata_table
from streamhouse_spark.lake.parquet.merge_on_read import read_split
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.reader import (
    PlacedRows,
    SnapshotScan,
    find_offsets_in_plan,
    find_rows_with_offsets,
    identity_projection,
    read_log_range,
    read_stored_rows,
)
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import (
    NEVER_TRUNCATED,
    NO_PENDING_DELETES,
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    Filter,
    LakeDropReport,
    LakeFile,
    LakePlan,
    LakeProjection,
    LakeScan,
    LakeSnapshot,
    LakeSplit,
    LakeValidators,
    LakeVersion,
    LiveFile,
    ManifestReport,
    PendingDeletes,
    WriteContext,
)
from streamhouse_spark.lake.validation import NOTHING_ABSENT, LogRange
from streamhouse_spark.log.catalog.names import WarehouseIdentity
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from streamhouse_spark.expressions.partition_filter import PartitionMatches
    from streamhouse_spark.lake.parquet.clustering import Clustering
    from streamhouse_spark.lake.parquet.compaction import RunGroups
    from streamhouse_spark.log.state import TableState


UNKNOWN_COLUMNS = TableSchema.of("unknown int")
"""The columns of a spec for examining a location. They do not matter, because only the location counts."""
ORPHAN_GRACE_MS: Final = 24 * 3600 * 1000
ORPHAN_GRACE_MS_MIN = 10 * 60 * 1000
T = TypeVar("T")


class LakeRelocation(Protocol):
    """Relocation of a lake table whose metadata may contain another warehouse root."""

    num_written: int
    """Number of rewritten files."""

    def recorded_root(self) -> str | None:
        """Return the warehouse root in the lake's metadata, or None if it is the opened root."""

    def needed_files(self) -> set[str]:
        """Return the keys of all files inside the warehouse that snapshots reference."""

    def relocate(self, new_uuid: str | None) -> None:
        """Replace the root in all metadata with the opened root. With ``new_uuid``, that table becomes the owner.

        Completed work is not repeated. Raises `CommitConflictError`, `CommitStateUnknownError`.
        """


@dataclass(frozen=True, slots=True)
class AdoptionCandidate:
    """The result of examining a lake table that can be adopted."""

    location: str
    schema: TableSchema
    """The columns of the lake table, with the column ids of the new table."""
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    """Empty if the columns of a row do not determine its bucket."""
    num_buckets: int
    layout: tuple[str, ...]
    """The file layout in terms of the format: a partition spec, or a schema id."""
    snapshot_id: int | None
    """None for a table without snapshots."""
    version: str | None
    """A unique identity of the snapshot. A later snapshot may have the same id."""
    num_rows: int
    num_files: int
    owner: str | None
    """Uuid of the streamhouse table that claimed the lake table."""
    key: tuple[str, ...]
    """The declared identifier columns of its rows, if any."""
    is_keyed: bool = False
    """Whether the lake table has one row per ``key``. The new table then has this primary key."""


@dataclass(frozen=True, slots=True)
class LakeAdoption(ABC):
    """Adoption of lake tables of one format by new tables of one warehouse."""

    kind: ClassVar[str]
    """The name of the kind of lake table in messages."""
    storage: Storage
    settings: Mapping[str, str]
    world: World

    @abstractmethod
    def examine(self, path: TablePath, location: str) -> AdoptionCandidate:
        """Return whether and how the lake table at ``location`` can be adopted as ``path``. Changes nothing.

        ``location`` is as in `streamhouse_spark.core.warehouse_layout.lake_location`. Raises `LakeMismatchError` with
        all obstacles, `StorageError`, `CorruptDataError`.
        """

    @abstractmethod
    def require_key(self, examined: AdoptionCandidate, key: tuple[str, ...]) -> None:
        """Require that the lake table fits this primary key, which may be empty. Raises `LakeMismatchError`."""

    @abstractmethod
    def rows_by_bucket(self, spec: LakeTableSpec, examined: AdoptionCandidate) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of the examined snapshot as one table per bucket. Only one table is in memory at a time.

        Raises `LakeMismatchError` if the bucket of a row, or the latest row of a key, cannot be determined.
        """

    @abstractmethod
    def claim(self, spec: LakeTableSpec, examined: AdoptionCandidate, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Make the table the owner of the lake table, whose rows are those below ``offsets``.

        Raises `CommitConflictError` if the lake table changed since it was examined, and `CommitStateUnknownError`.
        """

    @abstractmethod
    def release(self, spec: LakeTableSpec) -> None:
        """Remove the table's claim on the lake table, if it is the owner. Rows, files and snapshots remain.

        Raises `CommitConflictError`, after which the caller may retry.
        """


class LakeTableBinding(ABC, Generic[T]):
    """The location of one lake table. It has no table state: `find` reads the latest metadata."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.storage = storage
        self.spec = spec
        self.settings = dict(settings or {})
        self.world = world or World()
        self._home = WarehouseIdentity(storage)

    def with_spec(self, spec: LakeTableSpec) -> Self:
        """Return the binding for another spec: with other columns, or at the location of a rebuilt lake."""
        binding = copy(self)
        binding.spec = spec
        return binding

    def require_home(self, action: str) -> None:
        """Require, before a write to the lake, that the warehouse was not moved or copied.

        ``action`` names the write. Raises `WarehouseMovedError`, and `InvalidOptionError` for a branch.
        """
        self.spec.require_own(action)
        self._home.require(f"{action} of {self.spec.path}")

    def files_at(self, location: str) -> FileAccess:
        return open_lake_files(self.storage, self.settings, location)

    def exists(self) -> bool:
        return self.find() is not None

    def require(self) -> T:
        """Return the result of `find` for a table that must exist. Raises `LakeMismatchError`."""
        table = self.find()
        if table is None:
            raise LakeMismatchError(
                f"{self.spec.path} has no lake table at {self.spec.location}: it was dropped, or never tiered; tier it"
            )
        return table

    @abstractmethod
    def find(self) -> T | None:
        """Return the latest state of the lake table, or None if it is absent. Raises `CorruptDataError`."""

    @abstractmethod
    def owner_of(self, table: T) -> str | None:
        """Return the uuid of the table that owns the lake table in state ``table``."""

    @abstractmethod
    def columns_of(self, table: T) -> ColumnMapping:
        """Return the column map of the lake table. Raises `CorruptDataError`."""

    @abstractmethod
    def create_or_evolve(self) -> None:
        """Create or migrate the table as `LakeTable.create_or_evolve` does."""

    def migrate_columns(self) -> None:
        """Migrate the columns of the lake table, if it exists, before its files are rewritten."""
        table = self.find()
        if table is None or self.owner_of(table) != self.spec.table_uuid:
            return
        schema_id = self.columns_of(table).schema_id
        if schema_id is None or schema_id < self.spec.schema_id:
            self.create_or_evolve()

    @abstractmethod
    def drop(self, *, purge: bool) -> None:
        """Drop the lake table, unless another table owns it."""


class SupportsSnapshotReplacement(ABC):
    """The additional methods of a format whose writers commit by rename.

    A slow commit of another engine may replace the latest snapshot of such a lake. In other lakes all writers compare
    and swap: the latest snapshot is durable, and an id identifies one snapshot.
    """

    @abstractmethod
    def find_durable(self) -> LakeSnapshot | None:
        """Return the latest durable snapshot, or None. No in-flight commit of another engine can remove its rows.

        May commit an empty snapshot to make earlier snapshots durable. Raises the errors of `LakeTable.commit`.
        """

    @abstractmethod
    def wait_until_durable(self, snapshot: LakeSnapshot) -> LakeSnapshot:
        """Wait until no in-flight commit of another engine can restore rows that the latest ``snapshot`` dropped.

        Returns ``snapshot``, or an empty snapshot after it. Raises `CommitConflictError` if a commit restored rows.
        """

    @abstractmethod
    def is_replaced(self, snapshot_id: int) -> bool:
        """Return whether another engine replaced this snapshot and no file has its rows. Tiering then repeats them."""

    @abstractmethod
    def snapshot_identity(self, snapshot_id: int) -> str | None:
        """Return a value that distinguishes a snapshot from another engine's snapshot with the same id.

        Returns None if the snapshot has expired.
        """

    @abstractmethod
    def adds_no_foreign_rows(self, older: int, newer: int) -> bool:
        """Return whether all rows without offsets in snapshot ``newer`` provably come from snapshot ``older``.

        Another file may hold them.
        """


class SupportsFileRewrite(ABC):
    """The additional methods of a format whose metadata can reference any file, with any order of rows."""

    @abstractmethod
    def require_clonable(self) -> None:
        """Raise `InvalidOptionError` for a lake whose files cannot be shared by two tables."""

    @abstractmethod
    def clone(self, state: TableState, snapshot_id: int) -> None:
        """Create the lake table of a clone with this ``state`` from a retained snapshot of the source table.

        Copies no file. **Commit point:** the first version of the clone's metadata. Raises `InvalidOptionError`,
        `LakeMismatchError`, `SnapshotExpiredError`.
        """

    @abstractmethod
    def cluster(
        self, clustering: Clustering, *, files: Collection[str], dry_run: bool = False, run: RunGroups | None = None
    ) -> CompactReport:
        """Rewrite files of a log table in a sort order.

        Selects about a gigabyte of the files at the locations ``files``, or 16 GB with ``run``. **Commit point:** the
        lake snapshot, which has the same rows and offsets. Raises `CommitConflictError`, `LakeMismatchError`.
        """

    @abstractmethod
    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Merge the manifests of data files and delete files into a few large ones.

        **Commit point:** the lake's metadata version. Rows, files and offsets do not change. Rounds merge small
        manifests, so this is for tables that other engines write to, or that have an older partition spec. Raises
        `CommitConflictError`, `LakeMismatchError`, `CommitStateUnknownError`.
        """

    @abstractmethod
    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        """Delete metadata versions that were replaced more than a day ago, and return their keys."""


class LakeCapabilities(NamedTuple):
    """The additional interfaces that a lake table supports, or None."""

    snapshot_replacement: SupportsSnapshotReplacement | None
    file_rewrite: SupportsFileRewrite | None


class LakeTable(ABC):
    """The lake table of one streamhouse table. Every call reads the latest state of the lake.

    Methods that write or delete first check that the warehouse was not moved. The format implements such a method in a
    method of that name with an underscore.
    """

    binding: LakeTableBinding[Any]
    binding_type: ClassVar[type[LakeTableBinding[Any]]]
    kind: ClassVar[str]
    """The kind of table in messages, such as "an Iceberg"."""
    metadata_tables: ClassVar[tuple[str, ...]]
    """The names of its metadata tables, as in the library of the format."""
    omits_deleted_rows: ClassVar[bool] = False
    """Whether the files of a round omit rows that were deleted earlier. Otherwise `delete_rows` deletes those rows."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.binding = self.binding_type(storage, spec, settings=settings, world=world)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        guard_metadata_errors(cls)

    @property
    def capabilities(self) -> LakeCapabilities:
        return LakeCapabilities(
            snapshot_replacement=self if isinstance(self, SupportsSnapshotReplacement) else None,
            file_rewrite=self if isinstance(self, SupportsFileRewrite) else None,
        )

    @property
    def location(self) -> str:
        """The key of its location in the warehouse, from the table's state. See `TableState.lake_location`."""
        return self.binding.spec.location

    def with_schema(self, schema: TableSchema) -> Self:
        """Return this lake table with the columns of another schema of the table."""
        return (
            self if schema == self.binding.spec.schema else self._with_spec(replace(self.binding.spec, schema=schema))
        )

    def with_state(self, state: TableState) -> Self:
        """Return this lake table for another state of the table."""
        target_file_bytes = self.binding.spec.target_file_bytes
        return self._with_spec(replace(LakeTableSpec.of(state), target_file_bytes=target_file_bytes))

    def _with_spec(self, spec: LakeTableSpec) -> Self:
        lake = copy(self)
        lake.binding = self.binding.with_spec(spec)
        return lake

    def require_home(self, action: str) -> None:
        """Require, before a write, that the warehouse was not moved or copied. Raises `WarehouseMovedError`."""
        self.binding.require_home(action)

    def _require_home_unless(self, dry_run: bool, action: str) -> None:  # noqa: FBT001 - the option of each verb
        if not dry_run:
            self.binding.require_home(action)

    @abstractmethod
    def relocation(self) -> LakeRelocation | None:
        """Return the relocation of the lake's metadata to the current locations of its files.

        Returns None with an external catalog.
        """

    def create_or_evolve(self) -> None:
        """Create the lake table, or migrate its columns to those of the table: add, rename, drop and widen.

        Raises `LakeMismatchError` with the difference if the table at its location does not fit, and
        `CommitConflictError` if the lake already has the columns of a later state of the table.
        """
        self.binding.require_home("making the lake table")
        self.binding.create_or_evolve()

    @abstractmethod
    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        """Cache, in the block and for this thread, the first lake state that is read.

        A commit reads the state itself, and fails on a conflict.
        """

    def exists(self) -> bool:
        return self.binding.exists()

    def drop(self, *, purge: bool) -> None:
        """Drop the lake table, if it exists. With ``purge``, also delete its files."""
        self.binding.require_home("dropping the lake table")
        self.binding.drop(purge=purge)

    @abstractmethod
    def newest(self) -> LakeSnapshot | None:
        """Return the latest snapshot with its offsets, or None before the first. Raises `LakeRolledBackError`."""

    def validators(self) -> LakeValidators | None:
        """Return the objects whose changes reveal every change of the lake by any engine, or None if there are none."""
        return None

    def latest_version(self) -> LakeVersion | None:
        """Return the object with the latest state of the lake.

        Returns None before the first snapshot, or if the object is outside the warehouse.
        """
        return None

    def digest_of(self, data: bytes) -> bytes:
        """Return the digest of the content of a `latest_version` object."""
        return sha256(data).digest()

    @abstractmethod
    def missing_metadata(self, recorded: int) -> str | None:
        """Return a missing metadata file that must have existed, because the log recorded the snapshot ``recorded``.

        Returns None if none is missing, or if another engine rolled the lake back to an earlier snapshot.
        """

    @abstractmethod
    def metadata_problems(self) -> Iterator[str]:
        """Describe damaged and missing files of all retained snapshots, the package's tag and the hint."""

    @abstractmethod
    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        """Return a snapshot by its id. Raises `SnapshotExpiredError`."""

    @abstractmethod
    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """Return the snapshot of a tag or branch. Raises `SnapshotExpiredError`."""

    @abstractmethod
    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        """Return the snapshot that was current at a time. Raises `SnapshotExpiredError`."""

    def write_context(self) -> WriteContext:
        """Return the context for the tasks of a round that starts now.

        With a primary key, `commit` may reject the files of this context after another commit.
        """
        self.binding.require_home("tiering")
        return self._write_context()

    @abstractmethod
    def _write_context(self) -> WriteContext: ...

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:  # noqa: ARG002 - the interface
        """Return, per bucket, the data files of the context's snapshot that may hold its rows.

        Raises `CommitConflictError` if that snapshot has expired.
        """
        return dict.fromkeys(buckets, ())  # readers merge rows by key, so a round needs no older rows

    @abstractmethod
    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetSet],
        added: Sequence[LakeFile],
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        """Write deletes of the rows at these offsets, and of ``pending`` rows, for the `commit` of a round.

        Deletes rows in the files that the round ``added``, and in older files if ``with_older``. Returns the additional
        files of the round, which are durable. A row of a file that another engine replaced is deleted from a newer file
        that has an equal row. Raises `CommitConflictError`, and `LakeMismatchError` if a row may be in a file without
        offsets that cannot be identified.
        """

    @abstractmethod
    def keeps_files(self, older: int, newer: int) -> bool:
        """Return whether snapshot ``newer`` provably retains, unchanged, each file without offsets of ``older``."""

    def commit(
        self,
        files: Sequence[LakeFile],
        *,
        expected: Mapping[int, int],
        new: Mapping[int, int],
        context: WriteContext,
        expected_starts: Mapping[int, int] = NEVER_TRUNCATED,
        starts: Mapping[int, int] = NEVER_TRUNCATED,
        absent: Mapping[int, int] = NOTHING_ABSENT,
    ) -> LakeSnapshot | None:
        """Add files and advance the offsets from ``expected`` to ``new`` in one snapshot. Returns None without changes.

        ``absent`` counts, per bucket, the rows of the range that are not in the files; see `omits_deleted_rows`. With a
        primary key, ``files`` include position delete files, which replace older delete files.

        ``starts`` are the first offsets of the table. If the lake has other starts, the table was truncated, and the
        same snapshot drops all older rows of the lake table.

        Every attempt validates the commit. Raises `CommitConflictError` if the offsets or columns of the table changed.
        If readers of the lake merge rows by key, a concurrent commit that would win against these rows also raises it.
        Also raises `LakeRolledBackError`, `LakeMismatchError`, `CommitStateUnknownError`.
        """
        self.binding.require_home("tiering")
        return self._commit(files, LogRange(expected_starts, expected), LogRange(starts, new, absent), context)

    @abstractmethod
    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None: ...

    def drop_partitions(
        self, chosen: PartitionMatches, *, below: Mapping[int, int], dry_run: bool = False
    ) -> LakeDropReport:
        """Remove the rows of partitions below the offsets ``below`` in one snapshot, which keeps the lake's offsets.

        Only for log tables. Rows that other engines added to the partitions are removed too. **Commit point:** the
        snapshot. Every attempt validates that the latest snapshot holds all rows below the offsets, or raises
        `LakeRolledBackError`. Raises `CommitConflictError` after too many conflicts, `LakeMismatchError`,
        `CommitStateUnknownError`.
        """
        self._require_home_unless(dry_run, "dropping a partition")
        from streamhouse_spark.lake.parquet.copy_on_write import retry_until_committed

        return retry_until_committed(
            self.binding.world, self.location, chosen, lambda: self._drop_partitions(chosen, below, dry_run=dry_run)
        )

    @abstractmethod
    def _drop_partitions(
        self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
    ) -> LakeDropReport: ...

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        node: Node = ALWAYS_TRUE,
        schema: TableSchema | None = None,
    ) -> LakePlan:
        """Return the files that may hold rows of the filter ``node``, which uses the column names of ``schema``.

        The caller filters the rows. Raises `SnapshotExpiredError`, or `SchemaMismatchError` for unknown columns.
        """
        table = self.binding.find() if snapshot_id is None else self._require_table(f"no snapshot {snapshot_id}")
        if table is None:
            return LakePlan(None, identity_projection(schema or self.binding.spec.schema, columns), ())
        return self._open_scan(table, snapshot_id).plan(columns, node, schema)

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
        """Return whole files with metadata, and with statistics of ``statistics_of`` and the filter's columns.

        Otherwise like `plan_read`, with its errors. With ``buckets``, files of other buckets may still be returned.
        """
        scan = self._open_scan(self._require_table(f"no snapshot {snapshot_id}"), snapshot_id)
        return scan.scan(columns, schema, statistics_of, node, buckets)

    @abstractmethod
    def _open_scan(self, table: Any, snapshot_id: int | None) -> SnapshotScan:
        """Return the scan of a snapshot, by default the latest. Raises `SnapshotExpiredError`."""

    def _require_table(self, consequence: str) -> Any:
        """Return the latest state of the lake table. Raises `SnapshotExpiredError` if it is absent."""
        table = self.binding.find()
        if table is None:
            raise SnapshotExpiredError(
                f"{self.binding.spec.path} has no lake table, so {consequence}: {self.missing_metadata(0)} is missing; "
                "tier it first, or restore the file if it was tiered"
            )
        return table

    @abstractmethod
    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        """Return the data files of a snapshot in the order that defines row ids. Raises `SnapshotExpiredError`."""

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]:
        return read_split(self.binding.files_at(split.location), split, projection, filter=filter)

    def read_offsets(self, bucket: int, of_range: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a log range as (base offset, rows) in order. Raises the errors of `read_with_offsets`."""
        return ((int(offsets[0]), rows) for offsets, rows in self.read_with_offsets(bucket, of_range))

    def read_with_offsets(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> PlacedRows:
        """Return the rows of a log range with their offsets, in offset order, from files that may match the filter.

        Raises `OffsetsTrimmedError` before the first row if the lake's files do not hold the range exactly. Those of a
        primary-key table never do, because they hold current rows instead of changes. With ``snapshot_id``, reads that
        snapshot and skips rows that it does not have. Raises `SnapshotExpiredError`.
        """
        schema = self.binding.spec.schema
        plan, locations = self.plan_read(snapshot_id=snapshot_id, schema=schema), None
        if node is not ALWAYS_TRUE and plan.snapshot is not None:
            chosen = self.plan_read(snapshot_id=plan.snapshot.id, node=node, schema=schema)
            locations = frozenset(split.location for split in chosen.splits)
        of_bucket = self.binding.spec.writers, bucket, offsets, locations
        return read_log_range(self.binding.files_at, plan, *of_bucket, has_gaps=snapshot_id is not None)

    def read_stored_rows(self, snapshot_id: int, bucket: int, rows: OffsetSet) -> PlacedRows:
        """Return the rows at these offsets from the files of a snapshot, including deleted rows.

        Rows at offsets in between may be returned too. Raises `SnapshotExpiredError`, and `OffsetsTrimmedError` as
        `read_with_offsets` does.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.binding.spec.schema)
        return read_stored_rows(self.binding.files_at, plan, self.binding.spec.writers, bucket, rows)

    def find_rows_with_offsets(self, snapshot_id: int, rows: Mapping[int, OffsetSet]) -> Mapping[int, OffsetSet]:
        """Return the offsets among ``rows`` that files of a snapshot hold. See `lake.reader.find_rows_with_offsets`.

        Raises `SnapshotExpiredError`.
        """
        splits = self.plan_read(snapshot_id=snapshot_id, schema=self.binding.spec.schema).splits
        locations = dict.fromkeys(split.location for split in splits)
        return find_rows_with_offsets(self.binding.files_at, locations, self.binding.spec.writers, rows)

    @abstractmethod
    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        """Return a snapshot and its retained ancestors, latest first."""

    def find_stored_offsets(
        self, snapshot_id: int, ranges: Mapping[int, OffsetRange]
    ) -> Mapping[int, OffsetSet] | None:
        """Return the offsets of the ranges, by bucket, at which a snapshot has rows. See
        `lake.reader.find_offsets_in_plan`.

        Raises `SnapshotExpiredError`.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.binding.spec.schema)
        return find_offsets_in_plan(self.binding.files_at, plan, self.binding.spec.writers, ranges)

    def metadata_table(self, name: str) -> pa.Table:
        """Return a metadata table with types that Spark supports. Raises `InvalidNameError` with the existing names."""
        require_metadata_table(name, self.metadata_tables, self.kind)
        table = self.binding.find()
        if table is not None:
            return self._metadata_table(table, name)
        empty = type(self)(MemoryStorage(self.binding.world), self.binding.spec, world=self.binding.world)
        empty.create_or_evolve()
        return empty.metadata_table(name).slice(0, 0)

    @abstractmethod
    def _metadata_table(self, table: Any, name: str) -> pa.Table: ...

    def compact(self, *, purge: bool = False, dry_run: bool = False, run: RunGroups | None = None) -> CompactReport:
        self._require_home_unless(dry_run, "compaction")
        try:
            return self._compact(purge=purge, dry_run=dry_run, run=run)
        except SnapshotExpiredError as error:
            if not self.binding.spec.primary_key:
                raise
            raise CommitConflictError(f"another process compacted and expired these files; retry ({error})") from error

    @abstractmethod
    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport: ...

    def remove_orphans(self, *, grace_ms: int = ORPHAN_GRACE_MS, dry_run: bool = False) -> list[str]:
        """Delete orphan files older than ``grace_ms``, and return their keys.

        Raises `InvalidOptionError` for a grace below ten minutes.
        """
        if grace_ms < ORPHAN_GRACE_MS_MIN:
            raise InvalidOptionError(
                f"grace of {grace_ms} ms, expected at least {ORPHAN_GRACE_MS_MIN} ms, which protects rounds in progress"
            )
        self._require_home_unless(dry_run, "removing orphans")
        return self._remove_orphans(grace_ms=grace_ms, dry_run=dry_run)

    @abstractmethod
    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]: ...

    def expire(
        self,
        *,
        keep_last: int,
        keep_ms: int,
        extra_rules: ExpiryRules | None = None,
        dry_run: bool = False,
        tagged: Collection[int] = (),
        claim: Claim | None = None,
    ) -> ExpireReport:
        """Expire snapshots older than ``keep_ms``, except the latest ``keep_last`` and those ``tagged``.

        Also expires the snapshots that ``extra_rules`` select. ``claim`` prevents new tags of the snapshots before any
        is dropped.
        """
        self._require_home_unless(dry_run, "expiry")
        rules = [ExpiryRules(keep_last, keep_ms), *([extra_rules] if extra_rules is not None else [])]
        return self._expire(rules, dry_run=dry_run, tagged=tagged, claim=claim)

    @abstractmethod
    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport: ...


guard_metadata_errors(LakeTable)
