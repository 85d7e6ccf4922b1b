"""Random histories of tables with a primary key through the public API, against a dictionary.

Several processes on hosts of their own write, delete, update parts, overwrite, truncate, add, rename, drop and widen
columns, give them defaults and leave them out, look up, maintain (snapshots by key, trimming, merging, cleaning), lose
their caches, and meet failing calls of the storage. After each step what one of them reads is what the dictionary
holds, and after each round what DuckDB, or of a Paimon lake pypaimon, reads in the lake; at the end the union read,
lookups, and the folded changelog all are.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from functools import lru_cache

import pyarrow as pa
import pytest

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from interop.keyed_cases import read_by_pypaimon
from kit.changelog_replay import folded
from kit.duck import connect_duckdb
from streamhouse_spark import StreamhouseError, Warehouse
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.system_views import open_view

HOUR_MS = 3600 * 1000
COLUMNS = "dt STRING, id INT, name STRING, n BIGINT"
NAMES = (None, "a", "b", "long" * 50)


class Process:
    """One process on its host: the storage that it sees fails when a step says so."""

    def __init__(self, storage, seed, clock):
        self.faulty = FaultyStorage(storage, lambda number, _method, _key: self.faults.get(number))
        self.faults = {}
        self.warehouse = Warehouse("wh", storage=self.faulty, world=sim_world(seed, clock))
        self._table = None

    @property
    def table(self):
        self._table = self._table or self.warehouse.table("t")
        return self._table

    def fails_at(self, call, fault):
        self.faults = {len(self.faulty.trace) + call: fault}


class History:
    """One table, its processes, and the dictionary: (dt, id) → row.

    With a lake it lies on a disk, where another engine reads what each round made of it. With ``faults`` some steps
    meet a failing call of the storage: they change all they should or nothing, as they are told or not.
    """

    def __init__(self, seed, folder, *, lake=None, faults=True):
        self.rng = random.Random(seed)
        self.lake = lake
        self.has_faults = faults
        self.clock = SimClock()
        self.folder = folder
        self.path = folder / "wh"
        world = sim_world(seed, self.clock)
        self.storage = LocalStorage(str(self.path), fsync=False, world=world) if lake else MemoryStorage(world)
        self.names = ["name", "n"]
        self.kinds = {"name": "string", "n": "bigint"}
        self.defaults = {}
        self.key_names = ["dt", "id"]
        self.model = {}
        self.caches = 0
        self.fired = 0
        self.altered = 0
        self.compared = 0
        self.processes = [Process(self.storage, seed * 10 + number, self.clock) for number in range(2)]
        partitioned = self.rng.random() < 0.5
        self.processes[0].warehouse.create_table(
            "t", COLUMNS, primary_key=["dt", "id"], partition_by=["dt"] if partitioned else (),
            buckets=self.rng.choice([1, 3]),
            properties={
                "table.log.ttl": "2h",
                "table.datalake.enabled": str(lake is not None).lower(),
                "table.datalake.format": lake or "iceberg",
            },
        )  # fmt: skip

    def at(self, host):
        """The table as a process sees it, with its host's cache."""
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(self.folder / f"host-{host}-{self.caches}")
        return self.processes[host].table

    def key(self):
        return self.rng.choice("xy"), self.rng.randrange(6)

    def value(self, name):
        values = {"string": NAMES, "int": (None, 1, 2, -(2**31)), "bigint": (None, 1, 2, 2**40)}
        return self.rng.choice(values[self.kinds[name]])

    def keyed(self, key):
        return dict(zip(self.key_names, key, strict=True))

    def step(self):
        host = self.rng.randrange(2)
        table = self.at(host)
        kinds = ["upsert"] * 6 + ["partial", "partial", "delete", "delete", "overwrite", "truncate", "lose"]
        kinds += ["add", "rename", "rename_key", "drop", "widen", "default"]
        tiering = ["tier"] * 5 + ["compact", "expire"] if self.lake else []
        kind = self.rng.choice([*kinds, *tiering, *["maintain"] * 3, "lookup", "reopen"])
        if self.has_faults and self.rng.random() < 0.25:
            self.failing(kind, host)
        else:
            getattr(self, kind)(table)
        self.check(self.at(self.rng.randrange(2)))

    def failing(self, kind, host):
        """A step in which a call fails; then what is there decides which of both it was."""
        before = copy.deepcopy((self.names, self.kinds, self.key_names, self.defaults, self.model))
        process = self.processes[host]
        process.fails_at(self.rng.randrange(self.rng.choice([4, 10, 40])), self.rng.choice(list(Fault)))
        fired = len(process.faulty.faults_fired)
        try:
            getattr(self, kind)(self.at(host))
            failed = False
        except (StreamhouseError, Crash):
            failed = True
        process.faults = {}
        self.fired += len(process.faulty.faults_fired) - fired
        if process.faulty.crashed:
            close_tablets()
            self.processes[host] = Process(self.storage, self.rng.randrange(10**6), self.clock)
        if failed and not self.is_there(Process(self.storage, 0, self.clock).table):
            self.names, self.kinds, self.key_names, self.defaults, self.model = before

    def is_there(self, table):
        found = table.to_arrow()
        if found.column_names != [*self.key_names, *self.names]:
            return False
        if {c.name: c.default for c in table.state.schema.columns if c.default is not None} != self.defaults:
            return False
        return self.by_key(found) == self.model and found.schema.types == [pa.string(), pa.int32(), *self.types()]

    def types(self):
        return [{"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}[self.kinds[n]] for n in self.names]

    def by_key(self, found):
        rows = found.to_pylist()
        by_key = {tuple(row.pop(name, None) for name in self.key_names): row for row in rows}
        assert len(by_key) == len(rows)
        return by_key

    # -- steps that change the table say first what they should make of it ------------------------------------------

    def upsert(self, table, *, overwrite=False):
        rows = []
        for _ in range(self.rng.randrange(1, 6)):
            dt, key = self.key()
            named = [name for name in self.names if self.rng.random() < 0.8]
            rows.append({**self.keyed((dt, key)), **{name: self.value(name) for name in named}})
        if overwrite:
            self.model.clear()
        keys = [tuple(row[name] for name in self.key_names) for row in rows]
        self.model.update({k: self.filled(row) for k, row in zip(keys, rows, strict=True)})
        table.overwrite(rows) if overwrite else table.upsert(rows)

    def filled(self, row):
        """The columns beside the key of a new row that lacks some."""
        return {name: row.get(name, self.defaults.get(name)) for name in self.names}

    def overwrite(self, table):
        if self.rng.random() < 0.3:
            self.upsert(table, overwrite=True)

    def partial(self, table):
        name = self.rng.choice(self.names)
        rows = [{**self.keyed(key), name: self.value(name)} for key in {self.key() for _ in range(3)}]
        for row in rows:
            key = tuple(row[part] for part in self.key_names)
            self.model.setdefault(key, self.filled({}))[name] = row[name]
        table.upsert(rows, columns=[name])

    def delete(self, table):
        keys = [self.key() for _ in range(2)]
        for key in keys:
            self.model.pop(key, None)
        table.delete([self.keyed(key) for key in keys])

    def truncate(self, table):
        if self.rng.random() < 0.3:
            self.model.clear()
            table.truncate()

    def free_name(self):
        """Also of columns that were dropped or renamed: the one that comes is another."""
        return self.rng.choice(
            [name for name in ("name", "n", "note", "more", "id", "key") if name not in self.taken()]
        )

    def taken(self):
        return {*self.names, *self.key_names}

    def add(self, table):
        if len(self.names) < 4:
            name, kind = self.free_name(), self.rng.choice(["string", "int"])
            self.names.append(name)
            self.kinds[name] = kind
            for row in self.model.values():
                row[name] = None
            given = {name: self.value(name)} if self.rng.random() < 0.5 else {}
            self.note_defaults(given)
            table.add_columns(f"{name} {kind}", defaults=given)
            self.altered += 1

    def note_defaults(self, given):
        self.defaults = {name: value for name, value in {**self.defaults, **given}.items() if value is not None}

    def default(self, table):
        names = self.rng.sample(self.names, self.rng.randrange(1, len(self.names) + 1))
        given = {name: self.value(name) for name in names}
        self.note_defaults(given)
        table.alter(defaults=given)
        self.altered += 1

    def rename(self, table):
        old = self.rng.choice(self.names)
        new = {old: self.free_name()}
        if len(self.names) > 1 and self.rng.random() < 0.4:
            other = self.rng.choice([name for name in self.names if name != old])
            new = {old: other, other: old}
        self.names = [new.get(name, name) for name in self.names]
        self.kinds = {new.get(name, name): kind for name, kind in self.kinds.items()}
        self.defaults = {new.get(name, name): value for name, value in self.defaults.items()}
        self.model = {k: {new.get(n, n): v for n, v in row.items()} for k, row in self.model.items()}
        table.alter(rename_columns=new)
        self.altered += 1

    def rename_key(self, table):
        old, new = self.key_names[1], self.free_name()
        self.key_names[1] = new
        table.rename_column(old, new)
        self.altered += 1

    def drop(self, table):
        if len(self.names) > 1:
            name = self.rng.choice(self.names)
            self.names.remove(name)
            del self.kinds[name]
            self.defaults.pop(name, None)
            for row in self.model.values():
                del row[name]
            table.drop_column(name)
            self.altered += 1

    def widen(self, table):
        narrow = [name for name in self.names if self.kinds[name] == "int"]
        if narrow:
            name = self.rng.choice(narrow)
            self.kinds[name] = "bigint"
            table.widen_column(name, "bigint")
            self.altered += 1

    # -- steps that change no row -------------------------------------------------------------------------------------

    def lose(self, table):
        close_tablets()
        shutil.rmtree(os.environ["STREAMHOUSE_CACHE_DIR"], ignore_errors=True)

    def reopen(self, table):
        """New processes, on new hosts."""
        close_tablets()
        self.caches += 1
        self.processes = [Process(self.storage, self.rng.randrange(10**6), self.clock) for _ in self.processes]

    def maintain(self, table):
        self.clock.advance(self.rng.choice([0, HOUR_MS, 3 * HOUR_MS, 26 * HOUR_MS]))
        table.maintain()

    def tier(self, table):
        """Every row is in the lake then, for us and for others."""
        table.refresh()
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        fired = len(table.storage.home.faults_fired)
        job.run(run_tasks_locally(table.storage, table.settings, table.world))
        if (
            len(table.storage.home.faults_fired) > fired
        ):  # perhaps what tells DuckDB the newest version: the next round mends it
            job.run(run_tasks_locally(table.storage, table.settings, table.world))
        if table.state.lake is None:
            assert not self.model
            return
        self.compare(table.lake.to_arrow())
        if self.lake == "paimon":
            self.compare(read_by_pypaimon(self.storage, table.name))
        else:
            path = self.path / table.state.lake_location
            self.compare(duck().execute(f"SELECT * FROM iceberg_scan('{path}')").arrow().read_all())
        self.compared += 1

    def compare(self, found):
        """By names: the order of columns is the lake's own."""
        assert sorted(found.column_names) == sorted(self.taken())
        assert self.by_key(found) == self.model

    def compact(self, table):
        table.refresh()
        if table.open_lake().exists():
            table.open_lake().compact()

    def expire(self, table):
        self.clock.advance(HOUR_MS)
        if table.open_lake().exists():
            table.open_lake().expire(keep_last=1, keep_ms=0)

    def lookup(self, table):
        keys = [self.key() for _ in range(4)]
        found = table.lookup([self.keyed(key) for key in keys], max_staleness_ms=0).to_pylist()
        expected = [self.model.get(key) for key in keys]
        assert [row["_found"] for row in found] == [row is not None for row in expected]
        assert [{n: row[n] for n in self.names if n in row} for row in found if row["_found"]] == [
            {n: row[n] for n in self.names if n in found[0]} for row in expected if row is not None
        ]

    def check(self, table):
        self.compare(table.to_arrow())

    def finish(self):
        """Whether the changelog held every change, and so could be compared too."""
        for host in range(2):
            table = self.at(host)
            self.check(table)
            self.lookup(table)
            inside = [table.prefix_lookup({"dt": dt}, max_staleness_ms=0) for dt in "xy"]
            rows = pa.concat_tables(inside).to_pylist()
            assert [tuple(row[name] for name in self.key_names) for row in rows] == sorted(self.model)
        state = self.at(0).refresh()
        if any(log.start != state.first_offset(bucket) for bucket, log in state.buckets.items()):
            return False
        rows = folded(open_view(self.at(0), "changelog"), self.key_names)
        assert {key: {n: row[n] for n in self.names} for key, row in rows.items()} == self.model
        return True


duck = lru_cache(connect_duckdb)


@pytest.fixture(autouse=True)
def _few_changes_make_snapshots_due(monkeypatch, own_cache):
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 5)
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", os.environ["STREAMHOUSE_CACHE_DIR"])
    with one_thing_at_a_time():
        yield


@pytest.mark.parametrize(
    ("lake", "seed"),
    [
        pytest.param(lake, seed, marks=pytest.mark.long if seed > 2 else ())
        for lake, num in ((None, 12), ("iceberg", 10), ("paimon", 6))
        for seed in range(num)
    ],
)
def test_random_histories_of_keyed_tables_agree_with_a_dictionary(seed, lake, tmp_path):
    history = History(seed, tmp_path, lake=lake)
    for _ in range(30):
        history.step()
    history.finish()


@pytest.mark.long
def test_histories_do_what_they_are_for(tmp_path):
    """The histories above would prove little if nothing was ever trimmed, restored, failing, folded or tiered."""
    trimmed, restored, fired, folds, compared, altered = 0, 0, 0, 0, 0, 0
    for seed in range(10):
        history = History(seed, tmp_path / str(seed), lake="iceberg" if seed % 5 == 0 else None)
        for _ in range(30):
            history.step()
        state = history.at(0).refresh()
        trimmed += any(log.start > state.first_offset(b) for b, log in state.buckets.items())
        folds += history.finish()
        history.reopen(None)
        restored += bool(state.snapshots) and history.at(0).lookup([history.keyed(("x", 0))]).num_rows
        fired += history.fired
        compared += history.compared
        altered += history.altered
    assert trimmed >= 3
    assert restored >= 3
    assert fired >= 20
    assert folds >= 2
    assert compared >= 4
    assert altered >= 20
