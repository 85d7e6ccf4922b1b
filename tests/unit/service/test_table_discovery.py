"""Tables of a service: names that changed are looked at again, in whatever step their change is."""

from __future__ import annotations

import pytest

from faults.faulty_storage import Crash, Fault, FaultyStorage
from streamhouse_spark import CorruptDataError, TableNotFoundError, Warehouse
from streamhouse_spark.core.warehouse_layout import name_key, parse_name_key, parse_table_name
from streamhouse_spark.log.catalog import names
from streamhouse_spark.service.table_discovery import TableDiscovery
from streamhouse_spark.service.tiering_service import POLL_MS, POLL_MS_MAX, Service
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse import process_cache as connection_module
from streamhouse_spark.warehouse.process_cache import Connection


@pytest.fixture
def wh(connected_store, memory, world) -> Warehouse:
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture
def known() -> TableDiscovery:
    return TableDiscovery(Connection.of("wh", {}))


def found(known: TableDiscovery) -> list[str]:
    """The tables, once the service has looked at each."""
    for table in known.discover().tables:
        try:
            table.refresh()
        except TableNotFoundError:
            known.forget(table)
    return sorted(table.state.name for table in known.discover().tables)


def test_keys_of_name_pointers_are_parsed():
    path = parse_table_name("db.t").path
    assert parse_name_key(name_key(path, 12)) == (path, 12)
    for key in ("db/database.json", "db/t/names/", "db/t/names/1.json", "tables/aa/commits/00000001.json"):
        assert parse_name_key(key) is None


def test_a_table_is_made_renamed_dropped_and_brought_back(wh, known):
    wh.create_table("db.one", "id BIGINT")
    assert found(known) == ["db.one"]
    wh.create_table("other.two", "id BIGINT")
    assert found(known) == ["db.one", "other.two"]
    wh.rename_table("db.one", "db.uno")
    assert found(known) == ["db.uno", "other.two"]
    wh.drop_table("other.two")
    assert found(known) == ["db.uno"]
    wh.undrop_table("other.two")
    assert found(known) == ["db.uno", "other.two"]
    wh.drop_table("db.uno")
    wh.create_table("db.uno", "id BIGINT")
    assert found(known) == ["db.uno", "other.two"]


def test_a_table_without_a_lake_is_found_once_it_has_one(wh, known):
    table = wh.create_table("db.t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    assert [t.properties.datalake_enabled for t in known.discover().tables] == [False]
    table.alter_properties({"table.datalake.enabled": "true"})
    assert [t.properties.datalake_enabled for t in known.discover().tables] == [True]


def test_nothing_of_unchanged_names_is_read(wh, known, connected_store):
    for i in range(20):
        wh.create_table(f"db.t{i}", "id BIGINT")
    wh.drop_table("db.t3")
    assert len(known.discover().tables) == 19
    connected_store.trace.clear()
    assert len(known.discover().tables) == 19
    assert [key for _, method, key in connected_store.trace if method == "list"] == ["db/"]
    assert not [key for _, _, key in connected_store.trace if "/names/" in key or key.startswith("tables/")]


@pytest.mark.parametrize("verb", ["rename", "drop", "undrop"])
def test_a_verb_that_is_killed_between_any_two_of_its_calls(memory, world, connected_store, wh, known, verb):
    """At each step the service has the same tables as a service that begins anew, and finds them in the end."""
    wh.create_table("db.a", "id BIGINT")
    if verb == "undrop":
        wh.drop_table("db.a")
    before = dict(memory._objects)
    number = 0
    while True:
        memory._objects = dict(before)
        connection_module._open_process.cache_clear()
        known = TableDiscovery(Connection.of("wh", {}))
        found(known)
        faulty = FaultyStorage(memory, {number: Fault.CRASH_BEFORE})
        other = Warehouse("wh", storage=faulty, world=world)
        try:
            if verb == "rename":
                other.rename_table("db.a", "db.b")
            elif verb == "drop":
                other.drop_table("db.a")
            else:
                other.undrop_table("db.a")
        except Crash:
            assert found(known) == found(TableDiscovery(Connection.of("wh", {}))), number
            number += 1
            continue
        assert found(known) == {"rename": ["db.b"], "drop": [], "undrop": ["db.a"]}[verb]
        break
    assert number > 2


def test_a_damaged_name_does_not_hide_the_others(wh, known, memory):
    wh.create_table("db.a", "id BIGINT")
    wh.create_table("db.b", "id BIGINT")
    key = name_key(parse_table_name("db.a").path, 1)
    data, time_ms = memory._objects[key]
    memory._objects[key] = (b"damaged", time_ms)
    tables = known.discover()
    assert [table.name for table in tables.tables] == ["db.b"]
    assert isinstance(tables.failures["db.a"], CorruptDataError)
    memory._objects[key] = (data, time_ms)
    assert found(known) == ["db.a", "db.b"]


def test_an_idle_table_is_looked_at_seldom_and_waiting_rows_in_time(wh, connected_store, clock):
    """Looks double their pace towards the moment at which a round has to begin."""
    table = wh.create_table("db.t", "id BIGINT", properties={"table.datalake.freshness": "5min"})
    service = Service(lambda _: [], Connection.of("wh", {}))
    service._discover_tables()
    assert service._find_due() == []
    connected_store.trace.clear()
    for _ in range(int(600_000 / POLL_MS)):
        clock.advance(POLL_MS)
        assert service._find_due() == [] or service._entries  # upkeep may be due
    requests = [key for _, _, key in connected_store.trace if "/commits/" in key]
    assert len(requests) <= 1.5 * 600_000 / POLL_MS_MAX  # a look is a request or two
    table.append([{"id": 1}])
    appended_ms = clock.boot_ms()
    entry = next(iter(service._entries.values()))
    while entry.overdue_ms < 0:
        clock.advance(POLL_MS)
        service._find_due()
        assert clock.boot_ms() - appended_ms < 300_000
    assert clock.boot_ms() - appended_ms > 250_000


def test_names_are_listed_as_they_are_resolved(wh, memory):
    wh.create_table("db.a", "id BIGINT")
    wh.drop_table("db.a")
    wh.create_table("db.a", "id BIGINT")
    wh.create_table("db.b", "id BIGINT")
    listed = names.list_pointers(memory, "db")
    assert listed == {path: names.resolve(memory, path).number for path in listed}
    assert isinstance(memory, MemoryStorage)
    assert len(listed) == 2
