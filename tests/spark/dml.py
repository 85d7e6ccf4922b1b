"""Helpers of the tests of UPDATE, DELETE and MERGE."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.errors import PySparkException

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


def at_once(spark: Any, statements: list[str], times: int) -> int:
    """Run each statement some times, side by side, until it succeeded; how many were in conflict."""
    barrier = threading.Barrier(len(statements))

    def run(statement: str) -> int:
        session = spark.newSession()
        barrier.wait(240)
        conflicts = 0
        for _ in range(times):
            while True:
                try:
                    session.sql(statement)
                    break
                except PySparkException as error:
                    assert "COMMIT_CONFLICT" in str(error), error  # noqa: PT017 - any other is a failure
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(len(statements)) as pool:
        return sum(pool.map(run, statements))
