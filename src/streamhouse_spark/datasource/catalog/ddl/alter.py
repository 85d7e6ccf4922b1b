"""ALTER TABLE: supported changes are made in one record, all others are rejected with a remedy."""

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
from streamhouse_spark.schema.ddl import PARENTS, TextSize, parse_struct_json
from streamhouse_spark.schema.defaults import SqlText
from streamhouse_spark.schema.nested_fields import join_path
from streamhouse_spark.table.alter import make_alter_actions
from streamhouse_spark.warehouse.process_cache import Connection

_COPY = "create a new table with the column as you want it, and insert the rows of this one"
_POSSIBLE: Final = (
    "columns can be added, renamed, dropped, widened and moved, NOT NULL dropped, comments, defaults and properties "
    "changed"
)
_NEW_DEFAULT: Final = (
    "DEFAULT of a new column would be the value of the rows that are there too, which other engines that read the lake "
    "cannot be told; leave it out, and give the column its default for new rows by ALTER COLUMN … SET DEFAULT"
)
_NOT_NULL: Final = f"rows that are there may have null in it; check it in the query, or {_COPY}"
_OF_SPARK: Final = frozenset({"provider", "location", "owner", "external", "is_managed_location", "collation"})


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
    """Answer whether the loaded table supports these type changes: otherwise WITH SCHEMA EVOLUTION casts the values."""
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
    """Return the changes that REPLACE COLUMNS means. Spark sends it as dropping every column and adding others.

    Columns of the same name stay, with their values. Raises `InvalidOptionError` if a column would be lost.
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
            f"ALTER TABLE {path}: REPLACE COLUMNS would lose the data of {', '.join(lost)}; list every column that "
            "is there, and drop or rename columns by DROP COLUMN and RENAME COLUMN"
        )
    meant: list[Mapping[str, Any]] = []
    for change, previous in zip(added, [None, *added], strict=False):
        column = schema.find(change["path"][0])
        position = "first" if previous is None else {"after": previous["path"][0]}
        if column is None:
            meant.append({**change, "position": position})
            continue
        of_column = {"path": [column.name]}
        meant.append({**of_column, "change": "update_type", "type": change["type"]})
        meant.append({**of_column, "change": "update_comment", "comment": change.get("comment")})
        if change.get("nullable", True) != column.nullable and column.name not in state.primary_key:
            meant.append({**of_column, "change": "update_nullability", "nullable": not column.nullable})
        if change.get("default") is not None:
            meant.append({**of_column, "change": "update_default", "default": change["default"]})
        meant.append({**of_column, "change": "update_position", "position": position})
    return meant


def _is_redundant_pipeline_change(change: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
    """Return whether a declarative pipeline requests a no-op that it sends in each run: primary key columns become
    nullable, because inferred columns are, or the provider is set to what it is.
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
                changes.move_columns[_top_level_column(path, change)] = _column_before(change["position"])
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
                _refuse(path, change, _NOT_NULL)
            changes.drop_not_null.append(name)
        case "update_position":
            changes.move_columns[_top_level_column(path, change)] = _column_before(change["position"])
        case _:
            _refuse(path, change, _POSSIBLE)


def _collect_constraint(
    path: TablePath, change: Mapping[str, Any], changes: _Changes, properties: Mapping[str, str]
) -> None:
    if change["change"] == "add_constraint":
        name, text = _parse_check(path, change, properties)
        changes.set_properties[name] = text
        return
    key = find_constraint_property(properties, change["text"])
    if key is not None:
        changes.unset_properties.append(key)
    elif not change.get("if_exists"):
        _refuse(path, change, "the table has no CHECK constraint of this name, and keeps its primary key")


def _parse_check(path: TablePath, change: Mapping[str, Any], properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the property of a new CHECK constraint. Raises `InvalidOptionError` for another constraint or a used
    name.
    """
    if "check" not in change:
        _refuse(
            path,
            change,
            "a table checks NOT NULL and its primary key, which CREATE TABLE says, and CHECK constraints that are "
            "enforced; leave it out",
        )
    name, text = change["check"]
    if find_constraint_property(properties, name) is not None:
        raise InvalidOptionError(
            f"ALTER TABLE {path}: it has a constraint '{name}' already; choose another name, or drop it first"
        )
    return CONSTRAINT + name, text


def _require_settable(path: TablePath, name: str) -> None:
    if name in _OF_SPARK or name.startswith((*SHOWN_PREFIXES, "option.")):
        raise InvalidOptionError(f"ALTER TABLE {path}: {name} is read-only and cannot be changed; leave it out")


def _describe_new_field(path: TablePath, change: Mapping[str, Any]) -> dict[str, Any]:
    *parents, name = change["path"]
    if change.get("default") is not None:
        _refuse(path, change, _NEW_DEFAULT)
    comment = change.get("comment")
    return {
        "name": name,
        "type": json.loads(change["type"]),
        "nullable": bool(change.get("nullable", True)),
        "metadata": {} if comment is None else {"comment": comment},
        PARENTS: parents,
    }


def _column_before(position: Any) -> str | None:
    """Return the column after which another one moves; None for FIRST."""
    return None if position == "first" else str(position["after"])


def _parse_column_type(spark_json: str) -> pa.DataType | str:
    """Return the type, or the type's name for CHAR and VARCHAR."""
    name = json.loads(spark_json)
    if isinstance(name, str) and TextSize.parse(name) is not None:
        return name
    fields = [{"name": "column", "type": json.loads(spark_json), "nullable": True, "metadata": {}}]
    (column,) = parse_struct_json({"type": "struct", "fields": fields})
    return column.type


def _column_name(parts: Sequence[str]) -> str:
    """Return the name of a column or nested field, as `Table.alter` takes it."""
    return parts[0] if len(parts) == 1 else join_path(parts)


def _top_level_column(path: TablePath, change: Mapping[str, Any]) -> str:
    if len(change["path"]) != 1:
        _refuse(path, change, "only whole columns can have that; leave it out")
    name: str = change["path"][0]
    return name


def _refuse(path: TablePath, change: Mapping[str, Any], reason: str) -> NoReturn:
    operation = str(change["change"]).replace("_", " ")
    subject = ".".join(change.get("path") or ()) or change.get("text", "")
    raise InvalidOptionError(
        f"ALTER TABLE {path}: {operation}{f' {subject}' if subject else ''} is not possible: {reason}"
    )


def merge_columns(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the new columns of a frame before Spark compares the columns: ``mergeSchema``.

    Raises as `frame_schema.merge_columns`, which names the commit point.
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
