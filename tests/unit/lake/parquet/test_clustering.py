"""Orders of rows: texts, numbers that follow the order, z-orders."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.lake.parquet.clustering import SortOrder, ZOrderRanks, parse_sort_order
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(pa.schema([("a", pa.int64()), ("b, c", pa.string()), ("zorder(a)", pa.float64())]))

VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2).map(lambda d: d.quantize(decimal.Decimal("0.01"))),
}


def test_sort_orders_are_parsed_and_printed_alike():
    order = parse_sort_order("A, ZOrder(`b, c`, `zorder(a)`)", SCHEMA)
    assert order == SortOrder((("a",), ("b, c", "zorder(a)")))
    assert parse_sort_order(str(order), SCHEMA) == order
    assert (
        parse_sort_order("`zorder(a)`", SCHEMA) == parse_sort_order("zorder(a)", SCHEMA) == SortOrder((("zorder(a)",),))
    )


def test_marks_tell_orders_apart_and_follow_renames():
    orders = ["a", "zorder(a)", "a, `b, c`", "`b, c`, a", "zorder(a, `b, c`)"]
    marks = {parse_sort_order(text, SCHEMA).fingerprint(SCHEMA) for text in orders}
    assert len(marks) == len(orders)
    renamed = TableSchema(tuple(c if c.name != "a" else type(c)(c.id, "z", c.type, c.nullable) for c in SCHEMA.columns))
    assert parse_sort_order("z", renamed).fingerprint(renamed) == parse_sort_order("a", SCHEMA).fingerprint(SCHEMA)


@given(st.data())
def test_numbers_follow_the_order_of_a_column(data):
    kind = data.draw(st.sampled_from(list(VALUES)))
    lists = st.lists(st.none() | VALUES[kind], max_size=30)
    sample, rows = (pa.table({"x": pa.array(data.draw(lists), kind)}) for _ in range(2))
    ranks = ZOrderRanks(SortOrder((("x",),)), sample)
    values = rows["x"].to_pylist()
    numbers = ranks.of(rows).tolist()
    by_value = sorted(
        range(len(values)), key=lambda i: (values[i] is not None, values[i]) if values[i] is not None else (False,)
    )
    assert [numbers[i] for i in by_value] == sorted(numbers)
    present = sorted({v for v in sample["x"].to_pylist() if v is not None})
    assert len(set(ranks.of(sample).tolist())) >= len(present)  # a sample of few values tells each of them


def test_null_is_with_the_lowest_values_and_nan_with_the_highest():
    rows = pa.table({"x": pa.array([None, 2.0, float("nan"), 1.0, float("inf"), None])})
    assert ZOrderRanks(SortOrder((("x",),)), rows).of(rows).argsort(kind="stable").tolist() == [0, 3, 5, 1, 4, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60))
def test_columns_come_one_after_the_other(pairs):
    rows = pa.table({"x": [x for x, _ in pairs], "y": [y for _, y in pairs]})
    numbers = ZOrderRanks(SortOrder((("x",), ("y",))), rows).of(rows).tolist()
    order = sorted(range(len(pairs)), key=lambda i: pairs[i])
    assert [numbers[i] for i in order] == sorted(numbers)


def test_a_z_order_takes_bits_in_turn():
    rows = pa.table({"x": [0, 0, 1, 1], "y": [0, 1, 0, 1]})
    assert np.argsort(ZOrderRanks(SortOrder((("x", "y"),)), rows).of(rows)).tolist() == [0, 1, 2, 3]
    grid = pa.table({"x": [i // 16 for i in range(256)], "y": [i % 16 for i in range(256)]})
    ranks = ZOrderRanks(SortOrder((("x", "y"),)), grid)
    lanes = np.searchsorted(ranks.range_bounds(grid, 16), ranks.of(grid), side="right")
    for name in "x", "y":
        column = grid[name].to_numpy()
        assert all(np.ptp(column[lanes == lane]) <= 7 for lane in range(16))


def test_lanes_have_about_as_many_rows_whatever_the_values():
    skewed = pa.table({"x": np.random.default_rng(1).pareto(1, 100_000)})
    ranks = ZOrderRanks(SortOrder((("x",),)), skewed)
    lanes = np.searchsorted(ranks.range_bounds(skewed, 20), ranks.of(skewed), side="right")
    counts = np.bincount(lanes)
    assert len(counts) == 20
    assert counts.max() < 1.1 * counts.min()


@pytest.mark.parametrize("values", [[], [None, None], [float("nan"), 1.0, None]])
def test_z_orders_need_no_values_in_the_sample(values):
    rows = pa.table({"x": pa.array(values, pa.float64())})
    ranks = ZOrderRanks(SortOrder((("x",),)), rows)
    assert len(ranks.of(rows)) == len(values)
    assert len(ranks.range_bounds(rows, 4)) <= 3
