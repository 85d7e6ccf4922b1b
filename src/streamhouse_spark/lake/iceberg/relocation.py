"""Relocation of an Iceberg table of the file catalog: rewrites its metadata with the current locations of its files.

Data files stay. Manifest lists of all snapshots, manifests, and position deletes, whose rows contain data file paths,
are rewritten under new names. **Commit point:** the metadata version that references them. A crash before it leaves
orphan files. The metadata log is emptied, because former versions contain the old locations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import canonical_location
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, ObjectNotFoundError
from streamhouse_spark.lake.avro import encode_avro, read_avro
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.clone import shared_locations
from streamhouse_spark.lake.iceberg.expiry import list_files
from streamhouse_spark.lake.iceberg.file_io import (
    PathRebase,
    rewrite_metadata_paths,
    rewrite_record_paths,
    translate_commit_errors,
    translate_metadata_errors,
)
from streamhouse_spark.lake.iceberg.position_deletes import DELETES_WRITER_OPTIONS
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.footer_checksum import close_with_checksum, read_checked_footer
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles, open_parquet_sink
from streamhouse_spark.lake.parquet.reader import DELETED_KEY
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY

_POSITIONS: Final = 1
"""The content code of a position delete file in a manifest."""


class IcebergRelocation:
    """The `LakeRelocation` of Iceberg."""

    def __init__(self, binding: IcebergTableBinding) -> None:
        self._binding = binding
        self.num_written = 0

    def recorded_root(self) -> str | None:
        """Return the root in the metadata, or None if it is the opened root."""
        roots: list[str] = []

        def look(_: TableMetadata, move: PathRebase | None) -> None:
            roots.extend([move.recorded_root] if move is not None else [])

        self._relocate(look)
        return roots[0] if roots else None

    def needed_files(self) -> set[str]:
        """Return the keys of all files that snapshots need. Raises `SnapshotExpiredError` if metadata is missing."""
        table = self._binding.find()
        if table is None:
            return set()
        files = StorageFiles(self._binding.storage)
        locations = list_files(table, table.metadata.snapshots)
        return {files.key_of(location) for location in locations if files.holds(location)}

    def relocate(self, new_uuid: str | None) -> None:
        """Relocate the table. With ``new_uuid``, that table becomes its owner, and the lake table gets a new id.

        Raises `CommitConflictError`, `CommitStateUnknownError`, `CorruptDataError`.
        """

        def rewritten(metadata: TableMetadata, move: PathRebase | None) -> TableMetadata | None:
            owner = metadata.properties.get(TABLE_UUID_PROPERTY)
            if owner not in (self._binding.spec.table_uuid, new_uuid):
                return None  # another table owns it
            changed = metadata
            if move is not None:
                files = _MetadataFiles(self._binding, metadata, move)
                changed = files.rewrite()
                self.num_written += files.num_written
            if new_uuid is not None and owner != new_uuid:
                changed = _with_owner(changed, self._binding.spec.table_uuid, new_uuid, self._binding.world)
            return None if changed is metadata else changed

        self._relocate(rewritten)

    def _relocate(self, rewrite: Any) -> None:
        catalog, path = self._binding.catalog, self._binding.spec.path
        if not isinstance(catalog, FileCatalog):
            return
        try:
            with translate_commit_errors(f"relocating the lake table of {path}"):
                catalog.relocate_table(self._binding.identifier, rewrite)
        except NoSuchTableError:
            return
        except CommitFailedException as error:
            raise CommitConflictError(f"{error}; run relocate again") from error


def _with_owner(metadata: TableMetadata, old_uuid: str, new_uuid: str, world: World) -> TableMetadata:
    """Return the metadata with another owner in its properties and in the offsets of each snapshot."""
    text = metadata.model_dump_json().replace(old_uuid, new_uuid)
    own_id = world.ids.new_uuid()
    changed = TableMetadataUtil.parse_raw(text)
    return changed.model_copy(update={"table_uuid": type(metadata.table_uuid)(own_id)})


class _MetadataFiles:
    """Rewrites the metadata files of all snapshots, each once."""

    def __init__(self, binding: IcebergTableBinding, metadata: TableMetadata, move: PathRebase) -> None:
        self._binding = binding
        self._metadata = metadata
        self._move = move
        self._files = StorageFiles(binding.storage)
        self._manifests: dict[str, tuple[str, int]] = {}
        self._deletes: dict[str, tuple[str, int]] = {}
        self.num_written = 0

    def rewrite(self) -> TableMetadata:
        with translate_metadata_errors(self._metadata.location):
            snapshots = [self._snapshot(snapshot) for snapshot in self._metadata.snapshots]
        moved = rewrite_metadata_paths(self._metadata, self._move)
        return moved.model_copy(update={"snapshots": snapshots, "metadata_log": []})

    def _snapshot(self, snapshot: Snapshot) -> Snapshot:
        where = self._move.of(snapshot.manifest_list)
        file = read_avro(self._read(where), where)
        records = []
        for record in file.records:
            path, size_bytes = self._manifest(record["manifest_path"])
            records.append({**record, "manifest_path": path, "manifest_length": size_bytes})
        location, _ = self._write(where, encode_avro(replace(file, records=records)))
        return snapshot.model_copy(update={"manifest_list": location})

    def _manifest(self, path: str) -> tuple[str, int]:
        """Return the current location of the manifest, and its size."""
        if path not in self._manifests:
            where = self._move.of(path)
            file = read_avro(self._read(where), where)
            records = [self._entry(record) for record in file.records]
            self._manifests[path] = self._write(where, encode_avro(replace(file, records=records)))
        return self._manifests[path]

    def _entry(self, record: Mapping[str, Any]) -> dict[str, Any]:
        moved = rewrite_record_paths(record, self._move)
        file = record["data_file"]
        if file.get("content") != _POSITIONS or not file["file_path"].endswith(".parquet"):
            return moved
        try:
            path, size_bytes = self._delete_file(file["file_path"])
        except ObjectNotFoundError:
            if record["status"] == 2:  # the entry is of a removed file, which no remaining snapshot needs
                return moved
            raise
        changed = {**moved["data_file"], "file_path": path, "file_size_in_bytes": size_bytes}
        if "split_offsets" in changed:
            changed["split_offsets"] = _null_value(changed["split_offsets"])
        return {**moved, "data_file": changed}

    def _delete_file(self, path: str) -> tuple[str, int]:
        """Rewrite a position delete file with the current paths of its data files. The file is in memory as a whole."""
        if path not in self._deletes:
            where = self._move.of(path)
            self._deletes[path] = _rename_data_files(self._files, where, self._new_name(where), self._move)
            self.num_written += 1
        return self._deletes[path]

    def _read(self, location: str) -> bytes:
        try:
            return self._files.storage.read(self._files.key_of(location))
        except ObjectNotFoundError as error:
            raise FileNotFoundError(str(error)) from error

    def _write(self, old_location: str, data: bytes) -> tuple[str, int]:
        location = self._new_name(old_location)
        with self._files.create(location) as sink:
            sink.write(data)
        self.num_written += 1
        return location, len(data)

    def _new_name(self, location: str) -> str:
        stem, dot, kind = canonical_location(location).rpartition(".")
        key, own = self._files.key_of(stem), self._binding.spec.location
        if key.startswith(tuple(f"{other}/" for other in shared_locations(self._metadata.properties))):
            folder = "data" if kind == "parquet" else "metadata"  # a clone writes below its own location
            key = f"{own}/{folder}/{key.rpartition('/')[2]}"
        return f"{self._files.location_of(key)}-{self._binding.world.ids.new_uuid()}{dot}{kind}"


def _null_value(optional: Any) -> Any:
    """Return None, if the schema allows it, for byte offsets that are no longer valid."""
    return (0, None) if isinstance(optional, tuple) and isinstance(optional[1], list) else optional


def _rename_data_files(files: StorageFiles, where: str, location: str, move: PathRebase) -> tuple[str, int]:
    source = files.open_input(where)
    try:
        with pq.ParquetFile(
            source, metadata=read_checked_footer(source, where), page_checksum_verification=True
        ) as file:
            table = file.read()
            written = (file.metadata.metadata or {}).get(DELETED_KEY.encode())
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(
            f"cannot read lake file {where}: {error}; restore it, or rebuild the lake from the log (streamhouse retier)"
        ) from error
    index = table.schema.get_field_index("file_path")
    names = table.column(index).combine_chunks().dictionary_encode()
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    moved = pa.DictionaryArray.from_arrays(
        names.indices, pa.array([move.of(name) for name in names.dictionary.to_pylist()])
    )
    field = table.schema.field(index)
    table = table.set_column(index, pa.field(field.name, moved.type, field.nullable, field.metadata), moved)
    with open_parquet_sink(files, location) as sink:
        with pq.ParquetWriter(sink, table.schema, **DELETES_WRITER_OPTIONS) as writer:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            close_with_checksum(writer, sink, {} if written is None else {DELETED_KEY: written.decode()})
        return location, sink.size_bytes
