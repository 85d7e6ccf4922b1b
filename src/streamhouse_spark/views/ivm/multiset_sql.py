"""The statements that tell the values of groups: those that changed, and those that `FirstValues` cuts. Pure."""

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
"""Values that changed in one refresh, for the driver to take them. One more tells that there are too many."""
_LOST: Final = "__streamhouse_lost"


def key_name(column: str) -> str:
    """Return the name that a key column of the view's table has beside the group's own columns."""
    return f"__streamhouse_key_{column}"


def value_names(added: IncrementalAggregate) -> dict[str, str]:
    """Return the lists: the argument of aggregates → the name of its column, in their order."""
    of = dict.fromkeys(part.of for part in added.multiset_aggregates)
    return {argument: f"__streamhouse_value_{number}" for number, argument in enumerate(of)}


def whole_names(added: IncrementalAggregate) -> list[str]:
    """Return the columns of which all values are asked for, as far as there is room for all."""
    names = value_names(added)
    return [names[of] for of in dict.fromkeys(part.of for part in added.multiset_aggregates if part.kind == "distinct")]


def changed_values_sql(
    added: IncrementalAggregate, part: Aggregate, writer: Writer, *, one_task: bool = False
) -> str | None:
    """Return the values of an aggregate that came or went, with their `NUMBER` of rows, and the key of the view's row,
    as its table names it; None if nothing changed.
    """
    root = added.root
    delta = writer.delta(root.child)
    if delta is None:
        return None
    columns = _column_list(root, VALUE)
    values = _column_list(root, f"{part.of} AS {VALUE}", WEIGHT)
    rows = f"SELECT {values} FROM ({coalesce_tasks(delta, one_task=one_task)}) q"
    net = f"SUM({WEIGHT})"
    net_rows = f"SELECT {columns}, {net} AS {NUMBER} FROM ({rows}) q GROUP BY {columns} HAVING {net} <> 0"
    key = ", ".join(f"{value} AS {quote_name(name)}" for name, value in _key_values(added).items())
    return f"SELECT {key}, {VALUE}, {NUMBER} FROM ({net_rows}) q LIMIT {CHANGES_MAX + 1}"


def values_sql(added: IncrementalAggregate, rows: str) -> str:
    """Return the columns that `FirstValues` cuts, of rows below the groups. Equal groups are equal in Arrow, too."""
    types = added.statements.types
    groups = [f"{_canonical_sql(name, types)} AS {name}" for name in added.groups]
    values = [f"{of} AS {name}" for of, name in value_names(added).items()]
    return f"SELECT {', '.join([*groups, *values])} FROM ({rows}) q"


def share_sql(added: IncrementalAggregate, rows: str, lost: str, like: str, num_shares: int) -> str:
    """Return those of the rows below the groups that are of groups in the relation ``lost``, or of groups in the same
    share of all groups as the one group in the relation ``like``. ``num_shares`` is a power of two.
    """
    groups, types = added.groups, added.statements.types
    share = f"(SELECT {_share_number_sql(groups, types, '', num_shares)} FROM {like})"
    joined = f"LEFT JOIN (SELECT *, TRUE AS {_LOST} FROM {lost}) b ON {null_safe_equal(groups, 'a', 'b')}"
    is_in = f"b.{_LOST} OR {_share_number_sql(groups, types, 'a.', num_shares)} = {share}"
    return f"SELECT a.* FROM ({rows}) a {joined} WHERE {is_in}"


def listed_values_sql(added: IncrementalAggregate, cut: str) -> str:
    """Return the rows of the relation ``cut``, which `FirstValues` gave, with the keys of the view's rows in those that
    count all rows of a group: a hash costs more than all else.
    """
    key = {key_name(name): value for name, value in _key_values(added).items()}
    keys = [f"CASE WHEN {LIST} = {ALL_ROWS} THEN {value} END AS {quote_name(name)}" for name, value in key.items()]
    return f"SELECT {_column_list(added.root, *value_names(added).values(), LIST, NUMBER, *keys)} FROM {cut}"


def _share_number_sql(groups: tuple[str, ...], types: Mapping[str, str], of: str, num_shares: int) -> str:
    """Return the number of a group's share, the same for equal groups, whatever widths they come in."""
    hashed_columns = ", ".join(f"CAST({_canonical_sql(name, types, of)} AS {types[name]})" for name in groups)
    return f"(hash({hashed_columns}) & {num_shares - 1})"


def _canonical_sql(column: str, types: Mapping[str, str], of: str = "") -> str:
    """Return a column whose equal values have the same bytes: -0.0 and 0.0, and all that are NaN, are one group."""
    kind = types[column]
    if kind not in ("float", "double"):
        return f"{of}{column}"
    return f"CASE WHEN isnan({of}{column}) THEN CAST('NaN' AS {kind}) ELSE {of}{column} + CAST(0 AS {kind}) END"


def _column_list(root: Group, *more: str) -> str:
    return ", ".join([*root.groups, *more])


def _key_values(added: IncrementalAggregate) -> dict[str, str]:
    """Key column of the view's table → its value, over the columns that rows are grouped by."""
    if added.statements.identity == "hash":
        return {KEY: hash_sql(added.groups, added.statements.types)}
    return added.key_columns
