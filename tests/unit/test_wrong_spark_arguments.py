"""The functions that take a Spark session, with every kind of wrong argument: typed errors on one line, before Spark.

No Spark runs: what stands for a session takes whatever it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import streamhouse_spark as sh
from streamhouse_spark import ErrorKind, StreamhouseError, Warehouse
from unit.wrong_values import WRONG

FUNCTIONS = ("configure", "register", "tier", "lookup_join", "delta_join", "TieringService")
KINDS = {"str": str, "int": int | np.integer, "Sequence[str]": object, "Mapping[str, str]": dict, "bool": bool}


class Anything:
    """A session, reader or stream: every call gives it back, and there are no rows."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Anything:
        return self


class Conf:
    @staticmethod
    def get(_key: str, default: str | None) -> str | None:
        return default


class Session(Anything):
    conf = Conf()


class Frame(Anything):
    schema = StructType([StructField("id", LongType())])
    sparkSession = Session()  # noqa: N815 - Spark's name


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrong") / "wh"
    wh = Warehouse(str(path))
    for name in ("left", "right", "into"):
        column = {"left": "l", "right": "r", "into": "l BIGINT, r"}[name]
        wh.create_table(name, f"id BIGINT NOT NULL, {column} BIGINT", primary_key=["id"])
    wh.create_table("log", "id BIGINT")
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", "python")


def right(name: str, place: Path) -> dict[str, Any]:
    shared = {"warehouse": str(place), "settings": {}}
    return {
        "configure": {"builder": SparkSession.Builder(), "catalog": "lakes", **shared},
        "register": {"spark": Session()},
        "tier": {"spark": Session(), "tables": None, **shared},
        "lookup_join": {
            "df": Frame(),
            "table": "left",
            "on": ["id"],
            "columns": ["l"],
            "how": "left",
            "prefix": "p_",
            "max_staleness_ms": 0,
            **shared,
        },
        "delta_join": {
            "spark": Session(),
            "left": "left",
            "right": "right",
            "on": ["id"],
            "into": "into",
            "checkpoint": "c",
            "columns": None,
            "how": "inner",
            "prefix": "",
            "trigger": {"availableNow": True},
            "max_offsets_per_trigger": 1,
            **shared,
        },
        "TieringService": {
            "spark": Session(),
            "tables": ["left"],
            "on_report": print,
            "on_lineage": print,
            "maintenance_ms": 1,
            "views": False,
            "on_view": print,
            **shared,
        },
    }[name]


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_that_is_right(place, name, monkeypatch):
    given = right(name, place)
    assert given.keys() == inspect.signature(getattr(sh, name)).parameters.keys(), "give a new parameter its value"
    if name == "tier":
        given["tables"] = []
        monkeypatch.setattr(Warehouse, "tables", lambda _: [])
    getattr(sh, name)(**given)


PARAMETERS = [(f, p) for f in FUNCTIONS for p in inspect.signature(getattr(sh, f)).parameters]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_wrong_spark_arguments_fail_before_spark_is_used(place, name, parameter, monkeypatch):
    monkeypatch.setattr("streamhouse_spark.datasource.lake_jobs.tier_table", lambda *_: None)
    before = files(place)
    found = {label: said for label, value in WRONG.items() if (said := _wrong(name, parameter, value, place))}
    assert found == {}
    assert files(place) == before


def _wrong(name: str, parameter: str, value: object, place: Path) -> str | None:
    try:
        getattr(sh, name)(**{**right(name, place), parameter: value})
    except StreamhouseError as error:
        text = str(error)
        if "\n" in text or len(text) > 3_000 or error.kind is not ErrorKind.INVALID:
            return f"{error.kind}: text of {len(text)} characters: {text[:200]!r}"
        return None
    except Exception as error:  # noqa: BLE001 - the promise is that there is no other
        return f"{type(error).__name__}: {str(error)[:200]}"
    said = str(inspect.signature(getattr(sh, name)).parameters[parameter].annotation)
    kind = KINDS.get(said.removesuffix(" | None"), object)
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return None if is_kind or (value is None and said.endswith(" | None")) else f"taken for {parameter}"


def test_a_function_that_forgets_the_check_is_found(place, monkeypatch):
    """A mistake that is planted."""
    assert _wrong("lookup_join", "prefix", 5, place) is None
    monkeypatch.setattr(sh, "lookup_join", inspect.unwrap(sh.lookup_join))
    assert _wrong("lookup_join", "prefix", 5, place) is not None
