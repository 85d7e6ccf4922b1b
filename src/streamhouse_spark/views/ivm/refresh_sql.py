"""SQL statements of a refresh: the rows to write into a view's table, and the keys to delete.

Each statement returns the columns of the view's table, and `IS_DELETED`: whether the row's key is deleted, or the row
is written.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import is_beyond_python
from streamhouse_spark.views.ivm.delta_sql import (
    WEIGHT,
    DeltaSqlWriter,
    coalesce_tasks,
    list_columns,
    null_safe_equal,
    quote_name,
)
from streamhouse_spark.views.ivm.logical_plan import Group, Node, UnsupportedQueryError

IS_DELETED: Final = "__streamhouse_deleted"
KEY: Final = "_key"
ORDINAL: Final = "_ord"
COUNT: Final = "__streamhouse_count"
"""The number of equal rows in the view."""
_EXISTS: Final = "__streamhouse_there"
Identity = Literal["natural", "hash", "bag"]
"""The key of a row in the view's table: key columns of the query, a hash of them, or for a bag of rows a hash of all
columns and an ordinal.
"""
_PLAIN_KEYS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date"})
_FLOATS: Final = re.compile(r"\b(?:float|double)\b")
_HASHED: Final = frozenset({"boolean", "timestamp_ntz", "float", "double", *_PLAIN_KEYS})
_NESTED: Final = ("array<", "struct<", "map<")
_JSON_OPTIONS: Final = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSSXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
)
VALUES_MAX: Final = 1_000
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9 _.:/@+-]*")


def choose_identity(root: Node, types: Mapping[str, str]) -> Identity:
    """Return how the rows of a plan are identified. ``types`` maps columns of the plan to Spark's types."""
    if root.key and all(name in root.not_null and types[name] in _PLAIN_KEYS for name in root.key):
        return "natural"
    return "hash" if isinstance(root, Group) or root.key is not None else "bag"


def hash_sql(
    columns: Sequence[str],
    types: Mapping[str, str],
    of: str = "",
    *,
    is_exact: bool = False,
    takes_nested: bool = False,
) -> str:
    """Return SQL of a hash over an injective encoding of columns: length-prefixed texts, and a marker for NULL.

    Hashes are equal if and only if Spark's GROUP BY puts the rows into one group. With ``is_exact``, -0.0 and 0.0 have
    different hashes. ``takes_nested`` supports nested columns as JSON, which may differ for equal maps. Raises
    `UnsupportedQueryError` for a type whose equal values have different texts.
    """
    parts = []
    for name in columns:
        kind, value = types[name], f"{of}{name}"
        if kind in ("float", "double") and not is_exact:
            text = f"CAST({value} + CAST(0 AS {kind}) AS STRING)"  # -0.0 becomes 0.0
        elif kind == "timestamp":  # a local time occurs twice when daylight saving time ends
            text = f"CAST(unix_micros({value}) AS STRING)"
        elif kind == "binary":
            text = f"hex({value})"
        elif kind in _HASHED or kind.startswith("decimal"):
            text = f"CAST({value} AS STRING)"
        elif takes_nested and kind.startswith(_NESTED):
            text = _json_sql(value)
        else:
            raise UnsupportedQueryError("a column whose type cannot be part of a key", f"{name} of type {kind}")
        parts.append(f"CASE WHEN {value} IS NULL THEN 'n' ELSE concat(length({text}), ':', {text}) END")
    return f"sha2(concat({', '.join(parts)}), 256)" if parts else "sha2('', 256)"


def _json_sql(value: str) -> str:
    return f"to_json({value}, {_JSON_OPTIONS})"


@dataclass(frozen=True, slots=True)
class RefreshStatements:
    """The refresh statements of a view."""

    root: Node
    names: tuple[str, ...]
    """The columns of the query, as Spark names them."""
    types: Mapping[str, str]
    """Column of the plan → Spark's type, for columns and grouping columns of ``root``."""
    identity: Identity
    is_whole: bool = False
    """Whether every refresh computes the full query. Then the key of a row may change between refreshes."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The primary key of the view's table."""
        if self.identity == "natural":
            shown = dict(zip(self.root.columns, self.names, strict=True))
            return tuple(shown[name] for name in self.root.key or ())
        return (KEY, ORDINAL) if self.identity == "bag" else (KEY,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the view's table."""
        return self.names if self.identity == "natural" else (*self.key_columns, *self.names)

    def full_sql(self, writer: DeltaSqlWriter) -> str:
        """Return SQL of the full result at the new source versions, with keys."""
        rows, root = writer.rows(self.root, "new"), self.root
        if self.identity == "natural":
            return f"SELECT {self._select_list()} FROM ({rows}) q"
        if self.identity == "hash" and isinstance(root, Group):
            key = f"{hash_sql(root.groups, self.types)} AS {KEY}"
            rows = writer.groups(root, writer.rows(root.child, "new"), key)
            return f"SELECT {KEY}, {self._select_list()} FROM ({rows}) q"
        if self.identity == "hash":
            return f"SELECT {hash_sql(root.key or (), self.types)} AS {KEY}, {self._select_list()} FROM ({rows}) q"
        return self.keyed_rows_sql(rows)

    def keyed_rows_sql(self, rows: str) -> str:
        """Return SQL of rows of the view, with a key over all columns. ``rows`` is SQL of rows of the plan."""
        key = hash_sql(self.root.columns, self.types, is_exact=True, takes_nested=self.is_whole)
        number = f"CAST(row_number() OVER (PARTITION BY {key} ORDER BY {key}) AS BIGINT)"
        return f"SELECT {key} AS {KEY}, {number} AS {ORDINAL}, {self._select_list()} FROM ({rows}) q"

    def difference_sql(self, whole: str, view: str) -> str:
        """Return SQL of the changes from the relation ``view``, the view's rows, to the result of the SQL ``whole``."""
        on = " AND ".join(f"n.{quote_name(c)} = v.{quote_name(c)}" for c in self.key_columns)
        shown = [
            f"coalesce(n.{quote_name(c)}, v.{quote_name(c)}) AS {quote_name(c)}"
            if c in self.key_columns
            else f"n.{quote_name(c)}"
            for c in self.columns
        ]
        shown_as = dict(zip(self.root.columns, self.names, strict=True))
        floats = [quote_name(shown_as[name]) for name in self._float_columns()]
        maps = {shown_as[name] for name in self.root.columns if "map<" in self.types[name]}  # Spark cannot compare maps

        def row(of: str) -> str:
            values = {name: f"{of}.{quote_name(name)}" for name in self.columns}
            columns = [_json_sql(value) if name in maps else value for name, value in values.items()]
            return f"struct({', '.join([*columns, *(f'CAST({of}.{name} AS STRING)' for name in floats)])})"

        differs = f"n.{_EXISTS} IS NULL OR v.{_EXISTS} IS NULL OR NOT ({row('n')} <=> {row('v')})"
        marked = f"SELECT *, TRUE AS {_EXISTS} FROM"
        return (
            f"SELECT {', '.join(shown)}, n.{_EXISTS} IS NULL AS {IS_DELETED} FROM ({marked} ({whole})) n "
            f"FULL JOIN ({marked} {view}) v ON {on} WHERE {differs}"
        )

    def touched_rows_sql(self, writer: DeltaSqlWriter, touched: str, condition: str = "") -> str:
        """Return SQL of the input rows of the groups in the relation ``touched``, at the new versions.

        ``condition`` holds for all these rows, and prunes files.
        """
        assert isinstance(self.root, Group)
        return writer.rows_of_groups(self.root, "new", f"SELECT * FROM {touched}", condition)

    def touched_groups_sql(self, writer: DeltaSqlWriter, touched: str, rows: str) -> str:
        """Return SQL of the new rows of the groups in the relation ``touched``, and of keys of groups that became
        empty.

        ``rows`` is the SQL of `touched_rows_sql`.
        """
        root = self.root
        assert isinstance(root, Group)
        group_rows = writer.groups(root, rows, *root.groups)
        inner = f"SELECT {', '.join([*root.groups, *root.columns])}, TRUE AS {_EXISTS} FROM ({group_rows}) q"
        of_group = {name: e.name for name, e in root.exprs.items() if name in (root.key or ())}
        shown = [
            f"{'t.' + of_group[column] if column in of_group else 'n.' + column} AS {quote_name(name)}"
            for column, name in zip(root.columns, self.names, strict=True)
        ]
        if self.identity == "hash":
            shown.insert(0, f"{hash_sql(root.groups, self.types, 't.')} AS {KEY}")
        on = null_safe_equal(root.groups, "t", "n")
        return (
            f"SELECT {', '.join(shown)}, n.{_EXISTS} IS NULL AS {IS_DELETED} "
            f"FROM {touched} t LEFT JOIN ({inner}) n ON {on}"
        )

    def delta_sql(self, writer: DeltaSqlWriter, *, one_task: bool = False) -> str:
        """Return SQL of the changed rows, for a plan that has a key and whose root is not a GROUP BY.

        ``one_task`` avoids a shuffle, which is cheaper for few rows.
        """
        net = self._net_sql(writer, one_task=one_task)
        key = ""
        if self.identity != "natural":
            key = f"{hash_sql(self.root.key or (), self.types, is_exact=True)} AS {KEY}, "
        # A row of weight 2 is written twice, so that a key that is not unique fails instead of silently losing a row.
        each = f"SELECT *, explode(sequence(1, CAST(abs({WEIGHT}) AS INT))) AS {_EXISTS} FROM ({net}) q"
        return f"SELECT {key}{self._select_list()}, {WEIGHT} < 0 AS {IS_DELETED} FROM ({each}) q"

    def bag_net_sql(self, writer: DeltaSqlWriter, *, one_task: bool = False) -> str:
        """Return SQL of the inserted and deleted rows with weights and `KEY`, for a plan that may have equal rows."""
        net = self._net_sql(writer, one_task=one_task)
        return f"SELECT *, {hash_sql(self.root.columns, self.types, is_exact=True)} AS {KEY} FROM ({net}) q"

    def bag_delta_sql(self, net: str, counts: str) -> str:
        """Return SQL of the changes of a bag. Inserts get ordinals after the existing ordinals, deletes remove the last
        ones.

        ``net`` is SQL of rows of `bag_net_sql`, and ``counts`` SQL of the `COUNT` of each `KEY` in the view.
        """
        old_count = f"COALESCE(v.{COUNT}, 0L)"
        first = f"CASE WHEN d.{WEIGHT} > 0 THEN {old_count} + 1 ELSE {old_count} + d.{WEIGHT} + 1 END"
        last = f"CASE WHEN d.{WEIGHT} > 0 THEN {old_count} + d.{WEIGHT} ELSE {old_count} END"
        joined = (
            f"SELECT d.*, explode(sequence({first}, {last})) AS {ORDINAL} FROM ({net}) d "
            f"LEFT JOIN ({counts}) v ON d.{KEY} = v.{KEY}"
        )
        return f"SELECT {KEY}, {ORDINAL}, {self._select_list()}, {WEIGHT} < 0 AS {IS_DELETED} FROM ({joined}) q"

    def _net_sql(self, writer: DeltaSqlWriter, *, one_task: bool) -> str:
        """Return SQL of the changes, with the sum of the weights of equal rows. -0.0 and 0.0 are different rows."""
        columns, delta = self.root.columns, writer.delta(self.root)
        assert delta is not None
        rows, total = coalesce_tasks(delta, one_task=one_task), f"SUM({WEIGHT})"
        floats = self._float_columns()
        shown = list_columns([f"first({name}) AS {name}" if name in floats else name for name in columns])
        groups = list_columns([*columns, *(f"CAST({name} AS STRING)" for name in floats)])
        return f"SELECT {shown}, {total} AS {WEIGHT} FROM ({rows}) q GROUP BY {groups} HAVING {total} <> 0"

    def _float_columns(self) -> list[str]:
        """Return the columns of the plan that may contain -0.0, which is equal to 0.0 in SQL."""
        return [name for name in self.root.columns if _FLOATS.search(self.types[name])]

    def _select_list(self) -> str:
        return ", ".join(f"{c} AS {quote_name(n)}" for c, n in zip(self.root.columns, self.names, strict=True))


def build_filter(rows: pa.Table) -> str:
    """Return an SQL condition that holds for all rows, or an empty text if no condition can be built.

    The condition lists the values of each column, or for many values their range.
    """
    conditions = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        values = column.unique()
        if not is_beyond_python(values):
            conditions.append(
                in_filter(name, values.to_pylist()) if len(values) <= VALUES_MAX else _between_filter(name, values)
            )
    return " AND ".join(filter(None, conditions))


def _between_filter(column: str, values: pa.Array) -> str:
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        return ""
    ends = pc.min_max(values).as_py()
    least, greatest = _literal(ends["min"]), _literal(ends["max"])
    if least is None or greatest is None:
        return ""
    return f"({column} BETWEEN {least} AND {greatest}{f' OR {column} IS NULL' if values.null_count else ''})"


def in_filter(column: str, values: Sequence[object]) -> str:
    """Return the condition as SQL, or an empty text if there are too many values, or a value has no simple literal."""
    if len(values) > VALUES_MAX:
        return ""
    literals = [_literal(value) for value in values if value is not None]
    if None in literals:
        return ""
    parts = [f"{column} IN ({', '.join(map(str, literals))})"] if literals else []
    if len(literals) < len(values):
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})" if parts else ""


def _literal(value: object) -> str | None:
    if type(value) is int:
        return str(value)
    if type(value) is dt.date:
        return f"DATE'{value:%Y-%m-%d}'" if value.year > 999 else None
    return f"'{value}'" if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) else None
