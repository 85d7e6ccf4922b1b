"""Optimizing on Spark: tasks on the executors write the groups of files, the driver plans and commits them.

As tiering does, it works with a classic session and with Spark Connect, without a shuffle, and commits only files whose
description came back: those of a failed, repeated or cancelled task are orphans for the lake's cleaning.
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
    """See `streamhouse_spark.optimize`."""
    table = connection.table(name)
    chosen = None if where is None else parse_filter(parse_where(where, table.state.schema.arrow))
    lake, run = table.open_lake(), spark_groups(spark, connection, f"optimize {table.name}")
    newest_snapshot(table.log, lake)
    return optimize(table, lake, order_by, chosen=chosen, dry_run=dry_run, run=run)


def spark_groups(spark: SparkSession, connection: Connection, doing: str) -> RunGroups:
    """Return a function that has groups written by one Spark job, a task for each of them, the largest first.

    Spark's pages show ``doing`` and the number of groups, but for a session of Spark Connect.
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
