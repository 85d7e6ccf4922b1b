"""ALTER TABLE: the changes of a statement are one commit record. Unsupported changes are rejected with a remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.types import StructType

from streamhouse_spark.config.alter_table import Alteration, ColumnChanges
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import DEFAULT_DATABASE
from streamhouse_spark.datasource.catalog.ddl.databases import require_database
from streamhouse_spark.datasource.rpc_arguments import StructJson, path_of, table_path
from streamhouse_spark.datasource.table_definition import PROVIDER, SHOWN_PREFIXES
from streamhouse_spark.datasource.write.frame_schema import merge_columns as add_columns
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.check_constraints import CONSTRAINT, find_constraint_property
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.column_defaults import SqlText
from streamhouse_spark.schema.ddl import PARENTS, TextLength, parse_struct_json
from streamhouse_spark.schema.nested_fields import join_path
from streamhouse_spark.table.alter import make_alter_actions
from streamhouse_spark.warehouse.process_cache import Connection

_COPY = "create a table with the new column, and insert the rows of this table"
_SUPPORTED: Final = (
    "you can add, rename, drop, widen and move columns, drop NOT NULL, and change comments, defaults and properties"
)
_NEW_DEFAULT: Final = (
    "Spark applies the DEFAULT of a new column to existing rows too, but other engines that read the lake do not; omit "
    "it, and set a default for new rows with ALTER COLUMN … SET DEFAULT"
)
_NOT_NULL: Final = f"existing rows may have null in the column; filter nulls in the query, or {_COPY}"
_READ_ONLY_PROPERTIES: Final = frozenset(
    {"provider", "location", "owner", "external", "is_managed_location", "collation"}
)


@dataclass
class _Changes:
    """The changes of the statement, as arguments of `Table.alter`."""

    add_columns: list[dict[str, Any]] = field(default_factory=list)
    rename_columns: dict[str, str] = field(default_factory=dict)
    drop_columns: list[str] = field(default_factory=list)
    widen_columns: dict[str, pa.DataType | str] = field(default_factory=dict)
    comments: dict[str, str | None] = field(default_factory=dict)
    defaults: dict[str, SqlText | None] = field(default_factory=dict)
    drop_not_null: list[str] = field(default_factory=list)
    move_columns: dict[str, str | None] = field(default_factory=dict)
    set_properties: dict[str, str] = field(default_factory=dict)
    unset_properties: list[str] = field(default_factory=list)


def alter_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make all changes of one ALTER TABLE atomically. Raises `InvalidOptionError` for an unsupported change."""
    path = path_of(args, "alter")
    table = connection.table(str(path))
    changes = _Changes()
    for change in _expand_replace_columns(path, args["changes"], table.state):
        if args.get("of_pipeline") and _is_redundant_pipeline_change(change, table.state.primary_key):
            continue
        _collect_change(path, change, changes, args.get("time_zone"), table.state.properties)
    added = StructJson(json.dumps({"type": "struct", "fields": changes.add_columns})) if changes.add_columns else None
    table.alter(**{**vars(changes), "add_columns": added})
    return {}


def can_alter(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return whether the loaded table supports these type changes. If not, WITH SCHEMA EVOLUTION casts the values."""
    path = path_of(args, "alter")
    table, changes = connection.table_by_uuid(str(path), args["uuid"]), _Changes()
    for change in args["changes"]:
        _collect_change(path, change, changes, None, table.state.properties)
    try:
        make_alter_actions(table, table.state, Alteration.of(columns=ColumnChanges.of({}, [], changes.widen_columns)))
    except (InvalidOptionError, SchemaMismatchError):
        return {"can": False}
    return {"can": True}


def _expand_replace_columns(
    path: TablePath, changes: Sequence[Mapping[str, Any]], state: TableState
) -> Sequence[Mapping[str, Any]]:
    """Return the changes that implement REPLACE COLUMNS. Spark sends it as a drop of every column and new columns.

    Columns that the statement lists keep their values. Raises `InvalidOptionError` if it does not list a column.
    """
    dropped = {_column_name(change["path"]) for change in changes if change["change"] == "delete_column"}
    added = [change for change in changes if change["change"] == "add_column"]
    schema = state.schema
    if not added or not dropped >= set(schema.names):
        return changes
    listed = {change["path"][0].casefold() for change in added}
    lost = [name for name in schema.names if name.casefold() not in listed]
    if lost:
        raise InvalidOptionError(
            f"ALTER TABLE {path}: REPLACE COLUMNS would lose the data of {', '.join(lost)}; list every existing "
            "column, and drop or rename columns with DROP COLUMN or RENAME COLUMN"
        )
    expanded: list[Mapping[str, Any]] = []
    for change, previous in zip(added, [None, *added], strict=False):
        column = schema.find(change["path"][0])
        position = "first" if previous is None else {"after": previous["path"][0]}
        if column is None:
            expanded.append({**change, "position": position})
            continue
        target = {"path": [column.name]}
        expanded.append({**target, "change": "update_type", "type": change["type"]})
        expanded.append({**target, "change": "update_comment", "comment": change.get("comment")})
        if change.get("nullable", True) != column.nullable and column.name not in state.primary_key:
            expanded.append({**target, "change": "update_nullability", "nullable": not column.nullable})
        if change.get("default") is not None:
            expanded.append({**target, "change": "update_default", "default": change["default"]})
        expanded.append({**target, "change": "update_position", "position": position})
    return expanded


def _is_redundant_pipeline_change(change: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
    """Return whether the change is a no-op that declarative pipelines request in each run. A run makes primary key
    columns nullable, because inferred columns are nullable, and sets the provider to its current value.
    """
    if change["change"] == "update_nullability":
        keys = {name.casefold() for name in primary_key}
        return bool(change.get("nullable")) and ".".join(change["path"]).casefold() in keys
    return change["change"] == "set_property" and (change["name"], change["value"].lower()) == ("provider", PROVIDER)


def _collect_change(
    path: TablePath, change: Mapping[str, Any], changes: _Changes, time_zone: str | None, properties: Mapping[str, str]
) -> None:
    match change["change"]:
        case "set_property":
            _require_settable(path, change["name"])
            changes.set_properties[change["name"]] = change["value"]
            changes.unset_properties = [name for name in changes.unset_properties if name != change["name"]]
        case "remove_property":
            _require_settable(path, change["name"])
            changes.set_properties.pop(change["name"], None)
            changes.unset_properties.append(change["name"])
        case "add_column":
            changes.add_columns.append(_describe_new_field(path, change))
            if change.get("position") is not None:
                changes.move_columns[_top_level_column(path, change)] = _preceding_column(change["position"])
        case "rename_column":
            changes.rename_columns[_column_name(change["path"])] = change["name"]
        case "delete_column":
            changes.drop_columns.append(_column_name(change["path"]))
        case "update_type":
            changes.widen_columns[_column_name(change["path"])] = _parse_column_type(change["type"])
        case "update_comment":
            changes.comments[_top_level_column(path, change)] = change.get("comment")
        case "update_default":
            sql = change.get("default")
            changes.defaults[_top_level_column(path, change)] = None if sql is None else SqlText(sql, time_zone)
        case "add_constraint" | "drop_constraint":
            _collect_constraint(path, change, changes, properties)
        case _:
            _collect_column_change(path, change, changes)


def _collect_column_change(path: TablePath, change: Mapping[str, Any], changes: _Changes) -> None:
    match change["change"]:
        case "update_nullability":
            name = _top_level_column(path, change)
            if not change.get("nullable"):
                _reject(path, change, _NOT_NULL)
            changes.drop_not_null.append(name)
        case "update_position":
            changes.move_columns[_top_level_column(path, change)] = _preceding_column(change["position"])
        case _:
            _reject(path, change, _SUPPORTED)


def _collect_constraint(
    path: TablePath, change: Mapping[str, Any], changes: _Changes, properties: Mapping[str, str]
) -> None:
    if change["change"] == "drop_constraint":
        key = find_constraint_property(properties, change["text"])
        if key is not None:
            changes.unset_properties.append(key)
        elif not change.get("if_exists"):
            _reject(path, change, "the table has no CHECK constraint of this name; primary keys cannot be dropped")
        return
    if "check" not in change:
        _reject(
            path,
            change,
            "only enforced CHECK constraints can be added; declare NOT NULL and the primary key in CREATE TABLE",
        )
    name, text = change["check"]
    if find_constraint_property(properties, name) is not None:
        raise InvalidOptionError(
            f"ALTER TABLE {path}: the table already has a constraint '{name}'; choose another name, or drop it first"
        )
    changes.set_properties[CONSTRAINT + name] = text


def _require_settable(path: TablePath, name: str) -> None:
    if name in _READ_ONLY_PROPERTIES or name.startswith((*SHOWN_PREFIXES, "option.")):
        raise InvalidOptionError(f"ALTER TABLE {path}: property {name} is read-only; omit it")


def _describe_new_field(path: TablePath, change: Mapping[str, Any]) -> dict[str, Any]:
    *parents, name = change["path"]
    if change.get("default") is not None:
        _reject(path, change, _NEW_DEFAULT)
    comment = change.get("comment")
    return {
        "name": name,
        "type": json.loads(change["type"]),
        "nullable": bool(change.get("nullable", True)),
        "metadata": {} if comment is None else {"comment": comment},
        PARENTS: parents,
    }


def _preceding_column(position: Any) -> str | None:
    """Return the column that precedes the new position; None for FIRST."""
    return None if position == "first" else str(position["after"])


def _parse_column_type(spark_json: str) -> pa.DataType | str:
    """Return the type, or the type's name for CHAR and VARCHAR."""
    name = json.loads(spark_json)
    if isinstance(name, str) and TextLength.parse(name) is not None:
        return name
    fields = [{"name": "column", "type": json.loads(spark_json), "nullable": True, "metadata": {}}]
    (column,) = parse_struct_json({"type": "struct", "fields": fields})
    return column.type


def _column_name(parts: Sequence[str]) -> str:
    """Return the name of a column or nested field, as `Table.alter` takes it."""
    return parts[0] if len(parts) == 1 else join_path(parts)


def _top_level_column(path: TablePath, change: Mapping[str, Any]) -> str:
    if len(change["path"]) != 1:
        _reject(path, change, "nested fields do not support this change; name a top-level column")
    name: str = change["path"][0]
    return name


def _reject(path: TablePath, change: Mapping[str, Any], reason: str) -> NoReturn:
    operation = str(change["change"]).replace("_", " ")
    subject = ".".join(change.get("path") or ()) or change.get("text", "")
    raise InvalidOptionError(
        f"ALTER TABLE {path}: {operation}{f' {subject}' if subject else ''} is not supported: {reason}"
    )


def merge_columns(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Implement ``mergeSchema``: add the new columns of a DataFrame before Spark compares the columns.

    Commit point and errors are those of `frame_schema.merge_columns`.
    """
    table = connection.table(str(path_of(args, "write to")))
    add_columns(table, StructType.fromJson(json.loads(args["schema"])), None)
    return {}


def rename_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename a table, also into another database: ALTER TABLE … RENAME TO."""
    path = path_of(args, "rename")
    target = table_path(args["to_database"], args["to_table"], "rename to")
    warehouse = connection.warehouse()
    require_database(warehouse, target.database)
    if target.database == DEFAULT_DATABASE:
        warehouse.create_database(DEFAULT_DATABASE)
    warehouse.rename_table(str(path), str(target))
    return {}
