"""The statements that tell the values of groups: those that changed, and the first and the last ones of all. Pure."""

from __future__ import annotations

from typing import Final

from streamhouse_spark.zset.added import Added
from streamhouse_spark.zset.aggregates import Aggregate
from streamhouse_spark.zset.plan import Group
from streamhouse_spark.zset.statements import KEY, hashed
from streamhouse_spark.zset.writer import WEIGHT, Writer, gathered, quoted

VALUE: Final = "__streamhouse_value"
NUMBER: Final = "__streamhouse_number"
"""How many rows of the group have the value; of changes how many came, less those that went."""
ROWS: Final = "__streamhouse_all"
"""How many rows the group has."""
FILLED: Final = "__streamhouse_filled"
"""How many rows of the group have a value that is not null."""
FIRST: Final = "__streamhouse_first"
"""Whether it is the row of its group that has the key."""
CHANGES_MAX: Final = 1_000_000
"""Values that changed in one refresh, for the driver to take them. One more tells that there are too many."""
_PLACE: Final = "__streamhouse_place"
_DISTINCT: Final = "__streamhouse_distinct"


def key_name(column: str) -> str:
    """Return the name that a key column of the view's table has beside the group's own columns."""
    return f"__streamhouse_key_{column}"


def changed_values(added: Added, part: Aggregate, writer: Writer, *, one_task: bool = False) -> str | None:
    """Return the values of an aggregate that came or went, with their `NUMBER` of rows, and the key of the view's row,
    as its table names it; None if nothing changed.
    """
    root = added.root
    delta = writer.delta(root.child)
    if delta is None:
        return None
    columns = _columns(root, VALUE)
    rows = f"SELECT {_columns(root, f'{part.of} AS {VALUE}', WEIGHT)} FROM ({gathered(delta, one_task=one_task)}) q"
    net = f"SUM({WEIGHT})"
    net_rows = f"SELECT {columns}, {net} AS {NUMBER} FROM ({rows}) q GROUP BY {columns} HAVING {net} <> 0"
    key = ", ".join(f"{value} AS {quoted(name)}" for name, value in _key(added).items())
    return f"SELECT {key}, {VALUE}, {NUMBER} FROM ({net_rows}) q LIMIT {CHANGES_MAX + 1}"


def first_values(added: Added, part: Aggregate, rows: str, room: int) -> str:
    """Return the first and the last ``room`` distinct values of an aggregate in each group of some rows, each with the
    `NUMBER` of its rows, the group, its `ROWS` and `FILLED`. A null is a value here, so each group is there.
    """
    root = added.root
    columns = _columns(root, VALUE)
    values = f"SELECT {_columns(root, f'{part.of} AS {VALUE}')} FROM ({rows}) q"
    counted = f"SELECT {columns}, COUNT(*) AS {NUMBER} FROM ({values}) q GROUP BY {columns}"
    group = f"PARTITION BY {', '.join(root.groups)} " if root.groups else ""
    found = [
        f"ROW_NUMBER() OVER ({group}ORDER BY {VALUE} NULLS LAST) AS {_PLACE}",
        f"COUNT({VALUE}) OVER ({group}) AS {_DISTINCT}",
        f"SUM({NUMBER}) OVER ({group}) AS {ROWS}",
        f"SUM(IF({VALUE} IS NULL, 0L, {NUMBER})) OVER ({group}) AS {FILLED}",
    ]
    numbered = f"SELECT *, {', '.join(found)} FROM ({counted}) q"
    has_room = f"{VALUE} IS NULL OR {_PLACE} <= {room} OR {_PLACE} > {_DISTINCT} - {room}"
    return f"SELECT {columns}, {NUMBER}, {_PLACE}, {ROWS}, {FILLED} FROM ({numbered}) q WHERE {has_room}"


def listed_values(added: Added, first: str, part: int = 0, num_parts: int = 1) -> str:
    """Return the rows of `first_values`, with the keys of the view's rows in that row of each group that is its
    `FIRST`: a hash costs more than all else. Of several parts it is the one of this number.
    """
    root = added.root
    is_first = f"{_PLACE} = 1"
    keys = [f"IF({is_first}, {value}, NULL) AS {quoted(key_name(name))}" for name, value in _key(added).items()]
    columns = _columns(root, VALUE, NUMBER, ROWS, FILLED, f"{is_first} AS {FIRST}", *keys)
    has_parts = num_parts > 1 and root.groups
    where = f" WHERE pmod(hash({', '.join(root.groups)}), {num_parts}) = {part}" if has_parts else ""
    return f"SELECT {columns} FROM ({first}) q{where}"


def _columns(root: Group, *more: str) -> str:
    return ", ".join([*root.groups, *more])


def _key(added: Added) -> dict[str, str]:
    """Key column of the view's table → its value, over the columns that rows are grouped by."""
    if added.statements.identity == "hash":
        return {KEY: hashed(added.groups, added.statements.types)}
    return added.key_columns
