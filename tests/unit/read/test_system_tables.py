"""The system tables: what a table is made of."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.tables import TableCase
from streamhouse_spark import SchemaMismatchError, Transaction
from streamhouse_spark.log.actions import TieredSnapshot
from streamhouse_spark.read.system_tables import SYSTEM_TABLES, bucket_lags

TABLE = TableCase("t", "id BIGINT", buckets=2, properties={"bucket.key": "id", "comment": "x"})


def test_each_has_its_columns_even_when_empty(wh, table):
    for name, schema in SYSTEM_TABLES.items():
        for found in (getattr(table.inspect, name)(), wh.view(f"t${name}").to_arrow()):
            assert found.schema == schema
        assert wh.view(f"t${name}").schema == schema
    assert table.inspect.segments().num_rows == 0
    assert table.inspect.tiering().num_rows == 0


def test_the_buckets_table_shows_offsets_and_lag(table):
    table.append(pa.table({"id": range(100)}))
    table.log.commit(lambda *_: (TieredSnapshot(7, {0: 5}),))
    rows = {r["bucket"]: r for r in table.inspect.buckets().to_pylist()}
    ends = table.state.ends
    assert {b: r["log_end_offset"] for b, r in rows.items()} == ends
    assert {b: r["lake_offset"] for b, r in rows.items()} == {0: 5, 1: 0}
    assert {b: r["lag"] for b, r in rows.items()} == {0: ends[0] - 5, 1: ends[1]} == bucket_lags(table.state)
    assert all(r["log_start_offset"] == 0 and r["segments"] == 1 and r["size_bytes"] > 0 for r in rows.values())


def test_the_segments_table_shows_inline_and_stored_rows(table, store):
    table.append([{"id": 1}])
    table.append(pa.table({"id": range(60_000)}))
    rows = table.inspect.segments().to_pylist()
    assert [r["num_rows"] for r in rows if r["file"] is None] == [1]
    assert sum(r["num_rows"] for r in rows) == 60_001
    for row in rows:
        assert row["end_offset"] - row["start_offset"] == row["num_rows"]
        assert row["first_committed_at"] == row["last_committed_at"]
        if row["file"]:
            assert store.size_bytes(row["file"]) == row["size_bytes"]


def test_the_commits_table_shows_actions_and_transactions(table, clock):
    table.append([{"id": 1}, {"id": 2}], transaction=Transaction("job", 4))
    clock.advance(5000)
    table.alter_properties({"comment": "y"})
    rows = table.inspect.commits().to_pylist()
    assert [r["commit"] for r in rows] == [1, 2, 3]
    assert [r["rows_added"] for r in rows] == [0, 2, 0]
    assert [(r["txn_app_id"], r["txn_version"]) for r in rows] == [(None, None), ("job", 4), (None, None)]
    assert rows[2]["committed_at"].timestamp() * 1000 == clock.now_ms()
    assert len({r["attempt"] for r in rows}) == 3
    assert rows[0]["actions"] == "create"
    assert rows[1]["actions"] == "append"


def test_system_tables_show_schemas_options_and_tiering(table, clock):
    assert table.inspect.schemas().to_pylist() == [{"schema_id": 1, "columns": "id BIGINT", "is_current": True}]
    assert table.inspect.options().to_pylist() == [
        {"key": "bucket.key", "value": "id"},
        {"key": "bucket.num", "value": "2"},
        {"key": "comment", "value": "x"},
    ]
    table.log.commit(lambda *_: (TieredSnapshot(7, {0: 5, 1: 2}, clock.now_ms()),))
    table.log.commit(lambda *_: (TieredSnapshot(8, {0: 6, 1: 2}, clock.now_ms()),))
    rows = table.inspect.tiering().to_pylist()
    assert [(r["lake_snapshot_id"], r["bucket"], r["lake_offset"]) for r in rows] == [
        (7, 0, 5),
        (7, 1, 2),
        (8, 0, 6),
        (8, 1, 2),
    ]


def test_they_are_of_the_newest_state(table, other_process):
    other_process().table("t").append([{"id": 1}])
    assert sum(table.inspect.buckets()["log_end_offset"].to_pylist()) == 1


def test_system_tables_take_columns_and_filters(wh, table):
    table.append([{"id": i} for i in range(10)])
    view = wh.view("t$buckets")
    assert view.to_arrow(columns=["LAG", "bucket"]).column_names == ["lag", "bucket"]
    assert view.to_arrow(columns=["bucket"], filter=[("bucket", "=", 1)]).to_pylist() == [{"bucket": 1}]
    assert view.to_arrow(filter=pa.compute.field("bucket") > 5).num_rows == 0
    with pytest.raises(SchemaMismatchError, match="did you mean 'lag'"):
        view.to_arrow(columns=["lagg"])
