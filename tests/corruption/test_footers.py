"""Every flipped bit of the footer and page index of a lake file is found by `verify`, and by our own reader."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corruption.damage import flips_of_tail, tail_start
from interop.keyed_cases import read_by_pypaimon
from kit.tables import tier
from streamhouse_spark import CorruptDataError, Table, Warehouse
from streamhouse_spark.cli import fsck
from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake
from streamhouse_spark.lake.file_access import open_lake_files
from streamhouse_spark.lake.iceberg import compaction as iceberg_compact_keyed
from streamhouse_spark.lake.parquet import bucket_writer as bucket_files
from streamhouse_spark.lake.parquet import footer_checksum
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import has_whole_footer
from streamhouse_spark.lake.types import LakeSplit
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

NUM_ROWS = 60
SHAPES = [(lake, keyed) for lake in ("iceberg", "paimon") for keyed in (False, True)]


def tiered(storage, lake_format: str, *, keyed: bool, rounds: int = 2) -> Table:
    """A table whose rows lie in a file of each round."""
    warehouse = Warehouse(storage.url, storage=storage)
    table = warehouse.create_table(
        "sales.orders",
        "id BIGINT NOT NULL, text STRING, n DOUBLE",
        primary_key=["id"] if keyed else [],
        properties={"table.datalake.format": lake_format},
    )
    for number in range(rounds):
        rows = [{"id": i, "text": f"{number} {i}", "n": i / 3} for i in range(number * 20, number * 20 + 40)]
        (table.upsert if keyed else table.append)(rows)
        tier(table)
    return table


def splits_of(table: Table) -> Sequence[LakeSplit]:
    return table.open_lake().plan_read(schema=table.refresh().schema).splits


def files_of(table: Table) -> list[str]:
    """Data files and files of deleted positions of the newest lake snapshot."""
    found = [
        name
        for split in splits_of(table)
        for name in (
            *([file.location for file in split.merge.files] if split.merge else [split.location]),
            *split.position_deletes,
        )
    ]
    return sorted(set(found))


def verified(table: Table) -> Verification:
    state, result = table.refresh(), Verification(table.name)
    plan = open_lake_plan(table, state, result)
    verify_lake(table, state, plan, result, lambda _: None)
    return result


def missed_flips(table: Table, location: str, flips: Iterator[tuple[str, bytes]]) -> list[str]:
    """Return the flips that the check of `verify` does not find; afterwards the file is whole again."""
    files = StorageFiles(table.storage)
    key, missed = files.key_of(location), []
    whole = table.storage.read(key)
    assert has_whole_footer(files, location)
    for what, data in flips:
        table.storage.put(key, data)
        try:
            has_whole_footer(files, location)
        except CorruptDataError as error:
            assert location in str(error)  # noqa: PT017
        else:
            missed.append(what)
    table.storage.put(key, whole)
    return missed


def bytes_of(table: Table, location: str) -> bytes:
    return table.storage.read(StorageFiles(table.storage).key_of(location))


@pytest.mark.parametrize(("lake_format", "keyed"), SHAPES)
def test_every_bit_of_files_of_rounds_and_of_deletes(lake_format, keyed):
    table = tiered(MemoryStorage(), lake_format, keyed=keyed)
    names = files_of(table)
    assert any("-deletes-" in name for name in names) == (keyed and lake_format == "iceberg")
    for location in names:
        assert missed_flips(table, location, flips_of_tail(bytes_of(table, location))) == []
    assert verified(table).problems == []
    assert verified(table).lake_footers == len(names)


@pytest.mark.parametrize(("lake_format", "keyed"), SHAPES)
def test_every_flipped_bit_of_a_compacted_file_is_detected(lake_format, keyed):
    table = tiered(MemoryStorage(), lake_format, keyed=keyed, rounds=6)
    before = set(files_of(table))
    with (
        mock.patch.object(iceberg_compact_keyed, "SMALL_FILES_MIN", 2),
        mock.patch.object(iceberg_compact_keyed, "DELETED_SHARE_MIN", 0),
    ):
        table.lake.compact()
    (location,) = set(files_of(table)) - before
    whole = bytes_of(table, location)
    assert missed_flips(table, location, flips_of_tail(whole)) == []
    found = verified(table)
    assert (found.problems, found.lake_footers) == ([], len(before) + 1), "what the log records, and what others read"
    table.storage.put(StorageFiles(table.storage).key_of(location), whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert [location in problem for problem in verified(table).problems] == [True]


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_flips_that_hide_rows_from_an_engine_that_trusts_bounds(lake_format):
    """They parse without an error, and an engine that skips by bounds finds fewer rows: `verify` says which file."""
    table = tiered(MemoryStorage(), lake_format, keyed=False, rounds=1)
    (location,) = files_of(table)
    key, whole = StorageFiles(table.storage).key_of(location), bytes_of(table, location)
    greatest = (39).to_bytes(8, "little")
    places = [m.end() - 1 for m in re.finditer(re.escape(greatest), whole) if m.start() >= tail_start(whole)]
    assert len(places) >= 2, "in the page index and in the footer"
    hidden = 0
    for at in places:
        table.storage.put(key, whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        bounds = pq.read_metadata(pa.BufferReader(table.storage.read(key))).row_group(0).column(0).statistics
        hidden += bounds.max < 0
        found = verified(table).problems
        assert any(location in problem and "does not match its checksum" in problem for problem in found)
    assert hidden
    table.storage.put(key, whole)
    assert verified(table).problems == []


@pytest.mark.parametrize(("lake_format", "keyed"), SHAPES)
@pytest.mark.long
def test_our_reader_gives_an_error_or_the_same_rows(lake_format, keyed):
    table = tiered(MemoryStorage(), lake_format, keyed=keyed)
    expected = table.to_arrow().sort_by("id")
    draw = random.Random(7)
    for location in files_of(table):
        key, whole = StorageFiles(table.storage).key_of(location), bytes_of(table, location)
        footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for at in range(tail_start(whole), len(whole), 3):
            table.storage.put(key, whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
            if at >= footer_at:
                with pytest.raises(CorruptDataError, match=re.escape(location)):
                    table.to_arrow()
            else:  # Arrow does not look at the page index
                assert table.to_arrow().sort_by("id").equals(expected)
        table.storage.put(key, whole)


def test_files_without_a_checksum_are_counted(monkeypatch):
    """As versions before wrote them, and as other engines do, even with our entries copied under a name of theirs."""
    table = tiered(MemoryStorage(), "iceberg", keyed=False)
    with monkeypatch.context() as patch:
        patch.setattr("streamhouse_spark.lake.parquet.file_writer.close_with_checksum", write_without)
        table.append([{"id": 100, "text": "old", "n": 0.0}])
        tier(table)
    found = verified(table)
    assert (found.lake_footers, found.lake_footers_unchecked, found.problems) == (2, 1, [])
    copied = f"{table.storage.url}/theirs.parquet"
    whole = bytes_of(table, files_of(table)[0])
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    table.storage.put("theirs.parquet", flipped)
    assert has_whole_footer(open_lake_files(table.storage, {}, copied), copied) is False


def write_without(writer, sink, described):
    writer.add_key_value_metadata(dict(described))
    writer.close()


def test_a_footer_and_a_page_index_longer_than_the_tail_that_is_read(monkeypatch):
    monkeypatch.setattr(bucket_files, "BUFFERED_BYTES_MAX", 1 << 14)  # many row groups
    monkeypatch.setattr("streamhouse_spark.lake.parquet.file_writer.ROW_GROUP_ROWS_MAX", 4)
    warehouse = Warehouse("wide", storage=MemoryStorage())
    table = warehouse.create_table("d.t", ", ".join(f"c{i} BIGINT" for i in range(200)))
    for _ in range(10):
        table.append([{f"c{i}": i for i in range(200)}] * 4)
    tier(table)
    (location,) = files_of(table)
    whole = bytes_of(table, location)
    footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    assert len(whole) - footer_at > footer_checksum.TAIL_BYTES
    assert footer_at - tail_start(whole) > footer_checksum.TAIL_BYTES
    draw = random.Random(7)
    places = [draw.randrange(tail_start(whole), footer_at) for _ in range(50)]
    places += [draw.randrange(footer_at, len(whole)) for _ in range(50)] + list(range(len(whole) - 8, len(whole)))
    flips = ((f"byte {at}", whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]) for at in places)
    assert missed_flips(table, location, flips) == []
    assert verified(table).problems == []
    assert table.to_arrow().num_rows == 40


@pytest.mark.parametrize(("lake_format", "keyed"), SHAPES)
def test_other_engines_read_the_files(lake_format, keyed, tmp_path):
    storage = LocalStorage(str(tmp_path / "warehouse"), fsync=False)
    table = tiered(storage, lake_format, keyed=keyed)
    expected = sorted(table.to_arrow()["id"].to_pylist())
    if lake_format == "paimon":
        found = read_by_pypaimon(storage, "sales.orders")
    else:
        found = table.open_lake().binding.load().scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == expected
    for location in files_of(table):
        (count,) = duckdb.sql(f"SELECT count(*) FROM read_parquet('{location}')").fetchone()
        assert count == pq.read_metadata(location).num_rows


def test_requests_stay_as_many(monkeypatch):
    """Our reader asks for the end of the file, as Arrow does, and Arrow then no more."""
    table = tiered(MemoryStorage(), "iceberg", keyed=False, rounds=1)
    (split,) = splits_of(table)
    requests = []
    known = type(table.storage).read_ranges
    monkeypatch.setattr(type(table.storage), "read_ranges", lambda s, *a: requests.append(a) or known(s, *a))
    lake, plan = table.open_lake(), table.open_lake().plan_read(schema=table.state.schema)
    counts = []
    for is_own in (footer_checksum._is_own, lambda _: False):
        monkeypatch.setattr(footer_checksum, "_is_own", is_own)
        requests.clear()
        assert sum(batch.num_rows for batch in lake.read_split(split, plan.projection)) == 40
        counts.append(len([key for key, _ in requests if key.endswith(".parquet")]))
    assert counts[0] == counts[1] > 0


def test_verify_asks_twice_a_file_beside_the_five_requests_that_reading_it_takes(monkeypatch):
    table = tiered(MemoryStorage(), "iceberg", keyed=False, rounds=3)
    requests = []
    for name in ("read_ranges", "size_bytes"):
        known = getattr(MemoryStorage, name)
        counted = lambda s, key, *a, known=known: requests.append(key) or known(s, key, *a)  # noqa: E731
        monkeypatch.setattr(MemoryStorage, name, counted)

    def asked() -> float:
        requests.clear()
        assert not verified(table).problems
        return len([key for key in requests if key.endswith(".parquet")]) / len(files_of(table))

    assert asked() == 5 + 2
    monkeypatch.setattr(fsck, "_check_footers", lambda *_: None)
    assert asked() == 5
