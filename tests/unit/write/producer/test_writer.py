"""A writer of events: answers, order, back-pressure, failures, and the ends that a writer can have."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future

import pandas as pd
import pyarrow as pa
import pytest

from streamhouse_spark import BucketOffsets, OffsetRange, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    SchemaMismatchError,
    StorageError,
    TransactionConflictError,
    WriterFullError,
    WriterStoppedError,
)
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer import sender as idempotence
from streamhouse_spark.write.producer.accumulator import BufferedRow

NAME = "sales.events"
LONG_MS = 3_600_000


@pytest.fixture
def real() -> Warehouse:
    """A warehouse whose time passes: writers have threads."""
    return Warehouse("wh", storage=MemoryStorage(World()))


@pytest.fixture
def table(real):
    return real.create_table(NAME, "id BIGINT NOT NULL, text STRING DEFAULT 'none', n INT")


@pytest.fixture
def other(real, table):
    """The table as another process has it."""
    return Warehouse("wh", storage=table.storage).table(NAME)


@pytest.fixture
def hashed(real):
    return real.create_table("sales.hashed", "id BIGINT, text STRING", buckets=4, properties={"bucket.key": "id"})


class Gate:
    """Appends that wait until they may, or fail as told."""

    def __init__(self, monkeypatch) -> None:
        self.arrived = threading.Event()
        self.open = threading.Event()
        self.errors: list[Exception] = []
        append = LogTableWriter.append

        def gated(appends, rows, *given, **named):
            self.arrived.set()
            assert self.open.wait(240)
            if self.errors:
                raise self.errors.pop(0)
            return append(appends, rows, *given, **named)

        monkeypatch.setattr(LogTableWriter, "append", gated)


@pytest.fixture
def gate(monkeypatch):
    return Gate(monkeypatch)


def ids(table) -> list[int]:
    return table.to_arrow().column("id").to_pylist()


def test_sends_are_one_append_and_each_has_its_offsets(table):
    before = table.refresh().version
    with table.writer(flush_ms=LONG_MS) as writer:
        futures = [writer.send([{"id": n}, {"id": n + 100}]) for n in range(5)]
        assert not any(future.done() for future in futures)
        writer.flush()
        assert all(future.done() for future in futures)
    assert table.refresh().version == before + 1
    assert [future.result() for future in futures] == [
        BucketOffsets({0: OffsetRange(2 * n, 2 * n + 2)}) for n in range(5)
    ]
    assert ids(table) == [key for n in range(5) for key in (n, n + 100)]


def test_offsets_of_hashed_rows_are_those_of_each_send(hashed):
    with hashed.writer(flush_ms=LONG_MS) as writer:
        futures = [writer.send([{"id": 10 * n + m} for m in range(n)]) for n in range(8)]
    found = {}
    for batch in hashed.tail("earliest", include_metadata=True, until_ms=0):
        for row in batch.to_pylist():
            found[row["_bucket"], row["_log_offset"]] = row["id"]
    for n, future in enumerate(futures):
        at = [found[bucket, offset] for bucket, r in future.result().items() for offset in range(r.start, r.end)]
        assert sorted(at) == [10 * n + m for m in range(n)]


def test_a_full_batch_leaves_without_a_flush(table):
    with table.writer(flush_ms=LONG_MS, flush_bytes=1) as writer:
        assert writer.send({"id": 1}).result(60).num_rows == 1


def test_rows_leave_when_their_time_has_come(table):
    with table.writer(flush_ms=1) as writer:
        assert writer.send({"id": 1}).result(60).num_rows == 1


@pytest.mark.parametrize(
    "rows",
    [
        {"id": 1},
        [{"id": 1}],
        pa.table({"id": pa.array([1], pa.int64())}),
        pa.record_batch({"id": pa.array([1], pa.int64())}),
        pa.table({"id": pa.array([1], pa.int64())}).to_reader(),
        pd.DataFrame({"id": [1]}),
        pd.DataFrame({"id": [1], "text": ["none"]}),
    ],
)
def test_a_writer_takes_rows_of_each_kind(table, rows):
    with table.writer() as writer:
        writer.send(rows)
    assert table.to_arrow().to_pylist() == [{"id": 1, "text": "none", "n": None}]


def test_rows_with_other_columns_between_them_stay_in_order(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        sent = [{"id": 1}, {"id": 2, "text": None}, {"id": 3, "N": 4}, {"id": 4}]
        for row in sent:
            writer.send(row)
        writer.send([{"id": 5, "n": 1}, {"id": 6, "text": "b"}])
    assert [(row["id"], row["text"], row["n"]) for row in table.to_arrow().to_pylist()] == [
        (1, "none", None),
        (2, None, None),
        (3, "none", 4),
        (4, "none", None),
        (5, "none", 1),
        (6, "b", None),
    ]


def test_a_frame_may_change_after_it_was_sent(table):
    frame = pd.DataFrame({"id": [1, 2, 3]})
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send(frame)
        frame.loc[:, "id"] = 9
    assert ids(table) == [1, 2, 3]


def test_rows_that_do_not_fit_are_refused_and_leave_the_others_alone(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1})
        with pytest.raises(SchemaMismatchError, match="'id'"):
            writer.send({"id": None})
        with pytest.raises(SchemaMismatchError, match="'x'"):
            writer.send({"id": 1, "x": 1})
        writer.send({"id": 2})
    assert ids(table) == [1, 2]


def test_rows_of_all_kinds_share_a_batch_and_may_change_behind_their_send(table):
    row = {"id": 1, "text": "a"}
    with table.writer(flush_ms=LONG_MS) as writer:
        futures = [writer.send(row)]
        row["id"], row["text"] = 2, "b"
        futures += [writer.send(row), writer.send([{"id": 3, "text": "c"}]), writer.send({"text": "d", "id": 4})]
        plain = [isinstance(send.rows, BufferedRow) for send in writer._sender_thread.accumulator._sends]
        before = table.refresh().version
        writer.flush()
    assert plain == [True, True, False, True]
    assert table.refresh().version == before + 1
    assert [future.result() for future in futures] == [BucketOffsets({0: OffsetRange(n, n + 1)}) for n in range(4)]
    assert table.to_arrow(columns=["id", "text", "n"]).to_pylist() == [
        {"id": n, "text": text, "n": None} for n, text in enumerate("abcd", 1)
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"table.generated.more": "id * 2"},
        {"table.identity.more": "ALWAYS"},
        {"table.constraint.small": "id < 9"},
    ],
)
def test_rows_of_tables_that_look_at_values_are_converted_where_they_are_sent(real, more):
    table = real.create_table("sales.worked", "id BIGINT, more BIGINT", properties=more)
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1})
        assert not any(isinstance(send.rows, BufferedRow) for send in writer._sender_thread.accumulator._sends)
    assert ids(table) == [1]


def test_columns_that_change_meanwhile(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        future = writer.send({"id": 1})
        table.drop_column("n")
        table.set_default("text", "late")
        table.add_columns("more INT", defaults={"more": 3})
        writer.flush()
        assert future.result().num_rows == 1
        lost = writer.send({"id": 2, "text": "b"})
        table.rename_column("text", "words")
        with pytest.raises(SchemaMismatchError, match="words"):
            writer.flush()
        with pytest.raises(SchemaMismatchError, match="words"):
            lost.result()
        writer.send({"id": 3, "words": "c"})
    assert table.to_arrow().to_pylist() == [{"id": 1, "words": "late", "more": 3}, {"id": 3, "words": "c", "more": 3}]


@pytest.mark.parametrize(
    "options",
    [
        {"flush_bytes": 0},
        {"flush_bytes": 1 << 40},
        {"in_flight_bytes_max": 0},
        {"flush_ms": -1},
        {"producer_id": ""},
        {"producer_id": 3},
    ],
)
def test_options_that_cannot_be(table, options):
    with pytest.raises(InvalidOptionError):
        table.writer(**options)


# -- back-pressure ----------------------------------------------------------------------------------------------------


def test_rows_that_let_wait_keep_no_other_sender(table):
    asked, go = threading.Event(), threading.Event()
    schema = pa.schema({"id": pa.int64()})

    def slow_rows():
        asked.set()
        assert go.wait(240)
        yield pa.record_batch({"id": pa.array([1], pa.int64())})

    with table.writer() as writer:
        slow = threading.Thread(target=lambda: writer.send(pa.RecordBatchReader.from_batches(schema, slow_rows())))
        slow.start()
        assert asked.wait(240)
        for number, rows in enumerate(({"id": 2}, [{"id": 3}], pa.table({"id": [4]}))):
            assert writer.send(rows).result(240) == BucketOffsets({0: OffsetRange(number, number + 1)})
        go.set()
        slow.join()
    assert ids(table) == [2, 3, 4, 1]


def test_a_sender_waits_while_too_much_is_in_flight(table, gate):
    with table.writer(flush_ms=0, flush_bytes=1, in_flight_bytes_max=1) as writer:
        first = writer.send({"id": 1})
        assert gate.arrived.wait(240)
        with pytest.raises(WriterFullError, match="in_flight_bytes_max"):
            writer.send({"id": 2}, timeout_ms=1)
        second: list[Future[BucketOffsets]] = []
        sender = threading.Thread(target=lambda: second.append(writer.send({"id": 2})))
        sender.start()
        assert not second
        gate.open.set()
        sender.join(240)
        assert first.result(60)
        assert second[0].result(60)
    assert ids(table) == [1, 2]


def test_a_sender_that_waits_hears_of_the_close(table, gate):
    writer = table.writer(flush_ms=0, flush_bytes=1, in_flight_bytes_max=1)
    writer.send({"id": 1})
    assert gate.arrived.wait(240)
    heard: list[Exception] = []

    def send() -> None:
        try:
            writer.send({"id": 2})
        except WriterStoppedError as error:
            heard.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    closer = threading.Thread(target=writer.close)
    closer.start()
    sender.join(240)
    gate.open.set()
    closer.join(240)
    assert len(heard) == 1
    assert ids(table) == [1]


def test_a_callback_that_sends_does_not_wait_for_itself(table):
    found: list[object] = []
    with table.writer(flush_ms=LONG_MS, in_flight_bytes_max=1) as writer:

        def again(_: Future[BucketOffsets]) -> None:
            for call in (lambda: writer.send({"id": 2}), writer.flush, writer.close):
                try:
                    found.append(call())
                except (WriterFullError, InvalidOptionError) as error:
                    found.append(type(error))

        writer.send({"id": 1}).add_done_callback(again)
        writer.flush()
    assert found == [WriterFullError, InvalidOptionError, InvalidOptionError]


# -- failures and ends ------------------------------------------------------------------------------------------------


def test_without_a_producer_a_failure_is_that_of_its_batch(table, gate):
    gate.open.set()
    gate.errors = [SchemaMismatchError("one"), SchemaMismatchError("two")]
    with table.writer(flush_ms=LONG_MS, flush_bytes=1) as writer:
        futures = [writer.send({"id": n}) for n in range(3)]
        with pytest.raises(SchemaMismatchError, match="one"):
            writer.flush()
    assert [type(future.exception()) for future in futures] == [SchemaMismatchError, SchemaMismatchError, type(None)]
    assert ids(table) == [2]


def test_failures_of_a_batch_are_an_exception_for_each(table, gate):
    gate.errors = [SchemaMismatchError("one")]
    gate.open.set()
    writer = table.writer(flush_ms=LONG_MS)
    futures = [writer.send({"id": n}) for n in range(2)]
    with pytest.raises(SchemaMismatchError):
        writer.close()
    errors = [future.exception() for future in futures]
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


def test_a_failure_that_nobody_asked_for_is_raised_by_the_close(table, gate):
    gate.errors = [SchemaMismatchError("one")]
    gate.open.set()
    with pytest.raises(SchemaMismatchError, match="one"), table.writer() as writer:
        writer.send({"id": 1})


def send_and_fail(table) -> None:
    with table.writer(flush_ms=LONG_MS) as writer:
        writer.send({"id": 1})
        raise KeyError("mine")


def test_an_exception_in_the_block_goes_before_failures_and_what_was_sent_is_written(table):
    with pytest.raises(KeyError, match="mine"):
        send_and_fail(table)
    assert ids(table) == [1]


def test_an_exception_in_the_block_goes_before_a_failure(table, gate, caplog):
    gate.errors = [SchemaMismatchError("one")]
    gate.open.set()
    with pytest.raises(KeyError, match="mine"):
        send_and_fail(table)
    assert "SCHEMA_MISMATCH: one" in caplog.text


def test_a_failure_that_passes_is_tried_again(table, gate):
    gate.errors = [StorageError("away")]
    gate.open.set()
    with table.writer() as writer:
        assert writer.send({"id": 1}).result(60).num_rows == 1


def test_a_closed_writer_accepts_no_rows(table):
    writer = table.writer()
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(WriterStoppedError, match="closed; open a new writer"):
        writer.send({"id": 1})
    with table.writer() as another:
        another.send({"id": 1})
    assert ids(table) == [1]


def test_a_sent_row_cannot_be_cancelled(table):
    with table.writer(flush_ms=LONG_MS) as writer:
        assert not writer.send({"id": 1}).cancel()
    assert ids(table) == [1]


def test_a_thread_that_ends_answers_everybody(table, monkeypatch):
    def dies(*_given, **_named):
        raise SystemExit

    monkeypatch.setattr("streamhouse_spark.write.producer.sender.BatchSender.deliver", dies)
    writer = table.writer(flush_ms=LONG_MS)
    future = writer.send({"id": 1})
    with pytest.raises(WriterStoppedError, match="SystemExit"):
        writer.close()
    with pytest.raises(WriterStoppedError, match="check which rows are stored"):
        future.result()


def test_an_interrupt_of_a_flush_loses_nothing(table, gate, monkeypatch):
    writer = table.writer(flush_ms=LONG_MS)
    future = writer.send({"id": 1})
    condition = writer._sender_thread.accumulator._done
    wait = condition.wait

    def interrupted(timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait(timeout)

    monkeypatch.setattr(condition, "wait", interrupted)
    for call in (writer.flush, writer._sender_thread.accumulator.flush):
        with pytest.raises(KeyboardInterrupt):
            call()
    monkeypatch.setattr(condition, "wait", wait)
    gate.open.set()
    writer.close()
    assert future.result().num_rows == 1
    assert ids(table) == [1]


def test_a_writer_that_nobody_holds_is_ended_with_a_warning(table):
    writer = table.writer(flush_ms=LONG_MS)
    future = writer.send({"id": 1})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del writer
        gc.collect()
    assert [str(w.message) for w in told if w.category is ResourceWarning] == [
        f"a writer of {NAME} was not closed; use it in a with statement, or close it"
    ]
    assert future.result(60).num_rows == 1


def run_python(text: str, path) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys, os\nfrom streamhouse_spark import Warehouse\ntable = Warehouse({str(path)!r}).table({NAME!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code + text],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture
def on_disk(tmp_path):
    Warehouse(str(tmp_path / "wh")).create_table(NAME, "id BIGINT")
    return tmp_path / "wh"


def test_the_end_of_the_process_waits_for_the_rows_and_warns(on_disk):
    done = run_python(f"writer = table.writer(flush_ms={LONG_MS}); writer.send({{'id': 1}})", on_disk)
    assert done.returncode == 0
    assert "ResourceWarning: a writer of sales.events was not closed" in done.stderr
    assert ids(Warehouse(str(on_disk)).table(NAME)) == [1]


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_the_end_of_a_child_of_multiprocessing_waits_for_the_rows(on_disk, start):
    worker = multiprocessing.get_context(start).Process(target=send_one, args=(str(on_disk),))
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0
    assert ids(Warehouse(str(on_disk)).table(NAME)) == [1]


def send_one(path: str) -> None:
    warnings.simplefilter("ignore", ResourceWarning)
    global kept  # noqa: PLW0603 - held until the end
    kept = Warehouse(path).table(NAME).writer(flush_ms=LONG_MS)
    kept.send({"id": 1})


def test_a_fork_leaves_the_rows_to_its_parent(on_disk):
    text = f"""
with table.writer(flush_ms={LONG_MS}) as writer:
    future = writer.send({{"id": 1}})
    pid = os.fork()
    if pid == 0:
        told = []
        for call in (future.result, lambda: writer.send({{"id": 2}})):
            try:
                call()
            except Exception as error:
                told.append(type(error).__name__)
        writer.flush()
        writer.close()
        print(told, flush=True)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.flush()
    print(future.result().num_rows, flush=True)
"""
    done = run_python(text, on_disk)
    assert done.stdout.split("\n")[:2] == ["['WriterStoppedError', 'WriterStoppedError']", "1"], done.stderr
    assert "ResourceWarning" not in done.stderr
    assert ids(Warehouse(str(on_disk)).table(NAME)) == [1]


# -- producers --------------------------------------------------------------------------------------------------------


def test_sequences_are_counted_and_a_later_writer_knows_the_last(table):
    with table.writer(producer_id="source") as writer:
        assert writer.last_sequence is None
        for n in range(3):
            writer.send({"id": n})
        writer.flush()
        assert writer.last_sequence == 2
    with table.writer(producer_id="source") as writer:
        assert writer.last_sequence == 2
        assert writer.send({"id": 99}, sequence=2).result(0) == BucketOffsets({})
        writer.send({"id": 3})
        writer.send({"id": 4}, sequence=40)
        writer.send({"id": 5})
        with pytest.raises(InvalidOptionError, match="sequences must increase"):
            writer.send({"id": 6}, sequence=41)
    assert writer.last_sequence == 41
    assert ids(table) == [0, 1, 2, 3, 4, 5]


def test_sends_without_rows_count(table):
    with table.writer(producer_id="source") as writer:
        assert writer.send([], sequence=7).result(60) == BucketOffsets({})
    with table.writer(producer_id="source") as writer:
        assert writer.last_sequence == 7


def test_opening_with_an_id_is_one_commit_and_without_none(table):
    before = table.refresh().version
    table.writer().close()
    assert table.refresh().version == before
    table.writer(producer_id="source").close()
    assert table.refresh().version == before + 1
    assert not table.refresh().num_rows


def test_a_sequence_needs_a_producer(table):
    with table.writer() as writer:
        assert writer.last_sequence is None
        with pytest.raises(InvalidOptionError, match="producer_id"):
            writer.send({"id": 1}, sequence=1)


def test_a_streams_application_id_is_refused(table):
    table.append([{"id": 1}], transaction=Transaction("stream", 1, "query"))
    with pytest.raises(TransactionConflictError, match="streaming query"):
        table.writer(producer_id="stream")
    table.writer(producer_id="another").close()


def test_writers_that_take_an_id_from_each_other_all_the_time(table, other, monkeypatch):
    commit = CommitLog.commit

    def late(log, *given, **named):
        if log is table.log:
            idempotence.take_over(other, "source")
        return commit(log, *given, **named)

    monkeypatch.setattr(CommitLog, "commit", late)
    with pytest.raises(CommitConflictError, match="a separate id"):
        table.writer(producer_id="source")
    table.writer(producer_id="own", flush_ms=1).close()


def test_a_producer_that_was_away_for_long_is_known(wh, clock):
    table = wh.create_table(NAME, "id BIGINT", properties={"table.transactions.ttl": "1d"})
    with table.writer(producer_id="source") as writer:
        writer.send({"id": 1}, sequence=10)
    clock.advance(48 * LONG_MS)
    table.append([{"id": 5}])
    table.maintain()
    assert not table.refresh().transactions
    with wh.table(NAME).writer(producer_id="source", flush_ms=0) as writer:
        assert writer.last_sequence == 10
        writer.send({"id": 1}, sequence=10)
        writer.send({"id": 2}, sequence=11)
    assert ids(table) == [1, 5, 2]


def test_senders_in_many_threads_keep_each_its_order(hashed):
    with hashed.writer(flush_bytes=20_000, in_flight_bytes_max=60_000, producer_id="many") as writer:

        def send(thread: int) -> None:
            for n in range(50):
                writer.send({"id": thread, "text": str(n)})

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert writer.last_sequence == 199
    rows = hashed.to_arrow().to_pylist()
    for thread in range(4):
        assert [row["text"] for row in rows if row["id"] == thread] == [str(n) for n in range(50)]


def test_nothing_fails_behind_the_commit(hashed, monkeypatch):
    fitted, append, stored = LogTableWriter.fit_rows, LogTableWriter.append, []

    def altered_behind_the_commit(self, rows):
        if stored:
            raise SchemaMismatchError("the column was dropped meanwhile")
        return fitted(self, rows)

    def appended(self, *given, **named):
        stored.append(append(self, *given, **named))
        return stored[-1]

    with hashed.writer(flush_ms=LONG_MS) as writer:
        futures = [writer.send([{"id": n, "text": "a"}, {"id": n + 1, "text": "b"}]) for n in (1, 5)]
        monkeypatch.setattr(LogTableWriter, "fit_rows", altered_behind_the_commit)
        monkeypatch.setattr(LogTableWriter, "append", appended)
        writer.flush()
    assert len(stored) == 1
    assert [future.result().num_rows for future in futures] == [2, 2]


def test_rows_that_defaults_make_too_large_for_a_bucket_are_answered(real, monkeypatch):
    table = real.create_table("sales.sticky", "id BIGINT, text STRING", buckets=3)
    monkeypatch.setattr("streamhouse_spark.log.staging.SEGMENT_BYTES_MAX", 100_000)
    with table.writer(flush_ms=LONG_MS) as writer:
        futures = [writer.send([{"id": n, "text": "x" * 90_000}]) for n in range(4)]
        writer.flush()
    assert {future.result().num_rows for future in futures} == {4}
    assert table.to_arrow().num_rows == 4
