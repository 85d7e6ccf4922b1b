"""ALTER TABLE: a set of changes, and the resulting schema and properties.

If a column is renamed, dropped or widened, the same record changes the properties that name it. The types of keys and
the partition columns cannot change, because the layout of the data depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from streamhouse_spark.config.table_properties import (
    FIELD,
    PRIMARY_KEY,
    VERSION_COLUMN,
    TableProperties,
    alter_properties,
    parse_properties,
)
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names, parse_names
from streamhouse_spark.core.types import is_text_list
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.column_defaults import check_defaults, with_defaults
from streamhouse_spark.schema.ddl import TextLength, parse_type, type_name
from streamhouse_spark.schema.evolution import (
    names_by_id,
    with_names,
    with_nested_changes,
    with_positions,
    with_types,
    without_columns,
    without_not_null,
)
from streamhouse_spark.schema.nested_fields import NestedFieldChanges, Path, split_path
from streamhouse_spark.schema.partitioning import (
    PARTITION_FIELDS,
    PartitionField,
    join_fields,
    parse_fields,
    split_fields,
)
from streamhouse_spark.schema.table_schema import TableSchema, canonical_type, new_columns

if TYPE_CHECKING:
    from streamhouse_spark.schema.table_schema import SparkSchema


_STATISTICS: Final = "table.statistics.columns"
_LISTS: Final = (PRIMARY_KEY, "bucket.key", _STATISTICS)
"""Properties that are lists of columns."""
FormerFields: TypeAlias = Sequence[tuple[int, Sequence[PartitionField]]]
"""The former partitionings: the id of the last schema, and the partition fields with the names of that schema."""


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Changes of existing columns. All names are from before the changes."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    widened: Mapping[str, pa.DataType] = field(default_factory=dict)
    sizes: Mapping[str, TextLength] = field(default_factory=dict)
    """Lengths of widened columns that become CHAR(n) or VARCHAR(n)."""
    fields: tuple[tuple[Path, pa.DataType], ...] = ()
    """New nested fields. The path starts with the column's old name, followed by new names of nested fields."""

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.widened or self.fields)

    @classmethod
    def of(cls, renamed: object, dropped: object, widened: object) -> ColumnChanges:
        """Validate and combine the changes.

        Raises `InvalidOptionError` for an invalid mapping or list of names, `SchemaMismatchError` for an unknown type.
        """
        for name, mapping in (("rename_columns", renamed), ("widen_columns", widened)):
            if not isinstance(mapping, Mapping | None) or not all(isinstance(column, str) for column in mapping or ()):
                raise InvalidOptionError(f"{name} is {mapping!r}, expected a mapping of column names")
        if not isinstance(dropped, list | tuple) or not all(isinstance(column, str) for column in dropped):
            raise InvalidOptionError(f"drop_columns is {dropped!r}, expected a list of column names")
        names = dict(renamed or {})  # type: ignore[call-overload]
        if not all(isinstance(name, str) for name in names.values()):
            raise InvalidOptionError(f"rename_columns is {renamed!r}, expected a mapping of old to new names")
        types = {column: _parse_type(column, mapping) for column, mapping in dict(widened or {}).items()}  # type: ignore[call-overload]
        dropped_and_changed = {name.casefold() for name in dropped} & {name.casefold() for name in (*names, *types)}
        if dropped_and_changed:
            raise InvalidOptionError(
                f"column '{min(dropped_and_changed)}' is both dropped and changed; do only one of them"
            )
        return cls(names, tuple(dropped), types, _parse_sizes(dict(widened or {})))  # type: ignore[call-overload]


def _parse_type(column: str, type_or_text: object) -> pa.DataType:
    if isinstance(type_or_text, pa.DataType):
        return canonical_type(type_or_text, column=column)
    if isinstance(type_or_text, str):
        return parse_type(type_or_text)
    raise InvalidOptionError(
        f"widen_columns: the type of '{column}' is {type_or_text!r}, expected an Arrow type, or a type name in SQL"
    )


def _parse_sizes(types: Mapping[str, object]) -> dict[str, TextLength]:
    sizes = {
        column: TextLength.parse(type_or_text)
        for column, type_or_text in types.items()
        if isinstance(type_or_text, str)
    }
    return {column: size for column, size in sizes.items() if size is not None}


def apply_column_changes(
    changes: ColumnChanges,
    schema: TableSchema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    former_schemas: Iterable[TableSchema] = (),
) -> tuple[TableSchema, dict[str, str]]:
    """Return the schema and the properties after ``changes``. ``former_schemas`` are all schemas that the table had.

    Raises `SchemaMismatchError` for an unknown column, a name that exists or is invalid, a type that is not wider, and
    if no column would remain; `InvalidOptionError` for a column whose role does not permit the change.
    """
    changes, nested_changes = _split_nested_changes(changes, schema)
    _require_allowed(changes, schema, partition_by, properties, nested_changes)
    after = with_nested_changes(schema, nested_changes, former_schemas)
    after = with_types(after, changes.widened, changes.sizes)
    after = without_columns(after, changes.dropped) if changes.dropped else after
    after = with_names(after, changes.renamed)
    names = {schema.column(old).name: new for old, new in changes.renamed.items()}
    dropped_names = {schema.column(name).name for name in changes.dropped}
    return after, _rename_in_properties(properties, schema, names, dropped_names)


def _split_nested_changes(
    changes: ColumnChanges, schema: TableSchema
) -> tuple[ColumnChanges, dict[str, NestedFieldChanges]]:
    """Separate changes of columns from changes of nested fields. The name of an existing column may contain dots."""
    renamed: dict[str, dict[Path, str]] = {}
    widened: dict[str, dict[Path, pa.DataType]] = {}
    dropped: dict[str, list[Path]] = {}
    added: dict[str, list[tuple[Path, pa.DataType]]] = {}
    inner: set[str] = set()
    for text in dict.fromkeys((*changes.renamed, *changes.widened, *changes.dropped)):
        if schema.find(text) is not None or len(path := split_path(text)) == 1:
            continue
        name = schema.column(path[0]).name
        inner.add(text)
        if text in changes.renamed:
            renamed.setdefault(name, {})[path[1:]] = changes.renamed[text]
        if text in changes.widened:
            if text in changes.sizes:
                raise SchemaMismatchError(
                    f"field '{text}' has type {changes.sizes[text]}, and only columns can have a length; use STRING"
                )
            widened.setdefault(name, {})[path[1:]] = changes.widened[text]
        if text in changes.dropped:
            dropped.setdefault(name, []).append(path[1:])
    for path, kind in changes.fields:
        added.setdefault(schema.column(path[0]).name, []).append((path[1:], kind))
    nested_changes = {
        name: NestedFieldChanges(
            renamed.get(name, {}), tuple(dropped.get(name, ())), widened.get(name, {}), tuple(added.get(name, ()))
        )
        for name in {**renamed, **widened, **dropped, **added}
    }
    column_changes = replace(
        changes,
        renamed={name: new for name, new in changes.renamed.items() if name not in inner},
        dropped=tuple(name for name in changes.dropped if name not in inner),
        widened={name: kind for name, kind in changes.widened.items() if name not in inner},
        fields=(),
    )
    dropped_and_changed = {schema.column(name).name for name in column_changes.dropped} & nested_changes.keys()
    if dropped_and_changed:
        raise InvalidOptionError(
            f"column '{min(dropped_and_changed)}' is both dropped and changed; do only one of them"
        )
    return column_changes, nested_changes


def _require_allowed(
    changes: ColumnChanges,
    schema: TableSchema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    nested_changes: Mapping[str, NestedFieldChanges],
) -> None:
    parsed = parse_properties(properties, schema, partition_by)
    partitions = {schema.column(name).name for name in partition_by}
    key, bucket_key = set(parsed.primary_key), set(parsed.bucket_key)
    version = {schema.column(properties[VERSION_COLUMN].strip()).name} if VERSION_COLUMN in properties else set()
    roles: list[tuple[str, set[str], str]] = [
        ("a partition column", partitions, "which determines the layout"),
        ("part of the primary key", key, "which identifies rows"),
        ("the bucket key", bucket_key, "which determines the layout"),
        ("the version column of table.merge-engine", version, "by which rows are merged"),
        *(
            (f"named in the constraint '{c.name}'", set(c.condition.columns()), f"CHECK ({c.text})")
            for c in parsed.checks
        ),
        ("the source of a partition field", set(parsed.partition_sources), "which determines the layout"),
    ]
    generated = [
        *((f"used by the generated column '{g.name}'", set(g.expression.columns()), g.text) for g in parsed.generated),
        *(("generated", {g.name}, g.text) for g in parsed.generated),
        *(("an identity column", {i.name}, i.sql) for i in (parsed.identity,) if i is not None),
    ]
    for name in changes.dropped:
        _refuse(schema.column(name).name, "dropped", generated, "create a new table without it, and copy the rows")
        _refuse(schema.column(name).name, "dropped", roles[4:-1], "drop the constraint first")
        _refuse(schema.column(name).name, "dropped", roles, "create a new table without it, and copy the rows")
    for name in changes.renamed:
        _refuse(schema.column(name).name, "renamed", generated, "create a new table with that name, and copy the rows")
        _refuse(schema.column(name).name, "renamed", roles[:1], "create a new table with that name, and copy the rows")
        _refuse(schema.column(name).name, "renamed", roles[4:-1], "drop the constraint first")
    for name, change in nested_changes.items():
        if change.renamed or change.dropped or change.widened:
            _refuse(name, "changed inside", [*generated, *roles], "add a column of the required type")
    # Paimon's hash differs for a wider type, Iceberg's does not.
    fixed = roles[:3] if parsed.datalake_format == "paimon" else [*roles[:2], roles[-1]]
    for name, kind in changes.widened.items():
        column = schema.column(name)
        if not kind.equals(column.type):
            action = f"changed to {type_name(kind)}"
            _refuse(column.name, action, fixed, "create a new table with that type, and copy the rows")


def _refuse(column: str, change: str, roles: Sequence[tuple[str, set[str], str]], advice: str) -> None:
    for role, columns, why in roles:
        if column in columns:
            raise InvalidOptionError(f"column '{column}' cannot be {change}: it is {role}, {why}; {advice}")


def _rename_in_properties(
    properties: Mapping[str, str], schema: TableSchema, names: Mapping[str, str], dropped_names: set[str]
) -> dict[str, str]:
    """Rename and remove columns in the values of properties."""

    def current_name(name: str) -> str | None:
        schema_column = schema.find(name)
        column = schema_column.name if schema_column is not None else name
        return None if column in dropped_names else names.get(column, column)

    renamed = {}
    for name, value in properties.items():
        new_name, new_value = name, value
        if name in _LISTS and value.strip() != "*":
            new_value = _join_names(value, current_name)
        elif name == PARTITION_FIELDS:
            fields = parse_fields(split_fields(value), schema)
            new_value = join_fields(
                replace(field, column=current_name(field.column) or field.column) for field in fields
            )
        elif name == VERSION_COLUMN:
            new_value = current_name(value.strip()) or value
        elif (match := FIELD.match(name)) is not None:
            column = current_name(match["column"])
            if column is None:
                continue
            new_name = f"fields.{column}{name[match.end('column') :]}"
        renamed[new_name] = new_value
    return renamed


def _join_names(text: str, current_name: Callable[[str], str | None]) -> str:
    before = parse_names(text)
    after = [name for name in map(current_name, before) if name is not None]
    return text if list(before) == after else join_names(after)


def refuse_partition_names(names: Sequence[str], partitions: Sequence[str]) -> None:
    """Raise `SchemaMismatchError` for a new column that has the name of a bucket or transform partition of the lake.

    ``partitions`` are all names that these partitions ever had.
    """
    folded_names = {name.casefold().rstrip("_") for name in partitions}
    for name in names:
        if name.casefold().rstrip("_") in folded_names:
            raise SchemaMismatchError(
                f"the new column '{name}' has the name of a bucket or transform partition of the lake table; choose "
                "another name"
            )


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes that are applied atomically."""

    added: TableSchema | None = None
    """New columns, appended to the existing columns. Their ids are ignored."""
    comments: Mapping[str, str | None] = field(default_factory=dict)
    """Column → comment; None removes the comment."""
    set_properties: Mapping[str, str] = field(default_factory=dict)
    unset_properties: tuple[str, ...] = ()
    columns: ColumnChanges = field(default_factory=ColumnChanges)
    """Changes of existing columns, applied before columns are added."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Column → default; None removes the default. Names and types are from after the other changes."""
    drop_not_null: tuple[str, ...] = ()
    """Columns that become nullable."""
    positions: Mapping[str, str | None] = field(default_factory=dict)
    """Column → the column that it follows; None for the front. Names are from after the other changes."""

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

        Raises `SchemaMismatchError` and `InvalidOptionError` for changes that no table supports.
        """
        for name, values in (("comments", comments), ("set_properties", set_properties), ("move_columns", positions)):
            if not isinstance(values, Mapping | None):
                raise InvalidOptionError(f"{name} is {values!r}, expected a mapping of names to strings")
        if not is_text_list(unset_properties):
            raise InvalidOptionError(f"unset_properties is {unset_properties!r}, expected a list of property names")
        if not is_text_list(drop_not_null):
            raise InvalidOptionError(f"drop_not_null is {drop_not_null!r}, expected a list of column names")
        if not all(isinstance(comment, str | None) for comment in (comments or {}).values()):
            raise InvalidOptionError(f"comments is {comments!r}, expected a string or None for each column")
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


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """The schema and the properties of a table after an alteration."""

    schema_id: int
    """A new id, or the current id if only comments changed."""
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

    ``schemas`` are all schemas that the table ever had, because column ids are never reused.

    Raises `SchemaMismatchError` for a column that is unknown or cannot be added, and for a default that does not fit;
    `InvalidOptionError` for a property that is unknown, fixed or invalid.
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
                f"column '{schema.column(name).name}' cannot accept null: it is part of the primary key; leave DROP "
                "NOT NULL out, or copy the rows into a table with another key"
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
    """Raise `InvalidOptionError` for changes of columns by which older lake files are still partitioned."""
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
                    f"column '{column.name}' cannot be {change}: older lake files are partitioned by it; create a new "
                    "table, and copy the rows"
                )
