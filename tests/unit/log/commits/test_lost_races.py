"""Commits that lose races to another process, on a store with slow requests."""

from __future__ import annotations

import pytest

from streamhouse_spark import Warehouse

PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def other(memory, world):
    return Warehouse("wh", storage=memory, world=world).create_table("t", "id INT", properties=PLAIN)


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


def test_only_the_append_that_lost_a_race_reads_the_log(mine, other, remote):
    found = []
    for number in range(20):
        if number % 4 == 0:
            other.append([{"id": 2}])
        found.append(appended(mine, remote))
    assert found == [(2, True), (1, False), (1, False), (1, False)] * 5
    assert mine.state.num_rows == 26


@pytest.mark.parametrize(("num_others", "depth"), [(1, 5), (4, 5), (6, 6)])
def test_a_lost_race_takes_four_round_trips_more(mine, other, remote, num_others, depth):
    """The put, the record that won, that record and up to four more, and the put again; one more where many won."""
    for _ in range(num_others):
        other.append([{"id": 2}])
    with remote.measured() as cost:
        mine.append([{"id": 1}])
    assert (cost.kinds["put_if_absent"], cost.depth) == (2, depth)
    assert mine.state.num_rows == 2 + num_others


def test_a_commit_is_not_decided_by_records_that_were_read_before_it_was_called(mine, other, world, monkeypatch):
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
