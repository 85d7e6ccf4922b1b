"""Planning a round is pure: from what log and lake say, the next offsets per bucket."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import LakeMismatchError, LakeRolledBackError, OffsetRange
from streamhouse_spark.lake.tiering.plan import (
    GROUP_BYTES,
    GROUPS_MIN,
    TieringTask,
    group_tasks,
    plan_tiering,
    require_progress,
    task_bytes,
)
from streamhouse_spark.lake.types import WriteContext
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import BucketLog


def _log(row_counts: list[int], start: int = 0) -> BucketLog:
    """Segments of these sizes, ten bytes a row."""
    segments, offset = [], 0
    for i, rows in enumerate(row_counts):
        segments.append(Segment(0, offset, rows, 10 * rows, 1, i + 2, 0, 0, uuid=f"{i:032x}"))
        offset += rows
    return BucketLog(start, offset, tuple(segments))


def _next(log: BucketLog, lake_offset: int, target: int, bytes_max: int = 10**9) -> OffsetRange | None:
    return plan_tiering({0: log}, {0: lake_offset}, {0: target}, table="t", bytes_max=bytes_max).get(0)


def test_a_round_takes_everything_up_to_its_target():
    log = _log([5, 5, 5])
    assert _next(log, 0, 15) == OffsetRange(0, 15)
    assert _next(log, 7, 15) == OffsetRange(7, 15)
    assert _next(log, 0, 12) == OffsetRange(0, 12)
    assert _next(log, 15, 15) is None
    assert _next(log, 12, 10) is None
    assert plan_tiering({}, {}, {}, table="t") == {}


def test_a_round_is_capped_between_segments_and_takes_at_least_one():
    log = _log([5, 5, 50, 5])
    assert _next(log, 0, 65, 100) == OffsetRange(0, 10)
    assert _next(log, 10, 65, 100) == OffsetRange(10, 60)
    assert _next(log, 60, 65, 100) == OffsetRange(60, 65)


@given(st.lists(st.integers(1, 20), max_size=12), st.integers(1, 300), st.data())
def test_rounds_reach_the_target_and_never_pass_it(row_counts, bytes_max, data):
    log = _log(row_counts)
    target = data.draw(st.integers(0, log.end))
    offset = data.draw(st.integers(0, log.end))
    rounds = 0
    while (found := _next(log, offset, target, bytes_max)) is not None:
        assert found.start == offset
        assert found.end <= target
        assert found
        offset = found.end
        rounds += 1
        assert rounds <= len(row_counts)
    assert offset >= target


def test_rows_in_neither_log_nor_lake_are_an_error():
    with pytest.raises(LakeRolledBackError, match="so the rows between are lost"):
        _next(_log([5, 5], start=5), 3, 10)


def test_a_lake_ahead_of_the_log_is_an_error():
    with pytest.raises(LakeMismatchError, match="the log ends at 10"):
        _next(_log([5, 5]), 11, 10)


def test_a_lake_that_went_back_is_an_error():
    require_progress({}, {}, table="t")
    require_progress({0: 3}, {0: 3, 1: 7}, table="t")
    with pytest.raises(LakeRolledBackError, match="bucket 1 up to offset 0, expected 4"):
        require_progress({0: 3, 1: 4}, {0: 9}, table="t")


def _tasks(*sizes: int) -> list[TieringTask]:
    context = cast("WriteContext", None)
    splits = [
        LogSplit(
            "u", bucket, OffsetRange(0, size), (Segment(bucket, 0, size, size, 1, 2, 0, 0, uuid=f"{bucket:032x}"),), {}
        )
        for bucket, size in enumerate(sizes)
    ]
    return [TieringTask(split, context) for split in splits]


def test_few_tasks_are_groups_of_their_own():
    assert group_tasks([]) == []
    assert group_tasks(_tasks(1, 10**9, 5)) == [[0], [1], [2]]
    assert len(group_tasks(_tasks(*[1] * GROUPS_MIN))) == GROUPS_MIN


@given(st.lists(st.integers(0, 3 * GROUP_BYTES), max_size=200))
def test_groups_hold_each_task_once_and_are_of_about_equal_bytes(sizes):
    tasks = _tasks(*sizes)
    groups = group_tasks(tasks)
    assert sorted(position for group in groups for position in group) == list(range(len(sizes)))
    assert len(groups) >= min(len(sizes), GROUPS_MIN)
    held = [sum(task_bytes(tasks[position]) for position in group) for group in groups]
    if held:
        # Graham: at most 4/3 of the best, which is at least the mean and the largest task.
        best = max(sum(held) / len(held), *map(task_bytes, tasks))
        assert max(held) <= 4 / 3 * best + len(sizes)


def test_thousands_of_small_tasks_are_few_groups():
    assert len(group_tasks(_tasks(*[100] * 5000))) == GROUPS_MIN
