"""Merging of inline rows behind a write: one thread of a process at a time, and nothing that somebody else merged."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.log import compaction
from streamhouse_spark.storage.local_turns import only_process
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write import segment_merging

EVERY = 4
"""Records between the checks of these tests, and inline records that make a merge due."""


@pytest.fixture
def warehouse(monkeypatch):
    monkeypatch.setattr(compaction, "INLINE_RECORDS_MAX", EVERY)
    monkeypatch.setattr(compaction, "INLINE_CHECK_INTERVAL", EVERY)
    return Warehouse("merging", storage=MemoryStorage())


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
        merge = segment_merging.merge

        def counted(log, storage, world, runs, options):
            self.runs.append(sum(len(run.segments) for run in runs))
            self.began.set()
            assert self._go_on.wait(240)
            if self.error is not None:
                raise self.error
            return merge(log, storage, world, runs, options)

        monkeypatch.setattr(segment_merging, "merge", counted)

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
        patch.setattr(segment_merging, "inline_merge_due", lambda _: False)
        add(table, EVERY)
        add(other, 1)
    assert compaction.inline_merge_due(table.state)
    assert other.merge_inline() == EVERY + 1
    add(other, 1)
    segment_merging.merge_if_due(table, table.state)
    assert merges.runs == [EVERY + 1]


def test_one_process_of_the_host_merges_at_a_time_unless_it_was_stopped(warehouse, merges, tmp_path):
    table = Warehouse(str(tmp_path)).create_table("d.t", "id INT")
    (commits,) = (path for path in tmp_path.rglob("commits") if table.uuid in str(path))
    with only_process(str(commits / segment_merging.MERGING)) as is_alone:  # as another process does
        assert is_alone
        add(table, 2 * EVERY - 1)
        assert merges.runs == []
        add(table, EVERY)
        assert merges.runs == [2 * EVERY]
    add(table, 2 * EVERY)
    assert len(merges.runs) == 2
    assert not (commits / segment_merging.MERGING).exists()
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
