"""List and drop partitions: the distinct values of a table's partition columns, over lake and log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.arrow_groupby import distinct_rows, sort_rows
from streamhouse_spark.datasource.catalog.spark_literals import is_same_cell, json_values, parse_cell
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read.planner import ScanRequest, scan_tiered_snapshot
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.read.union_read import read_hot_rows, read_snapshot_rows
from streamhouse_spark.table.overwrite import truncate_partitions as truncate_matching
from streamhouse_spark.table.partitions import drop_partitions as drop_matching


def list_partitions(table: TableHandle, partition_spec: Mapping[str, Any]) -> list[list[Any]]:
    """Return one row of JSON values per partition, in the order of the partition columns, sorted with nulls first.

    Lake partitions come from the manifests; of the hot log, the partition columns are read. Raises `InvalidOptionError`
    for an unpartitioned table and for a name that is not a partition column.
    """
    state = table.refresh()
    columns = state.partition_by
    if not columns:
        raise InvalidOptionError(f"table {table.name} is not partitioned by columns; there are no partitions to show")
    positions = {_partition_index(state, name): value for name, value in partition_spec.items()}
    partitions = read_with_fallback(
        table, take_latest_snapshot(state), InitialSchema(()), lambda pin: _distinct_partitions(table, pin)
    )
    partitions = sort_rows(partitions, columns)
    rows = zip(*(json_values(column) for column in partitions.columns), strict=True)
    matching_rows = [list(row) for row in rows if all(is_same_cell(row[at], value) for at, value in positions.items())]
    return sorted(matching_rows, key=lambda row: [value is not None for value in row])


def _distinct_partitions(table: TableHandle, pin: ReadSnapshot) -> pa.Table:
    schema = pin.state.schema.select(pin.state.partition_by).arrow
    parts = [distinct_rows(part.cast(schema)) for part in _read_partition_columns(table, pin)]
    return distinct_rows(pa.concat_tables([schema.empty_table(), *parts]))


def drop_partitions_by_value(table: TableHandle, partitions: Sequence[Sequence[Any]]) -> None:
    """Drop the partitions with these JSON values of all partition columns atomically.

    Raises as `Table.drop_partition`.
    """
    drop_matching(table, _partition_matches(table, table.refresh(), partitions))


def truncate_partitions_by_value(table: TableHandle, partitions: Sequence[Sequence[Any]]) -> None:
    """Remove the rows of the partitions with these JSON values of all partition columns.

    **Commit point:** one record.
    """
    state = table.refresh()
    matches = _partition_matches(table, state, partitions)
    if state.primary_key:
        drop_matching(table, matches)
    else:
        truncate_matching(table, matches)


def _partition_matches(table: TableHandle, state: TableState, partitions: Sequence[Sequence[Any]]) -> PartitionMatches:
    columns = [state.schema.column(name) for name in state.partition_by]
    rows = [
        {column.name: parse_cell(cell, column.type) for column, cell in zip(columns, cells, strict=True)}
        for cells in partitions
    ]
    return PartitionMatches(tuple(PartitionMatch.of(row, state.schema, state.partition_by, table.name) for row in rows))


def _partition_index(state: TableState, name: str) -> int:
    folded = [column.casefold() for column in state.partition_by]
    if name.casefold() not in folded:
        raise InvalidOptionError(
            f"'{name}' is no partition column of {state.name}; it is partitioned by {', '.join(state.partition_by)}"
        )
    return folded.index(name.casefold())


def _read_partition_columns(table: TableHandle, pin: ReadSnapshot) -> Iterator[pa.Table]:
    columns = Projection.of(pin.state.schema, pin.state.partition_by, None)
    if pin.state.primary_key or pin.state.deletions:  # empty partitions do not count
        yield read_snapshot_rows(table, pin, columns)
        return
    files = scan_tiered_snapshot(table, pin, ScanRequest(pin.state.partition_by)).files if pin.lake is not None else ()
    if any(name not in file.partition for file in files for name in columns.columns):
        yield read_snapshot_rows(table, pin, columns)
        return
    yield pa.table(
        [_partition_array([f.partition[c.name] for f in files], c.type) for c in columns.schema], columns.schema.names
    )
    yield from read_hot_rows(table, pin, columns)


def _partition_array(plain: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a partition column. Dates and timestamps are given as days and microseconds."""
    if pa.types.is_date32(kind):
        return pa.array(plain, pa.int32()).cast(kind)
    return pa.array(plain, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(plain, kind)
