"""The partitions of a table, shown and dropped: the distinct values of its partition columns, over lake and log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.grouping import distinct, in_order
from streamhouse_spark.datasource.catalog.cells import cell_value, json_values, same_cell
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.log.commits.actions import LakePair
from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read.pin import Pin, pin_newest
from streamhouse_spark.read.union_read import read_pin
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.partitions import drop_partitions
from streamhouse_spark.table.table import Table


def partition_rows(table: Table, wanted: Mapping[str, Any]) -> list[list[Any]]:
    """Return one row of JSON values a partition, in the order of the partition columns, sorted; null comes first.

    The lake has its partitions in its manifests; of the hot log the partition columns are read. Raises
    `InvalidOptionError` for a table without partitions, and for a name that is no partition column.
    """
    state = table.refresh()
    columns = state.partition_by
    if not columns:
        raise InvalidOptionError(f"table {table.name} is not partitioned; it has no partitions to show")
    positions = {_position(table, name): value for name, value in wanted.items()}
    try:
        found = _partitions_of(table, pin_newest(state))
    except SnapshotExpiredError:
        found = _partitions_of(table, table.repinned())
    found = in_order(found, columns)
    rows = zip(*(json_values(column) for column in found.columns), strict=True)
    shown = [list(row) for row in rows if all(same_cell(row[at], value) for at, value in positions.items())]
    return sorted(shown, key=lambda row: [value is not None for value in row])


def _partitions_of(table: Table, pin: Pin) -> pa.Table:
    schema = pin.state.schema.select(pin.state.partition_by).arrow
    parts = [distinct(part.cast(schema)) for part in _parts(table, pin)]
    return distinct(pa.concat_tables([schema.empty_table(), *parts]))


def drop_rows(table: Table, partitions: Sequence[Sequence[Any]]) -> None:
    """Drop the partitions with these JSON values of all partition columns, in one step.

    Raises as `Table.drop_partition`.
    """
    state = table.refresh()
    columns = [state.schema.column(name) for name in state.partition_by]
    rows = [
        {column.name: cell_value(cell, column.type) for column, cell in zip(columns, cells, strict=True)}
        for cells in partitions
    ]
    matches = tuple(PartitionMatch.of(row, state.schema, state.partition_by, table.name) for row in rows)
    drop_partitions(table, PartitionMatches(matches))


def _position(table: Table, name: str) -> int:
    folded = [column.casefold() for column in table.partition_by]
    if name.casefold() not in folded:
        raise InvalidOptionError(
            f"'{name}' is no partition column of {table.name}; it is partitioned by {', '.join(table.partition_by)}"
        )
    return folded.index(name.casefold())


def _parts(table: Table, pin: Pin) -> Iterator[pa.Table]:
    if pin.state.primary_key:  # a partition without rows is none, and rows may have been deleted
        yield read_pin(table, pin, Projection.of(pin.state.schema, pin.state.partition_by, None))
        return
    columns = pin.state.schema.select(pin.state.partition_by)
    if pin.lake is not None:
        yield _of_lake(table, pin, pin.lake, columns)
    yield from table.read_hot(pin, Projection.of(pin.state.schema, pin.state.partition_by, None))


def _of_lake(table: Table, pin: Pin, pair: LakePair, columns: TableSchema) -> pa.Table:
    """Return a row for each data file; for one of another engine with several partitions, for each row of the lake."""
    lake = table.open_lake()
    files = lake.scan_files(snapshot_id=pair.snapshot_id, columns=columns.names, schema=pin.state.schema).files
    if any(name not in file.partition for file in files for name in columns.names):
        plan = lake.plan_read(snapshot_id=pair.snapshot_id, columns=columns.names, schema=pin.state.schema)
        return lake.to_arrow(plan)
    values = ([file.partition[column.name] for file in files] for column in columns.columns)
    return pa.table([_array(v, c.type) for v, c in zip(values, columns.columns, strict=True)], columns.names)


def _array(plain: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of a column; days and microseconds are integers."""
    if pa.types.is_date32(kind):
        return pa.array(plain, pa.int32()).cast(kind)
    return pa.array(plain, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(plain, kind)
