"""Tails: iterators over the rows of a log that also wait for new commits."""

# ruff: noqa: A002 - pyarrow names this parameter `filter`, and so does every reader of this package

from __future__ import annotations

import copy
import datetime as dt
import threading
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Self

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.errors import (
    InvalidOptionError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    StreamhouseError,
    quote,
)
from streamhouse_spark.expressions.filters import BoundFilter, Projection
from streamhouse_spark.log.actions import NO_ARCHIVE
from streamhouse_spark.log.archive.pages import find_usable_archive, first_change_offsets
from streamhouse_spark.log.consumers import LogPosition, require_position
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, METADATA_FIELDS, with_metadata
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import filter_segments, plan_range, read_split
from streamhouse_spark.log.state import CHANGE_COLUMN, TableState
from streamhouse_spark.read.archive_scan import ArchiveReader, ArchiveTimeIndex
from streamhouse_spark.read.log_poller import poller_of
from streamhouse_spark.read.offset_scan import plan_archive_tasks, require_undeleted
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table_handle import TableHandle

LOCAL_POLL_MS = 1.0
REMOTE_POLL_MS = 100.0
"""Poll interval of a tail that ends after an idle time."""
NAP_MS_MAX = 100.0
"""Interval at which a waiting tail checks whether it was stopped."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def open_tail(
    table: TableHandle,
    start: Any,
    *,
    columns: Sequence[str] | None,
    filter: Any,
    include_metadata: bool,
    poll_ms: float | None,
    stop: threading.Event | None,
    until_ms: int | None,
) -> Tail:
    """Open a tail; see `Table.tail`. The start position is resolved in this call, not at the first batch."""
    wait = CommitWaiter(table, poll_ms=poll_ms, stop=stop, until_ms=until_ms)
    return Tail(LogCursor(table, start, columns=columns, filter=filter, include_metadata=include_metadata), wait)


class LogCursor:
    """Reads the log of a table from a position to the end of a state. It never waits. Not thread-safe."""

    def __init__(
        self,
        table: TableHandle,
        start: Any,
        *,
        columns: Sequence[str] | None,
        filter: Any,
        include_metadata: bool,
        who: str = "this tail",
        advice: str = "follow it again from 'earliest'",
        fails_on_deletes: bool = True,
    ) -> None:
        """Create a cursor. Errors contain ``who`` as the reader and ``advice`` as the remedy.

        With ``fails_on_deletes``, a later deletion of rows that were read is an error.
        """
        self.table = table
        self.initial = state = table.refresh()
        require_position(table.log, start, f"the start of {who} of {state.name}")
        self._positions = start_offsets(state, start, table.storage)
        self._history = start.history if isinstance(start, LogPosition) else None
        self._checked_through = self._history.number if self._history is not None else state.version
        """The latest commit that was checked for deletions of rows that were read."""
        self._history = self._history or state.anchors.rows
        self._filter, self.columns, self._read_columns = _bind_filter_and_columns(state, columns, filter)
        self._fields = metadata_fields(state, include_metadata=include_metadata)
        self._who, self._advice, self._fails_on_deletes = who, advice, fails_on_deletes

    @property
    def position(self) -> LogPosition:
        """The position after the last batch and the rows that were skipped since."""
        return LogPosition(self.table.uuid, dict(self._positions), self._history)

    @property
    def place(self) -> Hashable:
        """A value that is equal for cursors at the same position of the same table."""
        initial = self.initial
        start = (initial.table_uuid, initial.schema_id, tuple(initial.first_offsets.items()))
        return start, self._checked_through, tuple(self._positions.items())

    def is_at_end(self, state: TableState) -> bool:
        """Return whether the state has no rows after the position."""
        return all(log.end <= self._positions[bucket] for bucket, log in state.buckets.items())

    def fork(self) -> LogCursor:
        """Return a copy of the cursor."""
        fork = copy.copy(self)
        fork._positions = dict(self._positions)  # noqa: SLF001 - of the same class
        return fork

    def batches(self, state: TableState) -> Generator[pa.RecordBatch]:
        """Yield the rows from the position to the end of the state, each bucket in offset order.

        Raises `OffsetsTrimmedError` if rows before or after the position were removed, and `SchemaMismatchError` if the
        columns changed.
        """
        while True:
            self._require_same_rows(state)
            try:
                for log_batch in self._read(state):
                    if (batch := self._finish(log_batch)).num_rows:
                        yield batch
                return
            except SnapshotExpiredError:  # compaction moved the rows while a slow caller read
                expired, state = state, self.table.refresh()
                if state.version == expired.version:
                    raise

    def take(self, state: TableState, bytes_max: int) -> pa.RecordBatch | None:
        """Return the next rows as one batch of about ``bytes_max``; None at the end of the state. See `batches`."""
        parts: list[pa.RecordBatch] = []
        num_bytes = 0
        with closing(self.batches(state)) as batches:
            try:
                for batch in batches:
                    parts.append(batch)
                    num_bytes += batch.nbytes
                    if num_bytes >= bytes_max:
                        break
            except StreamhouseError:
                if not parts:  # otherwise the next call raises the error again
                    raise
        return pa.concat_batches(parts) if len(parts) > 1 else parts[0] if parts else None

    def _require_same_rows(self, state: TableState) -> None:
        """Raise if rows that were read have been removed, or if the columns changed."""
        initial = self.initial
        if state.truncation is not None and not initial.begins_at(state.first_offsets):
            raise OffsetsTrimmedError(
                f"{state.name} was truncated or overwritten by commit {state.truncation.commit} while it was followed: "
                f"rows that had been read were removed; {self._advice}"
            )
        if self._fails_on_deletes:
            require_undeleted(state, self._positions, self._checked_through, who=self._who, advice=self._advice)
        self._checked_through, self._history = state.version, state.anchors.rows
        if state.schema_id != initial.schema_id:
            who, advice = f"{self._who} of {state.name}", "follow it again, from the offsets after the last batch"
            require_same_columns(initial.schema, state.schema, self._read_columns, who, advice)

    def _read(self, state: TableState) -> Iterator[LogBatch]:
        """Yield the rows that may match the filter, and advance the position."""
        keeps, buckets = _make_segment_filter(state, self._filter)
        for bucket in state.buckets.keys() - buckets:
            self._positions[bucket] = state.buckets[bucket].end
        logs = {b: log for b, log in state.buckets.items() if log.end > self._positions[b]}
        records = InlineRecords(self.table.storage, state.table_uuid, self.table.log.recent_rows)
        records.expect(
            s for b, log in logs.items() for s in log.segments if s.end_offset > self._positions[b] and keeps(s)
        )
        for bucket, log in logs.items():
            offsets = OffsetRange(self._positions[bucket], log.end)
            for log_batch in _read_log(self.table, state, bucket, offsets, self._read_columns, records, keeps):
                self._positions[bucket] = log_batch.offsets.end
                yield log_batch
            self._positions[bucket] = log.end

    def _finish(self, log_batch: LogBatch) -> pa.RecordBatch:
        """Return the rows that match the filter, with the requested columns."""
        if self._filter is not None and log_batch.batch.num_rows:
            matches = self._filter.mask(pa.Table.from_batches([log_batch.batch]))
            log_batch = log_batch if matches.all() else log_batch.only(matches)
            if self._read_columns != self.columns:
                changes = log_batch.batch.schema.names[: -len(self._read_columns)]
                log_batch = replace(log_batch, batch=log_batch.batch.select([*changes, *self.columns]))
        return with_metadata(log_batch, self._fields) if self._fields else log_batch.batch


def _bind_filter_and_columns(
    state: TableState, columns: Sequence[str] | None, filter: Any
) -> tuple[BoundFilter | None, tuple[str, ...], tuple[str, ...]]:
    """Return the filter, the columns of the result, and the columns to read for result and filter."""
    if filter is None:
        names = Projection.of(state.schema, columns, None).columns
        return None, names, names
    from streamhouse_spark.expressions.where import combine_filters

    parsed = combine_filters([filter])
    projection = Projection.of(state.schema, columns, parsed)
    bound = None if parsed is None else parsed.bind(state.schema.arrow)
    return bound, projection.columns, projection.read_columns or tuple(state.schema.names)


def _make_segment_filter(
    state: TableState, filter: BoundFilter | None
) -> tuple[Callable[[Segment], bool], Collection[int]]:
    """Return a predicate of segments that may have matching rows, and the buckets that may have some."""
    if filter is None:
        return (lambda _: True), state.buckets
    from streamhouse_spark.read.scan_planning import Pruning

    pruning = Pruning(filter.node)
    buckets = pruning.buckets(state)
    return (lambda segment: pruning.keeps_segment(state, segment, segment.offsets)), (
        state.buckets if buckets is None else buckets
    )


class CommitWaiter:
    """Waits for commits on behalf of one tail, and decides when it ends.

    Without ``poll_ms``, the `LogPoller` of the table decides when the log is polled.
    """

    def __init__(
        self,
        table: TableHandle,
        *,
        poll_ms: float | None,
        stop: threading.Event | None,
        until_ms: int | None,
        available_now: bool = False,
    ) -> None:
        """Raise `InvalidOptionError` for invalid options."""
        for name, value in (("poll_ms", poll_ms), ("until_ms", until_ms)):
            if not _is_duration(value):
                raise InvalidOptionError(f"{name} is {value!r}, expected milliseconds, at least 0")
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise InvalidOptionError(f"stop is {quote(stop)}, expected a threading.Event")
        is_local = table.storage.local_path(table_prefix(table.uuid)) is not None
        if poll_ms is None and until_ms is not None:
            poll_ms = LOCAL_POLL_MS if is_local else REMOTE_POLL_MS
        self._table, self._clock = table, table.world.clock
        self._poll_ms, self._stop, self._until_ms, self._available_now = poll_ms, stop, until_ms, available_now
        self._poller = poller_of(table) if poll_ms is None else None
        self._first = None if is_local else table.refresh_at_most
        self._idle_since_ms = 0
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether the tail was stopped or closed."""
        return self._is_closed or (self._stop is not None and self._stop.is_set())

    def close(self) -> None:
        self._is_closed = True

    def first(self) -> TableState:
        """Return the latest state. Called for the first batch, which may be requested long after the start."""
        self._idle_since_ms = self._clock.boot_ms()
        return self._table.refresh()

    def next(self, state: TableState, *, had_rows: bool) -> TableState | None:
        """Wait, and return the state to read next, which may be ``state``; None if the tail ends.

        ``had_rows`` is whether rows of ``state`` were returned.
        """
        now_ms = self._clock.boot_ms()
        if self._available_now:
            return None
        if had_rows:
            self._idle_since_ms = now_ms
        elif self._until_ms is not None and now_ms - self._idle_since_ms >= self._until_ms:
            return None
        elif self._poller is None:
            self._clock.sleep_ms(self._poll_ms or 0)
        if self._poller is None:
            return self._table.refresh()
        self._clock.sleep_ms(min(self._poller.wait_ms(), NAP_MS_MAX))
        return self._poller.poll(state, self._table.refresh, self._first)


class Tail(Iterator[pa.RecordBatch]):
    """Iterator over the batches of `Table.tail`. Not thread-safe, except for `close`.

    An error ends it, and so does leaving it as a context manager.
    """

    def __init__(self, cursor: LogCursor, wait: CommitWaiter) -> None:
        self._cursor = cursor
        self._wait = wait
        self._position = cursor.position
        self._had_rows = False
        self._state: TableState | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._next()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def position(self) -> LogPosition:
        """The position after the last batch, and after rows without a match that followed it; initially the start."""
        return self._position

    def close(self) -> None:
        """End the iteration, also while it waits in another thread."""
        self._wait.close()

    def _end(self) -> None:
        """End the iteration after an error, or after the caller left the context manager."""
        self.close()

    def _next(self) -> pa.RecordBatch:
        while not self._wait.is_over:
            if self._state is None:
                self._state = self._wait.first()
            batch = self._read_batch(self._state)
            self._position = self._cursor.position
            if batch is not None:
                self._had_rows = True
                return batch
            if (state := self._wait.next(self._state, had_rows=self._had_rows)) is None:
                break
            self._state, self._had_rows = state, False
        raise StopIteration

    def _read_batch(self, state: TableState) -> pa.RecordBatch | None:
        """Return the next batch; None at the end of the state."""
        if self._batches is None:
            self._batches = self._cursor.batches(state)
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
        return batch


def _is_duration(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value >= 0)


def _read_log(
    table: TableHandle,
    state: TableState,
    bucket: int,
    offsets: OffsetRange,
    columns: Sequence[str],
    records: InlineRecords | None = None,
    keeps: Callable[[Segment], bool] | None = None,
) -> Iterator[LogBatch]:
    """Read a range of offsets from the hot log, and below its start from the change archive.

    For a primary-key table the first column is the change type. Segments of the hot log for which ``keeps`` is false
    are skipped.
    """
    schema = state.schema.select(columns)
    written = TableSchema((CHANGE_COLUMN, *schema.columns)) if state.primary_key else schema
    start = state.buckets[bucket].start
    usable = find_usable_archive(state) if offsets.start < start else NO_ARCHIVE
    if usable and usable.starts[bucket] <= offsets.start:
        archive = ArchiveReader(table)
        for task in plan_archive_tasks(usable, bucket, OffsetRange(offsets.start, min(start, offsets.end))):
            yield from archive.batches(task, schema)
        offsets = OffsetRange(start, max(start, offsets.end))
    split = plan_range(state, bucket, offsets)
    split = split if keeps is None else filter_segments(split, keeps)
    yield from read_split(table.storage, split, written, records=records)


def metadata_fields(state: TableState, *, include_metadata: bool) -> tuple[pa.Field, ...]:
    """Return the metadata columns of a tail, which precede the columns of the table."""
    fields = (CHANGE_TYPE,) if state.primary_key else ()
    return (*fields, *METADATA_FIELDS) if include_metadata else fields


def start_offsets(state: TableState, start: Any, storage: Storage) -> dict[int, int]:
    """Return bucket → first offset to read. Raises `InvalidOptionError`.

    Buckets that are missing from a mapping start at the earliest row of the log or change archive.
    """
    earliest = first_change_offsets(state)
    match start if isinstance(start, str | dt.datetime | Mapping) else None:
        case "latest":
            return state.ends
        case "earliest":
            return earliest
        case dt.datetime() if start.tzinfo is not None:
            timestamp_ms = -((_EPOCH - start) // dt.timedelta(milliseconds=1))  # rounded up
            times = ArchiveTimeIndex(storage, state)
            return {bucket: times.offset_or_start(bucket, timestamp_ms) for bucket in state.buckets}
        case Mapping():
            unknown = [bucket for bucket in start if bucket not in state.buckets]
            if unknown:
                raise InvalidOptionError(
                    f"start of {state.name} has buckets {unknown!r}, expected 0 to {state.num_buckets - 1}"
                )
            for bucket, offset in start.items():
                end = state.buckets[bucket].end
                if not isinstance(offset, int | np.integer) or not 0 <= offset <= end:
                    raise InvalidOptionError(
                        f"start of bucket {bucket} of {state.name} is {offset!r}, expected an offset from 0 to {end}"
                    )
            return {bucket: int(start.get(bucket, first)) for bucket, first in earliest.items()}
    raise InvalidOptionError(
        f"start is {quote(start)}, expected 'latest', 'earliest', a mapping bucket → offset, or a datetime with a time "
        "zone"
    )
