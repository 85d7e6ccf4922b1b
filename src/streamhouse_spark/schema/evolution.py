"""Schema evolution: the changes that existing rows permit, and casts of rows of older schemas.

A column is identified by its id, regardless of its current name. Rows of an older schema are cast to the current type
of each column, which holds every value of the older type. Nested fields are matched by id, too, while Arrow's cast of a
struct matches by name. Nulls and the lengths of arrays and maps do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.ddl import TextLength, type_name
from streamhouse_spark.schema.nested_fields import (
    FieldIds,
    NestedFieldChanges,
    change_nested_fields,
    count_fields,
    have_same_fields,
    is_widening,
)
from streamhouse_spark.schema.table_schema import Column, TableSchema, check_column_name
from streamhouse_spark.schema.variant import is_struct

ColumnCast = Callable[[pa.Array], pa.Array]
Ids = Sequence[int | None]
"""Ids of the nested fields of a type, see `nested_fields`. A stored field with id None is not read, and a field of the
target type with id None is null."""


def make_cast(before: pa.DataType, before_ids: Ids, after: pa.DataType, after_ids: Ids) -> ColumnCast:
    """Return the function that casts arrays of the type ``before`` to the type ``after``.

    The types may differ in the fields of structs, their order, and in widened plain types.
    """
    return _make_cast(before, iter(before_ids), after, iter(after_ids)) or _cast_to(after)


def _make_cast(
    before: pa.DataType, before_ids: Iterator[int | None], after: pa.DataType, after_ids: Iterator[int | None]
) -> ColumnCast | None:
    """Return the cast function; None if Arrow's cast is sufficient."""
    types = pa.types
    if is_struct(before) and is_struct(after):
        return _struct(before, before_ids, after, after_ids)
    if types.is_list(before) and types.is_list(after):
        inner = _make_cast(before.value_type, before_ids, after.value_type, after_ids)
        return None if inner is None else _list(inner, after)
    if types.is_map(before) and types.is_map(after):
        key = _make_cast(before.key_type, before_ids, after.key_type, after_ids) or _cast_to(after.key_type)
        item = _make_cast(before.item_type, before_ids, after.item_type, after_ids)
        return None if item is None else _map(key, item, after)
    return None


def _struct(
    before: pa.DataType, before_ids: Iterator[int | None], after: pa.DataType, after_ids: Iterator[int | None]
) -> ColumnCast | None:
    stored = {}
    for place, child in enumerate(before):
        own, inner = next(before_ids), _field_positions(before_ids, child.type)
        if own is not None:
            stored[own] = place, child.type, inner
    parts: list[tuple[int, ColumnCast] | None] = []
    is_same = before.num_fields == after.num_fields
    for place, child in enumerate(after):
        own, child_ids = next(after_ids), _field_positions(after_ids, child.type)
        if own is None or own not in stored:
            parts.append(None)
            is_same = False
            continue
        at, kind, inner = stored[own]
        child_cast = _make_cast(kind, iter(inner), child.type, iter(child_ids))
        is_same = is_same and child_cast is None and at == place and before.field(at).name == child.name
        parts.append((at, child_cast or _cast_to(child.type)))
    return None if is_same else _struct_of(parts, after)


def _field_positions(ids: Iterator[int | None], data_type: pa.DataType) -> list[int | None]:
    return [next(ids) for _ in range(count_fields(data_type))]


def _struct_of(parts: Sequence[tuple[int, ColumnCast] | None], after: pa.DataType) -> ColumnCast:
    fields = list(after)

    def cast_struct(array: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(array), child.type) if part is None else part[1](array.field(part[0]))
            for part, child in zip(parts, fields, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return cast_struct


def _list(inner: ColumnCast, after: pa.DataType) -> ColumnCast:
    def cast_list(array: pa.Array) -> pa.Array:
        offsets, first, last = _own_offsets(array)
        values = inner(array.values.slice(first, last - first))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, values, type=after, mask=mask)

    return cast_list


def _map(key: ColumnCast, item: ColumnCast, after: pa.DataType) -> ColumnCast:
    def cast_map(array: pa.Array) -> pa.Array:
        offsets, first, last = _own_offsets(array)
        keys, items = (values.slice(first, last - first) for values in (array.keys, array.items))
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(offsets, key(keys), item(items), type=after, mask=mask)

    return cast_map


def _own_offsets(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offsets of an array or map minus the first offset, and the first and the last offset."""
    if not len(array):
        return pa.array(np.zeros(1, np.int32)), 0, 0
    offsets = array.offsets.to_numpy()
    return pa.array(offsets - offsets[0]), int(offsets[0]), int(offsets[-1])


def _cast_to(after: pa.DataType) -> ColumnCast:
    return lambda array: array if array.type.equals(after) else array.cast(after)


def can_be_read_as(before: pa.DataType, after: pa.DataType) -> bool:
    return bool(before.equals(after)) or is_widening(before, after)


def cast_of_column(written: Column, target: Column) -> ColumnCast:
    """Return the function that casts values of a column from an older schema to the current schema."""
    return make_cast(written.type, written.inner_ids, target.type, target.inner_ids)


def has_same_storage(written: Column, target: Column) -> bool:
    """Return whether values of two versions of a column have the same stored form, regardless of its name."""
    return bool(written.type.equals(target.type)) and (
        written.field_ids == target.field_ids or written.inner_ids == target.inner_ids
    )


def is_same_column(written: Column, current: Column) -> bool:
    """Return whether rows that were converted by name to an older version of a column fit the current version."""
    return written.name == current.name and have_same_fields(
        written.type, written.inner_ids, current.type, current.inner_ids
    )


def without_columns(schema: TableSchema, names: Iterable[str]) -> TableSchema:
    """Return the schema without these columns.

    Raises `SchemaMismatchError` for an unknown column, and if no column remains.
    """
    dropped_ids = {schema.column(name).id for name in names}
    remaining = tuple(column for column in schema.columns if column.id not in dropped_ids)
    if not remaining:
        raise SchemaMismatchError(
            f"dropping {', '.join(schema.names)} would leave no column; drop the table, or add a column first"
        )
    return TableSchema(remaining)


def with_names(schema: TableSchema, names: Mapping[str, str]) -> TableSchema:
    """Return the schema with columns renamed, given as old → new name. Two columns may swap names.

    Raises `SchemaMismatchError` for an unknown column, and for a name that exists, is reserved or is invalid.
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
                f"column '{column.name}' cannot be renamed to '{new}': column '{other.name}' already exists; "
                "choose another name"
            )
    return TableSchema(tuple(replace(column, name=new_names.get(column.id, column.name)) for column in schema.columns))


def with_types(
    schema: TableSchema, types: Mapping[str, pa.DataType], sizes: Mapping[str, TextLength | None] | None = None
) -> TableSchema:
    """Return the schema with wider types of these columns. A column may keep its current type.

    ``sizes`` are the lengths of CHAR and VARCHAR columns after the change. Raises `SchemaMismatchError` for an unknown
    column, and for a type that does not hold all values of the current type.
    """
    changed: dict[int, Column] = {}
    for name, data_type in types.items():
        column, size = schema.column(name), (sizes or {}).get(name)
        if size is not None and not size.holds(column.size):
            raise SchemaMismatchError(
                f"column '{column.name}' of type {column.size or type_name(column.type)} cannot become {size}: "
                "expected string, or a varchar(n) that is at least as long"
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


def with_nested_changes(
    schema: TableSchema, changes: Mapping[str, NestedFieldChanges], former_schemas: Iterable[TableSchema]
) -> TableSchema:
    """Return the schema after changes of nested fields, by column name.

    ``former_schemas`` are all schemas that the table ever had. Raises `SchemaMismatchError` for an unknown column, and
    the errors of `change_nested_fields`.
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
    """Return the schema with these columns nullable. Raises `SchemaMismatchError` for an unknown column."""
    nullable_ids = {schema.column(name).id for name in names}
    return TableSchema(tuple(replace(c, nullable=c.nullable or c.id in nullable_ids) for c in schema.columns))


def with_positions(schema: TableSchema, positions: Mapping[str, str | None]) -> TableSchema:
    """Move columns one after another, each to the position after another column, or to the front for None.

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
    names: dict[int, frozenset[str]] = {}
    for schema in schemas.values():
        for column in schema.columns:
            names[column.id] = names.get(column.id, frozenset()) | {column.name}
    return names


def describe_later_column(name: str, schemas: Mapping[int, TableSchema]) -> str | None:
    """Describe, in an error text, that a column of an older schema was renamed or dropped; None if neither."""
    current = schemas[max(schemas)] if schemas else None
    if current is None or current.find(name) is not None:
        return None
    current_names = {column.id: column.name for column in current.columns}
    for _, older in sorted(schemas.items(), reverse=True):
        before = older.find(name)
        if before is not None:
            return f"it was renamed to '{current_names[before.id]}'" if before.id in current_names else "it was dropped"
    return None


def require_same_columns(
    initial: TableSchema, current: TableSchema, names: Sequence[str], who: str, advice: str
) -> None:
    """Raise `SchemaMismatchError` if a column in ``names`` changed since a read began.

    A column changes if it is renamed or dropped, gets another type or becomes nullable. Adding and moving columns is no
    change. ``who`` is the reader and its table in the error, and ``advice`` its remedy.
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
            change = "has nested fields that were replaced by others of the same names"
        else:
            change = f"changed from {type_name(before.type)} to {type_name(after.type)}"
        raise SchemaMismatchError(f"{who}: column '{before.name}' {change} since the read began; {advice}")


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A commit that changed the columns or the partitioning."""

    former_id: int
    """The id of the schema before the commit."""
    commit: int
    time_ms: int

    def to_json(self) -> list[int]:
        return [self.former_id, self.commit, self.time_ms]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SchemaChange:
        return cls(*data)


def append_schema_change(
    changes: tuple[SchemaChange, ...], before: int, after: int, commit: int, time_ms: int
) -> tuple[SchemaChange, ...]:
    """Return the schema changes of a table after a record. ``before`` and ``after`` are schema ids."""
    return changes if before == after else (*changes, SchemaChange(before, commit, time_ms))


def first_change_after(changes: Sequence[SchemaChange], now_ms: int, timestamp_ms: int) -> SchemaChange | None:
    """Return the first schema change after a time, or None.

    ``now_ms`` is the time of the latest record. If a clock ran ahead, the smaller time of a later record counts.
    """
    latest_ms, earliest = now_ms, None
    for change in reversed(changes):
        latest_ms = min(latest_ms, change.time_ms)
        if latest_ms <= timestamp_ms:
            break
        earliest = change
    return earliest
