"""Turns of the service of views where a refresh has several steps: other views come between them."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest

from faults.sim import SimClock
from streamhouse_spark import Warehouse
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.catalog.claims import CLAIM_MS, release_claim, try_claim
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.table.refresh_commit import (
    RefreshStep,
    commit_step,
    last_refresh,
    pause_refreshes,
    resume_refreshes,
    source_version,
)
from streamhouse_spark.views import refresh
from streamhouse_spark.views.create import create_view_table
from streamhouse_spark.views.refresh import RefreshReport
from streamhouse_spark.views.service import ELSEWHERE_MS, ViewService, make_view_metrics
from streamhouse_spark.warehouse.process_cache import Connection
from view_histories.history import typed_commit
from view_histories.house import House

BY_DAY = "SELECT day, count(*) AS n FROM streamhouse.db.o GROUP BY day"


class Place:
    """Views whose steps are counted, and take the time that is said. Each commits a version of the view's source."""

    def __init__(self, url: str) -> None:
        self.wh, self.clock = Warehouse(url), SimClock()
        self.source = self.wh.create_table("db.source", "k INT")
        self.steps, self.step_ms, self.befores, self.restless = {}, {}, [], []
        self.calls, self.told, self.during = [], [], lambda _: None
        self.service = self.another()

    def another(self) -> ViewService:
        return ViewService(self.step, Connection.of(self.wh.url, {}), self.clock, None, on_view=self.told.append)

    def view(self, name: str, freshness_ms: int, steps: int = 1, step_ms: int = 10, *, follows: bool = True):
        """Make a view; without ``follows`` of one that is never known to have all."""
        definition = ViewDefinition("SELECT 1", "full", freshness_ms, ("k",), "bag", {})
        self.steps[f"db.{name}"], self.step_ms[f"db.{name}"] = steps, step_ms
        self.restless += [] if follows else [f"db.{name}"]
        properties = {VIEW: definition.to_text()}
        return self.wh.create_table(f"db.{name}", "k INT", primary_key=["k"], properties=properties)

    def step(self, name: str, before: RefreshReport) -> RefreshReport:
        """Take an equal share of the rows that the source has when the first step begins."""
        self.calls.append(name.removeprefix("db."))
        self.befores.append(before)
        now = source_version("db.source", self.source.refresh())
        goal, number = before.goal or Lineage((now,)), before.steps + 1
        ends = {b: end * number // self.steps[name] for b, end in goal.sources[0].ends.items()}
        is_last = number == self.steps[name]
        self.during(number)
        if name not in self.restless:
            self.commit(name, replace(goal.sources[0], ends=ends, is_cut=not is_last))
        self.clock.advance(self.step_ms[name])
        return replace(
            before,
            changed=True,
            rows_written=before.rows_written + 5,
            rows_deleted=before.rows_deleted + 2,
            whole_because=before.whole_because or "it is new",
            steps=number,
            goal=None if is_last else goal,
        )

    def commit(self, name: str, version) -> None:
        view = self.wh.table(name)
        rows = view.to_arrow().slice(0, 0)
        step = RefreshStep(last_refresh(view.refresh())[0] + 1, None, Lineage((version,)))
        assert commit_step(Connection.of(self.wh.url, {}).table(name), step, rows, rows["k"].is_null())

    def status(self, name: str, service=None):
        return next(view for view in (service or self.service).status() if view.name == f"db.{name}")

    def turns(self, number: int) -> list[str]:
        self.calls.clear()
        for _ in range(number):
            self.service.run_once()
        return list(self.calls)


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "wh"))


def test_others_come_between_the_steps(place):
    """Ten steps of three seconds delay a view of one second by one step at a time."""
    place.view("big", 60_000, steps=10, step_ms=3_000)
    place.view("fast", 1_000, follows=False)
    calls = place.turns(21)
    assert calls.count("big") == 10
    assert [a for a, b in pairwise(calls) if a == b] == [], calls
    big = place.status("big")
    assert (big.refreshes, big.rows_written, big.rows_deleted, big.whole) == (1, 50, 20, 1)
    assert (big.doing, big.steps, big.last.steps, big.last.rows_written) == ("waiting", 0, 10, 50)
    assert big.last_duration_ms == 30_000, "without the refreshes of the other one"
    assert (big.rows_behind, big.commits_behind, big.lag_ms) == (0, 0, 0)


def test_views_with_many_steps_do_not_starve_others(place):
    for name in ("big", "large"):
        place.view(name, 60_000, steps=20, step_ms=5_000)
    for name in ("a", "b", "c"):
        place.view(name, 1_000, step_ms=100, follows=False)
    calls = place.turns(50)
    assert {name: calls.count(name) for name in set(calls)} == dict.fromkeys(("a", "b", "big", "c", "large"), 10)


def test_a_view_of_many_steps_alone_goes_on_at_once(place):
    place.view("big", 60_000, steps=4, step_ms=0)
    assert place.turns(10) == ["big"] * 4, "no clock has to go on"


def test_what_is_known_of_a_view_between_two_steps(place):
    place.view("big", 60_000, steps=4, step_ms=3_000)
    for number in range(8):
        place.source.append([{"k": number}])
    for steps, rows in ((1, 6), (2, 4), (3, 2)):
        place.turns(1)
        big = place.status("big")
        assert (big.doing, big.steps, big.rows_behind) == ("between steps", steps, rows)
        assert big.commits_behind == rows, "one row a commit"
        assert big.due_ms == place.clock.boot_ms(), "at once"
        assert (big.refreshes, big.rows_written, big.last, big.last_duration_ms) == (1, 5 * steps, None, 0)
    assert [view.doing for view in place.told] == ["refreshing", "between steps"] * 3
    found = {m.name: dict(m.points) for m in make_view_metrics(place.service.status())}
    assert found["streamhouse_view_rows_behind"] == {("db.big",): 2}
    assert found["streamhouse_view_doing"] == {("db.big", "between steps"): 1}
    place.turns(1)
    assert (place.status("big").doing, place.status("big").rows_behind) == ("waiting", 0)


def test_what_came_since_the_first_step_is_not_seen(place):
    """The refresh ends with the rows of its begin: those that came since are behind, and due, though none follows."""
    place.view("big", 1_000, steps=3, step_ms=3_000)
    place.source.append([{"k": 1}] * 3)
    place.turns(1)
    place.source.append([{"k": 2}])
    place.turns(2)
    big = place.status("big")
    assert (big.doing, big.rows_behind, big.commits_behind) == ("waiting", 1, 1)
    assert big.due_ms == place.clock.boot_ms(), "it was due long ago, and is not before those that wait since then"
    place.steps["db.big"] = 1
    assert place.turns(1) == ["big"]
    place.clock.advance(60_000)
    assert place.turns(1) == [], "now it has all, and is looked at alone"


def test_a_view_rests_after_its_last_step_if_sources_stand_still(place):
    view = place.view("big", 1_000, steps=5)
    place.source.append([{"k": 1}] * 5)
    place.commit(view.name, replace(source_version("db.source", place.source.refresh()), ends={0: 0}, is_cut=True))
    assert place.turns(9) == ["big"] * 5
    place.clock.advance(60_000)
    assert place.turns(1) == [], "all was seen"


def test_a_pause_ends_it_behind_the_step(place):
    view = place.view("big", 1_000, steps=5)
    place.source.append([{"k": 1}] * 5)
    place.during = lambda number: number == 2 and pause_refreshes(view)
    assert place.turns(9) == ["big"] * 2
    big = place.status("big")
    assert (big.doing, big.steps, big.rows_behind, big.refreshes) == ("paused", 0, 3, 1)
    place.clock.advance(60_000)
    assert place.turns(3) == []
    place.during = lambda _: None
    resume_refreshes(view)
    place.clock.advance(60_000)
    place.befores.clear()
    assert place.turns(1) == ["big"]
    assert place.befores == [RefreshReport(changed=False)], "another refresh, with the sources as they are now"


def test_a_pause_that_the_list_sees_first(place):
    view = place.view("big", 3_600_000, steps=3)
    place.view("other", 1_000)
    place.turns(2)
    pause_refreshes(view)
    place.clock.advance(60_000)
    place.service._discover_views(place.clock.boot_ms())
    assert (place.status("big").doing, place.status("big").steps) == ("paused", 0)
    resume_refreshes(view)
    place.service._discover_views(place.clock.boot_ms())
    place.befores.clear()
    assert place.turns(2) == ["big"], "behind a look at the other one"
    assert place.befores == [RefreshReport(changed=False)], "another refresh, with the sources as they are now"


def test_a_failure_goes_on_behind_the_last_step(place):
    place.view("big", 1_000, steps=4)

    def during(number):
        if number == 3 and place.calls.count("big") < 4:
            raise RuntimeError("no")

    place.during = during
    assert place.turns(3) == ["big"] * 3
    assert (place.status("big").doing, place.status("big").steps, place.status("big").error) == ("failed", 2, "no")
    place.during, place.befores[:] = lambda _: None, []
    place.clock.advance(60_000)
    place.turns(9)
    assert [before.steps for before in place.befores] == [2, 3]
    assert place.befores[0].goal is not None
    assert (place.status("big").refreshes, place.status("big").rows_written) == (1, 20)


@pytest.mark.parametrize("by_event", [True, False])
def test_stop_ends_the_loop_behind_the_step(place, by_event):
    place.view("big", 1_000, steps=50)
    stop = threading.Event()
    place.during = lambda number: number == 3 and (stop.set() if by_event else place.service.stop())
    place.service.run(stop)
    assert place.calls == ["big"] * 3


def test_the_claim_is_kept_for_the_time_of_a_step(place):
    view = place.view("big", 60_000, steps=4)
    other, seen = place.another(), []

    def during(_):
        place.during = lambda _: None
        other.run_once()
        seen.append(place.status("big", other).doing)

    place.during = during
    assert place.turns(1) == ["big"]
    assert seen == ["elsewhere"]
    assert try_claim(view.storage, view.uuid, "somebody", work="refresh"), "between two steps it is anybody's"
    assert place.turns(3) == []
    assert (place.status("big").doing, place.status("big").steps) == ("elsewhere", 1)
    release_claim(view.storage, view.uuid, "somebody", work="refresh")
    place.clock.advance(ELSEWHERE_MS)
    assert place.turns(9) == ["big"] * 3
    assert place.status("big").last.steps == 4


def test_steps_of_another_service_are_left_to_it_and_taken_over_where_it_ends(place):
    place.view("big", 3_600_000, steps=6)
    place.source.append([{"k": 1}] * 6)
    other = place.another()
    other.run_once()
    assert place.turns(1) == ["big"], "it has seen none of another yet"
    other.run_once()
    big = place.status("big", other)
    assert (place.calls, big.doing, big.rows_behind) == (["big"], "elsewhere", 5)
    assert big.due_ms <= place.clock.boot_ms() + CLAIM_MS, "not an hour later"
    place.clock.advance(CLAIM_MS)
    assert other.run_once()


# -- with refreshes that compute ------------------------------------------------------------------------------------


@pytest.fixture
def house(own_cache):
    house = House(1)
    with house.open(), mock.patch.object(refresh, "commit_step", typed_commit):
        yield house


def served(house, sizes, step_rows):
    """A source, a view of it that has no rows yet, and the service that keeps it."""
    hot = {"table.datalake.enabled": "false"}
    source = house.others.create_table("db.o", "id BIGINT NOT NULL, day INT", buckets=2, properties=hot)
    for size in sizes:
        source.append([{"id": number, "day": number % 3} for number in range(size)])
    process = house.process
    view = create_view_table(process.session, process.connection, "db.v", BY_DAY, "1min", "incremental", {}, step_rows)
    return source, view, ViewService(process.refresher.step, process.connection, house.clock, ["db.v"])


def answer(view):
    return {row["day"]: row["n"] for row in view.table.to_arrow().to_pylist()}


def test_a_backfill_turn_by_turn_is_that_of_one_call(house):
    _, view, service = served(house, [4, 4, 4, 30], 10)
    seen = []
    while service.run_once():
        (status,) = service.status()
        seen.append((status.doing, status.steps, status.rows_behind, status.commits_behind))
    assert seen == [
        ("between steps", 1, 34, 2),
        ("between steps", 2, 30, 1),
        ("between steps", 3, 20, 1),
        ("between steps", 4, 10, 1),
        ("waiting", 0, 0, 0),
    ]
    assert answer(view) == {0: 16, 1: 13, 2: 13}
    (status,) = service.status()
    assert (status.refreshes, status.last.steps, status.last.goal) == (1, 5, None)
    assert status.rows_written == status.last.rows_written == 15, "three groups, at each of five steps"
    assert status.lag_ms == 0


def test_a_call_makes_all_steps_and_none_is_left_for_the_service(house):
    _, view, service = served(house, [4] * 6, 4)
    assert service.run_once()
    report = view.refresh()
    assert (report.steps, report.goal) == (5, None)
    assert sum(answer(view).values()) == 24
    assert service.run_once()
    (status,) = service.status()
    assert (status.doing, status.steps, status.rows_behind, status.refreshes) == ("waiting", 0, 0, 1)
    assert not service.run_once()


def test_rows_that_come_between_the_steps_keep_no_source_from_the_goal(house):
    source, view, service = served(house, [4] * 5, 4)
    for _ in range(5):
        assert service.run_once()
        source.append([{"id": 1, "day": 7}] * 9)
    (status,) = service.status()
    assert (status.last.steps, status.doing) == (5, "waiting")
    assert {day: n for day, n in answer(view).items() if day != 7} == {0: 10, 1: 5, 2: 5}
    assert status.rows_behind == 36
    house.pass_ms(60_000)
    while service.run_once():
        pass
    assert answer(view)[7] == 45


def test_lag_between_the_steps_is_the_age_of_the_oldest_row_that_is_missing(house):
    source, _, service = served(house, [4], 4)
    house.pass_ms(10_000)
    source.append([{"id": 1, "day": 1}] * 4)
    house.pass_ms(5_000)
    assert service.run_once()
    (status,) = service.status()
    assert 5_000 <= status.lag_ms < 10_000
