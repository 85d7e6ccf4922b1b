"""A tiering service and a writer in another process, while this one drops the partition that they are busy with."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import pytest

from kit.tables import tier
from kit.waiting import wait_for
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.fsck import Verification, open_lake_plan, verify_lake

DAY = dt.date(2026, 3, 2)
BUSY = """
import datetime as dt, sys, threading
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.tiering.job import (TieringJob, run_tasks_locally)
from streamhouse_spark.warehouse.warehouse import (Warehouse)

stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()

def tier():
    table = Warehouse(sys.argv[1]).table("t")
    while not stop.wait(0.05):
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        job.run(run_tasks_locally(table.storage, table.settings, table.world))

service = threading.Thread(target=tier)
service.start()
table, id = Warehouse(sys.argv[1]).table("t"), 0
while not stop.is_set():
    table.append([{"id": id + i, "day": dt.date(2026, 3, 2)} for i in range(5)])
    id += 5
    if id == 25:
        print("busy", flush=True)
service.join()
print(id)
"""


@pytest.mark.long
def test_rows_from_before_go_and_those_from_behind_stay(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT, day DATE", partition_by=["day"])
    command = [sys.executable, "-c", BUSY, warehouse_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as busy:
        try:
            assert busy.stdout.readline() == "busy\n"
            behind = 0
            for _ in range(2):
                wait_for(lambda behind=behind: table.refresh().ends[0] > behind, "another append")
                before = table.refresh().ends[0]
                assert table.drop_partition({"day": DAY}).rows > 0
                behind = table.refresh().ends[0]
                found = sorted(table.to_arrow()["id"].to_pylist())
                end = found[-1] + 1 if found else behind
                assert found == list(range(end - len(found), end)), "one writer, one bucket: an id is its offset"
                assert before <= end - len(found) <= behind
            stayed = end - len(found)
            written = int(busy.communicate()[0])
        finally:
            busy.kill()
    tier(table)
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(stayed, written))
    assert sorted(table.lake.to_arrow()["id"].to_pylist()) == list(range(stayed, written))
    state, result = table.refresh(), Verification("t")
    verify_lake(table, state, open_lake_plan(table, state, result), result, lambda _: None)
    assert result.problems == []
