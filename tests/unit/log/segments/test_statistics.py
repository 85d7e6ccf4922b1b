"""Statistics of segments: what is recorded, what is not, and that they never prune a row that matches."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

from streamhouse_spark.log.segments.statistics import (
    PARTITIONS_MAX,
    STRING_CHARS_MAX,
    collect_partitions,
    collect_stats,
)
from streamhouse_spark.schema.default_expressions import constant_from_json

D = decimal.Decimal
NAN, INF = float("nan"), float("inf")


def stats_of(values, kind):
    rows = pa.table({"x": pa.array(values, kind)})
    found = collect_stats(rows, ["x"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found.get("x")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, -1], pa.int64(), [-1, 3, 1]),
        ([2**63 - 1, -(2**63)], pa.int64(), [-(2**63), 2**63 - 1, 0]),
        ([1.5, None], pa.float64(), [1.5, 1.5, 1]),
        ([0.1], pa.float32(), [0.10000000149011612, 0.10000000149011612, 0]),
        ([1.0, NAN], pa.float64(), None),
        ([1.0, INF], pa.float64(), None),
        ([-INF], pa.float64(), None),
        (["b", None, "", "ü"], pa.string(), ["", "ü", 1]),
        (["x" * STRING_CHARS_MAX], pa.string(), ["x" * STRING_CHARS_MAX] * 2 + [0]),
        (["x" * (STRING_CHARS_MAX + 1)], pa.string(), None),
        ([D("1.50"), D("-2.00")], pa.decimal128(5, 2), ["-2.00", "1.50", 0]),
        ([dt.date(1970, 1, 2), dt.date(1969, 12, 31)], pa.date32(), [-1, 1, 0]),
        ([dt.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us"), [1_000_000, 1_000_000, 0]),
        ([dt.datetime(1970, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"), [0, 0, 0]),
        ([None, None], pa.int32(), [None, None, 2]),
        ([], pa.int32(), [None, None, 0]),
    ],
    ids=str,
)
def test_statistics_record_bounds_and_null_counts(values, kind, expected):
    assert stats_of(values, kind) == expected


KINDS = [pa.int8(), pa.int64(), pa.float32(), pa.decimal128(38, 10), pa.date32(), pa.timestamp("us"), pa.string()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bounds_come_back_as_they_were(kind):
    values = [1, 100] if kind != pa.string() else ["a", "b"]
    array = pa.array(values, pa.int32() if kind == pa.date32() else None).cast(kind)
    low, high, _ = stats_of(array, kind)
    assert [constant_from_json(low, kind), constant_from_json(high, kind)] == [array[0], array[1]]


def test_statistics_are_collected_for_the_named_columns():
    rows = pa.table({"a": [1], "b": ["x"]})
    assert collect_stats(rows, []) == {}
    assert set(collect_stats(rows, ["a", "b"])) == {"a", "b"}
    assert collect_stats(rows.to_batches()[0], ["a"]) == {"a": [1, 1, 0]}


class TestPartitions:
    def test_partitions_are_distinct_values_of_several_columns(self):
        rows = pa.table({"d": [dt.date(2026, 1, 1)] * 3 + [None], "s": ["a", "b", "a", None], "m": [D("1.50")] * 4})
        found = collect_partitions(rows, ["d", "s", "m"])
        assert sorted(found, key=str) == sorted(
            [(20454, "a", "1.50"), (20454, "b", "1.50"), (None, None, "1.50")], key=str
        )

    @pytest.mark.parametrize(
        ("values", "expected"),
        [([b"\x00\xff"], ["00ff"]), ([NAN, INF, 1.5], ["nan", "inf", 1.5]), ([True, None], [True, None])],
        ids=str,
    )
    def test_recorded_partition_values_are_json(self, values, expected):
        found = collect_partitions(pa.table({"p": values}), ["p"])
        assert [v for (v,) in found] == expected
        json.dumps(found, allow_nan=False)

    def test_too_many_are_not_recorded(self):
        assert len(collect_partitions(pa.table({"p": range(PARTITIONS_MAX)}), ["p"])) == PARTITIONS_MAX
        assert collect_partitions(pa.table({"p": range(PARTITIONS_MAX + 1)}), ["p"]) is None
        assert collect_partitions(pa.table({"p": [1]}), []) is None
