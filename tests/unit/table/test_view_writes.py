"""Writes to a materialized table by others than its refreshes are refused, and all else that a table takes is taken."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from kit.serving import http_client
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, Transaction, Warehouse
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.table.refresh_commit import RefreshStep, commit_step

DEFINITION = ViewDefinition("SELECT k, v FROM db.source", "incremental", 1000, ("k", "v"), "natural", {})
REFUSED = (
    r"gold\.view is a materialized table, and only its refreshes may write to it; write to the tables that its query"
)


@pytest.fixture
def wh(tmp_path, own_cache):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table(
        "gold.view", "k INT NOT NULL, v INT", primary_key=["k"], properties={VIEW: DEFINITION.to_text()}
    )
    return warehouse


def refresh(view, number, rows, gone=()):
    """What a refresh commits."""
    table = pa.Table.from_pylist(rows, schema=view.refresh().schema.arrow)
    new = Lineage((SourceVersion("db.source", "u", number, None, {0: number}),))
    gone = pa.array([row["k"] in gone for row in rows], pa.bool_())
    assert commit_step(view, RefreshStep(number, None, new), table, gone)


@pytest.fixture
def view(wh):
    view = wh.table("gold.view")
    refresh(view, 1, [{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    return view


def rows_of(table):
    return {row["k"]: row["v"] for row in table.to_arrow().to_pylist()}


WRITES = {
    "upsert": lambda view: view.upsert([{"k": 1, "v": 5}]),
    "upsert from asyncio": lambda view: asyncio.run(view.aio.upsert([{"k": 1, "v": 5}])),
    "upsert of a transaction": lambda view: view.upsert([{"k": 1, "v": 5}], transaction=Transaction("app", 1)),
    "upsert of nothing": lambda view: view.upsert([]),
    "append": lambda view: view.append([{"k": 1, "v": 5}]),
    "append of rows that do not fit": lambda view: view.append([{"x": 1}]),
    "writer": lambda view: view.writer(),
    "delete": lambda view: view.delete([1]),
    "overwrite": lambda view: view.overwrite([{"k": 3, "v": 3}]),
    "truncate": lambda view: view.truncate(),
    "rollback": lambda view: view.rollback_to_version(2),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_of_others_are_refused(view, write):
    if write == "rollback":
        refresh(view, 2, [{"k": 1, "v": 1}, {"k": 2, "v": None}, {"k": 9, "v": 9}])
    before, rows = view.refresh().version, rows_of(view)
    with pytest.raises(InvalidOptionError, match=REFUSED):
        WRITES[write](view)
    assert (view.refresh().version, rows_of(view)) == (before, rows)


@pytest.mark.parametrize("mode", ["", "?mode=delete"])
def test_writes_over_http_are_refused(wh, view, mode):
    client = http_client(make_app(wh))
    answer = client.post(f"/api/v1/tables/gold.view/rows{mode}", json=[{"k": 1}])
    assert answer.status_code == 400
    assert "is a materialized table" in answer.text
    assert rows_of(view) == {1: 1, 2: 2}


def test_what_others_do_with_a_view(wh, view):
    """Its refreshes write, and it is followed, tiered, compacted, altered, renamed, cloned and dropped as any table."""
    assert [batch.num_rows for batch in view.follow("app", available_now=True)] == [2]
    tier(view)
    refresh(view, 2, [{"k": 1, "v": 3}, {"k": 2, "v": None}], gone=[2])
    view.maintain()
    tier(view)
    view.lake.compact()
    view.alter_properties({"table.log.ttl": "3d"})
    assert [batch["_change_type"].to_pylist() for batch in view.follow("app", available_now=True)] == [
        ["update_before", "update_after", "delete"]
    ]
    wh.rename_table("gold.view", "gold.other")
    copy = wh.clone_table("gold.other", "gold.copy")
    copy.upsert([{"k": 2, "v": 7}])
    assert (rows_of(wh.table("gold.other")), rows_of(copy)) == ({1: 3}, {1: 3, 2: 7})
    wh.drop_table("gold.other")


def test_a_planted_bug_is_found(view, monkeypatch):
    from streamhouse_spark.kv import upsert_commit
    from streamhouse_spark.log import commit_validation

    monkeypatch.setattr(upsert_commit, "require_writable", lambda *_: None)
    with pytest.raises(InvalidOptionError, match=REFUSED):
        view.upsert([{"k": 1, "v": 5}])  # the record is where it is decided
    monkeypatch.setattr(commit_validation, "require_writable", lambda *_: None)
    view.upsert([{"k": 1, "v": 5}])
    assert rows_of(view)[1] == 5
