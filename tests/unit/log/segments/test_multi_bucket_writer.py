"""Large appends to few buckets: a segment of each grows while further rows are cut by bucket."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.core.concurrency import map_with_prefetch
from streamhouse_spark.log import staging
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.log.segments.multi_bucket_writer import BucketSegmentWriter
from streamhouse_spark.log.segments.writer import BATCH_ROWS_MAX
from streamhouse_spark.storage import local

NUM_ROWS = 200_000
NUM_BUCKETS = 3
PROPERTIES = {"bucket.num": str(NUM_BUCKETS), "bucket.key": "id", "table.statistics.columns": "id,at,name"}
ROWS = pa.table(
    {
        "id": np.arange(NUM_ROWS),
        "at": pa.array(np.arange(NUM_ROWS) % 1000, pa.timestamp("us")),
        "name": [None if i % 50 == 0 else f"name {i % 977}" for i in range(NUM_ROWS)],
        "day": pa.array(np.arange(NUM_ROWS) // 100_000, pa.int32()),
    }
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(staging, "PARALLEL_BYTES_MIN", 1)
    monkeypatch.setattr(staging, "STEP_BYTES_MAX", 200_000)


def segments_of(table):
    return [segment for _, segment in sorted(((s.bucket, s.base_offset), s) for s in table.state.live_segments())]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_segments_are_described_as_if_they_had_been_written_whole(warehouse_path, monkeypatch, codec):
    warehouse = Warehouse(warehouse_path)
    properties = {**PROPERTIES, "table.log.arrow.compression.type": codec}
    found = {}
    for name in ("streams", "whole"):
        if name == "whole":
            monkeypatch.setattr(staging, "FEW_BUCKETS", range(0))
        table = warehouse.create_table(name, ROWS.schema, properties=properties, partition_by=["day"])
        assert table.append(ROWS).num_rows == NUM_ROWS
        assert table.to_arrow().sort_by("id").equals(ROWS)
        found[name] = segments_of(table)
    assert len(found["streams"]) == len(found["whole"]) == NUM_BUCKETS
    for stream, whole in zip(found["streams"], found["whole"], strict=True):
        assert stream.offsets == whole.offsets
        assert stream.stats == whole.stats
        assert set(stream.partitions) == set(whole.partitions)
        assert stream.compressed == whole.compressed
        assert (stream.unpacked_bytes is None) == (whole.unpacked_bytes is None)
        assert stream.index.block_bytes == whole.index.block_bytes


def test_a_bucket_begins_another_segment_when_one_is_full(warehouse_path, monkeypatch):
    monkeypatch.setattr(staging, "SEGMENT_BYTES_MAX", 2 << 20)
    table = Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=PROPERTIES)
    table.append(ROWS)
    segments = segments_of(table)
    assert len(segments) > 2 * NUM_BUCKETS
    assert max(segment.size_bytes for segment in segments) < 1_000_000
    rows = table.to_arrow()
    ids, buckets = rows["id"].to_numpy(), iceberg_buckets(rows["id"], NUM_BUCKETS)
    assert sorted(ids) == list(range(NUM_ROWS))
    assert all((np.diff(ids[buckets == bucket]) > 0).all() for bucket in range(NUM_BUCKETS))


def test_batches_stay_small_where_one_bucket_has_all_rows(warehouse_path, monkeypatch):
    monkeypatch.setattr(staging, "STEP_BYTES_MAX", 64 << 20)
    table = Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=PROPERTIES)
    table.append(ROWS.set_column(0, "id", pa.array(np.full(NUM_ROWS, 7))))
    (segment,) = segments_of(table)
    assert segment.num_rows == NUM_ROWS
    assert max(segment.index.batch_rows) <= BATCH_ROWS_MAX


def test_each_bucket_is_written_by_one_thread_and_few_steps_wait(warehouse_path, monkeypatch):
    writers, cut, written, most = {}, [], [], []
    real_cut, real_write = staging._sort_by_bucket, BucketSegmentWriter.write

    def counted_cut(routing, rows):
        cut.append(rows.num_rows)
        most.append(sum(cut) - sum(written))
        return real_cut(routing, rows)

    def counted_write(self, rows):
        writers.setdefault(self._bucket, set()).add(threading.get_ident())
        real_write(self, rows)
        written.append(rows.num_rows)

    monkeypatch.setattr(staging, "_sort_by_bucket", counted_cut)
    monkeypatch.setattr(BucketSegmentWriter, "write", counted_write)
    Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=PROPERTIES).append(ROWS)
    assert sum(cut) == sum(written) == NUM_ROWS
    assert all(len(threads) == 1 for threads in writers.values())
    assert len(cut) > 20
    assert max(most) <= (staging.CUTTERS + 4) * max(cut)


@pytest.mark.parametrize("nth", [1, 4, 30])
def test_a_full_disk_fails_the_append_and_leaves_nothing(warehouse_path, monkeypatch, nth):
    table = Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=PROPERTIES)
    calls, failed, late = [], [], []
    real = local._write_all

    def write(fd, data):
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        if "/segments/" in name:
            calls.append(name)
            if name in failed:
                late.append(name)
            if len(calls) == nth:
                failed.append(name)
                raise OSError(errno.ENOSPC, "full")
        return real(fd, data)

    monkeypatch.setattr(local, "_write_all", write)
    with pytest.raises(StorageError, match="disk is full"):
        table.append(ROWS)
    monkeypatch.undo()
    assert failed
    assert late == []
    assert table.to_arrow().num_rows == 0
    storage = table.storage
    assert storage.list_temporary("") == []
    assert [info.key for info in storage.list(f"tables/{table.uuid}/segments/")] == []


def test_results_come_in_order_and_little_is_done_ahead():
    begun = []
    with ThreadPoolExecutor(1) as pool:
        results = map_with_prefetch(pool, lambda item: begun.append(item) or -item, range(100), num_ahead=3)
        assert [next(results), next(results)] == [0, -1]
        assert len(begun) <= 5
        assert list(results) == [-item for item in range(2, 100)]


def test_nothing_is_done_without_items():
    with ThreadPoolExecutor(1) as pool:
        assert list(map_with_prefetch(pool, abs, [], num_ahead=2)) == []
