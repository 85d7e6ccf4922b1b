"""Tasks of the Spark jobs of a ``CALL``: what the driver hands out, and the reader whose partitions they are.

A task writes files and tells which. Its row, the only one of its partition, is its outcome as JSON: ``result``, or the
``error`` that others were faster, with the ``rows`` and ``bytes`` that Spark shows. Spark repeats a task that fails,
and asks for the outcome of one attempt alone; files of the others are orphans for the lake's cleaning.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.datasource import compat
from streamhouse_spark.datasource.tiering_tasks import run_on_executor
from streamhouse_spark.datasource.worker_memory import spare_modules
from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.parquet.compaction import GroupWriter, Sized
from streamhouse_spark.warehouse.connection import Connection

OTHERS_WERE_FASTER: Final = (CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError)
"""Errors that another attempt of a task would meet too, and that whoever planned it knows how to take."""


class Task(Protocol):
    """Work of one task of Spark. It is pickled."""

    def run(self, connection: Connection) -> Any:
        """Do the work on an executor; returns JSON: a list of files, or a mapping that has one in ``files``."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Writes a group of lake files anew."""

    writer: GroupWriter
    group: Sized

    def run(self, connection: Connection) -> Any:
        at = connection.warehouse()
        return self.writer.written(self.group, at.storage, at.settings, at.world).to_json()


@dataclass(frozen=True, slots=True)
class RoundTask:
    """Writes the files of some tasks of a tiering round, a list of them as JSON."""

    tasks: str

    def run(self, connection: Connection) -> Any:
        return json.loads(run_on_executor(connection, self.tasks))


def packed(task: Task) -> str:
    return base64.b64encode(pickle.dumps(task)).decode()


def outcome(connection: Connection, text: str) -> dict[str, Any]:
    """Run a task that `packed` gave, and return its outcome. Raises its errors but for `OTHERS_WERE_FASTER`."""
    task: Task = pickle.loads(base64.b64decode(text))  # noqa: S301 - the driver packed it
    try:
        result = task.run(connection)
    except OTHERS_WERE_FASTER as error:
        told = {"class": type(error).__name__, "message": str(error), "condition": error.condition}
        return {"result": None, "error": told, "rows": 0, "bytes": 0}
    files = list(_files_in(result))
    rows, size = (sum(file[name] for file in files) for name in ("num_rows", "size_bytes"))
    return {"result": result, "error": None, "rows": rows, "bytes": size}


def result_of(text: str) -> Any:
    """Return the result in an outcome. Raises the error that is in its place."""
    found = json.loads(text)
    told = found["error"]
    for kind in OTHERS_WERE_FASTER:
        if told is not None and kind.__name__ == told["class"]:
            raise kind(told["message"], condition=told["condition"])
    return found["result"]


def _files_in(result: Any) -> Iterator[dict[str, Any]]:
    if isinstance(result, list):
        for part in result:
            yield from _files_in(part)
    elif "files" in result:
        yield from result["files"]
    else:
        yield result


class TaskReader(DataSourceReader):
    """Runs tasks: ``text`` has a JSON list of what `packed` gave, and each is a partition."""

    def __init__(self, connection: Connection, text: str, schema: StructType) -> None:
        self._connection = connection
        self._schema = schema
        self._tasks: list[str] = json.loads(text)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the reader without the tasks: each has its own in its partition."""
        return {**self.__dict__, "_tasks": []}

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_modules()
        text = json.dumps(outcome(self._connection, partition.value), separators=(",", ":"))
        schema = compat.arrow_schema_of(self._schema)
        yield pa.RecordBatch.from_arrays([pa.array([text.encode()], schema.field(0).type)], schema=schema)
