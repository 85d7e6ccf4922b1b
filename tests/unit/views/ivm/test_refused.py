"""The parts of a query that cannot be kept by changes, each named in the refusal."""

from __future__ import annotations

import pytest

from streamhouse_spark.views.ivm.delta_sql import Writer
from streamhouse_spark.views.ivm.logical_plan import SourceColumns, UnsupportedQueryError, source_tables
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_sql, table_names

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
    delta = Writer("x_", {"t0"}).delta(root)
    assert delta is not None
    assert "x_t0_delta" in delta
    assert "x_t1_new" in delta
    assert "_old" not in delta
    assert "x_t1_delta" not in delta
    assert Writer("x_", set()).delta(root) is None


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
def test_the_key_of_a_query(query, key):
    root = plan(query)
    names = [p.alias_or_name for p in parse_sql(query).selects]
    shown = dict(zip(root.columns, names, strict=True))
    assert (None if root.key is None else tuple(shown[name] for name in root.key)) == key
