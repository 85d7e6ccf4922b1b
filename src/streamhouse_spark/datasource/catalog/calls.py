"""Calls of the Spark catalog: an operation and JSON arguments in the options, JSON in the metadata of a schema back.

Spark asks a data source for its schema in a worker process beside the driver. The catalog's Java class uses that as a
call: the options `CALL_OPTION` and `ARGUMENTS_OPTION` have the operation and its arguments, the other options are the
catalog's settings. The answer is one field whose metadata holds ``{"ok": …}`` or ``{"error": {"class", "condition",
"message"}}``, so that an error reaches SQL users as its text, without a Python traceback. Errors that are not a
`StreamhouseError` are defects: they are raised as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from streamhouse_spark.datasource.catalog.ddl import alter, databases, replace, tables
from streamhouse_spark.datasource.catalog.internal_options import ARGUMENTS_OPTION, CALL_OPTION
from streamhouse_spark.datasource.catalog.procedures import procedures
from streamhouse_spark.datasource.catalog.scan import aggregates, scan
from streamhouse_spark.datasource.catalog.scan import options as scan_options
from streamhouse_spark.datasource.catalog.scan import row_level as operations
from streamhouse_spark.datasource.worker_memory import spare_modules
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.warehouse.connection import Connection

Operation: TypeAlias = Callable[[Connection, Mapping[str, Any]], Mapping[str, Any]]

OPERATIONS: Final[Mapping[str, Operation]] = {
    "databases": databases.databases,
    "database": databases.database,
    "create_database": databases.create_database,
    "alter_database": databases.alter_database,
    "drop_database": databases.drop_database,
    "tables": tables.tables,
    "create_table": tables.create_table,
    "describe": tables.describe,
    "replace_table": replace.replace_table,
    "alter_table": alter.alter_table,
    "rename_table": alter.rename_table,
    "drop_table": tables.drop_table,
    "truncate_table": tables.truncate_table,
    "partition_values": tables.partition_values,
    "drop_partitions": tables.drop_partitions,
    "load": scan.load,
    "plan": scan.plan,
    "aggregate": aggregates.aggregate,
    "row_level_operation": operations.row_level_operation,
    "check_options": scan_options.check_options,
    "procedures": procedures.procedures,
    "call_procedure": procedures.call_procedure,
}


def answer(connect: Callable[[], Connection], options: Mapping[str, str]) -> StructType:
    """Answer the call in the options."""
    operation = OPERATIONS[options[CALL_OPTION]]
    reply: dict[str, Any]
    try:
        reply = {"ok": operation(connect(), json.loads(options[ARGUMENTS_OPTION]))}
    except StreamhouseError as error:
        described = {"class": type(error).__name__, "condition": error.condition, "message": str(error)}
        reply = {"error": described}
    spare_modules()
    text = json.dumps(reply, separators=(",", ":"), allow_nan=False)
    return StructType([StructField("answer", StringType(), nullable=True, metadata={"json": text})])
