"""Procedures of tables and of the warehouse: clone, undrop, relocate, roll back, drop partitions, set partitioning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.lifecycle.clones import base_version_of_clone
from streamhouse_spark.query.partition_match import NULL_NAME, PartitionMatch, PartitionMatches
from streamhouse_spark.schema.partition_fields import join_fields, split_fields
from streamhouse_spark.table.partitions import drop_partitions
from streamhouse_spark.table.rollback import RollbackReport
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.relocation import relocate as relocated

CLONE_RESULT: Final = "source string not null, target string not null, version bigint not null, lake_snapshot_id bigint"
ROLLBACK_RESULT: Final = (
    "table string not null, version bigint not null, seen_version bigint not null, rows_deleted bigint not null, "
    "rows_added bigint not null, dry_run boolean not null"
)
SET_PARTITIONING_RESULT: Final = (
    "table string not null, partitioning string not null, former_partitioning string not null"
)


def clone(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Clone a version of a table and return one row: both names, the version, and the lake snapshot that both tables
    share. Raises as `Warehouse.clone_table`.
    """
    source, target = parse_table_argument(arguments["source"]), parse_table_argument(arguments["target"])
    if arguments["version"] is not None and arguments["tag"] is not None:
        raise InvalidOptionError(f"clone of {source}: version and tag are both given; give one")
    version = arguments["version"] if arguments["version"] is not None else arguments["tag"]
    clone = connection.warehouse().clone_table(source, target, version=version)
    origin = base_version_of_clone(connection.table(source).refresh(), clone.uuid)
    return [(source, clone.name, origin.version, origin.lake_snapshot)]


def undrop_table(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Restore a dropped table and return one row. Raises as `Warehouse.undrop_table`."""
    to = None if arguments["to"] is None else parse_table_argument(arguments["to"])
    table = connection.warehouse().undrop_table(parse_table_argument(arguments["table"]), uuid=arguments["uuid"], to=to)
    return [(table.name, table.uuid, table.state.num_rows)]


def relocate(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Relocate the warehouse and return a row per table. Raises as `streamhouse_spark.relocate`."""
    report = relocated(connection.warehouse(), copy=arguments["copy"], dry_run=arguments["dry_run"])
    return [
        (
            table.table,
            table.uuid,
            table.former_uuid,
            table.lake,
            table.moved_from,
            table.files_written,
            arguments["dry_run"],
        )
        for table in report.tables
    ]


def rollback_to_version(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back and return one row of counts. Raises as `Table.rollback_to_version`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    return _report_rows(table.rollback_to_version(arguments["version"], dry_run=arguments["dry_run"]))


def rollback_to_timestamp(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back to a time and return one row of counts. Raises as `Table.rollback_to_timestamp`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    if arguments["timestamp"] < 0:
        raise InvalidOptionError(
            "timestamp of procedure rollback_to_timestamp is before 1970; give the time of a commit"
        )
    return _report_rows(table.rollback_to_timestamp(arguments["timestamp"] // 1000, dry_run=arguments["dry_run"]))


def _report_rows(report: RollbackReport) -> Rows:
    counts = (report.rows_deleted, report.rows_added, report.dry_run)
    return [(report.table, report.version, report.seen_version, *counts)]


def drop_partition(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Drop partitions and return one row of counts. Raises as `Table.drop_partition`, and `InvalidOptionError` for an
    invalid partition.
    """
    table = connection.table(parse_table_argument(arguments["table"]))
    state = table.refresh()
    texts = _parse_partition(arguments["partition"])
    match = PartitionMatch.of_texts(texts, state.schema, state.partition_by, table.name)
    report = drop_partitions(table, PartitionMatches((match,)), dry_run=arguments["dry_run"])
    return [(table.name, report.rows, report.files, report.snapshot_id, arguments["dry_run"])]


def set_partitioning(connection: Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Change the partitioning of new rows and return both partitionings. Raises as `Table.set_partitioning`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    before = join_fields(table.refresh().parsed.partition_fields)
    table.set_partitioning(split_fields(arguments["partitioning"]))
    return [(table.name, join_fields(table.state.parsed.partition_fields), before)]


def _parse_partition(text: str) -> dict[str, str]:
    """Return the values of a JSON object as text."""
    try:  # numbers stay text: a float could change a decimal
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
