"""Rows of tables in an order that tests can compare."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa


class Readable(Protocol):
    """A table, the lake of one, or anything else with rows in Arrow."""

    def to_arrow(self) -> pa.Table: ...


Rows = pa.Table | pa.RecordBatch | Readable


def ids(rows: Rows) -> list[int]:
    """Return the values of the column ``id``, sorted."""
    return sorted(_in_arrow(rows)["id"].to_pylist())


def rows_by_id(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows, sorted by the column ``id``."""
    return sorted(_in_arrow(rows).to_pylist(), key=lambda row: row["id"])


def sorted_tuples(rows: Rows) -> list[tuple[Any, ...]]:
    """Return the rows as tuples, sorted."""
    return sorted(tuple(row.values()) for row in _in_arrow(rows).to_pylist())


def rows(*numbers: int) -> list[dict[str, int]]:
    """Return a row for each id, spread over the days 0, 1 and 2."""
    return [{"id": number, "day": number % 3} for number in numbers]


def _in_arrow(rows: Rows) -> pa.Table | pa.RecordBatch:
    return rows if isinstance(rows, pa.Table | pa.RecordBatch) else rows.to_arrow()
