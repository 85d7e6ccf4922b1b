"""Access to the data files around a location: in the warehouse, or in the storage of an external catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.concurrency import THREADS_MAX, parallel_map
from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.lake.model.values import LakeSplit
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, StorageFiles
from streamhouse_spark.lake.parquet.reader import OffsetFile, read_offset_file
from streamhouse_spark.storage.base import Sink, Storage
from streamhouse_spark.storage.prefetch import ReadsMany

SMALL_BYTES_MAX: Final = 4 << 20
"""Files up to this size are fetched whole, which takes no longer than reading the footer and then the columns."""
WINDOW_FILES: Final = 48
WINDOW_BYTES: Final = 32 << 20
"""Byte and file limits of one concurrent fetch of small files."""
_DELETES_BYTES: Final = 64 << 10
"""Assumed size of a position delete file: splits do not have it, and the file is read whole in any case."""


def lake_files(storage: Storage, settings: Mapping[str, str], location: str) -> FileAccess:
    """Return the access to the data files around ``location``, inside the warehouse or outside."""
    inside = StorageFiles(storage)
    if inside.holds(location):
        return inside
    from streamhouse_spark.lake.external_files import outside_files

    return outside_files(settings, location)


def files_of_group(
    storage: Storage, settings: Mapping[str, str], splits: Sequence[LakeSplit], size_bytes: int, location: str
) -> FileAccess:
    """Return the access to files that are merged, each opened several times. On a remote store small files are fetched
    together; otherwise one by one, around ``location``.
    """
    if isinstance(storage, ReadsMany) and size_bytes <= WINDOW_BYTES:
        return FilesAhead(storage, settings, splits)
    return lake_files(storage, settings, location)


class FilesAhead:
    """The data files of one read, by location, with their sizes from the lake's metadata.

    On a remote store small files are fetched whole, together with the next ones in the order of the splits.
    Thread-safe. Holds at most two windows of files and those being read.
    """

    def __init__(
        self, storage: Storage, settings: Mapping[str, str], splits: Iterable[LakeSplit], *, first: int = WINDOW_FILES
    ) -> None:
        """The first window has ``first`` files, later ones four times as many, up to `WINDOW_FILES`."""
        self._storage = storage
        self._settings = settings
        self._inside = StorageFiles(storage)
        self._many = storage if isinstance(storage, ReadsMany) else None
        self._large: dict[str, int] = {}
        self._small: dict[str, int] = {}
        if self._many is not None:
            chosen = list(splits)
            sizes = {at: size for at, size in _sizes_of(chosen) if self._inside.holds(at)}
            self._large = {at: size for at, size in sizes.items() if size > SMALL_BYTES_MAX}
            deletes = {at: _DELETES_BYTES for s in chosen for at in s.position_deletes if self._inside.holds(at)}
            self._small = {at: size for at, size in sizes.items() if size <= SMALL_BYTES_MAX} | deletes
        self._ahead = OrderedDict(self._small)
        """Small files not fetched yet, in the order of use."""
        self._held: OrderedDict[str, bytes | None] = OrderedDict()
        self._window = first
        self._lock = new_lock()

    def fetch_first(self) -> None:
        """Fetch the first window of small files now."""
        with self._lock:
            if self._ahead:
                self._fetch(next(iter(self._ahead)))

    def open_input(self, location: str) -> pa.NativeFile:
        if location in self._large:
            return self._inside.open_sized(location, self._large[location])
        if location not in self._small:
            return self._files_around(location).open_input(location)
        data = self._read_whole(location)
        if data is None:
            raise ObjectNotFoundError.of(f"{self._storage.url}/{self._inside.key_of(location)}")
        return pa.BufferReader(data)

    def create(self, location: str) -> AbstractContextManager[Sink]:
        return self._files_around(location).create(location)

    def is_named(self, name: str, location: str) -> bool:
        return self._files_around(location).is_named(name, location)

    def _files_around(self, location: str) -> FileAccess:
        return lake_files(self._storage, self._settings, location)

    def _read_whole(self, location: str) -> bytes | None:
        with self._lock:
            if location not in self._held:
                self._fetch(location)
            return self._held[location]

    def _fetch(self, location: str) -> None:
        """Fetch a small file with the next ones, and drop those of the window before the last."""
        assert self._many is not None
        locations, size_bytes = [location], self._small[location]
        self._ahead.pop(location, None)
        while self._ahead and len(locations) < self._window:
            following, following_bytes = next(iter(self._ahead.items()))
            size_bytes += following_bytes
            if size_bytes > WINDOW_BYTES:
                break
            locations.append(following)
            del self._ahead[following]
        contents = self._many.read_many([self._inside.key_of(at) for at in locations])
        self._held |= zip(locations, contents, strict=True)
        self._window = min(4 * self._window, WINDOW_FILES)
        held_bytes = sum(len(data or b"") for data in self._held.values())
        while held_bytes > 2 * WINDOW_BYTES and len(self._held) > len(locations):
            held_bytes -= len(self._held.popitem(last=False)[1] or b"")


def offset_files(
    storage: Storage,
    settings: Mapping[str, str],
    sizes: Mapping[str, int],
    writers: Collection[str],
    locations: Sequence[str],
) -> list[OffsetFile | None]:
    """Return the offsets of files, as `parquet.reader.offset_file` does, reading concurrently. ``sizes`` come from the
    lake's metadata.
    """
    files = FilesAhead(storage, settings, (LakeSplit(location, sizes[location], 0) for location in locations))
    threads = THREADS_MAX if isinstance(storage, ReadsMany) else None
    return list(parallel_map(lambda at: read_offset_file(files, at, writers), locations, threads_max=threads))


def _sizes_of(splits: Iterable[LakeSplit]) -> Iterator[tuple[str, int]]:
    """Return the data files of splits with their sizes, without files that are read in parts."""
    for split in splits:
        if split.merge is not None:
            yield from ((file.location, file.size_bytes) for file in split.merge.files)
        elif split.row_groups is None:
            yield split.location, split.size_bytes
