"""Merging of inline rows behind a write: one thread of a process at a time, and nothing that somebody else merged."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.core import post_commit
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import IN_CALL, ThreadRunner
from streamhouse_spark.log import compaction
from streamhouse_spark.storage.local import try_hold_lock_file
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write import auto_compaction
from streamhouse_spark.write.auto_compaction import compact_inline_rows

EVERY = 4
"""Records between the checks of these tests, and inline records that make a merge due."""


@pytest.fixture
def warehouse(monkeypatch):
    monkeypatch.setattr(compaction, "INLINE_RECORDS_MAX", EVERY)
    monkeypatch.setattr(compaction, "INLINE_CHECK_INTERVAL", EVERY)
    return Warehouse("merging", storage=MemoryStorage(), world=World(background=IN_CALL))


@pytest.fixture
def table(warehouse):
    return warehouse.create_table("d.t", "id INT")


@pytest.fixture
def merges(monkeypatch):
    return Merges(monkeypatch)


class Merges:
    """Counts merges; the first waits, once `stop` was called, until `go_on`."""

    def __init__(self, monkeypatch):
        self.runs, self.error = [], None
        self.began, self._go_on = threading.Event(), threading.Event()
        self._go_on.set()
        merge = auto_compaction.merge_runs

        def counted(log, storage, world, runs, options):
            self.runs.append(sum(len(run.segments) for run in runs))
            self.began.set()
            assert self._go_on.wait(240)
            if self.error is not None:
                raise self.error
            return merge(log, storage, world, runs, options)

        monkeypatch.setattr(auto_compaction, "merge_runs", counted)

    def stop(self):
        self._go_on.clear()

    def go_on(self):
        self._go_on.set()


def add(table, count):
    for number in range(count):
        table.append(pa.table({"id": pa.array([number], pa.int32())}))


def inline_records(table):
    return len({s.commit for s in table.refresh().live_segments() if s.inline is not None})


@pytest.mark.parametrize("is_same_handle", [True, False], ids=["one handle", "two handles"])
def test_a_thread_that_finds_a_merge_under_way_leaves_it_to_a_later_write(warehouse, table, merges, is_same_handle):
    other = table if is_same_handle else warehouse.table("d.t")
    merges.stop()
    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(add, table, EVERY)
        try:
            assert merges.began.wait(240)
            add(other, 2 * EVERY)  # checks twice
            assert merges.runs == [EVERY]
        finally:
            merges.go_on()
        merging.result()
    assert inline_records(other) == 2 * EVERY  # what came during the merge
    add(other, EVERY)
    assert len(merges.runs) == 2
    assert inline_records(other) < EVERY
    assert other.to_arrow().num_rows == 4 * EVERY


def test_what_another_process_has_just_merged_is_not_merged_again(warehouse, table, merges, monkeypatch):
    other = warehouse.table("d.t")
    with monkeypatch.context() as patch:
        patch.setattr(auto_compaction, "is_inline_merge_due", lambda _: False)
        add(table, EVERY)
        add(other, 1)
    assert compaction.is_inline_merge_due(table.state)
    assert compact_inline_rows(other) == EVERY + 1
    add(other, 1)
    auto_compaction.compact_if_due(table, table.state)
    assert merges.runs == [EVERY + 1]


def test_one_process_of_the_host_merges_at_a_time_unless_it_was_stopped(warehouse, merges, tmp_path):
    table = Warehouse(str(tmp_path), world=World(background=IN_CALL)).create_table("d.t", "id INT")
    (commits,) = (path for path in tmp_path.rglob("commits") if table.uuid in str(path))
    with try_hold_lock_file(str(commits / auto_compaction.MERGE_LOCK_NAME)) as is_alone:  # as another process does
        assert is_alone
        add(table, 2 * EVERY - 1)
        assert merges.runs == []
        add(table, EVERY)
        assert merges.runs == [2 * EVERY]
    add(table, 2 * EVERY)
    assert len(merges.runs) == 2
    assert not (commits / auto_compaction.MERGE_LOCK_NAME).exists()
    assert table.to_arrow().num_rows == 5 * EVERY - 1


def test_tables_are_merged_at_the_same_time(warehouse, table, merges):
    second = warehouse.create_table("d.second", "id INT")
    merges.stop()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(add, table, EVERY)
        try:
            assert merges.began.wait(240)
            merges.began.clear()
            other = pool.submit(add, second, EVERY)
            assert merges.began.wait(240)
        finally:
            merges.go_on()
        first.result()
        other.result()
    assert merges.runs == [EVERY, EVERY]


def test_an_interrupted_merge_and_one_that_fails_stand_in_nobodys_way(table, merges):
    merges.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        add(table, EVERY)
    merges.error = OSError("full")
    add(table, EVERY)
    merges.error = None
    with ThreadPoolExecutor(1) as pool:
        pool.submit(add, table, EVERY).result()
    assert merges.runs == [EVERY, 2 * EVERY, 3 * EVERY]
    assert inline_records(table) == 0


class TestBehindTheCall:
    """With the system's clock merging is done in a thread of its own."""

    @pytest.fixture
    def table(self, warehouse):
        world = World(background=ThreadRunner())
        return Warehouse("merging", storage=MemoryStorage(), world=world).create_table("t", "id INT")

    def finish(self, table):
        table.world.post_commit_executor.finish((table.storage.url, table.uuid))

    def test_an_append_does_not_wait_for_a_merge(self, table, merges):
        merges.stop()
        add(table, 2 * EVERY - 1)
        assert merges.began.wait(240)
        assert inline_records(table) == 2 * EVERY - 1
        merges.go_on()
        self.finish(table)
        assert inline_records(table) == EVERY - 1
        assert table.to_arrow().num_rows == 2 * EVERY - 1

    def test_a_writer_that_is_ahead_of_the_merge_waits_for_it(self, table, merges):
        merges.stop()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(add, table, 3 * EVERY)
            assert merges.began.wait(240)
            try:
                with pytest.raises(TimeoutError):
                    writing.result(timeout=1)
                assert inline_records(table) == 2 * EVERY
            finally:
                merges.go_on()
            writing.result(240)
        self.finish(table)
        assert inline_records(table) < 2 * EVERY

    def test_a_store_that_hangs_keeps_a_writer_for_a_while_only(self, table, merges, monkeypatch):
        monkeypatch.setattr(post_commit, "WAIT_S_MAX", 0.1)
        merges.stop()
        add(table, 3 * EVERY)
        merges.go_on()
        self.finish(table)
        assert table.to_arrow().num_rows == 3 * EVERY

    def test_a_failed_merge_is_done_by_a_later_write(self, table, merges):
        merges.error = OSError("full")
        add(table, EVERY)
        self.finish(table)
        merges.error = None
        add(table, EVERY)
        self.finish(table)
        assert inline_records(table) == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_child_of_a_fork_merges_its_own_and_the_parent_what_it_began(self, table, merges):
        merges.stop()
        add(table, EVERY)
        assert merges.began.wait(240)
        child = os.fork()
        if child == 0:
            is_free = table.world.post_commit_executor._under_way == {}
            os._exit(0 if is_free else 1)
        assert os.waitpid(child, 0)[1] == 0
        merges.go_on()
        self.finish(table)
        assert inline_records(table) == 0

    def test_a_process_that_ends_finishes_the_merge(self, tmp_path):
        code = f"""
import streamhouse_spark as sh
from streamhouse_spark.log import compaction
compaction.INLINE_RECORDS_MAX = compaction.INLINE_CHECK_INTERVAL = {EVERY}
table = sh.Warehouse({str(tmp_path)!r}).create_table("t", "id INT")
for number in range({EVERY}):
    table.append([{{"id": number}}])
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
        assert inline_records(Warehouse(str(tmp_path)).table("t")) == 0
