"""A fault at every storage call of making, replacing, renaming and dropping a view: it is there as before, or after."""

from __future__ import annotations

from dataclasses import replace

from faults.faulty_storage import sweep
from faults.sim import sim_world
from streamhouse_spark import Warehouse
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.catalog import name_changes, names
from streamhouse_spark.log.catalog.names import ViewEntry
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

A, B = TablePath("d", "a"), TablePath("d", "b")
ONE = ViewEntry("select 1", "{}")
TWO = replace(ONE, text="select 2")


def empty() -> Storage:
    storage = MemoryStorage(sim_world(0))
    Warehouse("wh", storage=storage, world=sim_world(0)).create_database("d")
    return storage


def with_view() -> Storage:
    storage = empty()
    name_changes.create_view(storage, sim_world(1), A, ONE, replace=False)
    return storage


def renamed_twice() -> Storage:
    storage = with_view()
    name_changes.rename_view(storage, sim_world(2), A, B)
    name_changes.rename_view(storage, sim_world(3), B, A)
    return storage


def found(storage: Storage) -> dict[str, str]:
    paths = list(names.list_views(storage, "d"))
    return {path.table: name_changes.require_view(storage, path).text for path in paths}


def check(new_store, work, before: dict[str, str], after: dict[str, str]) -> None:
    for attempt in sweep(new_store(), lambda storage: work(storage, 7), each_state_once=True):
        is_now = found(attempt.store)
        assert is_now in ((before, after) if attempt.raised else (after,)), attempt
        if is_now == before:  # another process does it, whatever was left
            work(attempt.store, 8)
            assert found(attempt.store) == after, attempt


def test_a_view_is_made_or_not():
    check(empty, lambda s, n: name_changes.create_view(s, sim_world(n), A, ONE, replace=False), {}, {"a": "select 1"})


def test_a_view_is_replaced_or_not():
    def work(storage: Storage, seed: int) -> None:
        name_changes.create_view(storage, sim_world(seed), A, TWO, replace=True)

    check(with_view, work, {"a": "select 1"}, {"a": "select 2"})


def test_a_view_is_dropped_or_not():
    check(with_view, lambda s, n: name_changes.drop_view(s, sim_world(n), A), {"a": "select 1"}, {})


def test_a_view_has_one_of_its_two_names():
    for store in (with_view, renamed_twice):
        check(store, lambda s, n: name_changes.rename_view(s, sim_world(n), A, B), {"a": "select 1"}, {"b": "select 1"})


def test_a_name_that_a_dead_renaming_left_can_be_taken():
    for attempt in sweep(with_view(), lambda s: name_changes.rename_view(s, sim_world(7), A, B), each_state_once=True):
        if "b" not in found(attempt.store):
            wh = Warehouse("wh", storage=attempt.store, world=sim_world(8))
            wh.create_table("d.b", "id INT", properties={"table.datalake.enabled": "false"})
            assert (wh.tables(), found(attempt.store)) == (["d.b"], {"a": "select 1"}), attempt
