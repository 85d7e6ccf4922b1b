"""Metadata tables of an Iceberg table, and damage of its metadata that reads of the latest snapshot do not detect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.inspect import InspectTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import MapType

from streamhouse_spark.errors import InvalidOptionError, ObjectNotFoundError, StreamhouseError
from streamhouse_spark.lake.iceberg.file_io import read_snapshot_manifests, translate_metadata_errors
from streamhouse_spark.lake.iceberg.metadata_versions import hint_key, parse_version_hint, version_key
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.metadata_tables import convert_for_spark

REWRITTEN = "reads continue without it, and the next commit rewrites it"

_COUNTS: Final = tuple(
    index
    for index, field in enumerate(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)
    if isinstance(field.field_type, MapType)
)
"""Indexes of a data file's maps from columns to counts and bounds."""


def metadata_table(table: Table, name: str) -> pa.Table:
    """Return the metadata table with this name, with types that Spark supports."""
    with translate_metadata_errors(table.location()):
        if name.endswith("files") and not _has_manifests(table, every_snapshot=name.startswith("all_")):
            table = _without_snapshots(table)
        inspect = _InspectEntries if name == "entries" else _Inspect
        return convert_for_spark(_read_table(inspect(table), name))


def _read_table(tables: InspectTable, name: str) -> pa.Table:
    try:
        return getattr(tables, name)()
    except OverflowError as error:
        raise InvalidOptionError(
            f"cannot show metadata table {name}: pyiceberg does not support a partition with a date or time outside "
            f"the years 1 to 9999 ({error}); read the metadata table partitions or files"
        ) from error


def _has_manifests(table: Table, *, every_snapshot: bool) -> bool:
    """Return whether there are manifests. pyiceberg's file tables do not support a snapshot without manifests."""
    head = table.metadata.current_snapshot()
    snapshots = table.metadata.snapshots if every_snapshot else [head] if head else []
    return any(read_snapshot_manifests(table.io, snapshot) for snapshot in snapshots)


def _without_snapshots(table: Table) -> Table:
    emptied = table.metadata.model_copy(update={"snapshots": [], "current_snapshot_id": None, "refs": {}})
    return Table(table.name(), emptied, table.metadata_location, table.io, table.catalog)


class _Inspect(InspectTable):
    """pyiceberg's metadata tables. For a table without snapshots they are empty instead of failing."""

    def _get_snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        if snapshot_id is None and self.tbl.metadata.current_snapshot() is None:
            return _NoSnapshot.model_validate({"snapshot-id": -1, "manifest-list": ""})
        return super()._get_snapshot(snapshot_id)


class _NoSnapshot(Snapshot):
    def manifests(self, io: FileIO) -> list[ManifestFile]:  # noqa: ARG002 - pyiceberg's signature
        return []


class _InspectEntries(_Inspect):
    """pyiceberg's entries table. It requires counts, which position deletes may lack, so they get empty counts."""

    def _get_snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        snapshot = super()._get_snapshot(snapshot_id)
        return (
            snapshot
            if isinstance(snapshot, _NoSnapshot)
            else _CountingSnapshot.model_validate(snapshot.model_dump(by_alias=True))
        )


class _CountingSnapshot(Snapshot):
    def manifests(self, io: FileIO) -> list[ManifestFile]:
        manifests = super().manifests(io)
        return [_CountingManifest(*(manifest[index] for index in range(len(manifest)))) for manifest in manifests]


class _CountingManifest(ManifestFile):
    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:  # noqa: FBT001, FBT002 - pyiceberg's
        entries = super().fetch_manifest_entry(io, discard_deleted)
        for entry in entries:
            file = entry.data_file
            for index in _COUNTS:
                file[index] = file[index] or {}
        return entries


def find_metadata_problems(binding: IcebergTableBinding) -> Iterator[str]:
    """Describe the problems of `LakeTable.metadata_problems`, except those of snapshots that expire concurrently."""
    table = binding.find()
    if table is None:
        return
    if binding.uses_files:
        yield from _find_hint_problems(binding)
    checked: set[str] = set()
    for snapshot in table.metadata.snapshots:
        try:
            with translate_metadata_errors(table.location()):
                for manifest in read_snapshot_manifests(table.io, snapshot):
                    if manifest.manifest_path not in checked:
                        checked.add(manifest.manifest_path)
                        manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        except StreamhouseError as error:
            if binding.load().metadata.snapshot_by_id(snapshot.snapshot_id) is not None:
                yield str(error)


def _find_hint_problems(binding: IcebergTableBinding) -> Iterator[str]:
    number, key = parse_version_hint(binding.storage, binding.spec.location), binding.spec.location
    if number is None:
        yield f"lake file {hint_key(key)} is missing, or contains no version; {REWRITTEN}"
        return
    try:
        binding.storage.size_bytes(version_key(key, number))
    except ObjectNotFoundError:
        yield f"lake file {hint_key(key)} contains version {number}, which does not exist; {REWRITTEN}"
