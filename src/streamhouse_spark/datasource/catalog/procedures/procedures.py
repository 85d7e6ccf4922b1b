"""``CALL streamhouse.system.…``: procedures run in a process on the driver's host, which has no Spark session.

Procedures that write many lake files run Spark jobs of the statement for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.datasource.catalog.procedures import functions as branch_procedures
from streamhouse_spark.datasource.catalog.procedures import functions as lake_procedures
from streamhouse_spark.datasource.catalog.procedures import functions as table_procedures
from streamhouse_spark.datasource.catalog.procedures import functions as view_procedures
from streamhouse_spark.datasource.catalog.procedures.functions import (
    Parameter,
    Rows,
    bind_arguments,
    parse_table_argument,
    struct_json,
)
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.schema import ddl
from streamhouse_spark.table.maintenance.lake import SNAPSHOTS_KEPT
from streamhouse_spark.table.status import table_health
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

_TABLE: Final = Parameter("table", "string", "Name of the table, <database>.<table>")
_DRY_RUN: Final = Parameter("dry_run", "boolean", "Only show what the procedure would do", "false")
_SPARK_JOB: Final = Parameter(
    "spark_job", "boolean", "Whether Spark tasks write the files; if null, above 64 MiB", "NULL"
)


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure: its description for SHOW PROCEDURES, and its function."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    result: str
    """Columns of the result, as Spark DDL."""
    run: Callable[[Connection, Mapping[str, Any]], Rows] | None = None
    run_in_jobs: Callable[[Connection, Mapping[str, Any], SparkJobs], Rows] | None = None
    """Used instead of `run` if Spark tasks may write the procedure's files."""

    def rows(self, connection: Connection, arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
        if self.run_in_jobs is not None:
            return self.run_in_jobs(connection, arguments, jobs)
        assert self.run is not None
        return self.run(connection, arguments)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "result": struct_json(ddl.parse_columns(self.result)),
            "runs_jobs": self.run_in_jobs is not None,
        }


def procedures(_connection: Connection, _args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer SHOW PROCEDURES, with everything needed to bind a CALL."""
    return {"procedures": [procedure.to_json() for procedure in PROCEDURES.values()]}


def call_procedure(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a CALL. Raises `InvalidOptionError` for an unknown procedure or argument, and for an invalid value."""
    name = str(args["name"])
    procedure = PROCEDURES.get(name.lower())
    if procedure is None:
        near = find_nearest(name, PROCEDURES)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(PROCEDURES)}"
        raise InvalidOptionError(f"there is no procedure {name[:100]!r}; {hint}")
    arguments = bind_arguments(procedure.name, procedure.parameters, args.get("arguments") or {})
    with SparkJobs(args.get("jobs")) as jobs:
        rows = procedure.rows(connection, arguments, jobs)
    return {"schema": struct_json(ddl.parse_columns(procedure.result)), "rows": [list(row) for row in rows]}


def _drop_consumer(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    table = connection.table(parse_table_argument(arguments["table"]))
    consumer_id = arguments["consumer_id"]
    consumers = table.refresh().consumers
    if consumer_id not in consumers:
        near = find_nearest(consumer_id, consumers)
        hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(consumers)) or 'none'}"
        raise InvalidOptionError(f"table {table.name} has no consumer {consumer_id[:100]!r}; {hint}")
    offsets = json.dumps({str(bucket): offset for bucket, offset in sorted(consumers[consumer_id].offsets.items())})
    if not arguments["dry_run"]:
        table.move_consumer(consumer_id, None)
    return [(table.name, consumer_id, offsets, arguments["dry_run"])]


def _table_status(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    if arguments["table"] is not None:
        return [_status(connection.table(parse_table_argument(arguments["table"])))]
    return [_status_or_error(connection, name) for name in connection.warehouse().tables()]


def _status_or_error(connection: Connection, name: str) -> Sequence[Any]:
    """Return a table's status row, or the error of a damaged table, so that one table does not hide all others."""
    try:
        return _status(connection.table(name))
    except StreamhouseError as error:
        return (name, *([None] * (len(ddl.parse_columns(_STATUS)) - 2)), str(error))


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


_STATUS: Final = (
    "table string not null, rows bigint, buckets int, commit bigint, log_bytes bigint, lake_format string, "
    "lake_snapshot bigint, lag_rows bigint, lag_ms bigint, maintenance_overdue_ms bigint, consumers string, "
    "problem string"
)
_OLDER_THAN: Final = "timestamp"

PROCEDURES: Final[Mapping[str, Procedure]] = {
    procedure.name: procedure
    for procedure in (
        Procedure(
            "tier",
            "Move all rows written before the call into the lake; Spark tasks write large rounds",
            (_TABLE, _DRY_RUN, _SPARK_JOB),
            "table string not null, rows bigint not null, files bigint not null, snapshots bigint not null, "
            "conflicts bigint not null, healed_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.tier,
        ),
        Procedure(
            "retier",
            "Rebuild a table's lake from its log in a new location; the next tiering round moves all rows",
            (
                _TABLE,
                Parameter("allow_loss", "boolean", "Lose rows that only the old lake has", "false"),
                _DRY_RUN,
            ),
            "table string not null, lake_location string not null, rows bigint not null, lost_rows bigint not null, "
            "returned_rows bigint not null, dry_run boolean not null",
            lake_procedures.retier,
        ),
        Procedure(
            "compact",
            "Compact small neighbouring files of a table's lake, and remove deleted rows; Spark tasks do large jobs",
            (
                _TABLE,
                _DRY_RUN,
                Parameter("purge", "boolean", "Rewrite every file with deleted rows", "false"),
                _SPARK_JOB,
            ),
            "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
            "healed_rows bigint not null, purged_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.compact,
        ),
        Procedure(
            "optimize",
            "Cluster the rows of a table's lake by columns, so that queries skip files; Spark tasks do large jobs",
            (
                _TABLE,
                Parameter("order_by", "string", "Columns: a, b or zorder(a, b)"),
                Parameter("where", "string", "Only files that may hold matching rows", "NULL"),
                _DRY_RUN,
                _SPARK_JOB,
            ),
            "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
            "purged_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.optimize,
        ),
        Procedure(
            "expire_snapshots",
            "Expire old snapshots of a table's lake, and delete files that only they reference",
            (
                _TABLE,
                Parameter("older_than", _OLDER_THAN, "Keep newer snapshots; a day ago if null", "NULL"),
                Parameter("retain_last", "int", "Minimum number of snapshots to retain", str(SNAPSHOTS_KEPT)),
                _DRY_RUN,
            ),
            "table string not null, snapshots bigint not null, files bigint not null, dry_run boolean not null",
            lake_procedures.expire_snapshots,
        ),
        Procedure(
            "remove_orphan_files",
            "Delete orphan files; files of the hot log are condemned first and deleted a day later",
            (
                _TABLE,
                Parameter("older_than", _OLDER_THAN, "Keep newer files; a day ago if null", "NULL"),
                _DRY_RUN,
            ),
            "file string not null, action string not null, dry_run boolean not null",
            lake_procedures.remove_orphan_files,
        ),
        Procedure(
            "rewrite_manifests",
            "Merge the manifests of a table's lake into few large ones",
            (_TABLE, _DRY_RUN),
            "table string not null, manifests_removed bigint not null, manifests_added bigint not null, "
            "dry_run boolean not null",
            lake_procedures.rewrite_manifests,
        ),
        Procedure(
            "adopt",
            "Create a table from an existing Iceberg or Paimon table without rewriting its rows",
            (
                Parameter("table", "string", "Name of the new table, <database>.<table>"),
                Parameter("lake", "string", "The table in the lake's catalog; the same name if null", "NULL"),
                Parameter("primary_key", "string", "Columns that identify rows, separated by commas", "NULL"),
                _DRY_RUN,
                Parameter("format", "string", "iceberg or paimon; if null, that of the existing table", "NULL"),
            ),
            "table string not null, location string not null, lake_snapshot bigint, rows bigint not null, "
            "files bigint not null, dry_run boolean not null",
            lake_procedures.adopt,
        ),
        Procedure(
            "drop_consumer",
            "Drop a named consumer, so that the log is no longer retained for it",
            (_TABLE, Parameter("consumer_id", "string", "The option consumerId of its stream"), _DRY_RUN),
            "table string not null, consumer_id string not null, offsets string not null, dry_run boolean not null",
            _drop_consumer,
        ),
        Procedure(
            "drop_partition",
            "Drop all partitions with these values atomically",
            (
                _TABLE,
                Parameter("partition", "string", "Values of some or all partition columns, as a JSON object"),
                _DRY_RUN,
            ),
            "table string not null, rows bigint not null, files bigint not null, snapshot bigint, "
            "dry_run boolean not null",
            table_procedures.drop_partition,
        ),
        Procedure(
            "set_partitioning",
            "Change the partitioning of new rows; existing files are not rewritten",
            (_TABLE, Parameter("partitioning", "string", "As in PARTITIONED BY: days(ts), region; empty for none")),
            table_procedures.SET_PARTITIONING_RESULT,
            table_procedures.set_partitioning,
        ),
        Procedure(
            "rollback_to_version",
            "Restore the rows of an older commit in a new commit",
            (_TABLE, Parameter("version", "int", "Number of the commit in the table's history"), _DRY_RUN),
            table_procedures.ROLLBACK_RESULT,
            table_procedures.rollback_to_version,
        ),
        Procedure(
            "rollback_to_timestamp",
            "Restore the rows as of a timestamp in a new commit",
            (_TABLE, Parameter("timestamp", "timestamp", "Restores the latest commit at or before it"), _DRY_RUN),
            table_procedures.ROLLBACK_RESULT,
            table_procedures.rollback_to_timestamp,
        ),
        Procedure(
            "create_tag",
            "Tag a version of a table, and retain it until the tag is dropped",
            (
                _TABLE,
                Parameter("tag", "string", "Name of the version"),
                Parameter("version", "int", "Number of the commit; the latest by default", "NULL"),
                Parameter("retain_days", "int", "Drop the tag after this many days; never by default", "NULL"),
            ),
            branch_procedures.CREATE_TAG_RESULT,
            branch_procedures.create_tag,
        ),
        Procedure(
            "drop_tag",
            "Drop a tag of a table; cleaning deletes what only the tag retained",
            (_TABLE, Parameter("tag", "string", "Name of the tag")),
            branch_procedures.DROP_TAG_RESULT,
            branch_procedures.drop_tag,
        ),
        Procedure(
            "create_branch",
            "Create a branch of a table, whose changes are only visible in it until it is published",
            (_TABLE, Parameter("branch", "string", "Name of the branch")),
            branch_procedures.CREATE_BRANCH_RESULT,
            branch_procedures.create_branch,
        ),
        Procedure(
            "drop_branch",
            "Drop a branch of a table with its changes",
            (_TABLE, Parameter("branch", "string", "Name of the branch")),
            branch_procedures.DROP_BRANCH_RESULT,
            branch_procedures.drop_branch,
        ),
        Procedure(
            "fast_forward",
            "Publish a branch: its changes become the table's atomically, and the branch is dropped",
            (
                _TABLE,
                Parameter("branch", "string", "'main', the table itself"),
                Parameter("to", "string", "Name of the branch to publish"),
            ),
            branch_procedures.FAST_FORWARD_RESULT,
            branch_procedures.fast_forward,
        ),
        Procedure(
            "clone",
            "Create an independent table from a version of another, without copying its lake files",
            (
                Parameter("source", "string", "Name of the table to clone, <database>.<table>"),
                Parameter("target", "string", "Name of the new table, <database>.<table>"),
                Parameter("version", "int", "Number of a commit of the source; the latest by default", "NULL"),
                Parameter("tag", "string", "A tag of the source, in place of a number", "NULL"),
            ),
            table_procedures.CLONE_RESULT,
            table_procedures.clone,
        ),
        Procedure(
            "materialize",
            "Materialise a query as a table that is refreshed from changes of its sources",
            (
                Parameter("table", "string", "Name of the materialised table, <database>.<table>"),
                Parameter("query", "string", "Reads tables of the warehouse as <database>.<table>"),
                Parameter("freshness", "string", "Maximum age that a service permits; 1min if null", "NULL"),
                Parameter("mode", "string", "full: recompute on each refresh; if null, incremental", "NULL"),
                Parameter("step_rows", "int", "Approximate source rows per commit; all if null", "NULL"),
            ),
            view_procedures.REFRESH_RESULT,
            run_in_jobs=view_procedures.materialize,
        ),
        Procedure(
            "refresh",
            "Refresh a materialised table to the latest versions of its sources",
            (_TABLE,),
            view_procedures.REFRESH_RESULT,
            run_in_jobs=view_procedures.refresh,
        ),
        Procedure(
            "pause",
            "Stop refresh services from refreshing a materialised table until resume",
            (_TABLE,),
            view_procedures.PAUSE_RESULT,
            view_procedures.pause,
        ),
        Procedure(
            "resume",
            "Let refresh services refresh a paused materialised table again",
            (_TABLE,),
            view_procedures.PAUSE_RESULT,
            view_procedures.resume,
        ),
        Procedure(
            "undrop_table",
            "Restore a dropped table with its rows and its lake, while its files exist",
            (
                Parameter("table", "string", "Name of the table when it was dropped, <database>.<table>"),
                Parameter("uuid", "string", "Which of several; the one dropped last if null", "NULL"),
                Parameter("to", "string", "New name; the old name if null", "NULL"),
            ),
            "table string not null, uuid string not null, rows bigint not null",
            table_procedures.undrop_table,
        ),
        Procedure(
            "relocate",
            "Adapt a moved warehouse to its location, or give a copy its own ids",
            (Parameter("copy", "boolean", "Whether it is a copy whose original stays in use", "false"), _DRY_RUN),
            "table string not null, uuid string not null, former_uuid string not null, lake string, "
            "moved_from string, files_written bigint not null, dry_run boolean not null",
            table_procedures.relocate,
        ),
        Procedure(
            "table_status",
            "Status of a table, or of all tables: rows, lake, lag, and overdue maintenance",
            (Parameter("table", "string", "Name of the table; all tables if null", "NULL"),),
            _STATUS,
            _table_status,
        ),
    )
}
