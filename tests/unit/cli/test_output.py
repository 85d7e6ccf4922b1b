"""Values as JSON, and as text."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from streamhouse_spark.cli.output import Output, format_value
from streamhouse_spark.schema.json_values import json_text, plain_value


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
def test_values(value, plain, text):
    assert plain_value(value) == plain
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
