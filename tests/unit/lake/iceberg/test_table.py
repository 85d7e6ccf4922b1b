"""The Iceberg lake of one table: what is written is what is read, on any storage."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.types import LongType, StringType

import streamhouse_spark.lake.parquet.file_writer as data_file
from interop.lake_cases import (
    EVENTS,
    TABLE_UUID,
    by_bucket,
    event_rows,
    lake_of,
    sorted_rows,
    tier,
)
from streamhouse_spark import LakeMismatchError
from streamhouse_spark.lake import types
from streamhouse_spark.lake.iceberg import scan as lake_files
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.lake.types import COMMIT_USER, LakeSplit
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.maintenance.tiering import tier_table
from unit.lake.filters_of_reads import filter_of
from unit.lake.test_lake_contract import plain_rows, read_rows

# -- create, adopt, refuse --------------------------------------------------------------------------------------------


def test_created_as_the_design_says(store):
    lake = lake_of(store, EVENTS, partition_by=["day", "region"], bucket_key="id", num_buckets=4)
    lake.create_or_evolve()
    metadata = lake.binding.load().metadata
    assert metadata.format_version == 2
    assert [f.name for f in metadata.schema().fields] == ["id", "day", "region", "amount"]
    assert [f.required for f in metadata.schema().fields] == [True, False, False, False]
    assert [(f.name, str(f.transform)) for f in metadata.spec().fields] == [
        ("day", "identity"),
        ("region", "identity"),
        ("id_bucket", "bucket[4]"),
    ]
    assert lake.newest() is None
    lake.create_or_evolve()


def test_several_bucket_keys_are_refused(store):
    from streamhouse_spark.core.types import TablePath
    from streamhouse_spark.lake.table_spec import LakeTableSpec

    spec = LakeTableSpec(TABLE_UUID, TablePath("a", "b"), "lake/a/b", EVENTS, (), ("id", "region"), 2)
    with pytest.raises(LakeMismatchError, match="2 bucket keys"):
        IcebergLake(store, spec)


def test_a_compatible_table_is_taken_if_it_has_no_rows(store):
    lake = lake_of(store)
    lake.create_or_evolve()
    table = lake.binding.load()
    table.transaction().remove_properties("streamhouse.table-uuid").commit_transaction()
    with pytest.raises(LakeMismatchError, match="belongs to nobody"):
        lake.write_context()
    lake.create_or_evolve()
    assert lake.newest() is None
    lake.binding.load().transaction().remove_properties("streamhouse.table-uuid").commit_transaction()
    lake.binding.load().append(plain_rows(100, 3).cast(table.schema().as_arrow()))
    with pytest.raises(LakeMismatchError, match="has rows that"):
        lake.create_or_evolve()
    lake.binding.load().delete("id >= 0")
    lake.create_or_evolve()
    tier(lake, plain_rows(0, 2))
    assert sorted(read_rows(lake)["id"].to_pylist()) == [0, 1]


def test_an_incompatible_table_is_refused_with_the_difference(store):
    lake_of(store, TableSchema.of("id int, extra string, name string not null"), partition_by=["id"]).create_or_evolve()
    with pytest.raises(LakeMismatchError) as caught:
        lake_of(store).create_or_evolve()
    text = str(caught.value)
    for difference in (
        "column 'id' is int, expected long",
        "column 'name' is required, expected optional",
        "column 'extra' is not in the table",
        "partitioned by [identity(id)], expected []",
    ):
        assert difference in text


# -- round trips ------------------------------------------------------------------------------------------------------


def test_null_bucket_keys_go_to_the_null_bucket(store):
    lake = lake_of(store, EVENTS, bucket_key="region", num_buckets=3)
    rows = event_rows(60, null_keys=True)
    tier(lake, by_bucket(rows, "region", 3))
    assert sorted_rows(read_rows(lake)) == sorted_rows(rows)
    nulls = pc.sum(rows["region"].is_null()).as_py()
    files = lake.metadata_table("files").to_pylist()
    assert sum(f["record_count"] for f in files if f["partition"]["region_bucket"] is None) == nulls
    assert lake.binding.load().scan(row_filter="region is null").to_arrow().num_rows == nulls


def test_offsets_commit_user_and_tag_are_in_the_snapshot(store):
    lake = lake_of(store)
    first = tier(lake, plain_rows(0, 5))
    second = tier(lake, plain_rows(5, 3))
    assert (first.offsets, second.offsets) == ({0: 5}, {0: 8})
    metadata = lake.binding.load().metadata
    summary = metadata.snapshot_by_id(second.id).summary
    assert summary["commit-user"] == COMMIT_USER
    assert summary["streamhouse-offsets"] == f'{{"version":1,"table_uuid":"{TABLE_UUID}","offsets":{{"0":8}}}}'
    assert (summary["total-records"], summary["total-data-files"]) == ("8", "2")
    assert metadata.refs[COMMIT_USER].snapshot_id == second.id
    assert set(lake.metadata_table("refs")["name"].to_pylist()) == {"main", COMMIT_USER}
    assert lake.newest() == second
    assert lake.snapshot(first.id) == first


# -- reading ----------------------------------------------------------------------------------------------------------


def test_files_are_found_by_the_id_of_a_column(store):
    lake = lake_of(store)
    first = tier(lake, plain_rows(0, 3))
    tier(lake, plain_rows(3, 3))
    with lake.binding.load().update_schema() as update:
        update.rename_column("id", "number")
    assert (
        len(lake.plan_read(snapshot_id=first.id, node=filter_of(lake.binding.spec.schema, ("id", ">", 1))).splits) == 1
    )
    assert lake.plan_read(snapshot_id=first.id, node=filter_of(lake.binding.spec.schema, ("id", ">", 2))).splits == ()


def test_columns_changed_in_the_lake_by_another_engine_are_followed(store):
    lake = lake_of(store)
    tier(lake, plain_rows(0, 2))
    with lake.binding.load().update_schema() as update:
        update.add_column("added", LongType())
        update.rename_column("name", "title")
    schema = TableSchema.of("id bigint, title string, added bigint, unknown int")
    plan = lake.plan_read(schema=schema)
    assert read_rows(lake, plan).to_pylist() == [
        {"id": i, "title": f"n{i}", "added": None, "unknown": None} for i in range(2)
    ]
    with lake.binding.load().update_schema() as update:
        update.delete_column("title")
        update.add_column("title", StringType())
    # The table has the column still, whose rows are found by its field; the next round says what was done to it.
    assert read_rows(lake, lake.plan_read(schema=schema))["title"].to_pylist() == ["n0", "n1"]
    with pytest.raises(LakeMismatchError, match="was dropped in the lake by another engine"):
        lake.create_or_evolve()


def test_only_columns_that_the_file_lacks(store):
    lake = lake_of(store)
    tier(lake, plain_rows(0, 3))
    with lake.binding.load().update_schema() as update:
        update.add_column("added", LongType())
    plan = lake.plan_read(columns=["added"])
    assert read_rows(lake, plan)["added"].to_pylist() == [None] * 3


def test_large_files_are_read_in_parts(memory, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 10)
    lake = lake_of(memory)
    tier(lake, plain_rows(0, 95))
    monkeypatch.setattr(types, "SPLIT_BYTES_TARGET", 500)
    plan = lake.plan_read()
    assert len(plan.splits) > 2
    assert not any(split.is_plain for split in plan.splits)
    ids = [i for s in plan.splits for b in lake.read_split(s, plan.projection) for i in b["id"].to_pylist()]
    assert ids == list(range(95))
    assert read_rows(lake, plan)["id"].to_pylist() == ids


def test_rows_that_another_engine_deleted_by_position_are_gone(store, monkeypatch):
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS_MAX", 14)
    lake = lake_of(store)
    tier(lake, plain_rows(0, 40))
    plan = lake.plan_read()
    (split,) = plan.splits
    files = lake.binding.files_at(split.location)
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


def test_a_lake_of_another_table_is_never_dropped(store):
    lake = lake_of(store)
    tier(lake, plain_rows(0, 3))
    for purge in (False, True):
        lake_of(store, table_uuid="f" * 32).drop(purge=purge)
    assert read_rows(lake).num_rows == 3
    lake.drop(purge=False)
    lake_of(store, table_uuid="f" * 32).drop(purge=True)
    assert len(store.list("lake/")) > 1
    lake.drop(purge=True)
    assert len(store.list("lake/")) == 1


def test_metadata_tables_of_a_table_without_snapshots_are_empty(store):
    lake = lake_of(store)
    lake.create_or_evolve()
    for name in lake.metadata_tables:
        assert lake.metadata_table(name).num_rows == (1 if name == "metadata_log_entries" else 0), name


def test_pyiceberg_prunes_by_bucket_and_partition(store):
    lake = lake_of(store, EVENTS, partition_by=["region"], bucket_key="id", num_buckets=8)
    rows = event_rows(80)
    tier(lake, by_bucket(rows, "id", 8))
    wanted = rows["id"][3].as_py()
    found = lake.binding.load().scan(row_filter=EqualTo("id", wanted))
    assert len(list(found.plan_files())) <= 3
    assert found.to_arrow().num_rows == pc.sum(pc.equal(rows["id"], wanted)).as_py()


def test_a_key_of_many_buckets_is_planned_by_the_files_of_its_own(wh, monkeypatch):
    """Each file that is looked at costs as much as all others of the plan."""
    table = wh.create_table("a.many", "id BIGINT, v STRING", buckets=16, properties={"bucket.key": "id"})
    for start in (0, 100):
        table.append([{"id": i, "v": "x"} for i in range(start, start + 100)])
        tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))
    looked_at = []
    right = lake_files._scan_file
    monkeypatch.setattr(lake_files, "_scan_file", lambda task, *of: looked_at.append(task) or right(task, *of))
    assert table.to_arrow(filter=[("id", "=", 77)])["id"].to_pylist() == [77]
    assert len(looked_at) == 2
    assert table.to_arrow(filter=[("id", "in", [77, 78]), ("v", "=", "x")]).num_rows == 2
    assert len(looked_at) <= 2 + 4
    assert table.to_arrow(filter=[("id", ">", 77)]).num_rows == 122
    assert len(looked_at) >= 2 + 2 + 32
