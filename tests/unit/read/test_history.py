"""`$history`: the commits of a table and their operations."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kit.tables import TableCase
from streamhouse_spark import InvalidOptionError, Transaction, Warehouse
from streamhouse_spark.core.clock import Author, World, system_author
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.log.actions import TieredSnapshot
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.record import encode_record, read_record
from streamhouse_spark.read.system_tables import SYSTEM_TABLES
from streamhouse_spark.write.auto_compaction import compact_inline_rows

TABLE = TableCase("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})


def history(table, limit=None):
    return table.inspect.history(limit).to_pylist()


def test_each_commit_and_its_rows(table, clock):
    table.append([{"id": 1}, {"id": 2}], transaction=Transaction("job", 4))
    clock.advance(5000)
    table.alter_properties({"comment": "y"})
    table.log.commit(lambda *_: (TieredSnapshot(7, {0: 1}, clock.now_ms()),))
    table.overwrite([{"id": 3}])
    table.truncate()
    rows = history(table)
    assert [row["version"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["operation"] for row in rows] == [
        "create",
        "append",
        "set properties",
        "tier",
        "overwrite",
        "truncate",
    ]
    assert [row["rows_added"] for row in rows] == [0, 2, 0, 0, 1, 0]
    assert [row["rows_deleted"] for row in rows] == [0, 0, 0, 0, None, None]
    assert [row["bytes_added"] > 0 for row in rows] == [False, True, False, False, True, False]
    assert [row["query_id"] for row in rows] == [None, "job", None, None, None, None]
    assert rows[2]["timestamp"].timestamp() * 1000 == clock.now_ms()
    assert json.loads(rows[1]["details"]) == {"txn_version": 4}
    assert json.loads(rows[2]["details"]) == {"set": {"comment": "y"}, "unset": []}
    assert json.loads(rows[3]["details"]) == {"lake_snapshot_id": 7}


def test_merged_segments_are_a_commit_in_the_history(table):
    table.append([{"id": number} for number in range(60_000)])
    table.append([{"id": 1}])
    compact_inline_rows(table)
    rows = history(table)
    assert [row["operation"] for row in rows[1:]] == ["append", "append", "merge segments"]
    assert [row["files_added"] for row in rows] == [0, 2, 0, 0]
    assert sum(row["rows_added"] for row in rows) == 60_001
    assert rows[-1]["bytes_added"] == 0


def test_deletions_by_key_are_upserts_in_the_history(wh):
    table = wh.create_table("k", "id BIGINT, v STRING", primary_key=["id"], buckets=1)
    table.upsert([{"id": 1, "v": "a"}])
    table.delete([{"id": 1}])
    rows = history(table)
    assert [row["operation"] for row in rows] == ["create", "upsert", "upsert"]
    assert rows[1]["rows_deleted"] is None, "a change may replace a row"


def test_the_history_counts_rows_deleted_by_a_condition(table):
    table.append([{"id": n} for n in range(10)])
    assert table.delete(where=[("id", "<", 4)]) == 4
    assert [(row["operation"], row["rows_added"], row["rows_deleted"]) for row in history(table)] == [
        ("create", 0, 0),
        ("append", 10, 0),
        ("delete", 0, 4),
    ]


def test_the_newest_ones_alone_read_no_more_records(table, store, monkeypatch):
    for number in range(10):
        table.append([{"id": number}])
    rows = history(table)
    read = []
    monkeypatch.setattr(type(store), "read", _noting(type(store).read, read))
    assert history(table, 3) == rows[-3:]
    assert sum("/commits/" in key for key in read) <= 4, "the tail is looked for, and three are read"


def _noting(read, keys):
    def noted(self, key):
        keys.append(key)
        return read(self, key)

    return noted


@pytest.mark.parametrize("limit", [0, -1, "many", 0.5, True])
def test_a_limit_that_is_none(table, limit):
    with pytest.raises(InvalidOptionError, match="limit"):
        history(table, limit)


def test_records_that_were_cleaned_are_not_shown(table, store):
    for number in range(4):
        table.append([{"id": number}])
    store.delete(commit_key(table.uuid, 2))
    assert [row["version"] for row in history(table)] == [3, 4, 5]


def test_a_record_of_a_slow_writer_below_a_floor_is_not_shown(table, store):
    """It follows other records than the log's, which the attempt in the record behind it tells."""
    for number in range(4):
        table.append([{"id": number}])
    void, _ = read_record(store, table.uuid, 1)
    key = commit_key(table.uuid, 3)
    store.delete(key)
    encoded = encode_record(replace(void, number=3, attempt="f" * 32), "0" * 32)
    store.put_if_absent(key, encoded.data)
    assert [row["version"] for row in history(table)] == [4, 5]


class TestAuthors:
    def test_they_are_in_the_record_and_in_the_history(self, store, clock):
        world = World(clock, author=Author("ann", "python/1.2"))
        table = Warehouse(store.url, storage=store, world=world).create_table("a.t", "id BIGINT")
        table.append([{"id": 1}])
        assert {(row["user"], row["engine"]) for row in history(table)} == {("ann", "python/1.2")}
        header = decode_frame("commit", store.read(commit_key(table.uuid, 2)), "there").header
        assert header["by"] == ["ann", "python/1.2"]

    def test_records_without_one_stay_readable(self, table):
        table.append([{"id": 1}])
        assert {(row["user"], row["engine"]) for row in history(table)} == {(None, None)}

    def test_a_process_has_a_name_and_a_version(self, monkeypatch, tmp_path):
        import streamhouse_spark

        assert system_author("cli").engine == f"cli/{streamhouse_spark.__version__}"
        table = Warehouse(tmp_path / "wh").create_table("t", "id BIGINT")
        assert history(table)[0]["engine"] == f"python/{streamhouse_spark.__version__}"

        def fails():
            raise KeyError("no such uid")

        monkeypatch.setattr("getpass.getuser", fails)
        assert system_author("cli").user == ""


def test_the_view_has_the_columns_of_the_table(wh, table):
    assert wh.view("t$history").to_arrow().schema == SYSTEM_TABLES["history"]
