"""Writes rows as segments: the bytes, the index and the statistics. A segment is visible once a commit names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from streamhouse_spark.core.arrow_rows import combine_small_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log.segment import Segment, SegmentIndex, block_bytes_for
from streamhouse_spark.log.segments.statistics import collect_partitions, collect_stats
from streamhouse_spark.schema.partitioning import FormerPartitioning, partition_columns_at
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Sink, Storage

Codec = Literal["none", "lz4", "zstd"]
BATCH_ROWS_MAX = 1 << 16
BATCH_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment that is durable, or held in memory (``inline_rows``), and that no record names yet."""

    segment: Segment
    inline_rows: bytes | None = None


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """How the segments of a table are written."""

    schema_id: int
    partition_by: tuple[str, ...] = ()
    stats_columns: tuple[str, ...] = ()
    codec: Codec = "none"
    former: tuple[FormerPartitioning, ...] = ()
    """The table's former partition specs, the oldest first."""

    def of_schema(self, schema_id: int, schemas: Mapping[int, TableSchema]) -> SegmentOptions:
        """Return the options for rows of an older schema, with other column names and partition columns."""
        if schema_id == self.schema_id:
            return self
        names = {column.id: column.name for column in schemas[schema_id].columns}
        ids = [schemas[self.schema_id].column(name).id for name in self.stats_columns]
        partition_by = partition_columns_at(self.former, self.partition_by, schema_id)
        stats_columns = tuple(names[i] for i in ids if i in names)
        return replace(self, schema_id=schema_id, partition_by=partition_by, stats_columns=stats_columns)


def stage_inline(rows: pa.Table, bucket: int, options: SegmentOptions) -> StagedSegment:
    """Write rows as one record batch message without schema, for the commit record.

    The segment has no statistics, which would take a tenth of the time of a small append. Small segments are soon
    merged into segments with statistics.
    """
    data = combine_batches(rows).serialize().to_pybytes()
    return StagedSegment(_describe_segment(rows, bucket, options, len(data)), data)


def combine_batches(rows: pa.Table) -> pa.RecordBatch:
    """Return one or more rows as one record batch. Rows in one batch are not copied."""
    batches = rows.to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def stage_object(
    storage: Storage, table_uuid: str, segment_uuid: str, rows: pa.Table, bucket: int, options: SegmentOptions
) -> StagedSegment:
    """Write rows as ``segments/<uuid>.arrow``, durable when this returns."""
    with storage.create(segment_key(table_uuid, segment_uuid)) as sink:
        return stage_file(sink, segment_uuid, rows, bucket, options)


def stage_file(sink: Sink, segment_uuid: str, rows: pa.Table, bucket: int, options: SegmentOptions) -> StagedSegment:
    """Write rows at the sink's position. Durable when the sink's context ends without error."""
    size_bytes, index = write_file(sink, rows.schema, rechunk_batches(rows), rows.nbytes, options.codec)
    described = _describe_segment(rows, bucket, options, size_bytes)
    segment = replace(
        described,
        uuid=segment_uuid,
        compressed=options.codec != "none",
        unpacked_bytes=rows.nbytes if options.codec != "none" else None,
        stats=collect_stats(rows, options.stats_columns),
        index_bytes=index.to_bytes(),
    )
    return StagedSegment(segment)


def write_file(
    sink: Sink,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    estimated_bytes: int,
    codec: Codec,
    times: Sequence[tuple[int, int]] = (),
) -> tuple[int, SegmentIndex]:
    """Write an Arrow IPC file at the sink's position. Return its size and index, relative to that position."""
    file = ArrowFileWriter(sink, schema, estimated_bytes, codec)
    for batch in batches:
        file.write(batch)
    return file.finish(times)


class ArrowFileWriter:
    """An Arrow IPC file that is written at the sink's position."""

    def __init__(self, sink: Sink, schema: pa.Schema, estimated_bytes: int, codec: Codec) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        self._summing = _ChecksumSink(sink, block_bytes_for(estimated_bytes))
        self._writer = pa.ipc.new_file(pa.PythonFile(self._summing, mode="w"), schema, options=options)
        self._starts: list[int] = []
        self._rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._starts.append(self._summing.size_bytes)
        self._rows.append(batch.num_rows)
        self._writer.write_batch(batch)

    def finish(self, times: Sequence[tuple[int, int]] = ()) -> tuple[int, SegmentIndex]:
        """Write the footer. Return the file's size and index."""
        self._writer.close()
        index = SegmentIndex(
            block_bytes=self._summing.block_bytes,
            batch_starts=np.array(self._starts, np.int64),
            batch_rows=np.array(self._rows, np.int64),
            block_sums=self._summing.finish(),
            time_starts=np.array([t[0] for t in times], np.int64),
            times_ms=np.array([t[1] for t in times], np.int64),
        )
        return self._summing.size_bytes, index


def _describe_segment(rows: pa.Table, bucket: int, options: SegmentOptions, size_bytes: int) -> Segment:
    segment = make_staged_segment(rows.num_rows, bucket, options, size_bytes)
    return replace(segment, partitions=collect_partitions(rows, options.partition_by))


def make_staged_segment(num_rows: int, bucket: int, options: SegmentOptions, size_bytes: int) -> Segment:
    """Return a staged segment without the fields that depend on its rows."""
    return Segment(
        bucket=bucket,
        base_offset=0,
        num_rows=num_rows,
        size_bytes=size_bytes,
        schema_id=options.schema_id,
        commit=0,
        first_time_ms=0,
        last_time_ms=0,
    )


def rechunk_batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Return record batches of up to 64k rows or 64 MiB. Many tiny chunks are combined first."""
    if rows.num_columns and rows.column(0).num_chunks * (BATCH_ROWS_MAX // 4) > rows.num_rows + BATCH_ROWS_MAX:
        rows = combine_small_chunks(rows)
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    batches: list[pa.RecordBatch] = rows.to_batches(
        max_chunksize=max(1, min(BATCH_ROWS_MAX, BATCH_BYTES_MAX // row_bytes))
    )
    return [b for b in batches if b.num_rows]


class _ChecksumSink:
    """Writes to a sink and computes the checksum of each block."""

    closed = False

    def __init__(self, sink: Sink, block_bytes: int) -> None:
        self._sink = sink
        self.block_bytes = block_bytes
        self.size_bytes = 0
        self._sums: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._in_block_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self.size_bytes += view.nbytes
        while view.nbytes:
            take = min(self.block_bytes - self._in_block_bytes, view.nbytes)
            self._hash.update(view[:take])
            self._in_block_bytes += take
            if self._in_block_bytes == self.block_bytes:
                self._close_block()
            view = view[take:]
        return len(data)

    def finish(self) -> Any:
        if self._in_block_bytes:
            self._close_block()
        return np.array(self._sums, np.uint64)

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""

    def tell(self) -> int:
        return self.size_bytes

    def _close_block(self) -> None:
        self._sums.append(self._hash.intdigest())
        self._hash.reset()
        self._in_block_bytes = 0
