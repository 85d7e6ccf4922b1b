"""The first rows of anything readable by name, without reading all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.expressions.filters import Projection, filter_and_project, parse_filter
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_lake, plan_scan
from streamhouse_spark.read.scan_tasks import ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.table.system_views import CHANGELOG, LAKE, changelog_batches
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.warehouse import Warehouse


def schema_of(warehouse: Warehouse, name: str) -> pa.Schema:
    return warehouse.view(name).schema


def first_rows(
    warehouse: Warehouse, name: str, limit: int, *, columns: Sequence[str] | None = None, filter_: Any = None
) -> pa.Table:
    """Return at most ``limit`` rows. Lake files and log segments are read only until there are enough."""
    parsed = parse_table_name(name)
    view = warehouse.view(name)
    if parsed.suffix not in (None, LAKE, CHANGELOG):
        return view.to_arrow(columns=columns, filter=filter_).slice(0, limit)
    table = warehouse.table(str(parsed.path))
    state = table.refresh()
    if parsed.suffix == CHANGELOG:
        changes, filter_ = changelog_batches(table, state), parse_filter(filter_)
        schema = filter_and_project(
            with_fields(CHANGELOG_FIELDS, state.schema.arrow).empty_table(), columns, None
        ).schema
        batches = (filter_and_project(pa.Table.from_batches([batch]), columns, filter_) for batch in changes)
    else:
        projection = Projection.of(state.schema, columns, parse_filter(filter_))
        schema = projection.schema
        if parsed.suffix == LAKE:
            plan = plan_lake(table, state, projection)
        else:
            plan = _plan_union(table, take_latest_snapshot(state), ScanRequest.of(projection))
        read = read_batches(table, plan, filter=projection.filter, node=projection.node)
        batches = (projection.finish(pa.Table.from_batches([batch])) for batch in read)
    tables = [schema.empty_table()]
    missing = limit
    while missing > 0 and (rows := next(batches, None)) is not None:
        tables.append(rows.slice(0, missing))
        missing -= tables[-1].num_rows
    return pa.concat_tables(tables)


def _plan_union(table: TableHandle, pin: ReadSnapshot, request: ScanRequest) -> ScanPlan:
    return read_with_fallback(
        table, pin, InitialSchema(request.columns), lambda snapshot: plan_scan(table, snapshot, request).plan(table)
    )
