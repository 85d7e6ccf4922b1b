"""A tablet under threads, forks, other processes, kills and damage: always a state of the log, or empty."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.kv.lmdb import tablet_files
from streamhouse_spark.kv.lmdb.environment import DamagedError, Environment, ReadTransaction
from streamhouse_spark.kv.lmdb.tablet_files import TabletFiles, cache_bytes_max, evict_tablets, list_cached_tablets
from streamhouse_spark.kv.tablet import ITEMS_PER_STEP, Tablet, close_tablets, open_tablet

IDENTITY = {"key": [1]}
MAP_BYTES = 1 << 20


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "tablets" / "this-boot"


@pytest.fixture
def new(cache):
    """Makes tablets of this cache, and closes them."""
    made = []

    def make(bucket=0, identity=IDENTITY, **options):
        made.append(Tablet(TabletFiles(cache, "t" * 32, bucket), identity, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def key(number):
    return b"%08d" % number


def rows(tablet, prefix=b""):
    found = []
    tablet.scan(found.extend, prefix)
    return dict(found)


def steps(items):
    return [k for k, _ in items], [v for _, v in items]


def data_file(tablet):
    return tablet._environment.data_file


class TestApplying:
    def test_changes_and_their_offset(self, new):
        t = new()
        assert (t.extent.applied, len(rows(t))) == (0, 0)
        assert t.apply({b"b": b"2", b"a": b"1", b"c": b"3"}, 0, 3)
        assert t.apply({b"b": None, b"c": b"4", b"absent": None}, 3, 6)
        found = t.find([b"c", b"b", b"a", b"absent"])
        assert (found.extent.applied, found.values) == (6, [b"4", None, b"1", None])
        assert len(rows(t)) == 2

    def test_only_from_where_the_tablet_is(self, new):
        t = new()
        assert t.apply({b"a": b"1"}, 0, 1)
        assert not t.apply({b"a": b"again"}, 0, 1)
        assert not t.apply({b"a": b"ahead"}, 2, 3)
        assert (t.extent.applied, rows(t)) == (1, {b"a": b"1"})

    def test_offsets_move_without_changes(self, new):
        t = new()
        assert t.apply({}, 0, 7)
        assert t.extent.applied == 7

    def test_a_reopened_tablet_has_its_rows(self, new):
        t = new()
        t.apply({b"a": b"1"}, 0, 1)
        t.close()
        assert rows(new()) == {b"a": b"1"}

    def test_of_threads_one_applies(self, new):
        t = new(map_bytes=MAP_BYTES)
        barrier = threading.Barrier(4)

        def race(_):
            barrier.wait(240)
            return [t.apply({key(i): b"x" * 200}, i, i + 1) for i in range(200)]

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(race, range(4)))
        assert t.extent.applied == 200
        assert sum(map(sum, won)) == 200
        assert len(rows(t)) == 200


class TestReading:
    def test_a_tablet_reads_prefixes_and_more_rows_than_a_step(self, new):
        t = new(map_bytes=MAP_BYTES)
        t.apply({key(i): b"" for i in range(ITEMS_PER_STEP + 5)} | {b"x": b"1", b"xy": b"2", b"y": b"3"}, 0, 1)
        assert len(rows(t)) == ITEMS_PER_STEP + 8
        assert rows(t, b"x") == {b"x": b"1", b"xy": b"2"}
        assert rows(t, b"z") == {}
        assert len(rows(t, b"000")) == ITEMS_PER_STEP + 5

    def test_a_scan_is_one_state(self, new):
        t = new(map_bytes=1 << 26)  # large enough: growing would wait for the scan
        t.apply({key(i): b"old" for i in range(2 * ITEMS_PER_STEP)}, 0, 1)
        found = []

        def take(items):
            if not found:  # another transaction, in another thread: this one is LMDB's reader
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(t.apply, {key(i): b"new" for i in range(2 * ITEMS_PER_STEP)}, 1, 2).result()
            found.extend(items)

        assert t.scan(take) == (0, 1, None)
        assert {value for _, value in found} == {b"old"}
        assert set(rows(t).values()) == {b"new"}

    def test_one_row_and_the_extent_are_of_the_same_state(self, new, cache):
        t = new()
        for write in (
            lambda: t.apply({b"a": b"1"}, 0, 1),
            lambda: t.apply({}, 1, 5),
            lambda: in_process(_apply_much, cache, 5, 6),
            lambda: (t.close(), t.apply({b"a": b"2"}, 6, 7)),
            t.reset,
            lambda: t.truncate(3),
            lambda: t.apply({b"a": b"3"}, 3, 4, history=b"h"),
        ):
            write()
            for _ in range(2):
                assert t.find_one(b"a") == t.find([b"a"])

    def test_a_row_costs_one_look_where_nothing_was_written(self, new, monkeypatch):
        t = new()
        t.apply({b"a": b"1"}, 0, 1)
        assert t.find_one(b"a").extent.applied == 1
        monkeypatch.setattr(ReadTransaction, "meta", lambda *_: pytest.fail("the extent is known"))
        assert t.find_one(b"a").values == [b"1"]


class TestRestoring:
    def test_a_restored_tablet_has_rows_and_offset_once(self, new):
        t = new(map_bytes=MAP_BYTES)
        items = [(key(i), b"v" * 100) for i in range(30_000)]
        assert t.restore(lambda: iter([steps(items[:20_000]), steps(items[20_000:])]), 0, 123)
        assert (t.extent.applied, rows(t)) == (123, dict(items))
        assert not t.restore(lambda: [([b"other"], [b""])], 0, 123)
        assert t.restore(lambda: [([b"other"], [b""])], 200, 300)
        assert (t.extent.begins, t.extent.applied, rows(t)) == (200, 300, {b"other": b""})
        assert not t.restore(lambda: [([b"older"], [b""])], 0, 400)

    def test_keys_must_be_in_order(self, new):
        t = new()
        with pytest.raises(DamagedError, match="order"):
            t.restore(lambda: [([b"b", b"a"], [b"", b""])], 0, 2)
        assert (t.extent.applied, len(rows(t))) == (0, 0)


class TestTruncating:
    def test_rows_go_and_the_tablet_begins_there(self, new):
        t = new()
        t.apply({b"a": b"1"}, 0, 3)
        t.truncate(3)
        found = t.find([b"a"])
        assert (found.extent.begins, found.extent.applied, found.values, len(rows(t))) == (3, 3, [None], 0)
        t.apply({b"b": b"2"}, 3, 5)
        t.truncate(3)
        t.truncate(0)
        assert (t.extent.begins, t.extent.applied, rows(t)) == (3, 5, {b"b": b"2"})
        t.truncate(9)
        assert (t.extent.begins, t.extent.applied, rows(t)) == (9, 9, {})


class TestOtherProcesses:
    def test_growing_in_one_is_seen_by_the_other(self, new, cache):
        t = new(map_bytes=MAP_BYTES)
        t.apply({b"a": b"1"}, 0, 1)
        in_process(_apply_much, cache, 1, 2)
        assert t.extent.applied == 2
        assert len(rows(t)) == 20_001
        assert t.apply({b"b": b"2"}, 2, 3)

    def test_a_forked_child_reads_and_writes(self, new):
        t = new()
        t.apply({b"a": b"1"}, 0, 1)
        child = os.fork()
        if child == 0:
            fine = rows(t) == {b"a": b"1"} and t.apply({b"b": b"2"}, 1, 2)
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert rows(t) == {b"a": b"1", b"b": b"2"}
        assert t.apply({b"c": b"3"}, 2, 3)

    def test_a_fork_waits_for_readers(self, new):
        t = new()
        t.apply({b"a": b"1"}, 0, 1)
        reading, go_on = threading.Event(), threading.Event()

        def take(_):
            reading.set()
            assert go_on.wait(240)

        with ThreadPoolExecutor(1) as pool:
            scan = pool.submit(t.scan, take)
            assert reading.wait(240)
            threading.Timer(0.2, go_on.set).start()
            child = os.fork()
            if child == 0:
                os._exit(0 if len(rows(t)) == 1 and go_on.is_set() else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert scan.result()[:2] == (0, 1)

    @pytest.mark.long
    def test_killed_writers_leave_a_state_of_the_log_or_nothing(self, new, cache):
        context = multiprocessing.get_context("spawn")
        states = set()
        for round_number in count():
            if round_number >= 6 and max(states) > 0:
                break
            began = context.Event()
            process = context.Process(target=_apply_for_ever, args=(cache, began))
            process.start()
            assert began.wait(240)
            process.join(round_number % 6 * 0.05)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            t = new()
            applied = t.extent.applied
            assert rows(t) == {key(i % 50): b"%d" % i for i in range(max(0, applied - 50), applied)}
            states.add(applied)
            t.close()


def in_process(target, *args):
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    process.join(240)
    assert process.exitcode == 0


def _apply_much(cache, start, end):
    t = Tablet(TabletFiles(cache, "t" * 32, 0), IDENTITY, map_bytes=MAP_BYTES)
    assert t.apply({key(i): b"x" * 100 for i in range(20_000)}, start, end)
    t.close()


def _apply_for_ever(cache, began):
    t = Tablet(TabletFiles(cache, "t" * 32, 0), IDENTITY)
    applied = t.extent.applied
    while True:
        assert t.apply({key(applied % 50): b"%d" % applied}, applied, applied + 1)
        applied += 1
        began.set()
        time.sleep(0.001)  # who is killed right behind a write leaves a tablet that is rebuilt


class TestFilesThatCannotBeBelieved:
    """Of a closed tablet: nobody looks at a file while it is open."""

    @pytest.fixture
    def closed(self, new):
        t = new(map_bytes=MAP_BYTES)
        t.apply({key(i): b"x" * 100 for i in range(1000)}, 0, 1000)
        t.close()
        return t

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: os.truncate(path, 8192),
            lambda path: os.truncate(path, 0),
            lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
            lambda path: path.write_bytes(b""),
            lambda path: path.unlink(),
            lambda path: overwrite(path, 5 * 4096 + 100, b"flipped"),
            lambda path: overwrite(path, 0, b"\xff" * 4096),
            lambda path: path.with_name("lock.mdb").write_bytes(b"garbage"),
            lambda path: path.parent.with_name("0.stamp").unlink(),
            lambda path: path.parent.with_name("0.stamp").write_bytes(b'{"bytes": '),
            lambda path: path.parent.with_name("0.stamp").write_bytes(b"null"),
        ],
        ids=["cut", "empty", "garbage", "written empty", "deleted", "flip", "meta", "lock", "no stamp", "torn", "null"],
    )
    def test_is_whole_or_empty(self, closed, new, damage):
        damage(data_file(closed))
        t = new()
        whole = {key(i): b"x" * 100 for i in range(1000)}
        assert (t.extent.applied, rows(t)) in [(0, {}), (1000, whole)]
        assert t.apply({b"a": b"1"}, t.extent.applied, 2000)
        t.close()
        assert new().extent.applied == 2000

    def test_a_tablet_of_another_identity_is_discarded(self, closed, new):
        t = new(identity={"key": [2]})
        assert (t.extent.applied, len(rows(t))) == (0, 0)

    def test_damage_while_open_is_an_error_or_begins_anew(self, closed, new, monkeypatch):
        t = new()
        read = Environment.read
        failures = [DamagedError("a page is missing")]

        def fails_once(environment, action):
            if failures:
                raise failures.pop()
            return read(environment, action)

        monkeypatch.setattr(Environment, "read", fails_once)
        assert t.extent.applied == 0
        assert rows(t) == {}
        assert t.apply({b"a": b"1"}, 0, 1)

    def test_a_full_disk_is_a_typed_error(self, new, monkeypatch):
        import lmdb

        t = new()

        def fails(*_args, **_kwargs):
            raise lmdb.DiskError("no space left")

        monkeypatch.setattr("streamhouse_spark.kv.lmdb.environment.Writer.put", fails)
        with pytest.raises(StorageError, match="STREAMHOUSE_CACHE_DIR"):
            t.apply({b"a": b"1"}, 0, 1)
        monkeypatch.undo()
        assert t.apply({b"a": b"1"}, 0, 1)


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


class TestEviction:
    def test_the_longest_unused_go_first(self, new, cache):
        tablets = [new(bucket) for bucket in range(3)]
        for age, t in enumerate(tablets):
            t.apply({b"a": b"x" * 100_000}, 0, 1)
            t.close()
            os.utime(cache / ("t" * 32) / f"{age}.lock", (age + 1, age + 1))
        sizes = [tablet.num_bytes for tablet in list_cached_tablets(cache)]
        assert [path.name for path in evict_tablets(cache, sum(sizes))] == []
        assert [path.name for path in evict_tablets(cache, sum(sizes) - 1)] == ["0"]
        assert [path.name for path in evict_tablets(cache, 0)] == ["1", "2"]
        assert new(1).extent.applied == 0

    def test_what_is_open_stays_here_and_in_other_processes(self, new, cache):
        new(0).apply({b"a": b"1"}, 0, 1)
        context = multiprocessing.get_context("spawn")
        opened, done = context.Event(), context.Event()
        process = context.Process(target=_hold, args=(cache, opened, done))
        process.start()
        assert opened.wait(240)
        try:
            assert evict_tablets(cache, 0) == []
        finally:
            done.set()
            process.join(240)
        assert [path.name for path in evict_tablets(cache, 0)] == ["1"]

    def test_other_boots_and_leftovers_go_but_nothing_else(self, new, cache):
        new().close()
        other = Tablet(TabletFiles(cache.with_name("other-boot"), "t" * 32, 0), IDENTITY)
        leftover = cache / ("t" * 32) / "7.gone-1234"
        leftover.mkdir()
        beside = cache.parent.parent / "somebody-elses"
        beside.mkdir()
        evict_tablets(cache, 1 << 30)
        assert cache.with_name("other-boot").exists()  # it is open
        other.close()
        evict_tablets(cache, 1 << 30)
        assert not cache.with_name("other-boot").exists()
        assert not leftover.exists()
        assert beside.exists()
        assert len(list_cached_tablets(cache)) == 1


def _hold(cache, opened, done):
    t = Tablet(TabletFiles(cache, "t" * 32, 1), IDENTITY)
    opened.set()
    assert done.wait(240)
    t.close()


class TestOfAProcess:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
        yield
        close_tablets()

    def test_a_process_opens_one_tablet_per_bucket(self):
        assert open_tablet("url", "a" * 32, 0, IDENTITY) is open_tablet("url", "a" * 32, 0, IDENTITY)
        assert open_tablet("url", "a" * 32, 1, IDENTITY) is not open_tablet("url", "a" * 32, 0, IDENTITY)

    def test_opening_a_tablet_evicts_others_beyond_the_limit(self, monkeypatch):
        open_tablet("url", "a" * 32, 0, IDENTITY).apply({b"a": b"1"}, 0, 1)
        close_tablets()
        monkeypatch.setenv("STREAMHOUSE_CACHE_BYTES_MAX", "1")
        open_tablet("url", "a" * 32, 1, IDENTITY)
        assert open_tablet("url", "a" * 32, 0, IDENTITY).extent.applied == 0

    def test_the_limit_is_a_number(self, monkeypatch):
        monkeypatch.setenv("STREAMHOUSE_CACHE_BYTES_MAX", "10GB")
        with pytest.raises(InvalidOptionError, match="10GB"):
            cache_bytes_max()

    def test_a_boot_has_one_name(self):
        assert tablet_files.boot_id() == tablet_files.boot_id() != ""
