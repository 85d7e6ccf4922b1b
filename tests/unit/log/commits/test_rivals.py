"""Commits beside those of other processes, where requests take long: a look before a put pays off beside many alone."""

from __future__ import annotations

import pytest

from round_trips import RemoteStorage
from streamhouse_spark.log.commits import waiting
from streamhouse_spark.log.commits.waiting import Rivals
from streamhouse_spark.warehouse.warehouse import Warehouse

PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def other(memory, world):
    return Warehouse("wh", storage=memory, world=world).create_table("t", "id INT", properties=PLAIN)


@pytest.fixture
def remote(memory) -> RemoteStorage:
    return RemoteStorage(memory)


@pytest.fixture
def mine(other, remote, world):
    table = Warehouse("wh", storage=remote, world=world).table("t")
    table.append([{"id": 0}])
    return table


def appended(table, remote) -> tuple[int, bool]:
    """Append a row; returns the number of puts, and whether the log was looked at."""
    with remote.measured() as cost:
        table.append([{"id": 1}])
    return cost.kinds["put_if_absent"], "read" in cost.kinds


def test_an_append_beside_few_commits_of_others_looks_before_none(mine, other, remote):
    """The one that loses a race puts again, and none behind it is slower."""
    found = []
    for number in range(20):
        if number % 4 == 0:
            other.append([{"id": 2}])
        found.append(appended(mine, remote))
    assert found == [(2, True), (1, False), (1, False), (1, False)] * 5
    assert mine.state.num_rows == 26


def test_an_append_beside_a_busy_writer_looks_first_until_that_ends(mine, other, remote):
    found = []
    for _ in range(12):
        other.append([{"id": 2}])
        found.append(appended(mine, remote))
    assert found == [(2, True)] * 5 + [(1, True)] * 7
    assert [appended(mine, remote) for _ in range(4)] == [(1, True)] + [(1, False)] * 3
    assert mine.state.num_rows == 29


def test_a_look_is_due_beyond_three_quarters():
    rivals = Rivals()
    for _ in range(100):
        for were_first in (True, True, True, False):
            rivals.note(were_first=were_first)
        assert not rivals.is_look_due
    for _ in range(3):
        rivals.note(were_first=True)
    assert rivals.is_look_due
    rivals.note(were_first=False)
    assert not rivals.is_look_due


def test_records_of_long_ago_are_read_again(mine, other, remote, monkeypatch):
    """A call that sleeps between a lost race and its next try reads the log anew."""
    monkeypatch.setattr(waiting, "NEWS_MS", -1)
    other.append([{"id": 2}])
    with remote.measured() as cost:
        mine.append([{"id": 1}])
    assert (cost.kinds["put_if_absent"], cost.depth) == (2, 5)
    assert mine.state.num_rows == 3


@pytest.mark.parametrize(("num_others", "depth"), [(1, 3), (2, 3), (4, 4)])
def test_a_lost_race_takes_two_round_trips_more(mine, other, remote, num_others, depth):
    """The put, the records that came first with the tail, and the put again; where many came, one more for these."""
    for _ in range(num_others):
        other.append([{"id": 2}])
    with remote.measured() as cost:
        mine.append([{"id": 1}])
    assert (cost.kinds["put_if_absent"], cost.depth) == (2, depth)
    assert mine.state.num_rows == 2 + num_others


def test_another_call_is_not_decided_by_what_was_read_before_it_came(mine, other, world, monkeypatch):
    """It comes between a lost race and the next try, and another process commits meanwhile."""
    sleep_ms, found = world.clock.sleep_ms, []

    def slept(duration_ms):
        sleep_ms(duration_ms)
        if not found:
            other.append([{"id": 3}])
            found.append(mine.log.commit(lambda _state, _time_ms: ()).state.version)

    other.append([{"id": 2}])
    monkeypatch.setattr(world.clock, "sleep_ms", slept)
    mine.append([{"id": 1}])
    assert found == [other.state.version]
    assert sorted(mine.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
