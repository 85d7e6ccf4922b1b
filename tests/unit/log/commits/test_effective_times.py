"""The latest time at which rows can have been committed, whatever single clocks said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.log.gc.retention import effective_times_ms
from unit.log.states import segment


def times(*commit_times: int) -> list[int]:
    return effective_times_ms([segment(at, 1, time_ms=ms) for at, ms in enumerate(commit_times)])


def test_a_clock_that_ran_ahead_is_corrected_by_later_records():
    assert times(1, 2, 3) == [1, 2, 3]
    assert times(1, 99, 3) == [1, 3, 3]
    assert times() == []


@given(st.lists(st.integers(0, 100), max_size=30))
def test_times_never_decrease_and_are_never_later_than_said(commit_times):
    found = times(*commit_times)
    assert found == sorted(found)
    assert all(effective <= said for effective, said in zip(found, commit_times, strict=True))
    assert not commit_times or found[-1] == commit_times[-1]
