"""Round trips of a process that reads new records, or loses races for them, on a slow store."""

from __future__ import annotations

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from kit.round_trips import RemoteStorage
from streamhouse_spark import CorruptDataError, StorageError, TableNotFoundError, Warehouse
from streamhouse_spark.log import record
from streamhouse_spark.log.record import RecentRows

PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def mine(memory, world):
    return Warehouse("wh", storage=memory, world=world).create_table("t", "id INT", properties=PLAIN)


@pytest.fixture
def other(mine, remote, world):
    """The table in a process for which requests take long."""
    return Warehouse("wh", storage=remote, world=world).table("t")


def grow(table, count: int) -> None:
    for number in range(count):
        table.append([{"id": number}])


@pytest.mark.parametrize("news", [0, 1, 3, 4, 5, 60])
@pytest.mark.parametrize("at_most", [1, 4, 10])
def test_a_look_is_one_round_trip_and_each_state_is_one_of_the_logs(mine, remote, other, news, at_most):
    known = {mine.state.version: mine.state.attempt}
    for _ in range(news):
        mine.append([{"id": 1}])
        known[mine.state.version] = mine.state.attempt
    for begun in range(0, news, at_most):
        with remote.measured() as cost:
            state = other.refresh_at_most(at_most)
        assert state.version == 1 + min(begun + at_most, news)
        assert state.attempt == known[state.version]
        assert (cost.depth, cost.requests) == (1, at_most), cost
    with remote.measured() as cost:
        assert other.refresh_at_most(at_most).version == 1 + news
    assert (cost.depth, cost.requests) == (1, at_most), "there is nothing more"
    assert other.refresh().ends == mine.state.ends


def test_the_first_look_of_a_process_opens_the_log(mine, remote, world):
    grow(mine, 30)
    lazy = Warehouse("wh", storage=remote, world=world).table("t")
    lazy.log._state = None
    assert lazy.refresh_at_most(1).version == 31


def test_where_requests_are_short_a_look_reads_on_to_the_end(mine, memory, world):
    near = Warehouse("wh", storage=memory, world=world).table("t")
    grow(mine, 9)
    assert near.refresh_at_most(1).version == 10


def test_the_rows_of_what_a_look_read_are_kept(mine, remote, other):
    grow(mine, 3)
    other.refresh_at_most(1)
    other.refresh_at_most(4)
    assert [other.log.recent_rows.of(number) is not None for number in (2, 3, 4)] == [True] * 3


def test_a_look_that_fails_changes_nothing(mine, memory, world):
    class Failing(FaultyStorage):
        broken = False

        def read(self, key):
            if self.broken and "/commits/" in key:
                raise StorageError("the connection broke")
            return super().read(key)

    storage = Failing(memory)
    table = Warehouse("wh", storage=RemoteStorage(storage), world=world).table("t")
    grow(mine, 3)
    storage.broken = True
    for at_most in (1, 4):
        with pytest.raises(StorageError):
            table.refresh_at_most(at_most)
        assert table.state.version == 1
    storage.broken = False
    assert table.refresh_at_most(4).version == 4


def test_damage_is_told_before_any_state(mine, memory, other):
    grow(mine, 2)
    key = f"tables/{mine.uuid}/commits/{3:020}.json"
    memory.put(key, memory.read(key)[:-3])
    assert other.refresh_at_most(1).version == 2
    with pytest.raises(CorruptDataError):
        other.refresh_at_most(4)
    assert other.state.version == 2


def test_a_look_at_a_dropped_table_says_so(mine, memory, world, other):
    Warehouse("wh", storage=memory, world=world).drop_table("t")
    with pytest.raises(TableNotFoundError):
        other.refresh_at_most(1)


@pytest.fixture
def rival_table(memory, world):
    return Warehouse("wh", storage=memory, world=world).create_table("t", "id INT", properties=PLAIN)


@pytest.fixture
def racing_table(rival_table, remote, world):
    table = Warehouse("wh", storage=remote, world=world).table("t")
    table.append([{"id": 0}])
    return table


def appended(table, remote) -> tuple[int, bool]:
    """Append a row; returns the number of puts, and whether the log was looked at."""
    with remote.measured() as cost:
        table.append([{"id": 1}])
    return cost.kinds["put_if_absent"], "read" in cost.kinds


def test_only_the_append_that_lost_a_race_reads_the_log(racing_table, rival_table, remote):
    found = []
    for number in range(20):
        if number % 4 == 0:
            rival_table.append([{"id": 2}])
        found.append(appended(racing_table, remote))
    assert found == [(2, True), (1, False), (1, False), (1, False)] * 5
    assert racing_table.state.num_rows == 26


@pytest.mark.parametrize(("num_others", "depth"), [(1, 5), (4, 5), (6, 6)])
def test_a_lost_race_takes_four_round_trips_more(racing_table, rival_table, remote, num_others, depth):
    """The put, the record that won, that record and up to four more, and the put again; one more where many won."""
    for _ in range(num_others):
        rival_table.append([{"id": 2}])
    with remote.measured() as cost:
        racing_table.append([{"id": 1}])
    assert (cost.kinds["put_if_absent"], cost.depth) == (2, depth)
    assert racing_table.state.num_rows == 2 + num_others


def test_a_commit_is_not_decided_by_records_that_were_read_before_it_was_called(
    racing_table, rival_table, world, monkeypatch
):
    """It comes between a lost race and the next try, and another process commits meanwhile."""
    sleep_ms, found = world.clock.sleep_ms, []

    def slept(duration_ms):
        sleep_ms(duration_ms)
        if not found:
            rival_table.append([{"id": 3}])
            found.append(racing_table.log.commit(lambda _state, _time_ms: ()).state.version)

    rival_table.append([{"id": 2}])
    monkeypatch.setattr(world.clock, "sleep_ms", slept)
    racing_table.append([{"id": 1}])
    assert found == [rival_table.state.version]
    assert sorted(racing_table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


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
    assert kept(rows_of(1, 2, 3).with_newer(rows_of(4))) == [2, 3, 4]
    assert kept(rows_of(1, 2, 3).with_newer(rows_of(4, size=36))) == [1, 2, 3]
    monkeypatch.setattr(record, "RECENT_RECORDS_MAX", 2)
    assert kept(rows_of(1, 2, 3)) == [2, 3]
    both = rows_of(1).with_newer(rows_of(2))
    assert bytes(both.of(2) or b"") == bytes([2]) * 10


def test_what_others_hold_does_not_change():
    before = rows_of(1, 2)
    assert before.with_newer(RecentRows()) is before
    before.with_newer(rows_of(3))
    assert kept(before) == [1, 2]


def test_only_a_store_with_requests_keeps_them(memory, world):
    mine = Warehouse("wh", storage=memory, world=world).create_table("t", "id INT")
    for store, is_kept in ((memory, False), (RemoteStorage(memory), True)):
        table = Warehouse("wh", storage=store, world=sim_world(3)).table("t")
        mine.append([{"id": 1}])
        version = table.refresh().version
        assert (table.log.recent_rows.of(version) is not None) is is_kept
