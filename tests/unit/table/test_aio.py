"""The asyncio interface: joined writes and lookups, tails without threads, cancellation, several event loops."""

from __future__ import annotations

import asyncio
import os
import threading

import pyarrow as pa
import pytest

from kit.tables import TableCase
from streamhouse_spark import (
    BucketOffsets,
    ConsumerFencedError,
    InvalidOptionError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
    Transaction,
    Warehouse,
)
from streamhouse_spark.core.async_calls import THREADS_MAX, SerialCallQueue
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.read import async_tail, follow
from streamhouse_spark.read.tail import LogCursor
from streamhouse_spark.table import aio

QUIET = {"table.datalake.enabled": "false"}
TABLE = TableCase("t", "id BIGINT, s STRING", properties=QUIET)
APP = "billing"


@pytest.fixture
def people(wh):
    table = wh.create_table("people", "id BIGINT NOT NULL, name STRING", primary_key=["id"], properties=QUIET)
    table.upsert([{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}])
    return table


def ids(batch) -> list[int]:
    return batch["id"].to_pylist()


async def cycles(number: int = 50) -> None:
    """Let other tasks run."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition) -> None:
    """Let other tasks and threads run until a condition holds."""
    while not condition():  # noqa: ASYNC110 - threads set it
        await asyncio.sleep(0.001)


async def collect(tail) -> list[int]:
    return [number async for batch in tail for number in ids(batch)]


class TestWrites:
    def test_concurrent_appends_share_commits_and_keep_their_order(self, table):
        async def append_all():
            return await asyncio.gather(*(table.aio.append([{"id": i}]) for i in range(1000)))

        version = table.refresh().version
        offsets = asyncio.run(append_all())
        assert [o[0].start for o in offsets] == list(range(1000))
        assert table.to_arrow()["id"].to_pylist() == list(range(1000))
        assert table.refresh().version - version < 20

    def test_rows_that_do_not_fit_fail_alone(self, table):
        async def append_all():
            rows = [[{"id": 1}], [{"no": 1}], [{"id": "x"}], pa.table({"id": [2]}), {"id": 3}, []]
            return await asyncio.gather(*(table.aio.append(r) for r in rows), return_exceptions=True)

        outcomes = asyncio.run(append_all())
        assert [type(o) for o in outcomes] == [
            BucketOffsets, SchemaMismatchError, SchemaMismatchError, BucketOffsets, BucketOffsets, BucketOffsets,
        ]  # fmt: skip
        assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]

    def test_a_batch_that_the_store_refuses_fails_each_of_its_calls_with_an_error_of_its_own(self, table, monkeypatch):
        async def append_all():
            return await asyncio.gather(*(table.aio.append([{"id": i}]) for i in range(5)), return_exceptions=True)

        def refuse(*_, **__):
            raise StorageError("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "commit", refuse)
            errors = asyncio.run(append_all())
        assert {type(error) for error in errors} == {StorageError}
        assert len({id(error) for error in errors}) == 5
        assert len(asyncio.run(append_all())) == table.count() == 5

    def test_rows_of_more_bytes_than_the_writer_holds_are_written_in_several_commits(self, table, monkeypatch):
        monkeypatch.setattr(aio, "_LIMITS", aio.BatchLimits(flush_ms=0, flush_bytes=10_000, in_flight_bytes_max=20_000))

        async def append_all():
            return await asyncio.gather(*(table.aio.append([{"id": i}]) for i in range(50)))

        version = table.refresh().version
        asyncio.run(append_all())
        assert table.count() == 50
        assert table.refresh().version - version > 3

    def test_a_transaction_is_stored_once(self, table):
        async def append_twice():
            write = table.aio.append
            return [await write([{"id": 1}], transaction=Transaction("app", 1)) for _ in range(2)]

        first, second = asyncio.run(append_twice())
        assert first == second
        assert table.count() == 1

    def test_upserts_deletes_and_lookups_by_key(self, people):
        async def work():
            await asyncio.gather(*(people.aio.upsert([{"id": i, "name": f"n{i}"}]) for i in range(3, 100)))
            await people.aio.upsert([{"id": 3, "name": "x"}], columns=["name"])
            await people.aio.delete([1])
            rows = await asyncio.gather(*(people.aio.lookup_one(i) for i in range(1, 100)))
            many = await people.aio.lookup([2, 3], max_staleness_ms=0)
            return rows, many.to_pylist()

        rows, many = asyncio.run(work())
        assert rows[0] is None
        assert [row["name"] for row in rows[1:]] == ["Bob", "x", *(f"n{i}" for i in range(4, 100))]
        assert [row["name"] for row in many] == ["Bob", "x"]

    def test_a_call_for_the_other_kind_of_table_is_the_error_of_the_call_without_asyncio(self, table, people):
        for call, sync in (
            (table.aio.upsert, table.upsert),
            (people.aio.append, people.append),
            (table.aio.delete, table.delete),
        ):
            with pytest.raises(InvalidOptionError):
                sync([{"id": 1}])
            with pytest.raises(InvalidOptionError):
                asyncio.run(call([{"id": 1}]))
        with pytest.raises(InvalidOptionError, match="no primary key"):
            asyncio.run(table.aio.lookup_one(1))
        assert asyncio.run(table.aio.delete(where=[("id", "=", 7)])) == 0

    def test_an_append_that_still_waits_is_not_written_when_it_is_cancelled(self, table, monkeypatch):
        gate, entered = threading.Event(), threading.Event()
        commit = CommitLog.commit

        def slow(*given, **named):
            entered.set()
            gate.wait()
            return commit(*given, **named)

        async def work():
            first = asyncio.ensure_future(table.aio.append([{"id": 1}]))
            await until(entered.is_set)
            second = asyncio.ensure_future(table.aio.append([{"id": 2}]))
            third = asyncio.ensure_future(table.aio.append([{"id": 3}]))
            await cycles()
            second.cancel()
            first.cancel()
            await cycles()
            gate.set()
            await third
            return first.cancelled(), second.cancelled()

        monkeypatch.setattr(CommitLog, "commit", slow)
        assert asyncio.run(work()) == (True, True)
        assert table.to_arrow()["id"].to_pylist() == [1, 3], "the first was being written, the second was not"


class TestTails:
    def test_many_tails_get_all_rows_in_order_without_threads_of_their_own(self, table):
        threads = threading.active_count()

        async def work():
            tails = [table.aio.tail("earliest", columns=["id"] if i % 2 else None) for i in range(200)]
            got = [[] for _ in tails]

            async def take(tail, into):
                async for batch in tail:
                    into += ids(batch)
                    if len(into) >= 30:
                        return

            tasks = [asyncio.ensure_future(take(*pair)) for pair in zip(tails, got, strict=True)]
            for first in range(0, 30, 3):
                await table.aio.append([{"id": i} for i in range(first, first + 3)])
                await cycles()
            await asyncio.gather(*tasks)
            return got

        assert asyncio.run(work()) == [list(range(30))] * 200
        assert threading.active_count() - threads <= THREADS_MAX

    def test_tails_at_one_position_share_a_read(self, table, monkeypatch):
        reads = []
        take = LogCursor.take
        monkeypatch.setattr(LogCursor, "take", lambda *given: reads.append(1) or take(*given))

        async def work():
            table.append([{"id": 1}])
            tails = [table.aio.tail("earliest", available_now=True, filter="id > 0") for _ in range(100)]
            for tail in tails:
                await tail.__aenter__()
            return await asyncio.gather(*(collect(tail) for tail in tails))

        assert asyncio.run(work()) == [[1]] * 100
        assert len(reads) < 10

    def test_own_rows_are_delivered_without_a_poll(self, table, monkeypatch):
        async def never(*_):
            await asyncio.Event().wait()

        async def work():
            waiting = asyncio.ensure_future(anext(table.aio.tail("earliest")))
            await until(lambda: table.aio._watch()._waiting)
            await table.aio.append([{"id": 1}])
            return ids(await waiting)

        monkeypatch.setattr(async_tail, "sleep_ms", never)
        assert asyncio.run(work()) == [1]

    def test_a_slow_loop_body_reads_nothing_ahead(self, table, monkeypatch):
        reads = []
        take = LogCursor.take
        monkeypatch.setattr(LogCursor, "take", lambda *given: reads.append(1) or take(*given))

        async def work():
            tail = table.aio.tail("earliest")
            table.append([{"id": 0}])
            await anext(tail)
            for i in range(1, 50):
                table.append([{"id": i}])
                await cycles()
            assert len(reads) == 1
            return ids(await anext(tail))

        assert asyncio.run(work()) == list(range(1, 50))

    def test_a_cancelled_request_for_a_batch_loses_no_row(self, table, monkeypatch):
        gate, entered = threading.Event(), threading.Event()
        take = LogCursor.take

        def slow(*given):
            batch = take(*given)
            entered.set()
            gate.wait()
            return batch

        async def work():
            async with table.aio.tail("earliest") as tail:
                waiting = asyncio.ensure_future(anext(tail))
                await cycles()
                waiting.cancel()
                await asyncio.wait([waiting])
                await table.aio.append([{"id": 1}])
                monkeypatch.setattr(LogCursor, "take", slow)
                reading = asyncio.ensure_future(anext(tail))
                await until(entered.is_set)
                reading.cancel()
                await asyncio.wait([reading])
                gate.set()
                return waiting.cancelled(), reading.cancelled(), ids(await anext(tail))

        assert asyncio.run(work()) == (True, True, [1])

    def test_a_closed_tail_ends_and_leaves_no_task(self, table):
        async def work():
            tails = [table.aio.tail() for _ in range(3)]
            waiting = [asyncio.ensure_future(anext(tail, None)) for tail in tails]
            await until(lambda: len(table.aio._watch()._waiting) == 3)
            for tail in tails:
                await tail.aclose()
            assert await asyncio.gather(*waiting) == [None] * 3
            await until(lambda: len(asyncio.all_tasks()) == 1)
            return await anext(tails[0], None)

        assert asyncio.run(work()) is None

    def test_an_error_reaches_every_tail_and_ends_it(self, wh, table):
        async def work():
            tails = [table.aio.tail() for _ in range(3)]
            waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
            await until(lambda: len(table.aio._watch()._waiting) == 3)
            wh.drop_table("t")
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(error) for error in errors} == {TableNotFoundError}
            assert len({id(error) for error in errors}) == 3
            return await anext(tails[0], None)

        assert asyncio.run(work()) is None

    def test_wrong_options_are_errors_of_the_first_request(self, table):
        with pytest.raises(SchemaMismatchError):
            asyncio.run(collect(table.aio.tail(columns=["no"])))
        with pytest.raises(InvalidOptionError):
            asyncio.run(collect(table.aio.tail("yesterday")))
        with pytest.raises(InvalidOptionError, match="has not started"):
            _ = table.aio.tail().position

    def test_the_position_resumes_where_a_tail_ended(self, table):
        async def work():
            table.append([{"id": 1}])
            async with table.aio.tail("earliest", available_now=True) as tail:
                assert tail.position.offsets == {0: 0}
                assert await collect(tail) == [1]
            table.append([{"id": 2}])
            return await collect(table.aio.tail(tail.position, available_now=True))

        assert asyncio.run(work()) == [2]


class TestFollowers:
    def test_each_run_continues_after_the_committed_rows(self, table):
        for i in range(3):
            table.append([{"id": i}])
            assert asyncio.run(collect(table.aio.follow(APP, available_now=True))) == [i]
        assert table.consumer_position(APP).offsets == {0: 3}

    def test_a_body_that_is_left_or_cancelled_leaves_its_batch_uncommitted(self, table):
        table.append([{"id": 1}])

        async def leave():
            async with table.aio.follow(APP) as follower:
                async for _ in follower:
                    break

        async def cancelled():
            async for _ in table.aio.follow(APP):
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        asyncio.run(leave())
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
        assert table.consumer_position(APP).offsets == {0: 0}
        assert asyncio.run(collect(table.aio.follow(APP, available_now=True))) == [1]

    def test_the_position_after_rows_without_a_match_is_stored(self, table, clock):
        async def work():
            follower = table.aio.follow(APP, filter="id < 0")
            waiting = asyncio.ensure_future(anext(follower))
            await until(lambda: table.aio._watch()._waiting)
            clock.advance(follow.SKIPPED_COMMIT_MS)
            table.append([{"id": 1}])
            await until(lambda: table.consumer_position(APP).offsets == {0: 1})
            waiting.cancel()

        asyncio.run(work())

    def test_a_newer_follower_fences_the_older_one(self, table):
        async def work():
            older = table.aio.follow(APP)
            await table.aio.append([{"id": 1}])
            await anext(older)
            assert await collect(table.aio.follow(APP, available_now=True)) == [1]
            with pytest.raises(ConsumerFencedError):
                await anext(older)
            return await anext(older, None)

        assert asyncio.run(work()) is None

    def test_a_sink_gets_each_row_once(self, wh, table):
        sink = wh.create_table("copy", "id BIGINT, s STRING", properties=QUIET)

        async def copy(*, fails: bool):
            async with table.aio.follow(APP, sink=sink, available_now=True) as follower:
                async for batch in follower:
                    await sink.aio.append(batch, transaction=follower.transaction)
                    if fails:
                        return

        for i in range(4):
            table.append([{"id": i}])
            asyncio.run(copy(fails=i % 2 == 0))
        assert sorted(sink.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


class TestLoops:
    def test_one_table_serves_several_event_loops(self, table):
        async def work(number: int):
            await table.aio.append([{"id": number}])
            return await collect(table.aio.tail("earliest", available_now=True))

        assert [len(asyncio.run(work(i))) for i in range(5)] == [1, 2, 3, 4, 5]
        threads = [threading.Thread(target=lambda i=i: asyncio.run(work(i))) for i in range(5, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(10))

    def test_a_loop_that_was_closed_during_a_call_disturbs_no_other(self, table, monkeypatch):
        gate, entered = threading.Event(), threading.Event()
        commit = CommitLog.commit

        def slow(*given, **named):
            entered.set()
            gate.wait()
            return commit(*given, **named)

        async def leave():
            asyncio.ensure_future(table.aio.append([{"id": 1}]))  # noqa: RUF006
            await until(entered.is_set)

        monkeypatch.setattr(CommitLog, "commit", slow)
        asyncio.run(leave())
        gate.set()
        asyncio.run(table.aio.append([{"id": 2}]))
        assert table.to_arrow()["id"].to_pylist() == [1, 2]

    def test_a_lane_outlives_what_ends_its_thread(self):
        def make_all(calls):
            if calls[0].argument == "end":
                raise SystemExit
            for call in calls:
                call.make(str)

        lane = SerialCallQueue(make_all)

        async def work():
            with pytest.raises(SystemExit):
                await lane.call("end")
            return await lane.call(5)

        loop = asyncio.new_event_loop()
        try:
            assert loop.run_until_complete(work()) == "5"
        finally:
            loop.close()


def test_a_table_of_another_process_is_polled(table, other_process):
    async def work():
        async with table.aio.tail() as tail:
            waiting = asyncio.ensure_future(anext(tail))
            await cycles()
            other_process().table("t").append([{"id": 7}])
            return ids(await waiting)

    assert asyncio.run(work()) == [7]


def test_a_table_on_a_remote_store(remote, world):
    table = TABLE.create(Warehouse("wh", storage=remote, world=world))
    other = Warehouse("wh", storage=remote, world=world).table("t")

    async def work():
        got = []
        async with table.aio.tail("earliest", filter="id >= 5") as tail:
            for first in (0, 10, 20):
                await asyncio.gather(*(other.aio.append([{"id": first + i}]) for i in range(10)))
                while len(got) < first + 5:
                    got += ids(await anext(tail))
        return got

    assert asyncio.run(work()) == list(range(5, 30))


def test_a_table_on_a_disk_with_the_real_clock(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT", properties=QUIET)

    async def work():
        async with table.aio.tail() as tail:
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.gather(*(table.aio.append([{"id": i}]) for i in range(10)))
            return ids(await waiting)

    assert asyncio.run(work())[0] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_and_calls_of_its_own(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT", properties=QUIET)
    asyncio.run(table.aio.append([{"id": 1}]))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(table.aio.append([{"id": 2}]))
            assert asyncio.run(collect(table.aio.tail("earliest", available_now=True))) == [1, 2]
        except BaseException:  # noqa: BLE001 - pytest must not run twice
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(table.aio.append([{"id": 3}]))
    assert table.to_arrow()["id"].to_pylist() == [1, 2, 3]
