"""Spark jobs of a ``CALL``: the calling process plans and commits, executor tasks write the files.

For each call, the catalog's Java class listens on a socket and runs the requested jobs as part of the statement: they
appear in Spark's UI with their description, and are cancelled with the statement. Requests and replies are lines of
JSON. A failed or cancelled job sends no reply, so nothing is committed and the user sees Spark's own error.

A task writes files and reports them. The only row of its partition is its outcome as JSON: ``result`` or a conflict
``error``, with the ``rows`` and ``bytes`` that Spark shows. Spark retries a failed task and uses the outcome of one
attempt. Files of other attempts are orphans, which lake maintenance removes.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from io import BufferedIOBase
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.lake_jobs import run_in_groups, run_on_executor
from streamhouse_spark.datasource.worker import release_memory
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    StreamhouseError,
)
from streamhouse_spark.lake.formats import require_lake_library
from streamhouse_spark.lake.parquet.compaction import (
    GroupWriter,
    RewrittenGroup,
    RunGroups,
    SizedFile,
    make_local_runner,
)
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.lake.tiering.plan import TieringTask, task_bytes
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.lake.types import LakeFile
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

logger = logging.getLogger(__name__)

JOB_BYTES_MIN: Final = 64 << 20
"""Minimum bytes of files, or of rows in memory, for a Spark job, which takes about a second to start."""
CONFLICT_ERRORS: Final = (CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError)
"""Errors that a retry of the task would repeat, and that the planner handles."""
_REWRITE_CLASSES: Final = {
    "iceberg": ("iceberg.compaction", "RewriteTask", "CompactGroup"),
    "iceberg by key": ("iceberg.compaction", "KeyedRewriteTask", "KeyedGroup"),
    "paimon": ("paimon.compaction", "RewriteTask", "CompactGroup"),
    "paimon by key": ("paimon.compaction", "KeyedRewriteTask", "GroupFiles"),
}
"""Kind of table → the lake module that rewrites groups of its files, with the writer and the group class."""


class SparkJobs:
    """Requests Spark jobs from the driver during one call. Without the driver's address, no job can run."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._opened = ExitStack()
        self._stream: BufferedIOBase | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the driver or the job has ended
            self._opened.close()

    @property
    def is_available(self) -> bool:
        return self._address is not None

    def should_run(self, num_bytes: int, *, spark_job: bool | None) -> bool:
        """Return whether a job should write these bytes: ``spark_job``, or a decision by size if it is None.

        Raises `InvalidOptionError` if a job is required but the driver runs none.
        """
        if spark_job and not self.is_available:
            raise InvalidOptionError(
                "spark_job is true, but the session's jar is from another version and runs no jobs; use the jar of "
                "this package, or omit spark_job"
            )
        return self.is_available and (num_bytes >= JOB_BYTES_MIN if spark_job is None else spark_job)

    def results(self, description: str, tasks: Sequence[str]) -> list[Any]:
        """Run one job with a Spark task per text, and return the results in order.

        Raises `StreamhouseError` if the job failed or was cancelled, and the conflict error of a task.
        """
        logger.info("%s: a Spark job of %d tasks", description, len(tasks))
        answer = self._request({"description": description, "tasks": list(tasks)})
        if answer is None:
            raise StreamhouseError(
                f"{description}: the Spark job ended early and committed nothing; retry", condition="JOB_ENDED"
            )
        return [decode_outcome(text) for text in answer["outcomes"]]

    def session(self, description: str) -> dict[str, Any]:
        """Return the credentials with which a process on this host joins the statement's session. They are secret, and
        valid during the call.

        Raises `InvalidOptionError` if the driver opens no session, and `StreamhouseError` if the statement has ended.
        """
        if not self.is_available:
            raise InvalidOptionError(
                f"{description}: the session's jar is from another version and opens no session for a CALL; use the "
                "jar of this package, or call the Python function"
            )
        answer = self._request({"description": description, "session": True})
        if answer is None:
            raise StreamhouseError(f"{description}: the statement has ended", condition="JOB_ENDED")
        return answer

    def _request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request to the driver and return its reply, or None if the driver ended without a reply."""
        try:
            stream = self._connect()
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            answer = stream.readline()
        except OSError:
            return None
        return json.loads(answer) if answer.endswith(b"\n") else None

    def _connect(self) -> BufferedIOBase:
        if self._stream is None:
            assert self._address is not None
            driver = self._opened.enter_context(socket.socket(socket.AF_UNIX))
            driver.connect(self._address)
            self._stream = self._opened.enter_context(driver.makefile("rwb"))
        return self._stream


def make_group_runner(jobs: SparkJobs, table: TableHandle, action: str, *, spark_job: bool | None) -> RunGroups | None:
    """Return a function that writes groups of lake files: in a job, largest first, or in this process if they are
    small. Returns None if no job may run. ``action`` is the verb in the job's description.
    """
    if not spark_job and (spark_job is False or not jobs.is_available):
        return None
    here = make_local_runner(table.storage, table.settings, table.world)

    def run(groups: Sequence[SizedFile], writer: GroupWriter) -> Sequence[RewrittenGroup]:
        num_bytes = sum(group.size_bytes for group in groups)
        if not groups or not jobs.should_run(num_bytes, spark_job=spark_job):
            return here(groups, writer)
        tasks = [encode_group_task(writer, group) for group in sorted(groups, key=lambda group: -group.size_bytes)]
        description = f"{action} {table.name}: {len(groups)} groups of files, {num_bytes >> 20} MiB"
        return [RewrittenGroup.from_json(result) for result in jobs.results(description, tasks)]

    return run


def make_round_runner(jobs: SparkJobs, table: TableHandle, *, spark_job: bool | None) -> RunTasks:
    """Return a function that writes the files of a tiering round in a job, or in this process if it is small."""
    here = run_tasks_in_threads(table.storage, table.settings, table.world)

    def run(tasks: Sequence[TieringTask]) -> Sequence[Sequence[LakeFile]]:
        num_bytes = sum(map(task_bytes, tasks))
        if not tasks or not jobs.should_run(num_bytes, spark_job=spark_job):
            return here(tasks)

        def run_groups(groups: list[list[dict[str, Any]]]) -> list[Any]:
            description = f"tier {table.name}: {len(groups)} tasks, {num_bytes >> 20} MiB"
            return jobs.results(description, [json.dumps({"round": group}) for group in groups])

        return run_in_groups(tasks, run_groups)

    return run


def encode_group_task(writer: GroupWriter, group: Any) -> str:
    """Encode a task that rewrites a group of lake files."""
    module, name = type(writer).__module__, type(writer).__name__
    (kind,) = (kind for kind, (path, task, _) in _REWRITE_CLASSES.items() if module.endswith(path) and name == task)
    return json.dumps({"rewrite": kind, "writer": writer.to_json(), "group": group.to_json()})


def run_encoded_task(connection: Connection, text: str) -> dict[str, Any]:
    """Run an encoded task and return its outcome. Raises all errors but `CONFLICT_ERRORS`."""
    try:
        result = _write_files(connection, json.loads(text))
    except CONFLICT_ERRORS as error:
        described = {"class": type(error).__name__, "message": str(error), "condition": error.condition}
        return {"result": None, "error": described, "rows": 0, "bytes": 0}
    files = result["files"] if isinstance(result, dict) else [file for files in result for file in files]
    rows, size = (sum(file[name] for file in files) for name in ("num_rows", "size_bytes"))
    return {"result": result, "error": None, "rows": rows, "bytes": size}


def _write_files(connection: Connection, task: Mapping[str, Any]) -> Any:
    """Write files. Returns a list per task of a round, or a `RewrittenGroup`, as JSON."""
    if "round" in task:
        return run_on_executor(connection, task["round"])
    path, writer_name, group_name = _REWRITE_CLASSES[task["rewrite"]]
    with require_lake_library(task["rewrite"].split()[0], "the files to rewrite"):
        module = import_module(f"streamhouse_spark.lake.{path}")
        writer, group = getattr(module, writer_name), getattr(module, group_name)
        warehouse = connection.warehouse()
        rewritten = writer.from_json(task["writer"]).write_group(
            group.from_json(task["group"]), warehouse.storage, warehouse.settings, warehouse.world
        )
    return rewritten.to_json()


def decode_outcome(text: str) -> Any:
    """Return the result in an outcome, or raise the error in it."""
    outcome = json.loads(text)
    described = outcome["error"]
    for kind in CONFLICT_ERRORS:
        if described is not None and kind.__name__ == described["class"]:
            raise kind(described["message"], condition=described["condition"])
    return outcome["result"]


class TaskReader(DataSourceReader):
    """Runs tasks. ``text`` is a JSON list of encoded tasks, each of which is a partition."""

    def __init__(self, connection: Connection, text: str, schema: StructType) -> None:
        self._connection = connection
        self._schema = schema
        self._tasks: list[str] = json.loads(text)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the reader without the tasks: each partition holds its own."""
        return {**self.__dict__, "_tasks": []}

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        release_memory()
        text = json.dumps(run_encoded_task(self._connection, partition.value), separators=(",", ":"))
        schema = spark_versions.arrow_schema_of(self._schema)
        yield pa.RecordBatch.from_arrays([pa.array([text.encode()], schema.field(0).type)], schema=schema)
