"""ALTER TABLE: possible changes are made in one record, all others are refused with a remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.types import StructType

from streamhouse_spark.core.model import TablePath
from streamhouse_spark.core.paths import DEFAULT_DATABASE
from streamhouse_spark.core.text_size import TextSize
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.catalog.arguments import StructJson, path_of, table_path
from streamhouse_spark.datasource.catalog.ddl.databases import require_database
from streamhouse_spark.datasource.catalog.description import PROVIDER, SHOWN_PREFIXES
from streamhouse_spark.datasource.write.schema_merging import merge_columns as add_columns
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.checks.check import CONSTRAINT, stored_key
from streamhouse_spark.schema.ddl import PARENTS, parse_struct_json
from streamhouse_spark.schema.defaults import SqlText
from streamhouse_spark.schema.inner_fields import joined_path
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.warehouse.connection import Connection

_COPY = "create a new table with the column as you want it, and insert the rows of this one"
_REFUSED: Final = {
    "update_position": f"columns keep their order; name them in the order that you want in your queries, or {_COPY}",
}
_POSSIBLE: Final = "columns can be added, renamed, dropped and widened, comments, defaults and properties changed"
_NEW_DEFAULT: Final = (
    "DEFAULT of a new column would be the value of the rows that are there too, which other engines that read the lake "
    "cannot be told; leave it out, and give the column its default for new rows by ALTER COLUMN … SET DEFAULT"
)
_NOT_NULL: Final = f"rows that are there may have null in it; check it in the query, or {_COPY}"
_DROP_NOT_NULL: Final = f"readers rely on its having no null; {_COPY}"
_OF_SPARK: Final = frozenset({"provider", "location", "owner", "external", "is_managed_location", "collation"})


@dataclass
class _Changes:
    """The statement's changes, in the form of `Table.alter`."""

    fields: list[dict[str, Any]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    widened: dict[str, pa.DataType | str] = field(default_factory=dict)
    comments: dict[str, str | None] = field(default_factory=dict)
    defaults: dict[str, SqlText | None] = field(default_factory=dict)
    set_properties: dict[str, str] = field(default_factory=dict)
    unset_properties: list[str] = field(default_factory=list)


def alter_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make all changes of one ALTER TABLE, or none. Raises `InvalidOptionError` for a change that no table takes."""
    path = path_of(args, "alter")
    table = connection.table(str(path))
    _refuse_replacing(path, args["changes"], table.state.schema)
    changes = _Changes()
    for change in args["changes"]:
        if args.get("of_pipeline") and _is_of_spark(change, table.state.primary_key):
            continue
        _collect(path, change, changes, args.get("time_zone"), table.state.properties)
    added = StructJson(json.dumps({"type": "struct", "fields": changes.fields})) if changes.fields else None
    table.alter(
        add_columns=added,
        comments=changes.comments,
        set_properties=changes.set_properties,
        unset_properties=changes.unset_properties,
        rename_columns=changes.renamed,
        drop_columns=changes.dropped,
        widen_columns=changes.widened,
        defaults=changes.defaults,
    )
    return {}


def _refuse_replacing(path: TablePath, changes: Sequence[Mapping[str, Any]], schema: TableSchema) -> None:
    """Refuse REPLACE COLUMNS, which arrives as dropping each column and adding others: the rows would lose all
    values.
    """
    dropped = {_column(change["path"]) for change in changes if change["change"] == "delete_column"}
    if dropped >= set(schema.names) and any(change["change"] == "add_column" for change in changes):
        raise InvalidOptionError(
            f"ALTER TABLE {path}: REPLACE COLUMNS would drop every column and add new ones, null in all rows; say what "
            "changes by ADD COLUMNS, DROP COLUMN, RENAME COLUMN and ALTER COLUMN"
        )


def _is_of_spark(change: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
    """Tell whether a declarative pipeline asks for a ``change`` in each of its runs, and nobody wants it: that columns
    of the primary key take null, because inferred columns do, or that the provider be what it is.
    """
    if change["change"] == "update_nullability":
        keys = {name.casefold() for name in primary_key}
        return bool(change.get("nullable")) and ".".join(change["path"]).casefold() in keys
    return change["change"] == "set_property" and (change["name"], change["value"].lower()) == ("provider", PROVIDER)


def _collect(
    path: TablePath, change: Mapping[str, Any], changes: _Changes, time_zone: str | None, properties: Mapping[str, str]
) -> None:
    match change["change"]:
        case "set_property":
            _require_own(path, change["name"])
            changes.set_properties[change["name"]] = change["value"]
            changes.unset_properties = [name for name in changes.unset_properties if name != change["name"]]
        case "remove_property":
            _require_own(path, change["name"])
            changes.set_properties.pop(change["name"], None)
            changes.unset_properties.append(change["name"])
        case "add_column":
            changes.fields.append(_new_field(path, change))
        case "rename_column":
            changes.renamed[_column(change["path"])] = change["name"]
        case "delete_column":
            changes.dropped.append(_column(change["path"]))
        case "update_type":
            changes.widened[_column(change["path"])] = _type(change["type"])
        case "update_comment":
            changes.comments[_whole_column(path, change)] = change.get("comment")
        case "update_default":
            sql = change.get("default")
            changes.defaults[_whole_column(path, change)] = None if sql is None else SqlText(sql, time_zone)
        case "add_constraint" | "drop_constraint":
            _collect_constraint(path, change, changes, properties)
        case "update_nullability":
            _refuse(path, change, _DROP_NOT_NULL if change.get("nullable") else _NOT_NULL)
        case kind:
            _refuse(path, change, _REFUSED.get(kind, _POSSIBLE))


def _collect_constraint(
    path: TablePath, change: Mapping[str, Any], changes: _Changes, properties: Mapping[str, str]
) -> None:
    if change["change"] == "add_constraint":
        name, text = _check_of(path, change, properties)
        changes.set_properties[name] = text
        return
    key = stored_key(properties, change["text"])
    if key is not None:
        changes.unset_properties.append(key)
    elif not change.get("if_exists"):
        _refuse(path, change, "the table has no CHECK constraint of this name, and keeps its primary key")


def _check_of(path: TablePath, change: Mapping[str, Any], properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the property of a new CHECK constraint. Raises `InvalidOptionError` for another, or a name that is
    taken.
    """
    if "check" not in change:
        _refuse(
            path,
            change,
            "a table checks NOT NULL and its primary key, which CREATE TABLE says, and CHECK constraints that are "
            "enforced; leave it out",
        )
    name, text = change["check"]
    if stored_key(properties, name) is not None:
        raise InvalidOptionError(
            f"ALTER TABLE {path}: it has a constraint '{name}' already; choose another name, or drop it first"
        )
    return CONSTRAINT + name, text


def _require_own(path: TablePath, name: str) -> None:
    if name in _OF_SPARK or name.startswith((*SHOWN_PREFIXES, "option.")):
        raise InvalidOptionError(f"ALTER TABLE {path}: {name} is shown of a table and cannot be changed; leave it out")


def _new_field(path: TablePath, change: Mapping[str, Any]) -> dict[str, Any]:
    *parents, name = change["path"]
    position = change.get("position")
    if position is not None:
        where = "FIRST" if position == "first" else f"AFTER {position['after']}"
        _refuse(
            path,
            change,
            f"what is new stands behind all others; leave {where} out, and name columns and fields in the query",
        )
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


def _type(spark_json: str) -> pa.DataType | str:
    """Return the type; for a text with a length the type's name."""
    name = json.loads(spark_json)
    if isinstance(name, str) and TextSize.parse(name) is not None:
        return name
    fields = [{"name": "column", "type": json.loads(spark_json), "nullable": True, "metadata": {}}]
    (column,) = parse_struct_json({"type": "struct", "fields": fields})
    return column.type


def _column(parts: Sequence[str]) -> str:
    """Return the name by which `Table.alter` takes a column, or a field inside one."""
    return parts[0] if len(parts) == 1 else joined_path(parts)


def _whole_column(path: TablePath, change: Mapping[str, Any]) -> str:
    if len(change["path"]) != 1:
        _refuse(path, change, "only whole columns can have that; leave it out")
    name: str = change["path"][0]
    return name


def _refuse(path: TablePath, change: Mapping[str, Any], why: str) -> NoReturn:
    what = str(change["change"]).replace("_", " ")
    subject = ".".join(change.get("path") or ()) or change.get("text", "")
    raise InvalidOptionError(f"ALTER TABLE {path}: {what}{f' {subject}' if subject else ''} is not possible: {why}")


def merge_columns(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the columns of a frame that the table lacks, before Spark compares the columns: ``mergeSchema``.

    Raises as `schema_merging.merge_columns`, which names the commit point.
    """
    table = connection.table(str(path_of(args, "write to")))
    add_columns(table, StructType.fromJson(json.loads(args["schema"])), None)
    return {}


def rename_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename a table: ALTER TABLE … RENAME TO, also into another database."""
    path = path_of(args, "rename")
    target = table_path(args["to_database"], args["to_table"], "rename to")
    warehouse = connection.warehouse()
    require_database(warehouse, target.database)
    if target.database == DEFAULT_DATABASE:
        warehouse.create_database(DEFAULT_DATABASE)
    warehouse.rename_table(str(path), str(target))
    return {}
