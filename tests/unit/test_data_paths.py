"""Calls go through the files that ARCHITECTURE.md lists for each data path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import streamhouse_spark
from doc_pages import data_paths
from kit.tables import tier
from streamhouse_spark import Warehouse

SOURCE = Path(streamhouse_spark.__file__).parent
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def trace_files(act: Callable[[], Any]) -> list[str]:
    """Call ``act`` and return the files of the package whose functions it calls, in the order of their first call."""
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


def test_an_append_goes_through_the_listed_files(table):
    table.append(some_rows(0, 4))
    files = trace_files(lambda: table.append(some_rows(4, 8)))
    assert set(data_paths()["append"]) <= set(files)


def test_an_upsert_goes_through_the_listed_files(warehouse_path):
    table = Warehouse(warehouse_path).create_table("sales.keyed", SCHEMA, primary_key=["id"])
    table.upsert(some_rows(0, 4))
    files = trace_files(lambda: table.upsert(some_rows(2, 8)))
    assert set(data_paths()["upsert"]) <= set(files)


def test_a_tiering_round_goes_through_the_listed_files(table):
    table.append(some_rows(0, 8))
    files = trace_files(lambda: tier(table))
    assert set(data_paths()["tiering"]) <= set(files)
