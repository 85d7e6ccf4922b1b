"""Threads of one object look up a row while it is written, here and by another process: none finds a row that is older
than the newest one at the beginning of its call, or newer than the newest one at its end.
"""

from __future__ import annotations

import threading
import time

import pytest

from faults.test_threads import THREADS, in_threads
from streamhouse_spark import Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup import point_lookup as module
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.point_lookup import LookupScheduler
from streamhouse_spark.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("own_cache")

WRITES = 30
KEYS = 3
"""Of which one is written by the object that looks up rows, the others by another one's."""


class WrongRowError(Exception):
    """A row of another time than that of the lookup."""


def look_up_while_others_write(root: str) -> int:
    """Return the number of lookups."""
    storage = LocalStorage(root, fsync=False)
    properties = {"table.changelog.image": "wal"}  # who writes leaves it to the next lookup to read the changes
    table = Warehouse(root, storage=storage).create_table(
        "t", "id BIGINT, n BIGINT", primary_key=["id"], buckets=2, properties=properties
    )
    other = Warehouse(root, storage=LocalStorage(root, fsync=False), world=World()).table("t")
    table.upsert([{"id": key, "n": 0} for key in range(KEYS)])
    begun, stored = [0] * KEYS, [0] * KEYS
    is_over = threading.Event()
    counts = [0] * THREADS

    def write(to: int) -> None:
        for n in range(1, WRITES + 1):
            for key in range(KEYS):
                begun[key] = n
                (table if key == 0 else other).upsert([{"id": key, "n": n}])
                stored[key] = n

    def look_up(number: int) -> None:
        key = number
        while not is_over.is_set():
            key = (key + 1) % KEYS
            oldest = stored[key]
            row = table.lookup_one(key)
            if row is None or not oldest <= row["n"] <= begun[key]:
                raise WrongRowError(f"{row} of key {key}, of which {oldest} was stored, and {begun[key]} is under way")
            counts[number] += 1

    def work(number: int) -> None:
        if number:
            look_up(number)
            return
        try:
            write(number)
        finally:
            is_over.set()

    in_threads(work)
    return sum(counts)


def test_each_lookup_finds_the_newest_row(tmp_path):
    assert look_up_while_others_write(str(tmp_path)) > 0


def test_so_it_does_while_turns_are_waited_for_in_vain(tmp_path, monkeypatch):
    """The turn is a hint: here it belongs to somebody who never ends, or to two at once, again and again."""

    class Confused(LookupScheduler):
        def release(self) -> None:
            super().release()
            self._is_taken = self._num_done % 3 == 0

    monkeypatch.setattr(module, "SCHEDULER", Confused())
    assert look_up_while_others_write(str(tmp_path)) > 0


def test_a_look_that_began_before_the_call_is_found(tmp_path, monkeypatch):
    """The bug that threads which share a look at the log would have."""
    is_newest = BatchLookup._is_newest
    looked: dict[int, float] = {}

    def shared(self: BatchLookup, state: TableState) -> bool:
        now = time.monotonic()
        if now - looked.get(state.version, -1) < 0.05:
            return True
        found = is_newest(self, state)
        looked[state.version] = now
        return found

    monkeypatch.setattr(BatchLookup, "_is_newest", shared)
    with pytest.raises(WrongRowError):
        look_up_while_others_write(str(tmp_path))
