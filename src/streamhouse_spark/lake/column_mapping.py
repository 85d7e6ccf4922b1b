"""The map from columns of the table to fields of its lake table, independent of names.

The map is a property of the lake table, and changes in the commit that changes the lake's schema. It keeps dropped
columns for readers of older states. It contains the id of the table schema that the lake was last migrated to, so that
a process with an older schema does not change the lake. A lake table without a map was written when columns could only
be added: each column maps to the field with its first name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Generic, Protocol, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, CorruptDataError
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import FieldNames
from streamhouse_spark.schema.evolution import ambiguous_columns
from streamhouse_spark.schema.nested_fields import Path, join_path, list_field_paths
from streamhouse_spark.schema.table_schema import Column, TableSchema

COLUMNS_PROPERTY = "streamhouse.columns"

InnerOf = Callable[[int], Mapping[Path, int]]
"""Returns the nested fields of a lake field by id: lowercase path → id."""


@dataclass(frozen=True, slots=True)
class LakeField:
    id: int
    name: str
    """The package's name of the field. If the lake has a different name, another engine renamed the field."""
    inner: Mapping[int, int] = field(default_factory=dict)
    """Table id → lake id of the nested fields, if they ever changed. Has dropped fields for readers of older states."""

    def to_json(self) -> list[Any]:
        inner = {str(own): lake_id for own, lake_id in sorted(self.inner.items())}
        return [self.id, self.name, inner] if inner else [self.id, self.name]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> LakeField:
        field_id, name, *inner = value
        inner_ids = {int(own): int(lake_id) for own, lake_id in inner[0].items()} if inner else {}
        return cls(int(field_id), str(name), inner_ids)


def find_no_nested_fields(_: int) -> Mapping[Path, int]:
    """Return no nested fields, as the `InnerOf` of formats whose nested fields cannot change."""
    return {}


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    fields: Mapping[int, LakeField] = field(default_factory=dict)
    """Column id → field, for columns that the lake has or had."""
    schema_id: int | None = None
    """The id of the table schema that the lake was last migrated to. None for a lake table without a map."""
    ambiguous: frozenset[int] = field(default=frozenset(), compare=False)
    """Ids of columns whose name is ambiguous in a file without field ids."""
    first_names: Mapping[int, FieldNames] = field(default_factory=dict, compare=False)
    """Column id → lake ids and first names of nested fields, if they ever changed. Files may not have the ids."""

    elsewhere: Mapping[int, Mapping[Path, int]] = field(default_factory=dict, compare=False)
    """Field id → path → id of the nested fields in the lake, if another engine changed them."""

    def field_id(self, column_id: int) -> int | None:
        field = self.fields.get(column_id)
        return None if field is None else field.id

    def columns(self) -> dict[int, int]:
        """Return field id → column id."""
        return {field.id: column_id for column_id, field in self.fields.items()}

    def to_text(self, table_uuid: str) -> str:
        """Return the text of the property. It contains the table's uuid, because another table may adopt the lake."""
        fields = {str(column_id): field.to_json() for column_id, field in sorted(self.fields.items())}
        return json.dumps({"table": table_uuid, "schema": self.schema_id, "fields": fields}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, table_uuid: str, *, where: str) -> ColumnMapping | None:
        """Parse the result of `to_text`. Returns None for the map of another table. Raises `CorruptDataError`."""
        try:
            value = json.loads(text)
            if value["table"] != table_uuid:
                return None
            fields = {int(i): LakeField.from_json(field) for i, field in value["fields"].items()}
            return cls(fields, int(value["schema"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptDataError(
                f"lake table {where}: found {text[:100]!r} in its property {COLUMNS_PROPERTY}, expected a column map; "
                "restore the property from an older metadata file"
            ) from error


class NamedField(Protocol):
    """A field of a lake's schema."""

    @property
    def name(self) -> str: ...


F = TypeVar("F", bound=NamedField)


def read_column_mapping(
    properties: Mapping[str, str],
    fields: Iterable[tuple[int, str]],
    spec: LakeTableSpec,
    *,
    where: str,
    inner_of: InnerOf = find_no_nested_fields,
) -> ColumnMapping:
    """Return the lake table's map. ``fields`` are the current ids and names of its columns.

    ``inner_of`` returns the current nested fields of a column.
    """
    text = properties.get(COLUMNS_PROPERTY)
    mapping = None if text is None else ColumnMapping.from_text(text, spec.table_uuid, where=where)
    mapping = ColumnMapping(_match_original_names(fields, spec)) if mapping is None else mapping
    mapped = _add_original_nested_ids(mapping, spec, inner_of)
    first = {
        column_id: _original_names_inside(_find_column(column_id, _schemas_oldest_first(spec)), lake_field.inner)
        for column_id, lake_field in mapped.items()
        if lake_field.inner
    }
    return replace(mapping, fields=mapped, ambiguous=ambiguous_columns(spec.schemas.values()), first_names=first)


def _add_original_nested_ids(mapping: ColumnMapping, spec: LakeTableSpec, inner_of: InnerOf) -> dict[int, LakeField]:
    """Return the map's fields, with nested fields for columns whose nested fields changed.

    A map without nested fields is older than the first such change, so the lake still has the names of that time.
    """
    schemas = _schemas_oldest_first(spec)
    changed = {c.id for schema in schemas for c in schema.columns if c.field_ids is not None}
    fields = dict(mapping.fields)
    for column_id in changed & fields.keys():
        if not fields[column_id].inner:
            column = _column_in_lake_schema(column_id, mapping, spec)
            fields[column_id] = replace(
                fields[column_id], inner=_match_nested_fields(column, inner_of(fields[column_id].id))
            )
    return fields


def nested_fields_changed_by_lake(forms: Iterable[Mapping[int, Mapping[Path, int]]]) -> dict[int, Mapping[Path, int]]:
    """Return the nested fields of lake fields that differ between schemas.

    ``forms`` has the nested fields by field id in each schema. The current schema is last.
    """
    changed_paths: dict[int, dict[Path, int]] = {}
    differing: set[int] = set()
    for form in forms:
        for field_id, inside in form.items():
            if field_id in changed_paths and list(changed_paths[field_id].items()) != list(inside.items()):
                differing.add(field_id)
            changed_paths[field_id] = (
                {**changed_paths.get(field_id, {}), **inside} if field_id in differing else dict(inside)
            )
    return {field_id: changed_paths[field_id] for field_id in differing}


def _schemas_oldest_first(spec: LakeTableSpec) -> list[TableSchema]:
    return [*(schema for _, schema in sorted(spec.schemas.items())), spec.schema]


def _original_names_inside(column: Column, inner: Mapping[int, int]) -> FieldNames:
    return tuple((inner[own], join_path(path)) for own, path in _own_paths(column) if own in inner)


def _column_in_lake_schema(column_id: int, mapping: ColumnMapping, spec: LakeTableSpec) -> Column:
    """Return the column in the schema that the lake was migrated to, or in the oldest schema without a map."""
    schema = spec.schemas.get(mapping.schema_id or 0)
    return _find_column(column_id, (*((schema,) if schema else ()), *_schemas_oldest_first(spec)))


def _find_column(column_id: int, schemas: Iterable[TableSchema]) -> Column:
    return next(column for schema in schemas for column in schema.columns if column.id == column_id)


def _match_nested_fields(column: Column, inside: Mapping[Path, int]) -> dict[int, int]:
    """Return the lake id of each nested field of a column, from lake fields with equal paths."""
    field_ids = {}
    for own, path in _own_paths(column):
        lake_id = inside.get(tuple(name.casefold() for name in path))
        if lake_id is not None:
            field_ids[own] = lake_id
    return field_ids


def _lake_field(
    column: Column, field_id: int, name: str, inside: Mapping[Path, int], before: LakeField | None = None
) -> LakeField:
    """Return a column's lake field with the lake's nested names. ``before`` may have nested fields dropped since."""
    if column.field_ids is None:
        return LakeField(field_id, name)
    older = before.inner if before is not None else {}
    return LakeField(field_id, name, {**older, **_match_nested_fields(column, inside)})


def map_by_name(
    fields: Iterable[tuple[int, str]],
    schema: TableSchema,
    schema_id: int | None = None,
    inner_of: InnerOf = find_no_nested_fields,
) -> ColumnMapping:
    """Return the map of a lake table whose fields have the names of the schema."""
    by_name = {name.casefold(): (field_id, name) for field_id, name in fields}
    matches = {column.id: (column, by_name.get(column.name.casefold())) for column in schema.columns}
    mapped = {
        i: _lake_field(column, *match, inner_of(match[0]) if column.field_ids is not None else {})
        for i, (column, match) in matches.items()
        if match is not None
    }
    return ColumnMapping(mapped, schema_id)


def require_migrated(
    mapping: ColumnMapping, fields: Iterable[tuple[int, str]], spec: LakeTableSpec, *, where: str
) -> None:
    """Require that the lake has exactly the columns of the spec. Columns of a lake without a map match by name.

    ``fields`` are the current fields of the lake. Raises `CommitConflictError` if the table was altered after the round
    started, or if the lake was not migrated yet.
    """
    named = {mapping.field_id(column.id) for column in spec.schema.columns}
    unmapped = [name for field_id, name in fields if field_id not in named]
    if mapping.schema_id not in (None, spec.schema_id) or unmapped:
        hint = f", and has other columns: {', '.join(unmapped)}" if unmapped else ""
        raise CommitConflictError(
            f"lake table {where} has the columns of schema {mapping.schema_id}{hint}, expected schema "
            f"{spec.schema_id} of {spec.path}; retry"
        )


def require_not_newer(mapping: ColumnMapping, spec: LakeTableSpec, *, where: str) -> None:
    """Raise `CommitConflictError` if the lake has a newer schema than the spec."""
    if mapping.schema_id is not None and mapping.schema_id > spec.schema_id:
        raise CommitConflictError(
            f"lake table {where} has the columns of schema {mapping.schema_id}, which is newer than schema "
            f"{spec.schema_id} of {spec.path}: the table was altered after this round started; retry"
        )


def find_external_changes(mapping: ColumnMapping, lake_names: Mapping[int, str], spec: LakeTableSpec) -> list[str]:
    """Describe changes of the table's columns by other engines. ``lake_names`` are the lake's current fields by id."""
    problems = []
    for column in spec.schema.columns:
        mapped = mapping.fields.get(column.id)
        if mapped is None:
            continue
        name = lake_names.get(mapped.id)
        if name is None:
            problems.append(
                f"column '{mapped.name}' (field {mapped.id}) was dropped in the lake by another engine; roll back the "
                "lake table's metadata, or drop the column of the table"
            )
        elif name not in (mapped.name, column.name):
            problems.append(
                f"column '{mapped.name}' (field {mapped.id}) was renamed to '{name}' in the lake by another "
                f"engine; rename it to '{column.name}' in the lake, or rename column '{column.name}' of the table to "
                f"'{name}'"
            )
    return problems


def _find_external_nested_changes(
    mapping: ColumnMapping, lake: Mapping[int, F], spec: LakeTableSpec, inside: Callable[[F], Mapping[Path, int]]
) -> list[str]:
    """Describe changes by other engines of nested fields that the table changed."""
    problems = []
    for column in spec.schema.columns:
        mapped = mapping.fields.get(column.id)
        if mapped is None or not mapped.inner or mapped.id not in lake:
            continue
        lake_paths = {field_id: path for path, field_id in inside(lake[mapped.id]).items()}
        before = dict(_own_paths(_column_in_lake_schema(column.id, mapping, spec)))
        for own, path in _own_paths(column):
            field_id = mapped.inner.get(own)
            if field_id is None:
                continue
            name = join_path((column.name, *path))
            if field_id not in lake_paths:
                problems.append(
                    f"field '{name}' (field {field_id}) was dropped in the lake by another engine; roll back the lake "
                    "table's metadata, or drop the field of the table"
                )
            elif lake_paths[field_id][-1] not in {names[-1].casefold() for names in (path, before.get(own, path))}:
                problems.append(
                    f"field '{name}' (field {field_id}) was renamed to '{lake_paths[field_id][-1]}' in the lake by "
                    f"another engine; rename it to '{path[-1]}' in the lake"
                )
    return problems


def _own_paths(column: Column) -> list[tuple[int, Path]]:
    """Return the ids of a column's nested fields with their paths."""
    return list(zip(column.inner_ids, list_field_paths(column.type), strict=True))


class FieldEditor(ABC, Generic[F]):
    """Edits fields of a lake's schema in its format."""

    @abstractmethod
    def with_comment(self, field: F, column: Column | None) -> F:
        """Return the field with the column's comment, if the column has one."""

    @abstractmethod
    def as_column(self, field: F, column: Column, inner: Mapping[int, int]) -> F:
        """Return the field with the column's name, comment and nullability.

        The field also gets the column's type if that is wider, or if nested fields changed. ``inner`` maps nested
        fields of the table to those of the lake.
        """

    @abstractmethod
    def new_fields(self, columns: Sequence[Column]) -> Sequence[tuple[int, F]]:
        """Return new fields with their ids."""

    @abstractmethod
    def nested_ids(self, field: F) -> Mapping[Path, int]: ...


def migrate_columns(
    lake: Mapping[int, F], mapping: ColumnMapping, spec: LakeTableSpec, editor: FieldEditor[F], *, where: str
) -> tuple[list[F], dict[int, LakeField], list[str]]:
    """Migrate the fields of a ``lake``, by id, to the names, types and nullability of the table's columns.

    Drops fields of dropped columns, appends missing ones, and keeps comments that the table does not have. Returns the
    fields, the map's fields, and changes of other engines that prevent the migration. Raises `CommitConflictError` if
    the lake has a newer schema than the spec.
    """
    require_not_newer(mapping, spec, where=where)
    named = [(field_id, field.name) for field_id, field in lake.items()]
    differences = find_external_changes(mapping, dict(named), spec) + _find_external_nested_changes(
        mapping, lake, spec, editor.nested_ids
    )
    mapped = dict(mapping.fields)
    if mapping.schema_id == spec.schema_id:  # names and types already match the table
        fields = {i: editor.with_comment(field, spec.schema.find(field.name)) for i, field in lake.items()}
    else:
        retained = retained_fields(named, mapping, spec.schema, mapped)
        fields = {}
        for i, column in retained:
            if column is None:
                fields[i] = lake[i]
                continue
            before = mapping.fields.get(column.id)
            changed_field = editor.as_column(lake[i], column, before.inner if before is not None else {})
            fields[i] = changed_field
            mapped[column.id] = _lake_field(column, i, column.name, editor.nested_ids(changed_field), before)
    missing = [column for column in spec.schema.columns if column.id not in mapped and column.nullable]
    for column, (field_id, changed_field) in zip(missing, editor.new_fields(missing), strict=True):
        fields[field_id] = changed_field
        mapped[column.id] = _lake_field(column, field_id, column.name, editor.nested_ids(changed_field))
    if mapping.schema_id != spec.schema_id and any(schema != spec.schema for schema in spec.schemas.values()):
        own = [mapped[column.id].id for column in spec.schema.columns if column.id in mapped]
        fields = _reorder_fields(fields, own)
    return list(fields.values()), mapped, differences + find_repeated_names(field.name for field in fields.values())


def _reorder_fields(fields: Mapping[int, F], own: Sequence[int]) -> dict[int, F]:
    """Return the fields with the table's own fields in column order. Fields of other engines keep their positions."""
    in_turn = iter([i for i in own if i in fields])
    columns = set(own)
    return {i: fields[i] for i in (next(in_turn) if field_id in columns else field_id for field_id in fields)}


def retained_fields(
    fields: Iterable[tuple[int, str]], mapping: ColumnMapping, schema: TableSchema, mapped: dict[int, LakeField]
) -> list[tuple[int, Column | None]]:
    """Return the lake fields to keep, by id, each with its column.

    The column is None for a field of another engine, which is not changed. Fields of dropped columns are omitted. A
    column without a field gets the lake field with its name, which is added to ``mapped``.
    """
    column_ids, columns = mapping.columns(), {column.id: column for column in schema.columns}
    retained: list[tuple[int, Column | None]] = []
    for field_id, name in fields:
        column_id = column_ids.get(field_id)
        column = schema.find(name) if column_id is None else columns.get(column_id)
        if column_id is None and (column is None or column.id in mapped):
            retained.append((field_id, None))
        elif column is not None:
            retained.append((field_id, column))
            mapped[column.id] = LakeField(field_id, column.name)
    return retained


def find_repeated_names(names: Iterable[str]) -> list[str]:
    """Return a description of each name that occurs more than once, ignoring case."""
    folded = [name.casefold() for name in names]
    return [
        f"column '{name}' is duplicated, because another engine added a column with this name; rename or drop it there"
        for name in sorted({name for name in folded if folded.count(name) > 1})
    ]


def _match_original_names(fields: Iterable[tuple[int, str]], spec: LakeTableSpec) -> dict[int, LakeField]:
    """Map columns by first names. The oldest column with a name has the field, and newer ones were added later."""
    unmapped = {name.casefold(): LakeField(field_id, name) for field_id, name in fields}
    first: dict[int, str] = {}
    for schema in (*(of_schema for _, of_schema in sorted(spec.schemas.items())), spec.schema):
        for column in schema.columns:
            first.setdefault(column.id, column.name)
    field_of = {column_id: unmapped.pop(name.casefold(), None) for column_id, name in sorted(first.items())}
    return {column_id: lake_field for column_id, lake_field in field_of.items() if lake_field is not None}
