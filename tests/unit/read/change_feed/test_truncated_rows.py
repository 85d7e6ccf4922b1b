"""Changes of a commit that emptied a table with a primary key: its rows from lake, snapshots by key and log."""

from __future__ import annotations

import pytest

from kit.change_replay import changes, check_history
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, Table
from streamhouse_spark.expressions.predicates import Compare
from streamhouse_spark.read.change_feed.planning import plan_changes
from streamhouse_spark.read.scan_planning import Pruning


@pytest.fixture(params=["iceberg", "paimon", "no lake"])
def table(request, wh):
    has_lake = request.param != "no lake"
    properties = {"table.datalake.format": request.param} if has_lake else {"table.datalake.enabled": "false"}
    table = wh.create_table("k", "id BIGINT, n INT", primary_key=["id"], buckets=2, properties=properties)
    table.upsert([{"id": number, "n": 0} for number in range(6)])
    if has_lake:
        tier(table)
    table.upsert([{"id": number, "n": 1} for number in range(4, 8)])
    table.delete([0])
    return table


ROWS = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}


def told(table: Table, first: int, last: int) -> list[tuple[int, int, str]]:
    return sorted((c["id"], c["n"], c["_change_type"]) for c in changes(table, first, last))


def test_an_overwrite_is_deletions_and_insertions(table):
    table.overwrite([{"id": 1, "n": 5}, {"id": 9, "n": 5}])
    version = table.refresh().version
    deleted = [(id_, n, "delete") for id_, n in ROWS.items()]
    assert told(table, version, version) == sorted([*deleted, (1, 5, "insert"), (9, 5, "insert")])
    table.upsert([{"id": 9, "n": 6}])
    table.truncate()
    table.upsert([{"id": 3, "n": 7}])
    check_history(table)


def test_truncated_rows_have_the_columns_of_now(table):
    table.truncate()
    version = table.refresh().version
    table.rename_column("n", "count")
    table.add_columns("more STRING")
    found = changes(table, version, version)
    assert {row["id"]: (row["count"], row["more"]) for row in found} == {id_: (n, None) for id_, n in ROWS.items()}


def test_a_key_is_read_in_its_bucket_alone(table):
    table.truncate()
    state = table.refresh()

    def pieces(pruning):
        return plan_changes(table, state, state.version, state.version, pruning).tasks

    every = pieces(Pruning())
    assert sorted(piece.bucket for piece in every) == [0, 1]
    assert sum(piece.commits.num_rows for piece in every) >= len(ROWS)
    assert [piece.bucket for piece in pieces(Pruning(Compare("=", "id", 3)))] in ([0], [1])
    for piece in every:
        assert type(piece).from_json(piece.to_json()).to_json() == piece.to_json()


def test_rows_that_are_gone_are_refused(wh):
    table = wh.create_table("g", "id BIGINT", primary_key=["id"], buckets=1)
    table.upsert([{"id": 1}])
    tier(table)
    table.truncate()
    emptied = table.refresh().version
    assert [c["_change_type"] for c in changes(table, emptied, emptied)] == ["delete"]
    table.upsert([{"id": 2}])
    tier(table)
    table.open_lake().expire(keep_last=1, keep_ms=0)
    text = rf"commit {emptied} \(truncate\) removed all rows at once.*version {emptied + 1}"
    with pytest.raises(InvalidOptionError, match=text):
        changes(table, 1, table.refresh().version)
    assert [c["id"] for c in changes(table, emptied + 1, table.state.version)] == [2]


def test_a_key_whose_column_was_renamed_is_refused(table):
    table.truncate()
    version = table.refresh().version
    table.rename_column("id", "number")
    with pytest.raises(InvalidOptionError, match=rf"commit {version} \(truncate\) removed all rows at once"):
        changes(table, version, version)
