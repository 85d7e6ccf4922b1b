"""Requirements on a table's columns, so that Paimon can hold the table and find its rows again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.reserved_names import is_of_paimon
from streamhouse_spark.schema.table_schema import TableSchema

_DAYS: Final = (-719_162, 2_932_896)
_MICROSECONDS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
"""Range of timestamps from the year 1 to 9999, as microseconds since 1970: the range of Paimon's Python library."""
BUCKET_KEY_DIGITS_MAX: Final = 18
BUCKET_KEY_COLUMNS_MAX: Final = 24
"""Limit of the bucket key's columns: their null flags then fit into the first word that is hashed."""


def check_paimon_keys(table: str, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
    """Refuse keys that files of a Paimon lake cannot express. Raises `SchemaMismatchError` naming the column."""
    for name, column in zip(names, columns, strict=True):
        if pa.types.is_date32(column.type):
            bounds, ticks = _DAYS, pa.int32()
        elif pa.types.is_timestamp(column.type):
            bounds, ticks = _MICROSECONDS, pa.int64()
        else:
            continue
        found = pc.min_max(column.cast(ticks)).as_py()
        if len(column) and not (bounds[0] <= found["min"] and found["max"] <= bounds[1]):
            raise SchemaMismatchError(
                f"column '{name}' of {table} is in the primary key and has a value before the year 1 or behind 9999, "
                "which Paimon's libraries cannot hold; correct it"
            )


def check_paimon_columns(
    schema: TableSchema, partition_by: Sequence[str], bucket_key: Sequence[str], primary_key: Sequence[str] = ()
) -> None:
    """Check the columns. Raises `SchemaMismatchError` for a name that is Paimon's own, `InvalidOptionError` for a
    column that cannot have its role.
    """
    for name in schema.names:
        if is_of_paimon(name):
            raise SchemaMismatchError(f"the column name '{name}' is Paimon's own; rename the column")
    for name in partition_by:
        _check_partition_column(name, schema.column(name).type)
    for name in bucket_key:
        _check_bucket_key(name, schema.column(name).type)
        if name in partition_by:
            raise InvalidOptionError(f"bucket.key '{name}' is a partition column, which Paimon refuses; choose another")
    if len(bucket_key) > BUCKET_KEY_COLUMNS_MAX:
        raise InvalidOptionError(
            f"bucket.key has {len(bucket_key)} columns, at most {BUCKET_KEY_COLUMNS_MAX} are possible; leave some out"
        )
    for name in primary_key:
        _check_key_column(name, schema.column(name).type)
    if primary_key and set(primary_key) <= set(partition_by):
        raise InvalidOptionError(
            f"all columns of the primary key {', '.join(primary_key)} are partition columns, which Paimon refuses; add "
            "another column to the key, or use iceberg"
        )


def _check_partition_column(name: str, arrow: pa.DataType) -> None:
    """Refuse types of partition columns whose values readers of other languages would turn into other folder names."""
    is_type = pa.types
    if not (is_type.is_integer(arrow) or is_type.is_string(arrow) or is_type.is_date(arrow)):
        raise InvalidOptionError(
            f"partition column '{name}' has type {type_name(arrow)}; a Paimon lake is partitioned by integers, text or "
            "dates here"
        )


def _check_key_column(name: str, arrow: pa.DataType) -> None:
    """Refuse types of key columns whose values Paimon's readers tell apart and this table does not: -0.0 and 0.0, and
    NaN in Python.
    """
    if pa.types.is_floating(arrow):
        raise InvalidOptionError(
            f"the primary key has '{name}' of type {type_name(arrow)}, whose equal values Paimon's libraries tell "
            "apart; choose a column of another type, or use iceberg"
        )


def _check_bucket_key(name: str, arrow: pa.DataType) -> None:
    if pa.types.is_decimal(arrow) and arrow.precision > BUCKET_KEY_DIGITS_MAX:
        raise InvalidOptionError(
            f"bucket.key '{name}' has type {type_name(arrow)}: of more than {BUCKET_KEY_DIGITS_MAX} digits Paimon's "
            "libraries take different buckets; choose another column, or use iceberg"
        )
    if "," in name or name != name.strip():
        raise InvalidOptionError(
            f"bucket.key {name!r} has a comma or blanks at its ends, which Paimon's option bucket-key cannot say; "
            "rename the column, or choose another"
        )
