"""Union read: the rows of a lake snapshot and of the log from exactly its offsets on, as one table.

The log of a primary-key table contains changes, which are merged by key and replace older rows. Lake rows are streamed
in batches, so memory is bounded by the changes that are not tiered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_tables
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
from streamhouse_spark.read.scan_tasks import ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.read.time_travel import table_as_of, take_historical_snapshot
from streamhouse_spark.table_handle import TableHandle


def read_latest(table: TableHandle, snapshot: ReadSnapshot, projection: Projection) -> pa.Table:
    """Read the rows of a read snapshot, or of a fallback snapshot if it can no longer be read.

    Raises `SchemaMismatchError` if columns of the projection changed in the fallback snapshot.
    """
    return read_with_fallback(
        table,
        snapshot,
        InitialSchema(projection.read_columns),
        lambda chosen: read_snapshot_rows(table, chosen, projection),
    )


def plan_union(table: TableHandle, columns: Sequence[str], *, as_of_timestamp_ms: int | None = None) -> ScanPlan:
    """Plan a read of the latest state, or of the state at ``as_of_timestamp_ms``.

    Raises `OffsetsTrimmedError`, `SnapshotExpiredError`, `SchemaMismatchError`.
    """

    def plan(snapshot: ReadSnapshot, of: TableHandle = table) -> ScanPlan:
        return plan_scan(of, snapshot, ScanRequest(tuple(columns))).plan(of)

    state = table.refresh()
    if as_of_timestamp_ms is not None:
        historical_table, state = table_as_of(table, state, as_of_timestamp_ms)
        return plan(take_historical_snapshot(historical_table, state, as_of_timestamp_ms), historical_table)
    return read_with_fallback(table, take_latest_snapshot(state), InitialSchema(columns), plan)


def read_snapshot_rows(table: TableHandle, snapshot: ReadSnapshot, projection: Projection) -> pa.Table:
    """Read all rows of a read snapshot. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `CorruptDataError`."""
    return projection.joined(list(_read_tables(table, snapshot, projection)))


def read_hot_rows(table: TableHandle, snapshot: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
    """Read the rows of a log table in the log ranges of a read snapshot, one Arrow table per bucket."""
    yield from _read_tables(table, replace(snapshot, lake=None), projection)


def _read_tables(table: TableHandle, snapshot: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
    plan = plan_scan(table, snapshot, ScanRequest.of(projection)).plan(table)
    return map(projection.finish, read_tables(table, plan, filter=projection.filter, node=projection.node))
