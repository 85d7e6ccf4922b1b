"""What a process counts of its commits."""

from __future__ import annotations

import multiprocessing

import pytest

from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.log.group_commit import COMMITS


@pytest.fixture
def table(tmp_path):
    return Warehouse(str(tmp_path)).create_table("s.t", "id BIGINT")


def since(before):
    now = COMMITS.now()
    return now.commits - before.commits, now.conflicts - before.conflicts, now.failures - before.failures


def test_what_is_written(table):
    before = COMMITS.now()
    table.append([{"id": 1}])
    table.append([])
    assert since(before) == (1, 0, 0)
    assert COMMITS.now().busy_ms >= before.busy_ms


def test_a_lost_race(table, tmp_path, monkeypatch):
    other = Warehouse(str(tmp_path)).table("s.t")
    other.refresh()
    put = type(table.storage.home).put_if_absent
    raced = []

    def racing(storage, key, body, *more):
        if "/commits/" in key and not raced:
            raced.append(key)
            before = COMMITS.now()
            other.append([{"id": 2}])
            assert since(before) == (1, 0, 0)
        return put(storage, key, body, *more)

    before = COMMITS.now()
    monkeypatch.setattr(type(table.storage.home), "put_if_absent", racing)
    table.append([{"id": 1}])
    assert since(before) == (2, 1, 0)


def test_what_fails(table, monkeypatch):
    def failing(*_):
        raise StorageError("the store is away")

    before = COMMITS.now()
    monkeypatch.setattr(type(table.log), "_write_group", failing)
    with pytest.raises(StorageError):
        table.append([{"id": 1}])
    assert since(before) == (0, 0, 1)


def _commits(queue):
    queue.put(COMMITS.now().commits)


def test_a_child_process_begins_at_zero(table):
    table.append([{"id": 1}])
    assert COMMITS.now().commits > 0
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_commits, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 0
    child.join()
