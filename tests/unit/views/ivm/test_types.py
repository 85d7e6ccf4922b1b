"""Columns of two types that meet: in a UNION, and in the condition of a join."""

from __future__ import annotations

import pytest

from streamhouse_spark.views.ivm.delta_sql import Writer
from streamhouse_spark.views.ivm.logical_plan import FilterProject, Join, Scan, SourceColumns, Union
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_query, prune_columns, stays_distinct

SOURCES = {
    "t0": SourceColumns(("id", "a"), ("id",), frozenset({"id"})),
    "t1": SourceColumns(("k", "b"), ("k",), frozenset({"k"})),
}
IDS = {"db.t": "t0", "db.u": "t1"}


def plan(query: str, types: dict[str, str], of_union: str = ""):
    """The plan over columns of these types; ``of_union`` is Spark's type of the columns of a UNION."""

    def types_of(node):
        if isinstance(node, Scan):
            return {name: types[column] for name, column in node.of.items()}
        if isinstance(node, FilterProject):
            of_child = types_of(node.child)
            return {name: of_child[found.name] for name, found in node.exprs.items()}
        assert isinstance(node, Union)
        return dict.fromkeys(node.columns, of_union)

    return prune_columns(build_plan(parse_query(query), SOURCES, IDS, types_of))


@pytest.mark.parametrize(
    ("kind", "other", "stays"),
    [
        ("bigint", "bigint", True),
        ("bigint", "tinyint", True),
        ("string", "string", True),
        ("char(3)", "char(5)", True),
        ("char(3)", "string", True),
        ("double", "double", True),
        ("float", "double", True),
        ("double", "float", True),
        ("string", "bigint", False),  # '5' and '05'
        ("varchar(3)", "int", False),
        ("string", "date", False),
        ("bigint", "string", True),
        ("date", "string", True),
        ("decimal(10,2)", "string", False),  # compared as DOUBLE where ANSI mode is off
        ("bigint", "double", False),
        ("int", "double", True),
        ("int", "float", False),
        ("smallint", "float", True),
        ("decimal(10,2)", "double", False),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "int", True),
        ("bigint", "decimal(38,0)", True),
        ("decimal(38,18)", "decimal(38,0)", False),  # more digits than a DECIMAL has
        ("bigint", "decimal(38,30)", False),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),  # a time zone may skip a day
        ("timestamp", "date", True),
        ("timestamp", "timestamp_ntz", True),
        ("timestamp_ntz", "timestamp", False),  # an hour that a time zone skips
        ("binary", "string", False),
    ],
)
def test_values_stay_distinct_in_a_comparison_with_another_type(kind, other, stays):
    assert stays_distinct(kind, other) is stays


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("bigint", ["id"]),
        ("int", ["id"]),
        ("char(4)", ["id", "k"]),
        ("string", ["id", "k"]),
        ("decimal(38,30)", ["id", "k"]),
    ],
)
def test_a_join_keeps_the_key_of_the_side_whose_rows_find_one(kind, key):
    """A row of t finds at most one of u where no two keys of u are equal to one value of t."""
    types = {"id": "bigint", "a": "bigint", "k": kind, "b": "int"}
    root = plan("SELECT t.id AS id, u.k AS k FROM db.t JOIN db.u ON t.a = u.k", types)
    shown = dict(zip(root.columns, ("id", "k"), strict=True))
    assert [shown[name] for name in root.key] == key
    assert isinstance(root.child, Join)


def test_a_union_casts_what_has_another_type():
    types = {"id": "bigint", "a": "decimal(10,2)", "k": "bigint", "b": "decimal(12,4)"}
    root = plan("SELECT a FROM db.t UNION ALL SELECT b FROM db.u", types, "decimal(12,4)")
    delta = Writer("x_", {"t0"}).delta(root)
    assert "AS decimal(12,4))" in delta
    assert "CAST" not in Writer("x_", {"t1"}).delta(root)
    assert "t1" not in delta


@pytest.mark.parametrize(("left", "right", "reads_both"), [
    ("char(3)", "char(3)", False),
    ("char(3)", "string", True),
    ("string", "char(3)", True),
    ("varchar(3)", "string", False),
])  # fmt: skip
def test_a_change_of_the_second_part_is_padded_as_the_first_one(left, right, reads_both):
    types = {"id": "bigint", "a": left, "k": "bigint", "b": right}
    root = plan("SELECT a FROM db.t UNION ALL SELECT b FROM db.u", types, left if left == right else "string")
    delta = Writer("x_", {"t1"}).delta(root)
    assert "CAST" not in delta
    assert ("x_t0_new" in delta) is reads_both
    assert "x_t1" not in Writer("x_", {"t0"}).delta(root)


@pytest.mark.parametrize(("left", "right", "of_union", "is_cast"), [
    ("int", "bigint", "bigint", False),
    ("string", "string", "string", False),
    ("string", "int", "string", True),
    ("decimal(10,2)", "string", "double", True),
    ("char(3)", "char(5)", "string", True),
    ("date", "timestamp", "timestamp", False),
])  # fmt: skip
def test_in_of_a_subquery_compares_texts_as_a_union_has_them(left, right, of_union, is_cast):
    types = {"id": "bigint", "a": left, "k": "bigint", "b": right}
    root = plan("SELECT id FROM db.t WHERE a IN (SELECT b FROM db.u)", types, of_union)
    text = Writer("x_", {"t0", "t1"}).rows(root, "new")
    assert text.count(f"AS {of_union})") == (2 if is_cast else 0)
