"""Every flipped byte and every cut of every kind of file: a typed error or the same rows, never others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from corruption import damage
from faults.faulty_storage import Fault, FaultyStorage
from streamhouse_spark import (
    CorruptDataError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
    Warehouse,
    WarehouseNotFoundError,
)
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY
from streamhouse_spark.log.compaction import plan_inline_merge
from streamhouse_spark.log.segments import reader
from streamhouse_spark.write.auto_compaction import compact_inline_rows

KINDS = ["memory", pytest.param("local", marks=pytest.mark.long)]


def report(what: str, counts: dict[str, int]) -> None:
    print(f"{what}: {sum(counts.values())} damages, {dict(counts)}")  # noqa: T201


@pytest.mark.parametrize("columns", [None, ["id"]], ids=["all", "one"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_segment_is_an_error_or_reads_unchanged(kind, codec, columns, tmp_path):
    damaged = damage.new_storage(kind, tmp_path)
    rows = damage.small_table(damaged, codec=codec, objects=True)
    damaged.live = damaged.open()
    expected = rows if columns is None else rows.select(columns)
    largest = max(damaged.keys("/segments/"), key=damaged.storage.size_bytes)
    counts = damage.outcomes_of(damaged, largest, expected, columns=columns)
    report(f"segment, {kind}, {codec}, {columns or 'all'} columns", counts)
    assert set(counts) <= {"CorruptDataError", "unchanged"}
    assert counts["CorruptDataError"] > counts["unchanged"]


def test_metadata_behind_a_wide_schema_is_verified_before_arrow_reads_it(tmp_path):
    damaged = damage.new_storage("local", tmp_path)
    rows = damage.wide_table(damaged)
    damaged.live = damaged.open()
    key = damaged.keys("/segments/")[0]
    whole = damaged.storage.read(key)
    reader = pa.ipc.open_file(whole)
    schema_end = 8 + reader.schema.serialize().size
    metadata_bytes = int.from_bytes(whole[schema_end + 4 : schema_end + 8], "little")
    assert metadata_bytes > 1000
    found = 0
    for at in range(schema_end, schema_end + 8 + metadata_bytes, 37):
        damaged.replace(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(CorruptDataError):
            damaged.table_rows(["c0"])
        found += 1
    damaged.replace(key, whole)
    assert damaged.table_rows(["c0"]).equals(rows.select(["c0"]))
    assert found > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objects", [False, True], ids=["inline", "objects"])
def test_a_damaged_commit_record_is_an_error(kind, objects, tmp_path):
    damaged = damage.new_storage(kind, tmp_path)
    rows = damage.small_table(damaged, objects=objects)
    for key in damaged.keys("/commits/")[: 3 if kind == "memory" else 2]:
        if not key.endswith(".json"):
            continue
        counts = damage.outcomes_of(damaged, key, rows)
        report(f"commit record, {kind}, {key[-6:]}", counts)
        assert set(counts) <= {"CorruptDataError", "FormatVersionError"}, "a record is either whole or an error"


def test_a_damaged_manifest_is_corrupt_data(tmp_path):
    damaged = damage.new_storage("memory", tmp_path)
    rows = damage.small_table(damaged, manifests=True)
    for key in damaged.keys("/manifests/"):
        counts = damage.outcomes_of(damaged, key, rows)
        report("manifest", counts)
        assert set(counts) == {"CorruptDataError"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_checkpoint_is_survived_by_reading_the_records(kind, tmp_path):
    damaged = damage.new_storage(kind, tmp_path)
    rows = damage.small_table(damaged)
    table = damaged.open()
    table.log.checkpoint(table.state)
    for key in damaged.keys("/checkpoints/"):
        counts = damage.outcomes_of(damaged, key, rows)
        report(f"checkpoint, {kind}, {key.rpartition('/')[2]}", counts)
        assert set(counts) == {"unchanged"}


def with_records_cleaned(tmp_path) -> tuple[damage.Damaged, pa.Table]:
    damaged = damage.new_storage("memory", tmp_path)
    rows = damage.small_table(damaged)
    damage.with_floor(damaged)
    oldest = min(int(key.rpartition("/")[2]) for key in damaged.keys("/checkpoints/0"))
    for key in damaged.keys("/commits/"):
        if int(key[-25:-5]) < oldest:
            damaged.storage.delete(key)
    return damaged, rows


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.long
def test_damage_to_one_of_two_checkpoints_loses_no_row(which, tmp_path):
    damaged, rows = with_records_cleaned(tmp_path)
    keys = damaged.keys("/checkpoints/0")
    assert len(keys) == 2
    counts = damage.outcomes_of(damaged, keys[which], rows)
    report("one checkpoint above a floor", counts)
    assert set(counts) == {"unchanged"}


@pytest.mark.long
def test_a_damaged_last_checkpoint_above_a_floor_is_an_error(tmp_path):
    """The records below it are gone, so there is nothing to fall back on: an error, not an empty table."""
    damaged, rows = with_records_cleaned(tmp_path)
    older, newest = damaged.keys("/checkpoints/0")
    damaged.storage.delete(older)
    counts = damage.outcomes_of(damaged, newest, rows)
    report("the last checkpoint above a floor", counts)
    assert set(counts) <= {"FormatVersionError", "CorruptDataError"}


@pytest.mark.parametrize("part", ["/floors/", "/names/", WAREHOUSE_KEY])
def test_damaged_small_files_of_the_log_are_errors(part, tmp_path):
    damaged = damage.new_storage("memory", tmp_path)
    rows = damage.small_table(damaged)
    damage.with_floor(damaged)
    for key in damaged.keys(part):
        counts = damage.outcomes_of(damaged, key, rows)
        report(key, counts)
        assert set(counts) <= {"CorruptDataError", "FormatVersionError", *(["unchanged"] if part == "/floors/" else [])}
        if part == "/floors/":
            assert counts["unchanged"] > counts["CorruptDataError"], "flips are survived, cuts are found"


@pytest.mark.parametrize("kind", KINDS)
def test_files_under_each_others_names(kind, tmp_path):
    damaged = damage.new_storage(kind, tmp_path)
    damage.small_table(damaged, objects=True)
    for part in ("/segments/", "/commits/0"):
        keys = [k for k in damaged.keys(part) if not k.endswith(".lock")]
        whole = {key: damaged.storage.read(key) for key in keys}
        for key in keys:
            for other in keys:
                if other != key:
                    damaged.replace(key, whole[other])
                    with pytest.raises(CorruptDataError):
                        damaged.table_rows()
            damaged.replace(key, whole[key])
    assert damaged.table_rows().equals(damage.ROWS)


MISSING = {
    WAREHOUSE_KEY: WarehouseNotFoundError,
    "/names/00000001": TableNotFoundError,
    "/segments/": CorruptDataError,
    "/manifests/": CorruptDataError,
    "/commits/00000000000000000001": StreamhouseError,
    "/commits/00000000000000000002": CorruptDataError,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", MISSING)
def test_a_missing_file_is_a_clear_error_and_never_fewer_rows(kind, part, tmp_path):
    damaged = damage.new_storage(kind, tmp_path)
    rows = damage.small_table(damaged, objects=True, manifests=True)
    keys = damaged.keys(part)
    assert keys
    for key in keys:
        whole = damaged.storage.read(key)
        damaged.storage.delete(key)
        with pytest.raises(MISSING[part]):
            damaged.table_rows()
        damaged.replace(key, whole)
    assert damaged.table_rows().equals(rows)


def test_a_missing_checkpoint_or_hint_costs_time_only(tmp_path):
    damaged = damage.new_storage("memory", tmp_path)
    rows = damage.small_table(damaged)
    table = damaged.open()
    table.log.checkpoint(table.state)
    for key in damaged.keys("/checkpoints/"):
        damaged.storage.delete(key)
        assert damaged.table_rows().equals(rows)


def test_a_writer_meets_damage_as_an_error_and_adds_nothing(tmp_path):
    damaged = damage.new_storage("memory", tmp_path)
    damage.small_table(damaged)
    key = damaged.keys("/commits/")[1]
    whole = damaged.storage.read(key)
    for at in range(0, len(whole), 7):
        damaged.replace(key, whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        before = len(damaged.keys("/commits/"))
        with pytest.raises(StreamhouseError):
            damaged.open().append(damage.ROWS)
        assert len(damaged.keys("/commits/")) == before


def test_an_error_of_the_store_while_columns_are_read_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "ONE_REQUEST_BYTES_MAX", 0)
    damaged = damage.new_storage("memory", tmp_path)
    damage.wide_table(damaged)

    def read(storage: FaultyStorage) -> None:
        Warehouse(storage.url, storage=storage).table(damage.NAME).to_arrow(columns=["c0", "c150", "c299"])

    whole = FaultyStorage(damaged.storage)
    read(whole)
    failed = 0
    for at in range(len(whole.trace)):
        storage = FaultyStorage(damaged.storage, {at: Fault.ERROR_BEFORE})
        with pytest.raises(StorageError, match="injected"):
            read(storage)
        failed += storage.trace[-1][1] == "read_ranges"
    assert failed == 2, "the heads of the batches, and the columns"


def test_merging_verifies_what_it_merges(tmp_path):
    """Damaged rows are never written anew under a fresh checksum."""
    damaged = damage.new_storage("memory", tmp_path)
    damage.small_table(damaged)
    table = damaged.open()
    assert plan_inline_merge(table.state)
    key = damaged.keys("/commits/")[1]
    whole = damaged.storage.read(key)
    damaged.replace(key, whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(CorruptDataError):
        compact_inline_rows(table)
    assert not damaged.keys("/segments/")


def test_a_damaged_lake_file_is_an_error_or_reads_unchanged(tmp_path):
    damaged = damage.new_storage("local", tmp_path)
    rows = damage.tiered_table(damaged)
    damaged.live = damaged.open()
    (key,) = damaged.keys(".parquet")
    whole = damaged.storage.read(key)
    counts = dict.fromkeys(("error", "unchanged"), 0)
    for at in range(0, len(whole), 2):
        damaged.replace(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = damaged.table_rows()
        except StreamhouseError:
            counts["error"] += 1
        else:
            assert found.equals(rows), f"byte {at}: wrong rows"
            counts["unchanged"] += 1
    report("lake file", counts)
    assert counts["error"] > counts["unchanged"]
