"""Adoption of a lake table with a primary key: changes, lookups, streams and later rounds know its rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, LakeMismatchError
from streamhouse_spark.config.spark_options import StreamReadOptions
from streamhouse_spark.datasource.stream.bootstrap import find_bootstrap_files, initial_offset, needs_bootstrap
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.table.system_views import open_view
from unit.warehouse.adopted_lakes import KEYED_OLD, LAKES, keyed_rows

HOUR_MS = 3600 * 1000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def on(*cases):
    """Run a test on lake tables of these pairs of a format and a layout."""
    return pytest.mark.parametrize("lake", [pytest.param(case, id=" ".join(case)) for case in cases], indirect=True)


ICEBERG = [("iceberg", layout) for layout in LAKES["iceberg"].keyed_layouts]
on_both = on(*ICEBERG, ("paimon", "three buckets"), ("paimon", "partitions"))
on_each_layout = on(*ICEBERG, *(("paimon", layout) for layout in LAKES["paimon"].keyed_layouts))
only_iceberg = on(*ICEBERG)


@pytest.fixture
def lake(request, store, world, wh, tmp_path):
    """The lake of a table of `KEYED_OLD` that is nobody's."""
    name, layout = request.param
    wh.create_database("sales")
    lake = LAKES[name](store, world, tmp_path)
    lake.make_keyed(layout)
    return lake


@pytest.fixture
def table(own_cache, wh, lake):
    report = wh.adopt_table("sales.orders", **lake.keyed_options)
    if lake.format == "iceberg":
        assert report.rows == 8
    else:
        assert (report.rows, report.snapshot_id) == (8 + 7 + 6 + 8, 4)
    assert set(report.primary_key) <= {"id", "part"}
    return wh.table("sales.orders")


def texts_of(rows):
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["text"] for row in rows}


def rows_of(rows):
    return texts_of(rows.to_pylist())


def agree(table, lake, expected):
    """Check that the table, its lake and the other engine have exactly these rows."""
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(table.lake.to_arrow()) == expected
    assert texts_of(lake.rows()) == expected


def keys(table, *ids):
    return [{name: row[name] for name in table.state.primary_key} for row in keyed_rows(dict.fromkeys(ids, ""))]


def found(table, *ids):
    return table.lookup(keys(table, *ids))["text"].to_pylist()


def binlog(table):
    return open_view(table, "binlog").to_arrow().select(["before", "after"]).to_pylist()


@on_each_layout
def test_changes_and_lookups_know_the_adopted_rows(table, lake, other_process, monkeypatch, tmp_path):
    agree(table, lake, KEYED_OLD)
    assert found(table, 3, 99) == ["old 3", None]
    table.upsert(keyed_rows({3: "new 3", 99: "new 99"}))
    table.delete(keys(table, 5, 77))
    changes = {(row["after"] or row["before"])["id"]: row for row in binlog(table)}
    assert len(changes) == 3
    assert (changes[3]["before"], changes[99]["before"], changes[5]["after"]) == (*keyed_rows({3: "old 3"}), None, None)
    assert changes[5]["before"] == keyed_rows({5: "old 5"})[0]
    expected = {**KEYED_OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(table.lake.to_arrow()) == KEYED_OLD
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "another host"))
    assert found(other_process().table("sales.orders"), 3, 5, 7) == ["new 3", None, "old 7"]
    close_tablets()
    tier(table)
    agree(table, lake, expected)
    assert table.lake.compact().rows in ((0, len(expected)) if lake.format == "iceberg" else (len(expected),))
    agree(table, lake, expected)
    table.upsert(keyed_rows({5: "back"}))
    tier(table)
    agree(table, lake, {**expected, 5: "back"})


@on_both
def test_streams_from_the_start_begin_with_adopted_rows(table):
    table.upsert(keyed_rows({0: "new 0"}))
    state = table.refresh()
    options = StreamReadOptions(read_change_feed=True)
    assert needs_bootstrap(state, options)
    begin = initial_offset(state, options)
    files = find_bootstrap_files(table, table.state, begin)
    assert sum(segment.num_rows for file in files for segment in file.segments) == 8
    assert {begin.offsets[bucket] for bucket in table.state.snapshots} == {1}


@on_both
def test_maintenance_trims_publishes_and_expires(table, lake, clock):
    for i in range(6):
        table.upsert(keyed_rows({i: f"round {i}"}))
        tier(table)
    clock.advance(10 * 24 * HOUR_MS)
    table.maintain()
    table.lake.expire_snapshots(retain_last=1)
    table.lake.remove_orphan_files()
    expected = {**KEYED_OLD, **{i: f"round {i}" for i in range(6)}}
    agree(table, lake, expected)
    assert found(table, 7) == ["old 7"]
    table.lake.compact()
    clock.advance(10 * 24 * HOUR_MS)
    table.lake.expire_snapshots(retain_last=1)
    agree(table, lake, expected)


@on_both
def test_adopted_rows_are_truncated_before_any_change(table, lake):
    table.truncate()
    assert table.to_arrow().num_rows == 0
    assert table.lookup(keys(table, 3))["_found"].to_pylist() == [False]
    table.upsert(keyed_rows({3: "again"}))
    assert binlog(table) == [{"before": None, "after": keyed_rows({3: "again"})[0]}]
    tier(table)
    agree(table, lake, {3: "again"})


def test_duplicate_keys_are_rejected(own_cache, wh, store, world):
    wh.create_database("sales")
    lake = FileCatalog(store, world=world).create_table("sales.orders", SCHEMA, properties={"format-version": "2"})
    for text in ("a", "b"):
        lake.append(pa.table({"id": [100, ord(text)], "text": [text, text]}, schema=SCHEMA))
    with pytest.raises(
        LakeMismatchError,
        match=r"primary key \(id\) of another row, for example {'id': 100}",
    ):
        wh.adopt_table("sales.orders", primary_key=["id"])
    assert not wh.exists("sales.orders")
    assert TABLE_UUID_PROPERTY not in lake.refresh().properties
    lake.delete("text = 'a'")
    wh.adopt_table("sales.orders", primary_key=["id"])
    assert rows_of(wh.table("sales.orders").to_arrow()) == {100: "b", 98: "b"}


def test_the_key_must_be_the_identifier_fields(own_cache, wh, store, world):
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "no", LongType(), required=True),
        identifier_field_ids=[1],
    )
    wh.create_database("sales")
    FileCatalog(store, world=world).create_table("sales.orders", schema, properties={"format-version": "2"})
    with pytest.raises(LakeMismatchError, match="identifier fields id, but primary_key is id, no"):
        wh.adopt_table("sales.orders", primary_key=["id", "no"])
    with pytest.raises(InvalidOptionError, match=r"bucket\.key"):
        wh.adopt_table("sales.orders", primary_key=["id"], properties={"bucket.key": "id"})
    wh.adopt_table("sales.orders", properties={"primary.key": "id"})
    table = wh.table("sales.orders")
    table.upsert([{"id": 1, "no": 1}, {"id": 1, "no": 2}])
    tier(table)
    assert table.lake.to_arrow().to_pylist() == [{"id": 1, "no": 2}]


@only_iceberg
def test_rows_of_a_bucket_are_stored_in_segments(own_cache, wh, lake, monkeypatch):
    monkeypatch.setattr(kv_snapshots, "SEGMENT_BYTES", 40)
    wh.adopt_table("sales.orders", primary_key=["id"])
    table = wh.table("sales.orders")
    assert max(len(s.segments) for s in table.state.snapshots.values()) > 1
    assert table.lookup(list(KEYED_OLD))["text"].to_pylist() == list(KEYED_OLD.values())


def test_rows_of_unbucketed_files_are_hashed_by_key(own_cache, wh, store, world):
    """The lake was cut into buckets after these files were written: their rows go by the hash of the key."""
    wh.create_database("sales")
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "text", StringType()))
    catalog = FileCatalog(store, world=world)
    made = catalog.create_table("sales.orders", schema, properties={"format-version": "2"})
    made.append(pa.table({"id": list(KEYED_OLD), "text": list(KEYED_OLD.values())}, schema=SCHEMA))
    with made.update_spec() as update:
        update.add_field("id", BucketTransform(3), "id_bucket")
    assert wh.adopt_table("sales.orders", primary_key=["id"]).rows == 8
    table = wh.table("sales.orders")
    assert (table.num_buckets, table.properties.bucket_key) == (3, ("id",))
    assert table.lookup(list(KEYED_OLD))["text"].to_pylist() == list(KEYED_OLD.values())
    table.upsert([{"id": 3, "text": "new 3"}, {"id": 99, "text": "new 99"}])
    table.delete([5])
    expected = {**KEYED_OLD, 3: "new 3", 99: "new 99"}
    del expected[5]
    assert rows_of(table.to_arrow()) == expected
    tier(table)
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    table.lake.compact(purge=True)
    assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    for number, text in expected.items():
        assert rows_of(table.to_arrow(filter=[("id", "=", number)])) == {number: text}
