"""Data files: rows of one bucket become Parquet files per partition value, straight from Arrow.

Rows keep their offset order within a file, and the footer says which offsets they have (`BUCKET_KEY`, `OFFSETS_KEY`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import PrimitiveType

from streamhouse_spark.clock import Ids
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.lake.base import LakeFile, WriteContext
from streamhouse_spark.lake.files import CountingSink, FileAccess, parquet_sink
from streamhouse_spark.lake.iceberg_schema import file_schema, partition_record, partition_types
from streamhouse_spark.lake.offset_runs import OffsetRuns
from streamhouse_spark.lake.parquet_read import BUCKET_KEY, OFFSETS_KEY, TABLE_KEY, OffsetFile
from streamhouse_spark.model import OffsetRange

ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MAX = 96 << 20
BUFFERED_BYTES_MAX = 256 << 20
"""Rows waiting for their row group, over all open partitions."""
OPEN_FILES_MAX = 64
PATH_PART_CHARS_MAX = 150

PartitionKey = tuple[bytes | None, ...]
"""The values of the partition fields in Iceberg's binary form."""


@dataclass(frozen=True)
class WriteShape:
    """What a task knows of the Iceberg table. Shipped as JSON; shared by all files of a round."""

    schema: Schema
    spec: PartitionSpec
    data_location: str
    properties: Mapping[str, str]
    planned_ms: int
    """When the round was planned, by the store's clock."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.model_dump_json(),
            "spec": self.spec.model_dump_json(),
            "data_location": self.data_location,
            "properties": dict(self.properties),
            "planned_ms": self.planned_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WriteShape:
        return cls(
            Schema.model_validate_json(value["schema"]),
            PartitionSpec.model_validate_json(value["spec"]),
            value["data_location"],
            value["properties"],
            value["planned_ms"],
        )

    @cached_property
    def file_schema(self) -> pa.Schema:
        return file_schema(self.schema)

    @cached_property
    def partition_types(self) -> list[PrimitiveType]:
        return partition_types(self.spec, self.schema)

    def directory(self, key: PartitionKey) -> str:
        if not key:
            return self.data_location
        record = partition_record(self.spec, self.schema, key)
        path = self.spec.partition_to_path(record, self.schema)
        # Values are already escaped; only their length can still be more than a file system takes.
        return "/".join([self.data_location, *(part[:PATH_PART_CHARS_MAX] for part in path.split("/"))])


def write_files(
    context: WriteContext,
    files: FileAccess,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    batches: Iterable[tuple[int, pa.RecordBatch]],
) -> list[LakeFile]:
    """Write (base offset, rows) of one bucket; see `LakeTable.write_files`."""
    shape = WriteShape.from_json(context.lake)
    splitter = _Splitter(shape, context.schema.arrow, bucket)
    with _BucketWriter(context, shape, files, ids, bucket, offsets) as writer:
        next_offset = offsets.start
        for base_offset, batch in batches:
            _require_next(context, bucket, next_offset, base_offset)
            next_offset += batch.num_rows
            for key, rows, positions in splitter.split(batch):
                runs = (
                    OffsetRuns.dense(base_offset, rows.num_rows)
                    if positions is None
                    else OffsetRuns.of(base_offset + positions)
                )
                writer.add(key, rows, runs)
        _require_next(context, bucket, offsets.end, next_offset)
        return writer.close()


def rewrite_files(
    context: WriteContext,
    files: FileAccess,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    batches: Iterable[tuple[OffsetFile, pa.RecordBatch]],
) -> list[LakeFile]:
    """Write rows of several files of one partition again, each batch with the file it was read from, in row order.

    ``offsets`` is a range that holds all of theirs.
    """
    shape = WriteShape.from_json(context.lake)
    splitter = _Splitter(shape, context.schema.arrow, bucket)
    done: dict[str, int] = {}
    with _BucketWriter(context, shape, files, ids, bucket, offsets) as writer:
        for file, batch in batches:
            position = done.get(file.location, 0)
            done[file.location] = position + batch.num_rows
            runs = file.runs.rows(position, position + batch.num_rows)
            for key, rows, positions in splitter.split(batch):
                writer.add(key, rows, runs if positions is None else OffsetRuns.of(runs.offsets()[positions]))
        return writer.close()


def _require_next(context: WriteContext, bucket: int, expected: int, found: int) -> None:
    if found != expected:
        raise CorruptDataError(
            f"bucket {bucket} of table {context.table_uuid}: rows continue at offset {found}, expected {expected}; "
            "run streamhouse verify"
        )


class _Splitter:
    """Cuts batches by partition value and brings them into the types of the data files."""

    def __init__(self, shape: WriteShape, table_schema: pa.Schema, bucket: int) -> None:
        self._shape = shape
        self._bucket = bucket
        self._sources = [shape.schema.find_column_name(field.source_id) for field in shape.spec.fields]
        self._missing_columns = [name for name in shape.file_schema.names if name not in set(table_schema.names)]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch, Any]]:
        """(partition, rows, their positions in the batch or None for all of them), each partition once."""
        if batch.num_rows == 0:
            return
        rows = self._in_file_types(batch)
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        values: list[tuple[Any, pa.Array, int]] = []
        for field, source, field_type in zip(
            self._shape.spec.fields, self._sources, self._shape.partition_types, strict=True
        ):
            column = rows.column(source)
            if isinstance(field.transform, BucketTransform):
                # Only nulls differ: Iceberg leaves them without a bucket, the log keeps them in bucket 0.
                if self._bucket != 0 or column.null_count == 0:
                    values.append((field_type, None, 1))
                    continue
                column = column.is_null().cast(pa.int8())
            encoded = column.dictionary_encode(null_encoding="encode")
            size = len(encoded.dictionary)
            codes = codes * size + encoded.indices.to_numpy(zero_copy_only=False)
            values.append((field_type, encoded.dictionary, size))
        yield from self._groups(rows, codes, values)

    def _groups(
        self, rows: pa.RecordBatch, codes: Any, values: list[tuple[Any, pa.Array, int]]
    ) -> Iterator[tuple[PartitionKey, pa.RecordBatch, Any]]:
        if int(codes[0]) == int(codes[-1]) and bool((codes == codes[0]).all()):
            yield self._key(int(codes[0]), values), rows, None
            return
        distinct, inverse = np.unique(codes, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        gathered = rows.take(pa.array(order))
        ends = np.cumsum(np.bincount(inverse)).tolist()
        for code, start, end in zip(distinct.tolist(), [0, *ends[:-1]], ends, strict=True):
            yield self._key(code, values), gathered.slice(start, end - start), order[start:end]

    def _key(self, code: int, values: list[tuple[Any, pa.Array, int]]) -> PartitionKey:
        parts: list[bytes | None] = []
        for field, (field_type, dictionary, size) in zip(
            reversed(self._shape.spec.fields), reversed(values), strict=True
        ):
            code, index = divmod(code, size)
            if isinstance(field.transform, BucketTransform):
                is_null = dictionary is not None and dictionary[index].as_py() == 1
                parts.append(None if is_null else to_bytes(field_type, self._bucket))
            else:
                value = _internal_value(dictionary, index)
                parts.append(None if value is None else to_bytes(field_type, value))
        return tuple(reversed(parts))

    def _in_file_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._shape.file_schema
        columns = []
        for field in schema:
            if field.name in self._missing_columns:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _internal_value(dictionary: pa.Array, index: int) -> Any:
    """The value as Iceberg keeps it: days and microseconds as integers."""
    value = dictionary[index]
    if pa.types.is_date32(value.type):
        return value.cast(pa.int32()).as_py()
    if pa.types.is_timestamp(value.type):
        return value.cast(pa.int64()).as_py()
    return value.as_py()


class _BucketWriter:
    """The open files of one bucket, one per partition value."""

    def __init__(
        self,
        context: WriteContext,
        shape: WriteShape,
        files: FileAccess,
        ids: Ids,
        bucket: int,
        offsets: OffsetRange,
    ) -> None:
        self._context = context
        self._shape = shape
        self._files = files
        self._ids = ids
        self._bucket = bucket
        self._end_offset = offsets.end
        self._open: dict[PartitionKey, _PartitionFile] = {}
        self._written: list[LakeFile] = []
        self._buffered_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        for file in self._open.values():
            file.abandon(exc)
        self._open.clear()

    def add(self, key: PartitionKey, rows: pa.RecordBatch, runs: OffsetRuns) -> None:
        file = self._open.pop(key, None) or self._opened(key)
        self._open[key] = file  # the most recently used is last
        self._buffered_bytes += file.add(rows, runs)
        if file.row_group_is_full:
            self._buffered_bytes -= file.write_row_group()
            if file.size_bytes >= self._context.target_file_bytes:
                self._written.append(self._open.pop(key).close())
        elif self._buffered_bytes > BUFFERED_BYTES_MAX:
            largest = max(self._open.values(), key=lambda f: f.buffered_bytes)
            self._buffered_bytes -= largest.write_row_group()

    def close(self) -> list[LakeFile]:
        while self._open:
            self._close_oldest()
        self._written.sort(key=lambda f: (f.offsets.start, f.location))
        return self._written

    def _opened(self, key: PartitionKey) -> _PartitionFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close_oldest()
        suffix = f"{self._end_offset:020d}-{self._ids.new_uuid()}"
        return _PartitionFile(self._context, self._shape, self._files, self._bucket, key, suffix)

    def _close_oldest(self) -> None:
        file = self._open.pop(next(iter(self._open)))
        self._buffered_bytes -= file.buffered_bytes
        self._written.append(file.close())


class _PartitionFile:
    """A data file of one partition value, created with its first row group.

    Its name holds the bucket, its first offset and the end of the range that it was written for, so that a reader
    knows without opening it which offsets it can hold; the exact ones are in the footer.
    """

    def __init__(
        self,
        context: WriteContext,
        shape: WriteShape,
        files: FileAccess,
        bucket: int,
        key: PartitionKey,
        name_suffix: str,
    ) -> None:
        self._context = context
        self._shape = shape
        self._files = files
        self._bucket = bucket
        self._key = key
        self._name_suffix = name_suffix
        self._rows: list[pa.RecordBatch] = []
        self._num_buffered = 0
        self.buffered_bytes = 0
        self._runs: list[OffsetRuns] = []
        self._stack = ExitStack()
        self._sink: CountingSink | None = None
        self._writer: pq.ParquetWriter | None = None
        self._location = ""
        self._footers: list[pq.FileMetaData] = []

    @property
    def size_bytes(self) -> int:
        return self._sink.size_bytes if self._sink else 0

    @property
    def row_group_is_full(self) -> bool:
        return self._num_buffered >= ROW_GROUP_ROWS_MAX or self.buffered_bytes >= ROW_GROUP_BYTES_MAX

    def add(self, rows: pa.RecordBatch, runs: OffsetRuns) -> int:
        """Returns the bytes that now wait for their row group because of these rows."""
        num_bytes: int = rows.get_total_buffer_size() if rows.num_rows == 0 else rows.nbytes
        self._rows.append(rows)
        self._num_buffered += rows.num_rows
        self.buffered_bytes += num_bytes
        self._runs.append(runs)
        if len(self._runs) >= 64:
            self._runs = [OffsetRuns.concat(self._runs)]
        return num_bytes

    def write_row_group(self) -> int:
        """Returns the bytes that no longer wait."""
        if not self._rows:
            return 0
        table = pa.Table.from_batches(self._rows, schema=self._shape.file_schema)
        self._opened_writer().write_table(table, row_group_size=table.num_rows)
        written_bytes = self.buffered_bytes
        self._rows.clear()
        self._num_buffered = self.buffered_bytes = 0
        return written_bytes

    def close(self) -> LakeFile:
        try:
            return self._finished()
        except BaseException as error:
            self.abandon(error)
            raise

    def _finished(self) -> LakeFile:
        self.write_row_group()
        runs = OffsetRuns.concat(self._runs)
        writer = self._opened_writer()
        writer.add_key_value_metadata(
            {
                TABLE_KEY: self._context.table_uuid,
                BUCKET_KEY: str(self._bucket),
                OFFSETS_KEY: runs.to_text(),
            }
        )
        with self._stack:
            writer.close()
        statistics = _statistics(self._footers[0], self._shape)
        return LakeFile(
            location=self._location,
            bucket=self._bucket,
            offsets=runs.range,
            num_rows=runs.num_rows,
            size_bytes=self.size_bytes,
            schema_id=self._shape.schema.schema_id,
            spec_id=self._shape.spec.spec_id,
            partition=self._key,
            columns=statistics,
            split_offsets=_split_offsets(self._footers[0]),
        )

    def abandon(self, error: BaseException | None) -> None:
        """Leave without a file where the storage allows it; what stays behind is an orphan."""
        failure = error or RuntimeError("the file was abandoned")
        if self._writer is not None:
            self._writer.is_open = False  # else it complains when it is collected
        self._stack.__exit__(type(failure), failure, failure.__traceback__)

    def _opened_writer(self) -> pq.ParquetWriter:
        if self._writer is None:
            first = self._runs[0].range.start
            name = f"{self._bucket:05d}-{first:020d}-{self._name_suffix}.parquet"
            self._location = f"{self._shape.directory(self._key)}/{name}"
            self._sink = self._stack.enter_context(parquet_sink(self._files, self._location))
            self._writer = pq.ParquetWriter(
                self._sink,
                self._shape.file_schema,
                metadata_collector=self._footers,
                **_writer_options(self._shape.properties),
            )
        return self._writer


def _writer_options(properties: Mapping[str, str]) -> dict[str, Any]:
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    level = properties.get("write.parquet.compression-level")
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "compression_level": int(level) if level else None,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_checksum": True,
    }


def _statistics(footer: pq.FileMetaData, shape: WriteShape) -> dict[str, dict[int, Any]]:
    plan = compute_statistics_plan(shape.schema, dict(shape.properties))
    found = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(shape.schema))
    bounds = {i: (a.min_as_bytes(), a.max_as_bytes()) for i, a in found.column_aggregates.items()}
    return {
        "column_sizes": dict(found.column_sizes),
        "value_counts": dict(found.value_counts),
        "null_value_counts": dict(found.null_value_counts),
        "nan_value_counts": dict(found.nan_value_counts),
        "lower_bounds": {i: low for i, (low, _) in bounds.items() if low is not None},
        "upper_bounds": {i: high for i, (_, high) in bounds.items() if high is not None},
    }


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    offsets = []
    for i in range(footer.num_row_groups):
        column = footer.row_group(i).column(0)
        offsets.append(column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset)
    return tuple(offsets)
