# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""The interfaces of a lake table in any format, and the part that all formats share.

`LakeTable` is the table itself, `LakeTableBinding` its place. `LakeAdoption` takes over a table of another engine, and
`LakeRelocation` mends the metadata of a copied or moved one.
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
from streamhouse_spark.lake.column_mapping import ColumnMap
from streamhouse_spark.lake.file_access import lake_files
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
    read_held,
    read_log_range,
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
"""A spec to examine a location before the columns of its table are known: only the location counts."""
ORPHAN_GRACE_MS: Final = 24 * 3600 * 1000
ORPHAN_GRACE_MS_MIN = 10 * 60 * 1000
T = TypeVar("T")


class LakeRelocation(Protocol):
    """The lake table of one table, whose metadata may name another root."""

    num_written: int
    """Number of files rewritten so far."""

    def recorded_root(self) -> str | None:
        """Return the root that the lake's metadata names, if it differs from the opened one."""

    def needed(self) -> set[str]:
        """Return the keys of all files inside the warehouse that a snapshot needs."""

    def relocate(self, new_uuid: str | None) -> None:
        """Make all metadata name the files at their present locations. With ``new_uuid`` the lake belongs to that
        table.

        Completed work is not repeated. Raises `CommitConflictError`, `CommitStateUnknownError`.
        """


@dataclass(frozen=True, slots=True)
class AdoptionCandidate:
    """A lake table that can be adopted, as examined."""

    location: str
    schema: TableSchema
    """The lake table's columns with ids of the new table."""
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    """Empty if the columns of a row do not determine its bucket."""
    num_buckets: int
    layout: tuple[str, ...]
    """The file layout in the format's own terms: a partition spec, or the number of a schema."""
    snapshot_id: int | None
    """None for a table without snapshots."""
    version: str | None
    """A mark unique to this snapshot, also among later ones with the same number."""
    num_rows: int
    num_files: int
    owner: str | None
    """Uuid of the streamhouse table that has claimed it."""
    key: tuple[str, ...]
    """The columns that identify its rows for other engines, if it declares any."""
    is_keyed: bool = False
    """Whether it keeps one row per ``key``, so that the new table has this primary key."""


@dataclass(frozen=True, slots=True)
class LakeAdoption(ABC):
    """Adoption of lake tables of one format, in one warehouse, for new tables."""

    kind: ClassVar[str]
    """The name of such a lake table in messages."""
    storage: Storage
    settings: Mapping[str, str]
    world: World

    @abstractmethod
    def examine(self, path: TablePath, place: str) -> AdoptionCandidate:
        """Examine whether the lake table at ``place`` can be adopted as ``path``; see
        `streamhouse_spark.core.warehouse_layout.lake_location`. Changes nothing.

        Raises `LakeMismatchError` with all obstacles, `StorageError`, `CorruptDataError`.
        """

    @abstractmethod
    def require_key(self, examined: AdoptionCandidate, key: tuple[str, ...]) -> None:
        """Require that the lake table fits a table with this primary key, or with none. Raises `LakeMismatchError`."""

    @abstractmethod
    def rows_by_bucket(self, spec: LakeTableSpec, examined: AdoptionCandidate) -> Iterator[tuple[int, pa.Table]]:
        """Read the rows of the examined snapshot as one table per bucket, one in memory at a time.

        Raises `LakeMismatchError` if the bucket of a row, or the latest row of a key, cannot be determined.
        """

    @abstractmethod
    def claim(self, spec: LakeTableSpec, examined: AdoptionCandidate, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Give the lake and its rows, below these offsets, to the table.

        Raises `CommitConflictError` if it changed since it was examined, `CommitStateUnknownError`.
        """

    @abstractmethod
    def release(self, spec: LakeTableSpec) -> None:
        """Release the lake if this table owns it: rows, files and snapshots stay.

        Raises `CommitConflictError`; retry.
        """


class LakeTableBinding(ABC, Generic[T]):
    """The location of one lake table. It holds no table state: `find` reads the latest metadata."""

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
        """Return the location for the table with other columns, or of its rebuilt lake."""
        place = copy(self)
        place.spec = spec
        return place

    def require_home(self, doing: str) -> None:
        """Require that the warehouse is at home, before a write or delete in the lake. Raises `WarehouseMovedError`,
        and `InvalidOptionError` for a branch.
        """
        self.spec.require_own(doing)
        self._home.require(f"{doing} of {self.spec.path}")

    def files_at(self, location: str) -> FileAccess:
        return lake_files(self.storage, self.settings, location)

    def exists(self) -> bool:
        return self.find() is not None

    def require(self) -> T:
        """Return the result of `find` for a table that must exist. Raises `LakeMismatchError`."""
        table = self.find()
        if table is None:
            raise LakeMismatchError(
                f"{self.spec.path} has no lake table at {self.spec.location}: dropped, or not tiered yet; tier it"
            )
        return table

    @abstractmethod
    def find(self) -> T | None:
        """Return the latest state of the lake table, or None if there is none. Raises `CorruptDataError`."""

    @abstractmethod
    def owner_of(self, table: T) -> str | None:
        """Return the uuid of the table that owns this lake table."""

    @abstractmethod
    def columns_of(self, table: T) -> ColumnMap:
        """Return the column map of the lake table. Raises `CorruptDataError`."""

    @abstractmethod
    def create_or_evolve(self) -> None:
        """Create or migrate the table as `LakeTable.create_or_evolve` does."""

    def migrate_columns(self) -> None:
        """Migrate the lake table, if it exists, to the table's columns before its files are rewritten."""
        table = self.find()
        if table is None or self.owner_of(table) != self.spec.table_uuid:
            return
        schema_id = self.columns_of(table).schema_id
        if schema_id is None or schema_id < self.spec.schema_id:
            self.create_or_evolve()

    @abstractmethod
    def drop(self, *, purge: bool) -> None:
        """Drop the lake table if it is this table's. Another table's lake at the location stays."""


class ReplaceableSnapshots(ABC):
    """The part of a lake table whose writers rename: a slow commit of another engine may replace the latest snapshot.

    Everywhere else all writers compare and swap: the latest snapshot is durable, and an id names one snapshot.
    """

    @abstractmethod
    def find_durable(self) -> LakeSnapshot | None:
        """Return the latest durable snapshot: no in-flight commit of another engine can remove its rows.

        Returns None if there is none. May commit an empty snapshot to make earlier ones durable. Raises as
        `LakeTable.commit` does.
        """

    @abstractmethod
    def wait_until_durable(self, snapshot: LakeSnapshot) -> LakeSnapshot:
        """Wait until no in-flight commit of another engine can restore rows that the latest ``snapshot`` dropped.

        Returns it, or an empty snapshot above it. Raises `CommitConflictError` if a commit restored some.
        """

    @abstractmethod
    def is_replaced(self, snapshot_id: int) -> bool:
        """Return whether another engine's snapshot replaced this one of the package, and no file holds the lost rows.
        Then they can be tiered again.
        """

    @abstractmethod
    def snapshot_mark(self, snapshot_id: int) -> str | None:
        """Return a mark that distinguishes a snapshot from one of another engine with the same number. None if the
        snapshot has expired.
        """

    @abstractmethod
    def adds_only_own_rows(self, older: int, newer: int) -> bool:
        """Return whether each row without an offset provably comes from an older snapshot, perhaps in another file."""


class RearrangeableFiles(ABC):
    """The part of a lake table whose metadata names any file: of another table, and in any order of rows."""

    @abstractmethod
    def require_clonable(self) -> None:
        """Raise `InvalidOptionError` for a lake whose files two tables cannot share."""

    @abstractmethod
    def clone(self, state: TableState, snapshot_id: int) -> None:
        """Create the lake table of a clone with this ``state`` from a snapshot that the source table retains for it.

        Copies no file. **Commit point:** the first version of its metadata. Raises `InvalidOptionError`,
        `LakeMismatchError`, `SnapshotExpiredError`.
        """

    @abstractmethod
    def cluster(
        self, how: Clustering, *, files: Collection[str], dry_run: bool = False, run: RunGroups | None = None
    ) -> CompactReport:
        """Rewrite files of a log table in a sort order: of the locations ``files`` about a gigabyte, or 16 with
        ``run``.

        **Commit point:** the lake snapshot, which has the same rows and offsets. Raises `CommitConflictError`,
        `LakeMismatchError`.
        """

    @abstractmethod
    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Merge manifests into a few large ones, those of delete files too.

        **Commit point:** the lake's metadata version. Rows, files and offsets stay. Rounds merge small manifests
        themselves: this is for tables that other engines wrote to, or with an older partition spec. Raises
        `CommitConflictError`, `LakeMismatchError`, `CommitStateUnknownError`.
        """

    @abstractmethod
    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        """Delete metadata versions that were superseded more than a day ago, and return their keys."""


class LakeCapabilities(NamedTuple):
    """What a lake table can do besides the methods of `LakeTable`."""

    replaceable: ReplaceableSnapshots | None
    rearrangeable: RearrangeableFiles | None


class LakeTable(ABC):
    """The lake table of one streamhouse table. Every call reads the latest state of the lake.

    Methods that write or delete check first that the warehouse is at home. Then the format does its part, in the method
    of the same name with an underscore.
    """

    place: LakeTableBinding[Any]
    binding: ClassVar[type[LakeTableBinding[Any]]]
    kind: ClassVar[str]
    """What messages call it: "an Iceberg" or "a Paimon"."""
    metadata_tables: ClassVar[tuple[str, ...]]
    """The names of its metadata tables, which are those of the format's own library."""
    leaves_out_deleted: ClassVar[bool] = False
    """Whether a round's files leave out rows that were deleted before. Otherwise `delete_rows` deletes them there."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.place = self.binding(storage, spec, settings=settings, world=world)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        guard_metadata_errors(cls)

    @property
    def capabilities(self) -> LakeCapabilities:
        return LakeCapabilities(
            replaceable=self if isinstance(self, ReplaceableSnapshots) else None,
            rearrangeable=self if isinstance(self, RearrangeableFiles) else None,
        )

    @property
    def location(self) -> str:
        """The key of its location in the warehouse, by the table's state; see `TableState.lake_location`."""
        return self.place.spec.location

    def with_schema(self, schema: TableSchema) -> Self:
        """Return the same lake table, read by the columns of another schema of the table."""
        return self if schema == self.place.spec.schema else self._with_spec(replace(self.place.spec, schema=schema))

    def with_state(self, state: TableState) -> Self:
        """Return the same lake table, for another state of the table."""
        target_file_bytes = self.place.spec.target_file_bytes
        return self._with_spec(replace(LakeTableSpec.of(state), target_file_bytes=target_file_bytes))

    def _with_spec(self, spec: LakeTableSpec) -> Self:
        lake = copy(self)
        lake.place = self.place.with_spec(spec)
        return lake

    def require_home(self, doing: str) -> None:
        """Require that the warehouse is at home, before a write or delete in the lake. Raises `WarehouseMovedError`."""
        self.place.require_home(doing)

    def _require_home_unless(self, dry_run: bool, doing: str) -> None:  # noqa: FBT001 - the option of each verb
        if not dry_run:
            self.place.require_home(doing)

    @abstractmethod
    def relocation(self) -> LakeRelocation | None:
        """Return the relocation of its metadata to the present places of its files; None with an external catalog."""

    def create_or_evolve(self) -> None:
        """Create the lake table, or migrate its columns to those of the table: add, rename, drop and widen.

        Raises `LakeMismatchError` with the difference if the table at its location does not fit, `CommitConflictError`
        if it already has the columns of a later state of the table.
        """
        self.place.require_home("making the lake table")
        self.place.create_or_evolve()

    @abstractmethod
    def cache_metadata_for_round(self) -> AbstractContextManager[None]:
        """Let this thread reuse the first lake state that it reads for the rest of one step.

        Commits read the state themselves, and fail on a conflict.
        """

    def exists(self) -> bool:
        return self.place.exists()

    def drop(self, *, purge: bool) -> None:
        """Close the table; with ``purge`` also delete its files. A missing table is not an error."""
        self.place.require_home("dropping the lake table")
        self.place.drop(purge=purge)

    @abstractmethod
    def newest(self) -> LakeSnapshot | None:
        """Return the current snapshot with its offsets, or None before the first. Raises `LakeRolledBackError`."""

    def marks(self) -> LakeValidators | None:
        """Return the objects whose change reveals the next change of the lake, by any engine. Returns None if no object
        of the warehouse does.
        """
        return None

    def head(self) -> LakeVersion | None:
        """Return the object that holds the latest state of the lake. Returns None before the first snapshot, or if it
        is outside the warehouse.
        """
        return None

    def content_of(self, data: bytes) -> bytes:
        """Return the digest of the content of an object such as `head`."""
        return sha256(data).digest()

    @abstractmethod
    def missing_metadata(self, recorded: int) -> str | None:
        """Return a missing metadata file that the committed snapshot ``recorded`` proves to have existed. Returns None
        if none is missing, or another engine rolled the lake back to before it.
        """

    @abstractmethod
    def metadata_problems(self) -> Iterator[str]:
        """Describe damaged and missing files of all retained snapshots, of the package's tag and of the hint."""

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

        With a primary key it is bound to the current snapshot: after another commit its files may be rejected, see
        `commit`.
        """
        self.place.require_home("tiering")
        return self._write_context()

    @abstractmethod
    def _write_context(self) -> WriteContext: ...

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:  # noqa: ARG002 - the interface
        """Return, per bucket, the data files of the context's snapshot that may hold its rows.

        Raises `CommitConflictError` if that snapshot has expired.
        """
        return dict.fromkeys(buckets, ())  # readers take the latest row of each key, so a round needs no older rows

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
        """Write the deletion of the rows at these offsets, and of ``pending`` rows, for the `commit` of a round.

        Deletes rows in the files that the round ``added`` and in older ones. Returns the additional files of the round,
        which are durable. Rows of files that other engines replaced are deleted from the new files by equality, one for
        one. Raises `CommitConflictError`, and `LakeMismatchError` if a
        row may be in a file without offsets that cannot be identified.
        """

    @abstractmethod
    def keeps_files(self, older: int, newer: int) -> bool:
        """Return whether a snapshot provably retains each file without offsets of an older one, unchanged."""

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
        """Add files and move the offsets from ``expected`` to ``new`` in one snapshot. Returns None if nothing is new.

        ``absent`` counts, per bucket, the rows of the range that are not in the files; see `leaves_out_deleted`. With a
        primary key, ``files`` include files of deleted positions, which replace their older versions.

        ``starts`` are the first offsets of the table. If the lake has others, the table was truncated: the same
        snapshot drops all older rows of the lake table.

        Every attempt validates the commit. Raises `CommitConflictError` if the offsets or the table's shape changed.
        With a primary key it also raises it if the context's snapshot is no longer current, in a lake whose readers
        merge only if rows there would count as newer than these. Also raises `LakeRolledBackError`,
        `LakeMismatchError`, `CommitStateUnknownError`.
        """
        self.place.require_home("tiering")
        return self._commit(files, LogRange(expected_starts, expected), LogRange(starts, new, absent), context)

    @abstractmethod
    def _commit(
        self, files: Sequence[LakeFile], before: LogRange, after: LogRange, context: WriteContext
    ) -> LakeSnapshot | None: ...

    def drop_partitions(
        self, chosen: PartitionMatches, *, below: Mapping[int, int], dry_run: bool = False
    ) -> LakeDropReport:
        """Remove the rows of partitions that have offsets below ``below``, in one snapshot. The lake's offsets stay.

        Only for log tables. Rows that other engines added to the partitions are removed too. **Commit point:** the
        snapshot. Every attempt validates that the latest snapshot holds all rows below the offsets, else it raises
        `LakeRolledBackError`. Raises `CommitConflictError` if concurrent writers keep winning, `LakeMismatchError`,
        `CommitStateUnknownError`.
        """
        self._require_home_unless(dry_run, "dropping a partition")
        from streamhouse_spark.lake.parquet.copy_on_write import retry_until_committed

        return retry_until_committed(
            self.place.world, self.location, chosen, lambda: self._drop_partitions(chosen, below, dry_run=dry_run)
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
        """Plan the files that can hold rows of the filter ``node``, which uses the names of ``schema``.

        The caller filters the rows. Raises `SnapshotExpiredError`, or `SchemaMismatchError` for unknown columns.
        """
        table = self.place.find() if snapshot_id is None else self._require_table(f"no snapshot {snapshot_id}")
        if table is None:
            return LakePlan(None, identity_projection(schema or self.place.spec.schema, columns), ())
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
        """Plan as `plan_read` does, as whole files with metadata, and with statistics for ``statistics_of`` and the
        filter's columns.

        With ``buckets`` files of other buckets may still be returned. Raises as `plan_read` does.
        """
        scan = self._open_scan(self._require_table(f"no snapshot {snapshot_id}"), snapshot_id)
        return scan.scan(columns, schema, statistics_of, node, buckets)

    @abstractmethod
    def _open_scan(self, table: Any, snapshot_id: int | None) -> SnapshotScan:
        """Return the scan of a snapshot, the latest one by default. Raises `SnapshotExpiredError`."""

    def _require_table(self, consequence: str) -> Any:
        """Return the latest state of the lake table. Raises `SnapshotExpiredError` if there is none."""
        table = self.place.find()
        if table is None:
            raise SnapshotExpiredError(
                f"{self.place.spec.path} has no lake table, so {consequence}: there is no {self.missing_metadata(0)}; "
                "tier it first, or if it was tiered, restore that"
            )
        return table

    @abstractmethod
    def list_named_files(self, snapshot_id: int) -> Sequence[str]:
        """Return a snapshot's data files in the order that names their rows. Raises `SnapshotExpiredError`."""

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]:
        return read_split(self.place.files_at(split.location), split, projection, filter=filter)

    def read_offsets(self, bucket: int, of_range: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the rows of a log range as (base offset, rows) in offset order. Raises as `read_with_offsets` does."""
        return ((int(offsets[0]), rows) for offsets, rows in self.read_with_offsets(bucket, of_range))

    def read_with_offsets(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> PlacedRows:
        """Read the rows of a log range with their offsets, in offset order, from files that may match the filter.

        Raises `OffsetsTrimmedError` before the first row if the lake's files do not hold the range exactly. Those of a
        primary-key table never do: they hold current rows, not changes. With ``snapshot_id`` reads that snapshot,
        without the rows missing from it. Raises `SnapshotExpiredError`.
        """
        schema = self.place.spec.schema
        plan, locations = self.plan_read(snapshot_id=snapshot_id, schema=schema), None
        if node is not ALWAYS_TRUE and plan.snapshot is not None:
            chosen = self.plan_read(snapshot_id=plan.snapshot.id, node=node, schema=schema)
            locations = frozenset(split.location for split in chosen.splits)
        how = self.place.spec.writers, bucket, offsets, locations
        return read_log_range(self.place.files_at, plan, *how, has_gaps=snapshot_id is not None)

    def read_held(self, snapshot_id: int, bucket: int, rows: OffsetSet) -> PlacedRows:
        """Read the rows at these offsets from the files of a snapshot, deleted rows included.

        Rows at offsets in between may be returned too. Raises `SnapshotExpiredError`, and `OffsetsTrimmedError` as
        `read_with_offsets` does.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema)
        return read_held(self.place.files_at, plan, self.place.spec.writers, bucket, rows)

    def find_rows_with_offsets(self, snapshot_id: int, rows: Mapping[int, OffsetSet]) -> Mapping[int, OffsetSet]:
        """Return the rows that files of a snapshot hold, as `lake.reader.find_rows_with_offsets` does.

        Raises `SnapshotExpiredError`.
        """
        splits = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema).splits
        locations = dict.fromkeys(split.location for split in splits)
        return find_rows_with_offsets(self.place.files_at, locations, self.place.spec.writers, rows)

    @abstractmethod
    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:
        """Return a snapshot and its ancestors, newest first, as far as they are retained."""

    def find_held_offsets(self, snapshot_id: int, ranges: Mapping[int, OffsetRange]) -> Mapping[int, OffsetSet] | None:
        """Return bucket → offsets of the ranges that a snapshot has rows of, as `lake.reader.find_offsets_in_plan`
        does.

        Raises `SnapshotExpiredError`.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema)
        return find_offsets_in_plan(self.place.files_at, plan, self.place.spec.writers, ranges)

    def metadata_table(self, name: str) -> pa.Table:
        """Return a metadata table, in types that Spark supports. Raises `InvalidNameError` with the existing names."""
        require_metadata_table(name, self.metadata_tables, self.kind)
        table = self.place.find()
        if table is not None:
            return self._metadata_table(table, name)
        empty = type(self)(MemoryStorage(self.place.world), self.place.spec, world=self.place.world)
        empty.create_or_evolve()
        return empty.metadata_table(name).slice(0, 0)

    @abstractmethod
    def _metadata_table(self, table: Any, name: str) -> pa.Table: ...

    def compact(self, *, purge: bool = False, dry_run: bool = False, run: RunGroups | None = None) -> CompactReport:
        self._require_home_unless(dry_run, "compaction")
        try:
            return self._compact(purge=purge, dry_run=dry_run, run=run)
        except SnapshotExpiredError as error:
            if not self.place.spec.primary_key:
                raise
            raise CommitConflictError(
                f"another process compacted and expired these files; try again ({error})"
            ) from error

    @abstractmethod
    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport: ...

    def remove_orphans(self, *, grace_ms: int = ORPHAN_GRACE_MS, dry_run: bool = False) -> list[str]:
        """Delete orphan files older than ``grace_ms``, and return their keys.

        Raises `InvalidOptionError` for a grace below ten minutes.
        """
        if grace_ms < ORPHAN_GRACE_MS_MIN:
            raise InvalidOptionError(
                f"grace of {grace_ms} ms: rounds under way need at least {ORPHAN_GRACE_MS_MIN} ms; choose more"
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
        many: ExpiryRules | None = None,
        dry_run: bool = False,
        tagged: Collection[int] = (),
        claim: Claim | None = None,
    ) -> ExpireReport:
        """Expire snapshots older than ``keep_ms``, except the latest ``keep_last`` and those ``tagged``.

        With ``many``, also expires those that this second rule selects. ``claim`` reserves the snapshots against new
        tags before any is dropped.
        """
        self._require_home_unless(dry_run, "expiry")
        rules = [ExpiryRules(keep_last, keep_ms), *([many] if many is not None else [])]
        return self._expire(rules, dry_run=dry_run, tagged=tagged, claim=claim)

    @abstractmethod
    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport: ...


guard_metadata_errors(LakeTable)
