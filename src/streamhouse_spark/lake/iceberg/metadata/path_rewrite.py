"""Iceberg metadata of a moved table, with the present locations of its files.

Only this module knows which values of metadata, manifest lists and manifests are locations. Readers of a moved
warehouse read through it, and relocation stores its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pyiceberg.table.metadata import TableMetadata

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.uris import plain_root, rebase_uri
from streamhouse_spark.lake.avro import encode_avro, read_avro

_PATH_ID: Final = 2147483546
"""Field id of the path column in position deletes."""
_PATH_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, slots=True)
class Move:
    """A move from the recorded root to the opened one."""

    recorded_root: str
    opened_root: str

    @classmethod
    def to(cls, recorded_root: str, url: str) -> Move:
        return cls(recorded_root, plain_root(url))

    def of(self, location: str) -> str:
        return rebase_uri(location, self.recorded_root, self.opened_root)

    def back(self) -> Move:
        return Move(self.opened_root, self.recorded_root)


def rewrite_metadata_paths(metadata: TableMetadata, move: Move) -> TableMetadata:
    """Return the table's metadata; manifest lists and manifests still contain the old locations."""
    properties = dict(metadata.properties)
    properties.update({name: move.of(properties[name]) for name in _PATH_PROPERTIES if name in properties})
    snapshots = [s.model_copy(update={"manifest_list": move.of(s.manifest_list)}) for s in metadata.snapshots]
    log = [e.model_copy(update={"metadata_file": move.of(e.metadata_file)}) for e in metadata.metadata_log]
    statistics = [s.model_copy(update={"statistics_path": move.of(s.statistics_path)}) for s in metadata.statistics]
    parts = [
        s.model_copy(update={"statistics_path": move.of(s.statistics_path)}) for s in metadata.partition_statistics
    ]
    return metadata.model_copy(
        update={
            "location": move.of(metadata.location),
            "properties": properties,
            "snapshots": snapshots,
            "metadata_log": log,
            "statistics": statistics,
            "partition_statistics": parts,
        }
    )


def rewrite_avro_paths(data: bytes, location: str, move: Move) -> bytes:
    """Return a manifest list or manifest with the present locations of its files. Raises `CorruptDataError`."""
    file = read_avro(data, location)
    records = [rewrite_record_paths(record, move) for record in file.records]
    return encode_avro(replace(file, records=records))


def rewrite_record_paths(record: Mapping[str, Any], move: Move) -> dict[str, Any]:
    """Return a record of a manifest list (which names manifests) or of a manifest (which names one file)."""
    if "manifest_path" in record:
        return {**record, "manifest_path": move.of(record["manifest_path"])}
    file = record["data_file"]
    changed = {**file, "file_path": move.of(file["file_path"])}
    if file.get("content"):  # position deletes name their data file by path
        changed.update({name: _drop_path_bounds(file.get(name), move) for name in ("lower_bounds", "upper_bounds")})
        if "referenced_data_file" in file:
            branch, named = file["referenced_data_file"]
            changed["referenced_data_file"] = (branch, named if named is None else move.of(named))
    return {**record, "data_file": {name: changed.get(name, value) for name, value in file.items()}}


def _drop_path_bounds(bounds: Any, move: Move) -> Any:
    """Return the bounds without those of truncated paths, which do not bound the new paths."""
    if bounds is None or bounds[1] is None:
        return bounds
    branch, entries = bounds
    moved = []
    for entry in entries:
        if entry["key"] != _PATH_ID:
            moved.append(entry)
            continue
        path = entry["value"].decode("utf-8", "surrogateescape")
        if move.of(path) != path:
            moved.append({**entry, "value": move.of(path).encode("utf-8", "surrogateescape")})
        elif not move.recorded_root.startswith(path[:-1] or path):
            moved.append(entry)
    return branch, moved
