"""Staged rows: routed to many buckets, cut into pieces, and visible only after their commit."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from kit.rows import ids
from kit.tables import TableCase
from streamhouse_spark import CommitConflictError, OffsetRange, StorageError, TableNotFoundError, Transaction, Warehouse
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log import staging
from streamhouse_spark.log.actions import MarkOrphans, SetSchema
from streamhouse_spark.log.append_commit import STAGED_AGE_MS_MAX
from streamhouse_spark.log.bucketing import iceberg_buckets, row_buckets
from streamhouse_spark.log.staging import (
    INLINE_BYTES_MAX,
    inline_bytes_per_bucket,
    inline_bytes_total,
    merge_staged_rows,
)
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.storage.local import LocalStorage

TABLE = TableCase("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})


def stage(table, first, count):
    return table.log_writer.stager().stage(pa.table({"id": pa.array(range(first, first + count), pa.int64())}))


def test_staged_rows_are_seen_by_nobody(table):
    version = table.state.version
    staged = stage(table, 0, 60_000)
    assert staged.num_rows == 60_000
    assert table.refresh().version == version
    assert ids(table) == []


def test_parts_of_several_processes_are_committed_as_one(table, other_process):
    parts = [
        stage(each.table("t"), i * 100_000, 3 if i % 2 else 50_000)
        for i, each in enumerate(other_process() for _ in range(4))
    ]
    shipped = [pickle.loads(pickle.dumps(p)) for p in parts]
    offsets = table.log_writer.commit(merge_staged_rows(shipped), transaction=Transaction("job", 1))
    assert offsets.num_rows == 100_006
    assert table.state.version == 2
    assert ids(table) == sorted(
        [*range(50_000), *range(100_000, 100_003), *range(200_000, 250_000), *range(300_000, 300_003)]
    )
    assert table.log_writer.commit(merge_staged_rows(shipped), transaction=Transaction("job", 1)) == offsets
    assert table.to_arrow().num_rows == 100_006


def test_an_abandoned_staging_changes_nothing(table):
    stage(table, 0, 60_000)
    assert table.append([{"id": 1}]).num_rows == 1
    assert ids(table) == [1]


class TestTooLate:
    def test_another_table_has_the_name(self, wh, table):
        staged = stage(table, 0, 3)
        wh.drop_table("t")
        again = wh.create_table("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})
        with pytest.raises(
            CommitConflictError, match="dropped and created again; nothing was written, write the rows again"
        ):
            again.log_writer.commit(staged)
        with pytest.raises(TableNotFoundError):
            table.log_writer.commit(staged)
        with pytest.raises(CommitConflictError, match="different tables"):
            merge_staged_rows([staged, stage(again, 0, 3)])
        assert ids(again) == []

    def test_cleaning_may_have_removed_them(self, table, clock):
        staged = stage(table, 0, 60_000)
        clock.advance(STAGED_AGE_MS_MAX + 1)
        with pytest.raises(CommitConflictError, match=r"staged \d+ ms ago"):
            table.log_writer.commit(staged)
        assert ids(table) == []

    def test_the_oldest_part_counts(self, table, clock):
        old = stage(table, 0, 3)
        clock.advance(STAGED_AGE_MS_MAX - 10)
        new = stage(table, 3, 3)
        both = merge_staged_rows([new, old])
        clock.advance(11)
        with pytest.raises(CommitConflictError, match=r"staged \d+ ms ago"):
            table.log_writer.commit(both)
        assert table.log_writer.commit(new).num_rows == 3

    def test_staged_rows_that_cleaning_marked_are_not_committed(self, table):
        staged = stage(table, 0, 60_000)
        key = segment_key(table.uuid, staged.segments[0].segment.uuid)
        table.log.commit(lambda *_: (MarkOrphans((key,)),))
        with pytest.raises(CommitConflictError, match="maintenance may have deleted them"):
            table.log_writer.commit(staged)
        assert ids(table) == []

    @pytest.mark.parametrize("first_is_older", [True, False])
    def test_rows_staged_before_a_type_changed_are_not_committed(self, table, first_is_older):
        older = stage(table, 0, 3)
        changed = TableSchema((Column(1, "id", pa.int64(), nullable=False),))
        table.log.commit(lambda *_: (SetSchema(2, changed),))
        newer = stage(table, 3, 3)
        parts = [older, newer] if first_is_older else [newer, older]
        with pytest.raises(CommitConflictError, match="write the rows again"):
            table.log_writer.commit(merge_staged_rows(parts))
        assert table.log_writer.commit(newer).num_rows == 3


def test_nothing_staged_is_nothing_committed(table):
    staged = table.log_writer.stager().stage(pa.table({"id": pa.array([], pa.int64())}))
    assert staged.segments == ()
    assert table.log_writer.commit(staged) == {}
    assert table.state.version == 1
    assert table.log_writer.commit(staged, transaction=Transaction("job", 1)) == {}
    assert table.state.version == 2
    assert table.append([{"id": 1}], transaction=Transaction("job", 2)) in (
        {0: OffsetRange(0, 1)},
        {1: OffsetRange(0, 1)},
    )


LARGE_APPEND = pa.table({"id": np.arange(200_000), "name": [f"name {i % 977}" for i in range(200_000)]})
HASHED = {"bucket.num": "3", "bucket.key": "id"}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(staging, "SEGMENT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(staging, "PARALLEL_BYTES_MIN", 1)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("properties", [{}, {"bucket.num": "3"}, HASHED], ids=["one", "sticky", "hashed"])
def test_pieces_keep_every_row_and_its_order_in_the_bucket(warehouse_path, properties):
    table = Warehouse(warehouse_path).create_table("t", LARGE_APPEND.schema, properties=properties)
    chunked = pa.concat_tables([LARGE_APPEND.slice(i, 70_001) for i in range(0, LARGE_APPEND.num_rows, 70_001)])
    assert table.append(chunked).num_rows == LARGE_APPEND.num_rows
    assert len(table.state.live_segments()) > 3
    rows = table.to_arrow()
    assert rows.sort_by("id").equals(LARGE_APPEND)
    if properties == HASHED:
        ids, buckets = rows["id"].to_numpy(), iceberg_buckets(rows["id"], 3)
        assert all((np.diff(ids[buckets == bucket]) > 0).all() for bucket in range(3))
    else:
        pieces = table.inspect.segments().num_rows
        assert (np.diff(rows["id"].to_numpy()) < 0).sum() < pieces


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_that_cannot_be_written_fails_the_append(warehouse_path, monkeypatch):
    table = Warehouse(warehouse_path).create_table("t", LARGE_APPEND.schema, properties=HASHED)
    calls = []

    def create(self, key, original=LocalStorage.create):
        calls.append(key)
        if len(calls) == 4:
            raise StorageError("the disk is full")
        return original(self, key)

    monkeypatch.setattr(LocalStorage, "create", create)
    with pytest.raises(StorageError, match="disk is full"):
        table.append(LARGE_APPEND)
    monkeypatch.undo()
    assert table.to_arrow().num_rows == 0


BUCKETS = 4096
NUM_ROWS = 20_000


def rows(first: int = 0) -> pa.Table:
    ids = np.arange(first, first + NUM_ROWS)
    return pa.table({"id": ids, "text": pa.array([f"row {i:010}" for i in ids.tolist()])})


def made(counted: FaultyStorage) -> Counter[str]:
    """Objects that were written, by folder."""
    keys = [key for _, method, key in counted.trace if method in ("put", "put_if_absent", "create.open")]
    counted.trace.clear()
    return Counter(key.rpartition("/")[0].rpartition("/")[2] for key in keys)


def table_of(counted: FaultyStorage, world, buckets: int, **options):
    key = {} if options else {"bucket.key": "id"}
    table = Warehouse("wh", storage=counted, world=world).create_table(
        "t", "id BIGINT, text STRING", buckets=buckets, properties={**key, "table.datalake.enabled": "false"}, **options
    )
    counted.trace.clear()
    return table


def read_by_another(memory, world) -> pa.Table:
    return Warehouse("wh", storage=memory, world=world).table("t").to_arrow().sort_by("id")


def test_a_small_append_to_all_buckets_is_two_objects(counted, memory, world):
    table = table_of(counted, world, BUCKETS)
    table.append(rows())
    assert made(counted) == {"commits": 1, "manifests": 1}
    assert sum(1 for log in table.refresh().buckets.values() if log.segments) > 0.98 * BUCKETS
    assert read_by_another(memory, world).equals(rows())


@pytest.mark.long
def test_a_small_upsert_of_all_buckets_is_two_objects(counted, memory, world, own_cache):
    table = table_of(counted, world, 512, primary_key=["id"])
    candidates = np.arange(8000)
    _, one_of_each = np.unique(row_buckets([pa.array(candidates)], 512, "iceberg"), return_index=True)
    ids = np.sort(candidates[one_of_each])
    few = pa.table({"id": ids, "text": pa.array([f"{i:0700}" for i in ids.tolist()])})
    table.upsert(few)
    assert made(counted) == {"commits": 1, "manifests": 1}
    assert read_by_another(memory, world).to_pydict() == few.to_pydict()


def test_what_travels_in_records_is_merged_before_it_is_much(counted, world, monkeypatch):
    monkeypatch.setattr(merge, "INLINE_LIVE_BYTES_MAX", 1 << 20)
    table = table_of(counted, world, 512)
    held = []
    for number in range(16):
        table.append(rows(number * NUM_ROWS).slice(0, 4000))
        held.append(sum(s.size_bytes for s in table.refresh().live_segments() if s.inline is not None))
    assert max(held) < merge.INLINE_CHECK_INTERVAL * held[0] * 1.1
    assert 0 in held
    assert table.to_arrow().num_rows == 16 * 4000


@pytest.mark.parametrize("num_buckets", [1, 3, 64, 256])
def test_tables_with_few_buckets_keep_their_limits(num_buckets):
    assert inline_bytes_per_bucket(INLINE_BYTES_MAX, num_buckets) == INLINE_BYTES_MAX // num_buckets
    assert inline_bytes_total(INLINE_BYTES_MAX, num_buckets) == INLINE_BYTES_MAX


def test_the_limit_grows_with_the_buckets_beyond():
    assert inline_bytes_per_bucket(INLINE_BYTES_MAX, 4096) == 1024
    assert inline_bytes_total(INLINE_BYTES_MAX, 4096) == 4 << 20
    assert inline_bytes_total(0, 4096) == 0
