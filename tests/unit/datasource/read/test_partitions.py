"""Cutting of reads for tasks."""

from __future__ import annotations

import pytest

from property.stream_driver import Opened
from streamhouse_spark.datasource.read.batch import plan_view
from streamhouse_spark.datasource.read.partitions import make_partitions, read_plan
from streamhouse_spark.read import split_planning as pieces
from streamhouse_spark.read.scan_tasks import BinlogScanTask


@pytest.mark.usefixtures("own_cache")
def test_a_binlog_is_a_task_a_bucket(wh, monkeypatch):
    table = wh.create_table("t", "id INT, at TIMESTAMP, v INT", primary_key=["id"], buckets=3)
    for n in range(4):
        table.upsert([{"id": i, "v": n * i} for i in range(20)])
        table.delete([n])
    monkeypatch.setattr(pieces, "OPENING_BYTES", 1)
    monkeypatch.setattr(pieces, "TARGET_BYTES_MIN", 1)
    tasks = [task.plan() for task in make_partitions(plan_view(table, table.state, "binlog"), parallelism=100)]
    assert [[piece.split.bucket for piece in task.tasks] for task in tasks] == [[0], [1], [2]]
    assert all(isinstance(piece, BinlogScanTask) for task in tasks for piece in task.tasks)
    found = [row for task in tasks for batch in read_plan(Opened(wh), task, ()) for row in batch.to_pylist()]
    expected = wh.view("t$binlog").to_arrow().to_pylist()
    assert found == expected
    assert {row["_change_type"] for row in found} == {"insert", "update", "delete"}
    together = make_partitions(plan_view(table, table.state, "binlog"), parallelism=1)
    assert [row for task in together for b in read_plan(Opened(wh), task.plan(), ()) for row in b.to_pylist()] == found


def test_the_binlog_of_an_empty_table_is_one_empty_task(wh):
    wh.create_table("t", "id INT", primary_key=["id"], buckets=3)
    (task,) = make_partitions(plan_view(wh.table("t"), wh.table("t").state, "binlog"))
    assert list(read_plan(Opened(wh), task.plan(), ())) == []
