"""`streamhouse_spark.lookup_join`: each task looks up keys in the tablets of its host, without a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.lookup.lookup import Lookup
from streamhouse_spark.lookup.lookup_join import LookupPlan
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

MapArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def join_by_lookup(
    df: DataFrame,
    connection: Connection,
    name: str,
    on: object,
    columns: Sequence[str] | None,
    how: str,
    prefix: str,
    max_staleness_ms: int | None,
) -> DataFrame:
    """Join as `streamhouse_spark.lookup_join` does. All arguments are validated before Spark runs."""
    table = connection.table(str(parse_table_name(name).require_table("join with")))
    fields = df.schema.fields
    plan = LookupPlan.of(table.state, [field.name for field in fields], on, columns, how, prefix)
    key_types = spark_versions.arrow_schema_of(StructType([fields[place] for place in plan.on_places])).types
    plan.on.require_types(key_types, table.name)
    Lookup(table.keyed).state(max_staleness_ms)  # validates max_staleness_ms
    schema = StructType([*fields, *spark_versions.spark_schema_of(pa.schema(plan.fields)).fields])
    return df.mapInArrow(_make_task(connection, table, plan, max_staleness_ms), schema)


def _make_task(connection: Connection, table: Table, plan: LookupPlan, max_staleness_ms: int | None) -> MapArrow:
    name, uuid = table.name, table.uuid

    def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lookup = Lookup(connection.table_by_uuid(name, uuid).keyed)
        find = partial(lookup.matches, columns=plan.columns, max_staleness_ms=max_staleness_ms)
        for batch in batches:
            yield from plan.batches(batch, find)

    return join
