"""Streams of changes from the beginning of tables whose logs were trimmed: whatever happens meanwhile, and wherever the
query dies and goes on, what it gave makes the table."""

from __future__ import annotations

import os
import random

import pytest

from faults.share import few_of
from property.stream_driver import Query
from property.test_keyed_tables import HOUR_MS, History
from streamhouse_spark import Warehouse
from streamhouse_spark.kv import kv_snapshots, tablet

KINDS = ["upsert"] * 6 + ["partial", "delete", "delete", "lose", *["maintain"] * 4]
LIMITS = [{}, {"maxoffsetspertrigger": "2"}, {"maxoffsetspertrigger": "4"}, {"maxbytespertrigger": "300"}]


@pytest.fixture(autouse=True)
def _small_snapshots(monkeypatch, own_cache):
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 5)
    monkeypatch.setattr(kv_snapshots, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(tablet, "ITEMS_PER_STEP", 2)
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", os.environ["STREAMHOUSE_CACHE_DIR"])


def folded(rows, names):
    """What the rows of a stream make, each of them checked on the way."""
    found = {}
    for row in rows:
        key, value, kind = (row["dt"], row["id"]), {name: row[name] for name in names}, row["_change_type"]
        match kind:
            case "insert":
                assert key not in found
                found[key] = value
            case "delete":
                assert found.pop(key) == value
            case "update_before":
                assert found[key] == value
            case _:
                assert key in found
                found[key] = value
    return found


class Changes(History):
    """A history without what ends streams: truncations, and a day in which the rows that a stream begins with go."""

    def steps(self, count):
        for _ in range(count):
            kinds = [*KINDS, *(["tier"] * 3 + ["compact", "expire"] if self.lake else [])]
            getattr(self, self.rng.choice(kinds))(self.at(self.rng.randrange(2)))

    def maintain(self, table):
        self.clock.advance(self.rng.choice([0, HOUR_MS]))
        table.maintain()

    def trim(self):
        table = self.at(0)
        self.upsert(table)
        if self.lake:
            self.tier(table)
        self.clock.advance(4 * HOUR_MS)
        table.maintain()
        state = table.refresh()
        assert any(log.start > state.first_offset(bucket) for bucket, log in state.buckets.items())

    def warehouse(self):
        return Warehouse("wh", storage=self.storage, world=self.processes[0].table.world)


@pytest.mark.parametrize("lake", [False, True], ids=["log", "lake"])
@pytest.mark.parametrize("seed", few_of(range(10), 3))
def test_what_it_gave_is_the_table(seed, lake, tmp_path):
    """Between the batches of a query, which dies within some of them, the table changes, is tiered and trimmed."""
    rng = random.Random(seed)
    history = Changes(seed, tmp_path, lake="iceberg" if lake else None)
    history.steps(12)
    history.trim()
    history.steps(rng.randrange(4))
    query = Query("t$changelog", consumerid="so that its log is kept", **rng.choice(LIMITS))
    for _ in range(rng.randrange(5)):
        query.run(history.warehouse(), batches=rng.randrange(1, 4), unfinished=rng.random() < 0.6)
        history.steps(rng.randrange(5))
    query.run(history.warehouse())
    assert folded(query.rows, history.names) == history.model
    first = [row for row in query.rows if row["_commit_timestamp"] is None]
    assert first or not history.model
    assert {row["_change_type"] for row in first} <= {"insert"}
