"""How often storage is asked for news of a table, by one who follows it and by several."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.core import concurrency
from streamhouse_spark.read import log_poller
from streamhouse_spark.read.log_poller import LOCAL, REMOTE, LogPoller, PollInterval, poller_of

QUIET = {"table.datalake.enabled": "false"}


@pytest.fixture
def table(counted, world):
    return Warehouse("wh", storage=counted, world=world).create_table("t", "id INT", properties=QUIET)


def looks(counted, clock, follow, duration_ms: int) -> int:
    """The number of requests while time passes."""
    counted.trace.clear()
    until_ms = clock.boot_ms() + duration_ms
    while clock.boot_ms() < until_ms:
        follow()
    return len(counted.trace)


class TestPace:
    def test_the_time_grows_with_the_quiet_between_its_bounds(self):
        pace = PollInterval(20, 2_000)
        assert [pace.interval_ms(quiet) for quiet in (0, 320, 1_600, 16_000, 32_000, 10**9)] == [
            20, 20, 100, 1_000, 2_000, 2_000,
        ]  # fmt: skip

    def test_an_idle_table_costs_less_than_a_request_a_second(self):
        assert REMOTE.interval_ms(60_000) > 1_000
        assert LOCAL.busy_ms <= 1


class Following:
    """One who follows a table as a tail does."""

    def __init__(self, table, clock):
        self.table, self.clock = table, clock
        self.lookout = poller_of(table)
        self.state = table.refresh()

    def __call__(self) -> bool:
        """Nap and look; tells whether there was news."""
        self.clock.sleep_ms(max(1.0, min(self.lookout.wait_ms(), 100.0)))
        before, self.state = self.state, self.lookout.poll(self.state, self.table.refresh)
        return self.state.version > before.version


def test_requests_fade_while_nothing_happens_and_come_back(table, clock, counted):
    following = Following(table, clock)
    first_second = looks(counted, clock, following, 1_000)
    assert 20 <= first_second <= 45
    looks(counted, clock, following, 60_000)
    assert looks(counted, clock, following, 60_000) <= 60 / 2 + 3, (
        "a request each two seconds; one in a minute asks for a floor"
    )
    table.append([{"id": 1}])
    before_ms = clock.boot_ms()
    while not following():
        assert clock.boot_ms() - before_ms < 2_100
    assert looks(counted, clock, following, 300) >= 10, "it is busy again"


def test_several_followers_ask_as_often_as_one(table, clock, counted, world):
    """Also those that opened the table for themselves."""
    others = [Warehouse("wh", storage=counted, world=world).table("t") for _ in range(4)]
    followers = [Following(t, clock) for t in (table, *others)]
    assert len({id(f.lookout) for f in followers}) == 1

    def follow():
        for follower in followers:
            follower()

    looks(counted, clock, follow, 60_000)
    assert looks(counted, clock, follow, 60_000) <= 40
    table.append([{"id": 1}])
    seen = set()
    before_ms = clock.boot_ms()
    while len(seen) < 5:
        seen |= {number for number, follower in enumerate(followers) if follower()}
        assert clock.boot_ms() - before_ms < 3_000
    assert {f.state.version for f in followers} == {table.state.version}


def test_tables_and_clocks_have_lookouts_of_their_own(table, counted, clock, other_process):
    warehouse = Warehouse("wh", storage=counted, world=table.world)
    other = warehouse.create_table("other", "id INT", properties=QUIET)
    assert poller_of(other) is not poller_of(table)
    kept = poller_of(table)
    assert poller_of(table) is kept
    name = (table.storage.url, table.uuid, id(table.world.clock))
    assert name in log_poller._POLLERS._pollers
    del kept
    assert name not in log_poller._POLLERS._pollers, "nobody follows it"


def test_a_child_looks_for_itself(table):
    kept = poller_of(table)
    log_poller._POLLERS.renew_in_child()
    assert poller_of(table) is not kept
    assert concurrency  # renewals are registered there


def test_a_look_that_fails_is_told_and_the_next_one_waits(clock, table):
    looking = LogPoller(clock, REMOTE)
    clock.advance(20)

    def fail():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        looking.poll(table.state, fail)
    assert looking.wait_ms() == 20
    assert looking.poll(table.state, fail) is table.state, "none is due"


def test_only_one_thread_asks_at_a_time(clock, table):
    looking, state = LogPoller(clock, REMOTE), table.state
    clock.advance(20)
    asking, go, asked = threading.Event(), threading.Event(), []

    def refresh():
        asked.append(threading.get_ident())
        asking.set()
        assert go.wait(240)
        return state

    threads = [threading.Thread(target=looking.poll, args=(state, refresh)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asking.wait(240)
    go.set()
    for thread in threads:
        thread.join(240)
    assert len(asked) == 1


class Log:
    """Commits that are there, and how many a look read at most."""

    def __init__(self, state):
        self.state, self.version, self.asked = state, state.version, []

    def first(self, at_most):
        self.asked.append(at_most)
        self.state = replace(self.state, version=min(self.version, self.state.version + at_most))
        return self.state

    def refresh(self):
        self.asked.append("all")
        self.state = replace(self.state, version=self.version)
        return self.state


@pytest.mark.parametrize(
    ("commits", "asked"),
    [(0, [1]), (1, [1, 4]), (4, [1, 4]), (5, [1, 4, "all"]), (900, [1, 4, "all"])],
)
def test_one_who_takes_any_state_has_the_first_news_at_once(clock, table, commits, asked):
    """And looks for those behind them without a pause; one who is far behind reads all of them."""
    log, looking = Log(table.state), LogPoller(clock, REMOTE)
    clock.advance(20)
    log.version += commits
    seen = [log.state]
    while not looking.wait_ms():
        seen.append(looking.poll(seen[-1], log.refresh, log.first))
    assert log.asked == asked
    assert seen[-1].version == log.version
    assert seen[1].version == seen[0].version + min(1, commits)
    assert looking.wait_ms() == REMOTE.busy_ms


def test_one_who_is_behind_another_reads_all_that_there_is(clock, table):
    log, looking = Log(table.state), LogPoller(clock, REMOTE)
    clock.advance(20)
    old = log.state
    log.version += 3
    looking.poll(old, log.refresh, log.first)
    assert looking.poll(old, log.refresh, log.first).version == log.version
    assert log.asked == [1, "all"]
    assert looking.wait_ms() == REMOTE.busy_ms


def test_a_first_look_that_fails_is_no_news(clock, table):
    looking = LogPoller(clock, REMOTE)
    clock.advance(20)

    def fail(_):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        looking.poll(table.state, table.refresh, fail)
    assert looking.wait_ms() == 20
