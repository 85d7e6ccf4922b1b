"""All tables on one screen."""

from __future__ import annotations

import pytest
from rich.console import Console

from faults.sim import SimClock, sim_world
from streamhouse_spark import StorageError, Warehouse
from streamhouse_spark.cli.overview_commands import compute_rates, draw_screen, watch
from streamhouse_spark.log.tiering_failures import describe_failure, record_failure
from streamhouse_spark.table.status import TableOverview


@pytest.fixture
def tables(warehouse_path):
    warehouse = Warehouse(warehouse_path)
    first = warehouse.create_table("s.first", "id BIGINT")
    second = warehouse.create_table("s.second", "id BIGINT", properties={"table.datalake.enabled": "false"})
    first.append([{"id": n} for n in range(1_500)])
    second.append([{"id": 1}])
    return warehouse, first, second


def text_of(drawn):
    console = Console(width=140)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def test_top_once_shows_rows_and_lag(run, tables):
    shown = run("top", "--once").stdout
    assert "1,500" in shown
    assert "no lake" in shown
    found = {line["table"]: line for line in run("-o", "json", "top").lines}
    assert (found["s.first"]["rows"], found["s.first"]["lag_rows"], found["s.second"]["lag_rows"]) == (1500, 1500, None)
    assert found["s.first"]["hot_bytes"] > 0


def test_the_busiest_table_comes_first(tables):
    found = [TableOverview.of(table) for table in tables[1:]]
    speeds = compute_rates(
        {"s.first": (100, 1_000), "s.second": (0, 1_000)}, {"s.first": (110, 3_000), "s.second": (50, 3_000)}
    )
    assert speeds == {"s.first": 5.0, "s.second": 25.0}
    lines = text_of(draw_screen("wh", found, {"s.bad": ValueError("damaged")}, speeds)).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("s.")]
    assert names == ["s.second", "s.first", "s.bad"]


def test_a_table_whose_rounds_fail(run, tables):
    _, first, second = tables
    first.alter_properties({"table.datalake.freshness": "0s"})
    error = StorageError("away")
    failed = describe_failure("tiering", error, host="a", rows=1, now_ms=first.storage.now_ms(), duration_ms=1)
    record_failure(first.storage, first.uuid, failed)
    record_failure(second.storage, second.uuid, failed)
    shown = run("top", "--once").stdout
    assert "StorageError, 0 s ago" in shown
    assert "last round" not in text_of(draw_screen("wh", [TableOverview.of(second)], {}, {}))
    found = {line["table"]: line for line in run("-o", "json", "top").lines}
    assert (found["s.first"]["failing"], found["s.second"]["failing"]) == ("StorageError", None)


def test_rates_need_two_looks_and_never_are_negative():
    assert compute_rates({}, {"t": (5, 10)}) == {}
    assert compute_rates({"t": (5, 10)}, {"t": (5, 10)}) == {}
    assert compute_rates({"t": (5, 10)}, {"t": (1, 20)}) == {"t": 0.0}, "it was truncated"


def test_it_looks_again_and_shows_rows_a_second(tmp_path):
    clock, shown = SimClock(), []
    warehouse = Warehouse(str(tmp_path / "wh"), world=sim_world(1, clock))
    table = warehouse.create_table("s.t", "id BIGINT")

    class StoppedError(Exception):
        pass

    def show(drawn):
        shown.append(text_of(drawn).splitlines()[-1].split())
        table.append([{"id": n} for n in range(20)])
        if len(shown) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        watch(warehouse, 4, show)
    assert [line[1:3] for line in shown] == [["0", "0"], ["20", "5"], ["40", "5"]]
