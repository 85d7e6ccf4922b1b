"""Following a table: from anywhere, across merges, in another process, until told to stop."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.tables import TableCase
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, SchemaMismatchError, Warehouse
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.read.tail import LOCAL_POLL_MS, REMOTE_POLL_MS
from streamhouse_spark.write.auto_compaction import compact_inline_rows

HOUR_MS = 3_600_000
TABLE = TableCase("t", "id BIGINT, s STRING", properties={"table.datalake.enabled": "false"})


def ids(batches) -> list[int]:
    return [i for batch in batches for i in batch["id"].to_pylist()]


def seen(table, start, **asked) -> list[int]:
    """Everything that is there from a start on."""
    return ids(table.tail(start, until_ms=0, **asked))


class TestStarts:
    def test_latest_is_decided_at_the_call(self, table):
        table.append([{"id": 1}])
        following = table.tail("latest", until_ms=0)
        table.append([{"id": 2}])
        assert ids(following) == [2]
        assert seen(table, "latest") == []

    def test_a_tail_from_earliest_has_every_row(self, table):
        for i in range(3):
            table.append([{"id": i}])
        assert seen(table, "earliest") == [0, 1, 2]

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_tail_starts_at_any_offset(self, table, merged):
        for i in range(5):
            table.append([{"id": 2 * i}, {"id": 2 * i + 1}])
        if merged:
            compact_inline_rows(table)
        for offset in range(11):
            assert seen(table, {0: offset}) == list(range(offset, 10))
        assert seen(table, {0: np.int64(7)}) == [7, 8, 9]
        assert seen(table, {}) == list(range(10)), "buckets left out start where the log does"

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_tail_starts_at_any_time(self, table, clock, merged):
        for i in range(4):
            table.append([{"id": i}])
            clock.advance(HOUR_MS)
        if merged:
            compact_inline_rows(table)
        first = dt.datetime.fromtimestamp(table.state.buckets[0].segments[0].first_time_ms / 1000, dt.UTC)
        for hours in range(4):
            moment = first + dt.timedelta(hours=hours)
            assert seen(table, moment) == list(range(hours, 4))
            assert seen(table, moment.astimezone(dt.timezone(dt.timedelta(hours=-7)))) == list(range(hours, 4))
            assert seen(table, moment + dt.timedelta(microseconds=1)) == list(range(hours + 1, 4))
            assert seen(table, moment - dt.timedelta(microseconds=1)) == list(range(hours, 4))
        assert seen(table, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) == [0, 1, 2, 3]
        assert seen(table, dt.datetime(9999, 1, 1, tzinfo=dt.UTC)) == []


class TestRows:
    def test_a_tail_includes_metadata_columns(self, wh, clock):
        table = wh.create_table("b", "id BIGINT", buckets=3, properties={"bucket.key": "id"})
        times = []
        for i in range(4):
            table.append(pa.table({"id": range(i * 10, i * 10 + 10)}))
            times.append(clock.now_ms())
            clock.advance(1000)
        for merged in (False, True):
            if merged:
                compact_inline_rows(table)
            rows = pa.Table.from_batches(table.tail("earliest", include_metadata=True, until_ms=0))
            assert rows.column_names == ["_bucket", "_log_offset", "_commit_timestamp", "id"]
            assert rows.schema.field("_commit_timestamp").type == pa.timestamp("us", "UTC")
            assert sorted(rows["id"].to_pylist()) == list(range(40))
            for bucket, log in table.state.buckets.items():
                here = rows.filter(pa.compute.equal(rows["_bucket"], bucket))
                assert here["_log_offset"].to_pylist() == list(range(log.end))
            stamps = rows["_commit_timestamp"].cast(pa.int64()).to_pylist()
            assert [ms // 1000 for ms in stamps] == [times[i // 10] for i in rows["id"].to_pylist()]

    def test_a_tail_has_the_chosen_columns(self, table):
        table.append([{"id": 1, "s": "x"}])
        (batch,) = table.tail("earliest", columns=["s"], until_ms=0)
        assert batch.to_pylist() == [{"s": "x"}]
        (batch,) = table.tail("earliest", columns=["s", "id"], include_metadata=True, until_ms=0)
        assert batch.schema.names == ["_bucket", "_log_offset", "_commit_timestamp", "s", "id"]
        with pytest.raises(SchemaMismatchError, match="did you mean 'id'"):
            table.tail(columns=["idd"])

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_filter_keeps_the_rows_that_match(self, table, merged):
        for i in range(6):
            table.append([{"id": 2 * i, "s": "even"}, {"id": 2 * i + 1, "s": "odd"}])
        if merged:
            compact_inline_rows(table)
        for condition in ("id >= 4 AND s = 'odd'", [("id", ">=", 4), ("s", "=", "odd")], pc.field("id").isin([5, 7])):
            tail = table.tail("earliest", columns=["id"], filter=condition, include_metadata=True, until_ms=0)
            rows = [row for batch in tail for row in batch.to_pylist()]
            assert [row["id"] for row in rows][:2] == [5, 7]
            assert all(row["_log_offset"] == row["id"] and len(row) == 4 for row in rows)
            assert tail.position.offsets == {0: 12}
        with pytest.raises(SchemaMismatchError, match="did you mean 'id'"):
            table.tail(filter="idd = 1")
        with pytest.raises(InvalidOptionError, match="expected"):
            table.tail(filter="id >")

    def test_segments_and_buckets_that_cannot_match_are_not_read(self, counted, world):
        wh = Warehouse("wh", storage=counted, world=world)
        table = wh.create_table("b", "id BIGINT", buckets=4, properties={"bucket.key": "id"})
        for first in (0, 100_000):
            table.append(pa.table({"id": range(first, first + 100_000)}))
        whole = table.tail("earliest", until_ms=0)
        reads = []
        for condition, num_rows in ((None, 200_000), ("id >= 199999", 1), ("id = 5", 1), ("id < 0", 0)):
            tail = table.tail("earliest", filter=condition, until_ms=0)
            counted.trace.clear()
            assert sum(batch.num_rows for batch in tail) == num_rows
            reads.append(len({key for _, _, key in counted.trace if "/segments/" in key}))
            assert tail.position.offsets == table.state.ends
        assert reads == [8, 1, 1, 0], "segments of other ranges, and other buckets, are skipped"
        assert whole.position.offsets == dict.fromkeys(range(4), 0)

    def test_a_tail_with_a_filter_survives_columns_that_come_and_fails_when_its_own_change(self, table):
        tail = table.tail("earliest", columns=["id"], filter="s = 'x'", until_ms=0)
        table.alter(add_columns="n INT")
        table.append([{"id": 1, "s": "x", "n": 2}])
        assert [batch.to_pylist() for batch in tail] == [[{"id": 1}]]
        tail = table.tail("earliest", columns=["id"], filter="s = 'x'", until_ms=0)
        table.rename_column("s", "text")
        with pytest.raises(SchemaMismatchError, match="renamed to 'text'"):
            next(tail)

    def test_merging_and_cleaning_meanwhile(self, table, other_process, clock):
        """What is merged under a follower comes once, in order."""
        following = table.tail("earliest", until_ms=0)
        writer = other_process().table("t")
        got = []
        for i in range(30):
            writer.append([{"id": 2 * i}])
            writer.append([{"id": 2 * i + 1}])
            if i % 7 == 3:
                compact_inline_rows(writer)
            if i % 10 == 9:
                clock.advance(25 * HOUR_MS)
                writer.maintain()
            got += ids([next(following)])
        got += ids(following)
        assert got == list(range(60))


class TestEnding:
    def test_a_stopped_tail_ends_without_waiting(self, table):
        stop = threading.Event()
        following = table.tail("earliest", stop=stop)
        table.append([{"id": 1}])
        assert ids([next(following)]) == [1]
        stop.set()
        assert list(following) == []

    def test_a_tail_ends_at_its_time_limit(self, table, clock):
        before_ms = clock.boot_ms()
        assert list(table.tail(until_ms=500)) == []
        assert 500 <= clock.boot_ms() - before_ms < 700

    def test_how_often_it_asks(self, table, clock, store):
        list(table.tail(until_ms=300))
        usual = LOCAL_POLL_MS if store.local_path("") else REMOTE_POLL_MS
        assert set(clock.slept_ms) == {usual}
        clock.slept_ms.clear()
        list(table.tail(until_ms=300, poll_ms=50))
        assert clock.slept_ms == [50] * 6

    def test_a_start_that_was_trimmed(self, table, clock):
        for i in range(3):
            table.append([{"id": i}])
        table.log.commit(lambda *_: (Trim({0: 2}),))
        assert seen(table, "earliest") == [2]
        assert seen(table, {}) == [2]
        with pytest.raises(OffsetsTrimmedError, match=r"\[1, 3\) were requested, but the hot log holds \[2, 3\)"):
            seen(table, {0: 1})

    def test_a_follower_that_is_overtaken_by_trimming(self, table, other_process):
        following = table.tail("earliest")
        table.append([{"id": 0}])
        assert ids([next(following)]) == [0]
        writer = other_process().table("t")
        for i in range(1, 5):
            writer.append([{"id": i}])
        writer.log.commit(lambda *_: (Trim({0: 3}),))
        with pytest.raises(OffsetsTrimmedError, match="earlier rows are in the lake, if the table has a lake"):
            next(following)

    def test_a_table_that_is_trimmed_to_its_end(self, table, clock):
        table.append([{"id": 0}])
        table.alter_properties({"table.log.ttl": "1h"})
        clock.advance(2 * HOUR_MS)
        assert table.maintain().trimmed_to == {0: 1}
        following = table.tail("earliest", until_ms=0)
        table.append([{"id": 1}])
        assert ids(following) == [1]


_FOLLOW = """
import sys
import streamhouse_spark as sh
table = sh.Warehouse(sys.argv[1]).table("t")
rows = table.tail("latest")
print("ready", flush=True)
for batch in rows:
    for i in batch["id"].to_pylist():
        print(i, flush=True)
        if i < 0:
            sys.exit()
"""


def test_another_process_sees_each_row_before_the_next_is_written(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT")
    with subprocess.Popen(
        [sys.executable, "-c", _FOLLOW, warehouse_path], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        for i in [*range(60), -1]:
            table.append([{"id": i}])
            assert follower.stdout.readline() == f"{i}\n"
        assert follower.wait(240) == 0
