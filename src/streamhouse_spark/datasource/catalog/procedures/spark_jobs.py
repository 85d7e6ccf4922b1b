"""Spark jobs of a ``CALL``: this process plans and commits, executor tasks write the files.

For each call, the catalog's Java class listens on a socket and runs the requested jobs as part of the statement: they
appear in Spark's UI with their description, and are cancelled with the statement. Requests and answers are lines of
JSON. A failed or cancelled job sends no answer, so nothing is committed and the user sees Spark's own error.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedIOBase
from types import TracebackType
from typing import Any, Final, Self

from streamhouse_spark.datasource.catalog.procedures.tasks import decode_outcome, encode_group_task, encode_round_task
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.model.values import LakeFile
from streamhouse_spark.lake.parquet.compaction import GroupWriter, Rewritten, RunGroups, SizedFile, make_local_runner
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.lake.tiering.plan import TieringTask, group_tasks, task_bytes
from streamhouse_spark.lake.tiering.round import RunTasks

logger = logging.getLogger(__name__)

JOB_BYTES_MIN: Final = 64 << 20
"""Bytes of files, or of rows in memory, that make a job worth its start of about a second."""


class SparkJobs:
    """The driver's jobs for one call. Without an address there are none."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._stream: BufferedIOBase | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for opened in (self._stream, self._socket):
            if opened is not None:
                with suppress(OSError):  # the driver or the job has ended
                    opened.close()

    @property
    def is_available(self) -> bool:
        return self._address is not None

    def should_run(self, num_bytes: int, *, spark_job: bool | None) -> bool:
        """Return whether a job should write these bytes: as ``spark_job`` says, or by size if it is None.

        Raises `InvalidOptionError` if a job is required but the driver runs none.
        """
        if spark_job and not self.is_available:
            raise InvalidOptionError(
                "spark_job is true, and the session's jar is of another version, which runs no jobs; use the jar of "
                "this package, or leave spark_job out"
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
                f"{description}: the Spark job ended early; nothing of it was committed, run it again",
                condition="JOB_ENDED",
            )
        return [decode_outcome(text) for text in answer["outcomes"]]

    def session(self, description: str) -> dict[str, Any]:
        """Return the credentials by which a process on this host joins the statement's session. They are secret and
        valid during the call.

        Raises `InvalidOptionError` if the driver opens no session, and `StreamhouseError` if the statement has ended.
        """
        if not self.is_available:
            raise InvalidOptionError(
                f"{description}: the session's jar is of another version, which opens no session for a CALL; use the "
                "jar of this package, or call it from Python"
            )
        answer = self._request({"description": description, "session": True})
        if answer is None:
            raise StreamhouseError(f"{description}: the statement has ended", condition="JOB_ENDED")
        return answer

    def _request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request to the driver. Returns None if the driver ended without an answer."""
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
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(self._address)
            self._stream = self._socket.makefile("rwb")
        return self._stream


def make_group_runner(jobs: SparkJobs, table: TableHandle, doing: str, *, spark_job: bool | None) -> RunGroups | None:
    """Return a function that writes groups of lake files in a job, largest first, or in this process if they are small.
    ``doing`` is the verb of the job's description. None if a job is ruled out.
    """
    if not spark_job and (spark_job is False or not jobs.is_available):
        return None
    here = make_local_runner(table.storage, table.settings, table.world)

    def run(groups: Sequence[SizedFile], writer: GroupWriter) -> Sequence[Rewritten]:
        num_bytes = sum(group.size_bytes for group in groups)
        if not groups or not jobs.should_run(num_bytes, spark_job=spark_job):
            return here(groups, writer)
        tasks = [encode_group_task(writer, group) for group in sorted(groups, key=lambda group: -group.size_bytes)]
        description = f"{doing} {table.name}: {len(groups)} groups of files, {num_bytes >> 20} MiB"
        return [Rewritten.from_json(result) for result in jobs.results(description, tasks)]

    return run


def make_round_runner(jobs: SparkJobs, table: TableHandle, *, spark_job: bool | None) -> RunTasks:
    """Return a function that writes the files of a tiering round in a job, or in this process if it is small."""
    here = run_tasks_in_threads(table.storage, table.settings, table.world)

    def run(tasks: Sequence[TieringTask]) -> Sequence[Sequence[LakeFile]]:
        num_bytes = sum(map(task_bytes, tasks))
        if not tasks or not jobs.should_run(num_bytes, spark_job=spark_job):
            return here(tasks)
        groups = group_tasks(tasks)
        texts = [encode_round_task([tasks[position] for position in group]) for group in groups]
        description = f"tier {table.name}: {len(groups)} tasks, {num_bytes >> 20} MiB"
        written = jobs.results(description, texts)
        files_by_task: dict[int, list[LakeFile]] = {}
        for group, files_of_group in zip(groups, written, strict=True):
            for position, files in zip(group, files_of_group, strict=True):
                files_by_task[position] = [LakeFile.from_json(file) for file in files]
        return [files_by_task[position] for position in range(len(tasks))]

    return run
