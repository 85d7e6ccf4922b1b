"""Limits of a micro-batch: rows, bytes, and with ``schemaEvolutionMode=addNewColumns`` rows with new columns.

Spark fixes the columns of a query at its start. To lose no value of a new column, the query ends before the first rows
with that column. After a restart the query continues with these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import estimate_row_bytes
from streamhouse_spark.schema.table_schema import TableSchema

BATCH_ROWS_MIN = 1000
BATCH_BYTES_MIN = 1 << 20
"""A byte limit admits at least these rows or bytes, whichever is less. With single-row batches a stream would never
catch up.
"""
CONDITION: Final = "COLUMNS_ADDED"


def limit_ends(
    state: TableState,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    max_rows: int | None,
    max_bytes: int | None,
) -> dict[int, int]:
    """Return bucket → end of a batch between ``starts`` and ``ends`` with at most ``max_rows`` rows and ``max_bytes``
    in memory.

    Buckets get equal shares, and buckets with more rows also get the unused parts. The byte limit is soft, because a
    single row may exceed it: a batch admits `BATCH_ROWS_MIN` rows or `BATCH_BYTES_MIN` if available, and at least one
    row. Buckets whose share is below one row take turns.
    """
    backlog = {bucket: OffsetRange(starts[bucket], max(starts[bucket], end)) for bucket, end in ends.items()}
    rows = {bucket: len(offsets) for bucket, offsets in backlog.items()}
    if max_bytes is not None:
        rows = _admit_rows(state, backlog, max_bytes)
    if max_rows is not None and sum(rows.values()) > max_rows:
        rows = fair_shares(rows, max_rows, rotation=sum(starts.values()))
    return {bucket: starts[bucket] + count for bucket, count in rows.items()}


def _admit_rows(state: TableState, backlog: Mapping[int, OffsetRange], max_bytes: int) -> dict[int, int]:
    rows = {bucket: len(offsets) for bucket, offsets in backlog.items()}
    sizes = {bucket: _estimate_bytes(state, bucket, offsets) for bucket, offsets in backlog.items()}
    total_bytes = sum(sizes.values())
    if total_bytes <= max_bytes:
        return rows
    max_bytes = max(max_bytes, min(BATCH_BYTES_MIN, BATCH_ROWS_MIN * total_bytes // max(1, sum(rows.values()))))
    shares = fair_shares(sizes, max_bytes, rotation=sum(offsets.start for offsets in backlog.values()))
    fitting = {b: _count_rows_within(state, b, backlog[b], shares[b]) for b in rows}
    waiting = {b: rows[b] for b in rows if rows[b] and not fitting[b]}
    if waiting:
        admitted_bytes = sum(
            _estimate_bytes(state, b, OffsetRange(o.start, o.start + fitting[b])) for b, o in backlog.items()
        )
        per_row_bytes = max(1, sum(sizes[b] for b in waiting) // sum(waiting.values()))
        turns = max(1, (max_bytes - admitted_bytes) // per_row_bytes)
        # Rotate by the rows of the waiting buckets: progress of other buckets must not select the same bucket again.
        fitting |= fair_shares(waiting, turns, rotation=sum(backlog[b].start for b in waiting))
    return fitting


def count_files_within(files: Sequence[LogSplit], *, max_rows: int | None, max_bytes: int | None) -> int:
    """Return how many of the first files fit into the limits; at least one if there are files."""
    num_rows = num_bytes = 0
    for number, file in enumerate(files):
        num_rows += file.num_rows
        num_bytes += file.size_bytes
        is_over = num_rows > (max_rows or num_rows) or num_bytes > (max_bytes or num_bytes)
        if is_over:
            return max(number, 1)
    return len(files)


def fair_shares(demands: Mapping[int, int], limit: int, *, rotation: int) -> dict[int, int]:
    """Split ``limit`` max-min fairly between buckets. No bucket gets more than its demand.

    The remainder is distributed one by one, starting with the bucket at ``rotation``, so that buckets with a share
    below one take turns.
    """
    shares = dict.fromkeys(demands, 0)
    left = min(limit, sum(demands.values()))
    unsatisfied = sorted(b for b, amount in demands.items() if amount)
    while unsatisfied and left >= len(unsatisfied):
        share = left // len(unsatisfied)
        for bucket in unsatisfied:
            granted = min(share, demands[bucket] - shares[bucket])
            shares[bucket] += granted
            left -= granted
        unsatisfied = [b for b in unsatisfied if shares[b] < demands[b]]
    for i in range(min(left, len(unsatisfied))):
        shares[unsatisfied[(rotation + i) % len(unsatisfied)]] += 1
    return shares


def _estimate_bytes(state: TableState, bucket: int, offsets: OffsetRange) -> int:
    """Estimate the bytes in memory of a range, including trimmed rows."""
    log = state.buckets[bucket]
    hot = sum(s.memory_bytes * len(s.offsets.intersect(offsets)) // s.num_rows for s in log.segments)
    first = log.segments[0].base_offset if log.segments else log.end
    return hot + len(offsets.intersect(OffsetRange(0, first))) * estimate_row_bytes(state, bucket)


def _count_rows_within(state: TableState, bucket: int, offsets: OffsetRange, share_bytes: int) -> int:
    """Return how many rows from the start of the range fit in about ``share_bytes``."""
    log = state.buckets[bucket]
    rows, left = 0, share_bytes
    first = log.segments[0].base_offset if log.segments else log.end
    parts = [(offsets.intersect(OffsetRange(0, first)), estimate_row_bytes(state, bucket))]
    parts += [(offsets.intersect(s.offsets), max(1, s.memory_bytes // s.num_rows)) for s in log.segments]
    for part, per_row_bytes in parts:
        fitting = min(len(part), left // per_row_bytes)
        rows += fitting
        left -= fitting * per_row_bytes
        if fitting < len(part):
            break
    return rows


def first_offsets_with(state: TableState, added: AbstractSet[int], lower_bounds: Mapping[int, int]) -> dict[int, int]:
    """Return bucket → offset of the first row that may have a value in an added column. Buckets without such a row are
    absent.

    ``added`` contains column ids. ``lower_bounds`` is bucket → an offset before which no row has these columns. The
    columns of a row are known only in the hot log. If the log was trimmed past the lower bound, the lower bound is
    returned.
    """
    having = {number for number, schema in state.schemas.items() if any(c.id in added for c in schema.columns)}
    if not having:
        return {}
    first_offsets = {}
    for bucket, log in state.buckets.items():
        begin = max(lower_bounds.get(bucket, 0), state.first_offset(bucket))
        first = next((s.base_offset for s in log.segments if s.schema_id in having), None)
        if log.start > begin:
            first_offsets[bucket] = begin
        elif first is not None:
            first_offsets[bucket] = first
    return first_offsets


class AddedColumns:
    """Detects columns that are added to a table while a query runs.

    ``columns`` are the columns that the query reads, in the schema at its start. Rows with a new column fix the end of
    the query: in a bucket with such rows before the first of them, in every other bucket at the current end. The
    restarted query reads all later rows. The query reaches this end even if writers append continuously.
    """

    def __init__(self, initial_state: TableState, columns: tuple[str, ...]) -> None:
        self._column_ids = frozenset(initial_state.schema.column(name).id for name in columns)
        self._missing = _column_names(
            initial_state.schema, frozenset(c.id for c in initial_state.schema.columns) - self._column_ids
        )
        self._seen_ends: Mapping[int, int] = initial_state.ends
        self._end: dict[int, int] | None = None
        self._new_names: tuple[str, ...] = ()
        """Names of the columns that the query does not read, as of the last update before the end was fixed."""

    def update(self, state: TableState) -> None:
        """Look for new columns in a newer state. Raises `SchemaMismatchError` if the query never read all columns."""
        if self._missing:
            raise SchemaMismatchError(
                f"{state.name}: schemaEvolutionMode=addNewColumns requires all columns, but this query does not read "
                f"{', '.join(self._missing)}; omit .schema(…), or if these columns were added after the DataFrame was "
                "created, create the DataFrame again and start it from its checkpoint",
                condition=CONDITION,
            )
        if self._end is not None:
            return
        added = frozenset(column.id for column in state.schema.columns) - self._column_ids
        self._new_names = _column_names(state.schema, added)  # without columns that were dropped again
        first = first_offsets_with(state, added, self._seen_ends)
        if first:
            self._end = {bucket: first.get(bucket, end) for bucket, end in state.ends.items()}
        else:
            self._seen_ends = state.ends

    @property
    def has_end(self) -> bool:
        return self._end is not None

    @property
    def has_new_columns(self) -> bool:
        """Whether the table had columns that the query does not read, at the last update."""
        return bool(self._new_names)

    def limit_ends(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return bucket → the end up to which the query may read, at most the end at the last update."""
        limits = self._seen_ends if self._end is None else self._end
        return {bucket: min(end, limits.get(bucket, 0)) for bucket, end in ends.items()}

    def error(self, table_name: str) -> SchemaMismatchError:
        """Return the error for a query that has processed all rows that it may read."""
        where = f"offsets {self._end}" if self._end is not None else "its beginning"
        return SchemaMismatchError(
            f"{table_name}: columns {', '.join(self._new_names)} were added, and this stream, which started without "
            f"them, has processed all earlier rows, up to {where}; restart the query from its checkpoint: it "
            "continues there with the current columns (schemaEvolutionMode=addNewColumns)",
            condition=CONDITION,
        )


def _column_names(schema: TableSchema, ids: AbstractSet[int]) -> tuple[str, ...]:
    return tuple(column.name for column in schema.columns if column.id in ids)
