"""Recorded benchmark results survive a round trip, and the page and its figures show those in the repository."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree as ET

import pytest
from benchmarks.measure import Figure, ratio_at_least, ratio_at_most
from benchmarks.plots import (
    BEGIN,
    BETTER,
    END,
    GOAL,
    HEADLINES,
    README,
    WORSE,
    all_kept,
    goal_of,
    picture,
    results_page,
    table,
    with_headlines,
)
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


def test_the_results_page_has_the_tables(results):
    page = results_page({"some": results})
    assert page.startswith("# Results\n")
    assert table(results) in page
    assert "| rate | 2 | 8 M rows/s | 0.25× | ≥ 0.8x | missed; why | other |" in page


def test_headlines_replace_what_is_between_their_marks():
    page = with_headlines(f"before\n{BEGIN}\nold\n{END}\nafter\n", all_kept())
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert page.count("\n|") == len(HEADLINES) + 2
    with pytest.raises(ValueError, match="does not have"):
        with_headlines("no marks", all_kept())


def test_pages_and_pictures_show_the_kept_results():
    kept_results = all_kept()
    assert kept_results, "benchmarks/results holds a run"
    readme = README.read_text("utf-8")
    assert readme == with_headlines(readme, kept_results), "run `make bench-plots`"
    assert (FOLDER / "README.md").read_text("utf-8") == results_page(kept_results), "run `make bench-plots`"
    for name, results in kept_results.items():
        assert (FOLDER / f"{name}.svg").read_text("utf-8") == picture(name, results), "run `make bench-plots`"
        assert dataclasses.asdict(results.machine)
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(kept_results)
