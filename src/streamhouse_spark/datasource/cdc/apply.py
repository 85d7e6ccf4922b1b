"""Apply a micro-batch of change events: decode, validate, keep the latest change per key, and commit in one record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.cdc.avro_schemas import Auth, AvroSchemas
from streamhouse_spark.datasource.cdc.event_formats import (
    AVRO,
    FORMATS,
    UPSERT,
    EventFormat,
    EventParserUdf,
    ValueForms,
    convert_text,
    describe_fault,
)
from streamhouse_spark.datasource.cdc.row_validation import RowRules, validate_rows
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties
from streamhouse_spark.log.commit_validation import require_writable
from streamhouse_spark.log.state import TableState
from streamhouse_spark.warehouse.creation import DEAD_LETTERS
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NewColumns = Literal["fail", "ignore"]
_KIND: Final = "_streamhouse_kind"
_POSITION: Final = "_streamhouse_position"
_PLACE: Final = "_streamhouse_place"
_RANK: Final = "_streamhouse_rank"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class CdcPlan:
    """Arguments of a query for decoding and writing its events."""

    connection: Connection
    table: str
    columns: StructType
    key: tuple[str, ...]
    reader: EventParserUdf
    value: str
    position: tuple[str, ...]
    new_columns: NewColumns
    dead_letter: str | None
    avro: AvroSchemas | None
    """Schemas of Avro events."""


def plan_cdc(
    connection: Connection,
    events: DataFrame,
    into: str,
    event_format: EventFormat,
    forms: ValueForms,
    value: str,
    position: Sequence[str] | None,
    new_columns: NewColumns,
    dead_letter: str | None,
    registry: str | None,
    registry_auth: Auth | None,
    avro_schema: str | None,
) -> CdcPlan:
    """Plan the query and validate all arguments. See `streamhouse_spark.cdc`."""
    if event_format not in FORMATS:
        raise InvalidOptionError(f"format is {event_format!r}, expected one of {', '.join(FORMATS)}")
    if new_columns not in get_args(NewColumns):
        raise InvalidOptionError(f"new_columns is {new_columns!r}, expected fail or ignore")
    table = connection.table(str(parse_table_name(into).require_table("write to")))
    state = table.state
    require_writable(state, None)
    _require_last_row(state)
    columns = StructType(
        [StructField(c.name, c.dataType, c.nullable) for c in spark_versions.spark_schema_of(state.schema.arrow).fields]
    )
    forms.require(columns, are_numbers=event_format == "debezium-json", has_event_schemas=event_format == AVRO)
    event_columns = {field.name: field.dataType for field in events.schema}
    kinds = BinaryType if event_format == AVRO else StringType | BinaryType
    if not isinstance(event_columns.get(value), kinds):
        expected = "bytes" if event_format == AVRO else "text or bytes"
        raise InvalidOptionError(f"events have no column '{value}' of type {expected}; set value to their column")
    order = tuple(position) if position is not None else ("offset",)
    missing = [name for name in order if name not in event_columns]
    if missing or not order:
        raise InvalidOptionError(
            f"events have no column '{', '.join(missing)}' to order the events of a key; set position to the columns "
            "of the source's position, such as a log sequence number"
        )
    avro = None
    if event_format == AVRO:
        avro = AvroSchemas.of(events.sparkSession, registry, registry_auth, avro_schema, table.world)
    elif (registry, registry_auth, avro_schema) != (None, None, None):
        raise InvalidOptionError(
            f"registry, registry_auth and avro_schema are only for format {AVRO!r}, found {event_format!r}; omit them"
        )
    if dead_letter is not None:
        connection.warehouse().create_table(
            str(parse_table_name(dead_letter).require_table("write to")), DEAD_LETTERS, if_not_exists=True
        )
    reader = EventParserUdf.of(event_format, columns, state.primary_key, forms)
    reader.register(events.sparkSession)
    return CdcPlan(
        connection, table.name, columns, state.primary_key, reader, value, order, new_columns, dead_letter, avro
    )


def _require_last_row(state: TableState) -> None:
    if not state.primary_key:
        raise InvalidOptionError(
            f"table {state.name} has no primary key, which cdc needs to apply changes; create it with PRIMARY KEY"
        )
    engine = parse_keyed_properties(state.properties, state.schema, state.partition_by).merge_engine
    if engine not in ("last_row", "versioned"):
        raise InvalidOptionError(
            f"table {state.name} has the merge engine {engine}, expected the default engine or versioned, because "
            "change events replace rows; use another table"
        )


def start(plan: CdcPlan, events: DataFrame, checkpoint: str, trigger: Mapping[str, Any] | None) -> StreamingQuery:
    """Start the query. **Commit point** of each batch: the table's commit record."""
    writer = events.writeStream.option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(lambda batch, batch_id: apply(plan, batch, batch_id, checkpoint)).start()


def apply(plan: CdcPlan, batch: DataFrame, batch_id: int, checkpoint: str) -> None:
    """Write the changes of a batch, idempotently. Raises `SchemaMismatchError` before anything is written."""
    query_id = _query_id(batch.sparkSession, checkpoint)
    if not query_id:
        raise InvalidOptionError("cdc found no id of a streaming query; start the query with cdc(...)")
    decoded, summary = _decode_and_inspect(plan, batch)
    try:
        _require_accepted(plan, summary)
        if summary["bad"] and plan.dead_letter is not None:
            _write(plan, _dead_letters(plan, decoded), plan.dead_letter, query_id, batch_id)
        rows = _latest_changes(plan, decoded)
        _write(plan, rows, plan.table, query_id, batch_id, rowKindColumn=_KIND)
    finally:
        decoded.unpersist()


def _query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the running query. Spark Connect runs batches in a separate process without local properties, so
    there the id is read from the checkpoint, which Spark writes before the first batch.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        return context.getLocalProperty(_QUERY_ID) or None
    written = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").first()
    return json.loads(written[0]).get("id") if written is not None else None


def _decode_and_inspect(plan: CdcPlan, batch: DataFrame) -> tuple[DataFrame, Row]:
    """Return the decoded events, persisted, and their summary. If events have unknown schema ids, fetch the schemas and
    decode again. This is rare, because the schema of an id never changes.
    """
    rejected: dict[int, str] = {}
    while True:
        decoded = _decode_events(plan, batch, rejected).persist()
        try:
            summary = _summarise_events(decoded)
            unknown = {number for number in summary["unknown"] if number not in rejected}
            if plan.avro is None or not unknown:
                return decoded, summary
            rejected |= plan.avro.fetch(unknown)
        except BaseException:
            decoded.unpersist()
            raise
        decoded.unpersist()


def _decode_events(plan: CdcPlan, batch: DataFrame, rejected: Mapping[int, str]) -> DataFrame:
    """Decode the events, without tombstones. The columns are ``changes`` in the table's types, the ``reason`` and the
    original ``event`` of a bad event, the ``names`` of new columns, and the id of an ``unknown`` schema.
    """
    value = _column(plan.value)
    order = f.struct(*(_column(name).alias(name) for name in plan.position))
    events = batch.where(value.isNotNull()).select(value.alias("value"), order.alias(_POSITION))
    if plan.avro is None:
        text = f.col("value").cast("string")
        is_text = f.is_valid_utf8(text)
        unread = f.when(~is_text, f.lit("its bytes are not UTF-8"))
        event, unknown = f.when(is_text, text).otherwise(f.base64("value")), f.lit(None).cast("int")
    else:
        events = events.withColumn("avro", plan.avro.read(batch.sparkSession, f.col("value"), rejected))
        text, unread, unknown = f.col("avro.text"), f.col("avro.reason"), f.col("avro.unknown")
        event = f.base64("value")
    read = plan.reader.read(batch.sparkSession, text)
    events = events.select(
        _POSITION, read.alias("read"), unread.alias("unread"), unknown.alias("unknown"), event.alias("event")
    )
    changes = f.transform("read.changes", lambda change: _convert_change(plan, change))
    events = events.withColumn("changes", changes)
    wrong = f.get(f.array_compact(f.transform("changes", lambda change: change["wrong"])), f.lit(0))
    reason = f.coalesce("unread", "read.reason", wrong).alias("reason")
    events = events.select(_POSITION, "changes", reason, f.col("read.names").alias("names"), "unknown", "event")
    if plan.dead_letter is not None:
        rules = RowRules.of(plan.connection.table(plan.table), plan.columns)
        if rules is not None:
            events = events.mapInArrow(partial(validate_rows, rules, UPSERT), events.schema)
    return events.withColumn("event", f.when(f.col("reason").isNotNull(), f.col("event")))


def _column(name: str) -> Column:
    return f.col(f"`{name.replace('`', '``')}`")


def _convert_change(plan: CdcPlan, change: Column) -> Column:
    values, faults = [], []
    for column in plan.columns:
        text = change["row"].getField(column.name)
        values.append(convert_text(text, column.dataType).alias(column.name))
        problem = describe_fault(column.name, text, column.dataType)
        if problem is not None:
            faults.append(problem)
    wrong = f.coalesce(*faults) if faults else f.lit(None).cast("string")
    return f.struct(change["kind"].alias("kind"), f.struct(*values).alias("row"), wrong.alias("wrong"))


def _summarise_events(decoded: DataFrame) -> Row:
    """Return the number of ``bad`` events, the ``first`` bad event, all ``names`` of columns, and ``unknown`` schema
    ids.
    """
    is_bad = f.col("reason").isNotNull()
    first = f.min_by(f.struct("reason", f.col(_POSITION).cast("string").alias("at")), f.when(is_bad, f.col(_POSITION)))
    summary = decoded.agg(
        f.count_if(is_bad).alias("bad"),
        first.alias("first"),
        f.array_distinct(f.flatten(f.collect_set(f.when(~is_bad, f.col("names"))))).alias("names"),
        f.collect_set("unknown").alias("unknown"),
    ).head()
    assert summary is not None
    return summary


def _require_accepted(plan: CdcPlan, summary: Row) -> None:
    """Raise `SchemaMismatchError` for bad events without a dead-letter table, and for new columns."""
    column_names = {column.name for column in plan.columns}
    new = sorted(set(summary["names"] or ()) - column_names)
    if new and plan.new_columns == "fail":
        raise SchemaMismatchError(
            f"events for {plan.table} have columns that the table does not have: {', '.join(new)[:500]}; nothing was "
            "written; add them with ALTER TABLE … ADD COLUMNS and restart the query, or set new_columns='ignore'"
        )
    if summary["bad"] and plan.dead_letter is None:
        raise SchemaMismatchError(
            f"{summary['bad']} events of this batch for {plan.table} cannot be read; the first, at "
            f"{summary['first']['at']}: {summary['first']['reason']}; nothing was written; correct the source, or set "
            "dead_letter to a table for such events"
        )


def _latest_changes(plan: CdcPlan, decoded: DataFrame) -> DataFrame:
    changes = decoded.where(f.col("reason").isNull()).select(_POSITION, f.posexplode("changes").alias(_PLACE, "change"))
    rows = changes.select(
        f.col("change.kind").alias(_KIND),
        _POSITION,
        _PLACE,
        *(f.col("change.row").getField(column.name).alias(column.name) for column in plan.columns),
    )
    key = [_column(name) for name in plan.key]
    newest = Window.partitionBy(*key).orderBy(f.col(_POSITION).desc(), f.col(_PLACE).desc())
    rows = rows.withColumn(_RANK, f.row_number().over(newest)).where(f.col(_RANK) == 1)
    return rows.drop(_POSITION, _PLACE, _RANK)


def _dead_letters(plan: CdcPlan, decoded: DataFrame) -> DataFrame:
    bad = decoded.where(f.col("reason").isNotNull())
    return bad.select(
        f.current_timestamp().alias("at"),
        f.lit(plan.table).alias("target"),
        "reason",
        f.col(_POSITION).cast("string").alias("position"),
        "event",
    )


def _write(plan: CdcPlan, rows: DataFrame, table: str, query_id: str, batch_id: int, **options: str) -> None:
    connection = plan.connection
    (
        rows.write.format("streamhouse")
        .options(**{**dict(connection.settings), "warehouse": connection.location})
        .options(txnAppId=f"cdc.{query_id}", txnVersion=str(batch_id), **options)
        .mode("append")
        .save(table)
    )
