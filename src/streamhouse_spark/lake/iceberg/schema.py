"""Conversion of schemas and partition specs between a streamhouse table and Iceberg, and checks whether they fit."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast
from urllib.parse import quote_plus

import pyarrow as pa
from pyiceberg import types as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.transforms import Transform as IcebergTransform
from pyiceberg.typedef import Record

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.column_mapping import InnerOf
from streamhouse_spark.schema import partitioning as own
from streamhouse_spark.schema.nested_fields import ELEMENT, KEY, VALUE, Path
from streamhouse_spark.schema.table_schema import Column, TableSchema

FIELD_ID = b"PARQUET:field_id"
PATH_ID = 2147483546
"""Field id of the data file's path in position deletes (Iceberg specification, reserved field ids)."""
FORMAT_VERSION = 2

_FROM_ARROW: dict[pa.DataType, ice.IcebergType] = {
    pa.bool_(): ice.BooleanType(),
    pa.int8(): ice.IntegerType(),
    pa.int16(): ice.IntegerType(),
    pa.int32(): ice.IntegerType(),
    pa.int64(): ice.LongType(),
    pa.float32(): ice.FloatType(),
    pa.float64(): ice.DoubleType(),
    pa.string(): ice.StringType(),
    pa.binary(): ice.BinaryType(),
    pa.date32(): ice.DateType(),
    pa.timestamp("us"): ice.TimestampType(),
    pa.timestamp("us", tz="UTC"): ice.TimestamptzType(),
}
_TO_ARROW: dict[type[ice.IcebergType], pa.DataType] = {
    ice.BooleanType: pa.bool_(),
    ice.IntegerType: pa.int32(),
    ice.LongType: pa.int64(),
    ice.FloatType: pa.float32(),
    ice.DoubleType: pa.float64(),
    ice.StringType: pa.string(),
    ice.BinaryType: pa.binary(),
    ice.FixedType: pa.binary(),
    ice.DateType: pa.date32(),
    ice.TimestampType: pa.timestamp("us"),
    ice.TimestamptzType: pa.timestamp("us", tz="UTC"),
}

_TIMES: dict[type[IcebergTransform[Any, Any]], own.Transform] = {
    YearTransform: "years",
    MonthTransform: "months",
    DayTransform: "days",
    HourTransform: "hours",
}
_OF_TIMES = {transform: kind for kind, transform in _TIMES.items()}


def iceberg_schema(schema: TableSchema, primary_key: Sequence[str] = ()) -> Schema:
    """Return the Iceberg schema of a new lake table: the columns in order, with the primary key as identifier fields.

    Iceberg supports no floating-point identifiers, so a key with such a column is not declared.
    """
    keys = [position for position, column in enumerate(schema.columns, start=1) if column.name in set(primary_key)]
    is_declared = not any(pa.types.is_floating(schema.columns[position - 1].type) for position in keys)
    nested_ids = itertools.count(len(schema.columns) + 1)
    return Schema(
        *(
            ice.NestedField(
                field_id=position,
                name=column.name,
                field_type=iceberg_type(column.type, nested_ids),
                required=not column.nullable,
                doc=column.comment,
            )
            for position, column in enumerate(schema.columns, start=1)
        ),
        identifier_field_ids=keys if is_declared else [],
    )


def iceberg_type(arrow: pa.DataType, ids: Iterator[int]) -> ice.IcebergType:
    is_type = pa.types
    if is_type.is_decimal(arrow):
        return ice.DecimalType(arrow.precision, arrow.scale)
    if is_type.is_list(arrow):
        element_id = next(ids)
        return ice.ListType(element_id, iceberg_type(arrow.value_type, ids), element_required=False)
    if is_type.is_map(arrow):
        key_id, value_id = next(ids), next(ids)
        key, value = iceberg_type(arrow.key_type, ids), iceberg_type(arrow.item_type, ids)
        return ice.MapType(key_id, key, value_id, value, value_required=False)
    if is_type.is_struct(arrow):
        fields = [(next(ids), field) for field in arrow]
        return ice.StructType(
            *(ice.NestedField(i, f.name, iceberg_type(f.type, ids), required=not f.nullable) for i, f in fields)
        )
    return _FROM_ARROW[arrow]


def nested_field_finder(schema: Schema) -> InnerOf:
    """Return the function that returns the nested fields of a column of the schema, or none for an unknown column."""
    types = {field.field_id: field.field_type for field in schema.fields}
    return lambda field_id: nested_field_ids(types[field_id]) if field_id in types else {}


def nested_field_ids(field_type: ice.IcebergType) -> dict[Path, int]:
    """Return the ids of nested struct fields of a type, by their lowercase paths."""
    match field_type:
        case ice.ListType():
            return {(ELEMENT, *path): i for path, i in nested_field_ids(field_type.element_type).items()}
        case ice.MapType():
            parts = ((KEY, field_type.key_type), (VALUE, field_type.value_type))
            return {(name, *path): i for name, part in parts for path, i in nested_field_ids(part).items()}
        case ice.StructType():
            field_ids: dict[Path, int] = {}
            for field in field_type.fields:
                name = field.name.casefold()
                field_ids[(name,)] = field.field_id
                field_ids |= {(name, *path): i for path, i in nested_field_ids(field.field_type).items()}
            return field_ids
    return {}


def lake_schema(schema: Schema) -> TableSchema:
    """Return the columns of the lake table for Spark and the rest of the package. Their ids are the lake's field ids.

    Raises `LakeMismatchError` for a type that a streamhouse table does not support.
    """
    return TableSchema(
        tuple(
            Column(f.field_id, f.name, _canonical_type(f.field_type, f.name), not f.required, f.doc)
            for f in schema.fields
        )
    )


def is_stored_as(arrow: pa.DataType, field_type: ice.IcebergType) -> bool:
    """Return whether the lake stores a column of the Arrow type as this type. It stores tinyint and smallint as int."""
    return type_without_ids(iceberg_type(arrow, itertools.count())) == type_without_ids(field_type)


def _canonical_type(field_type: ice.IcebergType, column: str) -> pa.DataType:
    match field_type:
        case ice.DecimalType():
            return pa.decimal128(field_type.precision, field_type.scale)
        case ice.ListType():
            return pa.list_(pa.field("element", _canonical_type(field_type.element_type, column)))
        case ice.MapType():
            return pa.map_(_canonical_type(field_type.key_type, column), _canonical_type(field_type.value_type, column))
        case ice.StructType():
            return pa.struct([pa.field(f.name, _canonical_type(f.field_type, column)) for f in field_type.fields])
    arrow_type = _TO_ARROW.get(type(field_type))
    if arrow_type is None:
        raise LakeMismatchError(
            f"column '{column}' of the lake table has type {field_type}, which streamhouse tables do not support; "
            "read it with another engine, or cast the column in the lake"
        )
    return arrow_type


def file_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a data file: Iceberg's types, with field ids on every level."""
    return pa.schema([_file_field(f.field_id, f.name, f.field_type, required=f.required) for f in schema.fields])


def _file_field(field_id: int, name: str, field_type: ice.IcebergType, *, required: bool) -> pa.Field:
    metadata = {FIELD_ID: str(field_id).encode()}
    return pa.field(name, _file_type(field_type), nullable=not required, metadata=metadata)


def _file_type(field_type: ice.IcebergType) -> pa.DataType:
    match field_type:
        case ice.DecimalType():
            return pa.decimal128(field_type.precision, field_type.scale)
        case ice.FixedType():
            return pa.binary(len(field_type))
        case ice.ListType():
            element = _file_field(
                field_type.element_id, "element", field_type.element_type, required=field_type.element_required
            )
            return pa.list_(element)
        case ice.MapType():
            return pa.map_(
                _file_field(field_type.key_id, "key", field_type.key_type, required=True),
                _file_field(field_type.value_id, "value", field_type.value_type, required=field_type.value_required),
            )
        case ice.StructType():
            return pa.struct(
                [_file_field(f.field_id, f.name, f.field_type, required=f.required) for f in field_type.fields]
            )
    return _TO_ARROW[type(field_type)]


# -- partition specs --------------------------------------------------------------------------------------------------


def partition_spec(
    schema: Schema, layout: Sequence[own.PartitionField], bucket_key: str | None, num_buckets: int
) -> PartitionSpec:
    """Return the spec: the fields of ``layout``, then ``bucket[N]`` of the bucket key if there is one."""
    fields = []
    ids = itertools.count(PARTITION_FIELD_ID_START)
    for part in layout:
        source = schema.find_field(part.column, case_sensitive=False)
        name = source.name if part.transform == "identity" else _free_name(f"{source.name}_{part.suffix}", schema)
        fields.append(PartitionField(source.field_id, next(ids), iceberg_transform(part), name))
    if bucket_key is not None:
        source = schema.find_field(bucket_key, case_sensitive=False)
        name = _free_name(f"{source.name}_bucket", schema)
        fields.append(PartitionField(source.field_id, next(ids), BucketTransform(num_buckets), name))
    return PartitionSpec(*fields, spec_id=0)


def iceberg_transform(part: own.PartitionField) -> IcebergTransform[Any, Any]:
    """Return Iceberg's transform of a table's partition field."""
    if part.transform == "identity":
        return IdentityTransform()
    if part.transform == "truncate":
        return TruncateTransform(part.width)
    transform: IcebergTransform[Any, Any] = _OF_TIMES[part.transform]()  # type: ignore[call-arg]
    return transform


def to_own_field(transform: IcebergTransform[Any, Any], column: str) -> own.PartitionField | None:
    """Return a field of a spec in the table's terms, or None for a transform without them, such as a bucket."""
    if isinstance(transform, IdentityTransform):
        return own.PartitionField(column)
    if isinstance(transform, TruncateTransform):
        return own.PartitionField(column, "truncate", transform.width)
    kind = _TIMES.get(type(transform))
    return own.PartitionField(column, kind) if kind is not None else None


def _free_name(name: str, schema: Schema) -> str:
    names = {f.name.casefold() for f in schema.fields}
    while name.casefold() in names:
        name = f"{name}_"
    return name


def partition_types(spec: PartitionSpec, schema: Schema) -> list[ice.PrimitiveType]:
    return [cast("ice.PrimitiveType", field.field_type) for field in spec.partition_type(schema).fields]


@dataclass(frozen=True, slots=True)
class PartitionPaths:
    """Partition paths of pyiceberg's `PartitionSpec`, also for dates and times outside Python's range."""

    spec: PartitionSpec

    def partition_to_path(self, partition: Record, schema: Schema) -> str:
        """Return the path. pyiceberg's summary collector calls this method by name."""
        kinds = partition_types(self.spec, schema)
        values = (partition[index] for index in range(len(kinds)))
        return "/".join(map(_path_part, self.spec.fields, kinds, values))


def _path_part(field: PartitionField, kind: ice.PrimitiveType, value: Any) -> str:
    try:
        text = field.transform.to_human_string(kind, value=value)
    except (OverflowError, ValueError):
        text = str(value)
    return f"{quote_plus(field.name, safe='')}={quote_plus(text, safe='')}"


def partition_record(spec: PartitionSpec, schema: Schema, values: Sequence[bytes | None]) -> Record:
    """Return a partition from its values in Iceberg's binary form."""
    types = partition_types(spec, schema)
    return Record(*(None if v is None else from_bytes(t, v) for t, v in zip(types, values, strict=True)))


def bucket_source(metadata: TableMetadata, num_buckets: int) -> int | None:
    """Return the source column of ``num_buckets`` buckets in new partitions, or None."""
    fields = (field for field in metadata.spec().fields if _truncates(field, num_buckets))
    return next((field.source_id for field in fields), None)


def bucket_of(spec: PartitionSpec, partition: Record, num_buckets: int, source_id: int | None) -> int | None:
    """Return the bucket of a file, or None if its partition does not determine it. See `bucket_source`."""
    for position, field in enumerate(spec.fields):
        if field.source_id == source_id and _truncates(field, num_buckets):
            value = partition[position]
            return 0 if value is None else int(value)
    return None


def _truncates(field: PartitionField, num_buckets: int) -> bool:
    return isinstance(field.transform, BucketTransform) and field.transform.num_buckets == num_buckets


def describe_spec(spec: PartitionSpec, schema: Schema) -> list[str]:
    return [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields]


# -- comparison with an existing table --------------------------------------------------------------------------------


def find_differences(
    metadata: TableMetadata,
    lake: Schema,
    lake_spec: PartitionSpec,
    schema: TableSchema,
    spec: PartitionSpec,
    spec_schema: Schema,
    primary_key: Collection[str] = (),
) -> list[str]:
    """Describe how the lake table, with columns ``lake`` and partitions ``lake_spec``, differs from ``schema``."""
    problems = []
    if metadata.format_version != FORMAT_VERSION:
        problems.append(f"format version is {metadata.format_version}, expected {FORMAT_VERSION}")
    by_name = {f.name.casefold(): f for f in lake.fields}
    for column in schema.columns:
        field = by_name.pop(column.name.casefold(), None)
        expected = iceberg_type(column.type, itertools.count())
        if field is None:
            problems.append(f"column '{column.name}' ({expected}) is missing")
            continue
        if type_without_ids(field.field_type) != type_without_ids(expected):
            problems.append(
                f"column '{column.name}' is {type_without_ids(field.field_type)}, expected {type_without_ids(expected)}"
            )
        if field.required and column.nullable:
            problems.append(f"column '{column.name}' is required, expected optional")
        if column.name in primary_key and not field.required:
            problems.append(f"column '{column.name}' of the primary key is optional, expected required")
    problems += [f"column '{field.name}' is not in the table" for field in by_name.values()]
    fields, expected_fields = describe_spec(lake_spec, lake), describe_spec(spec, spec_schema)
    if [t.casefold() for t in fields] != [t.casefold() for t in expected_fields]:
        problems.append(f"partitioned by [{', '.join(fields)}], expected [{', '.join(expected_fields)}]")
    return problems


def type_without_ids(field_type: ice.IcebergType) -> str:
    """Return the type without field ids."""
    match field_type:
        case ice.ListType():
            return f"list<{type_without_ids(field_type.element_type)}>"
        case ice.MapType():
            return f"map<{type_without_ids(field_type.key_type)}, {type_without_ids(field_type.value_type)}>"
        case ice.StructType():
            return f"struct<{', '.join(f'{f.name}: {type_without_ids(f.field_type)}' for f in field_type.fields)}>"
    return str(field_type)
