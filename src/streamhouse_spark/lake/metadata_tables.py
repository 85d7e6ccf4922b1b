"""Names of the metadata tables of a lake table, and their conversion to types that Spark supports."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pyarrow as pa

from streamhouse_spark.errors import InvalidNameError
from streamhouse_spark.schema.table_schema import canonical_type


def require_metadata_table(name: str, names: Sequence[str], kind: str) -> None:
    """Raise `InvalidNameError` with the existing ``names`` if a lake table has no such metadata table.

    ``kind`` is the kind of table with its article.
    """
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? Available" if near else "available"
        raise InvalidNameError(f"{kind} table has no metadata table '{name}'; {hint}: {', '.join(names)}")


def convert_for_spark(table: pa.Table) -> pa.Table:
    columns, fields = [], []
    for field, chunks in zip(table.schema, table.columns, strict=True):
        if _is_empty_struct(field.type):
            continue
        column = _drop_empty_structs(chunks.combine_chunks())
        spark_type = _spark_type(column.type, field.name)
        columns.append(column if column.type.equals(spark_type) else column.cast(spark_type))
        fields.append(pa.field(field.name, spark_type, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _is_empty_struct(data_type: pa.DataType) -> bool:
    """Return whether the type is an empty struct, which Spark does not support.

    The libraries use it for the partition of an unpartitioned table, and for metrics of nested columns.
    """
    return bool(pa.types.is_struct(data_type) and data_type.num_fields == 0)


def _drop_empty_structs(column: pa.Array) -> pa.Array:
    if not pa.types.is_struct(column.type):
        return column
    non_empty = [(f, column.field(i)) for i, f in enumerate(column.type) if not _is_empty_struct(f.type)]
    children = [_drop_empty_structs(child) for _, child in non_empty]
    fields = [pa.field(f.name, child.type) for (f, _), child in zip(non_empty, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def _spark_type(data_type: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz="UTC")  # the libraries return UTC times without a time zone
    return canonical_type(data_type, column=column)
