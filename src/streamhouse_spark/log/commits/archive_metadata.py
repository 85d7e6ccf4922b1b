"""Metadata of the change archive of a primary-key table: pages of changes that outlive the hot log.

A page is an object with all changes of some consecutive commits (`log.archive`). The state only knows how far each page
reaches. Pages are contiguous, and reach at least to the start of the hot log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """All changes of the commits after those of the previous page, up to ``last_commit``."""

    uuid: str
    last_commit: int
    ends: Mapping[int, int]
    """Bucket → offset after its last change in the page, for buckets with changes."""
    num_rows: int
    memory_bytes: int
    """Estimated bytes of its rows in memory."""
    first_ms: int
    last_ms: int
    """The earliest and the latest commit time among its changes."""
    last_us: int
    """The display time of its last commit with changes."""
    level: int = 0
    """How often pages were merged to make it."""

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
    """The pages of a table, the oldest first. Without pages there is no archive."""

    pages: tuple[ArchivePage, ...] = ()
    starts: Mapping[int, int] = field(default_factory=dict)
    """Bucket → offset of its first change in the pages, for all buckets."""
    first_commit: int = 0
    """The first commit from which on the pages have the commit of each change: older records were deleted before."""

    def __bool__(self) -> bool:
        return bool(self.pages)

    @property
    def last_commit(self) -> int:
        """The last commit whose changes are archived; 0 for none."""
        return self.pages[-1].last_commit if self.pages else 0

    def end(self, bucket: int) -> int:
        """Return the offset after the bucket's last change in the pages."""
        ends = (page.ends[bucket] for page in reversed(self.pages) if bucket in page.ends)
        return next(ends, self.starts.get(bucket, 0))

    def joins(self, starts: Mapping[int, int]) -> bool:
        """Return whether there is no gap between the pages and logs that start at these offsets."""
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
    """Replaces the archive. ``gone`` are the objects that only removed pages named."""

    archive: Archive
    removed_keys: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"type": "archive", **self.archive.to_json(), "gone": list(self.removed_keys)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetArchive:
        return cls(Archive.from_json(data), tuple(data["gone"]))


def pages_between(archive: Archive, bucket: int) -> Iterable[tuple[ArchivePage, int, int]]:
    """Yield the pages with changes of a bucket, each with the half-open range of their offsets."""
    start = archive.starts.get(bucket, 0)
    for page in archive.pages:
        end = page.ends.get(bucket, start)
        if end > start:
            yield page, start, end
            start = end
