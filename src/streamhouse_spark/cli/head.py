"""The first rows of anything readable by name, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.lake.model.values import LakePlan
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.query.projection import Projection, narrowed, parse_filter
from streamhouse_spark.read.pin import Pin, pin_newest
from streamhouse_spark.read.union_read import planned_lake, read_keyed, repinned_for
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.views import CHANGELOG, LAKE, changelog_batches
from streamhouse_spark.warehouse.warehouse import Warehouse


def schema_of(warehouse: Warehouse, name: str) -> pa.Schema:
    return warehouse.view(name).schema


def first_rows(
    warehouse: Warehouse, name: str, limit: int, *, columns: Sequence[str] | None = None, filter_: Any = None
) -> pa.Table:
    """Return at most ``limit`` rows. Reads lake files and log segments only until there are enough."""
    parsed = parse_table_name(name)
    view = warehouse.view(name)
    if parsed.suffix not in (None, LAKE, CHANGELOG):
        return view.to_arrow(columns=columns, filter=filter_).slice(0, limit)
    table = warehouse.table(str(parsed.path))
    if parsed.suffix == CHANGELOG:
        state = table.refresh()
        batches = _changelog(table, state, columns, filter_)
        schema = with_fields(CHANGELOG_FIELDS, state.schema.arrow)
        wanted = narrowed(schema.empty_table(), columns, None).schema
    else:
        state = table.refresh()
        projection = Projection.of(state.schema, columns, parse_filter(filter_))
        wanted = projection.schema
        lake_only = parsed.suffix == LAKE
        batches = _lake_only(table, state, projection) if lake_only else _union(table, pin_newest(state), projection)
    return _first(batches, limit, wanted)


def _first(batches: Iterator[pa.Table], limit: int, schema: pa.Schema) -> pa.Table:
    found = [schema.empty_table()]
    missing = limit
    while missing > 0 and (rows := next(batches, None)) is not None:
        found.append(rows.slice(0, missing))
        missing -= found[-1].num_rows
    return pa.concat_tables(found)


def _union(table: Table, pin: Pin, projection: Projection) -> Iterator[pa.Table]:
    if pin.state.primary_key:
        yield from read_keyed(table, pin, projection)
        return
    plan = None
    if pin.lake is not None:
        try:
            plan = planned_lake(table, pin, projection)
        except SnapshotExpiredError:
            pin = repinned_for(table, pin, projection)
            plan = planned_lake(table, pin, projection) if pin.lake is not None else None
    if plan is not None:
        yield from _lake_rows(table, plan, projection)
    for bucket, offsets in pin.hot.items():
        split = plan_range(pin.state, bucket, offsets, projection.filter)
        for found in read_split(table.storage, split, pin.state.schema, projection.read_columns):
            yield projection.finish(projection.filtered(pa.Table.from_batches([found.batch])))


def _lake_only(table: Table, state: TableState, projection: Projection) -> Iterator[pa.Table]:
    plan = table.lake.plan(state, projection)
    if plan is not None:
        yield from _lake_rows(table, plan, projection)


def _lake_rows(table: Table, plan: LakePlan, projection: Projection) -> Iterator[pa.Table]:
    lake = table.open_lake()
    for split in plan.splits:
        for batch in lake.read_split(split, plan.projection, filter=projection.filter):
            yield projection.finish(pa.Table.from_batches([batch]))


def _changelog(table: Table, state: TableState, columns: Sequence[str] | None, filter_: Any) -> Iterator[pa.Table]:
    parsed = parse_filter(filter_)
    for batch in changelog_batches(table, state):
        yield narrowed(pa.Table.from_batches([batch]), columns, parsed)
