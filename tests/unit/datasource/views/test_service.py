"""The order in which views are refreshed, and the pauses between."""

from __future__ import annotations

import json

import pytest

from faults.sim import SimClock
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.views.refresh import RefreshReport
from streamhouse_spark.datasource.views.service import LISTED_EACH_MS, ViewService
from streamhouse_spark.warehouse.connection import Connection


class Place:
    def __init__(self, url: str) -> None:
        self.wh = Warehouse(url)
        self.wh.create_table("db.plain", "k INT")
        self.clock, self.calls, self.failing = SimClock(), [], set()
        self.service = ViewService(self.refresh, Connection.of(url, {}), self.clock, None)

    def view(self, name: str, freshness_ms: int) -> None:
        definition = {"query": "SELECT 1", "mode": "full", "freshness_ms": freshness_ms, "names": ["k"]}
        text = json.dumps({**definition, "identity": "bag", "session": {}})
        self.wh.create_table(f"db.{name}", "k INT", primary_key=["k"], properties={"table.view": text})

    def refresh(self, name: str) -> RefreshReport:
        self.calls.append(name.removeprefix("db."))
        if name in self.failing:
            raise RuntimeError("no")
        return RefreshReport(changed=True)

    def turns(self) -> list[str]:
        """The views of all turns that are due now."""
        self.calls.clear()
        while self.service.turn():
            pass
        return list(self.calls)

    def later(self, duration_ms: int) -> list[str]:
        self.clock.sleep_ms(duration_ms)
        return self.turns()


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "wh"))


def test_each_by_its_own_freshness(place):
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


def test_new_and_dropped_views_are_found(place):
    assert place.turns() == []
    place.view("new", 60_000)
    assert place.later(LISTED_EACH_MS) == ["new"]
    place.wh.drop_table("db.new")
    place.later(LISTED_EACH_MS)
    assert place.service.status() == []


def test_stopped(place):
    place.service.stop()
    place.view("never", 1_000)
    place.service.run()
    assert place.calls == []
