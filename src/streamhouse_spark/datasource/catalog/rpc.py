"""RPC from the Spark catalog to Python. Data source options carry the call, and schema metadata carries the reply.

Spark reads the schema of a Python data source in a worker process on the driver's host. The catalog's Java class uses
this as a call: `CALL_OPTION` and `ARGUMENTS_OPTION` hold the operation and its JSON arguments. All other options are
catalog settings. The returned schema has one field, whose metadata holds ``{"ok": …}`` or ``{"error": {"class",
"condition", "message"}}``. SQL users therefore see the error text without a Python traceback. Errors other than
`StreamhouseError` are defects and propagate.

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

_OPERATIONS_BY_MODULE: Final = {
    "catalog.ddl.databases": "databases database create_database alter_database drop_database",
    "catalog.ddl.tables": (
        "tables create_table drop_table truncate_table partition_values drop_partitions truncate_partitions"
    ),
    "catalog.ddl.replace_table": "replace_table publish_table abandon_table",
    "catalog.ddl.alter": "alter_table can_alter rename_table merge_columns",
    "dml.pushed_conditions": "can_delete delete_where",
    "catalog.ddl.views": "views load_view create_view replace_view rename_view drop_view",
    "scan.scan": "warm_up load load_source plan",
    "scan.changes_clause": "load_changes end_of_changes plan_batch_of_changes",
    "realtime.planning": "begin_real_time plan_real_time_batch finish_real_time",
    "realtime.sink_progress": "begin_real_time_write end_real_time_write",
    "scan.aggregates": "aggregate",
    "dml.row_level_operation": "row_level_operation",
    "scan.catalog_options": "check_options",
    "catalog.procedures.procedures": "procedures call_procedure",
}
"""Module below `datasource` → its operations, which are functions of the same name."""
OPERATIONS: Final = {
    operation: module for module, operations in _OPERATIONS_BY_MODULE.items() for operation in operations.split()
}


def operation_of(name: str) -> Operation:
    """Return the function of an operation. Raises `KeyError` for an unknown name."""
    module = import_module(f"streamhouse_spark.datasource.{OPERATIONS[name]}")
    operation: Operation = getattr(module, name)
    return operation


def answer(connect: Callable[[], Connection], options: Mapping[str, str]) -> StructType:
    """Run the operation in the options, and return a schema with its result or error."""
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
