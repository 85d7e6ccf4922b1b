"""The methods of `Table` and `Warehouse`: each has an example that runs, and the pages of the reference name them."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import re
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import streamhouse_spark as sh
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.scan import Scan

PAGE = Path(__file__).parents[2] / "docs/reference/python.md"
OBJECT_OF_CLASS = {sh.Warehouse: r"Warehouse\(W\)", sh.Table: "(?:orders|people)"}


@pytest.fixture
def world_of_examples(tmp_path):
    """The objects that examples use."""
    warehouse = sh.Warehouse(tmp_path / "wh")
    orders = warehouse.create_table("shop.orders", "id BIGINT, day STRING, amount DOUBLE", partition_by=["day"])
    orders.append([{"id": 1, "day": "mon", "amount": 9.5}, {"id": 2, "day": "tue", "amount": 4.0}])
    people = warehouse.create_table("shop.people", "id BIGINT, name STRING, city STRING", primary_key=["id"])
    people.upsert([{"id": 1, "name": "Ada", "city": "Ulm"}, {"id": 2, "name": "Bob", "city": "Ulm"}])
    visits = Schema(NestedField(1, "id", LongType()))
    FileCatalog(LocalStorage(tmp_path / "wh"), world=World()).create_table("shop.visits", visits)
    libraries = {"sh": sh, "time": time, "asyncio": asyncio, "pc": pc, "pl": pl}
    return {"warehouse": warehouse, "orders": orders, "people": people, **libraries}


def interface(kind: type) -> list[str]:
    warehouse = sh.Warehouse("wh", storage=MemoryStorage())
    example = warehouse if kind is sh.Warehouse else warehouse.create_table("t", "id BIGINT")
    return [name for name in dir(example) if not name.startswith("_")]


@pytest.mark.parametrize("name", interface(sh.Table))
def test_the_example_of_a_table_runs(name, world_of_examples):
    run_example(sh.Table, name, world_of_examples)


@pytest.mark.parametrize("name", interface(sh.Warehouse))
def test_the_example_of_a_warehouse_runs(name, world_of_examples):
    run_example(sh.Warehouse, name, world_of_examples)


@pytest.mark.parametrize("name", ["filter"])
def test_the_example_of_a_scan_runs(name, world_of_examples):
    run_example(Scan, name, world_of_examples)


@pytest.mark.parametrize("name", ["scan", "scan_polars"])
def test_the_example_of_a_function_runs(name, world_of_examples):
    assert getattr(sh, name)  # is loaded at first use
    run_example(sh, name, world_of_examples)


def run_example(kind: Any, name: str, names: dict[str, object]) -> None:
    if name == "to_datafusion":
        pytest.importorskip("datafusion", reason="datafusion is not installed: pip install datafusion")
    text = inspect.getdoc(inspect.getattr_static(kind, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"{kind.__name__}.{name} has no example"
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("kind", OBJECT_OF_CLASS, ids=lambda kind: kind.__name__)
def test_the_reference_page_names_only_what_exists(kind):
    named = set(re.findall(rf"`(?:sh\.)?{OBJECT_OF_CLASS[kind]}\.(\w+)", PAGE.read_text("utf-8")))
    assert named
    assert named <= set(interface(kind))
    assert f"::: streamhouse_spark.{kind.__name__}\n" in PAGE.with_name("api.md").read_text("utf-8")
