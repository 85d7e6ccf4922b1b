"""An Iceberg table with some rows that are known already, for engines that only read. Nothing is ever added to it."""

from __future__ import annotations

import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.paths import VIRTUAL_PREFIX
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.errors import commit_answers
from streamhouse_spark.lake.iceberg.virtual_table import IcebergMetadata
from streamhouse_spark.log.lifecycle.warehouse_identity import WarehouseIdentity
from streamhouse_spark.storage.base import Storage


def write_inline_table(storage: Storage, world: World, location: str, rows: pa.Table) -> IcebergMetadata:
    """Make the table at a location that nobody else has, of `virtual_location`. **Commit point:** its last version.

    Raises `StorageError`, `WarehouseMovedError`.
    """
    folder = location.removeprefix(VIRTUAL_PREFIX)
    if folder == location:
        raise ValueError(f"{location} is no location of a virtual table")
    WarehouseIdentity(storage).require(f"making the table {folder}")
    catalog = FileCatalog(storage, world=world)
    namespace = VIRTUAL_PREFIX.rstrip("/").rpartition("/")[2]
    with commit_answers(f"making the table {folder}"):
        table = catalog.create_table((namespace, folder), rows.schema, properties={"format-version": "2"})
        if rows.num_rows:
            table.append(rows)
    return IcebergMetadata(table.metadata_location, table.metadata)
