"""Changes of a table's columns while rows of older schemas exist: the identity of a column, and the changes that fit.

A column is its id. Rows of an older schema are read by it, whatever the column is called now, and are cast to the
column's present type, which holds every value of the older one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.char_varchar import TextSize
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.nested_fields import FieldIds, InnerChanges, change_nested_fields, is_widening, still_mean
from streamhouse_spark.schema.table_schema import Column, TableSchema, check_column_name
from streamhouse_spark.schema.type_promotion import Fitting, make_cast


def can_be_read_as(before: pa.DataType, after: pa.DataType) -> bool:
    return bool(before.equals(after)) or is_widening(before, after)


def cast_of_column(written: Column, wanted: Column) -> Fitting:
    """Return the function that brings values of a column, as a schema of the table had it, into its wanted type."""
    return make_cast(written.type, written.inner_ids, wanted.type, wanted.inner_ids)


def is_stored_alike(written: Column, wanted: Column) -> bool:
    """Tell whether values of one form of a column are those of the other as they are, whatever its name is."""
    return bool(written.type.equals(wanted.type)) and (
        written.field_ids == wanted.field_ids or written.inner_ids == wanted.inner_ids
    )


def is_same_column(written: Column, now: Column) -> bool:
    """Tell whether rows that were brought into one form of a column by names mean the same in the other."""
    return written.name == now.name and still_mean(written.type, written.inner_ids, now.type, now.inner_ids)


def without_columns(schema: TableSchema, names: Iterable[str]) -> TableSchema:
    """Return the schema without these columns. Raises `SchemaMismatchError` for an unknown one, and if none is left."""
    gone = {schema.column(name).id for name in names}
    kept = tuple(column for column in schema.columns if column.id not in gone)
    if not kept:
        raise SchemaMismatchError(
            f"dropping {', '.join(schema.names)} would leave no column; drop the table, or add a column first"
        )
    return TableSchema(kept)


def with_names(schema: TableSchema, names: Mapping[str, str]) -> TableSchema:
    """Return the schema with new names, given by present ones; all at once, so two may swap.

    Raises `SchemaMismatchError` for an unknown column, and for a name that is taken, reserved or not allowed.
    """
    chosen: dict[int, str] = {}
    for old, new in names.items():
        column = schema.column(old)
        if chosen.setdefault(column.id, new) is not new:
            raise SchemaMismatchError(f"column '{column.name}' is renamed twice; name it once")
        if new.casefold() != column.name.casefold():
            check_column_name(new)
        other = schema.find(new)
        if other is not None and other.id != column.id and other.name.casefold() not in {n.casefold() for n in names}:
            raise SchemaMismatchError(
                f"column '{column.name}' cannot be renamed to '{new}': there is a column '{other.name}' already; "
                "choose another name"
            )
    return TableSchema(tuple(replace(column, name=chosen.get(column.id, column.name)) for column in schema.columns))


def with_types(
    schema: TableSchema, types: Mapping[str, pa.DataType], sizes: Mapping[str, TextSize | None] | None = None
) -> TableSchema:
    """Return the schema with these columns of wider types; a column's present type changes nothing.

    ``sizes`` are the lengths of texts that have one afterwards.

    Raises `SchemaMismatchError` for an unknown column and for a type that does not hold all values of the older one.
    """
    chosen: dict[int, Column] = {}
    for name, wanted in types.items():
        column, size = schema.column(name), (sizes or {}).get(name)
        if size is not None and not size.holds(column.size):
            raise SchemaMismatchError(
                f"column '{column.name}' of type {column.size or type_name(column.type)} cannot become {size}: only "
                "varchar(n) that is no shorter, or string, holds every value that is there"
            )
        if not can_be_read_as(column.type, wanted):
            raise SchemaMismatchError(
                f"column '{column.name}' of type {type_name(column.type)} cannot become {type_name(wanted)}: "
                "only wider integers, float to double, and decimals of more digits and the same scale hold every value "
                "that is there; add a column of that type, fill it, and drop this one (without a primary key: copy the "
                "rows into a new table)"
            )
        chosen[column.id] = replace(column, type=wanted, size=size)
    return TableSchema(tuple(chosen.get(column.id, column) for column in schema.columns))


def with_inner_changes(
    schema: TableSchema, changes: Mapping[str, InnerChanges], ever: Iterable[TableSchema]
) -> TableSchema:
    """Return the schema after changes inside some of its columns, by their names. ``ever`` are all schemas that the
    table ever had. Raises `SchemaMismatchError` as `inner_fields.changed`, and for an unknown column.
    """
    chosen: dict[int, Column] = {}
    older = [column for known in ever for column in known.columns]
    for name, inside in changes.items():
        column = schema.column(name)
        last = max(c.all_field_ids.last for c in (column, *older) if c.id == column.id)
        before = FieldIds(column.inner_ids, last)
        data_type, ids = change_nested_fields(column.name, column.type, before, inside)
        if (data_type, ids) != (column.type, before):
            chosen[column.id] = replace(column, type=data_type, field_ids=ids)
    return TableSchema(tuple(chosen.get(column.id, column) for column in schema.columns))


def without_not_null(schema: TableSchema, names: Iterable[str]) -> TableSchema:
    """Return the schema whose columns of these names accept null. Raises `SchemaMismatchError` for an unknown one."""
    chosen = {schema.column(name).id for name in names}
    return TableSchema(tuple(replace(c, nullable=c.nullable or c.id in chosen) for c in schema.columns))


def with_positions(schema: TableSchema, positions: Mapping[str, str | None]) -> TableSchema:
    """Return the schema with columns moved, in turn: each behind the column that it is mapped to, None for the first.

    Rows do not change: columns are found by their ids. Raises `SchemaMismatchError` for an unknown column.
    """
    columns = list(schema.columns)
    for name, after in positions.items():
        column = schema.column(name)
        previous = None if after is None else schema.column(after)
        if previous == column:
            raise SchemaMismatchError(f"column '{column.name}' cannot stand behind itself; name another column")
        columns.remove(column)
        columns.insert(0 if previous is None else columns.index(previous) + 1, column)
    return TableSchema(tuple(columns))


def ambiguous_columns(schemas: Iterable[TableSchema]) -> frozenset[int]:
    """Return the columns that had several names, or a name that another column had too: a name alone does not tell
    them.
    """
    ids: dict[str, set[int]] = {}
    names: dict[int, set[str]] = {}
    for schema in schemas:
        for column in schema.columns:
            ids.setdefault(column.name.casefold(), set()).add(column.id)
            names.setdefault(column.id, set()).add(column.name)
    shared = {column_id for found in ids.values() if len(found) > 1 for column_id in found}
    return frozenset(shared | {column_id for column_id, found in names.items() if len(found) > 1})


def names_by_id(schemas: Mapping[int, TableSchema]) -> Mapping[int, frozenset[str]]:
    """Collect, for each column, every name that it ever had, for all columns that the table ever had."""
    found: dict[int, set[str]] = {}
    for schema in schemas.values():
        for column in schema.columns:
            found.setdefault(column.id, set()).add(column.name)
    return {column_id: frozenset(names) for column_id, names in found.items()}


def describe_later_column(name: str, schemas: Mapping[int, TableSchema]) -> str | None:
    """Describe the later name or the end of a column of an older schema, for messages; None if nothing changed."""
    newest = schemas[max(schemas)] if schemas else None
    if newest is None or newest.find(name) is not None:
        return None
    now = {column.id: column.name for column in newest.columns}
    for _, older in sorted(schemas.items(), reverse=True):
        before = older.find(name)
        if before is not None:
            return f"it was renamed to '{now[before.id]}'" if before.id in now else "it was dropped"
    return None


def require_same_columns(begun: TableSchema, now: TableSchema, names: Sequence[str], who: str, advice: str) -> None:
    """Raise `SchemaMismatchError` if one of the columns ``names``, as they were when a read began, has now another name
    or type, accepts null, or is gone.

    ``who`` names the reader and its table. Columns that were added or moved meanwhile change nothing.
    """
    by_id = {column.id: column for column in now.columns}
    for name in names:
        before = begun.column(name)
        after = by_id.get(before.id)
        accepts_null = after is not None and after.nullable and not before.nullable
        is_alike = after is not None and after.name == before.name and is_stored_alike(before, after)
        if after == before or (is_alike and not accepts_null):
            continue
        if after is None:
            what = "was dropped"
        elif is_alike:
            what = "accepts null"
        elif after.name != before.name:
            what = f"was renamed to '{after.name}'"
        elif after.type == before.type:
            what = "has other fields inside under the names of before"
        else:
            what = f"became {type_name(after.type)}, it was {type_name(before.type)}"
        raise SchemaMismatchError(f"{who}: column '{before.name}' {what} since it began; {advice}")
