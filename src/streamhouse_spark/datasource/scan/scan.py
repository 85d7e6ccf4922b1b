"""Load names and plan scans for Spark's catalog.

Spark calls `load` once per name of a query, `load_source` for ``format("streamhouse")``, and `plan` once per scan.
These calls run in a planner process. Spark's own Parquet reader reads the ``native`` groups of a plan, and
`arrow_reader` reads all other groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from streamhouse_spark.config.spark_options import parse_read_options, table_option
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_batch_target
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.cache_validators import (
    lake_validators,
    observe_lake_once,
    plan_validators,
    snapshot_validators,
)
from streamhouse_spark.datasource.scan.catalog_options import parse_scan_options
from streamhouse_spark.datasource.scan.file_systems import FileSystems
from streamhouse_spark.datasource.scan.input_splits import (
    SplitPlan,
    group_splits,
    groups_to_json,
    narrowest_column,
    plan_splits,
)
from streamhouse_spark.datasource.scan.pushed_filters import METADATA_TYPES, column_types, parse_filters
from streamhouse_spark.datasource.scan.query_snapshot import (
    CHANGES,
    QuerySnapshot,
    open_at_snapshot,
    read_lake_snapshot,
    take_query_snapshot,
    take_query_snapshot_at,
)
from streamhouse_spark.datasource.scan.scan_planning import SparkScanRequest, plan_sources
from streamhouse_spark.datasource.spark_schema import canonical_schema, read_schema
from streamhouse_spark.datasource.table_definition import describe_properties, format_partitioning
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError
from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties
from streamhouse_spark.lake.types import LakeValidators
from streamhouse_spark.log.catalog.branches import find_branch
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.metadata_columns import (
    CHANGELOG_FIELDS,
    CHANGES_FIELDS,
    COMMIT_VERSION,
    METADATA_FIELDS,
    ROW_ID,
    with_fields,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import estimate_row_bytes
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_planning import Pruning, ScanRequest
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE, open_view
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

METADATA_COLUMNS = (*(field.with_nullable(True) for field in METADATA_FIELDS), ROW_ID)
"""The hidden columns of a table. The log position is nullable, because rows that another engine rewrote in the lake
have none.
"""
_FILE_SUFFIXES = (None, LAKE, CHANGELOG)
"""Suffixes of names whose rows are in files. Python computes the rows of all other system tables."""
_KINDS = {None: "table", LAKE: "lake", CHANGELOG: "changelog", BINLOG: "changelog", CHANGES: "changes"}


def warm_up(_connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Warm up a planner process by importing modules: ``reads`` for every query, ``lakes`` for Iceberg's library.

    These are separate calls, so that a waiting query can load its table between them. Does not access the warehouse.
    """
    from streamhouse_spark.lake.iceberg import table  # noqa: F401 - loaded for the calls that follow

    if args["part"] == "lakes":
        with suppress(ModuleNotFoundError):  # opening such a table names the missing library
            from streamhouse_spark.lake.iceberg import scan  # noqa: F401
    return {}


def load(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a name to its current table or system table. Raises `TableNotFoundError`, `InvalidNameError`, and the
    errors of `take_query_snapshot`.

    Spark calls this before each CREATE TABLE and reports a missing table itself, so the error suggests no similar name.
    """
    name = parse_table_name(f"{args['database']}.{args['table']}")
    newest, lake_snapshot = connection.find_table_with(
        str(name.path), read_lake_snapshot if name.suffix == LAKE else None
    )
    if newest is None:
        raise TableNotFoundError(
            f"table {name.path} does not exist in {connection.warehouse().url}; list its tables with SHOW TABLES"
        )
    branch = find_branch(newest.state, str(args.get("version") or "").strip().lower()) if name.suffix is None else None
    if branch is not None:  # VERSION AS OF names a branch
        return load(connection, {"database": args["database"], "table": newest.path.of_branch(branch.name).table})
    if lake_snapshot is not None and lake_snapshot.location != newest.state.lake_location:
        lake_snapshot = None
    lake = (
        lake_snapshot.validators if lake_snapshot is not None else lake_validators(newest, is_read=name.suffix == LAKE)
    )
    return describe_scan(
        connection,
        take_query_snapshot(newest, name.suffix, args.get("version"), args.get("timestamp_us"), lake_snapshot),
        lake,
    )


def load_source(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve the name in the options of ``format("streamhouse")``, in the form of `load`.

    Raises `InvalidOptionError` if the catalog would return other rows or columns: for system tables,
    ``includeMetadata`` and ``readChangeFeed``. Raises the errors of reads.
    """
    source_options = args["options"]
    name = parse_table_name(table_option(source_options, "read"))
    if name.suffix not in _FILE_SUFFIXES:
        raise InvalidOptionError(f"only Python can read ${name.suffix}")
    table = connection.table(str(name.path))
    options = parse_read_options(source_options)
    resolve_batch_target(table, name.suffix, options)
    lake = lake_validators(table, is_read=name.suffix == LAKE)
    if name.suffix is None and options.as_of_timestamp_ms is not None:
        snapshot = take_query_snapshot_at(table, options.as_of_timestamp_ms)
    else:
        snapshot = take_query_snapshot(table, name.suffix)
    parse_scan_options(snapshot, source_options)
    return describe_scan(connection, snapshot, lake)


def describe_scan(connection: Connection, snapshot: QuerySnapshot, lake: LakeValidators | None) -> Mapping[str, Any]:
    """Describe the table at the snapshot for Java. ``lake`` are the lake's validators from before the snapshot."""
    table, state = open_at_snapshot(connection, snapshot)
    kind = _KINDS.get(snapshot.suffix, "view")
    num_rows, size_bytes = _estimate_size(state)
    key = _spark_bucket_key(state) if kind in ("table", "lake") else ()
    shown = kind in ("table", "lake")
    return {
        "kind": kind,
        "name": snapshot.name,
        "uuid": snapshot.uuid,
        "version": snapshot.version,
        "schema": read_schema(
            _visible_columns(table, state, snapshot), state.schema, sizes=kind != "view", defaults=kind == "table"
        ).json(),
        "partitioning": format_partitioning(state) if shown else [],
        "properties": describe_properties(table),
        "takes_updates": kind == "table" and _supports_updates(state),
        "streams_rows": not state.primary_key,
        "buckets": {"count": state.num_buckets, "key": list(key)} if key else None,
        "partition_columns": list(state.partition_by) if shown else [],
        "metadata_columns": _metadata_columns() if kind == "table" and not state.primary_key else [],
        "rows": num_rows,
        "bytes": size_bytes,
        "snapshot": snapshot.to_text(),
        "validators": snapshot_validators(table, snapshot, lake),
    }


def _spark_bucket_key(state: TableState) -> tuple[str, ...]:
    """Return the bucket key if Spark can compute the buckets: Java implements Iceberg's bucket function only."""
    properties = state.parsed
    return properties.bucket_key if properties.datalake_format == "iceberg" else ()


def _visible_columns(table: TableHandle, state: TableState, snapshot: QuerySnapshot) -> pa.Schema:
    """Return the columns that ``SELECT *`` returns."""
    if snapshot.suffix is None or snapshot.suffix == LAKE:
        return state.schema.arrow
    if snapshot.suffix == CHANGELOG:
        return with_fields(CHANGELOG_FIELDS, state.schema.arrow)
    if snapshot.suffix == CHANGES:
        return with_fields(list(state.schema.arrow), pa.schema(CHANGES_FIELDS))
    return canonical_schema(open_view(table, snapshot.suffix).schema)


def _supports_updates(state: TableState) -> bool:
    """Return whether the table supports streams in update mode: a new row must replace the previous row of its key."""
    if not state.primary_key:
        return False
    properties = parse_keyed_properties(state.properties, state.schema, state.partition_by)
    return properties.merge_engine in ("last_row", "versioned")


def _metadata_columns() -> list[dict[str, Any]]:
    struct = spark_versions.spark_schema_of(pa.schema(METADATA_COLUMNS))
    return [{"name": f.name, "type": f.dataType.json(), "nullable": f.nullable} for f in struct.fields]


def _estimate_size(state: TableState) -> tuple[int, int]:
    """Estimate rows and bytes of the table without reading the lake. A lake row is assumed as large as a log row."""
    snapshot = take_latest_snapshot(state)
    rows_by_bucket = {bucket: len(offsets) for bucket, offsets in snapshot.hot.items()}
    for bucket, offset in (snapshot.lake.offsets if snapshot.lake else {}).items():
        rows_by_bucket[bucket] = rows_by_bucket.get(bucket, 0) + offset - state.first_offset(bucket)
    num_rows = sum(rows_by_bucket.values())
    size_bytes = sum(rows * estimate_row_bytes(state, bucket) for bucket, rows in rows_by_bucket.items())
    return num_rows, max(size_bytes, 1 if num_rows else 0)


def plan(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plan one scan.

    Raises the errors of reads, and `InvalidOptionError` for options that the name does not support. Raises
    `CommitConflictError` if an UPDATE, DELETE or MERGE also reads its target in a subquery or source, and the table
    changed since it was loaded.
    """
    request = _parse_request(connection, args)
    with observe_lake_once(request) as lake:
        sources = plan_sources(request)
    table, metadata = request.table, _metadata_names(request)
    file_systems = FileSystems.of(
        table.storage, table.settings, args.get("native_schemes") or (), args.get("hadoop_version")
    )
    cores = max(1, args.get("parallelism") or 1)
    splits = plan_splits(
        sources,
        request.scan.schema(request.state).names,
        file_systems=None if metadata else file_systems,
        drops_rows=bool(args.get("drops_rows")),
        parallelism=cores,
    )
    groups = group_splits(
        splits,
        num_buckets=_num_groupable_buckets(request, splits, stays_keyed=bool(args.get("stays_keyed"))),
        limit=None if request.filters else args.get("limit"),
        parallelism=cores,
    )
    hot = ArrowReadPlan(
        request.snapshot.name,
        tuple(request.schema.names),
        json.loads(read_schema(request.schema, request.state.schema).json()),
        metadata,
        request.options.fail_on_data_loss,
        request.filters,
        sources.plan_without_tasks(table),
        tuple(tuple(split.piece for split in group) for _, group in groups.hot),
    )
    locations = [file.location for file in sources.lake.files] if sources.lake is not None else []
    settings = file_systems.settings_for(locations) if splits.native else []
    return {
        **groups_to_json(groups),
        "file_systems": [setting.to_json() for setting in settings],
        "lake_reader": file_systems.describe(locations),
        "read": hot.to_text(),
        "skipped": request.scan.pruning.num_skipped,
        "validators": plan_validators(request, lake),
    }


def _parse_request(connection: Connection, args: Mapping[str, Any]) -> SparkScanRequest:
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    options = parse_scan_options(snapshot, args.get("options") or {})
    table, state = open_at_snapshot(connection, snapshot)
    if snapshot.is_rewritten and not args.get("reads_once"):
        # When a statement runs, Spark reloads all tables except the target, so they may be newer than the target. If
        # nothing was committed since, the states are equal.
        ReadVersion.of(state).require(table.refresh())
    hidden = METADATA_COLUMNS if snapshot.suffix is None and not state.primary_key else ()
    available = with_fields(hidden, _visible_columns(table, state, snapshot))
    schema = pa.schema([available.field(str(name)) for name in args["columns"]])
    # without columns, read the cheapest column to count rows
    read = tuple(name for name in schema.names if state.schema.find(name) is not None) or (
        narrowest_column(state.schema),
    )
    filters = tuple(args.get("filters") or ())
    # CHANGES shows change types and times that differ from those in segment statistics
    prunable = (
        {c.name: c.type for c in state.schema.columns} if snapshot.suffix == CHANGES else column_types(state.schema)
    )
    scan = ScanRequest(read, Pruning(parse_filters(filters, prunable)), names_rows=ROW_ID.name in schema.names)
    return SparkScanRequest(table, state, snapshot, options, scan, schema, filters)


def _metadata_names(request: SparkScanRequest) -> tuple[str, ...]:
    """Return the requested metadata columns, in the order in which they are read."""
    if request.snapshot.suffix == CHANGES:
        return tuple(field.name for field in CHANGES_FIELDS if field.name in request.schema.names)
    if request.snapshot.suffix not in (None, CHANGELOG):
        return ()
    return tuple(name for name in METADATA_TYPES if name in request.schema.names and name != COMMIT_VERSION.name)


def _num_groupable_buckets(request: SparkScanRequest, splits: SplitPlan, *, stays_keyed: bool) -> int | None:
    """Return the number of buckets if Spark can use groups of one bucket, for which it must read the bucket key."""
    key, num_buckets = _spark_bucket_key(request.state), request.state.num_buckets
    has_key = len(key) == 1 and key[0] in request.schema.names and request.snapshot.suffix in (None, LAKE)
    if not has_key or num_buckets == 1:
        return None
    if request.filters and not stays_keyed and len({split.bucket for split in splits.all}) <= 1:
        return None  # groups of empty buckets would be tasks without work
    return num_buckets
