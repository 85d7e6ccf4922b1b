"""Lookup joins and delta joins on Spark.

Each task of a lookup join looks up keys in the tablets of its host, without a shuffle. A delta join is one query that
reads the change feeds of both tables. Its tasks read the keys of changes and stage the changes that `DeltaPlan`
derives, and the sink commits a micro-batch in one record. A delta join must be a single query, because a second query
could overwrite newer rows with older rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from streamhouse_spark.core.arrow_rows import combine_small_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.delta_join import KIND_COLUMN, DeltaPlan, Join, JoinLookups, SideName
from streamhouse_spark.lookup.lookup_join import PREFIX_ROWS_MAX, ROWS_MAX, LookupPlan
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MapArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
APP_ID: Final = "delta_join"
"""Application id of all delta joins, so that a table accepts batches of one delta join and rejects any other."""


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
    """Implement `streamhouse_spark.lookup_join`. All arguments are validated before Spark runs."""
    table = connection.table(str(parse_table_name(name).require_table("join with")))
    fields = df.schema.fields
    plan = LookupPlan.of(table.state, [field.name for field in fields], on, columns, how, prefix)
    key_types = spark_versions.arrow_schema_of(StructType([fields[place] for place in plan.on_places])).types
    plan.on.require_types(key_types, table.name)
    BatchLookup(table.keyed).state(max_staleness_ms)  # validates max_staleness_ms
    schema = StructType([*fields, *spark_versions.spark_schema_of(pa.schema(plan.fields)).fields])
    return df.mapInArrow(_make_lookup_task(connection, table, plan, max_staleness_ms), schema)


def _make_lookup_task(connection: Connection, table: Table, plan: LookupPlan, max_staleness_ms: int | None) -> MapArrow:
    name, uuid = table.name, table.uuid

    def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lookup = BatchLookup(connection.table_by_uuid(name, uuid).keyed)
        find = partial(lookup.matches, columns=plan.columns, max_staleness_ms=max_staleness_ms)
        for batch in batches:
            yield from plan.batches(batch, find)

    return join


@dataclass(frozen=True, slots=True)
class DeltaJoinPlan:
    """A delta join. Each table is given by name and uuid."""

    left: tuple[str, str]
    right: tuple[str, str]
    target: tuple[str, str]
    delta: DeltaPlan


def plan_delta_join(
    connection: Connection,
    left: str,
    right: str,
    on: object,
    into: str,
    columns: Sequence[str] | None,
    how: str,
    prefix: str,
) -> DeltaJoinPlan:
    """Plan the query and validate all arguments. See `streamhouse_spark.delta_join`."""
    sides = [connection.table(str(parse_table_name(name).require_table("join"))) for name in (left, right)]
    join = Join.of(sides[0].state, sides[1].state, on, how, prefix)
    path = parse_table_name(into).require_table("write to")
    try:
        target = connection.table(str(path))
    except TableNotFoundError as error:
        raise TableNotFoundError(
            f"{error} To create it for this join, run CREATE TABLE streamhouse.{path} ({join.ddl(columns)})"
        ) from None
    left_table, right_table, target_table = ((table.name, table.uuid) for table in (*sides, target))
    return DeltaJoinPlan(left_table, right_table, target_table, DeltaPlan.of(join, target.state, columns))


def start(
    spark: SparkSession,
    connection: Connection,
    plan: DeltaJoinPlan,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    max_offsets: int | None,
) -> StreamingQuery:
    left = _read_changes(spark, connection, plan, "left", checkpoint, max_offsets)
    right = _read_changes(spark, connection, plan, "right", checkpoint, max_offsets)
    writer = (
        left.union(right)
        .writeStream.format("streamhouse")
        .options(**_connection_options(connection))
        .option("rowKindColumn", KIND_COLUMN)
        .option("txnAppId", APP_ID)
        .option("checkpointLocation", checkpoint)
    )
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start(plan.target[0])


def consumer_id(target_uuid: str, checkpoint: str, side: SideName) -> str:
    """Return the name of the consumer that records the position of a delta join in the log of a side.

    The name contains a hash of the checkpoint. A second query into the same table, which is rejected, therefore does
    not move the position of the first query.
    """
    query = xxhash.xxh3_64_hexdigest(checkpoint.rstrip("/").encode())
    return f"delta_join.{side}.{target_uuid}.{query}"


def _read_changes(
    spark: SparkSession,
    connection: Connection,
    plan: DeltaJoinPlan,
    side: SideName,
    checkpoint: str,
    max_offsets: int | None,
) -> DataFrame:
    """Return the changes of the target that result from the changes of one side."""
    name, uuid = plan.left if side == "left" else plan.right
    key = plan.delta.left_key if side == "left" else plan.delta.right_key
    schema = connection.table_by_uuid(name, uuid).schema
    fields = pa.schema([BUCKET, LOG_OFFSET, *(schema.field(column) for column in key)])
    reader = (
        spark.readStream.schema(spark_versions.spark_schema_of(fields))
        .format("streamhouse")
        .options(**_connection_options(connection))
        .option("readChangeFeed", "true")
        .option("includeMetadata", "true")
        .option("consumerId", consumer_id(plan.target[1], checkpoint, side))
    )
    if max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    return reader.load(name).mapInArrow(
        _make_task(connection, plan, side, key), spark_versions.spark_schema_of(plan.delta.schema)
    )


def _connection_options(connection: Connection) -> dict[str, str]:
    return {**dict(connection.settings), "warehouse": connection.location}


def _make_task(connection: Connection, plan: DeltaJoinPlan, side: SideName, key: Sequence[str]) -> MapArrow:
    delta = plan.delta

    def handle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = {
            "left": connection.table_by_uuid(*plan.left),
            "right": connection.table_by_uuid(*plan.right),
            "target": connection.table_by_uuid(*plan.target),
        }
        types = [tables[side].schema.field(column).type for column in key]
        for batch in batches:
            if not batch.num_rows:
                continue
            find = _make_lookups(tables, delta, side, _end_offsets(batch))
            columns = [batch.column(place).cast(t) for place, t in enumerate(types, start=2)]
            keys = pa.Table.from_arrays(columns, names=list(key))
            for first in range(0, keys.num_rows, PREFIX_ROWS_MAX):
                changes = delta.changes(side, keys.slice(first, PREFIX_ROWS_MAX), find)
                yield from combine_small_chunks(changes).to_batches(max_chunksize=ROWS_MAX)

    return handle


def _make_lookups(
    tables: Mapping[str, Table], delta: DeltaPlan, side: SideName, offsets: Mapping[int, OffsetRange]
) -> JoinLookups:
    """Return lookups that refresh their table on each call, and require that ``side`` contains ``offsets``."""
    columns = {"left": delta.columns_of("left"), "right": delta.columns_of("right"), "target": delta.target_key}
    lookup_by_table = {
        name: partial(
            BatchLookup(table.keyed).matches,
            columns=columns[name],
            max_staleness_ms=0,
            at_least=offsets if name == side else None,
        )
        for name, table in tables.items()
    }
    return JoinLookups(lookup_by_table["left"], lookup_by_table["right"], lookup_by_table["target"])


def _end_offsets(batch: pa.RecordBatch) -> dict[int, OffsetRange]:
    """Return bucket → offsets up to the batch's last row."""
    buckets, offsets = (batch.column(place).to_numpy() for place in (0, 1))
    ends = {bucket: int(offsets[buckets == bucket].max()) + 1 for bucket in np.unique(buckets).tolist()}
    return {bucket: OffsetRange(0, end) for bucket, end in ends.items()}
