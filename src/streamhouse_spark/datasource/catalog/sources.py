"""What one scan reads: the parts of the log and the lake files that the pin and the filters leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from streamhouse_spark.datasource.bounds import batch_ranges
from streamhouse_spark.datasource.catalog.pins import ReadPin
from streamhouse_spark.datasource.catalog.predicate_tree import Node
from streamhouse_spark.datasource.catalog.pruning import buckets_of, file_may_match, segment_may_match
from streamhouse_spark.datasource.catalog.scan_options import is_range
from streamhouse_spark.datasource.catalog.units import (
    HotUnit,
    NativeUnit,
    lake_fraction,
    log_fraction,
    native_path,
    native_units,
)
from streamhouse_spark.datasource.pieces import (
    LakePiece,
    LogPiece,
    OffsetsPiece,
    Piece,
    ReadPlan,
    ViewPiece,
    cut_pieces,
)
from streamhouse_spark.datasource.planning import plan_ranges
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.lake.base import LakeProjection
from streamhouse_spark.lake.scan_files import LakeScan, ScanFile
from streamhouse_spark.log.actions import LakePair
from streamhouse_spark.log.history import require_kept
from streamhouse_spark.log.scan import LogSplit, plan_range
from streamhouse_spark.log.state import TableState
from streamhouse_spark.options import ReadOptions
from streamhouse_spark.pin import Pin, pin_as_of, pin_newest
from streamhouse_spark.schema import TableSchema
from streamhouse_spark.table import Table
from streamhouse_spark.views import CHANGELOG, LAKE


@dataclass(frozen=True, slots=True)
class Question:
    """What Spark asks of a scan."""

    table: Table
    state: TableState
    pin: ReadPin
    options: ReadOptions
    columns: tuple[str, ...]
    """The table's columns that have to be read; at least one."""
    with_metadata: bool
    node: Node
    native_schemes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """All that the scan has to read, not yet cut."""

    schema: TableSchema
    """Of the columns that are read."""
    files: tuple[ScanFile, ...] = ()
    """For Spark's own reader, with their paths in `paths`."""
    paths: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()
    buckets: tuple[int | None, ...] = ()
    """Of the pieces."""
    projection: LakeProjection | None = None
    log_fraction: float = 1.0
    lake_fraction: float = 1.0
    rows_are_exact: bool = True

    @property
    def size_bytes(self) -> int:
        native = sum(file.size_bytes for file in self.files) * self.lake_fraction
        return int(native + sum(piece.size_bytes * self._fraction(piece) for piece in self.pieces))

    def plan(self, table: Table) -> ReadPlan:
        """What the pieces have in common."""
        return ReadPlan(table.name, table.uuid, self.schema, (), self.projection)

    def native_units(self, target_bytes: int) -> list[NativeUnit]:
        return [
            unit
            for file, path in zip(self.files, self.paths, strict=True)
            for unit in native_units(file, path, self.lake_fraction, target_bytes)
        ]

    def hot_units(self, target_bytes: int) -> list[HotUnit]:
        units = []
        for piece, bucket in zip(self.pieces, self.buckets, strict=True):
            fraction = self._fraction(piece)
            for part in cut_pieces([piece], int(target_bytes / fraction)):
                rows, is_exact = _rows(part)
                size_bytes = max(1, int(part.size_bytes * fraction))
                units.append(HotUnit(part, bucket, rows, size_bytes, is_exact and self.rows_are_exact))
        return units

    def _fraction(self, piece: Piece) -> float:
        return self.lake_fraction if isinstance(piece, LakePiece) else self.log_fraction


def _rows(piece: Piece) -> tuple[int, bool]:
    match piece:
        case LogPiece(split):
            return split.num_rows, True
        case LakePiece(split):
            return split.num_rows, not split.position_deletes and split.row_groups is None
        case OffsetsPiece(_, offsets):
            return len(offsets), True
        case ViewPiece():
            return 1, False


def sources_of(asked: Question) -> Sources:
    """Everything that can hold rows of the answer.

    Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `InvalidOptionError`.
    """
    pin, options = asked.pin, asked.options
    if pin.suffix == LAKE or options.as_of_lake_snapshot is not None:
        return _lake(asked, _snapshot_of(asked))
    if pin.suffix == CHANGELOG or is_range(options):
        return _ranges(asked)
    if pin.suffix is not None:
        return Sources(asked.state.schema, pieces=(ViewPiece(pin.suffix),), buckets=(None,), rows_are_exact=False)
    return _union(asked)


def _snapshot_of(asked: Question) -> int | None:
    options = asked.options
    if options.as_of_lake_snapshot is not None:
        return options.as_of_lake_snapshot
    if options.as_of_timestamp_ms is not None:
        return asked.table.open_lake().snapshot_as_of(options.as_of_timestamp_ms).id
    return asked.pin.lake_snapshot


# -- the union --------------------------------------------------------------------------------------------------------


def _union(asked: Question) -> Sources:
    as_of_ms = asked.options.as_of_timestamp_ms if asked.pin.as_of_ms is None else asked.pin.as_of_ms
    pin = pin_newest(asked.state) if as_of_ms is None else pin_as_of(asked.state, as_of_ms)
    try:
        return _of_pin(asked, pin)
    except SnapshotExpiredError:
        stand_in = _stand_in(asked, is_fixed=asked.pin.is_chosen or as_of_ms is not None)
        if pin.lake is None or stand_in is None:
            raise
        return _of_pin(replace(asked, state=stand_in.state), stand_in)


def _of_pin(asked: Question, pin: Pin) -> Sources:
    hot = _hot(asked, pin)
    if pin.lake is None:
        return hot
    lake = _lake(asked, pin.lake.snapshot_id)
    return replace(
        lake, pieces=(*lake.pieces, *hot.pieces), buckets=(*lake.buckets, *hot.buckets), log_fraction=hot.log_fraction
    )


def _stand_in(asked: Question, *, is_fixed: bool) -> Pin | None:
    """Another pin, for when another engine expired the lake snapshot.

    The lake's newest snapshot and the pinned log are the same rows, as long as the snapshot holds nothing beyond the
    pinned ends. Else the newest state of the table is all that can be had, which is no answer to ``is_fixed``.
    """
    table, state = asked.table, asked.state
    newest = table.open_lake().newest()
    if newest is None:
        return None
    if (
        state.begins_at(newest.starts)
        and all(log.start <= newest.offsets.get(bucket, 0) <= log.end for bucket, log in state.buckets.items())
        and asked.pin.as_of_ms is None
        and asked.options.as_of_timestamp_ms is None
    ):
        return pin_newest(state, LakePair(newest.id, newest.offsets, newest.timestamp_ms, newest.starts))
    return None if is_fixed else table.repinned()


def _hot(asked: Question, pin: Pin) -> Sources:
    state = asked.state
    allowed = _buckets(asked)
    pieces, buckets = [], []
    for bucket, offsets in pin.hot.items():
        if allowed is not None and bucket not in allowed:
            continue
        split = _pruned(asked, plan_range(state, bucket, offsets))
        if split.segments:
            pieces.append(LogPiece(split))
            buckets.append(bucket)
    require_kept(asked.table.log, state, [s for piece in pieces for s in piece.split.segments])
    schema = state.schema.select(asked.columns)
    return Sources(
        schema, pieces=tuple(pieces), buckets=tuple(buckets), log_fraction=log_fraction(state.schema, asked.columns)
    )


def _pruned(asked: Question, split: LogSplit) -> LogSplit:
    kept = tuple(s for s in split.segments if segment_may_match(asked.state, s, split.offsets, asked.node))
    schemas = {s.schema_id: split.schemas[s.schema_id] for s in kept}
    return replace(split, segments=kept, schemas=schemas)


def _buckets(asked: Question) -> frozenset[int] | None:
    key = asked.table.properties.bucket_key
    column = asked.state.schema.find(key[0]) if len(key) == 1 else None
    return buckets_of(asked.node, column, asked.state.num_buckets)


# -- the lake ---------------------------------------------------------------------------------------------------------


def _lake(asked: Question, snapshot_id: int | None) -> Sources:
    schema = asked.state.schema
    if snapshot_id is None:
        return Sources(schema.select(asked.columns))
    named = [column.name for column in schema.columns if column.name in asked.node.columns()]
    scan = asked.table.open_lake().scan_files(
        snapshot_id=snapshot_id, columns=asked.columns, schema=schema, statistics_of=named
    )
    allowed = _buckets(asked)
    files = [
        file
        for file in scan.files
        if (allowed is None or file.bucket is None or file.bucket in allowed)
        and file_may_match(file, schema, asked.node)
    ]
    path_of = _native_paths(asked, scan)
    native = [(file, path) for file in files if (path := path_of(file)) is not None]
    others = [(file.bucket, split) for file in files if path_of(file) is None for split in file.splits()]
    return Sources(
        scan.projection.schema,
        tuple(file for file, _ in native),
        tuple(path for _, path in native),
        tuple(LakePiece(split) for _, split in others),
        tuple(bucket for bucket, _ in others),
        scan.projection,
        lake_fraction=lake_fraction(files, schema, asked.columns),
    )


def _native_paths(asked: Question, scan: LakeScan) -> Callable[[ScanFile], str | None]:
    """File → its URI, where Spark's own reader gives exactly our rows of it."""
    same = all(name in scan.same_by_name for name in asked.columns)

    def path_of(file: ScanFile) -> str | None:
        if not same or asked.with_metadata or file.position_deletes:
            return None
        return native_path(file.location, asked.native_schemes)

    return path_of


# -- ranges -----------------------------------------------------------------------------------------------------------


def _ranges(asked: Question) -> Sources:
    state, options = asked.state, asked.options
    allowed = _buckets(asked)
    ranges = {b: r for b, r in batch_ranges(state, options).items() if allowed is None or b in allowed}
    plan = plan_ranges(asked.table, ranges, asked.columns, fail_on_data_loss=options.fail_on_data_loss, state=state)
    pieces = list(_pruned_pieces(asked, plan.pieces))
    require_kept(asked.table.log, state, [s for p in pieces if isinstance(p, LogPiece) for s in p.split.segments])
    return Sources(
        plan.schema,
        pieces=tuple(pieces),
        buckets=tuple(_bucket(piece) for piece in pieces),
        log_fraction=log_fraction(state.schema, asked.columns),
        rows_are_exact=options.fail_on_data_loss,
    )


def _pruned_pieces(asked: Question, pieces: Sequence[Piece]) -> Iterable[Piece]:
    for piece in pieces:
        if not isinstance(piece, LogPiece):
            yield piece
        elif (split := _pruned(asked, piece.split)).segments:
            yield LogPiece(split)


def _bucket(piece: Piece) -> int | None:
    match piece:
        case LogPiece(split):
            return split.bucket
        case OffsetsPiece(bucket, _):
            return bucket
    return None
