"""The sources of one scan: the parts of the log and the lake files that its pin and its filters leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from streamhouse_spark.config.spark_options import ReadOptions
from streamhouse_spark.datasource.catalog.scan.options import is_range
from streamhouse_spark.datasource.catalog.scan.pruning import buckets_of, file_may_match, segment_may_match
from streamhouse_spark.datasource.catalog.scan.query_pin import ReadPin
from streamhouse_spark.datasource.read.bounds import batch_ranges, require_offsets_of_all
from streamhouse_spark.datasource.read.keyed_planning import keyed_columns, keyed_pieces
from streamhouse_spark.datasource.read.pieces import (
    BinlogPiece,
    KeyedColumns,
    KeyedPiece,
    LogPiece,
    OffsetsPiece,
    Piece,
    ViewPiece,
)
from streamhouse_spark.datasource.read.planning import binlog_pieces, plan_ranges
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.lake.history import require_dropped, require_of_history
from streamhouse_spark.lake.model.scan_files import LakeScan
from streamhouse_spark.log.commits.actions import LakePair
from streamhouse_spark.log.commits.history import require_kept
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, snapshot_split
from streamhouse_spark.query.predicate_tree import Node
from streamhouse_spark.read.pin import Pin, pin_as_of, pin_newest, require_recorded
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.views import BINLOG, CHANGELOG, LAKE


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a scan, as Spark gives them."""

    table: Table
    state: TableState
    pin: ReadPin
    options: ReadOptions
    columns: tuple[str, ...]
    """The table's columns to read; at least one."""
    node: Node
    statistics_of: tuple[str, ...] = ()
    """Columns whose statistics are wanted of lake files, besides those of the filters."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that can hold rows of the answer, each row once."""

    state: TableState
    lake: LakeScan | None = None
    """The lake's scan with the files that the filters leave."""
    pieces: tuple[Piece, ...] = ()
    """Pieces of the log, or of a view."""
    are_exact: bool = True
    """Whether exactly the rows of the pieces are read, unless reading fails."""
    keyed: KeyedColumns | None = None
    """Set for the rows of a table with a primary key."""


def sources_of(asked: Question) -> Sources:
    """Return the sources of a scan. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `InvalidOptionError`."""
    pin, options = asked.pin, asked.options
    if pin.suffix == LAKE or options.as_of_lake_snapshot is not None:
        snapshot_id = _snapshot_of(asked)
        return Sources(asked.state, None if snapshot_id is None else _lake(asked, snapshot_id))
    if pin.suffix == CHANGELOG or is_range(options):
        return _ranges(asked)
    if pin.suffix == BINLOG:
        pieces = binlog_pieces(asked.state)
        require_kept(asked.table.log, asked.state, [s for piece in pieces for s in piece.split.segments])
        return Sources(asked.state, pieces=pieces, are_exact=False)
    if pin.suffix is not None:
        return Sources(asked.state, pieces=(ViewPiece(pin.suffix),), are_exact=False)
    return _union(asked)


def bucket_of(piece: Piece) -> int | None:
    match piece:
        case LogPiece(split) | BinlogPiece(split):
            return split.bucket
        case OffsetsPiece(bucket, _):
            return bucket
        case KeyedPiece(bucket):
            return bucket
    return None


# -- the union --------------------------------------------------------------------------------------------------------


def _union(asked: Question) -> Sources:
    as_of_ms = asked.options.as_of_timestamp_ms if asked.pin.as_of_ms is None else asked.pin.as_of_ms
    pin = pin_newest(asked.state) if as_of_ms is None else pin_as_of(asked.state, as_of_ms)
    try:
        return _of_pin(asked, pin)
    except SnapshotExpiredError:
        stand_in = None if pin.lake is None or as_of_ms is not None else _stand_in(asked)
        if stand_in is None:
            raise
        return _of_pin(replace(asked, state=stand_in.state), stand_in)


def _of_pin(asked: Question, pin: Pin) -> Sources:
    if asked.state.primary_key:
        return _keyed(asked, pin)
    lake = None
    if pin.lake is not None:
        lake = _lake(asked, pin.lake.snapshot_id)
        require_recorded(asked.state, pin.lake, lake.snapshot)
    return Sources(asked.state, lake, _hot(asked, pin))


def _keyed(asked: Question, pin: Pin) -> Sources:
    """Return the sources of a table with a primary key. Lake files of buckets without newer changes stay files, which
    Spark may read itself.
    """
    allowed = _buckets(asked)
    hot = {b: offsets for b, offsets in pin.hot.items() if allowed is None or b in allowed}
    keyed = keyed_columns(asked.state, asked.columns, hot)
    require_kept(asked.table.log, asked.state, [s for tail in keyed.tails for s in tail.segments])
    scan = None
    if pin.lake is not None:
        scan = _lake(replace(asked, columns=keyed.schema.names), pin.lake.snapshot_id)
    bases = [snapshot_split(asked.state, base) for b, base in pin.bases.items() if allowed is None or b in allowed]
    require_kept(asked.table.log, asked.state, [s for base in bases for s in base.segments])
    if scan is None or not keyed.tails:
        pieces = tuple(keyed_pieces((), keyed.tails, bases))
        return Sources(asked.state, scan, pieces, are_exact=not keyed.tails, keyed=keyed)
    changed = {tail.bucket for tail in keyed.tails}
    as_they_are = tuple(file for file in scan.files if file.bucket is not None and file.bucket not in changed)
    others = [file for file in scan.files if file not in as_they_are]
    pieces = tuple(keyed_pieces(others, keyed.tails))
    return Sources(asked.state, replace(scan, files=as_they_are), pieces, are_exact=False, keyed=keyed)


def _stand_in(asked: Question) -> Pin | None:
    """Return another pin, for use after another engine expired the lake snapshot.

    The lake's newest snapshot and the pinned log are the same rows as long as the snapshot holds nothing beyond the
    pinned ends, and no partition was dropped since. Else only the newest state of the table can be read, which must not
    replace a chosen one.
    """
    table, state = asked.table, asked.state
    newest = table.open_lake().newest()
    require_of_history(table.log, newest)
    require_dropped(state, newest)
    if newest is None or not newest.offsets:  # its part of the log is unknown
        return None
    within = all(log.start <= newest.offsets.get(b, 0) <= log.end for b, log in state.buckets.items())
    is_whole = state.lake is not None and newest.dropped_rows == state.lake.dropped_rows
    if within and is_whole and state.begins_at(newest.starts):
        return pin_newest(state, LakePair(newest.id, newest.offsets, newest.timestamp_ms, newest.starts))
    if asked.pin.is_chosen:
        return None
    stand_in = table.repinned()
    who = f"a query of {state.name} whose lake snapshot was expired meanwhile"
    require_same_columns(state.schema, stand_in.state.schema, asked.columns, who, "run the query again")
    return stand_in


def _hot(asked: Question, pin: Pin) -> tuple[Piece, ...]:
    allowed = _buckets(asked)
    wanted = {b: offsets for b, offsets in pin.hot.items() if allowed is None or b in allowed}
    splits = [_pruned(asked, plan_range(asked.state, bucket, offsets)) for bucket, offsets in wanted.items()]
    return _kept(asked, [LogPiece(split) for split in splits if split.segments])


def _kept(asked: Question, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the pieces, after checking that no file of theirs was deleted since the pinned commit."""
    segments = [s for piece in pieces if isinstance(piece, LogPiece) for s in piece.split.segments]
    require_kept(asked.table.log, asked.state, segments)
    return tuple(pieces)


def _pruned(asked: Question, split: LogSplit) -> LogSplit:
    kept = tuple(s for s in split.segments if segment_may_match(asked.state, s, split.offsets, asked.node))
    return replace(split, segments=kept, schemas={s.schema_id: split.schemas[s.schema_id] for s in kept})


def _buckets(asked: Question) -> frozenset[int] | None:
    state = asked.state  # in which the key may have another name than now
    properties = state.parsed
    key = properties.bucket_key
    column = state.schema.find(key[0]) if len(key) == 1 else None
    return buckets_of(asked.node, column, asked.state.num_buckets, properties.datalake_format)


# -- the lake ---------------------------------------------------------------------------------------------------------


def _snapshot_of(asked: Question) -> int | None:
    options = asked.options
    if options.as_of_lake_snapshot is not None:
        return options.as_of_lake_snapshot
    if options.as_of_timestamp_ms is not None:
        return asked.table.open_lake().snapshot_as_of(options.as_of_timestamp_ms).id
    return asked.pin.lake_snapshot


def _lake(asked: Question, snapshot_id: int) -> LakeScan:
    schema = asked.state.schema
    looked_at = {*asked.node.columns(), *asked.statistics_of}
    scan = asked.table.open_lake().scan_files(
        snapshot_id=snapshot_id,
        columns=asked.columns,
        schema=schema,
        statistics_of=[name for name in schema.names if name in looked_at],
    )
    allowed = _buckets(asked)
    files = tuple(
        file
        for file in scan.files
        if (allowed is None or file.bucket is None or file.bucket in allowed)
        and file_may_match(file, schema, asked.node)
    )
    return replace(scan, files=files)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _ranges(asked: Question) -> Sources:
    state, options = asked.state, asked.options
    if asked.pin.suffix != CHANGELOG:
        require_offsets_of_all(state, options)
    allowed = _buckets(asked)
    ranges = {b: r for b, r in batch_ranges(state, options).items() if allowed is None or b in allowed}
    plan = plan_ranges(asked.table, state, ranges, asked.columns, fail_on_data_loss=options.fail_on_data_loss)
    pieces = _kept(asked, list(_pruned_pieces(asked, plan.pieces)))
    return Sources(state, None, pieces, are_exact=options.fail_on_data_loss)


def _pruned_pieces(asked: Question, pieces: Sequence[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if not isinstance(piece, LogPiece):
            yield piece
        elif (split := _pruned(asked, piece.split)).segments:
            yield LogPiece(split)
