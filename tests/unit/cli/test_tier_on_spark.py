"""`streamhouse tier` on Spark, through the installed script."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "streamhouse"


@pytest.mark.long
@pytest.mark.spark
def test_tier_on_spark_once_and_as_a_service(run, warehouse, warehouse_path):
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
