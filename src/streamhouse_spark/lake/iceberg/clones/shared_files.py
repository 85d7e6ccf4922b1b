"""Files that an Iceberg table names and another table of the warehouse owns: those with which a clone began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streamhouse_spark.lake.parquet.parquet_io import StorageFiles

SHARED_PROPERTY: Final = "streamhouse.shares-files-of"
"""Property of a clone's lake table: locations in the warehouse, joined by commas, whose files are not its own."""


def shared_locations(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the locations in the warehouse below which files are another table's."""
    return tuple(filter(None, properties.get(SHARED_PROPERTY, "").split(",")))


def select_own_files(locations: Iterable[str], files: StorageFiles, properties: Mapping[str, str]) -> list[str]:
    """Return those of the locations in the warehouse whose files the table may delete: of a clone not those that it
    began with.
    """
    shared = tuple(f"{location}/" for location in shared_locations(properties))
    return [location for location in locations if not files.key_of(location).startswith(shared)]
