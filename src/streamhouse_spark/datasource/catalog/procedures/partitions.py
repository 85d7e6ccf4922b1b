"""``CALL streamhouse.system.drop_partition``: as ALTER TABLE … DROP PARTITION, by some of the partition columns as
well; and ``set_partitioning``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.query.partition_match import NULL_NAME, PartitionMatch, PartitionMatches
from streamhouse_spark.schema.partition_fields import join_fields, split_fields
from streamhouse_spark.table.partitions import drop_partitions
from streamhouse_spark.warehouse.process_cache import Connection

PARTITIONED: Final = "table string not null, partitioning string not null, former_partitioning string not null"


def drop_partition(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Drop partitions and return one row of counts. Raises as `Table.drop_partition`; `InvalidOptionError` for a text
    that is no partition.
    """
    table = connection.table(parse_table_argument(arguments["table"]))
    state = table.refresh()
    texts = _parse_partition(arguments["partition"])
    match = PartitionMatch.of_texts(texts, state.schema, state.partition_by, table.name)
    report = drop_partitions(table, PartitionMatches((match,)), dry_run=arguments["dry_run"])
    return [(table.name, report.rows, report.files, report.snapshot_id, arguments["dry_run"])]


def set_partitioning(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Partition rows anew and return both partitionings. Raises as `Table.set_partitioning`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    before = join_fields(table.refresh().parsed.partition_fields)
    table.set_partitioning(split_fields(arguments["partitioning"]))
    return [(table.name, join_fields(table.state.parsed.partition_fields), before)]


def _parse_partition(text: str) -> dict[str, str]:
    """Return the values of a JSON object as people write them."""
    try:  # numbers stay as they are written: a float would be another decimal
        values = json.loads(
            text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_require_unique_names
        )
    except ValueError:
        values = None
    if not isinstance(values, dict) or any(isinstance(value, dict | list) for value in values.values()):
        raise InvalidOptionError(
            f"partition of procedure drop_partition is {text[:100]!r}, expected a JSON object of columns and values, "
            'such as {"day": "2026-01-31", "country": null}'
        )
    return {name: _value_text(value) for name, value in values.items()}


def _require_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name is there twice")
    return values


def _value_text(value: Any) -> str:
    if value is None:
        return NULL_NAME
    return value if isinstance(value, str) else json.dumps(value)
