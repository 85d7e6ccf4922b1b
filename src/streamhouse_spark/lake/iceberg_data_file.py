"""One Parquet data file of an Iceberg table, and what a task knows of the table that it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from streamhouse_spark.lake.base import LakeFile, WriteContext
from streamhouse_spark.lake.files import CountingSink, FileAccess, parquet_sink
from streamhouse_spark.lake.iceberg_schema import file_schema, partition_record, partition_types
from streamhouse_spark.lake.offset_runs import OffsetRuns
from streamhouse_spark.lake.parquet_read import (
    BUCKET_KEY,
    FIELD_IDS_KEY,
    OFFSETS_KEY,
    SORTED_BY_KEY,
    TABLE_KEY,
    field_ids_text,
)
from streamhouse_spark.model import OffsetRange

PATH_PART_CHARS_MAX = 150
ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MAX = 96 << 20

_KEYED_NAME = re.compile(r"[0-9]{5}-[0-9]{20}-[0-9a-f]{32}\.parquet")

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
    snapshot_id: int | None = None
    """The current snapshot then."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.model_dump_json(),
            "spec": self.spec.model_dump_json(),
            "data_location": self.data_location,
            "properties": dict(self.properties),
            "planned_ms": self.planned_ms,
            "snapshot_id": self.snapshot_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WriteShape:
        return cls(
            Schema.model_validate_json(value["schema"]),
            PartitionSpec.model_validate_json(value["spec"]),
            value["data_location"],
            value["properties"],
            value["planned_ms"],
            value["snapshot_id"],
        )

    @cached_property
    def file_schema(self) -> pa.Schema:
        return file_schema(self.schema)

    @cached_property
    def partition_types(self) -> list[PrimitiveType]:
        return partition_types(self.spec, self.schema)

    def field_ids(self, names: Sequence[str]) -> list[int]:
        return [self.schema.find_field(name, case_sensitive=False).field_id for name in names]

    def directory(self, key: PartitionKey) -> str:
        if not key:
            return self.data_location
        record = partition_record(self.spec, self.schema, key)
        path = self.spec.partition_to_path(record, self.schema)
        # Values are already escaped; only their length can still be more than a file system takes.
        return "/".join([self.data_location, *(part[:PATH_PART_CHARS_MAX] for part in path.split("/"))])


def is_keyed_file(location: str) -> bool:
    """Whether a data file has a name as `PartitionFile` gives it to files of rows with a primary key."""
    return _KEYED_NAME.fullmatch(location.rpartition("/")[2]) is not None


class PartitionFile:
    """A data file of one partition value, created with its first row group.

    Its name holds the bucket, its first offset and the end of the range that it was written for, so that a reader
    knows without opening it which offsets it can hold; the exact ones are in the footer. Rows with a primary key have
    no offsets in the lake: the name of their file holds only the end, and the footer says by what they are sorted.
    """

    def __init__(
        self,
        context: WriteContext,
        shape: WriteShape,
        files: FileAccess,
        bucket: int,
        key: PartitionKey,
        offsets: OffsetRange,
        name_suffix: str,
    ) -> None:
        self._offsets = offsets
        self._context = context
        self._shape = shape
        self._files = files
        self._bucket = bucket
        self.key = key
        self._name_suffix = name_suffix
        self._rows: list[pa.RecordBatch] = []
        self._num_buffered = 0
        self._num_rows = 0
        self.buffered_bytes = 0
        self._runs: list[OffsetRuns] = []
        self._stack = ExitStack()
        self._sink: CountingSink | None = None
        self._writer: pq.ParquetWriter | None = None
        self._location = ""
        self._footers: list[pq.FileMetaData] = []

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def size_bytes(self) -> int:
        return self._sink.size_bytes if self._sink else 0

    @property
    def row_group_is_full(self) -> bool:
        return self._num_buffered >= ROW_GROUP_ROWS_MAX or self.buffered_bytes >= ROW_GROUP_BYTES_MAX

    def add(self, rows: pa.RecordBatch, runs: OffsetRuns | None) -> int:
        """``runs`` are the offsets of the rows, where they have some.

        Returns the bytes that now wait for their row group because of these rows.
        """
        num_bytes: int = rows.nbytes
        self._rows.append(rows)
        self._num_buffered += rows.num_rows
        self._num_rows += rows.num_rows
        self.buffered_bytes += num_bytes
        if runs is not None:
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
        offsets, described = (
            self._offsets,
            {SORTED_BY_KEY: field_ids_text(self._shape.field_ids(self._context.primary_key))},
        )
        if not self._context.primary_key:
            runs = OffsetRuns.concat(self._runs)
            offsets, described = runs.range, {OFFSETS_KEY: runs.to_text()}
        writer = self._opened_writer()
        writer.add_key_value_metadata(
            {
                TABLE_KEY: self._context.table_uuid,
                BUCKET_KEY: str(self._bucket),
                FIELD_IDS_KEY: field_ids_text(field.field_id for field in self._shape.schema.fields),
                **described,
            }
        )
        with self._stack:
            writer.close()
        statistics = _statistics(self._footers[0], self._shape)
        return LakeFile(
            location=self._location,
            bucket=self._bucket,
            offsets=offsets,
            num_rows=self._num_rows,
            size_bytes=self.size_bytes,
            schema_id=self._shape.schema.schema_id,
            spec_id=self._shape.spec.spec_id,
            partition=self.key,
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
            first = [f"{runs.range.start:020d}" for runs in self._runs[:1]]
            name = "-".join([f"{self._bucket:05d}", *first, f"{self._name_suffix}.parquet"])
            self._location = f"{self._shape.directory(self.key)}/{name}"
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
        "write_page_index": True,  # readers of a range skip pages
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
