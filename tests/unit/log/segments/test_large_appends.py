"""Appends that are cut into pieces and written by several threads."""

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.log import staging
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.storage.local import LocalStorage

ROWS = pa.table({"id": np.arange(200_000), "name": [f"name {i % 977}" for i in range(200_000)]})
HASHED = {"bucket.num": "3", "bucket.key": "id"}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(staging, "SEGMENT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(staging, "PARALLEL_BYTES_MIN", 1)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("properties", [{}, {"bucket.num": "3"}, HASHED], ids=["one", "sticky", "hashed"])
def test_pieces_keep_every_row_and_its_order_in_the_bucket(warehouse_path, properties):
    table = Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=properties)
    chunked = pa.concat_tables([ROWS.slice(i, 70_001) for i in range(0, ROWS.num_rows, 70_001)])
    assert table.append(chunked).num_rows == ROWS.num_rows
    assert len(table.state.live_segments()) > 3
    rows = table.to_arrow()
    assert rows.sort_by("id").equals(ROWS)
    if properties == HASHED:
        ids, buckets = rows["id"].to_numpy(), iceberg_buckets(rows["id"], 3)
        assert all((np.diff(ids[buckets == bucket]) > 0).all() for bucket in range(3))
    else:
        pieces = table.inspect.segments().num_rows
        assert (np.diff(rows["id"].to_numpy()) < 0).sum() < pieces


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_that_cannot_be_written_fails_the_append(warehouse_path, monkeypatch):
    table = Warehouse(warehouse_path).create_table("t", ROWS.schema, properties=HASHED)
    calls = []

    def create(self, key, original=LocalStorage.create):
        calls.append(key)
        if len(calls) == 4:
            raise StorageError("the disk is full")
        return original(self, key)

    monkeypatch.setattr(LocalStorage, "create", create)
    with pytest.raises(StorageError, match="disk is full"):
        table.append(ROWS)
    monkeypatch.undo()
    assert table.to_arrow().num_rows == 0
