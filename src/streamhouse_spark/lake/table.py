# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""`LakeTable`: all that the rest of the package knows of a lake, and the half of it that all formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self

import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.commit_validation import NOTHING_ABSENT, LogRange
from streamhouse_spark.lake.metadata_errors import guard_metadata_errors
from streamhouse_spark.lake.model.change_detection import LakeValidators, LakeVersion
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.model.pending_deletes import NO_PENDING_DELETES, PendingDeletes
from streamhouse_spark.lake.model.scan_files import LakeScan
from streamhouse_spark.lake.model.values import (
    NEVER_TRUNCATED,
    Claim,
    CompactReport,
    ExpireReport,
    ExpiryRules,
    Filter,
    LakeDropReport,
    LakeFile,
    LakePlan,
    LakeProjection,
    LakeSnapshot,
    LakeSplit,
    ManifestReport,
    WriteContext,
)
from streamhouse_spark.lake.parquet.merge_on_read import read_split
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.reader import (
    PlacedRows,
    find_offsets_in_plan,
    find_rows_with_offsets,
    read_held,
    read_log_range,
)
from streamhouse_spark.lake.relocation import LakeRelocation
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.query.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage

if TYPE_CHECKING:
    from streamhouse_spark.lake.parquet.clustering import Clustering
    from streamhouse_spark.lake.parquet.compaction import RunGroups
    from streamhouse_spark.log.commits.state import TableState
    from streamhouse_spark.query.partition_match import PartitionMatches


ORPHAN_GRACE_MS: Final = 24 * 3600 * 1000


class LakeTableBinding(Protocol):
    """The place of a lake table, as far as all formats have the same."""

    spec: LakeTableSpec
    storage: Storage

    def with_spec(self, spec: LakeTableSpec) -> Self: ...

    def require_home(self, doing: str) -> None: ...

    def exists(self) -> bool: ...

    def create_or_evolve(self) -> None: ...

    def drop(self, *, purge: bool) -> None: ...

    def files_at(self, location: str) -> FileAccess: ...


class LakeTable(ABC):
    """The lake table of one streamhouse table. Every call looks at the newest state of the lake.

    A verb that writes or deletes asks first whether the warehouse is at home. The format does its part behind that, in
    the method of the same name with an underscore.
    """

    place: LakeTableBinding
    has_file_names: ClassVar[bool] = False
    """Whether rows of files without offsets can be named, see `named_files`."""
    leaves_out_deleted: ClassVar[bool] = False
    """Whether a round's files lack the rows that were deleted before; else they have them, and `delete_rows` deletes
    them there."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        guard_metadata_errors(cls)

    @property
    def location(self) -> str:
        """The key of its location in the warehouse, as the table's state has it: see `TableState.lake_location`."""
        return self.place.spec.location

    def with_schema(self, schema: TableSchema) -> Self:
        """Return the same lake table, read by the columns of another of the table's schemas."""
        return self if schema == self.place.spec.schema else self._with_spec(replace(self.place.spec, schema=schema))

    def with_state(self, state: TableState) -> Self:
        """Return the same lake table, for the table in another state."""
        target_file_bytes = self.place.spec.target_file_bytes
        return self._with_spec(replace(LakeTableSpec.of(state), target_file_bytes=target_file_bytes))

    def _with_spec(self, spec: LakeTableSpec) -> Self:
        lake = copy(self)
        lake.place = self.place.with_spec(spec)
        return lake

    def require_home(self, doing: str) -> None:
        """Check the warehouse's home, before anything of the lake is written or deleted. Raises
        `WarehouseMovedError`.
        """
        self.place.require_home(doing)

    def _require_home_unless(self, dry_run: bool, doing: str) -> None:  # noqa: FBT001 - the option of each verb
        if not dry_run:
            self.place.require_home(doing)

    @abstractmethod
    def relocation(self) -> LakeRelocation | None:
        """Return the relocation of its metadata to the files' present locations; None if a catalog outside keeps it."""

    def create_or_evolve(self) -> None:
        """Make the lake table exist and fit: its columns become those of the table, by adding, renaming, dropping and
        widening.

        Raises `LakeMismatchError` with the difference if a table at its location does not fit, `CommitConflictError` if
        it has the columns of a newer state of the table already.
        """
        self.place.require_home("making the lake table")
        self.place.create_or_evolve()

    def one_look(self) -> AbstractContextManager[None]:
        """Let reads of this thread that plan one step take the newest state as the first of them found it.

        Commits look for themselves, and are refused where others went on. A format that does not know it looks anew
        each time.
        """
        return nullcontext()

    def exists(self) -> bool:
        return self.place.exists()

    def drop(self, *, purge: bool) -> None:
        """Close the table; with ``purge`` delete its files as well. An absent table is no error."""
        self.place.require_home("dropping the lake table")
        self.place.drop(purge=purge)

    def require_clonable(self) -> None:
        """Raise `InvalidOptionError` for a lake whose files two tables cannot share."""
        raise InvalidOptionError(
            f"table {self.place.spec.path} has a Paimon lake: Paimon finds data files below the folder of their table, "
            "so two tables cannot share them; copy the rows instead (CREATE TABLE … AS SELECT)"
        )

    def clone(self, state: TableState, snapshot_id: int) -> None:  # noqa: ARG002 - the interface
        """Begin the lake table of a clone, which has this ``state``, with a snapshot that the table keeps for it.

        No file is copied. **Commit point:** the first version of its metadata. Raises `InvalidOptionError`,
        `LakeMismatchError`, `SnapshotExpiredError`.
        """
        self.require_clonable()

    @abstractmethod
    def newest(self) -> LakeSnapshot | None:
        """Return the current snapshot with the offsets it holds; None before the first. Raises
        `LakeRolledBackError`.
        """

    def durable(self) -> LakeSnapshot | None:
        """Return a durable snapshot, as new as possible: no commit under way in another engine can take away its rows.

        None if there is none. May commit an empty snapshot to make those before it durable. Raises as `commit` does.
        """
        return self.newest()  # where all writers compare and swap

    def marks(self) -> LakeValidators | None:
        """Return the objects by which the next change of the lake will show, whoever makes it; None if it shows in
        none of the warehouse.
        """
        return None

    def head(self) -> LakeVersion | None:
        """Return the object that is the newest state of the lake; None before the first snapshot, and where it is none
        of the warehouse.
        """
        return None

    def content_of(self, data: bytes) -> bytes:
        """Return the digest of what an object such as `head` says."""
        return sha256(data).digest()

    @abstractmethod
    def missing_metadata(self, recorded: int) -> str | None:
        """Return the metadata file that has to be there, and is not, because this snapshot was committed once; None
        where all are, or another engine rolled the lake back to before it.
        """

    @abstractmethod
    def metadata_problems(self) -> Iterator[str]:
        """Describe the damaged and missing files of all kept snapshots, of the package's tag and of the hint."""

    def settle(self, snapshot: LakeSnapshot) -> LakeSnapshot:
        """Make sure that no commit under way in another engine can bring rows back that the newest ``snapshot`` lacks;
        returns it, or an empty one above it. Raises `CommitConflictError` where one did.
        """
        return snapshot  # where all writers compare and swap

    def was_replaced(self, snapshot_id: int) -> bool:  # noqa: ARG002 - the interface
        """Tell whether the lake holds less than it did because another engine's snapshot replaced this one of the
        package, and no file of the lake holds any of the missing rows: then they can be tiered again.
        """
        return False  # where all writers compare and swap

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
        """Return the context of a round that begins now, for its tasks. With a primary key it is of the current
        snapshot: once the lake has another one, files that were written by it may no longer be committed, see `commit`.
        """
        self.place.require_home("tiering")
        return self._write_context()

    @abstractmethod
    def _write_context(self) -> WriteContext: ...

    def live_files(self, context: WriteContext, buckets: Collection[int]) -> Mapping[int, tuple[LiveFile, ...]]:  # noqa: ARG002 - the interface
        """Find, for each of the buckets, the data files of the context's snapshot that may hold its rows.

        Raises `CommitConflictError` if that snapshot was expired meanwhile.
        """
        return dict.fromkeys(buckets, ())  # where readers take the newest row of each key, a round needs no older ones

    @abstractmethod
    def delete_rows(
        self,
        context: WriteContext,
        rows: Mapping[int, OffsetRuns],
        added: Sequence[LakeFile],
        *,
        with_older: bool,
        pending: PendingDeletes = NO_PENDING_DELETES,
    ) -> list[LakeFile]:
        """Write what deletes the rows at these offsets, in files that a round ``added`` and in older ones, and rows
        ``pending`` them, in the round's `commit`; returns what the round's files need besides. Durable when this
        returns.

        Where files have names (`named_files`), rows whose files other engines replaced since are deleted in the files
        that came instead, as many as are equal there. Raises `CommitConflictError`, and `LakeMismatchError` where a row
        may be in a file without offsets, and nothing tells which.
        """

    def keeps_files(self, older: int, newer: int) -> bool:  # noqa: ARG002 - the interface
        """Tell whether a snapshot is known to have each file without offsets that an older one has, as it was."""
        return False

    def adds_no_others(self, older: int, newer: int) -> bool:  # noqa: ARG002 - the interface
        """Tell whether each row without an offset that a snapshot has is known to be one of an older one, though it may
        be in another file. False where no round writes such rows again.
        """
        return False

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
        """Add files and move the offsets from ``expected`` to ``new`` in one snapshot; None when nothing is new.

        Of the rows between, the files lack the number of each bucket that are ``absent``, see `leaves_out_deleted`.

        With a primary key, files of deleted positions come among the others, and replace their older versions.

        ``starts`` are the first offsets of the table. If the lake has others, the table was truncated: the same
        snapshot drops all that the lake table held, so that it holds the added files alone, or nothing.

        Validated on every attempt. Raises `CommitConflictError` when the offsets or the table's shape moved, or, with
        a primary key, when the current snapshot is not the one that the context is of and, in a lake whose readers
        merge, has rows that would count as newer than these, `LakeRolledBackError`, `LakeMismatchError`, or
        `CommitStateUnknownError`.
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
        """Remove the rows of these partitions that have offsets below some, in one snapshot; offsets stay as they are.

        Only for tables without a primary key. Rows that other engines added to the partitions go too. **Commit point:**
        the snapshot. Validated on every attempt: the removed rows are those of the then newest snapshot, which has to
        hold all rows below the offsets; else `LakeRolledBackError`. Raises `CommitConflictError` when others keep
        winning, `LakeMismatchError`, or `CommitStateUnknownError`.
        """
        self._require_home_unless(dry_run, "dropping a partition")
        return self._drop_partitions(chosen, below, dry_run=dry_run)

    @abstractmethod
    def _drop_partitions(
        self, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
    ) -> LakeDropReport: ...

    @abstractmethod
    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        node: Node = ALWAYS_TRUE,
        schema: TableSchema | None = None,
    ) -> LakePlan:
        """Plan the files that can hold rows of the filter ``node``, which is in the names of ``schema``.

        Whoever reads them filters rows. Raises `SnapshotExpiredError`, `SchemaMismatchError` for unknown columns.
        """

    @abstractmethod
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
        """Plan as `plan_read`, as whole files with their metadata; statistics for the columns of ``statistics_of``
        and of the filter. ``buckets`` are the only ones that are wanted; files of others may be among the answer.

        Raises as `plan_read` does.
        """

    def named_files(self, snapshot_id: int) -> Sequence[str]:  # noqa: ARG002 - the interface
        """Return the locations of a snapshot's data files in the order by which their rows are named; none where rows
        without an offset have no name. Raises `SnapshotExpiredError`.
        """
        return ()

    def mark_of(self, snapshot_id: int) -> str | None:  # noqa: ARG002 - the interface
        """Return the mark that tells a snapshot from another engine's that takes its number; None where none can, or it
        is gone.
        """
        return None

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]:
        return read_split(self.place.files_at(split.location), split, projection, filter=filter)

    def read_offsets(self, bucket: int, of_range: OffsetRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the rows of a log range: (base offset, rows) in offset order. Raises as `read_placed`."""
        return ((int(offsets[0]), rows) for offsets, rows in self.read_placed(bucket, of_range))

    def read_placed(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> PlacedRows:
        """Read the rows of a log range with their offsets, in offset order; no file that has no row of the filter.

        Raises `OffsetsTrimmedError` before the first row when the lake's files do not hold the range exactly; those of
        a table with a primary key never do, they hold current rows and not changes. With ``snapshot_id`` that snapshot
        is read in place of the newest, and rows that it lacks are left out. Raises `SnapshotExpiredError`.
        """
        schema = self.place.spec.schema
        plan, locations = self.plan_read(snapshot_id=snapshot_id, schema=schema), None
        if node is not ALWAYS_TRUE and plan.snapshot is not None:
            chosen = self.plan_read(snapshot_id=plan.snapshot.id, node=node, schema=schema)
            locations = frozenset(split.location for split in chosen.splits)
        how = self.place.spec.writers, bucket, offsets, locations
        return read_log_range(self.place.files_at, plan, *how, has_gaps=snapshot_id is not None)

    def read_held(self, snapshot_id: int, bucket: int, rows: OffsetRuns) -> PlacedRows:
        """Read the rows at these offsets that files of a snapshot hold, those too that it marks as deleted. Rows
        between them may be among the answer. Raises `SnapshotExpiredError`, and `OffsetsTrimmedError` as `read_placed`.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema)
        return read_held(self.place.files_at, plan, self.place.spec.writers, bucket, rows)

    def rows_with_offsets(self, snapshot_id: int, rows: Mapping[int, OffsetRuns]) -> Mapping[int, OffsetRuns]:
        """Return those of the rows that files of a snapshot hold, as `lake.reader.rows_with_offsets` does.

        Raises `SnapshotExpiredError`.
        """
        splits = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema).splits
        locations = dict.fromkeys(split.location for split in splits)
        return find_rows_with_offsets(self.place.files_at, locations, self.place.spec.writers, rows)

    def ancestors(self, snapshot_id: int) -> Iterator[LakeSnapshot]:  # noqa: ARG002 - the interface
        """Return a snapshot and those that it was made from, the newest first, as far as they are kept."""
        return iter(())

    def held_offsets(self, snapshot_id: int, ranges: Mapping[int, OffsetRange]) -> Mapping[int, OffsetRuns] | None:
        """Return bucket → offsets of the ranges of which a snapshot has rows, as `lake.reader.held_offsets` does.

        Raises `SnapshotExpiredError`.
        """
        plan = self.plan_read(snapshot_id=snapshot_id, schema=self.place.spec.schema)
        return find_offsets_in_plan(self.place.files_at, plan, self.place.spec.writers, ranges)

    @abstractmethod
    def metadata_table(self, name: str) -> pa.Table:
        """Return a metadata table. Raises `InvalidNameError` naming the existing ones."""

    @abstractmethod
    def metadata_table_names(self) -> tuple[str, ...]: ...

    def compact(self, *, purge: bool = False, dry_run: bool = False, run: RunGroups | None = None) -> CompactReport:
        self._require_home_unless(dry_run, "compaction")
        return self._compact(purge=purge, dry_run=dry_run, run=run)

    @abstractmethod
    def _compact(self, *, purge: bool, dry_run: bool, run: RunGroups | None) -> CompactReport: ...

    def cluster(
        self, how: Clustering, *, files: Collection[str], dry_run: bool = False, run: RunGroups | None = None
    ) -> CompactReport | None:
        """Write files again by an order, about a gigabyte, or 16 with ``run``: of those at the locations ``files``.

        None where the format or the table has no such files: those of a primary key are in the key's order.
        **Commit point:** that of the lake's snapshot, with the same rows and offsets. Raises `CommitConflictError`,
        `LakeMismatchError`.
        """
        self._require_home_unless(dry_run, "clustering")
        return self._cluster(how, files, dry_run=dry_run, run=run)

    def _cluster(  # the interface of formats that have such files
        self,
        how: Clustering,  # noqa: ARG002
        files: Collection[str],  # noqa: ARG002
        *,
        dry_run: bool,  # noqa: ARG002
        run: RunGroups | None,  # noqa: ARG002
    ) -> CompactReport | None:
        return None

    def remove_orphans(self, *, grace_ms: int = ORPHAN_GRACE_MS, dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot needs and that are older than ``grace_ms``; returns their keys."""
        self._require_home_unless(dry_run, "removing orphans")
        return self._remove_orphans(grace_ms=grace_ms, dry_run=dry_run)

    @abstractmethod
    def _remove_orphans(self, *, grace_ms: int, dry_run: bool) -> list[str]: ...

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport | None:  # noqa: ARG002 - the interface
        """Join manifests to few large ones, those of delete files too; None where the format has none to join.

        **Commit point:** the lake's metadata version. Rows, files and offsets stay. Rounds join small manifests by
        themselves, so this is for tables that other engines wrote to, or whose partition spec was another. Raises
        `CommitConflictError`, `LakeMismatchError`, `CommitStateUnknownError`.
        """
        return None

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:  # noqa: ARG002 - the interface
        """Delete metadata versions that were superseded more than a day ago; returns their keys."""
        return []

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
        """Drop snapshots older than ``keep_ms``, but for the newest ``keep_last`` and those that are
        ``snapshot_of_tag``; and where there are ``many``, those that another rule of the same kind drops. Whoever gives
        tags ``claim``s them first.
        """
        self._require_home_unless(dry_run, "expiry")
        rules = [ExpiryRules(keep_last, keep_ms), *([many] if many is not None else [])]
        return self._expire(rules, dry_run=dry_run, tagged=tagged, claim=claim)

    @abstractmethod
    def _expire(
        self, rules: Sequence[ExpiryRules], *, dry_run: bool, tagged: Collection[int], claim: Claim | None
    ) -> ExpireReport: ...


guard_metadata_errors(LakeTable)
