"""SHOW, CREATE, DESCRIBE, DROP and TRUNCATE TABLE, and SHOW, DROP and TRUNCATE PARTITION."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from streamhouse_spark.config.table_properties import ADOPTED, BRANCH, PRIMARY_KEY, VIEW, parse_properties
from streamhouse_spark.core.arrow_rows import distinct_rows, sort_rows
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_database, parse_table_name
from streamhouse_spark.datasource.catalog.ddl.databases import is_stored, require_database
from streamhouse_spark.datasource.rpc_arguments import StructJson, path_of, rows_path_of
from streamhouse_spark.datasource.spark_literals import is_same_json_value, json_values, parse_json_value
from streamhouse_spark.datasource.spark_schema import EXPRESSION_METADATA, split_defaults
from streamhouse_spark.datasource.table_definition import PROVIDER, SHOWN_PREFIXES, parse_partitioning
from streamhouse_spark.dml.overwrite import truncate_partitions as truncate_matching
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.expressions.generated_columns import GENERATED
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_planning import ScanRequest, scan_tiered_snapshot
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.read.snapshot_reader import read_hot_rows, read_snapshot_rows
from streamhouse_spark.schema.column_defaults import SqlText
from streamhouse_spark.schema.partitioning import PARTITION_FIELDS
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.drop_partition import drop_partitions as drop_matching
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

_SPARK_PROPERTIES = frozenset({"owner", "is_managed_location"})
"""Properties that Spark adds to every CREATE TABLE."""
_UNCOPIED_PROPERTIES = frozenset(
    {*_SPARK_PROPERTIES, "provider", "location", ADOPTED, VIEW, BRANCH, PRIMARY_KEY, PARTITION_FIELDS}
)
"""Properties that CREATE TABLE … LIKE does not copy as properties."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_COLLATION = "columns compare text by its bytes; omit COLLATE, and use it in queries"


def tables(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """List tables: SHOW TABLES."""
    warehouse = connection.warehouse()
    database = parse_database(args["database"])
    require_database(warehouse, database)
    if not is_stored(warehouse, database):  # `default` always exists for Spark
        return {"tables": []}
    return {"tables": [parse_table_name(name).path.table for name in warehouse.tables(database)]}


def create_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Create a table: CREATE TABLE. Everything is validated before anything is written."""
    path = path_of(args, "create")
    warehouse = connection.warehouse()
    schema, primary_key, partition_by, _, properties, defaults = describe_new_table(path, args, args.get("like") or {})
    require_database(warehouse, path.database)
    warehouse.create_table(
        str(path), schema, primary_key=primary_key, partition_by=partition_by, properties=properties, defaults=defaults
    )
    return {}


def describe_new_table(path: TablePath, args: Mapping[str, Any], like: Mapping[str, str] = _NOTHING) -> tuple[Any, ...]:
    """Return the arguments of `make_create_action` after the name: schema, primary key, partition fields, no bucket
    count, properties and defaults. ``like`` holds the properties of the table in a LIKE clause.

    Raises `InvalidOptionError` or `SchemaMismatchError` for an unsupported definition.
    """
    primary_key = args.get("primary_key") or parse_names(like.get(PRIMARY_KEY, ""))
    copied = {name: value for name, value in like.items() if name not in _UNCOPIED_PROPERTIES}
    properties = {
        **{name: value for name, value in copied.items() if not name.startswith(SHOWN_PREFIXES)},
        **({} if args.get("as_select") else _generated_column_properties(args["schema"])),
        **table_properties(path, args.get("properties") or {}),
    }
    partitioning = parse_partitioning(args.get("partitioning") or [])
    _reject_collations(path, args["schema"])
    schema, column_defaults = split_defaults(args["schema"])
    defaults = {} if args.get("as_select") else column_defaults  # defaults of a query's source tables do not apply
    buckets = _merge_bucket_properties(
        path, properties, partitioning.properties or {}, TableSchema.of(StructJson(schema))
    )
    texts = {name: SqlText(sql, args.get("time_zone")) for name, sql in defaults.items()}
    return StructJson(schema), primary_key, partitioning.fields, None, buckets, texts


def table_properties(path: TablePath, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties to store, without those that Spark adds. Raises `InvalidOptionError` for unsupported
    properties.
    """
    provider = properties.get("provider")
    if provider is not None and provider.lower() != PROVIDER:
        raise InvalidOptionError(
            f"table {path}: found USING {provider}, expected streamhouse; omit USING, or write USING streamhouse (with "
            "saveAsTable, format('streamhouse'))"
        )
    if "location" in properties or properties.get("external", "false").lower() == "true":
        clause = f"LOCATION {properties['location']!r}" if "location" in properties else "EXTERNAL"
        raise InvalidOptionError(
            f"table {path}: {clause} is not supported, because all tables are stored in the catalog's warehouse; omit "
            "it, or configure a catalog for another warehouse"
        )
    if properties.get("collation", "UTF8_BINARY").upper() != "UTF8_BINARY":
        raise InvalidOptionError(f"table {path}: DEFAULT COLLATION: {_NO_COLLATION}")
    options = sorted(name.removeprefix("option.") for name in properties if name.startswith("option."))
    if options:
        raise InvalidOptionError(f"table {path}: OPTIONS ({', '.join(options)}) is not supported; use TBLPROPERTIES")
    added = {"provider", "external", "collation", *_SPARK_PROPERTIES}
    return {n: value for n, value in properties.items() if n not in added and not n.startswith(SHOWN_PREFIXES)}


def _merge_bucket_properties(
    path: TablePath, properties: Mapping[str, str], buckets: Mapping[str, str], columns: TableSchema
) -> dict[str, str]:
    """Merge the properties of ``bucket(4, id)`` with those of the statement. Raises `InvalidOptionError` if they
    differ.
    """
    if not buckets:
        return dict(properties)
    from_properties, from_partitioning = (
        _parse_buckets({**buckets, **properties}, columns),
        _parse_buckets({**properties, **buckets}, columns),
    )
    if from_properties != from_partitioning:
        raise InvalidOptionError(
            f"table {path}: PARTITIONED BY has bucket({from_partitioning[0]}, {', '.join(from_partitioning[1])}), but "
            f"the properties bucket.num and bucket.key mean bucket({from_properties[0]}, "
            f"{', '.join(from_properties[1])}); specify only one of them"
        )
    return {**properties, **buckets}


def _parse_buckets(texts: Mapping[str, str], columns: TableSchema) -> tuple[int, tuple[str, ...]]:
    properties = parse_properties(
        {name: texts[name] for name in ("bucket.num", "bucket.key", "table.datalake.format") if name in texts}, columns
    )
    return properties.bucket_num, properties.bucket_key


def _generated_column_properties(schema: str) -> dict[str, str]:
    """Return the properties of generated columns, whose expressions are in Spark's column metadata."""
    fields = json.loads(schema)["fields"]
    texts = {field["name"]: (field.get("metadata") or {}).get(EXPRESSION_METADATA) for field in fields}
    return {f"{GENERATED}{name}": text for name, text in texts.items() if text is not None}


def _reject_collations(path: TablePath, schema: str) -> None:
    for field in json.loads(schema)["fields"]:
        if "__COLLATIONS" in (field.get("metadata") or {}):
            raise SchemaMismatchError(f"table {path}: column '{field['name']}': {_NO_COLLATION}")


def drop_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop a table: DROP TABLE. With or without PURGE, its files are deleted after the grace period."""
    path = path_of(args, "drop")
    return {"dropped": connection.warehouse().drop_table(str(path), if_exists=True)}


def truncate_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove all rows of the loaded table. Raises `TableNotFoundError` if it was dropped since."""
    table = connection.table_by_uuid(str(rows_path_of(args, "truncate")), args["uuid"])
    table.truncate()
    return {}


def partition_values(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """List partitions: SHOW PARTITIONS. Returns a row of JSON values per partition, filtered by ``names = values``,
    nulls first.

    Partitions of the lake are read from its manifests, partitions of the hot log from the partition columns. Raises
    `InvalidOptionError` for an unpartitioned table and for a name that is not a partition column.
    """
    table = connection.table(str(path_of(args, "show partitions of")))
    state = table.refresh()
    if not state.partition_by:
        raise InvalidOptionError(f"table {table.name} is not partitioned by columns, so it has no partitions to show")
    conditions = zip(args.get("names") or [], args.get("values") or [], strict=True)
    positions = {_partition_index(state, name): value for name, value in conditions}
    partitions = read_with_fallback(
        table, take_latest_snapshot(state), InitialSchema(()), lambda snapshot: _distinct_partitions(table, snapshot)
    )
    columns = sort_rows(partitions, state.partition_by).columns
    rows = zip(*(json_values(column) for column in columns), strict=True)
    matching_rows = [
        list(row) for row in rows if all(is_same_json_value(row[at], value) for at, value in positions.items())
    ]
    return {"partitions": sorted(matching_rows, key=lambda row: [value is not None for value in row])}


def drop_partitions(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop partitions of the loaded table: ALTER TABLE … DROP PARTITION."""
    table = connection.table_by_uuid(str(path_of(args, "drop partitions of")), args["uuid"])
    drop_matching(table, _partition_matches(table, table.refresh(), args["partitions"]))
    return {}


def truncate_partitions(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the rows of partitions of the loaded table: TRUNCATE TABLE … PARTITION. **Commit point:** one record."""
    table = connection.table_by_uuid(str(path_of(args, "truncate partitions of")), args["uuid"])
    state = table.refresh()
    matches = _partition_matches(table, state, args["partitions"])
    if state.primary_key:
        drop_matching(table, matches)
    else:
        truncate_matching(table, matches)
    return {}


def _distinct_partitions(table: TableHandle, snapshot: ReadSnapshot) -> pa.Table:
    schema = snapshot.state.schema.select(snapshot.state.partition_by).arrow
    parts = [distinct_rows(part.cast(schema)) for part in _read_partition_columns(table, snapshot)]
    return distinct_rows(pa.concat_tables([schema.empty_table(), *parts]))


def _partition_matches(table: TableHandle, state: TableState, partitions: Sequence[Sequence[Any]]) -> PartitionMatches:
    columns = [state.schema.column(name) for name in state.partition_by]
    rows = [
        {column.name: parse_json_value(cell, column.type) for column, cell in zip(columns, cells, strict=True)}
        for cells in partitions
    ]
    return PartitionMatches.of(rows, state.schema, state.partition_by, table.name)


def _partition_index(state: TableState, name: str) -> int:
    folded = [column.casefold() for column in state.partition_by]
    if name.casefold() not in folded:
        raise InvalidOptionError(
            f"'{name}' is not a partition column of {state.name}, expected one of {', '.join(state.partition_by)}"
        )
    return folded.index(name.casefold())


def _read_partition_columns(table: TableHandle, snapshot: ReadSnapshot) -> Iterator[pa.Table]:
    columns = Projection.of(snapshot.state.schema, snapshot.state.partition_by, None)
    if snapshot.state.primary_key or snapshot.state.deletions:  # partitions without live rows are not listed
        yield read_snapshot_rows(table, snapshot, columns)
        return
    files = (
        scan_tiered_snapshot(table, snapshot, ScanRequest(snapshot.state.partition_by)).files
        if snapshot.lake is not None
        else ()
    )
    if any(name not in file.partition for file in files for name in columns.columns):
        yield read_snapshot_rows(table, snapshot, columns)
        return
    yield pa.table(
        [_partition_array([f.partition[c.name] for f in files], c.type) for c in columns.schema], columns.schema.names
    )
    yield from read_hot_rows(table, snapshot, columns)


def _partition_array(raw_values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a partition column as an array. Plain dates are days, plain timestamps microseconds."""
    if pa.types.is_date32(kind):
        return pa.array(raw_values, pa.int32()).cast(kind)
    return pa.array(raw_values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(raw_values, kind)
