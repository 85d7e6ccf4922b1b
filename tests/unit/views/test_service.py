"""The order in which views are refreshed, and the pauses between."""

from __future__ import annotations

import json
import logging
import threading

import pyarrow.compute as pc
import pytest

from faults.sim import SimClock
from kit.waiting import wait_for
from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.log.catalog.claims import try_claim
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.service.table_discovery import LISTING_MS, TableDiscovery
from streamhouse_spark.table.refresh_commit import (
    RefreshStep,
    commit_step,
    last_refresh,
    pause_refreshes,
    resume_refreshes,
)
from streamhouse_spark.views.refresh import RefreshReport
from streamhouse_spark.views.service import COUNTERS, ELSEWHERE_MS, GAUGES, ViewService, make_view_metrics
from streamhouse_spark.warehouse.process_cache import Connection


class Place:
    def __init__(self, url: str) -> None:
        self.wh = Warehouse(url)
        self.wh.create_table("db.plain", "k INT")
        self.clock, self.calls, self.failing = SimClock(), [], set()
        self.told, self.during, self.text = [], lambda: None, "no"
        self.service = self.another()

    def another(self, names=None) -> ViewService:
        return ViewService(self.refresh, Connection.of(self.wh.url, {}), self.clock, names, on_view=self.told.append)

    def view(self, name: str, freshness_ms: int):
        definition = {"query": "SELECT 1", "mode": "full", "freshness_ms": freshness_ms, "names": ["k"]}
        text = json.dumps({**definition, "identity": "bag", "session": {}})
        return self.wh.create_table(f"db.{name}", "k INT", primary_key=["k"], properties={"table.view": text})

    def refresh(self, name: str, before: RefreshReport) -> RefreshReport:
        self.calls.append(name.removeprefix("db."))
        self.during()
        if name in self.failing:
            raise RuntimeError(self.text)
        return RefreshReport(changed=True)

    def status(self, name: str):
        return next(view for view in self.service.status() if view.name == f"db.{name}")

    def at(self, name: str, source, at=None, *, is_cut=False) -> None:
        """What a refresh commits: the view is at the source as that is now, or in the state ``at``."""
        view, state = self.wh.table(f"db.{name}"), at or source.refresh()
        number = last_refresh(view.refresh())[0] + 1
        now = SourceVersion(source.name, state.table_uuid, state.version, state.attempt, state.ends, is_cut=is_cut)
        rows = view.to_arrow().slice(0, 0)
        assert commit_step(view, RefreshStep(number, None, Lineage((now,))), rows, pc.is_null(rows["k"]))

    def turns(self) -> list[str]:
        """The views of all turns that are due now."""
        self.calls.clear()
        while self.service.run_once():
            pass
        return list(self.calls)

    def later(self, duration_ms: int) -> list[str]:
        self.clock.sleep_ms(duration_ms)
        return self.turns()


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "wh"))


def test_each_view_is_refreshed_by_its_own_freshness(place):
    place.view("fast", 1_000)
    place.view("slow", 3_000)
    assert sorted(place.turns()) == ["fast", "slow"]
    assert place.turns() == []
    assert place.later(1_000) == ["fast"]
    assert place.later(2_000) == ["fast", "slow"]
    assert {view.name: view.refreshes for view in place.service.status()} == {"db.fast": 3, "db.slow": 2}


def test_a_failing_view_pauses_and_the_others_go_on(place):
    place.view("bad", 1_000)
    place.view("good", 1_000)
    place.failing.add("db.bad")
    assert sorted(place.turns()) == ["bad", "good"]
    assert place.later(1_000) == ["good"]
    assert sorted(place.later(1_000)) == ["bad", "good"]
    assert place.later(3_000) == ["good"]
    bad = place.service.status()[0]
    assert (bad.failures, bad.error, bad.refreshes) == (2, "no", 0)
    place.failing.clear()
    assert "bad" in place.later(1_000)
    assert place.service.status()[0].failures == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("one\ntwo", "one"),
        ("An error occurred while calling o32.sql.\n: java.lang.Error: why\n\tat a.b", "java.lang.Error: why"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_is_told_in_one_line(place, text, told):
    place.view("bad", 1_000)
    place.failing.add("db.bad")
    place.text = text
    place.turns()
    assert place.status("bad").error == told


def test_new_and_dropped_views_are_found(place):
    assert place.turns() == []
    place.view("new", 60_000)
    assert place.later(LISTING_MS) == ["new"]
    place.wh.drop_table("db.new")
    place.later(LISTING_MS)
    assert place.service.status() == []


def test_a_stopped_service_refreshes_nothing(place):
    place.service.stop()
    place.view("never", 1_000)
    place.service.run()
    assert place.calls == []


def test_the_longest_due_goes_first_and_none_starves(place):
    """A view whose refresh takes longer than its freshness is due again at once, and takes turns with the others."""
    for name in ("always", "other", "third"):
        place.view(name, 1_000)
    place.turns()
    place.during = lambda: place.clock.advance(5_000 if place.calls[-1] == "always" else 10)
    place.clock.advance(2_000)
    place.calls.clear()
    for _ in range(30):
        place.service.run_once()
    assert {name: place.calls.count(name) for name in ("always", "other", "third")} == {
        "always": 10,
        "other": 10,
        "third": 10,
    }


def test_a_running_service_sees_a_pause_and_the_end_of_it(place):
    view = place.view("v", 1_000)
    assert place.turns() == ["v"]
    pause_refreshes(view)
    assert place.later(1_000) == [], "a pause is seen before the next refresh"
    assert place.status("v").doing == "paused"
    assert place.later(20_000) == []
    resume_refreshes(view)
    assert place.later(LISTING_MS) == ["v"]
    assert place.status("v").doing == "waiting"


def test_a_pause_is_seen_by_the_list_before_the_view_is_due_and_ends_at_once(place):
    view = place.view("slow", 3_600_000)
    place.turns()
    pause_refreshes(view)
    assert (place.later(LISTING_MS), place.status("slow").doing) == ([], "paused")
    resume_refreshes(view)
    assert place.later(LISTING_MS) == ["slow"], "not an hour later"


def test_a_failing_view_that_is_paused_begins_anew(place):
    view = place.view("bad", 1_000)
    place.failing.add("db.bad")
    place.turns()
    assert (place.status("bad").doing, place.status("bad").failures) == ("failed", 1)
    pause_refreshes(view)
    place.later(LISTING_MS)
    assert (place.status("bad").doing, place.status("bad").failures, place.status("bad").error) == ("paused", 0, None)
    resume_refreshes(view)
    place.failing.clear()
    assert place.later(LISTING_MS) == ["bad"]


def test_a_pause_between_failures_grows_up_to_five_minutes(place):
    place.view("bad", 1_000)
    place.failing.add("db.bad")
    waits = []
    for _ in range(12):
        place.turns()
        status = place.status("bad")
        waits.append(status.due_ms - place.clock.boot_ms())
        place.clock.advance(waits[-1])
    assert waits[:4] == [2_000, 4_000, 8_000, 16_000]
    assert waits[-1] == 300_000


def test_what_is_not_behind_is_looked_at_alone(place):
    place.view("v", 1_000)
    source = place.wh.create_table("db.source", "k INT")
    place.turns()
    place.at("v", source)
    assert place.later(1_000) == []
    source.append([{"k": 1}])
    place.clock.advance(250)
    assert place.later(750) == ["v"]


def test_a_view_amid_a_commit_is_refreshed_though_no_version_is_newer(place):
    place.view("v", 1_000)
    source = place.wh.create_table("db.source", "k INT")
    place.at("v", source, is_cut=True)
    assert place.turns() == ["v"]
    place.at("v", source)
    assert place.later(1_000) == []


def test_how_far_it_is_behind_also_while_it_is_paused(place):
    view, source = place.view("v", 1_000), place.wh.create_table("db.source", "k INT")
    place.at("v", source)
    pause_refreshes(view)
    place.turns()
    assert (place.status("v").commits_behind, place.status("v").lag_ms) == (0, 0)
    source.append([{"k": 1}])
    source.append([{"k": 2}])
    place.later(1_000)
    status = place.status("v")
    assert (status.doing, status.commits_behind) == ("paused", 2)
    assert status.lag_ms >= 0
    source.truncate()
    place.later(1_000)
    assert place.status("v").commits_behind == 3


def test_commits_without_rows_are_looked_into_once(place):
    source = place.wh.create_table("db.source", "k INT")
    place.view("v", 1_000)
    place.at("v", source)
    place.turns()
    source.alter_properties({"table.log.ttl": "3d"})
    assert place.later(1_000) == ["v"]
    assert place.later(1_000) == []
    source.append([{"k": 1}])
    assert place.later(1_000) == ["v"]


def test_a_view_that_was_put_back_is_brought_forward_though_its_sources_stand_still(place):
    source = place.wh.create_table("db.source", "k INT")
    place.view("v", 1_000)
    place.at("v", source)
    before = source.refresh()
    source.append([{"k": 1}])
    assert place.turns() == ["v"]
    assert place.later(1_000) == []
    place.at("v", source, at=before)
    wait_for(lambda: place.later(1_000) == ["v"], "a refresh, its freshness behind the other one")


def test_a_source_that_is_gone_or_another_is_left_to_the_refresh(place):
    place.view("v", 1_000)
    source = place.wh.create_table("db.source", "k INT")
    place.at("v", source)
    assert place.turns() == []
    place.wh.drop_table("db.source")
    assert place.later(1_000) == ["v"]
    place.wh.create_table("db.source", "k INT")
    assert place.later(1_000) == ["v"], "another table of the name"


def test_two_services_divide_the_views(place):
    """A view that one refreshes is not refreshed by the other, and one that was just refreshed waits."""
    source = place.wh.create_table("db.source", "k INT")
    place.view("v", 10_000)
    other, seen = place.another(), []

    def during():
        other.run_once()
        seen.append(other.status()[0].doing)

    place.during = during
    assert place.turns() == ["v"]
    assert seen == ["elsewhere"]
    place.during = lambda: None
    place.at("v", source)
    source.append([{"k": 1}])
    place.calls.clear()
    place.clock.advance(ELSEWHERE_MS)
    other.run_once()
    assert (place.calls, other.status()[0].doing) == ([], "waiting"), "it was refreshed since"
    other.run_once()
    assert other.status()[0].due_ms > place.clock.boot_ms() + ELSEWHERE_MS


def test_a_claim_is_given_back_also_by_a_failure(place):
    view = place.view("v", 1_000)
    place.failing.add("db.v")
    place.turns()
    assert try_claim(view.storage, view.uuid, "somebody", work="refresh")
    assert place.later(60_000) == [], "somebody has it"
    assert place.status("v").doing == "elsewhere"
    assert try_claim(view.storage, view.uuid, "a tierer"), "the claim of tiering is another"


def test_status_of_a_refresh_under_way_and_what_is_told(place):
    place.view("v", 1_000)
    seen = []

    def during():
        place.clock.advance(700)
        (status,) = place.service.status()
        seen.append((status.doing, status.refreshing_ms))

    place.during = during
    place.turns()
    status = place.status("v")
    assert seen == [("refreshing", 700)]
    assert (status.doing, status.refreshing_ms, status.last_duration_ms) == ("waiting", 0, 700)
    assert [(view.doing, view.refreshes) for view in place.told] == [("refreshing", 0), ("waiting", 1)]
    place.failing.add("db.v")
    place.told.clear()
    place.later(1_000)
    assert [(view.doing, view.error) for view in place.told] == [("refreshing", None), ("failed", "no")]


def test_who_listens_fails_and_the_view_is_refreshed(place, caplog):
    place.view("v", 1_000)
    place.service = place.another()
    place.service._on_view = lambda _: 1 // 0
    assert place.turns() == ["v"]
    assert place.status("v").failures == 0
    assert "on_view failed" in caplog.text


def test_a_list_that_fails_leaves_the_views_as_they_were(place, monkeypatch, caplog):
    place.view("v", 1_000)
    place.turns()

    def fail(*_):
        raise StorageError("the store is away")

    monkeypatch.setattr(TableDiscovery, "discover", fail)
    assert place.later(LISTING_MS) == ["v"]
    assert "could not be listed, retrying" in caplog.text


def test_a_thread_of_its_own_goes_on_behind_any_error(place, monkeypatch, caplog):
    place.view("v", 1)
    began, real = [], ViewService.run_once
    service = ViewService(
        place.refresh, Connection.of(place.wh.url, {}), place.clock, ["db.v"], begin=lambda: began.append(1)
    )

    def turn(self):
        if len(began) < 2:
            began.append(2)
            raise MemoryError
        return real(self)

    monkeypatch.setattr(ViewService, "run_once", turn)
    with caplog.at_level(logging.ERROR), service.run_in_background():
        wait_for(lambda: place.calls, "a refresh")
    assert (began, place.calls[0]) == ([1, 2], "v")
    assert "could not be checked" in caplog.text
    assert not any(thread.name == "streamhouse-views" for thread in threading.enumerate())


def test_metrics_count_paused_and_failing_views(place):
    view = place.view("v", 1_000)
    place.view("bad", 1_000)
    place.failing.add("db.bad")
    place.turns()
    pause_refreshes(view)
    place.later(LISTING_MS)
    found = {
        (measure.name, *labels): value
        for measure in make_view_metrics(place.service.status())
        for labels, value in measure.points
    }
    assert found["streamhouse_view_paused", "db.v"] == 1
    assert found["streamhouse_view_refreshes", "db.v"] == 1
    assert found["streamhouse_view_failures", "db.bad"] == 2
    assert found["streamhouse_view_doing", "db.bad", "failed"] == 1
    assert found["streamhouse_view_freshness_seconds", "db.bad"] == 1
    assert {name for name, *_ in found} == {*GAUGES, *COUNTERS, "streamhouse_view_doing"}
