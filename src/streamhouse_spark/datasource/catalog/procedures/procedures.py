"""``CALL streamhouse.system.…``: procedures run in a process on the driver's host, which has no Spark session.

Each procedure is a function that is registered with its description for SHOW PROCEDURES. Most call a method of the
Python API. Procedures that write many lake files run Spark jobs of the statement, see `spark_jobs`.

``materialize`` and ``refresh`` need a PySpark session. A subprocess therefore joins the statement's session through
PySpark's gateway and ends with the call. Its jobs have the statement's group and tags, and are cancelled with the
statement. The subprocess runs `streamhouse_spark.views.procedure_main`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest, parse_names
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs, make_group_runner, make_round_runner
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.partition_filter import NULL_NAME, PartitionMatches
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.lake.types import SNAPSHOTS_KEPT
from streamhouse_spark.log.catalog.branches import base_version_of_clone
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, clean
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.schema import ddl
from streamhouse_spark.schema.ddl import parse_type
from streamhouse_spark.schema.partitioning import join_fields, split_fields
from streamhouse_spark.table.drop_partition import drop_partitions
from streamhouse_spark.table.maintenance import lake as lake_maintenance
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.table.refresh_commit import pause_refreshes, resume_refreshes
from streamhouse_spark.table.status import table_health
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.rollback import RollbackReport
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.relocation import relocate as relocated

Rows: TypeAlias = Sequence[Sequence[Any]]

_IS_OF_TYPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "timestamp": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_DAY_MS: Final = 24 * 3600 * 1000
_SESSION_PROGRAM: Final = "streamhouse_spark.views.procedure_main"
_CONNECT_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Variables that make PySpark use Spark Connect for every session."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. ``default`` is an SQL literal, or None if the parameter is required."""

    name: str
    type: str
    comment: str
    default: str | None = None

    @property
    def default_value(self) -> Any:
        return None if self.default in (None, "NULL") else json.loads(self.default or "")

    @property
    def is_nullable(self) -> bool:
        return self.default == "NULL"

    def to_json(self) -> dict[str, Any]:
        struct = spark_versions.spark_schema_of(pa.schema([(self.name, parse_type(self.type))]))
        shown = struct.fields[0].dataType.json()
        return {"name": self.name, "type": shown, "default": self.default, "comment": self.comment}


@dataclass(frozen=True, slots=True)
class Call:
    """A running CALL: the values of all parameters, and the Spark jobs of the statement."""

    connection: Connection
    arguments: Mapping[str, Any]
    jobs: SparkJobs

    def __getitem__(self, parameter: str) -> Any:
        return self.arguments[parameter]

    @property
    def table(self) -> Table:
        """The table that the parameter ``table`` names. Opened each time."""
        return self.connection.table(_table_name(self["table"]))


@dataclass(frozen=True, slots=True)
class Procedure:
    name: str
    description: str
    result: str
    """Columns of the result, as Spark DDL."""
    parameters: tuple[Parameter, ...]
    run: Callable[[Call], Rows]
    runs_jobs: bool
    """Whether the procedure uses the statement's session: Spark tasks write its files, or a subprocess joins it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "result": _struct_json(self.result),
            "runs_jobs": self.runs_jobs,
        }


PROCEDURES: Final[dict[str, Procedure]] = {}


def procedures(_connection: Connection, _args: Mapping[str, Any]) -> Mapping[str, Any]:
    """List the procedures for SHOW PROCEDURES, with all that Spark needs to bind a CALL."""
    return {"procedures": [procedure.to_json() for procedure in PROCEDURES.values()]}


def call_procedure(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a CALL. Raises `InvalidOptionError` for an unknown procedure or argument, and for an invalid value."""
    name = str(args["name"])
    procedure = PROCEDURES.get(name.lower())
    if procedure is None:
        near = find_nearest(name, PROCEDURES)
        hint = f"did you mean {near}?" if near else f"expected one of {', '.join(PROCEDURES)}"
        raise InvalidOptionError(f"unknown procedure {name[:100]!r}; {hint}")
    arguments = _bind_arguments(procedure, args.get("arguments") or {})
    with SparkJobs(args.get("jobs")) as jobs:
        rows = procedure.run(Call(connection, arguments, jobs))
    return {"schema": _struct_json(procedure.result), "rows": [list(row) for row in rows]}


def _bind_arguments(procedure: Procedure, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter. Raises `InvalidOptionError` for an unknown, missing or mistyped argument."""
    by_folded_name = {name.casefold(): value for name, value in arguments.items()}
    names = [parameter.name for parameter in procedure.parameters]
    for name in arguments:
        if name.casefold() not in names:
            near = find_nearest(name, names)
            hint = f"did you mean {near}?" if near else f"expected one of {', '.join(names)}"
            raise InvalidOptionError(f"procedure {procedure.name} has no parameter {name[:100]!r}; {hint}")
    return {
        parameter.name: _bind_value(procedure.name, parameter, by_folded_name) for parameter in procedure.parameters
    }


def _bind_value(procedure: str, parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    if parameter.name not in arguments:
        if parameter.default is None:
            raise InvalidOptionError(f"procedure {procedure} requires {parameter.name}: {parameter.comment}")
        return parameter.default_value
    value = arguments[parameter.name]
    if value is None and parameter.is_nullable:
        return None
    if value is None or not _IS_OF_TYPE[parameter.type](value):
        shown = "null" if value is None else repr(value)[:100]
        raise InvalidOptionError(f"{parameter.name} of procedure {procedure} is {shown}, expected {parameter.type}")
    return value


def _struct_json(columns: str) -> str:
    """Return the JSON text of a ``StructType`` for columns in Spark DDL."""
    fields = [pa.field(column.name, column.type, column.nullable) for column in ddl.parse_columns(columns)]
    return str(spark_versions.spark_schema_of(pa.schema(fields)).json())


def _table_name(text: str) -> str:
    """Return a valid table name. Raises `InvalidNameError`, also for a name with a suffix."""
    return str(parse_table_name(text).require_table("call a procedure on"))


# -- the procedures ---------------------------------------------------------------------------------------------------


def _procedure(
    description: str, result: str, *parameters: Parameter, runs_jobs: bool = False
) -> Callable[[Callable[[Call], Rows]], Callable[[Call], Rows]]:
    """Register a function as the procedure of its name."""

    def register(run: Callable[[Call], Rows]) -> Callable[[Call], Rows]:
        PROCEDURES[run.__name__] = Procedure(run.__name__, description, result, parameters, run, runs_jobs)
        return run

    return register


_TABLE: Final = Parameter("table", "string", "Name of the table, <database>.<table>")
_DRY_RUN: Final = Parameter("dry_run", "boolean", "Only show what the procedure would do", "false")
_SPARK_JOB: Final = Parameter(
    "spark_job", "boolean", "Whether Spark tasks write the files; if null, from 64 MiB on", "NULL"
)
_ROLLBACK_RESULT: Final = (
    "table string not null, version bigint not null, seen_version bigint not null, rows_deleted bigint not null, "
    "rows_added bigint not null, dry_run boolean not null"
)
_REFRESH_RESULT: Final = (
    "table string not null, changed boolean not null, rows_written bigint not null, rows_deleted bigint not null, "
    "whole_because string"
)
_PAUSE_RESULT: Final = "table string not null, changed boolean not null"
_STATUS_RESULT: Final = (
    "table string not null, rows bigint, buckets int, commit bigint, log_bytes bigint, lake_format string, "
    "lake_snapshot bigint, lag_rows bigint, lag_ms bigint, maintenance_overdue_ms bigint, consumers string, "
    "problem string"
)


@_procedure(
    "Move all rows written before the call into the lake; Spark tasks write large rounds",
    "table string not null, rows bigint not null, files bigint not null, snapshots bigint not null, "
    "conflicts bigint not null, healed_rows bigint not null, dry_run boolean not null",
    _TABLE,
    _DRY_RUN,
    _SPARK_JOB,
    runs_jobs=True,
)
def tier(call: Call) -> Rows:
    table = call.table
    table.open_lake()  # raises if there is no lake
    if call["dry_run"]:  # changes in a primary-key table
        return [(table.name, sum(bucket_lags(table.refresh()).values()), 0, 0, 0, 0, True)]
    report = tier_table(table, make_round_runner(call.jobs, table, spark_job=call["spark_job"]))
    return [(table.name, report.rows, report.files, len(report.snapshots), report.conflicts, report.healed_rows, False)]


@_procedure(
    "Rebuild a table's lake from its log in a new location; the next tiering round moves all rows",
    "table string not null, lake_location string not null, rows bigint not null, lost_rows bigint not null, "
    "returned_rows bigint not null, dry_run boolean not null",
    _TABLE,
    Parameter("allow_loss", "boolean", "Continue even if rows that only the old lake has are lost", "false"),
    _DRY_RUN,
)
def retier(call: Call) -> Rows:
    table = call.table
    report = table.retier(allow_loss=call["allow_loss"], dry_run=call["dry_run"])
    lost, returned = report.lost_rows, report.returned_rows
    return [(report.table, report.lake_location, report.rows, lost, returned, report.dry_run)]


@_procedure(
    "Compact small adjacent files of a table's lake, and remove deleted rows; Spark tasks do large jobs",
    "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
    "healed_rows bigint not null, purged_rows bigint not null, dry_run boolean not null",
    _TABLE,
    _DRY_RUN,
    Parameter("purge", "boolean", "Rewrite every file with deleted rows", "false"),
    _SPARK_JOB,
    runs_jobs=True,
)
def compact(call: Call) -> Rows:
    table = call.table
    run = make_group_runner(call.jobs, table, "compact", spark_job=call["spark_job"])
    report = lake_maintenance.compact(
        table, _open_writable_lake(table), purge=call["purge"], dry_run=call["dry_run"], run=run
    )
    files, removed_rows = (report.files_removed, report.files_added), (report.healed_rows, report.purged_rows)
    return [(table.name, *files, report.rows, *removed_rows, call["dry_run"])]


@_procedure(
    "Cluster the rows of a table's lake by columns, so that queries skip files; Spark tasks do large jobs",
    "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
    "purged_rows bigint not null, dry_run boolean not null",
    _TABLE,
    Parameter("order_by", "string", "Columns: a, b or zorder(a, b)"),
    Parameter("where", "string", "Only files that may hold matching rows", "NULL"),
    _DRY_RUN,
    _SPARK_JOB,
    runs_jobs=True,
)
def optimize(call: Call) -> Rows:
    table = call.table
    chosen = None
    if call["where"] is not None:
        chosen = parse_filter(parse_where(call["where"], table.refresh().schema.arrow))
    run = make_group_runner(call.jobs, table, "optimize", spark_job=call["spark_job"])
    options: dict[str, Any] = {"chosen": chosen, "dry_run": call["dry_run"], "run": run}
    report = lake_maintenance.optimize(table, _open_writable_lake(table), call["order_by"], **options)
    return [(table.name, report.files_removed, report.files_added, report.rows, report.purged_rows, call["dry_run"])]


def _open_writable_lake(table: Table) -> LakeTable:
    """Open the lake for writing. Raises `DifferentHistoryError` if its latest snapshot is of another history."""
    lake = table.open_lake()
    newest_snapshot(table.log, lake)
    return lake


@_procedure(
    "Expire old snapshots of a table's lake, and delete files that only they reference",
    "table string not null, snapshots bigint not null, files bigint not null, dry_run boolean not null",
    _TABLE,
    Parameter("older_than", "timestamp", "Keep snapshots newer than this time; a day ago if null", "NULL"),
    Parameter("retain_last", "int", "Minimum number of snapshots to retain", str(SNAPSHOTS_KEPT)),
    _DRY_RUN,
)
def expire_snapshots(call: Call) -> Rows:
    table = call.table
    older_than_us = call["older_than"]
    report = table.lake.expire_snapshots(
        retain_last=call["retain_last"],
        older_than_ms=None if older_than_us is None else older_than_us // 1000,
        dry_run=call["dry_run"],
    )
    return [(table.name, len(report.snapshots), len(report.files), call["dry_run"])]


@_procedure(
    "Delete orphan files; files of the hot log are condemned first and deleted a day later",
    "file string not null, action string not null, dry_run boolean not null",
    _TABLE,
    Parameter("older_than", "timestamp", "Keep files newer than this time; a day ago if null", "NULL"),
    _DRY_RUN,
)
def remove_orphan_files(call: Call) -> Rows:
    table = call.table
    grace_ms = _parse_older_than(call["older_than"], GRACE_MS, table.storage.now_ms())
    report = clean(table.log, table.storage, grace_ms=grace_ms, dry_run=call["dry_run"])
    rows = [(key, "condemned") for key in report.condemned] + [(key, "deleted") for key in report.deleted]
    if table.has_lake:
        deleted = table.lake.remove_orphan_files(grace_ms=grace_ms, dry_run=call["dry_run"])
        rows += [(key, "deleted") for key in deleted]
    return [(key, action, call["dry_run"]) for key, action in rows]


def _parse_older_than(older_than_us: int | None, default_ms: int, now_ms: int) -> int:
    """Return the age of the time ``older_than`` in milliseconds. Raises `InvalidOptionError` for a future time."""
    if older_than_us is None:
        return default_ms
    grace_ms = now_ms - older_than_us // 1000
    if grace_ms < 0:
        raise InvalidOptionError(f"older_than is {-grace_ms} ms in the future, expected a past time")
    return grace_ms


@_procedure(
    "Merge the manifests of a table's lake into few large ones",
    "table string not null, manifests_removed bigint not null, manifests_added bigint not null, "
    "dry_run boolean not null",
    _TABLE,
    _DRY_RUN,
)
def rewrite_manifests(call: Call) -> Rows:
    table = call.table
    report = table.lake.rewrite_manifests(dry_run=call["dry_run"])
    return [(table.name, report.removed, report.added, call["dry_run"])]


@_procedure(
    "Create a table from an existing Iceberg or Paimon table without rewriting its rows",
    "table string not null, location string not null, lake_snapshot bigint, rows bigint not null, "
    "files bigint not null, dry_run boolean not null",
    Parameter("table", "string", "Name of the new table, <database>.<table>"),
    Parameter(
        "lake", "string", "Name of the existing table in the lake's catalog; the new table's name if null", "NULL"
    ),
    Parameter("primary_key", "string", "Columns that identify rows, separated by commas", "NULL"),
    _DRY_RUN,
    Parameter("format", "string", "iceberg or paimon; if null, the format of the existing table", "NULL"),
)
def adopt(call: Call) -> Rows:
    name, lake = _table_name(call["table"]), call["lake"]
    key = parse_names(call["primary_key"] or "")
    properties = {} if call["format"] is None else {"table.datalake.format": call["format"]}
    warehouse = call.connection.warehouse()
    report = warehouse.adopt_table(name, lake, primary_key=key, properties=properties, dry_run=call["dry_run"])
    return [(report.table, report.location, report.snapshot_id, report.rows, report.files, call["dry_run"])]


@_procedure(
    "Drop a named consumer, so that the log is no longer retained for it",
    "table string not null, consumer_id string not null, offsets string not null, dry_run boolean not null",
    _TABLE,
    Parameter("consumer_id", "string", "The option consumerId of its stream"),
    _DRY_RUN,
)
def drop_consumer(call: Call) -> Rows:
    table = call.table
    consumer_id = call["consumer_id"]
    consumers = table.refresh().consumers
    if consumer_id not in consumers:
        near = find_nearest(consumer_id, consumers)
        hint = f"did you mean {near!r}?" if near else f"its consumers: {', '.join(sorted(consumers)) or 'none'}"
        raise InvalidOptionError(f"table {table.name} has no consumer {consumer_id[:100]!r}; {hint}")
    offsets = json.dumps({str(bucket): offset for bucket, offset in sorted(consumers[consumer_id].offsets.items())})
    if not call["dry_run"]:
        table.move_consumer(consumer_id, None)
    return [(table.name, consumer_id, offsets, call["dry_run"])]


@_procedure(
    "Drop all partitions with these values atomically",
    "table string not null, rows bigint not null, files bigint not null, snapshot bigint, dry_run boolean not null",
    _TABLE,
    Parameter("partition", "string", "Values of some or all partition columns, as a JSON object"),
    _DRY_RUN,
)
def drop_partition(call: Call) -> Rows:
    """Drop partitions. Raises the errors of `Table.drop_partition`, also for an invalid partition."""
    table = call.table
    state = table.refresh()
    texts = _parse_partition(call["partition"])
    chosen = PartitionMatches.of_texts(texts, state.schema, state.partition_by, table.name)
    report = drop_partitions(table, chosen, dry_run=call["dry_run"])
    return [(table.name, report.rows, report.files, report.snapshot_id, call["dry_run"])]


def _parse_partition(text: str) -> dict[str, str]:
    """Return column → value of a JSON object, as text."""
    try:  # numbers remain text, because a float could round a decimal
        values = json.loads(
            text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_require_unique_names
        )
    except ValueError:
        values = None
    if not isinstance(values, dict) or any(isinstance(value, dict | list) for value in values.values()):
        raise InvalidOptionError(
            f"partition of procedure drop_partition is {text[:100]!r}, expected a JSON object of columns and values, "
            'such as {"day": "2026-01-31", "country": null}'
        )
    return {
        name: NULL_NAME if value is None else value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _require_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("duplicate name")
    return values


@_procedure(
    "Change the partitioning of new rows; existing files are not rewritten",
    "table string not null, partitioning string not null, former_partitioning string not null",
    _TABLE,
    Parameter("partitioning", "string", "As in PARTITIONED BY: days(ts), region; empty for none"),
)
def set_partitioning(call: Call) -> Rows:
    table = call.table
    before = join_fields(table.refresh().parsed.partition_fields)
    table.set_partitioning(split_fields(call["partitioning"]))
    return [(table.name, join_fields(table.state.parsed.partition_fields), before)]


@_procedure(
    "Restore the rows of an older commit in a new commit",
    _ROLLBACK_RESULT,
    _TABLE,
    Parameter("version", "int", "Number of the commit in the table's history"),
    _DRY_RUN,
)
def rollback_to_version(call: Call) -> Rows:
    table = call.table
    return _report_rows(table.rollback_to_version(call["version"], dry_run=call["dry_run"]))


@_procedure(
    "Restore the rows as of a timestamp in a new commit",
    _ROLLBACK_RESULT,
    _TABLE,
    Parameter("timestamp", "timestamp", "Restores the latest commit at or before it"),
    _DRY_RUN,
)
def rollback_to_timestamp(call: Call) -> Rows:
    table = call.table
    if call["timestamp"] < 0:
        raise InvalidOptionError(
            "rollback_to_timestamp: timestamp is before 1970, expected a time at or after a retained commit; pass a "
            "later timestamp"
        )
    return _report_rows(table.rollback_to_timestamp(call["timestamp"] // 1000, dry_run=call["dry_run"]))


def _report_rows(report: RollbackReport) -> Rows:
    counts = (report.rows_deleted, report.rows_added, report.dry_run)
    return [(report.table, report.version, report.seen_version, *counts)]


@_procedure(
    "Tag a version of a table, and retain it until the tag is dropped",
    "table string not null, tag string not null, version bigint not null, lake_snapshot_id bigint",
    _TABLE,
    Parameter("tag", "string", "Name of the version"),
    Parameter("version", "int", "Number of the commit; the latest by default", "NULL"),
    Parameter("retain_days", "int", "Drop the tag after this many days; never by default", "NULL"),
)
def create_tag(call: Call) -> Rows:
    table = call.table
    days = call["retain_days"]
    tag = table.create_tag(call["tag"], call["version"], retain_ms=None if days is None else days * _DAY_MS)
    return [(table.name, tag.name, tag.version, tag.lake_snapshot)]


@_procedure(
    "Drop a tag of a table; cleaning deletes what only the tag retained",
    "table string not null, tag string not null",
    _TABLE,
    Parameter("tag", "string", "Name of the tag"),
)
def drop_tag(call: Call) -> Rows:
    table = call.table
    table.drop_tag(call["tag"])
    return [(table.name, call["tag"])]


@_procedure(
    "Create a branch of a table, whose changes are only visible in it until it is published",
    "table string not null, branch string not null, version bigint not null, lake_snapshot_id bigint",
    _TABLE,
    Parameter("branch", "string", "Name of the branch"),
)
def create_branch(call: Call) -> Rows:
    table = call.table
    branch = table.create_branch(call["branch"])
    return [(table.name, branch.name, branch.version, branch.lake_snapshot)]


@_procedure(
    "Drop a branch of a table with its changes",
    "table string not null, branch string not null",
    _TABLE,
    Parameter("branch", "string", "Name of the branch"),
)
def drop_branch(call: Call) -> Rows:
    table = call.table
    table.drop_branch(call["branch"])
    return [(table.name, call["branch"])]


@_procedure(
    "Publish a branch: its changes become the table's atomically, and the branch is dropped",
    "table string not null, branch string not null, version bigint not null, rows_written bigint, rows_deleted bigint",
    _TABLE,
    Parameter("branch", "string", "'main', the table itself"),
    Parameter("to", "string", "Name of the branch to publish"),
)
def fast_forward(call: Call) -> Rows:
    """Publish the branch ``to`` to ``branch``, which must be ``main``. The argument order is Iceberg's.

    Raises the errors of `Table.fast_forward`, and `InvalidOptionError` for any other ``branch``.
    """
    name, branch = _table_name(call["table"]), call["branch"]
    if branch.strip().lower() != "main":
        raise InvalidOptionError(
            f"fast_forward of {name}: branch is {branch!r}, expected 'main', the table itself; run "
            f"fast_forward('{name}', 'main', '<the branch to publish>')"
        )
    report = call.connection.table(name).fast_forward(call["to"])
    return [(report.table, report.branch, report.version, report.rows_written, report.rows_deleted)]


@_procedure(
    "Create an independent table from a version of another, without copying its lake files",
    "source string not null, target string not null, version bigint not null, lake_snapshot_id bigint",
    Parameter("source", "string", "Name of the table to clone, <database>.<table>"),
    Parameter("target", "string", "Name of the new table, <database>.<table>"),
    Parameter("version", "int", "Number of a commit of the source; the latest by default", "NULL"),
    Parameter("tag", "string", "A tag of the source, in place of a number", "NULL"),
)
def clone(call: Call) -> Rows:
    """Clone a version of a table. The result shows the lake snapshot that both tables share. Raises the errors of
    `Warehouse.clone_table`.
    """
    source, target = _table_name(call["source"]), _table_name(call["target"])
    if call["version"] is not None and call["tag"] is not None:
        raise InvalidOptionError(f"clone of {source}: found version and tag, expected at most one of them")
    version = call["version"] if call["version"] is not None else call["tag"]
    clone = call.connection.warehouse().clone_table(source, target, version=version)
    origin = base_version_of_clone(call.connection.table(source).refresh(), clone.uuid)
    return [(source, clone.name, origin.version, origin.lake_snapshot)]


@_procedure(
    "Materialize a query as a table that is refreshed from changes of its sources",
    _REFRESH_RESULT,
    Parameter("table", "string", "Name of the materialized table, <database>.<table>"),
    Parameter("query", "string", "Reads tables of the warehouse as <database>.<table>"),
    Parameter("freshness", "string", "Maximum age of the rows that refresh services permit; 1min if null", "NULL"),
    Parameter("mode", "string", "full: recompute on each refresh; if null, incremental", "NULL"),
    Parameter("step_rows", "int", "Approximate source rows per commit; all if null", "NULL"),
    runs_jobs=True,
)
def materialize(call: Call) -> Rows:
    name = _table_name(call["table"])
    arguments = {
        "query": call["query"],
        "freshness": call["freshness"] or "1min",
        "mode": call["mode"] or "incremental",
        "step_rows": call["step_rows"],
    }
    return _run_in_session(call, "materialize", name, arguments)


@_procedure(
    "Refresh a materialized table to the latest versions of its sources", _REFRESH_RESULT, _TABLE, runs_jobs=True
)
def refresh(call: Call) -> Rows:
    return _run_in_session(call, "refresh", _table_name(call["table"]), {})


@_procedure("Stop refresh services from refreshing a materialized table until resume", _PAUSE_RESULT, _TABLE)
def pause(call: Call) -> Rows:
    table = call.table
    return [(table.name, pause_refreshes(table))]


@_procedure("Let refresh services refresh a paused materialized table again", _PAUSE_RESULT, _TABLE)
def resume(call: Call) -> Rows:
    table = call.table
    return [(table.name, resume_refreshes(table))]


def _run_in_session(call: Call, verb: str, name: str, arguments: Mapping[str, Any]) -> Rows:
    session = call.jobs.session(f"{verb} {name}")
    request = {
        "session": session,
        "warehouse": call.connection.location,
        "verb": verb,
        "table": name,
        "arguments": arguments,
    }
    with subprocess.Popen(
        [sys.executable, "-m", _SESSION_PROGRAM],
        stdin=subprocess.PIPE,  # closes with this process, which ends the child
        stdout=subprocess.PIPE,
        env=_child_environment(),
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        finally:
            process.kill()
    if not reply.endswith("\n"):
        raise StreamhouseError(f"{verb} {name}: the subprocess ended before it replied; retry", condition="JOB_ENDED")
    answer = json.loads(reply)
    if "error" in answer:
        raise StreamhouseError(answer["error"]["message"], condition=answer["error"]["condition"])
    return [answer["row"]]


def _child_environment() -> dict[str, str]:
    """Return the environment of a process that finds the same modules and uses a classic session."""
    environment = {name: value for name, value in os.environ.items() if name not in _CONNECT_VARIABLES}
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYSPARK_PYTHON": sys.executable}


@_procedure(
    "Restore a dropped table with its rows and its lake, while its files exist",
    "table string not null, uuid string not null, rows bigint not null",
    Parameter("table", "string", "Name of the table when it was dropped, <database>.<table>"),
    Parameter("uuid", "string", "uuid of the dropped table; the table dropped last if null", "NULL"),
    Parameter("to", "string", "New name; the old name if null", "NULL"),
)
def undrop_table(call: Call) -> Rows:
    to = None if call["to"] is None else _table_name(call["to"])
    table = call.connection.warehouse().undrop_table(_table_name(call["table"]), uuid=call["uuid"], to=to)
    return [(table.name, table.uuid, table.state.num_rows)]


@_procedure(
    "Adapt a moved warehouse to its location, or give a copy its own ids",
    "table string not null, uuid string not null, former_uuid string not null, lake string, "
    "moved_from string, files_written bigint not null, dry_run boolean not null",
    Parameter("copy", "boolean", "Whether the warehouse is a copy whose original remains in use", "false"),
    _DRY_RUN,
)
def relocate(call: Call) -> Rows:
    report = relocated(call.connection.warehouse(), copy=call["copy"], dry_run=call["dry_run"])
    return [
        (moved.table, moved.uuid, moved.former_uuid, moved.lake, moved.moved_from, moved.files_written, call["dry_run"])
        for moved in report.tables
    ]


@_procedure(
    "Status of a table, or of all tables: rows, lake, lag, and overdue maintenance",
    _STATUS_RESULT,
    Parameter("table", "string", "Name of the table; all tables if null", "NULL"),
)
def table_status(call: Call) -> Rows:
    if call["table"] is not None:
        return [_status(call.table)]
    return [_status_or_error(call.connection, name) for name in call.connection.warehouse().tables()]


def _status_or_error(connection: Connection, name: str) -> Sequence[Any]:
    """Return a table's status row. For a damaged table the row contains the error, so that other tables are shown."""
    try:
        return _status(connection.table(name))
    except StreamhouseError as error:
        return (name, *([None] * (len(ddl.parse_columns(_STATUS_RESULT)) - 2)), str(error))


def _status(table: Table) -> Sequence[Any]:
    state, properties = table.state, table.properties
    health = table_health(state, properties, table.storage.now_ms())
    lag = sum(bucket_lags(state).values()) if properties.datalake_enabled else None
    return (
        table.name,
        state.num_rows,
        state.num_buckets,
        state.version,
        sum(segment.size_bytes for segment in state.live_segments()),
        properties.datalake_format if properties.datalake_enabled else None,
        state.lake.snapshot_id if state.lake else None,
        lag,
        health.untiered_ms if properties.datalake_enabled else None,
        health.undeleted_ms,
        ", ".join(sorted(state.consumers)),
        None,
    )
