"""Tables that are put back to an older copy: what finds mistakes about which history a position is of."""

from __future__ import annotations

import os
import tempfile
import uuid
from typing import Any
from unittest import mock

from faults.sim import SimClock, sim_world
from streamhouse_spark import DifferentHistoryError, Table, Transaction, Warehouse
from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.storage.memory import MemoryStorage

SUM = {"table.merge-engine": "aggregation", "fields.n.agg": "sum"}


class Restorable:
    """A warehouse in memory, whose content can be put back; each opening is another process."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.storage = MemoryStorage(sim_world(0, self.clock), name=uuid.uuid4().hex)
        self._seeds = iter(range(1, 100_000))

    def open(self) -> Warehouse:
        return Warehouse("wh", storage=self.storage, world=sim_world(next(self._seeds), self.clock))

    def table(self) -> Table:
        return self.open().table("d.t")

    def create(self, columns: str = "id BIGINT, n BIGINT", **options: Any) -> Table:
        return self.open().create_table("d.t", columns, **options)

    def backup(self) -> dict[str, Any]:
        return dict(self.storage._objects)

    def restore(self, backup: dict[str, Any]) -> None:
        self.storage._objects = dict(backup)


def sums_of_a_restored_table() -> None:
    """Another host brings the restored table to the offset at which this host had applied the other history."""
    place = Restorable()
    table = place.create(primary_key=["id"], properties=SUM)
    table.upsert([{"id": 1, "n": 2}])
    backup = place.backup()
    table.upsert([{"id": 1, "n": 300}])
    place.restore(backup)
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
        place.table().upsert([{"id": 1, "n": 3}])
    place.table().upsert([{"id": 1, "n": 1}])
    row = place.table().lookup_one(1)
    assert row is not None
    assert row["n"] == 6, row


def a_process_that_stands_in_the_other_history() -> None:
    place = Restorable()
    table = place.create()
    table.append([{"id": 1, "n": 1}])
    backup = place.backup()
    table.append([{"id": 2, "n": 2}])
    place.restore(backup)
    other = place.table()
    for number in (3, 4):
        other.append([{"id": number, "n": number}])
    try:
        table.append([{"id": 5, "n": 5}])
    except DifferentHistoryError:
        return
    raise AssertionError("rows were added to a log that was not read")


def a_stream_with_an_older_checkpoint() -> None:
    place = Restorable()
    table = place.create()
    for number in range(3):
        table.append([{"id": number, "n": 0}], transaction=Transaction("app", number, "q", StreamBatch()))
    try:
        table.append([{"id": 9, "n": 0}], transaction=Transaction("app", 1, "q", StreamBatch()))
    except DifferentHistoryError:
        return
    raise AssertionError("rows of another batch were dropped in silence")


def a_tail_that_is_followed_on() -> None:
    place = Restorable()
    table = place.create()
    backup = place.backup()
    table.append([{"id": 1, "n": 1}])
    tail = table.tail("earliest", until_ms=0)
    list(tail)
    place.restore(backup)
    place.table().append([{"id": 2, "n": 2}])
    try:
        found = list(place.table().tail(tail.position, until_ms=0))
    except DifferentHistoryError:
        return
    raise AssertionError(f"a row was skipped in silence, found {found}")
