"""Rows in records that a look read: kept in bounds, and never those of records that turned out not to be the log."""

from __future__ import annotations

from faults.sim import sim_world
from kit.round_trips import RemoteStorage
from streamhouse_spark import Warehouse
from streamhouse_spark.log import record
from streamhouse_spark.log.record import RecentRows


def rows_of(*numbers: int, size: int = 10) -> RecentRows:
    found = RecentRows()
    for number in numbers:
        found.add(number, memoryview(bytes([number]) * size))
    return found


def kept(rows: RecentRows) -> list[int]:
    return [number for number in range(20) if rows.of(number) is not None]


def test_the_oldest_go_first(monkeypatch):
    monkeypatch.setattr(record, "RECENT_BYTES_MAX", 35)
    assert kept(rows_of(1, 2, 3, 4, 5)) == [3, 4, 5]
    assert kept(rows_of(1, 2, 3).before(rows_of(4))) == [2, 3, 4]
    assert kept(rows_of(1, 2, 3).before(rows_of(4, size=36))) == [1, 2, 3]
    monkeypatch.setattr(record, "RECENT_RECORDS_MAX", 2)
    assert kept(rows_of(1, 2, 3)) == [2, 3]
    both = rows_of(1).before(rows_of(2))
    assert bytes(both.of(2) or b"") == bytes([2]) * 10


def test_what_others_hold_does_not_change():
    before = rows_of(1, 2)
    assert before.before(RecentRows()) is before
    before.before(rows_of(3))
    assert kept(before) == [1, 2]


def test_only_a_store_with_requests_keeps_them(memory, world):
    mine = Warehouse("wh", storage=memory, world=world).create_table("t", "id INT")
    for store, is_kept in ((memory, False), (RemoteStorage(memory), True)):
        table = Warehouse("wh", storage=store, world=sim_world(3)).table("t")
        mine.append([{"id": 1}])
        version = table.refresh().version
        assert (table.log.recent_rows.of(version) is not None) is is_kept
