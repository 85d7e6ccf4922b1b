"""Spark is told to read exactly the pinned rows, whatever happens to the table meanwhile."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

import streamhouse_spark.lake.parquet.file_writer as data_file
from streamhouse_spark import (
    CorruptDataError,
    InvalidNameError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    TableNotFoundError,
    Warehouse,
)
from streamhouse_spark.datasource.scan import arrow_reader as hot_reader
from streamhouse_spark.datasource.scan import input_splits
from streamhouse_spark.datasource.scan import query_snapshot as pins
from streamhouse_spark.datasource.scan.scan import load_source
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.read import split_planning as pieces
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.datasource.scan.filter_trees import literal
from unit.datasource.scan.scans import Scans, gone, native_rows, tier

SCHEMA = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("v", pa.float64()), ("n", pa.int16())])


def some_rows(start: int, end: int) -> list[dict]:
    return [{"id": i, "dt": f"a b/{i % 2}%é", "v": i / 3, "n": i % 100} for i in range(start, end)]


def ids(planned) -> list[int]:
    return sorted(row["id"] for row in planned.rows())


@pytest.fixture
def wh(warehouse_path) -> Warehouse:
    return Warehouse(warehouse_path)


@pytest.fixture
def orders(wh):
    """Rows 0 to 199 in the lake, 200 to 249 in the log."""
    table = wh.create_table(
        "sales.orders", SCHEMA, partition_by=["dt"], properties={"bucket.num": "4", "bucket.key": "id"}
    )
    table.append(some_rows(0, 200))
    tier(table)
    table.append(some_rows(200, 250))
    return table


@pytest.fixture
def plain(wh):
    """As ``orders``, in one bucket without a key: a lake table that pyiceberg alone can write."""
    table = wh.create_table("sales.plain", SCHEMA)
    table.append(some_rows(0, 200))
    tier(table)
    table.append(some_rows(200, 250))
    return table


@pytest.fixture
def other_process(connection, monkeypatch) -> Scans:
    """A planner process that has seen nothing yet."""
    monkeypatch.setattr(pins, "_STATE_CACHE", pins._StateCache())
    return Scans(Connection.of(connection.location, {"storage.other": "1"}))


def forget(monkeypatch) -> None:
    monkeypatch.setattr(pins, "_STATE_CACHE", pins._StateCache())


def test_a_name_as_it_is_loaded(orders, scans):
    loaded = scans.load("sales.orders")
    assert (loaded["kind"], loaded["name"], loaded["uuid"]) == ("table", "sales.orders", orders.uuid)
    assert loaded["buckets"] == {"count": 4, "key": ["id"]}
    assert loaded["partition_columns"] == ["dt"]
    assert loaded["rows"] == 250
    assert loaded["bytes"] > 0
    assert [f["name"] for f in json.loads(loaded["schema"])["fields"]] == SCHEMA.names
    assert [(m["name"], m["type"]) for m in loaded["metadata_columns"]] == [
        ("_bucket", '"integer"'),
        ("_log_offset", '"long"'),
        ("_commit_timestamp", '"timestamp"'),
        ("_row_id", '"long"'),
    ]
    orders.append(some_rows(250, 251))
    assert scans.load("sales.orders")["version"] != loaded["version"]


def test_the_union_is_every_row_once(orders, scans):
    planned = scans.plan(scans.load("sales.orders"))
    assert sorted(planned.rows(), key=lambda r: r["id"]) == some_rows(0, 250)
    assert planned.native
    assert planned["hot"]
    assert planned["rows"] == 250
    assert planned["bytes"] > 0


def test_columns_in_the_order_that_was_asked(orders, scans):
    planned = scans.plan(scans.load("sales.orders"), ["v", "id"])
    assert planned.table().column_names == ["v", "id"]
    assert ids(planned) == list(range(250))


def test_rows_without_columns_are_counted(orders, scans):
    planned = scans.plan(scans.load("sales.orders"), [], native_schemes=[])
    assert sum(t.num_rows for group in planned.hot() for t in group) == 250


def test_hot_groups_of_a_keyed_scan_hold_one_bucket(orders, scans):
    planned = scans.plan(scans.load("sales.orders"), ["id"])
    assert planned["keyed"]
    for group, tables in zip(planned["hot"], planned.hot(), strict=True):
        for one in tables:
            assert set(iceberg_buckets(one["id"], 4)) == {group["bucket"]}
    for group in planned.native:
        for file in group["files"]:
            assert set(iceberg_buckets(native_rows(file, planned.arrow)["id"], 4)) == {group["bucket"]}
    assert {g["bucket"] for g in (*planned["native"], *planned["hot"])} == {0, 1, 2, 3}


def test_a_bucket_without_rows_has_a_group(wh, scans):
    table = wh.create_table("sales.one", SCHEMA, properties={"bucket.num": "8", "bucket.key": "id"})
    table.append(some_rows(1, 2))
    planned = scans.plan(scans.load("sales.one"))
    assert planned["keyed"]
    assert sorted(g["bucket"] for g in (*planned["native"], *planned["hot"])) == list(range(8))
    assert len(planned["hot"]) == 1
    assert ids(planned) == [1]


def test_a_filter_that_leaves_one_bucket_needs_no_groups_of_the_others(wh, scans):
    table = wh.create_table("sales.many", SCHEMA, properties={"bucket.num": "4", "bucket.key": "id"})
    table.append(some_rows(0, 40))
    tier(table)
    loaded, pushed = scans.load("sales.many"), [{"op": "=", "children": [{"column": ["id"]}, literal("n", 7)]}]
    assert len(scans.plan(loaded).native) == 4
    planned = scans.plan(loaded, filters=pushed)
    assert (len(planned["native"]), planned["hot"], planned["keyed"]) == (1, [], False)
    assert 7 in ids(planned)
    planned = scans.plan(loaded, filters=pushed, stays_keyed=True)
    assert (len(planned["native"]), planned["keyed"]) == (4, True), "Spark counts on the groups of the plan before"
    assert 7 in ids(planned)


def test_without_a_bucket_key_nothing_is_keyed(wh, scans):
    wh.create_table("sales.keyless", SCHEMA, properties={"bucket.num": "4"}).append(some_rows(0, 5))
    loaded = scans.load("sales.keyless")
    assert loaded["buckets"] is None
    assert not scans.plan(loaded)["keyed"]


def test_equality_on_the_bucket_key_reads_one_bucket(orders, scans):
    pushed = {"op": "IN", "children": [{"column": ["id"]}, literal("n", 7)]}
    planned = scans.plan(scans.load("sales.orders"), ["id"], filters=[pushed])
    buckets = {g["bucket"] for g in planned.native} | {g["bucket"] for g in planned["hot"]}
    assert len(buckets) == 1
    assert 7 in ids(planned)


def test_partition_values_prune_files(orders, scans):
    pushed = {"op": "=", "children": [{"column": ["dt"]}, literal("s", "a b/1%é")]}
    planned = scans.plan(scans.load("sales.orders"), ["id", "dt"], filters=[pushed])
    assert {file["path"].split("/data/")[1].split("/")[0] for g in planned.native for file in g["files"]} == {
        "dt%3Da%2Bb%252F1%2525%25C3%25A9"
    }
    assert set(range(1, 250, 2)) <= set(ids(planned))


def test_a_limit_stops_planning(orders, scans):
    loaded = scans.load("sales.orders")
    assert 3 <= len(scans.plan(loaded, ["id"], limit=3).rows()) < 250
    assert len(scans.plan(loaded, ["id"], limit=1000).rows()) == 250
    pushed = {"op": ">", "children": [{"column": ["id"]}, literal("n", 240)]}
    assert set(range(241, 250)) <= set(ids(scans.plan(loaded, ["id"], limit=3, filters=[pushed])))


# -- pins -------------------------------------------------------------------------------------------------------------


def test_a_pin_outlives_commits_merges_and_rounds(orders, scans):
    loaded = scans.load("sales.orders")
    before = ids(scans.plan(loaded))
    for i in range(3):
        orders.append(some_rows(300 + i, 301 + i))
    compact_inline_rows(orders)
    tier(orders)
    orders.truncate()
    assert ids(scans.plan(loaded)) == before == list(range(250))
    assert ids(scans.plan(scans.load("sales.orders"))) == []


def test_another_process_plans_the_same_pin(orders, scans, other_process):
    loaded = scans.load("sales.orders")
    for i in range(50):  # over a checkpoint
        orders.append(some_rows(300 + i, 301 + i))
    tier(orders)
    assert ids(other_process.plan(loaded)) == list(range(250))


def test_a_scan_of_a_dropped_table_fails(orders, wh, scans, other_process):
    loaded = scans.load("sales.orders")
    wh.drop_table("sales.orders")
    with pytest.raises(TableNotFoundError):
        scans.load("sales.orders")
    with pytest.raises(TableNotFoundError):
        other_process.plan(loaded)


def test_a_version_is_the_number_of_a_commit(orders, scans):
    (version,) = [c for c in orders.inspect.commits().to_pylist() if c["rows_added"] == 200]
    orders.append(some_rows(250, 260))
    assert ids(scans.plan(scans.load("sales.orders", version=str(version["commit"])))) == list(range(200))
    for text in ("0", "999", "main", "-1"):
        with pytest.raises(InvalidOptionError):
            scans.load("sales.orders", version=text)


def test_an_old_commit_whose_records_are_gone(orders, scans, monkeypatch):
    from streamhouse_spark.log.checkpoint import write_checkpoint
    from streamhouse_spark.log.low_watermark import write_low_watermark

    for i in range(60):
        orders.append(some_rows(300 + i, 301 + i))
    state = orders.refresh()
    write_checkpoint(orders.storage, state)
    write_low_watermark(orders.storage, orders.uuid, 1, state.version)
    forget(monkeypatch)
    with pytest.raises(SnapshotExpiredError, match="as of commit 3"):
        scans.load("sales.orders", version="3")
    assert scans.load("sales.orders", version=str(state.version))


def test_a_deleted_segment_is_an_error_and_never_fewer_rows(wh, scans, tmp_path):
    table = wh.create_table("sales.big", SCHEMA, properties={"table.datalake.enabled": "false"})
    table.append(pa.Table.from_pylist(some_rows(0, 20_000), schema=SCHEMA))
    loaded = scans.load("sales.big")
    planned = scans.plan(loaded)
    for path in Path(table.storage.url, "tables", table.uuid, "segments").iterdir():
        path.unlink()
    with pytest.raises(CorruptDataError, match="missing"):
        planned.rows()


def test_a_scan_as_of_a_time_has_its_rows(orders, scans):
    time_ms = orders.state.time_ms
    orders.append(some_rows(250, 260))
    loaded = scans.load("sales.orders", timestamp_us=time_ms * 1000)
    assert set(ids(scans.plan(loaded))) >= set(range(250))
    as_of = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat()
    assert set(ids(scans.plan(scans.load("sales.orders"), options={"asOfTimestamp": as_of}))) >= set(range(250))


@pytest.mark.parametrize("change", ["added", "renamed", "commented"])
def test_a_time_shows_the_columns_of_then(orders, scans, change):
    """In SQL, and by the option where the options say it before the name is loaded."""
    time_ms = orders.state.time_ms
    time.sleep(0.01)
    if change == "added":
        orders.add_columns("late INT")
    elif change == "renamed":
        orders.rename_column("v", "w")
    else:
        orders.alter(comments={"v": "a value"})
    as_of = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat()
    given = {"asOfTimestamp": as_of, "path": "sales.orders"}
    loaded = scans.load("sales.orders", timestamp_us=time_ms * 1000)
    by_option = load_source(scans.connection, {"options": {**given, "warehouse": orders.storage.url}})
    for found, options in ((loaded, {}), (by_option, {"asOfTimestamp": as_of})):
        assert [f["name"] for f in json.loads(found["schema"])["fields"]] == SCHEMA.names
        assert ids(scans.plan(found, options=options)) == list(range(250))
    newest = scans.load("sales.orders")
    if change == "commented":
        assert ids(scans.plan(newest, options={"asOfTimestamp": as_of})) == list(range(250))
        return
    with pytest.raises(SchemaMismatchError, match="was loaded with the current columns"):
        scans.plan(newest, options={"asOfTimestamp": as_of})


def expire(table, snapshot_id: int) -> None:
    table.open_lake().binding.load().maintenance.expire_snapshots().by_id(snapshot_id).commit()


def test_a_scan_reads_its_rows_after_another_engine_expired_the_snapshot(orders, scans):
    """The newest snapshot and the pinned log are the same rows."""
    loaded = scans.load("sales.orders")
    chosen = scans.load("sales.orders", version=str(orders.state.version))
    pinned = orders.state.lake.snapshot_id
    tier(orders)
    expire(orders, pinned)
    assert ids(scans.plan(loaded)) == ids(scans.plan(chosen)) == list(range(250))


def test_an_expired_snapshot_where_the_lake_went_on(orders, scans):
    loaded = scans.load("sales.orders")
    chosen = scans.load("sales.orders", version=str(orders.state.version))
    pinned = orders.state.lake.snapshot_id
    orders.append(some_rows(250, 300))
    tier(orders)
    expire(orders, pinned)
    assert ids(scans.plan(loaded)) == list(range(300))  # the newest state is all that can be had
    with pytest.raises(SnapshotExpiredError):
        scans.plan(chosen)


def test_a_snapshot_that_nothing_can_stand_in_for(orders, scans):
    loaded = scans.load("sales.orders$lake")
    pinned = orders.state.lake.snapshot_id
    tier(orders)
    expire(orders, pinned)
    with pytest.raises(SnapshotExpiredError):
        scans.plan(loaded)
    assert len(scans.rows("sales.orders$lake")) == 250


def test_a_lake_that_no_longer_says_what_it_holds(plain, scans):
    loaded = scans.load("sales.plain")
    place = plain.open_lake().binding
    place.load().overwrite(place.load().scan().to_arrow())
    with place.load().manage_snapshots() as change:
        change.remove_tag("__streamhouse_lake_tiering")
    expire(plain, plain.state.lake.snapshot_id)
    with pytest.raises(SnapshotExpiredError):
        scans.plan(loaded)


# -- the lake alone ---------------------------------------------------------------------------------------------------


def test_the_lake_alone_is_native(orders, scans):
    loaded = scans.load("sales.orders$lake")
    planned = scans.plan(loaded)
    assert (loaded["kind"], loaded["metadata_columns"], planned["hot"]) == ("lake", [], [])
    assert ids(planned) == list(range(200))


def test_a_scan_of_the_lake_before_the_first_round_is_empty(wh, scans):
    wh.create_table("sales.new", SCHEMA)
    loaded = scans.load("sales.new$lake")
    assert scans.plan(loaded).rows() == []


def test_a_scan_of_the_lake_takes_snapshots_tags_and_times(orders, scans):
    first = orders.state.lake.snapshot_id
    orders.open_lake().binding.load().manage_snapshots().create_tag(first, "month-end").commit()
    tier(orders)
    assert len(scans.rows("sales.orders$lake")) == 250
    for version in (str(first), "month-end"):
        assert ids(scans.plan(scans.load("sales.orders$lake", version=version))) == list(range(200))
    assert len(scans.rows("sales.orders$lake", options={"asOfLakeSnapshot": str(first)})) == 200
    with pytest.raises(SnapshotExpiredError, match="no tag or branch"):
        scans.load("sales.orders$lake", version="year-end")
    with pytest.raises(SnapshotExpiredError):
        scans.load("sales.orders$lake", version="12345")


def test_renamed_and_dropped_columns_are_read_by_id(orders, scans):
    with orders.open_lake().binding.load().update_schema() as change:
        change.rename_column("n", "m")
    planned = scans.plan(scans.load("sales.orders$lake"), ["id", "n"])
    assert not planned.native
    assert ids(planned) == list(range(200))
    assert scans.plan(scans.load("sales.orders$lake"), ["id", "v"]).native


def test_files_with_deleted_rows_are_native_where_spark_leaves_rows_out(plain, scans):
    plain.delete(where=[("id", "<", 20)])
    tier(plain)
    plain.delete(where=[("id", "=", 25)])
    tier(plain)
    kept = [n for n in range(20, 250) if n != 25]
    loaded = scans.load("sales.plain$lake")
    planned = scans.plan(loaded, drops_rows=True)
    assert sorted(len(file["deletes"]) for group in planned.native for file in group["files"]) == [0, 1]
    assert not planned["hot"]
    assert ids(planned) == kept
    assert ids(scans.plan(loaded, drops_rows=True, limit=235)) == kept
    without = scans.plan(loaded, drops_rows=False)
    assert all(not file["deletes"] for group in without.native for file in group["files"])
    assert without["hot"]
    assert ids(without) == kept
    assert not scans.plan(loaded, drops_rows=True, native_schemes=[]).native


class TestDeletionsThatTheLakeLacks:
    """Rows of lake files that are deleted in the log alone."""

    def test_spark_leaves_them_out(self, plain, scans):
        plain.delete(where=[("id", "in", [3, 4, 150, 199, 230])])
        kept = [n for n in range(250) if n not in (3, 4, 150, 199, 230)]
        loaded = scans.load("sales.plain")
        planned = scans.plan(loaded, drops_rows=True)
        [file] = [file for group in planned.native for file in group["files"]]
        assert gone(file) == [3, 4, 150, 199]
        assert all(len(group) == 1 for group in planned.hot())  # the log
        assert ids(planned) == kept
        assert ids(scans.plan(loaded, drops_rows=True, limit=246)) == kept
        assert scans.aggregate(loaded, ("count_star", None)) == [245]
        assert scans.aggregate(loaded, ("max", "id")) is None
        for without in (scans.plan(loaded, drops_rows=False), scans.plan(loaded, drops_rows=True, native_schemes=[])):
            assert not without.native
            assert ids(without) == kept

    def test_beside_those_that_it_has(self, plain, scans):
        plain.delete(where=[("id", "<", 20)])
        tier(plain)
        plain.delete(where=[("id", "in", [21, 199, 249])])
        kept = [n for n in range(20, 250) if n not in (21, 199, 249)]
        loaded = scans.load("sales.plain")
        planned = scans.plan(loaded, drops_rows=True)
        found = [(len(file["deletes"]), gone(file)) for group in planned.native for file in group["files"]]
        assert sorted(found) == [(0, [49]), (1, [21, 199])]
        assert not planned["hot"]
        assert ids(planned) == kept
        assert ids(scans.plan(loaded, drops_rows=False)) == kept
        assert scans.aggregate(loaded, ("count_star", None)) is None  # another engine may have deleted some of them
        tier(plain)
        assert scans.aggregate(scans.load("sales.plain"), ("count_star", None)) == [len(kept)]

    def test_other_files_of_the_bucket_stay_as_they_are(self, plain, scans):
        tier(plain)
        plain.delete(where=[("id", "=", 7)])
        planned = scans.plan(scans.load("sales.plain"))
        assert [file["deleted_positions"] for group in planned.native for file in group["files"]] == [None]
        assert planned["hot"]
        assert ids(planned) == [n for n in range(250) if n != 7]

    def test_files_whose_offsets_have_gaps_are_left_to_python(self, wh, scans):
        """As of a partition: only the footer tells the position of an offset."""
        table = wh.create_table("sales.parts", SCHEMA, partition_by=["dt"])
        table.append(some_rows(0, 100))
        tier(table)
        table.append(some_rows(100, 200))
        tier(table)
        table.delete(where=[("id", "in", [8, 9, 11])])
        kept = [n for n in range(200) if n not in (8, 9, 11)]
        planned = scans.plan(scans.load("sales.parts"), drops_rows=True)
        assert sorted(len(group) for group in planned["hot"]) == [1]
        assert sum(len(group["files"]) for group in planned.native) == 2  # of the rows from 100 on
        assert ids(planned) == kept
        assert scans.aggregate(scans.load("sales.parts"), ("count_star", None)) is None

    def test_a_name_says_nothing_of_a_file_outside_of_the_lake(self, wh, plain, scans):
        """Nor does its place among those of a clone: the lake that it came from has them."""
        wh.clone_table("sales.plain", "sales.cloned")
        cloned = wh.table("sales.cloned")
        cloned.delete(where=[("id", "=", 3)])
        planned = scans.plan(scans.load("sales.cloned"), drops_rows=True)
        assert not planned.native
        assert ids(planned) == [n for n in range(250) if n != 3]


def test_deletes_of_several_files_are_left_to_python(plain, scans, monkeypatch):
    """Another engine writes such: a task would read all of it for each of its files."""
    plain.delete(where=[("id", "<", 20)])
    tier(plain)
    monkeypatch.setattr("streamhouse_spark.lake.iceberg.scan.is_only_of", lambda *_: False)
    planned = scans.plan(scans.load("sales.plain$lake"), drops_rows=True)
    assert planned["hot"]
    assert ids(planned) == list(range(20, 250))


def test_rewritten_files_of_another_engine(plain, scans):
    plain.open_lake().binding.load().delete("id < 10")
    planned = scans.plan(scans.load("sales.plain$lake"))
    assert ids(planned) == list(range(10, 200))


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_hidden_columns_of_every_row(orders, scans):
    planned = scans.plan(scans.load("sales.orders"), ["_log_offset", "id", "_bucket", "_commit_timestamp"])
    assert not planned.native
    rows = planned.rows()
    assert sorted(r["id"] for r in rows) == list(range(250))
    places = [(r["_bucket"], r["_log_offset"]) for r in rows]
    ends = orders.state.ends
    assert sorted(places) == [(b, o) for b in range(4) for o in range(ends[b])]
    assert all((r["_commit_timestamp"] is None) == (r["id"] < 200) for r in rows)


def test_a_scan_of_hidden_columns_alone_has_all_rows(orders, scans):
    rows = scans.rows("sales.orders", ["_bucket"])
    assert len(rows) == 250


def test_hidden_columns_of_files_of_another_engine_are_null(plain, scans):
    plain.open_lake().binding.load().delete("id < 10")  # rewrites the file
    rows = scans.rows("sales.plain$lake", options={}) and scans.rows("sales.plain", ["id", "_log_offset", "_bucket"])
    assert sorted(r["id"] for r in rows) == list(range(250))  # the log's own snapshot
    snapshot = {"asOfLakeSnapshot": str(plain.lake.newest().id)}
    rows = scans.rows("sales.plain", ["id", "_log_offset", "_bucket"], options=snapshot)
    assert sorted(r["id"] for r in rows) == list(range(10, 200))
    assert {(r["_log_offset"], r["_bucket"]) for r in rows} == {(None, None)}


def test_a_branch_reads_no_lake_snapshot_of_its_table(plain, scans):
    seen = str(plain.state.lake.snapshot_id)
    plain.create_branch("audit")
    tier(plain)
    newer = str(plain.refresh().lake.snapshot_id)
    name = "sales.plain$branch_audit"
    assert len(scans.rows(name, options={"asOfLakeSnapshot": seen})) == 200
    assert len(scans.rows("sales.plain", options={"asOfLakeSnapshot": newer})) == 250
    with pytest.raises(InvalidOptionError, match=f"snapshot {newer} from the lake of its table"):
        scans.rows(name, options={"asOfLakeSnapshot": newer})
    with pytest.raises(InvalidOptionError, match="reading the lake alone"):
        scans.load(f"{name}$lake")


# -- changelog, views, options ----------------------------------------------------------------------------------------


def test_a_changelog_scan_has_every_change(orders, scans):
    loaded = scans.load("sales.orders$changelog")
    rows = scans.plan(loaded).rows()
    assert loaded["kind"] == "changelog"
    assert sorted(r["id"] for r in rows) == list(range(250))
    assert {r["_change_type"] for r in rows} == {"insert"}


def test_a_changelog_is_filtered_by_the_kind_of_change(catalog, scans):
    catalog.create("sales", "people", "id bigint, n int", primary_key=["id"])
    people = scans.connection.table("sales.people")
    people.upsert([{"id": 1, "n": 0}])
    people.upsert([{"id": 1, "n": 1}])
    people.delete([1])
    for kind in ("insert", "update_before", "update_after", "delete"):
        wanted = {"op": "=", "children": [{"column": ["_change_type"]}, {"literal": kind, "type": '"string"'}]}
        found = scans.rows("sales.people$changelog", ["_change_type"], filters=[wanted])
        assert {"_change_type": kind} in found


@pytest.mark.parametrize(
    "suffix", ["buckets", "segments", "commits", "schemas", "options", "tiering", "lake$snapshots"]
)
def test_system_views_are_scanned_without_time_travel(orders, scans, suffix):
    loaded = scans.load(f"sales.orders${suffix}")
    assert loaded["kind"] == "view"
    assert scans.plan(loaded).rows()
    with pytest.raises(InvalidOptionError, match="AS OF"):
        scans.load(f"sales.orders${suffix}", version="1")


def test_a_scan_between_offsets_has_exactly_their_rows(orders, scans):
    ends = orders.state.ends
    options = {"startingOffsets": '{"0": 3, "1": -1, "2": -1, "3": -1}', "endingOffsets": '{"0": 7}'}
    rows = scans.rows("sales.orders", ["id", "_bucket", "_log_offset"], options=options)
    assert sorted((r["_bucket"], r["_log_offset"]) for r in rows) == [(0, o) for o in range(3, 7)]
    assert ends[0] > 7


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sales.orders", {"readChangeFeed": "true"}, r"sales.orders\$changelog"),
        ("sales.orders", {"includeMetadata": "true"}, "_log_offset"),
        ("sales.orders", {"maxOffsetsPerTrigger": "3"}, "readStream"),
        ("sales.orders", {"startingOfsets": "earliest"}, "startingOffsets"),
        ("sales.orders$lake", {"startingOffsets": "earliest"}, "omit them"),
        ("sales.orders$buckets", {"asOfTimestamp": "2024-01-01T00:00:00Z"}, "as of"),
        ("sales.orders$changelog", {"asOfTimestamp": "2024-01-01T00:00:00Z"}, "endingTimestamp"),
    ],
)
def test_options_that_cannot_be(orders, scans, name, options, says):
    with pytest.raises(InvalidOptionError, match=says):
        scans.plan(scans.load(name), options=options)


def test_unknown_names_and_suffixes_are_rejected(orders, scans):
    with pytest.raises(TableNotFoundError):
        scans.load("sales.nothing")
    with pytest.raises(InvalidNameError, match=r"\$changelog"):
        scans.load("sales.orders$nothing")


def test_trimmed_ranges_without_a_lake_are_an_error(wh, scans):
    from streamhouse_spark.log.actions import Trim

    table = wh.create_table("sales.short", SCHEMA, properties={"table.datalake.enabled": "false"})
    table.append(some_rows(0, 10))
    table.append(some_rows(10, 20))
    table.log.commit(lambda *_: (Trim({0: 10}),))
    loaded = scans.load("sales.short")
    assert ids(scans.plan(loaded)) == list(range(10, 20))
    options = {"startingOffsets": '{"0": 5}'}
    with pytest.raises(OffsetsTrimmedError):
        scans.plan(loaded, options=options)
    assert ids(scans.plan(loaded, options={**options, "failOnDataLoss": "false"})) == list(range(10, 20))


def test_the_lake_folder_is_gone(orders, scans):
    loaded = scans.load("sales.orders")
    shutil.rmtree(Path(orders.storage.url, "lake"))
    with pytest.raises(CorruptDataError, match=r"is missing, .*retier"):
        scans.plan(loaded)


# -- groups -----------------------------------------------------------------------------------------------------------


def test_large_parts_are_cut_and_small_ones_packed(wh, scans, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 10_000)
    monkeypatch.setattr(pieces, "TARGET_BYTES_MIN", 20_000)
    monkeypatch.setattr(pieces, "OPENING_BYTES", 0)
    table = wh.create_table("sales.large", SCHEMA, properties={"bucket.num": "1"})
    for i in range(20):
        table.append(pa.Table.from_pylist(some_rows(10_000 * i, 10_000 * i + 10_000), schema=SCHEMA))
    whole = scans.plan(scans.load("sales.large"), parallelism=8)
    assert 8 <= len(whole["hot"]) <= 20
    tier(table)
    planned = scans.plan(scans.load("sales.large"), parallelism=8)
    assert len(planned.native) > 2
    assert any(file["start"] for group in planned.native for file in group["files"])
    assert ids(whole) == ids(planned) == list(range(200_000))
    assert whole["rows"] == planned["rows"] == 200_000
    assert scans.plan(scans.load("sales.large"), ["n"], parallelism=8)["bytes"] < planned["bytes"] / 2


def test_many_rows_in_few_bytes_keep_all_cores_at_work(wh, scans, monkeypatch):
    monkeypatch.setattr(input_splits, "_NATIVE_ROWS_MIN", 2_000)
    table = wh.create_table("sales.narrow", "id BIGINT, s STRING", properties={"bucket.num": "4", "bucket.key": "id"})
    table.append(pa.table({"id": range(20_000), "s": ["alike"] * 20_000}))
    tier(table)
    assert len(scans.plan(scans.load("sales.narrow"), ["s"], parallelism=2).native) == 2, "one a core"
    with monkeypatch.context() as patch:
        patch.setattr(input_splits, "_ONE_TASK_BYTES_MAX", 0)
        assert len(scans.plan(scans.load("sales.narrow"), ["s"], parallelism=2).native) == 4, "two a core"
    table.append([{"id": i, "s": "hot"} for i in range(20_000, 20_100)])
    planned = scans.plan(scans.load("sales.narrow"), ["s"], parallelism=2)
    assert planned["bytes"] < 1 << 20
    assert (len(planned.native), len(planned["hot"])) == (2, 1), "a task of Python costs more than so few rows"
    monkeypatch.setattr(input_splits, "_NATIVE_ROWS_MIN", 20_000)
    assert len(scans.plan(scans.load("sales.narrow"), ["s"], parallelism=2).native) == 1


def test_wide_rows_come_in_streams_of_a_size_that_fits(wh, scans, monkeypatch):
    monkeypatch.setattr(hot_reader, "STREAM_BYTES_MAX", 1 << 16)
    table = wh.create_table("sales.wide", pa.schema([("id", pa.int64()), ("s", pa.string())]))
    table.append([{"id": i, "s": "x" * 5000} for i in range(100)])
    streams = [t for group in scans.plan(scans.load("sales.wide")).hot() for t in group]
    assert all(t.nbytes <= 1 << 16 for t in streams)
    assert [i for t in streams for i in t["id"].to_pylist()] == list(range(100))


NAME = "sales.orders"
BIG = 2**40


@pytest.fixture
def altered_table(warehouse_path):
    properties = {"bucket.num": "4", "bucket.key": "k", "table.statistics.columns": "*"}
    return Warehouse(warehouse_path).create_table(NAME, "k int, v int, s string", properties=properties)


def rows_of(planned) -> list[tuple]:
    return sorted(tuple(row.values()) for row in planned.rows())


def equals(column: str, value: int) -> dict:
    return {"op": "=", "children": [{"column": [column]}, literal("i", value)]}


def test_spark_reads_files_itself_only_where_names_and_types_never_moved(altered_table, scans):
    altered_table.append([{"k": i, "v": i, "s": f"s{i}"} for i in range(20)])
    tier(altered_table)
    assert scans.plan(scans.load(NAME)).native
    altered_table.alter(rename_columns={"v": "w"}, widen_columns={"v": "bigint"}, add_columns="v string")
    tier(altered_table)
    for columns, is_native in ((["k", "s"], True), (["w"], False), (["v"], False), (["k", "v"], False)):
        planned = scans.plan(scans.load(NAME), columns)
        assert bool(planned.native) == is_native, columns
        assert len(planned.rows()) == 20
    assert rows_of(scans.plan(scans.load(NAME), ["k", "w", "v"])) == [(i, i, None) for i in range(20)]
    altered_table.append([{"k": 99, "w": BIG, "v": "new", "s": "x"}])
    tier(altered_table)
    assert rows_of(scans.plan(scans.load(NAME), ["w", "v"]))[-1] == (BIG, "new")


def test_an_older_commit_is_read_by_its_own_columns_and_buckets(altered_table, scans):
    """The bucket key of now is another column of then."""
    altered_table.append([{"k": i, "v": 100 + i, "s": "x"} for i in range(20)])
    tier(altered_table)
    then = altered_table.refresh().version
    altered_table.alter(rename_columns={"k": "v", "v": "k"}, drop_columns=["s"])
    altered_table.append([{"v": 50, "k": 150}])
    tier(altered_table)
    old = scans.load(NAME, version=str(then))
    assert old["buckets"]["key"] == ["k"]
    assert scans.load(NAME)["buckets"]["key"] == ["v"]
    for schemes in (["file"], []):
        for i in range(20):
            planned = scans.plan(old, ["k", "v", "s"], filters=[equals("v", 100 + i)], native_schemes=schemes)
            assert (i, 100 + i, "x") in rows_of(planned)
            planned = scans.plan(old, ["k", "v"], filters=[equals("k", i)], native_schemes=schemes)
            assert (i, 100 + i) in rows_of(planned)
    assert rows_of(scans.plan(scans.load(NAME), ["v", "k"])) == [*((i, 100 + i) for i in range(20)), (50, 150)]


def test_a_scan_maps_moved_columns_after_its_snapshot_expired(altered_table, scans):
    altered_table.append([{"k": 1, "v": 2, "s": "x"}])
    tier(altered_table)
    loaded = scans.load(NAME)
    pinned = altered_table.state.lake.snapshot_id
    altered_table.alter(rename_columns={"k": "v", "v": "k"})
    altered_table.append([{"k": 3, "v": 4, "s": "y"}])
    tier(altered_table)
    altered_table.open_lake().binding.load().maintenance.expire_snapshots().by_id(pinned).commit()
    with pytest.raises((SchemaMismatchError, SnapshotExpiredError), match="run the query again"):
        scans.plan(loaded)
    assert rows_of(scans.plan(scans.load(NAME), ["k", "v"])) == [(2, 1), (3, 4)]
