"""The commit of each archived change, as runs of offsets: part of a page of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.log.commit_reader import Commit
from streamhouse_spark.log.commits.actions import Append

Int64Array = npt.NDArray[np.int64]
_CODEC: Final = "zstd"


@dataclass(frozen=True, slots=True, eq=False)
class CommitRows:
    """Runs ``[starts[i], ends[i])`` of offsets of a bucket, each of one commit, by bucket and offset."""

    buckets: Int64Array
    starts: Int64Array
    ends: Int64Array
    versions: Int64Array
    """Number of the commit of each run."""
    times_us: Int64Array
    """The display time of the commit."""
    grouped: Int64Array
    """1 if several requests share the record, so that a key of the bucket may have changed several times."""

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> CommitRows:
        """Return the runs that the records of these commits append."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        for commit in commits:
            record = commit.record
            writers: dict[int, set[int]] = {}
            appended: list[tuple[int, int, int]] = []
            for place, part in enumerate(record.attempts):
                for segment in (s for action in part.actions if isinstance(action, Append) for s in action.segments):
                    writers.setdefault(segment.bucket, set()).add(place)
                    appended.append((segment.bucket, segment.base_offset, segment.end_offset))
            rows += [
                (bucket, start, end, record.number, commit.time_us, len(writers[bucket]) > 1)
                for bucket, start, end in appended
            ]
        columns = np.array(rows, np.int64).reshape(len(rows), _WIDTH).T
        return cls(*columns).sorted()

    @classmethod
    def joined(cls, parts: Sequence[CommitRows]) -> CommitRows:
        columns = (np.concatenate([_NONE, *(getattr(part, f.name) for part in parts)]) for f in fields(cls))
        return cls(*columns).sorted()

    def sorted(self) -> CommitRows:
        return self.select(np.lexsort((self.starts, self.buckets)))

    def select(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> CommitRows:
        """Return the runs at these indexes, or where the mask is true."""
        return CommitRows(*(getattr(self, f.name)[places] for f in fields(self)))

    def between(self, first: int, last: int) -> CommitRows:
        """Return the runs of the commits from ``first`` to ``last``."""
        return self.select((self.versions >= first) & (self.versions <= last))

    def to_bytes(self) -> bytes:
        """Return the compressed differences between neighbours, column by column: most are small or equal."""
        columns = [np.diff(getattr(self, f.name), prepend=0).astype("<i8").tobytes() for f in fields(self)]
        packed: bytes = pa.compress(b"".join(columns), codec=_CODEC, asbytes=True)
        return len(self.starts).to_bytes(8, "little") + packed

    @classmethod
    def from_bytes(cls, data: memoryview, where: str) -> CommitRows:
        """Decode the runs. Raises `CorruptDataError`."""
        num_runs = int.from_bytes(data[:8], "little")
        try:
            unpacked = pa.decompress(data[8:], decompressed_size=num_runs * _WIDTH * 8, codec=_CODEC, asbytes=True)
            columns = np.frombuffer(unpacked, "<i8").reshape(_WIDTH, num_runs)
        except (ValueError, OSError) as error:
            raise CorruptDataError(f"{where} does not tell the commits of its changes; restore this file") from error
        return cls(*(np.cumsum(column) for column in columns))


_NONE: Int64Array = np.zeros(0, np.int64)
_WIDTH: Final = len(fields(CommitRows))
