"""First and last values of groups, computed per task and merged over all tasks. Pure.

A task returns up to ``room`` distinct values from each end of a group, each with its row count. A value among the first
of all rows is among the first in every task that has it. So the counts of all tasks add up exactly for as many values
as there is room, however rows are divided into tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.arrow_chunking import combine_chunks
from streamhouse_spark.views.ivm.min_max import (
    ALL_ROOM,
    Bools,
    Numbers,
    encode_rows,
    positions_in_groups,
    rank_values,
    run_starts,
)

LIST: Final = "__streamhouse_list"
"""The number of the list that a value belongs to; `ALL_ROWS` for the row count of a group."""
NUMBER: Final = "__streamhouse_number"
"""Number of rows of the group with the value; for changes, inserts minus deletes."""
ALL_ROWS: Final = -1
_STEP_ROWS: Final = 1 << 18
"""Rows that are merged at a time."""
_BATCH_ROWS: Final = 1 << 16


class FirstValues:
    """Reduces rows with grouping columns and one column per list. Null is a value that always has room.

    Output rows have the input columns, `LIST` and `NUMBER`. In a row of one list, the columns of the other lists are
    null.
    """

    def __init__(
        self, groups: Sequence[str], values: Sequence[str], room: int, whole: Collection[str] = frozenset()
    ) -> None:
        """``whole`` are columns whose values are all needed: they get `ALL_ROOM`."""
        self._groups, self._values = list(groups), list(values)
        self._rooms = {name: ALL_ROOM if name in whole else room for name in values}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partial: pa.Table | None = None
        pending: list[pa.RecordBatch] = []
        num_rows = 0
        for batch in batches:
            pending.append(batch)
            num_rows += batch.num_rows
            if num_rows >= _STEP_ROWS:
                partial, pending, num_rows = self._merge_batches(partial, pending), [], 0
        if num_rows:
            partial = self._merge_batches(partial, pending)
        if partial is not None:
            yield from partial.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    def _merge_batches(self, partial: pa.Table | None, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return the reduction of ``batches`` and of the earlier partial result."""
        rows = pa.Table.from_batches(batches)
        rows = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)))  # make each column nullable
        if partial is None:
            partial = _output_schema(rows.schema).empty_table()
        all_rows = pa.concat_tables([partial.select(rows.column_names), rows])
        lists = _merge_numbers(partial.column(LIST), np.zeros(rows.num_rows, np.int64))
        numbers = _merge_numbers(partial.column(NUMBER), np.ones(rows.num_rows, np.int64))
        groups = encode_rows(all_rows.select(self._groups))
        is_new = np.arange(all_rows.num_rows) >= partial.num_rows
        parts = [self._count_rows(all_rows, groups, numbers, is_new | (lists == ALL_ROWS))]
        for place, name in enumerate(self._values):
            chosen = is_new | (lists == place)
            parts.append(
                self._extreme_values(all_rows.filter(pa.array(chosen)), groups[chosen], numbers[chosen], place, name)
            )
        return pa.concat_tables(parts)

    def _count_rows(self, rows: pa.Table, groups: Numbers, numbers: Numbers, chosen: Bools) -> pa.Table:
        """Return the row count of each group."""
        totals = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
        np.add.at(totals, groups[chosen], numbers[chosen])
        present, first = np.unique(groups[chosen], return_index=True)
        return self._build_rows(rows, np.flatnonzero(chosen)[first], totals[present], ALL_ROWS, None)

    def _extreme_values(self, rows: pa.Table, groups: Numbers, numbers: Numbers, place: int, name: str) -> pa.Table:
        """Return the distinct values from both ends of each group that have room, and null."""
        values = combine_chunks(rows.column(name))
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        ranks = rank_values(values.filter(pa.array(valid)), "min")
        size = int(groups.max(initial=-1)) + 1
        filled, of_group = np.flatnonzero(valid), groups[valid]
        order = np.lexsort((ranks, of_group))
        begins = run_starts(of_group[order], ranks[order])
        totals = np.add.reduceat(numbers[filled[order]], begins) if len(begins) else numbers[:0]
        of_value = of_group[order][begins]
        within, counts = positions_in_groups(of_value, size), np.bincount(of_value, minlength=size)[of_value]
        stay = (within < self._rooms[name]) | (within >= counts - self._rooms[name])
        nulls = np.zeros(size, np.int64)
        np.add.at(nulls, groups[~valid], numbers[~valid])
        empty, first = np.unique(groups[~valid], return_index=True)
        places = np.concatenate([filled[order][begins][stay], np.flatnonzero(~valid)[first]])
        return self._build_rows(rows, places, np.concatenate([totals[stay], nulls[empty]]), place, name)

    def _build_rows(
        self, rows: pa.Table, positions: Numbers, numbers: Numbers, number: int, name: str | None
    ) -> pa.Table:
        selected = rows.select([*self._groups, *([] if name is None else [name])]).take(pa.array(positions))
        columns = {c: selected.column(c) for c in selected.column_names}
        schema = _output_schema(rows.schema)
        columns |= {field.name: pa.nulls(len(positions), field.type) for field in schema if field.name not in columns}
        columns |= {LIST: pa.array(np.full(len(positions), number, np.int32)), NUMBER: pa.array(numbers, pa.int64())}
        return pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)


def _output_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, (LIST, pa.int32()), (NUMBER, pa.int64())])


def _merge_numbers(column: pa.ChunkedArray, more: Numbers) -> Numbers:
    return np.concatenate([column.to_numpy().astype(np.int64), more])
