"""Leaving rows out: few, many, none, all; at every place."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark.row_selection import without

NUM_ROWS = 4000
ROWS = pa.record_batch({
    "id": range(NUM_ROWS),
    "name": [None if i % 7 == 0 else f"name-{i}" for i in range(NUM_ROWS)],
    "tags": [[i] * (i % 3) for i in range(NUM_ROWS)],
})  # fmt: skip


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([], id="none"),
        pytest.param([0], id="first"),
        pytest.param([NUM_ROWS - 1], id="last"),
        pytest.param([5, 6, 7], id="neighbours"),
        pytest.param([0, 2000, NUM_ROWS - 1], id="ends"),
        pytest.param(range(0, NUM_ROWS, 500), id="few"),
        pytest.param(range(0, NUM_ROWS, 3), id="many"),
        pytest.param(range(NUM_ROWS), id="all"),
    ],
)
@pytest.mark.parametrize("start", [0, 3])
def test_the_others_are_left_in_their_order(places, start):
    dropped = np.zeros(NUM_ROWS, np.bool_)
    dropped[list(places)] = True
    batch, dropped = ROWS.slice(start), dropped[start:]
    found = without(batch, dropped)
    found.validate(full=True)
    assert found.schema == ROWS.schema
    assert found.to_pylist() == [row for row, gone in zip(batch.to_pylist(), dropped, strict=True) if not gone]
