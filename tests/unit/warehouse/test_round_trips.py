"""Budgets of requests on an object store: how many, and how many one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.round_trips import RemoteStorage
from streamhouse_spark import CorruptDataError, StorageError, TableNotFoundError, Warehouse, WarehouseNotFoundError
from streamhouse_spark.core.warehouse_layout import checkpoint_hint_key, checkpoint_key, commit_key
from streamhouse_spark.log.bootstrap import SKIP_AHEAD_AFTER
from streamhouse_spark.log.checkpoint import HINT_EVERY, HINT_FIRST
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.prefetch import (
    FIRST,
    WINDOW,
    Prefetch,
    SupportsBatchReads,
    delete_all,
    map_with_store_concurrency,
)
from streamhouse_spark.warehouse import listing
from streamhouse_spark.warehouse.table_batch import open_all

PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def wh(memory, world) -> Warehouse:
    return Warehouse("wh", storage=memory, world=world)


def new_process(remote, world) -> Warehouse:
    return Warehouse("wh", storage=remote, world=world)


def grown(table, commits: int) -> TableState:
    """Commit so often."""
    for number in range(commits):
        table.append([{"id": number}])
    return table.state


def known(state: TableState) -> tuple[int, str, dict[int, int], int]:
    return state.version, state.attempt, state.ends, sum(1 for _ in state.live_segments())


@pytest.mark.parametrize("commits", [0, 1, 4, 5, 6, 18, 19, 20, 21, 38, 39, 40, 45, 58, 59, 104, 130])
def test_a_table_is_opened_in_three_round_trips_whatever_its_age(remote, world, commits):
    """The name; the hint with a state; the records behind it and the floors."""
    state = grown(new_process(remote, world).create_table("t", "id INT", properties=PLAIN), commits)
    with remote.measured() as cost:
        opened = new_process(remote, world).table("t")
    assert known(opened.state) == known(state)
    assert cost.depth <= 3, cost
    assert cost.requests <= 8 + (HINT_EVERY + 2 if commits + 1 >= HINT_FIRST else FIRST), cost


@pytest.mark.parametrize("commits", [0, 6, 7, 30, 40, 45, 104])
def test_one_whose_hint_has_no_state_takes_one_round_trip_more(wh, remote, world, commits):
    """A large state, or an older version of this package that wrote the checkpoint."""
    state = grown(wh.create_table("t", "id INT", properties=PLAIN), commits)
    with remote.measured() as cost:
        opened = new_process(remote, world).table("t")
    assert known(opened.state) == known(state)
    assert cost.depth <= (3 if commits + 2 < FIRST else 4), cost
    assert cost.requests <= 8 + WINDOW, cost


def test_opening_a_second_table_takes_few_round_trips(wh, remote, world):
    grown(wh.create_table("t", "id INT", properties=PLAIN), 3)
    grown(wh.create_table("u", "id INT", properties=PLAIN), 3)
    process = new_process(remote, world)
    process.table("t")
    with remote.measured() as cost:
        process.table("u")
    assert cost.depth <= 4, cost


def test_a_look_without_news_is_one_request(wh, remote, world):
    wh.create_table("t", "id INT", properties=PLAIN)
    table = new_process(remote, world).table("t")
    with remote.measured() as cost:
        table.refresh()
    assert (cost.requests, cost.depth) == (1, 1)


@pytest.mark.parametrize(("news", "depth"), [(1, 2), (4, 3), (10, 3), (35, 5), (300, 4), (1000, 4)])
def test_news_are_read_in_few_round_trips(wh, remote, world, news, depth):
    mine = wh.create_table("t", "id INT", properties=PLAIN)
    table = new_process(remote, world).table("t")
    state = grown(mine, news)
    with remote.measured() as cost:
        found = table.refresh()
    assert known(found) == known(state)
    assert cost.depth <= depth, cost
    assert cost.requests <= min(state.version, SKIP_AHEAD_AFTER) + WINDOW + 2, (
        "a checkpoint stands for most of the records"
    )


def test_news_are_read_one_by_one_where_the_checkpoint_is_damaged(wh, remote, world, memory):
    mine = wh.create_table("t", "id INT", properties=PLAIN)
    table = new_process(remote, world).table("t")
    state = grown(mine, 100)
    memory.put(checkpoint_key(mine.uuid, int(memory.read(checkpoint_hint_key(mine.uuid)))), b"damaged")
    assert known(table.refresh()) == known(state)


def test_a_commit_that_lands_late_is_found_among_many_others(wh, memory, world):
    """It is the first of the news, so nobody leaps over it: its caller would write the rows once more."""
    mine = wh.create_table("t", "id INT", properties=PLAIN)

    class LateStorage(RemoteStorage):
        looks = 0
        late: tuple[str, bytes] | None = None

        def put_if_absent(self, key: str, data: bytes) -> None:
            if self.looks or not key.startswith(commit_key(mine.uuid, 2)[:-2]):
                return memory.put_if_absent(key, data)
            self.late = key, data
            raise StorageError("the connection broke")

        def read(self, key: str) -> bytes:
            self.look([key])
            return memory.read(key)

        def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
            self.look(keys)
            return super().read_many(keys)

        def look(self, keys: Sequence[str]) -> None:
            if self.late is not None and self.late[0] in keys:
                self.looks += 1
                if self.looks == 2:
                    memory.put_if_absent(*self.late)
                    grown(mine, 100)

    table = new_process(LateStorage(memory), world).table("t")
    table.append([{"id": -1}])
    assert mine.to_arrow()["id"].to_pylist().count(-1) == 1
    assert mine.to_arrow().num_rows == 101


def test_all_tables_are_listed(wh, remote, world):
    """Listings of databases and logs; the names of each database and all hints; pointers, records and floors."""
    for number in range(9):
        grown(wh.create_table(f"d{number % 3}.t{number}", "id INT", properties=PLAIN), 2)
    wh.drop_table("d1.t4")
    with remote.measured() as cost:
        found = new_process(remote, world).tables()
    assert found == wh.tables()
    assert len(found) == 8
    assert cost.kinds["list_names"] == 5
    assert cost.requests <= 12 + 9 * (3 + 10), "few records of each table are asked for ahead"
    assert cost.depth <= 3, cost


MANY_BEHIND = (18, 45)
"""Commits after which more than five records follow the state in the hint."""


@pytest.mark.parametrize("commits", [0, 3, 4, 9, 18, 20, 45])
@pytest.mark.parametrize("database", [None, "default"])
def test_a_listing_is_three_deep_for_any_number_of_tables(remote, world, commits, database):
    """One more where more records than are asked for at once follow the states in the hints."""
    wh = new_process(remote, world)
    requests = []
    for first, last in [(0, 1), (1, 30)]:
        for number in range(first, last):
            grown(wh.create_table(f"t{number}", "id INT", properties=PLAIN), commits)
        with remote.measured() as cost:
            assert len(new_process(remote, world).tables(database)) == last
        assert cost.depth <= (4 if last > 1 and commits in MANY_BEHIND else 3), cost
        requests.append(cost.requests)
    if commits < 3:
        assert requests[1] - requests[0] <= 29 * (3 + 1 + 1 + 7)


@pytest.mark.parametrize(("commits", "depth"), [(0, 4), (3, 4), (20, 5), (45, 5)])
def test_one_whose_hints_have_no_states(wh, remote, world, commits, depth):
    """Checkpoints are asked for with the first records behind them, and then the floors that they lead to."""
    for number in range(12):
        grown(wh.create_table(f"t{number}", "id INT", properties=PLAIN), commits)
    with remote.measured() as cost:
        opened = open_all(new_process(remote, world)).tables
    assert [table.state.version for table in opened] == [commits + 1] * 12
    assert cost.depth <= depth, cost


@pytest.mark.parametrize("commits", [6, 20, 21])
def test_a_listing_of_tables_whose_hints_hold_states(remote, world, commits):
    writer = new_process(remote, world)
    states = [grown(writer.create_table(f"t{number}", "id INT", properties=PLAIN), commits) for number in range(5)]
    with remote.measured() as cost:
        opened = open_all(new_process(remote, world)).tables
    assert [known(table.state) for table in opened] == [known(state) for state in states]
    assert cost.depth <= 3, cost
    assert cost.requests <= 6 + 5 * (3 + 1 + 2 + 9), cost


def test_dropped_tables_cost_a_listing_little(remote, world):
    """Where most logs have no name, each is a hint that is asked for in vain, and no records."""
    wh = new_process(remote, world)
    for number in range(40):
        wh.create_table("t", "id INT", properties=PLAIN)
        if number < 39:
            wh.drop_table("t")
    with remote.measured() as cost:
        assert new_process(remote, world).tables() == ["default.t"]
    assert cost.requests <= 40 + 50, cost


def test_where_logs_are_many_names_come_first(remote, world, monkeypatch):
    monkeypatch.setattr(listing, "LOGS_MAX", 2)
    wh = new_process(remote, world)
    for number in range(4):
        grown(wh.create_table(f"t{number}", "id INT", properties=PLAIN), 1)
    with remote.measured() as cost:
        assert len(new_process(remote, world).tables()) == 4
    assert cost.depth == 5, cost


def test_logs_that_no_listing_shows_are_opened_too(wh, remote, world, monkeypatch):
    """A listing is a hint of what to ask for, and no more."""
    for number in range(3):
        grown(wh.create_table(f"t{number}", "id INT", properties=PLAIN), 2)
    listed, original = wh.storage.list_names("tables/"), remote._inner.list_names
    monkeypatch.setattr(
        remote._inner, "list_names", lambda prefix: [listed[0]] if prefix == "tables/" else original(prefix)
    )
    opened = open_all(new_process(remote, world)).tables
    assert [table.state.version for table in opened] == [3, 3, 3]


def test_a_name_that_means_nothing_and_no_warehouse(wh, remote, world):
    with pytest.raises(WarehouseNotFoundError):
        new_process(RemoteStorage(MemoryStorage(world)), world).table("t")
    wh.create_table("t", "id INT", properties=PLAIN)
    with remote.measured() as cost, pytest.raises(TableNotFoundError):
        new_process(remote, world).table("other")
    assert cost.depth >= 1


def test_opening_a_name_with_a_long_history_takes_few_round_trips(wh, remote, world):
    for _ in range(5):
        wh.create_table("t", "id INT", properties=PLAIN)
        wh.drop_table("t")
    uuid = wh.create_table("t", "id INT", properties=PLAIN).uuid
    assert new_process(remote, world).table("t").uuid == uuid


def test_without_a_hint_nothing_is_lost(wh, remote, world, memory):
    table = wh.create_table("t", "id INT", properties=PLAIN)
    state = grown(table, 104)
    memory.delete(checkpoint_hint_key(table.uuid))
    assert known(new_process(remote, world).table("t").state) == known(state)


def test_a_missing_record_with_others_behind_it_is_told(wh, remote, world, memory):
    table = wh.create_table("t", "id INT", properties=PLAIN)
    grown(table, 10)
    memory.delete(commit_key(table.uuid, 8))
    with pytest.raises(CorruptDataError, match="is missing although records follow it"):
        new_process(remote, world).table("t").refresh()


class TestDepth:
    """The count itself: work in threads is as deep as its caller waits for it."""

    @pytest.fixture
    def look(self, memory, remote):
        memory.put("a", b"1")
        return lambda _: remote.read("a")

    def test_one_after_the_other(self, remote, look):
        with remote.measured() as cost:
            list(map(look, range(3)))
        assert (cost.requests, cost.depth) == (3, 3)

    @pytest.mark.parametrize(("threads", "depth"), [(1, 8), (3, 3), (4, 2), (8, 1)])
    def test_work_of_few_threads_waits_for_its_turn(self, remote, look, threads, depth):
        with remote.measured() as cost, ThreadPoolExecutor(threads) as pool:
            assert list(pool.map(look, range(8))) == [b"1"] * 8
        assert (cost.requests, cost.depth) == (8, depth)

    def test_pools_one_after_the_other(self, remote, look):
        """Each pool has threads of its own, whose round trips follow those of the pool before."""
        with remote.measured() as cost:
            look(0)
            for _ in range(3):
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(look, range(2)))
        assert cost.depth == 4

    def test_a_pool_in_a_pool_adds_no_depth(self, remote, look):
        def outer(_: int) -> None:
            look(0)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(look, range(4)))

        with remote.measured() as cost, ThreadPoolExecutor(2) as pool:
            list(pool.map(outer, range(2)))
        assert (cost.requests, cost.depth) == (10, 3)

    def test_work_that_nobody_waited_for_is_no_round_trip_before_it_ends(self, remote, look):
        with remote.measured() as cost, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(look, 0)
            look(0)
            look(0)
            waiting.result()
            look(0)
        assert (cost.requests, cost.depth) == (4, 3)

    def test_work_in_a_thread_adds_no_depth(self, remote, look):
        with remote.measured() as cost:
            look(0)
            thread = threading.Thread(target=look, args=(0,))
            thread.start()
            look(0)
            thread.join()
        assert (cost.requests, cost.depth) == (3, 2)

    def test_many_at_once_and_ranges_of_one_object(self, remote):
        remote.put("a", bytes(1 << 20))
        with remote.measured() as cost:
            remote.read_many(["a", "b"])
            remote.read_ranges("a", [(0, 4), (8, 16), (1 << 19, 1 << 20)])
        assert (cost.requests, cost.depth) == (4, 2)


class TestReadAhead:
    def test_each_object_is_handed_out_once(self, memory, remote):
        memory.put("a", b"1")
        ahead = Prefetch(remote)
        ahead.expect(["a", "b"])
        assert ahead.has("a")
        assert ahead.is_known_absent("b")
        memory.put("a", b"2")
        assert [ahead.read("a"), ahead.read("a")] == [b"1", b"2"]

    def test_a_store_that_reads_one_by_one_is_asked_for_nothing_ahead(self, memory):
        ahead = Prefetch(memory)
        ahead.expect(["a", "b"])
        assert not ahead.is_useful
        assert not ahead.has("a")

    def test_objects_are_deleted_at_once(self, memory, remote):
        keys = [f"a/{number}" for number in range(60)]
        for key in keys:
            memory.put(key, b"1")
        with remote.measured() as cost:
            delete_all(remote, [*keys, "a/absent"])
        assert (cost.requests, cost.depth) == (61, 2)
        assert not memory.list("a/")

    def test_work_at_once_keeps_the_order(self, memory, remote):
        assert isinstance(remote, SupportsBatchReads)
        assert not isinstance(memory, SupportsBatchReads)
        for storage in (memory, remote):
            assert list(map_with_store_concurrency(storage, lambda n: n * n, list(range(20)))) == [
                n * n for n in range(20)
            ]
