"""Random histories of log tables whose columns have defaults, against a list of rows.

Two processes, which look at the table at different times, append rows that lack columns, and add, rename, drop and
widen columns and change defaults, in turn. Whoever appends, a row has the defaults of the moment of its commit.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from faults.scenarios import LAKE, NO_LAKE, PAIMON
from faults.sim import SimClock
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse

VALUES = {"string": ("", "a", "b"), "int": (0, 1, -(2**31)), "bigint": (1, 2**40)}
TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}


class History:
    def __init__(self, seed, properties):
        self.rng = random.Random(seed)
        clock = SimClock()
        storage = new_store(seed, clock)
        hosts = [open_warehouse(storage, seed + n, clock) for n in range(2)]
        self.kinds, self.defaults = {"a": "string", "b": "int"}, {"a": "a"}
        self.rows, self.names = {}, 0
        hosts[0].create_table("t", "id bigint not null, a string default 'a', b int", properties=properties)
        self.tables = [host.table("t") for host in hosts]

    def value(self, name):
        return self.rng.choice((None, *VALUES[self.kinds[name]]))

    def step(self):
        table = self.rng.choice(self.tables)
        getattr(self, self.rng.choice(["append"] * 6 + ["default"] * 3 + ["add", "rename", "drop", "widen", "tier"]))(
            table
        )

    def append(self, table):
        rows = [{"id": len(self.rows) + n} for n in range(self.rng.randrange(1, 4))]
        everywhere = [name for name in self.kinds if self.rng.random() < 0.5]
        for row in rows:
            row |= {name: self.value(name) for name in everywhere}
            self.rows[row["id"]] = {name: row.get(name, self.defaults.get(name)) for name in self.kinds}
        schema = pa.schema([("id", pa.int64()), *((name, TYPES[self.kinds[name]]) for name in everywhere)])
        if self.rng.random() < 0.5:
            table.append(pa.Table.from_pylist(rows, schema))
            return
        for row in rows:  # dicts are rows of their own
            for name in [name for name in everywhere if self.rng.random() < 0.3]:
                del row[name]
                self.rows[row["id"]][name] = self.defaults.get(name)
        table.append(rows)

    def default(self, table):
        given = {name: self.value(name) for name in self.rng.sample(list(self.kinds), self.rng.randrange(1, 3))}
        self.note(given)
        table.alter(defaults=given)

    def note(self, given):
        self.defaults = {name: value for name, value in {**self.defaults, **given}.items() if value is not None}

    def free_name(self):
        self.names += 1
        return f"c{self.names}"

    def add(self, table):
        if len(self.kinds) < 5:
            name = self.free_name()
            self.kinds[name] = self.rng.choice(["string", "int"])
            given = {name: self.value(name)}
            self.note(given)
            for row in self.rows.values():
                row[name] = None
            table.add_columns(f"{name} {self.kinds[name]}", defaults=given)

    def rename(self, table):
        old, new = self.rng.choice(list(self.kinds)), self.free_name()
        named = {old: new}
        self.kinds = {named.get(n, n): kind for n, kind in self.kinds.items()}
        self.defaults = {named.get(n, n): value for n, value in self.defaults.items()}
        self.rows = {i: {named.get(n, n): value for n, value in row.items()} for i, row in self.rows.items()}
        table.rename_column(old, new)

    def drop(self, table):
        if len(self.kinds) > 2:
            name = self.rng.choice(list(self.kinds))
            del self.kinds[name]
            self.defaults.pop(name, None)
            for row in self.rows.values():
                del row[name]
            table.drop_column(name)

    def widen(self, table):
        narrow = [name for name, kind in self.kinds.items() if kind == "int"]
        if narrow:
            name = self.rng.choice(narrow)
            self.kinds[name] = "bigint"
            table.widen_column(name, "bigint")

    def tier(self, table):
        if table.properties.datalake_enabled:
            table.refresh()
            tier(table)

    def check(self):
        for table in self.tables:
            table.refresh()
            assert {row.pop("id"): row for row in table.to_arrow().to_pylist()} == self.rows
            found = {c.name: c.default for c in table.state.schema.columns if c.default is not None}
            assert found == self.defaults


@pytest.mark.parametrize(("lake", "seeds"), [(NO_LAKE, 20), (LAKE, 5), (PAIMON, 5)], ids=["none", "iceberg", "paimon"])
def test_random_histories_of_defaults_agree_with_a_model(lake, seeds, own_cache):
    for seed in range(seeds):
        history = History(seed * 10, lake)
        for _ in range(30):
            history.step()
        history.check()
        assert len(history.rows) > 10
        assert len(history.tables[0].state.schemas) > 5
