"""A process reads what others committed before it takes the commit lock, not under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from faults.sim import sim_world
from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.log.commit_log import STALE_MS
from streamhouse_spark.storage.local import LocalStorage

OTHERS = 20


class Noting(LocalStorage):
    """Notes the records that are read before the commit lock is taken, and under it."""

    def __init__(self, url, world) -> None:
        super().__init__(url, fsync=False, world=world)
        self.before: list[str] = []
        self.within: list[str] = []
        self.fails = False
        self._noted = self.before

    def read(self, key: str) -> bytes:
        if "/commits/" in key:
            self._noted.append(key)
            if self.fails and self._noted is self.before:
                raise StorageError("the disk is away for a moment")
        return super().read(key)

    @contextmanager
    def commit_lock(self, key: str) -> Iterator[None]:
        with super().commit_lock(key):
            self._noted = self.within
            try:
                yield
            finally:
                self._noted = self.before


@pytest.fixture
def processes(tmp_path, clock):
    """A table of a process that notes what it reads, the same of another one, and the notes."""
    url = str(tmp_path)
    Warehouse(url, storage=LocalStorage(url, fsync=False, world=sim_world(0, clock))).create_table("d.t", "id INT")
    slow_world, world = sim_world(1, clock), sim_world(2, clock)
    notes, storage = Noting(url, slow_world), LocalStorage(url, fsync=False, world=world)
    slow = Warehouse(url, storage=notes, world=slow_world).table("d.t")
    return slow, Warehouse(url, storage=storage, world=world).table("d.t"), notes


@pytest.mark.parametrize("fails", [False, True])
def test_other_processes_records_are_read_before_the_lock_is_taken(processes, clock, fails):
    slow, other, notes = processes
    slow.append([{"id": 0}])
    for number in range(OTHERS):
        other.append([{"id": number}])
    clock.advance(STALE_MS)
    notes.before.clear()
    notes.within.clear()
    notes.fails = fails
    slow.append([{"id": 99}])
    records = len(notes.within)
    if fails:
        assert records > OTHERS, "what could not be read before is read under the lock"
    else:
        assert records <= 3, notes.within
    notes.fails = False
    assert slow.to_arrow().num_rows == other.to_arrow().num_rows == OTHERS + 2


def test_records_committed_during_a_long_read_are_read_before_the_lock_is_taken(processes, clock, monkeypatch):
    """As of a DELETE that looks for its rows while others append."""
    slow, other, notes = processes
    slow.append([{"id": 7}])
    read = type(slow).refresh
    appended = []

    def and_others_append(table):
        state = read(table)
        if table is slow and not appended:
            appended.append(True)
            for number in range(OTHERS):
                other.append([{"id": 100 + number}])
            clock.advance(1_000)
            notes.within.clear()
        return state

    monkeypatch.setattr(type(slow), "refresh", and_others_append)
    assert slow.delete(where=[("id", "=", 7)]) == 1
    assert appended
    assert len(notes.within) <= 3, notes.within
    assert sorted(slow.to_arrow()["id"].to_pylist()) == [100 + number for number in range(OTHERS)]


def test_a_state_that_was_just_read_is_not_read_again_before_the_lock(processes):
    slow, _, notes = processes
    slow.append([{"id": 0}])
    notes.before.clear()
    slow.append([{"id": 1}])
    assert notes.before == []
