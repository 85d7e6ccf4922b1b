"""Access to the data files around a location: in the warehouse, or in a catalog's own storage."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.lake.parquet.access import FileAccess, StorageFiles
from streamhouse_spark.storage.base import Storage


def lake_files(storage: Storage, settings: Mapping[str, str], location: str) -> FileAccess:
    """Return the access to the data files around ``location``, inside the warehouse or outside."""
    inside = StorageFiles(storage)
    if inside.holds(location):
        return inside
    from streamhouse_spark.lake.outside_files import outside_files

    return outside_files(settings, location)
