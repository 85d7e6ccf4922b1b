"""Filters of partitions: the mask selects exactly the rows, and the tree never misses one of them."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.core.python_values import to_ticks
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.partition_filter import NULL_NAME, PartitionMatches, PartitionOverwriteFilter
from streamhouse_spark.expressions.predicates import Bounds, constant_bounds, may_match
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema

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


SCHEMA = TableSchema.of(
    "id INT, day DATE, at TIMESTAMP, c STRING, x DOUBLE, d DECIMAL(9,2), b BINARY, f BOOLEAN, n INT NOT NULL"
)
ALL = SCHEMA.names[1:]
DAY = dt.date(2026, 1, 31)
MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC)


def match(*partitions: object) -> PartitionMatches:
    return PartitionMatches.of(partitions, SCHEMA, ALL, "a.t")


@pytest.mark.parametrize(
    ("column", "value", "plain"),
    [
        ("day", DAY, 20484),
        ("at", MOMENT, 1_769_860_800_000_005),
        ("c", "ä b", "ä b"),
        ("c", "", ""),
        ("x", 1.5, 1.5),
        ("x", math.nan, math.nan),
        ("d", decimal.Decimal("1.50"), decimal.Decimal("1.5")),
        ("b", b"\x00\xff", b"\x00\xff"),
        ("f", False, False),
        ("n", 0, 0),
    ],
)
def test_partitions_of_every_type_are_matched(column, value, plain):
    found = match({column: value})
    rows = pa.table({column: pa.array([value, None], SCHEMA.column(column).type)})
    assert found.mask(rows).tolist() == [True, False]
    assert found.holds({column: plain})
    assert not found.holds({column: None})


def test_null_is_a_value():
    found = match({"c": None})
    assert found.mask(pa.table({"c": ["", None, "null"]})).tolist() == [False, True, False]
    assert found.holds({"c": None})
    assert not found.holds({"c": ""})


def test_some_columns_mean_all_partitions_below_them():
    found = match({"DAY": DAY, "c": "x"})
    rows = pa.table({"day": [DAY, DAY, None], "c": ["x", "y", "x"], "n": [1, 2, 3]})
    assert found.mask(rows).tolist() == [True, False, False]
    both = match({"DAY": DAY, "c": "x"}, {"c": "y"})
    assert both.columns == ("day", "c")
    assert both.mask(rows).tolist() == [True, True, False]
    assert both.renamed({"day": "Day", "c": "c"}).holds({"Day": 20484, "c": "x"})


def test_texts_as_people_write_them():
    texts = {"day": "2026-01-31", "d": "1.5", "n": "7", "c": NULL_NAME, "f": "true", "at": "2026-01-31 12:00:00Z"}
    assert PartitionMatches.of_texts(texts, SCHEMA, ALL, "a.t") == match(
        {
            "day": DAY,
            "d": decimal.Decimal("1.50"),
            "n": 7,
            "c": None,
            "f": True,
            "at": MOMENT.replace(microsecond=0),
        }
    )
    with pytest.raises(SchemaMismatchError, match=r"'day'.*'tomorrow'"):
        PartitionMatches.of_texts({"day": "tomorrow"}, SCHEMA, ALL, "a.t")
    with pytest.raises(SchemaMismatchError, match=r"type timestamp, .*write it with its zone, such as 2026"):
        PartitionMatches.of_texts({"at": "2026-01-31 12:00:00"}, SCHEMA, ALL, "a.t")


@pytest.mark.parametrize("given", [{}, None, "day=1", [("day", 1)], {"id": 1}, {"nowhere": 1}, {1: 2}])
def test_what_is_no_partition(given):
    with pytest.raises(InvalidOptionError, match=r"a\.t"):
        match(given)


def test_a_column_twice_and_values_that_do_not_fit():
    with pytest.raises(InvalidOptionError, match="twice"):
        match({"day": DAY, "Day": DAY})
    for given in ({"day": "2026-01-31"}, {"n": None}, {"n": 1.5}, {"n": 1 << 40}, {"c": 1}):
        with pytest.raises(SchemaMismatchError):
            match(given)
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        PartitionMatches.of([{"day": DAY}], SCHEMA, [], "a.t")
