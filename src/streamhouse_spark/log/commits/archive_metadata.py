"""The change archive of a table with a primary key, as its state knows it: pages of changes that outlive the hot log.

A page holds all changes of some commits, one after another, in an object of its own (`log.archive`). The state has of
each page only how far it reaches. Pages follow each other without a gap, and reach to the start of the hot log at
least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """All changes of the commits behind those of the page before, up to ``last_commit``."""

    uuid: str
    last_commit: int
    ends: Mapping[int, int]
    """Bucket → offset behind its last change in the page; of the buckets with some."""
    num_rows: int
    memory_bytes: int
    """Estimated bytes of its rows in memory."""
    first_ms: int
    last_ms: int
    """The earliest and the latest commit time among its changes."""
    last_us: int
    """The time that its newest commit with changes is shown with."""
    level: int = 0
    """How often pages were joined to make it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "commit": self.last_commit,
            "ends": {str(bucket): end for bucket, end in sorted(self.ends.items())},
            "rows": self.num_rows,
            "bytes": self.memory_bytes,
            "time": [self.first_ms, self.last_ms, self.last_us],
            "level": self.level,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArchivePage:
        ends = {int(bucket): end for bucket, end in data["ends"].items()}
        first_ms, last_ms, last_us = data["time"]
        counts = data["rows"], data["bytes"]
        return cls(data["uuid"], data["commit"], ends, *counts, first_ms, last_ms, last_us, data["level"])


@dataclass(frozen=True, slots=True)
class Archive:
    """The pages of a table, the oldest first. Without any there is no archive."""

    pages: tuple[ArchivePage, ...] = ()
    starts: Mapping[int, int] = field(default_factory=dict)
    """Bucket → offset of its first change in the pages, of all buckets."""
    first_commit: int = 0
    """The first commit from which on the pages tell which commit made a change: earlier records were gone."""

    def __bool__(self) -> bool:
        return bool(self.pages)

    @property
    def last_commit(self) -> int:
        """The newest commit whose changes are here; 0 for none."""
        return self.pages[-1].last_commit if self.pages else 0

    def end(self, bucket: int) -> int:
        """Return the offset behind the bucket's last change in the pages."""
        ends = (page.ends[bucket] for page in reversed(self.pages) if bucket in page.ends)
        return next(ends, self.starts.get(bucket, 0))

    def joins(self, starts: Mapping[int, int]) -> bool:
        """Tell whether there is no gap between the pages and logs that start at these offsets."""
        return bool(self.pages) and all(self.end(bucket) >= start for bucket, start in starts.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "pages": [page.to_json() for page in self.pages],
            "starts": {str(bucket): start for bucket, start in sorted(self.starts.items())},
            "first_commit": self.first_commit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Archive:
        pages = tuple(ArchivePage.from_json(page) for page in data["pages"])
        return cls(pages, {int(b): start for b, start in data["starts"].items()}, data["first_commit"])


NO_ARCHIVE = Archive()


@dataclass(frozen=True, slots=True)
class SetArchive:
    """The archive is this from now on; ``gone`` are the objects that only pages named which are left out."""

    archive: Archive
    gone: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"type": "archive", **self.archive.to_json(), "gone": list(self.gone)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetArchive:
        return cls(Archive.from_json(data), tuple(data["gone"]))


def pages_between(archive: Archive, bucket: int) -> Iterable[tuple[ArchivePage, int, int]]:
    """Give the pages with changes of a bucket, each with the first offset of these and the one behind the last."""
    start = archive.starts.get(bucket, 0)
    for page in archive.pages:
        end = page.ends.get(bucket, start)
        if end > start:
            yield page, start, end
            start = end
