"""Writer of one Parquet data file, in any lake format, and the table properties that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.parquet.file_columns import FIELD_ID, FIELD_IDS_KEY, TABLE_KEY, field_ids_text
from streamhouse_spark.lake.parquet.footer_checksum import close_with_checksum
from streamhouse_spark.lake.parquet.parquet_io import CountingWriter, FileAccess, open_parquet_sink
from streamhouse_spark.lake.parquet.reader import BUCKET_KEY, OFFSETS_KEY, SORTED_BY_KEY
from streamhouse_spark.lake.types import LakeFile, WriteContext
from streamhouse_spark.schema.variant import without_null_parts

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MAX = 192 << 20

_KEYED_NAME = re.compile(r"[0-9]{5}-[0-9]{20}-[0-9a-f]{32}\.parquet")

_CLUSTERED_NAME = re.compile(
    r"(?:data-)?[0-9]{5}-[0-9]{20}-[0-9]{20}-[0-9a-f]{32}_([0-9a-f]{8})_([0-9a-f]{8})\.parquet"
)

PartitionKey: TypeAlias = tuple[bytes | None, ...]
"""Values of the partition fields in the binary form of the lake. None for null."""


class PartitionPart(Protocol):
    """One field of the lake's partitioning."""

    @property
    def source(self) -> str:
        """The source column of the field's values."""

    @property
    def is_bucket(self) -> bool:
        """Whether the value is the bucket of the rows, or null for a null column, not a function of the column."""

    def derived(self, column: pa.Array) -> pa.Array:
        """Return the partition value of each row, from the source column of the data files."""

    def encoded(self, value: pa.Scalar) -> bytes | None: ...


class FileSpec(Protocol):
    """The properties of the lake table that a task needs to write its files."""

    @property
    def data_location(self) -> str:
        """The folder of the data files, or a parent folder."""

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of a data file with their field ids."""

    @property
    def schema_id(self) -> int: ...

    @property
    def spec_id(self) -> int: ...

    @property
    def partition_parts(self) -> Sequence[PartitionPart]: ...

    @property
    def file_prefix(self) -> str:
        """Prefix of the file names."""

    @property
    def writer_options(self) -> Mapping[str, Any]:
        """Keyword arguments of `pyarrow.parquet.ParquetWriter`."""

    def directory(self, key: PartitionKey, bucket: int) -> str:
        """Return the location of the files of a partition and bucket."""

    def statistics(self, footer: pq.FileMetaData) -> Mapping[str, Mapping[int, Any]]:
        """Return the statistics in a footer, in the form of `LakeFile.columns`."""


def writer_options(codec: str = "zstd", level: int | None = None) -> dict[str, Any]:
    """Return the Parquet writer options of the package's data files, with this compression."""
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "compression_level": level,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_checksum": True,
        "write_page_index": True,  # range reads skip pages
    }


def field_ids(file_schema: pa.Schema, names: Iterable[str] | None = None) -> list[int]:
    """Return the field ids of the columns ``names``, case-insensitively, or of all columns."""
    ids = [int(field.metadata[FIELD_ID]) for field in file_schema]
    if names is None:
        return ids
    id_of_name = dict(zip((field.name.casefold() for field in file_schema), ids, strict=True))
    return [id_of_name[name.casefold()] for name in names]


def may_hold(location: str, bucket: int, offsets: OffsetRange) -> bool:
    """Return whether a file may have offsets of the range, by its name. Files of other engines have none."""
    name = location.rpartition("/")[2]
    if not is_own_name(name):
        return False
    parts = _name_parts(name)
    return int(parts[0]) == bucket and int(parts[1]) < offsets.end and int(parts[2]) > offsets.start


def parse_file_offsets(location: str) -> tuple[int, OffsetRange] | None:
    """Return a file's bucket and a range that covers its offsets, by its name. None for a file of another engine."""
    name = location.rpartition("/")[2]
    if not is_own_name(name):
        return None
    parts = _name_parts(name)
    return int(parts[0]), OffsetRange(int(parts[1]), int(parts[2]))


def is_own_name(name: str) -> bool:
    """Return whether the package gives such a name to files with offsets."""
    parts = _name_parts(name)
    return len(parts) == 4 and all(part.isdigit() for part in parts[:3])


def _name_parts(name: str) -> list[str]:
    """Return bucket, first offset, end of the range, and the rest, from the name of a file of the package."""
    return name.removeprefix("data-").split("-")


def parse_file_end(location: str) -> tuple[int, int] | None:
    """Return a file's bucket and the end of its offset range, by its name. None for a file of another engine."""
    parts = _name_parts(location.rpartition("/")[2])
    numbers = [int(part) for part in parts[:-1] if part.isdigit()]
    is_own = len(numbers) == len(parts) - 1 and len(numbers) in (2, 3)
    return (numbers[0], numbers[-1]) if is_own else None


def is_keyed_file(location: str) -> bool:
    """Return whether a data file has a name that `PartitionFile` gives to files of primary-key tables."""
    return _KEYED_NAME.fullmatch(location.rpartition("/")[2]) is not None


def parse_clustered_file_name(location: str) -> tuple[str, str] | None:
    """Return the marks of the sort order and of the cluster in a file's name, or None."""
    match = _CLUSTERED_NAME.fullmatch(location.rpartition("/")[2])
    return (match[1], match[2]) if match else None


@dataclass(frozen=True, slots=True)
class FileOutput:
    """The output of a task: its context, and the access to the files that it writes."""

    context: WriteContext
    spec: FileSpec
    """The format's part of the context."""
    files: FileAccess
    ids: Ids


class PartitionFile:
    """A data file of one partition, created with its first row group.

    The name contains the bucket, the first offset and the end of the range, so that a reader knows without opening the
    file which offsets it may have. The footer contains the exact offsets. In a primary-key table, rows have no offsets
    in the lake: the name contains only the end, and the footer the sort columns. Rows of other engines have no offsets:
    their file has none in its name and footer; see `copy_on_write.rewrite_without_positions`.
    """

    def __init__(
        self, output: FileOutput, bucket: int, key: PartitionKey, offsets: OffsetRange, name_suffix: str, lane: int = 0
    ) -> None:
        self._offsets = offsets
        self._context = output.context
        self._spec = output.spec
        self._files = output.files
        self._bucket = bucket
        self.key = key
        self.lane = lane
        self._name_suffix = name_suffix
        self._rows: list[pa.RecordBatch] = []
        self._num_buffered = 0
        self._num_rows = 0
        self.buffered_bytes = 0
        self._runs: list[OffsetSet] = []
        self._stack = ExitStack()
        self._sink: CountingWriter | None = None
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

    def add(self, rows: pa.RecordBatch, runs: OffsetSet | None) -> int:
        """Add rows to the buffer, and return their bytes. ``runs`` are their offsets, if they have any."""
        num_bytes: int = rows.nbytes
        self._rows.append(rows)
        self._num_buffered += rows.num_rows
        self._num_rows += rows.num_rows
        self.buffered_bytes += num_bytes
        if runs is not None:
            self._runs.append(runs)
        if len(self._runs) >= 64:
            self._runs = [OffsetSet.concat(self._runs)]
        return num_bytes

    def write_row_group(self) -> int:
        """Write the buffered rows as a row group, and return the freed bytes."""
        if not self._rows:
            return 0
        table = without_null_parts(pa.Table.from_batches(self._rows, schema=self._spec.file_schema))
        self._open_writer().write_table(table, row_group_size=table.num_rows)
        written_bytes = self.buffered_bytes
        self._rows.clear()
        self._num_buffered = self.buffered_bytes = 0
        return written_bytes

    def close(self) -> LakeFile:
        try:
            return self._finish()
        except BaseException as error:
            self.abandon(error)
            raise

    def _finish(self) -> LakeFile:
        self.write_row_group()
        offsets = self._offsets
        described = {
            TABLE_KEY: self._context.table_uuid,
            BUCKET_KEY: str(self._bucket),
            FIELD_IDS_KEY: field_ids_text(field_ids(self._spec.file_schema)),
        }
        if self._context.primary_key:
            key_ids = field_ids(self._spec.file_schema, self._context.primary_key)
            described[SORTED_BY_KEY] = field_ids_text(key_ids)
        elif self._runs:
            runs = OffsetSet.concat(self._runs)
            offsets, described[OFFSETS_KEY] = runs.range, runs.to_text()
        writer = self._open_writer()
        assert self._sink is not None
        with self._stack:
            close_with_checksum(writer, self._sink, described)
        return LakeFile(
            location=self._location,
            bucket=self._bucket,
            offsets=offsets,
            num_rows=self._num_rows,
            size_bytes=self.size_bytes,
            schema_id=self._spec.schema_id,
            spec_id=self._spec.spec_id,
            partition=self.key,
            columns=self._spec.statistics(self._footers[0]),
            split_offsets=_split_offsets(self._footers[0]),
        )

    def abandon(self, error: BaseException | None) -> None:
        """Abandon the file. If the storage cannot delete it, it is an orphan."""
        failure = error or RuntimeError("the file was abandoned")
        if self._writer is not None:
            self._writer.is_open = False  # otherwise the garbage collector makes it log an error
        self._stack.__exit__(type(failure), failure, failure.__traceback__)

    def _open_writer(self) -> pq.ParquetWriter:
        import pyarrow.parquet as pq  # readers import this module but do not need the library

        if self._writer is None:
            first = [f"{runs.range.start:020d}" for runs in self._runs[:1]]
            name = self._spec.file_prefix + "-".join([f"{self._bucket:05d}", *first, f"{self._name_suffix}.parquet"])
            self._location = f"{self._spec.directory(self.key, self._bucket)}/{name}"
            self._sink = self._stack.enter_context(open_parquet_sink(self._files, self._location))
            self._writer = pq.ParquetWriter(
                self._sink, self._spec.file_schema, metadata_collector=self._footers, **self._spec.writer_options
            )
        return self._writer


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    offsets = []
    for i in range(footer.num_row_groups):
        column = footer.row_group(i).column(0)
        offsets.append(column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset)
    return tuple(offsets)
