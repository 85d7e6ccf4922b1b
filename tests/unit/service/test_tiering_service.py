"""The loop of the tiering service, without Spark: what its status says."""

from __future__ import annotations

import copy
import shutil
import threading

import streamhouse_spark as sh
from kit.waiting import wait_for
from streamhouse_spark.lake.tiering.job import TieringReport, run_tasks_locally
from streamhouse_spark.service import tiering_service as tiering_upkeep
from streamhouse_spark.service.tiering_service import Service
from streamhouse_spark.warehouse.process_cache import Connection

PROPERTIES = {"table.datalake.freshness": "1s", "table.datalake.auto-compaction": "true"}


def add_again(table: sh.Table) -> None:
    """Another engine adds a copy of the lake's only file."""
    lake = table.open_lake().binding.load()
    (task,) = lake.scan().plan_files()
    theirs = copy.deepcopy(task.file)
    theirs._data[1] = task.file.file_path.rpartition("/")[0] + "/theirs.parquet"
    shutil.copy(task.file.file_path, theirs.file_path)
    with lake.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(theirs)


def test_rows_that_were_healed_are_counted(warehouse_path, monkeypatch):
    """One of them goes when its key changes, two by compaction."""
    warehouse = sh.Warehouse(warehouse_path)
    table = warehouse.create_table("t", "id INT, n INT", primary_key=["id"], buckets=1, properties=PROPERTIES)
    table.upsert([{"id": i, "n": 0} for i in range(3)])
    reports: list[TieringReport] = []
    run_tasks = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    service = Service(run_tasks, Connection.of(warehouse_path, {}), on_report=reports.append)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: reports, "a round")
        assert reports[0].healed_rows == 0
        add_again(table)
        assert table.lake.to_arrow().num_rows == 6
        monkeypatch.setattr(tiering_upkeep, "ROUNDS_TO_COMPACT", 1)
        table.upsert([{"id": 1, "n": 2}])
        wait_for(lambda: sum(s.healed_rows for s in service.status()) == 3, "healing of three rows")
    finally:
        service.stop()
        thread.join(240)
    (status,) = service.status()
    assert (status.healed_rows, status.error) == (3, None)
    assert sorted(table.lake.to_arrow()["id"].to_pylist()) == [0, 1, 2]
