"""Makes the calls of the catalog as the JVM class does: operations by name, arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from streamhouse_spark.datasource.catalog.rpc import operation_of
from streamhouse_spark.warehouse.process_cache import Connection


@dataclass(frozen=True)
class Catalog:
    connection: Connection

    def call(self, operation: str, **args: Any) -> Mapping[str, Any]:
        found = operation_of(operation)(self.connection, json.loads(json.dumps(args)))
        return json.loads(json.dumps(found))

    def create(
        self,
        database: str,
        table: str,
        schema: str = "id bigint, dt date",
        partitioning: Sequence[Mapping[str, Any]] = (),
        **more: Any,
    ) -> Mapping[str, Any]:
        return self.call(
            "create_table",
            database=database,
            table=table,
            schema=struct(schema),
            partitioning=list(partitioning),
            **{"properties": {}, "primary_key": [], **more},
        )


def struct(ddl: str) -> str:
    """The JSON of a Spark schema text, without a session."""
    from streamhouse_spark.datasource.spark_schema import read_schema
    from streamhouse_spark.schema.table_schema import TableSchema

    schema = TableSchema.of(ddl)
    found: StructType = read_schema(schema.arrow, schema)
    return found.json()


def identity(column: str) -> dict[str, Any]:
    return {"transform": "identity", "columns": [[column]], "arguments": []}


def bucket(count: int, *columns: str) -> dict[str, Any]:
    return {"transform": "bucket", "columns": [[column] for column in columns], "arguments": [count]}
