"""Rows that a filter wants, and leaving rows out: few, many, none, all; at every place."""

from __future__ import annotations

import decimal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark.core.arrow_rows import copy_live_rows, drop_rows, select_matching_rows, slice_live_rows

NUM_ROWS = 4000
ROWS = pa.record_batch({
    "id": range(NUM_ROWS),
    "name": [None if i % 7 == 0 else f"name-{i}" for i in range(NUM_ROWS)],
    "tags": [[i] * (i % 3) for i in range(NUM_ROWS)],
    "flag": [i % 5 == 0 for i in range(NUM_ROWS)],
    "small": pa.array([i % 100 for i in range(NUM_ROWS)], pa.int8()),
    "price": pa.array([decimal.Decimal(i) for i in range(NUM_ROWS)], pa.decimal128(10, 2)),
    "ratio": pa.array([i / 3 for i in range(NUM_ROWS)], pa.float32()),
    "seen": pa.array(range(NUM_ROWS), pa.timestamp("us", "UTC")),
    "maybe": [None if i % 11 == 0 else i for i in range(NUM_ROWS)],
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
    found = drop_rows(batch, dropped)
    found.validate(full=True)
    assert found.schema == ROWS.schema
    assert found.to_pylist() == [row for row, gone in zip(batch.to_pylist(), dropped, strict=True) if not gone]


@pytest.mark.parametrize("places", [[], [0], [NUM_ROWS - 1], [5, 6, 9], range(0, NUM_ROWS, 3), range(NUM_ROWS)])
def test_live_rows_that_a_filter_wants_are_chosen_at_once(places):
    rows, gone = pa.Table.from_batches([ROWS.slice(0, 10), ROWS.slice(10)]), np.array(places, np.int64)
    found = select_matching_rows(rows, pc.field("maybe") > 5, gone)
    found.validate(full=True)
    assert found.schema == ROWS.schema
    expected = [row for i, row in enumerate(ROWS.to_pylist()) if i not in set(places) and (row["maybe"] or 0) > 5]
    assert found.to_pylist() == expected
    assert copy_live_rows(ROWS, gone).equals(drop_rows(ROWS, np.isin(np.arange(NUM_ROWS), gone)))


MANY = pa.record_batch({"id": range(20_000)})


@pytest.mark.parametrize("places", [[], [0], [7], [9, 10, 11], [0, 19_999], range(5_000, 9_000), range(20_000)])
def test_long_parts_between_deleted_rows_are_not_copied(places):
    parts = slice_live_rows(MANY, np.array(places, np.int64))
    assert pa.Table.from_batches(parts, MANY.schema)["id"].to_pylist() == sorted(set(range(20_000)) - set(places))
    assert {part.column(0).buffers()[1].address for part in parts} <= {MANY.column(0).buffers()[1].address}


def test_rows_between_many_deleted_ones_are_better_copied():
    assert slice_live_rows(MANY, np.arange(0, 20_000, 400)) is None
    assert slice_live_rows(MANY.slice(0, 0), np.zeros(0, np.int64)) == []


def test_a_filter_that_is_no_condition_is_told():
    with pytest.raises(pa.ArrowTypeError, match="evaluate to bool, but id evaluates to int64"):
        select_matching_rows(pa.Table.from_batches([ROWS]), pc.field("id"))


@pytest.mark.parametrize("low", [0, 7, NUM_ROWS - 1, NUM_ROWS])
def test_a_filter_selects_exactly_its_rows(low):
    rows = pa.Table.from_batches([ROWS.slice(0, 10), ROWS.slice(10)])
    found = select_matching_rows(rows, pc.field("id") >= low)
    assert found.schema == ROWS.schema
    assert found["id"].to_pylist() == list(range(low, NUM_ROWS))
    assert select_matching_rows(rows, pc.field("name") == "name-5")["id"].to_pylist() == [5]


THREADS = """
import os
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from streamhouse_spark.expressions.filters import (parse_filter)
from streamhouse_spark.core.arrow_rows import (select_matching_rows)

rows = pa.table({"id": np.arange(200_000)})
select_matching_rows(rows.slice(0, 1), pc.field("id") > 3)  # what the first use loads may have threads of its own
before = len(os.listdir("/proc/self/task"))
parse_filter(pc.field("id") > 3).bind(rows.schema)
assert select_matching_rows(rows, pc.field("id") > 3).num_rows == 199_996
print(before, len(os.listdir("/proc/self/task")))
rows.filter(pc.field("id") > 3)
print(len(os.listdir("/proc/self/task")))
"""


def test_filters_leave_no_thread_with_rows():
    done = subprocess.run([sys.executable, "-c", THREADS], check=True, capture_output=True, text=True)
    before, after, with_threads = map(int, done.stdout.split())
    assert before == after < with_threads
