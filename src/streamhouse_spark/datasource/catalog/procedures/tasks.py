"""Tasks of the Spark jobs of a ``CALL``: their encoding, and the reader that runs them as partitions.

A task writes files and reports them. The only row of its partition is its outcome as JSON: ``result`` or a conflict
``error``, with the ``rows`` and ``bytes`` that Spark shows. Spark retries a failed task and uses the outcome of one
attempt. Files of other attempts are orphans, which lake maintenance removes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.tiering_job import run_on_executor
from streamhouse_spark.datasource.worker_memory import release_memory
from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.formats import lake_library
from streamhouse_spark.lake.parquet.compaction import GroupWriter
from streamhouse_spark.lake.tiering.plan import TieringTask
from streamhouse_spark.warehouse.process_cache import Connection

CONFLICT_ERRORS: Final = (CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError)
"""Errors that a retry of the task would hit again and that the planner handles."""


_REWRITING: Final = {
    "iceberg": ("iceberg.maintenance.compaction", "RewriteTask", "CompactGroup"),
    "iceberg by key": ("iceberg.maintenance.compaction_keyed", "KeyedRewriteTask", "KeyedGroup"),
    "paimon": ("paimon.maintenance.compaction", "RewriteTask", "CompactGroup"),
    "paimon by key": ("paimon.maintenance.compaction_keyed", "KeyedRewriteTask", "GroupFiles"),
}
"""Lake modules that rewrite groups of files, each with its writer and group class."""


def encode_round_task(tasks: Sequence[TieringTask]) -> str:
    """Encode a task that writes the files of some tasks of a tiering round."""
    return json.dumps({"round": [task.to_json() for task in tasks]})


def encode_group_task(writer: GroupWriter, group: Any) -> str:
    """Encode a task that rewrites a group of lake files."""
    module, name = type(writer).__module__, type(writer).__name__
    (kind,) = (kind for kind, (path, task, _) in _REWRITING.items() if module.endswith(path) and name == task)
    return json.dumps({"rewrite": kind, "writer": writer.to_json(), "group": group.to_json()})


def run_encoded_task(connection: Connection, text: str) -> dict[str, Any]:
    """Run an encoded task and return its outcome. Raises all errors but `CONFLICT_ERRORS`."""
    try:
        result = _write_files(connection, json.loads(text))
    except CONFLICT_ERRORS as error:
        described = {"class": type(error).__name__, "message": str(error), "condition": error.condition}
        return {"result": None, "error": described, "rows": 0, "bytes": 0}
    files = list(_files_in(result))
    rows, size = (sum(file[name] for file in files) for name in ("num_rows", "size_bytes"))
    return {"result": result, "error": None, "rows": rows, "bytes": size}


def _write_files(connection: Connection, task: Mapping[str, Any]) -> Any:
    """Write files. Returns a list per task of a round, or a `Rewritten`, as JSON."""
    if "round" in task:
        return json.loads(run_on_executor(connection, json.dumps(task["round"])))
    path, writer_name, group_name = _REWRITING[task["rewrite"]]
    with lake_library(task["rewrite"].split()[0], "the files to be written anew"):
        module = import_module(f"streamhouse_spark.lake.{path}")
        writer, group = getattr(module, writer_name), getattr(module, group_name)
        warehouse = connection.warehouse()
        rewritten = writer.from_json(task["writer"]).written(
            group.from_json(task["group"]), warehouse.storage, warehouse.settings, warehouse.world
        )
    return rewritten.to_json()


def decode_outcome(text: str) -> Any:
    """Return the result of an outcome. Raises the error that it holds instead."""
    outcome = json.loads(text)
    described = outcome["error"]
    for kind in CONFLICT_ERRORS:
        if described is not None and kind.__name__ == described["class"]:
            raise kind(described["message"], condition=described["condition"])
    return outcome["result"]


def _files_in(result: Any) -> Iterator[dict[str, Any]]:
    if isinstance(result, list):
        for part in result:
            yield from _files_in(part)
    elif "files" in result:
        yield from result["files"]
    else:
        yield result


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
