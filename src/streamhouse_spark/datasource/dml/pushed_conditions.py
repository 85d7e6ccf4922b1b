"""DELETE, and overwrites of a part of a table, with a condition that Spark pushes down completely.

DELETE of a log table is one commit record, without a Spark job. A condition is supported if Arrow evaluates it exactly
like Spark. This holds for comparisons of top-level columns with constants, IN, null tests, and prefixes, suffixes and
substrings, combined with AND, OR and NOT. Floats support only equality and IN, because NaN and -0.0 order differently.
CHAR(n) columns are not supported, because Spark pads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamhouse_spark.datasource.rpc_arguments import rows_path_of
from streamhouse_spark.datasource.scan.pushed_filters import parse_filters
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.expressions.arrow import to_expression
from streamhouse_spark.expressions.filters import Filter
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from streamhouse_spark.datasource.write.replaced_part import ReplacedPart


def can_delete(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return whether `delete_where` supports the conditions. Raises `InvalidOptionError` if the table has a primary
    key.
    """
    state = connection.table_by_uuid(str(rows_path_of(args, "delete from")), args["uuid"]).refresh()
    require_deletable(state)
    return {"can": parse_condition(args["filters"], state.schema) is not None}


def delete_where(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Delete the rows of the loaded table that match all conditions. **Commit point:** one record."""
    table = connection.table_by_uuid(str(rows_path_of(args, "delete from")), args["uuid"])
    condition = parse_condition(args["filters"], table.refresh().schema)
    if condition is None:
        raise InvalidOptionError(
            f"table {table.name}: its columns changed after this DELETE was planned; run the statement again"
        )
    return {"rows": table.delete(where=condition)}


def parse_condition(trees: Sequence[Mapping[str, Any]], schema: TableSchema) -> Filter | None:
    """Convert Spark's conditions to a filter for exactly the matching rows; None for an unsupported condition."""
    types = {column.name: column.type for column in schema.columns if column.size is None}
    node = parse_filters(trees, types)
    try:
        expression = to_expression(node, types)
    except RecursionError:
        return None
    return None if expression is None else Filter(expression, node=node)


def parse_overwrite_filter(connection: Connection, name: str, text: str) -> ReplacedPart:
    """Parse the part of the table that INSERT OVERWRITE, REPLACE WHERE, `overwrite` or `overwritePartitions` replaces.

    Raises `InvalidOptionError` for a condition that is not fully supported.
    """
    from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
    from streamhouse_spark.log.read_version import ReadVersion

    request = json.loads(text)
    read = None
    if "snapshot" in request:
        _, state = open_at_snapshot(connection, QuerySnapshot.from_text(request["snapshot"]))
        read = replace(ReadVersion.of(state), is_strict=True)
    if "filters" not in request:
        return ReplacedPart(read=read)
    condition = parse_condition(request["filters"], connection.table(name).state.schema)
    if condition is None:
        raise InvalidOptionError(
            f"table {name}: the condition for the rows to replace is not supported, expected comparisons of columns "
            "and constants (=, <>, <, <=, >, >=, IN, LIKE 'x%', IS NULL), combined with AND, OR and NOT, and for "
            "floats only = and IN; use MERGE, or DELETE and INSERT"
        )
    return ReplacedPart(condition, read)
