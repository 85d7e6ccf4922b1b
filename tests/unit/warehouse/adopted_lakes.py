"""Lake tables that another engine made, and what it does to them afterwards: the same for both formats."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from interop.lake_cases import by_bucket, lake_of
from interop.lake_cases import tier as tier_by_hand
from interop.paimon_cases import Stock
from streamhouse_spark import Table
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage

Row = dict[str, Any]
NAME = "sales.orders"
ICEBERG_COLUMNS = Schema(
    NestedField(7, "id", LongType(), required=True),
    NestedField(9, "region", StringType(), doc="where"),
    NestedField(11, "day", DateType()),
    NestedField(12, "n", IntegerType()),
)
BY_REGION = PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "region"))
BY_DAY = PartitionSpec(PartitionField(11, 1000, IdentityTransform(), "day"))
COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("day", pa.date32()), ("n", pa.int32())]
)


KEYED_COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.string()), ("text", pa.string())])
KEYED_OLD = {i: f"old {i}" for i in range(8)}


class Layout(NamedTuple):
    """How a lake table is cut, as the adopted table must have it, and what its engine is told to make it so."""

    partition_by: tuple[str, ...] = ()
    num_buckets: int = 1
    bucket_key: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}


def some(ids: Sequence[int]) -> list[Row]:
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    return [{"id": i, "region": ["eu", "u/s"][i % 2], "day": days[i % 2], "n": i} for i in ids]


OLD, NEW = some(range(6)), some(range(100, 103))


def keyed_rows(texts: Mapping[int, str]) -> list[Row]:
    return [{"id": i, "part": f"p{i % 2}", "text": text} for i, text in texts.items()]


def by_id(*parts: Sequence[Row]) -> list[Row]:
    return sorted((row for part in parts for row in part), key=lambda row: row["id"])


def rows_of(rows: pa.Table) -> list[Row]:
    return by_id(rows.to_pylist())


def disown(lake: Any) -> IcebergTable:
    """Return a lake table of ours as nobody's: pyiceberg writes no buckets or transforms by itself."""
    with lake.binding.load().transaction() as transaction:
        transaction.remove_properties(TABLE_UUID_PROPERTY)
    opened: IcebergTable = lake.binding.load()
    return opened


def bucketed_iceberg(storage: Storage, world: World) -> IcebergTable:
    schema = TableSchema.of("id bigint not null, region string comment 'where', day date, n int")
    lake = lake_of(storage, schema, partition_by=["region"], bucket_key="id", num_buckets=4, world=world)
    tier_by_hand(lake, by_bucket(pa.Table.from_pylist(OLD, schema=schema.arrow), "id", 4))
    return disown(lake)


class IcebergLakes:
    format = "iceberg"
    columns = "id BIGINT NOT NULL, region STRING COMMENT 'where', day DATE, n INT"
    layouts: Mapping[str, Layout] = {
        "plain": Layout(),
        "by text": Layout(("region",), options={"spec": BY_REGION}),
        "by day": Layout(("day",), options={"spec": BY_DAY}),
        "buckets": Layout(("region",), 4, ("id",)),
    }
    keyed_layouts: Mapping[str, Any] = {"one bucket": {}, "three buckets": {}}
    keyed_options: Mapping[str, Any] = {"primary_key": ["id"]}

    def __init__(self, storage: Storage, world: World, folder: Path) -> None:
        self._storage, self._world = storage, world
        self.catalog = FileCatalog(storage, world=world)

    def make(self, *rounds: Sequence[Row], name: str = NAME, layout: str = "plain") -> None:
        if layout == "buckets":
            bucketed_iceberg(self._storage, self._world)
            return
        spec = self.layouts[layout].options.get("spec", PartitionSpec())
        self.catalog.create_table(name, ICEBERG_COLUMNS, partition_spec=spec, properties={"format-version": "2"})
        for rows in rounds:
            self.append(rows, name)

    def make_keyed(self, layout: str) -> None:
        rows = pa.Table.from_pylist(keyed_rows(KEYED_OLD), schema=KEYED_COLUMNS)
        if layout == "three buckets":
            columns = TableSchema.of("id bigint not null, part string, text string")
            lake = lake_of(self._storage, columns, bucket_key="id", num_buckets=3, world=self._world)
            tier_by_hand(lake, by_bucket(rows, "id", 3))
            disown(lake)
            return
        fields = NestedField(1, "id", LongType(), required=True), NestedField(2, "part", StringType())
        schema = Schema(*fields, NestedField(3, "text", StringType()), identifier_field_ids=[1])
        table = self.catalog.create_table(NAME, schema, properties={"format-version": "2"})
        table.append(rows.slice(5))
        table.append(rows.slice(0, 5))

    def append(self, rows: Sequence[Row], name: str = NAME) -> None:
        table = self.catalog.load_table(name)
        by: dict[Any, list[Row]] = {}
        for row in rows:
            by.setdefault(tuple(row[field.name] for field in table.spec().fields), []).append(row)
        for some_rows in by.values():
            table.append(pa.Table.from_pylist(some_rows, schema=table.schema().as_arrow()))

    def rows(self, name: str = NAME) -> list[Row]:
        return rows_of(self.catalog.load_table(name).scan().to_arrow())

    def latest_id(self) -> int:
        latest = self.catalog.load_table(NAME).current_snapshot()
        assert latest is not None
        return latest.snapshot_id

    def set_property(self, key: str, value: str) -> None:
        with self.catalog.load_table(NAME).transaction() as transaction:
            transaction.set_properties({key: value})

    def require_nobodys(self) -> None:
        assert TABLE_UUID_PROPERTY not in self.catalog.load_table(NAME).properties


class PaimonLakes:
    format = "paimon"
    columns = "id BIGINT NOT NULL, region STRING, day DATE, n INT"
    layouts: Mapping[str, Layout] = {
        "plain": Layout(),
        "by text": Layout(("region",), options={"partition_by": ["region"]}),
        "by day": Layout(("day",), options={"partition_by": ["day"]}),
        "by day as text": Layout(("day",), options={"partition_by": ["day"], "partition.legacy_name": "false"}),
        "buckets": Layout((), 3, ("id", "region"), {"bucket": "3", "bucket_key": "id,region"}),
    }
    keyed_layouts: Mapping[str, Any] = {
        "one bucket": {"primary_key": ["id"], "bucket": "1"},
        "three buckets": {"primary_key": ["id"], "bucket": "3"},
        "a key of buckets": {"primary_key": ["id", "part"], "bucket": "3", "bucket_key": "part,id"},
        "partitions": {"primary_key": ["part", "id"], "partition_by": ["part"], "bucket": "2"},
    }
    keyed_options: Mapping[str, Any] = {}

    def __init__(self, storage: Storage, world: World, folder: Path) -> None:
        self._storage, self.stock = storage, Stock(storage, folder / "stock")

    def make(self, *rounds: Sequence[Row], name: str = NAME, layout: str = "plain") -> None:
        self.stock.make(name, COLUMNS, *rounds, **self.layouts[layout].options)

    def make_keyed(self, layout: str) -> None:
        """Write most rows in several versions, each of which the adoption counts."""
        versions = [{i: f"v{n} {i}" for i in range(n, 8)} for n in range(3)]
        self.stock.make(NAME, KEYED_COLUMNS, *map(keyed_rows, [*versions, KEYED_OLD]), **self.keyed_layouts[layout])

    def append(self, rows: Sequence[Row], name: str = NAME) -> None:
        self.stock.append(name, rows)

    def rows(self, name: str = NAME) -> list[Row]:
        return by_id(self.stock.read(name))

    def latest_id(self) -> int:
        return int(self._storage.read("lake/sales.db/orders/snapshot/LATEST"))

    def set_property(self, key: str, value: str) -> None:
        from pypaimon.schema.schema_change import SchemaChange

        self.stock.alter(NAME, SchemaChange.set_option(key, value))

    def require_nobodys(self) -> None:
        assert self.stock.options(NAME) == {"bucket": "-1"}
        kept = [info.key for info in self._storage.list("lake/sales.db/orders/")]
        assert not [key for key in kept if "/consumer/" in key or "/tag/" in key]


LAKES = {"iceberg": IcebergLakes, "paimon": PaimonLakes}


def agree(table: Table, lake: IcebergLakes | PaimonLakes, *parts: Sequence[Row], name: str = NAME) -> None:
    """Check that the table, its lake and the other engine have exactly these rows."""
    expected = by_id(*parts)
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(table.lake.to_arrow()) == expected
    assert lake.rows(name) == expected
