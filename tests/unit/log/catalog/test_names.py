"""Names of tables, views and databases: one owner per name, found in few requests after any number of drops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import (
    CommitConflictError,
    CorruptDataError,
    FormatVersionError,
    StreamhouseError,
    TableExistsError,
    TableNotFoundError,
    Warehouse,
)
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import database_key, name_key
from streamhouse_spark.log.catalog import name_changes, names
from streamhouse_spark.log.catalog.names import ViewEntry
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.sequence_search import find_last

PATH = TablePath("sales", "orders")


def pointed(times: int) -> MemoryStorage:
    world = sim_world(1)
    storage = MemoryStorage(world)
    pointer = names.NamePointer(0, None)
    for number in range(1, times + 1):
        uuid = f"{number:032x}" if number % 2 else None
        assert names.put_name_pointer(storage, PATH, pointer, uuid, world)
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
        assert names.put_database_pointer(storage, found, world, exists=False)
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
    names.put_database_pointer(storage, names.resolve_database(storage, "sales"), world, exists=True, comment="c")
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
        assert names.put_name_pointer(storage, PATH, pointer, uuid, world)
        pointer = names.NamePointer(number, uuid)
    assert names.find_other_table(storage, PATH, "a") == "b"
    assert names.find_other_table(storage, PATH, "b") == "a"
    assert names.find_other_table(storage, TablePath("sales", "new"), "a") is None


OLD, NEW = TablePath("sales", "v"), TablePath("sales", "w")
VIEW = ViewEntry(
    "select id from orders",
    '{"type":"struct","fields":[]}',
    "streamhouse",
    ("sales",),
    ("id",),
    "COMPENSATION",
    {"spark.sql.ansi.enabled": "true"},
    {"comment": "it's a 'view' ✓"},
)
OTHER = replace(VIEW, text="select 2")


@pytest.fixture
def wh(wh: Warehouse) -> Warehouse:
    wh.create_database("sales")
    return wh


def create(wh: Warehouse, path: TablePath = OLD, view: ViewEntry = VIEW, *, replace: bool = False) -> None:
    name_changes.create_view(wh.storage, wh.world, path, view, replace=replace)


def rename(wh: Warehouse, old: TablePath = OLD, new: TablePath = NEW) -> None:
    name_changes.rename_view(wh.storage, wh.world, old, new)


def found(wh: Warehouse) -> dict[str, str]:
    paths = list(names.list_views(wh.storage, "sales"))
    return {path.table: name_changes.require_view(wh.storage, path).text for path in paths}


def test_a_view_lives_from_its_creation_to_its_drop(wh, other_process):
    create(wh)
    assert name_changes.require_view(other_process().storage, OLD) == VIEW
    with pytest.raises(TableExistsError, match=r"VIEW_EXISTS: view sales\.v exists"):
        create(wh)
    create(wh, view=OTHER, replace=True)
    name_changes.replace_view(wh.storage, wh.world, OLD, replace(OTHER, properties={}))
    rename(wh)
    assert found(other_process()) == {"w": "select 2"}
    with pytest.raises(TableNotFoundError, match=r"VIEW_NOT_FOUND: .* renamed to sales\.w"):
        name_changes.require_view(wh.storage, OLD)
    create(wh)
    assert found(wh) == {"v": VIEW.text, "w": "select 2"}, "the old name is free, and the renamed view stays"
    rename(wh, NEW, TablePath("sales", "x"))
    assert name_changes.drop_view(wh.storage, wh.world, OLD)
    assert not name_changes.drop_view(wh.storage, wh.world, OLD)
    assert found(wh) == {"x": "select 2"}
    for change in (rename, lambda wh: name_changes.replace_view(wh.storage, wh.world, OLD, VIEW)):
        with pytest.raises(TableNotFoundError, match="VIEW_NOT_FOUND"):
            change(wh)


def test_a_name_means_a_table_or_a_view(wh):
    wh.create_table("sales.orders", "id INT")
    orders = TablePath("sales", "orders")
    create(wh)
    for replaces in (False, True):
        with pytest.raises(TableExistsError, match=r"TABLE_EXISTS: table sales\.orders exists"):
            create(wh, orders, replace=replaces)
    taken: list[Callable[[], object]] = [
        lambda: wh.create_table("sales.v", "id INT"),
        lambda: wh.rename_table("sales.orders", "sales.v"),
        lambda: rename(wh, OLD, orders),
        lambda: rename(wh, OLD, OLD),
    ]
    for take in taken:
        with pytest.raises(TableExistsError):
            take()
    for ask in (wh.table, wh.view, wh.drop_table, lambda name: wh.rename_table(name, "sales.z")):
        with pytest.raises(TableNotFoundError, match=r"NAME_IS_VIEW: sales\.v of .* is a view, not a table"):
            ask("sales.v")
    assert not wh.exists("sales.v")
    assert not wh.drop_table("sales.v", if_exists=True)
    assert not name_changes.drop_view(wh.storage, wh.world, orders)
    assert (wh.tables(), found(wh)) == (["sales.orders"], {"v": VIEW.text})
    wh.drop_table("sales.orders")
    create(wh, orders)
    with pytest.raises(TableExistsError):
        wh.undrop_table("sales.orders", uuid=wh.dropped_tables()[0].uuid, to="sales.orders")
    assert set(found(wh)) == {"orders", "v"}


def test_a_database_with_views_is_not_empty(wh):
    create(wh)
    with pytest.raises(TableExistsError, match=r"DATABASE_NOT_EMPTY: .* 1 object \(sales\.v\)"):
        wh.drop_database("sales")
    assert wh.drop_database("sales", cascade=True)
    wh.create_database("sales")
    assert found(wh) == {}


def test_older_releases_refuse_a_view_and_read_what_follows_it(wh):
    """They read versions 1 and 2 of a name: a view is no name that means nothing to them."""
    create(wh)
    rename(wh)
    name_changes.drop_view(wh.storage, wh.world, NEW)
    read = [(OLD, 1), (OLD, 2), (NEW, 1), (NEW, 2)]
    refused = []
    for path, number in read:
        try:
            decode_frame("name", wh.storage.read(name_key(path, number)), "here", newest=names.PLACED_VERSION)
        except FormatVersionError:
            refused.append((path, number))
    assert refused == [(OLD, 1), (NEW, 1)]


@pytest.fixture
def before_the_commit(wh, monkeypatch):
    """Let another process act between the two pointers of a renaming, once."""

    def act(other: Callable[[], object]) -> None:
        point = names.put_name_pointer
        done: list[object] = []

        def slow(storage, path, *args, **kwargs):
            if path == OLD and kwargs.get("moved_to") is not None and not done:
                done.append(1)
                other()
            return point(storage, path, *args, **kwargs)

        monkeypatch.setattr(names, "put_name_pointer", slow)

    create(wh)
    return act


def test_the_new_name_means_nothing_before_the_commit(wh, before_the_commit):
    seen: list[object] = []
    before_the_commit(lambda: seen.append(found(wh)))
    rename(wh)
    assert seen == [{"v": VIEW.text}]
    assert found(wh) == {"w": VIEW.text}


@pytest.mark.parametrize("makes", ["a table", "a view"])
def test_who_takes_the_new_name_meanwhile_has_it(wh, before_the_commit, makes):
    if makes == "a table":
        before_the_commit(lambda: wh.create_table("sales.w", "id INT"))
    else:
        before_the_commit(lambda: create(wh, NEW, OTHER))
    with pytest.raises(TableExistsError):
        rename(wh)
    assert found(wh) == {"v": VIEW.text} | ({} if makes == "a table" else {"w": OTHER.text})
    assert wh.exists("sales.w") == (makes == "a table")


def test_a_view_that_is_replaced_meanwhile_is_renamed_as_it_is_then(wh, before_the_commit):
    before_the_commit(lambda: create(wh, OLD, OTHER, replace=True))
    rename(wh)
    assert found(wh) == {"w": OTHER.text}


def test_a_view_that_is_dropped_meanwhile_is_not_renamed(wh, before_the_commit):
    before_the_commit(lambda: name_changes.drop_view(wh.storage, wh.world, OLD))
    with pytest.raises(TableNotFoundError, match="VIEW_NOT_FOUND"):
        rename(wh)
    assert found(wh) == {}


def test_a_name_that_others_keep_taking_is_a_conflict(wh, monkeypatch):
    create(wh)
    monkeypatch.setattr(names, "put_name_pointer", lambda *_, **__: False)
    tried: list[Callable[[], object]] = [
        lambda: create(wh, NEW),
        lambda: rename(wh),
        lambda: name_changes.drop_view(wh.storage, wh.world, OLD),
        lambda: name_changes.replace_view(wh.storage, wh.world, OLD, VIEW),
    ]
    for one in tried:
        with pytest.raises(CommitConflictError, match="lost 20 races for its name; retry"):
            one()


def test_a_damaged_pointer_hides_no_other_view(wh):
    create(wh)
    create(wh, NEW)
    key = name_key(OLD, 1)
    wh.storage.put(key, wh.storage.read(key)[:-9])
    assert found(wh) == {"w": VIEW.text}
    with pytest.raises(StreamhouseError, match="CORRUPT_DATA"):
        name_changes.require_view(wh.storage, OLD)
