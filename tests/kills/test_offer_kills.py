"""SIGKILL against processes that append to one table and make records for each other: each answered batch once."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from kills.rounds import PRELOADED
from kills.workers import Journal, read_journal
from streamhouse_spark import Warehouse
from streamhouse_spark.log.record import read_record

NAME = "sales.events"
WRITERS = 4
KILLS = 12
S_MAX = 240.0

pytestmark = pytest.mark.long


def append(location: str, journal_path: str, first: int) -> None:
    """Append batch after batch until killed; an answered one is noted."""
    journal = Journal(journal_path)
    table = Warehouse(location).table(NAME)
    for number in range(first, first + 1_000_000):
        journal.write("sent", batch=number)
        table.append(pa.table({"batch": [number, number]}))
        journal.write("stored", batch=number)


def test_writers_that_are_killed_while_others_make_their_records(tmp_path):
    location = str(tmp_path / "warehouse")
    Warehouse(location).create_table(NAME, "batch BIGINT")
    chance, context = random.Random(1), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    paths: list[Path] = []

    def started() -> tuple[multiprocessing.Process, Path]:
        path = tmp_path / f"journal-{len(paths)}"
        paths.append(path)
        process = context.Process(target=append, args=(location, str(path), len(paths) * 1_000_000))
        process.start()
        return process, path

    writers = [started() for _ in range(WRITERS)]
    deadline = time.monotonic() + S_MAX
    for _ in range(KILLS):
        at, noted_min = chance.randrange(WRITERS), chance.randint(20, 60)
        process, path = writers[at]
        while len(list(read_journal(path))) < noted_min:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        process.join()
        writers[at] = started()
    for process, _ in writers:
        process.kill()
        process.join()
    table = Warehouse(location).table(NAME)
    counts = Counter(table.to_arrow()["batch"].to_pylist())
    events = [event for path in paths for event in read_journal(path)]
    stored = {event["batch"] for event in events if event["kind"] == "stored"}
    sent = {event["batch"] for event in events if event["kind"] == "sent"}
    assert {batch: counts[batch] for batch in stored if counts[batch] != 2} == {}
    assert set(counts.values()) == {2}
    assert set(counts) <= sent
    newest = table.refresh().version
    records = [read_record(table.storage, table.uuid, n)[0] for n in range(max(2, newest - 200), newest + 1)]
    assert max(len(record.attempts) for record in records) > 1, "processes made records for each other"
