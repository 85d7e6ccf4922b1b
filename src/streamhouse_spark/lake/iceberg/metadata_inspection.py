"""Metadata tables of an Iceberg table, under pyiceberg's names, with types that Spark supports.

Damaged and missing metadata of an Iceberg table that reads of its latest snapshot do not notice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.inspect import InspectTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import MapType

from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, ObjectNotFoundError, StreamhouseError
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.metadata_versions import hint_key, parse_version_hint, version_key
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.schema.table_schema import canonical_type

METADATA_TABLES: Final = (
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


def metadata_table(table: Table, name: str) -> pa.Table:
    """Return a metadata table. Raises `InvalidNameError` with the existing names."""
    if name not in METADATA_TABLES:
        near = difflib.get_close_matches(name, METADATA_TABLES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidNameError(
            f"no metadata table '{name}' on an Iceberg table; {hint}There are {', '.join(METADATA_TABLES)}"
        )
    with lake_metadata(table.location()):
        if name.endswith("files") and not _has_manifests(table, every_snapshot=name.startswith("all_")):
            table = _without_snapshots(table)
        inspect = _InspectEntries if name == "entries" else _Inspect
        return _convert_for_spark(_read_table(inspect(table), name))


def _read_table(tables: InspectTable, name: str) -> pa.Table:
    try:
        return getattr(tables, name)()
    except OverflowError as error:
        raise InvalidOptionError(
            f"the metadata table {name} shows partitions as pyiceberg does, which cannot show one with a date or time "
            f"outside the years 1 to 9999 ({error}); read the metadata table partitions or files"
        ) from error


def _has_manifests(table: Table, *, every_snapshot: bool) -> bool:
    """Return whether there are manifests. A snapshot whose changes cancel out has none, which pyiceberg's file tables
    do not handle.
    """
    head = table.metadata.current_snapshot()
    snapshots = table.metadata.snapshots if every_snapshot else [head] if head else []
    return any(manifests_of(table.io, snapshot) for snapshot in snapshots)


def _without_snapshots(table: Table) -> Table:
    emptied = table.metadata.model_copy(update={"snapshots": [], "current_snapshot_id": None, "refs": {}})
    return Table(table.name(), emptied, table.metadata_location, table.io, table.catalog)


class _Inspect(InspectTable):
    """pyiceberg's metadata tables, except that a table without snapshots gives empty tables instead of errors."""

    def _get_snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        if snapshot_id is None and self.tbl.metadata.current_snapshot() is None:
            return _NoSnapshot.model_validate({"snapshot-id": -1, "manifest-list": ""})
        return super()._get_snapshot(snapshot_id)


class _NoSnapshot(Snapshot):
    def manifests(self, io: FileIO) -> list[ManifestFile]:  # noqa: ARG002 - pyiceberg's signature
        return []


class _InspectEntries(_Inspect):
    """pyiceberg's entries table, which requires counts: a file without them, such as position deletes, gets {}."""

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
        return [_CountingManifest(*(manifest[place] for place in range(len(manifest)))) for manifest in manifests]


class _CountingManifest(ManifestFile):
    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:  # noqa: FBT001, FBT002 - pyiceberg's
        entries = super().fetch_manifest_entry(io, discard_deleted)
        for entry in entries:
            file = entry.data_file
            for place in _COUNTS:
                file[place] = file[place] or {}
        return entries


_COUNTS: Final = tuple(
    place
    for place, field in enumerate(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)
    if isinstance(field.field_type, MapType)
)
"""The data file's maps from columns to counts and bounds."""


def _convert_for_spark(table: pa.Table) -> pa.Table:
    columns, fields = [], []
    for field, chunks in zip(table.schema, table.columns, strict=True):
        if _is_empty_struct(field.type):
            continue
        column = _drop_empty_structs(chunks.combine_chunks())
        spark_type = _spark_type(column.type, field.name)
        columns.append(column if column.type.equals(spark_type) else column.cast(spark_type))
        fields.append(pa.field(field.name, spark_type, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _is_empty_struct(data_type: pa.DataType) -> bool:
    """Return whether the type is an empty struct, which Spark does not support: the partition of an unpartitioned
    table, and metrics of nested columns.
    """
    return bool(pa.types.is_struct(data_type) and data_type.num_fields == 0)


def _drop_empty_structs(column: pa.Array) -> pa.Array:
    if not pa.types.is_struct(column.type):
        return column
    non_empty = [(f, column.field(i)) for i, f in enumerate(column.type) if not _is_empty_struct(f.type)]
    children = [_drop_empty_structs(child) for _, child in non_empty]
    fields = [pa.field(f.name, child.type) for (f, _), child in zip(non_empty, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def _spark_type(data_type: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz="UTC")  # pyiceberg returns UTC without a time zone
    return canonical_type(data_type, column=column)


REWRITTEN = "reads go on without it, and the next commit writes it again"


def find_metadata_problems(place: IcebergTableBinding) -> Iterator[str]:
    """Describe problems as `LakeTable.metadata_problems` does. Ignores snapshots that another engine expires
    concurrently.
    """
    table = place.find()
    if table is None:
        return
    if place.uses_files:
        yield from _find_hint_problems(place)
    checked: set[str] = set()
    for snapshot in table.metadata.snapshots:
        try:
            with lake_metadata(table.location()):
                for manifest in manifests_of(table.io, snapshot):
                    if manifest.manifest_path not in checked:
                        checked.add(manifest.manifest_path)
                        manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        except StreamhouseError as error:
            if place.load().metadata.snapshot_by_id(snapshot.snapshot_id) is not None:
                yield str(error)


def _find_hint_problems(place: IcebergTableBinding) -> Iterator[str]:
    number, key = parse_version_hint(place.storage, place.spec.location), place.spec.location
    if number is None:
        yield f"lake file {hint_key(key)} is missing, or names no version; {REWRITTEN}"
        return
    try:
        place.storage.size_bytes(version_key(key, number))
    except ObjectNotFoundError:
        yield f"lake file {hint_key(key)} names version {number}, which is not there; {REWRITTEN}"
