"""Tables with a primary key through the Python API: writes, lookups, changelogs, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from kit import keyed_writes
from kit.tables import TableCase
from streamhouse_spark import OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidNameError,
    InvalidOptionError,
    SchemaMismatchError,
)
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.tablet import Tablet, close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.auto_compaction import compact_inline_rows

COLUMNS = "id BIGINT, name STRING, n INT"
VERSIONED = "table.merge-engine.versioned"

pytestmark = pytest.mark.usefixtures("own_cache")
TABLE = TableCase("sales.orders", COLUMNS, primary_key=["id"], buckets=3)


def row(key, name=None, n=None):
    return {"id": key, "name": name, "n": n}


def found(table, **options):
    rows = table.to_arrow(**options).to_pylist()
    return sorted(rows, key=lambda r: r["id"]) if rows and "id" in rows[0] else rows


class TestRewrites:
    """Commits of the rows of UPDATE, DELETE and MERGE."""

    @staticmethod
    def rewrite(table, *changes):
        """``changes``: rows, and whether they delete."""
        schema = table.refresh().schema.arrow
        rows = pa.Table.from_pylist([row for row, _ in changes], pa.schema([f.with_nullable(True) for f in schema]))
        deleted = np.array([deleted for _, deleted in changes], np.bool_)
        return keyed_writes.rewrite(table, rows, deleted, read=ReadVersion.of(table.state))

    @pytest.mark.parametrize("first", [True, False])
    def test_a_row_stays_that_takes_the_place_of_a_deleted_one(self, table, first):
        table.upsert([row(1, "a"), row(2, "b")])
        changes = [(row(1), True), (row(1, "new"), False)]
        self.rewrite(table, *(changes if first else changes[::-1]), (row(2), True))
        assert found(table) == [row(1, "new")]

    def test_two_rows_of_one_key_have_no_order(self, table):
        table.upsert([row(1, "a")])
        with pytest.raises(SchemaMismatchError, match=r"2 rows with the primary key \(id = 7\)"):
            self.rewrite(table, (row(1, "b"), False), (row(7, "x"), False), (row(7, "y"), False))
        assert found(table) == [row(1, "a")]

    def test_a_table_that_ignores_deletions_refuses_them(self, wh):
        table = wh.create_table(
            "sales.kept", COLUMNS, primary_key=["id"], properties={"table.delete.behavior": "ignore"}
        )
        table.upsert([row(1, "a")])
        with pytest.raises(InvalidOptionError, match="does not support deletes"):
            self.rewrite(table, (row(1), True))
        self.rewrite(table, (row(1, "b"), False))
        assert found(table) == [row(1, "b")]

    def test_a_merge_engine_refuses_them(self, wh):
        table = wh.create_table(
            "sales.sums", COLUMNS, primary_key=["id"], properties={"table.merge-engine": "aggregation"}
        )
        with pytest.raises(InvalidOptionError, match=r"table.merge-engine is aggregation; use INSERT INTO"):
            self.rewrite(table, (row(1, "b"), False))

    def test_another_change_since_it_was_read(self, table, other_process):
        table.upsert([row(1, "a")])
        read = ReadVersion.of(table.refresh())
        other_process().table("sales.orders").upsert([row(2, "b")])
        with pytest.raises(CommitConflictError, match="run the statement again"):
            keyed_writes.rewrite(table, table.to_arrow(), np.ones(1, np.bool_), read=read)
        table.refresh()
        assert found(table) == [row(1, "a"), row(2, "b")]


class TestWrites:
    def test_upserts_and_deletes_are_net_changes(self, table):
        offsets = table.upsert([row(1, "a"), row(2, "b"), row(1, "A", 1)])
        assert offsets.num_rows == 2  # one net change a key
        assert found(table) == [row(1, "A", 1), row(2, "b")]
        assert table.delete([2, 77]).num_rows == 1
        assert table.upsert([row(1, "A", 1)]).num_rows == 0  # nothing changes
        assert found(table) == [row(1, "A", 1)]

    def test_rows_of_every_form_are_upserted_and_deleted(self, table):
        table.upsert(pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int32())}))
        table.upsert(pa.record_batch({"ID": [2, 3], "name": ["b", "c"]}))
        assert found(table) == [row(1, None, 1), row(2, "b"), row(3, "c")]
        table.delete(pa.array([1]))
        table.delete(pa.table({"id": [2]}))
        table.delete([{"id": 3}])
        assert found(table) == []

    def test_partial_updates_of_several_writers_are_combined(self, table, other_process):
        other = other_process().table("sales.orders")
        table.upsert([{"id": 1, "name": "a"}], columns=["name"])
        other.upsert([{"id": 1, "n": 5}, {"id": 2, "n": 6}], columns=["id", "n"])
        table.upsert([{"id": 1, "name": "A"}], columns=["name"])
        assert found(table) == found(other) == [row(1, "A", 5), row(2, None, 6)]

    def test_a_transaction_counts_once_also_where_columns_are_summed(self, wh):
        table = wh.create_table(
            "t", "id INT, n BIGINT", primary_key=["id"],
            properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
        )  # fmt: skip
        first = table.upsert([{"id": 1, "n": 2}], transaction=Transaction("job", 0))
        again = table.upsert([{"id": 1, "n": 2}], transaction=Transaction("job", 0))
        assert again == first
        table.upsert([{"id": 1, "n": 2}], transaction=Transaction("job", 1))
        assert found(table) == [{"id": 1, "n": 4}]

    def test_each_merge_engine_combines_rows_of_a_key(self, wh):
        first = wh.create_table("f", COLUMNS, primary_key=["id"], properties={"table.merge-engine": "first_row"})
        first.upsert([row(1, "a"), row(1, "b")])
        first.upsert([row(1, "c")])
        first.delete([1])  # ignored
        assert found(first) == [row(1, "a")]
        versioned = wh.create_table(
            "v", COLUMNS, primary_key=["id"],
            properties={"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"},
        )  # fmt: skip
        versioned.upsert([row(1, "new", 5)])
        versioned.upsert([row(1, "old", 4)])
        assert found(versioned) == [row(1, "new", 5)]
        with pytest.raises(InvalidOptionError, match="supports only whole rows"):
            versioned.upsert([{"id": 1, "name": "x"}], columns=["name"])

    def test_deletions_can_be_ignored_or_refused(self, table):
        table.upsert([row(1)])
        table.alter_properties({"table.delete.behavior": "disable"})
        with pytest.raises(InvalidOptionError, match=r"does not support deletes .* 1 of 1 rows are deletes"):
            table.delete([1])
        table.alter_properties({"table.delete.behavior": "ignore"})
        assert table.delete([1]).num_rows == 0
        assert found(table) == [row(1)]

    def test_overwrite_and_truncate_delete_other_keys(self, table, other_process):
        other = other_process().table("sales.orders")
        table.upsert([row(1, "a"), row(2)])
        assert other.lookup([1])["name"].to_pylist() == ["a"]
        table.overwrite([row(1, "b"), row(3)])
        assert found(other) == [row(1, "b"), row(3)]
        assert other.lookup([1, 2])["name"].to_pylist() == ["b", None]
        table.truncate()
        assert found(other) == []
        assert other.lookup([1])["_found"].to_pylist() == [False]
        other.upsert([row(1, "c")])
        assert found(table) == [row(1, "c")]

    def test_columns_that_are_added_meanwhile(self, table, other_process):
        other = other_process().table("sales.orders")
        table.upsert([row(1, "a")])
        other.add_columns("note STRING")
        table.upsert([row(2, "b")])  # known here by the old schema
        other.upsert([{"id": 1, "note": "x"}], columns=["note"])
        assert found(table) == [{**row(1, "a"), "note": "x"}, {**row(2, "b"), "note": None}]
        assert table.lookup([1], columns=["note"]).to_pylist() == [{"id": 1, "note": "x", "_found": True}]

    def test_writes_that_need_no_key_are_rejected(self, table, wh):
        with pytest.raises(InvalidOptionError, match=r"use upsert\(rows\)"):
            table.append([row(1)])
        with pytest.raises(InvalidOptionError, match=r"use upsert\(rows\)"):
            table.log_writer.stager()
        plain = wh.create_table("staged", COLUMNS)
        staged = replace(plain.log_writer.stager().stage(plain.schema.empty_table()), table_uuid=table.uuid)
        with pytest.raises(CommitConflictError, match="it has a primary key; nothing was written, upsert the rows"):
            table.log_writer.commit(staged, transaction=Transaction("job", 0))
        with pytest.raises(SchemaMismatchError, match=r"'id' of sales\.orders is NOT NULL"):
            table.upsert([row(None)])
        with pytest.raises(SchemaMismatchError, match="'nope'"):
            table.upsert([{"id": 1}], columns=["nope"])
        with pytest.raises(InvalidOptionError, match="names only primary key columns"):
            table.upsert([{"id": 1}], columns=["id"])
        with pytest.raises(InvalidOptionError, match="is fixed at creation"):
            table.alter_properties({"primary.key": "name"})
        assert table.state.version == 1
        for call in (lambda: plain.upsert([row(1)]), lambda: plain.delete([1]), lambda: plain.lookup([1])):
            with pytest.raises(InvalidOptionError, match="has no primary key, expected one"):
                call()
        strict = wh.create_table("strict", "id INT, must INT NOT NULL, n INT", primary_key=["id"])
        with pytest.raises(SchemaMismatchError, match=r"'must' of default\.strict is NOT NULL and missing from"):
            strict.upsert([{"id": 1, "n": 1}], columns=["n"])
        strict.upsert([{"id": 1, "must": 1}])
        assert strict.delete([1]).num_rows == 1


class TestLookups:
    def test_in_the_order_of_the_keys(self, table):
        table.upsert([row(i, f"n{i}", i) for i in range(10)])
        result = table.lookup([7, 99, 3, 7], columns=["n"])
        assert result.schema.names == ["id", "n", "_found"]
        assert result["n"].to_pylist() == [7, None, 3, 7]
        assert result["_found"].to_pylist() == [True, False, True, True]
        assert table.lookup([]).num_rows == 0

    def test_a_lost_cache_is_made_again(self, table, own_cache):
        table.upsert([row(1, "a")])
        close_tablets()
        shutil.rmtree(own_cache)
        assert table.lookup([1])["name"].to_pylist() == ["a"]

    def test_another_host_sees_a_write_at_once(self, table, other_process, tmp_path, monkeypatch):
        other = other_process().table("sales.orders")
        assert not other.lookup([1])["_found"][0].as_py()
        offsets = table.upsert([row(1, "a")])
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "other host"))
        stale = other.lookup([1], max_staleness_ms=60_000)
        assert stale["_found"].to_pylist() == [False]
        assert other.lookup([1], max_staleness_ms=60_000, at_least=offsets)["_found"].to_pylist() == [True]
        with pytest.raises(InvalidOptionError, match="the log ends at"):
            other.lookup([1], at_least={0: OffsetRange(0, 99)})

    def test_absent_keys_can_be_inserted(self, table):
        table.upsert([row(1, "a")])
        result = table.lookup([1, 2], insert_if_absent=True)
        assert result.to_pylist() == [{**row(1, "a"), "_found": True}, {**row(2), "_found": True}]
        assert found(table) == [row(1, "a"), row(2)]

    def test_a_prefix_lookup_has_all_keys_of_the_prefix(self, wh):
        table = wh.create_table("t", "a STRING, b INT, v INT", primary_key=["a", "b"], buckets=4)
        table.upsert([{"a": a, "b": b, "v": b} for a in ("x", "xy", "z" * 600) for b in (2, -1)])
        rows = table.prefix_lookup("x", columns=["b"])
        assert rows["b"].to_pylist() == [-1, 2]
        assert table.prefix_lookup({"A": "z" * 600})["b"].to_pylist() == [-1, 2]
        assert table.prefix_lookup(["xy", 2])["v"].to_pylist() == [2]
        assert table.prefix_lookup("nope").num_rows == 0
        with pytest.raises(SchemaMismatchError, match=r"first columns of the primary key \(a, b\)"):
            table.prefix_lookup({"b": 1})

    def test_a_prefix_without_the_bucket_key_looks_into_every_bucket(self, wh):
        table = wh.create_table(
            "t", "a STRING, b INT", primary_key=["a", "b"], buckets=4, properties={"bucket.key": "b"}
        )
        table.upsert([{"a": "x", "b": b} for b in range(20)])
        assert table.prefix_lookup("x")["b"].to_pylist() == list(range(20))


class TestChangelogs:
    def test_the_changelog_has_each_change_of_a_key(self, table, wh):
        table.upsert([row(1, "a")])
        table.upsert([row(1, "b")])
        table.delete([1])
        changes = wh.view("sales.orders$changelog").to_arrow()
        assert changes["_change_type"].to_pylist() == ["insert", "update_before", "update_after", "delete"]
        assert changes["name"].to_pylist() == ["a", "a", "b", "b"]
        binlog = wh.view("sales.orders$binlog").to_arrow().to_pylist()
        assert [(r["_change_type"], r["before"], r["after"]) for r in binlog] == [
            ("insert", None, row(1, "a")),
            ("update", row(1, "a"), row(1, "b")),
            ("delete", row(1, "b"), None),
        ]
        assert [r["_log_offset"] for r in binlog] == [0, 2, 3]

    def test_a_changelog_without_before_images_has_no_old_rows(self, wh):
        table = wh.create_table("t", COLUMNS, primary_key=["id"], properties={"table.changelog.image": "wal"})
        table.upsert([row(1, "a")])
        table.upsert([row(1, "b")])
        assert wh.view("t$changelog").to_arrow()["_change_type"].to_pylist() == ["update_after", "update_after"]
        assert wh.view("t$binlog").to_arrow()["before"].to_pylist() == [None, None]
        assert found(table) == [row(1, "b")]

    def test_a_tail_has_the_kinds(self, table):
        tail = table.tail("earliest", until_ms=0, columns=["name"])
        table.upsert([row(1, "a")])
        assert [b.to_pylist() for b in tail] == [[{"_change_type": "insert", "name": "a"}]]

    def test_only_tables_with_a_key_have_a_binlog(self, wh):
        wh.create_table("plain", COLUMNS)
        with pytest.raises(InvalidNameError, match="only primary-key tables"):
            wh.view("plain$binlog")


class TestUnseenRows:
    """Without rows before, whole rows are written over whatever is there."""

    @pytest.fixture
    def blind(self, wh):
        return wh.create_table("t", COLUMNS, primary_key=["id"], properties={"table.changelog.image": "wal"})

    @staticmethod
    def kinds(table):
        changes = open_view(table, "changelog").to_arrow()
        return list(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))

    @pytest.fixture
    def looks(self, monkeypatch):
        """The looks at stored rows: one for each batch of one bucket."""
        found = []
        real = Tablet.find
        monkeypatch.setattr(Tablet, "find", lambda tablet, keys: found.append(keys) or real(tablet, keys))
        return found

    def test_upserts_look_at_none_and_each_key_has_one_change(self, blind, looks):
        blind.upsert([row(2, "a"), row(1, "a"), row(2, "b")])
        blind.upsert([row(2, "b")])  # the row stays as it is
        assert self.kinds(blind) == [("update_after", 1), ("update_after", 2), ("update_after", 2)]
        assert not looks
        assert found(blind) == [row(1, "a"), row(2, "b")]

    def test_an_overwrite_looks_at_none(self, blind, looks):
        blind.upsert([row(1, "a"), row(2, "a")])
        blind.overwrite([row(2, "b")])
        assert not looks
        assert found(blind) == [row(2, "b")]
        assert blind.lookup_one(1) is None

    def test_deletions_look_and_have_the_deleted_row(self, blind, looks):
        blind.upsert([row(1, "a", 5)])
        blind.delete([1, 2])
        assert len(looks) == 1
        assert self.kinds(blind) == [("update_after", 1), ("delete", 1)]
        assert open_view(blind, "binlog").to_arrow()["before"].to_pylist() == [None, row(1, "a", 5)]

    def test_a_batch_that_deletes_looks_for_all_of_its_keys(self, blind, looks):
        blind.upsert([row(1, "a")])
        rows = pa.Table.from_pylist([row(1), row(2, "b")], blind.schema)
        keyed_writes.change(blind, rows, np.array([True, False]))
        assert len(looks) == 1
        assert self.kinds(blind) == [("update_after", 1), ("delete", 1), ("insert", 2)]

    def test_partial_updates_look_up_unseen_rows(self, blind, looks):
        blind.upsert([row(1, "a", 5)])
        blind.upsert([{"id": 1, "n": 6}, {"id": 2, "n": 7}], columns=["n"])
        assert len(looks) == 1
        assert self.kinds(blind) == [("update_after", 1), ("update_after", 1), ("insert", 2)]
        assert found(blind) == [row(1, "a", 6), row(2, None, 7)]

    @pytest.mark.parametrize(
        "engine",
        [{"table.merge-engine": "first_row"}, {"table.merge-engine": "versioned", f"{VERSIONED}.ver-column": "n"}],
    )
    def test_merge_engines_look_up_unseen_rows(self, wh, looks, engine):
        table = wh.create_table("t", COLUMNS, primary_key=["id"], properties={"table.changelog.image": "wal", **engine})
        table.upsert([row(1, "a", 1)])
        table.upsert([row(1, "b", 0), row(2, "b", 0)])
        assert len(looks) == 1
        assert found(table) == [row(1, "a", 1), row(2, "b", 0)]
        assert self.kinds(table) == [("insert", 1), ("insert", 2)]

    def test_a_lost_race_does_not_write_them_again(self, blind, other_process, monkeypatch):
        """They are right behind any record, so the object of the first attempt is the one that is named."""
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        made = []
        real = change_staging.stage_shared_object

        def stage_group(*args):
            made.append(args[2])
            if len(made) == 1:
                other_process().table("t").upsert([row(1, "theirs")])
            return real(*args)

        monkeypatch.setattr(change_staging, "stage_shared_object", stage_group)
        blind.upsert([row(1, "ours"), row(2, "ours")])
        assert len(made) == 2
        assert found(blind) == [row(1, "ours"), row(2, "ours")]
        assert blind.lookup_one(1) == row(1, "ours")
        assert [s.uuid for s in blind.refresh().buckets[0].segments] == made[::-1]

    def test_operations_that_read_the_table_still_conflict(self, blind, other_process):
        blind.upsert([row(1, "a", 1)])
        read = ReadVersion.of(blind.refresh())
        other_process().table("t").upsert([row(1, "b", 2)])
        rows = pa.Table.from_pylist([row(1, "a", 2)], blind.schema)
        with pytest.raises(CommitConflictError, match="id = 1, which the statement writes"):
            keyed_writes.rewrite(blind, rows, np.zeros(1, np.bool_), read=read)
        keyed_writes.rewrite(blind, rows, np.zeros(1, np.bool_), read=ReadVersion.of(blind.refresh()))
        assert found(blind) == [row(1, "a", 2)]

    def test_the_property_stays_as_it_was_made(self, blind, table):
        for each, image in ((blind, "full"), (table, "wal")):
            with pytest.raises(InvalidOptionError, match=r"table\.changelog\.image"):
                each.alter(set_properties={"table.changelog.image": image})


def test_columns_filters_and_times(table, clock):
    table.upsert([row(i, "x", i) for i in range(6)])
    before_ms = clock.now_ms()
    clock.advance(10)
    table.upsert([row(1, "y", 100)])
    assert found(table, columns=["id"], filter=[("n", ">", 4)]) == [{"id": 1}, {"id": 5}]
    assert table.to_arrow(columns=["name"], filter=[("id", "=", 1)]).to_pylist() == [{"name": "y"}]
    # A newer row that the filter leaves out still takes the place of an older one that it would not.
    assert found(table, filter=[("n", "=", 1)]) == []
    assert table.to_arrow(columns=[]).num_rows == 6
    assert found(table, filter=[("id", "=", 1)], as_of_timestamp_ms=before_ms) == [row(1, "x", 1)]


def test_keys_outlive_the_time_to_live(table, clock, own_cache):
    table.alter_properties({"table.log.ttl": "1h", "table.datalake.enabled": "false"})
    table.upsert([row(1, "a")])
    clock.advance(7 * 24 * 3600 * 1000)
    table.upsert([row(2, "b")])
    table.maintain()
    assert found(table) == [row(1, "a"), row(2, "b")]
    close_tablets()
    shutil.rmtree(own_cache)
    assert table.lookup([1, 2])["name"].to_pylist() == ["a", "b"]


def test_inline_rows_are_merged_like_others(table):
    for i in range(80):
        table.upsert([row(i % 7, f"n{i}", i)])
    assert compact_inline_rows(table) >= 0
    table.maintain()
    assert [r["n"] for r in found(table)] == [77, 78, 79, 73, 74, 75, 76]
