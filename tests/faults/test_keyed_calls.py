"""A fault at every storage call of tables with a primary key: writes, snapshots by key, trimming, lookups."""

from __future__ import annotations

import itertools
import os
import pickle
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from faults.faulty_storage import Fault, clock_of, sweep
from faults.share import WHOLE, Share
from faults.sim import SimClock, sim_world
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.config.spark_options import WriteOptions
from streamhouse_spark.core.clock import World
from streamhouse_spark.datasource.write import staging_writer
from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan, commit_intents
from streamhouse_spark.kv import change_staging, kv_snapshots
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.system_views import open_view

HOUR_MS = 3600 * 1000
BEFORE = {i: {"id": i, "name": "a", "n": 1} for i in range(6)}


@pytest.fixture
def hosts(tmp_path, monkeypatch, own_cache):
    """Gives the table on a new host, with an empty cache."""
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 4)
    numbers = itertools.count()

    def new_host(storage, seed=0, clock=None):
        close_tablets()
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(tmp_path / str(next(numbers)))
        return Warehouse("wh", storage=storage, world=World(clock or SimClock(), sim_world(seed).ids)).table("t")

    return new_host


def prepared(hosts, *, snapshot, image="full"):
    storage = MemoryStorage(sim_world())
    Warehouse("wh", storage=storage, world=sim_world(1)).create_table(
        "t", "id INT, name STRING, n BIGINT", primary_key=["id"], buckets=2,
        properties={"table.log.ttl": "1h", "table.datalake.enabled": "false", "table.changelog.image": image},
    )  # fmt: skip
    table = hosts(storage, 2)
    table.upsert([{"id": i, "name": "old", "n": 0} for i in range(7)])
    table.upsert(list(BEFORE.values()))
    table.delete([6])
    if snapshot:
        table.maintain()
        assert table.refresh().snapshots
        table.upsert([BEFORE[0]])
    return storage


def rows(table):
    found = table.to_arrow().to_pylist()
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found)
    looked_up = table.lookup(sorted(by_key), max_staleness_ms=0).to_pylist()
    assert [{**by_key[row["id"]], "_found": True} for row in looked_up] == looked_up
    return by_key


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("inline", "snapshot"), [(True, True), (False, False)], ids=["inline, by a snapshot", "objects, by the log"]
)
def test_a_partial_update_is_stored_once_despite_any_fault(hosts, inline, snapshot, monkeypatch, share):
    if not inline:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    outcomes = check_partial_update(hosts, share, snapshot=snapshot)
    if share.is_rest:  # a sample may have one of the two alone
        assert outcomes["Crash", True]
        assert outcomes["Crash", False]


@pytest.mark.always
def test_every_call_of_an_upsert_meets_every_fault(hosts):
    outcomes = check_partial_update(hosts, WHOLE, snapshot=False)
    assert outcomes["Crash", True]
    assert outcomes["Crash", False]


def check_partial_update(hosts, share: Share, *, snapshot: bool) -> Counter[tuple[str, bool]]:
    """Whatever the writer is told, its batch is there once or not at all, for every host."""
    after = {**BEFORE, 1: {**BEFORE[1], "n": 9}, 9: {"id": 9, "name": None, "n": 9}}

    def work(storage):
        table = hosts(storage, 3)
        table.upsert([{"id": 1, "n": 9}, {"id": 9, "n": 9}], columns=["n"])
        assert rows(table) == after

    outcomes = Counter()
    for attempt in sweep(prepared(hosts, snapshot=snapshot), work, share=share, each_state_once=True):
        table = hosts(attempt.store, 4)
        found = rows(table)
        assert found in ((BEFORE, after) if attempt.raised else (after,)), attempt
        table.upsert([{"id": 1, "n": 9}, {"id": 9, "n": 9}], columns=["n"])
        assert rows(table) == after, attempt
        outcomes[type(attempt.raised).__name__, found == after] += 1
    return outcomes


@pytest.mark.sampled(7)
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_blind_upserts_are_stored_once_whichever_call_fails(hosts, inline, monkeypatch, share):
    """The same, without rows before; another writer is faster once, and its rows stand before these."""
    if not inline:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    batch = [{"id": 1, "name": "b", "n": 9}, {"id": 8, "name": "b", "n": 9}]
    other = {"id": 5, "name": "c", "n": 5}
    before = {**BEFORE, 5: other}
    after = {**before, 1: batch[0], 8: batch[1]}

    def work(storage):
        table = hosts(storage, 3)
        Warehouse("wh", storage=storage.inner, world=sim_world(5)).table("t").upsert([other])
        table.upsert(batch)
        assert rows(table) == after

    outcomes = Counter()
    for attempt in sweep(prepared(hosts, snapshot=True, image="wal"), work, share=share, each_state_once=True):
        table = hosts(attempt.store, 4)
        found = rows(table)
        assert found in ((BEFORE, before, after) if attempt.raised else (after,)), attempt
        table.upsert(batch)
        kinds = {row["_change_type"] for row in open_view(table, "changelog").to_arrow().to_pylist()}
        assert kinds == {"update_after", "delete"}
        assert {key: row for key, row in rows(table).items() if key != 5} == {k: r for k, r in after.items() if k != 5}
        outcomes[type(attempt.raised).__name__, found == after] += 1
    if share.is_rest:
        assert outcomes["Crash", True]
        assert outcomes["Crash", False]


@pytest.mark.sampled(26)
def test_maintenance_loses_no_row_or_key_despite_any_fault(hosts, share):
    """Snapshots are published, the log is trimmed up to them, and files go: no row and no key is ever lost."""

    def work(storage):
        clock = clock_of(storage)  # the store's clock is the one that ages rows
        clock.advance(2 * HOUR_MS)
        table = hosts(storage, 3, clock)
        table.maintain()
        assert rows(table) == BEFORE
        clock.advance(30 * HOUR_MS)
        table.upsert([BEFORE[0]])
        table.maintain()
        assert rows(hosts(storage, 5, clock)) == BEFORE

    trimmed = 0
    for attempt in sweep(prepared(hosts, snapshot=False), work, share=share, each_state_once=True):
        clock = clock_of(attempt.store)
        table = hosts(attempt.store, 4, clock)
        assert rows(table) == BEFORE, attempt
        table.maintain()
        assert rows(hosts(attempt.store, 6, clock)) == BEFORE, attempt
        table.upsert([{"id": 3, "name": "z", "n": 3}])
        assert rows(table)[3]["name"] == "z"
        state = table.refresh()
        trimmed += any(log.start > 0 for log in state.buckets.values())
        for row in open_view(table, "changelog").to_arrow().to_pylist():
            assert row["id"] in range(7)
    assert trimmed or not share.is_rest


class Here:
    """What `Connection` is in a process that has the table open already."""

    def __init__(self, warehouse, table):
        self._warehouse, self._table = warehouse, table

    def warehouse(self):
        return self._warehouse

    def table_by_uuid(self, _name, uuid):
        assert uuid == self._table.uuid
        return self._table


@pytest.mark.sampled(8)
def test_tasks_prepare_and_a_driver_commits(hosts, monkeypatch, share):
    """Whatever fails from a task's first call to the driver's last: the sums have the batch once or not at all.

    In between another writer moves one bucket: of the other one the prepared changes are committed.
    """
    monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(staging_writer, "TASK_INLINE_BYTES_MAX", 0)
    frame = StructType([StructField("id", IntegerType(), nullable=False), StructField("n", LongType())])
    once = Transaction("query", 1)
    prepared, fallen_back = [], []
    real = KeyedStagingPlan.intents
    monkeypatch.setattr(
        KeyedStagingPlan, "intents", lambda *args: {b: counted(read) for b, read in real(*args).items()}
    )

    def counted(read):
        return lambda schema: (fallen_back.append(1), read(schema))[1]

    base = MemoryStorage(sim_world())
    Warehouse("wh", storage=base, world=sim_world(1)).create_table(
        "t", "id INT, n BIGINT", primary_key=["id"], buckets=2,
        properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    )  # fmt: skip
    hosts(base, 2).upsert([{"id": i, "n": 1} for i in range(6)])

    def sent(storage, seed):
        """What the task of a host sends to the driver."""
        table = hosts(storage, seed)
        here = Here(Warehouse("wh", storage=storage, world=table.world), table)
        plan = KeyedStagingPlan.of(here, table, frame, WriteOptions(), is_clustered=True)
        rows = pa.record_batch({"id": pa.array(range(8), pa.int32()), "n": pa.array([10] * 8)})
        return plan, [pickle.loads(pickle.dumps(plan.stage([rows])))]

    def work(storage):
        plan, messages = sent(storage, 3)
        prepared.append(len(messages[0].prepared))
        hosts(storage.inner, 7).upsert([{"id": 0, "n": 100}])
        fallen_back.clear()
        commit_intents(hosts(storage, 4), plan, messages, transaction=once)
        if len(messages[0].prepared) == 2:
            assert len(fallen_back) == 1

    before = dict.fromkeys(range(6), 1)
    after = {i: 10 + before.get(i, 0) for i in range(8)}
    outcomes = Counter()
    faults = (Fault.CRASH_AFTER, Fault.ERROR_BEFORE)
    for attempt in sweep(base, work, faults=faults, share=share, each_state_once=True):
        table = hosts(attempt.store, 5)
        found = {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}
        has_rival = found[0] > 99
        found[0] -= 100 * has_rival
        assert found in ((before, after) if attempt.raised else (after,)), attempt
        plan, messages = sent(attempt.store, 6)
        commit_intents(table, plan, messages, transaction=once)
        found = {key: row["n"] for key, row in rows(table).items()}
        assert found == {**after, 0: after[0] + 100 * has_rival}, attempt
        outcomes[type(attempt.raised).__name__] += 1
    assert set(prepared) == {1, 2}, "a fault of one bucket's changes leaves the other's"
    if share.is_rest:  # as above
        assert outcomes["Crash"]
        assert outcomes["NoneType"]
