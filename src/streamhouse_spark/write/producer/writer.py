"""`Writer`: batches many small sends of an event producer into few commits, and completes a future per send.

`Writer.send` converts rows and puts them into the `RecordAccumulator`. One thread per writer takes batches out and
commits them one after another, so rows are stored in the order of the sends. No rows are lost silently: a writer that
was not closed is closed at process exit, or when it is garbage-collected, with a `ResourceWarning`.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from multiprocessing.util import Finalize
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.types import BucketOffsets
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, WriterStoppedError, copy_error
from streamhouse_spark.expressions.check_constraints import require_constraints
from streamhouse_spark.expressions.generated_columns import fill_generated_columns
from streamhouse_spark.log.commit_validation import require_writable
from streamhouse_spark.schema.identity import reject_identity_values
from streamhouse_spark.schema.paimon_limits import check_paimon_values
from streamhouse_spark.schema.row_conversion import FEW_ROWS
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer.accumulator import BatchLimits, BufferedRows, PendingSend, RecordAccumulator, Rows
from streamhouse_spark.write.producer.sender import BatchSender, take_over

if TYPE_CHECKING:
    from streamhouse_spark.write.producer.upsert_target import UpsertTarget

logger = logging.getLogger(__name__)


class SenderThread:
    """The thread of a writer, which takes batches from the accumulator and passes them to the sender.

    It has no reference to the `Writer`, so that an abandoned writer can be garbage-collected.
    """

    def __init__(self, name: str, accumulator: RecordAccumulator, sender: BatchSender) -> None:
        self.name = name
        self.accumulator = accumulator
        self.sender = sender
        self.last_sequence = sender.producer.stored_sequence if sender.producer is not None else None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread as a daemon. Process exit waits for the rows, not for the thread."""
        reinit_after_fork(self)
        if os.getpid() not in _waiting_pids:  # children of multiprocessing do not run `atexit` handlers
            _waiting_pids.add(os.getpid())
            Finalize(None, _finish_all, exitpriority=100)
        _running.add(self)
        self._thread = threading.Thread(target=self._run, name="streamhouse-writer", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write the queued rows and end the thread. Raises the first error since the last flush."""
        self.accumulator.end()
        try:
            self.accumulator.flush()
        finally:
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()

    def step(self, *, is_waiting: bool = False) -> bool:
        """Commit the next batch and complete its futures. Returns False if no batch is due.

        If a batch of a producer fails, all later rows fail too. If they were stored, the failed sequences would count
        as stored.
        """
        batch = self.accumulator.next_batch(is_waiting=is_waiting)
        if not batch:
            return False
        try:
            offsets_by_send = self.sender.deliver(batch)
        except Exception as error:  # noqa: BLE001 - the futures report it
            self._fail(batch, error)
            return True
        if batch[-1].sequence is not None:
            self.last_sequence = batch[-1].sequence
        for send, offsets in zip(batch, offsets_by_send, strict=True):
            send.answer.set_result(offsets)
        self.accumulator.complete(batch)
        return True

    def renew_in_child(self) -> None:
        """Stop the writer in a forked child. The thread of the parent process writes the rows."""
        _running.discard(self)
        reason = f"the writer of {self.name} was opened in the parent process; open a new writer in this process"
        self._thread = self.accumulator.taker = None
        pending = self.accumulator.stop(reason)
        for send in pending:
            if not send.answer.done():
                Future.__init__(send.answer)  # at the fork, another thread may have held the lock of the future
        self._reject(pending, reason)  # no failure is set, so `close` in the child raises nothing

    def _run(self) -> None:
        self.accumulator.taker = threading.get_ident()
        try:
            while self.step(is_waiting=True):
                pass
        except BaseException as error:
            logger.exception("the thread of the writer of %s ended", self.name)
            reason = f"the thread of the writer of {self.name} ended; check which rows are stored: {error!r}"
            self._reject(self.accumulator.stop(reason), reason, WriterStoppedError(reason))
        finally:
            self.accumulator.taker = None
            _running.discard(self)

    def _fail(self, batch: list[PendingSend], error: Exception) -> None:
        rows = sum(send.rows.num_rows for send in batch)
        logger.warning("%d rows of the writer of %s failed: %s", rows, self.name, error)
        for send in batch:
            send.answer.set_exception(copy_error(error))
        if self.sender.producer is None:
            self.accumulator.complete(batch, error)
            return
        reason = (
            f"an earlier batch of the writer of {self.name} failed, and these rows were not written; open a new "
            f"writer and continue after its last_sequence. The failure: {error}"
        )
        self._reject(self.accumulator.stop(reason), reason, error)

    def _reject(self, sends: list[PendingSend], reason: str, failure: Exception | None = None) -> None:
        for send in sends:
            if not send.answer.done():
                send.answer.set_exception(WriterStoppedError(reason))
        self.accumulator.complete(sends, failure)


_running: set[SenderThread] = set()
"""Running sender threads. Process exit waits for their rows."""


_waiting_pids: set[int] = set()
"""Ids of processes that registered `_finish_all`."""


def _finish_all() -> None:
    for sender_thread in list(_running):
        if not sender_thread.accumulator.is_ended:
            warnings.warn(_unclosed_warning(sender_thread.name), ResourceWarning, stacklevel=1)
        try:
            sender_thread.finish()
        except StreamhouseError as error:
            logger.error("rows of a writer were lost at process exit: %s", error)  # noqa: TRY400


def _end_abandoned_writer(sender_thread: SenderThread) -> None:
    """End a garbage-collected writer. Does not wait, because it may run in any thread at any time."""
    if not sender_thread.accumulator.is_ended:
        sender_thread.accumulator.end()
        warnings.warn(_unclosed_warning(sender_thread.name), ResourceWarning, stacklevel=1)


def _unclosed_warning(name: str) -> str:
    return f"a writer of {name} was not closed; use it in a with statement, or close it"


@validates_arguments()
class Writer:
    """A batching writer of event rows to one table, opened by `Table.writer`. Thread-safe.

    Rows are stored in the order of the sends. The rows of one send are stored together or not at all. In a primary-key
    table, `send` upserts rows and `delete` deletes keys. Use the writer in a ``with`` statement, or `close` it.
    """

    def __init__(self, sender_thread: SenderThread, log_writer: LogTableWriter, keyed: UpsertTarget | None) -> None:
        self._sender_thread = sender_thread
        self._log_writer = log_writer
        self._keyed = keyed
        self._conversion_lock = new_lock()
        self._plain_rows = BufferedRows()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the sent rows and close the writer, also after an exception in the block.

        After an exception, errors of the rows are logged and set in their futures, but not raised.
        """
        if error is None:
            self.close()
            return
        try:
            self.close()
        except StreamhouseError as failure:
            logger.error("rows of the writer of %s failed: %s", self._sender_thread.name, failure)  # noqa: TRY400

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that was stored, or None without a producer id or before the first batch.

        In a new writer, it is the last sequence of earlier writers with the producer id. Resume the source after it.
        """
        return self._sender_thread.last_sequence

    def send(self, rows: Any, *, sequence: int | None = None, timeout_ms: float | None = None) -> Future[BucketOffsets]:
        """Queue rows for the next batch, and return a future of their offsets.

        ``rows`` are as for `Table.append`, or one dict. They are converted in this call. Do not modify Arrow data until
        the future is done. In a primary-key table the future has the offsets of all changes of the batch.

        ``sequence`` is the position of the rows in their source, and requires a producer id. It must increase. The
        default is the previous sequence plus one, starting with 0. If an earlier writer stored the sequence, the rows
        are not stored again, and their future has no offsets. If too many bytes are in flight, the call waits for at
        most ``timeout_ms``.

        Raises `SchemaMismatchError` for rows that do not fit the table, `WriterFullError` after the timeout, and
        `WriterStoppedError` after a failure or `close`. Then the rows were not queued. An interrupted call may have
        queued the rows.
        """
        if (stored := self._answer_if_stored(sequence)) is not None:
            return stored
        plain = self._plain_rows.buffer(rows, self._log_writer.table.state)
        converted, num_bytes = plain or self._convert_and_measure([rows] if isinstance(rows, Mapping) else rows)
        return self._enqueue(converted, num_bytes, sequence, timeout_ms)

    def delete(
        self, keys: Any, *, sequence: int | None = None, timeout_ms: float | None = None
    ) -> Future[BucketOffsets]:
        """Queue keys whose rows are deleted in the order of the sends; see `send`.

        ``keys`` are as for `Table.delete`. Raises the errors of `send`, and `InvalidOptionError` for a log table or a
        table that does not support deletes.
        """
        if (stored := self._answer_if_stored(sequence)) is not None:
            return stored
        if self._keyed is None:
            raise InvalidOptionError(
                f"table {self._sender_thread.name} has no primary key, so its writer cannot delete by key; use "
                "delete(where=...) of the table"
            )
        key_rows = self._keyed.keys(keys)
        return self._enqueue(key_rows, key_rows.nbytes, sequence, timeout_ms, is_deletion=True)

    def flush(self) -> None:
        """Wait until all sent rows are stored or failed. Raises the first error since the last flush."""
        self._sender_thread.accumulator.flush()

    def close(self) -> None:
        """Write all sent rows and end the writer. Raises the errors of `flush`. Closing again has no effect."""
        self._sender_thread.finish()

    def _answer_if_stored(self, sequence: int | None) -> Future[BucketOffsets] | None:
        """Return a completed future if an earlier writer stored the sequence, else None."""
        if sequence is None:
            return None
        producer = self._sender_thread.sender.producer
        if producer is None:
            raise InvalidOptionError("sequence needs a writer with a producer_id; pass producer_id, or omit sequence")
        if producer.stored_sequence is None or sequence > producer.stored_sequence:
            return None
        stored: Future[BucketOffsets] = Future()
        stored.set_result(BucketOffsets({}))
        return stored

    def _enqueue(
        self,
        rows: Rows,
        num_bytes: int,
        sequence: int | None,
        timeout_ms: float | None,
        *,
        is_deletion: bool = False,
    ) -> Future[BucketOffsets]:
        is_numbered = self._sender_thread.sender.producer is not None
        return self._sender_thread.accumulator.put(
            rows, num_bytes, sequence, is_numbered=is_numbered, timeout_ms=timeout_ms, is_deletion=is_deletion
        )

    def _convert_and_measure(self, rows: Any) -> tuple[pa.Table, int]:
        """Convert rows and count their bytes. Only one thread at a time converts short inputs.

        Several threads would wait for the interpreter lock after each Arrow call, for longer than a conversion takes.
        """
        is_read = isinstance(rows, pa.Table | pa.RecordBatch | list)  # reading other inputs may block
        is_short = is_read and (len(rows) if isinstance(rows, list) else rows.num_rows) <= FEW_ROWS
        with self._conversion_lock if is_short else nullcontext():
            table = self._convert(rows)
            return table, table.nbytes

    def _convert(self, rows: Any) -> pa.Table:
        """Convert rows without adding missing columns, because the commit evaluates the defaults."""
        state, whole, missing = self._log_writer.fit_rows(rows)
        whole = fill_generated_columns(state.parsed.generated, whole, self._sender_thread.name)
        reject_identity_values(state.parsed.identity, whole, self._sender_thread.name)
        checks = state.parsed.checks if self._keyed is None else self._keyed.checks(state)
        require_constraints(checks, whole, self._sender_thread.name)  # before other rows join the batch
        check_paimon_values(
            self._sender_thread.name, {name: whole.column(name) for name in state.parsed.limited_columns}
        )
        if not isinstance(rows, pa.Table | pa.RecordBatch | list):
            whole = _copy_rows(whole)  # a frame may share its memory with a caller that modifies it
        absent = {column.name for column in state.schema.columns if column.id in missing}
        if absent and isinstance(rows, list):
            present = {name.casefold() for row in rows for name in row}
            absent = {name for name in absent if name.casefold() not in present}
        return whole.drop_columns(list(absent)) if 0 < len(absent) < whole.num_columns else whole


def _copy_rows(rows: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def make_sender_thread(
    log_writer: LogTableWriter,
    keyed: UpsertTarget | None,
    producer_id: str | None,
    limits: BatchLimits,
    delivery_timeout_ms: float,
) -> SenderThread:
    """Take over the producer id, and return the sender thread of a writer, which is not started."""
    table = log_writer.table
    producer = take_over(table, producer_id) if producer_id is not None else None
    sender = BatchSender(log_writer, keyed, producer, delivery_timeout_ms)
    stored = producer.stored_sequence if producer is not None else None
    accumulator = RecordAccumulator(
        table.world.clock, table.name, limits, stored, lambda: keyed is not None and keyed.mixes_deletions
    )
    return SenderThread(table.name, accumulator, sender)


def make_writer(
    log_writer: LogTableWriter, producer_id: str | None, limits: BatchLimits, delivery_timeout_ms: float
) -> tuple[Writer, SenderThread]:
    """Return a writer, and its sender thread, which the caller starts or steps. Raises the errors of `Table.writer`."""
    table, keyed = log_writer.table, None
    require_writable(table.state, None)
    if table.state.primary_key:
        from streamhouse_spark.write.producer.upsert_target import UpsertTarget
        from streamhouse_spark.write.upsert import PrimaryKeyTable

        keyed = UpsertTarget(PrimaryKeyTable(table))
    sender_thread = make_sender_thread(log_writer, keyed, producer_id, limits, delivery_timeout_ms)
    return Writer(sender_thread, log_writer, keyed), sender_thread


def open_writer(
    log_writer: LogTableWriter,
    producer_id: str | None,
    flush_ms: float,
    flush_bytes: int,
    in_flight_bytes_max: int,
    delivery_timeout_ms: float,
) -> Writer:
    """Open a batching writer; see `Table.writer`."""
    limits = BatchLimits(flush_ms, flush_bytes, in_flight_bytes_max)
    writer, sender_thread = make_writer(log_writer, producer_id, limits, delivery_timeout_ms)
    sender_thread.start()
    weakref.finalize(writer, _end_abandoned_writer, sender_thread).atexit = False
    return writer
