"""Requests of a query on an object store: each begins by loading its table anew, in the time of one request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults.sim import sim_world
from kit.round_trips import Cost, RemoteStorage
from streamhouse_spark import StorageError, Table, TableNotFoundError, Warehouse
from streamhouse_spark.datasource.scan import aggregates, cache_validators, file_systems
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse import process_cache
from streamhouse_spark.warehouse.process_cache import Connection, OpenTables, _Process
from unit.datasource.scan.scans import Scans, tier

FORMATS = ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)]
NAMES = ["s.orders", "s.orders$lake"]
PROTOCOL = json.loads((Path(__file__).parents[4] / "jvm" / "protocol.json").read_text())


class Process(_Process):
    """A process that has opened nothing yet."""

    def __init__(self, remote: RemoteStorage) -> None:
        self.warehouse = Warehouse("wh", storage=remote, world=sim_world(2))
        self.tables = OpenTables()


@pytest.fixture
def memory(world, request) -> MemoryStorage:
    """A store that no other test knows: a process remembers versions of lakes by their place."""
    return MemoryStorage(world, request.node.name)


@pytest.fixture
def wh(memory, world) -> Warehouse:
    """The warehouse of another process."""
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture
def scans(remote, monkeypatch) -> Scans:
    process = Process(remote)
    monkeypatch.setattr(process_cache, "_open_process", lambda *_: process)
    return Scans(Connection.of("wh", {}))


def made(wh: Warehouse, name: str = "s.orders", lake: str = "iceberg") -> Table:
    properties = {"table.datalake.format": lake, "bucket.num": "2", "bucket.key": "id"}
    table = wh.create_table(name, "id BIGINT", properties=properties)
    more(table, 10)
    tier(table)
    return table


def more(table: Table, count: int) -> None:
    table.append([{"id": number} for number in range(count)])


def loaded(scans: Scans, remote: RemoteStorage, name: str) -> tuple[dict[str, Any], Cost]:
    with remote.measured() as cost:
        found = scans.load(name)
    return found, cost


def count(scans: Scans, name: str) -> int:
    return scans.aggregate(scans.load(name), ("count_star", None))[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lake", FORMATS)
def test_a_table_is_loaded_in_one_round_trip(wh, remote, scans, name, lake):
    mine = made(wh, lake=lake)
    first = scans.load(name)
    again, cost = loaded(scans, remote, name)
    assert again["snapshot"] == first["snapshot"]
    assert cost.depth == 1, cost
    assert cost.requests <= 10, cost
    for _ in range(3):
        more(mine, 5)
        tier(mine)
        loads = scans.load(name), scans.load(name)
        assert loads[0]["snapshot"] == loads[1]["snapshot"] != first["snapshot"]
    assert count(scans, name) == 25


def test_the_answer_of_a_lake_on_s3_rests_on_objects_that_are_absent(wh, memory, scans, monkeypatch):
    """Where Spark has a file system of S3, it looks for them by itself: the next ones of log and lake."""
    mine = made(wh)
    scans.load("s.orders")
    monkeypatch.setattr(cache_validators, "store_folder", lambda _: file_systems.LogFolder("s3a-1-log://b/wh/"))
    for name, of_lake in (("s.orders", 0), ("s.orders$lake", 2)):
        (validator,) = scans.load(name)["validators"]
        assert sorted(validator) == sorted(PROTOCOL["answered"]["validator_of_store"])
        assert (validator["path"], validator["stamp"]) == ("s3a-1-log://b/wh/", None)
        assert len(validator["absent"]) == 1 + of_lake
        assert not any(exists(memory, key) for key in validator["absent"])
        more(mine, 3)
        tier(mine)
        found = [exists(memory, key) for key in validator["absent"]]
        assert found == [True, True, False][: 1 + of_lake], "all but the mark of a lake that was dropped"


def test_a_plan_of_lake_and_log_rests_on_the_lake_alone(wh, memory, remote, scans, monkeypatch):
    """Whoever has the commit has just found it to be the newest; another engine may expire its snapshot."""
    monkeypatch.setattr(cache_validators, "store_folder", lambda _: file_systems.LogFolder("s3a-1-log://b/wh/"))
    mine = made(wh)
    more(mine, 3)
    loaded = scans.load("s.orders")
    function = {"function": "count_star", "column": None}
    counted = aggregates.aggregate(scans.connection, {"snapshot": loaded["snapshot"], "aggregates": [function]})
    for answer in (scans.plan(loaded).reply, counted):
        (validator,) = answer["validators"]
        assert len(validator["absent"]) == 2
        assert not any(exists(memory, key) for key in validator["absent"])
    with remote.measured() as cost:
        planned = scans.plan(loaded)
    assert cost.depth == 1, cost
    tier(mine)
    assert [exists(memory, key) for key in validator["absent"]] == [True, False]
    (later,) = scans.plan(loaded).reply["validators"]
    assert not any(exists(memory, key) for key in later["absent"])
    assert planned["rows"] == 13


def test_a_plan_of_a_log_alone_rests_on_its_commit(wh, scans):
    more(wh.create_table("s.orders", "id BIGINT"), 3)
    assert scans.plan(scans.load("s.orders")).reply["validators"] == []


def exists(storage: MemoryStorage, key: str) -> bool:
    try:
        return storage.size_bytes(key) >= 0
    except ObjectNotFoundError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_means_another_table(wh, scans, name):
    made(wh)
    assert count(scans, name) == 10
    wh.drop_table("s.orders")
    with pytest.raises(TableNotFoundError):
        scans.load(name)
    other = made(wh)
    more(other, 7)
    tier(other)
    assert count(scans, name) == 17
    wh.rename_table("s.orders", "s.former")
    third = made(wh)
    more(third, 3)
    tier(third)
    assert count(scans, name) == 13
    assert count(scans, name.replace("orders", "former")) == 17


def test_a_lake_that_was_built_anew(wh, scans):
    mine = made(wh)
    former = scans.load("s.orders$lake")
    mine.retier()
    tier(mine)
    found = scans.load("s.orders$lake")
    assert found["snapshot"] != former["snapshot"]
    assert count(scans, "s.orders$lake") == 10


@pytest.mark.parametrize("kept", ["commits/", "metadata/", "names/"])
def test_an_error_of_the_store_is_an_error_of_the_load(wh, memory, scans, kept, monkeypatch):
    made(wh)
    scans.load("s.orders$lake")
    read = memory.read

    def failing(key: str) -> bytes:
        if kept in key:
            raise StorageError(f"{key} cannot be read")
        return read(key)

    monkeypatch.setattr(memory, "read", failing)
    with pytest.raises(StorageError, match=kept):
        scans.load("s.orders$lake")
    monkeypatch.undo()
