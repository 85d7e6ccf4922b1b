"""Planning the requests for byte ranges: whatever is asked comes back, in few requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.storage import prefetch
from streamhouse_spark.storage.prefetch import GAP_BYTES_MAX, RangePlan

OBJECT = bytes(i * 7 % 251 for i in range(2000))
RANGES = st.lists(st.tuples(st.integers(0, 2200), st.integers(0, 300)).map(lambda r: (r[0], r[0] + r[1])), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_limits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "GAP_BYTES_MAX", 20)
        patch.setattr(prefetch, "PIECE_BYTES_MAX", 128)
        yield


@given(RANGES)
def test_the_plan_gives_what_was_asked(ranges):
    plan = RangePlan.of(ranges)
    fetched = {(start, end): OBJECT[start:end] for start, end in plan.pieces}
    assert plan.assemble(fetched) == [OBJECT[start:end] for start, end in ranges]


@given(RANGES)
def test_pieces_are_sorted_apart_and_short(ranges):
    pieces = RangePlan.of(ranges).pieces
    assert all(0 < end - start <= 128 for start, end in pieces)
    assert all(before[1] <= after[0] for before, after in pairwise(pieces))


def test_near_ranges_are_one_piece_and_far_ones_two():
    assert RangePlan.of([(50, 60), (0, 10), (30, 40)]).pieces == ((0, 60),)
    assert RangePlan.of([(0, 10), (31, 40)]).pieces == ((0, 10), (31, 40))
    assert RangePlan.of([(5, 5)]).pieces == ()


def test_the_bytes_of_one_piece_are_not_copied():
    data = bytes(100)
    assert RangePlan.of([(10, 110)]).assemble({(10, 110): data})[0] is data


@pytest.mark.parametrize("bad", [(-1, 5), (5, 4)])
def test_a_range_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="not a byte range"):
        RangePlan.of([(0, 1), bad])


def test_a_gap_costs_less_than_a_request():
    assert GAP_BYTES_MAX <= 1 << 20
