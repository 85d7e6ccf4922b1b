"""A name, or a database, that was dropped and made again very often is found in few requests, whatever lies before."""

from __future__ import annotations

import math

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import CorruptDataError
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import database_key, name_key
from streamhouse_spark.log.catalog import names
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.sequence_search import find_last

PATH = TablePath("sales", "orders")


def pointed(times: int) -> MemoryStorage:
    world = sim_world(1)
    storage = MemoryStorage(world)
    pointer = names.NamePointer(0, None)
    for number in range(1, times + 1):
        uuid = f"{number:032x}" if number % 2 else None
        assert names.point(storage, PATH, pointer, uuid, world)
        pointer = names.NamePointer(number, uuid)
    return storage


@pytest.mark.parametrize("length", [*range(20), 63, 64, 65, 1000])
def test_the_end_of_a_run(length):
    asked: list[int] = []

    def is_there(number: int) -> bool:
        asked.append(number)
        return number <= length

    assert find_last(is_there, 0) == length
    assert length + 1 in asked, "the end is seen, not guessed"
    assert len(asked) <= 2 * math.log2(length + 2) + 2


@pytest.mark.parametrize("times", [0, 1, 2, 3, 7, 8, 9, 2001])
def test_a_name_is_found_in_few_requests(times):
    counting = FaultyStorage(pointed(times))
    found = names.resolve(counting, PATH)
    assert found.number == times
    assert (found.uuid is None) == (times % 2 == 0)
    assert len(counting.trace) <= (times + 1 if times < 2 else 2 * math.log2(times + 2) + 2)


def test_a_database_is_found_in_few_requests():
    world = sim_world(1)
    storage = MemoryStorage(world)
    for _ in range(500):
        names.create_database(storage, "sales", world)
        found = names.resolve_database(storage, "sales")
        assert names.point_database(storage, found, world, exists=False)
    counting = FaultyStorage(storage)
    assert names.resolve_database(counting, "sales") == names.DatabasePointer("sales", 1000, exists=False)
    assert len(counting.trace) <= 22


def test_only_the_last_pointer_counts_so_damage_to_others_is_none():
    storage = pointed(9)
    for number in range(1, 9):
        storage.put(name_key(PATH, number), b"x")
    assert names.resolve(storage, PATH).uuid == f"{9:032x}"
    storage.put(name_key(PATH, 9), b"x")
    with pytest.raises(CorruptDataError, match=name_key(PATH, 9)):
        names.resolve(storage, PATH)


def test_the_first_database_file_does_not_decide():
    world = sim_world(1)
    storage = MemoryStorage(world)
    names.create_database(storage, "sales", world)
    names.point_database(storage, names.resolve_database(storage, "sales"), world, exists=True, comment="c")
    storage.put(database_key("sales", 1), b"x")
    assert names.resolve_database(storage, "sales").comment == "c"


@pytest.mark.parametrize("times", [1, 2, 3, 2001])
def test_another_table_of_the_name_is_found_in_few_requests(times):
    storage = pointed(times)
    newest = f"{times - (times + 1) % 2:032x}"
    counting = FaultyStorage(storage)
    found = names.find_other_table(counting, PATH, newest)
    assert found == (f"{times - 2:032x}" if times > 2 else None)
    assert len(counting.trace) <= 2 * math.log2(times + 2) + 2 + 2


def test_a_table_that_got_its_name_back_is_no_other():
    world = sim_world(1)
    storage = MemoryStorage(world)
    pointer = names.NamePointer(0, None)
    for number, uuid in enumerate(["a", None, "b", None, "a", None, "a"], 1):
        assert names.point(storage, PATH, pointer, uuid, world)
        pointer = names.NamePointer(number, uuid)
    assert names.find_other_table(storage, PATH, "a") == "b"
    assert names.find_other_table(storage, PATH, "b") == "a"
    assert names.find_other_table(storage, TablePath("sales", "new"), "a") is None
