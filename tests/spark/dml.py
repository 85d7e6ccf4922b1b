"""Helpers of the tests of UPDATE, DELETE and MERGE."""

from __future__ import annotations

from typing import Any

from streamhouse_spark import Table, Warehouse

KEYED = "id BIGINT, name STRING, n INT, PRIMARY KEY (id)"


def found(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def merge_into(name: str, values: str, clauses: str, on: str = "t.id = s.id", columns: str = "id, name, n") -> str:
    return f"MERGE INTO {name} t USING (SELECT * FROM VALUES {values} AS v({columns})) s ON {on} {clauses}"


def rows(spark: Any, name: str) -> dict[Any, tuple[Any, ...]]:
    """Return the rows in the order of the first column."""
    return {row[0]: row[1:] for row in found(spark, f"SELECT * FROM {name}")}


def opened(wh: Warehouse, name: str) -> Table:
    return wh.table(name.removeprefix("streamhouse."))
