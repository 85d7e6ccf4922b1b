"""Paimon tables with a primary key: what lies in their files, and what other writers of the table do to it."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypaimon import CatalogFactory
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.table.row.generic_row import GenericRow

from faults.sim import sim_world
from interop.keyed_cases import ITEMS, KeyedTable
from interop.lake_cases import EVERY_TYPE, every_type_rows
from streamhouse_spark import CommitConflictError, CorruptDataError, LakeMismatchError, OffsetRange
from streamhouse_spark.lake.paimon import compaction as paimon_compact_keyed
from streamhouse_spark.lake.paimon.manifests import live_entries
from streamhouse_spark.lake.paimon.merge_tree import group_sections, write_changes
from streamhouse_spark.lake.parquet import file_writer as data_file
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

DAYS = TableSchema.of("day date not null, id bigint not null, n bigint")


def keyed(storage=None, schema=ITEMS, **shape) -> KeyedTable:
    return KeyedTable(storage or MemoryStorage(sim_world()), sim_world(1), schema, lake_format="paimon", **shape)


@pytest.fixture
def items() -> KeyedTable:
    table = keyed()
    table.change([(i, f"n{i}", i) for i in range(8)])
    table.tier()
    return table


def agree(table: KeyedTable) -> None:
    assert table.lake_rows() == table.foreign_rows() == table.expected()


def live(table: KeyedTable) -> list[ManifestEntry]:
    place = table.lake().binding
    found = live_entries(place, place.require())
    return sorted(found, key=lambda e: e.file.min_sequence_number)


def stored(table: KeyedTable, entry: ManifestEntry) -> pa.Table:
    (key,) = [info.key for info in table.storage.list("lake/") if info.key.endswith(entry.file.file_name)]
    return pq.read_table(pa.BufferReader(table.storage.read(key)))


# -- what a round writes ----------------------------------------------------------------------------------------------


def test_a_round_writes_the_last_change_of_each_key(items):
    items.change([(5, "a", 1), (9, "b", 2)])  # offsets 8 to 10: an update is two
    items.change([(9, "c", 3), (8, "d", 4)], [(2,), (5,)])  # 11 to 15
    report = items.tier()
    assert (report.rows, report.files) == (2, 1)
    _, entry = live(items)
    rows = stored(items, entry)
    assert rows.schema.names == ["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND", "id", "name", "n"]
    assert rows["_KEY_id"].to_pylist() == rows["id"].to_pylist() == [2, 5, 8, 9]
    assert rows["_SEQUENCE_NUMBER"].to_pylist() == [14, 15, 13, 12]
    assert rows["_VALUE_KIND"].to_pylist() == [3, 3, 0, 0]
    file = entry.file
    assert (file.min_sequence_number, file.max_sequence_number, file.delete_row_count, file.level) == (12, 15, 2, 0)
    assert (file.min_key.values, file.max_key.values) == ([2], [9])
    assert (file.key_stats.min_values.get_field(0), file.key_stats.max_values.get_field(0)) == (2, 9)
    agree(items)


def test_keys_are_said_without_the_partition_columns():
    table = keyed(None, DAYS, key=["id", "day"], partition_by=["day"], bucket_key="id", num_buckets=2)
    days = [dt.date(2026, 1, d) for d in (1, 2)]
    table.change([(day, i, 0) for day in days for i in range(20)])
    table.tier()
    schema = table.lake().binding.require().schema
    assert (schema.primary_keys, schema.partition_keys) == (["id", "day"], ["day"])
    assert {name: schema.options[name] for name in ("bucket", "bucket-key", "merge-engine", "changelog-producer")} == {
        "bucket": "2", "bucket-key": "id", "merge-engine": "deduplicate", "changelog-producer": "none",
    }  # fmt: skip
    entries = live(table)
    assert len(entries) == 4
    assert all(len(e.file.min_key.values) == 1 for e in entries)
    assert {(*e.partition.values, e.bucket) for e in entries} == {(day, bucket) for day in days for bucket in (0, 1)}
    agree(table)


@pytest.mark.parametrize("name", [n for n in EVERY_TYPE.names[:14] if n not in ("a_float", "a_double")])
def test_keys_of_each_type_sort_as_in_paimon(name):
    """Bounds and the order of keys are those of Paimon."""
    column = replace(EVERY_TYPE.column(name), id=1, nullable=False)
    if name == "id":
        column = replace(column, name="k")
    schema = TableSchema((column, *TableSchema.of("x bigint, n bigint").columns[1:]))
    values = sorted(set(every_type_rows(60)[name].to_pylist()) - {None}, key=repr)
    rng = random.Random(1)
    table = keyed(None, schema, key=[column.name])
    for step in range(3):
        table.change([(value, step) for value in rng.sample(values, max(1, len(values) // 2))])
        gone = rng.sample(sorted(table.rows, key=repr), len(table.rows) // 4)
        table.change([], gone)
        table.tier()
        agree(table)
    low, high = min(row[0] for row in table.rows), max(row[0] for row in table.rows)
    table.lake().compact()
    (entry,) = live(table)
    assert (entry.file.min_key.values, entry.file.max_key.values) == ([low], [high])
    assert table.unmerged_rows() == table.expected()


def test_a_key_that_paimon_cannot_say_stops_the_round():
    table = keyed(None, TableSchema.of("at timestamp_ntz not null, n bigint"), key=["at"])
    rows = pa.table({"c": pa.array([0], pa.int8()), "at": pa.array([10**18], pa.timestamp("us")), "n": [1]})
    lake = table.lake()
    lake.create_or_evolve()
    with pytest.raises(LakeMismatchError, match=r"column 'at' of the primary key has the value \+33658-09-27T"):
        write_changes(
            lake.write_context(), lake.binding.files_at, table.world.ids, 0, OffsetRange(0, 1), rows.to_batches(),
        )  # fmt: skip
    assert not [info for info in table.storage.list("lake/") if info.key.endswith(".parquet")]


# -- merging ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"ROW_GROUP_ROWS_MAX": 3}, {"BATCH_ROWS": 2}, {}], ids=str)
def test_many_row_groups_and_batches(monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(data_file if name.startswith("ROW") else parquet_read, name, value)
    rng = random.Random(3)
    table = keyed(target_file_bytes=1)
    for step in range(5):
        table.change([(rng.randrange(60), "x" * rng.randrange(9), step) for _ in range(40)])
        table.change([], rng.sample(sorted(table.rows), 6))
        table.tier()
        agree(table)
    table.lake().compact()
    agree(table)
    assert table.unmerged_rows() == table.expected()
    assert len(live(table)) > 1 or "ROW_GROUP_ROWS_MAX" not in limits
    for entry in live(table):
        assert (entry.file.level, entry.file.delete_row_count, entry.file.file_source) == (5, 0, 1)


def test_files_without_common_keys_are_read_as_they_are(items):
    items.change([(i, "x", i) for i in range(10, 20)])
    items.tier()
    assert [split.is_plain for split in items.lake().plan_read().splits] == [True, True]
    items.change([], [(15,)])
    items.tier()
    splits = items.lake().plan_read().splits
    assert sorted(split.merge is not None for split in splits) == [False, True]
    assert sum(len(split.merge.files) for split in splits if split.merge) == 2
    agree(items)


BOUNDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda b: (b[0], b[0] + b[1])), max_size=8)


@given(BOUNDS)
@settings(max_examples=60)
def test_files_of_several_sections_have_no_key_in_common(bounds):
    entries = [entry_of(low, high, str(i)) for i, (low, high) in enumerate(bounds)]
    found = group_sections(entries)
    assert sorted(e.file.file_name for part in found for e in part) == sorted(e.file.file_name for e in entries)
    reach = [(min(e.file.min_key.values[0] for e in p), max(e.file.max_key.values[0] for e in p)) for p in found]
    assert all(one[1] < other[0] for one, other in itertools.pairwise(reach))
    for part in found:  # and no section could be cut
        for cut in range(low_of(part) + 1, max(e.file.max_key.values[0] for e in part) + 1):
            assert any(e.file.min_key.values[0] < cut <= e.file.max_key.values[0] for e in part)


def low_of(part: list[ManifestEntry]) -> int:
    return min(e.file.min_key.values[0] for e in part)


def entry_of(low: int, high: int, name: str) -> ManifestEntry:
    empty = SimpleStats.empty_stats()
    keys = GenericRow([low], []), GenericRow([high], [])
    file = DataFileMeta(name, 1, 1, *keys, empty, empty, 0, 0, schema_id=0, level=0, extra_files=[])
    return ManifestEntry(0, GenericRow([], []), 0, 1, file)


def test_a_file_that_is_not_sorted_is_corrupt(items):
    items.change([(1, "b", 1)])
    items.tier()
    entry = live(items)[0]
    (key,) = [info.key for info in items.storage.list("lake/") if info.key.endswith(entry.file.file_name)]
    rows = stored(items, entry)
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata().take([3, 1, 2, 0, 4, 5, 6, 7]), sink)  # without our checksum
    items.storage.put(key, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptDataError, match="sorted by the primary key"):
        items.lake_rows()


def test_no_flipped_byte_of_merged_files_gives_other_rows(items):
    items.change([(1, "b", 1)], [(3,)])
    items.tier()
    expected = items.expected()
    detected = 0
    for entry in live(items):
        (key,) = [info.key for info in items.storage.list("lake/") if info.key.endswith(entry.file.file_name)]
        whole = items.storage.read(key)
        for at in range(0, len(whole), 11):
            items.storage.put(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                assert items.lake_rows() == expected, at
            except CorruptDataError:
                detected += 1
        items.storage.put(key, whole)
    assert detected > 30


# -- other writers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path) -> KeyedTable:
    table = keyed(LocalStorage(str(tmp_path / "wh"), fsync=False))
    table.change([(i, f"n{i}", i) for i in range(5)])
    table.tier()
    return table


def append(table: KeyedTable, *rows: tuple) -> None:
    """By pypaimon alone."""
    found = CatalogFactory.create({"warehouse": f"{table.storage.url}/lake"}).get_table("d.t")
    builder = found.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    schema = table.state.schema.arrow
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    write.write_arrow(pa.table(columns, schema=schema))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def test_keys_that_another_engine_wrote_come_right_when_they_change(shared):
    append(shared, (1, "f", 100), (1, "g", 101), (77, "new", 7))
    assert shared.lake_rows() == shared.foreign_rows()
    assert (1, "g", 101) in shared.lake_rows()
    append(shared, (2, "h", 102))
    shared.change([(1, "ours", 1)], [(2,)])
    shared.tier()
    shared.rows[(77,)] = (77, "new", 7)
    agree(shared)
    shared.lake().compact()
    agree(shared)
    assert shared.unmerged_rows() == shared.expected()
    shared.change([(3, "later", 1)])
    shared.tier()
    agree(shared)


def test_a_round_that_another_writer_overtook_is_planned_again(shared):
    """Its sequence numbers would be below the other's, and its rows would not count."""
    shared.change([(1, "ours", 1)])
    appended = []

    def between() -> None:
        if not appended:
            appended.append(append(shared, (1, "f", 100), (1, "g", 101), (4, "h", 0)))

    assert shared.tier(before_commit=between).conflicts == 1
    shared.rows[(4,)] = (4, "h", 0)
    agree(shared)


def test_a_round_is_not_planned_again_for_a_compaction(shared):
    shared.change([(1, "ours", 1)], [(2,)])
    assert shared.tier(before_commit=lambda: shared.lake().compact()).conflicts == 0
    agree(shared)


def test_a_compaction_leaves_no_deletion_out_that_is_needed(shared, monkeypatch):
    """A row that is added meanwhile, with a smaller sequence number than the deletion of its key."""
    shared.change([(1, "x", 1)], [(2,), (3,)])
    shared.tier()
    older = live(shared)
    place = shared.lake().binding
    real = paimon_compact_keyed.live_entries
    calls = []

    def changed(where, table):
        calls.append(1)
        found = real(where, table)
        return found if len(calls) == 1 else [*found, replace(older[0], file=replace(older[0].file, file_name="late"))]

    monkeypatch.setattr(paimon_compact_keyed, "live_entries", changed)
    with pytest.raises(CommitConflictError, match="file late was added during the compaction"):
        shared.lake().compact()
    assert place.require().snapshot.id == 2
    agree(shared)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("merge-engine", "first-row"),
        ("merge-engine", "partial-update"),
        ("changelog-producer", "lookup"),
        ("deletion-vectors.enabled", "true"),
        ("bucket", "-2"),
        ("sequence.field", "n"),
        ("rowkind.field", "name"),
        ("ignore-delete", "true"),
        ("record-level.expire-time", "1 d"),
    ],
)
def test_options_with_which_other_rows_count_are_refused(items, option, value):
    place = items.lake().binding
    key = f"{place.spec.location}/schema/schema-0"
    schema = json.loads(place.storage.read(key))
    schema["options"][option] = value
    place.storage.put(key, json.dumps(schema).encode())
    items.change([(1, "b", 1)])
    with pytest.raises(LakeMismatchError, match=f"option {option}"):
        items.tier()


def test_a_lake_table_without_the_key_is_refused(memory, world):
    plain = keyed(memory, ITEMS).lake()
    spec = replace(plain.binding.spec, primary_key=())
    type(plain)(memory, spec, world=world).create_or_evolve()
    with pytest.raises(LakeMismatchError, match="primary keys: none, expected"):
        plain.create_or_evolve()


# -- which groups compaction takes ------------------------------------------------------------------------------------


def test_a_large_bucket_is_not_written_again_for_a_few_rows(monkeypatch):
    table = keyed()
    table.change([(i, "x", i) for i in range(100)])
    table.tier()
    table.lake().compact()
    table.change([(5, "y", 5)])
    table.tier()
    assert table.lake().compact().files_removed == 0
    monkeypatch.setattr(paimon_compact_keyed, "UNMERGED_FILES_MAX", 1)
    assert table.lake().compact().files_removed == 2
    agree(table)
    table.change([(i, "z", i) for i in range(20)])
    table.tier()
    monkeypatch.setattr(paimon_compact_keyed, "UNMERGED_FILES_MAX", 50)
    assert table.lake().compact().files_removed == 2
    assert table.unmerged_rows() == table.expected()


def test_a_bucket_whose_rows_all_went_has_no_files_after_compaction(items):
    items.change([], list(items.rows))
    items.tier()
    report = items.lake().compact()
    assert (report.files_removed, report.files_added, report.rows) == (2, 0, 0)
    assert live(items) == []
    agree(items)
    assert items.lake().newest().offsets == items.state.ends
