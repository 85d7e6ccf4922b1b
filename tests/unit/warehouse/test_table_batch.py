"""Tables that a process keeps open: their number is not what bounds them."""

from __future__ import annotations

import gc

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.service.table_discovery import REMOTE_LISTING_MS
from streamhouse_spark.service.tiering_service import POLL_MS_MAX, Service
from streamhouse_spark.warehouse import process_cache as connection_module
from streamhouse_spark.warehouse.process_cache import Connection, OpenTables

NUM_TABLES = 100


def some_tables(memory, world, num_tables: int, num_records: int = 1) -> list:
    warehouse = Warehouse("wh", storage=memory, world=world)
    tables = [warehouse.create_table(f"t{i}", "id BIGINT") for i in range(num_tables)]
    for table in tables:
        for n in range(num_records - 1):
            table.append([{"id": n}])
        table.lake  # noqa: B018 - made outside of what is counted
    return tables


def looks(service: Service, clock) -> None:
    """What the loop does in one turn in which it lists the tables."""
    clock.advance(max(REMOTE_LISTING_MS, POLL_MS_MAX))
    service._discover_tables()
    assert service._find_due() == []


def test_a_name_is_resolved_once(connected_store, memory, world):
    some_tables(memory, world, 3)
    connection = Connection.of("wh", {})

    def pointers(name: str) -> list[str]:
        connected_store.trace.clear()
        assert connection.find_table(name).name == f"default.{name}"
        return [key for _, _, key in connected_store.trace if key.endswith("/names/00000001.json")]

    assert len(pointers("t0")) == 1
    assert len(pointers("t1")) == 1, "another table is open"
    assert len(pointers("t1")) == 1, "this one is open"


@pytest.mark.parametrize("entries_max", [None, 10], ids=["all are kept", "few are kept"])
def test_a_round_over_a_hundred_idle_tables_reads_only_what_is_new(
    connected_store, memory, world, clock, monkeypatch, entries_max
):
    """The next record of each table, and one listing of a database for all names. No table is opened again."""
    if entries_max is not None:
        monkeypatch.setattr(connection_module, "ENTRIES_KEPT_MAX", entries_max)
    some_tables(memory, world, NUM_TABLES)
    service = Service(lambda _: [], Connection.of("wh", {}))
    looks(service, clock)
    opened = len(connected_store.trace)
    connected_store.trace.clear()
    looks(service, clock)
    of_log = [key for _, method, key in connected_store.trace if method == "read" and "/commits/" in key]
    others = [(method, key) for _, method, key in connected_store.trace if "/commits/" not in key]
    assert len(of_log) == NUM_TABLES
    assert [method for method, _ in others].count("list") == 1
    assert len(others) <= 6, others
    assert len(connected_store.trace) < opened


def test_what_is_kept_is_bounded_by_entries_and_the_last_used_stay(memory, world, monkeypatch):
    monkeypatch.setattr(connection_module, "TABLES_KEPT", 3)
    monkeypatch.setattr(connection_module, "ENTRIES_KEPT_MAX", 20)
    uuids = [table.uuid for table in some_tables(memory, world, 8, num_records=4)]
    warehouse = Warehouse("wh", storage=memory, world=world)
    opened = OpenTables()
    for number in range(8):
        opened.keep(warehouse.table(f"t{number}"))
        assert opened.get(uuids[0]) is not None, "used each time, so it stays"
    gc.collect()
    assert 3 <= len(opened) < 8
    assert [opened.get(uuid) is not None for uuid in uuids[-2:]] == [True, True]
    assert opened.get(uuids[1]) is None
