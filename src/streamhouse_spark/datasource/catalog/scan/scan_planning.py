"""The sources of one scan: the parts of the log and the lake files that its pin and its filters leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from streamhouse_spark.config.spark_options import ReadOptions
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.catalog.scan.options import is_range
from streamhouse_spark.datasource.catalog.scan.query_snapshot import CHANGES, QuerySnapshot
from streamhouse_spark.datasource.read.changelog import plan_changelog
from streamhouse_spark.datasource.read.offset_resolution import batch_ranges, require_offsets_of_all
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.history import require_kept
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.query.predicates import Node
from streamhouse_spark.read.branch_visibility import require_found, require_visible
from streamhouse_spark.read.change_feed.commit_changes import plan_changes
from streamhouse_spark.read.delete_filter import has_lost_rows
from streamhouse_spark.read.historical_schema import same_columns, state_of_time
from streamhouse_spark.read.offset_range_scan import binlog_pieces, range_pieces
from streamhouse_spark.read.planner import Pruning, ScanRequest, Sources, plan_pin, prune_tasks, scan_lake
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot, take_snapshot_as_of
from streamhouse_spark.read.scan_tasks import (
    ArchiveScanTask,
    BinlogScanTask,
    ChangesScanTask,
    KeyedScanTask,
    LogScanTask,
    OffsetsScanTask,
    Piece,
    ViewScanTask,
)
from streamhouse_spark.read.snapshot_fallback import InitialSchema, with_stand_ins
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE


@dataclass(frozen=True, slots=True)
class SparkScanRequest:
    """The parameters of a scan, as Spark gives them."""

    table: TableHandle
    state: TableState
    pin: QuerySnapshot
    options: ReadOptions
    columns: tuple[str, ...]
    """The table's columns to read; at least one."""
    node: Node
    statistics_of: tuple[str, ...] = ()
    """Columns whose statistics are wanted of lake files, besides those of the filters."""
    left_out: list[Segment] = field(default_factory=list, compare=False)
    """The segments that the filter left out."""
    names_rows: bool = False
    """Whether the identities of rows are read."""

    @property
    def pruning(self) -> Pruning:
        return Pruning(self.node, self.left_out)

    @property
    def wanted(self) -> ScanRequest:
        return ScanRequest(self.columns, self.pruning, self.statistics_of, self.names_rows)


def sources_of(asked: SparkScanRequest) -> Sources:
    """Return the sources of a scan. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `InvalidOptionError`."""
    pin, options = asked.pin, asked.options
    if pin.suffix == LAKE or options.as_of_lake_snapshot is not None:
        snapshot_id = _snapshot_of(asked)
        require_visible(asked.state, snapshot_id)
        lake = None if snapshot_id is None else scan_lake(asked.table, asked.state, snapshot_id, asked.wanted)
        require_found(asked.state, lake.snapshot if lake is not None else None)
        return replace(_of_log(asked, ()), lake=lake)
    if pin.suffix == CHANGES:
        return _changes(asked)
    if pin.suffix == CHANGELOG or is_range(options):
        return _ranges(asked)
    if pin.suffix == BINLOG:
        return _require_files_exist(asked, _of_log(asked, binlog_pieces(asked.state), are_exact=False))
    if pin.suffix is not None:
        return _of_log(asked, (ViewScanTask(pin.suffix),), are_exact=False)
    return _union(asked)


def bucket_of(piece: Piece) -> int | None:
    match piece:
        case LogScanTask(split) | BinlogScanTask(split):
            return split.bucket
        case OffsetsScanTask(bucket, _) | ArchiveScanTask(bucket, _, _):
            return bucket
        case KeyedScanTask(bucket):
            return bucket
        case ChangesScanTask():
            return piece.bucket
    return None


def _of_log(asked: SparkScanRequest, pieces: Sequence[Piece], *, are_exact: bool = True) -> Sources:
    schema = asked.wanted.schema(asked.state)
    return Sources(asked.state, schema, pieces=tuple(pieces), are_exact=are_exact)


def _union(asked: SparkScanRequest) -> Sources:
    as_of_ms = asked.options.as_of_timestamp_ms if asked.pin.as_of_ms is None else asked.pin.as_of_ms
    if as_of_ms is not None:
        _require_columns_of(asked, as_of_ms)
        return _of_pin(asked, take_snapshot_as_of(asked.state, as_of_ms))
    pin = take_latest_snapshot(asked.state)
    begun = InitialSchema(
        asked.columns,
        is_chosen=asked.pin.is_chosen or pin.lake is None,
        reader="a query of {name} whose lake snapshot was expired meanwhile",
        advice="run the query again",
    )
    return with_stand_ins(asked.table, pin, begun, lambda found: _of_pin(asked, found))


def _require_columns_of(asked: SparkScanRequest, as_of_ms: int) -> None:
    """Require that the name was loaded with the columns of that time: an option of a read comes too late for that."""
    then = state_of_time(asked.table, asked.state, as_of_ms)
    if not same_columns(then.schema, asked.state.schema):
        raise SchemaMismatchError(
            f"{asked.pin.name} as of {as_of_ms} ms has the columns {', '.join(then.schema.names)}, and was loaded with "
            f"those of today, {', '.join(asked.state.schema.names)}; in place of the option asOfTimestamp use "
            "TIMESTAMP AS OF, or the option with format('streamhouse')"
        )


def _of_pin(asked: SparkScanRequest, pin: ReadSnapshot) -> Sources:
    return _require_files_exist(asked, plan_pin(asked.table, pin, asked.wanted))


def _require_files_exist(asked: SparkScanRequest, found: Sources) -> Sources:
    """The sources, once it is seen that no file of the log's pieces was deleted since the pinned commit."""
    segments = [segment for split in _splits(found) for segment in split.segments]
    require_kept(asked.table.log, found.state, segments)
    return found


def _splits(found: Sources) -> list[LogSplit]:
    tails = list(found.keyed.tails) if found.keyed is not None else []
    bases = [p.base for p in found.pieces if isinstance(p, KeyedScanTask) and p.base is not None]
    logs = (piece.rows if isinstance(piece, ChangesScanTask) else piece for piece in found.pieces)
    return [*tails, *bases, *(p.split for p in logs if isinstance(p, LogScanTask | BinlogScanTask))]


def _snapshot_of(asked: SparkScanRequest) -> int | None:
    options = asked.options
    if options.as_of_lake_snapshot is not None:
        return options.as_of_lake_snapshot
    if options.as_of_timestamp_ms is not None:
        return asked.table.open_lake().snapshot_as_of(options.as_of_timestamp_ms).id
    return asked.pin.lake_snapshot


def _changes(asked: SparkScanRequest) -> Sources:
    """The changes of the pinned range; with the primary key, where they are told apart by it."""
    pin, state, pruning = asked.pin, asked.state, asked.wanted.pruning
    plan = plan_changes(asked.table, state, pin.first, pin.last, pruning, is_net=pin.is_net, after_us=pin.after_us)
    key = state.primary_key if any(piece.key for piece in plan.pieces) else ()
    wanted = {*asked.columns, *key}
    schema = TableSchema(tuple(column for column in state.schema.columns if column.name in wanted))
    return _require_files_exist(asked, Sources(plan.state, schema, pieces=plan.pieces, are_exact=False))


def _ranges(asked: SparkScanRequest) -> Sources:
    state, options, pruning = asked.state, asked.options, asked.wanted.pruning
    if asked.pin.suffix == CHANGELOG and has_lost_rows(state):
        plan = plan_changelog(asked.table, state, options)
        return _require_files_exist(
            asked, Sources(plan.state, asked.wanted.schema(state), pieces=plan.pieces, are_exact=False)
        )
    if asked.pin.suffix != CHANGELOG:
        require_offsets_of_all(state, options)
    allowed = pruning.buckets(state)
    ranges = {
        b: r for b, r in batch_ranges(state, options, asked.table.storage).items() if allowed is None or b in allowed
    }
    pieces = range_pieces(state, ranges, fail_on_data_loss=options.fail_on_data_loss)
    found = _of_log(asked, list(prune_tasks(state, pieces, pruning)), are_exact=options.fail_on_data_loss)
    return _require_files_exist(asked, found)
