"""Metadata tables of a Paimon table, under pypaimon's names, with types that Spark supports."""

from __future__ import annotations

import difflib
from typing import Final

import pyarrow as pa
from pypaimon.table.system import system_table_loader

from streamhouse_spark.errors import InvalidNameError
from streamhouse_spark.lake.paimon.file_io import PaimonFiles, paimon_metadata
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.schema.table_schema import canonical_type

METADATA_TABLES: Final = (
    "buckets",
    "consumers",
    "files",
    "manifests",
    "options",
    "partitions",
    "schemas",
    "snapshots",
    "tags",
)


def metadata_table(place: PaimonTableBinding, table: PaimonTable, name: str) -> pa.Table:
    """Return a metadata table. Raises `InvalidNameError` with the existing names."""
    if name not in METADATA_TABLES:
        near = difflib.get_close_matches(name, METADATA_TABLES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidNameError(
            f"no metadata table '{name}' on a Paimon table; {hint}There are {', '.join(METADATA_TABLES)}"
        )
    with paimon_metadata(table.location):
        builder = system_table_loader.load(name, table.store(PaimonFiles(place.files))).new_read_builder()
        return _convert_for_spark(builder.new_read().to_arrow(builder.new_scan().plan().splits()))


def _convert_for_spark(table: pa.Table) -> pa.Table:
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        spark_type = canonical_type(field.type, column=field.name)
        if pa.types.is_timestamp(spark_type):
            spark_type = pa.timestamp("us", tz="UTC")  # Paimon returns UTC without a time zone
        columns.append(column if field.type.equals(spark_type) else column.cast(spark_type))
        fields.append(pa.field(field.name, spark_type, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
