"""The Iceberg lake of one table: what is written is what is read, on any storage."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.types import LongType, StringType

import streamhouse_spark.lake.bucket_files as write
import streamhouse_spark.lake.data_file as data_file
from interop.lake_cases import (
    EVENTS,
    EVERY_TYPE,
    PLAIN,
    TABLE_UUID,
    batches_from,
    by_bucket,
    event_rows,
    every_type_rows,
    lake_of,
    sorted_rows,
    tier,
    write_round,
)
from streamhouse_spark.errors import (
    CorruptDataError,
    InvalidNameError,
    InvalidOptionError,
    LakeMismatchError,
    SchemaMismatchError,
    SnapshotExpiredError,
)
from streamhouse_spark.lake import scan_files
from streamhouse_spark.lake.base import COMMIT_USER, LakeFile, LakePlan, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.lake.iceberg import IcebergLake
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.schema import TableSchema
from streamhouse_spark.storage_local import LocalStorage


def _plain_rows(first: int, num_rows: int) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _read(lake: IcebergLake, plan: LakePlan | None = None) -> pa.Table:
    return lake.to_arrow(plan or lake.plan_read())


# -- create, adopt, refuse --------------------------------------------------------------------------------------------


def test_nothing_exists_before_it_is_created(store):
    lake = lake_of(store)
    assert not lake.exists()
    assert lake.newest() is None
    plan = lake.plan_read(columns=["name"])
    assert plan.snapshot is None
    assert _read(lake, plan).schema.names == ["name"]
    for use in (
        lambda: lake.plan_read(snapshot_id=7),
        lambda: lake.snapshot(7),
        lambda: lake.snapshot_by_name("main"),
        lambda: lake.snapshot_as_of(0),
    ):
        with pytest.raises(SnapshotExpiredError, match="no lake table yet"):
            use()
    with pytest.raises(LakeMismatchError, match="has no lake table"):
        lake.write_context()
    for name in lake.metadata_table_names():
        assert lake.metadata_table(name).num_rows == 0
    assert (lake.compact().rows, lake.expire(keep_last=1, keep_ms=0).snapshots) == (0, ())
    assert lake.remove_orphans() == []
    lake.drop(purge=True)
    assert not store.list("lake/")


def test_created_as_the_design_says(store):
    lake = lake_of(store, EVENTS, partition_by=["day", "region"], bucket_key="id", num_buckets=4)
    lake.create_or_adopt()
    metadata = lake.place.load().metadata
    assert metadata.format_version == 2
    assert [f.name for f in metadata.schema().fields] == ["id", "day", "region", "amount"]
    assert [f.required for f in metadata.schema().fields] == [True, False, False, False]
    assert [(f.name, str(f.transform)) for f in metadata.spec().fields] == [
        ("day", "identity"),
        ("region", "identity"),
        ("id_bucket", "bucket[4]"),
    ]
    assert lake.newest() is None
    lake.create_or_adopt()


def test_several_bucket_keys_are_refused(store):
    from streamhouse_spark.lake.iceberg import LakeTableSpec
    from streamhouse_spark.model import TablePath

    spec = LakeTableSpec(TABLE_UUID, TablePath("a", "b"), "lake/a/b", EVENTS, (), ("id", "region"), 2)
    with pytest.raises(LakeMismatchError, match="2 bucket keys"):
        IcebergLake(store, spec)


def test_a_compatible_table_is_adopted_with_its_rows(store):
    lake = lake_of(store)
    lake.create_or_adopt()
    table = lake.place.load()
    table.transaction().remove_properties("streamhouse.table-uuid").commit_transaction()
    lake.place.load().append(_plain_rows(100, 3).cast(table.schema().as_arrow()))
    with pytest.raises(LakeMismatchError, match="belongs to nobody"):
        lake.newest()
    lake.create_or_adopt()
    newest = lake.newest()
    assert newest is not None
    assert newest.offsets == {}
    tier(lake, _plain_rows(0, 2))
    assert sorted(_read(lake)["id"].to_pylist()) == [0, 1, 100, 101, 102]


def test_an_incompatible_table_is_refused_with_the_difference(store):
    lake_of(store, TableSchema.of("id int, extra string, name string not null"), partition_by=["id"]).create_or_adopt()
    with pytest.raises(LakeMismatchError) as caught:
        lake_of(store).create_or_adopt()
    text = str(caught.value)
    for difference in (
        "column 'id' is int, expected long",
        "column 'name' is required, expected optional",
        "column 'extra' is not in the table",
        "partitioned by [identity(id)], expected []",
    ):
        assert difference in text


def test_another_tables_lake_is_refused(store):
    tier(lake_of(store), _plain_rows(0, 1))
    other = lake_of(store, table_uuid="f" * 32)
    for use in (other.create_or_adopt, other.newest, other.write_context):
        with pytest.raises(LakeMismatchError, match="belongs to table 0123"):
            use()


def test_a_dropped_place_is_not_taken_again(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 1))
    lake.drop(purge=False)
    assert not lake.exists()
    with pytest.raises(LakeMismatchError, match="dropped"):
        lake.create_or_adopt()


# -- round trips ------------------------------------------------------------------------------------------------------


def test_every_type_partitioned_and_bucketed(store):
    lake = lake_of(store, EVERY_TYPE, partition_by=["a_short"], bucket_key="id", num_buckets=4)
    rows = every_type_rows(60)
    tier(lake, by_bucket(rows, "id", 4))
    plan = lake.plan_read()
    read = _read(lake, plan)
    assert read.schema.equals(EVERY_TYPE.arrow)
    assert sorted_rows(read) == sorted_rows(rows)
    assert plan.num_rows == 60
    split_rows = [b for split in plan.splits for b in lake.read_split(split, plan.projection)]
    assert sorted_rows(pa.Table.from_batches(split_rows)) == sorted_rows(rows)


@pytest.mark.parametrize("name", EVERY_TYPE.names[1:14])
def test_partitioned_by_a_column_of_each_type(memory, name):
    lake = lake_of(memory, EVERY_TYPE, partition_by=[name])
    rows = every_type_rows(25)
    tier(lake, rows)
    assert sorted_rows(_read(lake)) == sorted_rows(rows)
    partitions = {tuple(d["partition"].values()) for d in lake.metadata_table("files").to_pylist()}
    assert len(partitions) == len(set(rows[name].to_pylist()))
    expected = list(batches_from(0, rows))
    assert pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, 25))]).equals(
        pa.Table.from_batches([b for _, b in expected])
    )


def test_null_bucket_keys_go_to_the_null_bucket(store):
    lake = lake_of(store, EVENTS, bucket_key="region", num_buckets=3)
    rows = event_rows(60, null_keys=True)
    tier(lake, by_bucket(rows, "region", 3))
    assert sorted_rows(_read(lake)) == sorted_rows(rows)
    nulls = pc.sum(rows["region"].is_null()).as_py()
    files = lake.metadata_table("files").to_pylist()
    assert sum(f["record_count"] for f in files if f["partition"]["region_bucket"] is None) == nulls
    assert lake.place.load().scan(row_filter="region is null").to_arrow().num_rows == nulls


def test_offsets_commit_user_and_tag_are_in_the_snapshot(store):
    lake = lake_of(store)
    first = tier(lake, _plain_rows(0, 5))
    second = tier(lake, _plain_rows(5, 3))
    assert (first.offsets, second.offsets) == ({0: 5}, {0: 8})
    metadata = lake.place.load().metadata
    summary = metadata.snapshot_by_id(second.id).summary
    assert summary["commit-user"] == COMMIT_USER
    assert summary["streamhouse-offsets"] == f'{{"version":1,"table_uuid":"{TABLE_UUID}","offsets":{{"0":8}}}}'
    assert (summary["total-records"], summary["total-data-files"]) == ("8", "2")
    assert metadata.refs[COMMIT_USER].snapshot_id == second.id
    assert lake.newest() == second
    assert lake.snapshot(first.id) == first


def test_a_round_without_news_commits_nothing(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 5))
    before = lake.newest()
    assert lake.commit([], expected={0: 5}, new={0: 5}, context=lake.write_context()) is None
    assert lake.newest() == before


def test_rows_that_do_not_add_up_are_not_committed(store):
    lake = lake_of(store)
    lake.create_or_adopt()
    files, new = write_round(lake, {0: _plain_rows(0, 5)}, {})
    for offsets in ({0: 6}, {0: 5, 1: 1}):
        with pytest.raises(ValueError, match="rows for an advance"):
            lake.commit(files, expected={}, new=offsets, context=lake.write_context())
    with pytest.raises(ValueError, match="rows for an advance"):
        lake.commit([], expected={}, new=new, context=lake.write_context())


@pytest.mark.parametrize("offsets", [OffsetRange(0, 4), OffsetRange(0, 6), OffsetRange(1, 6)])
def test_batches_that_do_not_cover_the_range_are_corrupt(store, offsets):
    lake = lake_of(store)
    lake.create_or_adopt()
    with pytest.raises(CorruptDataError, match="rows continue at offset"):
        lake.write_files(lake.write_context(), 0, offsets, batches_from(0, _plain_rows(0, 5)))


def test_values_travel_as_json(store):
    lake = lake_of(store, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2)
    lake.create_or_adopt()
    context = WriteContext.from_json(lake.write_context().to_json())
    rows = by_bucket(event_rows(20), "id", 2)
    files = lake.write_files(context, 0, OffsetRange(0, rows[0].num_rows), batches_from(0, rows[0]))
    assert [LakeFile.from_json(f.to_json()) for f in files] == files
    lake.commit(files, expected={}, new={0: rows[0].num_rows}, context=context)
    plan = lake.plan_read()
    assert LakeProjection.from_json(plan.projection.to_json()) == plan.projection
    assert tuple(LakeSplit.from_json(s.to_json()) for s in plan.splits) == plan.splits


def test_files_roll_and_stay_in_offset_order(memory, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 20)
    lake = lake_of(memory, target_file_bytes=1)
    tier(lake, _plain_rows(0, 95))
    files = sorted(lake.metadata_table("files")["file_path"].to_pylist())
    assert len(files) == 5
    ids = [pq.read_table(memory_file(memory, f))["id"].to_pylist() for f in files]
    assert [i for part in ids for i in part] == list(range(95))


def memory_file(memory, location: str) -> pa.BufferReader:
    return pa.BufferReader(memory.read(location.removeprefix(memory.url + "/")))


@pytest.mark.parametrize(
    "limits",
    [
        {"BUFFERED_BYTES_MAX": 500},
        {"BUFFERED_BYTES_MAX": 500, "OPEN_FILES_MAX": 3},
        {"BUFFERED_BYTES_MAX": 0, "OPEN_FILES_MAX": 1},
        {"PARTITIONS_MAX": 4},
        {"ROW_GROUP_ROWS_MAX": 2, "OPEN_FILES_MAX": 2},
    ],
    ids=str,
)
def test_many_partitions_within_any_limits(memory, monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(data_file if name.startswith("ROW") else write, name, value)
    schema = TableSchema.of("id bigint, p int")
    lake = lake_of(memory, schema, partition_by=["p"])
    rows = pa.table(
        {"id": range(200), "p": pa.array([i * 7 % 11 for i in range(200)], pa.int32())}, schema=schema.arrow
    )
    tier(lake, rows)
    assert sorted_rows(_read(lake)) == sorted_rows(rows)
    got = pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, 200))])
    assert got.to_pylist() == rows.to_pylist()


# -- reading ----------------------------------------------------------------------------------------------------------


def test_columns_predicates_and_filter(store):
    lake = lake_of(store)
    for i in range(4):
        tier(lake, _plain_rows(10 * i, 10))
    plan = lake.plan_read(columns=["name", "id"], predicates=[("id", ">=", 30), ("name", "not null", None)])
    assert len(plan.splits) == 1
    read = lake.to_arrow(plan, filter=pc.field("id") > 37)
    assert read.schema.names == ["name", "id"]
    assert read["id"].to_pylist() == [38, 39]
    assert [len(lake.plan_read(predicates=[p]).splits) for p in [("id", "in", [1, 25]), ("id", "is null", None)]] == [
        2,
        0,
    ]
    with pytest.raises(SchemaMismatchError, match="nme"):
        lake.plan_read(columns=["nme"])


def test_predicates_that_cannot_prune_leave_it_to_the_rows(store):
    lake = lake_of(store)
    first = tier(lake, _plain_rows(0, 3))
    tier(lake, _plain_rows(3, 3))
    for predicate in [("id", "=", "not a number"), ("unknown", ">", 1), ("name", "in", [1, 2])]:
        assert len(lake.plan_read(predicates=[predicate]).splits) == 2
    with pytest.raises(InvalidOptionError, match="like"):
        lake.plan_read(predicates=[("name", "like", "n%")])
    with lake.place.load().update_schema() as update:
        update.rename_column("id", "number")
    assert len(lake.plan_read(snapshot_id=first.id, predicates=[("id", ">", 1)]).splits) == 1
    assert lake.plan_read(snapshot_id=first.id, predicates=[("id", ">", 2)]).splits == ()


def test_earlier_snapshots_by_id_and_by_time(store, clock, world):
    lake = lake_of(store, world=world)
    first = tier(lake, _plain_rows(0, 2))
    clock.advance(1_000)
    second = tier(lake, _plain_rows(2, 2))
    assert _read(lake, lake.plan_read(snapshot_id=first.id)).num_rows == 2
    assert lake.snapshot_as_of(second.timestamp_ms).id == second.id
    with pytest.raises(SnapshotExpiredError, match="choose a later time"):
        lake.snapshot_as_of(first.timestamp_ms - 1)
    with pytest.raises(SnapshotExpiredError, match="has no snapshot 5"):
        lake.plan_read(snapshot_id=5)
    assert lake.snapshot_by_name(COMMIT_USER) == second
    with pytest.raises(SnapshotExpiredError, match="no tag or branch 'x'"):
        lake.snapshot_by_name("x")


def test_columns_added_renamed_and_dropped_in_the_lake(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 2))
    with lake.place.load().update_schema() as update:
        update.add_column("added", LongType())
        update.rename_column("name", "title")
    schema = TableSchema.of("id bigint, title string, added bigint, unknown int")
    plan = lake.plan_read(schema=schema)
    assert _read(lake, plan).to_pylist() == [
        {"id": i, "title": f"n{i}", "added": None, "unknown": None} for i in range(2)
    ]
    with lake.place.load().update_schema() as update:
        update.delete_column("title")
        update.add_column("title", StringType())
    assert _read(lake, lake.plan_read(schema=schema))["title"].to_pylist() == [None, None]


def test_only_columns_that_the_file_lacks(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 3))
    with lake.place.load().update_schema() as update:
        update.add_column("added", LongType())
    plan = lake.plan_read(columns=["added"])
    assert _read(lake, plan)["added"].to_pylist() == [None] * 3


def test_large_files_are_read_in_parts(memory, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 10)
    lake = lake_of(memory)
    tier(lake, _plain_rows(0, 95))
    monkeypatch.setattr(scan_files, "SPLIT_BYTES_TARGET", 500)
    plan = lake.plan_read()
    assert len(plan.splits) > 2
    assert not any(split.is_plain for split in plan.splits)
    ids = [i for s in plan.splits for b in lake.read_split(s, plan.projection) for i in b["id"].to_pylist()]
    assert ids == list(range(95))
    assert _read(lake, plan)["id"].to_pylist() == ids


def test_rows_that_another_engine_deleted_by_position_are_gone(store, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 14)
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 40))
    plan = lake.plan_read()
    (split,) = plan.splits
    files = lake.place.files_at(split.location)
    location = split.location.replace(".parquet", "-deletes.parquet")
    with files.create(location) as sink:
        buffer = pa.BufferOutputStream()
        positions = pa.array([0, 9, 14, 25, 39], pa.int64())
        pq.write_table(pa.table({"file_path": [split.location] * 5, "pos": positions}), buffer)
        sink.write(buffer.getvalue())
    kept = [i for i in range(40) if i not in (0, 9, 14, 25, 39)]
    for groups in (None, (1, 3)):
        part = LakeSplit(split.location, split.size_bytes, 40, groups, (location,))
        ids = [i for b in lake.read_split(part, plan.projection) for i in b["id"].to_pylist()]
        assert ids == [i for i in kept if groups is None or 14 <= i < 42]


def test_a_read_of_files_that_were_expired_says_so(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 2))
    plan = lake.plan_read()
    for info in store.list("lake/"):
        if info.key.endswith(".parquet"):
            store.delete(info.key)
    with pytest.raises(SnapshotExpiredError, match="run the query again"):
        lake.to_arrow(plan)


@pytest.mark.parametrize("kind", ["/metadata/v", "/metadata/snap-", "-m0.avro"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_files_are_errors(tmp_path, kind, damage):
    store = LocalStorage(str(tmp_path), fsync=False)
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 200))
    (*_, key) = sorted(info.key for info in store.list("lake/") if kind in info.key)
    whole = store.read(key)
    for at in range(3, len(whole) - 4, max(1, len(whole) // 25)):
        flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        store.put(key, whole[:at] if damage == "cut" else flipped)
        clear_manifest_cache()
        try:
            plan = lake.plan_read()
            assert sum(b.num_rows for split in plan.splits for b in lake.read_split(split, plan.projection)) == 200
        except (CorruptDataError, SnapshotExpiredError, LakeMismatchError):
            continue
        assert damage == "flipped"


def test_no_flipped_byte_of_a_data_file_gives_other_rows(memory):
    lake = lake_of(memory)
    rows = _plain_rows(0, 200)
    tier(lake, rows)
    (key,) = [info.key for info in memory.list("lake/") if info.key.endswith(".parquet")]
    whole = memory.read(key)
    plan = lake.plan_read()
    (split,) = plan.splits
    detected = 0
    for at in range(len(whole)):
        memory.put(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read = pa.Table.from_batches(list(lake.read_split(split, plan.projection)))
        except CorruptDataError:
            detected += 1
            continue
        assert read.equals(rows), at
    assert detected > len(whole) // 2


def test_a_lake_of_another_table_is_never_dropped(store):
    lake = lake_of(store)
    tier(lake, _plain_rows(0, 3))
    for purge in (False, True):
        lake_of(store, table_uuid="f" * 32).drop(purge=purge)
    assert _read(lake).num_rows == 3
    lake.drop(purge=False)
    lake_of(store, table_uuid="f" * 32).drop(purge=True)
    assert len(store.list("lake/")) > 1
    lake.drop(purge=True)
    assert len(store.list("lake/")) == 1


def test_metadata_tables(store):
    lake = lake_of(store, EVENTS, partition_by=["day"])
    tier(lake, event_rows(10))
    tier(lake, event_rows(10, seed=1))
    for name in lake.metadata_table_names():
        table = lake.metadata_table(name)
        assert not any(pa.types.is_large_string(t) or pa.types.is_large_binary(t) for t in table.schema.types), name
    assert lake.metadata_table("snapshots")["snapshot_id"].to_pylist()[-1] == lake.newest().id
    assert set(lake.metadata_table("refs")["name"].to_pylist()) == {"main", COMMIT_USER}
    with pytest.raises(InvalidNameError, match="did you mean snapshots"):
        lake.metadata_table("snapshot")


def test_metadata_tables_of_every_type(memory):
    lake = lake_of(memory, EVERY_TYPE)
    tier(lake, every_type_rows(10))
    for name in lake.metadata_table_names():
        lake.metadata_table(name).to_pylist()


def test_metadata_tables_of_a_table_without_snapshots(store):
    lake = lake_of(store)
    lake.create_or_adopt()
    for name in lake.metadata_table_names():
        assert lake.metadata_table(name).num_rows == (1 if name == "metadata_log_entries" else 0), name


def test_pyiceberg_prunes_by_bucket_and_partition(store):
    lake = lake_of(store, EVENTS, partition_by=["region"], bucket_key="id", num_buckets=8)
    rows = event_rows(80)
    tier(lake, by_bucket(rows, "id", 8))
    wanted = rows["id"][3].as_py()
    found = lake.place.load().scan(row_filter=EqualTo("id", wanted))
    assert len(list(found.plan_files())) <= 3
    assert found.to_arrow().num_rows == pc.sum(pc.equal(rows["id"], wanted)).as_py()
