"""A fault at every storage call of making and dropping a table whose log lies in another store."""

from __future__ import annotations

import pytest

from faults.faulty_storage import Fault, sweep
from faults.sim import sim_world
from faults.two_stores import HOT, two_stores
from streamhouse_spark import StreamhouseError, TableExistsError, Warehouse, relocate
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import log_location_key, log_owner_key
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.usefixtures("own_cache")

NAME = "a.t"
PROPERTIES = {"table.log.location": HOT, "table.datalake.enabled": "false"}


def opened(storage: Storage, seed: int, world: World | None = None, **given) -> Warehouse:
    world = world or sim_world(seed)
    return Warehouse("wh", storage=two_stores(storage, world, **given), world=world)


def create(wh: Warehouse):
    return wh.create_table(NAME, "id INT", properties=PROPERTIES)


def made(*rows: int) -> MemoryStorage:
    store = MemoryStorage(sim_world())
    table = create(opened(store, 1))
    for row in rows:
        table.append([{"id": row}])
    return store


def keys(store: Storage, folder: str) -> set[str]:
    return {info.key.removeprefix(folder) for info in store.list(folder)}


def require_apart(store: Storage) -> None:
    """Nothing of a log lies in the warehouse, nor anything else with the logs; each log knows whose it is."""
    of_tables = {key for key in keys(store, "cold/") if key.startswith("tables/")}
    assert all(key.endswith("/location.json") for key in of_tables), of_tables
    hot = keys(store, "hot/")
    assert all(key.startswith("tables/") for key in hot), hot
    for uuid in {key.split("/")[1] for key in hot}:
        assert log_owner_key(uuid) in hot
        assert log_location_key(uuid) in of_tables


def test_a_failed_creation_leaves_no_log_of_an_unnamed_table_in_use():
    started = 0
    for attempt in sweep(MemoryStorage(sim_world()), lambda store: create(opened(store, 1))):
        started += 1
        require_apart(attempt.store)
        wh = opened(attempt.store, 2)
        there = attempt.store.list("cold/a/t/names/")
        if attempt.raised is None:
            assert there, attempt
        try:
            table = create(wh)
        except TableExistsError:
            assert there, attempt
            table = wh.table(NAME)
        table.append([{"id": 7}])
        assert opened(attempt.store, 3).table(NAME).to_arrow()["id"].to_pylist() == [7], attempt
        require_apart(attempt.store)
    assert started > 60


def test_what_a_crash_of_create_leaves_is_cleaned():
    for attempt in sweep(
        MemoryStorage(sim_world()), lambda store: create(opened(store, 1)), faults=[Fault.CRASH_AFTER]
    ):
        for _ in range(3):
            attempt.store._world.clock.advance(2 * GRACE_MS)
            if attempt.store.list("cold/streamhouse.json"):
                opened(attempt.store, 9, attempt.store._world).clean_dropped()
        named = bool(attempt.store.list("cold/a/t/names/"))
        left = {key.split("/")[2] for key in keys(attempt.store, "hot/")}
        assert named or left <= {"owner.json", "floors"}, (attempt, left)


def test_a_failed_drop_elsewhere_is_completed_by_the_next_one():
    for attempt in sweep(made(1, 2), lambda store: opened(store, 2).drop_table(NAME), each_state_once=True):
        require_apart(attempt.store)
        wh = opened(attempt.store, 3)
        if attempt.raised is None:
            assert not wh.exists(NAME), attempt
        if wh.exists(NAME):
            assert wh.drop_table(NAME)
        assert [dropped.rows for dropped in wh.dropped_tables()] == [2], attempt
        assert sorted(wh.undrop_table(NAME).to_arrow()["id"].to_pylist()) == [1, 2]


def test_append_after_a_lost_answer_is_there_once():
    def append(store: Storage) -> None:
        opened(store, 2).table(NAME).append([{"id": 3}])

    for attempt in sweep(made(1, 2), append, each_state_once=True):
        found = sorted(opened(attempt.store, 3).table(NAME).to_arrow()["id"].to_pylist())
        assert found in ([1, 2], [1, 2, 3]), attempt
        assert attempt.raised is not None or found == [1, 2, 3], attempt


@pytest.mark.parametrize("copy", [False, True])
def test_a_failed_relocation_never_changes_the_log_of_the_original(copy):
    """The original's log is never changed by a copy, whatever fails; a moved warehouse ends up with its own."""
    base = made(1, 2)
    before = {key: data for key, data in base._objects.items() if key.startswith("hot/")}

    def relocated(store: Storage) -> None:
        relocate(opened(store, 4, url="memory://cold/elsewhere"), copy=copy)

    for attempt in sweep(base, relocated, each_state_once=True):
        if copy:
            assert {k: d for k, d in attempt.store._objects.items() if k.startswith("hot/")} == before, attempt
        try:
            relocated(attempt.store)
        except StreamhouseError as error:  # of one that was finished: it is at home
            if not copy or "is not a copy" not in str(error):
                raise
        wh = opened(attempt.store, 5, url="memory://cold/elsewhere")
        wh.table(NAME).append([{"id": 3}])
        assert sorted(wh.table(NAME).to_arrow()["id"].to_pylist()) == [1, 2, 3], attempt
        if copy:
            assert {k: d for k, d in attempt.store._objects.items() if k.startswith("hot/")} == before, attempt
