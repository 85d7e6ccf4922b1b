# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark"]
# ///
"""Two processes, no server: one writes rows, the other sees each of them as soon as it is durable. No Spark, no Java.

Run it with `uv run examples/03_python_tail.py [ROWS]`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import streamhouse_spark as sh

TABLE = "home.sensors"


def write(warehouse: str, rows: int) -> None:
    table = sh.Warehouse(warehouse).table(TABLE)
    for i in range(rows):
        table.append([{"sensor": f"s{i % 3}", "value": float(i), "sent_ns": time.time_ns()}])
        time.sleep(0.02)


def follow(warehouse: str, rows: int) -> None:
    # A lake needs its own library; this table lives in the log alone.
    table = sh.Warehouse(warehouse).create_table(
        TABLE, "sensor STRING, value DOUBLE, sent_ns BIGINT", properties={"table.datalake.enabled": "false"}
    )
    batches = table.tail(start="latest", include_metadata=True)
    writer = subprocess.Popen([sys.executable, __file__, "--write", warehouse, str(rows)])
    delays_ms = []
    for batch in batches:
        now_ns = time.time_ns()
        for row in batch.to_pylist():
            delays_ms.append((now_ns - row["sent_ns"]) / 1e6)
            print(f"bucket {row['_bucket']} offset {row['_log_offset']}: {row['sensor']} = {row['value']}")
        if len(delays_ms) >= rows:
            break
    assert writer.wait() == 0
    delays_ms.sort()
    print(f"{len(delays_ms)} rows of another process, half of them seen within {delays_ms[rows // 2]:.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            follow(str(Path(folder, "warehouse")), int(sys.argv[1]) if len(sys.argv) > 1 else 50)
