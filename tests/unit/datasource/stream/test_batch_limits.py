"""How much one micro-batch takes: counted in rows and batches, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamhouse_spark.datasource.stream.batch_limits import BATCH_BYTES_MIN, BATCH_ROWS_MIN, limit_ends
from streamhouse_spark.log.state import TableState
from unit.log.states import appended, segment

KIB = 1 << 10


def table_of(row_bytes: dict[int, int], num_rows: int) -> TableState:
    """A segment a bucket."""
    made = [
        segment(0, num_rows, bucket=bucket, uuid=f"s{bucket}", size_bytes=size * num_rows)
        for bucket, size in row_bytes.items()
    ]
    return appended(*made, buckets=len(row_bytes))


def batches_of(state: TableState, max_bytes: int, batches_max: int = 10_000) -> list[dict[int, int]]:
    """What each batch takes of each bucket, up to the end."""
    found: list[dict[int, int]] = []
    at = dict.fromkeys(state.ends, 0)
    while at != state.ends and len(found) < batches_max:
        ends = limit_ends(state, at, state.ends, max_rows=None, max_bytes=max_bytes)
        found.append({b: ends[b] - at[b] for b in ends if ends[b] > at[b]})
        at = ends
    assert at == state.ends
    return found


def test_a_limit_below_a_row_for_each_bucket_is_filled_all_the_same():
    """512 rows of a kibibyte fit into the limit, of 4,096 buckets with two rows each."""
    state = table_of(dict.fromkeys(range(512), 16 * KIB), 2)
    batches = batches_of(state, 2 << 20)
    assert [sum(batch.values()) for batch in batches] == [128] * 8
    assert all(set(batch.values()) == {1} for batch in batches)
    assert {b for batch in batches[:4] for b in batch} == set(range(512)), "each has had its turn before any other two"


@pytest.mark.parametrize("max_bytes", [1, KIB, BATCH_BYTES_MIN // 2])
def test_a_batch_is_never_less_than_what_is_worth_one(max_bytes):
    small = table_of({0: 10, 1: 10}, 5000)
    assert [sum(batch.values()) for batch in batches_of(small, 1)] == [BATCH_ROWS_MIN] * 10
    wide = table_of({0: 100 * KIB, 1: 100 * KIB}, 40)
    assert [sum(batch.values()) for batch in batches_of(wide, max_bytes)] == [10] * 8
    huge = table_of({0: 10 << 20}, 3)
    assert batches_of(huge, max_bytes) == [{0: 1}] * 3


def test_large_rows_do_not_wait_for_ever_beside_small_ones():
    """No share of theirs is ever as large as one of them."""
    state = table_of({0: 100, 1: 64 << 20, 2: 64 << 20}, 100_000)
    at = dict.fromkeys(state.ends, 0)
    for _ in range(10):
        at = limit_ends(state, at, state.ends, max_rows=None, max_bytes=8 << 20)
    assert (at[1], at[2]) == (5, 5)
    assert at[0] > 90_000


def test_bytes_are_those_that_rows_have_in_memory():
    packed = [replace(segment(i * 1000, 1000, uuid=f"s{i}", size_bytes=KIB), compressed=True) for i in range(4)]
    known = appended(*(replace(s, unpacked_bytes=2 << 20) for s in packed))
    assert [sum(batch.values()) for batch in batches_of(known, 2 << 20)] == [1000] * 4
    guessed = appended(*packed)
    assert len(batches_of(guessed, 64_000)) == 4, "64 bytes a row where nothing else is known"
