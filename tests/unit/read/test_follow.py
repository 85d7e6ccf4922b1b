"""Followers: a named consumer in a loop, whose position is committed after the loop body, also across restarts."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress

import pyarrow.compute as pc
import pytest

from kit.tables import TableCase, tier
from streamhouse_spark import (
    CommitConflictError,
    ConsumerFencedError,
    DifferentHistoryError,
    InvalidOptionError,
    LogPosition,
    OffsetsTrimmedError,
    SchemaMismatchError,
    Warehouse,
)
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.read import follow
from streamhouse_spark.storage.memory import MemoryStorage

QUIET = {"table.datalake.enabled": "false"}
TABLE = TableCase("t", "id BIGINT, s STRING", properties=QUIET)
APP = "billing"


class BodyError(Exception):
    """The loop body failed."""


def ids(batch) -> list[int]:
    return batch["id"].to_pylist()


def add(table, *numbers: int) -> None:
    for number in numbers:
        table.append([{"id": number, "s": "odd" if number % 2 else "even"}])


def process(table, **options) -> list[int]:
    """The ids of all new rows, as a job processes them."""
    return [number for batch in table.follow(APP, available_now=True, **options) for number in ids(batch)]


def fails_in_body(follower) -> list[int]:
    """The ids of the batch during which the loop body fails."""
    seen = []
    with suppress(BodyError):
        for batch in follower:
            seen += ids(batch)
            raise BodyError
    return seen


class TestPositions:
    def test_each_run_continues_after_the_rows_of_the_last_one(self, table, other_process):
        add(table, 1, 2)
        assert process(table) == [1, 2]
        add(table, 3)
        assert process(other_process().table("t")) == [3]
        assert process(table) == []
        assert table.consumer_position(APP).offsets == {0: 3}

    def test_the_rows_of_many_commits_are_one_batch(self, table):
        add(table, *range(20))
        assert [ids(batch) for batch in table.follow(APP, until_ms=0)] == [list(range(20))]

    def test_a_position_is_committed_when_the_next_batch_is_requested(self, table, monkeypatch):
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, 1, 2, 3)
        seen = []
        for batch in table.follow(APP, until_ms=0):
            assert table.consumer_position(APP).offsets == {0: len(seen)}
            seen += ids(batch)
        assert seen == [1, 2, 3]
        assert table.consumer_position(APP).offsets == {0: 3}

    def test_a_break_leaves_the_last_batch_to_the_next_run(self, table, monkeypatch):
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, 1, 2, 3)
        with table.follow(APP) as follower:
            for batch in follower:
                if ids(batch) == [2]:
                    break
        assert list(follower) == []
        assert process(table) == [2, 3]

    def test_a_commit_before_a_break_keeps_the_last_batch(self, table, monkeypatch):
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, 1, 2)
        with table.follow(APP) as follower:
            assert ids(next(follower)) == [1]
            follower.commit()
        assert process(table) == [2]

    def test_a_batch_whose_body_fails_is_read_again(self, table):
        add(table, 1)
        assert fails_in_body(table.follow(APP)) == [1]
        assert process(table) == [1]

    def test_a_name_has_its_position_from_the_start(self, table):
        add(table, 1)
        table.follow(APP, start="latest")
        add(table, 2)
        assert process(table) == [2]

    def test_consumers_of_other_names_read_on_their_own(self, table):
        add(table, 1)
        assert process(table) == [1]
        assert [ids(b) for b in table.follow("audit", available_now=True)] == [[1]]

    def test_words_apply_to_a_new_name_and_positions_to_every_one(self, table):
        add(table, 1, 2)
        assert process(table) == [1, 2]
        assert process(table, start="earliest") == []
        assert process(table, start={0: 1}) == [2]
        assert process(table, start={}) == [1, 2]

    def test_a_position_of_the_application_is_where_it_continues(self, table, monkeypatch):
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, 1, 2, 3)
        database = {}  # its transaction stores a result together with the position
        follower = table.follow(APP)
        for batch in follower:
            database |= {ids(batch)[0]: "done", "position": json.dumps(follower.position.to_json())}
            if len(database) == 3:
                break
        assert table.consumer_position(APP).offsets == {0: 1}
        start = LogPosition.from_json(json.loads(database["position"]))
        assert process(table, start=start) == [3]

    def test_reads_of_a_name_do_not_let_go_of_unread_rows(self, table, clock):
        table.alter_properties({"table.log.ttl": "1h"})
        table.follow(APP)
        add(table, 1)
        clock.advance(5 * 3_600_000)
        assert table.maintain().trimmed_to == {}
        assert process(table) == [1]
        assert table.maintain().trimmed_to == {0: 1}


class TestRows:
    def test_columns_and_filter_are_those_of_a_scan(self, table):
        add(table, 1, 2, 3)
        table.append([{"id": None, "s": None}])
        for condition in ("id > 1 AND s = 'odd'", [("id", ">", 1), ("s", "=", "odd")], pc.field("id") == 3):
            assert [
                b.to_pylist() for b in table.follow(APP, start={}, columns=["id"], filter=condition, until_ms=0)
            ] == [[{"id": 3}]]
        (batch,) = table.follow(APP, start={}, columns=["s"], filter="id = 2", include_metadata=True, until_ms=0)
        assert batch.schema.names == ["_bucket", "_log_offset", "_commit_timestamp", "s"]
        assert batch["_log_offset"].to_pylist() == [1]

    def test_rows_that_do_not_match_are_passed_over_once(self, table, clock):
        add(table, 1, 3)
        assert process(table, filter="s = 'even'") == []
        assert table.consumer_position(APP).offsets == {0: 2}

    def test_the_position_after_rows_without_a_match_is_stored_after_a_minute(self, table, clock):
        add(table, 1)
        stop = threading.Event()
        follower = table.follow(APP, filter="s = 'even'", poll_ms=1000, stop=stop)
        commits = []
        sleep = clock.sleep_ms

        def sleep_and_note(duration_ms: float) -> None:
            sleep(duration_ms)
            commits.append(table.consumer_position(APP).offsets[0])
            if len(commits) == 70:
                stop.set()

        clock.sleep_ms = sleep_and_note
        assert list(follower) == []
        assert commits == [0] * 60 + [1] * 10

    def test_a_primary_key_table_gives_changes_with_their_kinds(self, wh):
        table = wh.create_table("k", "id BIGINT NOT NULL, s STRING", primary_key=["id"], properties=QUIET)
        table.upsert([{"id": 1, "s": "a"}, {"id": 2, "s": "b"}])
        assert [b["_change_type"].to_pylist() for b in table.follow(APP, until_ms=0)] == [["insert", "insert"]]
        table.upsert([{"id": 1, "s": "b"}])
        table.delete([2])
        assert [b.to_pylist() for b in table.follow(APP, filter="s = 'b'", until_ms=0)] == [
            [
                {"_change_type": "update_after", "id": 1, "s": "b"},
                {"_change_type": "delete", "id": 2, "s": "b"},
            ]
        ]

    def test_deleted_rows_end_it_unless_they_are_to_be_ignored(self, table):
        add(table, 1, 2)
        assert process(table) == [1, 2]
        table.delete(where=[("id", "=", 1)])
        add(table, 3)
        with pytest.raises(OffsetsTrimmedError, match=r"consumer 'billing' has read.*skip_change_commits=True"):
            process(table)
        assert process(table, skip_change_commits=True) == [3]


class TestEnds:
    def test_a_stop_or_a_close_ends_the_loop_after_its_body(self, table):
        stop = threading.Event()
        for end, options in ((stop.set, {"stop": stop}), (None, {})):
            add(table, 1)
            follower = table.follow(APP, **options)
            for _ in follower:
                (end or follower.close)()
            assert process(table) == []

    def test_another_thread_closes_a_follower_that_waits(self, table):
        add(table, 1)
        follower = table.follow(APP)
        seen, processed = [], threading.Event()

        def run() -> None:
            for batch in follower:
                seen.extend(ids(batch))
                processed.set()

        thread = threading.Thread(target=run)
        thread.start()
        processed.wait()
        follower.close()
        thread.join()
        assert seen == [1]
        assert process(table) == []

    def test_an_idle_follower_ends_after_a_while(self, table, clock):
        before_ms = clock.boot_ms()
        assert list(table.follow(APP, until_ms=500)) == []
        assert 500 <= clock.boot_ms() - before_ms < 700

    def test_a_job_ends_although_rows_keep_arriving(self, table, monkeypatch):
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, 1, 2)
        seen = []
        for batch in table.follow(APP, available_now=True):
            seen += ids(batch)
            add(table, 9)
        assert seen == [1, 2]
        assert process(table) == [9, 9]


class TestFencing:
    def test_a_newer_follower_fences_the_older_one(self, table, other_process):
        older = table.follow(APP)
        add(table, 1)
        assert ids(next(older)) == [1]
        newer = other_process().table("t").follow(APP)
        with pytest.raises(ConsumerFencedError, match=r"a newer follower has this name.*different names"):
            next(older)
        assert list(older) == []
        assert ids(next(newer)) == [1]

    def test_a_fenced_follower_gets_no_more_rows(self, table, other_process):
        older = table.follow(APP)
        process(other_process().table("t"))
        add(table, 1)
        with pytest.raises(ConsumerFencedError):
            next(older)

    def test_many_followers_of_one_process_leave_one(self, table):
        followers = [table.follow(APP) for _ in range(5)]
        add(table, 1)
        for follower in followers[:-1]:
            with pytest.raises(ConsumerFencedError):
                next(follower)
        assert ids(next(followers[-1])) == [1]

    @pytest.mark.parametrize("offsets", [{0: 0}, None])
    def test_a_consumer_that_is_moved_ends_its_follower(self, table, offsets):
        add(table, 1, 2)
        follower = table.follow(APP, start={0: 1})
        next(follower)
        table.move_consumer(APP, offsets)
        with pytest.raises(ConsumerFencedError, match=r"it was (moved to|removed)"):
            next(follower)
        assert process(table) == [1, 2]

    def test_a_late_commit_of_an_older_follower_moves_nothing(self, table, other_process):
        older = table.follow(APP)
        add(table, 1, 2)
        next(older)
        newer = other_process().table("t").follow(APP)
        with pytest.raises(ConsumerFencedError):
            older.commit()
        assert newer.position.offsets == table.consumer_position(APP).offsets == {0: 0}

    def test_the_epoch_cannot_be_forgotten_or_written(self, table):
        with pytest.raises(InvalidOptionError, match="fence consumers"):
            table.forget_transactions("streamhouse.consumer.billing")


class TestGaps:
    def test_a_trimmed_position_is_an_error_that_names_the_way_out(self, table):
        add(table, 1)
        process(table)
        add(table, 2, 3, 4)
        table.log.commit(lambda *_: (Trim({0: 3}),))
        with pytest.raises(OffsetsTrimmedError, match=r"at offset 1 of bucket 0, but the log starts at 3") as error:
            process(table)
        assert "start=table.consumer_position('billing').moved_to(table.refresh())" in str(error.value)
        assert table.consumer_position(APP).offsets == {0: 1}, "nothing was written"
        assert process(table, start=table.consumer_position(APP).moved_to(table.refresh())) == [4]

    def test_a_follower_that_is_overtaken_by_trimming_fails(self, table):
        follower = table.follow(APP)
        add(table, 1, 2, 3)
        table.log.commit(lambda *_: (Trim({0: 2}),))
        with pytest.raises(OffsetsTrimmedError, match="the log starts at 2"):
            next(follower)

    @pytest.mark.parametrize("lived", [True, False])
    def test_a_truncation_is_an_error_with_the_same_way_out(self, table, lived):
        add(table, 1, 2)
        follower = table.follow(APP)
        if not lived:
            follower.close()
        table.truncate()
        add(table, 3)
        with pytest.raises(OffsetsTrimmedError, match="truncated"):
            next(follower if lived else table.follow(APP))
        assert process(table, start=table.consumer_position(APP).moved_to(table.refresh())) == [3]

    def test_a_restored_table_continues_at_its_own_position_and_refuses_later_ones(self, clock, world, memory):
        wh = Warehouse("wh", storage=memory, world=world)
        table = TABLE.create(wh)
        add(table, 1)
        process(table)
        backup = dict(memory._objects)
        add(table, 2)
        with table.follow(APP) as follower:
            next(follower)
            later = follower.position
            follower.commit()
        restored = MemoryStorage(world)
        restored._objects = backup
        table = Warehouse("wh", storage=restored, world=world).table("t")
        add(table, 7, 8)
        with pytest.raises(DifferentHistoryError, match="moved_to"):
            process(table, start=later)
        assert process(table) == [7, 8]

    def test_a_changed_column_ends_it_and_it_continues_when_followed_again(self, table):
        follower = table.follow(APP)
        add(table, 1)
        next(follower)
        table.rename_column("s", "text")
        table.append([{"id": 2}])
        with pytest.raises(SchemaMismatchError, match=r"consumer 'billing' of .*renamed"):
            next(follower)
        assert process(table) == [2]


class TestSinks:
    @pytest.fixture
    def sink(self, wh):
        return wh.create_table("copy", "id BIGINT, s STRING", properties=QUIET)

    @staticmethod
    def copy(table, sink, *, fails_after: int | None = None, **options) -> None:
        with table.follow(APP, sink=sink, available_now=True, **options) as follower:
            for number, batch in enumerate(follower):
                sink.append(batch, transaction=follower.transaction)
                if number == fails_after:
                    raise BodyError

    @pytest.mark.parametrize("buckets", [1, 3])
    def test_a_table_gets_each_row_once_although_the_position_was_not_committed(self, wh, sink, buckets, monkeypatch):
        table = wh.create_table("b", "id BIGINT, s STRING", buckets=buckets, properties={**QUIET, "bucket.key": "id"})
        monkeypatch.setattr(follow, "BATCH_BYTES", 1)
        add(table, *range(4))
        with pytest.raises(BodyError):
            self.copy(table, sink, fails_after=1)
        monkeypatch.setattr(follow, "BATCH_BYTES", 1 << 20)
        add(table, *range(4, 9))
        self.copy(table, sink)
        self.copy(table, sink)
        assert sorted(sink.to_arrow()["id"].to_pylist()) == list(range(9))
        assert table.consumer_position(APP).offsets == table.refresh().ends

    def test_two_followers_of_one_sink_do_not_double_a_row(self, table, sink, other_process):
        older = table.follow(APP, sink=sink)
        newer = other_process().table("t").follow(APP, sink=sink)
        add(table, 1)
        batch = next(newer)
        older._read_batch = lambda state: older._cursor.take(state, 1 << 20)  # it was fenced while it slept
        add(table, 2)
        late = next(older)
        sink.append(batch, transaction=newer.transaction)
        with pytest.raises(CommitConflictError, match="another writer"):
            sink.append(late, transaction=older.transaction)
        assert sink.to_arrow()["id"].to_pylist() in ([1], [1, 2])

    def test_batches_that_are_not_written_are_skipped(self, table, sink):
        for number in (1, 2):
            add(table, number)
            with table.follow(APP, sink=sink, available_now=True) as follower:
                for batch in follower:
                    if number == 2:
                        sink.append(batch, transaction=follower.transaction)
        assert sink.to_arrow()["id"].to_pylist() == [2]

    def test_a_transaction_that_expired_is_known_by_the_committed_position(self, table, sink, clock):
        add(table, 1)
        self.copy(table, sink)
        add(table, 2)
        with pytest.raises(BodyError):
            self.copy(table, sink, fails_after=0)
        sink.alter_properties({"table.transactions.ttl": "1d"})
        clock.advance(48 * 3_600_000)
        sink.append([{"id": 0}])
        sink.maintain()
        with pytest.raises(InvalidOptionError, match="has expired"):
            self.copy(table, sink)
        table.move_consumer(APP, {0: 2})
        add(table, 3)
        self.copy(table, sink)
        assert sink.to_arrow()["id"].to_pylist() == [1, 2, 0, 3]

    def test_a_start_besides_the_stored_position_of_a_sink_is_an_error(self, table, sink):
        add(table, 1)
        self.copy(table, sink)
        with pytest.raises(InvalidOptionError, match="leave start out") as error:
            self.copy(table, sink, start={0: 0})
        sink.forget_transactions(re.search(r"forget_transactions\('(.+?)'\)", str(error.value))[1])
        self.copy(table, sink, start={0: 0})
        assert sink.to_arrow()["id"].to_pylist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("", {}, InvalidOptionError),
        (5, {}, InvalidOptionError),
        (APP, {"columns": ["no"]}, SchemaMismatchError),
        (APP, {"filter": "no = 1"}, SchemaMismatchError),
        (APP, {"filter": "id ="}, InvalidOptionError),
        (APP, {"start": "yesterday"}, InvalidOptionError),
        (APP, {"start": {7: 0}}, InvalidOptionError),
        (APP, {"until_ms": -1}, InvalidOptionError),
        (APP, {"sink": 5}, InvalidOptionError),
        (APP, {"stop": 5}, InvalidOptionError),
    ],
)
def test_wrong_options_are_errors_before_anything_is_written(table, name, options, error):
    version = table.refresh().version
    with pytest.raises(error):
        table.follow(name, **options)
    assert table.refresh().version == version


def test_a_transaction_needs_a_sink(table):
    with pytest.raises(InvalidOptionError, match="pass the table to write to"):
        _ = table.follow(APP).transaction


def test_a_tiered_table_can_be_followed(wh):
    table = wh.create_table("tiered", "id BIGINT, s STRING")
    add(table, 1)
    tier(table)
    add(table, 2)
    assert process(table) == [1, 2]
