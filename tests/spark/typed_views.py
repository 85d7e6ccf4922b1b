"""Random views in which columns of two types meet, after changes of one side beside Spark's own answer."""

from __future__ import annotations

import collections
import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from random import Random
from typing import Any
from unittest import mock

from pyspark.errors import PySparkException

import streamhouse_spark as sh
from streamhouse_spark import InvalidOptionError, Table
from streamhouse_spark.views import local_executor, local_reads
from streamhouse_spark.views.ivm import aggregates
from view_histories.history import DifferenceError

NAN = float("nan")
DAY, NOON = dt.date(2026, 3, 8), dt.datetime(2026, 3, 8, 2, 30)  # an hour that New York skips
VALUES: dict[str, list[Any]] = {
    "TINYINT": [0, 1, 5, 7],
    "INT": [0, 1, 5, 2_000_000_001],
    "BIGINT": [0, 1, 5, 9_007_199_254_740_993, 9_007_199_254_740_992],
    "DECIMAL(10,2)": [Decimal("0.00"), Decimal("1.50"), Decimal("5.00")],
    "DECIMAL(12,4)": [Decimal("0.0000"), Decimal("1.5000"), Decimal("1.5001"), Decimal("5.0000")],
    "DECIMAL(38,18)": [Decimal("1.5"), Decimal("1.500000000000000001"), Decimal(5)],
    "FLOAT": [0.0, -0.0, 1.5, 5.0, NAN, 0.1],
    "DOUBLE": [0.0, -0.0, 1.5, 5.0, NAN, 0.1, 9_007_199_254_740_992.0],
    "STRING": ["5", "05", "1", "0", "7"],
    "CHAR(2)": ["5", "05", "1", "0"],
    "CHAR(4)": ["5", "05", "1", "0"],
    "VARCHAR(3)": ["5", "05", "5 ", "1"],
    "DATE": [DAY, dt.date(2026, 1, 1)],
    "TIMESTAMP_NTZ": [dt.datetime(2026, 3, 8), dt.datetime(2026, 1, 1), NOON],
    "TIMESTAMP": [
        dt.datetime(2026, 3, 8, 5, tzinfo=dt.UTC),  # midnight in New York
        dt.datetime(2026, 3, 8, 7, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC),
    ],
    "BOOLEAN": [True, False],
    "BINARY": [b"5", b"05", b""],
}
"""Type → some values, of which many are equal to one of another type."""
KEYS = ("TINYINT", "INT", "BIGINT", "DECIMAL(12,4)", "STRING", "CHAR(4)", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP")
NUMBERS = [name for name in VALUES if name not in ("DATE", "TIMESTAMP_NTZ", "TIMESTAMP", "BOOLEAN", "BINARY")]
TIMES = ["DATE", "TIMESTAMP_NTZ", "TIMESTAMP"]
_NUMBERS = itertools.count()


class TypedHistory:
    """Two tables with columns of random types, and views in which these meet. Each change is of one table."""

    values = VALUES

    def __init__(self, spark: Any, seed: int, *, types: tuple[str, str] | None = None, refreshes: int = 4) -> None:
        """``types`` are those of the columns that meet, which else are random."""
        self._spark, self._rng, self._refreshes = spark, Random(seed), refreshes
        self._wh = sh.Warehouse(spark.conf.get("spark.sql.catalog.streamhouse.warehouse"))
        self._name = f"{next(_NUMBERS)}_{seed}"
        self._columns = self._some_columns(types)
        keys = {"a": self._rng.choice([["id"], []]), "b": [next(iter(self._columns["b"]))]}
        self._tables = {name: self._table(name, key) for name, key in keys.items()}
        self.script = [f"{name} {table.schema} {table.state.primary_key}" for name, table in self._tables.items()]
        self.checks = 0

    def _some_columns(self, types: tuple[str, str] | None) -> dict[str, dict[str, str]]:
        """Return the columns of each table with their types."""
        family = self._rng.choice([NUMBERS, NUMBERS, TIMES, list(VALUES)])
        left, right = types or (self._rng.choice(family), self._rng.choice(family))
        return {
            "a": {"id": "BIGINT", "v": left, "n": "INT", "w": right},
            "b": {"k": right if right in KEYS else "BIGINT", "v": right, "n": "INT", "w": left},
        }

    def _some_queries(self) -> Sequence[str]:
        return self._rng.sample(QUERIES, 4)

    def _table(self, name: str, key: list[str]) -> Table:
        first, *others = (f"{column} {kind}" for column, kind in self._columns[name].items())
        columns = ", ".join([f"{first} NOT NULL", *others])
        return self._wh.create_table(f"typed.{name}{self._name}", columns, primary_key=key)

    def run(self, queries: Sequence[str] = ()) -> None:
        ansi = "spark.sql.ansi.enabled"
        before = self._spark.conf.get(ansi)
        self._spark.conf.set(ansi, self._rng.choice(["true", "true", "false"]))
        self.script.append(f"{ansi} = {self._spark.conf.get(ansi)}")
        try:
            self._run(queries or self._some_queries())
        finally:
            self._spark.conf.set(ansi, before)

    def _run(self, queries: Sequence[str]) -> None:
        for name in ("a", "b"):
            self._write(name)
        views = [view for query in queries if (view := self._view(query)) is not None]
        sides = itertools.cycle(self._rng.sample("ab", 2))
        for name in itertools.islice(sides, self._refreshes):
            self._change(name)
            for number, (view, query) in enumerate(views):
                self._refresh(number, view, query)

    # -- queries --------------------------------------------------------------------------------------------------

    def _view(self, text: str) -> tuple[Any, str] | None:
        query = text.format(**{name: f"streamhouse.{table.name}" for name, table in self._tables.items()}, **{
            f"lit_{name}": self._rng.choice(LITERALS) for name in "xyz"
        })  # fmt: skip
        try:
            self._answer(query)
        except PySparkException:  # Spark compares no such types, or not these values
            return None
        name = f"typed.v{next(_NUMBERS)}_{self._name}"
        try:
            view = sh.materialize(self._spark, name, query)
        except InvalidOptionError as error:
            self.script.append(f"refused {query}: {error}")
            return None
        self.script.append(f"{name} = {query}")
        self._check(view, query)
        return view, query

    # -- changes --------------------------------------------------------------------------------------------------

    def _row(self, name: str) -> list[Any]:
        first, *others = self._columns[name].values()
        key = self._rng.randint(0, 6) if first == "BIGINT" else self._rng.choice(self.values[first])
        return [key, *(None if self._rng.random() < 0.15 else self._rng.choice(self.values[kind]) for kind in others)]

    def _write(self, name: str) -> None:
        table = self._tables[name]
        names = table.schema.names
        rows = [dict(zip(names, self._row(name), strict=True)) for _ in range(self._rng.randint(1, 4))]
        self.script.append(f"{name}: write {rows}")
        if table.state.primary_key:
            table.upsert(rows)
        else:
            table.append(rows)

    def _change(self, name: str) -> None:
        table = self._tables[name]
        if table.state.primary_key and self._rng.random() < 0.4:
            keys = [self._row(name)[0] for _ in range(2)]
            self.script.append(f"{name}: delete {keys}")
            table.delete(keys)
        else:
            self._write(name)

    # -- refreshes ------------------------------------------------------------------------------------------------

    def _refresh(self, number: int, view: Any, query: str) -> None:
        way = self._rng.choice(list(WAYS))
        self.script.append(f"refresh {number} {way}")
        try:
            self._answer(query)
        except PySparkException:
            return
        with ExitStack() as stack:
            for patch in WAYS[way]():
                stack.enter_context(patch)
            try:
                view.refresh()
            except Exception as error:
                raise DifferenceError(f"{query}\n{type(error).__name__}: {str(error)[:600]}\n{self._told()}") from error
        self._check(view, query)

    def _check(self, view: Any, query: str) -> None:
        shown = ", ".join(f"`{name}`" for name in self._spark.sql(query).columns)
        found, expected = self._answer(f"SELECT {shown} FROM streamhouse.{view.name}"), self._answer(query)
        if "min(" in query:  # of -0.0 and 0.0 Spark shows either
            found, expected = (_without_signs(rows) for rows in (found, expected))
        if found != expected:
            raise DifferenceError(
                f"{query}\nstrange {dict(found - expected)}, missing {dict(expected - found)}\n{self._told()}"
            )
        self.checks += 1

    def _answer(self, query: str) -> collections.Counter[str]:
        return collections.Counter(repr(tuple(row)) for row in self._spark.sql(query).collect())

    def _told(self) -> str:
        return "\n".join(self.script)


def _without_signs(rows: collections.Counter[str]) -> collections.Counter[str]:
    return collections.Counter({row.replace("-0.0", "0.0"): number for row, number in rows.items()})


LITERALS = ("5", "'5'", "5.0", "1.5", "1.5D", "'05'", "0", "DATE'2026-03-08'", "TIMESTAMP'2026-03-08 00:00:00'")
BOTH = "SELECT v AS u, n FROM {a} UNION ALL SELECT v, n FROM {b}"
MEETINGS = (
    "SELECT v AS u FROM {a} UNION ALL SELECT v FROM {b}",
    f"SELECT u, count(*) AS c, sum(n) AS s, min(n) AS m FROM ({BOTH}) q GROUP BY u",
    "SELECT a.id AS id, a.v AS v, b.k AS k FROM {a} a JOIN {b} b ON a.v = b.k",
    "SELECT a.v AS v FROM {a} a WHERE a.v IN (SELECT v FROM {b})",
    "SELECT b.k AS k, b.v AS v FROM {b} b WHERE NOT EXISTS (SELECT 1 FROM {a} a WHERE a.v = b.v)",
    "SELECT coalesce(a.v, b.v) AS u, count(*) AS c FROM {a} a JOIN {b} b ON a.n = b.n GROUP BY coalesce(a.v, b.v)",
    "SELECT a.id AS id, CASE a.v WHEN b.v THEN a.v ELSE b.v END AS c FROM {a} a FULL JOIN {b} b ON a.n = b.n",
)
"""One query of each way in which columns of two types meet."""
QUERIES = (
    *MEETINGS,
    "SELECT v AS u, n FROM {a} UNION SELECT v, n FROM {b}",
    "SELECT v AS u FROM {b} UNION ALL SELECT v FROM {a} UNION ALL SELECT w FROM {b}",
    f"SELECT n, count(DISTINCT u) AS c, min(u) AS lo, max(u) AS hi FROM ({BOTH}) q GROUP BY n",
    f"SELECT u, n FROM ({BOTH}) q WHERE u = {{lit_x}} OR u IN ({{lit_x}}, {{lit_z}})",
    f"SELECT q.n AS n, q.u AS u, b.k AS k FROM ({BOTH}) q JOIN {{b}} b ON q.u = b.v",
    "SELECT a.id AS id, a.v AS v, b.n AS n FROM {a} a LEFT JOIN {b} b ON a.v = b.k",
    "SELECT a.v AS v, b.k AS k FROM {a} a FULL JOIN {b} b ON a.v = b.k",
    "SELECT a.n AS n, count(*) AS c, sum(b.n) AS s, max(b.n) AS m FROM {a} a JOIN {b} b ON a.v = b.k GROUP BY a.n",
    "SELECT b.n AS n, count(*) AS c FROM {a} a JOIN {b} b ON a.w = b.k AND a.v = b.w GROUP BY b.n",
    "SELECT b.v AS v, count(*) AS c, sum(a.n) AS s FROM {a} a LEFT JOIN {b} b ON a.v = b.k GROUP BY b.v",
    "SELECT a.id AS id, b.k AS k FROM {a} a JOIN {b} b ON a.v = b.v",
    "SELECT b.k AS k FROM {b} b WHERE b.v IN (SELECT v FROM {a})",
    "SELECT a.v AS v, a.n AS n FROM {a} a WHERE EXISTS (SELECT 1 FROM {b} b WHERE b.k = a.v)",
    "SELECT coalesce(a.v, b.v) AS u, if(a.v = b.v, a.v, b.v) AS c FROM {a} a LEFT JOIN {b} b ON a.n = b.n",
    "SELECT a.id AS id, nullif(a.v, b.v) AS d, greatest(a.v, b.v) AS g FROM {a} a JOIN {b} b ON a.n = b.n",
    "SELECT v, count(*) AS c, count(DISTINCT w) AS d, min(w) AS lo, max(w) AS hi FROM {a} GROUP BY v",
    "SELECT DISTINCT v, w FROM {b}",
    "SELECT k, v FROM {b} WHERE v = {lit_x}",
    "SELECT k, n FROM {b} WHERE v <> {lit_x} AND w IN ({lit_y}, {lit_z})",
    "SELECT count_if(v = {lit_x}) AS c, count(*) AS r FROM {b}",
    "SELECT CASE WHEN v = w THEN 'same' WHEN v < w THEN 'less' END AS c, count(*) AS r FROM {a} GROUP BY 1",
    "SELECT v, w FROM {a} WHERE v BETWEEN {lit_x} AND {lit_y}",
    "SELECT id, v, w FROM {a} WHERE v IN (w, {lit_x})",
)
"""The tables are a, with columns id, v, n and w, and b, with k, v, n and w; v of a and w of b have one type, as have v
of b and w of a.
"""


def _by_driver() -> Iterator[Any]:
    return iter(())


def _by_spark() -> Iterator[Any]:
    yield mock.patch.object(local_executor, "merge_aggregates", return_value=None)


def _from_sources() -> Iterator[Any]:
    yield mock.patch.object(local_reads, "LOCAL_ROWS_MAX", -1)
    yield mock.patch.object(aggregates.IncrementalAggregate, "of", return_value=None)


WAYS = {"by the driver": _by_driver, "by Spark": _by_spark, "from the sources": _from_sources}
