"""The first rows of anything readable by name, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.lake.base import LakePlan
from streamhouse_spark.log.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.log.scan import plan_range, read_split
from streamhouse_spark.paths import parse_table_name
from streamhouse_spark.pin import Pin, pin_newest, require_recorded
from streamhouse_spark.projection import Projection, narrowed, parse_filter
from streamhouse_spark.table import Table
from streamhouse_spark.union_read import read_keyed
from streamhouse_spark.views import CHANGELOG, LAKE, changelog_batches
from streamhouse_spark.warehouse import Warehouse


def schema_of(warehouse: Warehouse, name: str) -> pa.Schema:
    return warehouse.view(name).schema


def first_rows(
    warehouse: Warehouse, name: str, limit: int, *, columns: Sequence[str] | None = None, filter_: Any = None
) -> pa.Table:
    """At most ``limit`` rows. Reads lake files and log segments only until there are enough."""
    parsed = parse_table_name(name)
    view = warehouse.view(name)
    if parsed.suffix not in (None, LAKE, CHANGELOG):
        return view.to_arrow(columns=columns, filter=filter_).slice(0, limit)
    table = warehouse.table(str(parsed.path))
    if parsed.suffix == CHANGELOG:
        batches = _changelog(table, columns, filter_)
        schema = with_fields(CHANGELOG_FIELDS, table.schema)
        wanted = narrowed(schema.empty_table(), columns, None).schema
    else:
        projection = Projection.of(table.refresh().schema, columns, parse_filter(filter_))
        wanted = projection.schema
        lake_only = parsed.suffix == LAKE
        batches = _lake_only(table, projection) if lake_only else _union(table, projection)
    return _first(batches, limit, wanted)


def _first(batches: Iterator[pa.Table], limit: int, schema: pa.Schema) -> pa.Table:
    found = [schema.empty_table()]
    missing = limit
    while missing > 0 and (rows := next(batches, None)) is not None:
        found.append(rows.slice(0, missing))
        missing -= found[-1].num_rows
    return pa.concat_tables(found)


def _union(table: Table, projection: Projection) -> Iterator[pa.Table]:
    pin = pin_newest(table.state)
    if pin.state.primary_key:
        yield from read_keyed(table, pin, projection)
        return
    plan = None
    if pin.lake is not None:
        try:
            plan = _lake_plan(table, pin, projection)
        except SnapshotExpiredError:
            pin = table.repinned()
            plan = _lake_plan(table, pin, projection)
    if plan is not None:
        yield from _lake_rows(table, plan, projection)
    for bucket, offsets in pin.hot.items():
        split = plan_range(pin.state, bucket, offsets, projection.filter)
        for found in read_split(table.storage, split, pin.state.schema, projection.read_columns):
            yield projection.finish(projection.filtered(pa.Table.from_batches([found.batch])))


def _lake_plan(table: Table, pin: Pin, projection: Projection) -> LakePlan:
    assert pin.lake is not None
    plan = table.open_lake().plan_read(
        snapshot_id=pin.lake.snapshot_id,
        columns=projection.read_columns,
        predicates=projection.predicates,
        schema=table.state.schema,
    )
    require_recorded(pin.state, pin.lake, plan.snapshot)
    return plan


def _lake_only(table: Table, projection: Projection) -> Iterator[pa.Table]:
    plan = table.lake.plan(projection)
    if plan is not None:
        yield from _lake_rows(table, plan, projection)


def _lake_rows(table: Table, plan: LakePlan, projection: Projection) -> Iterator[pa.Table]:
    lake = table.open_lake()
    for split in plan.splits:
        for batch in lake.read_split(split, plan.projection, filter=projection.filter):
            yield projection.finish(pa.Table.from_batches([batch]))


def _changelog(table: Table, columns: Sequence[str] | None, filter_: Any) -> Iterator[pa.Table]:
    parsed = parse_filter(filter_)
    for batch in changelog_batches(table):
        yield narrowed(pa.Table.from_batches([batch]), columns, parsed)
