"""Writes whose changes were prepared earlier, elsewhere and in vain, against the same writes made when they commit."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.sim import sim_world
from kit.keyed_writes import change
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.upsert_intents import IntentWrite, commit_prepared, prepare_changes

COLUMNS = "id INT, name STRING, n INT"
ENGINES = {
    "last row": {},
    "first row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"},
    "sums": {"table.merge-engine": "aggregation", "fields.n.agg": "sum", "table.delete.behavior": "allow"},
    "without rows before": {"table.changelog.image": "wal"},
}
WITH_PARTIAL_UPDATES = ("last row", "sums", "without rows before")
BUCKETS = 2

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.sampled_from("ab"), st.none() | st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=5,
)
STEPS = st.lists(
    st.tuples(st.just("prepare"), ROWS, st.sets(st.integers(0, BUCKETS - 1)), st.sampled_from(["", "columns", "all"]))
    | st.tuples(st.just("commit"), st.integers(0, 3), st.none(), st.none())
    | st.tuples(st.just("upsert"), ROWS, st.none(), st.none())
    | st.tuples(st.sampled_from(["truncate", "alter", "forget"]), st.none(), st.none(), st.none()),
    min_size=3,
    max_size=10,
)


class Write:
    """One write of the history: what its tasks were given, and what they prepared."""

    def __init__(self, table, rows, buckets, kind, engine):
        partial = kind == "columns" and engine in WITH_PARTIAL_UPDATES
        self.write = IntentWrite(("n",) if partial else None, overwrites=kind == "all")
        self.rows = [row for row in rows if not row[3]] if self.write.overwrites else rows
        shape = table.keyed.keyed_schema(table.refresh())
        keys = [pa.array([row[0] for row in self.rows], pa.int32())]
        self.by_bucket = {b: [self.rows[i] for i in places] for b, places in shape.buckets(keys)} if self.rows else {}
        self.readers = {b: (lambda schema, b=b: (*arrow(schema, self.by_bucket[b]), None)) for b in self.by_bucket}
        self.prepared = prepare_changes(
            table.keyed, self.write, {b: r for b, r in self.readers.items() if b in buckets}
        )

    def commit(self, table):
        commit_prepared(table.keyed, self.write, self.readers, self.prepared)

    def make(self, twin):
        rows, deleted = arrow(twin.refresh().schema, self.rows)
        change(twin, rows, deleted, columns=self.write.columns, overwrite=self.write.overwrites)


def arrow(schema, rows):
    """Rows (id, name, n, is a deletion) as `ReadIntents` gives them."""
    given = dict(zip(("id", "name", "n"), zip(*[row[:3] for row in rows], strict=True), strict=False)) if rows else {}
    columns = {c.name: pa.array(given.get(c.name, [None] * len(rows)), c.type) for c in schema.columns}
    return pa.table(columns), np.array([row[3] for row in rows], np.bool_)


def changelog(table):
    return open_view(table, "changelog").to_arrow().drop_columns(["_commit_timestamp"]).to_pylist()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25)
@given(steps=STEPS)
def test_prepared_changes_count_once_in_random_histories(engine, steps, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # simulated worlds give tables of all examples the same identity
        patch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        try:
            replay(engine, steps)
        finally:
            close_tablets()


def replay(engine, steps):
    storage = MemoryStorage(sim_world())
    seeds = itertools.count()
    names = {"d.ours": None, "d.twin": None}
    for name in names:
        names[name] = Warehouse("wh", storage=storage, world=sim_world(next(seeds))).create_table(
            name, COLUMNS, primary_key=["id"], buckets=BUCKETS, properties=ENGINES[engine]
        )
    ours, twin = names.values()
    pending = []
    for step, given_rows, buckets, kind in [*steps, *[("commit", 0, None, None)] * len(steps)]:
        if step == "prepare":
            pending.append(Write(ours, given_rows, buckets, kind, engine))
        elif step == "commit" and pending:
            write = pending.pop(given_rows % len(pending))
            ours.refresh()
            write.commit(ours)
            write.make(twin)
        elif step == "upsert":
            for table in (ours, twin):
                change(table, *arrow(table.refresh().schema, given_rows))
        elif step == "truncate":
            ours.truncate()
            twin.truncate()
        elif step == "alter" and "note" not in ours.schema.names:
            ours.add_columns("note STRING")
            twin.add_columns("note STRING")
        elif step == "forget":
            ours = Warehouse("wh", storage=storage, world=sim_world(next(seeds))).table("d.ours")
    assert changelog(ours) == changelog(twin)
    assert ours.to_arrow().sort_by("id") == twin.to_arrow().sort_by("id")
