"""`streamhouse tier` on Spark, through the installed script."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kit.waiting import wait_for
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.table.refresh_commit import pause_refreshes

SCRIPT = Path(sys.executable).parent / "streamhouse"


@pytest.mark.long
@pytest.mark.spark
def test_tier_runs_on_spark_once_and_as_a_service(run, warehouse, warehouse_path):
    run("create", "t", "--schema", "id BIGINT", "--buckets", "2", "-p", "bucket.key=id")
    table = warehouse.table("t")
    table.append([{"id": i} for i in range(100)])
    command = [SCRIPT, "-w", warehouse_path, "tier", "--master", "local[2]", "-o", "json"]
    once = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=600, check=False)
    assert once.returncode == 0, once.stderr
    assert json.loads(once.stdout)["rows"] == 100
    assert "WARN " not in once.stderr
    run("alter", "t", "--set", "table.datalake.freshness=1s")
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        table.append([{"id": 100}])
        assert service.stdout is not None
        assert json.loads(service.stdout.readline())["rows"] == 1
        service.send_signal(signal.SIGTERM)
        assert service.wait(240) == 0
    finally:
        service.kill()
        service.wait()
        service.stdout.close()
    assert table.lake.to_arrow().num_rows == 101


@pytest.mark.long
@pytest.mark.spark
def test_a_service_that_refreshes_views_too(warehouse, warehouse_path, tmp_path):
    source = warehouse.create_table("t", "id BIGINT", properties={"table.datalake.freshness": "1s"})
    query = "SELECT id, 2 * id AS twice FROM default.t"
    definition = ViewDefinition(query, "full", 500, ("id", "twice"), "bag", {})
    view = warehouse.create_table(
        "gold.v",
        "_key STRING NOT NULL, _ord BIGINT NOT NULL, id BIGINT, twice BIGINT",
        primary_key=["_key", "_ord"],
        properties={VIEW: definition.to_text()},
    )
    source.append([{"id": 1}, {"id": 2}])
    command = [SCRIPT, "-w", warehouse_path, "tier", "--master", "local[2]", "--views", "--listen", "0", "-o", "json"]
    with (tmp_path / "err").open("w+") as err:
        service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        assert service.stdout is not None
        told = next(line for line in map(json.loads, service.stdout) if "view" in line)
        assert (told["view"], told["rows_written"], told["rows_deleted"]) == ("gold.v", 2, 0)
        assert told["whole_because"] is not None
        assert {row["twice"] for row in view.to_arrow().to_pylist()} == {2, 4}
        (address,) = re.findall(r"listening at (http://\S+)", (tmp_path / "err").read_text())
        wait_for(lambda: metric(address, "streamhouse_view_refreshes_total") == 1, "the refresh in the metrics")
        pause_refreshes(view)
        wait_for(lambda: metric(address, "streamhouse_view_paused") == 1, "the pause in the metrics")
        service.send_signal(signal.SIGTERM)
        assert service.wait(240) == 0
    finally:
        service.kill()
        service.wait()
        service.stdout.close()
    assert "WARN " not in (tmp_path / "err").read_text()


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(address, timeout=240) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f'{name}{{table="gold.v"}}'))
