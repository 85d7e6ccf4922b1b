"""Schema evolution: the identity of columns, and the changes that existing rows permit.

A column is identified by its id. Rows of an older schema are read by id, regardless of current names, and cast to the
column's current type, which holds every value of the older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.char_varchar import TextSize
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.nested_fields import (
    FieldIds,
    InnerChanges,
    change_nested_fields,
    have_same_fields,
    is_widening,
)
from streamhouse_spark.schema.table_schema import Column, TableSchema, check_column_name
from streamhouse_spark.schema.type_promotion import ColumnCast, make_cast


def can_be_read_as(before: pa.DataType, after: pa.DataType) -> bool:
    return bool(before.equals(after)) or is_widening(before, after)


def cast_of_column(written: Column, target: Column) -> ColumnCast:
    """Return the function that casts values of a column of an earlier schema to its current type."""
    return make_cast(written.type, written.inner_ids, target.type, target.inner_ids)


def has_same_storage(written: Column, target: Column) -> bool:
    """Return whether values of two versions of a column have the same stored form, regardless of its name."""
    return bool(written.type.equals(target.type)) and (
        written.field_ids == target.field_ids or written.inner_ids == target.inner_ids
    )


def is_same_column(written: Column, current: Column) -> bool:
    """Return whether rows converted by name to one version of a column mean the same in the other."""
    return written.name == current.name and have_same_fields(
        written.type, written.inner_ids, current.type, current.inner_ids
    )


def without_columns(schema: TableSchema, names: Iterable[str]) -> TableSchema:
    """Return the schema without these columns. Raises `SchemaMismatchError` for an unknown one, and if none remains."""
    dropped_ids = {schema.column(name).id for name in names}
    remaining = tuple(column for column in schema.columns if column.id not in dropped_ids)
    if not remaining:
        raise SchemaMismatchError(
            f"dropping {', '.join(schema.names)} would leave no column; drop the table, or add a column first"
        )
    return TableSchema(remaining)


def with_names(schema: TableSchema, names: Mapping[str, str]) -> TableSchema:
    """Return the schema with columns renamed, given as old → new name. All at once, so two columns may swap names.

    Raises `SchemaMismatchError` for an unknown column, and for a name that is taken, reserved or invalid.
    """
    new_names: dict[int, str] = {}
    for old, new in names.items():
        column = schema.column(old)
        if new_names.setdefault(column.id, new) is not new:
            raise SchemaMismatchError(f"column '{column.name}' is renamed twice; name it once")
        if new.casefold() != column.name.casefold():
            check_column_name(new)
        other = schema.find(new)
        if other is not None and other.id != column.id and other.name.casefold() not in {n.casefold() for n in names}:
            raise SchemaMismatchError(
                f"column '{column.name}' cannot be renamed to '{new}': there is a column '{other.name}' already; "
                "choose another name"
            )
    return TableSchema(tuple(replace(column, name=new_names.get(column.id, column.name)) for column in schema.columns))


def with_types(
    schema: TableSchema, types: Mapping[str, pa.DataType], sizes: Mapping[str, TextSize | None] | None = None
) -> TableSchema:
    """Return the schema with these columns widened; a column's current type is a no-op.

    ``sizes`` are the lengths of CHAR and VARCHAR columns after the change. Raises `SchemaMismatchError` for an unknown
    column, and for a type that does not hold all values of the current one.
    """
    changed: dict[int, Column] = {}
    for name, data_type in types.items():
        column, size = schema.column(name), (sizes or {}).get(name)
        if size is not None and not size.holds(column.size):
            raise SchemaMismatchError(
                f"column '{column.name}' of type {column.size or type_name(column.type)} cannot become {size}: only "
                "varchar(n) that is no shorter, or string, holds every existing value"
            )
        if not can_be_read_as(column.type, data_type):
            raise SchemaMismatchError(
                f"column '{column.name}' of type {type_name(column.type)} cannot become {type_name(data_type)}: only "
                "wider integers, float to double, and decimals of more digits and the same scale hold every existing "
                "value; add a column of that type, fill it, and drop this one (without a primary key: copy the rows "
                "into a new table)"
            )
        changed[column.id] = replace(column, type=data_type, size=size)
    return TableSchema(tuple(changed.get(column.id, column) for column in schema.columns))


def with_inner_changes(
    schema: TableSchema, changes: Mapping[str, InnerChanges], former_schemas: Iterable[TableSchema]
) -> TableSchema:
    """Return the schema after changes of nested fields, by column name.

    ``former_schemas`` are all schemas that the table ever had. Raises `SchemaMismatchError` for an unknown column and
    as `change_nested_fields` does.
    """
    changed: dict[int, Column] = {}
    older = [column for former_schema in former_schemas for column in former_schema.columns]
    for name, nested_changes in changes.items():
        column = schema.column(name)
        last = max(c.all_field_ids.last for c in (column, *older) if c.id == column.id)
        before = FieldIds(column.inner_ids, last)
        data_type, ids = change_nested_fields(column.name, column.type, before, nested_changes)
        if (data_type, ids) != (column.type, before):
            changed[column.id] = replace(column, type=data_type, field_ids=ids)
    return TableSchema(tuple(changed.get(column.id, column) for column in schema.columns))


def without_not_null(schema: TableSchema, names: Iterable[str]) -> TableSchema:
    """Return the schema with these columns nullable. Raises `SchemaMismatchError` for an unknown one."""
    nullable_ids = {schema.column(name).id for name in names}
    return TableSchema(tuple(replace(c, nullable=c.nullable or c.id in nullable_ids) for c in schema.columns))


def with_positions(schema: TableSchema, positions: Mapping[str, str | None]) -> TableSchema:
    """Return the schema with columns moved in turn, each after the column that it is mapped to; None is the front.

    Rows do not change, because columns are matched by id. Raises `SchemaMismatchError` for an unknown column.
    """
    columns = list(schema.columns)
    for name, after in positions.items():
        column = schema.column(name)
        previous = None if after is None else schema.column(after)
        if previous == column:
            raise SchemaMismatchError(f"column '{column.name}' cannot follow itself; name another column")
        columns.remove(column)
        columns.insert(0 if previous is None else columns.index(previous) + 1, column)
    return TableSchema(tuple(columns))


def ambiguous_columns(schemas: Iterable[TableSchema]) -> frozenset[int]:
    """Return the ids of columns that had several names, or shared a name with another column."""
    ids: dict[str, set[int]] = {}
    names: dict[int, set[str]] = {}
    for schema in schemas:
        for column in schema.columns:
            ids.setdefault(column.name.casefold(), set()).add(column.id)
            names.setdefault(column.id, set()).add(column.name)
    shared = {column_id for members in ids.values() if len(members) > 1 for column_id in members}
    return frozenset(shared | {column_id for column_id, members in names.items() if len(members) > 1})


def names_by_id(schemas: Mapping[int, TableSchema]) -> Mapping[int, frozenset[str]]:
    """Return column id → all names that the column ever had."""
    names_of_id: dict[int, set[str]] = {}
    for schema in schemas.values():
        for column in schema.columns:
            names_of_id.setdefault(column.id, set()).add(column.name)
    return {column_id: frozenset(names) for column_id, names in names_of_id.items()}


def describe_later_column(name: str, schemas: Mapping[int, TableSchema]) -> str | None:
    """Describe for error texts how a column of an older schema was renamed or dropped; None if it still exists."""
    newest = schemas[max(schemas)] if schemas else None
    if newest is None or newest.find(name) is not None:
        return None
    current_names = {column.id: column.name for column in newest.columns}
    for _, older in sorted(schemas.items(), reverse=True):
        before = older.find(name)
        if before is not None:
            return f"it was renamed to '{current_names[before.id]}'" if before.id in current_names else "it was dropped"
    return None


def require_same_columns(
    initial: TableSchema, current: TableSchema, names: Sequence[str], who: str, advice: str
) -> None:
    """Raise `SchemaMismatchError` if one of the columns ``names`` changed since a read began.

    A column has changed if it was renamed, dropped, got another type or became nullable. Added and moved columns do not
    matter. ``who`` names the reader and its table.
    """
    by_id = {column.id: column for column in current.columns}
    for name in names:
        before = initial.column(name)
        after = by_id.get(before.id)
        accepts_null = after is not None and after.nullable and not before.nullable
        is_alike = after is not None and after.name == before.name and has_same_storage(before, after)
        if after == before or (is_alike and not accepts_null):
            continue
        if after is None:
            change = "was dropped"
        elif is_alike:
            change = "accepts null"
        elif after.name != before.name:
            change = f"was renamed to '{after.name}'"
        elif after.type == before.type:
            change = "has other fields inside under the names of before"
        else:
            change = f"became {type_name(after.type)}, it was {type_name(before.type)}"
        raise SchemaMismatchError(f"{who}: column '{before.name}' {change} since it began; {advice}")
