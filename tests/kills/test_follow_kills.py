"""SIGKILL against a follower in the middle of its loop: no row is lost, and a table that it fills has each row once."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from kills.rounds import PRELOADED
from kills.workers import Journal, read_journal
from streamhouse_spark import Warehouse

SOURCE, SINK, APP = "sales.events", "sales.copy", "billing"
COMMITS = 400
KILLS = 6
S_MAX = 120.0

pytestmark = pytest.mark.long


def process_rows(location: str, journal_path: str) -> None:
    """Note the rows of each batch as processed, and copy them with the transaction of another follower."""
    journal = Journal(journal_path)
    warehouse = Warehouse(location)
    source, sink = warehouse.table(SOURCE), warehouse.table(SINK)
    for batch in source.follow(APP, available_now=True):
        journal.write("processed", ids=batch["id"].to_pylist())
    with source.follow("copy", sink=sink, available_now=True) as follower:
        for batch in follower:
            sink.append(batch, transaction=follower.transaction)
            journal.write("copied")
    journal.write("ended")


def test_a_follower_that_is_killed_and_comes_back(tmp_path):
    location, path = str(tmp_path / "warehouse"), tmp_path / "journal"
    warehouse = Warehouse(location)
    source = warehouse.create_table(SOURCE, "id BIGINT", buckets=2, properties={"bucket.key": "id"})
    warehouse.create_table(SINK, "id BIGINT")
    chance, context = random.Random(1), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    kills, written = 0, 0
    for life in range(KILLS + 1):
        for _ in range(COMMITS // (KILLS + 1)):
            source.append([{"id": written + part} for part in range(3)])
            written += 3
        before = len(list(read_journal(path)))
        process = context.Process(target=process_rows, args=(location, str(path)))
        process.start()
        if life < KILLS:
            events_min, deadline = before + chance.randint(1, 2), time.monotonic() + S_MAX
            while process.is_alive() and len(list(read_journal(path))) < events_min and time.monotonic() < deadline:
                time.sleep(0.002)
            kills += process.is_alive()
            process.kill()
        process.join()
    events = list(read_journal(Path(path)))
    assert events[-1]["kind"] == "ended"
    assert kills > 2
    times = Counter(number for event in events if event["kind"] == "processed" for number in event["ids"])
    assert set(times) == set(range(written))
    assert max(times.values()) <= KILLS + 1
    assert sorted(warehouse.table(SINK).to_arrow()["id"].to_pylist()) == list(range(written))
