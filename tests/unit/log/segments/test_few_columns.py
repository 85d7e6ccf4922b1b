"""Reads of few columns: of a compressed segment only theirs are read, and from afar they come in few requests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from streamhouse_spark import CorruptDataError, OffsetRange, Warehouse
from streamhouse_spark.log.segment import BLOCK_BYTES_MIN
from streamhouse_spark.log.segments import writer
from streamhouse_spark.log.segments.reader import read_segment
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

COLUMNS = [f"c{i}" for i in range(16)]
ROWS = 40_000
BATCHES = 5


class Requests(FaultyStorage):
    """Notes the ranges of each request for a segment."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.asked: list[list[tuple[int, int]]] = []

    def read_ranges(self, key, ranges):
        if "/segments/" in key:
            self.asked.append(list(ranges))
        return super().read_ranges(key, ranges)

    @property
    def num_bytes(self) -> int:
        return sum(end - start for ranges in self.asked for start, end in ranges)


@pytest.fixture(params=["none", "lz4", "zstd"])
def codec(request) -> str:
    return request.param


def rows() -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({name: random.integers(0, 1 << 40, ROWS) for name in COLUMNS})


def appended(storage, world, codec: str, monkeypatch) -> pa.Table:
    monkeypatch.setattr(writer, "BATCH_ROWS_MAX", ROWS // BATCHES)
    properties = {"table.log.arrow.compression.type": codec, "table.datalake.enabled": "false"}
    table = Warehouse("wh", storage=storage, world=world).create_table("t", rows().schema, properties=properties)
    table.append(rows())
    (segment,) = table.state.live_segments()
    assert len(segment.index.batch_starts) == BATCHES
    return table


def found_in(storage, table, columns, offsets: OffsetRange) -> pa.Table:
    (segment,) = table.state.live_segments()
    schema = table.state.schema.arrow
    found = read_segment(storage, table.uuid, segment, schema, offsets, columns)
    return pa.Table.from_batches([part.batch for part in found])


def test_two_requests_fetch_columns_of_all_batches(world, codec, monkeypatch):
    storage = Requests(MemoryStorage(world))
    table = appended(storage, world, codec, monkeypatch)
    for names in (["c3"], ["c11", "c2"], COLUMNS[::5]):
        storage.asked.clear()
        assert found_in(storage, table, names, OffsetRange(0, ROWS)).equals(rows().select(names))
        assert len(storage.asked) == 2, "the heads of all batches, then the columns of all batches"
        (segment,) = table.state.live_segments()
        share = segment.size_bytes * len(names) / len(COLUMNS)
        assert storage.num_bytes < share + BATCHES * (len(names) + 1) * 2 * BLOCK_BYTES_MIN


def test_columns_of_some_batches(world, codec, monkeypatch):
    storage = Requests(MemoryStorage(world))
    table = appended(storage, world, codec, monkeypatch)
    some = OffsetRange(ROWS // 2, ROWS // 2 + 10)
    assert found_in(storage, table, ["c9"], some).equals(rows().select(["c9"]).slice(some.start, len(some)))
    assert len(storage.asked) == 1, "a batch of 640 kB comes whole"
    assert storage.num_bytes <= table.state.live_segments()[0].size_bytes / BATCHES + 2 * BLOCK_BYTES_MIN


def test_all_columns_come_in_one_request(world, codec, monkeypatch):
    storage = Requests(MemoryStorage(world))
    table = appended(storage, world, codec, monkeypatch)
    for names in (None, COLUMNS[::-1]):
        for offsets in (OffsetRange(0, ROWS), OffsetRange(9000, 31_000)):
            storage.asked.clear()
            expected = rows().slice(offsets.start, len(offsets))
            assert found_in(storage, table, names, offsets).equals(expected.select(names or COLUMNS))
            assert len(storage.asked) == 1


def test_a_mapped_file_is_looked_at_where_the_columns_lie(tmp_path, world, codec, monkeypatch):
    """Damage anywhere else does not matter to the read, damage there does."""
    storage = LocalStorage(str(tmp_path))
    table = appended(storage, world, codec, monkeypatch)
    (segment,) = table.state.live_segments()
    path = tmp_path / f"tables/{table.uuid}/segments/{segment.uuid}.arrow"
    whole = path.read_bytes()
    found = 0
    for at in range(BLOCK_BYTES_MIN // 2, segment.size_bytes - BLOCK_BYTES_MIN, BLOCK_BYTES_MIN):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert found_in(storage, table, ["c7"], OffsetRange(0, ROWS)).equals(rows().select(["c7"]))
        except CorruptDataError:
            found += 1
    assert BATCHES <= found <= BATCHES * 5 < segment.size_bytes // BLOCK_BYTES_MIN // 2
