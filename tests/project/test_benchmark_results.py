"""Recorded benchmark results survive a round trip, and the page and its figures show those in the repository."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from benchmarks.measure import Figure, ratio_at_least, ratio_at_most
from benchmarks.plots import BETTER, GOAL, README, WORSE, all_kept, goal_of, picture, table, with_results
from benchmarks.results import FOLDER, Results, keep, kept, rows_of, this_machine

FIGURES = [
    Figure("a & b", "ms", 2.0, "<peer>", 8.0, 0.25, 3, ratio_at_most(0.5)),
    Figure("rate", "M rows/s", 2.0, "other", 8.0, 0.25, 3, ratio_at_least(0.8), "why"),
    Figure("no goal", "MB", 1.0, "other", 1.0, 1.0, 3),
]


@pytest.fixture
def results(tmp_path) -> Results:
    return kept(keep("some", FIGURES, this_machine(tmp_path, 0.5), tmp_path / "results"))


def test_they_come_back_as_they_were(results, tmp_path):
    assert results.rows == rows_of(FIGURES)
    assert [row.verdict for row in results.rows] == ["met", "missed", "-"]
    assert Results.from_json(json.loads(json.dumps(results.to_json()))) == results
    machine = results.machine
    assert machine.cores >= 1
    assert machine.fsync_ms > 0
    assert machine.packages["pyarrow"]
    assert machine.load_before == 0.5


def test_an_advantage_is_above_one_where_ours_is_better(results):
    assert [row.advantage for row in results.rows] == [4.0, 0.25, 1.0]
    assert [goal_of(row) for row in results.rows] == [2.0, 0.8, None]


def test_a_picture_has_a_bar_for_each_figure(results):
    drawn = ET.fromstring(picture("some & more", results))
    fills = [e.get("fill") for e in drawn.iter() if e.tag.endswith("rect")]
    assert fills == ["#ffffff", BETTER, WORSE, BETTER]
    assert [e.get("stroke") for e in drawn.iter() if e.tag.endswith("line")].count(GOAL) == 2
    texts = "".join(drawn.itertext())
    assert all(name in texts for name in ("a & b", "<peer>", "4×", "0.25×"))


def test_the_page_gets_the_tables(results):
    page = with_results("before\n<!-- kept results -->old<!-- end of kept results -->\nafter\n", {"some": results})
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert table(results) in page
    assert "| rate | 2 | 8 M rows/s | 0.25× | ≥ 0.8x | missed; why | other |" in page
    with pytest.raises(ValueError, match="lacks"):
        with_results("no marks", {})


def test_what_the_repository_shows_is_what_it_keeps():
    found = all_kept()
    assert found, "benchmarks/results holds a run"
    assert README.read_text("utf-8") == with_results(README.read_text("utf-8"), found), "run `make bench-plots`"
    for name, results in found.items():
        assert (FOLDER / f"{name}.svg").read_text("utf-8") == picture(name, results), "run `make bench-plots`"
        assert dataclasses.asdict(results.machine)
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(found)
    assert Path(FOLDER).name == "results"
