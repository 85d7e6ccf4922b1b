"""Types of columns that only some lakes can hold. Pure."""

from __future__ import annotations

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.schema.variant import is_variant


def check_variants(schema: TableSchema, lake_format: str) -> None:
    """Refuse VARIANT columns of a table with a lake that cannot hold them. Raises `SchemaMismatchError`."""
    if lake_format == "paimon":
        return
    for column in schema.columns:
        if is_variant(column.type):
            raise SchemaMismatchError(
                f"column '{column.name}' is VARIANT, and an Iceberg lake cannot hold it: variants are of Iceberg's "
                "format 3, which pyiceberg does not write, and it has no type for them; choose a Paimon lake "
                "(table.datalake.format=paimon) or no lake (table.datalake.enabled=false), or store JSON as STRING"
            )
