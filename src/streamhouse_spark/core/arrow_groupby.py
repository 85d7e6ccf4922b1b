"""Grouping and sorting by columns of any name: Arrow treats a name with a leading dot as a path into structs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Return the distinct rows, in no particular order."""
    numbers = _numbers(rows)
    groups = _with_row_numbers(rows).group_by(numbers, use_threads=False).aggregate([])
    return groups.select(numbers).rename_columns(rows.column_names)


def sum_by_group(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the columns ``by`` and the sums of all others, one row per group. A sum with a null part is null."""
    summed_names = [name for name in rows.column_names if name not in by]
    selected = rows.select([*by, *summed_names])
    keys, summed = (_numbers(selected)[: len(by)], _numbers(selected)[len(by) :])
    keep_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    groups = (
        _with_row_numbers(selected)
        .group_by(keys, use_threads=False)
        .aggregate([(n, "sum", keep_nulls) for n in summed])
    )
    return groups.select([*keys, *(f"{number}_sum" for number in summed)]).rename_columns([*by, *summed_names])


def sort_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sort the rows by the columns ``by``, ascending, nulls last."""
    keys = [(str(rows.column_names.index(name)), "ascending") for name in by]
    return _with_row_numbers(rows).sort_by(keys).rename_columns(rows.column_names)


def _numbers(rows: pa.Table) -> list[str]:
    return [str(place) for place in range(rows.num_columns)]


def _with_row_numbers(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(_numbers(rows))
