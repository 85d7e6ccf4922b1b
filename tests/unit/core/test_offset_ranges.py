from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import CorruptDataError, OffsetRange
from streamhouse_spark.core.offset_ranges import OffsetSet

offset_lists = st.lists(st.integers(0, 400), unique=True).map(sorted)


def _of(offsets: list[int]) -> OffsetSet:
    return OffsetSet.of(np.array(offsets, np.int64))


@given(offset_lists)
def test_text_keeps_every_offset(offsets: list[int]) -> None:
    runs = OffsetSet.from_text(_of(offsets).to_text(), where="f")
    assert runs.offsets().tolist() == offsets
    assert runs.num_rows == len(offsets)


@given(offset_lists, st.integers(0, 400), st.integers(0, 100))
def test_rows_of_an_offset_range_are_found(offsets: list[int], start: int, length: int) -> None:
    wanted = OffsetRange(start, start + length)
    runs = _of(offsets)
    first, last = runs.rows_of(wanted)
    assert offsets[first:last] == [o for o in offsets if wanted.start <= o < wanted.end]
    assert runs.within(wanted).offsets().tolist() == offsets[first:last]


@given(offset_lists, st.data())
def test_rows_of_an_offset_set_have_its_offsets(offsets: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(offsets))), unique=True) if offsets else st.just([]))
    assert _of(offsets).offsets_of(np.array(rows, np.int64)).tolist() == [offsets[row] for row in rows]


@given(offset_lists, st.integers(0, 400))
def test_concat_joins_what_touches(offsets: list[int], cut: int) -> None:
    parts = [_of([o for o in offsets if o < cut]), _of([o for o in offsets if o >= cut])]
    joined = OffsetSet.concat(parts)
    assert joined.offsets().tolist() == offsets
    assert len(joined.starts) == len(_of(offsets).starts)


def test_concat_out_of_order() -> None:
    with pytest.raises(ValueError, match="out of order"):
        OffsetSet.concat([_of([5, 6]), _of([6, 7])])


def test_a_dense_offset_set_is_stored_as_a_range() -> None:
    runs = OffsetSet.dense(10, 5)
    assert runs.range == OffsetRange(10, 15)
    assert json.loads(runs.to_text()) == {"version": 1, "rows": 5, "start": 10}
    assert OffsetSet.dense(3, 0).num_rows == 0


def test_large_offsets_and_scattered_rows_stay_small() -> None:
    offsets = np.arange(0, 3_000_000, 3, dtype=np.int64) + 2**40
    text = OffsetSet.of(offsets).to_text()
    assert len(text) < 1_000
    assert np.array_equal(OffsetSet.from_text(text, where="f").offsets(), offsets)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"version":2,"rows":1,"start":0}',
        '{"version":1,"rows":3,"start":0,"runs":2,"lengths":{"bytes":3,"zstd":""},"gaps":{"bytes":1,"zstd":""}}',
        _of([1, 2, 9]).to_text().replace('"rows":3', '"rows":4'),
        _of([1, 2, 9]).to_text().replace('"runs":2', '"runs":3'),
    ],
)
def test_damaged_text_of_offsets_is_corrupt_data(text: str) -> None:
    with pytest.raises(CorruptDataError, match="footer of some file"):
        OffsetSet.from_text(text, where="some file")


@given(offset_lists, offset_lists)
def test_offset_sets_intersect_and_subtract_as_sets_do(first, second):
    one, other = (OffsetSet.of(np.array(offsets, np.int64)) for offsets in (first, second))
    both = sorted(set(first) & set(second))
    assert one.common(other).offsets().tolist() == both
    assert bool(one.common(other)) == bool(both)
    rest = OffsetSet.of(np.array(sorted(set(second) - set(first)), np.int64))
    assert OffsetSet.union([rest, one]) == OffsetSet.of(np.array(sorted({*first, *second}), np.int64))
    if both:
        with pytest.raises(ValueError, match="overlap"):
            OffsetSet.union([one, other])
