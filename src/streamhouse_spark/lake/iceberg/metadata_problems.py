"""Damaged and missing metadata of an Iceberg table that reads of its latest snapshot do not notice."""

from __future__ import annotations

from collections.abc import Iterator

from streamhouse_spark.errors import ObjectNotFoundError, StreamhouseError
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.metadata_versions import hint_key, parse_version_hint, version_key
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding

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
