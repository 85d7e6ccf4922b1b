"""Files of a lake table outside its folder, as in clones and adopted tables."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table

from streamhouse_spark.core.paths import plain_location
from streamhouse_spark.lake.iceberg.clone import shared_locations
from streamhouse_spark.lake.iceberg.scan import plan_tasks
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles

_PLACES = ("write.data.path", "write.metadata.path")


def find_out_of_place_location(lake: IcebergLake, *, with_files: bool) -> str | None:
    """Return a location outside the table's folder in the warehouse that the latest snapshot names, or None.

    With ``with_files``, and for a clone, checks each file, which reads the manifests. Otherwise checks only the
    locations for new files.
    """
    table = lake.place.find()
    if table is None:
        return None
    folder = plain_location(StorageFiles(lake.place.storage).location_of(lake.place.spec.location)).rstrip("/")
    named = [table.location(), *(table.properties[name] for name in _PLACES if name in table.properties)]
    for location in named:
        if not _is_in(folder, location.rstrip("/")):
            return location
    files = _files(table) if with_files or shared_locations(table.properties) else ()
    return next((location for location in files if not _is_in(folder, location)), None)


def _is_in(folder: str, location: str) -> bool:
    plain = plain_location(location)
    return (plain == folder or plain.startswith(f"{folder}/")) and ".." not in plain.split("/")


def _files(table: Table) -> Iterator[str]:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    yield snapshot.manifest_list
    yield from (manifest.manifest_path for manifest in snapshot.manifests(table.io))
    for task in plan_tasks(table, snapshot, None):
        yield task.file.file_path
        yield from (delete.file_path for delete in task.delete_files)
