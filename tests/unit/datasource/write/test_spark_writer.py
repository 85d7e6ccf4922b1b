"""A table that is put back to an older copy after the tasks of a Spark write staged rows, before the driver commits."""

from __future__ import annotations

import pickle
import shutil

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamhouse_spark import CommitConflictError, DifferentHistoryError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options, parse_write_options
from streamhouse_spark.datasource.dml.keyed_row_writer import KeyedRowWriter
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter, StreamhouseWriter
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.warehouse.process_cache import Connection

pytestmark = pytest.mark.usefixtures("own_cache")

NAME = "sales.orders"
FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("text", StringType())])


def writer_of(kind, wh, table, *, is_clustered):
    opened = Connection.of(wh.url, {})
    if kind == "statement":
        return KeyedRowWriter(opened, NAME, ReadVersion.of(table.refresh()), FRAME, is_clustered=is_clustered)
    if kind == "stream":
        options = parse_stream_write_options({"path": NAME, "txnAppId": "app"})
        return StreamhouseStreamWriter(opened, NAME, options, None, FRAME, is_clustered=is_clustered)
    options = parse_write_options({"path": NAME})
    return StreamhouseWriter(opened, NAME, options, FRAME, overwrite=kind == "overwrite", is_clustered=is_clustered)


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("chars", [3, 400_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("kind", "by_key", "is_clustered"),
    [
        ("batch", False, False),
        ("overwrite", False, False),
        ("stream", False, False),
        ("batch", True, False),
        ("batch", True, True),
        ("overwrite", True, True),
        ("stream", True, True),
        ("statement", True, False),
        ("statement", True, True),
    ],
)
def test_what_was_staged_is_not_mixed_in(warehouse_path, tmp_path, kind, by_key, is_clustered, chars, grown):
    wh = Warehouse(warehouse_path)
    options = {"primary_key": ["id"]} if by_key else {}
    table = wh.create_table(NAME, "id BIGINT NOT NULL, text STRING", **options)
    write = table.upsert if by_key else table.append
    write([{"id": 1, "text": "a"}])
    shutil.copytree(warehouse_path, tmp_path / "backup")
    if grown:
        write([{"id": 2, "text": "b"}])
    writer = writer_of(kind, wh, table, is_clustered=is_clustered)
    batch = pa.record_batch({"id": pa.array([9], pa.int64()), "text": ["x" * chars]})
    messages = [pickle.loads(pickle.dumps(writer.write(iter([batch]))))]
    shutil.rmtree(warehouse_path)
    shutil.copytree(tmp_path / "backup", warehouse_path)
    commit = (lambda: writer.commit(messages, 0)) if kind == "stream" else (lambda: writer.commit(messages))
    is_refused = grown or chars > 1000
    if is_refused:
        with pytest.raises((DifferentHistoryError, CommitConflictError), match=r"restored from a backup"):
            commit()
    else:
        commit()
    close_tablets()
    expected = [1] if is_refused else [9] if kind == "overwrite" else [1, 9]
    assert sorted(Warehouse(warehouse_path).table(NAME).to_arrow()["id"].to_pylist()) == expected
