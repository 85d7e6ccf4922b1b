"""Selection of rows by a filter, and removal of a few rows from many."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WORDS: Final = {8 * width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}


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
    if not dropped.any():
        return batch
    kept = ~dropped
    mask, num_rows = pa.array(kept), int(np.count_nonzero(kept))
    columns = [
        _of_fixed_width(column, kept, num_rows) if _is_plain(column) else column.filter(mask)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch.filter(mask)


def _is_plain(column: pa.Array) -> bool:
    return column.null_count == 0 and pa.types.is_primitive(column.type) and column.type.bit_width in _WORDS


def _of_fixed_width(column: pa.Array, kept: npt.NDArray[np.bool_], num_rows: int) -> pa.Array:
    """Do the same as Arrow's filter, in half its time, into memory of Arrow as that does."""
    word = _WORDS[column.type.bit_width]
    values = np.frombuffer(column.buffers()[1], word, column.offset + len(column))[column.offset :]
    data = pa.allocate_buffer(num_rows * word.itemsize)
    np.frombuffer(data, word)[:] = values[kept]
    return pa.Array.from_buffers(column.type, num_rows, [None, data], 0)
