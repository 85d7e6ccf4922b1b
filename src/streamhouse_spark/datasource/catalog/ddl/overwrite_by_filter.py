"""The part of a table that INSERT OVERWRITE, REPLACE WHERE, `overwrite` and `overwritePartitions` replace."""

from __future__ import annotations

import json
from dataclasses import replace

from streamhouse_spark.datasource.catalog.ddl.delete_by_filter import build_condition, filter_columns
from streamhouse_spark.datasource.catalog.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.write.overwrite_writer import ReplacedPart
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.query.filter_parsing import Filter
from streamhouse_spark.warehouse.process_cache import Connection


def parse_overwrite_filter(connection: Connection, name: str, text: str) -> ReplacedPart:
    """Parse the part that Java describes. Raises `InvalidOptionError` for a condition that is not fully supported."""
    request = json.loads(text)
    read = None
    if "pin" in request:
        _, state = open_at_snapshot(connection, QuerySnapshot.from_text(request["pin"]))
        read = replace(ReadVersion.of(state), is_strict=True)
    if "filters" not in request:
        return ReplacedPart(read=read)
    condition = build_condition(request["filters"], connection.table(name).state.schema)
    if condition is None:
        raise InvalidOptionError(
            f"table {name}: the condition of the rows to replace is not fully supported; it may compare columns with "
            "constants (=, <>, <, <=, >, >=, IN, LIKE 'x%', IS NULL), combined with AND, OR and NOT, and floats only "
            "with = and IN; use MERGE, or DELETE and INSERT"
        )
    return ReplacedPart(Filter(condition, columns=filter_columns(request["filters"])), read)
