"""`Segment`: adjacent rows of one bucket, as one immutable Arrow object or inline in a commit record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CorruptDataError

BLOCK_BYTES_MIN = 1 << 16
BLOCKS_MAX = 4096
UNPACKED_FACTOR = 8
UNPACKED_ROW_BYTES = 64
"""Estimate of the memory size of a compressed segment without a recorded size: a multiple of its size, or of its
rows.
"""
Stats = Mapping[str, list[Any]]
"""Column → ``[min, max, null count]`` in JSON form; columns without statistics are absent."""


def block_bytes_for(size_bytes: int) -> int:
    """Return the size of checksum blocks for a segment of about this size: at least 64 KiB, for at most 4096 blocks.

    A read verifies whole blocks around each buffer. For two of 16 columns it reads a fifth less with 64 KiB than with
    256 KiB.
    """
    block_bytes = BLOCK_BYTES_MIN
    while block_bytes * BLOCKS_MAX < size_bytes:
        block_bytes *= 2
    return block_bytes


@dataclass(frozen=True)
class SegmentIndex:
    """The metadata that a reader needs before it opens the object.

    ``batch_starts[i]`` is the byte position of record batch ``i``; 0 for the first batch, which follows the schema.
    ``batch_rows[i]`` is its number of rows. ``block_sums[j]`` is the XXH3-64 of bytes ``[j * block_bytes, (j + 1) *
    block_bytes)`` of the object. Rows from relative offset ``time_starts[k]`` were committed at ``times_ms[k]``.
    """

    block_bytes: int
    batch_starts: npt.NDArray[np.int64]
    batch_rows: npt.NDArray[np.int64]
    block_sums: npt.NDArray[np.uint64]
    time_starts: npt.NDArray[np.int64]
    times_ms: npt.NDArray[np.int64]

    def to_bytes(self) -> bytes:
        sizes = np.array([self.block_bytes, len(self.batch_starts), len(self.block_sums), len(self.times_ms)], "<i8")
        columns = (self.batch_starts, self.batch_rows, self.block_sums.view("<i8"), self.time_starts, self.times_ms)
        return b"".join(np.asarray(a, "<i8").tobytes() for a in (sizes, *columns))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> SegmentIndex:
        words = np.frombuffer(data, "<i8")
        if len(words) < 4 or 4 + 2 * words[1] + words[2] + 2 * words[3] != len(words):
            raise CorruptDataError(
                f"a segment index of {len(words) * 8} bytes has the wrong length; restore the record"
            )
        batches, blocks, times = (int(n) for n in words[1:4])
        sums = 4 + 2 * batches
        ends = sums + blocks
        return cls(
            block_bytes=int(words[0]),
            batch_starts=words[4 : 4 + batches],
            batch_rows=words[4 + batches : sums],
            block_sums=words[sums:ends].view("<u8"),
            time_starts=words[ends : ends + times],
            times_ms=words[ends + times :],
        )

    @cached_property
    def batch_row_starts(self) -> npt.NDArray[np.int64]:
        """Relative offset of each batch's first row, followed by the number of rows."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.batch_rows)])


@dataclass(frozen=True)
class Segment:
    """Rows ``[base_offset, base_offset + num_rows)`` of a bucket.

    The rows are in the object ``segments/<uuid>.arrow``, or in ``size_bytes`` bytes of a shared object that start at
    byte ``part``, or inline in the bytes ``inline`` of the payload of commit record ``commit``. A staged segment has
    ``base_offset`` 0 and ``commit`` 0; committing sets both.
    """

    bucket: int
    base_offset: int
    num_rows: int
    size_bytes: int
    schema_id: int
    commit: int
    first_time_ms: int
    last_time_ms: int
    uuid: str | None = None
    inline: tuple[int, int] | None = None
    part: int | None = None
    """Byte position in an object that several segments share; None for a separate object."""
    compressed: bool = False
    stats: Stats | None = None
    partitions: tuple[tuple[Any, ...], ...] | None = None
    """Distinct partition values of the rows in JSON form, if they are few."""
    index_bytes: bytes = b""
    unpacked_bytes: int | None = None
    """Bytes of the rows of a compressed segment in memory; None if an older version of this package wrote it."""
    rewrites: bool = False
    """Whether some of the rows are changes of an UPDATE, DELETE or MERGE, which read the table."""
    updated: tuple[tuple[int, int], ...] = ()
    """Rows ``[first, last)`` of the segment that are after-images of updates of a log table."""

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes of the rows in memory, for memory limits."""
        if not self.compressed:
            return self.size_bytes
        if self.unpacked_bytes is not None:
            return self.unpacked_bytes
        return max(UNPACKED_FACTOR * self.size_bytes, UNPACKED_ROW_BYTES * self.num_rows)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.num_rows

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.base_offset, self.end_offset)

    @cached_property
    def updated_rows(self) -> OffsetSet:
        """The offsets of after-images of updates."""
        bounds = np.array(self.updated, np.int64).reshape(-1, 2)
        return OffsetSet(bounds[:, 0] + self.base_offset, bounds[:, 1] - bounds[:, 0])

    @cached_property
    def index(self) -> SegmentIndex:
        return SegmentIndex.from_bytes(self.index_bytes)

    def placed(self, base_offset: int, commit: int, time_ms: int) -> Segment:
        """Return the staged segment as commit record ``commit`` adds it."""
        return replace(self, base_offset=base_offset, commit=commit, first_time_ms=time_ms, last_time_ms=time_ms)

    def commit_times_ms(self, offsets: OffsetRange) -> npt.NDArray[np.int64]:
        """Return the commit time of each row at these offsets."""
        starts, times_ms = self.time_runs
        if len(times_ms) == 1:
            return np.full(len(offsets), times_ms[0], np.int64)
        relative = np.arange(offsets.start - self.base_offset, offsets.end - self.base_offset)
        return times_ms[np.searchsorted(starts, relative, side="right") - 1]

    @cached_property
    def time_runs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Starts and times: rows from relative offset ``[0][k]`` were committed at ``[1][k]``. Times may decrease."""
        if self.index_bytes and len(self.index.times_ms):
            return self.index.time_starts, self.index.times_ms
        return np.zeros(1, np.int64), np.array([self.first_time_ms], np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return all fields except ``index_bytes``, which is stored in a binary payload."""
        out: dict[str, Any] = {
            "bucket": self.bucket,
            "base": self.base_offset,
            "rows": self.num_rows,
            "bytes": self.size_bytes,
            "schema": self.schema_id,
            "commit": self.commit,
            "time": [self.first_time_ms, self.last_time_ms],
        }
        if self.uuid is not None:
            out["segment"] = self.uuid
        if self.inline is not None:
            out["inline"] = list(self.inline)
        if self.part is not None:
            out["part"] = self.part
        if self.compressed:
            out["compressed"] = True
        if self.unpacked_bytes is not None:
            out["unpacked"] = self.unpacked_bytes
        if self.stats:
            out["stats"] = dict(self.stats)
        if self.partitions is not None:
            out["partitions"] = [list(p) for p in self.partitions]
        if self.rewrites:
            out["rewrites"] = True
        if self.updated:
            out["updated"] = [list(rows) for rows in self.updated]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any], index_bytes: bytes = b"") -> Segment:
        inline = data.get("inline")
        partitions = data.get("partitions")
        return cls(
            bucket=data["bucket"],
            base_offset=data["base"],
            num_rows=data["rows"],
            size_bytes=data["bytes"],
            schema_id=data["schema"],
            commit=data["commit"],
            first_time_ms=data["time"][0],
            last_time_ms=data["time"][1],
            uuid=data.get("segment"),
            inline=(inline[0], inline[1]) if inline is not None else None,
            part=data.get("part"),
            compressed=data.get("compressed", False),
            unpacked_bytes=data.get("unpacked"),
            stats=data.get("stats"),
            partitions=tuple(tuple(p) for p in partitions) if partitions is not None else None,
            index_bytes=index_bytes,
            rewrites=data.get("rewrites", False),
            updated=tuple((first, last) for first, last in data.get("updated", ())),
        )


def shared_uuids(segments: Iterable[Segment]) -> set[str]:
    """Return the uuids of the shared objects of these segments."""
    return {s.uuid for s in segments if s.part is not None and s.uuid is not None}


def action_kind(kind: str, segments: Iterable[Segment]) -> str:
    """Return the kind of an action with these segments.

    Segments that share objects have a separate kind, which older versions of this package reject: they would delete a
    shared object with the first of its segments.
    """
    return f"{kind}-parts" if any(segment.part is not None for segment in segments) else kind
