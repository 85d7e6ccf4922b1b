"""Restrictions on the columns of tables with a Paimon lake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.python_values import first_beyond_python, to_python
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema, is_reserved_by_paimon

BUCKET_KEY_DIGITS_MAX: Final = 18
BUCKET_KEY_COLUMNS_MAX: Final = 24
"""Maximum columns of the bucket key: their null flags must fit in the first word that Paimon hashes."""


def limited_columns(schema: TableSchema, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the key and partition columns whose values `check_paimon_values` must check."""
    types = {name: schema.column(name).type for name in columns}
    return tuple(name for name, kind in types.items() if pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def check_paimon_values(table: str, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
    """Raise `SchemaMismatchError` for values of key and partition columns that pypaimon does not support."""
    for name, column in columns.items():
        if (value := first_beyond_python(column)) is not None:
            raise SchemaMismatchError(
                f"column '{name}' of {table} has the value {to_python(value)}, expected the years 1 to 9999 in keys "
                "and partitions of a Paimon lake; nothing was written, correct the value, or use an Iceberg lake"
            )


def check_paimon_columns(
    schema: TableSchema, partition_by: Sequence[str], bucket_key: Sequence[str], primary_key: Sequence[str] = ()
) -> None:
    """Validate the columns of a table with a Paimon lake.

    Raises `SchemaMismatchError` for a name that Paimon reserves, and `InvalidOptionError` for a column that cannot be
    in the primary key, the bucket key or the partitioning.
    """
    for name in schema.names:
        if is_reserved_by_paimon(name):
            raise SchemaMismatchError(f"the column name '{name}' is reserved by Paimon; rename the column")
    is_type = pa.types
    for name in partition_by:
        arrow = schema.column(name).type
        # The values of other types have other directory names in Paimon's Java library than in pypaimon.
        if not (is_type.is_integer(arrow) or is_type.is_string(arrow) or is_type.is_date(arrow)):
            raise InvalidOptionError(
                f"partition column '{name}' has type {type_name(arrow)}, expected integers, strings or dates in a "
                "Paimon lake; choose another column, or use iceberg"
            )
    for name in bucket_key:
        _check_bucket_key(name, schema.column(name).type)
        if name in partition_by:
            raise InvalidOptionError(f"bucket.key '{name}' is a partition column, which Paimon rejects; choose another")
    if len(bucket_key) > BUCKET_KEY_COLUMNS_MAX:
        raise InvalidOptionError(
            f"bucket.key has {len(bucket_key)} columns, expected at most {BUCKET_KEY_COLUMNS_MAX}; leave some out"
        )
    for name in primary_key:
        arrow = schema.column(name).type
        if is_type.is_floating(arrow):  # -0.0 and 0.0 are two keys in Paimon, and NaN has several forms
            raise InvalidOptionError(
                f"the primary key has '{name}' of type {type_name(arrow)}, whose equal values can be distinct keys in "
                "Paimon; choose a column of another type, or use iceberg"
            )
    if primary_key and set(primary_key) <= set(partition_by):
        raise InvalidOptionError(
            f"all columns of the primary key {', '.join(primary_key)} are partition columns, which Paimon rejects; add "
            "another column to the key, or use iceberg"
        )


def _check_bucket_key(name: str, arrow: pa.DataType) -> None:
    if pa.types.is_decimal(arrow) and arrow.precision > BUCKET_KEY_DIGITS_MAX:
        raise InvalidOptionError(
            f"bucket.key '{name}' has type {type_name(arrow)}, expected at most {BUCKET_KEY_DIGITS_MAX} digits, beyond "
            "which Paimon's libraries compute different buckets; choose another column, or use iceberg"
        )
    if "," in name or name != name.strip():
        raise InvalidOptionError(
            f"bucket.key {name!r} has a comma, or blanks at its ends, which Paimon's option bucket-key does not "
            "support; rename the column, or choose another"
        )
