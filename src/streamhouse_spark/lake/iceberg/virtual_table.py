"""Iceberg tables that extend a lake table with rows of the hot log, for read-only engines. The lake does not change.

A virtual table starts with the metadata of one version of the lake table, at a separate location. It adds snapshots of
rounds that the log does not record. Any number of processes share it, and its commits are fenced like those of every
lake table. If the lake has changed, the virtual table is abandoned, and its folder is deleted later.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from pyiceberg.exceptions import TableAlreadyExistsError as IcebergTableExistsError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import VIRTUAL_PREFIX, virtual_location
from streamhouse_spark.lake.file_access import CATALOG_SETTINGS
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.file_io import translate_commit_errors
from streamhouse_spark.lake.iceberg.metadata_versions import round_cache
from streamhouse_spark.lake.iceberg.snapshot_commit import OWN_PLACES
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

VIRTUAL_PROPERTY: Final = "streamhouse.virtual"
"""Property of virtual tables with the sequence number of the lake version that the table started with."""
SNAPSHOTS_MAX: Final = 100
"""Maximum number of unnamed lake snapshots in a virtual table. More snapshots slow down each response."""


@dataclass(frozen=True, slots=True)
class IcebergMetadata:
    """A version of a table, as a REST catalog returns it."""

    location: str
    """The location of the metadata file."""
    metadata: TableMetadata
    num_rounds: int = 0
    """Number of virtual snapshots after those of the lake."""


class VirtualTable(IcebergLake):
    """A virtual table, in place of the lake that a round writes to. It is never the real lake of the table."""

    @classmethod
    def of(cls, storage: Storage, settings: Mapping[str, str], world: World, state: TableState, location: str) -> Self:
        """Open the virtual table at a location from `virtual_key`, which `begin` must have created."""
        if not location.startswith(VIRTUAL_PREFIX):
            raise ValueError(f"{location} is not a location of a virtual table")
        own = {key: value for key, value in settings.items() if not key.startswith(CATALOG_SETTINGS)}
        return cls(storage, replace(LakeTableSpec.of(state), location=location), settings=own, world=world)

    def with_state(self, state: TableState) -> Self:
        target_file_bytes = self.binding.spec.target_file_bytes
        spec = replace(LakeTableSpec.of(state), location=self.location, target_file_bytes=target_file_bytes)
        return self._with_spec(spec)

    def begin(self, real: IcebergMetadata | None) -> None:
        """Create the table with the snapshots of the lake table. Concurrent callers create an equal table."""
        self.require_home("creating a virtual table")
        if self.exists():
            return
        binding = self.binding
        catalog, metadata = binding.catalog, real.metadata if real is not None else self._empty()
        assert isinstance(catalog, FileCatalog)
        at = StorageFiles(binding.storage).location_of(self.location)
        with (
            suppress(IcebergTableExistsError),
            translate_commit_errors(f"making the virtual table of {binding.spec.path}"),
        ):
            catalog.create_from_metadata(binding.identifier, _place_snapshot_log(metadata, at, binding.spec.table_uuid))
        round_cache.forget()

    def _empty(self) -> TableMetadata:
        """Return the metadata of a lake table before its first round."""
        world = self.binding.world
        binding = IcebergTableBinding(MemoryStorage(world), self.binding.spec, world=world)
        binding.create_or_evolve()
        return binding.require().metadata

    def metadata(self) -> IcebergMetadata:
        """Return the latest version."""
        table = self.binding.require()
        since = int(table.metadata.properties.get(VIRTUAL_PROPERTY, "0"))
        return _wrap_metadata(table, _sequence_number(table.metadata) - since)


def virtual_key(state: TableState, real: IcebergMetadata | None, epoch: int, generation: int) -> str:
    """Return the location of the virtual table that extends a version of the lake. ``generation`` counts restarts."""
    version = real.location if real is not None else f"no lake at {state.lake_location}"
    name = hashlib.sha256(version.encode()).hexdigest()[:16]
    return virtual_location(state.table_uuid, epoch, f"{name}-{generation}")


def make_virtual_identity(storage: Storage, state: TableState, real: IcebergMetadata, key: str) -> IcebergMetadata:
    """Return a version of the lake with the identity of the virtual table of this key. Writes nothing."""
    at = StorageFiles(storage).location_of(key)
    return IcebergMetadata(real.location, _place_snapshot_log(real.metadata, at, state.table_uuid))


def read_latest_metadata(lake: IcebergLake) -> IcebergMetadata | None:
    """Return the latest version, or None before the first. Raises `LakeMismatchError` for another table's lake."""
    table = lake.binding.find()
    if table is None:
        return None
    lake.binding.require_owner(table.metadata)
    return _wrap_metadata(table, 0)


def _wrap_metadata(table: Table, num_rounds: int) -> IcebergMetadata:
    return IcebergMetadata(table.metadata_location, table.metadata, num_rounds)


def _place_snapshot_log(metadata: TableMetadata, location: str, table_uuid: str) -> TableMetadata:
    """Return the metadata with another identity and location, so that its clean-up does not reach files of the lake."""
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    older, newer = metadata.snapshots[:-SNAPSHOTS_MAX], metadata.snapshots[-SNAPSHOTS_MAX:]
    snapshots = [*(snapshot for snapshot in older if snapshot.snapshot_id in named), *newer]
    snapshot_ids = {snapshot.snapshot_id for snapshot in snapshots}
    properties = {key: value for key, value in metadata.properties.items() if key not in OWN_PLACES}
    properties[VIRTUAL_PROPERTY] = str(_sequence_number(metadata))
    return metadata.model_copy(
        update={
            "properties": properties,
            "location": location,
            "metadata_log": [],
            "snapshots": snapshots,
            "snapshot_log": [entry for entry in metadata.snapshot_log if entry.snapshot_id in snapshot_ids],
            "table_uuid": uuid.UUID(table_uuid),
        }
    )


def _sequence_number(metadata: TableMetadata) -> int:
    """Return the number of the latest snapshot, or 0 in format version 1, which does not number snapshots."""
    return int(getattr(metadata, "last_sequence_number", 0))
