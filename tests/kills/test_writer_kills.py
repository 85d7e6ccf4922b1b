"""SIGKILL against an event producer, in the middle of its sends: nothing lost, nothing twice, in order."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import pytest

from kills.rounds import PRELOADED
from kills.workers import Journal, read_journal
from streamhouse_spark import Warehouse

NAME = "sales.events"
SENDS = 3_000
KILLS = 6
S_MAX = 120.0

pytestmark = pytest.mark.long


def produce(location: str, journal_path: str) -> None:
    """Send all that is not stored yet. What is answered is noted; every second life sends everything again."""
    journal = Journal(journal_path)
    lives = sum(event["kind"] == "begun" for event in read_journal(Path(journal_path)))
    table = Warehouse(location).table(NAME)
    with table.writer(producer_id="source", flush_ms=lives % 3, flush_bytes=(lives % 4 + 1) * 20_000) as writer:
        last = -1 if writer.last_sequence is None else writer.last_sequence
        journal.write("begun", last=last)
        for sequence in range(0 if lives % 2 else last + 1, SENDS):
            rows = [{"id": sequence, "part": part} for part in range(sequence % 3 + 1)]
            future = writer.send(rows, sequence=sequence)
            if sequence % 50 == 0 and sequence > last:
                future.result()
                journal.write("stored", sequence=sequence)
    journal.write("ended")


def test_a_producer_that_is_killed_and_comes_back(tmp_path):
    location, path = str(tmp_path / "warehouse"), tmp_path / "journal"
    Warehouse(location).create_table(NAME, "id BIGINT, part INT", buckets=2, properties={"bucket.key": "id"})
    chance, context = random.Random(1), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    kills = 0
    for life in range(KILLS + 1):
        before = len(list(read_journal(path)))
        process = context.Process(target=produce, args=(location, str(path)))
        process.start()
        if life < KILLS:
            events_min, deadline = before + chance.randint(1, 6), time.monotonic() + S_MAX
            while process.is_alive() and len(list(read_journal(path))) < events_min and time.monotonic() < deadline:
                time.sleep(0.002)
            kills += process.is_alive()
            process.kill()
        process.join()
        rows = read(location)
        known = {e["sequence"] for e in read_journal(path) if e["kind"] == "stored"}
        assert {key for found in rows.values() for key, _ in found} >= known
    events = list(read_journal(path))
    assert events[-1]["kind"] == "ended"
    assert kills > 2
    assert any(event["last"] >= 0 for event in events if event["kind"] == "begun")
    everything = [(key, part) for key in range(SENDS) for part in range(key % 3 + 1)]
    assert sorted(row for found in rows.values() for row in found) == everything
    for bucket, found in rows.items():
        assert found == sorted(found), bucket


def read(location: str) -> dict[int, list[tuple[int, int]]]:
    """The rows of each bucket in the order of their offsets."""
    found: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for batch in Warehouse(location).table(NAME).tail("earliest", include_metadata=True, until_ms=0):
        for row in batch.to_pylist():
            found[row["_bucket"]].append((row["id"], row["part"]))
    return found
