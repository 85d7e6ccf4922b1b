"""Tailing a table's log, on a local disk within milliseconds of a writer in another process."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError, quote
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.log.actions import NO_ARCHIVE
from streamhouse_spark.log.archive.pages import first_change_offsets, usable_archive
from streamhouse_spark.log.consumers import LogPosition, require_position
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, METADATA_FIELDS, with_metadata
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import plan_range, read_split
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
"""Interval at which a waiting tail checks whether it must stop."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def follow(
    table: TableHandle,
    start: Any,
    *,
    columns: Sequence[str] | None,
    include_metadata: bool,
    poll_ms: float | None,
    stop: threading.Event | None,
    until_ms: int | None,
) -> Tail:
    """Follow the log as `Table.tail` does. The start position is resolved at the call, not at the first batch."""
    state = table.refresh()
    require_position(table.log, start, f"the start of a tail of {state.name}")
    checked_through = (
        start.history.number if isinstance(start, LogPosition) and start.history is not None else state.version
    )
    positions = start_offsets(state, start, table.storage)
    columns = Projection.of(state.schema, columns, None).columns
    for name, value in (("poll_ms", poll_ms), ("until_ms", until_ms)):
        if not _is_duration(value):
            raise InvalidOptionError(f"{name} is {value!r}, expected milliseconds, at least 0")
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise InvalidOptionError(f"stop is {quote(stop)}, expected a threading.Event")
    if poll_ms is None and until_ms is not None:
        poll_ms = LOCAL_POLL_MS if table.storage.local_path(table_prefix(table.uuid)) is not None else REMOTE_POLL_MS
    batches = _follow(
        table,
        state,
        positions,
        columns,
        checked_through=checked_through,
        include_metadata=include_metadata,
        poll_ms=poll_ms,
        stop=stop,
        until_ms=until_ms,
    )
    return Tail(batches, LogPosition.of(state, positions))


class Tail(Iterator[pa.RecordBatch]):
    """Iterator over the batches of `Table.tail`, with the position after the last one. For one thread only."""

    def __init__(self, batches: Generator[tuple[pa.RecordBatch, LogPosition]], position: LogPosition) -> None:
        self._batches = batches
        self._position = position

    def __next__(self) -> pa.RecordBatch:
        batch, self._position = next(self._batches)
        return batch

    @property
    def position(self) -> LogPosition:
        """The position after the last returned batch; initially the start."""
        return self._position

    def close(self) -> None:
        self._batches.close()


def _is_duration(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value >= 0)


def _follow(
    table: TableHandle,
    initial: TableState,
    positions: dict[int, int],
    columns: Sequence[str],
    *,
    checked_through: int,
    include_metadata: bool,
    poll_ms: float | None,
    stop: threading.Event | None,
    until_ms: int | None,
) -> Generator[tuple[pa.RecordBatch, LogPosition]]:
    """Yield new batches with the position after each.

    Without ``poll_ms`` the table's `LogPoller` decides when storage is polled. ``checked_through`` is the newest commit
    whose deletions the positions account for.
    """
    clock = table.world.clock
    lookout = poller_of(table) if poll_ms is None else None
    first = None if table.storage.local_path(table_prefix(table.uuid)) is not None else table.refresh_at_most
    fields = metadata_fields(initial, include_metadata=include_metadata)
    state = table.refresh()  # the first batch may be requested long after the call
    idle_since_ms = clock.boot_ms()
    while stop is None or not stop.is_set():
        _require_same_rows(initial, state)
        require_undeleted(state, positions, checked_through, who="this tail", advice="follow it again from 'earliest'")
        checked_through = state.version
        if state.schema_id != initial.schema_id:
            who, advice = f"a tail of {state.name}", "follow it again, from the offsets after the last batch"
            require_same_columns(initial.schema, state.schema, columns, who, advice)
        has_new_commits = False
        try:
            for log_batch in _read_new_batches(table, state, positions, columns):
                has_new_commits = True
                if not log_batch.batch.num_rows:
                    continue  # all rows are deleted
                batch = with_metadata(log_batch, fields) if fields else log_batch.batch
                yield batch, LogPosition.of(state, positions)
        except SnapshotExpiredError:  # a slow caller: compaction moved the rows; the latest state has them
            has_new_commits = True
        if has_new_commits:
            idle_since_ms = clock.boot_ms()
        elif until_ms is not None and clock.boot_ms() - idle_since_ms >= until_ms:
            return
        elif lookout is None:
            clock.sleep_ms(poll_ms or 0)
        if lookout is None:
            state = table.refresh()
            continue
        clock.sleep_ms(min(lookout.wait_ms(), NAP_MS_MAX))
        state = lookout.look(state, table.refresh, first)


def _require_same_rows(initial: TableState, state: TableState) -> None:
    """Raise if a truncation removed the rows that were followed so far."""
    if state.truncation is not None and not initial.begins_at(state.first_offsets):
        raise OffsetsTrimmedError(
            f"{state.name} was truncated or overwritten by commit {state.truncation.commit} while it was followed: "
            "rows that were read were removed; follow it again from 'earliest'"
        )


def _read_new_batches(
    table: TableHandle, state: TableState, positions: dict[int, int], columns: Sequence[str]
) -> Iterator[LogBatch]:
    records = InlineRecords(table.storage, state.table_uuid, table.log.recent_rows)
    records.expect(s for bucket, log in state.buckets.items() for s in log.segments if s.end_offset > positions[bucket])
    for bucket, log in state.buckets.items():
        if log.end > positions[bucket]:
            for log_batch in read_log(table, state, bucket, OffsetRange(positions[bucket], log.end), columns, records):
                positions[bucket] = log_batch.offsets.end
                yield log_batch


def read_log(
    table: TableHandle,
    state: TableState,
    bucket: int,
    offsets: OffsetRange,
    columns: Sequence[str],
    records: InlineRecords | None = None,
) -> Iterator[LogBatch]:
    """Read the rows at these offsets from the hot log, and below its start from the change archive.

    For a primary-key table the change type is the first column.
    """
    schema = state.schema.select(columns)
    written = TableSchema((CHANGE_COLUMN, *schema.columns)) if state.primary_key else schema
    start = state.buckets[bucket].start
    usable = usable_archive(state) if offsets.start < start else NO_ARCHIVE
    if usable and usable.starts[bucket] <= offsets.start:
        archive = ArchiveReader(table)
        for task in plan_archive_tasks(usable, bucket, OffsetRange(offsets.start, min(start, offsets.end))):
            yield from archive.batches(task, schema)
        offsets = OffsetRange(start, max(start, offsets.end))
    yield from read_split(table.storage, plan_range(state, bucket, offsets), written, records=records)


def metadata_fields(state: TableState, *, include_metadata: bool) -> tuple[pa.Field, ...]:
    """Return the metadata columns of a tail, which precede the table's columns."""
    fields = (CHANGE_TYPE,) if state.primary_key else ()
    return (*fields, *METADATA_FIELDS) if include_metadata else fields


def start_offsets(state: TableState, start: Any, storage: Storage) -> dict[int, int]:
    """Return bucket → first offset to read.

    Buckets missing in a mapping start at the earliest row of the log or change archive. Raises `InvalidOptionError`.
    """
    earliest = first_change_offsets(state)
    match start if isinstance(start, str | dt.datetime | Mapping) else None:
        case "latest":
            return state.ends
        case "earliest":
            return earliest
        case dt.datetime() if start.tzinfo is not None:
            timestamp_ms = -((_EPOCH - start) // dt.timedelta(milliseconds=1))  # rounded up: not before the start
            times = ArchiveTimeIndex(storage, state)
            return {bucket: times.offset_or_start(bucket, timestamp_ms) for bucket in state.buckets}
        case Mapping():
            unknown = [bucket for bucket in start if bucket not in state.buckets]
            if unknown:
                raise InvalidOptionError(f"{state.name} has buckets 0 to {state.num_buckets - 1}, found {unknown!r}")
            for bucket, offset in start.items():
                end = state.buckets[bucket].end
                if not isinstance(offset, int | np.integer) or not 0 <= offset <= end:
                    raise InvalidOptionError(
                        f"start of bucket {bucket} of {state.name} is {offset!r}, expected an offset from 0 to {end}"
                    )
            return {bucket: int(start.get(bucket, first)) for bucket, first in earliest.items()}
    raise InvalidOptionError(
        f"start {quote(start)}: expected 'latest', 'earliest', a mapping bucket → offset, or a datetime with a zone"
    )
