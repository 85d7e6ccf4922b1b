"""Values as JSON and as text, and the progress of long commands at a terminal."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from decimal import Decimal

import pyarrow as pa
import pytest
from click.testing import CliRunner

from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.cli.output import Output, format_value
from streamhouse_spark.schema.json_values import json_text, to_json_value


@pytest.mark.parametrize(
    ("value", "plain", "text"),
    [
        (None, None, "null"),
        (True, True, "true"),
        (3, 3, "3"),
        (0.1, 0.1, "0.1"),
        (float("nan"), "NaN", "NaN"),
        (float("-inf"), "-Infinity", "-Infinity"),
        (Decimal("1E+3"), "1000", "1000"),
        (Decimal("0.10"), "0.10", "0.10"),
        (b"\x00\xff", "AP8=", "AP8="),
        (dt.date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "2026-01-02T03:00:00Z", "2026-01-02T03:00:00Z"),
        (dt.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00", "2026-01-02T03:00:00"),
        ("é\n", "é\n", "é\n"),
        ([1, None], [1, None], "[1, null]"),
        ({"a": Decimal(1)}, {"a": "1"}, '{"a": "1"}'),
        ([("k", 1), ("l", None)], {"k": 1, "l": None}, '{"k": 1, "l": null}'),
        ([(1, "x")], [[1, "x"]], '[[1, "x"]]'),
        ([], [], "[]"),
    ],
)
def test_values_are_formatted_as_json_and_text(value, plain, text):
    assert to_json_value(value) == plain
    assert json.loads(json_text(value)) == plain
    assert format_value(value) == text


def test_json_lines_keep_every_value(capsys):
    rows = pa.table({"map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "t": pa.array(["[bold]x"])})
    Output(as_json=True).rows(rows)
    assert capsys.readouterr().out == '{"map": {"a": 1}, "t": "[bold]x"}\n'


def test_text_is_neither_cut_nor_styled_in_a_pipe(capsys):
    rows = pa.table({"[red]name": ["[bold]" + "x" * 500], "n": [1]})
    Output(as_json=False).rows(rows, title="rows")
    printed = capsys.readouterr().out
    assert "[bold]" + "x" * 500 in printed
    assert "[red]name" in printed


def test_remarks_and_progress_are_for_terminals(capsys):
    output = Output(as_json=False)
    output.remark("hello")
    with output.progress("rows") as progress:
        progress.advance(progress.add_task("work", total=2))
    assert capsys.readouterr() == ("", "")


LONG = {
    "append": ("sales.orders", "-", "--format", "csv"),
    "tier": ("--once",),
    "maintain": (),
    "verify": ("sales.orders",),
    "compact": ("sales.orders",),
    "optimize": ("sales.orders", "--order-by", "id"),
    "expire-snapshots": ("sales.orders",),
    "remove-orphan-files": ("sales.orders",),
    "rewrite-manifests": ("sales.orders",),
    "retier": ("sales.orders", "--dry-run"),
    "adopt": ("sales.adopted", "--lake", "sales.orders", "--dry-run"),
    "rollback": ("sales.orders", "--to", "1", "--dry-run"),
    "drop-partition": ("sales.orders", "day=1", "--yes"),
    "clone": ("sales.orders", "sales.again"),
    "branch": ("sales.orders", "b"),
    "publish-branch": ("sales.orders", "audit"),
    "relocate": (),
    "costs": (),
}


@pytest.fixture
def url(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    table = warehouse.create_table("sales.orders", "id BIGINT, day INT", partition_by=["day"])
    table.append([{"id": 1, "day": 1}, {"id": 2, "day": 2}])
    tier(table)
    table.create_branch("audit")
    return warehouse.url


@pytest.mark.parametrize("name", LONG)
def test_a_long_command_shows_that_it_works(url, name, monkeypatch):
    shown, progress, working = [], Output.progress, Output.spinner
    monkeypatch.setattr(Output, "progress", lambda self, unit: shown.append(unit) or progress(self, unit))
    monkeypatch.setattr(Output, "spinner", lambda self, text: shown.append(text) or working(self, text))
    result = CliRunner().invoke(streamhouse, ["-w", url, name, *LONG[name]], input="id,day\n3,3\n")
    known = ("adopt",)  # a lake table of ours cannot be adopted, which is found out after a look at it
    assert result.exit_code == 0 or name in known, result.output
    assert shown, "nothing tells that it works"


@pytest.mark.parametrize("name", ["append", "tier", "maintain", "verify", "relocate"])
def test_a_bar_ends_full(url, name, monkeypatch):
    bars, progress = [], Output.progress
    monkeypatch.setattr(Output, "progress", lambda self, unit: bars.append(progress(self, unit)) or bars[-1])
    if name == "relocate":
        moved = f"{url}-moved"
        shutil.move(url.removeprefix("file://"), moved.removeprefix("file://"))
        url = moved
    CliRunner().invoke(streamhouse, ["-w", url, name, *LONG[name]], input="id,day\n3,3\n", catch_exceptions=False)
    tasks = [task for bar in bars for task in bar.tasks if task.total]
    assert tasks or name == "append", "nothing was counted"
    assert all(task.completed == task.total for task in tasks), tasks


def test_a_sign_of_life_is_for_terminals(capsys, monkeypatch):
    with Output(as_json=False).spinner("compact the lake"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Output(as_json=False).spinner("compact the lake"):
        pass
    out, err = capsys.readouterr()
    assert out == "", "the results' stream stays clean"
    assert "compact the lake" in err


def test_what_goes_on_now_is_for_terminals(capsys, monkeypatch):
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)  # noqa: B023 - it is asked at once
        monkeypatch.setenv("TERM", "xterm")
        with Output(as_json=False).activity() as show:
            show("refresh gold.revenue")
            show(None)
            show("refresh gold.orders")
        out, err = capsys.readouterr()
        assert out == "", "the results' stream stays clean"
        assert ("refresh gold.orders" in err) is is_terminal
