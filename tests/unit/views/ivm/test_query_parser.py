"""Parts of a query that incremental refreshes do not support, and columns of two types that meet."""

from __future__ import annotations

import pytest

from streamhouse_spark.views.ivm.delta_sql import DeltaSqlWriter
from streamhouse_spark.views.ivm.logical_plan import (
    FilterProject,
    Join,
    Scan,
    SourceColumns,
    Union,
    UnsupportedQueryError,
    source_tables,
)
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_sql, prune_columns, stays_distinct, table_names

SOURCES = {"t0": SourceColumns(("id", "a", "b"), ("id",), frozenset({"id"})), "t1": SourceColumns(("id", "c"))}
IDS = {"db.t": "t0", "db.u": "t1"}


def plan(query: str):
    return build_plan(parse_sql(query), SOURCES, IDS)


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("SELECT a FROM db.t ORDER BY a", "ORDER .*: ORDER BY"),
        ("SELECT a FROM db.t LIMIT 3", "LIMIT .*: LIMIT 3"),
        ("SELECT now() AS n FROM db.t", "not known to be deterministic: NOW"),
        ("SELECT current_date() AS n FROM db.t", "not known to be deterministic: CURRENT_DATE"),
        ("SELECT my_udf(a) AS n FROM db.t", "not known to be deterministic: MY_UDF"),
        ("SELECT collect_list(a) AS n FROM db.t", "order of rows: COLLECT_LIST"),
        ("SELECT sum(a) OVER (PARTITION BY b) AS n FROM db.t", "a window function: SUM"),
        ("SELECT a FROM db.t WHERE a NOT IN (SELECT c FROM db.u)", "NOT IN"),
        ("SELECT a FROM db.t WHERE a > 1 OR EXISTS (SELECT 1 FROM db.u)", "a subquery here"),
        ("SELECT (SELECT max(c) FROM db.u) AS m FROM db.t", "a subquery here"),
        ("SELECT a, count(*) AS n FROM db.t GROUP BY ROLLUP (a)", "ROLLUP"),
        ("SELECT a FROM db.t EXCEPT SELECT c FROM db.u", "EXCEPT"),
        ("SELECT a AS x, b AS x FROM db.t", "columns with equal names"),
        ("SELECT nothing FROM db.t", "an unknown or ambiguous name"),
        ("DELETE FROM db.t", "not a query"),
        ("SELECT a FROM", "a syntax error"),
    ],
)
def test_the_part_is_named(query, part):
    with pytest.raises(UnsupportedQueryError, match=part):
        plan(query)


def test_names_of_with_clauses_are_no_tables():
    query = "WITH w AS (SELECT * FROM db.t) SELECT w.a FROM w JOIN db.u ON w.id = db.u.id"
    assert sorted(table_names(parse_sql(query))) == ["db.t", "db.u"]


def test_what_did_not_change_falls_away():
    """A delta reads no older version of a source that it does not need, and none of one that did not change."""
    root = plan("SELECT t.a, u.c FROM db.t LEFT JOIN db.u ON t.id = u.id")
    assert source_tables(root) == {"t0", "t1"}
    delta = DeltaSqlWriter("x_", {"t0"}).delta(root)
    assert delta is not None
    assert "x_t0_delta" in delta
    assert "x_t1_new" in delta
    assert "_old" not in delta
    assert "x_t1_delta" not in delta
    assert DeltaSqlWriter("x_", set()).delta(root) is None


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT b, id FROM db.t", ("id",)),
        ("SELECT b FROM db.t", None),
        ("SELECT t.id, u.c FROM db.u JOIN db.t ON u.id = t.id", None),
        ("SELECT a, count(*) AS n FROM db.t GROUP BY a", ("a",)),
        ("SELECT count(*) AS n FROM db.t GROUP BY a", None),
        ("SELECT count(*) AS n FROM db.t", ()),
        ("SELECT DISTINCT a, b FROM db.t", ("a", "b")),
        ("SELECT id FROM db.t UNION ALL SELECT id FROM db.t", None),
    ],
)
def test_a_query_keeps_the_key_of_its_source(query, key):
    root = plan(query)
    names = [p.alias_or_name for p in parse_sql(query).selects]
    shown = dict(zip(root.columns, names, strict=True))
    assert (None if root.key is None else tuple(shown[name] for name in root.key)) == key


TYPED_SOURCES = {
    "t0": SourceColumns(("id", "a"), ("id",), frozenset({"id"})),
    "t1": SourceColumns(("k", "b"), ("k",), frozenset({"k"})),
}


def typed_plan(query: str, types: dict[str, str], of_union: str = ""):
    """The plan over columns of these types; ``of_union`` is Spark's type of the columns of a UNION."""

    def types_of(node):
        if isinstance(node, Scan):
            return {name: types[column] for name, column in node.of.items()}
        if isinstance(node, FilterProject):
            of_child = types_of(node.child)
            return {name: of_child[found.name] for name, found in node.exprs.items()}
        assert isinstance(node, Union)
        return dict.fromkeys(node.columns, of_union)

    return prune_columns(build_plan(parse_sql(query), TYPED_SOURCES, IDS, types_of))


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
    root = typed_plan("SELECT t.id AS id, u.k AS k FROM db.t JOIN db.u ON t.a = u.k", types)
    shown = dict(zip(root.columns, ("id", "k"), strict=True))
    assert [shown[name] for name in root.key] == key
    assert isinstance(root.child, Join)


def test_a_union_casts_what_has_another_type():
    types = {"id": "bigint", "a": "decimal(10,2)", "k": "bigint", "b": "decimal(12,4)"}
    root = typed_plan("SELECT a FROM db.t UNION ALL SELECT b FROM db.u", types, "decimal(12,4)")
    delta = DeltaSqlWriter("x_", {"t0"}).delta(root)
    assert "AS decimal(12,4))" in delta
    assert "CAST" not in DeltaSqlWriter("x_", {"t1"}).delta(root)
    assert "t1" not in delta


@pytest.mark.parametrize(("left", "right", "reads_both"), [
    ("char(3)", "char(3)", False),
    ("char(3)", "string", True),
    ("string", "char(3)", True),
    ("varchar(3)", "string", False),
])  # fmt: skip
def test_a_change_of_the_second_part_is_padded_as_the_first_one(left, right, reads_both):
    types = {"id": "bigint", "a": left, "k": "bigint", "b": right}
    root = typed_plan("SELECT a FROM db.t UNION ALL SELECT b FROM db.u", types, left if left == right else "string")
    delta = DeltaSqlWriter("x_", {"t1"}).delta(root)
    assert "CAST" not in delta
    assert ("x_t0_new" in delta) is reads_both
    assert "x_t1" not in DeltaSqlWriter("x_", {"t0"}).delta(root)


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
    root = typed_plan("SELECT id FROM db.t WHERE a IN (SELECT b FROM db.u)", types, of_union)
    text = DeltaSqlWriter("x_", {"t0", "t1"}).rows(root, "new")
    assert text.count(f"AS {of_union})") == (2 if is_cast else 0)
