"""--where: conditions as filters, and what is said of those that are none."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import StreamhouseError
from streamhouse_spark.expressions.filters import filter_and_project, parse_filter
from streamhouse_spark.expressions.where import parse_where

ROWS = pa.table(
    {
        "a": pa.array([1, 2, 3, None], pa.int32()),
        "b": pa.array(["x", "it's", "Z", None]),
        "price": pa.array([Decimal("1.50"), Decimal("2.50"), None, Decimal("0.00")], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2), None, None]),
        "at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None, None, None], pa.timestamp("us", "UTC")),
        "ok": pa.array([True, False, None, True]),
        "f": pa.array([0.5, -1.5, None, 1e9]),
        "odd name": pa.array([1, 1, 2, 2], pa.int64()),
    }
)


def rows_where(text: str) -> list[int]:
    """Positions of the rows that hold."""
    found = parse_filter(parse_where(text, ROWS.schema))
    assert found is not None
    numbered = ROWS.append_column("position", pa.array(range(4)))
    return filter_and_project(numbered, ["position"], found)["position"].to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", [0]),
        ("a == 1", [0]),
        ("A != 1", [1, 2]),
        ("a <> 1", [1, 2]),
        ("a>1", [1, 2]),
        ("a >= 2.5", [2]),
        ("a <= +2", [0, 1]),
        ("a < 99999999999999999999", [0, 1, 2]),
        ("a = 1.5", []),
        ("price < 2.4999", [0, 3]),
        ("f < -1", [1]),
        ("f >= 1e9", [3]),
        ("b = 'it''s'", [1]),
        ("a IN (1, 3)", [0, 2]),
        ("a not in (1, 3)", [1]),
        ("NOT a IN (1, 3)", [1]),
        ("NOT (a NOT IN (1, 3) OR b = 'Z')", [0]),
        ("NOT (a IN (1, 3) AND b = 'x')", [1, 2]),
        ("NOT (b IS NULL)", [0, 1, 2]),
        ("NOT f < 1", [3]),
        ("a = 1 OR a = 2 OR b = 'Z' AND f IS NULL", [0, 1, 2]),
        ("(a = 1 OR a = 2) AND (b = 'x' OR f < 0)", [0, 1]),
        ("b IS NULL", [3]),
        ("b is not null", [0, 1, 2]),
        ("price > 1.5", [1]),
        ("price = 1.50", [0]),
        ("day >= '2026-01-02'", [1]),
        ("at < '2026-01-01T01:00:00+00:00'", [0]),
        ("ok = TRUE", [0, 3]),
        ("`odd name` = 2", [2, 3]),
        ("a = 1 OR a = 2 AND b = 'x'", [0]),
        ("(a = 1 OR a = 2) AND b = 'it''s'", [1]),
        ("NOT a = 1", [1, 2]),
        ("NOT (a = 1 OR b = 'Z')", [1]),
        ("a = 1 AND b = 'x' AND f = 0.5", [0]),
    ],
)
def test_a_where_text_selects_its_rows(text, expected):
    assert rows_where(text) == expected


def test_conditions_that_must_all_hold_are_predicates_that_prune():
    assert parse_where("a > 1 AND b = 'x' AND f IS NULL", ROWS.schema) == [
        ("a", ">", 1),
        ("b", "=", "x"),
        ("f", "is null", None),
    ]
    assert parse_where("a > 1 OR b = 'x' AND f IS NULL", ROWS.schema) == [
        [("a", ">", 1)],
        [("b", "=", "x"), ("f", "is null", None)],
    ]
    assert isinstance(parse_where("(a > 1 OR b = 'x') AND f = 1", ROWS.schema), pc.Expression)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a column at character 1, found the end"),
        ("a", "expected =, !=, <, <=, >, >=, IN or IS NULL at character 2, found the end"),
        ("a >", "expected a number"),
        ("a > 1 b", "expected AND, OR or the end at character 7, found 'b'"),
        ("a > 'x'", "expected a number, because column a has type int32"),
        ("b > 1", "expected a string in 'single quotes', because column b"),
        ("(a = 1", "expected a closing parenthesis"),
        ("a IN 1", "expected a list"),
        ("a IN (1", "expected a comma or a closing parenthesis"),
        ("a IS 1", "expected NULL"),
        ("a NOT 1", "expected IN"),
        ("a = 1; DROP", "found '; DROP'"),
        ("day = 'tomorrow'", "column 'day' of type date32[day] with 'tomorrow'"),
        ("c = 1", "there is no column 'c'"),
        ("(" * 60 + "a = 1" + ")" * 60, "at most 50 levels"),
    ],
)
def test_what_is_no_condition(text, said):
    with pytest.raises(StreamhouseError) as caught:
        parse_where(text, ROWS.schema)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@given(st.text(alphabet="ab =<>!()'`,.0123INOTANDRSULL\n", max_size=40))
def test_any_text_is_a_condition_or_an_error_of_ours(text):
    try:
        parse_where(text, ROWS.schema)
    except StreamhouseError:
        pass
