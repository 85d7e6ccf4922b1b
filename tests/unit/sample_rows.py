"""Rows of every type that a table has, from a seed."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from streamhouse_spark.schema.table_schema import TableSchema

_EPOCH = dt.datetime(1970, 1, 1)
_WORDS = ["", "a", "ü", "日本語", "\x00", "🦀 crab", "x" * 70, "line\nbreak"]


def _decimal(rng: random.Random, precision: int, scale: int) -> decimal.Decimal:
    digits = rng.randint(1, precision)
    unscaled = rng.choice([-1, 1]) * rng.randrange(10**digits)
    return decimal.Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _moment(rng: random.Random) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=rng.randrange(-(10**16), 10**17))


VALUES: dict[str, Callable[[random.Random], Any]] = {
    "boolean": lambda r: r.random() < 0.5,
    "tinyint": lambda r: r.randrange(-128, 128),
    "smallint": lambda r: r.randrange(-(2**15), 2**15),
    "int": lambda r: r.randrange(-(2**31), 2**31),
    "bigint": lambda r: r.randrange(-(2**63), 2**63),
    "float": lambda r: r.choice([0.5, -1.25, 3e38, float("inf"), -0.0]),
    "double": lambda r: r.choice([r.gauss(0, 1e9), float("-inf"), 5e-324]),
    "decimal(5,2)": lambda r: _decimal(r, 5, 2),
    "decimal(18,0)": lambda r: _decimal(r, 18, 0),
    "decimal(38,10)": lambda r: _decimal(r, 38, 10),
    "string": lambda r: r.choice(_WORDS) + str(r.randrange(1000)),
    "binary": lambda r: r.randbytes(r.randrange(20)),
    "date": lambda r: _moment(r).date(),
    "timestamp": lambda r: _moment(r).replace(tzinfo=dt.UTC),
    "timestamp_ntz": _moment,
    "array<int>": lambda r: [r.choice([None, r.randrange(9)]) for _ in range(r.randrange(4))],
    "map<string,bigint>": lambda r: [(f"k{i}", r.choice([None, i])) for i in range(r.randrange(4))],
    "struct<x:int,y:array<string>>": lambda r: {"x": r.choice([None, 1]), "y": r.choice([None, [], ["a", None]])},
    "array<struct<a:decimal(38,0),b:timestamp>>": lambda r: [
        {"a": _decimal(r, 38, 0), "b": _moment(r).replace(tzinfo=dt.UTC)} for _ in range(r.randrange(3))
    ],
    "map<int,struct<s:map<string,date>>>": lambda r: [(1, {"s": [("d", _moment(r).date())]})],
}
"""Type in Spark words → a value of it."""

COLUMNS = {f"c{i}": kind for i, kind in enumerate(VALUES)}
ALL_TYPES_DDL = "id BIGINT NOT NULL, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
ALL_TYPES = TableSchema.of(ALL_TYPES_DDL)
SCALAR_TYPES = [kind for kind in VALUES if "<" not in kind]


@functools.lru_cache(maxsize=32)
def sample(num_rows: int, seed: int = 0, *, first_id: int = 0, null_share: float = 0.2) -> pa.Table:
    """Rows of `ALL_TYPES`; ``id`` counts from ``first_id``."""
    rng = random.Random(seed)
    columns: dict[str, list[Any]] = {"id": list(range(first_id, first_id + num_rows))}
    for name, kind in COLUMNS.items():
        columns[name] = [None if rng.random() < null_share else VALUES[kind](rng) for _ in range(num_rows)]
    arrays = [pa.array(columns[c.name], c.type) for c in ALL_TYPES.columns]
    return pa.Table.from_arrays(arrays, schema=ALL_TYPES.arrow)
