"""Trimming by time to live and by partition, against a model that looks at every row."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.log.actions import Append, Create, TieredSnapshot
from streamhouse_spark.log.gc.retention import CONSUMER_LIMIT_MS, plan_trim
from streamhouse_spark.log.history_index import ConsumerPosition
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.schema.partitioning import AutoPartition
from streamhouse_spark.schema.table_schema import TableSchema

DAY_MS = 86_400_000
TODAY = 100
NOW_MS = TODAY * DAY_MS + 5
SCHEMA = TableSchema.of("id BIGINT, day DATE, land STRING")

# A segment: rows, the days of its partitions (None: not known, or null among them), its age in days.
segments = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.none() | st.lists(st.none() | st.integers(TODAY - 6, TODAY + 2), min_size=1, max_size=3),
        st.integers(0, 6),
    ),
    max_size=8,
)


def state_of(parts: list, lake_offset: int, consumer: tuple[int, int] | None) -> TableState:
    state = fold(None, record(1, Create("a.t", SCHEMA, ("land", "day"), 1, {}, "lake/a/t"), time_ms=0))
    for number, (rows, days, age) in enumerate(parts, start=2):
        time_ms = NOW_MS - age * DAY_MS
        found = None if days is None else tuple(("de", day) for day in days)
        segment = Segment(
            0, state.buckets[0].end, rows, 10, 1, number, time_ms, time_ms, partitions=found, uuid=f"{number:032x}"
        )
        state = fold(state, record(number, Append((segment,), (None,)), time_ms=time_ms))
    if lake_offset:
        state = fold(state, record(state.version + 1, TieredSnapshot(1, {0: lake_offset}), time_ms=NOW_MS))
    if consumer is not None:
        offset, silent_days = consumer
        state = replace(state, consumers={"c": ConsumerPosition({0: offset}, NOW_MS - silent_days * DAY_MS)})
    return state


def record(number: int, action: object, *, time_ms: int) -> Record:
    return Record(number=number, table_uuid="0" * 32, attempt="a", time_ms=time_ms, actions=(action,))


@given(
    segments,
    st.integers(0, 30),
    st.none() | st.tuples(st.integers(0, 30), st.integers(0, 20)),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_exactly_what_may_go_goes(parts, lake_offset, consumer, ttl_days, retention):
    end = sum(rows for rows, _, _ in parts)
    lake_offset = min(lake_offset, end)
    state = state_of(parts, lake_offset, consumer)
    rule = AutoPartition("day", 1, "DAY", retention, "UTC")
    found = plan_trim(state, NOW_MS, ttl_days * DAY_MS, lake_enabled=True, auto_partition=rule)

    held = end
    if consumer is not None:
        offset, silent_days = consumer
        is_active = ttl_days == 0 or silent_days * DAY_MS < ttl_days * DAY_MS + CONSUMER_LIMIT_MS
        held = offset if is_active else end
    expected = offset = 0
    for rows, days, age in parts:
        offset += rows
        is_old = ttl_days > 0 and age >= ttl_days
        is_expired = days is not None and all(day is not None and day < TODAY - retention for day in days)
        if offset > min(lake_offset, held) or not (is_old or is_expired):
            break
        expected = offset
    assert found.get(0, 0) == expected


def test_without_a_rule_nothing_is_trimmed_by_partition():
    state = state_of([(3, [TODAY - 6], 0)], 3, None)
    assert plan_trim(state, NOW_MS, 0, lake_enabled=True) == {}
    assert plan_trim(state, NOW_MS, DAY_MS, lake_enabled=True) == {}
