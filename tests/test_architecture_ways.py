"""The ways of ARCHITECTURE.md are those of the code, and what the pages name is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import streamhouse_spark
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.tiering import tier_table

ROOT = Path(__file__).parent.parent
SOURCE = Path(streamhouse_spark.__file__).parent
PAGES = {path: path.read_text("utf-8") for path in (ROOT / "ARCHITECTURE.md", *(ROOT / "docs/internals").rglob("*.md"))}
STATIONS_MAX = {"append": 10, "union read": 18, "tiering": 14, "upsert": 12}
"""Two thirds of the files of each way before it was straightened."""
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def ways() -> dict[str, list[str]]:
    """Way → its files in order."""
    found = re.findall(r"<!-- way: ([\w ]+) -->\n((?:\d+\. .*\n(?:   .*\n)*)+)", PAGES[ROOT / "ARCHITECTURE.md"])
    return {name: re.findall(r"^\d+\. `([^`]+)`", listed, re.MULTILINE) for name, listed in found}


def entered(act: Callable[[], Any]) -> list[str]:
    """Call ``act``, and give the files of the package whose functions it calls, in the order of their first call."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{SOURCE}/") and code.co_flags & 2:  # a function, no class
            files.setdefault(code.co_filename.removeprefix(f"{SOURCE}/"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return list(files)


def some_rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"id": i, "day": f"d{i % 2}"} for i in range(start, end)]


@pytest.fixture
def table(warehouse_path):
    properties = {"bucket.num": "2", "bucket.key": "id"}
    return Warehouse(warehouse_path).create_table("sales.orders", SCHEMA, partition_by=["day"], properties=properties)


def test_an_append_goes_its_way(table):
    table.append(some_rows(0, 4))
    found = entered(lambda: table.append(some_rows(4, 8)))
    assert set(ways()["append"]) <= set(found)


def test_an_upsert_goes_its_way(warehouse_path):
    table = Warehouse(warehouse_path).create_table("sales.keyed", SCHEMA, primary_key=["id"])
    table.upsert(some_rows(0, 4))
    found = entered(lambda: table.upsert(some_rows(2, 8)))
    assert set(ways()["upsert"]) <= set(found)


def test_a_tiering_round_goes_its_way(table):
    table.append(some_rows(0, 8))
    run_tasks = run_tasks_locally(table.storage, table.settings, table.world)
    found = entered(lambda: tier_table(table, run_tasks))
    assert set(ways()["tiering"]) <= set(found)


@pytest.mark.parametrize("way", STATIONS_MAX)
def test_a_way_is_short(way):
    assert len(ways()[way]) <= STATIONS_MAX[way]


def test_files_that_the_pages_name_are_there():
    gone = {
        (path.name, named)
        for path, text in PAGES.items()
        for named in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|json))`", text)
        if not (SOURCE / named).exists() and not (ROOT / named).exists()
    }
    assert gone == set()


def test_links_lead_somewhere():
    gone = {
        (path.name, target)
        for path, text in PAGES.items()
        for target in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", text)
        if not (path.parent / target).exists()
    }
    assert gone == set()
