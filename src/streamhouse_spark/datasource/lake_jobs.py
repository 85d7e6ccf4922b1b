"""Tiering and optimize on Spark: executors write lake files, the driver plans and commits them.

Works with classic sessions and Spark Connect, without a shuffle. Only files whose description came back are committed.
Files of a failed, repeated or cancelled task are orphans, which lake maintenance removes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.lake.parquet.compaction import GroupWriter, Rewritten, RunGroups, SizedFile
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.lake.tiering.job import TieringReport, run_task, shared_records
from streamhouse_spark.lake.tiering.plan import TieringTask, group_tasks
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.lake.types import CompactReport, LakeFile
from streamhouse_spark.table.maintenance.lake import optimize
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.table_batch import open_listed, open_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_FILES = pa.schema([("position", pa.int64()), ("files", pa.string())])
_FILES_DDL = "position long, files string"


def tier_tables(spark: SparkSession, connection: Connection, tables: Sequence[str] | None) -> dict[str, TieringReport]:
    """Tier these tables, or all that have a lake. See `streamhouse_spark.tier`."""
    names = () if tables is None else tuple(tables)
    named = open_named(connection.table, names)
    chosen = named if names else open_listed(connection.table, connection.warehouse().tables())
    for table in chosen.tables:
        if names and not table.properties.datalake_enabled:
            raise InvalidOptionError(
                f"table {table.name} has no lake: table.datalake.enabled is false; set it to true, or leave "
                "the table out",
            )
    run_tasks = spark_tasks(spark, connection)
    chosen.tables = [table for table in chosen.tables if table.properties.datalake_enabled]
    done = chosen.each(lambda table: (table.name, tier_table(table, run_tasks)))
    chosen.raise_first()
    return dict(done)


def spark_tasks(spark: SparkSession, connection: Connection) -> RunTasks:
    """Return a function that runs the tasks of a round as one Spark job, one Spark task per group."""

    def run(tasks: Sequence[TieringTask]) -> list[list[LakeFile]]:
        if not tasks:
            return []
        groups = group_tasks(tasks)
        texts = [json.dumps([tasks[position].to_json() for position in group]) for group in groups]
        numbers = spark.range(0, len(texts), 1, len(texts))
        rows = numbers.mapInArrow(_round_function(connection, texts), _FILES_DDL).collect()
        files_by_task: dict[int, list[LakeFile]] = {}
        for row in rows:
            written = json.loads(row["files"])
            for position, files in zip(groups[row["position"]], written, strict=True):
                files_by_task[position] = [LakeFile.from_json(file) for file in files]
        return [files_by_task[position] for position in range(len(tasks))]

    return run


def _round_function(
    connection: Connection, texts: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                files = run_on_executor(connection, texts[position])
                yield pa.RecordBatch.from_arrays([pa.array([position], pa.int64()), pa.array([files])], schema=_FILES)

    return write


def run_on_executor(connection: Connection, tasks_text: str) -> str:
    """Write the files of a group of tasks. Takes a JSON list of tasks, returns a JSON list of file lists."""
    warehouse = connection.warehouse()
    tasks = [TieringTask.from_json(task) for task in json.loads(tasks_text)]
    records = shared_records(warehouse.storage, tasks)
    written_files = [run_task(warehouse.storage, warehouse.settings, warehouse.world, task, records) for task in tasks]
    return json.dumps([[file.to_json() for file in files] for files in written_files])


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
