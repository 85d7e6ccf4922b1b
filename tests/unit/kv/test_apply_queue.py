"""Changes that are applied behind the answer: nobody sees rows without them, and nothing is lost with the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.kv import log_replay, tablet, upsert_commit
from streamhouse_spark.kv.tablet import ApplyQueue, Tablet
from unit.core.test_fork_safety import child_status

pytestmark = [
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

MANY = upsert_commit.ASYNC_APPLY_MIN


@pytest.fixture
def unhurried(monkeypatch):
    """Let no thread do what is due before somebody asks for it."""
    monkeypatch.setattr(tablet._applier, "try_enqueue", lambda *_: True)


@pytest.fixture
def table(warehouse_path):
    tablet.close_tablets()  # those of other tests
    return Warehouse(warehouse_path).create_table("sales.orders", "id BIGINT, n BIGINT", primary_key=["id"])


def rows(n, count=MANY):
    return pa.table({"id": range(count), "n": [n] * count})


def applied(table):
    """Return the offset that the tablet is at, without asking for what is due."""
    (found,) = tablet._open.values()
    return found._environment.read(lambda reader: int(reader.meta(b"applied") or 0))


class TestUpserts:
    @pytest.mark.usefixtures("unhurried")
    def test_each_read_and_write_behind_a_large_write_sees_it(self, table, warehouse_path):
        table.upsert(rows(1))
        assert applied(table) == 0
        assert table.lookup_one(0) == {"id": 0, "n": 1}
        assert applied(table) == MANY
        table.upsert(rows(2))
        assert applied(table) == MANY
        table.upsert([{"id": 0, "n": 3}])
        assert applied(table) == 3 * MANY + 2
        changes = Warehouse(warehouse_path).view("sales.orders$changelog").to_arrow().to_pylist()[-2:]
        assert [change["n"] for change in changes] == [2, 3]

    @pytest.mark.usefixtures("unhurried")
    def test_a_small_write_is_applied_before_its_answer(self, table):
        table.upsert(rows(1, MANY - 1))
        assert applied(table) == MANY - 1

    def test_another_thread_applies_although_nobody_asks(self, table, monkeypatch):
        by, done = [], threading.Event()
        apply = Tablet.apply

        def noted(*args, **options):
            by.append(threading.current_thread().name)
            try:
                return apply(*args, **options)
            finally:
                done.set()

        monkeypatch.setattr(Tablet, "apply", noted)
        table.upsert(rows(1))
        assert done.wait(60)
        assert by == ["streamhouse-apply"]
        assert table.lookup_one(0) == {"id": 0, "n": 1}

    @pytest.mark.usefixtures("unhurried")
    def test_what_could_not_be_applied_comes_from_the_log(self, table, monkeypatch, caplog):
        with monkeypatch.context() as failing:
            failing.setattr(Tablet, "apply", lambda *_, **__: (_ for _ in ()).throw(StorageError("the disk is full")))
            table.upsert(rows(1))
            next(iter(tablet._open.values())).apply_queue.finish()
        assert "the disk is full" in caplog.text
        assert table.lookup_one(0) == {"id": 0, "n": 1}

    @pytest.mark.usefixtures("unhurried")
    def test_a_child_leaves_it_to_the_parent_and_reads_the_log(self, table):
        table.upsert(rows(1))

        def reads():
            (found,) = tablet._open.values()
            return not found.apply_queue._work and table.lookup_one(0) == {"id": 0, "n": 1}

        assert child_status(reads) == 0
        assert table.lookup_one(1) == {"id": 1, "n": 1}
        table.upsert(rows(2))
        assert table.lookup_one(1) == {"id": 1, "n": 2}

    def test_the_end_of_a_process_waits_for_it(self, table, warehouse_path, monkeypatch):
        script = (
            "import time\n"
            "from streamhouse_spark import Warehouse\n"
            "from streamhouse_spark.kv.tablet import Tablet\n"
            "apply = Tablet.apply\n"
            "Tablet.apply = lambda *args, **options: (time.sleep(0.2), apply(*args, **options))[1]\n"
            f"rows = [{{'id': i, 'n': i}} for i in range({MANY})]\n"
            f"Warehouse({warehouse_path!r}).table('sales.orders').upsert(rows)\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)
        monkeypatch.setattr(log_replay, "_replay", lambda *_: pytest.fail("the rows should be there"))
        table.refresh()
        assert table.lookup_one(1) == {"id": 1, "n": 1}


class TestDueChanges:
    def test_work_is_done_in_its_order_once_and_may_use_the_tablet(self, unhurried):
        due, done = ApplyQueue(), []

        def work(number):
            due.finish()
            done.append(number)

        for number in range(3):
            due.add(lambda number=number: work(number), 1)
        assert done == []
        due.finish()
        due.finish()
        assert done == [0, 1, 2]

    def test_who_asks_waits_for_another_thread(self, unhurried):
        due, begun, go_on = ApplyQueue(), threading.Event(), threading.Event()
        done = []

        def work():
            begun.set()
            assert go_on.wait(60)
            done.append(1)

        due.add(work, 1)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(due.finish)
            assert begun.wait(60)
            second = pool.submit(lambda: (due.finish(), list(done))[1])
            assert not second.done()
            go_on.set()
            first.result()
            assert second.result() == [1]

    def test_an_interrupt_leaves_what_follows_to_the_next(self, unhurried):
        due, done = ApplyQueue(), []

        def interrupted():
            raise KeyboardInterrupt

        due.add(interrupted, 1)
        due.add(lambda: done.append(1), 1)
        with pytest.raises(KeyboardInterrupt):
            due.finish()
        due.finish()
        assert done == [1]

    def test_more_than_may_be_due_is_done_at_once(self, monkeypatch):
        monkeypatch.setattr(tablet, "BYTES_MAX", 10)
        due, by = ApplyQueue(), []
        for _ in range(3):
            due.add(lambda: by.append(threading.current_thread()), 11)
            assert by.pop() is threading.current_thread()
        begun, go_on = threading.Event(), threading.Event()
        due.add(lambda: (begun.set(), go_on.wait(60)), 10)
        assert begun.wait(60), "of what was done nothing counts any more"
        go_on.set()
        due.finish()

    def test_without_another_thread_it_is_done_at_once(self, monkeypatch):
        monkeypatch.setattr(tablet._applier, "_is_running", lambda: False)
        due, done = ApplyQueue(), []
        due.add(lambda: done.append(1), 1)
        assert done == [1]
