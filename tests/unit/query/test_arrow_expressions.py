"""An expression of Arrow in a predicate tree: false only where Arrow itself says that no row can satisfy it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark.log.segments.statistics import stats_bounds
from streamhouse_spark.query.arrow_expressions import ArrowFilter
from streamhouse_spark.query.predicates import may_match

SCHEMA = pa.schema(
    [("i", pa.int32()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("m", pa.decimal128(9, 2))]
)
FIVE = {"i": [5, 5, 0]}
F = pc.field("i")


@pytest.mark.parametrize(
    ("stats", "filter_", "expected"),
    [
        (FIVE, F == 5, True),
        (FIVE, F == 6, False),
        (FIVE, F < 5, False),
        (FIVE, F <= 5, True),
        (FIVE, F > 4.5, True),
        (FIVE, F.is_null(), False),
        ({"i": [5, 5, 1]}, F.is_null(), True),
        ({"i": [5, 5, 1]}, F == 6, False),
        ({"i": [5, 5, 1]}, F.isin([1, 2]), False),
        ({"i": [5, 5, 1]}, F.isin([1, None]), True),
        ({"i": [5, 5, 1]}, (F == 6) | F.is_null(), True),
        ({"i": [None, None, 3]}, F == 5, False),
        ({"i": [None, None, 3]}, F.is_null(), True),
        ({"i": [None, None, 3]}, F.is_valid(), False),
        (FIVE, F.isin([1, 2]), False),
        (FIVE, F.isin([1, 5]), True),
        (FIVE, (F == 6) | (pc.field("s") == "x"), True),
        (FIVE, (F == 6) & (pc.field("s") == "x"), False),
        ({"i": [0, 9, 0], "s": ["b", "d", 0]}, pc.field("s") == "a", False),
        ({"m": ["1.00", "2.00", 0]}, pc.field("m") > pa.scalar(Decimal("2.00"), pa.decimal128(9, 2)), False),
        ({"t": [0, 0, 0]}, pc.field("t") == dt.datetime(1970, 1, 1, tzinfo=dt.UTC), True),
        ({"t": [0, 0, 0]}, pc.field("t") > dt.datetime(1970, 1, 1, tzinfo=dt.UTC), False),
        ({"gone": [1, 1, 0]}, F == 5, True),
        ({}, F == 5, True),
    ],
    ids=str,
)
def test_arrow_excludes_what_bounds_exclude(stats, filter_, expected):
    bounds = {
        name: stats_bounds(found, SCHEMA.field(name).type if name in SCHEMA.names else pa.int64(), 3)
        for name, found in stats.items()
    }
    assert may_match(ArrowFilter(filter_, SCHEMA), bounds) is expected
