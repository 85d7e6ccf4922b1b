"""``CALL streamhouse.system.materialize``, ``refresh``, ``pause``, ``resume``.

The first two run in the statement's session. They need a PySpark session, which a catalog call does not have. A
subprocess therefore joins the statement's session through PySpark's gateway and ends with the call. Its jobs have the
statement's group and tags, and are cancelled with the statement. The subprocess runs
`streamhouse_spark.views.procedure_main`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.datasource.catalog.procedures.spark_jobs import SparkJobs
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.table.refresh_commit import pause_refreshes, resume_refreshes
from streamhouse_spark.warehouse.process_cache import Connection

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
