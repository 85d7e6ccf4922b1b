"""Writer of the data files of one bucket: Parquet files per partition, written from Arrow.

Rows keep their offset order within a file, and the footer contains the offsets (`BUCKET_KEY`, `OFFSETS_KEY`). Rows of a
primary-key table are sorted by key instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.lake.parquet.file_writer import FileOutput, FileSpec, PartitionFile, PartitionKey
from streamhouse_spark.lake.parquet.reader import FileWithOffsets
from streamhouse_spark.lake.types import LakeFile, WriteContext

BUFFERED_BYTES_MAX = 256 << 20
"""Maximum bytes of rows that are buffered for row groups, over all open partitions."""
OPEN_FILES_MAX = 100
"""Maximum number of open files. The least recently used file is closed first."""
PARTITIONS_MAX = 20_000
"""Maximum number of partitions with buffered rows. The least recently used file is closed first."""
LANES_MAX = 64
"""Maximum number of files that a partition writes in parallel."""

_Lane: TypeAlias = tuple[PartitionKey, int]
Int64Array: TypeAlias = npt.NDArray[np.int64]


def write_files(
    output: FileOutput,
    bucket: int,
    offsets: OffsetRange,
    batches: Iterable[tuple[int, pa.RecordBatch]],
    deleted: OffsetSet | None = None,
) -> list[LakeFile]:
    """Write a log range of a bucket as data files, except the ``deleted`` offsets. The files are durable on return.

    ``batches`` are (base offset, rows) in offset order. Raises `CorruptDataError` if they do not cover the range.
    """
    splitter = PartitionSplitter(output.spec, output.context.schema.names, bucket)
    with _BucketWriter(output, bucket, offsets) as writer:
        next_offset = offsets.start
        for base_offset, batch in batches:
            _require_next(output.context, bucket, next_offset, base_offset)
            next_offset += batch.num_rows
            live, live_offsets = _exclude_deleted(batch, OffsetRange(base_offset, next_offset), deleted)
            for key, rows, positions in splitter.split(live):
                writer.add(key, rows, OffsetSet.of(live_offsets if positions is None else live_offsets[positions]))
        _require_next(output.context, bucket, offsets.end, next_offset)
        return writer.close()


def _exclude_deleted(
    batch: pa.RecordBatch, offsets: OffsetRange, deleted: OffsetSet | None
) -> tuple[pa.RecordBatch, Int64Array]:
    """Return the live rows of these offsets, with their offsets."""
    numbers = np.arange(offsets.start, offsets.end, dtype=np.int64)
    if deleted is None or not (deleted_here := deleted.within(offsets)):
        return batch, numbers
    dropped = np.zeros(len(numbers), np.bool_)
    dropped[deleted_here.offsets() - offsets.start] = True
    return arrow_rows.drop_rows(batch, dropped), numbers[~dropped]


def rewrite_files(
    output: FileOutput, bucket: int, offsets: OffsetRange, batches: Iterable[tuple[FileWithOffsets, pa.RecordBatch]]
) -> list[LakeFile]:
    """Write rows of several files of one partition. ``batches`` are rows, in row order, with their source file.

    ``offsets`` is a range that covers the offsets of these files.
    """
    splitter = PartitionSplitter(output.spec, output.context.schema.names, bucket)
    done: dict[str, int] = {}
    with _BucketWriter(output, bucket, offsets) as writer:
        for file, batch in batches:
            position = done.get(file.location, 0)
            done[file.location] = position + batch.num_rows
            runs = file.runs.rows(position, position + batch.num_rows)
            for key, rows, positions in splitter.split(batch):
                writer.add(key, rows, runs if positions is None else OffsetSet.of(runs.offsets()[positions]))
        return writer.close()


def write_rows(
    output: FileOutput, bucket: int, offsets: OffsetRange, batches: Iterable[pa.RecordBatch]
) -> list[LakeFile]:
    """Write rows of one bucket that are sorted by primary key. ``offsets`` are those of the underlying changes."""
    splitter = PartitionSplitter(output.spec, output.context.schema.names, bucket)
    with _BucketWriter(output, bucket, offsets) as writer:
        for batch in batches:
            for key, rows, _ in splitter.split(batch):
                writer.add(key, rows, None)
        return writer.close()


def write_clustered_files(
    output: FileOutput,
    bucket: int,
    offsets: OffsetRange,
    name_mark: str,
    batches: Iterable[tuple[pa.RecordBatch, Int64Array, Int64Array]],
) -> list[LakeFile]:
    """Write rows of one bucket in offset order, each batch with the offset and lane of every row.

    A partition has one file per lane, and at most `LANES_MAX` lanes. File names end with ``name_mark``.
    """
    splitter = PartitionSplitter(output.spec, output.context.schema.names, bucket)
    with _BucketWriter(output, bucket, offsets, name_mark) as writer:
        for batch, row_offsets, lanes in batches:
            for key, rows, positions in splitter.split(batch):
                own, their = (row_offsets, lanes) if positions is None else (row_offsets[positions], lanes[positions])
                for lane, chosen in group_positions(their):
                    writer.add(key, rows.take(pa.array(chosen)), OffsetSet.of(own[chosen]), lane)
        return writer.close()


def group_positions(codes: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield each distinct code with its ascending positions."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse)).tolist()
    for code, start, end in zip(distinct.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield code, order[start:end]


def _require_next(context: WriteContext, bucket: int, expected: int, actual: int) -> None:
    if actual != expected:
        raise CorruptDataError(
            f"bucket {bucket} of table {context.table_uuid}: rows continue at offset {actual}, expected {expected}; "
            "run streamhouse verify"
        )


class PartitionSplitter:
    """Splits batches by partition value and casts them to the types of the data files."""

    def __init__(self, spec: FileSpec, column_names: Collection[str], bucket: int) -> None:
        self._spec = spec
        self._bucket = bucket
        self._missing_columns = [name for name in spec.file_schema.names if name not in set(column_names)]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch, Any]]:
        """Yield (partition, rows, positions of the rows in the batch, or None for all rows), each partition once."""
        if batch.num_rows == 0:
            return
        rows = self.cast_to_file_types(batch)
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        values: list[tuple[pa.Array, int]] = []
        for part in self._spec.partition_parts:
            column = rows.column(part.source)
            if part.is_bucket:
                # Only null differs: Iceberg has no bucket for null, and the log stores it in bucket 0.
                if self._bucket != 0 or column.null_count == 0:
                    values.append((None, 1))
                    continue
                column = column.is_null().cast(pa.int8())
            else:
                column = part.derived(column)
            encoded = column.dictionary_encode(null_encoding="encode")
            size = len(encoded.dictionary)
            codes = codes * size + encoded.indices.to_numpy(zero_copy_only=False)
            values.append((encoded.dictionary, size))
        yield from self._groups(rows, codes, values)

    def _groups(
        self, rows: pa.RecordBatch, codes: Any, values: list[tuple[pa.Array, int]]
    ) -> Iterator[tuple[PartitionKey, pa.RecordBatch, Any]]:
        if int(codes[0]) == int(codes[-1]) and bool((codes == codes[0]).all()):
            yield self._key(int(codes[0]), values), rows, None
            return
        for code, positions in group_positions(codes):
            # `take` copies the rows. A slice in the buffer would keep the whole batch in memory.
            yield self._key(code, values), rows.take(pa.array(positions)), positions

    def _key(self, code: int, values: list[tuple[pa.Array, int]]) -> PartitionKey:
        parts: list[bytes | None] = []
        for part, (dictionary, size) in zip(reversed(self._spec.partition_parts), reversed(values), strict=True):
            code, index = divmod(code, size)
            if part.is_bucket:
                is_null = dictionary is not None and dictionary[index].as_py() == 1
                parts.append(None if is_null else part.encoded(pa.scalar(self._bucket, pa.int32())))
            else:
                parts.append(part.encoded(dictionary[index]))
        return tuple(reversed(parts))

    def cast_to_file_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns and types of the data files."""
        schema = self._spec.file_schema
        columns = []
        for field in schema:
            if field.name in self._missing_columns:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class _BucketWriter:
    """The files of one bucket that are being written, one per partition and lane.

    Rows are buffered until a row group is large enough. A file is created with its first row group.
    """

    def __init__(self, output: FileOutput, bucket: int, offsets: OffsetRange, name_mark: str = "") -> None:
        self._output = output
        self._bucket = bucket
        self._offsets = offsets
        self._name_mark = name_mark
        self._waiting: dict[_Lane, PartitionFile] = {}
        self._written: list[LakeFile] = []
        self._buffered_bytes = 0
        self._num_open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        for file in self._waiting.values():
            file.abandon(exc)
        self._waiting.clear()

    def add(self, key: PartitionKey, rows: pa.RecordBatch, runs: OffsetSet | None, lane: int = 0) -> None:
        """Add rows to the file of a partition and ``lane``."""
        file = self._waiting.pop((key, lane), None) or self._open(key, lane)
        self._waiting[key, lane] = file  # the most recently used is last
        self._buffered_bytes += file.add(rows, runs)
        if file.row_group_is_full:
            self._write_row_group(file)
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self._free_memory()
        if len(self._waiting) > PARTITIONS_MAX:
            self._close(next(iter(self._waiting)))

    def close(self) -> list[LakeFile]:
        for key in list(self._waiting):
            self._close(key)
        self._written.sort(key=lambda f: (f.offsets.start, f.location))
        return self._written

    def _open(self, key: PartitionKey, lane: int) -> PartitionFile:
        suffix = f"{self._offsets.end:020d}-{self._output.ids.new_uuid()}{self._name_mark}"
        return PartitionFile(self._output, self._bucket, key, self._offsets, suffix, lane)

    def _free_memory(self) -> None:
        """Write the largest row groups until half of the buffer is free."""
        for file in sorted(self._waiting.values(), key=lambda f: f.buffered_bytes, reverse=True):
            if self._buffered_bytes <= BUFFERED_BYTES_MAX // 2:
                return
            self._write_row_group(file)

    def _write_row_group(self, file: PartitionFile) -> None:
        if not file.is_open:
            while self._num_open >= OPEN_FILES_MAX:
                self._close(next(key for key, other in self._waiting.items() if other.is_open))
            self._num_open += 1
        self._buffered_bytes -= file.write_row_group()
        if file.size_bytes >= self._output.context.target_file_bytes:
            self._close((file.key, file.lane))

    def _close(self, key: _Lane) -> None:
        file = self._waiting.pop(key)
        self._num_open -= file.is_open
        self._buffered_bytes -= file.buffered_bytes
        self._written.append(file.close())
