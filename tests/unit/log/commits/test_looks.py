"""A look at a log where requests take long: the next records that one round trip brings."""

from __future__ import annotations

import pytest

from faults.faulty_storage import FaultyStorage
from kit.round_trips import RemoteStorage
from streamhouse_spark import CorruptDataError, StorageError, TableNotFoundError, Warehouse

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
