"""SQL that lists the values of groups: changed values, and the input and output of `FirstValues`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse_spark.views.ivm.aggregate_functions import Aggregate
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, Writer, coalesce_tasks, null_safe_equal, quote_name
from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
from streamhouse_spark.views.ivm.logical_plan import Group
from streamhouse_spark.views.ivm.refresh_sql import KEY, hash_sql
from streamhouse_spark.views.ivm.top_k import ALL_ROWS, LIST, NUMBER

VALUE: Final = "__streamhouse_value"
CHANGES_MAX: Final = 1_000_000
"""Largest number of changed values per refresh for the driver to read. The statement returns one more to detect
excess."""
_LOST: Final = "__streamhouse_lost"


def key_name(column: str) -> str:
    """Return the name of a key column of the view's table, next to the grouping columns."""
    return f"__streamhouse_key_{column}"


def value_names(incremental: IncrementalAggregate) -> dict[str, str]:
    """Return aggregate argument → the name of its column, in list order."""
    of = dict.fromkeys(part.of for part in incremental.multiset_aggregates)
    return {argument: f"__streamhouse_value_{number}" for number, argument in enumerate(of)}


def whole_names(incremental: IncrementalAggregate) -> list[str]:
    """Return the columns whose values are all needed, as far as there is room."""
    names = value_names(incremental)
    return [
        names[of]
        for of in dict.fromkeys(part.of for part in incremental.multiset_aggregates if part.kind == "distinct")
    ]


def changed_values_sql(
    incremental: IncrementalAggregate, part: Aggregate, writer: Writer, *, one_task: bool = False
) -> str | None:
    """Return the SQL of an aggregate's changed values with their `NUMBER` of rows; None if nothing changed.

    The rows also have the key of the view's row, named as in its table.
    """
    root = incremental.root
    delta = writer.delta(root.child)
    if delta is None:
        return None
    columns = _column_list(root, VALUE)
    values = _column_list(root, f"{part.of} AS {VALUE}", WEIGHT)
    rows = f"SELECT {values} FROM ({coalesce_tasks(delta, one_task=one_task)}) q"
    net = f"SUM({WEIGHT})"
    net_rows = f"SELECT {columns}, {net} AS {NUMBER} FROM ({rows}) q GROUP BY {columns} HAVING {net} <> 0"
    key = ", ".join(f"{value} AS {quote_name(name)}" for name, value in _key_values(incremental).items())
    return f"SELECT {key}, {VALUE}, {NUMBER} FROM ({net_rows}) q LIMIT {CHANGES_MAX + 1}"


def values_sql(incremental: IncrementalAggregate, rows: str) -> str:
    """Return the columns that `FirstValues` reads, for rows below the groups. Equal groups have equal Arrow values."""
    types = incremental.statements.types
    groups = [f"{_canonical_sql(name, types)} AS {name}" for name in incremental.groups]
    values = [f"{of} AS {name}" for of, name in value_names(incremental).items()]
    return f"SELECT {', '.join([*groups, *values])} FROM ({rows}) q"


def share_sql(incremental: IncrementalAggregate, rows: str, lost: str, like: str, num_shares: int) -> str:
    """Return the rows of groups in ``lost``, and of all groups in the same share as the one group in ``like``.

    Groups are divided into ``num_shares`` shares by hash, a power of two.
    """
    groups, types = incremental.groups, incremental.statements.types
    share = f"(SELECT {_share_number_sql(groups, types, '', num_shares)} FROM {like})"
    joined = f"LEFT JOIN (SELECT *, TRUE AS {_LOST} FROM {lost}) b ON {null_safe_equal(groups, 'a', 'b')}"
    is_in = f"b.{_LOST} OR {_share_number_sql(groups, types, 'a.', num_shares)} = {share}"
    return f"SELECT a.* FROM ({rows}) a {joined} WHERE {is_in}"


def listed_values_sql(incremental: IncrementalAggregate, cut: str) -> str:
    """Return the rows of the relation ``cut`` that `FirstValues` wrote, with the keys of the view's rows.

    Only rows that count all rows of a group have a key: hashing is the most expensive part.
    """
    key = {key_name(name): value for name, value in _key_values(incremental).items()}
    keys = [f"CASE WHEN {LIST} = {ALL_ROWS} THEN {value} END AS {quote_name(name)}" for name, value in key.items()]
    return (
        f"SELECT {_column_list(incremental.root, *value_names(incremental).values(), LIST, NUMBER, *keys)} FROM {cut}"
    )


def _share_number_sql(groups: tuple[str, ...], types: Mapping[str, str], of: str, num_shares: int) -> str:
    """Return the number of a group's share, equal for equal groups of any integer or float width."""
    hashed_columns = ", ".join(f"CAST({_canonical_sql(name, types, of)} AS {types[name]})" for name in groups)
    return f"(hash({hashed_columns}) & {num_shares - 1})"


def _canonical_sql(column: str, types: Mapping[str, str], of: str = "") -> str:
    """Return a column whose equal values have equal bytes: -0.0 becomes 0.0, and every NaN the same NaN."""
    kind = types[column]
    if kind not in ("float", "double"):
        return f"{of}{column}"
    return f"CASE WHEN isnan({of}{column}) THEN CAST('NaN' AS {kind}) ELSE {of}{column} + CAST(0 AS {kind}) END"


def _column_list(root: Group, *more: str) -> str:
    return ", ".join([*root.groups, *more])


def _key_values(incremental: IncrementalAggregate) -> dict[str, str]:
    """Return key column of the view's table → its value over the grouping columns."""
    if incremental.statements.identity == "hash":
        return {KEY: hash_sql(incremental.groups, incremental.statements.types)}
    return incremental.key_columns
