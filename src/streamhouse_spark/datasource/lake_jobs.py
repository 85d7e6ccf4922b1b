"""Tiering and optimize as Spark jobs: executors write lake files, and the driver plans and commits them.

The jobs support classic sessions and Spark Connect, and have no shuffle. Tasks return descriptions of their files, and
only these files are committed. Files of failed, repeated or cancelled tasks are orphan files, which lake maintenance
removes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.parquet.compaction import GroupWriter, RewrittenGroup, RunGroups, SizedFile
from streamhouse_spark.lake.tiering.job import TieringReport, make_record_cache, run_task
from streamhouse_spark.lake.tiering.plan import TieringTask, group_tasks
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.lake.types import CompactReport, LakeFile
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.table_batch import open_listed, open_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULT = pa.schema([("position", pa.int64()), ("result", pa.string())])
_RESULT_DDL = "position long, result string"
_DESCRIPTION = "spark.job.description"


def tier_tables(spark: SparkSession, connection: Connection, tables: Sequence[str] | None) -> dict[str, TieringReport]:
    """Tier these tables, or all tables with a lake. See `streamhouse_spark.tier`."""
    names = () if tables is None else tuple(tables)
    named = open_named(connection.table, names)
    chosen = named if names else open_listed(connection.table, connection.warehouse().tables())
    for table in chosen.tables:
        if names and not table.properties.datalake_enabled:
            raise InvalidOptionError(
                f"table {table.name} has no lake: table.datalake.enabled is false; set it to true, or omit the table"
            )
    run_tasks = make_spark_task_runner(spark, connection)
    chosen.tables = [table for table in chosen.tables if table.properties.datalake_enabled]
    done = chosen.each(lambda table: (table.name, tier_table(table, run_tasks)))
    chosen.raise_first()
    return dict(done)


def make_spark_task_runner(spark: SparkSession, connection: Connection) -> RunTasks:
    """Return a function that runs the tasks of a round as one Spark job, with a Spark task per group."""

    def run(tasks: Sequence[TieringTask]) -> list[list[LakeFile]]:
        def run_groups(groups: Sequence[Any]) -> list[Any]:
            texts = [json.dumps(group) for group in groups]

            def run_group(position: int) -> str:
                return json.dumps(run_on_executor(connection, json.loads(texts[position])))

            return [json.loads(result) for result in _run_job(spark, len(texts), run_group)]

        return run_in_groups(tasks, run_groups) if tasks else []

    return run


def run_in_groups(
    tasks: Sequence[TieringTask], run_groups: Callable[[list[list[dict[str, Any]]]], Sequence[Any]]
) -> list[list[LakeFile]]:
    """Run the tasks of a round in groups, and return the files of each task.

    ``run_groups`` receives groups of tasks as JSON, and returns the files of each task of each group as JSON.
    """
    groups = group_tasks(tasks)
    written = run_groups([[tasks[position].to_json() for position in group] for group in groups])
    files_by_task: dict[int, list[LakeFile]] = {}
    for group, files_of_group in zip(groups, written, strict=True):
        for position, files in zip(group, files_of_group, strict=True):
            files_by_task[position] = [LakeFile.from_json(file) for file in files]
    return [files_by_task[position] for position in range(len(tasks))]


def run_on_executor(connection: Connection, encoded_tasks: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Write the files of a group of tasks, and return the files of each task. Tasks and files are JSON."""
    warehouse = connection.warehouse()
    tasks = [TieringTask.from_json(task) for task in encoded_tasks]
    records = make_record_cache(warehouse.storage, tasks)
    written_files = [run_task(warehouse.storage, warehouse.settings, warehouse.world, task, records) for task in tasks]
    return [[file.to_json() for file in files] for files in written_files]


def optimize_table(
    spark: SparkSession, connection: Connection, name: str, order_by: str, *, where: str | None, dry_run: bool
) -> CompactReport:
    """Optimize a table. See `streamhouse_spark.optimize`."""
    from streamhouse_spark.expressions.filters import parse_filter  # not loaded on executors
    from streamhouse_spark.expressions.where import parse_where
    from streamhouse_spark.lake.snapshot_history import newest_snapshot
    from streamhouse_spark.table.maintenance.lake import optimize

    table = connection.table(name)
    chosen = None if where is None else parse_filter(parse_where(where, table.state.schema.arrow))
    lake, run = table.open_lake(), make_spark_group_runner(spark, connection, f"optimize {table.name}")
    newest_snapshot(table.log, lake)
    return optimize(table, lake, order_by, chosen=chosen, dry_run=dry_run, run=run)


def make_spark_group_runner(spark: SparkSession, connection: Connection, action: str) -> RunGroups:
    """Return a function that writes groups of lake files in one Spark job, with a task per group, largest first.

    Spark's UI shows ``action`` and the number of groups, except with Spark Connect.
    """

    def run(groups: Sequence[SizedFile], writer: GroupWriter) -> list[RewrittenGroup]:
        ordered = sorted(groups, key=lambda group: group.size_bytes, reverse=True)
        mib = sum(group.size_bytes for group in groups) >> 20

        def write(position: int) -> str:
            warehouse = connection.warehouse()
            written = writer.write_group(ordered[position], warehouse.storage, warehouse.settings, warehouse.world)
            return json.dumps(written.to_json())

        with _with_job_description(spark, f"{action}: {len(groups)} groups of files, {mib} MiB"):
            results = _run_job(spark, len(ordered), write)
        return [RewrittenGroup.from_json(json.loads(result)) for result in results]

    return run


def _run_job(spark: SparkSession, num_tasks: int, run: Callable[[int], str]) -> list[str]:
    """Run one Spark job with ``num_tasks`` tasks, each for one position, and return the results in order."""

    def run_positions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                columns = [pa.array([position], pa.int64()), pa.array([run(position)])]
                yield pa.RecordBatch.from_arrays(columns, schema=_RESULT)

    rows = spark.range(0, num_tasks, 1, num_tasks).mapInArrow(run_positions, _RESULT_DDL).collect()
    results = {row["position"]: row["result"] for row in rows}
    return [results[position] for position in range(num_tasks)]


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
