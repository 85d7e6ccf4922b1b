"""A table of an Iceberg table that was there before, and what another engine does to its lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as LakeTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.storage.base import Storage

__all__ = ["BY_REGION", "NAME", "adopted", "appended", "ids", "lake_of", "rewritten", "row", "stock", "tier"]
NAME = "sales.orders"
COLUMNS = Schema(
    NestedField(7, "id", LongType(), required=True),
    NestedField(9, "region", StringType()),
    NestedField(12, "n", IntegerType()),
)
BY_REGION = PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "region"))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "region": ["eu", "us"][number % 2], "n": number % 5}


def adopted(
    storage: Storage, world: World, numbers: Sequence[int] = range(6), *, spec: PartitionSpec | None = None
) -> Table:
    """Make a lake of two files, or of two of each region, that nobody of us has written, and a table of it."""
    catalog = FileCatalog(storage, world=world)
    properties = {"format-version": "2"}
    catalog.create_table(NAME, COLUMNS, partition_spec=spec or PartitionSpec(), properties=properties)
    half = len(numbers) // 2
    for some in (numbers[:half], numbers[half:]):
        appended(storage, world, [row(number) for number in some])
    warehouse = Warehouse("wh", storage=storage, world=world)
    warehouse.adopt_table(NAME)
    return warehouse.table(NAME)


def lake_of(storage: Storage, world: World) -> LakeTable:
    """Open the lake as another engine does; what pyiceberg knows by path may be of another test."""
    clear_manifest_cache()
    return FileCatalog(storage, world=world).load_table(NAME)


def appended(storage: Storage, world: World, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows as another engine does, a file for each region."""
    lake = lake_of(storage, world)
    by: dict[Any, list[dict[str, Any]]] = {}
    for one in rows:
        by.setdefault(one["region"] if lake.spec().fields else None, []).append(one)
    for some in by.values():
        lake.append(pa.Table.from_pylist(list(some), schema=lake.schema().as_arrow()))


def rewritten(storage: Storage, world: World) -> None:
    """Write all rows of the lake again in one file, or one a region, as another engine's compaction does."""
    lake = lake_of(storage, world)
    lake.overwrite(lake.scan().to_arrow())


def stock(table: Table) -> list[int]:
    """Read the lake's ids as pyiceberg does."""
    return ids(lake_of(table.storage, table.world).scan().to_arrow())
