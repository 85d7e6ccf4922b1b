"""Adoption of a lake table that another engine made: its rows become the table's, and no failure loses one."""

from __future__ import annotations

import datetime as dt
import pkgutil

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import (
    ListType,
    LongType,
    NestedField,
    StructType,
    TimestampType,
    TimeType,
    UUIDType,
)

from interop.lake_cases import by_bucket, lake_of
from interop.lake_cases import tier as tier_by_hand
from kit.tables import tier
from streamhouse_spark import (
    CommitConflictError,
    InvalidNameError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
    TableExistsError,
    Warehouse,
    WarehouseNotFoundError,
)
from streamhouse_spark.config.spark_options import EARLIEST, ReadOptions, StreamReadOptions
from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.datasource.read.read_target import resolve_batch_target, resolve_stream_target
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.schema.partitioning import parse_field
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.system_views import open_view
from unit.warehouse.adopted_lakes import (
    ICEBERG_COLUMNS,
    LAKES,
    NEW,
    OLD,
    agree,
    bucketed_iceberg,
    by_id,
    disown,
    rows_of,
    some,
)

DAY_MS = 24 * 3600 * 1000
only_iceberg = pytest.mark.parametrize("lake", ["iceberg"], indirect=True)


@pytest.fixture(params=LAKES)
def lake(request, store, world, wh, tmp_path):
    wh.create_database("sales")
    return LAKES[request.param](store, world, tmp_path)


@pytest.fixture
def table(wh, lake):
    lake.make(OLD[:4], OLD[4:])
    wh.adopt_table("sales.orders")
    return wh.table("sales.orders")


@pytest.mark.parametrize(
    ("lake", "layout"),
    [(name, layout) for name, lakes in LAKES.items() for layout in lakes.layouts],
    indirect=["lake"],
)
def test_adopted_rows_are_the_history(wh, lake, layout):
    lake.make(OLD[:4], OLD[4:], layout=layout)
    latest = lake.latest_id()
    report = wh.adopt_table("sales.orders")
    assert (report.table, report.rows, report.format) == ("sales.orders", 6, lake.format)
    assert report.snapshot_id == latest
    table = wh.table("sales.orders")
    files = set(table.lake.files()["file_path"].to_pylist())
    assert report.files == len(files)
    assert table.properties.datalake_format == lake.format
    assert table.properties.datalake_adopted == str(report.snapshot_id)
    assert table.state.schema.column("region").comment == ("where" if lake.format == "iceberg" else None)
    assert [c.id for c in table.state.schema.columns] == [1, 2, 3, 4]
    assert (table.partition_by, table.num_buckets, table.properties.bucket_key) == lake.layouts[layout][:3]
    agree(table, lake, OLD)
    table.append(NEW)
    assert rows_of(table.to_arrow()) == by_id(OLD, NEW)
    assert rows_of(table.lake.to_arrow()) == OLD
    assert tier(table).rows == 3
    agree(table, lake, OLD, NEW)
    assert files < set(table.lake.files()["file_path"].to_pylist())
    assert rows_of(table.to_arrow(filter=[("id", ">=", 5)])) == by_id(OLD[5:], NEW)
    assert rows_of(table.to_arrow(filter=[("day", "==", dt.date(2026, 1, 2))])) == by_id(OLD[1::2], NEW[1:2])


@only_iceberg
def test_hidden_partitions_are_adopted(wh, lake, store, world):
    schema = TableSchema.of("id bigint, at timestamp, name string")
    fields = [parse_field(text, schema) for text in ("truncate(2, name)", "days(at)")]
    ours = lake_of(store, schema, partition_fields=fields, bucket_key="id", num_buckets=4, world=world)
    at = dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)
    old = [{"id": i, "at": at + dt.timedelta(hours=i), "name": "abcdef"[i:]} for i in range(6)]
    tier_by_hand(ours, by_bucket(pa.Table.from_pylist(old, schema=schema.arrow), "id", 4))
    disown(ours)
    assert wh.adopt_table("sales.orders").partition_by == ("truncate(2, name)", "days(at)")
    table = wh.table("sales.orders")
    assert table.state.properties["partition.fields"] == "truncate(2, name), days(at)"
    new = [{"id": 100, "at": at, "name": "abX"}]
    table.append(new)
    tier(table)
    assert rows_of(table.lake.to_arrow()) == by_id(old, new)
    opened = lake.catalog.load_table("sales.orders")
    assert [type(field.transform) for field in opened.spec().fields] == [
        TruncateTransform,
        DayTransform,
        BucketTransform,
    ]
    assert len(list(opened.scan(row_filter="name == 'abX'").plan_files())) == 1


@only_iceberg
def test_files_of_each_partition_spec_are_read_by_their_own(wh, lake):
    lake.make(OLD, layout="by text")
    with lake.catalog.load_table("sales.orders").update_spec() as update:
        update.remove_field("region")
        update.add_identity("n")
    more = [{**row, "n": 7} for row in some(range(6, 10))]
    lake.append(more)
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    assert table.partition_by == ("n",)
    table.append(NEW)
    last = [{**row, "n": 7} for row in some([201])]

    def check(rows: list[dict]) -> None:
        assert rows_of(table.to_arrow()) == rows
        for name, value in (("n", 7), ("n", 3), ("region", "eu"), ("region", "u/s")):
            assert rows_of(table.to_arrow(filter=[(name, "=", value)])) == [r for r in rows if r[name] == value]

    check(by_id(OLD, more, NEW))
    tier(table)
    table.set_partitioning(["region"])
    table.append(last)
    tier(table)
    rows = by_id(OLD, more, NEW, last)
    check(rows)
    metadata = lake.catalog.load_table("sales.orders").metadata
    assert [[f.name for f in spec.fields] for spec in metadata.partition_specs] == [["region"], ["n"]]
    assert metadata.default_spec_id == 0, "the spec that comes back is the one that there was"
    assert lake.rows() == rows


@only_iceberg
def test_files_bucketed_by_another_column_are_not_pruned(wh, lake, store, world):
    opened = bucketed_iceberg(store, world)
    with opened.update_spec() as update:
        update.remove_field("id_bucket")
    with opened.update_spec() as update:
        update.add_field("n", BucketTransform(4), "n_bucket")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    assert table.properties.bucket_key == ("n",)
    for row in OLD:
        assert rows_of(table.to_arrow(filter=[("n", "=", row["n"])])) == [row]


def test_maintenance_keeps_adopted_files_and_rows(table, lake, clock):
    old = set(table.lake.files()["file_path"].to_pylist())
    for i in range(200, 207):
        table.append(some([i]))
        tier(table)
    compacted = table.lake.compact()
    assert (compacted.files_removed, compacted.rows) == (7, 7)
    if lake.format == "iceberg":
        table.lake.rewrite_manifests()
    clock.advance(3 * DAY_MS)
    assert len(table.lake.expire_snapshots(retain_last=1).snapshots) > 8
    table.maintain()
    assert table.lake.remove_orphan_files() == []
    files = table.lake.files().select(["file_path", "record_count"]).to_pylist()
    assert sorted((f["file_path"] in old, f["record_count"]) for f in files) == [(False, 7), (True, 2), (True, 4)]
    agree(table, lake, OLD, some(range(200, 207)))


def test_an_adopted_table_is_not_cloned(wh, table):
    with pytest.raises(InvalidOptionError, match="the adopted rows are not in its log"):
        wh.clone_table(table.name, "sales.cloned")


def test_a_lake_table_is_adopted_under_another_name(wh, lake):
    lake.make(OLD, name="sales.legacy")
    wh.adopt_table("sales.orders", "sales.legacy", properties={"comment": "adopted", "bucket.num": "2"})
    table = wh.table("sales.orders")
    assert (table.properties.comment, table.num_buckets) == ("adopted", 2)
    table.append(NEW)
    tier(table)
    agree(table, lake, OLD, NEW, name="sales.legacy")
    if lake.format == "iceberg":
        assert not lake.catalog.table_exists("sales.orders")


def test_generated_columns_of_adopted_rows_are_rejected(wh, lake):
    lake.make(OLD)
    with pytest.raises(InvalidOptionError, match="create a new table with them and copy the rows"):
        wh.adopt_table("sales.orders", properties={"table.generated.n": "length(region)"})
    assert "sales.orders" not in wh.tables("sales")


def test_a_lake_table_without_snapshots_is_adopted(wh, lake):
    lake.make()
    assert wh.adopt_table("sales.orders").snapshot_id is None
    table = wh.table("sales.orders")
    assert table.state.properties[ADOPTED] == "empty"
    agree(table, lake)
    table.truncate()
    table.append(NEW)
    tier(table)
    agree(table, lake, NEW)


@only_iceberg
def test_rows_deleted_before_the_adoption_stay_deleted(wh, lake):
    lake.make(OLD)
    lake.catalog.load_table("sales.orders").delete("id = 2")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    table.append(NEW)
    tier(table)
    agree(table, lake, OLD[:2], OLD[3:], NEW)


def test_columns_are_added_after_those_of_the_lake(table):
    table.add_columns("note STRING")
    table.append([{"id": 50, "note": "new"}])
    tier(table)
    rows = rows_of(table.to_arrow())
    assert [row["note"] for row in rows] == [None] * 6 + ["new"]
    assert rows == rows_of(table.lake.to_arrow())


def test_partitions_of_adopted_rows_are_dropped(wh, lake):
    lake.make(OLD, layout="by day")
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    table.append(NEW)
    tier(table)
    table.append(some([200, 201]))
    table.drop_partition({"day": dt.date(2026, 1, 1)})
    tier(table)
    agree(table, lake, OLD[1::2], NEW[1::2], some([201]))


def test_rows_that_another_engine_appends_later_are_read(table, lake):
    lake.append(some([50, 51]))
    table.append(NEW)
    tier(table)
    agree(table, lake, OLD, some([50, 51]), NEW)


def test_a_dry_run_changes_nothing(wh, lake, store):
    lake.make(OLD)
    before = {info.key: store.read(info.key) for info in store.list("")}
    report = wh.adopt_table("sales.orders", dry_run=True)
    assert (report.rows, report.schema, report.buckets, report.primary_key) == (6, lake.columns, 1, ())
    assert {info.key: store.read(info.key) for info in store.list("")} == before


def test_a_dry_run_without_a_warehouse_names_the_missing_table(world):
    nowhere = Warehouse("x", storage=MemoryStorage(world, name="elsewhere"), world=world)
    with pytest.raises(LakeMismatchError, match=r"no Iceberg table a\.b"):
        nowhere.adopt_table("a.b", dry_run=True)


@pytest.mark.parametrize("name", LAKES)
def test_a_warehouse_is_made_around_a_lake(store, world, tmp_path, name):
    LAKES[name](store, world, tmp_path).make(OLD, name="legacy.orders")
    warehouse = Warehouse("wh", storage=store, world=world)
    assert warehouse.adopt_table("sales.orders", "legacy.orders", dry_run=True).rows == 6
    with pytest.raises(WarehouseNotFoundError, match="found lake"):
        warehouse.create_table("sales.orders", "id INT")
    with pytest.raises(WarehouseNotFoundError):
        warehouse.tables()
    warehouse.adopt_table("sales.orders", "legacy.orders")
    assert rows_of(warehouse.table("sales.orders").to_arrow()) == OLD


@pytest.mark.paimon
def test_one_of_two_lake_tables_is_named_by_its_format(wh, store, world, tmp_path):
    LAKES["paimon"](store, world, tmp_path).make(OLD)
    LAKES["iceberg"](store, world, tmp_path).make(NEW)
    with pytest.raises(InvalidOptionError, match=r"choose the table with table\.datalake\.format"):
        wh.adopt_table("sales.orders")
    wh.adopt_table("sales.a", "sales.orders", properties={"table.datalake.format": " Paimon"})
    wh.adopt_table("sales.b", "sales.orders", properties={"table.datalake.format": "iceberg"})
    assert rows_of(wh.table("sales.a").to_arrow()) == OLD
    assert rows_of(wh.table("sales.b").to_arrow()) == NEW


# -- what has no offset -----------------------------------------------------------------------------------------------


def test_reads_by_offset_require_to_start_after_the_adopted_rows(table):
    table.append(NEW)
    for target in (
        lambda: resolve_stream_target(table, None, StreamReadOptions()),
        lambda: resolve_batch_target(table, None, ReadOptions(include_metadata=True)),
        lambda: resolve_batch_target(table, None, ReadOptions(ending_timestamp_ms=1)),
    ):
        with pytest.raises(InvalidOptionError, match="startingOffsets=earliest"):
            target()
    assert resolve_stream_target(table, None, StreamReadOptions(starting_offsets=EARLIEST)).kind == "range"
    assert resolve_stream_target(table, "changelog", StreamReadOptions()).kind == "range"
    assert resolve_batch_target(table, None, ReadOptions()).kind == "union"
    changes = open_view(table, "changelog").to_arrow()
    assert rows_of(changes.select(table.schema.names)) == NEW


def test_time_travel_reads_the_past_of_the_lake(table, wh, clock):
    adopted, (first, *_) = int(table.state.properties[ADOPTED]), table.lake.snapshots()["snapshot_id"].to_pylist()
    clock.advance(60_000)
    table.append(NEW)
    tier(table)
    assert rows_of(table.lake.to_arrow(as_of_snapshot=adopted)) == OLD
    assert rows_of(table.lake.to_arrow(as_of_snapshot=first)) == OLD[:4]
    assert rows_of(table.to_arrow(as_of_timestamp_ms=table.state.created_ms)) == OLD
    with pytest.raises(OffsetsTrimmedError, match="was created from a lake table later"):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


@pytest.mark.parametrize("empties", [lambda t: t.truncate(), lambda t: t.overwrite(NEW)], ids=["truncate", "overwrite"])
@pytest.mark.parametrize("is_appended", [True, False])
def test_a_truncation_removes_adopted_rows(table, lake, empties, is_appended):
    """No offset shows it if no row was ever appended."""
    agree(table, lake, OLD)
    before = table.log.state
    if is_appended:
        table.append(some([50]))
    written = empties(table)
    if not is_appended:
        assert table.state.first_offsets == dict.fromkeys(table.state.buckets, 1)
        assert written is None or all(offsets.start == 1 for offsets in written.values())
    assert not table.state.begins_at(before.first_offsets)
    assert table.state.lake is None
    left = [row for row in NEW if row in table.to_arrow().to_pylist()]
    assert table.to_arrow().num_rows == len(left)
    tier(table)
    agree(table, lake, left)
    assert open_records(table) == open_checkpoint(table) == table.refresh()
    empties(table)
    assert table.to_arrow().num_rows == len(left)


def open_records(table):
    return Warehouse("wh", storage=table.storage, world=table.world).table(table.name).refresh()


def open_checkpoint(table):
    table.log.checkpoint(table.refresh())
    return open_records(table)


# -- one lake, one table ----------------------------------------------------------------------------------------------


def test_a_dropped_table_leaves_its_lake_table_to_be_adopted_again(table, wh, lake, clock):
    table.append(NEW)
    tier(table)
    wh.drop_table("sales.orders")
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    assert lake.rows() == by_id(OLD, NEW)
    lake.require_nobodys()
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    again.append(some([500]))
    tier(again)
    agree(again, lake, OLD, NEW, some([500]))


def test_a_lake_table_is_adopted_again_before_its_dropped_table_is_cleaned(table, wh, lake, clock):
    """Cleaning then leaves the new table alone, and offsets of the old one are void."""
    table.append(NEW)
    tier(table)
    tiered = table.lake.newest().id
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    agree(again, lake, OLD, NEW)
    assert rows_of(again.lake.to_arrow(as_of_snapshot=tiered)) == by_id(OLD, NEW)
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    again.append(some([500]))
    tier(again)
    again.maintain()
    again.lake.expire_snapshots(retain_last=1)
    again.lake.remove_orphan_files()
    agree(again, lake, OLD, NEW, some([500]))
    with pytest.raises(LakeMismatchError, match="belongs to table"):
        table.lake.newest()


def test_a_lake_table_has_one_table(table, wh, lake):
    with pytest.raises(LakeMismatchError, match=r"is the lake of table sales\.orders"):
        wh.adopt_table("sales.second", "sales.orders")
    lake.set_property(TABLE_UUID_PROPERTY, "f" * 32)
    with pytest.raises(LakeMismatchError, match="which is not in this warehouse"):
        wh.adopt_table("sales.second", "sales.orders")


def test_a_new_table_does_not_take_a_lake_table_with_rows(wh, lake):
    lake.make(OLD)
    properties = {"table.datalake.format": lake.format}
    table = wh.create_table("sales.orders", "id BIGINT NOT NULL, region STRING, day DATE, n INT", properties=properties)
    table.append(NEW)
    with pytest.raises(LakeMismatchError, match="adopt_table"):
        tier(table)
    assert rows_of(table.to_arrow()) == NEW
    assert lake.rows() == OLD


def change_property(lake):
    lake.set_property("snapshot.num-retained.min", "5")


def append_rows(lake):
    lake.append(NEW)


BEFORE_CLAIM = "streamhouse_spark.warehouse.adoption.put_first_record"
IN_CLAIM = "streamhouse_spark.lake.paimon.adoption.commit_snapshot"


@pytest.mark.parametrize(
    ("lake", "call", "change"),
    [
        pytest.param("iceberg", BEFORE_CLAIM, append_rows, id="iceberg-append-before the claim"),
        pytest.param("paimon", BEFORE_CLAIM, append_rows, id="paimon-append-before the claim"),
        pytest.param("paimon", BEFORE_CLAIM, change_property, id="paimon-schema-before the claim"),
        pytest.param("paimon", IN_CLAIM, append_rows, id="paimon-append-between its two files"),
        pytest.param("paimon", IN_CLAIM, change_property, id="paimon-schema-between its two files"),
    ],
    indirect=["lake"],
)
def test_a_lake_table_that_changes_concurrently_is_not_adopted(wh, lake, monkeypatch, call, change):
    lake.make(OLD)
    original = pkgutil.resolve_name(call)

    def late(*arguments):
        if call == IN_CLAIM:
            change(lake)
        result = original(*arguments)
        if call == BEFORE_CLAIM:
            change(lake)
        return result

    monkeypatch.setattr(call, late)
    with pytest.raises(CommitConflictError, match="adopt it again"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    monkeypatch.undo()
    wh.adopt_table("sales.orders")
    agree(wh.table("sales.orders"), lake, OLD, NEW if change is append_rows else [])


# -- what is rejected -------------------------------------------------------------------------------------------------


@only_iceberg
@pytest.mark.parametrize(
    ("schema", "spec", "properties", "words"),
    [
        (ICEBERG_COLUMNS, PartitionSpec(), {"format-version": "1"}, "format version is 1, expected 2"),
        (
            Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1]),
            PartitionSpec(),
            {},
            "identifier fields id, but no primary_key is given",
        ),
        (Schema(NestedField(1, "at", TimeType())), PartitionSpec(), {}, "'at' of the lake table has type time"),
        (Schema(NestedField(1, "u", UUIDType())), PartitionSpec(), {}, "'u' of the lake table has type uuid"),
        (
            Schema(
                NestedField(1, "a", StructType(NestedField(2, "b", ListType(3, LongType(), element_required=True))))
            ),
            PartitionSpec(),
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
            ICEBERG_COLUMNS,
            PartitionSpec(
                PartitionField(7, 1000, BucketTransform(4), "b"), PartitionField(9, 1001, IdentityTransform(), "r")
            ),
            {},
            r"partitioned by \[bucket\[4\]\(id\), identity\(region\)\]",
        ),
    ],
    ids=["v1", "identifier", "time", "uuid", "nested", "void", "order"],
)
def test_an_iceberg_table_that_does_not_fit_is_rejected(wh, lake, store, schema, spec, properties, words):
    properties = {"format-version": "2", **properties}
    lake.catalog.create_table("sales.orders", schema, partition_spec=spec, properties=properties)
    before = sorted(info.key for info in store.list(""))
    with pytest.raises(LakeMismatchError, match=words):
        wh.adopt_table("sales.orders")
    assert sorted(info.key for info in store.list("")) == before
    assert not wh.exists("sales.orders")


@pytest.mark.paimon
def test_a_missing_paimon_table_is_named(wh, store, world, tmp_path):
    LAKES["iceberg"](store, world, tmp_path).make(OLD)
    with pytest.raises(LakeMismatchError, match=r"there is no Paimon table at .*/sales\.db/orders to adopt"):
        wh.adopt_table("sales.orders", properties={"table.datalake.format": "paimon"})


@only_iceberg
def test_invalid_arguments_are_rejected(wh, lake):
    lake.make(OLD)
    with pytest.raises(LakeMismatchError, match=r"there is no Iceberg table sales\.absent"):
        wh.adopt_table("sales.orders", "sales.absent")
    with pytest.raises(LakeMismatchError, match="'n' of the primary key is optional, expected required"):
        wh.adopt_table("sales.orders", primary_key=["n"])
    with pytest.raises(InvalidOptionError, match="expected a list of names"):
        wh.adopt_table("sales.orders", primary_key="id")
    for properties, words in (
        ({"table.datalake.format": "parquet"}, "expected iceberg or paimon"),
        ({"table.datalake.enabled": "false"}, "expected true for an adopted lake table"),
        ({"bucket.key": "id"}, "has no bucket"),
        ({ADOPTED: "5"}, "reserved for adopted lake tables"),
        ({"table.x": "x"}, "unknown table property"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            wh.adopt_table("sales.orders", properties=properties)
    with pytest.raises(InvalidOptionError, match="reserved for adopted lake tables"):
        wh.create_table("sales.other", "id INT", properties={ADOPTED: "5"})
    with pytest.raises(InvalidNameError):
        wh.adopt_table("sales.orders$lake")
    wh.create_table("sales.taken", "id INT")
    with pytest.raises(TableExistsError):
        wh.adopt_table("sales.taken", "sales.orders")
    assert lake.catalog.load_table("sales.orders").properties.get(TABLE_UUID_PROPERTY) is None
    assert wh.tables() == ["sales.taken"]


@only_iceberg
def test_an_iceberg_table_with_another_location_is_rejected(wh, lake, store):
    lake.catalog.create_table("sales.orders", ICEBERG_COLUMNS, location=f"{store.url}/lake/other/place")
    with pytest.raises(LakeMismatchError, match="was moved or copied"):
        wh.adopt_table("sales.orders")
