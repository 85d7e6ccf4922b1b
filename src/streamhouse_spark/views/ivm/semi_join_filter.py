"""Filters on column values, by which a source skips files and segments. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.python_values import is_beyond_python

VALUES_MAX: Final = 1_000
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9 _.:/@+-]*")


def build_filter(rows: pa.Table) -> str:
    """Return an SQL condition that holds for each of the rows; empty if there is none.

    It lists the values of each column, or their range if there are many.
    """
    conditions = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        values = column.unique()
        if not is_beyond_python(values):
            conditions.append(
                in_filter(name, values.to_pylist()) if len(values) <= VALUES_MAX else _between_filter(name, values)
            )
    return " AND ".join(filter(None, conditions))


def _between_filter(column: str, values: pa.Array) -> str:
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        return ""
    ends = pc.min_max(values).as_py()
    least, greatest = _literal(ends["min"]), _literal(ends["max"])
    if least is None or greatest is None:
        return ""
    return f"({column} BETWEEN {least} AND {greatest}{f' OR {column} IS NULL' if values.null_count else ''})"


def in_filter(column: str, values: Sequence[object]) -> str:
    """Return the condition as SQL; empty if there are too many values or one has no plain literal."""
    if len(values) > VALUES_MAX:
        return ""
    literals = [_literal(value) for value in values if value is not None]
    if None in literals:
        return ""
    parts = [f"{column} IN ({', '.join(map(str, literals))})"] if literals else []
    if len(literals) < len(values):
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})" if parts else ""


def _literal(value: object) -> str | None:
    if type(value) is int:
        return str(value)
    if type(value) is dt.date:
        return f"DATE'{value:%Y-%m-%d}'" if value.year > 999 else None
    return f"'{value}'" if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) else None
