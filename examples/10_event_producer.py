# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark"]
# ///
"""An event producer that is killed, starts again and sends everything again: each event is stored once. No Spark.

Run it with `uv run examples/10_event_producer.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import streamhouse_spark as sh

TABLE = "shop.clicks"
EVENTS = [{"place": place, "page": f"/item/{place % 7}"} for place in range(1000)]  # a file, a queue, another log


def produce(warehouse: str, *, dies: bool) -> None:
    clicks = sh.Warehouse(warehouse).table(TABLE)
    with clicks.writer(producer_id="web-1", flush_bytes=100_000) as writer:
        print(f"the table has the events up to {writer.last_sequence}")
        for event in EVENTS:
            future = writer.send(event, sequence=event["place"])  # events that are stored are skipped
            if dies and event["place"] == 500:
                future.result()  # durable, at the offsets of this result; those behind it perhaps
                os.kill(os.getpid(), signal.SIGKILL)


def main(warehouse: str) -> None:
    # A lake needs its own library; this table lives in the log alone.
    clicks = sh.Warehouse(warehouse).create_table(
        TABLE, "place BIGINT, page STRING", properties={"table.datalake.enabled": "false"}
    )
    killed = subprocess.run([sys.executable, __file__, warehouse], check=False)
    print(f"the producer ended with {killed.returncode}")
    produce(warehouse, dies=False)
    places = clicks.to_arrow()["place"].to_pylist()
    assert places == list(range(1000))
    print(f"{len(places)} events, each once and in order")


if __name__ == "__main__":
    if sys.argv[1:]:
        produce(sys.argv[1], dies=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(str(Path(folder, "warehouse")))
