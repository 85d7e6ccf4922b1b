"""Ranges of a bucket and the pieces that they are cut into: every offset once, in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import OffsetRange, OffsetsTrimmedError
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.segment import SegmentIndex
from streamhouse_spark.log.segments.scan import LogSplit, hot_range, plan_range, split_by_size
from streamhouse_spark.log.state import BucketLog, fold
from unit.log.states import appended, record, segment


def with_batches(base: int, batches: list[int], row_bytes: int, uuid: str):
    """A segment object of these record batches."""
    rows = np.array(batches, np.int64)
    none = np.zeros(0, np.int64)
    index = SegmentIndex(1 << 16, np.cumsum(rows) - rows, rows, np.zeros(0, np.uint64), none, none)
    made = segment(base, sum(batches), uuid=uuid, size_bytes=sum(batches) * row_bytes)
    return replace(made, index_bytes=index.to_bytes())


LAYOUTS = st.lists(
    st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 40)), min_size=1, max_size=6
)


@given(layout=LAYOUTS, target_bytes=st.integers(1, 3000), data=st.data())
def test_pieces_cover_a_range_once_and_in_order(layout, target_bytes, data):
    segments, base = [], 0
    for at, (batches, row_bytes) in enumerate(layout):
        segments.append(with_batches(base, batches, row_bytes, f"s{at}"))
        base += sum(batches)
    start = data.draw(st.integers(0, base - 1))
    end = data.draw(st.integers(start + 1, base))
    split = plan_range(appended(*segments), 0, OffsetRange(start, end))
    pieces = split_by_size(split, target_bytes)
    position = start
    for piece in pieces:
        assert piece.offsets.start == position
        assert piece.offsets
        position = piece.offsets.end
        assert all(s.offsets.intersect(piece.offsets) for s in piece.segments)
    assert position == end
    assert sum(p.num_rows for p in pieces) == end - start
    for piece in pieces[:-1]:
        assert piece.size_bytes >= target_bytes - len(piece.segments), "only the last piece is small"
    assert [LogSplit.from_json(p.to_json()) for p in pieces] == pieces


def test_a_range_outside_the_log_is_refused():
    state = fold(appended(segment(0, 3, uuid="a"), segment(3, 2, uuid="b")), record(4, Trim({0: 3})))
    assert plan_range(state, 0, OffsetRange(3, 5)).num_rows == 2
    for start, end in ((2, 5), (0, 1), (3, 6)):
        with pytest.raises(OffsetsTrimmedError):
            plan_range(state, 0, OffsetRange(start, end))


@pytest.mark.parametrize(
    ("start", "end", "lake", "expected"),
    [(0, 5, 0, (0, 5)), (0, 5, 3, (3, 5)), (3, 5, 3, (3, 5)), (3, 5, 5, (5, 5)), (3, 5, 7, (7, 7)), (0, 0, 0, (0, 0))],
)
def test_the_hot_range_begins_exactly_where_the_lake_ends(start, end, lake, expected):
    assert hot_range(BucketLog(start, end), lake) == OffsetRange(*expected)


def test_a_gap_between_lake_and_log_is_an_error():
    with pytest.raises(OffsetsTrimmedError):
        hot_range(BucketLog(4, 9), 3)
