"""Requests of a CREATE TABLE in SQL: Spark asks whether there is such a table, and then creates it."""

from __future__ import annotations

import pytest

from kit.round_trips import RemoteStorage
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import TableNotFoundError
from streamhouse_spark.warehouse import process_cache
from streamhouse_spark.warehouse.process_cache import Connection, OpenTables, _Process
from unit.datasource.calls import Catalog


class Process(_Process):
    """A process that has opened nothing yet."""

    def __init__(self, remote: RemoteStorage) -> None:
        self.warehouse = open_warehouse(remote, 2)
        self.tables = OpenTables()


@pytest.mark.parametrize("others", [1, 20])
@pytest.mark.parametrize("has_open", [False, True])
def test_creating_a_table_does_not_ask_for_the_others(monkeypatch, others, has_open):
    remote = RemoteStorage(new_store(1))
    mine = open_warehouse(remote, 1)
    for number in range(others):
        mine.create_table(f"s.t{number}", "id INT")
    process = Process(remote)
    monkeypatch.setattr(process_cache, "_open_process", lambda *_: process)
    catalog = Catalog(Connection.of("wh", {}))
    if has_open:
        catalog.call("load", database="s", table="t0")
    with remote.measured() as cost:
        with pytest.raises(TableNotFoundError, match="SHOW TABLES"):
            catalog.call("load", database="s", table="fresh")
        catalog.create("s", "fresh")
    assert cost.requests <= 15, cost
    assert cost.depth <= 6, cost
