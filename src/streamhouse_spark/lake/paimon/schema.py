"""Conversion of schemas between a streamhouse table and Paimon, and checks whether they fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pypaimon.schema.data_types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    PyarrowFieldParser,
    RowType,
    current_highest_field_id,
)
from pypaimon.schema.table_schema import TableSchema as PaimonSchema

from streamhouse_spark.errors import LakeMismatchError, SchemaMismatchError
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, InnerOf, map_by_name
from streamhouse_spark.lake.parquet.file_columns import FIELD_ID
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema.nested_fields import ELEMENT, KEY, VALUE, Path
from streamhouse_spark.schema.table_schema import Column, TableSchema, canonical_type
from streamhouse_spark.schema.variant import VARIANT

UNAWARE_BUCKETS: Final = -1
"""``bucket`` of a table without a bucket key. Paimon stores all its files in folder ``bucket-0``."""

_FROM_ARROW: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP(6)",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP_LTZ(6)",
    VARIANT: "VARIANT",
}
_FOREIGN_OPTIONS: Final = (
    "bucket-function.type",
    "data-evolution.enabled",
    "data-file.external-paths",
    "data-file.path-directory",
    "deletion-vectors.enabled",
    "row-tracking.enabled",
)
"""Options that move files, or change the rows in them."""
KEYED_OPTIONS: Final = {"merge-engine": "deduplicate", "changelog-producer": "none"}
"""Options of a primary-key table. The log has the net changes of any merge engine, so the latest row of a key wins."""
_FOREIGN_KEYED_OPTIONS: Final = (
    "deduplicate.ignore-delete",
    "ignore-delete",
    "ignore-update-before",
    "pk-clustering-override",
    "primary-key.nullable",
    "record-level.expire-time",
    "rowkind.field",
    "sequence.field",
)
"""Options that make a row other than the latest win, or none."""


def paimon_schema(spec: LakeTableSpec, now_ms: int) -> PaimonSchema:
    """Return the first schema of a new lake table: the table's columns in order, their map, and its buckets."""
    ids = itertools.count(len(spec.schema.columns))
    fields = [new_field(i, column, ids) for i, column in enumerate(spec.schema.columns)]
    columns = map_by_name(
        [(field.id, field.name) for field in fields], spec.schema, spec.schema_id, nested_field_finder(fields)
    )
    return PaimonSchema(
        id=0,
        fields=fields,
        highest_field_id=current_highest_field_id(fields),
        partition_keys=list(spec.partition_by),
        primary_keys=list(spec.primary_key),
        options={
            **bucket_options(spec),
            **(KEYED_OPTIONS if spec.primary_key else {}),
            "file.format": "parquet",
            "partition.legacy-name": "false",  # dates as text, as readers in other languages expect
            "write-only": "true",  # other writers do not compact, so that files keep their offsets
            TABLE_UUID_PROPERTY: spec.table_uuid,
            COLUMNS_PROPERTY: columns.to_text(spec.table_uuid),
        },
        time_millis=now_ms,
    )


def bucket_options(spec: LakeTableSpec) -> dict[str, str]:
    if spec.bucket_key:
        return {"bucket": str(spec.num_buckets), "bucket-key": ",".join(spec.bucket_key)}
    return {"bucket": str(spec.num_buckets if spec.primary_key else UNAWARE_BUCKETS)}


def new_field(field_id: int, column: Column, ids: Iterator[int]) -> DataField:
    return DataField(
        field_id, column.name, paimon_type(column.type, ids, nullable=column.nullable), column.comment or None
    )


def paimon_type(arrow: pa.DataType, ids: Iterator[int], *, nullable: bool = True) -> DataType:
    """Return the Paimon type. ``ids`` provides the ids of nested fields."""
    is_type = pa.types
    if is_type.is_decimal(arrow):
        return AtomicType(f"DECIMAL({arrow.precision}, {arrow.scale})", nullable)
    if is_type.is_list(arrow):
        return ArrayType(nullable, paimon_type(arrow.value_type, ids))
    if is_type.is_map(arrow):
        return MapType(nullable, paimon_type(arrow.key_type, ids, nullable=False), paimon_type(arrow.item_type, ids))
    if is_type.is_struct(arrow) and arrow not in _FROM_ARROW:
        return RowType(
            nullable, [DataField(next(ids), f.name, paimon_type(f.type, ids, nullable=f.nullable)) for f in arrow]
        )
    return AtomicType(_FROM_ARROW[arrow], nullable)


def nested_field_finder(fields: Sequence[DataField]) -> InnerOf:
    """Return the function that returns the nested fields of a column of ``fields``, or none for an unknown column."""
    types = {field.id: field.type for field in fields}
    return lambda field_id: nested_field_ids(types[field_id]) if field_id in types else {}


def nested_field_ids(data_type: DataType) -> dict[Path, int]:
    """Return the ids of nested row fields of a type, by their lowercase paths."""
    return {tuple(name.casefold() for name in path): i for path, i in nested_field_paths(data_type)}


def nested_field_paths(data_type: DataType) -> list[tuple[Path, int]]:
    """Return the paths and ids of nested row fields of a type, parents first."""
    match data_type:
        case ArrayType():
            return [((ELEMENT, *path), i) for path, i in nested_field_paths(data_type.element)]
        case MapType():
            parts = ((KEY, data_type.key), (VALUE, data_type.value))
            return [((name, *path), i) for name, part in parts for path, i in nested_field_paths(part)]
        case RowType():
            paths: list[tuple[Path, int]] = []
            for field in data_type.fields:
                paths.append(((field.name,), field.id))
                paths += [((field.name, *path), i) for path, i in nested_field_paths(field.type)]
            return paths
    return []


def lake_schema(lake: PaimonSchema) -> TableSchema:
    """Return the columns of the lake table for Spark and the rest of the package. Their ids are the lake's field ids.

    Raises `LakeMismatchError` for a type that a streamhouse table does not support.
    """
    try:
        return TableSchema(
            tuple(Column(f.id, f.name, arrow_type(f.type, f.name), f.type.nullable, f.description) for f in lake.fields)
        )
    except (SchemaMismatchError, ValueError) as error:
        raise LakeMismatchError(
            f"the Paimon table has columns that are not supported: {error}; change or drop them with another engine"
        ) from error


def arrow_type(data_type: DataType, column: str) -> pa.DataType:
    """Return the table type of a lake column. Raises `SchemaMismatchError` or ``ValueError`` if it is unsupported."""
    if is_variant(data_type):
        return VARIANT
    if _contains_variant(data_type):
        raise SchemaMismatchError(
            f"column '{column}' of type {type_without_ids(data_type)} has VARIANT inside another type"
        )
    return canonical_type(PyarrowFieldParser.from_paimon_type(data_type), column=column)


def is_variant(data_type: DataType) -> bool:
    """Return whether a column of the lake is VARIANT."""
    return isinstance(data_type, AtomicType) and type_without_ids(data_type) == _FROM_ARROW[VARIANT]


def _contains_variant(data_type: DataType) -> bool:
    match data_type:
        case ArrayType():
            return _contains_variant(data_type.element)
        case MapType():
            return _contains_variant(data_type.key) or _contains_variant(data_type.value)
        case RowType():
            return any(_contains_variant(field.type) for field in data_type.fields)
    return is_variant(data_type)


def file_schema(lake: PaimonSchema) -> pa.Schema:
    """Return the Arrow schema of a data file, with field ids on every level."""
    return pa.schema([_file_field(f) for f in lake.fields])


def _file_field(field: DataField) -> pa.Field:
    metadata = {FIELD_ID: str(field.id).encode()}
    return pa.field(field.name, _file_type(field.type), nullable=field.type.nullable, metadata=metadata)


def _file_type(data_type: DataType) -> pa.DataType:
    match data_type:
        case ArrayType():
            plain = PyarrowFieldParser.from_paimon_type(data_type)
            return pa.list_(plain.value_field.with_type(_file_type(data_type.element)))
        case MapType():
            plain = PyarrowFieldParser.from_paimon_type(data_type)
            key = plain.key_field.with_type(_file_type(data_type.key))
            return pa.map_(key, plain.item_field.with_type(_file_type(data_type.value)))
        case RowType():
            return pa.struct([_file_field(field) for field in data_type.fields])
    return PyarrowFieldParser.from_paimon_type(data_type)


def is_stored_as(arrow: pa.DataType, lake_type: DataType) -> bool:
    """Return whether the lake stores a column of the Arrow type as this Paimon type."""
    return type_without_ids(paimon_type(arrow, itertools.count())) == type_without_ids(lake_type)


def type_without_ids(data_type: DataType) -> str:
    """Return the type without field ids, comments and its own nullability."""
    match data_type:
        case ArrayType():
            return f"ARRAY<{_nested_type(data_type.element)}>"
        case MapType():
            return f"MAP<{_nested_type(data_type.key)}, {_nested_type(data_type.value)}>"
        case RowType():
            return f"ROW<{', '.join(f'{f.name}: {_nested_type(f.type)}' for f in data_type.fields)}>"
    return str(data_type.type)


def _nested_type(data_type: DataType) -> str:
    return type_without_ids(data_type) + ("" if data_type.nullable else " NOT NULL")


def find_differences(lake: PaimonSchema, spec: LakeTableSpec) -> list[str]:
    """Describe the differences of a Paimon table from the lake table of ``spec``."""
    problems = []
    by_name = {f.name.casefold(): f for f in lake.fields}
    for column in spec.schema.columns:
        field = by_name.pop(column.name.casefold(), None)
        expected = type_without_ids(paimon_type(column.type, itertools.count()))
        if field is None:
            problems.append(f"column '{column.name}' ({expected}) is missing")
            continue
        if type_without_ids(field.type) != expected:
            problems.append(f"column '{column.name}' is {type_without_ids(field.type)}, expected {expected}")
        if column.nullable and not field.type.nullable:
            problems.append(f"column '{column.name}' is NOT NULL, expected nullable")
    problems += [f"column '{field.name}' is not in the table" for field in by_name.values()]
    problems += _describe_difference("partition keys", lake.partition_keys, list(spec.partition_by))
    problems += _describe_difference("primary keys", lake.primary_keys, list(spec.primary_key))
    options = bucket_options(spec)
    for name in ("bucket", "bucket-key"):
        problems += _describe_difference(f"option {name}", lake.options.get(name), options.get(name))
    if spec.primary_key:
        for name, expected in KEYED_OPTIONS.items():
            problems += _describe_difference(f"option {name}", lake.options.get(name, expected), expected)
    for name in (*_FOREIGN_OPTIONS, *(_FOREIGN_KEYED_OPTIONS if spec.primary_key else ())):
        if lake.options.get(name, "false").strip().lower() not in ("false", "default", ""):
            problems.append(f"option {name} is {lake.options[name]}, which is not supported")
    return problems


def _describe_difference(subject: str, actual: Any, expected: Any) -> Sequence[str]:
    return () if actual == expected else (f"{subject}: {actual or 'none'}, expected {expected or 'none'}",)
