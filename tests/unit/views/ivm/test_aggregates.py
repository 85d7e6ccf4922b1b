"""Which views can be brought forward by their own rows, and which columns and sources their statements need."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from streamhouse_spark.views.ivm.aggregates import Aggregate, IncrementalAggregate
from streamhouse_spark.views.ivm.delta_sql import DeltaSqlWriter, find_indexed_sides
from streamhouse_spark.views.ivm.logical_plan import SourceColumns, iter_scans
from streamhouse_spark.views.ivm.query_parser import build_plan, parse_sql, prune_columns
from streamhouse_spark.views.ivm.refresh_sql import (
    VALUES_MAX,
    RefreshStatements,
    build_filter,
    choose_identity,
    in_filter,
)

SOURCES = {
    "t0": SourceColumns(("id", "cust", "amount", "note"), ("id",), frozenset({"id"})),
    "t1": SourceColumns(("id", "name", "town"), ("id",), frozenset({"id"})),
    "t2": SourceColumns(("a", "b", "c"), ("a", "b"), frozenset({"a", "b"})),
}
IDS = {"db.t": "t0", "db.u": "t1", "db.w": "t2"}
KEYS = {"t1": ("id",), "t2": ("a", "b")}


def plan(query: str):
    return prune_columns(build_plan(parse_sql(query), SOURCES, IDS))


def kinds(select: str, *types: str) -> list[str] | None:
    """The way in which each column of a view with these types is found; None if it cannot be brought forward."""
    root = plan(f"SELECT {select} FROM db.t GROUP BY cust")
    found = dict(zip(root.columns, types, strict=True)) | dict.fromkeys((*root.child.columns, *root.groups), "int")
    names = tuple(f"n{place}" for place, _ in enumerate(root.columns))
    added = IncrementalAggregate.of(RefreshStatements(root, names, found, choose_identity(root, found)))
    if added is None:
        return None
    return [part.kind if isinstance(part, Aggregate) else "computed" for part in added.parts.values()]


@pytest.mark.parametrize(
    ("select", "types", "expected"),
    [
        ("cust, count(*), count(1), count(id)", ["int", *["bigint"] * 3], ["computed", "rows", "rows", "rows"]),
        ("cust, count(note), count_if(note = 'x')", ["int", "bigint", "bigint"], ["computed", "count", "count"]),
        ("cust, sum(amount)", ["int", "bigint"], ["computed", "sum"]),
        ("cust, sum(amount)", ["int", "decimal(22,2)"], ["computed", "sum"]),
        ("cust, sum(amount)", ["int", "double"], ["computed", "float_sum"]),
        ("cust, min(note), max(amount)", ["int", "string", "double"], ["computed", "min", "max"]),
        ("cust, count(DISTINCT note), max(note)", ["int", "bigint", "int"], ["computed", "distinct", "max"]),
        ("cust, count(DISTINCT upper(note))", ["int", "bigint"], ["computed", "distinct"]),
        ("cust + 1, 'x', count(*)", ["int", "string", "bigint"], ["computed", "computed", "rows"]),
        ("cust, sum(amount), count(*), sum(amount) / count(*)", ["int", "bigint", "bigint", "double"],
         ["computed", "sum", "rows", "computed"]),
        ("cust, avg(id), sum(id), count(*)", ["int", "double", "bigint", "bigint"],
         ["computed", "computed", "sum", "rows"]),
        ("cust, avg(amount), sum(amount), count(amount)", ["int", "double", "bigint", "bigint"],
         ["computed", "computed", "sum", "count"]),
    ],
)  # fmt: skip
def test_how_columns_are_found(select, types, expected):
    assert kinds(select, *types) == expected


@pytest.mark.parametrize(
    ("select", "types"),
    [
        ("cust, count(DISTINCT note, amount)", ["int", "bigint"]),
        ("cust, sum(DISTINCT amount)", ["int", "bigint"]),
        ("cust, avg(amount)", ["int", "double"]),
        ("cust, avg(amount), sum(amount), count(*)", ["int", "double", "bigint", "bigint"]),
        ("cust, avg(amount), sum(amount), count(amount)", ["int", "double", "double", "bigint"]),
        ("cust, sum(amount)", ["int", "decimal(38,2)"]),
        ("cust, max(note)", ["int", "binary"]),
        ("cust, sum(amount) / count(*)", ["int", "double"]),
        ("cust, stddev(amount)", ["int", "double"]),
        ("cust, count(*) FILTER (WHERE amount > 1)", ["int", "bigint"]),
        ("cust, count(note, amount)", ["int", "bigint"]),
    ],
)
def test_other_views_are_computed_again(select, types):
    assert kinds(select, *types) is None


def test_groups_that_the_view_does_not_show_are_computed_again():
    root = plan("SELECT cust, count(*) AS n FROM db.t GROUP BY cust HAVING count(*) > 1")
    types = dict.fromkeys([*root.columns, *root.child.columns], "int")
    assert IncrementalAggregate.of(RefreshStatements(root, ("cust", "n"), types, choose_identity(root, types))) is None


def test_a_plan_has_the_columns_that_it_needs():
    def read(query: str) -> dict[str, list[str]]:
        return {scan.table: sorted(scan.of.values()) for scan in iter_scans(plan(query))}

    assert read("SELECT cust, sum(amount) AS s FROM db.t GROUP BY cust") == {"t0": ["amount", "cust"]}
    assert read("SELECT count(*) AS n FROM db.t") == {"t0": ["id"]}
    assert read("SELECT t.note FROM db.t JOIN db.u ON t.cust = u.id WHERE u.town = 'x'") == {
        "t0": ["cust", "note"],
        "t1": ["id", "town"],
    }
    assert read("SELECT note AS x FROM db.t UNION ALL SELECT name FROM db.u") == {"t0": ["note"], "t1": ["name"]}
    assert read("SELECT x FROM (SELECT note AS x, count(*) AS n FROM db.t GROUP BY note) q") == {"t0": ["note"]}
    assert read("SELECT amount FROM db.t WHERE EXISTS (SELECT 1 FROM db.w WHERE w.a = t.cust AND w.c > 1)") == {
        "t0": ["amount", "cust"],
        "t2": ["a", "c"],
    }


def uses(query: str, *changed: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Source that is looked up → the source whose changes name the keys, and its columns."""
    found = find_indexed_sides(plan(query), set(changed), KEYS)
    return {beside.table: (beside.changed, beside.lookup_columns) for beside in found.values()}


def test_rows_beside_changes_are_found_by_key():
    two = "SELECT t.note, u.town FROM db.t JOIN db.u ON t.cust = u.id"
    assert uses(two, "t0") == {"t1": ("t0", ("cust",))}
    assert uses(two, "t0", "t1") == {"t1": ("t0", ("cust",))}
    assert uses(two, "t1") == {}
    inner = "SELECT t.note, q.town FROM db.t JOIN (SELECT id AS k, town FROM db.u WHERE name = 'x') q ON q.k = t.cust"
    assert uses(inner, "t0") == {"t1": ("t0", ("cust",))}
    three = "SELECT t.note FROM db.t LEFT JOIN db.u ON t.cust = u.id LEFT JOIN db.w ON w.b = t.id AND w.a = t.cust"
    assert uses(three, "t0") == {"t1": ("t0", ("cust",)), "t2": ("t0", ("cust", "id"))}
    assert uses(three, "t0", "t1") == {"t1": ("t0", ("cust",))}, "changes of two sources do not name all keys"
    exists = "SELECT t.note FROM db.t WHERE EXISTS (SELECT 1 FROM db.u WHERE u.id = t.cust)"
    assert uses(exists, "t0") == {"t1": ("t0", ("cust",))}


@pytest.mark.parametrize(
    "on",
    ["t.cust = w.a", "t.cust = w.a OR t.id = w.b", "t.cust = w.a AND t.id < w.b", "t.cust + 1 = w.a AND t.id = w.b"],
)
def test_rows_that_changes_do_not_name_are_read(on):
    assert uses(f"SELECT t.note, w.c FROM db.t JOIN db.w ON {on}", "t0") == {}


def test_a_group_names_no_keys():
    query = "SELECT g.n, u.town FROM (SELECT cust, count(*) AS n FROM db.t GROUP BY cust) g JOIN db.u ON g.cust = u.id"
    assert uses(query, "t0") == {}


def test_statements_read_the_rows_that_are_looked_up():
    """Only beside changes: rows that change sides in a join are judged by all rows."""
    root = plan("SELECT t.note, u.town FROM db.t LEFT JOIN db.u ON t.cust = u.id")
    (use,) = find_indexed_sides(root, {"t0", "t1"}, KEYS)
    delta = DeltaSqlWriter("x_", {"t0", "t1"}, {use}).delta(root)
    assert delta is not None
    assert f"x_t1_old_by_{use}" in delta
    assert f"x_t1_new_by_{use}" in delta
    assert "FROM x_t1_new)" in delta
    assert "x_t0_old" in delta
    of_one = DeltaSqlWriter("x_", {"t0"}, {use}).delta(root)
    assert of_one is not None
    assert "FROM x_t1_new)" not in of_one


def test_conditions_that_groups_satisfy():
    assert in_filter("c1", [3, None, -1]) == "(c1 IN (3, -1) OR c1 IS NULL)"
    assert in_filter("c1", ["a-b", "c d"]) == "(c1 IN ('a-b', 'c d'))"
    assert in_filter("c1", [None]) == "(c1 IS NULL)"
    assert in_filter("c1", ["it's"]) == in_filter("c1", [1.5]) == in_filter("c1", [True]) == ""
    assert in_filter("c1", list(range(VALUES_MAX + 1))) == ""


def test_a_filter_for_many_groups_bounds_each_column():
    """Each column by itself: its values where they are few, else what they lie between."""
    days = [dt.date(2026, 1, 1) + dt.timedelta(number % 3) for number in range(VALUES_MAX + 1)]
    numbers, texts = list(range(VALUES_MAX + 1)), [f"t{number:04}" for number in range(VALUES_MAX + 1)]
    found = build_filter(
        pa.table({"c1": [None, *numbers[1:]], "c2": days, "c3": texts, "c4": [0.5 * n for n in numbers]})
    )
    assert found == (
        f"(c1 BETWEEN 1 AND {VALUES_MAX} OR c1 IS NULL) AND "
        "(c2 IN (DATE'2026-01-01', DATE'2026-01-02', DATE'2026-01-03')) AND (c3 BETWEEN 't0000' AND 't1000')"
    )
    assert build_filter(pa.table({"c1": [f"it's {number}" for number in numbers]})) == ""
    assert build_filter(pa.table({"c1": pa.array([], pa.int32())})) == ""
