"""Folds of numbers where formats end: NaN, zeros of both signs, infinities, and what does not fit."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.kv.merge_engines import fold_of

NAN, INF = math.nan, math.inf
EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


def folded(function, data_type, values):
    fold = fold_of(function, "v", data_type)
    return fold(pa.array(values, data_type), np.zeros(len(values), np.int64), 1)[0].as_py()


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(
    ("values", "largest", "smallest"),
    [
        ([1.0, NAN], NAN, 1.0),
        ([NAN, 1.0], NAN, 1.0),
        ([NAN, None, NAN], NAN, NAN),
        ([NAN, INF, -INF], NAN, -INF),
        ([None, -INF, 2.0], 2.0, -INF),
        ([None], None, None),
        ([-0.0, 0.0], 0.0, 0.0),
    ],
)
def test_nan_is_larger_than_any_other_number(data_type, values, largest, smallest):
    for function, expected in (("max", largest), ("min", smallest)):
        found = folded(function, data_type, values)
        assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_each_key_has_its_own():
    values, keys = pa.array([1.0, NAN, None, 5.0, 4.0]), np.array([0, 0, 1, 3, 3])
    largest = fold_of("max", "v", pa.float64())(values, keys, 5).to_pylist()
    assert math.isnan(largest[0])
    assert largest[1:] == [None, None, 5.0, None]
    assert fold_of("min", "v", pa.float64())(values, keys, 5).to_pylist() == [1.0, None, None, 4.0, None]


@example(38, [8_589_934_592, 49_999_999_988_336_454_968_404_885_627_587_605_835])  # Arrow 19 divides it wrongly
@given(
    st.integers(0, 38), st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-99, 99), min_size=2, max_size=4)
)
def test_a_product_is_exact_to_the_last_digit_or_an_error(scale, unscaled):
    values = [Decimal(n).scaleb(-scale, EXACT) for n in unscaled]
    expected = values[0]
    for value in values[1:]:
        if expected is not None:
            step = EXACT.multiply(expected, value).quantize(Decimal(1).scaleb(-scale), context=EXACT)
            expected = step if abs(step.scaleb(scale, EXACT)) < 10**38 else None
    if expected is None:
        with pytest.raises(SchemaMismatchError, match="AGGREGATE_OVERFLOW"):
            folded("product", pa.decimal128(38, scale), values)
    else:
        assert folded("product", pa.decimal128(38, scale), values) == expected


@pytest.mark.parametrize("scale", [1, 2, 19, 37, 38])
@pytest.mark.parametrize("sign", [1, -1])
def test_halves_are_rounded_away_from_zero(scale, sign):
    """A half of the last digit, made of a number of 38 digits and one of few."""
    nines, half = Decimal("9" * 38).scaleb(-scale, EXACT), sign * Decimal("0.5")
    expected = EXACT.multiply(nines, half).quantize(Decimal(1).scaleb(-scale), context=EXACT)
    assert folded("product", pa.decimal128(38, scale), [nines, half]) == expected


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("function", "kind", "large", "factor"),
    [
        ("product", "decimal(38,2)", Decimal("9" * 36 + ".99"), Decimal(2)),
        ("product", "decimal(38,38)", Decimal("0." + "9" * 38), None),
        ("product", "bigint", 2**62, 4),
        ("sum", "bigint", 2**63 - 1, 1),
        ("sum", "decimal(38,2)", Decimal("9" * 36 + ".99"), Decimal("0.01")),
    ],
)
def test_a_write_that_overflows_is_refused_and_the_next_one_is_not(wh, function, kind, large, factor):
    properties = {"table.merge-engine": "aggregation", "fields.v.agg": function}
    table = wh.create_table("t", f"id bigint, v {kind}", primary_key=["id"], properties=properties)
    table.upsert([{"id": 1, "v": large}, {"id": 2, "v": large}])
    if factor is not None:
        with pytest.raises(SchemaMismatchError, match=r"AGGREGATE_OVERFLOW: .* nothing was written"):
            table.upsert([{"id": 1, "v": factor}, {"id": 3, "v": factor}])
        assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": large}] * 2
    nothing = {"product": 1, "sum": 0}[function]
    if kind == "decimal(38,38)":
        nothing = Decimal("0.5")
    table.upsert([{"id": 1, "v": nothing}])
    expected = Decimal("0.5") if kind == "decimal(38,38)" else large
    assert table.lookup_one(1)["v"] == expected
    table.upsert([{"id": 1, "v": None}])
    assert table.lookup_one(1)["v"] == expected
