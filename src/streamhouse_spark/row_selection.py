"""Leaving a few rows out of many."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_RUN_ROWS_MIN: Final = 400
"""Shorter runs of rows between those that go are copied slower one by one than Arrow's filter looks at each row."""


def without(batch: pa.RecordBatch, dropped: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows that are not ``dropped``, in their order."""
    places = np.flatnonzero(dropped)
    if not len(places):
        return batch
    if len(places) * _RUN_ROWS_MIN > len(dropped):
        return batch.filter(pa.array(~dropped))
    starts = [0, *(places + 1).tolist()]
    ends = [*places.tolist(), len(dropped)]
    return pa.concat_batches([batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)])
