"""Random histories of tables with a primary key: after each step the lake is a dictionary, in every reader."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo

from faults.sim import SimClock, sim_world
from interop.keyed_cases import ITEMS, KeyedTable, live_deletes, rows_of
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.iceberg import compaction as iceberg_compact_keyed
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage

DAYS = [dt.date(2026, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 3)]


@dataclass(frozen=True)
class Shape:
    """A kind of table: its columns, the last two of which are no keys, and values for the keys."""

    schema: TableSchema
    values: tuple
    options: dict
    foreign: bool = False
    """Whether pyiceberg alone can write to it."""


SHAPES = {
    "plain": Shape(ITEMS, (range(-3, 5),), {"key": ["id"]}, foreign=True),
    "buckets": Shape(ITEMS, (range(-3, 5),), {"key": ["id"], "bucket_key": "id", "num_buckets": 3}),
    "strings": Shape(
        TableSchema.of("id string not null, name string, n bigint"),
        (["", "a", "a\0b", "b" * 20, "b" * 21, "漢字"],),
        {"key": ["id"], "bucket_key": "id", "num_buckets": 2},
    ),
    "partitions": Shape(
        TableSchema.of("day date not null, id int not null, name string, n bigint"),
        (DAYS, range(3)),
        {"key": ["id", "day"], "partition_by": ["day"]},
        foreign=True,
    ),
    "composite": Shape(
        TableSchema.of("day date not null, id smallint not null, tag string not null, name string, n bigint"),
        (DAYS, [1, -2], ["x", "y z"]),
        {"key": ["day", "tag", "id"], "partition_by": ["day"], "bucket_key": "id", "num_buckets": 2},
    ),
    "odd": Shape(
        TableSchema.of("f double not null, b boolean not null, t timestamp_ntz not null, name string, n bigint"),
        ([0.5, -1.5, float("inf")], [True, False], [dt.datetime(2026, 1, 1), dt.datetime(1969, 1, 1, 0, 0, 0, 1)]),
        {"key": ["f", "b", "t"]},
    ),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["change"] * 3,
                *["tier"] * 2,
                "slices",
                "compact",
                "expire",
                "clean",
                "append",
                "delete",
                "truncate",
                "column",
                "forget",
            ]
        ),
        st.integers(0, 2**32 - 1),
    ),
    min_size=4,
    max_size=16,
)


class History:
    """A table and what its lake should hold: by key the rows, of which only other engines make more than one."""

    def __init__(self, shape: Shape, storage, world, *, before_images: bool) -> None:
        self.shape = shape
        self.table = KeyedTable(storage, world, shape.schema, before_images=before_images, **shape.options)
        self.held: dict = {}
        self.changed: set = set()
        self.is_truncated = False

    def row(self, rng: random.Random):
        key = [rng.choice(list(values)) for values in self.shape.values]
        rest = [rng.choice([None, "a", "b"]), rng.randrange(9)]
        more = [rng.choice([None, 1.5]) for _ in self.table.state.schema.columns[len(key) + 2 :]]
        return (*key, *rest, *more)

    # -- steps ----------------------------------------------------------------------------------------------------

    def change(self, rng):
        rows = [self.row(rng) for _ in range(rng.randrange(1, 5))]
        self.changed |= {self.table.key_of(row) for row in rows}
        present = sorted({*self.table.rows, *map(self.table.key_of, rows)}, key=repr)
        gone = rng.sample(present, min(len(present), rng.randrange(3)))
        self.changed |= set(gone)
        self.table.change(rows, gone)

    def tier(self, _rng, **options):
        ends = self.table.log.refresh().ends
        self.table.tier(**options)
        if any(ends.values()):
            self._tiered()

    def _tiered(self):
        if self.is_truncated:
            self.held.clear()
        for key in self.changed:
            self.held[key] = [self.table.rows[key]] if key in self.table.rows else []
        self.changed, self.is_truncated = set(), False

    def slices(self, rng):
        self.tier(rng, bytes_per_bucket_max=1)

    def compact(self, _rng):
        self.table.lake().compact()
        self.held = {key: rows[-1:] for key, rows in self.held.items()}

    def expire(self, _rng):
        lake = self.table.lake()
        lake.expire(keep_last=1, keep_ms=-60_000)

    def clean(self, _rng):
        self.table.world.clock.advance(25 * 3600 * 1000)
        self.table.lake().remove_orphans()

    def append(self, rng):
        if not self.shape.foreign or not self.table.lake().exists():
            return
        lake = self.table.lake().binding.load()
        row = self.row(rng)[: len(lake.schema().fields)]
        schema = lake.schema().as_arrow()
        lake.append(pa.table([pa.array([v], f.type) for v, f in zip(row, schema, strict=True)], schema=schema))
        row = (*row, *[None] * (len(self.table.state.schema.columns) - len(row)))
        self.held.setdefault(self.table.key_of(row), []).append(row)

    def delete(self, rng):
        if not self.shape.foreign or not self.table.lake().exists():
            return
        key = rng.choice(sorted(self.held, key=repr)) if self.held else self.table.key_of(self.row(rng))
        name, place = self.table.state.primary_key[0], self.table.key_indexes[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no such row
            self.table.lake().binding.load().delete(EqualTo(name, key[0]))
        self.held = {k: [row for row in rows if row[place] != key[0]] for k, rows in self.held.items()}

    def truncate(self, _rng):
        before = self.table.log.refresh().truncation
        self.table.truncate()
        self.changed.clear()
        # Where the log has no row it changes nothing, and what other engines added to the lake stays.
        self.is_truncated |= self.table.log.refresh().truncation != before

    def column(self, _rng):
        if len(self.table.state.schema.columns) < len(self.shape.schema.columns) + 2:
            number = len(self.table.state.schema.columns)
            self.table.add_column(f"more{number} double")
            self.held = {key: [(*row, None) for row in rows] for key, rows in self.held.items()}

    def forget(self, _rng):
        table = self.table
        self.table = KeyedTable(table.storage, table.world, table.state.schema, bucket_key=table.bucket_key)
        self.table.before_images, self.table.rows = table.before_images, table.rows

    # -- checks ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        expected = sorted((row for rows in self.held.values() for row in rows), key=repr)
        assert self.table.lake_rows() == expected
        lake = self.table.lake()
        if not lake.exists():
            return
        assert self.table.foreign_rows() == expected
        snapshot = lake.binding.load().current_snapshot()
        if snapshot is not None:
            files = lake.scan_files(
                snapshot_id=snapshot.snapshot_id, columns=["n"], schema=self.table.state.schema
            ).files
            assert all(len(file.position_deletes) <= 1 for file in files)
            counted = sum(file.num_rows for file in files) - sum(live_deletes(lake).values())
            assert self.shape.foreign or counted == len(expected)


@contextmanager
def always_compacting():
    with (
        mock.patch.object(iceberg_compact_keyed, "SMALL_FILES_MIN", 2),
        mock.patch.object(iceberg_compact_keyed, "DELETED_SHARE_MIN", 0),
    ):
        yield


@pytest.mark.parametrize("num_examples", [25, pytest.param(100, marks=pytest.mark.long)])
def test_the_lake_has_the_current_rows_after_each_random_step(num_examples):
    @settings(max_examples=num_examples)
    @given(name=st.sampled_from(sorted(SHAPES)), before_images=st.booleans(), steps=STEPS)
    @example(
        name="partitions",
        before_images=False,
        steps=[("change", 0), ("truncate", 0), ("tier", 0), ("append", 0), ("truncate", 0)],
    )
    def any_history(name, before_images, steps):
        check_history(name, before_images, steps)

    any_history()


def check_history(name, before_images, steps):
    clock = SimClock()
    world = World(clock, sim_world(1).ids)
    history = History(SHAPES[name], MemoryStorage(world), world, before_images=before_images)
    with always_compacting():
        for step, seed in steps:
            getattr(history, step)(random.Random(seed))
            if step not in ("change", "forget"):
                history.check()
        history.tier(None)
        history.check()
    table = history.table
    mine = {key: rows for key, rows in history.held.items() if rows}
    assert history.shape.foreign or mine == {key: [row] for key, row in table.rows.items()}
    assert rows_of(lake_rows(table.lake(), table.lake().plan_read()), table.state.schema)[:0] == []


@pytest.mark.long
def test_concurrent_services_and_compaction_keep_every_row():
    """A writer, two tiering services, and a compactor that also expires."""
    storage = MemoryStorage(World())
    writer = KeyedTable(storage, World(), bucket_key="id", num_buckets=2)
    writer.change([(i, "first", i) for i in range(200)])
    writer.tier()
    is_done = threading.Event()

    def service(work):
        table = KeyedTable(storage, World(), bucket_key="id", num_buckets=2)
        is_first = True
        while is_first or not is_done.is_set():
            with suppress(CommitConflictError):
                work(table)
                is_first = False

    def maintain(table):
        table.lake().compact()
        table.lake().expire(keep_last=1, keep_ms=-60_000)

    with always_compacting(), ThreadPoolExecutor(3) as pool:
        running = [pool.submit(service, work) for work in (KeyedTable.tier, KeyedTable.tier, maintain)]
        rng = random.Random(3)
        try:
            for number in range(40):
                writer.change([(rng.randrange(300), f"round {number}", number) for _ in range(20)])
                writer.change([], rng.sample(sorted(writer.rows), 5))
                time.sleep(0.02)
        finally:
            is_done.set()
        for future in running:
            future.result()
    writer.log.refresh()
    writer.tier()
    assert writer.lake_rows() == writer.foreign_rows() == writer.expected()
    assert writer.lake().newest().offsets == writer.state.ends
