"""Procedures of the lake. Each is a method of the Python API.

Large writes run as Spark tasks, see `streamhouse_spark.datasource.catalog.procedures.spark_jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.datasource.catalog.procedures.arguments import parse_older_than, parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs, make_group_runner, make_round_runner
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.log.lifecycle.garbage_collection import GRACE_MS, clean
from streamhouse_spark.query.projection import parse_filter
from streamhouse_spark.query.sql_condition import parse_where
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table import lake_maintenance
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.tiering import tier_table
from streamhouse_spark.warehouse.process_cache import Connection

Rows: TypeAlias = Sequence[Sequence[Any]]


def tier(connection: Connection, arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    table.open_lake()  # raises if there is no lake
    if arguments["dry_run"]:  # rows count as changes in a primary-key table
        return [(table.name, sum(bucket_lags(table.refresh()).values()), 0, 0, 0, 0, True)]
    report = tier_table(table, make_round_runner(jobs, table, spark_job=arguments["spark_job"]))
    return [(table.name, report.rows, report.files, len(report.snapshots), report.conflicts, report.healed_rows, False)]


def retier(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    report = table.retier(allow_loss=arguments["allow_loss"], dry_run=arguments["dry_run"])
    lost, returned = report.lost_rows, report.returned_rows
    return [(report.table, report.lake_location, report.rows, lost, returned, report.dry_run)]


def compact(connection: Connection, arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    run = make_group_runner(jobs, table, "compact", spark_job=arguments["spark_job"])
    report = lake_maintenance.compact(
        table, _open_writable_lake(table), purge=arguments["purge"], dry_run=arguments["dry_run"], run=run
    )
    files, removed_rows = (report.files_removed, report.files_added), (report.healed_rows, report.purged_rows)
    return [(table.name, *files, report.rows, *removed_rows, arguments["dry_run"])]


def optimize(connection: Connection, arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    chosen = None
    if arguments["where"] is not None:
        chosen = parse_filter(parse_where(arguments["where"], table.refresh().schema.arrow))
    run = make_group_runner(jobs, table, "optimize", spark_job=arguments["spark_job"])
    options: dict[str, Any] = {"chosen": chosen, "dry_run": arguments["dry_run"], "run": run}
    report = lake_maintenance.optimize(table, _open_writable_lake(table), arguments["order_by"], **options)
    return [
        (table.name, report.files_removed, report.files_added, report.rows, report.purged_rows, arguments["dry_run"])
    ]


def _open_writable_lake(table: Table) -> LakeTable:
    """Open the lake for writing, as `Table.lake` does. Raises `DifferentHistoryError`."""
    lake = table.open_lake()
    newest_snapshot(table.log, lake)
    return lake


def expire_snapshots(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    older_than_us = arguments["older_than"]
    report = table.lake.expire_snapshots(
        retain_last=arguments["retain_last"],
        older_than_ms=None if older_than_us is None else older_than_us // 1000,
        dry_run=arguments["dry_run"],
    )
    return [(table.name, len(report.snapshots), len(report.files), arguments["dry_run"])]


def remove_orphan_files(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    grace_ms = parse_older_than(arguments["older_than"], GRACE_MS, table.storage.now_ms())
    report = clean(table.log, table.storage, grace_ms=grace_ms, dry_run=arguments["dry_run"])
    rows = [(key, "condemned") for key in report.condemned] + [(key, "deleted") for key in report.deleted]
    if table.has_lake:
        deleted = table.lake.remove_orphan_files(grace_ms=grace_ms, dry_run=arguments["dry_run"])
        rows += [(key, "deleted") for key in deleted]
    return [(key, action, arguments["dry_run"]) for key, action in rows]


def rewrite_manifests(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    report = table.lake.rewrite_manifests(dry_run=arguments["dry_run"])
    return [(table.name, report.removed, report.added, arguments["dry_run"])]


def adopt(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    name, lake = parse_table_argument(arguments["table"]), arguments["lake"]
    key = parse_names(arguments["primary_key"] or "")
    properties = {} if arguments["format"] is None else {"table.datalake.format": arguments["format"]}
    warehouse = connection.warehouse()
    report = warehouse.adopt_table(name, lake, primary_key=key, properties=properties, dry_run=arguments["dry_run"])
    return [(report.table, report.location, report.snapshot_id, report.rows, report.files, arguments["dry_run"])]
