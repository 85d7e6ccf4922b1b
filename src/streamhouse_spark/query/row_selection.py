"""Selection of rows by a filter, and removal of a few rows from many."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_RUN_ROWS_MIN: Final = 400
"""Shorter runs of rows between removed ones are slower to copy one by one than a test of each row by Arrow's filter."""


def matching(rows: pa.Table, filter_: pc.Expression) -> pa.Table:
    """Return the rows for which the filter is true, in their order, found by the calling thread.

    `pyarrow.Table.filter` takes Arrow's threads for it, and one of those may hold on to rows for a moment longer. Rows
    in Python's memory are freed under Python's lock, and a thread that asks for the lock while the interpreter ends
    aborts the process: so a command ended with code 134 after it had printed everything (Arrow issue 34314).
    """
    from pyarrow import acero  # loads pandas, where there is one

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(filter_), [source])
    return chosen.to_table(use_threads=False)


def without(batch: pa.RecordBatch, dropped: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows that are not ``dropped``, in their order."""
    places = np.flatnonzero(dropped)
    if not len(places):
        return batch
    if len(places) * _RUN_ROWS_MIN > len(dropped):
        return batch.filter(pa.array(~dropped))
    starts = [0, *(places + 1).tolist()]
    ends = [*places.tolist(), len(dropped)]
    return pa.concat_batches([batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)])
