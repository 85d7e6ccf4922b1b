"""The first rows of anything readable by name, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.expressions.filters import Projection, filter_and_project, parse_filter
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.log.state import TableState
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
    if parsed.suffix == CHANGELOG:
        state = table.refresh()
        batches = _read_changelog(table, state, columns, filter_)
        schema = with_fields(CHANGELOG_FIELDS, state.schema.arrow)
        result_schema = filter_and_project(schema.empty_table(), columns, None).schema
    else:
        state = table.refresh()
        projection = Projection.of(state.schema, columns, parse_filter(filter_))
        result_schema = projection.schema
        if parsed.suffix == LAKE:
            batches = _read_rows(table, plan_lake(table, state, projection), projection)
        else:
            batches = _read_union(table, take_latest_snapshot(state), projection)
    return _take_rows(batches, limit, result_schema)


def _take_rows(batches: Iterator[pa.Table], limit: int, schema: pa.Schema) -> pa.Table:
    tables = [schema.empty_table()]
    missing = limit
    while missing > 0 and (rows := next(batches, None)) is not None:
        tables.append(rows.slice(0, missing))
        missing -= tables[-1].num_rows
    return pa.concat_tables(tables)


def _read_union(table: TableHandle, pin: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
    request = ScanRequest.of(projection)
    plan = read_with_fallback(
        table, pin, InitialSchema(request.columns), lambda snapshot: plan_scan(table, snapshot, request).plan(table)
    )
    return _read_rows(table, plan, projection)


def _read_rows(table: TableHandle, plan: ScanPlan, projection: Projection) -> Iterator[pa.Table]:
    for batch in read_batches(table, plan, filter=projection.filter, mask=projection.mask):
        yield projection.finish(pa.Table.from_batches([batch]))


def _read_changelog(
    table: TableHandle, state: TableState, columns: Sequence[str] | None, filter_: Any
) -> Iterator[pa.Table]:
    parsed = parse_filter(filter_)
    for batch in changelog_batches(table, state):
        yield filter_and_project(pa.Table.from_batches([batch]), columns, parsed)
