"""Manifest entries of a Paimon snapshot: the live data files and their locations, in the partitions that can match."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.utils.file_store_path_factory import canonical_data_file_path

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.warehouse_layout import canonical_location
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.expressions.predicates import (
    Bounds,
    Node,
    constant_bounds,
    may_match,
    to_comparable,
    to_plan_value,
)
from streamhouse_spark.lake.paimon.file_io import StorageFileIO, translate_metadata_errors
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.schema.table_schema import Column, TableSchema

_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)

ADD: Final = 0
DELETE: Final = 1
FileKey = tuple[tuple[object, ...], int, str]
"""Partition, bucket and name of a data file."""


class PartitionFilter:
    """A filter restricted to partition columns.

    It selects all files of a partition or none, including removed files and files merged by key.
    """

    def __init__(self, node: Node, names: Mapping[int, str], schema: TableSchema) -> None:
        """``names`` maps field ids to columns of ``schema``."""
        self._node = node
        self._columns = {i: column for i, name in names.items() if (column := schema.find(name)) is not None}
        self._results: dict[tuple[Any, ...], bool] = {}

    def may_match_manifest(self, manifest: ManifestFileMeta) -> bool:
        """Return False only if no file of the manifest is in a partition that can match the filter."""
        stats = manifest.partition_stats
        bounds: dict[str, Bounds] = {}
        for i, field in enumerate(stats.min_values.fields):
            column = self._columns.get(field.id)
            if column is None:
                continue
            try:
                low, high = stats.min_values.get_field(i), stats.max_values.get_field(i)
                num_nulls = (stats.null_counts or [])[i]
            except _UNREADABLE:
                continue
            if _are_reliable(column, low, high):
                low, high = to_comparable(to_plan_value(low)), to_comparable(to_plan_value(high))
                bounds[column.name] = Bounds(low, high, may_be_null=num_nulls != 0)
        return may_match(self._node, bounds)

    def test(self, partition: GenericRow) -> bool:
        """Return False only if no row of the partition can match the filter. pypaimon calls this method by name."""
        values = tuple(partition.values)
        if values not in self._results:
            columns = (
                (self._columns.get(field.id), value) for field, value in zip(partition.fields, values, strict=True)
            )
            bounds = {
                column.name: constant_bounds(to_plan_value(value)) for column, value in columns if column is not None
            }
            self._results[values] = may_match(self._node, bounds)
        return self._results[values]


def _are_reliable(column: Column, low: Any, high: Any) -> bool:
    """Return whether bounds cover all values. pypaimon's bounds may not if there is NaN."""
    return low is not None and high is not None and not pa.types.is_floating(column.type)


def key_of(entry: ManifestEntry) -> FileKey:
    return tuple(entry.partition.values), entry.bucket, entry.file.file_name


def manifest_lists(snapshot: Snapshot) -> Sequence[tuple[str, int | None]]:
    """Return the names and sizes of a snapshot's manifest lists."""
    return (
        (snapshot.base_manifest_list, snapshot.base_manifest_list_size),
        (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
    )


class MetadataReader:
    """Reads manifests of one state of the table, for the files of the partitions of ``chosen``, or of all.

    Raises `CorruptDataError`, `SnapshotExpiredError`.
    """

    def __init__(self, table: PaimonTable, files: StorageFileIO, chosen: PartitionFilter | None = None) -> None:
        self._table = table
        self._chosen = chosen
        self._files = files
        self._store = table.store(files)
        self._folder = f"{table.location}/manifest"

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFileMeta]:
        if snapshot is None:
            return []
        lists = self.expect_lists(snapshot)
        with translate_metadata_errors(self._table.location):
            reader = ManifestListManager(self._store)
            manifests: list[ManifestFileMeta] = []
            for name, size_bytes in lists:
                self._expect(name, size_bytes)
                manifests += reader.read(name)
        return manifests

    def expect_lists(self, snapshot: Snapshot | None) -> Sequence[tuple[str, int | None]]:
        """Prefetch the manifest lists of a snapshot if the store is remote, and return their names and sizes."""
        if snapshot is None:
            return ()
        lists = manifest_lists(snapshot)
        self._files.expect((f"{self._folder}/{name}", size_bytes or 0) for name, size_bytes in lists)
        return lists

    def live_entries(self, snapshot: Snapshot | None) -> list[ManifestEntry]:
        """Return the data files of a snapshot with statistics. Raises `LakeMismatchError` for unsupported files."""
        chosen, manifests = self._chosen, self.manifests(snapshot)
        entries = self.remaining_entries([m for m in manifests if chosen is None or chosen.may_match_manifest(m)])
        for entry in entries:
            if entry.kind == DELETE:
                raise LakeMismatchError(
                    f"lake table {self._table.location} removes the file {entry.file.file_name}, which does not exist "
                    "in it; compact the table's manifests with another engine"
                )
        _require_readable(self._table, snapshot, entries)
        return entries

    def remaining_entries(self, manifests: Sequence[ManifestFileMeta]) -> list[ManifestEntry]:
        """Return the live files of the manifests together, and removals without an addition, which are permanent."""
        added: dict[FileKey, ManifestEntry] = {}
        removed: dict[FileKey, ManifestEntry] = {}
        for entries in self.all_entries(manifests):
            for entry in entries:
                (removed if entry.kind == DELETE else added)[key_of(entry)] = entry
        remaining = [entry for key, entry in added.items() if key not in removed]
        return [*remaining, *(entry for key, entry in removed.items() if key not in added)]

    def all_entries(self, manifests: Sequence[ManifestFileMeta]) -> Iterable[list[ManifestEntry]]:
        """Return the entries of each manifest, in order."""
        self._files.expect((f"{self._folder}/{manifest.file_name}", manifest.file_size or 0) for manifest in manifests)
        return parallel_map(self.entries, manifests)

    def location(self, entry: ManifestEntry) -> str:
        if entry.file.external_path:
            return external_location(self._files.files, self._table.location, str(entry.file.external_path))
        values = entry.partition.values
        location: str = canonical_data_file_path(self._store, values, entry.bucket, entry.file.file_name)
        return location

    def entries(self, manifest: ManifestFileMeta) -> list[ManifestEntry]:
        self._expect(manifest.file_name, manifest.file_size)
        with translate_metadata_errors(self._table.location):
            reader, chosen = ManifestFileManager(self._store), self._chosen
            entries: list[ManifestEntry] = reader.read(manifest.file_name, drop_stats=False, partition_filter=chosen)
        return entries

    def _expect(self, name: str, size_bytes: int | None) -> None:
        if size_bytes is not None:
            self._files.sizes[f"{self._folder}/{name}"] = size_bytes


def external_location(files: StorageFiles, table_location: str, external_path: str) -> str:
    """Return the location of a file with an external path, which may be below the table's old location."""
    if files.holds(external_path):
        return external_path
    _, below, rest = canonical_location(external_path).partition(f"/{files.key_of(table_location)}/")
    return f"{table_location}/{rest}" if below else external_path


def live_entries(binding: PaimonTableBinding, table: PaimonTable) -> list[ManifestEntry]:
    """Return the data files of the latest snapshot of a state."""
    return MetadataReader(table, StorageFileIO(binding.files)).live_entries(table.snapshot)


def _require_readable(table: PaimonTable, snapshot: Snapshot | None, entries: Sequence[ManifestEntry]) -> None:
    if snapshot is not None and snapshot.index_manifest is not None:
        raise LakeMismatchError(
            f"lake table {table.location} has deletion vectors or a value index, which are not supported; compact "
            "the table with the engine that wrote it"
        )
    for entry in entries:
        if not entry.file.file_name.endswith(".parquet"):
            raise LakeMismatchError(
                f"lake file {entry.file.file_name} of {table.location} is not Parquet, the only supported format; "
                "rewrite it with the engine that wrote it"
            )
        if entry.file.schema_id not in table.schemas:
            raise LakeMismatchError(
                f"lake file {entry.file.file_name} of {table.location} was written with schema {entry.file.schema_id}, "
                f"but the table has only {', '.join(map(str, table.schemas))}; restore the schema"
            )
