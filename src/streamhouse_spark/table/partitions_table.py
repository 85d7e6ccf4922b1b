"""``<table>$partitions``: the number of rows of each partition in the log and the lake.

Lake files are counted by manifests, and segments with rows of a single partition by records. Only for other segments,
and for lake files with an earlier partitioning, the partition columns are read.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import sort_rows, sum_by_group
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.types import LakeScan, LakeSplit, ScanFile
from streamhouse_spark.log.deletion_vectors import FileRows
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, plan_snapshot, read_split
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, deleted_file_rows, deleted_offsets, scan_tiered_snapshot
from streamhouse_spark.read.scan_tasks import LakeScanTask, ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.schema.partitioning import partition_columns_at
from streamhouse_spark.schema.table_schema import TableSchema, require_distinct_names
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.log.state import TableState

_LAKE_ROWS: Final = "lake_rows"
_COUNTS: Final = ("hot_rows", _LAKE_ROWS, "lake_files", "lake_size_bytes")


def partitions_schema(state: TableState) -> pa.Schema:
    """Return the partition columns, then the counts.

    ``hot_rows`` counts untiered rows. In a primary-key table it counts changes, and without a lake also the rows of KV
    snapshots. ``lake_rows`` counts live lake rows, or is null if that requires reading them. Raises
    `SchemaMismatchError` if a partition column has the name of a count.
    """
    require_distinct_names(state.partition_by, _COUNTS, f"{state.name}$partitions")
    columns = [field.with_nullable(True) for field in state.schema.select(state.partition_by).arrow]
    counts = [pa.field(name, pa.int64(), nullable=name == _LAKE_ROWS) for name in _COUNTS]
    return pa.schema([*columns, *counts])


def count_partitions(table: TableHandle) -> pa.Table:
    """Count the rows of each non-empty partition of a partitioned table, ordered by partition values, null last.

    Raises the errors of a read, and `LakeMismatchError` for a file of another engine without partition values, unless
    the partitioning was changed.
    """
    latest = take_latest_snapshot(table.refresh())
    return read_with_fallback(table, latest, InitialSchema(()), lambda snapshot: _count_snapshot(table, snapshot))


def _count_snapshot(table: TableHandle, snapshot: ReadSnapshot) -> pa.Table:
    columns = snapshot.state.schema.select(snapshot.state.partition_by)
    schema = partitions_schema(snapshot.state)
    parts = [part.cast(schema) for part in _iter_counts(table, snapshot, columns)]
    counts = pa.concat_tables([schema.empty_table(), *parts])
    return sort_rows(sum_by_group(counts, columns.names).cast(schema), columns.names)


def _iter_counts(table: TableHandle, snapshot: ReadSnapshot, columns: TableSchema) -> Iterator[pa.Table]:
    if snapshot.lake is not None:
        scan = scan_tiered_snapshot(table, snapshot, ScanRequest(columns.names))
        pending_deletes = _PendingDeletes(
            StorageFiles(table.storage), deleted_offsets(snapshot), deleted_file_rows(snapshot)
        )
        yield _count_lake_files(
            [file for file in scan.files if _has_partition(file, columns)], columns, pending_deletes
        )
        older = [file for file in scan.files if not _has_partition(file, columns)]
        yield from _count_older_files(table, snapshot, scan, older, columns, pending_deletes)
    splits = [plan_range(snapshot.state, bucket, offsets) for bucket, offsets in snapshot.hot.items()]
    splits += [plan_snapshot(snapshot.state, base) for base in snapshot.bases.values()]
    for split in splits:
        yield from _count_log(table, snapshot.state, split, columns)


def _has_partition(file: ScanFile, columns: TableSchema) -> bool:
    return set(columns.names) <= set(file.partition)


@dataclass(frozen=True, slots=True)
class _PendingDeletes:
    """Deleted rows that lake files still contain, because no tiering round has applied the deletes yet."""

    names: StorageFiles
    rows: Mapping[int, OffsetSet]
    files: FileRows

    def positions(self, file: ScanFile) -> OffsetSet | None:
        return self.files.get(self.names.name_of(file.location)) if self.files else None

    def num_live(self, file: ScanFile) -> int | None:
        """Return the number of live rows in a file; None if that requires reading it."""
        if _may_contain(file, self.rows) or file.num_live is None:
            return None
        positions = self.positions(file)
        return file.num_live - (positions.num_rows if positions is not None else 0)


def _count_lake_files(files: Sequence[ScanFile], columns: TableSchema, pending_deletes: _PendingDeletes) -> pa.Table:
    values = {c.name: pa.array([file.partition[c.name] for file in files], c.type) for c in columns.columns}
    return _make_counts(
        values,
        lake_rows=[pending_deletes.num_live(file) for file in files],
        lake_files=[1 if file.merge is None else len(file.merge.files) for file in files],
        lake_size_bytes=[file.size_bytes for file in files],
    )


def _may_contain(file: ScanFile, rows: Mapping[int, OffsetSet]) -> bool:
    """Return whether a file may contain rows at these offsets, by the offsets in the file name."""
    if not rows:
        return False
    named = parse_file_offsets(file.location)
    return named is None or (named[0] in rows and bool(rows[named[0]].within(named[1])))


def _count_older_files(
    table: TableHandle,
    snapshot: ReadSnapshot,
    scan: LakeScan,
    files: Sequence[ScanFile],
    columns: TableSchema,
    pending_deletes: _PendingDeletes,
) -> Iterator[pa.Table]:
    """Count files with an earlier partitioning, by reading the partition columns.

    A file counts for each of its partitions, with a share of its bytes.
    """
    for file in files:
        if not snapshot.state.former_partitionings:
            raise LakeMismatchError(
                f"{snapshot.state.name}$partitions: lake file {file.location} has no partition values, because another "
                "engine wrote it with other partition columns; rewrite it with that engine"
            )
        split = LakeSplit(file.location, file.size_bytes, file.num_rows, position_deletes=file.position_deletes)
        rows = pending_deletes.rows if parse_file_offsets(file.location) is not None else {}
        task = LakeScanTask(split, file.bucket, rows, pending_deletes.positions(file))
        plan = ScanPlan(table.name, table.uuid, columns, (task,), scan.projection)
        partition_rows = pa.Table.from_batches(read_batches(table, plan), columns.arrow)
        num_rows, values = partition_rows.num_rows, dict(zip(columns.names, partition_rows.columns, strict=True))
        counted = sum_by_group(_make_counts(values, lake_rows=[1] * num_rows), columns.names)
        counts = counted.column("lake_rows").to_pylist()
        yield _make_counts(
            {name: counted.column(name) for name in columns.names},
            lake_rows=counts,
            lake_files=[1] * len(counts),
            lake_size_bytes=[file.size_bytes * count // num_rows for count in counts],
        )


def _count_log(table: TableHandle, state: TableState, split: LogSplit, columns: TableSchema) -> Iterator[pa.Table]:
    def has_one_partition(segment: Segment) -> bool:
        written = partition_columns_at(state.former_partitionings, state.partition_by, segment.schema_id)
        return segment.partitions is not None and len(segment.partitions) == 1 and written == state.partition_by

    single = [segment for segment in split.segments if has_one_partition(segment)]
    mixed = tuple(s for s in split.segments if s not in single)
    keys = [segment.partitions[0] for segment in single if segment.partitions is not None]
    values = {
        c.name: pa.array([_decode_value(key[i], c.type) for key in keys], c.type) for i, c in enumerate(columns.columns)
    }
    yield _make_counts(values, hot_rows=[split.num_live(s.offsets.intersect(split.offsets)) for s in single])
    for log_batch in read_split(table.storage, replace(split, segments=mixed), columns):
        rows = log_batch.batch
        yield _make_counts(dict(zip(columns.names, rows.columns, strict=True)), hot_rows=[1] * rows.num_rows)


def _make_counts(values: Mapping[str, pa.Array | pa.ChunkedArray], **counts: Sequence[int | None]) -> pa.Table:
    num_rows = len(next(iter(counts.values())))
    count_columns = {name: pa.array(counts.get(name, [0] * num_rows), pa.int64()) for name in _COUNTS}
    return pa.table({**values, **count_columns})


def _decode_value(value: Any, data_type: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_decimal(data_type):
        return decimal.Decimal(value)
    if pa.types.is_binary(data_type):
        return bytes.fromhex(value)
    return float(value) if pa.types.is_floating(data_type) else value
