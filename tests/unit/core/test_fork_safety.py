"""A fork at any moment: the child blocks nowhere, and takes nothing over that is its parent's alone."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from storage.s3_server import settings_for
from streamhouse_spark import Warehouse
from streamhouse_spark.core import concurrency
from streamhouse_spark.core.concurrency import cached_property, new_condition, new_event, new_lock, try_lock
from streamhouse_spark.kv.lmdb.environment import MapFile
from streamhouse_spark.kv.lmdb.tablet_files import TabletFiles
from streamhouse_spark.storage.local import LocalStorage

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

CHILD_SECONDS_MAX = 240


def child_status(work) -> int:
    """How a child ends that does this: 0 where it was right, -9 where it had to be killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() is not False else 2
        finally:
            os._exit(status)
    until = time.monotonic() + CHILD_SECONDS_MAX
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def held_by_another_thread(*locks):
    """Hold the locks in a thread, as one that is in the middle of its work at the fork does."""
    holds, go_on = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            lock.acquire()
        holds.set()
        go_on.wait(240)
        for lock in locks:
            lock.release()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert holds.wait(240)
        try:
            yield
        finally:
            go_on.set()
        holding.result()


def free_locks():
    """Every lock of the package in this process but those of LMDB's environments, which a fork waits for."""
    gc.collect()
    waited_for = {id(owner._lock._lock) for owner in concurrency._put_away}
    return [lock for lock in concurrency._locks if id(lock) not in waited_for]


class TestLocks:
    def test_a_lock_that_another_thread_holds_is_free_in_the_child(self):
        lock = new_lock()
        with held_by_another_thread(lock):
            assert child_status(lambda: lock.acquire(timeout=240)) == 0
            assert not lock.acquire(timeout=0.01)  # in the parent it is still held

    def test_a_lock_that_the_forking_thread_holds_stays_its_own(self):
        lock = new_lock()

        def works() -> bool:
            lock.release()
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lock.acquire, timeout=240).result()

        with lock:
            assert child_status(works) == 0

    def test_a_lock_is_held_only_if_no_other_thread_holds_it(self):
        lock = new_lock()

        def is_free() -> bool:
            with try_lock(lock) as is_held:
                return is_held

        with held_by_another_thread(lock):
            assert not is_free()
            assert child_status(is_free) == 0
        with pytest.raises(KeyboardInterrupt), try_lock(lock):
            raise KeyboardInterrupt
        with lock:
            assert is_free()  # by this thread, which holds it on
            assert lock._is_owned()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_free).result()

    def test_a_condition_and_an_event_work_in_the_child(self):
        condition, event = new_condition(), new_event()

        def works() -> bool:
            with condition:
                condition.notify_all()
            event.set()
            return event.wait(240)

        with held_by_another_thread(condition, event._cond):
            assert child_status(works) == 0

    def test_forks_of_several_threads_follow_each_other(self):
        """Each of them waits for owners in an order of its own."""

        class Owner:
            def __init__(self):
                self.lock = threading.Lock()
                concurrency.close_before_fork(self)

            def before_fork(self):
                self.lock.acquire()
                time.sleep(0.001)

            def after_fork(self):
                self.lock.release()

        owners = [Owner() for _ in range(5)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: child_status(lambda: None), range(12))) == [0] * 12
        assert all(not owner.lock.locked() for owner in owners)

    def test_a_value_that_another_thread_works_out_is_worked_out_in_the_child(self):
        working, go_on = threading.Event(), threading.Event()

        class Slow:
            waits = False

            @cached_property
            def value(self) -> int:
                if self.waits:
                    working.set()
                    go_on.wait(240)
                return 7

        slow, other = Slow(), Slow()
        slow.waits = True
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(lambda: slow.value)
            assert working.wait(240)
            try:
                assert child_status(lambda: other.value == 7) == 0
                assert other.value == 7  # nor does the parent wait
            finally:
                go_on.set()
            assert first.result() == 7


@contextmanager
def living_child():
    """A child that has begun, does nothing, and goes on until the end."""
    end, begun = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end[1])
        os.write(begun[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    os.read(begun[0], 1)
    try:
        yield
    finally:
        os.close(end[1])
        os.waitpid(child, 0)
        for file in (end[0], *begun):
            os.close(file)


class TestLockFiles:
    """A lock of a file lasts until the last copy of its descriptor is closed, and a child has copies of all."""

    def is_free(self, path) -> bool:
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    @contextmanager
    def child_of(self, holder):
        """A child that is forked while another thread is inside ``outcome``, and goes on when that has ended."""
        inside, go_on = threading.Event(), threading.Event()

        def hold():
            with holder:
                inside.set()
                go_on.wait(240)

        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(hold)
            assert inside.wait(240)
            try:
                with living_child():
                    go_on.set()
                    holding.result()
                    yield
            finally:
                go_on.set()

    def test_a_child_does_not_hold_the_commit_lock(self, tmp_path):
        storage = LocalStorage(str(tmp_path))
        with self.child_of(storage.commit_lock("hint")):
            assert self.is_free(tmp_path / "hint")

    def test_a_child_does_not_hold_the_size_of_a_map(self, tmp_path):
        with self.child_of(MapFile(tmp_path).lock_size()):
            assert self.is_free(tmp_path / "size.lock")

    def test_a_child_does_not_hold_the_stamp_of_a_tablet(self, tmp_path, monkeypatch):
        files = TabletFiles(tmp_path, "t", 0)
        files.claim()
        inside, go_on = threading.Event(), threading.Event()

        def looks():
            inside.set()
            go_on.wait(240)

        monkeypatch.setattr(files, "_fingerprint", looks)
        with ThreadPoolExecutor(1) as pool:
            stamping = pool.submit(files.stamp)
            assert inside.wait(240)
            try:
                with living_child():
                    go_on.set()
                    stamping.result()
                    assert self.is_free(tmp_path / "t" / "0.stamp")
            finally:
                go_on.set()

    def test_a_tablet_that_a_child_took_over_is_still_claimed(self, tmp_path):
        files = TabletFiles(tmp_path, "t", 0)
        files.claim()
        with living_child():
            files.release()
            assert not TabletFiles(tmp_path, "t", 0).remove()
        assert TabletFiles(tmp_path, "t", 0).remove()

    def test_the_forking_thread_keeps_its_own(self, tmp_path):
        file = concurrency.open_lock_file(tmp_path / "f", 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert child_status(lambda: not self.is_free(tmp_path / "f") and concurrency.close_lock_file(file) is None) == 0
        assert not self.is_free(tmp_path / "f")
        concurrency.close_lock_file(file)
        assert self.is_free(tmp_path / "f")


class TestTables:
    @pytest.fixture
    def log(self, warehouse_path):
        table = Warehouse(warehouse_path).create_table("log", "id INT")
        table.append([{"id": 0}])
        return table

    @pytest.fixture
    def keyed(self, warehouse_path):
        table = Warehouse(warehouse_path).create_table("keyed", "id INT, v INT", primary_key=["id"])
        table.upsert([{"id": 0, "v": 0}])
        return table

    def test_a_child_works_while_other_threads_hold_every_lock(self, log, keyed):
        def works() -> None:
            log.append([{"id": 1}])
            keyed.upsert([{"id": 1, "v": 1}])
            keyed.delete([0])
            assert keyed.lookup([1])["v"].to_pylist() == [1]
            assert keyed.lookup_one(0) is None
            again = Warehouse(log.storage.local_path("").rstrip("/")).table("log")
            assert sorted(again.to_arrow()["id"].to_pylist()) == [0, 1]

        locks = free_locks()
        assert len(locks) >= 6
        with held_by_another_thread(*locks):
            assert child_status(works) == 0
        log.append([{"id": 2}])
        assert sorted(log.to_arrow()["id"].to_pylist()) == [0, 1, 2]
        assert keyed.to_arrow().to_pylist() == [{"id": 1, "v": 1}]

    @pytest.mark.long
    def test_children_work_while_another_thread_writes(self, log, keyed):
        stop = threading.Event()

        def write() -> int:
            number = 0
            while not stop.is_set():
                number += 1
                log.append([{"id": 1000 + number}])
                keyed.upsert([{"id": 1000 + number, "v": number}])
            return number

        def works(number: int) -> None:
            log.append([{"id": number}])
            keyed.upsert([{"id": number, "v": number}])

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            try:
                ends = [child_status(lambda number=number: works(number)) for number in range(1, 41)]
            finally:
                stop.set()
            written = writing.result()
        assert ends == [0] * 40
        expected = [*range(41), *range(1001, 1001 + written)]
        assert sorted(log.to_arrow()["id"].to_pylist()) == expected
        assert sorted(keyed.to_arrow()["id"].to_pylist()) == expected


@pytest.mark.s3
def test_a_child_reads_s3_while_other_threads_hold_every_lock(s3_server):
    """The client's own locks, fsspec's, and connections that a child must not share."""
    import fsspec.asyn

    location = f"s3://{s3_server.new_bucket()}/wh"
    table = Warehouse(location, settings_for(s3_server.endpoint)).create_table("t", "id INT")
    table.append([{"id": 0}])

    def works() -> None:
        table.append([{"id": 1}])
        assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1]

    with held_by_another_thread(*free_locks(), fsspec.asyn.get_lock()):
        assert child_status(works) == 0
    table.append([{"id": 2}])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_child_has_a_service_of_its_own(warehouse_path):
    from streamhouse_spark.service.tiering_service import Service
    from streamhouse_spark.warehouse.process_cache import Connection

    Warehouse(warehouse_path).create_table("t", "id INT")
    service = Service(lambda *_: None, Connection.of(warehouse_path, {}))
    name = service._service_id
    with held_by_another_thread(service._lock, service._running):
        assert child_status(lambda: service._service_id != name and service.status() == []) == 0
    assert service._service_id == name
