"""Reads of a lake in any format: file pruning, scans of a snapshot, and rows by their log offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.arrow_rows import drop_rows
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.expressions.predicates import Bounds, Node, constant_bounds, may_match, to_comparable
from streamhouse_spark.lake.column_mapping import ColumnMapping, InnerOf, find_no_nested_fields
from streamhouse_spark.lake.parquet.file_writer import may_hold, parse_file_offsets
from streamhouse_spark.lake.parquet.reader import (
    FilesAt,
    FileWithOffsets,
    num_rows_in,
    read_deleted_positions,
    read_file_offsets,
    read_in_offset_order,
    read_offsets,
)
from streamhouse_spark.lake.types import (
    ColumnStatistics,
    FieldNames,
    LakePlan,
    LakeProjection,
    LakeScan,
    LakeSnapshot,
    LakeSplit,
    ScanFile,
)
from streamhouse_spark.log.segments.metadata_columns import BUCKET
from streamhouse_spark.schema.nested_fields import Path, join_path, list_field_paths
from streamhouse_spark.schema.table_schema import Column, TableSchema

PlacedRows = Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]
"""Batches of rows with the offset of each row, in offset order."""


def file_may_match(file: ScanFile, schema: TableSchema, node: Node) -> bool:
    """Return False only if no row of the lake file can match the filter. Missing metadata matches any filter."""
    bounds: dict[str, Bounds] = {}
    if file.bucket is not None:  # null for rows that another engine rewrote
        bounds[BUCKET.name] = replace(constant_bounds(file.bucket), may_be_null=True)
    for name in node.columns():
        column = schema.find(name)
        if column is None:
            continue
        if name in file.partition:
            bounds[name] = constant_bounds(file.partition[name])
        elif name in file.statistics:
            bounds[name] = column_bounds(file.statistics[name], column.type, file.num_rows)
    return may_match(node, bounds)


def column_bounds(stats: ColumnStatistics, data_type: pa.DataType, num_rows: int) -> Bounds:
    """Return the bounds of a column of a lake file. Lake bounds exclude NaN, which Spark orders above all numbers."""
    low, high = stats.low, stats.high
    if low != low or high != high:  # noqa: PLR0124 - some writers include NaN in bounds
        low = high = None
    return Bounds(
        None if low is None else to_comparable(low),
        None if high is None else to_comparable(high),
        may_be_null=stats.null_count != 0,
        may_have_value=stats.null_count is None or stats.null_count < num_rows,
        may_be_nan=pa.types.is_floating(data_type) and stats.nan_count != 0,
    )


@dataclass(frozen=True, slots=True)
class LiveRows:
    location: str
    bucket: int | None
    """None for a file whose rows have no offsets."""
    rows: OffsetSet
    """Offsets, or positions in a file without offsets."""


def read_live_rows(files_at: FilesAt, splits: Sequence[LakeSplit], writers: Collection[str]) -> list[LiveRows]:
    """Return the live rows of the files of these splits, from footers and position deletes.

    Files of the tables ``writers`` have offsets. Raises `SnapshotExpiredError`, `CorruptDataError`.
    """

    def of_file(split: LakeSplit) -> LiveRows:
        files = files_at(split.location)
        own = (
            read_file_offsets(files, split.location, writers)
            if parse_file_offsets(split.location) is not None
            else None
        )
        deleted = OffsetSet.of(read_deleted_positions(files, split.location, split.position_deletes))
        if own is None:
            positions = OffsetSet.dense(0, num_rows_in(files, split.location))
            return LiveRows(split.location, None, positions.without(deleted))
        offsets = own.runs.without(OffsetSet.of(own.runs.offsets()[deleted.offsets()])) if deleted else own.runs
        return LiveRows(split.location, own.bucket, offsets)

    return list(parallel_map(of_file, list({split.location: split for split in splits}.values())))


def group_by_bucket(files: Iterable[LiveRows]) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the files whose rows have offsets."""
    parts: dict[int, list[OffsetSet]] = {}
    for file in files:
        if file.bucket is not None:
            parts.setdefault(file.bucket, []).append(file.rows)
    return {bucket: OffsetSet.merged(runs) for bucket, runs in parts.items()}


def read_log_range(
    files_at: FilesAt,
    plan: LakePlan,
    writers: Collection[str],
    bucket: int,
    offsets: OffsetRange,
    locations: Collection[str] | None = None,
    *,
    has_gaps: bool = False,
) -> PlacedRows:
    """Return the rows of a log range. See `LakeTable.read_with_offsets`; ``plan`` covers the whole snapshot.

    Checks that the files hold the range, and returns only rows of files in ``locations``.
    """
    splits = [s for s in plan.splits if may_hold(s.location, bucket, offsets) and (has_gaps or not s.position_deletes)]
    files = _read_offset_files(files_at, (split.location for split in splits), writers)
    may_lack = has_gaps and len(files) == len({s.location for s in splits}) and _has_all_offsets(plan)
    rows = read_offsets(files_at, files, bucket, offsets, plan.projection, locations, may_lack=may_lack)
    marked = _read_deleted_offsets(files_at, splits, {file.location: file for file in files if file.bucket == bucket})
    return _exclude_deleted(rows, marked) if marked else rows


def _read_deleted_offsets(
    files_at: FilesAt, splits: Sequence[LakeSplit], files: Mapping[str, FileWithOffsets]
) -> OffsetSet:
    """Return the offsets of rows in these files that position delete files delete."""
    deletes = {s.location: s.position_deletes for s in splits if s.position_deletes and s.location in files}

    def of_file(location: str) -> OffsetSet:
        positions = read_deleted_positions(files_at(location), location, deletes[location])
        return OffsetSet.of(files[location].runs.offsets_of(positions))

    return OffsetSet.merged(list(parallel_map(of_file, list(deletes))))


def _exclude_deleted(rows: PlacedRows, marked: OffsetSet) -> PlacedRows:
    for offsets, batch in rows:
        deleted = marked.holds(offsets)
        if not deleted.any():
            yield offsets, batch
        elif not deleted.all():
            yield offsets[~deleted], drop_rows(batch, deleted)


def read_stored_rows(
    files_at: FilesAt, plan: LakePlan, writers: Collection[str], bucket: int, rows: OffsetSet
) -> PlacedRows:
    """Return rows with offsets, in offset order. See `LakeTable.read_stored_rows`; ``plan`` covers the whole snapshot.

    Memory is bounded by one batch per open file. Raises `OffsetsTrimmedError` before the first row unless the files
    hold each offset exactly once.
    """
    splits = [s for s in plan.splits if may_hold(s.location, bucket, rows.range)]
    files = _read_offset_files(files_at, (split.location for split in splits), writers)
    shared = [(file, file.runs.common(rows)) for file in files if file.bucket == bucket]
    shared = [(file, runs) for file, runs in shared if runs]
    offsets = OffsetSet.merged([runs for _, runs in shared])
    if offsets.num_rows != rows.num_rows or offsets.num_rows != sum(runs.num_rows for _, runs in shared):
        raise OffsetsTrimmedError(
            f"bucket {bucket}: the lake's files hold {offsets.num_rows} rows at offsets {rows.range}, expected "
            f"{rows.num_rows}; retry the query, and if the error persists, start at a later offset"
        )
    parts = [(file, file.runs.within(runs.range)) for file, runs in shared]
    return read_in_offset_order(files_at, parts, rows.range, plan.projection)


def _read_offset_files(files_at: FilesAt, locations: Iterable[str], writers: Collection[str]) -> list[FileWithOffsets]:
    """Return the offsets of files from their footers, without files of other engines and tables."""
    distinct = list(dict.fromkeys(locations))
    footers = parallel_map(lambda location: read_file_offsets(files_at(location), location, writers), distinct)
    return [file for file in footers if file is not None]


def _has_all_offsets(plan: LakePlan) -> bool:
    """Return whether every row has an offset. If so, a missing row was removed from the lake."""
    return all(parse_file_offsets(split.location) is not None for split in plan.splits)


def find_rows_with_offsets(
    files_at: FilesAt, locations: Iterable[str], writers: Collection[str], rows: Mapping[int, OffsetSet]
) -> Mapping[int, OffsetSet]:
    """Return the offsets among ``rows`` that the files hold, from the footers of files that may hold some."""
    chosen = [at for at in locations if any(may_hold(at, bucket, runs.range) for bucket, runs in rows.items() if runs)]
    files = _read_offset_files(files_at, chosen, writers)
    return {
        bucket: OffsetSet.merged([file.runs.common(runs) for file in files if file.bucket == bucket])
        for bucket, runs in rows.items()
    }


def find_offsets_in_plan(
    files_at: FilesAt, plan: LakePlan, writers: Collection[str], ranges: Mapping[int, OffsetRange]
) -> Mapping[int, OffsetSet] | None:
    """Return the offsets of the ranges, by bucket, at which the plan has rows. Includes deleted rows.

    Reads the footers of candidate files. Returns None if the lake has a file without offsets, which may hold any row.
    """
    if not _has_all_offsets(plan):
        return None
    locations = {
        split.location
        for split in plan.splits
        if any(may_hold(split.location, bucket, offsets) for bucket, offsets in ranges.items())
    }
    files = _read_offset_files(files_at, locations, writers)
    if len(files) < len(locations):
        return None
    return {
        bucket: OffsetSet.merged([file.runs.within(offsets) for file in files if file.bucket == bucket])
        for bucket, offsets in ranges.items()
    }


class SnapshotScan(ABC):
    """The scan of one snapshot of a lake table, or of a table without snapshots, which has no files."""

    @abstractmethod
    def describe(self) -> LakeSnapshot | None: ...

    @abstractmethod
    def projection(self, columns: Sequence[str] | None, schema: TableSchema | None) -> LakeProjection:
        """Return the projection of the lake's columns to the table's. See `projection_of`."""

    @abstractmethod
    def files(
        self, every: LakeProjection, statistics_of: Sequence[str], node: Node, buckets: Collection[int] | None
    ) -> tuple[ScanFile, ...]:
        """Return the data files that may match the filter. ``every`` is the projection of all columns of the table.

        Statistics cover the filter's columns and ``statistics_of``. Files of other buckets may be returned too.
        """

    @abstractmethod
    def is_unchanged(self, column: Column, field_id: int | None) -> bool:
        """Return whether, in every other schema, each field is identical to this field of the lake or unrelated to it.

        ``column`` is the table's column with the name of the field.
        """

    def columns_same_by_name(self, projection: LakeProjection) -> frozenset[str]:
        """Return the projected columns that have one meaning by name in every file, whatever the file's schema."""
        columns = zip(
            projection.schema.columns, projection.field_ids, projection.lake_names, projection.inside, strict=True
        )
        return frozenset(
            column.name
            for column, field_id, lake_name, (inner, _) in columns
            if lake_name == column.name and inner is None and self.is_unchanged(column, field_id)
        )

    def plan(self, columns: Sequence[str] | None, node: Node, schema: TableSchema | None) -> LakePlan:
        """Return the splits to read. See `LakeTable.plan_read`."""
        projection = self.projection(columns, schema)
        files = self.files(self.projection(None, schema), (), node, None)
        return LakePlan(self.describe(), projection, tuple(split for file in files for split in file.splits()))

    def scan(
        self,
        columns: Sequence[str],
        schema: TableSchema,
        statistics_of: Sequence[str],
        node: Node,
        buckets: Collection[int] | None,
    ) -> LakeScan:
        """Return whole files with metadata. See `LakeTable.scan_files`."""
        projection, snapshot = self.projection(columns, schema), self.describe()
        assert snapshot is not None
        files = self.files(self.projection(None, schema), statistics_of, node, buckets)
        return LakeScan(snapshot, projection, files, self.columns_same_by_name(projection))


def identity_projection(schema: TableSchema, columns: Sequence[str] | None) -> LakeProjection:
    """Return the projection of the table's columns if there is no lake table."""
    projected = schema if columns is None else schema.select(columns)
    return LakeProjection(projected, tuple(column.id for column in projected.columns), projected.names)


def projection_of(
    lake: TableSchema,
    mapping: ColumnMapping,
    table: TableSchema,
    columns: Sequence[str] | None,
    schema: TableSchema | None,
    *,
    is_stored: Callable[[pa.DataType, int], bool],
    ambiguous: Callable[[str | None], str | None],
    inner_of: InnerOf = find_no_nested_fields,
) -> LakeProjection:
    """Return the projection of the lake's columns to the table's, by their ids.

    Without ``schema`` the result has the lake's columns, with the table's type if ``is_stored`` returns that the lake
    stores values of this type. ``ambiguous`` maps the lake name of an ambiguous column to the name to read it by, or
    None if the lake has no such column. ``inner_of`` returns the nested fields of a lake column. Raises
    `SchemaMismatchError` for a missing column.
    """
    if schema is None:
        projected = TableSchema(
            tuple(_restore_table_type(column, table, mapping, is_stored) for column in lake.columns)
        )
        field_ids = {column.id: column.id for column in projected.columns}
    else:
        projected = schema
        field_ids = {column_id: field.id for column_id, field in mapping.fields.items()}
    if columns is not None:
        projected = projected.select(columns)
    names = {column.id: column.name for column in lake.columns}
    lake_ids = tuple(field_ids.get(column.id) for column in projected.columns)
    in_lake = [None if i is None else names.get(i) for i in lake_ids]
    lake_names = tuple(
        ambiguous(name) if schema is not None and column.id in mapping.ambiguous else name or column.name
        for column, name in zip(projected.columns, in_lake, strict=True)
    )
    inner = tuple(
        _nested_lake_ids(column, field_id, mapping, inner_of if schema is None else None)
        for column, field_id in zip(projected.columns, lake_ids, strict=True)
    )
    if not any(inner):
        return LakeProjection(projected, lake_ids, lake_names)
    first = {lake_field.id: mapping.first_names.get(column_id, ()) for column_id, lake_field in mapping.fields.items()}
    first_names = tuple(
        first.get(i or 0) or _nested_lake_names(column, mapping.elsewhere.get(i or 0, {}))
        for column, i in zip(projected.columns, lake_ids, strict=True)
    )
    return LakeProjection(projected, lake_ids, lake_names, inner, first_names)


def _nested_lake_names(column: Column, inside: Mapping[Path, int]) -> FieldNames:
    """Return the nested names of a column whose nested fields never changed. The package's files use these names."""
    by_path = [(path, inside.get(tuple(name.casefold() for name in path))) for path in list_field_paths(column.type)]
    return tuple((field_id, join_path(path)) for path, field_id in by_path if field_id is not None)


def _nested_lake_ids(
    column: Column, field_id: int | None, mapping: ColumnMapping, inner_of: InnerOf | None
) -> tuple[int | None, ...] | None:
    """Return the lake ids of a column's nested fields, or None if its nested fields never changed in the lake.

    ``inner_of`` is set for a column of the lake.
    """
    own = next((field for field in mapping.fields.values() if field.id == field_id), None)
    if field_id is None or not ((own is not None and own.inner) or field_id in mapping.elsewhere):
        return None
    if inner_of is None and own is not None and own.inner:
        return tuple(own.inner.get(i) for i in column.inner_ids)
    inside = mapping.elsewhere[field_id] if inner_of is None else inner_of(field_id)
    return tuple(inside.get(tuple(name.casefold() for name in path)) for path in list_field_paths(column.type))


def _restore_table_type(
    column: Column, table: TableSchema, mapping: ColumnMapping, is_stored: Callable[[pa.DataType, int], bool]
) -> Column:
    """Return the lake's column, with the table's type if the lake stores values of this type."""
    column_id = mapping.columns().get(column.id)
    own = next((c for c in table.columns if c.id == column_id), None)
    if own is None or not is_stored(own.type, column.id):
        return column
    return Column(column.id, column.name, own.type, column.nullable, column.comment)
