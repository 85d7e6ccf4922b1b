"""Parameters of procedures, and the function of each one, most of which are methods of the Python API.

Large writes run as Spark tasks, see `spark_jobs`. ``materialize`` and ``refresh`` run in the statement's session. They
need a PySpark session, which a catalog call does not have. A subprocess therefore joins the statement's session through
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
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs, make_group_runner, make_round_runner
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.partition_filter import NULL_NAME, PartitionMatch, PartitionMatches
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.snapshot_history import newest_snapshot
from streamhouse_spark.log.catalog.branches import base_version_of_clone
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, clean
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.schema.ddl import DdlColumn, parse_type
from streamhouse_spark.schema.partitioning import join_fields, split_fields
from streamhouse_spark.table.drop_partition import drop_partitions
from streamhouse_spark.table.maintenance import lake as lake_maintenance
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.table.refresh_commit import pause_refreshes, resume_refreshes
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.rollback import RollbackReport
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.relocation import relocate as relocated

_IS_OF_TYPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "timestamp": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


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


def bind_arguments(procedure: str, parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter. Raises `InvalidOptionError` for an unknown, missing or mistyped argument."""
    by_folded_name = {name.casefold(): value for name, value in arguments.items()}
    names = [parameter.name for parameter in parameters]
    for name in arguments:
        if name.casefold() not in names:
            near = find_nearest(name, names)
            hint = f"did you mean {near}?" if near else f"it has {', '.join(names)}"
            raise InvalidOptionError(f"procedure {procedure} has no parameter {name[:100]!r}; {hint}")
    return {parameter.name: _bind_value(procedure, parameter, by_folded_name) for parameter in parameters}


def _bind_value(procedure: str, parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    if parameter.name not in arguments:
        if parameter.default is None:
            raise InvalidOptionError(f"procedure {procedure} needs {parameter.name}: {parameter.comment}")
        return parameter.default_value
    value = arguments[parameter.name]
    if value is None and parameter.is_nullable:
        return None
    if value is None or not _IS_OF_TYPE[parameter.type](value):
        shown = "null" if value is None else repr(value)[:100]
        raise InvalidOptionError(f"{parameter.name} of procedure {procedure} is {shown}, expected {parameter.type}")
    return value


def parse_table_argument(text: str) -> str:
    """Return a valid table name. Raises `InvalidNameError`, also for a name with a suffix."""
    return str(parse_table_name(text).require_table("call a procedure on"))


def parse_older_than(older_than_us: int | None, default_ms: int, now_ms: int) -> int:
    """Return the age of ``older_than`` in milliseconds. Raises `InvalidOptionError` for a future time."""
    if older_than_us is None:
        return default_ms
    grace_ms = now_ms - older_than_us // 1000
    if grace_ms < 0:
        raise InvalidOptionError(f"older_than lies {-grace_ms} ms in the future; give a time that has passed")
    return grace_ms


def struct_json(columns: Sequence[DdlColumn]) -> str:
    """Return the ``StructType`` of columns as its JSON text."""
    return str(
        spark_versions.spark_schema_of(pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])).json()
    )


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


CREATE_BRANCH_RESULT: Final = (
    "table string not null, branch string not null, version bigint not null, lake_snapshot_id bigint"
)
DROP_BRANCH_RESULT: Final = "table string not null, branch string not null"
FAST_FORWARD_RESULT: Final = (
    "table string not null, branch string not null, version bigint not null, rows_written bigint, rows_deleted bigint"
)
DAY_MS: Final = 24 * 3600 * 1000
CREATE_TAG_RESULT: Final = (
    "table string not null, tag string not null, version bigint not null, lake_snapshot_id bigint"
)
DROP_TAG_RESULT: Final = "table string not null, tag string not null"


def create_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Create a branch and return one row. Raises as `Table.create_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    branch = table.create_branch(arguments["branch"])
    return [(table.name, branch.name, branch.version, branch.lake_snapshot)]


def drop_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a branch and return one row. Raises as `Table.drop_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_branch(arguments["branch"])
    return [(table.name, arguments["branch"])]


def fast_forward(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Publish the branch ``to`` to ``branch``, which must be ``main``, and return one row. The argument order is
    Iceberg's. Raises as `Table.fast_forward`, and `InvalidOptionError` for any other ``branch``.
    """
    name, branch = parse_table_argument(arguments["table"]), arguments["branch"]
    if branch.strip().lower() != "main":
        raise InvalidOptionError(
            f"fast_forward of {name}: branch is {branch!r}, expected 'main', the table itself; run "
            f"fast_forward('{name}', 'main', '<the branch to publish>')"
        )
    report = connection.table(name).fast_forward(arguments["to"])
    return [(report.table, report.branch, report.version, report.rows_written, report.rows_deleted)]


def create_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Create a tag and return one row. Raises as `Table.create_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    days = arguments["retain_days"]
    tag = table.create_tag(arguments["tag"], arguments["version"], retain_ms=None if days is None else days * DAY_MS)
    return [(table.name, tag.name, tag.version, tag.lake_snapshot)]


def drop_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a tag and return one row. Raises as `Table.drop_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_tag(arguments["tag"])
    return [(table.name, arguments["tag"])]


CLONE_RESULT: Final = "source string not null, target string not null, version bigint not null, lake_snapshot_id bigint"
ROLLBACK_RESULT: Final = (
    "table string not null, version bigint not null, seen_version bigint not null, rows_deleted bigint not null, "
    "rows_added bigint not null, dry_run boolean not null"
)
SET_PARTITIONING_RESULT: Final = (
    "table string not null, partitioning string not null, former_partitioning string not null"
)


def clone(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Clone a version of a table and return one row: both names, the version, and the lake snapshot that both tables
    share. Raises as `Warehouse.clone_table`.
    """
    source, target = parse_table_argument(arguments["source"]), parse_table_argument(arguments["target"])
    if arguments["version"] is not None and arguments["tag"] is not None:
        raise InvalidOptionError(f"clone of {source}: version and tag are both given; give one")
    version = arguments["version"] if arguments["version"] is not None else arguments["tag"]
    clone = connection.warehouse().clone_table(source, target, version=version)
    origin = base_version_of_clone(connection.table(source).refresh(), clone.uuid)
    return [(source, clone.name, origin.version, origin.lake_snapshot)]


def undrop_table(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Restore a dropped table and return one row. Raises as `Warehouse.undrop_table`."""
    to = None if arguments["to"] is None else parse_table_argument(arguments["to"])
    table = connection.warehouse().undrop_table(parse_table_argument(arguments["table"]), uuid=arguments["uuid"], to=to)
    return [(table.name, table.uuid, table.state.num_rows)]


def relocate(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Relocate the warehouse and return a row per table. Raises as `streamhouse_spark.relocate`."""
    report = relocated(connection.warehouse(), copy=arguments["copy"], dry_run=arguments["dry_run"])
    return [
        (
            table.table,
            table.uuid,
            table.former_uuid,
            table.lake,
            table.moved_from,
            table.files_written,
            arguments["dry_run"],
        )
        for table in report.tables
    ]


def rollback_to_version(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back and return one row of counts. Raises as `Table.rollback_to_version`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    return _report_rows(table.rollback_to_version(arguments["version"], dry_run=arguments["dry_run"]))


def rollback_to_timestamp(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back to a time and return one row of counts. Raises as `Table.rollback_to_timestamp`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    if arguments["timestamp"] < 0:
        raise InvalidOptionError(
            "timestamp of procedure rollback_to_timestamp is before 1970; give the time of a commit"
        )
    return _report_rows(table.rollback_to_timestamp(arguments["timestamp"] // 1000, dry_run=arguments["dry_run"]))


def _report_rows(report: RollbackReport) -> Rows:
    counts = (report.rows_deleted, report.rows_added, report.dry_run)
    return [(report.table, report.version, report.seen_version, *counts)]


def drop_partition(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Drop partitions and return one row of counts. Raises as `Table.drop_partition`, and `InvalidOptionError` for an
    invalid partition.
    """
    table = connection.table(parse_table_argument(arguments["table"]))
    state = table.refresh()
    texts = _parse_partition(arguments["partition"])
    match = PartitionMatch.of_texts(texts, state.schema, state.partition_by, table.name)
    report = drop_partitions(table, PartitionMatches((match,)), dry_run=arguments["dry_run"])
    return [(table.name, report.rows, report.files, report.snapshot_id, arguments["dry_run"])]


def set_partitioning(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Change the partitioning of new rows and return both partitionings. Raises as `Table.set_partitioning`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    before = join_fields(table.refresh().parsed.partition_fields)
    table.set_partitioning(split_fields(arguments["partitioning"]))
    return [(table.name, join_fields(table.state.parsed.partition_fields), before)]


def _parse_partition(text: str) -> dict[str, str]:
    """Return the values of a JSON object as text."""
    try:  # numbers stay text: a float could change a decimal
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
    return {name: _value_text(value) for name, value in values.items()}


def _require_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name is there twice")
    return values


def _value_text(value: Any) -> str:
    if value is None:
        return NULL_NAME
    return value if isinstance(value, str) else json.dumps(value)


REFRESH_RESULT: Final = (
    "table string not null, changed boolean not null, rows_written bigint not null, rows_deleted bigint not null, "
    "whole_because string"
)
PAUSE_RESULT: Final = "table string not null, changed boolean not null"
PROGRAM: Final = "streamhouse_spark.views.procedure_main"

_CONNECTS: Final = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Variables that make PySpark use Spark Connect for every session."""


def materialize(connection: Connection, call_arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
    """Create a materialised table, or open the one with this query, and refresh it. Raises as
    `streamhouse_spark.materialize`.
    """
    name = parse_table_argument(call_arguments["table"])
    arguments = {
        "query": call_arguments["query"],
        "freshness": call_arguments["freshness"] or "1min",
        "mode": call_arguments["mode"] or "incremental",
        "step_rows": call_arguments["step_rows"],
    }
    return _run_procedure(connection, jobs, "materialize", name, arguments)


def refresh(connection: Connection, call_arguments: Mapping[str, Any], jobs: SparkJobs) -> Rows:
    """Refresh a materialised table to the latest versions of its sources. Raises as `MaterializedTable.refresh`."""
    return _run_procedure(connection, jobs, "refresh", parse_table_argument(call_arguments["table"]), {})


def pause(connection: Connection, call_arguments: Mapping[str, Any]) -> Rows:
    """Stop refresh services from refreshing a materialised table. Raises as `pause_refreshes`."""
    table = connection.table(parse_table_argument(call_arguments["table"]))
    return [(table.name, pause_refreshes(table))]


def resume(connection: Connection, call_arguments: Mapping[str, Any]) -> Rows:
    """Let refresh services refresh a materialised table again. Raises as `resume_refreshes`."""
    table = connection.table(parse_table_argument(call_arguments["table"]))
    return [(table.name, resume_refreshes(table))]


def _run_procedure(connection: Connection, jobs: SparkJobs, verb: str, name: str, arguments: Mapping[str, Any]) -> Rows:
    session = jobs.session(f"{verb} {name}")
    request = {
        "session": session,
        "warehouse": connection.location,
        "verb": verb,
        "table": name,
        "arguments": arguments,
    }
    with subprocess.Popen(
        [sys.executable, "-m", PROGRAM],
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
        raise StreamhouseError(f"{verb} {name}: its process ended early; run it again", condition="JOB_ENDED")
    answer = json.loads(reply)
    if "error" in answer:
        raise StreamhouseError(answer["error"]["message"], condition=answer["error"]["condition"])
    return [answer["row"]]


def _child_environment() -> dict[str, str]:
    """Return the environment of a process that finds the same modules and uses a classic session."""
    environment = {name: value for name, value in os.environ.items() if name not in _CONNECTS}
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYSPARK_PYTHON": sys.executable}
