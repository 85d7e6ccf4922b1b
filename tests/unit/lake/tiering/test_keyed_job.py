"""Tiering a table with a primary key: the lake holds exactly the current rows, in every reader."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from faults.sim import sim_world
from interop.keyed_cases import KeyedTable, data_files, live_deletes
from interop.lake_cases import EVERY_TYPE, every_type_rows
from kit.lake_rows import lake_rows
from streamhouse_spark import OffsetRange
from streamhouse_spark.errors import CorruptDataError, LakeMismatchError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.lake.iceberg import position_deletes
from streamhouse_spark.lake.iceberg import position_deletes as iceberg_keyed
from streamhouse_spark.lake.iceberg.position_deletes import _SCHEMA as DELETES
from streamhouse_spark.lake.iceberg.schema import PATH_ID
from streamhouse_spark.lake.iceberg.snapshot_commit import MANIFESTS_MIN_TO_MERGE, SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.parquet import merge_on_read as key_merge
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.lake.parquet.parquet_io import open_parquet_sink
from streamhouse_spark.lake.parquet.reader import DELETED_KEY
from streamhouse_spark.lake.types import DeletedRows, LakeFile
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage

EIGHT = [(i, f"n{i}", i) for i in range(8)]


@pytest.fixture
def items(memory, world) -> KeyedTable:
    table = KeyedTable(memory, world)
    table.change(EIGHT)
    table.tier()
    return table


def test_inserts_updates_and_deletes(items):
    items.require_expected()
    items.change([(1, "b", 1), (9, "new", 9)], [(3,)])
    report = items.tier()
    assert (report.rows, report.conflicts, len(report.snapshots)) == (2, 0, 1)
    items.require_expected()
    assert list(live_deletes(items.lake()).values()) == [2]
    assert items.lake().newest().offsets == items.state.ends
    assert items.state.lake.offsets == items.state.ends


def test_every_metadata_table_shows_files_of_deleted_positions(items):
    items.change([(1, "b", 1)], [(3,)])
    items.tier()
    lake = items.lake()
    for name in lake.metadata_tables:
        assert lake.metadata_table(name).num_rows > 0, name
    found = [entry["data_file"] for entry in lake.metadata_table("entries").to_pylist()]
    by_content = {file["content"]: file for file in found}
    assert sorted(file["content"] for file in found) == [0, 0, 1]
    assert by_content[1]["file_path"] in lake.metadata_table("delete_files")["file_path"].to_pylist()
    assert by_content[0]["value_counts"]


def test_one_delete_file_for_each_data_file_however_often_rows_of_it_go(items):
    for i in range(6):
        items.change([(i, "again", i)])
        items.tier()
        items.require_expected()
    found = live_deletes(items.lake())
    assert sorted(found.values()) == [6]
    assert len(data_files(items.lake())) == 7
    (task,) = [t for t in items.lake().binding.load().scan().plan_files() if t.delete_files]
    (delete,) = task.delete_files
    assert delete.lower_bounds[PATH_ID] == delete.upper_bounds[PATH_ID] == task.file.file_path.encode()


def test_changes_that_cancel_out_still_move_the_offsets(items):
    before = items.lake().newest()
    items.change([(100, "x", 1)])
    items.change([], [(100,)])
    report = items.tier()
    assert (report.rows, report.files, len(report.snapshots)) == (0, 0, 1)
    assert items.lake().newest().offsets == items.state.ends != before.offsets
    items.require_expected()


def test_a_first_round_that_leaves_nothing(memory, world):
    table = KeyedTable(memory, world)
    table.change([(1, "x", 1)])
    table.change([], [(1,)])
    table.tier()
    assert table.lake().newest().offsets == {0: 2}
    table.require_expected()
    for name in table.lake().metadata_tables:
        table.lake().metadata_table(name)
    assert data_files(table.lake()) == []
    table.change([(1, "y", 1)])
    table.tier()
    table.require_expected()


def test_a_round_in_which_all_rows_go(items):
    items.change([], list(items.rows))
    items.tier()
    items.require_expected()
    assert items.lake_rows() == []
    items.change(EIGHT[:3])
    items.tier()
    items.require_expected()


def test_operations_and_totals_tell_other_engines_what_happened(items):
    items.change([(100, "x", 1)])
    items.tier()
    summary = items.lake().binding.load().current_snapshot().summary
    assert (summary.operation, summary["total-records"]) == (Operation.APPEND, "9")
    items.change([(100, "y", 1)], [(2,)])
    items.tier()
    summary = items.lake().binding.load().current_snapshot().summary
    assert summary.operation == Operation.OVERWRITE
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("2", "2")
    items.change([(100, "z", 1)], [(3,)])
    items.tier()
    summary = items.lake().binding.load().current_snapshot().summary
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("3", "4")
    assert (summary["removed-delete-files"], summary["added-delete-files"]) == ("1", "2")


def test_the_primary_key_identifies_rows_in_the_lake(memory, world):
    schema = TableSchema.of("name string, id bigint not null, day date not null")
    table = KeyedTable(memory, world, schema, key=["day", "id"], partition_by=["day"])
    lake = table.lake()
    lake.create_or_evolve()
    assert lake.binding.load().schema().identifier_field_names() == {"id", "day"}
    table.add_column("more string")
    table.lake().create_or_evolve()
    assert table.lake().binding.load().schema().identifier_field_names() == {"id", "day"}


def test_floating_point_keys_cannot_identify_rows_in_iceberg(memory, world):
    table = KeyedTable(memory, world, TableSchema.of("f double not null, n bigint"), key=["f"])
    table.change([(0.5, 1), (float("nan"), 2), (-0.0, 3)])
    table.tier()
    assert table.lake().binding.load().schema().identifier_field_ids == []
    table.append([(ChangeType.DELETE, (float("nan"), 2)), (ChangeType.UPDATE_AFTER, (0.0, 4))])
    table.tier()
    assert table.lake_rows() == [(0.0, 4), (0.5, 1)]


def test_zeros_and_nans_of_one_key_may_be_several_partitions(memory, world):
    schema = TableSchema.of("f double not null, n bigint")
    table = KeyedTable(memory, world, schema, key=["f"], partition_by=["f"])
    table.append([(ChangeType.INSERT, (-0.0, 1)), (ChangeType.INSERT, (float("nan"), 2))])
    table.tier()
    table.append([(ChangeType.UPDATE_AFTER, (0.0, 3)), (ChangeType.DELETE, (float("nan"), 2))])
    table.tier()
    assert table.lake_rows() == [(0.0, 3)]


@pytest.mark.parametrize("name", EVERY_TYPE.names[1:14])
def test_deletes_are_in_the_partition_of_their_data_file(memory, world, name):
    """Engines that go by the specification look for them there only."""
    schema = TableSchema.of(pa.schema([EVERY_TYPE.arrow.field(name).with_nullable(False), ("n", pa.int64())]))
    table = KeyedTable(memory, world, schema, key=[name], partition_by=[name])
    rows = [(value, 0) for value in set(every_type_rows(25)[name].to_pylist()) - {None}]
    table.change(rows)
    table.tier()
    table.change([(value, 1) for value, _ in rows])
    table.tier()
    table.require_expected()
    tasks = [task for task in table.lake().binding.load().scan().plan_files() if task.delete_files]
    assert len(tasks) == len(rows)
    for task in tasks:
        (delete,) = task.delete_files
        assert delete.file_path.rpartition("/")[0] == task.file.file_path.rpartition("/")[0]
        assert delete.partition == task.file.partition


@pytest.mark.parametrize("probe_values_max", [0, 3, 10**9])
def test_keys_are_found_with_and_without_looking_for_one_column_first(memory, world, monkeypatch, probe_values_max):
    monkeypatch.setattr(position_deletes, "PROBE_VALUES_MAX", probe_values_max)
    schema = TableSchema.of("a int not null, f float not null, s string not null, n bigint")
    table = KeyedTable(memory, world, schema, key=["s", "a", "f"])
    rows = [(a, f, s, 0) for a in range(5) for f in (-0.0, 1.5) for s in ("", "x", "漢")]
    table.change(rows)
    table.tier()
    table.change([(*row[:3], 1) for row in rows[::2]], [table.key_of(row) for row in rows[1::4]])
    table.tier()
    table.require_expected()
    table.change([], [("x", 3, 1.5)] if ("x", 3, 1.5) in table.rows else [table.key_of(rows[0])])
    table.tier()
    table.require_expected()


def test_a_large_commit_is_tiered_in_parts(memory, world):
    """A task has its range in memory, so a range ends within a segment where that is large."""
    table = KeyedTable(memory, world, before_images=True)
    table.change([(i, "x", i) for i in range(100)])
    table.change([(i, "y", i) for i in range(0, 100, 3)], [(i,) for i in range(1, 100, 3)])
    size_bytes = max(segment.size_bytes for segment in table.log.refresh().live_segments())
    report = table.tier(bytes_per_bucket_max=size_bytes // 4)
    assert 7 <= len(report.snapshots) <= 9
    table.require_expected()


def test_a_manifest_of_deletes_says_so_in_its_header(items):
    items.change([], [(1,)])
    items.tier()
    table = items.lake().binding.load()
    manifests = table.current_snapshot().manifests(table.io)
    (deletes,) = [m for m in manifests if m.content == ManifestContent.DELETES]
    header = table.io.new_input(deletes.manifest_path).open().read()[:4000]
    assert b"content\x0edeletes" in header
    (data, *_) = [m for m in manifests if m.content == ManifestContent.DATA]
    assert b"content\x08data" in table.io.new_input(data.manifest_path).open().read()[:4000]


def test_manifests_of_deletes_stay_few(memory, world):
    table = KeyedTable(memory, world)
    for i in range(30):
        table.change([(i, "a", i), (i + 1000, "b", i)], [(i - 1,)] if i else [])
        table.tier()
    table.require_expected()
    lake = table.lake().binding.load()
    manifests = lake.current_snapshot().manifests(lake.io)
    assert len(live_deletes(table.lake())) == 29
    assert sum(m.content == ManifestContent.DELETES for m in manifests) <= 2 * MANIFESTS_MIN_TO_MERGE


# -- what other engines did -------------------------------------------------------------------------------------------


def test_a_key_that_another_engine_added_again_is_one_row_once_it_changes(items, caplog):
    foreign_append(items, [(1, "dup", 0), (2, "dup", 0), (50, "theirs", 0)])
    assert len(items.lake_rows()) == 11
    items.change([(1, "c", 5)])
    assert items.tier().healed_rows == 1
    assert "lake table of d.t had several rows for some primary keys" in caplog.text
    assert ": 1 rows were removed" in caplog.text
    assert [row for row in items.lake_rows() if row[0] in (1, 2, 50)] == [
        (1, "c", 5),
        (2, "dup", 0),
        (2, "n2", 2),
        (50, "theirs", 0),
    ]
    items.change([], [(2,)])
    assert items.tier().healed_rows == 1
    items.rows[(50,)] = (50, "theirs", 0)
    items.require_expected()
    caplog.clear()
    items.change([(i, "last", 0) for i in (1, 50, 60)])
    assert items.tier().healed_rows == 0
    assert caplog.messages == []


@pytest.mark.parametrize("key", [["id"], ["name"], ["name", "id"]])
def test_rows_beyond_one_of_a_key_are_counted_over_all_files(memory, world, key):
    table = KeyedTable(memory, world, TableSchema.of("id bigint not null, name string not null, n bigint"), key=key)
    for first in (0, 4):
        table.change([(i, f"n{i}", 0) for i in range(first, first + 4)])
        table.tier()
    foreign_append(table, [(1, "n1", 1), (1, "n1", 2), (5, "n5", 1), (9, "n9", 1), (6, "n6", 1)])
    foreign_append(table, [(5, "n5", 2), (9, "n9", 2), (7, "n7", 1)])
    table.change([(i, f"n{i}", 7) for i in (0, 1, 5, 10)], [table.key_of((2, "n2", 0))])
    report = table.tier()
    assert report.healed_rows == 4  # twice of 1, twice of 5; 6, 7 and 9 did not change
    table.change([(i, f"n{i}", 8) for i in (0, 1, 5, 9)], [table.key_of((6, "n6", 0)), table.key_of((7, "n7", 0))])
    assert table.tier().healed_rows == 3
    table.require_expected()


def test_what_a_lost_round_would_have_healed_is_counted_once(items):
    foreign_append(items, [(1, "dup", 0)])
    items.change([(1, "c", 5)])
    rival = []

    def race():
        if not rival:
            other = KeyedTable(items.storage, sim_world(5, items.world.clock))
            rival.append(other)
            assert other.tier().healed_rows == 1

    report = items.tier(before_commit=race)
    assert (report.conflicts, report.healed_rows) == (1, 0)
    items.require_expected()


def test_rows_that_another_engine_deleted_come_back_when_they_change(items):
    items.lake().binding.load().delete("id = 4")
    items.change([(4, "back", 1)], [(5,)])
    items.tier()
    items.require_expected()


def test_deletes_that_are_about_several_files_are_heeded_and_left_alone(items):
    items.change([(i + 8, "m", i) for i in range(4)])
    items.tier()
    first, second = (task.file.file_path for task in items.lake().binding.load().scan().plan_files())
    foreign_deletes(items, {first: [0], second: [1]})
    theirs = set(live_deletes(items.lake()))
    left = items.lake_rows()
    assert len(left) == 10
    items.rows = {(row[0],): row for row in left}
    items.change([(row[0], "new", 0) for row in left[:3]])
    items.tier()
    items.require_expected()
    assert theirs < set(live_deletes(items.lake()))
    ours = [count for location, count in live_deletes(items.lake()).items() if location not in theirs]
    assert sum(ours) == 3
    gone = sorted(set(range(12)) - {row[0] for row in left})
    items.change([(i, "back", 0) for i in gone])
    items.change([], [(gone[0],)])
    items.tier()
    items.require_expected()
    ours = [count for location, count in live_deletes(items.lake()).items() if location not in theirs]
    assert sum(ours) == 3  # those two keys had no row left


def test_equality_deletes_are_refused(items, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr("pyiceberg.table.ManifestGroupPlanner.plan_files", refuse)
    items.change([(1, "x", 1)])
    with pytest.raises(LakeMismatchError, match="equality deletes"):
        items.tier()


@pytest.mark.parametrize("rows", [0, 2])
def test_an_existing_lake_table_is_taken_if_it_is_empty(memory, world, rows):
    table = KeyedTable(memory, world)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int64())])
    catalog = table.lake().binding.catalog
    catalog.create_namespace("d")
    made = catalog.create_table("d.t", schema, properties={"format-version": "2"})
    if rows:
        made.append(pa.table([[1, 2], ["old", "old"], [0, 0]], schema=schema))
    table.change([(1, "new", 1)])
    if rows:
        with pytest.raises(LakeMismatchError, match=r"has rows that.*adopt_table"):
            table.tier()
        assert made.refresh().scan().to_arrow().num_rows == rows
    else:
        table.tier()
        assert table.lake_rows() == [(1, "new", 1)] == table.foreign_rows()


def test_a_lake_table_whose_key_may_be_null_is_not_adopted(memory, world):
    table = KeyedTable(memory, world)
    catalog = table.lake().binding.catalog
    catalog.create_namespace("d")
    catalog.create_table("d.t", pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())]))
    table.change(EIGHT)
    with pytest.raises(LakeMismatchError, match="'id' of the primary key is optional, expected required"):
        table.tier()


# -- truncation, columns, ranges --------------------------------------------------------------------------------------


def test_after_a_truncation_only_new_rows_are_there(items):
    items.change([(1, "b", 1)])
    items.tier()
    items.truncate()
    items.change([(2, "after", 2), (3, "after", 3)], [(3,)])
    report = items.tier()
    assert len(report.snapshots) == 1
    items.require_expected()
    assert live_deletes(items.lake()) == {}
    items.change([(2, "again", 2)])
    items.tier()
    items.require_expected()
    items.truncate()
    items.tier()
    items.require_expected()
    assert items.lake_rows() == []


def test_columns_added_to_a_keyed_table_reach_the_lake(items):
    items.add_column("note string")
    items.change([(1, "b", 1, "noted")])
    items.tier()
    items.require_expected()
    items.change([(2, "c", 2, None)], [(1,)])
    items.tier()
    items.require_expected()


def test_ranges_of_changes_are_not_read_from_the_lake(items):
    with pytest.raises(OffsetsTrimmedError, match="current rows only"):
        items.lake().read_offsets(0, OffsetRange(0, 4))


def test_extreme_keys_of_every_type_are_replaced_in_the_lake(memory, world):
    """Bounds in the metadata decide which files are looked into."""
    schema = TableSchema.of(
        "b boolean not null, i8 tinyint not null, i16 smallint not null, i32 int not null, d date not null, "
        "t timestamp not null, n timestamp_ntz not null, m decimal(9,2) not null, l decimal(38,10) not null, "
        "s string not null, y binary not null, v bigint"
    )
    names = schema.names[:-1]
    for place, name in enumerate(names):
        rows = every_key_row(place)
        for batch in (rows, rows[:1], rows[1:]):
            storage = MemoryStorage(world)
            table = KeyedTable(storage, world, schema, key=[name, *(n for n in names if n != name)])
            table.change(batch)
            table.tier()
            table.change([(*row[:-1], 7) for row in rows])
            table.tier()
            assert len(table.lake_rows()) == len(rows), name
            table.require_expected()


def test_files_that_cannot_hold_a_key_are_not_opened(memory, world, monkeypatch):
    opened = []
    find = position_deletes.find_rows
    monkeypatch.setattr(
        iceberg_keyed, "find_rows", lambda files, file, *rest: opened.append(file) or find(files, file, *rest)
    )
    table = KeyedTable(memory, world)
    for first in (0, 100, 200):
        table.change([(first + i, "x", i) for i in range(5)])
        table.tier()
    assert opened == []
    table.change([(102, "y", 0), (150, "new", 0)])
    table.tier()
    assert len(opened) == 1
    table.require_expected()
    days = TableSchema.of("id bigint not null, day date not null, n bigint")
    dated = KeyedTable(MemoryStorage(world), world, days, key=["id", "day"], partition_by=["day"])
    dated.change([(i, dt.date(2026, 1, day), i) for i in range(5) for day in (1, 2, 3)])
    dated.tier()
    opened.clear()
    dated.change([(3, dt.date(2026, 1, 2), 9)], [(4, dt.date(2026, 1, 2))])
    dated.tier()
    assert len(opened) == 1
    dated.require_expected()


@pytest.mark.parametrize("damage", ["cut", "gone", "fewer"])
def test_damaged_deletes_are_errors_and_not_rows(items, memory, damage):
    items.change([], [(1,), (2,), (3,)])
    items.tier()
    (location,) = live_deletes(items.lake())
    key = location.removeprefix(memory.url + "/")
    data = bytearray(memory.read(key))
    memory.delete(key)
    if damage == "fewer":
        rows = pq.read_table(pa.BufferReader(bytes(data))).slice(0, 2)
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({DELETED_KEY: "3"})
        data = sink.getvalue().to_pybytes()
    if damage != "gone":
        memory.put_if_absent(key, bytes(data)[: -20 if damage == "cut" else None])
    with pytest.raises(SnapshotExpiredError if damage == "gone" else CorruptDataError):
        items.lake_rows()


def test_no_flipped_bit_of_a_delete_file_brings_rows_back(items, memory):
    items.change([], [(1,), (2,), (3,)])
    items.tier()
    (location,) = live_deletes(items.lake())
    key = location.removeprefix(memory.url + "/")
    data = memory.read(key)
    outcomes = set()
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        memory.delete(key)
        memory.put_if_absent(key, bytes(flipped))
        try:
            assert items.lake_rows() == items.expected(), place
            outcomes.add("read")
        except CorruptDataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_tasks_read_with_bounded_batches(memory, world, monkeypatch):
    monkeypatch.setattr(parquet_read, "BATCH_ROWS", 7)
    monkeypatch.setattr(iceberg_keyed, "BATCH_ROWS", 5)
    monkeypatch.setattr(key_merge, "BATCH_ROWS", 3)
    table = KeyedTable(memory, world)
    table.change([(i, "x", i) for i in range(100)])
    table.tier()
    for step in (3, 5, 7):
        table.change(
            [(i, f"s{step}", i) for i in range(0, 120, step)], [(i,) for i in range(1, 100, step) if (i,) in table.rows]
        )
        table.tier()
        table.require_expected()
    foreign_append(table, [(200 - i, "theirs", i) for i in range(20)])
    table.rows |= {(200 - i,): (200 - i, "theirs", i) for i in range(20)}
    table.lake().compact()
    table.require_expected()
    assert len(data_files(table.lake())) == 1
    in_file = lake_rows(table.lake(), table.lake().plan_read())["id"].to_pylist()
    assert in_file == sorted(in_file)


# -- helpers ----------------------------------------------------------------------------------------------------------


def every_key_row(first: int) -> list[tuple]:
    utc = dt.UTC
    lowest = (
        False, -128, -(2**15), -(2**31), dt.date(1, 1, 1), dt.datetime(1900, 1, 1, tzinfo=utc),
        dt.datetime(1900, 1, 1), decimal.Decimal("-9999999.99"), decimal.Decimal("-1e27"), "", b"", 0,
    )  # fmt: skip
    highest = (
        True, 127, 2**15 - 1, 2**31 - 1, dt.date(9999, 12, 31), dt.datetime(2200, 1, 1, 1, tzinfo=utc),
        dt.datetime(2200, 1, 1), decimal.Decimal("9999999.99"), decimal.Decimal("1e27"), "漢字" * 20, b"\xff" * 40, 1,
    )  # fmt: skip
    mixed = tuple(
        high if place == first else low for place, (low, high) in enumerate(zip(lowest, highest, strict=True))
    )
    return [lowest, mixed, highest]


def foreign_append(table: KeyedTable, rows: list[tuple]) -> None:
    lake = table.lake().binding.load()
    schema = lake.schema().as_arrow()
    lake.append(
        pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema)
    )


def foreign_deletes(table: KeyedTable, positions: dict[str, list[int]]) -> None:
    """What Spark writes: one file of deleted positions for all data files of a partition, in the order of the paths."""
    place = table.lake().binding
    context = table.lake().write_context()
    location = f"{context.lake['data_location']}/foreign-deletes.parquet"
    pairs = sorted((path, position) for path, found in positions.items() for position in found)
    schema = pa.schema([field.with_type(pa.string()) if field.name == "file_path" else field for field in DELETES])
    with open_parquet_sink(place.files_at(location), location) as sink:
        pq.write_table(pa.table([pa.array(c) for c in zip(*pairs, strict=True)], schema=schema), sink)
        size_bytes = sink.size_bytes
    bounds = {"lower_bounds": {PATH_ID: pairs[0][0].encode()}, "upper_bounds": {PATH_ID: pairs[-1][0].encode()}}
    file = LakeFile(
        location, 0, OffsetRange(0, 0), len(pairs), size_bytes, 0, 0, (), bounds, deletes=DeletedRows("several")
    )
    change = SnapshotUpdate(Operation.OVERWRITE, added=[file])
    commit_snapshot(place, lambda _metadata: change)
