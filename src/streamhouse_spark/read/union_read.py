"""The union read: what a lake snapshot holds, and the log beyond exactly its offsets, as one table.

Rows of a log table are those of both. Of a table with a primary key the log holds changes, which are collapsed by key
and laid over the older rows; memory is then bounded by the changes that are not in the lake yet, while the lake's rows
pass by in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.query.projection import Projection, parse_filter
from streamhouse_spark.read.historical_schema import take_historical_snapshot
from streamhouse_spark.read.planner import ScanRequest, plan_pin
from streamhouse_spark.read.previous_table import table_of_time
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_tables
from streamhouse_spark.read.scan_tasks import ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, with_stand_ins


def read_union(
    table: TableHandle,
    columns: Sequence[str] | None,
    where: pc.Expression | Sequence[Any] | None,
    as_of_timestamp_ms: int | None,
) -> pa.Table:
    """Read the newest state, or that of a time, as `Table.to_arrow` says."""
    state = table.refresh()
    if as_of_timestamp_ms is None:
        return read_newest(
            table, take_latest_snapshot(state), Projection.of(state.schema, columns, parse_filter(where))
        )
    if not isinstance(as_of_timestamp_ms, int):
        raise InvalidOptionError(
            f"as_of_timestamp_ms is {as_of_timestamp_ms!r}, expected milliseconds since 1970 as a whole number"
        )
    table, state = table_of_time(table, state, as_of_timestamp_ms)
    pin = take_historical_snapshot(table, state, as_of_timestamp_ms)
    return read_pin(table, pin, Projection.of(pin.state.schema, columns, parse_filter(where)))


def read_newest(table: TableHandle, pin: ReadSnapshot, projection: Projection) -> pa.Table:
    """Read the rows of a pin, or of a newer one where it can no longer be read.

    Raises `SchemaMismatchError` if columns of the projection are not those of the newer pin.
    """
    return with_stand_ins(
        table, pin, InitialSchema(projection.read_columns), lambda found: read_pin(table, found, projection)
    )


def plan_union(table: TableHandle, columns: Sequence[str], *, as_of_timestamp_ms: int | None = None) -> ScanPlan:
    """Plan a read of the newest state, or of one at a time.

    Raises `OffsetsTrimmedError`, `SnapshotExpiredError`, `SchemaMismatchError`.
    """

    def plan(pin: ReadSnapshot, of: TableHandle = table) -> ScanPlan:
        return plan_pin(of, pin, ScanRequest(tuple(columns))).plan(of)

    state = table.refresh()
    if as_of_timestamp_ms is not None:
        historical_table, state = table_of_time(table, state, as_of_timestamp_ms)
        return plan(take_historical_snapshot(historical_table, state, as_of_timestamp_ms), historical_table)
    return with_stand_ins(table, take_latest_snapshot(state), InitialSchema(columns), plan)


def read_pin(table: TableHandle, pin: ReadSnapshot, projection: Projection) -> pa.Table:
    """Read all rows of a pin. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `CorruptDataError`."""
    return projection.joined(list(_read_tables(table, pin, projection)))


def read_hot(table: TableHandle, pin: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
    """Read the rows of a pin's hot ranges of a log table, a table a bucket."""
    yield from _read_tables(table, replace(pin, lake=None), projection)


def _read_tables(table: TableHandle, pin: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
    plan = plan_pin(table, pin, ScanRequest.of(projection)).plan(table)
    return map(projection.finish, read_tables(table, plan, filter=projection.filter, mask=projection.mask))
