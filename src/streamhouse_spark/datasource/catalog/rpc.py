"""Calls of the Spark catalog: an operation and JSON arguments in the options, JSON in the metadata of a schema back.

Spark asks a data source for its schema in a worker process beside the driver. The catalog's Java class uses that as a
call: the options `CALL_OPTION` and `ARGUMENTS_OPTION` have the operation and its arguments, the other options are the
catalog's settings. The answer is one field whose metadata holds ``{"ok": …}`` or ``{"error": {"class", "condition",
"message"}}``, so that an error reaches SQL users as its text, without a Python traceback. Errors that are not a
`StreamhouseError` are defects: they are raised as they are.

A call is often the first and only one of its process, so the module of its operation alone is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from streamhouse_spark.datasource.catalog.rpc_options import ARGUMENTS_OPTION, CALL_OPTION
from streamhouse_spark.datasource.worker_memory import release_memory
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.warehouse.process_cache import Connection

Operation: TypeAlias = Callable[[Connection, Mapping[str, Any]], Mapping[str, Any]]

OPERATIONS: Final = {
    "databases": "ddl.databases",
    "database": "ddl.databases",
    "create_database": "ddl.databases",
    "alter_database": "ddl.databases",
    "drop_database": "ddl.databases",
    "tables": "ddl.tables",
    "create_table": "ddl.tables",
    "describe": "ddl.tables",
    "replace_table": "ddl.replace_table",
    "publish_table": "ddl.replace_table",
    "abandon_table": "ddl.replace_table",
    "alter_table": "ddl.alter",
    "can_alter": "ddl.alter",
    "rename_table": "ddl.alter",
    "merge_columns": "ddl.alter",
    "drop_table": "ddl.tables",
    "truncate_table": "ddl.tables",
    "can_delete": "ddl.delete_by_filter",
    "delete_where": "ddl.delete_by_filter",
    "partition_values": "ddl.tables",
    "drop_partitions": "ddl.tables",
    "truncate_partitions": "ddl.tables",
    "views": "ddl.views",
    "load_view": "ddl.views",
    "create_view": "ddl.views",
    "replace_view": "ddl.views",
    "rename_view": "ddl.views",
    "drop_view": "ddl.views",
    "begin": "scan.warm_up",
    "load": "scan.scan",
    "load_changes": "scan.changes_scan",
    "end_of_changes": "scan.changes_scan",
    "plan_batch_of_changes": "scan.changes_scan",
    "begin_real_time": "scan.real_time",
    "follow_log": "scan.real_time",
    "finish_real_time": "scan.real_time",
    "begin_real_time_write": "scan.real_time_write",
    "end_real_time_write": "scan.real_time_write",
    "load_source": "scan.dataframe_reads",
    "plan": "scan.scan",
    "aggregate": "scan.aggregates",
    "row_level_operation": "scan.row_level_operation",
    "check_options": "scan.options",
    "procedures": "procedures.procedures",
    "call_procedure": "procedures.procedures",
}
"""The module below `datasource.catalog` of each operation, which is the function of its name there."""


def operation_of(name: str) -> Operation:
    """Return the function of an operation. Raises `KeyError` for an unknown one."""
    module = import_module(f"streamhouse_spark.datasource.catalog.{OPERATIONS[name]}")
    operation: Operation = getattr(module, name)
    return operation


def answer(connect: Callable[[], Connection], options: Mapping[str, str]) -> StructType:
    """Answer the call in the options."""
    operation = operation_of(options[CALL_OPTION])
    reply: dict[str, Any]
    try:
        reply = {"ok": operation(connect(), json.loads(options[ARGUMENTS_OPTION]))}
    except StreamhouseError as error:
        described = {"class": type(error).__name__, "condition": error.condition, "message": str(error)}
        reply = {"error": described}
    release_memory()
    text = json.dumps(reply, separators=(",", ":"), allow_nan=False)
    return StructType([StructField("answer", StringType(), nullable=True, metadata={"json": text})])
