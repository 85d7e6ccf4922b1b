"""Choices of rows: the mask says exactly which rows, and the tree never leaves one of them out."""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark.core.python_values import to_ticks
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.partition_filter import PartitionOverwriteFilter
from streamhouse_spark.expressions.predicates import Bounds, constant_bounds, may_match
from streamhouse_spark.schema.partitioning import PartitionField

NAN = float("nan")


def fields(*names):
    return tuple(map(PartitionField, names))


def test_a_condition_that_is_null_chooses_nothing():
    rows = pa.table({"id": [1, None, 3]})
    for where in (pc.field("id") != 1, [("id", "!=", 1)]):
        choice = parse_filter(where).bind(rows.schema)
        assert choice.mask(rows).tolist() == [False, False, True]


def test_partitions_of_several_columns_are_compared_whole():
    chosen = PartitionOverwriteFilter.of(pa.table({"n": [0, 0], "a": [1, 2], "b": ["x", None]}), fields("a", "b"))
    every = list(itertools.product([1, 2, 3, None], ["x", "y", None]))
    rows = pa.table({"a": [a for a, _ in every], "b": [b for _, b in every]})
    assert [pair for pair, is_in in zip(every, chosen.mask(rows), strict=True) if is_in] == [(1, "x"), (2, None)]


def test_nan_is_a_value():
    chosen = PartitionOverwriteFilter.of(pa.table({"a": [NAN, 1.0]}), fields("a"))
    assert chosen.mask(pa.table({"a": [NAN, 1.0, 2.0, None]})).tolist() == [True, True, False, False]
    assert may_match(chosen.node, {"a": Bounds(5.0, 6.0, may_be_null=False)})


def test_no_rows_are_of_no_partition():
    chosen = PartitionOverwriteFilter.of(pa.table({"a": pa.array([], pa.int32())}), fields("a"))
    assert chosen.mask(pa.table({"a": [1, None]})).tolist() == [False, False]
    assert (
        PartitionOverwriteFilter.of(pa.table({"a": [1]}), fields("a"))
        .mask(pa.table({"a": pa.array([], pa.int64())}))
        .tolist()
        == []
    )


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, None],
        [None],
        ["a", "b"],
        [dt.date(2026, 1, 1)],
        [dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC), None],
        [True],
    ],
)
def test_files_of_other_partitions_are_left_out(values):
    column = pa.array(values)
    chosen = PartitionOverwriteFilter.of(pa.table({"a": column}), fields("a"))
    for value in column:
        assert may_match(chosen.node, {"a": constant_bounds(to_ticks(value).as_py())})
    if None not in values:
        assert not may_match(chosen.node, {"a": constant_bounds(None)})
    if values == [1, 2, None]:
        assert not may_match(chosen.node, {"a": constant_bounds(3)})


def test_many_partitions_are_looked_for_everywhere():
    chosen = PartitionOverwriteFilter.of(pa.table({"a": list(range(300))}), fields("a"))
    assert may_match(chosen.node, {"a": constant_bounds(1000)})
    assert chosen.mask(pa.table({"a": [299, 300]})).tolist() == [True, False]
