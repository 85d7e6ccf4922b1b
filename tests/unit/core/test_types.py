"""Offset ranges and the values around them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import BucketOffsets, InvalidNameError, OffsetRange, Transaction
from streamhouse_spark.core.types import TableName, TablePath

RANGES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda t: OffsetRange(min(t), max(t)))


@given(RANGES, RANGES)
def test_intersections_are_those_of_sets(a, b):
    both = a.intersect(b)
    assert set(range(both.start, both.end)) == set(range(a.start, a.end)) & set(range(b.start, b.end))
    assert len(both) == both.end - both.start
    assert bool(both) == (len(both) > 0)
    assert a.start <= both.start


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (2, 1), (-2, -1)])
def test_what_is_no_range(start, end):
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(start, end)


def test_offset_ranges_are_ordered_hashable_values():
    assert OffsetRange(1, 3) == OffsetRange(1, 3)
    assert str(OffsetRange(1, 3)) == "[1, 3)"
    assert sorted([OffsetRange(2, 3), OffsetRange(1, 9)]) == [OffsetRange(1, 9), OffsetRange(2, 3)]
    assert len({OffsetRange(1, 3), OffsetRange(1, 3)}) == 1


def test_bucket_offsets_are_sorted_and_count_rows():
    offsets = BucketOffsets({3: OffsetRange(0, 5), 1: OffsetRange(10, 12)})
    assert list(offsets) == [1, 3]
    assert offsets.num_rows == 7
    assert offsets == {1: OffsetRange(10, 12), 3: OffsetRange(0, 5)}
    assert repr(offsets) == "BucketOffsets({1: [10, 12), 3: [0, 5)})"
    assert offsets.get(2) is None
    assert pickle.loads(pickle.dumps(offsets)) == offsets
    assert BucketOffsets({}).num_rows == 0
    with pytest.raises(KeyError):
        offsets[2]
    with pytest.raises(TypeError):
        offsets[1] = OffsetRange(0, 0)  # type: ignore[index]


def test_table_names_reject_verbs_that_need_a_table():
    path = TablePath("sales", "orders")
    assert str(path) == "sales.orders"
    assert str(TableName(path, "lake")) == "sales.orders$lake"
    assert TableName(path).require_table("drop") is path
    with pytest.raises(InvalidNameError, match=r"cannot drop sales\.orders\$lake: .* are read-only"):
        TableName(path, "lake").require_table("drop")


def test_transactions_are_equal_and_picklable_values():
    assert Transaction("a", 1) == Transaction("a", 1, None)
    assert pickle.loads(pickle.dumps(Transaction("a", 1, "q"))) == Transaction("a", 1, "q")
