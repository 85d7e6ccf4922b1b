"""Rows and lake files of a partition, and values that are no partition."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.partition_filter import NULL_NAME, PartitionMatch, PartitionMatches
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(
    "id INT, day DATE, at TIMESTAMP, c STRING, x DOUBLE, d DECIMAL(9,2), b BINARY, f BOOLEAN, n INT NOT NULL"
)
ALL = SCHEMA.names[1:]
DAY = dt.date(2026, 1, 31)
MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC)


def match(given: object) -> PartitionMatch:
    return PartitionMatch.of(given, SCHEMA, ALL, "a.t")


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
def test_values_of_every_type(column, value, plain):
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
    both = PartitionMatches((found, match({"c": "y"})))
    assert both.columns == ("day", "c")
    assert both.mask(rows).tolist() == [True, True, False]
    assert both.renamed({"day": "Day", "c": "c"}).holds({"Day": 20484, "c": "x"})


def test_texts_as_people_write_them():
    texts = {"day": "2026-01-31", "d": "1.5", "n": "7", "c": NULL_NAME, "f": "true", "at": "2026-01-31 12:00:00Z"}
    assert PartitionMatch.of_texts(texts, SCHEMA, ALL, "a.t") == match(
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
        PartitionMatch.of_texts({"day": "tomorrow"}, SCHEMA, ALL, "a.t")
    with pytest.raises(SchemaMismatchError, match=r"type timestamp, .*write it with its zone, such as 2026"):
        PartitionMatch.of_texts({"at": "2026-01-31 12:00:00"}, SCHEMA, ALL, "a.t")


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
        PartitionMatch.of({"day": DAY}, SCHEMA, [], "a.t")
