"""Schema evolution: migrates a Paimon table to the columns of the streamhouse table.

Existing files are not rewritten: each has a schema id, and columns match by field id, which a rename keeps and a drop
retires permanently. **Commit point:** put-if-absent of the next schema file, with the fields and the column map. The
migration is retried until it succeeds, before the next round commits. The commit of a round that was planned before the
change fails validation, and the round is planned again.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pypaimon.schema.data_types import ArrayType, DataField, DataType, MapType, RowType, current_highest_field_id
from pypaimon.schema.table_schema import TableSchema as PaimonSchema

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.lake import column_mapping
from streamhouse_spark.lake.column_mapping import (
    COLUMNS_PROPERTY,
    ColumnMapping,
    FieldEditor,
    LakeField,
    migrate_columns,
)
from streamhouse_spark.lake.paimon.schema import (
    arrow_type,
    nested_field_finder,
    nested_field_ids,
    new_field,
    paimon_type,
)
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema.nested_fields import Path, count_fields, is_widening
from streamhouse_spark.schema.table_schema import Column

_LIST_OPTIONS = ("bucket-key",)
"""Options of the package that are lists of columns."""


@dataclass(frozen=True, slots=True)
class SchemaUpdate:
    """The target schema of the lake."""

    schema: PaimonSchema
    """The target schema, or the lake's current schema if nothing changes."""
    differences: tuple[str, ...]
    """Changes by other engines that prevent the migration."""


def paimon_columns(
    lake: PaimonSchema, spec: LakeTableSpec, schemas: Mapping[int, PaimonSchema] | None = None
) -> ColumnMapping:
    """Return the column map of a lake table, by its latest schema. Raises `CorruptDataError`.

    Readers of its files also pass ``schemas``, which are all schemas of the lake.
    """
    columns = column_mapping.read_column_mapping(
        lake.options, _field_names(lake), spec, where=spec.location, inner_of=nested_field_finder(lake.fields)
    )
    return add_external_nested_ids(columns, lake, schemas) if schemas else columns


def add_external_nested_ids(
    mapping: ColumnMapping, lake: PaimonSchema, schemas: Mapping[int, PaimonSchema]
) -> ColumnMapping:
    """Return the map with nested changes of other engines."""
    older = [schema for number, schema in sorted(schemas.items()) if number != lake.id]
    forms = [{f.id: nested_field_ids(f.type) for f in schema.fields} for schema in (*older, lake)]
    return replace(mapping, elsewhere=column_mapping.nested_fields_changed_by_lake(forms))


def require_lake_migrated(lake: PaimonSchema, spec: LakeTableSpec) -> None:
    """Require that the lake has the columns of the spec. See `column_mapping.require_migrated`."""
    column_mapping.require_migrated(paimon_columns(lake, spec), _field_names(lake), spec, where=spec.location)


def evolve_lake(lake: PaimonSchema, spec: LakeTableSpec, now_ms: int) -> SchemaUpdate:
    """Return the lake's latest schema with the fields of `column_mapping.migrate_columns`."""
    columns_before = paimon_columns(lake, spec)
    editor = _PaimonFields(itertools.count(1 + _highest_id(lake, columns_before.fields.values())))
    fields = {field.id: field for field in lake.fields}
    edited, mapped, differences = migrate_columns(fields, columns_before, spec, editor, where=spec.location)
    is_same = edited == list(lake.fields) and mapped == dict(columns_before.fields)
    # A lake without a map gets none until its columns change. They match by name until then.
    if differences or (is_same and columns_before.schema_id in (None, spec.schema_id)):
        return SchemaUpdate(lake, tuple(differences))
    columns = ColumnMapping(mapped, spec.schema_id).to_text(spec.table_uuid)
    return SchemaUpdate(_evolve_schema(lake, edited, columns, now_ms), ())


def _evolve_schema(lake: PaimonSchema, fields: list[DataField], columns: str, now_ms: int) -> PaimonSchema:
    new_names = {field.id: field.name for field in fields}
    names = {field.name: new_names.get(field.id, field.name) for field in lake.fields}
    lists = {
        option: ",".join(names.get(name, name) for name in lake.options[option].split(","))
        for option in _LIST_OPTIONS
        if option in lake.options
    }
    return PaimonSchema(
        id=lake.id + 1,
        fields=fields,
        highest_field_id=max(lake.highest_field_id, current_highest_field_id(fields)),
        partition_keys=lake.partition_keys,
        primary_keys=[names.get(name, name) for name in lake.primary_keys],
        options={**lake.options, **lists, COLUMNS_PROPERTY: columns},
        comment=lake.comment,
        time_millis=now_ms,
    )


class _PaimonFields(FieldEditor[DataField]):
    """The field editor of Paimon. It replaces a type with a wider one."""

    def __init__(self, new_ids: Iterator[int]) -> None:
        self._new_ids = new_ids

    def with_comment(self, field: DataField, column: Column | None) -> DataField:
        if column is None or column.comment is None or column.comment == field.description:
            return field
        return DataField(field.id, field.name, field.type, column.comment, field.default_value)

    def as_column(self, field: DataField, column: Column, inner: Mapping[int, int]) -> DataField:
        field = self.with_comment(field, column)
        kind = _widen_type(field.type, column.type)
        if column.field_ids is not None:
            kind = self._migrate_type(kind, column.type, iter(column.inner_ids), inner)
        if column.nullable and not kind.nullable:
            kind = copy.copy(kind)
            kind.nullable = True
        return DataField(field.id, column.name, kind, field.description, field.default_value)

    def new_fields(self, columns: Sequence[Column]) -> list[tuple[int, DataField]]:
        field_ids = [next(self._new_ids) for _ in columns]
        return [(i, new_field(i, column, self._new_ids)) for i, column in zip(field_ids, columns, strict=True)]

    def nested_ids(self, field: DataField) -> Mapping[Path, int]:
        return nested_field_ids(field.type)

    def _migrate_type(
        self, before: DataType, after: pa.DataType, ids: Iterator[int], inner: Mapping[int, int]
    ) -> DataType:
        """Return the lake's type with the column's current nested fields.

        Fields added by another engine are placed after the table's fields. The difference is reported later.
        """
        match before:
            case ArrayType() if pa.types.is_list(after):
                return ArrayType(before.nullable, self._migrate_type(before.element, after.value_type, ids, inner))
            case MapType() if pa.types.is_map(after):
                key = self._migrate_type(before.key, after.key_type, ids, inner)
                return MapType(before.nullable, key, self._migrate_type(before.value, after.item_type, ids, inner))
            case RowType() if pa.types.is_struct(after):
                field_of_id = {field.id: field for field in before.fields}
                fields = []
                for column in after:
                    field = field_of_id.get(inner.get(next(ids), -1))
                    own = iter([next(ids) for _ in range(count_fields(column.type))])
                    if field is None:
                        field_id = next(self._new_ids)
                        fields.append(DataField(field_id, column.name, paimon_type(column.type, self._new_ids)))
                    else:
                        kind = self._migrate_type(field.type, column.type, own, inner)
                        fields.append(DataField(field.id, column.name, kind, field.description, field.default_value))
                lake_only = [field for field in before.fields if field.id not in inner.values()]
                return RowType(before.nullable, [*fields, *lake_only])
        return _widen_type(before, after)


def _widen_type(kind: DataType, target: pa.DataType) -> DataType:
    try:
        before = arrow_type(kind, "")
    except (SchemaMismatchError, ValueError):  # another engine's type; the difference is reported later
        return kind
    return paimon_type(target, itertools.count(), nullable=kind.nullable) if is_widening(before, target) else kind


def _field_names(lake: PaimonSchema) -> list[tuple[int, str]]:
    return [(field.id, field.name) for field in lake.fields]


def _highest_id(lake: PaimonSchema, mapped: Iterable[LakeField]) -> int:
    """Return the largest field id, including dropped fields, in case another engine counted only the remaining ones."""
    counted: int = max(lake.highest_field_id, current_highest_field_id(lake.fields))
    return max([counted, *(i for field in mapped for i in (field.id, *field.inner.values()))])
