"""Load names and plan scans for Spark's catalog.

Spark calls `load` once per name of a query, `load_source` for ``format("streamhouse")``, and `plan` once per scan. They
run in a planner process. Spark's own Parquet reader reads the ``native`` groups of a plan, and `arrow_reader` reads all
other groups.
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
from streamhouse_spark.datasource.scan.arrow_plan import PythonPlan
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
"""The hidden columns of a table. All but the last are nullable: rows that another engine rewrote in the lake have lost
their log position.
"""
_ROWS = (None, LAKE, CHANGELOG)
"""Suffixes whose rows are in files. All other views are computed in Python anyway."""
_KINDS = {None: "table", LAKE: "lake", CHANGELOG: "changelog", BINLOG: "changelog", CHANGES: "changes"}


def begin(_connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Import the modules of a part of reads: ``reads`` for every query, ``lakes`` for Iceberg's library.

    The parts are separate so that a query that is already waiting loads its table in between. Nothing of the warehouse
    is read.
    """
    from streamhouse_spark.lake.iceberg import table  # noqa: F401 - loaded for the calls that follow

    if args["part"] == "lakes":
        with suppress(ModuleNotFoundError):  # opening such a table names the missing library
            from streamhouse_spark.lake.iceberg import scan  # noqa: F401
    return {}


def load(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a name to its current table or view. Raises `TableNotFoundError`, `InvalidNameError`, and as
    `take_query_snapshot` does.

    Spark calls this before each CREATE TABLE and reports a missing table itself, so no similar name is suggested.
    """
    name = parse_table_name(f"{args['database']}.{args['table']}")
    newest, lake_snapshot = connection.find_table_with(
        str(name.path), read_lake_snapshot if name.suffix == LAKE else None
    )
    if newest is None:
        raise TableNotFoundError(
            f"table {name.path} does not exist in {connection.warehouse().url}; SHOW TABLES lists them"
        )
    branch = find_branch(newest.state, str(args.get("version") or "").strip().lower()) if name.suffix is None else None
    if branch is not None:  # ``VERSION AS OF`` names it
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
    """Load the name in the options as `load` does, if the catalog returns the same rows and columns.

    Raises `InvalidOptionError` if it does not (system tables, ``includeMetadata``, ``readChangeFeed``), and as reads
    do.
    """
    source_options = args["options"]
    name = parse_table_name(table_option(source_options, "read"))
    if name.suffix not in _ROWS:
        raise InvalidOptionError(f"${name.suffix} is only read in Python")
    table = connection.table(str(name.path))
    options = parse_read_options(source_options)
    resolve_batch_target(table, name.suffix, options)
    lake = lake_validators(table, is_read=name.suffix == LAKE)
    if name.suffix is None and options.as_of_timestamp_ms is not None:
        pin = take_query_snapshot_at(table, options.as_of_timestamp_ms)
    else:
        pin = take_query_snapshot(table, name.suffix)
    parse_scan_options(pin, source_options)
    return describe_scan(connection, pin, lake)


def describe_scan(connection: Connection, pin: QuerySnapshot, lake: LakeValidators | None) -> Mapping[str, Any]:
    """Describe the table at the snapshot for Java. ``lake`` holds the lake's validators, taken before the snapshot."""
    table, state = open_at_snapshot(connection, pin)
    kind = _KINDS.get(pin.suffix, "view")
    num_rows, size_bytes = _estimate_size(state)
    key = _spark_bucket_key(state) if kind in ("table", "lake") else ()
    shown = kind in ("table", "lake")
    return {
        "kind": kind,
        "name": pin.name,
        "uuid": pin.uuid,
        "version": pin.version,
        "schema": read_schema(
            _visible_columns(table, state, pin), state.schema, sizes=kind != "view", defaults=kind == "table"
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
        "pin": pin.to_text(),
        "grounds": snapshot_validators(table, pin, lake),
    }


def _spark_bucket_key(state: TableState) -> tuple[str, ...]:
    """Return the bucket key if Spark can compute the buckets: Java implements Iceberg's bucket function only."""
    properties = state.parsed
    return properties.bucket_key if properties.datalake_format == "iceberg" else ()


def _visible_columns(table: TableHandle, state: TableState, pin: QuerySnapshot) -> pa.Schema:
    """Return the columns that ``SELECT *`` returns."""
    if pin.suffix is None or pin.suffix == LAKE:
        return state.schema.arrow
    if pin.suffix == CHANGELOG:
        return with_fields(CHANGELOG_FIELDS, state.schema.arrow)
    if pin.suffix == CHANGES:
        return with_fields(list(state.schema.arrow), pa.schema(CHANGES_FIELDS))
    return canonical_schema(open_view(table, pin.suffix).schema)


def _supports_updates(state: TableState) -> bool:
    """Return whether a stream in update mode can be written: only if a new row replaces the previous row of its key."""
    if not state.primary_key:
        return False
    properties = parse_keyed_properties(state.properties, state.schema, state.partition_by)
    return properties.merge_engine in ("last_row", "versioned")


def _metadata_columns() -> list[dict[str, Any]]:
    struct = spark_versions.spark_schema_of(pa.schema(METADATA_COLUMNS))
    return [{"name": f.name, "type": f.dataType.json(), "nullable": f.nullable} for f in struct.fields]


def _estimate_size(state: TableState) -> tuple[int, int]:
    """Estimate rows and bytes of the table without reading the lake: lake rows count like log rows."""
    pin = take_latest_snapshot(state)
    rows_by_bucket = {bucket: len(offsets) for bucket, offsets in pin.hot.items()}
    for bucket, offset in (pin.lake.offsets if pin.lake else {}).items():
        rows_by_bucket[bucket] = rows_by_bucket.get(bucket, 0) + offset - state.first_offset(bucket)
    num_rows = sum(rows_by_bucket.values())
    size_bytes = sum(rows * estimate_row_bytes(state, bucket) for bucket, rows in rows_by_bucket.items())
    return num_rows, max(size_bytes, 1 if num_rows else 0)


def plan(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plan one scan.

    Raises as reads do, `InvalidOptionError` for options that the name does not support, and `CommitConflictError` if an
    UPDATE, DELETE or MERGE also reads its target elsewhere and the table changed since it was loaded.
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
        reached=None if metadata else file_systems,
        drops_rows=bool(args.get("drops_rows")),
        parallelism=cores,
    )
    groups = group_splits(
        splits,
        num_buckets=_num_groupable_buckets(request, splits, stays_keyed=bool(args.get("stays_keyed"))),
        limit=None if request.filters else args.get("limit"),
        parallelism=cores,
    )
    hot = PythonPlan(
        request.pin.name,
        tuple(request.schema.names),
        json.loads(read_schema(request.schema, request.state.schema).json()),
        metadata,
        request.options.fail_on_data_loss,
        request.filters,
        sources.common(table),
        tuple(tuple(split.piece for split in group) for _, group in groups.hot),
    )
    locations = [file.location for file in sources.lake.files] if sources.lake is not None else []
    settings = file_systems.settings_for(locations) if splits.native else []
    return {
        **groups_to_json(groups),
        "file_systems": [setting.to_json() for setting in settings],
        "lake_way": file_systems.describe(locations),
        "read": hot.to_text(),
        "skipped": request.scan.pruning.num_skipped,
        "grounds": plan_validators(request, lake),
    }


def _parse_request(connection: Connection, args: Mapping[str, Any]) -> SparkScanRequest:
    pin = QuerySnapshot.from_text(args["pin"])
    options = parse_scan_options(pin, args.get("options") or {})
    table, state = open_at_snapshot(connection, pin)
    if pin.is_rewritten and not args.get("reads_once"):
        # When a statement runs, Spark reloads all tables but the target, so they may be newer than the target. Without
        # a commit since, both are the same state.
        ReadVersion.of(state).require(table.refresh())
    hidden = METADATA_COLUMNS if pin.suffix is None and not state.primary_key else ()
    available = with_fields(hidden, _visible_columns(table, state, pin))
    schema = pa.schema([available.field(str(name)) for name in args["columns"]])
    # for no column, the cheapest one to count rows by
    read = tuple(name for name in schema.names if state.schema.find(name) is not None) or (
        narrowest_column(state.schema),
    )
    filters = tuple(args.get("filters") or ())
    # CHANGES shows other change types and times than segment statistics hold
    prunable = {c.name: c.type for c in state.schema.columns} if pin.suffix == CHANGES else column_types(state.schema)
    scan = ScanRequest(read, Pruning(parse_filters(filters, prunable)), names_rows=ROW_ID.name in schema.names)
    return SparkScanRequest(table, state, pin, options, scan, schema, filters)


def _metadata_names(request: SparkScanRequest) -> tuple[str, ...]:
    """Return the requested columns that are metadata columns, in read order."""
    if request.pin.suffix == CHANGES:
        return tuple(field.name for field in CHANGES_FIELDS if field.name in request.schema.names)
    if request.pin.suffix not in (None, CHANGELOG):
        return ()
    return tuple(name for name in METADATA_TYPES if name in request.schema.names and name != COMMIT_VERSION.name)


def _num_groupable_buckets(request: SparkScanRequest, splits: SplitPlan, *, stays_keyed: bool) -> int | None:
    """Return the number of buckets if Spark can use groups of one bucket each: it must read the bucket key."""
    key, num_buckets = _spark_bucket_key(request.state), request.state.num_buckets
    has_key = len(key) == 1 and key[0] in request.schema.names and request.pin.suffix in (None, LAKE)
    if not has_key or num_buckets == 1:
        return None
    if request.filters and not stays_keyed and len({split.bucket for split in splits.all}) <= 1:
        return None  # groups of empty buckets would be tasks without work
    return num_buckets
