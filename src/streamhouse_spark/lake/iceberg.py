# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""The Iceberg lake table of one streamhouse table: format v2, only the user's columns, offsets in the summaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
)
from pyiceberg.exceptions import TableAlreadyExistsError as IcebergTableExistsError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Identifier

from streamhouse_spark.clock import World
from streamhouse_spark.errors import (
    CommitConflictError,
    LakeMismatchError,
    LakeRolledBackError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StreamhouseError,
)
from streamhouse_spark.lake.base import (
    CompactReport,
    ExpireReport,
    Filter,
    LakeFile,
    LakePlan,
    LakeProjection,
    LakeSnapshot,
    LakeSplit,
    Predicate,
    WriteContext,
)
from streamhouse_spark.lake.file_catalog import FileCatalog
from streamhouse_spark.lake.files import FileAccess, StorageFiles, lake_files
from streamhouse_spark.lake.iceberg_commit import Change, commit_snapshot
from streamhouse_spark.lake.iceberg_inspect import METADATA_TABLES, metadata_table
from streamhouse_spark.lake.iceberg_io import CATALOG_SETTINGS, catalog_properties
from streamhouse_spark.lake.iceberg_maintain import (
    compaction_change,
    expirable,
    merge_group,
    plan_compaction,
    remove_snapshots,
    unreachable_files,
)
from streamhouse_spark.lake.iceberg_offsets import (
    OFFSETS_PROPERTY,
    TABLE_UUID_PROPERTY,
    newest_offsets,
    offsets_at,
    offsets_text,
)
from streamhouse_spark.lake.iceberg_read import (
    iceberg_filter,
    plan_splits,
    projection,
    require_snapshot,
    snapshot_schema,
)
from streamhouse_spark.lake.iceberg_schema import differences, iceberg_schema, partition_spec
from streamhouse_spark.lake.iceberg_write import WriteShape, write_files
from streamhouse_spark.lake.parquet_read import (
    OffsetFile,
    offset_file,
    read_offsets,
    read_split,
    read_whole,
)
from streamhouse_spark.model import OffsetRange, TablePath
from streamhouse_spark.paths import LAKE_PREFIX
from streamhouse_spark.schema import TableSchema
from streamhouse_spark.storage import Storage

TARGET_FILE_BYTES = 128 << 20
T = TypeVar("T")
R = TypeVar("R")
READ_THREADS_MAX = 8
CREATE_ATTEMPTS_MAX = 3

TABLE_PROPERTIES: Mapping[str, str] = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.previous-versions-max": "20",
    # Versions are deleted behind a floor only: deleting by count would open slots that a slow writer could take.
    "write.metadata.delete-after-commit.enabled": "false",
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(TARGET_FILE_BYTES),
    "gc.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class LakeTableSpec:
    """What the lake table of a streamhouse table has to be."""

    table_uuid: str
    path: TablePath
    location: str
    """Key of the lake table's place in the warehouse, ``lake/<database>/<table>``."""
    schema: TableSchema
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    num_buckets: int
    target_file_bytes: int = TARGET_FILE_BYTES


class IcebergLake:
    """See `LakeTable`. Holds no state of the table: every call loads the newest metadata."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        if len(spec.bucket_key) > 1:
            raise LakeMismatchError(
                f"table {spec.path} has {len(spec.bucket_key)} bucket keys ({', '.join(spec.bucket_key)}), Iceberg "
                "buckets by one column; choose one, or disable the lake with table.datalake.enabled=false"
            )
        self._storage = storage
        self._spec = spec
        self._settings = dict(settings or {})
        self._world = world or World()
        self._catalog_opened: Catalog | None = None

    # -- the table ------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        try:
            self._load()
        except NoSuchTableError:
            return False
        return True

    def create_or_adopt(self) -> None:
        schema = iceberg_schema(self._spec.schema)
        bucket_key = self._spec.bucket_key[0] if self._spec.bucket_key else None
        spec = partition_spec(schema, self._spec.partition_by, bucket_key, self._spec.num_buckets)
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                table = self._load()
            except NoSuchTableError:
                with suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(self._identifier[:-1])
                properties = {**TABLE_PROPERTIES, TABLE_UUID_PROPERTY: self._spec.table_uuid, "format-version": "2"}
                with suppress(IcebergTableExistsError):
                    self._catalog.create_table(
                        self._identifier, schema, self._new_location(), spec, properties=properties
                    )
                    return
                continue
            found = differences(table.metadata, self._spec.schema, spec, schema)
            if found:
                raise LakeMismatchError(
                    f"the Iceberg table at {table.location()} does not fit {self._spec.path}: {'; '.join(found)}; "
                    "change it, drop it, or give the table another lake location"
                )
            self._adopt(table)
            return
        raise LakeMismatchError(
            f"the place of the Iceberg table {'.'.join(self._identifier)} is taken by a table that was dropped; "
            "undrop it, or give the table another lake location"
        )

    def _adopt(self, table: Table) -> None:
        owner = table.properties.get(TABLE_UUID_PROPERTY)
        if owner == self._spec.table_uuid:
            return
        if owner is not None:
            raise self._foreign(table.location(), owner)
        with table.transaction() as transaction:
            transaction.set_properties({TABLE_UUID_PROPERTY: self._spec.table_uuid})

    def drop(self, *, purge: bool) -> None:
        with suppress(NoSuchTableError):
            if purge:
                self._catalog.purge_table(self._identifier)
            else:
                self._catalog.drop_table(self._identifier)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def newest(self) -> LakeSnapshot | None:
        try:
            metadata = self._load().metadata
        except NoSuchTableError:
            return None
        self._require_owner(metadata)
        found = newest_offsets(metadata, self._spec.table_uuid)
        head = metadata.current_snapshot()
        if head is None:
            return None
        return LakeSnapshot(head.snapshot_id, dict(found.offsets) if found else {}, head.timestamp_ms)

    def snapshot(self, snapshot_id: int) -> LakeSnapshot:
        metadata = self._load().metadata
        return self._described(metadata, require_snapshot(metadata, snapshot_id))

    def snapshot_by_name(self, name: str) -> LakeSnapshot:
        """The snapshot of a tag or branch. Raises `SnapshotExpiredError` naming those that exist."""
        metadata = self._load().metadata
        found = metadata.snapshot_by_name(name)
        if found is None:
            raise SnapshotExpiredError(
                f"lake table {metadata.location} has no tag or branch '{name}'; there are {', '.join(metadata.refs)}"
            )
        return self._described(metadata, found)

    def snapshot_as_of(self, timestamp_ms: int) -> LakeSnapshot:
        metadata = self._load().metadata
        entries = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= timestamp_ms]
        if not entries:
            first = min((entry.timestamp_ms for entry in metadata.snapshot_log), default=None)
            raise SnapshotExpiredError(
                f"lake table {metadata.location} has no snapshot from {timestamp_ms} ms or before; the oldest that is "
                f"kept is from {first} ms; choose a later time"
            )
        newest = max(entries, key=lambda entry: entry.timestamp_ms)
        return self._described(metadata, require_snapshot(metadata, newest.snapshot_id))

    # -- writing --------------------------------------------------------------------------------------------------

    def write_context(self) -> WriteContext:
        table = self._load()
        self._require_owner(table.metadata)
        data = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
        properties = {k: v for k, v in table.properties.items() if k.startswith(("write.parquet.", "write.metadata."))}
        shape = WriteShape(table.schema(), table.spec(), data.rstrip("/"), properties)
        return WriteContext(self._spec.table_uuid, self._spec.schema, self._spec.target_file_bytes, shape.to_json())

    def write_files(
        self,
        context: WriteContext,
        bucket: int,
        offsets: OffsetRange,
        batches: Iterable[tuple[int, pa.RecordBatch]],
    ) -> list[LakeFile]:
        files = self._files_at(context.lake["data_location"])
        return write_files(context, files, self._world.ids, bucket, offsets, batches)

    def commit(
        self, files: Sequence[LakeFile], *, expected: Mapping[int, int], new: Mapping[int, int], context: WriteContext
    ) -> LakeSnapshot | None:
        if not files and all(new.get(b, 0) == expected.get(b, 0) for b in {*new, *expected}):
            return None
        _require_dense(files, expected, new)
        shape = WriteShape.from_json(context.lake)
        summary = {OFFSETS_PROPERTY: offsets_text(self._spec.table_uuid, new)}

        def validated(metadata: TableMetadata) -> Change:
            self._require_owner(metadata)
            self._require_shape(metadata, shape)
            self._require_offsets(metadata, expected)
            self._require_files(files)
            return Change(Operation.APPEND, added=files, summary=summary)

        snapshot = commit_snapshot(self._catalog, self._identifier, validated, self._world)
        return LakeSnapshot(snapshot.snapshot_id, dict(new), snapshot.timestamp_ms)

    def _require_owner(self, metadata: TableMetadata) -> None:
        owner = metadata.properties.get(TABLE_UUID_PROPERTY)
        if owner != self._spec.table_uuid:
            raise self._foreign(metadata.location, owner)

    def _require_shape(self, metadata: TableMetadata, shape: WriteShape) -> None:
        here = (metadata.current_schema_id, metadata.default_spec_id)
        planned = (shape.schema.schema_id, shape.spec.spec_id)
        if here != planned or metadata.schema() != shape.schema or metadata.spec() != shape.spec:
            raise CommitConflictError(
                f"lake table {metadata.location}: schema and partition spec are {here} now, the files were written for "
                f"{planned}; tier again"
            )

    def _require_offsets(self, metadata: TableMetadata, expected: Mapping[int, int]) -> None:
        found = newest_offsets(metadata, self._spec.table_uuid)
        here = found.offsets if found else {}
        moved = {b: here.get(b, 0) for b in {*here, *expected} if here.get(b, 0) != expected.get(b, 0)}
        if not moved:
            return
        bucket = min(moved)
        text = (
            f"lake table {metadata.location}: bucket {bucket} is at offset {moved[bucket]} in the lake, this round "
            f"began at {expected.get(bucket, 0)}"
        )
        if any(offset < expected.get(b, 0) for b, offset in moved.items()):
            raise LakeRolledBackError(f"{text}: the lake went back; roll it forward, or drop it and tier again")
        raise CommitConflictError(f"{text}: another tiering service was faster; plan again")

    def _require_files(self, files: Sequence[LakeFile]) -> None:
        def check(file: LakeFile) -> None:
            access = self._files_at(file.location)
            try:
                with access.open_input(file.location) as opened:
                    size_bytes = opened.size()
            except ObjectNotFoundError as error:
                raise CommitConflictError(
                    f"lake file {file.location} was deleted before it was committed; tier again"
                ) from error
            if size_bytes != file.size_bytes:
                raise CommitConflictError(
                    f"lake file {file.location} has {size_bytes} bytes, {file.size_bytes} were written; tier again"
                )

        for _ in _in_parallel(check, files):
            pass

    # -- reading --------------------------------------------------------------------------------------------------

    def plan_read(
        self,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        predicates: Sequence[Predicate] = (),
        schema: TableSchema | None = None,
    ) -> LakePlan:
        try:
            table = self._load()
        except NoSuchTableError:
            if snapshot_id is not None:
                raise SnapshotExpiredError(
                    f"{self._spec.path} has no lake table yet, so no snapshot {snapshot_id}"
                ) from None
            return LakePlan(None, _identity_projection(schema or self._spec.schema, columns), ())
        metadata = table.metadata
        snapshot = metadata.current_snapshot() if snapshot_id is None else require_snapshot(metadata, snapshot_id)
        lake = metadata.schema() if snapshot is None or snapshot_id is None else snapshot_schema(metadata, snapshot)
        how = projection(lake, self._spec.schema, columns, schema)
        if snapshot is None:
            return LakePlan(None, how, ())
        splits = plan_splits(table, snapshot_id, iceberg_filter(predicates, lake))
        return LakePlan(self._described(metadata, snapshot), how, tuple(splits))

    def read_split(
        self, split: LakeSplit, projection: LakeProjection, *, filter: Filter = None
    ) -> Iterator[pa.RecordBatch]:
        return read_split(self._files_at(split.location), split, projection, filter=filter)

    def to_arrow(self, plan: LakePlan, *, filter: Filter = None) -> pa.Table:
        def read(split: LakeSplit) -> pa.Table:
            return read_whole(self._files_at(split.location), split, plan.projection, filter=filter)

        tables = list(_in_parallel(read, plan.splits))
        empty = plan.projection.schema.arrow.empty_table()
        return pa.concat_tables(tables) if tables else empty

    def read_offsets(
        self, bucket: int, wanted: OffsetRange, *, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        plan = self.plan_read(columns=columns, schema=self._spec.schema)
        splits = [s for s in plan.splits if not s.position_deletes and _may_hold(s.location, bucket, wanted)]
        locations = list(dict.fromkeys(split.location for split in splits))

        def footer(location: str) -> OffsetFile | None:
            return offset_file(self._files_at(location), location, self._spec.table_uuid)

        found = [file for file in _in_parallel(footer, locations) if file is not None]
        files = self._files_at(locations[0]) if locations else StorageFiles(self._storage)
        return read_offsets(files, found, bucket, wanted, plan.projection)

    def metadata_table(self, name: str) -> pa.Table:
        return metadata_table(self._load(), name)

    def metadata_table_names(self) -> tuple[str, ...]:
        return METADATA_TABLES

    # -- maintenance ----------------------------------------------------------------------------------------------

    def compact(self, *, dry_run: bool = False) -> CompactReport:
        table = self._load()
        planned = table.metadata.current_snapshot()
        if planned is None:
            return CompactReport()
        self._require_owner(table.metadata)
        context = self.write_context()
        files = self._files_at(context.lake["data_location"])
        groups = plan_compaction(table, planned, files, self._spec.table_uuid, self._spec.target_file_bytes)
        removed = [file.location for group in groups for file in group.files]
        rows = sum(group.num_rows for group in groups)
        if not groups or dry_run:
            return CompactReport(len(removed), len(groups), rows)
        how = projection(table.schema(), self._spec.schema, None, self._spec.schema)
        added = [f for group in groups for f in merge_group(group, context, how, files, self._world.ids)]
        if sum(file.num_rows for file in added) != rows:
            raise CommitConflictError(f"lake table {table.location()}: merging read other rows than planned; try again")
        shape = WriteShape.from_json(context.lake)

        def validated(metadata: TableMetadata) -> Change:
            self._require_owner(metadata)
            self._require_shape(metadata, shape)
            self._require_files(added)
            return compaction_change(table, planned, removed, added, metadata)

        snapshot = commit_snapshot(self._catalog, self._identifier, validated, self._world)
        return CompactReport(len(removed), len(added), rows, self.snapshot(snapshot.snapshot_id))

    def expire(self, *, keep_last: int, keep_ms: int, dry_run: bool = False) -> ExpireReport:
        """Remove snapshots that are neither among the newest ``keep_last`` nor younger than ``keep_ms``, and the files
        that only they needed. Never the newest, a tagged one, or the one that holds the offsets.
        """
        table = self._load()
        self._require_owner(table.metadata)
        older_than_ms = self._storage.now_ms() - keep_ms
        doomed = expirable(table.metadata, self._spec.table_uuid, keep_last=keep_last, older_than_ms=older_than_ms)
        if not doomed:
            return ExpireReport()
        if dry_run:
            left = [s for s in table.metadata.snapshots if s.snapshot_id not in doomed]
            after = table.metadata.model_copy(update={"snapshots": left})
            return ExpireReport(doomed, tuple(unreachable_files(table, table.metadata, after)))
        after = remove_snapshots(self._catalog, table, doomed)
        gone = unreachable_files(table, table.metadata, after)
        for location in gone:
            with suppress(FileNotFoundError):
                table.io.delete(location)
        return ExpireReport(doomed, tuple(gone))

    def prune_metadata(self, *, dry_run: bool = False) -> list[str]:
        """Delete metadata versions that were superseded more than a day ago; returns what they were."""
        if not isinstance(self._catalog, FileCatalog):
            return []
        return self._catalog.prune_versions(self._identifier, dry_run=dry_run)

    # -- internals ------------------------------------------------------------------------------------------------

    @property
    def _catalog(self) -> Catalog:
        if self._catalog_opened is None:
            self._catalog_opened = self._open_catalog()
        return self._catalog_opened

    def _open_catalog(self) -> Catalog:
        properties = catalog_properties(self._settings)
        if self._uses_files:
            return FileCatalog(self._storage, world=self._world, properties=properties)
        return load_catalog(properties.pop("name", "lake"), **properties)

    @property
    def _uses_files(self) -> bool:
        return not any(key.startswith(CATALOG_SETTINGS) for key in self._settings)

    @property
    def _identifier(self) -> Identifier:
        if not self._uses_files:
            return (self._spec.path.database, self._spec.path.table)
        database, _, name = self._spec.location.removeprefix(LAKE_PREFIX).partition("/")
        return (database, name)

    def _new_location(self) -> str | None:
        if self._uses_files or f"{CATALOG_SETTINGS}warehouse" in self._settings:
            return None
        return StorageFiles(self._storage).location_of(self._spec.location)

    def _load(self) -> Table:
        return self._catalog.load_table(self._identifier)

    def _files_at(self, location: str) -> FileAccess:
        return lake_files(self._storage, self._settings, location)

    def _described(self, metadata: TableMetadata, snapshot: Snapshot) -> LakeSnapshot:
        found = offsets_at(metadata, snapshot, self._spec.table_uuid)
        if found is None and snapshot.snapshot_id == metadata.current_snapshot_id:
            found = newest_offsets(metadata, self._spec.table_uuid)
        return LakeSnapshot(snapshot.snapshot_id, dict(found.offsets) if found else {}, snapshot.timestamp_ms)

    def _foreign(self, location: str, owner: str | None) -> StreamhouseError:
        return LakeMismatchError(
            f"the Iceberg table at {location} belongs to {f'table {owner}' if owner else 'nobody'}, expected table "
            f"{self._spec.table_uuid} ({self._spec.path}); give the table another lake location"
        )


def _require_dense(files: Sequence[LakeFile], expected: Mapping[int, int], new: Mapping[int, int]) -> None:
    """Each bucket's files hold as many rows as its offsets advance."""
    rows: dict[int, int] = {}
    for file in files:
        rows[file.bucket] = rows.get(file.bucket, 0) + file.num_rows
    for bucket in {*rows, *new, *expected}:
        advance = new.get(bucket, 0) - expected.get(bucket, 0)
        if advance != rows.get(bucket, 0):
            raise ValueError(f"bucket {bucket}: {rows.get(bucket, 0)} rows for an advance of {advance} offsets")


def _may_hold(location: str, bucket: int, wanted: OffsetRange) -> bool:
    """Whether a file, by its name, can hold offsets of the range; files of other engines cannot."""
    parts = location.rpartition("/")[2].split("-")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
        return False
    return int(parts[0]) == bucket and int(parts[1]) < wanted.end and int(parts[2]) > wanted.start


def _identity_projection(schema: TableSchema, columns: Sequence[str] | None) -> LakeProjection:
    wanted = schema if columns is None else schema.select(columns)
    return LakeProjection(wanted, tuple(column.id for column in wanted.columns), wanted.names)


def _in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(READ_THREADS_MAX, len(items), 2 * (os.cpu_count() or 1))) as pool:
        yield from pool.map(work, items)
