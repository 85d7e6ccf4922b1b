"""Appending and reading: every kind of input, offsets, buckets, transactions, properties, the past."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from kit.tables import TableCase
from streamhouse_spark import BucketOffsets, OffsetRange, Transaction, Warehouse
from streamhouse_spark.core.warehouse_layout import commit_key, segments_prefix
from streamhouse_spark.errors import (
    CommitStateUnknownError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    StorageError,
    TransactionConflictError,
)
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.log.record import RECORD_BYTES_MAX
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DDL = "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2), ts TIMESTAMP"
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
ROWS = [
    {"id": 1, "name": "a", "amount": decimal.Decimal("1.50"), "ts": MOMENT},
    {"id": 2, "name": None, "amount": None, "ts": None},
]
TABLE = TableCase("sales.orders", DDL)


def ids(table) -> list[int]:
    return table.to_arrow(columns=["id"])["id"].to_pylist()


class TestInput:
    ARROW = pa.Table.from_pylist(
        ROWS,
        pa.schema(
            [
                ("id", pa.int64()),
                ("name", pa.string()),
                ("amount", pa.decimal128(12, 2)),
                ("ts", pa.timestamp("us", "UTC")),
            ]
        ),
    )

    @pytest.mark.parametrize(
        "make",
        [
            lambda t: t,
            lambda t: t.combine_chunks().to_batches()[0],
            lambda t: t.to_reader(),
            lambda t: t.to_pandas(),
            lambda t: t.to_pandas(types_mapper=pd.ArrowDtype),
            pl.from_arrow,
            lambda t: t.to_pylist(),
            lambda t: t.select(["ts", "amount", "name", "id"]),
            lambda t: t.rename_columns(["ID", "Name", "AMOUNT", "Ts"]),
            lambda t: t.cast(
                pa.schema(
                    [
                        ("id", pa.int8()),
                        ("name", pa.large_string()),
                        ("amount", pa.decimal128(20, 4)),
                        ("ts", pa.timestamp("ns", "America/New_York")),
                    ]
                )
            ),
            lambda t: t.set_column(1, "name", t["name"].dictionary_encode()),
            lambda t: pa.concat_tables([t.slice(0, 1), t.slice(1)]),
        ],
        ids=[
            "table", "batch", "reader", "pandas", "pandas-arrow", "polars", "dicts", "reordered", "other case",
            "other types", "dictionary", "chunks",
        ],
    )  # fmt: skip
    def test_rows_of_every_kind_are_appended(self, table, make):
        assert table.append(make(self.ARROW)) == {0: OffsetRange(0, 2)}
        assert table.to_arrow().to_pylist() == ROWS

    def test_missing_nullable_columns_are_null(self, table):
        table.append([{"id": 7}, {"id": 8, "name": "x"}])
        assert table.to_arrow().to_pylist() == [
            {"id": 7, "name": None, "amount": None, "ts": None},
            {"id": 8, "name": "x", "amount": None, "ts": None},
        ]

    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            ([{"name": "x"}], "'id' of sales.orders is NOT NULL and missing"),
            ([{"id": None}], "'id' of sales.orders is NOT NULL, and null in 1 of 1 row"),
            ([{"id": 1, "naem": "x"}], "'naem' .*did you mean 'name'"),
            ([{"id": "1"}], "'id' of sales.orders"),
            ([{"id": 1, "amount": decimal.Decimal("1.005")}], "'amount'"),
            ([{"id": 1, "ts": dt.datetime(2026, 1, 1)}], "'ts'"),
            ([{"id": 2**63}], "'id'"),
            ([{"id": 1, "ID": 2}], "twice"),
            ({"id": 1}, "pass a list of dicts"),
            ("id=1", "expected a pyarrow Table"),
            (None, "expected a pyarrow Table"),
            ([[1, 2]], "expected a dict"),
            ([{"id": 1, "line\nbreak": 2}], "line break"),
        ],
        ids=str,
    )
    def test_what_does_not_fit_is_refused_before_anything_is_written(self, table, store, rows, text):
        before = {i.key for i in store.list("")}
        with pytest.raises(SchemaMismatchError, match=text) as error:
            table.append(rows)
        assert "\n" not in str(error.value)
        assert {i.key for i in store.list("")} == before

    @pytest.mark.parametrize("rows", [[], pa.table({}), pa.table({"id": pa.array([], pa.int64())})], ids=str)
    def test_no_rows_are_no_commit(self, table, rows):
        version = table.state.version
        assert table.append(rows) == {}
        assert table.refresh().version == version

    def test_an_append_of_many_chunks_stores_each_row(self, table):
        rows = pa.concat_tables([pa.table({"id": [i]}) for i in range(5000)])
        table.append(rows)
        assert ids(table) == list(range(5000))

    def test_rows_with_large_values_are_appended(self, table):
        text = "x" * 3_000_000
        assert table.append([{"id": i, "name": text} for i in range(3)]).num_rows == 3
        assert table.to_arrow(columns=["name"])["name"].to_pylist() == [text] * 3


class TestOffsets:
    def test_offsets_of_each_bucket_are_dense(self, wh):
        table = wh.create_table("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})
        ends = [0, 0]
        for start in range(0, 1000, 50):
            offsets = table.append(pa.table({"id": range(start, start + 50)}))
            assert isinstance(offsets, BucketOffsets)
            assert offsets.num_rows == 50
            for bucket, written in offsets.items():
                assert written.start == ends[bucket]
                ends[bucket] = written.end
        changes = wh.view("t$changelog").to_arrow()
        assert sum(ends) == changes.num_rows == 1000
        assert changes["_log_offset"].to_pylist() == [*range(ends[0]), *range(ends[1])]

    def test_the_offsets_returned_are_where_the_rows_are(self, wh):
        table = wh.create_table("t", "id BIGINT", buckets=3, properties={"bucket.key": "id"})
        table.append(pa.table({"id": range(100)}))
        rows = pa.table({"id": range(100, 200)})
        offsets = table.append(rows)
        buckets = iceberg_buckets(rows["id"], 3)
        for batch in table.tail({b: r.start for b, r in offsets.items()}, include_metadata=True, until_ms=0):
            bucket = batch["_bucket"][0].as_py()
            assert batch["id"].to_pylist() == rows.filter(pa.array(buckets == bucket))["id"].to_pylist()
            assert batch["_log_offset"].to_pylist() == list(range(offsets[bucket].start, offsets[bucket].end))

    def test_without_a_key_each_append_goes_to_one_bucket_in_turn(self, wh):
        table = wh.create_table("t", "id BIGINT", buckets=3)
        used = [table.append([{"id": i}, {"id": i}]) for i in range(9)]
        assert all(len(offsets) == 1 for offsets in used)
        order = [next(iter(offsets)) for offsets in used]
        assert sorted(order) == [0] * 3 + [1] * 3 + [2] * 3
        assert order[:3] == order[3:6] == order[6:]

    def test_writers_start_at_different_buckets(self, store, clock):
        Warehouse("wh", storage=store, world=sim_world(99, clock)).create_table("t", "id BIGINT", buckets=8)
        first = {
            next(iter(Warehouse("wh", storage=store, world=sim_world(s, clock)).table("t").append([{"id": s}])))
            for s in range(12)
        }
        assert len(first) > 3

    def test_null_keys_go_to_bucket_zero(self, wh):
        table = wh.create_table("t", "id BIGINT", buckets=5, properties={"bucket.key": "id"})
        assert table.append([{"id": None}, {}]) == {0: OffsetRange(0, 2)}

    def test_a_record_of_two_thousand_segments_has_a_manifest(self, memory, world):
        """More segments than a record holds: they are named by a manifest."""
        table = Warehouse("wh", storage=memory, world=world).create_table(
            "t", "id BIGINT, x STRING", buckets=2000, properties={"bucket.key": "id"}
        )
        rows = pa.table({"id": range(20_000), "x": ["x" * 20] * 20_000})
        assert table.append(rows).num_rows == 20_000
        assert table.state.manifests
        assert len(memory.read(commit_key(table.uuid, 2))) < RECORD_BYTES_MAX
        again = Warehouse("wh", storage=memory, world=sim_world(5)).table("t").to_arrow()
        assert again.sort_by("id").equals(rows.combine_chunks().cast(table.schema))


class TestTransactions:
    def test_the_same_version_again_adds_nothing(self, table, other_process):
        first = table.append(ROWS, transaction=Transaction("job", 7))
        assert table.append(ROWS, transaction=Transaction("job", 7)) == first
        elsewhere = other_process().table("sales.orders")
        assert elsewhere.append([{"id": 99}], transaction=Transaction("job", 7)) == first
        assert ids(table) == [1, 2]

    def test_a_lower_version_is_skipped(self, table):
        table.append(ROWS, transaction=Transaction("job", 7))
        assert table.append(ROWS, transaction=Transaction("job", 6)) == {}
        assert table.append(ROWS, transaction=Transaction("job", 9)) == {0: OffsetRange(2, 4)}
        assert table.append(ROWS, transaction=Transaction("job", 8)) == {}
        assert table.append(ROWS, transaction=Transaction("job", 7)) == {}
        assert len(ids(table)) == 4

    def test_applications_do_not_know_each_other(self, table):
        for app in ("a", "b", "A"):
            table.append([{"id": 1}], transaction=Transaction(app, 1))
        assert len(ids(table)) == 3

    def test_an_empty_version_is_remembered(self, table):
        assert table.append([], transaction=Transaction("job", 1)) == {}
        assert table.append(ROWS, transaction=Transaction("job", 1)) == {}
        assert ids(table) == []

    def test_another_owner_is_an_error(self, table):
        table.append(ROWS, transaction=Transaction("job", 1, owner="query-a"))
        for version in (0, 1, 2):
            with pytest.raises(TransactionConflictError, match=r"belongs to query query-a, found query query-b"):
                table.append(ROWS, transaction=Transaction("job", version, owner="query-b"))
        assert table.append(ROWS, transaction=Transaction("job", 1, owner="query-a")) == {0: OffsetRange(0, 2)}
        assert table.append(ROWS, transaction=Transaction("job", 2)).num_rows == 2

    def test_a_forgotten_transaction_may_begin_anew(self, table, other_process):
        table.append(ROWS, transaction=Transaction("job", 5, owner="a"))
        table.forget_transactions("job", "never-seen")
        assert table.state.transactions == {}
        assert other_process().table("sales.orders").append(
            [{"id": 3}], transaction=Transaction("job", 1, owner="b")
        ) == {0: OffsetRange(2, 3)}
        version = table.refresh().version
        table.forget_transactions("nobody")
        assert table.refresh().version == version

    def test_they_survive_checkpoints_merges_and_cleaning(self, wh, memory, clock, world):
        wh = Warehouse("wh", storage=memory, world=world)
        table = wh.create_table("t", "id BIGINT", properties={"table.datalake.enabled": "false"})
        first = [table.append([{"id": i}], transaction=Transaction(f"job-{i % 3}", i)) for i in range(130)]
        for _ in range(3):
            table.maintain()
            clock.advance(25 * 3600 * 1000)
        assert table.inspect.commits().num_rows < 100
        reopened = Warehouse("wh", storage=memory, world=sim_world(8, clock)).table("t")
        assert reopened.append([{"id": 0}], transaction=Transaction("job-0", 129)) == first[129]
        assert reopened.append([{"id": 0}], transaction=Transaction("job-1", 100)) == {}
        assert reopened.to_arrow().num_rows == 130


class TestProperties:
    def test_altered_properties_are_seen_by_other_processes(self, table, other_process):
        table.alter_properties({"table.log.ttl": "2d", "comment": "x"})
        table.alter_properties({"table.log.ttl": "3d"}, ["comment"])
        for each in (table, other_process().table("sales.orders")):
            assert each.properties.log_ttl_ms == 3 * 86_400_000
            assert each.properties.comment is None
        assert table.inspect.options().to_pylist() == [{"key": "table.log.ttl", "value": "3d"}]

    def test_what_changes_nothing_is_no_commit(self, table):
        table.alter_properties({"comment": "x"})
        version = table.state.version
        table.alter_properties({"comment": "x"}, ["table.log.ttl"])
        table.alter_properties()
        assert table.refresh().version == version

    @pytest.mark.parametrize(
        ("changed", "removed"),
        [
            ({"bucket.num": "9"}, ()),
            ({"bucket.key": "id"}, ()),
            ({"table.log.tll": "1d"}, ()),
            ({"table.log.ttl": "soon"}, ()),
            ({"table.statistics.columns": "nope"}, ()),
            ({}, ["table.nope"]),
            ({"s3.secret-access-key": "x"}, ()),
            ({"comment": "password=hunter2"}, ()),
        ],
        ids=str,
    )
    def test_what_cannot_be_is_refused(self, table, changed, removed):
        version = table.state.version
        with pytest.raises((InvalidOptionError, SchemaMismatchError)) as error:
            table.alter_properties(changed, removed)
        assert "hunter2" not in str(error.value)
        assert table.refresh().version == version

    def test_a_new_codec_is_for_new_segments(self, table, other_process):
        writer = other_process().table("sales.orders")
        rows = pa.table({"id": range(60_000)})
        writer.append(rows)
        table.alter_properties({"table.log.arrow.compression.type": "zstd"})
        writer.append(rows)
        writer.append(rows)
        flags = [s.compressed for s in table.refresh().live_segments()]
        assert flags[0] is False
        assert flags[-1] is True
        assert table.to_arrow().num_rows == 180_000


class TestThePast:
    def test_a_read_as_of_a_timestamp_has_its_rows(self, table, clock):
        marks = [clock.now_ms()]
        for i in range(5):
            clock.advance(1000)
            table.append([{"id": i}])
            marks.append(clock.now_ms())
        clock.advance(1000)
        assert [table.to_arrow(as_of_timestamp_ms=m).num_rows for m in marks] == [0, 1, 2, 3, 4, 5]
        assert table.to_arrow(as_of_timestamp_ms=marks[2] - 1)["id"].to_pylist() == [0]
        assert table.to_arrow(as_of_timestamp_ms=clock.now_ms()).num_rows == 5
        with pytest.raises(OffsetsTrimmedError, match="the table was created later"):
            table.to_arrow(as_of_timestamp_ms=0)
        compact_inline_rows(table)
        assert [table.to_arrow(as_of_timestamp_ms=m).num_rows for m in marks] == [0, 1, 2, 3, 4, 5]
        found = table.to_arrow(as_of_timestamp_ms=marks[3], columns=["id"], filter=[("id", ">", 0)])
        assert found["id"].to_pylist() == [1, 2]

    def test_what_was_trimmed_cannot_be_read_as_of_then(self, wh, clock):
        table = wh.create_table("t", "id INT", properties={"table.datalake.enabled": "false", "table.log.ttl": "1h"})
        table.append([{"id": 1}])
        then = clock.now_ms()
        clock.advance(2 * 3600 * 1000)
        table.append([{"id": 2}])
        assert table.maintain().trimmed_to == {0: 1}
        with pytest.raises(OffsetsTrimmedError, match="needs the log from offset 0"):
            table.to_arrow(as_of_timestamp_ms=then)
        assert table.to_arrow()["id"].to_pylist() == [2]

    def test_clocks_that_go_back_do_not_split_what_was_read(self, table, clock):
        """A row that was committed before another never appears after it, whatever the clocks said."""
        stamps = []
        for i, jump in enumerate([0, 3_600_000, -7_200_000, 0, 3_600_000]):
            clock.jump(jump)
            clock.advance(10)
            table.append([{"id": i}])
            stamps.append(clock.now_ms())
        before = {ms: table.to_arrow(as_of_timestamp_ms=ms)["id"].to_pylist() for ms in stamps}
        for rows in before.values():
            assert rows == list(range(len(rows)))
        times = table.refresh().buckets[0].segments
        assert [s.first_time_ms for s in times] == stamps
        compact_inline_rows(table)
        assert {ms: table.to_arrow(as_of_timestamp_ms=ms)["id"].to_pylist() for ms in stamps} == before


class TestHandles:
    def test_opening_a_table_reads_few_objects(self, memory, world):
        counting = FaultyStorage(memory)
        wh = Warehouse("wh", storage=counting, world=world)
        table = wh.create_table("t", "id INT")
        for i in range(250):
            table.append([{"id": i}])
        counting.trace.clear()
        reopened = Warehouse("wh", storage=counting, world=sim_world(3))
        assert counting.trace == []
        opened = reopened.table("t")
        assert len(counting.trace) < 75, "a hint, a checkpoint, and the records behind it"
        assert not any(method in ("list", "list_names") for _, method, _ in counting.trace)
        counting.trace.clear()
        opened.schema, opened.properties, opened.num_buckets, repr(opened)
        assert counting.trace == []
        opened.refresh()
        assert len(counting.trace) == 1, "the next record, which is not there"

    def test_an_append_costs_few_calls(self, memory, world):
        counting = FaultyStorage(memory)
        table = Warehouse("wh", storage=counting, world=world).create_table("t", "id INT")
        table.append([{"id": 1}])
        counting.trace.clear()
        table.append([{"id": 2}])
        assert [method for _, method, _ in counting.trace] == ["put_if_absent"]

    def test_errors_and_results_travel_between_processes(self, table):
        offsets = table.append(ROWS)
        assert pickle.loads(pickle.dumps(offsets)) == offsets
        staged = table.log_writer.stager().stage(table.to_arrow())
        assert pickle.loads(pickle.dumps(staged)) == staged
        state = pickle.loads(pickle.dumps(table.state))
        assert state.ends == {0: 2}

    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
    def test_a_fork_writes_as_another_writer(self, warehouse_path):
        table = Warehouse(warehouse_path).create_table("t", "id INT", buckets=2)
        table.append([{"id": 0}])
        children = []
        for i in (1, 2):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for j in range(20):
                        table.append([{"id": i * 100 + j}])
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        for j in range(20):
            table.append([{"id": j + 1}])
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        expected = [0, *range(1, 21), *range(100, 120), *range(200, 220)]
        assert sorted(table.to_arrow()["id"].to_pylist()) == expected
        attempts = table.inspect.commits()["attempt"].to_pylist()
        assert len(set(attempts)) == len(attempts)


class TestAfterTheCommit:
    """What comes after the commit point must not make a stored append look like a failed one."""

    @pytest.fixture
    def spoiled(self, memory, world):
        spoil = []

        def plan(number, method, key):
            from faults.faulty_storage import Fault

            return Fault.ERROR_BEFORE if any(s(method, key) for s in spoil) else None

        storage = FaultyStorage(memory, plan)
        table = Warehouse("wh", storage=storage, world=world).create_table("t", "id INT")
        return table, spoil

    def test_a_merge_that_fails_costs_nothing(self, spoiled, caplog):
        table, spoil = spoiled
        spoil.append(lambda method, key: key.startswith(segments_prefix(table.uuid)))
        for i in range(70):
            assert table.append([{"id": i}]) == {0: OffsetRange(i, i + 1)}
        assert "merging inline rows of" in caplog.text
        assert ids(table) == list(range(70))
        spoil.clear()
        for i in range(70, 100):
            table.append([{"id": i}])
        assert len(table.state.live_segments()) < 40
        assert ids(table) == list(range(100))

    def test_a_checkpoint_that_fails_costs_nothing(self, spoiled, caplog):
        table, spoil = spoiled
        spoil.append(lambda method, key: "/checkpoints/" in key and method != "read")
        for i in range(210):
            table.append([{"id": i}])
        assert "the change is stored" in caplog.text
        assert ids(table) == list(range(210))

    def test_a_commit_that_fails_adds_nothing(self, spoiled):
        table, spoil = spoiled
        spoil.append(lambda method, key: method == "put_if_absent")
        with pytest.raises((StorageError, CommitStateUnknownError)):
            table.append([{"id": 1}])
        spoil.clear()
        assert ids(table) == []


def test_values_of_numpy_are_appended(table):
    table.append([{"id": np.int64(3), "name": np.str_("x")}])
    assert ids(table) == [3]
