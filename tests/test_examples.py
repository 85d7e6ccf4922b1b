"""Every example runs as a user runs it: in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = [*sorted(FOLDER.glob("*.py")), FOLDER / "ecommerce/shop.py", FOLDER / "medallion/medallion.py"]
SMALL = {"medallion": ["3"], "02_stream_and_tier": ["3"], "03_python_tail": ["10"]}
"""Arguments that keep an example short."""
WITHOUT_SPARK = ("03_python_tail", "04_read_lake_with_duckdb", "10_event_producer")
PRINTS = {
    "01_quickstart": "both tiers: [1, 2, 3, 4]",
    "02_stream_and_tier": "in the lake",
    "03_python_tail": "10 rows of another process",
    "04_read_lake_with_duckdb": "Oslo: 2 trips, 37.50",
    "05_exactly_once_batch": "day 3: the table has 300 rows",
    "06_sql_catalog": "large orders: [(11, None), (12, None), (13, 'by hand')]",
    "07_first_touch_attribution": "mail: 7.00\nsearch: 8.00\nunknown: 1.00",
    "08_wide_profile": "1 ann Oslo 8 /sale\n2 bob Rome None /help\n3 None None 9 None",
    "09_cdc_into_sums": "an update and a deletion: {'ann': (0, 0), 'bob': (1, 15)}",
    "10_event_producer": "1000 events, each once and in order",
    "11_debezium_orders": "2 bob -0.07 2026-01-01 01:00:00 2026-01-03\n  unread at {4}: it is not a JSON object",
    "medallion": "gold has the revenue of silver's orders",
    "shop": "after corrections: {'mail': (2, 30)}\nclicks in the lake: {'/': 3, '/cart': 21}",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem in WITHOUT_SPARK else [pytest.mark.spark], id=path.stem)
        for path in EXAMPLES
    ],
)
def test_an_example_runs_in_its_own_process(path, tmp_path):
    done = subprocess.run(
        [sys.executable, path, *SMALL.get(path.stem, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert PRINTS[path.stem] in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_needs(path):
    block = re.match(r"# /// script\n((?:# .*\n)+?)# ///\n", path.read_text("utf-8"))
    assert block is not None
    header = tomllib.loads(re.sub(r"^# ", "", block[1], flags=re.MULTILINE))
    assert header["requires-python"] == ">=3.11,<3.15"
    assert header["dependencies"][0].startswith("streamhouse-spark")


def test_there_is_an_example_for_each_expectation():
    assert {path.stem for path in EXAMPLES} == set(PRINTS)
