"""Segments that share objects are verified one by one, and few columns are read in few requests."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from streamhouse_spark import CorruptDataError, FormatVersionError, OffsetRange, Warehouse
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.actions import Trim, action_to_json
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.garbage_collection import clean
from streamhouse_spark.log.log_copy import copy_log
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segment import BLOCK_BYTES_MIN
from streamhouse_spark.log.segments import multi_bucket_writer, writer
from streamhouse_spark.log.segments.multi_bucket_writer import group_into_objects
from streamhouse_spark.log.segments.reader import read_segment, verify_segment
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_small_segments

BUCKETS = 4096
ROWS = 20_000
HOUR_MS = 3600 * 1000


def rows(first: int = 0, count: int = ROWS, row_bytes: int = 3300) -> pa.Table:
    ids = np.arange(first, first + count)
    random = np.random.default_rng(first).bytes(count * row_bytes)
    offsets = pa.py_buffer(np.arange(0, (count + 1) * row_bytes, row_bytes, dtype=np.int32).tobytes())
    data = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(random)])
    return pa.table({"id": ids, "data": data})


def table_of(storage, world, buckets: int, **options):
    key = {} if "primary_key" in options else {"bucket.key": "id"}
    properties = {**key, "table.datalake.enabled": "false", **options.pop("properties", {})}
    columns = "id BIGINT, data BINARY"
    return Warehouse("wh", storage=storage, world=world).create_table(
        "t", columns, buckets=buckets, properties=properties, **options
    )


def small(table, first: int = 0, count: int = 256) -> pa.Table:
    """Rows for all of few buckets that do not travel in the record."""
    found = rows(first, count, 4000)
    table.append(found)
    return found


def written(counted: FaultyStorage) -> Counter[str]:
    keys = [key for _, method, key in counted.trace if method in ("put", "put_if_absent", "create.open")]
    counted.trace.clear()
    return Counter(key.rpartition("/")[0].rpartition("/")[2] for key in keys)


def requests(counted: FaultyStorage) -> list[str]:
    found = [key for _, _, key in counted.trace if "/segments/" in key]
    counted.trace.clear()
    return found


def objects(storage, table) -> set[str]:
    return {info.key for info in storage.list(f"tables/{table.uuid}/segments/")}


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def test_an_append_to_all_buckets_is_a_few_objects(counted, memory, world):
    table = table_of(counted, world, BUCKETS)
    counted.trace.clear()
    table.append(rows())
    assert 2 <= written(counted)["segments"] <= 4
    assert len(table.refresh().live_segments()) > 0.98 * BUCKETS
    other = Warehouse("wh", storage=counted, world=world).table("t")
    counted.trace.clear()
    assert sorted_rows(other.to_arrow()).equals(rows())
    assert len(requests(counted)) <= 16
    assert sum(s.size_bytes for s in table.state.live_segments()) < 1.2 * rows().nbytes


def test_merging_many_such_appends_shares_objects_again(counted, memory, world):
    table = table_of(counted, world, 512)
    for number in range(10):
        table.append(rows(number * ROWS, 4000, 400))
    counted.trace.clear()
    assert compact_small_segments(table) > 4600
    calls = [(method, key) for _, method, key in counted.trace if "/segments/" in key]
    assert len([key for method, key in calls if method == "create.open"]) <= 3  # 16 MB
    assert len([key for method, key in calls if method == "read_ranges"]) < 100  # of 5,120 segments
    state = table.refresh()
    assert all(len(log.segments) == 1 for log in state.buckets.values())
    ids = np.concatenate([np.arange(number * ROWS, number * ROWS + 4000) for number in range(10)])
    assert sorted_rows(table.to_arrow())["id"].to_pylist() == ids.tolist()
    assert len(state.condemned) == 10  # all that the ten appends wrote, each once


def test_an_upsert_of_all_buckets_is_a_few_objects(counted, memory, world, own_cache):
    table = table_of(counted, world, 256, primary_key=["id"])
    counted.trace.clear()
    table.upsert(rows(count=4000))
    assert written(counted)["segments"] == 1
    found = Warehouse("wh", storage=memory, world=world).table("t").to_arrow()
    assert sorted_rows(found).cast(rows(count=1).schema).equals(rows(count=4000))


@pytest.mark.parametrize("buckets", [1, 4, 15])
def test_few_buckets_have_an_object_each(counted, world, buckets):
    table = table_of(counted, world, buckets)
    small(table)
    assert len(objects(counted, table)) == buckets
    assert all(segment.part is None for segment in table.refresh().live_segments())


def test_segments_share_objects_of_bounded_size(monkeypatch):
    monkeypatch.setattr(multi_bucket_writer, "SHARED_BYTES_MAX", 100)
    monkeypatch.setattr(multi_bucket_writer, "PART_BYTES_MAX", 10)
    monkeypatch.setattr(multi_bucket_writer, "PARTS_MIN", 3)
    found = list(group_into_objects([*([10] * 12), 11, 1, 2], lambda size: size))
    assert found == [(10,) * 10, (11,), (10, 10, 1, 2)] or found == [(11,), (10,) * 10, (10, 10, 1, 2)]
    assert list(group_into_objects([1, 2], lambda size: size)) == [(1,), (2,)]


def test_large_and_small_buckets_keep_the_order_of_rows(memory, world, monkeypatch):
    monkeypatch.setattr("streamhouse_spark.log.staging.SEGMENT_BYTES_MAX", 1 << 20)  # several pieces a bucket
    monkeypatch.setattr(multi_bucket_writer, "PART_BYTES_MAX", 60_000)  # some parts are larger, some not
    table = table_of(memory, world, 16)
    appended = rows(0, 600, 5_000)
    table.append(appended)
    parts = [segment.part for segment in table.refresh().live_segments()]
    assert {part is None for part in parts} == {True, False}
    for bucket, log in table.state.buckets.items():
        split = plan_range(table.state, bucket, log.offsets)
        ids = [i for found in read_split(memory, split, table.state.schema) for i in found.batch["id"].to_pylist()]
        assert ids == sorted(ids)
    assert sorted_rows(table.to_arrow()).equals(appended)


def trim(table, buckets) -> None:
    starts = {bucket: table.refresh().buckets[bucket].end for bucket in buckets}
    table.log.commit(lambda _state, _ms: (Trim(starts),))


def test_an_object_goes_with_the_last_of_its_segments(memory, world):
    table = table_of(memory, world, 16)
    appended = small(table)
    (key,) = objects(memory, table)
    for bucket in range(15):
        trim(table, [bucket])
        world.clock.advance(25 * HOUR_MS)
        clean(table.log, memory)
        assert not table.refresh().condemned
    last = table.refresh().buckets[15].segments
    assert sum(s.num_rows for s in last) == table.to_arrow().num_rows > 0
    assert set(table.to_arrow()["id"].to_pylist()) < set(appended["id"].to_pylist())
    trim(table, [15])
    assert set(table.refresh().condemned) == {key}
    clean(table.log, memory)
    assert objects(memory, table) == {key}, "who reads an older state has the grace"
    world.clock.advance(25 * HOUR_MS)
    clean(table.log, memory)
    assert not objects(memory, table)


def test_all_at_once_are_condemned_once(memory, world):
    table = table_of(memory, world, 16)
    small(table)
    small(table, 1000)
    table.truncate()
    assert set(table.refresh().condemned) == objects(memory, table)
    assert len(objects(memory, table)) == 2


def test_a_flipped_bit_is_found_in_its_segment_alone(tmp_path, world, memory):
    for storage in (memory, LocalStorage(str(tmp_path))):
        table = table_of(storage, world, 16)
        small(table)
        state = table.refresh()
        schema = state.schema.arrow
        hurt = state.buckets[7].segments[0]
        assert hurt.part
        assert hurt.part % 64 == 0
        key = segment_key(state.table_uuid, hurt.uuid)
        data = bytearray(storage.read(key))
        data[hurt.part + hurt.size_bytes // 2] ^= 1
        storage.delete(key)
        storage.put(key, bytes(data))
        for segment in state.live_segments():
            if segment == hurt:
                with pytest.raises(CorruptDataError, match="do not match their checksum"):
                    verify_segment(storage, table.uuid, segment, schema)
            else:
                verify_segment(storage, table.uuid, segment, schema)
        with pytest.raises(CorruptDataError):
            table.to_arrow()


def test_a_cut_object_is_damage(tmp_path, world, memory):
    for storage in (memory, LocalStorage(str(tmp_path))):
        table = table_of(storage, world, 16)
        small(table)
        (key,) = objects(storage, table)
        data = storage.read(key)
        storage.delete(key)
        storage.put(key, data[:-1])
        with pytest.raises(CorruptDataError, match="restore this file"):
            table.to_arrow()


def test_one_bucket_is_read_without_the_others_bytes(counted, memory, world):
    table = table_of(counted, world, 16)
    small(table)
    segment = table.refresh().buckets[3].segments[0]
    fetched = []
    whole = memory.read_ranges
    memory.read_ranges = lambda key, ranges: fetched.extend(ranges) or whole(key, ranges)
    verify_segment(counted, table.uuid, segment, table.schema)
    assert fetched
    assert all(segment.part <= start < end <= segment.part + segment.size_bytes for start, end in fetched)


def test_an_older_version_is_stopped(memory, world, monkeypatch):
    table = table_of(memory, world, 16)
    small(table)
    record, _ = read_record(memory, table.uuid, 2)
    kinds = [action_to_json(action, PayloadOf()) for action in record.actions]
    assert [kind["type"] for kind in kinds] == ["append-parts"]
    write_checkpoint(memory, table.refresh())
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.PAST_VERSION)
    with pytest.raises(FormatVersionError):
        read_checkpoint(memory, table.uuid, 2)


def test_tables_without_shared_objects_are_written_as_before(memory, world):
    table = table_of(memory, world, 4)
    small(table)
    record, _ = read_record(memory, table.uuid, 2)
    (written_as,) = (action_to_json(action, PayloadOf()) for action in record.actions)
    assert written_as["type"] == "append"
    assert not any("part" in segment for segment in written_as["segments"])
    write_checkpoint(memory, table.refresh())
    key = f"tables/{table.uuid}/checkpoints/"
    (found,) = (memory.read(info.key) for info in memory.list(key) if not info.key.endswith("hint"))
    assert b'"version":1' in found[:60]


def test_a_copy_has_the_shared_objects(memory, world):
    table = table_of(memory, world, 16)
    small(table)
    write_checkpoint(memory, table.refresh())
    trim(table, range(3))
    copied = "0" * 8 + table.uuid[8:]
    copy_log(memory, world, table.uuid, copied)
    assert read_checkpoint(memory, copied, 2).live_segments() == read_checkpoint(memory, table.uuid, 2).live_segments()
    state = CommitLog(memory, copied, world).refresh()
    assert len(state.live_segments()) == 13
    for segment in state.live_segments():
        verify_segment(memory, copied, segment, state.schema.arrow)


class PayloadOf:
    """Takes index bytes and forgets them."""

    def add(self, part: bytes) -> tuple[int, int]:
        return 0, len(part)


COLUMNS = [f"c{i}" for i in range(16)]
NUM_WIDE_ROWS = 40_000
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


def wide_rows() -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({name: random.integers(0, 1 << 40, NUM_WIDE_ROWS) for name in COLUMNS})


def appended(storage, world, codec: str, monkeypatch) -> pa.Table:
    monkeypatch.setattr(writer, "BATCH_ROWS_MAX", NUM_WIDE_ROWS // BATCHES)
    properties = {"table.log.arrow.compression.type": codec, "table.datalake.enabled": "false"}
    table = Warehouse("wh", storage=storage, world=world).create_table("t", wide_rows().schema, properties=properties)
    table.append(wide_rows())
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
        assert found_in(storage, table, names, OffsetRange(0, NUM_WIDE_ROWS)).equals(wide_rows().select(names))
        assert len(storage.asked) == 2, "the heads of all batches, then the columns of all batches"
        (segment,) = table.state.live_segments()
        share = segment.size_bytes * len(names) / len(COLUMNS)
        assert storage.num_bytes < share + BATCHES * (len(names) + 1) * 2 * BLOCK_BYTES_MIN


def test_one_request_reads_a_column_of_some_batches(world, codec, monkeypatch):
    storage = Requests(MemoryStorage(world))
    table = appended(storage, world, codec, monkeypatch)
    some = OffsetRange(NUM_WIDE_ROWS // 2, NUM_WIDE_ROWS // 2 + 10)
    assert found_in(storage, table, ["c9"], some).equals(wide_rows().select(["c9"]).slice(some.start, len(some)))
    assert len(storage.asked) == 1, "a batch of 640 kB comes whole"
    assert storage.num_bytes <= table.state.live_segments()[0].size_bytes / BATCHES + 2 * BLOCK_BYTES_MIN


def test_all_columns_come_in_one_request(world, codec, monkeypatch):
    storage = Requests(MemoryStorage(world))
    table = appended(storage, world, codec, monkeypatch)
    for names in (None, COLUMNS[::-1]):
        for offsets in (OffsetRange(0, NUM_WIDE_ROWS), OffsetRange(9000, 31_000)):
            storage.asked.clear()
            expected = wide_rows().slice(offsets.start, len(offsets))
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
            assert found_in(storage, table, ["c7"], OffsetRange(0, NUM_WIDE_ROWS)).equals(wide_rows().select(["c7"]))
        except CorruptDataError:
            found += 1
    assert BATCHES <= found <= BATCHES * 5 < segment.size_bytes // BLOCK_BYTES_MIN // 2
