"""Planning reads of an Iceberg table: the files of a snapshot, and the columns in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    Reference,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import FloatType

from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.column_map import ColumnMap
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.schema import bucket_of, is_stored_as, lake_schema
from streamhouse_spark.lake.model.scan_files import row_group_parts
from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit, Predicate
from streamhouse_spark.lake.spec import LakeTableSpec
from streamhouse_spark.schema.table_schema import Column, TableSchema


def snapshot_schema(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """Return the schema that was current when the snapshot was made."""
    found = metadata.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
    return found or metadata.schema()


def projection(
    lake: Schema, known: ColumnMap, table: TableSchema, columns: Sequence[str] | None, schema: TableSchema | None
) -> LakeProjection:
    """Return the projection of the lake's columns to the table's, by their ids.

    Without ``schema`` the result has the lake's columns, with the table's types for columns of the table. Raises
    `SchemaMismatchError` for an absent column.
    """
    of_lake = lake_schema(lake)
    if schema is None:
        wanted = TableSchema(tuple(_as_in_table(column, lake, table, known) for column in of_lake.columns))
        field_ids = {column.id: column.id for column in wanted.columns}
    else:
        wanted = schema
        field_ids = {column_id: field.id for column_id, field in known.fields.items()}
    if columns is not None:
        wanted = wanted.select(columns)
    names = {column.id: column.name for column in of_lake.columns}
    found = tuple(field_ids.get(column.id) for column in wanted.columns)
    lake_names = (
        None if schema is not None and column.id in known.ambiguous else names.get(-1 if i is None else i, column.name)
        for column, i in zip(wanted.columns, found, strict=True)
    )
    return LakeProjection(wanted, found, tuple(lake_names))


def own_projection(metadata: TableMetadata, spec: LakeTableSpec) -> LakeProjection:
    """Return the projection of all columns of the table from its newest files."""
    return projection(metadata.schema(), iceberg_columns(metadata, spec), spec.schema, None, spec.schema)


def _as_in_table(column: Column, lake: Schema, table: TableSchema, known: ColumnMap) -> Column:
    """Return the lake's column with the table's own type, if that is stored as the lake's type."""
    column_id = known.columns().get(column.id)
    own = next((c for c in table.columns if c.id == column_id), None)
    if own is None or not is_stored_as(own.type, lake.find_type(column.id)):
        return column
    return Column(column.id, column.name, own.type, column.nullable, column.comment)


def require_snapshot(metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        kept = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
        shown = ", ".join(str(s.snapshot_id) for s in kept[-5:]) or "none"
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no snapshot {snapshot_id}: it was expired or never there; the newest "
            f"kept are {shown}; choose one of them"
        )
    return snapshot


def plan_splits(table: Table, snapshot: Snapshot, row_filter: BooleanExpression, num_buckets: int) -> list[LakeSplit]:
    """Return the data files of a snapshot that can hold rows of the filter; large ones in parts of whole row groups."""
    specs = table.metadata.specs()
    tasks = plan_tasks(table, snapshot, row_filter)
    buckets = (bucket_of(specs[task.file.spec_id], task.file.partition, num_buckets) for task in tasks)
    return [
        split for task, bucket in zip(tasks, buckets, strict=True) for split in _splits(task, table.location(), bucket)
    ]


def plan_tasks(table: Table, snapshot: Snapshot, row_filter: BooleanExpression) -> list[FileScanTask]:
    """Return the data files of a snapshot that can hold rows of the filter, each with its deletes.

    Raises `LakeMismatchError` for files and deletes that cannot be read here, `SnapshotExpiredError`.
    """
    planner = ManifestGroupPlanner(table.metadata, table.io, row_filter, case_sensitive=False)
    with lake_metadata(table.location()):
        try:
            tasks = list(planner.plan_files(manifests_of(table.io, snapshot)))
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise LakeMismatchError(
                f"lake table {table.location()} has equality deletes, which cannot be read here: {error}; "
                "compact the table with the engine that wrote them"
            ) from error
    for task in tasks:
        if task.file.file_format != FileFormat.PARQUET:
            raise LakeMismatchError(
                f"lake file {task.file.file_path} of {table.location()} is {task.file.file_format.value}, only PARQUET "
                "is read here; rewrite it with the engine that wrote it"
            )
    return tasks


def _splits(task: FileScanTask, location: str, bucket: int | None) -> list[LakeSplit]:
    file = task.file
    deletes = tuple(sorted(position_deletes(delete, location) for delete in task.delete_files))
    groups = row_group_parts(file.file_size_in_bytes, file.split_offsets or ())
    if groups is None:
        return [LakeSplit(file.file_path, file.file_size_in_bytes, file.record_count, None, deletes, bucket)]
    rows_per_byte = file.record_count / file.file_size_in_bytes
    return [
        LakeSplit(file.file_path, size_bytes, round(size_bytes * rows_per_byte), part, deletes, bucket)
        for part, size_bytes in groups
    ]


def position_deletes(delete: DataFile, location: str) -> str:
    if delete.content != DataFileContent.POSITION_DELETES or delete.file_format != FileFormat.PARQUET:
        raise LakeMismatchError(
            f"lake table {location} has deletes of a kind that cannot be read here ({delete.file_path}); compact the "
            "table with the engine that wrote them"
        )
    return delete.file_path


# -- predicates -------------------------------------------------------------------------------------------------------

_OPERATORS: dict[str, Any] = {
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": In,
    "is null": lambda name, _: IsNull(term=Reference(name)),
    "not null": lambda name, _: NotNull(term=Reference(name)),
}


def iceberg_filter(predicates: Sequence[Predicate], how: LakeProjection, current: Schema) -> BooleanExpression:
    """Return those of the predicates that can prune files, as one filter on ``current``, whose names may differ.

    ``how`` reads all columns of the predicates. A predicate on an absent column, or with a value of another type,
    prunes nothing: filtering rows decides. Raises `InvalidOptionError` for an unknown operator.
    """
    ids = {column.name.casefold(): i for column, i in zip(how.schema.columns, how.field_ids, strict=True)}
    names = {f.field_id: f.name for f in current.fields}
    terms = [_term(names.get(ids.get(p[0].casefold()) or -1), p[1], p[2], current) for p in predicates]
    return And(AlwaysTrue(), AlwaysTrue(), *(term for term in terms if term is not None))


def _term(name: str | None, operator: str, value: Any, schema: Schema) -> BooleanExpression | None:
    operator = operator.lower()
    if operator not in _OPERATORS:
        raise InvalidOptionError(f"predicate operator {operator!r}: expected one of {', '.join(_OPERATORS)}")
    if name is None:
        return None
    values = value if operator == "in" else [value]
    if isinstance(schema.find_type(name), FloatType) and any(_is_beyond_floats(v) for v in values):
        return None  # pyiceberg takes them for less, or more, than infinity
    try:
        term: BooleanExpression = _OPERATORS[operator](name, value)
        bind(schema, term, case_sensitive=False)
    except (ValueError, TypeError, ArithmeticError):
        return None
    return term


def _is_beyond_floats(value: Any) -> bool:
    return isinstance(value, int | float) and not FloatType.min <= value <= FloatType.max
