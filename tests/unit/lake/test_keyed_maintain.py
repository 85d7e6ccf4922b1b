"""Compaction, expiry and cleaning of tables with a primary key; races of these with rounds and with other engines."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.table.snapshots import Operation

from faults.sim import sim_world
from interop.keyed_cases import KeyedTable, data_files, live_deletes
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, CorruptDataError
from streamhouse_spark.lake.iceberg import compaction
from streamhouse_spark.lake.iceberg.snapshots import OFFSETS_PROPERTY
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.parquet import merge_on_read
from streamhouse_spark.lake.parquet import merge_on_read as key_merge
from streamhouse_spark.lake.types import COMMIT_USER
from streamhouse_spark.schema.table_schema import TableSchema

DAYS = TableSchema.of("id bigint not null, day date not null, n bigint")
DAY = dt.date(2026, 1, 1)
HOUR_MS = 3600 * 1000


@pytest.fixture
def items(memory, world) -> KeyedTable:
    table = KeyedTable(memory, world)
    table.change([(i, f"n{i}", i) for i in range(20)])
    table.tier()
    return table


def other(table: KeyedTable, seed: int = 5) -> KeyedTable:
    """Another process with a table that it opened now."""
    found = KeyedTable(table.storage, sim_world(seed, table.world.clock), bucket_key=table.bucket_key)
    found.rows = table.rows
    return found


def foreign_append(table: KeyedTable, rows: list[tuple]) -> None:
    lake = table.lake().binding.load()
    schema = lake.schema().as_arrow()
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    lake.append(pa.table(columns, schema=schema))


# -- compaction -------------------------------------------------------------------------------------------------------


def test_few_deleted_rows_are_left_alone(items):
    items.change([(1, "b", 1)], [(2,)])
    items.tier()
    assert items.lake().compact() == compaction.CompactReport()
    items.change([], [(3,)])
    items.tier()
    planned = items.lake().compact(dry_run=True)
    assert (planned.files_removed, planned.files_added, planned.rows, planned.snapshot) == (3, 1, 18, None)
    before = items.lake().newest()
    report = items.lake().compact()
    assert (report.files_removed, report.files_added, report.rows) == (3, 1, 18)
    assert report.snapshot.offsets == before.offsets
    assert items.lake().newest() == report.snapshot
    items.require_expected()
    assert live_deletes(items.lake()) == {}
    summary = items.lake().binding.load().current_snapshot().summary
    assert summary.operation == Operation.REPLACE
    totals = [summary[f"total-{name}"] for name in ("records", "data-files", "delete-files", "position-deletes")]
    assert totals == ["18", "1", "0", "0"]
    metadata = items.lake().binding.load().metadata
    assert OFFSETS_PROPERTY in summary.additional_properties
    assert metadata.refs[COMMIT_USER].snapshot_id == metadata.current_snapshot_id
    assert items.lake().compact() == compaction.CompactReport()
    items.change([(5, "c", 1)], [(6,)])
    items.tier()
    items.require_expected()


def test_many_small_files_become_one_sorted_by_key(items):
    for i in range(5):
        items.change([(100 - i, "x", i)])
        items.tier()
    assert items.lake().compact().files_removed == 6
    items.require_expected()
    assert lake_rows(items.lake(), items.lake().plan_read())["id"].to_pylist() == sorted(
        row[0] for row in items.rows.values()
    )


def test_small_files_beside_a_large_one_wait_until_they_are_worth_it():
    def group(*sizes: int, num_deleted: int = 0) -> compaction.KeyedGroup:
        names = [f"00000-{i:020d}-{i:032x}.parquet" for i in range(len(sizes))]
        files = [compaction.LiveFile(name, size, 100, 0, ()) for name, size in zip(names, sizes, strict=True)]
        return compaction.KeyedGroup(0, tuple(files), num_deleted)

    assert not group(1000, *[1] * 20).is_worth_it(200)
    assert group(1000, *[30] * 5).is_worth_it(200)
    assert group(1000, *[1] * 50).is_worth_it(200)
    assert not group(1000, 1000, 1000, 1000, 1000, 1000).is_worth_it(200)
    assert not group(1000, num_deleted=10).is_worth_it(200)
    assert not group(1).is_worth_it(200)
    assert compaction.KeyedGroup(0, (compaction.LiveFile("00000-0-theirs.parquet", 1, 1, 0, ()),), 0).is_worth_it(200)
    assert group(1000, num_deleted=11).is_worth_it(200)


def test_partitions_are_compacted_by_themselves(memory, world):
    table = KeyedTable(memory, world, DAYS, key=["id", "day"], partition_by=["day"], bucket_key="id", num_buckets=2)
    days = [DAY, DAY + dt.timedelta(1)]
    table.change([(i, day, 0) for i in range(20) for day in days])
    table.tier()
    table.change([], [(i, days[0]) for i in range(0, 20, 2)])
    table.tier()
    table.require_expected()
    untouched = [location for location in data_files(table.lake()) if str(days[1]) in location]
    report = table.lake().compact()
    assert (report.files_added, report.rows) == (2, 10)
    table.require_expected()
    assert [location for location in data_files(table.lake()) if str(days[1]) in location] == untouched
    assert live_deletes(table.lake()) == {}


def test_of_rows_with_one_key_the_newest_file_wins(items):
    foreign_append(items, [(3, "theirs", 0), (50, "theirs", 0), (3, "last", 0)])
    foreign_append(items, [(4, "theirs", 0)])
    for i in range(3):
        items.change([(200 + i, "x", i)])
        items.tier()
    assert len(items.lake_rows()) == 27
    report = items.lake().compact()
    assert (report.rows, report.healed_rows) == (24, 3)
    items.rows |= {(3,): (3, "last", 0), (4,): (4, "theirs", 0), (50,): (50, "theirs", 0)}
    items.require_expected()
    assert items.lake().binding.load().current_snapshot().summary.operation == Operation.OVERWRITE
    items.change([(3, "ours", 1), (4, "ours", 1)])
    items.tier()
    items.require_expected()


def test_keys_that_another_engine_added_again_become_one_row_without_a_change(items, caplog):
    """Nothing else makes compaction worth it: two small files, no deleted row."""
    foreign_append(items, [(3, "theirs", 0), (50, "theirs", 0), (3, "last", 0)])
    assert len(items.lake_rows()) == 23
    assert items.lake().compact(dry_run=True).files_removed == 2
    assert caplog.messages == []
    report = items.lake().compact()
    assert (report.files_removed, report.files_added, report.rows, report.healed_rows) == (2, 1, 21, 2)
    (message,) = caplog.messages
    assert "lake table of d.t" in message
    assert "2 rows were removed" in message
    items.rows |= {(3,): (3, "last", 0), (50,): (50, "theirs", 0)}
    items.require_expected()
    assert items.lake().compact() == compaction.CompactReport()  # the files are ours again


def test_rows_that_another_engine_added_are_theirs_to_keep(items, caplog):
    """New keys are no damage: nothing is counted."""
    foreign_append(items, [(50, "theirs", 0)])
    assert items.lake().compact().healed_rows == 0
    assert caplog.messages == []
    items.rows[(50,)] = (50, "theirs", 0)
    items.require_expected()


def test_large_files_of_another_engine_wait(items, monkeypatch):
    foreign_append(items, [(3, "theirs", 0)])
    monkeypatch.setattr(compaction, "FOREIGN_BYTES_MAX", 10)
    assert items.lake().compact() == compaction.CompactReport()


def test_files_of_another_engine_are_sorted_part_by_part(items, monkeypatch):
    """Of rows of a key the last of the file counts, whichever parts they are in."""
    monkeypatch.setattr(merge_on_read, "RUN_BYTES_MAX", 1)
    monkeypatch.setattr("streamhouse_spark.lake.parquet.reader.BATCH_ROWS", 7)
    monkeypatch.setattr(key_merge, "BATCH_ROWS", 3)
    theirs = [((i * 37) % 50, f"theirs {i}", i) for i in range(120)]
    foreign_append(items, theirs)
    report = items.lake().compact()
    assert report.rows == 50
    items.rows |= {(row[0],): row for row in theirs}
    items.require_expected()


def test_what_is_sorted_at_once_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_on_read, "RUN_BYTES_MAX", 8 << 20)
    lengths: list[int] = []

    def sort(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        lengths.append(sum(part.nbytes for part in parts))
        return pa.concat_batches(parts)

    batches = (pa.record_batch({"n": np.full(1 << 17, i)}) for i in range(64))
    runs = merge_on_read.split_into_sorted_runs(batches, sort, tmp_path, 1 << 16)
    assert (len(runs), max(lengths)) == (8, 8 << 20)
    assert len(list(tmp_path.iterdir())) == 8
    assert [set(batch["n"].to_pylist()) for run in runs for batch in run] == [{i} for i in range(64) for _ in range(2)]
    alone = merge_on_read.split_into_sorted_runs([pa.record_batch({"n": [1]})], sort, tmp_path, 10)
    assert len(list(tmp_path.iterdir())) == 8, "few rows go through no file"
    assert [batch.num_rows for run in alone for batch in run] == [1]


def test_all_rows_deleted_leaves_no_files(items):
    items.change([], list(items.rows))
    items.tier()
    report = items.lake().compact()
    assert (report.files_removed, report.files_added, report.rows) == (2, 0, 0)
    assert data_files(items.lake()) == []
    items.require_expected()
    items.change([(1, "x", 1)])
    items.tier()
    items.require_expected()


def test_delete_files_about_files_that_are_gone_go(items):
    items.change([(1, "b", 1)])
    items.tier()
    items.lake().binding.load().delete("id = 5")  # another engine writes the file again, without its deleted rows
    del items.rows[(5,)]
    items.require_expected()
    assert len(live_deletes(items.lake())) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "FOREIGN_BYTES_MAX", 0)
        report = items.lake().compact()
    assert (report.files_removed, report.files_added) == (1, 0)
    assert live_deletes(items.lake()) == {}
    items.require_expected()


def test_rows_larger_than_a_file_become_several(memory, world):
    table = KeyedTable(memory, world, target_file_bytes=1)
    table.change([(i, "x" * 50, i) for i in range(1000)])
    table.tier()
    table.change([], [(i,) for i in range(0, 1000, 5)])
    table.tier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_merge, "BATCH_ROWS", 100)
        patch.setattr("streamhouse_spark.lake.parquet.file_writer.ROW_GROUP_ROWS_MAX", 100)
        patch.setattr("streamhouse_spark.lake.parquet.reader.BATCH_ROWS", 100)
        table.lake().compact()
    table.require_expected()
    assert len(data_files(table.lake())) > 3


def test_a_file_that_lies_about_its_order_is_damage(items, memory):
    for i in range(5):
        items.change([(30 + i, "x", i)])
        items.tier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_merge, "read_sort_fields", lambda *_: "1")
        foreign_append(items, [(99, "x", 0), (98, "x", 0)])
        with pytest.raises(CorruptDataError, match="are not; restore"):
            items.lake().compact()


# -- expiry and cleaning ----------------------------------------------------------------------------------------------


def test_expiry_and_cleaning_keep_what_kept_snapshots_need(items, memory):
    first = items.lake().newest().id
    for i in range(4):
        items.change([(i, "x", i)], [(i + 10,)])
        items.tier()
    middle = items.lake().newest().id
    at_middle = items.expected()
    items.lake().binding.load().manage_snapshots().create_tag(middle, "kept").commit()
    for i in range(4):
        items.change([(i + 4, "y", i)])
        items.tier()
    items.lake().compact()
    items.world.clock.advance(25 * HOUR_MS)
    report = items.lake().expire(keep_last=1, keep_ms=0)
    assert first in report.snapshots
    assert any("-deletes-" in location for location in report.files)
    assert items.lake().remove_orphans() == []
    items.require_expected()
    lake = items.lake()
    old = lake_rows(lake, lake.plan_read(snapshot_id=middle)).to_pylist()
    assert sorted((tuple(row.values()) for row in old), key=repr) == at_middle
    items.change([(0, "z", 0)])
    items.tier()
    items.require_expected()


def test_what_a_lost_round_left_behind_is_cleaned(items, memory):
    items.change([(1, "b", 1)], [(2,)])

    def race():
        other(items).tier()

    items.tier(before_commit=race)
    items.require_expected()
    items.world.clock.advance(25 * HOUR_MS)
    orphans = items.lake().remove_orphans()
    assert sum("-deletes-" in key for key in orphans) == 1
    items.require_expected()
    assert items.lake().remove_orphans() == []


# -- races ------------------------------------------------------------------------------------------------------------


def once(action):
    """``action`` at the first call only."""
    left = [action]

    def call():
        if left:
            left.pop()()

    return call


RACES = {
    "tiering": lambda table: table.tier(),
    "compaction": lambda table: table.lake().compact(),
    "foreign delete": lambda table: table.lake().binding.load().delete("id = 7"),
    "foreign append": lambda table: foreign_append(table, [(5, "theirs", 0)]),
    "expiry": lambda table: table.lake().expire(keep_last=1, keep_ms=-60_000),
}


@pytest.mark.parametrize("handle", ["stale", "fresh"])
@pytest.mark.parametrize("race", RACES)
def test_a_keyed_round_survives_each_race(items, race, handle):
    items.change([(1, "b", 1)], [(2,), (3,), (4,)])
    items.tier()
    theirs = other(items)
    items.change([(5, "c", 5), (1, "d", 1)], [(6,)])

    def happen():
        RACES[race](theirs)
        if handle == "fresh":
            items.lake().newest()
            items.log.refresh()

    report = items.tier(before_commit=once(happen))
    assert report.conflicts == (0 if race == "expiry" else 1)
    if race == "foreign delete":
        del items.rows[(7,)]
    items.require_expected()
    assert items.lake().newest().offsets == items.state.ends


@pytest.mark.parametrize("race", [name for name in RACES if name != "compaction"])
def test_a_keyed_compaction_survives_each_race(items, monkeypatch, race):
    items.change([(1, "b", 1)], [(2,), (3,), (4,)])
    items.tier()
    theirs = other(items)
    items.change([(5, "c", 5)], [(6,)])
    happen = once(lambda: RACES[race](theirs))
    rewritten = compaction.rewrite_groups
    monkeypatch.setattr(compaction, "rewrite_groups", lambda *args: (rewritten(*args), happen())[0])
    if race == "expiry":
        items.lake().compact()
    else:
        with pytest.raises(CommitConflictError, match="try again"):
            items.lake().compact()
    if race == "foreign delete":
        del items.rows[(7,)]
    items.tier()
    items.require_expected()
    items.lake().compact()
    items.require_expected()


def test_a_round_planned_before_an_expiry_of_its_snapshot_is_planned_again(items, monkeypatch):
    items.change([(1, "b", 1)])
    theirs = other(items)

    def happen():
        theirs.tier()
        theirs.lake().expire(keep_last=1, keep_ms=-60_000)

    happens, context = once(happen), IcebergLake.write_context
    monkeypatch.setattr(IcebergLake, "write_context", lambda self: (context(self), happens())[0])
    assert items.tier().conflicts == 1
    items.require_expected()


def test_two_services_at_once_write_each_change_once(items):
    items.change([(1, "b", 1)], [(2,)])
    rival = other(items)
    reports = []

    def race():
        reports.append(rival.tier())

    mine = items.tier(before_commit=once(race))
    assert (mine.conflicts, len(mine.snapshots), len(reports[0].snapshots)) == (1, 0, 1)
    items.require_expected()


def test_another_engines_delete_that_began_before_a_round_is_refused(items):
    """pyiceberg sees from our operation that the rows which it read may be gone."""
    stale = items.lake().binding.load()
    items.change([(1, "b", 1)])
    items.tier()
    with pytest.raises(ValidationException, match="data files were found"):
        stale.delete("id = 1")
    items.require_expected()


def test_files_are_committed_only_where_they_are(items, memory):
    items.change([(1, "b", 1)])

    def lose():
        for key in memory.list_names("lake/d/t/data/"):
            if "-deletes-" in key:
                memory.delete(f"lake/d/t/data/{key}")

    assert items.tier(before_commit=once(lose)).conflicts == 1
    items.require_expected()


def test_positions_are_those_of_the_snapshot_that_is_committed_on(items):
    """The files are there, the offsets are the expected ones: only the snapshot tells that rows moved."""
    lake = items.lake()
    items.change([(1, "b", 1)])
    context = lake.write_context()
    foreign_append(items, [(1, "dup", 0)])
    with pytest.raises(CommitConflictError, match="expected"):
        lake.commit([], expected={0: 20}, new={0: 22}, context=context)
