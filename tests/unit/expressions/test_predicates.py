"""A list of values in a filter: it answers as one comparison with each of them would, in the time of one."""

from __future__ import annotations

import decimal
import math
import pickle
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark.expressions import row_masks
from streamhouse_spark.expressions.predicates import FALSE, NULL, TRUE, Bounds, Compare, In, Or, to_comparable
from streamhouse_spark.expressions.row_masks import mask_possible_rows

NAN = math.nan
COLUMNS = {
    "integers": (pa.array([3, None, 5, 7, 5], pa.int16()), [(5,), (5, 3), (6,), (5, 70_000), (), (5.0, 3.5)]),
    "floats": (pa.array([0.0, -0.0, NAN, None, 1.5], pa.float32()), [(0.0,), (-0.0, 7.0), (1.5, NAN), (0.1, 1.5)]),
    "decimals": (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)), [(decimal.Decimal("1.5"), 3), (2,)]),
    "texts": (pa.array(["a", None, "b"]), [("a",), ("b", "c"), ("c",)]),
    "days": (pa.array([1, None, 3], pa.int32()).cast(pa.date32()), [(1, 2), (3,)]),
    "moments": (pa.array([1, None, 3], pa.int64()).cast(pa.timestamp("us")), [(1, 2), (3,)]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_are_those_of_a_comparison_with_each(name):
    column, lists = COLUMNS[name]
    batch = pa.record_batch({"c": column})
    for values in lists:
        each = mask_possible_rows(Or(tuple(Compare("=", "c", value) for value in values)), batch) if values else None
        found = mask_possible_rows(In("c", values, has_null=False), batch)
        if found is None:
            assert each is None or not values, values
        else:
            assert each is not None
            assert found.tolist() == each.tolist(), values


def test_bounds_answer_as_a_comparison_with_each():
    values = [None, 0.0, -1.5, 2.0, NAN]
    lists = [(), (0.0,), (-1.5, 2.0), (NAN,), (2.0, NAN, 0.0)]
    for low, high, many, has_nan, is_null in product(values[:4], values[:4], lists, (False, True), (False, True)):
        if low is not None and high is not None and low > high:
            continue
        bounds = {
            "c": Bounds(
                None if low is None else to_comparable(low),
                None if high is None else to_comparable(high),
                may_be_null=is_null,
                may_be_nan=has_nan,
            )
        }
        found = In("c", many, has_null=False).outcomes(bounds)
        each = [Compare("=", "c", value).outcomes(bounds) for value in many]
        assert bool(found & TRUE) == any(one & TRUE for one in each)
        assert bool(found & FALSE) == (all(one & FALSE for one in each) or (is_null and not many))
        assert bool(found & NULL) == is_null


def test_values_that_do_not_compare_with_each_other():
    node = In("c", (1, "a"), has_null=False)
    assert node.outcomes({"c": Bounds(5, 6, may_be_null=False)}) == TRUE | FALSE


def test_a_pickled_predicate_is_an_equal_one():
    node = In("c", (3, 1), has_null=True)
    again = pickle.loads(pickle.dumps(node))
    assert (again, hash(again), again.ascending) == (node, hash(node), (1, 3))


def test_many_values_are_one_comparison(monkeypatch):
    values = tuple(range(0, 40_000, 2))
    compared = []
    compare = row_masks.compare
    monkeypatch.setattr(row_masks, "compare", lambda *operands: compared.append(operands) or compare(*operands))
    node = In("c", values, has_null=False)
    for start in range(0, 50_000, 10_000):
        wanted = np.arange(start, start + 10_000)
        found = mask_possible_rows(node, pa.record_batch({"c": wanted}))
        assert found.tolist() == ((wanted % 2 == 0) & (wanted < 40_000)).tolist()
    assert not compared
    assert row_masks._to_values.cache_info().hits >= 4
