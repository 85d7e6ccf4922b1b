"""Conditions of a DELETE that Spark hands over: taken whole, or not at all."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamhouse_spark.datasource.dml.pushed_conditions import parse_condition
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of("id BIGINT, name STRING, ratio DOUBLE, fraction FLOAT, code CHAR(4), inner STRUCT<id: BIGINT>")
ROWS = pa.table(
    {
        "id": [1, 2, None, 4],
        "name": ["a", None, "ab", "b"],
        "ratio": [0.5, float("nan"), None, -0.0],
        "fraction": pa.array([0.5, float("nan"), None, -0.0], pa.float32()),
    }
)


def column(*path):
    return {"column": list(path)}


def long(value):
    return {"type": '"long"', "literal": value}


def text(value):
    return {"type": '"string"', "literal": value}


def double(value):
    return {"type": '"double"', "literal": value}


def op(name, *children):
    return {"op": name, "children": list(children)}


ONE = op("=", column("id"), long(1))
UNKNOWN = {"unknown": "f(x)"}


def chosen(*trees) -> list[int | None]:
    condition = parse_condition(trees, SCHEMA)
    assert condition is not None
    return ROWS.filter(condition.expression)["id"].to_pylist()


def columns_of(*trees) -> tuple[str, ...] | None:
    condition = parse_condition(trees, SCHEMA)
    assert condition is not None
    return condition.bind(SCHEMA.arrow).columns


@pytest.mark.parametrize(
    ("tree", "ids"),
    [
        (ONE, [1]),
        (op("<", long(1), column("id")), [2, 4]),
        (op("NOT", ONE), [2, 4]),
        (op("OR", ONE, op("IS_NULL", column("id"))), [1, None]),
        (op("AND", op(">=", column("id"), long(1)), op("IS_NOT_NULL", column("name"))), [1, 4]),
        (op("NOT", op("OR", op(">", column("id"), long(2)), op("IS_NULL", column("name")))), [1]),
        (op("IN", column("id"), long(4), long(7)), [4]),
        (op("NOT", op("IN", column("id"), long(4), long(7))), [1, 2]),
        (op("STARTS_WITH", column("name"), text("a")), [1, None]),
        (op("ENDS_WITH", column("name"), text("b")), [None, 4]),
        (op("CONTAINS", column("name"), text("b")), [None, 4]),
        (op("<=>", column("id"), long(1)), [1]),
        (op("NOT", op("<=>", long(1), column("id"))), [2, None, 4]),
        (op("<=>", column("id"), {"type": '"void"', "literal": None}), [None]),
        (op("=", column("ratio"), double(0.5)), [1]),
        (op("NOT", op("=", column("ratio"), double(0.5))), [2, 4]),
        (op("<>", column("ratio"), double(0.5)), [2, 4]),
        (op("<=>", double("NaN"), column("ratio")), [2]),
        (op("IN", column("ratio"), double("NaN"), double(0.0)), [2, 4]),
        (op("=", column("fraction"), {"type": '"float"', "literal": 0.5}), [1]),
    ],
)
def test_it_is_true_for_the_rows_for_which_spark_has_true(tree, ids):
    assert chosen(tree) == ids


def test_all_conditions_have_to_hold():
    assert chosen(op(">", column("id"), long(1)), op("IS_NULL", column("name"))) == [2]


@pytest.mark.parametrize(
    "tree",
    [
        UNKNOWN,
        op("OR", ONE, UNKNOWN),
        op("AND", ONE, UNKNOWN),
        op("NOT", UNKNOWN),
        op("IN", column("id"), long(1), long(None)),
        op("=", column("id"), long(None)),
        op("=", column("id"), text("1")),
        op("<", column("ratio"), double(1.0)),
        op("=", column("ratio"), double(None)),
        op("IN", column("ratio"), double(1.0), double(None)),
        op("=", column("fraction"), {"type": '"float"', "literal": 0.1}),
        op("=", column("code"), text("a")),
        op("=", column("inner", "id"), long(1)),
        op("=", column("_log_offset"), long(1)),
        op("<=>", column("ratio"), long(1)),
        op("<=>", column("id"), column("id")),
        op("=", column("name"), text("\ufffd")),
        op("LIKE_ALL", column("name"), text("a")),
        {"op": "ALWAYS_TRUE"},
    ],
)
def test_what_is_not_understood_whole_is_not_taken(tree):
    assert parse_condition([tree], SCHEMA) is None
    assert parse_condition([ONE, tree], SCHEMA) is None


def test_a_condition_of_great_depth_is_not_taken():
    tree = ONE
    for _ in range(5000):
        tree = op("NOT", tree)
    assert parse_condition([tree], SCHEMA) is None


def test_no_condition_is_none():
    assert parse_condition([], SCHEMA) is None


def test_its_columns_are_known():
    """So a DELETE reads these alone."""
    tree = op(
        "AND", op("NOT", op("IN", column("name"), text("a"), text("b"))), op("OR", ONE, op("<", long(1), column("id")))
    )
    assert columns_of(tree) == ("id", "name")
    assert columns_of(ONE, ONE) == ("id",)
    assert columns_of(op("<=>", column("id"), {"type": '"void"', "literal": None})) == ("id",)


def test_it_is_an_expression_of_arrow():
    assert isinstance(parse_condition([ONE], SCHEMA).expression, pc.Expression)
