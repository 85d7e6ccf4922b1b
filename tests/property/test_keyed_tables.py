"""Random histories of tables with a primary key through the public API, against a dictionary.

Several processes on hosts of their own write, delete, update parts, overwrite, truncate, add a column, look up,
maintain (snapshots by key, trimming, merging, cleaning) and lose their caches. After each step what one of them reads
is what the dictionary holds; at the end the union read, lookups, and the folded changelog all are.
"""

from __future__ import annotations

import os
import random
import shutil

import pyarrow as pa
import pytest

from faults.sim import SimClock, sim_world
from streamhouse_spark.kv import snapshots
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.tiering import TieringJob, run_tasks_locally
from streamhouse_spark.storage_memory import MemoryStorage
from streamhouse_spark.warehouse import Warehouse

HOUR_MS = 3600 * 1000
COLUMNS = "dt STRING, id INT, name STRING, n BIGINT"
NAMES = (None, "a", "b", "long" * 50)


class History:
    """One table, its processes, and the dictionary: (dt, id) → row."""

    def __init__(self, seed, folder, *, lake=False):
        self.rng = random.Random(seed)
        self.has_lake = lake
        self.clock = SimClock()
        self.folder = folder
        self.storage = MemoryStorage(sim_world(seed, self.clock))
        self.names = ["name", "n"]
        self.model = {}
        self.changes = {}
        self.tables = []
        self.caches = 0
        partitioned = self.rng.random() < 0.5
        properties = {"table.log.ttl": "2h", "table.datalake.enabled": str(lake).lower()}
        for number in range(2):
            warehouse = Warehouse("wh", storage=self.storage, world=sim_world(seed * 10 + number, self.clock))
            if number == 0:
                warehouse.create_table(
                    "t", COLUMNS, primary_key=["dt", "id"], partition_by=["dt"] if partitioned else (),
                    buckets=self.rng.choice([1, 3]), properties=properties,
                )  # fmt: skip
            self.tables.append(warehouse.table("t"))

    def at(self, host):
        """A process, with its host's cache."""
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(self.folder / f"host-{host}-{self.caches}")
        return self.tables[host]

    def key(self):
        return self.rng.choice("xy"), self.rng.randrange(6)

    def value(self, name):
        return self.rng.choice(NAMES) if name != "n" else self.rng.choice([None, 1, 2])

    def step(self):
        host = self.rng.randrange(2)
        table = self.at(host)
        kinds = ["upsert"] * 6 + ["partial", "partial", "delete", "delete", "overwrite", "truncate", "column", "lose"]
        tiering = ["tier"] * 5 + ["compact", "expire"] if self.has_lake else []
        kind = self.rng.choice([*kinds, *tiering, "maintain", "maintain", "lookup", "reopen"])
        getattr(self, kind)(table)
        self.check(self.at(self.rng.randrange(2)))

    def upsert(self, table, *, overwrite=False):
        rows = []
        for _ in range(self.rng.randrange(1, 6)):
            dt, key = self.key()
            rows.append({"dt": dt, "id": key, **{name: self.value(name) for name in self.names}})
        table.overwrite(rows) if overwrite else table.upsert(rows)
        if overwrite:
            self.model.clear()
        self.model.update({(row["dt"], row["id"]): {name: row[name] for name in self.names} for row in rows})

    def overwrite(self, table):
        if self.rng.random() < 0.3:
            self.upsert(table, overwrite=True)

    def partial(self, table):
        name = self.rng.choice(self.names)
        rows = [{"dt": dt, "id": key, name: self.value(name)} for dt, key in {self.key() for _ in range(3)}]
        table.upsert(rows, columns=[name])
        for row in rows:
            old = self.model.setdefault((row["dt"], row["id"]), dict.fromkeys(self.names))
            old[name] = row[name]

    def delete(self, table):
        keys = [self.key() for _ in range(2)]
        table.delete([{"dt": dt, "id": key} for dt, key in keys])
        for key in keys:
            self.model.pop(key, None)

    def truncate(self, table):
        if self.rng.random() < 0.3:
            table.truncate()
            self.model.clear()

    def column(self, table):
        if len(self.names) == 2 and self.rng.random() < 0.3:
            table.add_columns("note STRING")
            self.names.append("note")
            for row in self.model.values():
                row["note"] = None

    def lose(self, table):
        close_tablets()
        shutil.rmtree(os.environ["STREAMHOUSE_CACHE_DIR"], ignore_errors=True)

    def reopen(self, table):
        """New processes, on new hosts."""
        close_tablets()
        self.caches += 1
        self.tables = [
            Warehouse("wh", storage=self.storage, world=sim_world(self.rng.randrange(10**6), self.clock)).table("t")
            for _ in self.tables
        ]

    def maintain(self, table):
        self.clock.advance(self.rng.choice([0, HOUR_MS, 3 * HOUR_MS, 26 * HOUR_MS]))
        table.maintain()

    def tier(self, table):
        """Every row is in the lake then."""
        table.refresh()
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        job.run(run_tasks_locally(self.storage, table.settings, table.world))
        rows = [] if table.state.lake is None else table.lake.to_arrow().to_pylist()
        assert {(row.pop("dt"), row.pop("id")): row for row in rows} == self.model
        assert len(rows) == len(self.model)

    def compact(self, table):
        if table.open_lake().exists():
            table.open_lake().compact()

    def expire(self, table):
        self.clock.advance(HOUR_MS)
        if table.open_lake().exists():
            table.open_lake().expire(keep_last=1, keep_ms=0)

    def lookup(self, table):
        keys = [self.key() for _ in range(4)]
        found = table.lookup([{"dt": dt, "id": key} for dt, key in keys], max_staleness_ms=0).to_pylist()
        expected = [self.model.get(key) for key in keys]
        assert [row["_found"] for row in found] == [row is not None for row in expected]
        assert [{n: row[n] for n in self.names if n in row} for row in found if row["_found"]] == [
            {n: row[n] for n in self.names if n in found[0]} for row in expected if row is not None
        ]

    def check(self, table):
        found = table.to_arrow().to_pylist()
        assert {(row.pop("dt"), row.pop("id")): row for row in found} == self.model
        assert len(found) == len(self.model)

    def finish(self):
        for host in range(2):
            table = self.at(host)
            self.check(table)
            self.lookup(table)
            inside = [table.prefix_lookup({"dt": dt}, max_staleness_ms=0) for dt in "xy"]
            rows = pa.concat_tables(inside).to_pylist()
            assert [(row["dt"], row["id"]) for row in rows] == sorted(self.model)


def folded(view):
    """What the changelog makes of nothing, where it holds every change; each change is checked on the way."""
    rows, before = {}, None
    for row in view.to_arrow().to_pylist():
        kind, _, _ = row.pop("_change_type"), row.pop("_log_offset"), row.pop("_commit_timestamp")
        key = row["dt"], row["id"]
        if kind == "insert":
            assert key not in rows
            rows[key] = row
        elif kind == "delete":
            assert rows.pop(key) == row
        elif kind == "update_before":
            assert rows[key] == row
            before = key
        else:
            assert before == key
            assert rows[key] != row
            rows[key] = row
    return rows


@pytest.fixture(autouse=True)
def _few_changes_make_snapshots_due(monkeypatch, own_cache):
    monkeypatch.setattr(snapshots, "CHANGES_MIN", 5)
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", os.environ["STREAMHOUSE_CACHE_DIR"])


@pytest.mark.parametrize("lake", [False, True], ids=["log", "lake"])
@pytest.mark.parametrize("seed", range(12))
def test_histories(seed, lake, tmp_path):
    history = History(seed, tmp_path, lake=lake)
    for _ in range(30):
        history.step()
    history.finish()
    state = history.tables[0].refresh()
    if all(log.start == state.first_offset(bucket) for bucket, log in state.buckets.items()):
        from streamhouse_spark.views import open_view

        rows = folded(open_view(history.tables[0], "changelog"))
        assert {key: {n: row[n] for n in history.names} for key, row in rows.items()} == history.model


def test_histories_trim_what_snapshots_hold(tmp_path):
    """The histories above would prove little if nothing was ever trimmed."""
    trimmed, restored = 0, 0
    for seed in range(10):
        history = History(seed, tmp_path / str(seed))
        for _ in range(30):
            history.step()
        state = history.tables[0].refresh()
        trimmed += any(log.start > state.first_offset(b) for b, log in state.buckets.items())
        history.reopen(None)
        restored += bool(state.snapshots) and history.at(0).lookup([{"dt": "x", "id": 0}]).num_rows
    assert trimmed >= 3
    assert restored >= 3
