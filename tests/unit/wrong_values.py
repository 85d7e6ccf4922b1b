"""Values that are wrong for almost every parameter: of another type, too large, no number, no text, no container."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

LONG = "x" * 100_000
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
ENDLESS_MAPPING: dict[str, Any] = {}
ENDLESS_MAPPING["id"] = ENDLESS_MAPPING


class Nothing:
    """A type that nobody knows."""

    def __repr__(self) -> str:
        return "<line one\nline two>"


WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "zero": 0,
    "one": 1,
    "minus one": -1,
    "2**31": 2**31,
    "2**63": 2**63,
    "minus 2**63 - 1": -(2**63) - 1,
    "huge": 10**400,
    "beyond Python's digits": 10**5000,
    "half": 0.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "complex": 1j,
    "decimal NaN": Decimal("NaN"),
    "decimal signalling": Decimal("sNaN"),
    "numpy int": np.int64(1),
    "numpy NaN": np.float64("nan"),
    "numpy text": np.str_("id"),
    "numpy array": np.arange(3),
    "numpy zero-d": np.array(1),
    "empty text": "",
    "blank": " ",
    "word": "nope",
    "nul": "a\x00b",
    "surrogate": "a\ud800b",
    "line break": "a\nb",
    "long": LONG,
    "bytes": b"id",
    "no utf-8": b"\xff\xfe",
    "object": Nothing(),
    "class": Nothing,
    "function": len,
    "exception": KeyError("x"),
    "path": Path("/nowhere/a"),
    "naive time": dt.datetime(2026, 1, 1),
    "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "first time": dt.datetime.min,  # noqa: DTZ901
    "date": dt.date(2026, 1, 1),
    "duration": dt.timedelta(days=1),
    "empty list": [],
    "list of None": [None],
    "list of lists": [[]],
    "list of numbers": [1, 2],
    "list of a word": ["nope"],
    "list of a surrogate": ["\ud800"],
    "list of empty text": [""],
    "list of bytes": [b"id"],
    "list twice": ["id", "id"],
    "list of everything": [1, "x", None, {}, b""],
    "endless list": ENDLESS,
    "empty tuple": (),
    "tuple": ("id", "=", 1, 2),
    "triples": [("nope", "=", 1)],
    "odd triples": [("id", "~", 1)],
    "unhashable triples": [([], [], [])],
    "triples of a list": [("id", "in", 5)],
    "triples of NaN": [("id", "in", [float("nan"), "x", None])],
    "triples of a huge number": [("id", ">", 10**400)],
    "set": {"nope"},
    "set of numbers": {1, 2},
    "empty mapping": {},
    "mapping of unknown": {"nope": "nope"},
    "mapping of None": {None: None},
    "mapping of numbers": {0: 1},
    "mapping of negative": {0: -1},
    "mapping of huge": {0: 10**400},
    "mapping of NaN": {float("nan"): float("nan")},
    "mapping of texts": {"0": "1"},
    "mapping of tuples": {(1, 2): (3, 4)},
    "mapping of bool": {False: True},
    "mapping of a column to None": {"id": None},
    "mapping of a column to a list": {"id": [1]},
    "mapping of a column to a mapping": {"id": {"x": 1}},
    "mapping of a column to a surrogate": {"id": "\ud800"},
    "mapping of a surrogate": {"\ud800": "\ud800"},
    "endless mapping": ENDLESS_MAPPING,
    "dicts": [{"nope": 1}],
    "dicts of nothing": [{}],
    "dicts of a huge number": [{"id": 10**400}],
    "dicts of NaN": [{"id": float("nan")}],
    "dicts of a list": [{"id": [1]}],
    "dicts of an object": [{"id": Nothing()}],
    "dicts of a surrogate": [{"id": 1, "name": "\ud800"}],
    "dicts of a number for a text": [{"id": 1, "name": 5}],
    "dicts without a name": [{None: 1}],
    "dicts endless": [ENDLESS_MAPPING],
    "arrow table": pa.table({"nope": [1]}),
    "arrow texts": pa.table({"id": ["x"], "name": ["y"]}),
    "arrow columns twice": pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]),
    "arrow without columns": pa.table({}),
    "arrow nulls": pa.table({"id": pa.nulls(2)}),
    "arrow dictionary of lists": pa.table({"id": pa.array([[1]]), "name": pa.array([{"a": 1}])}),
    "arrow dates out of range": pa.table({"id": pa.array([2**62], pa.timestamp("s"))}),
    "arrow array": pa.array([1]),
    "arrow chunks": pa.chunked_array([[1]]),
    "arrow scalar": pa.scalar(1),
    "arrow null": pa.scalar(None),
    "arrow schema": pa.schema([("id", pa.int64()), ("id", pa.int64())]),
    "arrow schema of nothing": pa.schema([]),
    "arrow type": pa.int64(),
    "arrow field": pa.field("x", pa.int64()),
    "expression": pa.compute.field("nope") > 1,
    "odd expression": pa.compute.field("id") + "x",
    "expression of no truth": pa.compute.field("id") + 1,
    "number expression": pa.compute.scalar(5),
    "nested expression": pa.compute.field("id", "x") > 1,
    "expression of a place": pa.compute.field(99) > 1,
    "ddl": "x BIGINT",
    "ddl cut": "x ARRAY<",
    "deep ddl": "x " + "ARRAY<" * 3000 + "INT" + ">" * 3000,
}  # fmt: skip
"""By name. Each is given to every parameter of every public method, and most are wrong there."""
