"""The work of a read's tasks: pieces that travel as JSON, and their packing into Spark partitions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from pyspark.sql.datasource import InputPartition

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit
from streamhouse_spark.log.segments.scan import LogSplit, cut_split
from streamhouse_spark.schema.table_schema import TableSchema

TARGET_BYTES_MIN = 8 << 20
TARGET_BYTES_MAX = 128 << 20
OPENING_BYTES = 256 << 10
"""Cost of opening one more file, in bytes read instead, so that many tiny files still make several tasks."""
LAKE_RANGE_ROWS = 1 << 20
"""Offsets that one piece reads back from the lake, whose bytes are not known beforehand."""


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=Sized)


@dataclass(frozen=True, slots=True)
class LogPiece:
    split: LogSplit

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "log", "split": self.split.to_json()}


@dataclass(frozen=True, slots=True)
class LakePiece:
    split: LakeSplit
    bucket: int | None = None
    """Bucket of all its rows, if known."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "lake", "split": self.split.to_json(), "bucket": self.bucket}


@dataclass(frozen=True, slots=True)
class OffsetsPiece:
    """A log range that was trimmed from the hot log and is read from the lake."""

    bucket: int
    offsets: OffsetRange
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "offsets",
            "bucket": self.bucket,
            "offsets": [self.offsets.start, self.offsets.end],
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class KeyedPiece:
    """Rows of a table with a primary key that need its newest changes to be read.

    With ``lake`` or ``base``, the rows of that part of a lake file, or of a snapshot by key, whose keys no change
    names; without either, the rows that the changes of the bucket leave.
    """

    bucket: int | None
    """None for a lake file whose bucket is unknown: the changes of all buckets count."""
    lake: LakeSplit | None
    size_bytes: int
    base: LogSplit | None = None

    @property
    def is_of_changes(self) -> bool:
        """Whether the piece has the rows that the changes leave, not older rows under them."""
        return self.lake is None and self.base is None

    def to_json(self) -> dict[str, Any]:
        lake = self.lake.to_json() if self.lake else None
        base = self.base.to_json() if self.base else None
        return {"kind": "keyed", "bucket": self.bucket, "lake": lake, "size_bytes": self.size_bytes, "base": base}


@dataclass(frozen=True, slots=True)
class StartPiece:
    """Rows of a snapshot by key that a stream of changes begins with."""

    split: LogSplit
    offset: int
    """The rows are those before this offset of the bucket."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "start", "split": self.split.to_json(), "offset": self.offset}


@dataclass(frozen=True, slots=True)
class BinlogPiece:
    """All changes of a bucket in the form of ``$binlog``: in one piece, because an update is two rows of the log."""

    split: LogSplit
    schema: TableSchema
    """All columns of the table."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "binlog", "split": self.split.to_json(), "schema": self.schema.to_json()}


@dataclass(frozen=True, slots=True)
class ViewPiece:
    """A whole system or metadata table."""

    suffix: str
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"kind": "view", "suffix": self.suffix}


Piece = LogPiece | LakePiece | OffsetsPiece | KeyedPiece | StartPiece | BinlogPiece | ViewPiece


def piece_from_json(data: Mapping[str, Any]) -> Piece:
    match data["kind"]:
        case "log":
            return LogPiece(LogSplit.from_json(data["split"]))
        case "lake":
            return LakePiece(LakeSplit.from_json(data["split"]), data["bucket"])
        case "offsets":
            return OffsetsPiece(data["bucket"], OffsetRange(*data["offsets"]), data["size_bytes"])
        case "keyed":
            lake = LakeSplit.from_json(data["lake"]) if data["lake"] else None
            base = LogSplit.from_json(data["base"]) if data["base"] else None
            return KeyedPiece(data["bucket"], lake, data["size_bytes"], base)
        case "start":
            return StartPiece(LogSplit.from_json(data["split"]), data["offset"])
        case "binlog":
            return BinlogPiece(LogSplit.from_json(data["split"]), TableSchema.from_json(data["schema"]))
        case _:
            return ViewPiece(data["suffix"])


@dataclass(frozen=True, slots=True)
class KeyedColumns:
    """The columns for reading a table with a primary key, besides those asked for."""

    schema: TableSchema
    """Columns to read of lake files and of changes: the wanted ones and those of the primary key."""
    key: tuple[str, ...]
    tails: tuple[LogSplit, ...]
    """The changes that the lake snapshot does not hold, of each bucket with some."""
    history: str | None = None
    """Attempt of the newest record behind them: offsets of a table that was restored may hold other rows. None if
    unknown."""

    def of_pieces(self, pieces: Sequence[Piece]) -> KeyedColumns:
        """Return the columns without the changes that these pieces do not need."""
        buckets = {piece.bucket for piece in pieces if isinstance(piece, KeyedPiece)}
        needed = tuple(tail for tail in self.tails if None in buckets or tail.bucket in buckets)
        return replace(self, tails=needed)

    def to_json(self) -> dict[str, Any]:
        tails = [tail.to_json() for tail in self.tails]
        return {"schema": self.schema.to_json(), "key": list(self.key), "tails": tails, "history": self.history}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KeyedColumns:
        tails = tuple(LogSplit.from_json(tail) for tail in data["tails"])
        return cls(TableSchema.from_json(data["schema"]), tuple(data["key"]), tails, data["history"])


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All pieces of one read, from one state of the table, and their common facts."""

    table: str
    table_uuid: str
    schema: TableSchema
    """The table's columns that are read, in the order of the result."""
    pieces: tuple[Piece, ...]
    projection: LakeProjection | None = None
    """The identity of these columns, or those of ``keyed``, in lake files; set if there are lake pieces."""
    keyed: KeyedColumns | None = None
    """Set for the rows of a table with a primary key."""
    binlog_start: int | None = None
    """For ``$binlog``: the pieces are of one bucket and hold its changes from this offset on, perhaps one before it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "uuid": self.table_uuid,
            "schema": self.schema.to_json(),
            "pieces": [piece.to_json() for piece in self.pieces],
            "projection": self.projection.to_json() if self.projection else None,
            "keyed": self.keyed.to_json() if self.keyed else None,
            "binlog_start": self.binlog_start,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReadPlan:
        projection = data["projection"]
        return cls(
            data["table"],
            data["uuid"],
            TableSchema.from_json(data["schema"]),
            tuple(piece_from_json(piece) for piece in data["pieces"]),
            LakeProjection.from_json(projection) if projection is not None else None,
            KeyedColumns.from_json(data["keyed"]) if data["keyed"] is not None else None,
            data["binlog_start"],
        )

    def with_pieces(self, pieces: Sequence[Piece]) -> ReadPlan:
        keyed = self.keyed.of_pieces(pieces) if self.keyed else None
        return replace(self, pieces=tuple(pieces), keyed=keyed)


class TablePartition(InputPartition):
    """The part of a plan that one task reads, as JSON text. Holds no settings."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(json.dumps(plan.to_json(), separators=(",", ":")))

    def plan(self) -> ReadPlan:
        return ReadPlan.from_json(json.loads(self.value))

    def __repr__(self) -> str:
        return f"TablePartition({len(self.value)} bytes)"


def partitions(plan: ReadPlan, parallelism: int | None = None) -> list[InputPartition]:
    """Pack the plan into Spark partitions of about equal size: large pieces are cut, small neighbours share one."""
    target_bytes = partition_bytes(plan.pieces, parallelism or os.cpu_count() or 1)
    groups = joined_by_changes(packed(list(cut_pieces(plan.pieces, target_bytes)), target_bytes), lambda piece: piece)
    return [TablePartition(plan.with_pieces(group)) for group in groups] or [TablePartition(plan)]


def binlog_partitions(plan: ReadPlan, starts: Mapping[int, int]) -> list[InputPartition]:
    """Make a partition for each bucket, because an update is two rows of the log that must not be torn apart."""
    found: list[InputPartition] = []
    for bucket, start in starts.items():
        pieces = [piece for piece in plan.pieces if isinstance(piece, LogPiece) and piece.split.bucket == bucket]
        found.append(TablePartition(replace(plan.with_pieces(pieces), binlog_start=start)))
    return found or [TablePartition(plan)]


def partition_bytes(pieces: Iterable[Sized], parallelism: int) -> int:
    """Return the size of a partition, so that every core has about two."""
    total_bytes = sum(piece.size_bytes + OPENING_BYTES for piece in pieces)
    return min(max(total_bytes // (2 * parallelism), TARGET_BYTES_MIN), TARGET_BYTES_MAX)


def cut_pieces(pieces: Iterable[Piece], target_bytes: int) -> Iterable[Piece]:
    """Return the pieces, with large ones of the log in parts."""
    for piece in pieces:
        if isinstance(piece, LogPiece | StartPiece) and piece.size_bytes > target_bytes * 3 // 2:
            yield from (replace(piece, split=split) for split in cut_split(piece.split, target_bytes))
        else:
            yield piece


def packed(pieces: Sequence[S], target_bytes: int) -> Iterable[list[S]]:
    """Return runs of neighbours of about equal size, none much larger than the target unless one piece is."""
    sizes_bytes = [piece.size_bytes + OPENING_BYTES for piece in pieces]
    total_bytes = sum(sizes_bytes)
    share_bytes = total_bytes / max(1, round(total_bytes / target_bytes))
    groups: dict[int, list[S]] = {}
    before_bytes = 0
    for piece, size_bytes in zip(pieces, sizes_bytes, strict=True):
        groups.setdefault(int((before_bytes + size_bytes / 2) / share_bytes), []).append(piece)
        before_bytes += size_bytes
    return groups.values()


def joined_by_changes(groups: Iterable[list[S]], piece_of: Callable[[S], Piece]) -> list[list[S]]:
    """Join groups of neighbours at borders inside a bucket: pieces on both sides go to one side, if a side has fewer
    bytes of a bucket than the bucket's changes, which each side would collapse.

    So however many groups a bucket is in, they read at most as many bytes of its changes as of its older rows.
    """
    groups = [list(group) for group in groups]
    changes: dict[int | None, int] = {}
    for one in (one for group in groups for one in group):
        piece = piece_of(one)
        if isinstance(piece, KeyedPiece) and piece.is_of_changes:
            changes[piece.bucket] = changes.get(piece.bucket, 0) + one.size_bytes
    changes[None] = sum(changes.values())
    joined: list[list[S]] = groups[:1]
    for group in groups[1:]:
        held, here = _older_bytes(joined[-1], piece_of), _older_bytes(group, piece_of)
        moving = {b for b in held.keys() & here.keys() if min(held[b], here[b]) < changes.get(b, 0)}
        rest: list[S] = []
        for one in group:
            piece = piece_of(one)
            (joined[-1] if isinstance(piece, KeyedPiece) and piece.bucket in moving else rest).append(one)
        if rest:
            joined.append(rest)
    return joined


def _older_bytes(group: Sequence[S], piece_of: Callable[[S], Piece]) -> dict[int | None, int]:
    """Return bucket → bytes of its older rows, for every bucket whose changes the group needs."""
    found: dict[int | None, int] = {}
    for one in group:
        piece = piece_of(one)
        if isinstance(piece, KeyedPiece):
            found[piece.bucket] = found.get(piece.bucket, 0) + (0 if piece.is_of_changes else one.size_bytes)
    return found


def lake_ranges(bucket: int, offsets: OffsetRange, row_bytes: int) -> list[Piece]:
    """Return pieces that read a trimmed range back from the lake."""
    starts = range(offsets.start, offsets.end, LAKE_RANGE_ROWS)
    parts = [OffsetRange(start, min(start + LAKE_RANGE_ROWS, offsets.end)) for start in starts]
    return [OffsetsPiece(bucket, part, len(part) * row_bytes) for part in parts]
