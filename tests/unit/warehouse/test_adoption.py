"""A table of an Iceberg table that was there: its rows are the history, and whatever fails, nobody loses one."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    UUIDType,
)

from interop.lake_cases import by_bucket, lake_of
from interop.lake_cases import tier as interop_tier
from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.config.spark_options import EARLIEST, ReadOptions, StreamReadOptions
from streamhouse_spark.datasource.read.target import batch_target, stream_target
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidNameError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
    TableExistsError,
    WarehouseNotFoundError,
)
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.offsets import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.schema.partition_fields import parse_field
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.tiering import tier_table
from streamhouse_spark.table.views import open_view
from streamhouse_spark.warehouse.warehouse import Warehouse

COLUMNS = Schema(
    NestedField(7, "id", LongType(), required=True),
    NestedField(9, "region", StringType(), doc="where"),
    NestedField(12, "n", IntegerType()),
)
LAYOUTS = {
    "plain": PartitionSpec(),
    "partitioned": PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "region")),
}
OLD = [{"id": i, "region": ["eu", "us"][i % 2], "n": i} for i in range(6)]
NEW = [{"id": i, "region": "eu", "n": -i} for i in range(100, 103)]
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def catalog(store, world, wh) -> FileCatalog:
    wh.create_database("sales")
    return FileCatalog(store, world=world)


def made(catalog, name="sales.orders", schema=COLUMNS, spec=LAYOUTS["plain"], rows=None, **properties):
    """An Iceberg table that nobody of us has written."""
    table = catalog.create_table(name, schema, partition_spec=spec, properties={"format-version": "2", **properties})
    rows = OLD if rows is None and schema is COLUMNS else rows or []
    by_region: dict[object, list] = {}
    for row in rows:
        by_region.setdefault(row["region"] if len(spec.fields) else None, []).append(row)
    for some in by_region.values():
        table.append(pa.Table.from_pylist(some, schema=table.schema().as_arrow()))
    return table.refresh()


def bucketed(store, world) -> Table:
    """pyiceberg does not write buckets by itself: a lake of ours that is nobody's any more, with old offsets."""
    schema = TableSchema.of("id bigint not null, region string comment 'where', n int")
    lake = lake_of(store, schema, partition_by=["region"], bucket_key="id", num_buckets=4, world=world)
    interop_tier(lake, by_bucket(pa.Table.from_pylist(OLD, schema=schema.arrow), "id", 4))
    with lake.place.load().transaction() as transaction:
        transaction.remove_properties(TABLE_UUID_PROPERTY)
    return lake.place.load()


def tier(table):
    return tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def rows_of(found: pa.Table) -> list[dict]:
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def by_id(*parts) -> list[dict]:
    return sorted((row for part in parts for row in part), key=lambda row: row["id"])


@pytest.mark.parametrize("layout", ["plain", "partitioned", "bucketed"])
def test_adopted_rows_are_the_history(wh, catalog, layout, store, world):
    lake = bucketed(store, world) if layout == "bucketed" else made(catalog, spec=LAYOUTS[layout])
    files = {task.file.file_path for task in lake.scan().plan_files()}
    report = wh.adopt_table("sales.orders")
    assert (report.table, report.rows, report.files) == ("sales.orders", 6, len(files))
    assert report.snapshot_id == lake.current_snapshot().snapshot_id
    table = wh.table("sales.orders")
    assert table.state.schema.column("region").comment == "where"
    assert [c.id for c in table.state.schema.columns] == [1, 2, 3]
    assert table.partition_by == ("region",) * (layout != "plain")
    assert (table.num_buckets, table.properties.bucket_key) == ((4, ("id",)) if layout == "bucketed" else (1, ()))
    assert rows_of(table.to_arrow()) == OLD == rows_of(table.lake.to_arrow())
    table.append(NEW)
    assert rows_of(table.to_arrow()) == by_id(OLD, NEW)
    assert rows_of(table.lake.to_arrow()) == OLD
    assert tier(table).rows == 3
    assert rows_of(table.to_arrow()) == by_id(OLD, NEW) == rows_of(table.lake.to_arrow())
    lake = catalog.load_table("sales.orders")
    assert files < {task.file.file_path for task in lake.scan().plan_files()}
    assert rows_of(lake.scan().to_arrow().cast(table.schema)) == by_id(OLD, NEW)
    assert rows_of(table.to_arrow(filter=[("id", ">=", 5)])) == by_id(OLD[5:], NEW)


def test_a_lake_with_hidden_partitions(wh, catalog, store, world):
    """pyiceberg writes no transforms by itself: a lake of ours that is nobody's any more."""
    schema = TableSchema.of("id bigint, at timestamp, name string")
    fields = [parse_field(text, schema) for text in ("truncate(2, name)", "days(at)")]
    lake = lake_of(store, schema, partition_fields=fields, bucket_key="id", num_buckets=4, world=world)
    at = dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)
    old = [{"id": i, "at": at + dt.timedelta(hours=i), "name": "abcdef"[i:]} for i in range(6)]
    interop_tier(lake, by_bucket(pa.Table.from_pylist(old, schema=schema.arrow), "id", 4))
    with lake.place.load().transaction() as transaction:
        transaction.remove_properties(TABLE_UUID_PROPERTY)
    assert wh.adopt_table("sales.orders").partition_by == ("truncate(2, name)", "days(at)")
    table = wh.table("sales.orders")
    assert table.state.properties["partition.fields"] == "truncate(2, name), days(at)"
    new = [{"id": 100, "at": at, "name": "abX"}]
    table.append(new)
    tier(table)
    assert rows_of(table.lake.to_arrow()) == by_id(old, new)
    opened = catalog.load_table("sales.orders")
    assert [type(field.transform) for field in opened.spec().fields] == [
        TruncateTransform,
        DayTransform,
        BucketTransform,
    ]
    assert len(list(opened.scan(row_filter="name == 'abX'").plan_files())) == 1


def test_a_lake_whose_partitions_changed(wh, catalog):
    """Files of several specs, which another engine wrote: each is read by its own."""
    lake = made(catalog, spec=LAYOUTS["partitioned"])
    with lake.update_spec() as update:
        update.remove_field("region")
        update.add_identity("n")
    lake = lake.refresh()
    more = [{"id": i, "region": ["eu", "us"][i % 2], "n": 7} for i in range(6, 10)]
    lake.append(pa.Table.from_pylist(more, schema=lake.schema().as_arrow()))
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    assert table.partition_by == ("n",)
    table.append(NEW)

    def check(rows: list[dict]) -> None:
        assert rows_of(table.to_arrow()) == rows
        for name, value in (("n", 7), ("n", 3), ("region", "eu"), ("region", "us")):
            assert rows_of(table.to_arrow(filter=[(name, "=", value)])) == [r for r in rows if r[name] == value]

    check(by_id(OLD, more, NEW))
    tier(table)
    table.set_partitioning(["region"])
    table.append([{"id": 200, "region": "us", "n": 7}])
    tier(table)
    rows = by_id(OLD, more, NEW, [{"id": 200, "region": "us", "n": 7}])
    check(rows)
    lake = catalog.load_table("sales.orders")
    assert [[f.name for f in spec.fields] for spec in lake.metadata.partition_specs] == [["region"], ["n"]]
    assert lake.metadata.default_spec_id == 0, "the spec that comes back is the one that there was"
    assert rows_of(lake.scan().to_arrow().cast(table.schema)) == rows


def test_a_lake_that_had_as_many_buckets_by_another_column(wh, catalog, store, world):
    lake = bucketed(store, world)
    with lake.update_spec() as update:
        update.remove_field("id_bucket")
    with lake.update_spec() as update:
        update.add_field("n", BucketTransform(4), "n_bucket")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    assert table.properties.bucket_key == ("n",)
    for row in OLD:
        assert rows_of(table.to_arrow(filter=[("n", "=", row["n"])])) == [row]


@pytest.fixture
def table(wh, catalog):
    made(catalog)
    wh.adopt_table("sales.orders")
    return wh.table("sales.orders")


def test_upkeep_leaves_adopted_files_and_rows(table, clock):
    (old,) = table.lake.files()["file_path"].to_pylist()
    for i in range(200, 207):
        table.append([{"id": i}])
        tier(table)
    compacted = table.lake.compact()
    assert (compacted.files_removed, compacted.rows) == (7, 7)
    table.lake.rewrite_manifests()
    clock.advance(3 * DAY_MS)
    table.lake.expire_snapshots(retain_last=1)
    table.maintain()
    files = table.lake.files().select(["file_path", "record_count"]).to_pylist()
    assert sorted((f["file_path"] == old, f["record_count"]) for f in files) == [(False, 7), (True, 6)]
    assert table.to_arrow().num_rows == 13 == table.lake.to_arrow().num_rows


def test_an_adopted_table_is_not_cloned(wh, table):
    with pytest.raises(InvalidOptionError, match="was made of a lake table that was there before"):
        wh.clone_table(table.name, "sales.cloned")


def test_another_name_and_another_lake(wh, catalog):
    made(catalog, "sales.legacy")
    wh.adopt_table("sales.orders", "sales.legacy", properties={"comment": "adopted", "bucket.num": "2"})
    table = wh.table("sales.orders")
    assert (table.properties.comment, table.num_buckets) == ("adopted", 2)
    table.append(NEW)
    tier(table)
    assert catalog.load_table("sales.legacy").scan().to_arrow().num_rows == 9
    assert not catalog.table_exists("sales.orders")


def test_generated_columns_of_rows_that_are_there_are_refused(wh, catalog):
    made(catalog, rows=OLD)
    with pytest.raises(InvalidOptionError, match="create a new table with them and copy the rows"):
        wh.adopt_table("sales.orders", properties={"table.generated.n": "length(region)"})
    assert "sales.orders" not in wh.tables("sales")


def test_a_table_without_snapshots(wh, catalog):
    made(catalog, rows=[])
    assert wh.adopt_table("sales.orders").snapshot_id is None
    table = wh.table("sales.orders")
    assert table.state.properties[ADOPTED] == "empty"
    assert table.to_arrow().num_rows == 0
    table.truncate()
    table.append(NEW)
    tier(table)
    assert rows_of(table.to_arrow()) == NEW == rows_of(table.lake.to_arrow())


def test_deleted_rows_stay_deleted(wh, catalog):
    lake = made(catalog)
    lake.delete("id = 2")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    table.append(NEW)
    tier(table)
    assert rows_of(table.to_arrow()) == by_id(OLD[:2], OLD[3:], NEW)


def test_columns_are_added_behind_those_that_were_there(table):
    table.add_columns("note STRING")
    table.append([{"id": 50, "note": "new"}])
    tier(table)
    found = rows_of(table.to_arrow())
    assert [row["note"] for row in found] == [None] * 6 + ["new"]
    assert found == rows_of(table.lake.to_arrow())


def test_a_dry_run_changes_nothing(wh, catalog, store):
    made(catalog)
    before = {info.key: store.read(info.key) for info in store.list("")}
    report = wh.adopt_table("sales.orders", dry_run=True)
    assert (report.rows, report.schema, report.buckets) == (
        6,
        "id BIGINT NOT NULL, region STRING COMMENT 'where', n INT",
        1,
    )
    assert {info.key: store.read(info.key) for info in store.list("")} == before
    nowhere = Warehouse("x", storage=MemoryStorage(wh.world, name="elsewhere"), world=wh.world)
    with pytest.raises(LakeMismatchError, match=r"no Iceberg table a\.b"):
        nowhere.adopt_table("a.b", dry_run=True)


def test_a_warehouse_is_made_around_a_lake(store, world):
    made(FileCatalog(store, world=world), "legacy.orders")
    warehouse = Warehouse("wh", storage=store, world=world)
    assert warehouse.adopt_table("sales.orders", "legacy.orders", dry_run=True).rows == 6
    with pytest.raises(WarehouseNotFoundError, match="holds lake"):
        warehouse.create_table("sales.orders", "id INT")
    with pytest.raises(WarehouseNotFoundError):
        warehouse.tables()
    warehouse.adopt_table("sales.orders", "legacy.orders")
    assert rows_of(warehouse.table("sales.orders").to_arrow()) == OLD


# -- what has no offset -----------------------------------------------------------------------------------------------


def test_reads_by_offset_say_that_they_begin_behind_the_adopted_rows(table):
    table.append(NEW)
    for target in (
        lambda: stream_target(table, None, StreamReadOptions()),
        lambda: batch_target(table, None, ReadOptions(include_metadata=True)),
        lambda: batch_target(table, None, ReadOptions(ending_timestamp_ms=1)),
    ):
        with pytest.raises(InvalidOptionError, match="startingOffsets=earliest"):
            target()
    assert stream_target(table, None, StreamReadOptions(starting_offsets=EARLIEST)).kind == "range"
    assert stream_target(table, "changelog", StreamReadOptions()).kind == "range"
    assert batch_target(table, None, ReadOptions()).kind == "union"
    changes = open_view(table, "changelog").to_arrow()
    assert rows_of(changes.select(table.schema.names)) == NEW


def test_the_past_of_the_lake_is_read_from_the_lake(table, wh, clock):
    adopted = int(table.state.properties[ADOPTED])
    clock.advance(60_000)
    table.append(NEW)
    tier(table)
    assert rows_of(table.lake.to_arrow(as_of_snapshot=adopted)) == OLD
    assert rows_of(table.to_arrow(as_of_timestamp_ms=table.state.created_ms)) == OLD
    with pytest.raises(OffsetsTrimmedError, match="was made of a lake table later"):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


@pytest.mark.parametrize("empties", [lambda t: t.truncate(), lambda t: t.overwrite(NEW)], ids=["truncate", "overwrite"])
@pytest.mark.parametrize("is_appended", [True, False])
def test_truncation_takes_adopted_rows_too(table, empties, is_appended):
    """Also where no row was ever added, so that there is no offset yet to tell it by."""
    assert rows_of(table.to_arrow()) == OLD
    before = table.log.state
    if is_appended:
        table.append([{"id": 50}])
    written = empties(table)
    if not is_appended:
        assert table.state.first_offsets == dict.fromkeys(table.state.buckets, 1)
        assert written is None or all(offsets.start == 1 for offsets in written.values())
    assert not table.state.begins_at(before.first_offsets)
    assert table.state.lake is None
    left = [row for row in NEW if row in table.to_arrow().to_pylist()]
    assert table.to_arrow().num_rows == len(left)
    tier(table)
    assert rows_of(table.lake.to_arrow()) == left == rows_of(table.to_arrow())
    assert open_records(table) == open_checkpoint(table) == table.refresh()
    empties(table)
    assert table.to_arrow().num_rows == len(left)


def open_records(table):
    return Warehouse("wh", storage=table.storage, world=table.world).table(table.name).refresh()


def open_checkpoint(table):
    table.log.checkpoint(table.refresh())
    return open_records(table)


def test_dropping_leaves_the_iceberg_table_which_can_be_adopted_again(table, wh, catalog, clock):
    table.append(NEW)
    tier(table)
    wh.drop_table("sales.orders")
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    lake = catalog.load_table("sales.orders")
    assert lake.scan().to_arrow().num_rows == 9
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    again.append([{"id": 500}])
    tier(again)
    assert again.to_arrow().num_rows == 10 == again.lake.to_arrow().num_rows


def test_a_dropped_table_does_not_keep_its_lake(table, wh):
    """Before cleaning has come by."""
    table.append(NEW)
    tier(table)
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders")
    assert rows_of(wh.table("sales.orders").to_arrow()) == by_id(OLD, NEW)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "spec", "properties", "words"),
    [
        (COLUMNS, LAYOUTS["plain"], {"format-version": "1"}, "format version is 1, expected 2"),
        (
            Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1]),
            LAYOUTS["plain"],
            {},
            "identifier fields id, and no primary_key is given",
        ),
        (Schema(NestedField(1, "at", TimeType())), LAYOUTS["plain"], {}, "'at' of the lake table has the type time"),
        (Schema(NestedField(1, "u", UUIDType())), LAYOUTS["plain"], {}, "'u' of the lake table has the type uuid"),
        (
            Schema(
                NestedField(1, "a", StructType(NestedField(2, "b", ListType(3, LongType(), element_required=True))))
            ),
            LAYOUTS["plain"],
            {},
            "a.b.element is required within a column",
        ),
        (
            Schema(NestedField(1, "at", TimestampType())),
            PartitionSpec(PartitionField(1, 1000, VoidTransform(), "day")),
            {},
            r"partitioned by \[void\(at\)\]",
        ),
        (
            COLUMNS,
            PartitionSpec(
                PartitionField(7, 1000, BucketTransform(4), "b"), PartitionField(9, 1001, IdentityTransform(), "r")
            ),
            {},
            r"partitioned by \[bucket\[4\]\(id\), identity\(region\)\]",
        ),
    ],
    ids=["v1", "identifier", "time", "uuid", "nested", "void", "order"],
)
def test_what_does_not_fit_is_named(wh, catalog, store, schema, spec, properties, words):
    made(catalog, schema=schema, spec=spec, rows=[], **properties)
    before = sorted(info.key for info in store.list(""))
    with pytest.raises(LakeMismatchError, match=words):
        wh.adopt_table("sales.orders")
    assert sorted(info.key for info in store.list("")) == before
    assert not wh.exists("sales.orders")


@pytest.mark.paimon
def test_a_paimon_table_that_is_not_there(wh, catalog):
    made(catalog)
    with pytest.raises(LakeMismatchError, match=r"there is no Paimon table at .*/sales\.db/orders to adopt"):
        wh.adopt_table("sales.orders", properties={"table.datalake.format": "paimon"})


def test_arguments_that_cannot_be(wh, catalog):
    made(catalog)
    with pytest.raises(LakeMismatchError, match=r"there is no Iceberg table sales\.absent"):
        wh.adopt_table("sales.orders", "sales.absent")
    with pytest.raises(LakeMismatchError, match="'n' of the primary key is optional, expected required"):
        wh.adopt_table("sales.orders", primary_key=["n"])
    with pytest.raises(InvalidOptionError, match="expected a list of names"):
        wh.adopt_table("sales.orders", primary_key="id")
    for properties, words in (
        ({"table.datalake.format": "parquet"}, "expected iceberg or paimon"),
        ({"table.datalake.enabled": "false"}, "which is enabled"),
        ({"bucket.key": "id"}, "has no bucket key"),
        ({ADOPTED: "5"}, "set by adopting one"),
        ({"tabel": "x"}, "unknown table property"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            wh.adopt_table("sales.orders", properties=properties)
    with pytest.raises(InvalidOptionError, match="set by adopting one"):
        wh.create_table("sales.other", "id INT", properties={ADOPTED: "5"})
    with pytest.raises(InvalidNameError):
        wh.adopt_table("sales.orders$lake")
    wh.create_table("sales.taken", "id INT")
    with pytest.raises(TableExistsError):
        wh.adopt_table("sales.taken", "sales.orders")
    assert catalog.load_table("sales.orders").properties.get(TABLE_UUID_PROPERTY) is None
    assert wh.tables() == ["sales.taken"]


def test_a_lake_has_one_table(table, wh, catalog, store):
    with pytest.raises(LakeMismatchError, match=r"is the lake of table sales\.orders"):
        wh.adopt_table("sales.second", "sales.orders")
    lake = catalog.load_table("sales.orders")
    with lake.transaction() as transaction:
        transaction.set_properties({TABLE_UUID_PROPERTY: "f" * 32})
    with pytest.raises(LakeMismatchError, match="which this warehouse does not have"):
        wh.adopt_table("sales.second", "sales.orders")


def test_a_table_that_says_it_lies_elsewhere_is_refused(wh, catalog, store):
    catalog.create_table("sales.orders", COLUMNS, location=f"{store.url}/lake/other/place")
    with pytest.raises(LakeMismatchError, match="was moved or copied"):
        wh.adopt_table("sales.orders")


def test_a_lake_with_rows_is_not_taken_unseen(wh, catalog):
    made(catalog)
    table = wh.create_table("sales.orders", "id BIGINT NOT NULL, region STRING, n INT")
    table.append(NEW)
    with pytest.raises(LakeMismatchError, match="adopt_table"):
        tier(table)
    assert rows_of(table.to_arrow()) == NEW
    assert catalog.load_table("sales.orders").scan().to_arrow().num_rows == 6


def test_a_lake_that_changes_meanwhile_is_not_adopted(wh, catalog, monkeypatch):
    from streamhouse_spark.warehouse import adoption

    lake = made(catalog)
    put = adoption.put_first_record

    def late(storage, record):
        put(storage, record)
        lake.append(pa.Table.from_pylist(NEW, schema=lake.schema().as_arrow()))

    monkeypatch.setattr(adoption, "put_first_record", late)
    with pytest.raises(CommitConflictError, match="adopt it again"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    monkeypatch.undo()
    wh.adopt_table("sales.orders")
    assert rows_of(wh.table("sales.orders").to_arrow()) == by_id(OLD, NEW)
