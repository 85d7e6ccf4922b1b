"""Optimize on Spark: tasks write groups of lake files, the driver plans and commits them.

Works with classic sessions and Spark Connect, without a shuffle. Only files whose description came back are committed.
Files of a failed, repeated or cancelled task are orphans, which lake maintenance removes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.lake.model.values import CompactReport
from streamhouse_spark.lake.parquet.compaction import GroupWriter, Rewritten, RunGroups, SizedFile
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.query.projection import parse_filter
from streamhouse_spark.query.sql_condition import parse_where
from streamhouse_spark.table.lake_maintenance import optimize
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULT = pa.schema([("written", pa.string())])
_RESULT_DDL = "written string"
_DESCRIPTION = "spark.job.description"


def optimize_table(
    spark: SparkSession, connection: Connection, name: str, order_by: str, *, where: str | None, dry_run: bool
) -> CompactReport:
    """Optimize a table. See `streamhouse_spark.optimize`."""
    table = connection.table(name)
    chosen = None if where is None else parse_filter(parse_where(where, table.state.schema.arrow))
    lake, run = table.open_lake(), spark_groups(spark, connection, f"optimize {table.name}")
    newest_snapshot(table.log, lake)
    return optimize(table, lake, order_by, chosen=chosen, dry_run=dry_run, run=run)


def spark_groups(spark: SparkSession, connection: Connection, doing: str) -> RunGroups:
    """Return a function that writes groups in one Spark job, one task per group, largest first.

    Spark's UI shows ``doing`` and the number of groups, except with Spark Connect.
    """

    def run(groups: Sequence[SizedFile], writer: GroupWriter) -> list[Rewritten]:
        ordered = sorted(groups, key=lambda group: group.size_bytes, reverse=True)
        numbers = spark.range(0, len(ordered), 1, len(ordered))
        written = numbers.mapInArrow(_task_function(connection, ordered, writer), _RESULT_DDL)
        mib = sum(group.size_bytes for group in groups) >> 20
        with _with_job_description(spark, f"{doing}: {len(groups)} groups of files, {mib} MiB"):
            rows = written.collect()
        return [Rewritten.from_json(json.loads(row["written"])) for row in rows]

    return run


@contextmanager
def _with_job_description(spark: SparkSession, text: str) -> Iterator[None]:
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def _task_function(
    connection: Connection, groups: Sequence[SizedFile], writer: GroupWriter
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warehouse = connection.warehouse()
        for batch in batches:
            for position in batch.column(0).to_pylist():
                done = writer.written(groups[position], warehouse.storage, warehouse.settings, warehouse.world)
                yield pa.RecordBatch.from_arrays([pa.array([json.dumps(done.to_json())])], schema=_RESULT)

    return write
