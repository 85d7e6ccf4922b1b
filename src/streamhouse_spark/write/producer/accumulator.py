"""`RecordAccumulator`: the rows of a writer that are in flight, in order, and their batches.

Senders append rows at the end, and one thread takes batches from the front. A batch is removed when its outcome is
known. Adding rows is one append to a queue, so an interrupt cannot add them in part.

A dict of plain values is buffered, and many dicts are converted to Arrow as a batch, because converting each alone
takes ten times as long. A row with other values is converted in `Writer.send`, which reports errors.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_condition, new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import BucketOffsets
from streamhouse_spark.errors import InvalidOptionError, WriterFullError, WriterStoppedError, copy_error, quote
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.conversion import NOT_PLAIN, SizeOf, size_of_values
from streamhouse_spark.schema.table_schema import TableSchema

ROW_BYTES_MAX: Final = 1 << 20
"""Larger rows are not buffered, but converted alone."""
_SCHEMA_KEYS_MAX: Final = 64
SEND_BYTES: Final = 4 << 10
"""Memory overhead of a send."""
COLUMN_BYTES: Final = 512
"""Memory overhead of each column of a send."""
FLUSH_BYTES_MAX: Final = 64 << 20
"""Upper bound of ``flush_bytes``, so that a batch of several sends never needs several segments of a bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class RowSchemaKey:
    """The columns of buffered rows with the same names in the same order."""

    schema: pa.Schema
    """The columns, in table order."""
    places: tuple[int, ...]
    """The position of each column in a row."""
    _sizes: tuple[tuple[SizeOf, int], ...]
    """For each value of a row, the function that measures plain values, and the size of null."""

    @classmethod
    def of(cls, schema: TableSchema, names: Sequence[str]) -> Self | None:
        """Return the key for rows with these names; None if such rows cannot be buffered."""
        columns = {column.name: column for column in schema.columns}
        if not names or not columns.keys() >= set(names):
            return None
        missing = columns.keys() - set(names)
        if any(not columns[name].nullable and columns[name].default is None for name in missing):
            return None
        sizes = []
        for name in names:
            if (size_of := size_of_values(columns[name])) is None:
                return None
            sizes.append((size_of, 1 if columns[name].nullable else NOT_PLAIN))
        table_order = [column.name for column in schema.columns if column.name not in missing]
        fields = [schema.arrow.field(name) for name in table_order]
        return cls(pa.schema(fields), tuple(names.index(name) for name in table_order), tuple(sizes))

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the approximate bytes of a row, or `NOT_PLAIN` if a value is not plain."""
        total = 0
        for value, (size_of, null_size) in zip(values, self._sizes, strict=True):
            size = null_size if value is None else size_of(value)
            if size < 0:
                return NOT_PLAIN
            total += size
        return total if total <= ROW_BYTES_MAX else NOT_PLAIN

    def table(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        """Convert rows with these columns to Arrow."""
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(columns[place], type=self.schema.field(i).type) for i, place in enumerate(self.places)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class BufferedRow:
    """One row that is not converted to Arrow yet."""

    schema_key: RowSchemaKey
    values: tuple[Any, ...]

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def num_columns(self) -> int:
        return len(self.values)

    @property
    def schema(self) -> pa.Schema:
        return self.schema_key.schema


Rows: TypeAlias = pa.Table | BufferedRow


class BufferedRows:
    """Recognizes rows that can be buffered. Thread-safe."""

    def __init__(self) -> None:
        self._cache: tuple[TableSchema, Mapping[str, str], dict[tuple[str, ...], RowSchemaKey | None]] | None = None

    def buffer(self, row: Any, state: TableState) -> tuple[BufferedRow, int] | None:
        """Return a dict of plain values as a buffered row with its approximate bytes; None for other rows."""
        if type(row) is not dict:
            return None
        keys = self._cached_schema_keys(state)
        names = tuple(row)
        key = keys.get(names)
        if key is None and names not in keys:
            if len(keys) >= _SCHEMA_KEYS_MAX:
                keys.clear()  # other threads read the cache once per row, so this is safe
            key = keys[names] = self._make_schema_key(state, names)
        if key is None:
            return None
        values = tuple(row.values())
        size = key.size_of(values)
        return None if size == NOT_PLAIN else (BufferedRow(key, values), size)

    def _cached_schema_keys(self, state: TableState) -> dict[tuple[str, ...], RowSchemaKey | None]:
        cached = self._cache
        if cached is None or cached[0] is not state.schema or cached[1] is not state.properties:
            cached = self._cache = (state.schema, state.properties, {})
        return cached[2]

    @staticmethod
    def _make_schema_key(state: TableState, names: tuple[str, ...]) -> RowSchemaKey | None:
        properties = state.parsed
        if properties.generated or properties.identity or properties.checks or properties.limited_columns:
            return None
        if not all(isinstance(name, str) for name in names):
            return None
        return RowSchemaKey.of(state.schema, names)


def concat_buffered_rows(parts: Sequence[Rows]) -> pa.Table:
    """Concatenate rows with equal columns, in their order, as one table."""
    tables: list[pa.Table] = []
    for key, run in itertools.groupby(parts, lambda part: part.schema_key if isinstance(part, BufferedRow) else None):
        if key is None:
            tables.extend(run)
        else:
            tables.append(key.table([row.values for row in run]))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is due, and when senders wait."""

    flush_ms: float
    flush_bytes: int
    in_flight_bytes_max: int

    def __post_init__(self) -> None:
        if not 0 < self.flush_bytes <= FLUSH_BYTES_MAX:
            raise InvalidOptionError(f"flush_bytes is {quote(self.flush_bytes)}, expected 1 to {FLUSH_BYTES_MAX}")
        if self.in_flight_bytes_max <= 0:
            raise InvalidOptionError(f"in_flight_bytes_max is {quote(self.in_flight_bytes_max)}, expected 1 or more")


@dataclass(frozen=True, slots=True, eq=False)
class PendingSend:
    """The rows of one call, which are stored together, and their future."""

    rows: Rows
    """The columns that the caller sent."""
    sequence: int | None
    sent_ms: int
    end_bytes: int
    """Bytes of all rows that were sent to the writer, up to and including these rows."""
    answer: Future[BucketOffsets]
    is_deletion: bool = False
    """Whether the rows are keys to delete."""


class RecordAccumulator:
    """The queue between senders and the `SenderThread`. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        limits: BatchLimits,
        stored_sequence: int | None,
        mixes_deletions: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create an empty queue. ``mixes_deletions`` returns whether upserts and deletions may share a batch."""
        self._clock = clock
        self._name = name
        self._limits = limits
        self._mixes_deletions = mixes_deletions
        lock = new_lock()
        self._due = new_condition(lock)
        """Wakes the taker, because a batch may be due earlier than expected."""
        self._done = new_condition(lock)
        """Wakes all other threads, because rows were removed or the queue was stopped."""
        self._sends: deque[PendingSend] = deque()
        self._done_bytes = 0
        self._done_sequence = stored_sequence
        self._flush_target_bytes = 0
        self._is_ended = False
        self._stopped: str | None = None
        self._failure: Exception | None = None
        self.taker: int | None = None
        """Id of the thread that takes batches. It must never wait for itself."""

    @property
    def is_ended(self) -> bool:
        """Whether the queue accepts no more rows."""
        return self._is_ended

    def put(
        self,
        rows: Rows,
        num_bytes: int,
        sequence: int | None,
        *,
        is_numbered: bool,
        timeout_ms: float | None,
        is_deletion: bool = False,
    ) -> Future[BucketOffsets]:
        """Append rows after waiting until they fit. Rows larger than the limit wait until the queue is empty.

        ``num_bytes`` are the bytes of the values, which the caller counts before it contends for the lock. With
        ``is_numbered``, rows without a sequence get the next sequence.

        Raises `WriterFullError` after ``timeout_ms``, `WriterStoppedError`, and `InvalidOptionError` for a sequence
        that does not increase. Then the rows were not queued.
        """
        num_bytes += SEND_BYTES + COLUMN_BYTES * rows.num_columns
        answer: Future[BucketOffsets] = Future()
        answer.set_running_or_notify_cancel()  # sent rows cannot be cancelled
        began_ms = self._clock.boot_ms()
        with self._done:
            self._require_open()
            while self._sends and self._end_bytes - self._done_bytes + num_bytes > self._limits.in_flight_bytes_max:
                left_ms = None if timeout_ms is None else began_ms + timeout_ms - self._clock.boot_ms()
                if (left_ms is not None and left_ms <= 0) or self.taker == threading.get_ident():
                    raise self._full_error(num_bytes)
                self._done.wait(None if left_ms is None else left_ms / 1000)
                self._require_open()
            if is_numbered:
                sequence = self._next_sequence(sequence)
            now_ms, end_bytes = self._clock.boot_ms(), self._end_bytes + num_bytes
            if not self._sends or end_bytes - self._done_bytes >= self._limits.flush_bytes:
                self._due.notify_all()  # the taker continues when the lock is released
            self._sends.append(PendingSend(rows, sequence, now_ms, end_bytes, answer, is_deletion))
        return answer

    def next_batch(self, *, is_waiting: bool = True) -> list[PendingSend]:
        """Wait until the next batch is due, and return it. Returns an empty list if the queue has ended and is empty.

        With ``is_waiting=False`` it does not wait, and returns an empty list if no batch is due.
        """
        mixes_deletions = self._mixes_deletions()  # before taking the lock, which senders wait for
        with self._due:
            while (wait_ms := self._wait_ms()) != 0 and is_waiting:
                self._due.wait(None if wait_ms is None else wait_ms / 1000)
            return self._take_batch(mixes_deletions=mixes_deletions) if wait_ms == 0 else []

    def complete(self, sends: list[PendingSend], failure: Exception | None = None) -> None:
        """Remove completed sends from the front. The next flush raises the first ``failure``."""
        with self._done:
            self._failure = self._failure or failure
            if sends:
                self._done_bytes, self._done_sequence = sends[-1].end_bytes, sends[-1].sequence
            for _ in sends:
                self._sends.popleft()
            self._done.notify_all()

    def stop(self, reason: str) -> list[PendingSend]:
        """Accept no more rows, for ``reason``. Returns the queued sends."""
        with self._done:
            self._stopped = self._stopped or reason
            self._is_ended = True
            self._due.notify_all()
            self._done.notify_all()
            return list(self._sends)

    def end(self) -> None:
        """Accept no more rows. Queued rows become due. Repeated calls have no effect."""
        with self._done:
            self._is_ended = True
            self._due.notify_all()
            self._done.notify_all()

    def flush(self) -> None:
        """Wait until the outcome of all queued rows is known. Raises the first error since the last flush."""
        if self.taker == threading.get_ident():
            raise InvalidOptionError(
                f"the writer of {self._name} cannot be flushed or closed by a callback of one of its futures, because "
                "that would deadlock; do it in another thread"
            )
        with self._done:
            up_to = self._end_bytes
            self._flush_target_bytes = max(self._flush_target_bytes, up_to)
            self._due.notify_all()
            while self._done_bytes < up_to:
                self._done.wait()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise copy_error(failure)

    @property
    def _end_bytes(self) -> int:
        return self._sends[-1].end_bytes if self._sends else self._done_bytes

    def _wait_ms(self) -> float | None:
        """Return the time until a batch is due; 0 if it is due, None if only another call can make it due."""
        if not self._sends:
            return 0 if self._is_ended else None
        waiting_bytes = self._end_bytes - self._done_bytes
        if self._is_ended or self._flush_target_bytes > self._done_bytes or waiting_bytes >= self._limits.flush_bytes:
            return 0
        return max(0, self._sends[0].sent_ms + self._limits.flush_ms - self._clock.boot_ms())

    def _take_batch(self, *, mixes_deletions: bool) -> list[PendingSend]:
        """Return sends from the front: at least one, and up to ``flush_bytes``.

        All upserts have the same columns, and all deletions. Upserts and deletions share a batch only with
        ``mixes_deletions``.
        """
        batch: list[PendingSend] = []
        firsts: dict[bool, PendingSend] = {}
        for send in self._sends:
            is_too_much = send.end_bytes - self._done_bytes > self._limits.flush_bytes
            first = firsts.get(send.is_deletion, None if mixes_deletions or not batch else batch[0])
            if (batch and is_too_much) or (first is not None and not _can_share_batch(first, send)):
                break
            firsts.setdefault(send.is_deletion, send)
            batch.append(send)
        return batch

    def _next_sequence(self, sequence: int | None) -> int:
        latest = self._sends[-1].sequence if self._sends else self._done_sequence
        if sequence is None:
            return 0 if latest is None else latest + 1
        if latest is not None and sequence <= latest:
            raise InvalidOptionError(
                f"sequence {sequence} was sent to the writer of {self._name} after {latest}; sequences must increase "
                "with each send"
            )
        return sequence

    def _require_open(self) -> None:
        if self._is_ended:
            raise WriterStoppedError(self._stopped or f"the writer of {self._name} is closed; open a new writer")

    def _full_error(self, num_bytes: int) -> WriterFullError:
        return WriterFullError(
            f"{self._end_bytes - self._done_bytes} bytes of {self._name} are in flight, and {num_bytes} more would "
            f"exceed in_flight_bytes_max ({self._limits.in_flight_bytes_max}); nothing was queued, send these rows "
            "again"
        )


def _can_share_batch(first: PendingSend, send: PendingSend) -> bool:
    is_alike = first.is_deletion == send.is_deletion
    return is_alike and send.rows.schema.equals(first.rows.schema, check_metadata=True)
