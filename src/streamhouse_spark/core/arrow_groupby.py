"""Rows grouped and sorted by columns of any name: Arrow reads a name that begins with a dot as a path into structs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def distinct(rows: pa.Table) -> pa.Table:
    """Return each row once, in no order."""
    numbers = _numbers(rows)
    found = _with_row_numbers(rows).group_by(numbers, use_threads=False).aggregate([])
    return found.select(numbers).rename_columns(rows.column_names)


def sums(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return for each group of equal values in the columns ``by`` the sums of all others: these columns, then
    the sums. A sum of which one part is null is null.
    """
    others = [name for name in rows.column_names if name not in by]
    chosen = rows.select([*by, *others])
    keys, summed = (_numbers(chosen)[: len(by)], _numbers(chosen)[len(by) :])
    every = pc.ScalarAggregateOptions(skip_nulls=False)
    found = _with_row_numbers(chosen).group_by(keys, use_threads=False).aggregate([(n, "sum", every) for n in summed])
    return found.select([*keys, *(f"{number}_sum" for number in summed)]).rename_columns([*by, *others])


def in_order(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sort the rows by the columns ``by``, ascending, null last."""
    keys = [(str(rows.column_names.index(name)), "ascending") for name in by]
    return _with_row_numbers(rows).sort_by(keys).rename_columns(rows.column_names)


def _numbers(rows: pa.Table) -> list[str]:
    return [str(place) for place in range(rows.num_columns)]


def _with_row_numbers(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(_numbers(rows))
