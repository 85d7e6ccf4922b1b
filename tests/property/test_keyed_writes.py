"""Several writers of one table with a primary key against a dictionary: lost caches, races, faults of storage."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.faulty_storage import FaultyStorage, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import SimClock, sim_world
from streamhouse_spark import CommitConflictError, OffsetRange, Transaction
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.change_staging import ChangeStager
from streamhouse_spark.kv.lmdb.tablet_files import TabletFiles
from streamhouse_spark.kv.log_replay import KeyedLayout, catch_up
from streamhouse_spark.kv.merge_engines import ColumnwiseMerge, fold_of
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.kv.upsert_commit import commit_upsert
from streamhouse_spark.log.actions import Create, SetProperties, SetSchema
from streamhouse_spark.log.append_commit import make_truncate_actions
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.compaction import merge_runs, plan_inline_merge
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage

UUID = "5" * 32
SCHEMA = TableSchema.of("id BIGINT NOT NULL, name STRING, n BIGINT")
BUCKETS = 2
LAST_ROW = ColumnwiseMerge(frozenset({0}), {})
SUMS = ColumnwiseMerge(frozenset({0}), {2: fold_of("sum", "n", pa.int64())})


class Host:
    """A process on a host of its own: another cache, and what it remembers of the log."""

    def __init__(self, folder, storage, world, engine=LAST_ROW, *, before_images=True):
        self.folder, self.storage, self.world, self.engine = folder, storage, world, engine
        self.before_images = before_images
        self.log = CommitLog(storage, UUID, world)
        self.tablets = {}

    def tablet_of(self, bucket):
        if bucket not in self.tablets:
            identity = KeyedLayout.of(self.log.state).identity
            self.tablets[bucket] = Tablet(TabletFiles(self.folder, UUID, bucket), identity)
        return self.tablets[bucket]

    def lose_cache(self):
        for tablet in self.tablets.values():
            tablet.reset()

    def close(self):
        for tablet in self.tablets.values():
            tablet.close()

    @property
    def shape(self):
        return SegmentOptions(self.log.state.schema_id)

    def write(self, batch, transaction=None, read=None):
        """``batch``: (deleted, row) pairs."""
        state = self.log.state
        layout = KeyedLayout.of(state)
        stager = ChangeStager(
            self.storage, self.world, self.shape, layout, self.engine, self.tablet_of, self.before_images
        )
        batches = {}
        for bucket in range(BUCKETS):
            chosen = [(d, row) for d, row in batch if row[0] % BUCKETS == bucket]
            if chosen:
                columns = [pa.array([row[i] for _, row in chosen], c.type) for i, c in enumerate(SCHEMA.columns)]
                deleted = np.array([d for d, _ in chosen], np.bool_)
                batches[bucket] = KeyedBatch.of(layout.keys(columns), columns, deleted)
        return commit_upsert(self.log, stager, batches, transaction=transaction, read=read)[0]

    def read(self):
        """The rows now, and the base of an operation that read them."""
        return self.rows(), ReadVersion.of(self.log.state)

    def increment(self, rows, read):
        """``UPDATE … SET n = n + 1``, of the rows that were read."""
        return self.write([(False, (key, name, n + 1)) for key, (_, name, n) in rows.items()], read=read)

    def rows(self):
        """By this host's tablets, brought up to the newest state."""
        state = self.log.refresh()
        layout = KeyedLayout.of(state)
        found = {}
        for bucket in range(BUCKETS):
            catch_up(self.tablet_of(bucket), layout, self.storage, state, bucket)
            values = []
            self.tablet_of(bucket).scan(lambda items, values=values: values.extend(value for _, value in items))
            columns = layout.values.unpack(values).columns
            found |= {row[0]: row for row in zip(*(c.to_pylist() for c in columns), strict=True)}
        return found


def changelog(storage, state):
    """(bucket, offset, type, row) of every change since the table was truncated."""
    for bucket, log in state.buckets.items():
        split = plan_range(state, bucket, log.offsets)
        for found in read_split(storage, split, state.written_schema(state.schema_id)):
            types, *columns = (column.to_pylist() for column in found.batch.columns)
            for i, (kind, row) in enumerate(zip(types, zip(*columns, strict=True), strict=True)):
                yield bucket, found.base_offset + i, ChangeType(kind), row


def folded(storage, state, *, before_images=True):
    """The rows that the changelog makes, each change checked against the row that it is about."""
    rows, before = {}, None
    for bucket, offset, kind, row in changelog(storage, state):
        assert row[0] % BUCKETS == bucket, offset
        if kind is ChangeType.INSERT:
            assert row[0] not in rows
            rows[row[0]] = row
        elif kind is ChangeType.DELETE:
            assert rows.pop(row[0]) == row
        elif kind is ChangeType.UPDATE_BEFORE:
            assert rows[row[0]] == row
            assert before_images
            before = row
        elif not before_images:
            rows[row[0]] = row
        else:
            assert before is not None
            assert before[0] == row[0]
            assert before != row
            rows[row[0]], before = row, None
    assert before is None
    return rows


def create(storage):
    action = Create("d.t", SCHEMA, (), BUCKETS, {"primary.key": "id"}, "lake/d/t")
    storage.put_if_absent(commit_key(UUID, 1), encode_record(Record(1, UUID, "first", 0, (action,)), "0" * 32).data)


def applied(model, batch):
    for deleted, row in batch:
        model.pop(row[0], None)
        if not deleted:
            model[row[0]] = row


ROWS = st.tuples(st.integers(0, 6), st.none() | st.sampled_from("ab"), st.none() | st.integers(0, 2))
BATCH = st.lists(st.tuples(st.booleans(), ROWS), min_size=1, max_size=6)
STEPS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 1), BATCH)
    | st.tuples(st.sampled_from(["lose", "read", "truncate", "merge", "forget"]), st.integers(0, 1), st.just([])),
    max_size=12,
)


@pytest.mark.parametrize("before_images", [True, False], ids=["full", "wal"])
@pytest.mark.parametrize("num_examples", [30, pytest.param(100, marks=pytest.mark.long)])
def test_random_writes_of_several_hosts_agree_with_a_dictionary(tmp_path_factory, num_examples, before_images):
    @settings(max_examples=num_examples)
    @given(steps=STEPS)
    def any_history(steps):
        check_history(tmp_path_factory, steps, before_images=before_images)

    any_history()


def check_history(tmp_path_factory, steps, *, before_images):
    storage, clock = MemoryStorage(), SimClock()
    create(storage)
    folder = tmp_path_factory.mktemp("caches")
    worlds = [World(clock, sim_world(i).ids) for i in range(2)]
    hosts = [Host(folder / str(i), storage, w, before_images=before_images) for i, w in enumerate(worlds)]
    model = {}
    for step, host, batch in steps:
        at = hosts[host]
        if step == "write":
            at.write(batch)
            applied(model, batch)
        elif step == "lose":
            at.lose_cache()
        elif step == "read":
            assert at.rows() == model
        elif step == "truncate":
            at.log.commit(lambda state, _ms: make_truncate_actions(state))
            model.clear()
        elif step == "merge":
            merge_runs(at.log, storage, at.world, plan_inline_merge(at.log.refresh()), at.shape)
        else:
            at.log = CommitLog(storage, UUID, at.world)
    for host in hosts:
        assert host.rows() == model
        host.close()
    assert folded(storage, hosts[0].log.state, before_images=before_images) == model


@pytest.fixture
def in_order():
    """Calls of the storage come in one order, so that the one of a fault is found again."""
    with one_thing_at_a_time():
        yield


@pytest.fixture
def storage():
    storage = MemoryStorage()
    create(storage)
    return storage


@pytest.fixture
def host(tmp_path, storage):
    made = []

    def make(name, on=None, seed=0, engine=LAST_ROW):
        made.append(Host(tmp_path / name, on or storage, sim_world(seed), engine))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_lost_race_is_worked_out_again(host, storage):
    """Two hosts add to the same sums, each without having seen the other's newest record."""
    a, b = host("a", engine=SUMS), host("b", seed=1, engine=SUMS)
    for number in range(20):
        (a, b)[number % 2].write([(False, (0, None, 1)), (False, (1, None, 2))])
    assert a.rows() == b.rows() == {0: (0, None, 20), 1: (1, None, 40)}
    assert folded(storage, a.log.state) == a.rows()


def test_concurrent_writers_sum_every_write_once(host, storage):
    hosts = [host(str(i), seed=i, engine=SUMS) for i in range(3)]
    barrier = threading.Barrier(len(hosts))

    def add(at):
        barrier.wait(240)
        rng = random.Random(at.world.ids.new_uuid())
        for _ in range(30):
            keys = rng.sample(range(8), 3)
            at.write([(False, (key, None, 1)) for key in keys])

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(add, hosts))
    found = [h.rows() for h in hosts]
    assert found[0] == found[1] == found[2] == folded(storage, hosts[0].log.state)
    assert sum(row[2] for row in found[0].values()) == 3 * 30 * 3


def test_writers_at_once_that_look_at_no_row(tmp_path, storage):
    """Each write is whole in the log, and what was committed last is there."""
    hosts = [Host(tmp_path / str(i), storage, sim_world(i), before_images=False) for i in range(3)]
    barrier = threading.Barrier(len(hosts))

    def put(number):
        barrier.wait(240)
        for n in range(30):
            hosts[number].write([(False, (key, str(number), n)) for key in range(4)])

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(put, range(len(hosts))))
    rows = [host.rows() for host in hosts]
    state = hosts[0].log.state
    assert rows[0] == rows[1] == rows[2] == folded(storage, state, before_images=False)
    assert len({row[1:] for row in rows[0].values()}) == 1, "the last write has all keys"
    assert len(list(changelog(storage, state))) == 3 * 30 * 4
    for host in hosts:
        host.close()


def test_a_truncation_in_between_takes_the_rows_away(host, storage):
    """The bucket ends where it ended: what was read there is gone all the same."""
    b = host("b", seed=1)

    def plan(_number, method, key):
        if method == "put_if_absent" and key == commit_key(UUID, 3):
            b.log.commit(lambda state, _ms: make_truncate_actions(state))

    a = host("a", on=FaultyStorage(storage, plan), engine=SUMS)
    a.write([(False, (0, None, 5))])
    a.write([(False, (0, None, 1))])
    assert a.rows() == {0: (0, None, 1)} == folded(storage, a.log.refresh())


def test_a_process_beside_it_applied_more_than_a_writer_knows(host, storage):
    """They share their tablets, as processes of one host do."""
    a, b = host("a", engine=SUMS), host("b", seed=1, engine=SUMS)
    a.write([(False, (0, None, 5))])
    b.tablets = a.tablets
    tablet_of = a.tablet_of
    writes = [[(False, (0, None, 2))]]

    def later(bucket):
        if writes:
            b.write(writes.pop())
        return tablet_of(bucket)

    a.tablet_of = later
    a.write([(False, (0, None, 1))])
    assert a.rows() == b.rows() == {0: (0, None, 8)} == folded(storage, a.log.state)


# -- operations that read the table ------------------------------------------------------------------------------------


def test_of_two_operations_that_read_the_same_rows_one_commits(host, storage):
    a, b = host("a"), host("b", seed=1)
    a.write([(False, (0, "a", 1))])
    rows, read = b.read()
    a.increment(*a.read())
    with pytest.raises(
        CommitConflictError, match=r"id = 0, which the statement writes, .*at offset 1 of bucket 0 \(commit 3\).*again"
    ):
        b.increment(rows, read)
    assert b.rows() == {0: (0, "a", 2)} == folded(storage, b.log.refresh())
    b.increment(*b.read())
    assert a.rows() == {0: (0, "a", 3)}


@pytest.mark.parametrize("rows", [{}, {0: (0, "a", 1)}], ids=["empty", "one row"])
def test_a_truncation_is_a_conflict_even_where_the_ends_stay(host, rows):
    a = host("a")
    a.write([(False, row) for row in rows.values()])
    _, read = a.read()
    a.log.commit(lambda state, _ms: make_truncate_actions(state))
    write = [(False, (0, "a", 5))]
    if not rows:  # what was empty is as empty as before
        a.write(write, read=read)
        assert a.rows() == {0: (0, "a", 5)}
        return
    with pytest.raises(CommitConflictError, match="truncated at offset 1 of bucket 0"):
        a.write(write, read=read)
    assert a.rows() == {}


def test_what_changes_no_rows_is_no_conflict(host, storage):
    a = host("a")
    for n in range(3):
        a.write([(False, (0, "a", n))])
    rows, read = a.read()
    merge_runs(a.log, storage, a.world, plan_inline_merge(a.log.refresh()), a.shape)
    a.log.commit(lambda _state, _ms: (SetProperties({"comment": "new"}, ()),))
    a.increment(rows, ReadVersion.from_text(read.to_text()))
    assert a.rows() == {0: (0, "a", 3)}


def test_a_rewrite_of_another_table_of_the_name_is_a_conflict(host):
    a = host("a")
    rows, read = a.read()
    with pytest.raises(CommitConflictError, match="the name is now table"):
        a.write([(False, (0, "a", 1))], read=ReadVersion("6" * 32, read.buckets))
    assert rows == a.rows() == {}


def test_a_writer_that_comes_between_plan_and_record_is_seen(host, storage):
    """The first attempt planned on what was read; its number was taken by then."""
    b = host("b", seed=1)
    late = [[(False, (0, "b", 10))]]

    def plan(_number, method, key):
        if method == "put_if_absent" and key == commit_key(UUID, 3) and late:
            b.write(late.pop())

    a = host("a", on=FaultyStorage(storage, plan))
    a.write([(False, (0, "a", 1))])
    with pytest.raises(CommitConflictError, match="bucket 0"):
        a.increment(*a.read())
    assert a.rows() == {0: (0, "b", 10)} == folded(storage, a.log.refresh())


def test_concurrent_increments_are_never_lost(host, storage):
    """Nobody's increment is lost, whoever has to run again."""
    hosts = [host(str(i), seed=i) for i in range(3)]
    hosts[0].write([(False, (key, None, 0)) for key in range(3)])
    barrier = threading.Barrier(len(hosts))

    def increment(at):
        barrier.wait(240)
        conflicts = 0
        for _ in range(10):
            while True:
                rows, read = at.read()
                try:
                    at.increment(rows, read)
                    break
                except CommitConflictError:
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(increment, hosts))
    assert hosts[1].rows() == {key: (key, None, 30) for key in range(3)} == folded(storage, hosts[1].log.state)


def test_a_repeated_rewrite_happens_once_whichever_call_fails(tmp_path):
    """Running an operation again with what it had read makes it happen once, whatever the first run was told."""
    folders = (tmp_path / str(number) for number in itertools.count())
    used, base = [], {}

    def new_store():
        storage = MemoryStorage(sim_world())
        create(storage)
        used.append(next(folders))
        with closing(Host(used[-1], storage, sim_world(7))) as first:
            first.write([(False, (key, None, 1)) for key in range(3)])
            base["rows"], base["read"] = first.read()
        return storage

    def work(storage):
        with closing(Host(used[-1], storage, sim_world(8))) as at:
            at.increment(base["rows"], base["read"])

    outcomes = Counter()
    for attempt in sweep(new_store, work):
        with closing(Host(used[-1], attempt.store, sim_world(9))) as again:
            n = again.rows()[0][2]
            assert n == 2 or (attempt.raised and n == 1), attempt
            if n == 1:
                again.increment(base["rows"], base["read"])
            else:
                with pytest.raises(CommitConflictError):
                    again.increment(base["rows"], base["read"])
            assert again.rows() == {key: (key, None, 2) for key in range(3)} == folded(attempt.store, again.log.state)
        outcomes[bool(attempt.raised), n] += 1
    assert set(outcomes) == {(False, 2), (True, 2), (True, 1)}


def test_nothing_changes_nothing_is_committed(host):
    a = host("a")
    assert a.write([(False, (0, "a", 1))]) == {0: OffsetRange(0, 1)}
    version = a.log.state.version
    assert a.write([(False, (0, "a", 1)), (True, (2, None, None))]) == {}
    assert a.log.state.version == version


def test_a_transaction_adds_once(host, storage):
    a, b = host("a", engine=SUMS), host("b", seed=1, engine=SUMS)
    once = Transaction("job", 1)
    first = a.write([(False, (0, None, 5))], once)
    assert b.write([(False, (0, None, 5))], once) == first
    assert a.write([(False, (0, None, 5))], once) == first
    assert a.rows() == b.rows() == {0: (0, None, 5)}


def test_large_batches_become_objects(host, storage):
    a, b = host("a"), host("b", seed=1)
    batch = [(False, (i, "x" * 100, i)) for i in range(5000)]
    a.write(batch)
    assert all(segment.uuid for segment in a.log.state.live_segments())
    assert b.rows() == {i: row for i, (_, row) in enumerate(batch)}
    b.write([(True, (i, None, None)) for i in range(0, 5000, 2)])
    assert len(a.rows()) == 2500


def test_columns_altered_meanwhile_are_a_conflict(host, storage):
    a, b = host("a"), host("b", seed=1)
    a.write([(False, (0, "a", 1))])
    wider = SCHEMA.with_added(TableSchema.of("note STRING"), first_id=4)
    b.log.commit(lambda _state, _ms: (SetSchema(2, wider),))
    with pytest.raises(CommitConflictError, match="altered"):
        a.write([(False, (0, "b", 1))])
    assert b.rows() == {0: (0, "a", 1, None)}
    assert a.rows() == {0: (0, "a", 1, None)}


BEFORE = [
    [(False, (i, "a", 1)) for i in range(6)],
    [(True, (0, None, None)), (False, (1, "b", 5))],
]
BATCH_UNDER_FAULTS = [*((False, (i, "c", 7)) for i in range(8)), (True, (2, None, None))]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("cache", ["empty", "up to date"])
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_a_keyed_batch_is_stored_once_or_not_at_all_whichever_call_fails(
    tmp_path, inline, cache, monkeypatch, in_order, share
):
    """Whatever the writer is told: the table has the batch once or not at all, and its changelog tells the truth."""
    if not inline:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    folders = (tmp_path / str(number) for number in itertools.count())
    used = []

    def new_store():
        storage = MemoryStorage(sim_world())
        create(storage)
        used.append(next(folders))
        with closing(Host(used[-1], storage, sim_world(7))) as first:
            for batch in BEFORE:
                first.write(batch)
            if cache == "empty":
                first.lose_cache()
        return storage

    def work(storage):
        with closing(Host(used[-1], storage, sim_world(8))) as at:
            at.write(BATCH_UNDER_FAULTS)
            assert at.rows()

    before, after = {}, {}
    for batch in BEFORE:
        applied(before, batch)
    after |= before
    applied(after, BATCH_UNDER_FAULTS)
    outcomes = Counter()
    for attempt in sweep(new_store, work, share=share):
        with closing(Host(used[-1], attempt.store, sim_world(9))) as same_host:
            found = same_host.rows()
            assert found in ((before, after) if attempt.raised else (after,)), attempt
            assert folded(attempt.store, same_host.log.state) == found, attempt
            same_host.write(BATCH_UNDER_FAULTS)
            assert same_host.rows() == after == folded(attempt.store, same_host.log.state)
        with closing(Host(next(folders), attempt.store, sim_world(10))) as new_host:
            assert new_host.rows() == after
        outcomes[type(attempt.raised).__name__, found == after] += 1
    if share.is_rest:  # a sample may have one of the two alone
        assert {committed for _, committed in outcomes} == {True, False}
        assert outcomes["NoneType", True]
        assert outcomes["Crash", True]
        assert outcomes["Crash", False]
