"""Pages of the change archive. A page is an object that names the segments with the changes of some commits.

A page also has the commit of each change. It is immutable, and stored like the manifest of a record. Its segments are
stored like the segments of the log, so that the same code reads and verifies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import manifest_key, segment_key
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError, SnapshotExpiredError
from streamhouse_spark.log.actions import NO_ARCHIVE, Append, Archive, Payload, segment_from_json, segment_to_json
from streamhouse_spark.log.commit_reader import Commit
from streamhouse_spark.log.framing import decode_frame, encode_frame, translate_field_errors
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import CHANGE_COLUMN, TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

Int64Array = npt.NDArray[np.int64]
_CODEC: Final = "zstd"


_KIND: Final = "manifest"


@dataclass(frozen=True, slots=True, eq=False)
class CommitRows:
    """Ranges ``[starts[i], ends[i])`` of offsets of a bucket, each of one commit, sorted by bucket and offset."""

    buckets: Int64Array
    starts: Int64Array
    ends: Int64Array
    versions: Int64Array
    """Number of the commit of each range."""
    times_us: Int64Array
    """The display time of the commit."""
    grouped: Int64Array
    """1 if several requests share the record, so that a key of the bucket may have changed several times."""

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> CommitRows:
        """Return the ranges that the records of these commits append."""
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
        """Return the ranges at these indexes, or for which the mask is true."""
        return CommitRows(*(getattr(self, f.name)[places] for f in fields(self)))

    def between(self, first: int, last: int) -> CommitRows:
        """Return the ranges of the commits from ``first`` to ``last``."""
        return self.select((self.versions >= first) & (self.versions <= last))

    def to_bytes(self) -> bytes:
        """Return the compressed differences between consecutive values of each column. Most are small or equal."""
        columns = [np.diff(getattr(self, f.name), prepend=0).astype("<i8").tobytes() for f in fields(self)]
        packed: bytes = pa.compress(b"".join(columns), codec=_CODEC, asbytes=True)
        return len(self.starts).to_bytes(8, "little") + packed

    @classmethod
    def from_bytes(cls, data: memoryview, where: str) -> CommitRows:
        """Decode the ranges. Raises `CorruptDataError`."""
        num_runs = int.from_bytes(data[:8], "little")
        try:
            unpacked = pa.decompress(data[8:], decompressed_size=num_runs * _WIDTH * 8, codec=_CODEC, asbytes=True)
            columns = np.frombuffer(unpacked, "<i8").reshape(_WIDTH, num_runs)
        except (ValueError, OSError) as error:
            raise CorruptDataError(f"{where}: the commits of its changes are damaged; restore this file") from error
        return cls(*(np.cumsum(column) for column in columns))


_NONE: Int64Array = np.zeros(0, np.int64)
_WIDTH: Final = len(fields(CommitRows))


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page."""

    segments: tuple[Segment, ...]
    """Segments with the changes, dense and in offset order for each bucket."""
    schemas: Mapping[int, TableSchema]
    """The table's schemas that wrote the segments."""
    commits: CommitRows
    complete_from: int
    """The first commit after which every record was read for the page."""
    altered: tuple[int, ...]
    """Commits of the page that changed columns, or rows without a change in the log."""

    def split(self, table_uuid: str, bucket: int, offsets: OffsetRange) -> LogSplit:
        """Return the changes of a bucket at these offsets. Raises `CorruptDataError` if a change is missing."""
        segments = tuple(s for s in self.segments if s.bucket == bucket and s.offsets.intersect(offsets))
        if sum(len(s.offsets.intersect(offsets)) for s in segments) != len(offsets):
            raise CorruptDataError(
                f"a page of the change archive of table {table_uuid} does not have all offsets {offsets} of bucket "
                f"{bucket}; restore it"
            )
        schemas = {i: TableSchema((CHANGE_COLUMN, *self.schemas[i].columns)) for i in {s.schema_id for s in segments}}
        return LogSplit(table_uuid, bucket, offsets, segments, schemas)


def find_usable_archive(state: TableState) -> Archive:
    """Return the state's archive if it is contiguous with the hot log; otherwise an empty archive."""
    joins = state.archive.is_contiguous_with({bucket: log.start for bucket, log in state.buckets.items()})
    return state.archive if joins else NO_ARCHIVE


def first_change_offsets(state: TableState) -> dict[int, int]:
    """Return bucket → the first offset whose change is retained in the archive or the hot log."""
    starts = find_usable_archive(state).starts
    return {bucket: min(starts.get(bucket, log.start), log.start) for bucket, log in state.buckets.items()}


def find_first_record_to_archive(state: TableState) -> int | None:
    """Return the first record with changes to archive, or None. The low watermark must not pass it."""
    archive = find_usable_archive(state)
    if not archive or state.parsed.changelog_retention_ms is None:
        return None
    has_new_rows = any(log.end > archive.end(bucket) for bucket, log in state.buckets.items())
    return archive.last_commit + 1 if has_new_rows else None


def encode_page(table_uuid: str, content: PageContent) -> bytes:
    payload = Payload()
    header = {
        "table": table_uuid,
        "segments": [segment_to_json(segment, payload) for segment in content.segments],
        "schemas": {str(i): schema.to_json() for i, schema in content.schemas.items()},
        "commits": list(payload.add(content.commits.to_bytes())),
        "told_from": content.complete_from,
        "altered": list(content.altered),
    }
    return encode_frame(_KIND, header, payload.parts)


def decode_page(data: bytes, where: str) -> PageContent:
    """Decode a page. Raises `CorruptDataError`, `FormatVersionError`."""
    frame = decode_frame(_KIND, data, where)
    header: Mapping[str, Any] = frame.header
    with translate_field_errors(_KIND, where):
        return PageContent(
            tuple(segment_from_json(segment, frame.payload) for segment in header["segments"]),
            {int(i): TableSchema.from_json(schema) for i, schema in header["schemas"].items()},
            CommitRows.from_bytes(frame.payload[slice(*header["commits"])], where),
            header["told_from"],
            tuple(header["altered"]),
        )


def read_page(storage: Storage, state: TableState, uuid: str) -> PageContent:
    """Read a page that this state or an older state names.

    Raises `CorruptDataError` if the page is damaged, or missing although the state names it. Raises
    `SnapshotExpiredError` if the page was merged or expired after the state.
    """
    key = manifest_key(state.table_uuid, uuid)
    try:
        return decode_page(storage.read(key), url_of(storage, key))
    except ObjectNotFoundError as error:
        if any(page.uuid == uuid for page in state.archive.pages):
            raise CorruptDataError(
                f"{url_of(storage, key)}, a page of the change archive of {state.name}, is missing; restore it"
            ) from error
        raise SnapshotExpiredError(
            f"{url_of(storage, key)} was merged or expired since this read of the changes of {state.name} "
            "started, and was deleted when its grace period ended; retry the read"
        ) from error


def read_pages(storage: Storage, state: TableState, uuids: Sequence[str]) -> Iterator[PageContent]:
    """Read pages concurrently. Raises the errors of `read_page`."""
    return map_with_store_concurrency(storage, lambda uuid: read_page(storage, state, uuid), uuids)


def list_page_keys(table_uuid: str, uuid: str, content: PageContent) -> set[str]:
    """Return the keys of a page and of its segments."""
    segments = {segment_key(table_uuid, segment.uuid) for segment in content.segments if segment.uuid is not None}
    return {manifest_key(table_uuid, uuid), *segments}


class ArchiveObjectKeys:
    """Returns the keys of all files of a state's archive. Each page is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._keys: dict[str, set[str]] = {}

    def __call__(self, state: TableState) -> set[str]:
        """Return the keys of all files of the state's archive.

        Raises the errors of `read_page`; the caller must then delete nothing.
        """
        uuids = [page.uuid for page in state.archive.pages]
        new = [uuid for uuid in uuids if uuid not in self._keys]
        for uuid, content in zip(new, read_pages(self._storage, state, new), strict=True):
            self._keys[uuid] = list_page_keys(state.table_uuid, uuid, content)
        return set().union(*(self._keys[uuid] for uuid in uuids))
