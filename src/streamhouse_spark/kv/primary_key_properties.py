"""Properties of primary-key tables, named as in Apache Fluss, and the merge engine that they choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, NoReturn, cast, get_args

import pyarrow as pa

from streamhouse_spark.config.table_properties import (
    CHANGELOG_IMAGE,
    DELETE_BEHAVIOR,
    FIELD,
    INSERT_EXISTING,
    MERGE_ENGINE,
    PRIMARY_KEY,
    VERSION_COLUMN,
)
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import parse_names, reject
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.expressions.check_constraints import Check, parse_checks
from streamhouse_spark.expressions.generated_columns import Generated, parse_generated
from streamhouse_spark.keys.key_codec import is_key_type
from streamhouse_spark.kv.merge_engines import (
    DEFAULT_FUNCTION,
    DELIMITER,
    ColumnwiseMerge,
    FirstRowMerge,
    GeneratingMerge,
    MergeEngine,
    NumberingMerge,
    VersionedMerge,
    fold_of,
)
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.identity import Identity, parse_identity
from streamhouse_spark.schema.partitioning import PARTITION_FIELDS, parse_field, split_fields
from streamhouse_spark.schema.table_schema import TableSchema

EngineName = Literal["last_row", "first_row", "versioned", "aggregation"]
DeleteBehavior = Literal["allow", "ignore", "disable"]
ChangelogImage = Literal["full", "wal"]
InsertExisting = Literal["error", "upsert"]


class Aggregate(NamedTuple):
    function: str
    delimiter: str = DELIMITER


@dataclass(frozen=True, slots=True)
class KeyedProperties:
    """The typed properties of a primary-key table. All are fixed at creation except `delete_behavior`,
    `insert_existing` and `checks`.
    """

    primary_key: tuple[str, ...]
    """``primary.key``: NOT NULL columns of scalar types, including the partition columns."""
    merge_engine: EngineName = "last_row"
    """``table.merge-engine``: how a row is merged with the stored row of its key. By default it replaces that row."""
    version_column: str | None = None
    """``table.merge-engine.versioned.ver-column``: the row with the larger value wins."""
    delete_behavior: DeleteBehavior = "allow"
    """``table.delete.behavior``: whether deletions are applied, ignored or rejected. The default is ``allow`` if the
    last row wins, ``ignore`` with a merge engine.
    """
    changelog_image: ChangelogImage = "full"
    """``table.changelog.image``: with ``wal``, updates have no before-image, and upserts of whole rows read no stored
    row.
    """
    insert_existing: InsertExisting = "error"
    """``table.merge-into.insert-existing``: the effect of a MERGE that inserts an existing key."""
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    """``fields.<column>.agg`` and ``fields.<column>.listagg.delimiter``. Other columns keep their last non-null
    value.
    """
    checks: tuple[Check, ...] = ()
    """``table.constraint.<name>``: conditions that are not false for any row of the table."""
    generated: tuple[Generated, ...] = ()
    """``table.generated.<column>``: expressions that compute columns."""
    identity: Identity | None = None
    """``table.identity.<column>``: the identity column."""


def parse_keyed_properties(
    properties: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str] = ()
) -> KeyedProperties:
    """Parse the typed properties of a table with ``primary.key``.

    Raises `InvalidOptionError` for an invalid value, a column that cannot have its role, and contradicting properties.
    """
    primary_key = _parse_primary_key(properties, schema, partition_by)
    engine: EngineName = "last_row"
    if MERGE_ENGINE in properties:
        engine = cast("EngineName", _parse_choice(properties, MERGE_ENGINE, "", get_args(EngineName)[1:]))
    image = cast("ChangelogImage", _parse_choice(properties, CHANGELOG_IMAGE, "full", get_args(ChangelogImage)))
    if engine == "aggregation" and image == "wal":
        reject(CHANGELOG_IMAGE, "wal", f"full, because {MERGE_ENGINE} is aggregation")
    return KeyedProperties(
        primary_key=primary_key,
        merge_engine=engine,
        version_column=_parse_version_column(properties, schema, primary_key, engine),
        delete_behavior=_parse_delete_behavior(properties, engine),
        changelog_image=image,
        insert_existing=cast(
            "InsertExisting", _parse_choice(properties, INSERT_EXISTING, "error", get_args(InsertExisting))
        ),
        aggregates=_parse_aggregates(properties, schema, primary_key, engine),
        checks=parse_checks(properties, schema),
        generated=parse_generated(properties, schema),
        identity=_parse_identity_column(properties, schema, engine),
    )


def engine_of(keyed: KeyedProperties, schema: TableSchema, targets: Collection[str] | None = None) -> MergeEngine:
    """Return the merge engine for writes of all columns, or for partial updates of the columns ``targets``.

    Raises `InvalidOptionError` if the engine does not support partial updates, or ``targets`` has no writable column.
    """
    place_of = {column.name: place for place, column in enumerate(schema.columns)}
    chosen = None if targets is None else _resolve_targets(keyed, schema, targets)
    if keyed.merge_engine == "first_row":
        return FirstRowMerge()
    if keyed.merge_engine == "versioned":
        assert keyed.version_column is not None
        return VersionedMerge(place_of[keyed.version_column])
    key_indexes = frozenset(place_of[name] for name in keyed.primary_key)
    folds = {}
    if keyed.merge_engine == "aggregation":
        for column in schema.columns:
            if place_of[column.name] not in key_indexes:
                aggregate = keyed.aggregates.get(column.name, Aggregate(DEFAULT_FUNCTION))
                fold = fold_of(aggregate.function, column.name, column.type, delimiter=aggregate.delimiter)
                folds[place_of[column.name]] = fold
    if chosen is None:
        return _with_generated_columns(ColumnwiseMerge(key_indexes, folds), keyed, schema)
    defaults = {place_of[c.name]: c.default_scalar for c in schema.columns if c.default is not None}
    merge = ColumnwiseMerge(key_indexes, folds, frozenset(place_of[name] for name in chosen), defaults)
    return _with_generated_columns(merge, keyed, schema)


def _with_generated_columns(merge: ColumnwiseMerge, keyed: KeyedProperties, schema: TableSchema) -> MergeEngine:
    """Return a merge that also recomputes generated columns of combined rows, and retains identity values."""
    engine: MergeEngine = merge
    if keyed.generated and not merge.replaces:
        engine = GeneratingMerge(merge, keyed.generated, schema.arrow)
    return engine if keyed.identity is None else NumberingMerge(engine, schema.names.index(keyed.identity.name))


def _parse_identity_column(properties: Mapping[str, str], schema: TableSchema, engine: EngineName) -> Identity | None:
    identity = parse_identity(properties, schema)
    if identity is not None and (identity.accepts_values or engine == "versioned"):
        clause = "BY DEFAULT" if identity.accepts_values else f"with {MERGE_ENGINE} versioned"
        raise InvalidOptionError(
            f"column '{identity.name}' GENERATED … AS IDENTITY {clause}: rows of a primary-key table keep their first "
            "number; use GENERATED ALWAYS with another merge engine, or a log table"
        )
    return identity


def _resolve_targets(keyed: KeyedProperties, schema: TableSchema, targets: Collection[str]) -> set[str]:
    if keyed.merge_engine in ("first_row", "versioned"):
        raise InvalidOptionError(
            f"a partial update names columns {sorted(targets)}, but {MERGE_ENGINE} {keyed.merge_engine} supports only "
            "whole rows; write all columns",
        )
    chosen = {schema.column(name).name for name in targets} - set(keyed.primary_key)
    if named := sorted(chosen & {column.name for column in keyed.generated}):
        raise InvalidOptionError(f"a partial update names '{named[0]}', a generated column; leave it out")
    if keyed.identity is not None and keyed.identity.name in chosen:
        raise InvalidOptionError(f"a partial update names '{keyed.identity.name}', the identity column; leave it out")
    if not chosen:
        raise InvalidOptionError("a partial update names only primary key columns; name the columns to write")
    return chosen


def _parse_primary_key(
    properties: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str]
) -> tuple[str, ...]:
    names = tuple(schema.column(name).name for name in parse_names(properties.get(PRIMARY_KEY, "")))
    if not names or len(set(names)) != len(names):
        _reject_role(f"{PRIMARY_KEY} is {properties.get(PRIMARY_KEY, '')!r}", "name one or more distinct columns")
    for name in names:
        column = schema.column(name)
        if column.nullable:
            _reject_role(f"{PRIMARY_KEY} has '{name}', which may be null", "make the column NOT NULL")
        if not is_key_type(column.type):
            _reject_role(
                f"{PRIMARY_KEY} has '{name}' of type {type_name(column.type)}", "choose columns of scalar types"
            )
    transformed = [parse_field(text, schema).column for text in split_fields(properties.get(PARTITION_FIELDS, ""))]
    for name in (*partition_by, *transformed):
        if schema.column(name).name not in names:
            _reject_role(
                f"partition column '{name}' is not in {PRIMARY_KEY} {', '.join(names)}",
                "add it, because the row of a key must stay in its partition",
            )
    return names


def _parse_version_column(
    properties: Mapping[str, str], schema: TableSchema, primary_key: tuple[str, ...], engine: EngineName
) -> str | None:
    text = properties.get(VERSION_COLUMN)
    if (text is None) != (engine != "versioned"):
        _reject_role(f"{MERGE_ENGINE} versioned requires {VERSION_COLUMN}, and vice versa", "set both or neither")
    if text is None:
        return None
    column = schema.column(text.strip())
    kinds = (pa.types.is_int32, pa.types.is_int64, pa.types.is_timestamp)
    if column.name in primary_key or not any(is_kind(column.type) for is_kind in kinds):
        _reject_role(
            f"{VERSION_COLUMN} is '{column.name}' of type {type_name(column.type)}",
            "choose a column of type INT, BIGINT or TIMESTAMP that is not in the primary key",
        )
    return column.name


def _parse_delete_behavior(properties: Mapping[str, str], engine: EngineName) -> DeleteBehavior:
    default = "allow" if engine == "last_row" else "ignore"
    behavior = cast("DeleteBehavior", _parse_choice(properties, DELETE_BEHAVIOR, default, get_args(DeleteBehavior)))
    if behavior == "allow" and engine in ("first_row", "versioned"):
        reject(DELETE_BEHAVIOR, behavior, f"ignore or disable, because {MERGE_ENGINE} is {engine}")
    return behavior


def _parse_aggregates(
    properties: Mapping[str, str], schema: TableSchema, primary_key: tuple[str, ...], engine: EngineName
) -> dict[str, Aggregate]:
    functions: dict[str, str] = {}
    delimiters: dict[str, str] = {}
    for name, value in properties.items():
        if (match := FIELD.match(name)) is None:
            continue
        column = schema.column(match["column"]).name
        if engine != "aggregation" or column in primary_key:
            _reject_role(
                f"property {name}: only non-key columns of tables with {MERGE_ENGINE} aggregation are aggregated",
                "leave it out",
            )
        if match["agg"]:
            functions[column] = value.strip().lower()
        else:
            delimiters[column] = value
    for column in delimiters:
        if functions.get(column) not in ("listagg", "string_agg"):
            _reject_role(f"column '{column}' has a delimiter", f"set fields.{column}.agg to listagg, or leave it out")
    aggregates = {c: Aggregate(f, delimiters.get(c, DELIMITER)) for c, f in functions.items()}
    for column, aggregate in aggregates.items():
        fold_of(aggregate.function, column, schema.column(column).type)
    return aggregates


def _parse_choice(properties: Mapping[str, str], name: str, default: str, words: Sequence[str]) -> str:
    word = properties.get(name, default).strip().lower()
    if word not in words:
        reject(name, word, ", ".join(words[:-1]) + f" or {words[-1]}")
    return word


def _reject_role(problem: str, advice: str) -> NoReturn:
    raise InvalidOptionError(f"{problem}; {advice}")
