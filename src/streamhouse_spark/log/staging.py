"""Staging of rows, before they are appended to the log.

Staging makes segments durable under uuid names, or holds few rows as bytes for the record. The record that
`log.append_commit` commits names all staged rows. Segments that are staged and never committed are orphans; maintenance
deletes them after the grace period.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import LakeFormat, TableProperties
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import map_with_prefetch
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.expressions.check_constraints import Check, require_constraints
from streamhouse_spark.expressions.generated_columns import Generated, fill_generated_columns
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.log.segments.multi_bucket_writer import (
    BucketSegmentWriter,
    Part,
    group_into_objects,
    stage_bucket_segments,
    stage_shared_object,
)
from streamhouse_spark.log.segments.writer import (
    BATCH_ROWS_MAX,
    SegmentOptions,
    StagedSegment,
    combine_batches,
    stage_inline,
)
from streamhouse_spark.schema.paimon_limits import check_paimon_values
from streamhouse_spark.storage.base import Storage

INLINE_BYTES_MAX = 256 << 10
"""Maximum bytes of rows in one commit record, for a table with up to `INLINE_BUCKETS` buckets."""
INLINE_BUCKETS = 256
"""With more buckets, the limit per bucket does not shrink further: a few rows per bucket would otherwise need an object
per bucket. The record's manifest then holds the rows.
"""
SEGMENT_BYTES_MAX = 256 << 20
PARALLEL_BYTES_MIN = 32 << 20
WRITERS = 2
"""Objects that are written concurrently."""
CUTTERS = 2
"""Threads that sort rows by bucket while objects are written."""
FEW_BUCKETS = range(2, 9)
"""Numbers of buckets whose objects are all written concurrently, which needs little memory. A large append to 4 buckets
takes two thirds of the time.
"""
STEP_BYTES_MAX = 64 << 20
"""Bytes of rows that a thread sorts per step."""


def inline_bytes_per_bucket(bytes_max: int, num_buckets: int) -> int:
    """Return the inline bytes per bucket, if ``bytes_max`` is the limit for up to `INLINE_BUCKETS` buckets."""
    return bytes_max // min(num_buckets, INLINE_BUCKETS)


def inline_bytes_total(bytes_max: int, num_buckets: int) -> int:
    """Return the inline bytes of all buckets: 4 MiB for 4,096 buckets if ``bytes_max`` is 256 KiB."""
    return max(bytes_max, num_buckets * inline_bytes_per_bucket(bytes_max, num_buckets))


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Staged rows that are not committed yet, of one append, one Spark task, or several tasks."""

    table_uuid: str
    schema_id: int
    segments: tuple[StagedSegment, ...]
    staged_ms: int
    """Store time at which staging started."""
    missing: frozenset[int] = frozenset()
    """Ids of columns that were missing from the input rows and have the schema's defaults."""
    checks: tuple[Check, ...] = ()
    """The constraints that the rows were checked against."""

    @property
    def num_rows(self) -> int:
        return sum(s.segment.num_rows for s in self.segments)


@dataclass(frozen=True, slots=True)
class BucketRouter:
    """Routes rows to buckets by the hash of ``bucket_key``. Without a key, all rows of a batch get one bucket."""

    num_buckets: int
    bucket_key: tuple[str, ...] = ()
    lake_format: LakeFormat = "iceberg"
    """The lake format whose hash is used."""
    limited_columns: tuple[str, ...] = ()
    """Partition columns whose values are limited by the lake format."""

    @classmethod
    def of(cls, num_buckets: int, properties: TableProperties) -> BucketRouter:
        return cls(num_buckets, properties.bucket_key, properties.datalake_format, properties.limited_columns)


class RowStager:
    """Stages rows of the table's schema as segments, for appends and inside Spark tasks."""

    def __init__(
        self,
        storage: Storage,
        table_uuid: str,
        options: SegmentOptions,
        routing: BucketRouter,
        world: World,
        *,
        checks: tuple[Check, ...] = (),
        generated: tuple[Generated, ...] = (),
        numbers: IdentityRanges | None = None,
        keeps_given: bool = False,
        table: str = "the table",
        inline_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        """Create a stager with the table's rules for rows.

        ``numbers`` fills the identity column of rows without a value. With ``keeps_given`` rows may have values there.
        """
        self._numbers = numbers
        self._keeps_given = keeps_given
        self._checks = checks
        self._generated = generated
        self._table = table
        self._storage = storage
        self._table_uuid = table_uuid
        self._options = options
        self._routing = routing
        self._world = world
        self._inline_bytes_max = inline_bytes_total(inline_bytes_max, routing.num_buckets)
        self._sticky = int(world.ids.jitter() * routing.num_buckets)

    def stage(self, rows: pa.Table, missing: frozenset[int] = frozenset(), num_updated: int = 0) -> StagedRows:
        """Stage all rows. They are durable when this returns, and visible once they are committed.

        ``missing`` is that of `StagedRows`. The first ``num_updated`` rows are after-images of updates. Raises before
        anything is stored: `ConstraintViolatedError`, and the errors of `check_paimon_values`, `fill_generated_columns`
        and `IdentityRanges.assign_numbers`.
        """
        rows = self.fill_generated(rows)
        if self._numbers is not None:
            rows = self._numbers.assign_numbers(rows, keeps_given=self._keeps_given)
        require_constraints(self._checks, rows, self._table)
        check_paimon_values(self._table, {name: rows.column(name) for name in self._routing.limited_columns})
        staged_ms = self._storage.now_ms()
        if rows.num_rows and rows.nbytes <= self._inline_bytes_max:
            staged = [stage_inline(part, bucket, self._options) for bucket, part in self._route_rows(rows)]
            if sum(len(s.inline_rows or b"") for s in staged) > self._inline_bytes_max:
                staged = self._write_objects(rows)
        else:
            staged = self._write_objects(rows)
        if num_updated:
            staged = _with_updated(staged, self._count_rows_per_bucket(rows.slice(0, num_updated)))
        return StagedRows(self._table_uuid, self._options.schema_id, tuple(staged), staged_ms, missing, self._checks)

    def fill_generated(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the values of generated columns. Raises the errors of `fill_generated_columns`."""
        return fill_generated_columns(self._generated, rows, self._table)

    def _count_rows_per_bucket(self, rows: pa.Table) -> dict[int, int]:
        """Return an upper bound on the number of these rows per bucket. It is exact with a bucket key."""
        routing = self._routing
        if not routing.bucket_key:
            return dict.fromkeys(range(routing.num_buckets), rows.num_rows)
        counts = np.zeros(routing.num_buckets, np.int64)
        for step in self._slice_rows(rows, SEGMENT_BYTES_MAX):
            batch = combine_batches(step)
            key = [batch.column(name) for name in routing.bucket_key]
            buckets = row_buckets(key, routing.num_buckets, routing.lake_format)
            counts += np.bincount(buckets, minlength=routing.num_buckets)
        return dict(enumerate(counts.tolist()))

    def _write_objects(self, rows: pa.Table) -> list[StagedSegment]:
        """Write the rows as segments. The rows of a bucket keep their order."""
        is_large = rows.nbytes >= PARALLEL_BYTES_MIN
        if is_large and self._routing.bucket_key and self._routing.num_buckets in FEW_BUCKETS:
            return self._write_bucket_segments(rows)
        parts = ((bucket, part) for piece in _cut_pieces(rows) for bucket, part in self._route_rows(piece))
        groups = group_into_objects(enumerate(parts), lambda numbered: numbered[1][1].nbytes)
        staged: dict[int, StagedSegment] = {}
        named_groups = ((group, self._world.ids.new_uuid()) for group in groups)
        if not is_large:
            for named_group in named_groups:
                staged |= self._write_object(named_group)
        else:  # while one object is uploaded, the rows of the next are sorted and written
            with ThreadPoolExecutor(WRITERS, thread_name_prefix="streamhouse-stage") as pool:
                for segments in map_with_prefetch(pool, self._write_object, named_groups, num_ahead=WRITERS - 1):
                    staged |= segments
        return [staged[number] for number in sorted(staged)]

    def _write_bucket_segments(self, rows: pa.Table) -> list[StagedSegment]:
        """Write the rows as segments of few buckets. Each segment grows while more rows are sorted by bucket."""

        def open_stream(bucket: int) -> BucketSegmentWriter:
            uuid, bytes_max = self._world.ids.new_uuid(), SEGMENT_BYTES_MAX
            return BucketSegmentWriter(
                self._storage, self._table_uuid, uuid, bucket, rows.schema, self._options, bytes_max
            )

        with ThreadPoolExecutor(CUTTERS, thread_name_prefix="streamhouse-cut") as pool:
            steps = map_with_prefetch(
                pool, partial(_sort_by_bucket, self._routing), self._slice_rows(rows, STEP_BYTES_MAX), num_ahead=CUTTERS
            )
            return stage_bucket_segments(steps, open_stream, SEGMENT_BYTES_MAX // self._routing.num_buckets)

    def _write_object(
        self, named_group: tuple[Sequence[tuple[int, tuple[int, pa.Table]]], str]
    ) -> dict[int, StagedSegment]:
        """Write a group's segments to the object with this uuid, and return the segments by their number."""
        group, uuid = named_group
        staged = stage_shared_object(self._storage, self._table_uuid, uuid, [part for _, part in group], self._options)
        return {number: segment for (number, _), segment in zip(group, staged, strict=True)}

    def _route_rows(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of each bucket. They keep their order."""
        routing = self._routing
        if routing.num_buckets == 1:
            yield 0, rows
        elif not routing.bucket_key:
            self._sticky = (self._sticky + 1) % routing.num_buckets
            yield self._sticky, rows
        else:
            parts: dict[int, list[pa.RecordBatch]] = {}
            for step in self._slice_rows(rows, SEGMENT_BYTES_MAX):
                for bucket, part in _sort_by_bucket(routing, step):
                    parts.setdefault(bucket, []).append(part)
            yield from ((bucket, pa.Table.from_batches(batches)) for bucket, batches in sorted(parts.items()))

    def _slice_rows(self, rows: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
        """Cut rows into slices with just under a full batch per bucket, and at most ``bytes_max``."""
        step_rows = (BATCH_ROWS_MAX - BATCH_ROWS_MAX // 8) * self._routing.num_buckets
        for start in range(0, rows.num_rows, step_rows):
            yield from arrow_rows.slice_by_size(
                rows.slice(start, step_rows), min(bytes_max, arrow_rows.SLICE_BYTES_MAX)
            )


def _with_updated(staged: Iterable[StagedSegment], counts: Mapping[int, int]) -> list[StagedSegment]:
    """Mark the first ``counts[bucket]`` rows of each bucket as after-images of updates."""
    left, marked_pieces = dict(counts), []
    for piece in staged:
        bucket = piece.segment.bucket
        updated = min(left.get(bucket, 0), piece.segment.num_rows)
        left[bucket] = left.get(bucket, 0) - updated
        marked = replace(piece.segment, updated=((0, updated),)) if updated else piece.segment
        marked_pieces.append(replace(piece, segment=marked))
    return marked_pieces


def _sort_by_bucket(routing: BucketRouter, rows: pa.Table) -> list[Part]:
    batch, num_buckets = combine_batches(rows), routing.num_buckets
    row_bucket = row_buckets([batch.column(name) for name in routing.bucket_key], num_buckets, routing.lake_format)
    buckets = row_bucket.astype(np.uint16)  # 16 bits are sorted by radix
    ordered = pc.take(batch, pa.array(np.argsort(buckets, kind="stable")), boundscheck=False)
    ends = np.cumsum(np.bincount(buckets, minlength=num_buckets)).tolist()
    bounds = enumerate(itertools.pairwise([0, *ends]))
    return [(bucket, ordered.slice(start, end - start)) for bucket, (start, end) in bounds if end > start]


def _cut_pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows into slices of about `SEGMENT_BYTES_MAX`, measured row by row: few rows may have most of the bytes."""
    if rows.num_rows:
        yield from arrow_rows.slice_by_size(rows, min(SEGMENT_BYTES_MAX, arrow_rows.SLICE_BYTES_MAX))


def merge_staged_rows(staged: Iterable[StagedRows]) -> StagedRows:
    """Combine several stagings of one table, to be committed together."""
    parts = tuple(staged)
    first = parts[0]
    if any(p.table_uuid != first.table_uuid for p in parts):
        raise CommitConflictError(
            "rows were staged for different tables: the table was dropped and created again; nothing was written, "
            "write the rows again"
        )
    segments = tuple(s for p in parts for s in p.segments)
    missing = frozenset[int]().union(*(p.missing for p in parts))
    checks = tuple(check for check in first.checks if all(check in p.checks for p in parts))
    return StagedRows(first.table_uuid, first.schema_id, segments, min(p.staged_ms for p in parts), missing, checks)
