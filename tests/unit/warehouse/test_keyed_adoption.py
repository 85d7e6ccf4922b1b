"""An Iceberg table that was there becomes a table with a primary key: changes, lookups and streams know its rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from interop.lake_cases import by_bucket, lake_of
from interop.lake_cases import tier as tier_by_hand
from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.datasource.read.start_rows import begins_with_rows, initial_offset, start_files
from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError
from streamhouse_spark.kv import adopted_rows
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.offsets import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.tiering import tier_table
from streamhouse_spark.table.views import open_view

OLD = {i: f"old {i}" for i in range(8)}
SCHEMA = TableSchema.of("id bigint not null, text string")
HOUR_MS = 3600 * 1000


@pytest.fixture(params=["one bucket", "three buckets"])
def lake(request, store, world, wh):
    """An Iceberg table of `OLD` that is nobody's."""
    wh.create_database("sales")
    rows = pa.table({"id": list(OLD), "text": list(OLD.values())}, schema=SCHEMA.arrow)
    if request.param == "one bucket":
        schema = Schema(
            NestedField(1, "id", LongType(), required=True),
            NestedField(2, "text", StringType()),
            identifier_field_ids=[1],
        )
        made = FileCatalog(store, world=world).create_table("sales.orders", schema, properties={"format-version": "2"})
        made.append(rows.slice(5))
        made.append(rows.slice(0, 5))
        return made
    made = lake_of(store, SCHEMA, bucket_key="id", num_buckets=3, world=world)
    tier_by_hand(made, by_bucket(rows, "id", 3))
    with made.place.load().transaction() as transaction:
        transaction.remove_properties(TABLE_UUID_PROPERTY)
    return made.place.load()


@pytest.fixture
def table(own_cache, wh, lake):
    report = wh.adopt_table("sales.orders", primary_key=["id"])
    assert report.rows == 8
    return wh.table("sales.orders")


def rows_of(found: pa.Table) -> dict[int, str]:
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


def tier(table) -> None:
    tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def test_changes_and_lookups_know_the_adopted_rows(table, other_process, monkeypatch, tmp_path):
    assert rows_of(table.to_arrow()) == OLD == rows_of(table.lake.to_arrow())
    assert table.lookup([3, 99])["text"].to_pylist() == ["old 3", None]
    table.upsert([{"id": 3, "text": "new 3"}, {"id": 99, "text": "new 99"}])
    table.delete([5, 77])
    changes = {row["after"]["id"] if row["after"] else row["before"]["id"]: row for row in binlog(table)}
    assert changes[3]["before"] == {"id": 3, "text": "old 3"}
    assert (changes[99]["before"], changes[5]["after"]) == (None, None)
    assert changes[5]["before"] == {"id": 5, "text": "old 5"}
    assert len(changes) == 3
    expected = {**OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(table.lake.to_arrow()) == OLD
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "another host"))
    there = other_process().table("sales.orders")
    assert there.lookup([3, 5, 7])["text"].to_pylist() == ["new 3", None, "old 7"]
    close_tablets()
    tier(table)
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    tier(table)
    assert table.lake.compact().rows in (0, len(expected))
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())


def binlog(table) -> list[dict]:
    return open_view(table, "binlog").to_arrow().select(["before", "after"]).to_pylist()


def test_streams_from_the_beginning_begin_with_the_adopted_rows(table):
    table.upsert([{"id": 0, "text": "new 0"}])
    state = table.refresh()
    options = StreamReadOptions(read_change_feed=True)
    assert begins_with_rows(state, options)
    begin = initial_offset(state, options)
    files = start_files(table, table.state, begin)
    assert sum(file.segments[0].num_rows for file in files) == 8
    assert set(begin.offsets.values()) == {1}


def test_upkeep_trims_and_publishes_as_ever(table, clock):
    for i in range(6):
        table.upsert([{"id": i, "text": f"round {i}"}])
        tier(table)
    clock.advance(10 * 24 * HOUR_MS)
    table.maintain()
    table.lake.expire_snapshots(retain_last=1)
    expected = {**OLD, **{i: f"round {i}" for i in range(6)}}
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    assert table.lookup([7])["text"].to_pylist() == ["old 7"]


def test_it_can_be_truncated_at_once(table):
    table.truncate()
    assert table.to_arrow().num_rows == 0
    assert table.lookup([3])["_found"].to_pylist() == [False]
    table.upsert([{"id": 3, "text": "again"}])
    assert binlog(table) == [{"before": None, "after": {"id": 3, "text": "again"}}]
    tier(table)
    assert rows_of(table.to_arrow()) == {3: "again"} == rows_of(table.lake.to_arrow())


def test_a_key_that_is_there_twice_is_refused(own_cache, wh, store, world):
    wh.create_database("sales")
    lake = FileCatalog(store, world=world).create_table(
        "sales.orders", SCHEMA.arrow, properties={"format-version": "2"}
    )
    for text in ("a", "b"):
        lake.append(pa.table({"id": [100, ord(text)], "text": [text, text]}, schema=SCHEMA.arrow))
    with pytest.raises(LakeMismatchError, match=r"1 rows have a primary key \(id\).*for example {'id': 100}"):
        wh.adopt_table("sales.orders", primary_key=["id"])
    assert not wh.exists("sales.orders")
    assert TABLE_UUID_PROPERTY not in lake.refresh().properties
    lake.delete("text = 'a'")
    wh.adopt_table("sales.orders", primary_key=["id"])
    assert rows_of(wh.table("sales.orders").to_arrow()) == {100: "b", 98: "b"}


def test_the_key_is_the_one_that_other_engines_are_told(own_cache, wh, store, world):
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "no", LongType(), required=True),
        identifier_field_ids=[1],
    )
    wh.create_database("sales")
    FileCatalog(store, world=world).create_table("sales.orders", schema, properties={"format-version": "2"})
    with pytest.raises(LakeMismatchError, match="identifier fields id, and primary_key is id, no"):
        wh.adopt_table("sales.orders", primary_key=["id", "no"])
    with pytest.raises(InvalidOptionError, match=r"bucket\.key"):
        wh.adopt_table("sales.orders", primary_key=["id"], properties={"bucket.key": "id"})
    wh.adopt_table("sales.orders", properties={"primary.key": "id"})
    table = wh.table("sales.orders")
    table.upsert([{"id": 1, "no": 1}, {"id": 1, "no": 2}])
    tier(table)
    assert table.lake.to_arrow().to_pylist() == [{"id": 1, "no": 2}]


def test_rows_of_a_bucket_are_stored_in_parts(own_cache, wh, lake, monkeypatch):
    monkeypatch.setattr(adopted_rows, "SEGMENT_BYTES", 40)
    wh.adopt_table("sales.orders", primary_key=["id"])
    table = wh.table("sales.orders")
    assert max(len(s.segments) for s in table.state.snapshots.values()) > 1
    assert table.lookup(list(OLD))["text"].to_pylist() == list(OLD.values())


def test_rows_of_files_that_do_not_tell_their_bucket(own_cache, wh, store, world):
    """The lake was cut into buckets after these files were written: their rows go by the hash of the key."""
    wh.create_database("sales")
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "text", StringType()))
    catalog = FileCatalog(store, world=world)
    made = catalog.create_table("sales.orders", schema, properties={"format-version": "2"})
    made.append(pa.table({"id": list(OLD), "text": list(OLD.values())}, schema=SCHEMA.arrow))
    with made.update_spec() as update:
        update.add_field("id", BucketTransform(3), "id_bucket")
    assert wh.adopt_table("sales.orders", primary_key=["id"]).rows == 8
    table = wh.table("sales.orders")
    assert (table.num_buckets, table.properties.bucket_key) == (3, ("id",))
    assert table.lookup(list(OLD))["text"].to_pylist() == list(OLD.values())
    table.upsert([{"id": 3, "text": "new 3"}, {"id": 99, "text": "new 99"}])
    table.delete([5])
    expected = {**OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    assert rows_of(table.to_arrow()) == expected
    tier(table)
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    table.lake.compact(purge=True)
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    for number, text in expected.items():
        assert rows_of(table.to_arrow(filter=[("id", "=", number)])) == {number: text}
