"""RPC from the Spark catalog to Python: an operation with JSON arguments in the options, JSON in schema metadata back.

Spark reads the schema of a Python data source in a worker process on the driver's host. The catalog's Java class uses
that as a call: `CALL_OPTION` and `ARGUMENTS_OPTION` hold the operation and its arguments, all other options are catalog
settings. The answer is one field whose metadata holds ``{"ok": …}`` or ``{"error": {"class", "condition",
"message"}}``, so SQL users see the error text without a Python traceback. Errors other than `StreamhouseError` are
defects and propagate.

A worker process often serves a single call, so only the operation's module is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from streamhouse_spark.datasource.rpc_arguments import ARGUMENTS_OPTION, CALL_OPTION
from streamhouse_spark.datasource.worker import release_memory
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.warehouse.process_cache import Connection

Operation: TypeAlias = Callable[[Connection, Mapping[str, Any]], Mapping[str, Any]]

OPERATIONS: Final = {
    "databases": "catalog.ddl.databases",
    "database": "catalog.ddl.databases",
    "create_database": "catalog.ddl.databases",
    "alter_database": "catalog.ddl.databases",
    "drop_database": "catalog.ddl.databases",
    "tables": "catalog.ddl.tables",
    "create_table": "catalog.ddl.tables",
    "describe": "catalog.ddl.tables",
    "replace_table": "catalog.ddl.replace_table",
    "publish_table": "catalog.ddl.replace_table",
    "abandon_table": "catalog.ddl.replace_table",
    "alter_table": "catalog.ddl.alter",
    "can_alter": "catalog.ddl.alter",
    "rename_table": "catalog.ddl.alter",
    "merge_columns": "catalog.ddl.alter",
    "drop_table": "catalog.ddl.tables",
    "truncate_table": "catalog.ddl.tables",
    "can_delete": "dml.pushed_conditions",
    "delete_where": "dml.pushed_conditions",
    "partition_values": "catalog.ddl.tables",
    "drop_partitions": "catalog.ddl.tables",
    "truncate_partitions": "catalog.ddl.tables",
    "views": "catalog.ddl.views",
    "load_view": "catalog.ddl.views",
    "create_view": "catalog.ddl.views",
    "replace_view": "catalog.ddl.views",
    "rename_view": "catalog.ddl.views",
    "drop_view": "catalog.ddl.views",
    "begin": "scan.scan",
    "load": "scan.scan",
    "load_changes": "scan.changes_scan",
    "end_of_changes": "scan.changes_scan",
    "plan_batch_of_changes": "scan.changes_scan",
    "begin_real_time": "realtime.log_following",
    "follow_log": "realtime.log_following",
    "finish_real_time": "realtime.log_following",
    "begin_real_time_write": "realtime.sink_progress",
    "end_real_time_write": "realtime.sink_progress",
    "load_source": "scan.scan",
    "plan": "scan.scan",
    "aggregate": "scan.aggregates",
    "row_level_operation": "dml.row_level_operation",
    "check_options": "scan.catalog_options",
    "procedures": "catalog.procedures.procedures",
    "call_procedure": "catalog.procedures.procedures",
}
"""Operation → its module below `datasource`. The function has the operation's name."""


def operation_of(name: str) -> Operation:
    """Return the function of an operation. Raises `KeyError` for an unknown one."""
    module = import_module(f"streamhouse_spark.datasource.{OPERATIONS[name]}")
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
