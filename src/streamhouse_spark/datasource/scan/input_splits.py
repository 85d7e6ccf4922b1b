"""Splits of a scan, sized by the requested columns, and their packing into Spark partitions."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.datasource.scan.file_systems import FileSystems
from streamhouse_spark.lake.types import ScanFile
from streamhouse_spark.read import scan_tasks
from streamhouse_spark.read.scan_planning import ScanSources, plan_lake_tasks
from streamhouse_spark.read.split_planning import (
    OPENING_BYTES,
    TARGET_BYTES_MAX,
    align_to_changes,
    group_by_bucket,
    pack_neighbours,
    split_large_tasks,
    target_partition_bytes,
)
from streamhouse_spark.schema.table_schema import TableSchema

_TEXT_BYTES = 24
_NESTED_BYTES = 64
_KEYED_ROW_BYTES = 64
_NATIVE_ROWS_MIN = 256 << 10
"""Number of rows whose decoding and aggregation take about as long as starting five tasks."""
_ONE_TASK_BYTES_MAX = 16 << 20
"""Bytes of the requested columns that one core reads in a few tenths of a second. Up to this size, a second task costs
more time than it saves.
"""
BUCKET_SPREAD_MAX = 4
"""Maximum cores per bucket for grouping by bucket. With more cores, too many of them would be idle."""
SplitT = TypeVar("SplitT", bound="Split")


@dataclass(frozen=True, slots=True)
class ParquetSplit:
    """Byte range of a Parquet file for Spark's own reader, which reads the row groups whose midpoint is in the
    range.
    """

    path: str
    """A URI, percent-encoded."""
    start: int
    length: int
    file_bytes: int
    bucket: int | None
    num_rows: int
    size_bytes: int
    """Estimated bytes of the requested columns."""
    deletes: tuple[tuple[str, int], ...] = ()
    """Position delete files of the whole file: URI and bytes."""
    deleted_positions: str | None = None
    """Deleted positions that are in none of ``deletes``, in the encoding of `encode_positions`."""
    file_rows: int = 0
    """Rows of the whole file, including deleted ones."""

    @property
    def is_exact(self) -> bool:
        """Whether ``num_rows`` is exact."""
        return self.length == self.file_bytes and not self.deletes and self.deleted_positions is None

    def to_json(self) -> dict[str, Any]:
        deletes = [{"path": path, "size": size_bytes} for path, size_bytes in self.deletes]
        return {
            "path": self.path,
            "start": self.start,
            "length": self.length,
            "size": self.file_bytes,
            "deletes": deletes,
            "deleted_positions": self.deleted_positions,
            "rows": self.file_rows,
        }


@dataclass(frozen=True, slots=True)
class ArrowSplit:
    """A scan task that Python reads."""

    piece: scan_tasks.ScanTask
    bucket: int | None
    num_rows: int
    size_bytes: int
    is_exact: bool
    """Whether ``num_rows`` is exact."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """All splits of a scan."""

    native: list[ParquetSplit]
    hot: list[ArrowSplit]
    target_bytes: int
    """Target size of a group that Python reads."""
    native_target_bytes: int
    """Target size of a group that Spark's own reader reads."""

    @property
    def all(self) -> list[ParquetSplit | ArrowSplit]:
        return [*self.native, *self.hot]


def plan_splits(
    sources: ScanSources,
    columns: Sequence[str],
    *,
    file_systems: FileSystems | None,
    drops_rows: bool,
    parallelism: int,
) -> SplitPlan:
    """Cut the sources into splits. Spark reads lake files through ``file_systems`` where it can, Python everything
    else.

    ``drops_rows`` means that Java can drop rows by position.
    """
    files = sources.lake.files if sources.lake is not None else ()
    paths = [_native_path(file, sources, columns, file_systems, drops_rows=drops_rows) for file in files]
    of_lake, of_log = (
        estimate_lake_fraction(files, sources.state.schema, columns),
        estimate_log_fraction(sources.state.schema, columns),
    )
    python_files = (file for file, path in zip(files, paths, strict=True) if path is None)
    pieces: list[tuple[scan_tasks.ScanTask, int | None, float]] = [
        (p, p.bucket, of_lake) for p in plan_lake_tasks(python_files)
    ]
    pieces.extend((piece, _bucket_of(piece), of_log) for piece in group_by_bucket(sources.tasks))
    of_files = [_Weight(int(file.size_bytes * of_lake)) for file in files]
    weights = [*of_files, *(_Weight(int(p.size_bytes * f)) for p, _, f in pieces)]
    target_bytes = target_partition_bytes(weights, parallelism)
    native_target_bytes = _native_target_bytes(of_files, weights, parallelism, _native_bytes_min(files, of_lake))
    native = [
        split
        for file, path in zip(files, paths, strict=True)
        if path is not None
        for split in split_parquet_file(file, path, of_lake, native_target_bytes, _delete_paths(file, file_systems))
    ]
    hot = [
        _arrow_split(part, bucket, fraction, are_exact=sources.are_exact)
        for piece, bucket, fraction in pieces
        for part in split_large_tasks([piece], int(target_bytes / fraction))
    ]
    return SplitPlan(native, hot, target_bytes, native_target_bytes)


def _native_target_bytes(
    of_files: Sequence[_Weight], weights: Sequence[_Weight], parallelism: int, min_bytes: int
) -> int:
    """Return the partition size for Spark's own reader: one partition per core for small scans, about two for larger
    scans, so that no core is idle for long at the end.
    """
    share_bytes = sum(weight.size_bytes + OPENING_BYTES for weight in of_files) // parallelism
    if share_bytes <= _ONE_TASK_BYTES_MAX:
        return target_partition_bytes(of_files, parallelism, min_bytes=min_bytes, per_core=1)
    return target_partition_bytes(weights, parallelism, min_bytes=min_bytes)


def _native_bytes_min(files: Sequence[ScanFile], fraction: float) -> int:
    """Return the minimum bytes of a partition of Spark's own reader, which depend on the row count. Well-compressed
    columns have many rows in few bytes, and a fixed minimum would leave all of them to one core.
    """
    num_rows = sum(file.num_rows for file in files)
    num_bytes = sum(int(file.size_bytes * fraction) + OPENING_BYTES for file in files)
    return num_bytes * _NATIVE_ROWS_MIN // max(1, num_rows)


@dataclass(frozen=True, slots=True)
class _Weight:
    size_bytes: int
    """Bytes of the requested columns."""


def _native_path(
    file: ScanFile, sources: ScanSources, columns: Sequence[str], file_systems: FileSystems | None, *, drops_rows: bool
) -> str | None:
    """Return the file's URI if Spark's own reader returns exactly the rows of the file; else None."""
    assert sources.lake is not None
    can_drop = drops_rows and file.merge is None and bool(file.own_deletes or not file.position_deletes)
    if file_systems is None or not (file.has_rows_as_stored or can_drop):
        return None
    if not sources.lake.readable_by_name.issuperset(columns):
        return None
    if any(file_systems.uri_of(location) is None for location, _ in file.own_deletes):
        return None
    return file_systems.uri_of(file.location)


def _delete_paths(file: ScanFile, file_systems: FileSystems | None) -> tuple[tuple[str, int], ...]:
    assert file_systems is not None
    return tuple((str(file_systems.uri_of(location)), size_bytes) for location, size_bytes in file.own_deletes)


def _bucket_of(piece: scan_tasks.ScanTask) -> int | None:
    match piece:
        case scan_tasks.LogScanTask(split) | scan_tasks.BinlogScanTask(split):
            return split.bucket
        case scan_tasks.OffsetsScanTask(bucket, _) | scan_tasks.ArchiveScanTask(bucket, _, _):
            return bucket
        case scan_tasks.KeyedScanTask(bucket):
            return bucket
        case scan_tasks.ChangesScanTask():
            return piece.bucket
    return None


def _arrow_split(piece: scan_tasks.ScanTask, bucket: int | None, fraction: float, *, are_exact: bool) -> ArrowSplit:
    size_bytes = max(1, int(piece.size_bytes * fraction))
    match piece:
        case scan_tasks.LogScanTask(split) | scan_tasks.BootstrapScanTask(split):
            return ArrowSplit(piece, bucket, split.num_rows, size_bytes, are_exact)
        case scan_tasks.BinlogScanTask(split, _, archived):
            num_rows = split.num_rows + sum(len(part.offsets) for part in archived)
            return ArrowSplit(piece, bucket, num_rows, size_bytes, are_exact)
        case scan_tasks.LakeScanTask(split):
            is_whole = split.is_plain and not piece.has_pending_deletes
            return ArrowSplit(piece, bucket, split.num_rows, size_bytes, are_exact and is_whole)
        case scan_tasks.OffsetsScanTask(_, offsets):
            return ArrowSplit(piece, bucket, len(offsets), size_bytes, are_exact and piece.snapshot_id is None)
        case scan_tasks.ArchiveScanTask(_, offsets):
            return ArrowSplit(piece, bucket, len(offsets), size_bytes, are_exact)
        case scan_tasks.KeyedScanTask(_, lake):
            num_rows = lake.num_rows if lake is not None else max(1, size_bytes // _KEYED_ROW_BYTES)
            return ArrowSplit(piece, bucket, num_rows, size_bytes, is_exact=False)
        case scan_tasks.ChangesScanTask():
            return ArrowSplit(piece, bucket, piece.commits.num_rows, size_bytes, is_exact=False)
        case scan_tasks.ViewScanTask() | scan_tasks.FileRowsScanTask() | scan_tasks.VersionRowsScanTask():
            return ArrowSplit(piece, bucket, 1, size_bytes, is_exact=False)


def split_parquet_file(
    file: ScanFile, path: str, fraction: float, target_bytes: int, deletes: tuple[tuple[str, int], ...] = ()
) -> Iterator[ParquetSplit]:
    """Yield the whole file, or parts of about the target size. Parts end between row groups if these are known."""
    cuts = [0, *_cut_positions(file, int(target_bytes / fraction)), file.size_bytes]
    deleted_bits = encode_positions(file.deleted_positions) if file.deleted_positions is not None else None
    for start, end in itertools.pairwise(cuts):
        size_bytes = max(1, int((end - start) * fraction))
        num_rows = _estimate_rows_before(file, end) - _estimate_rows_before(file, start)
        of_file = file.size_bytes, file.bucket, num_rows, size_bytes, deletes, deleted_bits, file.num_rows
        yield ParquetSplit(path, start, end - start, *of_file)


def encode_positions(positions: OffsetSet) -> str:
    """Encode positions as a bitmap up to the last position, least significant bit first, deflated, in base64."""
    bits = np.zeros(positions.range.end, np.bool_)
    bits[positions.offsets()] = True
    return base64.b64encode(zlib.compress(np.packbits(bits, bitorder="little").tobytes(), 1)).decode()


def _estimate_rows_before(file: ScanFile, position: int) -> int:
    """Estimate the rows before a byte position. The estimates of all parts of a file add up to its row count."""
    return file.num_rows * position // max(1, file.size_bytes)


def _cut_positions(file: ScanFile, target_bytes: int) -> list[int]:
    if file.size_bytes <= target_bytes * 3 // 2:
        return []
    if not file.row_group_starts:
        return list(range(target_bytes, file.size_bytes - target_bytes // 2, target_bytes))
    cuts: list[int] = []
    begin = 0
    for start in sorted(file.row_group_starts)[1:]:
        if start - begin >= target_bytes:
            cuts.append(start)
            begin = start
    return cuts


def estimate_log_fraction(schema: TableSchema, columns: Iterable[str]) -> float:
    """Estimate the requested columns' share of a row's bytes by the widths of their types."""
    column_bytes = sum(_width_bytes(schema.column(name).type) for name in columns)
    return max(column_bytes / sum(_width_bytes(column.type) for column in schema.columns), 0.001)


def estimate_lake_fraction(files: Sequence[ScanFile], schema: TableSchema, columns: Sequence[str]) -> float:
    """Estimate the requested columns' share of the bytes by the column sizes in file metadata."""
    column_bytes = sum(file.column_bytes.get(name, 0) for file in files for name in columns)
    total_bytes = sum(size_bytes for file in files for size_bytes in file.column_bytes.values())
    return max(column_bytes / total_bytes, 0.001) if total_bytes else estimate_log_fraction(schema, columns)


def narrowest_column(schema: TableSchema) -> str:
    """Return the column that is cheapest to read in order to count rows."""
    return min(schema.columns, key=lambda column: _width_bytes(column.type)).name


def _width_bytes(data_type: pa.DataType) -> int:
    if pa.types.is_nested(data_type):
        return _NESTED_BYTES
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


Split: TypeAlias = ParquetSplit | ArrowSplit


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of splits, one per Spark partition, as (bucket, splits). The bucket is None if a group may mix buckets."""

    native: Sequence[tuple[int | None, Sequence[ParquetSplit]]]
    hot: Sequence[tuple[int | None, Sequence[ArrowSplit]]]
    is_keyed: bool
    """Whether every group belongs to one bucket and every bucket has a group, so that Spark can join and aggregate by
    the key without a shuffle.
    """


def group_splits(splits: SplitPlan, *, num_buckets: int | None, limit: int | None, parallelism: int) -> Groups:
    """Pack the splits into groups: by bucket if ``num_buckets`` is set and there are enough buckets, else by size.

    With a ``limit``, only splits with that many rows are packed if possible.
    """
    if limit is not None:
        return _pack(_limit_splits(splits, limit))
    if num_buckets is not None and all(split.bucket is not None for split in splits.all):
        is_small = sum(split.size_bytes for split in splits.all) <= TARGET_BYTES_MAX
        if is_small or num_buckets * BUCKET_SPREAD_MAX >= parallelism:
            return pack_by_bucket(splits, num_buckets)
    return _pack(splits)


def _pack(splits: SplitPlan) -> Groups:
    native = pack_neighbours(splits.native, splits.native_target_bytes) if splits.native else []
    hot = _pack_arrow_splits(splits.hot, splits.target_bytes)
    return Groups([(None, group) for group in native], [(None, group) for group in hot], is_keyed=False)


def pack_by_bucket(splits: SplitPlan, num_buckets: int) -> Groups:
    """Pack splits into groups of one bucket each. A bucket without rows gets an empty native group, which starts no
    Python task.
    """
    native_groups: list[tuple[int | None, Sequence[ParquetSplit]]] = []
    hot_groups: list[tuple[int | None, Sequence[ArrowSplit]]] = []
    for bucket in range(num_buckets):
        native = [split for split in splits.native if split.bucket == bucket]
        hot = [split for split in splits.hot if split.bucket == bucket]
        empty: list[list[ParquetSplit]] = [] if hot else [[]]
        packed = pack_neighbours(native, splits.target_bytes) if native else empty
        native_groups.extend((bucket, group) for group in packed)
        hot_groups.extend((bucket, group) for group in _pack_arrow_splits(hot, splits.target_bytes))
    return Groups(native_groups, hot_groups, is_keyed=True)


def _pack_arrow_splits(splits: Sequence[ArrowSplit], target_bytes: int) -> list[list[ArrowSplit]]:
    return align_to_changes(pack_neighbours(splits, target_bytes), lambda split: split.piece) if splits else []


def _limit_splits(splits: SplitPlan, limit: int) -> SplitPlan:
    """Return the first splits that certainly have ``limit`` rows, or all splits. Inexact row counts are ignored."""
    if (native := _first_with_rows(splits.native, limit)) is not None:
        return replace(splits, native=native, hot=[])
    if (hot := _first_with_rows(splits.hot, limit)) is not None:
        return replace(splits, native=[], hot=hot)
    return splits


def _first_with_rows(splits: Sequence[SplitT], limit: int) -> list[SplitT] | None:
    """Return the first splits with ``limit`` rows. Returns None if all splits together may have fewer."""
    num_rows = 0
    for count, split in enumerate(splits, start=1):
        num_rows += split.num_rows if split.is_exact else 0
        if num_rows >= limit:
            return list(splits[:count])
    return None


def groups_to_json(groups: Groups) -> dict[str, Any]:
    """Return the groups as JSON for Java, without the scan tasks of hot groups."""
    native = (split for _, group in groups.native for split in group)
    hot = (split for _, group in groups.hot for split in group)
    splits: list[Split] = [*native, *hot]
    return {
        "native": [
            {"bucket": bucket, "files": [split.to_json() for split in group]} for bucket, group in groups.native
        ],
        "hot": [{"bucket": bucket} for bucket, _ in groups.hot],
        "rows": sum(split.num_rows for split in splits),
        "bytes": sum(split.size_bytes for split in splits),
        "keyed": groups.is_keyed,
    }
