"""ALTER TABLE: a set of changes, and the resulting schema and properties. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from streamhouse_spark.config.column_changes import ColumnChanges, apply_column_changes, refuse_partition_names
from streamhouse_spark.config.properties import (
    PRIMARY_KEY,
    TableProperties,
    alter_properties,
    parse_properties,
)
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import is_text_list
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.defaults import check_defaults, with_defaults
from streamhouse_spark.schema.evolution import names_by_id, with_positions, without_not_null
from streamhouse_spark.schema.partition_fields import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema, new_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from streamhouse_spark.schema.table_schema import SparkSchema


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes that are applied atomically."""

    added: TableSchema | None = None
    """New columns, appended to the existing ones. Their ids are ignored."""
    comments: Mapping[str, str | None] = field(default_factory=dict)
    """Column → comment; None removes it."""
    set_properties: Mapping[str, str] = field(default_factory=dict)
    unset_properties: tuple[str, ...] = ()
    columns: ColumnChanges = field(default_factory=ColumnChanges)
    """Changes of existing columns, applied before new ones are added."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Column → constant for new rows that omit it; None removes it. Names and types are those after the change."""
    drop_not_null: tuple[str, ...] = ()
    """Columns that become nullable."""
    positions: Mapping[str, str | None] = field(default_factory=dict)
    """Column → the column that it follows, None for the first. Names are those after the change."""

    @classmethod
    def of(
        cls,
        add_columns: pa.Schema | str | SparkSchema | None = None,
        comments: Mapping[str, str | None] | None = None,
        set_properties: Mapping[str, str] | None = None,
        unset_properties: Sequence[str] = (),
        columns: ColumnChanges | None = None,
        defaults: Mapping[str, Any] | None = None,
        drop_not_null: Sequence[str] = (),
        positions: Mapping[str, str | None] | None = None,
    ) -> Alteration:
        """Validate and combine the parts of an ALTER.

        Raises `SchemaMismatchError`, `InvalidOptionError` for changes that no table supports.
        """
        for name, values in (
            ("comments", comments),
            ("set_properties", set_properties),
            ("move_columns", positions),
        ):
            if not isinstance(values, Mapping | None):
                raise InvalidOptionError(f"{name} is {values!r}, expected a mapping of names to texts")
        if not is_text_list(unset_properties):
            raise InvalidOptionError(f"unset_properties is {unset_properties!r}, expected a list of property names")
        if not is_text_list(drop_not_null):
            raise InvalidOptionError(f"drop_not_null is {drop_not_null!r}, expected a list of column names")
        if not all(isinstance(comment, str | None) for comment in (comments or {}).values()):
            raise InvalidOptionError(f"comments is {comments!r}, expected a text or None for each column")
        texts = {str(name): str(value) for name, value in (set_properties or {}).items()}
        changes, added = columns or ColumnChanges(), None
        if add_columns is not None:
            top_level, fields = new_columns(add_columns)
            added = TableSchema.of_columns(top_level) if top_level or not fields else None
            changes = replace(changes, fields=tuple(((*new.parents, new.name), new.type) for new in fields))
        return cls(
            added,
            dict(comments or {}),
            texts,
            tuple(unset_properties),
            changes,
            check_defaults(defaults),
            tuple(drop_not_null),
            dict(positions or {}),
        )


FormerFields: TypeAlias = Sequence[tuple[int, Sequence[PartitionField]]]
"""The last schema of each former partitioning, with its fields by that schema's names."""


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """The schema and the properties of a table after an alteration."""

    schema_id: int
    """The current id if only comments changed, since rows of both schemas are the same."""
    schema: TableSchema
    properties: Mapping[str, str]


def alter_table_definition(
    change: Alteration,
    schema_id: int,
    schemas: Mapping[int, TableSchema],
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    former_partitionings: FormerFields = (),
) -> AlteredTable:
    """Return the table definition after the change.

    ``schemas`` are all schemas that the table ever had, because column ids are never reused. ``former_partitionings``
    are the fields by which it was partitioned before.

    Raises `SchemaMismatchError` for a column that is unknown or cannot be added, and for a default that does not fit,
    and `InvalidOptionError` for a property that is unknown, fixed or invalid.
    """
    schema = schemas[schema_id]
    if change.columns:
        _refuse_former_sources(change.columns, schema, schemas, former_partitionings)
        schema, properties = apply_column_changes(change.columns, schema, partition_by, properties, schemas.values())
    if change.added is not None:
        first_id = 1 + max(column.id for former_schema in schemas.values() for column in former_schema.columns)
        schema = schema.with_added(change.added, first_id)
    schema = without_not_null(schema, change.drop_not_null)
    _refuse_nullable_keys(change.drop_not_null, schema, properties)
    schema = with_positions(with_defaults(schema, change.defaults), change.positions)
    if schema != schemas[schema_id]:
        parsed = parse_properties(properties, schema, partition_by)
        _refuse_partition_names(schema, schemas, schemas[schema_id], parsed, former_partitionings)
        schema_id = max(schemas) + 1
    schema = schema.with_comments(change.comments)
    texts = alter_properties(properties, change.set_properties, change.unset_properties)
    parse_properties(texts, schema, partition_by)
    return AlteredTable(schema_id, schema, texts)


def _refuse_nullable_keys(names: Sequence[str], schema: TableSchema, properties: Mapping[str, str]) -> None:
    keys = {name.casefold() for name in parse_names(properties.get(PRIMARY_KEY, ""))}
    for name in names:
        if name.casefold() in keys:
            raise InvalidOptionError(
                f"column '{schema.column(name).name}' cannot accept null: it is of the primary key; leave DROP NOT "
                "NULL out, or copy the rows into a table with another key"
            )


def _refuse_partition_names(
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    before: TableSchema,
    properties: TableProperties,
    former_partitionings: FormerFields,
) -> None:
    names_ever = names_by_id({**schemas, max(schemas) + 1: schema})
    suffixes = [(schema.column(key).id, "bucket") for key in properties.bucket_key]
    suffixes += [
        (schema.column(field.column).id, field.suffix) for field in properties.partition_fields if field.suffix
    ]
    suffixes += [
        (schemas[i].column(f.column).id, f.suffix) for i, fields in former_partitionings for f in fields if f.suffix
    ]
    partitions = [f"{name}_{suffix}" for column_id, suffix in suffixes for name in names_ever[column_id]]
    old = {column.id: column.name for column in before.columns}
    refuse_partition_names([c.name for c in schema.columns if old.get(c.id) != c.name], partitions)


def _refuse_former_sources(
    changes: ColumnChanges, schema: TableSchema, schemas: Mapping[int, TableSchema], former_partitionings: FormerFields
) -> None:
    """Reject changes of columns by which older lake files are still partitioned. Raises `InvalidOptionError`."""
    fields = [
        (schemas[i].column(field.column).id, field)
        for i, former_fields in former_partitionings
        for field in former_fields
    ]
    sources = {column_id for column_id, _ in fields}
    named = {column_id for column_id, field in fields if not field.suffix}
    wider = [name for name, kind in changes.widened.items() if (c := schema.find(name)) and not kind.equals(c.type)]
    for names, refused, change in (
        (changes.dropped, sources, "dropped"),
        (changes.renamed, named, "renamed"),
        (wider, sources, "widened"),
    ):
        for name in names:
            column = schema.find(name)
            if column is not None and column.id in refused:
                raise InvalidOptionError(
                    f"column '{column.name}' cannot be {change}: the table was partitioned by it, and older lake "
                    "files still are; create a new table, and copy the rows"
                )
