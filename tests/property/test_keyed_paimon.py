"""Random histories of Paimon tables with a primary key: after each step the lake is a dictionary, in every reader."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from interop.keyed_cases import ITEMS, KeyedTable, rows_of
from kit.lake_rows import lake_rows
from property.machine import examples_wanted
from streamhouse_spark import StreamhouseError
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.paimon.manifests import live_entries
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from unit.lake.filters_of_reads import filter_of

DAYS = [dt.date(2026, 1, 1), dt.date(1969, 12, 31)]
TAGGED = "day date not null, id smallint not null, tag string not null, name string, n bigint"
SHAPES = {
    "plain": (ITEMS, (range(-3, 6),), {}),
    "buckets": (ITEMS, (range(-3, 6),), {"bucket_key": "id", "num_buckets": 3}),
    "strings": (
        TableSchema.of("id string not null, name string, n bigint"),
        (["", "a", "a\0b", "b" * 20, "b" * 21, "漢字"],),
        {"bucket_key": "id", "num_buckets": 2},
    ),
    "composite": (
        TableSchema.of(TAGGED),
        (DAYS, [1, -2], ["x", "y z"]),
        {"key": ["tag", "day", "id"], "partition_by": ["day"], "bucket_key": ["id", "tag"], "num_buckets": 3},
    ),
}
KINDS = ["change"] * 4 + ["tier"] * 3 + ["slices", "compact", "truncate", "column", "forget"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2**32 - 1),
        st.none() | st.tuples(st.integers(0, 12), st.sampled_from(list(Fault))),
    ),
    min_size=4,
    max_size=14,
)


@dataclass
class History:
    """A table, what its lake should hold, and what each of its snapshots held."""

    table: KeyedTable
    values: tuple
    num_own: int
    held: list = field(default_factory=list)
    then: dict = field(default_factory=dict)
    seeds: Iterator[int] = field(default_factory=lambda: count(2))  # two processes never make the same names

    def change(self, rng: random.Random) -> None:
        rows = []
        for _ in range(rng.randrange(1, 5)):
            key = [rng.choice(list(values)) for values in self.values]
            more = [rng.choice([None, 1.5]) for _ in self.table.state.schema.columns[self.num_own :]]
            rows.append((*key, rng.choice([None, "a", "b"]), rng.randrange(9), *more))
        self.table.change(rows)
        self.table.change(
            [], rng.sample(sorted(self.table.rows, key=repr), min(len(self.table.rows), rng.randrange(3)))
        )

    def tier(self, _rng: random.Random, **options) -> None:
        self.table.tier(**options)

    def slices(self, rng: random.Random) -> None:
        self.tier(rng, bytes_per_bucket_max=1)

    def compact(self, _rng: random.Random) -> None:
        """Then who does not merge reads right what is read as it is: of these few rows all is worth it."""
        if self.table.lake().compact().snapshot is not None:
            assert self.table.unmerged_rows() == self.table.lake_rows()

    def truncate(self, _rng: random.Random) -> None:
        self.table.truncate()

    def column(self, _rng: random.Random) -> None:
        if len(self.table.state.schema.columns) == self.num_own:
            self.table.add_column("more double")

    def forget(self, _rng: random.Random) -> None:
        """Another process goes on."""
        table = self.table
        self.table = KeyedTable(
            table.storage, sim_world(next(self.seeds), table.world.clock), table.state.schema,
            bucket_key=table.bucket_key, lake_format="paimon",
        )  # fmt: skip
        self.table.rows = table.rows

    def failing(self, kind: str, rng: random.Random, call: int, fault: Fault) -> None:
        """A round or a compaction of another process that dies, or fails, at one call."""
        real = self.table
        due: dict[int, Fault] = {}
        faulty = FaultyStorage(real.storage, lambda number, _method, _key: due.get(number))
        process = KeyedTable(
            faulty, sim_world(next(self.seeds), real.world.clock), real.state.schema, bucket_key=real.bucket_key,
            lake_format="paimon",
        )  # fmt: skip
        process.rows, self.table = real.rows, process
        due[len(faulty.trace) + call] = fault
        with suppress(StreamhouseError, Crash):
            getattr(self, kind)(rng)
        self.table = real

    def check(self, rng: random.Random) -> None:
        table = self.table
        lake = table.lake()
        if not lake.exists():
            return
        found = table.lake_rows()
        assert table.foreign_rows() == found
        snapshot = lake.newest()
        if snapshot is None:
            return
        if snapshot.offsets == table.state.ends and table.state.begins_at(snapshot.starts):
            assert found == table.expected()
        self.then.setdefault(snapshot.id, found)
        number = rng.choice(sorted(self.then))
        older = lake_rows(lake, lake.plan_read(snapshot_id=number, schema=table.state.schema))
        then = [row[: self.num_own] for row in self.then[number]]
        assert [row[: self.num_own] for row in rows_of(older, table.state.schema)] == then
        n = rng.randrange(9)
        plan = lake.plan_read(columns=["n", "name"], node=filter_of(lake.binding.spec.schema, ("n", "=", n)))
        matching = lake_rows(lake, plan, filter=pc.field("n") == n)
        place = table.state.schema.names.index("n")
        names = sorted((row[place - 1] for row in found if row[place] == n), key=repr)
        assert sorted(matching["name"].to_pylist(), key=repr) == names
        entries = live_entries(lake.binding, lake.binding.require())
        ends = table.state.ends
        assert all(entry.file.max_sequence_number < ends[entry.bucket] for entry in entries)


@given(name=st.sampled_from(sorted(SHAPES)), before_images=st.booleans(), steps=STEPS)
@settings(max_examples=examples_wanted() or 12)
def test_the_paimon_lake_has_the_current_rows_after_each_random_step(name, before_images, steps):
    schema, values, options = SHAPES[name]
    clock = SimClock()
    world = World(clock, sim_world(1).ids)
    table = KeyedTable(
        MemoryStorage(world), world, schema, before_images=before_images, lake_format="paimon", **options
    )
    history = History(table, values, len(schema.columns))
    with one_thing_at_a_time():
        for step, seed, luck in steps:
            rng = random.Random(seed)
            if luck is not None and step in ("tier", "slices", "compact"):
                history.failing(step, rng, *luck)
            else:
                getattr(history, step)(rng)
            if step in ("tier", "slices", "compact"):
                history.check(rng)
        history.tier(random.Random(0))
        history.check(random.Random(0))
        assert history.table.lake_rows() == history.table.expected()
        history.compact(random.Random(0))
        history.check(random.Random(0))
