"""ALTER TABLE: what can be changed is changed in one record, all else is refused with what to do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from streamhouse_spark.datasource.catalog.arguments import StructJson, path_of, table_path
from streamhouse_spark.datasource.catalog.databases import require_database
from streamhouse_spark.datasource.catalog.table_description import STATUS_PREFIX
from streamhouse_spark.datasource.connection import Connection
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.model import TablePath
from streamhouse_spark.paths import DEFAULT_DATABASE

_COPY = "create a new table with the column as you want it, and insert the rows of this one"
_REFUSED: Final = {
    "rename_column": f"a column keeps its name, because writers and streams find it by it; {_COPY}",
    "delete_column": f"a column stays, because rows that are there have it; leave it out of your queries, or {_COPY}",
    "update_type": f"a column keeps its type, because rows that are there have it; {_COPY}",
    "update_position": f"columns keep their order; name them in the order that you want in your queries, or {_COPY}",
    "update_default": "DEFAULT values are not stored; write the value in the query",
}
_NOT_NULL: Final = f"rows that are there may have null in it; check it in the query, or {_COPY}"
_DROP_NOT_NULL: Final = f"readers rely on its having no null; {_COPY}"
_OF_SPARK: Final = frozenset({"provider", "location", "owner", "external", "is_managed_location", "collation"})


@dataclass
class _Changes:
    """The statement's changes, as `Table.alter` takes them."""

    fields: list[dict[str, Any]] = field(default_factory=list)
    comments: dict[str, str | None] = field(default_factory=dict)
    set_properties: dict[str, str] = field(default_factory=dict)
    unset_properties: list[str] = field(default_factory=list)


def alter_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """All changes of one ALTER TABLE, or none. Raises `InvalidOptionError` for a change that no table takes."""
    path = path_of(args, "alter")
    table = connection.table(str(path))
    changes = _Changes()
    for change in args["changes"]:
        _collect(path, change, changes)
    added = StructJson(json.dumps({"type": "struct", "fields": changes.fields})) if changes.fields else None
    table.alter(
        add_columns=added,
        comments=changes.comments,
        set_properties=changes.set_properties,
        unset_properties=changes.unset_properties,
    )
    return {}


def _collect(path: TablePath, change: Mapping[str, Any], changes: _Changes) -> None:
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
        case "update_comment":
            changes.comments[_column(path, change["path"])] = change.get("comment")
        case "update_nullability":
            _refuse(path, change, _DROP_NOT_NULL if change.get("nullable") else _NOT_NULL)
        case kind:
            _refuse(path, change, _REFUSED.get(kind, "columns can be added, and comments and properties changed"))


def _require_own(path: TablePath, name: str) -> None:
    if name in _OF_SPARK or name.startswith((STATUS_PREFIX, "option.")):
        raise InvalidOptionError(f"ALTER TABLE {path}: {name} is shown of a table and cannot be changed; leave it out")


def _new_field(path: TablePath, change: Mapping[str, Any]) -> dict[str, Any]:
    name = _column(path, change["path"])
    position = change.get("position")
    if position is not None:
        where = "FIRST" if position == "first" else f"AFTER {position['after']}"
        _refuse(
            path, change, f"a new column stands behind all others; leave {where} out, and order columns in the query"
        )
    if change.get("default") is not None:
        _refuse(path, change, "DEFAULT values are not stored; leave it out, and write the value in the query")
    comment = change.get("comment")
    return {
        "name": name,
        "type": json.loads(change["type"]),
        "nullable": bool(change.get("nullable", True)),
        "metadata": {} if comment is None else {"comment": comment},
    }


def _column(path: TablePath, parts: Sequence[str]) -> str:
    if len(parts) != 1:
        raise InvalidOptionError(
            f"ALTER TABLE {path}: {'.'.join(parts)} lies inside the column {parts[0]}, whose type cannot change; add a "
            "column instead"
        )
    return parts[0]


def _refuse(path: TablePath, change: Mapping[str, Any], why: str) -> NoReturn:
    what = str(change["change"]).replace("_", " ")
    column = ".".join(change.get("path") or ())
    raise InvalidOptionError(f"ALTER TABLE {path}: {what}{f' {column}' if column else ''} is not possible: {why}")


def rename_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """ALTER TABLE … RENAME TO, also into another database."""
    path = path_of(args, "rename")
    target = table_path(args["to_database"], args["to_table"], "rename to")
    warehouse = connection.warehouse()
    require_database(warehouse, target.database)
    if target.database == DEFAULT_DATABASE:
        warehouse.create_database(DEFAULT_DATABASE)
    warehouse.rename_table(str(path), str(target))
    return {}
