"""``CALL streamhouse.system.…``: procedures run in a process on the driver's host, which has no Spark session.

Procedures that write many lake files run Spark jobs of the statement for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import nearest
from streamhouse_spark.datasource.catalog.procedures import branches as branch_procedures
from streamhouse_spark.datasource.catalog.procedures import lake as lake_procedures
from streamhouse_spark.datasource.catalog.procedures import tables as table_procedures
from streamhouse_spark.datasource.catalog.procedures import views as view_procedures
from streamhouse_spark.datasource.catalog.procedures.arguments import (
    Parameter,
    bind_arguments,
    parse_table_argument,
    struct_json,
)
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.schema import ddl
from streamhouse_spark.table.health import table_health
from streamhouse_spark.table.lake_maintenance import SNAPSHOTS_KEPT
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

_TABLE: Final = Parameter("table", "string", "Name of the table, <database>.<table>")
_DRY_RUN: Final = Parameter("dry_run", "boolean", "Only show what would be done", "false")
_SPARK_JOB: Final = Parameter(
    "spark_job", "boolean", "Whether tasks of Spark write the files; if null, from 64 MiB on", "NULL"
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
        near = nearest(name, PROCEDURES)
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
        near = nearest(consumer_id, consumers)
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
            "Move all rows written before the call into the lake; tasks of Spark write them where they are many",
            (_TABLE, _DRY_RUN, _SPARK_JOB),
            "table string not null, rows bigint not null, files bigint not null, snapshots bigint not null, "
            "conflicts bigint not null, healed_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.tier,
        ),
        Procedure(
            "retier",
            "Build a table's lake anew from its log, in a fresh place; the next round of tiering moves all rows",
            (
                _TABLE,
                Parameter("allow_loss", "boolean", "Give up rows that only the former lake may have", "false"),
                _DRY_RUN,
            ),
            "table string not null, lake_location string not null, rows bigint not null, lost_rows bigint not null, "
            "returned_rows bigint not null, dry_run boolean not null",
            lake_procedures.retier,
        ),
        Procedure(
            "compact",
            "Join small neighbouring files of a table's lake, and remove deleted rows; tasks of Spark do much",
            (
                _TABLE,
                _DRY_RUN,
                Parameter("purge", "boolean", "Write each file again that has a deleted row", "false"),
                _SPARK_JOB,
            ),
            "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
            "healed_rows bigint not null, purged_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.compact,
        ),
        Procedure(
            "optimize",
            "Lay the rows of a table's lake out by columns, so that queries skip files; tasks of Spark do much",
            (
                _TABLE,
                Parameter("order_by", "string", "Columns: a, b or zorder(a, b)"),
                Parameter("where", "string", "Only files that may hold rows of this condition", "NULL"),
                _DRY_RUN,
                _SPARK_JOB,
            ),
            "table string not null, files_removed bigint not null, files_added bigint not null, rows bigint not null, "
            "purged_rows bigint not null, dry_run boolean not null",
            run_in_jobs=lake_procedures.optimize,
        ),
        Procedure(
            "expire_snapshots",
            "Expire old snapshots of a table's lake, and delete the files that only they need",
            (
                _TABLE,
                Parameter("older_than", _OLDER_THAN, "Keep newer snapshots; a day ago where it is null", "NULL"),
                Parameter("retain_last", "int", "How many of the newest are kept in any case", str(SNAPSHOTS_KEPT)),
                _DRY_RUN,
            ),
            "table string not null, snapshots bigint not null, files bigint not null, dry_run boolean not null",
            lake_procedures.expire_snapshots,
        ),
        Procedure(
            "remove_orphan_files",
            "Delete files that nothing needs any more; those of the hot log are condemned first, deleted a day later",
            (
                _TABLE,
                Parameter("older_than", _OLDER_THAN, "Leave newer files alone; a day ago where it is null", "NULL"),
                _DRY_RUN,
            ),
            "file string not null, action string not null, dry_run boolean not null",
            lake_procedures.remove_orphan_files,
        ),
        Procedure(
            "rewrite_manifests",
            "Join the manifests of a table's lake to few large ones",
            (_TABLE, _DRY_RUN),
            "table string not null, manifests_removed bigint not null, manifests_added bigint not null, "
            "dry_run boolean not null",
            lake_procedures.rewrite_manifests,
        ),
        Procedure(
            "adopt",
            "Make a table of an Iceberg or Paimon table that is there, whose rows are not written again",
            (
                Parameter("table", "string", "Name of the new table, <database>.<table>"),
                Parameter("lake", "string", "The table in the lake's catalog; the same name if null", "NULL"),
                Parameter("primary_key", "string", "Columns that tell rows apart, with commas between them", "NULL"),
                _DRY_RUN,
                Parameter("format", "string", "iceberg or paimon; if null, as the table is that lies there", "NULL"),
            ),
            "table string not null, location string not null, lake_snapshot bigint, rows bigint not null, "
            "files bigint not null, dry_run boolean not null",
            lake_procedures.adopt,
        ),
        Procedure(
            "drop_consumer",
            "Forget a named consumer, so that the log is no longer kept for it",
            (_TABLE, Parameter("consumer_id", "string", "The option consumerId of its stream"), _DRY_RUN),
            "table string not null, consumer_id string not null, offsets string not null, dry_run boolean not null",
            _drop_consumer,
        ),
        Procedure(
            "drop_partition",
            "Remove the rows of all partitions with these values, in one step",
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
            "Partition the rows of a table by other fields from now on; nothing is written again",
            (_TABLE, Parameter("partitioning", "string", "As in PARTITIONED BY: days(ts), region; empty for none")),
            table_procedures.SET_PARTITIONING_RESULT,
            table_procedures.set_partitioning,
        ),
        Procedure(
            "rollback_to_version",
            "Give a table the rows that it had after an older commit, by a new one",
            (_TABLE, Parameter("version", "int", "Number of the commit in the table's history"), _DRY_RUN),
            table_procedures.ROLLBACK_RESULT,
            table_procedures.rollback_to_version,
        ),
        Procedure(
            "rollback_to_timestamp",
            "Give a table the rows that it had at a time, by a new commit",
            (_TABLE, Parameter("timestamp", "timestamp", "The newest commit of it or before counts"), _DRY_RUN),
            table_procedures.ROLLBACK_RESULT,
            table_procedures.rollback_to_timestamp,
        ),
        Procedure(
            "create_tag",
            "Name a version of a table, and keep what its readers need until the tag is dropped",
            (
                _TABLE,
                Parameter("tag", "string", "Name of the version"),
                Parameter("version", "int", "Number of the commit; the newest by default", "NULL"),
                Parameter("retain_days", "int", "Drop the tag after so many days; never by default", "NULL"),
            ),
            branch_procedures.CREATE_TAG_RESULT,
            branch_procedures.create_tag,
        ),
        Procedure(
            "drop_tag",
            "Drop a tag of a table; cleaning deletes what only it kept",
            (_TABLE, Parameter("tag", "string", "Name of the tag")),
            branch_procedures.DROP_TAG_RESULT,
            branch_procedures.drop_tag,
        ),
        Procedure(
            "create_branch",
            "Begin a branch of a table, whose changes are seen in it alone until it is published",
            (_TABLE, Parameter("branch", "string", "Name of the branch")),
            branch_procedures.CREATE_BRANCH_RESULT,
            branch_procedures.create_branch,
        ),
        Procedure(
            "drop_branch",
            "End a branch of a table, and lose its changes",
            (_TABLE, Parameter("branch", "string", "Name of the branch")),
            branch_procedures.DROP_BRANCH_RESULT,
            branch_procedures.drop_branch,
        ),
        Procedure(
            "fast_forward",
            "Publish a branch: its changes become the table's, all of them or none, and it ends",
            (
                _TABLE,
                Parameter("branch", "string", "'main', the table itself, which goes forward"),
                Parameter("to", "string", "Name of the branch to publish"),
            ),
            branch_procedures.FAST_FORWARD_RESULT,
            branch_procedures.fast_forward,
        ),
        Procedure(
            "clone",
            "Make a table of a version of another, without copying its lake files; both live on by themselves",
            (
                Parameter("source", "string", "Name of the table to clone, <database>.<table>"),
                Parameter("target", "string", "Name of the new table, <database>.<table>"),
                Parameter("version", "int", "Number of a commit of the source; the newest by default", "NULL"),
                Parameter("tag", "string", "A tag of the source, in place of a number", "NULL"),
            ),
            table_procedures.CLONE_RESULT,
            table_procedures.clone,
        ),
        Procedure(
            "materialize",
            "Keep a query as a table, and refresh it from what changed in its sources",
            (
                Parameter("table", "string", "Name of the table to keep it in, <database>.<table>"),
                Parameter("query", "string", "Reads tables of the warehouse as <database>.<table>"),
                Parameter("freshness", "string", "How old a service lets it grow; 1min if null", "NULL"),
                Parameter("mode", "string", "full: compute it whole each time; if null, incremental", "NULL"),
                Parameter("step_rows", "int", "About so many rows of the sources a commit; all if null", "NULL"),
            ),
            view_procedures.REFRESH_RESULT,
            run_in_jobs=view_procedures.materialize,
        ),
        Procedure(
            "refresh",
            "Bring a materialised table to the newest versions of the tables that it reads",
            (_TABLE,),
            view_procedures.REFRESH_RESULT,
            run_in_jobs=view_procedures.refresh,
        ),
        Procedure(
            "pause",
            "Have services of refreshes leave a materialised table as it is, until resume",
            (_TABLE,),
            view_procedures.PAUSE_RESULT,
            view_procedures.pause,
        ),
        Procedure(
            "resume",
            "Have services of refreshes keep a paused materialised table again",
            (_TABLE,),
            view_procedures.PAUSE_RESULT,
            view_procedures.resume,
        ),
        Procedure(
            "undrop_table",
            "Bring a dropped table back, with its rows and its lake, while its files are there",
            (
                Parameter("table", "string", "Name that it had when it was dropped, <database>.<table>"),
                Parameter("uuid", "string", "Which of several; the one dropped last where it is null", "NULL"),
                Parameter("to", "string", "The name to give it; the one that it had where it is null", "NULL"),
            ),
            "table string not null, uuid string not null, rows bigint not null",
            table_procedures.undrop_table,
        ),
        Procedure(
            "relocate",
            "Make a warehouse that was moved whole where it lies, or give a copy ids of its own",
            (Parameter("copy", "boolean", "It is a copy, whose original goes on", "false"), _DRY_RUN),
            "table string not null, uuid string not null, former_uuid string not null, lake string, "
            "moved_from string, files_written bigint not null, dry_run boolean not null",
            table_procedures.relocate,
        ),
        Procedure(
            "table_status",
            "How a table stands, or all tables: rows, lake, lag, and what waits for maintenance",
            (Parameter("table", "string", "Name of the table; all tables where it is null", "NULL"),),
            _STATUS,
            _table_status,
        ),
    )
}
