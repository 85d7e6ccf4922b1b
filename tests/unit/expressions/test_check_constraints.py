"""Conditions of CHECK constraints: which are understood, and for which rows they are false."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse_spark import ConstraintViolatedError, InvalidOptionError
from streamhouse_spark.expressions.check_constraints import CONSTRAINT, parse_checks, require_constraints
from streamhouse_spark.expressions.sql import evaluate
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(
    "i INT, l BIGINT, d DECIMAL(10,2), w DECIMAL(38,2), f DOUBLE, r FLOAT, s STRING, b BOOLEAN, day DATE, "
    "at TIMESTAMP, plain TIMESTAMP_NTZ, `odd name` INT, c CHAR(3), a ARRAY<INT>"
)
NAN = float("nan")


def answer(text: str, **row: object) -> bool | None:
    (check,) = parse_checks({f"{CONSTRAINT}k": text}, SCHEMA)
    found = evaluate(check.condition, pa.Table.from_pylist([row], schema=SCHEMA.arrow))
    return found[0].as_py()


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("i > 0", {"i": 1}, True),
        ("i > 0", {"i": 0}, False),
        ("i > 0", {}, None),
        ("i > 0 OR s IS NULL", {}, True),
        ("i > 0 AND s IS NOT NULL", {}, False),
        ("NOT (i > 0)", {"i": 1}, False),
        ("NOT NOT i > 0", {"i": 1}, True),
        ("i > 0.5", {"i": 1}, True),
        ("i = 1e0", {"i": 1}, True),
        ("i > 99999999999", {"i": 1}, False),
        ("l < 9223372036854775808", {"l": 2**63 - 1}, True),
        ("i = 1 OR l + l > l", {"i": 1, "l": 2**63 - 1}, True),
        ("i = 1 AND l * l > l", {"i": 2, "l": 2**63 - 1}, False),
        ("i + 2147483648 > 0", {"i": 2**31 - 1}, True),
        ("w * d > 0", {"w": Decimal("1" * 30), "d": Decimal("0.01")}, True),
        ("r + r = 0.2", {"r": 0.1}, False),
        ("r * 1e0 = r", {"r": 0.1}, True),
        ("l - i = 5", {"l": 7, "i": 2}, True),
        ("-i < 0", {"i": 3}, True),
        ("2 + 3 * i = 11", {"i": 3}, True),
        ("d + 0.01 <= 1", {"d": Decimal("0.99")}, True),
        ("d + 0.01 <= 1", {"d": Decimal("1.00")}, False),
        ("d * d > i", {"d": Decimal("1.10"), "i": 1}, True),
        ("d > 0.001", {"d": Decimal("0.00")}, False),
        ("w > d", {"w": Decimal("1" * 36), "d": Decimal(1)}, True),
        ("w = l", {"w": Decimal(5), "l": 5}, True),
        ("f > 0", {"f": NAN}, True),
        ("f = f", {"f": NAN}, True),
        ("f <= 5", {"f": NAN}, False),
        ("f != f", {"f": NAN}, False),
        ("f < r", {"f": 1.0, "r": NAN}, True),
        ("f >= 0", {"f": -0.0}, True),
        ("f < d", {"f": 0.5, "d": Decimal("0.75")}, True),
        ("f * 2 = i", {"f": 1.5, "i": 3}, True),
        ("s = 'it''s'", {"s": "it's"}, True),
        ("s < 'b'", {"s": "a"}, True),
        ("s LIKE 'a%_'", {"s": "ab"}, True),
        ("s LIKE 'a%'", {"s": "a\nb"}, True),
        (r"s = 'a\nb'", {"s": "a\nb"}, True),
        (r"s = 'it\'s \u00e4 \101'", {"s": "it's ä A"}, True),
        (r"s LIKE 'a\\\\b'", {"s": r"a\b"}, True),
        ("s LIKE 'a!%' ESCAPE '!'", {"s": "a%"}, True),
        ("s LIKE 'a!%' ESCAPE '!'", {"s": "ab"}, False),
        ("s LIKE '%!!' ESCAPE '!'", {"s": "a!"}, True),
        (r"s LIKE 'a\\_' ESCAPE '!'", {"s": r"a\b"}, True),
        (r"s LIKE 'a\%'", {"s": "ab"}, False),
        ("s NOT LIKE 'a%'", {"s": "b"}, True),
        ("length(s) <= 2", {"s": "äöü"}, False),
        ("CHAR_LENGTH(s) BETWEEN 1 AND 3", {"s": "äöü"}, True),
        ("i NOT BETWEEN 1 AND 3", {"i": 2}, False),
        ("i IN (1, 2)", {"i": 2}, True),
        ("i NOT IN (1, 2)", {"i": 2}, False),
        ("s IN ('a')", {}, None),
        ("i IN (1, NULL)", {"i": 1}, True),
        ("i IN (1, NULL)", {"i": 2}, None),
        ("i NOT IN (1, NULL)", {"i": 1}, False),
        ("day IN (NULL, '2026-01-31')", {"day": dt.date(2026, 1, 31)}, True),
        ("i = NULL", {"i": 1}, None),
        ("l IN (1, 1e0)", {"l": 1}, True),
        ("upper(s) = 'A'", {"s": "a"}, True),
        ("year(day) = 2026", {"day": dt.date(2026, 1, 31)}, True),
        ("CAST(d AS STRING) LIKE '%.50'", {"d": Decimal("1.50")}, True),
        ("substring(s, -1) = 'c'", {"s": "abc"}, True),
        ("length(s) + length(s) = 6", {"s": "abc"}, True),
        ("b", {"b": False}, False),
        ("NOT b OR i = 1", {"b": True, "i": 1}, True),
        ("b = TRUE", {"b": True}, True),
        ("day >= '2026-01-31'", {"day": dt.date(2026, 1, 30)}, False),
        ("at < '2026-01-31T12:00:00Z'", {"at": dt.datetime(2026, 1, 31, 11, tzinfo=dt.UTC)}, True),
        ("plain < '2026-01-31 12:00:00'", {"plain": dt.datetime(2026, 1, 31, 13)}, False),
        ("`odd name` == 1", {"odd name": 1}, True),
        (["I <> 2", " a comment is none"][0], {"i": 2}, False),
        ("a IS NOT NULL", {"a": []}, True),
    ],
)
def test_conditions_follow_three_valued_logic(text: str, row: dict[str, object], expected: bool | None) -> None:
    assert answer(text, **row) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("soundex(s) = 'A'", "calls soundex(…)"),
        ("i > (SELECT 1)", "'SELECT 1)' at character 6 names an unknown column 'SELECT'"),
        ("missing > 1", "names an unknown column 'missing'"),
        ("i / 2 > 1", "'/ 2 > 1' at character 3"),
        ("i > 's'", "compares a int with a string"),
        ("s > 1", "compares a string with a int"),
        ("day > at", "compares a date with a timestamp"),
        ("day > 'soon'", "compares a date with 'soon', which is not a date"),
        ("at > '2026-01-31 12:00:00'", "compares a timestamp"),
        ("s + 1 > 2", "operands must be numbers"),
        ("i AND b", "is a int, expected a condition"),
        ("NOT i", "is a int, expected a condition"),
        ("i", "has type int, expected a condition"),
        ("1 = 1", "names no column"),
        ("", "the end"),
        ("i >", "the end"),
        ("i > 1 i", "'i' at character 7 is not supported"),
        ("i IN ()", "is not supported"),
        ("i BETWEEN 1", "was found, expected AND"),
        ("s LIKE s", "expected a pattern"),
        (r"s LIKE 'a\\b'", "before another character than % _"),
        ("w * w > 0", "more than 76 digits"),
        ("c = 'a'", "CHAR(n)"),
        ("a = a", "compares a array<int> with a array<int>"),
        ("(" * 60 + "i > 0" + ")" * 60, "deeper than 50"),
        ("i > 1; DROP TABLE t", "';"),
        ("i + NULL > 1", "operands must be numbers"),
        ("NULL = NULL", "compares a NULL with a NULL"),
        ("i > 111111111111111111111111111111111111111", "more than 38 digits"),
        ("s LIKE 'a!' ESCAPE '!'", "has a ! before another character"),
        ("s LIKE 'a' ESCAPE '!!'", "ESCAPE that is not one character"),
    ],
)
def test_what_is_not_understood_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_checks({f"{CONSTRAINT}k": text}, SCHEMA)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("i + i > 0", {"i": 2**31 - 1}),
        ("-i > 0", {"i": -(2**31)}),
        ("i * 2 > 0", {"i": 2**30}),
        ("l + l > l", {"l": 2**63 - 1}),
        ("l - 1 < 0", {"l": -(2**63)}),
        ("w * d > 0", {"w": Decimal("9" * 36), "d": Decimal(100)}),
        ("w + w > 0", {"w": Decimal("9" * 36)}),
        ("CAST(i AS TINYINT) > 0", {"i": 128}),
        ("CAST(w AS DECIMAL(5,2)) > 0", {"w": Decimal(1000)}),
        ("i = 1 OR i + i > 0", {"i": 2**31 - 1}),
    ],
)
def test_a_row_whose_condition_overflows_is_in_breach(text: str, row: dict[str, object]) -> None:
    """It is an error in Spark with ANSI mode, so such a row cannot be written there either."""
    (check,) = parse_checks({f"{CONSTRAINT}k": text}, SCHEMA)
    rows = pa.Table.from_pylist([{}, row, {}], schema=SCHEMA.arrow)
    assert check.find_violations(rows).to_pylist() == [None, True, None]
    with pytest.raises(ConstraintViolatedError, match=r"1 of 3 rows .* is too large for its type"):
        require_constraints([check], rows, "d.t")


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "x" * 129])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidOptionError, match="constraint name is"):
        parse_checks({CONSTRAINT + name: "i > 0"}, SCHEMA)


def test_a_name_counts_without_regard_to_case() -> None:
    with pytest.raises(InvalidOptionError, match="already has a constraint 'K'"):
        parse_checks({f"{CONSTRAINT}K": "i > 0", f"{CONSTRAINT}k": "i > 1"}, SCHEMA)


NUMBERS = ("i", "l", "d", "f", "0", "1", "-2", "0.5", "i + l", "d - i", "l * i", "f * 2")
COMPARED = tuple(f"{a} {o} {b}" for a, o, b in product(NUMBERS, ("=", "<>", "<", "<=", ">", ">="), NUMBERS))
TESTS = st.sampled_from(
    [text for text in COMPARED if set(text) & set("ildf")]
    + ["i IN (1, 2, l)", "d NOT BETWEEN i AND 2", "s LIKE 'a%'", "s > 'a'", "length(s) < i", "b", "f IS NULL"]
)
CONDITIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        inner.map(lambda text: f"NOT ({text})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=4,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-3, 3),
            "l": st.none() | st.integers(-3, 3),
            "d": st.none() | st.decimals(-3, 3, places=2),
            "f": st.none() | st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, NAN, float("inf")]),
            "s": st.none() | st.sampled_from(["", "a", "ab", "b", "ä"]),
            "b": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(CONDITIONS, ROWS)
def test_conditions_answer_as_duckdb_does(text: str, rows: list[dict[str, object]]) -> None:
    """It has Spark's three-valued logic, and Spark's order of NaN."""
    (check,) = parse_checks({f"{CONSTRAINT}k": text}, SCHEMA)
    given_rows = pa.Table.from_pylist(rows, schema=pa.schema([SCHEMA.arrow.field(n) for n in "ildfsb"]))
    with duckdb.connect() as connection:
        connection.register("given_rows", given_rows)
        expected = [row[0] for row in connection.execute(f"SELECT {text} FROM given_rows").fetchall()]
    found = evaluate(check.condition, given_rows)
    assert found.to_pylist() == expected, text
