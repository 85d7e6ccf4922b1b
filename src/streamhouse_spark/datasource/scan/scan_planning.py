"""Sources of a scan: the log ranges and lake files that remain after snapshot selection and pruning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.config.spark_options import ReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.read.changelog import plan_changelog
from streamhouse_spark.datasource.read.read_target import batch_ranges, is_range_read, require_complete_offsets
from streamhouse_spark.datasource.scan.query_snapshot import CHANGES, QuerySnapshot
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.log.history import require_retained_segments
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read import scan_tasks
from streamhouse_spark.read.change_feed.planning import plan_changes
from streamhouse_spark.read.offset_scan import has_lost_rows, plan_binlog_tasks, plan_range_tasks
from streamhouse_spark.read.read_snapshot import (
    ReadSnapshot,
    require_initial_snapshot,
    require_visible_snapshot,
    take_latest_snapshot,
    take_snapshot_as_of,
)
from streamhouse_spark.read.scan_planning import ScanRequest, ScanSources, plan_scan, prune_tasks, scan_lake
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.read.time_travel import has_same_columns, state_as_of
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE
from streamhouse_spark.table_handle import TableHandle

_NO_COLUMNS: Final = pa.schema([])


@dataclass(frozen=True, slots=True)
class SparkScanRequest:
    """A scan that Spark requests."""

    table: TableHandle
    state: TableState
    snapshot: QuerySnapshot
    options: ReadOptions
    scan: ScanRequest
    """The table columns to read, at least one, and the filter for pruning."""
    schema: pa.Schema = _NO_COLUMNS
    """The requested columns in Spark's order, including hidden columns; empty if Spark only counts rows."""
    filters: tuple[dict[str, Any], ...] = ()
    """All of Spark's filters as JSON. ``scan`` contains only those that can prune."""


def plan_sources(request: SparkScanRequest) -> ScanSources:
    """Return the sources of a scan. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `InvalidOptionError`."""
    snapshot, options = request.snapshot, request.options
    if snapshot.suffix == LAKE or options.as_of_lake_snapshot is not None:
        snapshot_id = _lake_snapshot_id(request)
        require_visible_snapshot(request.state, snapshot_id)
        lake = None if snapshot_id is None else scan_lake(request.table, request.state, snapshot_id, request.scan)
        require_initial_snapshot(request.state, lake.snapshot if lake is not None else None)
        return replace(_log_sources(request, ()), lake=lake)
    if snapshot.suffix == CHANGES:
        return _plan_changes_sources(request)
    if snapshot.suffix == CHANGELOG or is_range_read(options):
        return _plan_range_sources(request)
    if snapshot.suffix == BINLOG:
        return _require_files_exist(request, _log_sources(request, plan_binlog_tasks(request.state), are_exact=False))
    if snapshot.suffix is not None:
        return _log_sources(request, (scan_tasks.ViewScanTask(snapshot.suffix),), are_exact=False)
    return _union_sources(request)


def _log_sources(
    request: SparkScanRequest, pieces: Sequence[scan_tasks.ScanTask], *, are_exact: bool = True
) -> ScanSources:
    schema = request.scan.schema(request.state)
    return ScanSources(request.state, schema, tasks=tuple(pieces), are_exact=are_exact)


def _union_sources(request: SparkScanRequest) -> ScanSources:
    as_of_ms = request.options.as_of_timestamp_ms if request.snapshot.as_of_ms is None else request.snapshot.as_of_ms
    if as_of_ms is not None:
        _require_columns_of(request, as_of_ms)
        return _plan_snapshot_sources(request, take_snapshot_as_of(request.state, as_of_ms))
    latest = take_latest_snapshot(request.state)
    initial_schema = InitialSchema(
        request.scan.schema(request.state).names,
        is_chosen=request.snapshot.is_chosen or latest.lake is None,
        reader="a query of {name} whose lake snapshot was expired concurrently",
        advice="run the query again",
    )
    return read_with_fallback(
        request.table, latest, initial_schema, lambda usable: _plan_snapshot_sources(request, usable)
    )


def _require_columns_of(request: SparkScanRequest, as_of_ms: int) -> None:
    """Require that the columns at that time are the loaded columns, because a read option cannot change the columns any
    more. Raises `SchemaMismatchError`.
    """
    historical_state = state_as_of(request.table, request.state, as_of_ms)
    if not has_same_columns(historical_state.schema, request.state.schema):
        raise SchemaMismatchError(
            f"{request.snapshot.name} as of {as_of_ms} ms has the columns {', '.join(historical_state.schema.names)}, "
            f"but was loaded with the current columns {', '.join(request.state.schema.names)}; use TIMESTAMP AS OF, or "
            "asOfTimestamp with format('streamhouse')"
        )


def _plan_snapshot_sources(request: SparkScanRequest, snapshot: ReadSnapshot) -> ScanSources:
    return _require_files_exist(request, plan_scan(request.table, snapshot, request.scan))


def _require_files_exist(request: SparkScanRequest, sources: ScanSources) -> ScanSources:
    """Return the sources after checking that no segment of their tasks was deleted since the snapshot's commit."""
    segments = [segment for split in _log_splits(sources) for segment in split.segments]
    require_retained_segments(request.table.log, sources.state, segments)
    return sources


def _log_splits(sources: ScanSources) -> list[LogSplit]:
    tails = list(sources.keyed.tails) if sources.keyed is not None else []
    bases = [p.base for p in sources.tasks if isinstance(p, scan_tasks.KeyedScanTask) and p.base is not None]
    logs = (piece.rows if isinstance(piece, scan_tasks.ChangesScanTask) else piece for piece in sources.tasks)
    return [
        *tails,
        *bases,
        *(p.split for p in logs if isinstance(p, scan_tasks.LogScanTask | scan_tasks.BinlogScanTask)),
    ]


def _lake_snapshot_id(request: SparkScanRequest) -> int | None:
    options = request.options
    if options.as_of_lake_snapshot is not None:
        return options.as_of_lake_snapshot
    if options.as_of_timestamp_ms is not None:
        return request.table.open_lake().snapshot_as_of(options.as_of_timestamp_ms).id
    return request.snapshot.lake_snapshot


def _plan_changes_sources(request: SparkScanRequest) -> ScanSources:
    """Return the changes of the snapshot's commit range, with the primary key if changes are paired by it."""
    snapshot, state, pruning = request.snapshot, request.state, request.scan.pruning
    plan = plan_changes(
        request.table, state, snapshot.first, snapshot.last, pruning, is_net=snapshot.is_net, after_us=snapshot.after_us
    )
    key = state.primary_key if any(piece.key for piece in plan.tasks) else ()
    column_names = {*request.scan.schema(state).names, *key}
    schema = TableSchema(tuple(column for column in state.schema.columns if column.name in column_names))
    return _require_files_exist(request, ScanSources(plan.state, schema, tasks=plan.tasks, are_exact=False))


def _plan_range_sources(request: SparkScanRequest) -> ScanSources:
    state, options, pruning = request.state, request.options, request.scan.pruning
    if request.snapshot.suffix == CHANGELOG and has_lost_rows(state):
        plan = plan_changelog(request.table, state, options)
        return _require_files_exist(
            request, ScanSources(plan.state, request.scan.schema(state), tasks=plan.tasks, are_exact=False)
        )
    if request.snapshot.suffix != CHANGELOG:
        require_complete_offsets(state, options)
    pruned_buckets = pruning.buckets(state)
    ranges = {
        b: r
        for b, r in batch_ranges(state, options, request.table.storage).items()
        if pruned_buckets is None or b in pruned_buckets
    }
    pieces = plan_range_tasks(state, ranges, fail_on_data_loss=options.fail_on_data_loss)
    sources = _log_sources(request, list(prune_tasks(state, pieces, pruning)), are_exact=options.fail_on_data_loss)
    return _require_files_exist(request, sources)
