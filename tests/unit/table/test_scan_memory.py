"""The forms that stream read ten million rows with memory for a few batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit.tables import tier
from streamhouse_spark import Table, Warehouse

ROWS = 10_000_000
EXTRA_BYTES_MAX = 300 << 20
MEASURE = """
import sys, threading
import duckdb, polars as pl, pyarrow as pa, pyarrow.dataset
import streamhouse_spark as sh

def anonymous_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

def count(batches):
    return sum(batch.num_rows for batch in batches)

FORMS = {
    "to_batches": lambda scan: count(scan.to_batches()),
    "to_arrow_batch_reader": lambda scan: count(scan.to_arrow_batch_reader()),
    "stream": lambda scan: count(pa.RecordBatchReader.from_stream(scan)),
    "to_arrow_dataset": lambda scan: count(scan.to_arrow_dataset().to_batches()),
    "to_duckdb": lambda scan: scan.to_duckdb("t").sql("SELECT count(*) FROM t WHERE f >= 0 AND s > ''").fetchone()[0],
    "scan_polars": lambda scan: sh.scan_polars(scan).select(pl.len()).collect(engine="streaming").item(),
    "filtered": lambda scan: count(scan.filter("f >= 0 AND id >= 0").to_batches()),
    "count": lambda scan: scan.filter("f >= 0").count(),
    "append": lambda scan: sh.Warehouse(sys.argv[1]).table("d.copy").append(scan).num_rows,
}
scan = sh.Warehouse(sys.argv[1]).table("d.t").scan()
FORMS[sys.argv[2]](scan.limit(1000))  # loads what it needs
before, most, done = anonymous_bytes(), [0], threading.Event()

def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], anonymous_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
num_rows = FORMS[sys.argv[2]](scan)
done.set()
watcher.join()
print(num_rows, most[0] - before)
"""
FORMS = [line.split('"')[1] for line in MEASURE.splitlines() if line.startswith('    "')]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A warehouse with a table of ten million rows of 32 bytes, half of them tiered."""
    import numpy as np
    import pyarrow as pa

    place = tmp_path_factory.mktemp("memory") / "wh"
    warehouse = Warehouse(place)
    table: Table = warehouse.create_table("d.t", "id BIGINT, f DOUBLE, s STRING", buckets=1)
    warehouse.create_table("d.copy", "id BIGINT, f DOUBLE, s STRING", buckets=1)
    texts = pa.array([f"text {number:04d}" for number in range(1000)])
    for start in range(0, ROWS, ROWS // 10):
        numbers = np.arange(start, start + ROWS // 10)
        table.append(pa.table({"id": numbers, "f": numbers / 3, "s": texts.take(pa.array(numbers % 1000))}))
        if start == ROWS // 2 - ROWS // 10:
            tier(table)
    return place


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not tell the memory of a process")
@pytest.mark.parametrize("form", FORMS)
def test_ten_million_rows_are_streamed_with_little_memory(place, form):
    command = [sys.executable, "-c", MEASURE, str(place), form]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    num_rows, extra_bytes = map(int, done.stdout.split())
    assert num_rows == ROWS
    assert extra_bytes <= EXTRA_BYTES_MAX, f"{extra_bytes >> 20} MiB"
