"""Scans of what a range of commits appended or changed, by every way to read them."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import streamhouse_spark as sh
from kit.tables import tier, trim_tiered
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, SchemaMismatchError, Table


@pytest.fixture
def orders(wh) -> Table:
    """Commits 2 and 3 append, 4 deletes, 5 appends."""
    table = wh.create_table("d.orders", "id BIGINT, s STRING", buckets=2, properties={"bucket.key": "id"})
    table.append([{"id": 1, "s": "a"}, {"id": 2, "s": "b"}])
    table.append([{"id": 3, "s": "c"}])
    table.delete(where="id = 1")
    table.append([{"id": 4, "s": "d"}])
    return table


@pytest.fixture
def people(wh) -> Table:
    table = wh.create_table("d.people", "id BIGINT, name STRING, city STRING", primary_key=["id"], buckets=2)
    table.upsert([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    table.upsert([{"id": 1, "name": "Anna"}, {"id": 3, "name": "Cy"}])
    table.delete([2])
    return table


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


@pytest.mark.parametrize("is_tiered", [False, True])
def test_an_append_scan_has_the_rows_that_the_commits_appended(orders, is_tiered):
    if is_tiered:
        tier(orders)
    assert ids(orders.incremental_append_scan().to_arrow()) == [1, 2, 3, 4]
    assert ids(orders.incremental_append_scan(2).to_arrow()) == [3, 4]
    assert ids(orders.incremental_append_scan(1, 3).to_arrow()) == [1, 2, 3]
    assert orders.incremental_append_scan(3, 3).to_arrow().num_rows == 0
    assert orders.incremental_append_scan(2, 4).schema == orders.schema
    orders.append([{"id": 5, "s": "e"}])
    assert ids(orders.incremental_append_scan(4).scan(filter="id > 4").to_arrow()) == [5]


def test_a_version_may_be_a_tag(orders):
    orders.create_tag("then", 2)
    assert ids(orders.incremental_append_scan("then", "5").to_arrow()) == [3, 4]
    assert ids(orders.changes("then").scan(filter="_change_type = 'delete'").to_arrow()) == [1]


def test_changes_name_the_commit_of_each_row(people):
    rows = (
        people.changes(2)
        .to_arrow(columns=["_commit_version", "_change_type", "id", "name"])
        .sort_by([("_commit_version", "ascending"), ("id", "ascending"), ("_change_type", "descending")])
    )
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (3, "update_preimage", 1, "Ann"),
        (3, "update_postimage", 1, "Anna"),
        (3, "insert", 3, "Cy"),
        (4, "delete", 2, "Bob"),
    ] or [tuple(row.values()) for row in rows.to_pylist()][:2] == [
        (3, "update_preimage", 1, "Ann"),
        (3, "update_postimage", 1, "Anna"),
    ]
    assert people.changes(2, 3).schema.names[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]


def test_every_way_to_read_returns_the_same_changes(people):
    scan = people.changes(1)
    expected = scan.to_arrow()
    assert expected.num_rows == 6
    order = ["_commit_version", "id", "_change_type"]
    assert scan.to_arrow_batch_reader().read_all().equals(expected)
    assert pa.table(scan).equals(expected)
    assert scan.count() == scan.to_pandas().shape[0] == 6
    assert scan.to_polars().sort(order).equals(pl.DataFrame(scan).sort(order))
    assert sh.scan_polars(scan).filter(pl.col("id") == 1).collect().height == 3
    assert scan.to_duckdb("c").sql("SELECT count(*) FROM c WHERE _change_type = 'insert'").fetchall() == [(3,)]
    assert duckdb.sql("SELECT count(*) FROM scan").fetchall() == [(6,)]
    assert scan.limit(2).to_arrow().num_rows == 2
    assert scan.select("name").filter("_commit_version = 4").to_arrow().to_pylist() == [{"name": "Bob"}]
    assert repr(scan.select("id")) == "Scan(d.people CHANGES: id)"


def test_changes_follow_added_columns_and_branches(people):
    people.add_columns("age INT")
    version = people.state.version
    people.upsert([{"id": 9, "age": 7}])
    assert people.changes(version).to_arrow(columns=["id", "age"]).to_pylist() == [{"id": 9, "age": 7}]
    people.create_branch("b")
    branch = people.branch("b")
    begin = branch.refresh().version
    branch.upsert([{"id": 10}])
    assert branch.changes(begin).to_arrow(columns=["id", "_change_type"]).to_pylist() == [
        {"id": 10, "_change_type": "insert"}
    ]


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda _, people: people.incremental_append_scan(1), InvalidOptionError, r"with changes\(from_exclusive"),
        (lambda orders, _: orders.changes(99).to_arrow(), InvalidOptionError, "no version 99"),
        (lambda orders, _: orders.changes(3, 2).to_arrow(), InvalidOptionError, "swap the two versions"),
        (lambda orders, _: orders.changes("nope").to_arrow(), InvalidOptionError, "a tag"),
        (lambda orders, _: orders.changes(1).explain(), InvalidOptionError, "has no plan"),
        (lambda orders, _: orders.changes(1).to_arrow(columns=["x"]), SchemaMismatchError, "no column 'x'"),
    ],
)
def test_what_a_scan_of_changes_cannot_do(orders, people, ask: Any, error, text):
    with pytest.raises(error, match=text):
        ask(orders, people)


def test_changes_that_the_log_no_longer_has_are_an_error(people):
    tier(people)
    trim_tiered(people)
    with pytest.raises(OffsetsTrimmedError):
        people.changes(1).to_arrow()
