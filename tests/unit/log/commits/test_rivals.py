"""Commits beside those of other processes, where requests take long: a look before a put pays off beside many alone."""

from __future__ import annotations

import pytest

from round_trips import RemoteStorage
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
    assert found == [(2, True)] * 3 + [(1, True)] * 9
    assert [appended(mine, remote) for _ in range(6)] == [(1, True)] * 3 + [(1, False)] * 3
    assert mine.state.num_rows == 31


def test_rivals_are_many_beyond_a_half():
    rivals = Rivals()
    for _ in range(100):
        rivals.note(were_first=True)
        rivals.note(were_first=False)
        assert not rivals.are_many
    for _ in range(2):
        rivals.note(were_first=True)
    assert rivals.are_many
    for _ in range(2):
        rivals.note(were_first=False)
    assert not rivals.are_many
