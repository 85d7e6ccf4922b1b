"""Access to the data files near a location: in the warehouse, or in the storage of an external catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamhouse_spark.core.concurrency import THREADS_MAX, new_lock, parallel_map
from streamhouse_spark.errors import LakeMismatchError, ObjectNotFoundError
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, StorageFiles
from streamhouse_spark.lake.parquet.reader import FileWithOffsets, read_file_offsets
from streamhouse_spark.lake.types import LakeSplit
from streamhouse_spark.storage.base import Bytes, Sink, Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputStream

CATALOG_SETTINGS = "lake.iceberg.catalog."
"""Prefix of warehouse settings with the properties of a pyiceberg catalog that replaces the file catalog."""

SMALL_BYTES_MAX: Final = 4 << 20
"""Files up to this size are fetched whole. This takes no longer than reading the footer and then the columns."""
WINDOW_FILES: Final = 48
WINDOW_BYTES: Final = 32 << 20
"""Maximum files and bytes of one concurrent fetch of small files."""
_DELETES_BYTES: Final = 64 << 10
"""Assumed size of a position delete file, which splits do not have. The file is read whole in any case."""


class CatalogFiles:
    """Data files outside the warehouse, read through pyiceberg. Writable only with an external catalog."""

    def __init__(self, file_io: FileIO, *, is_writable: bool) -> None:
        self._io = file_io
        self._is_writable = is_writable

    def open_input(self, location: str) -> pa.NativeFile:
        try:
            return pa.PythonFile(self._io.new_input(location).open(), mode="r")
        except FileNotFoundError as error:
            raise ObjectNotFoundError.of(f"lake file {location}") from error

    def create(self, location: str) -> AbstractContextManager[Sink]:
        """Create a file. Raises `LakeMismatchError` if no external catalog is configured."""
        if not self._is_writable:
            raise LakeMismatchError(
                f"cannot write lake file {location}: it is outside the warehouse; configure the catalog of the lake "
                "table with lake.iceberg.catalog.* settings, or set write.data.path of the table to a path inside"
            )
        return self._create(location)

    def is_named(self, name: str, location: str) -> bool:
        return name == location

    @contextmanager
    def _create(self, location: str) -> Iterator[Sink]:
        # After an error, a truncated file remains as an orphan, which orphan removal deletes.
        stream = self._io.new_output(location).create()
        try:
            yield _StreamSink(stream)
        finally:
            stream.close()


class _StreamSink:
    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    def write(self, data: Bytes) -> int:
        return self._stream.write(bytes(data))


def open_catalog_files(settings: Mapping[str, str], location: str) -> FileAccess:
    """Return the access to files outside the warehouse, with the settings of the warehouse and its lake catalog."""
    from pyiceberg.io import load_file_io

    is_writable = any(name.startswith(CATALOG_SETTINGS) for name in settings)
    return CatalogFiles(load_file_io(catalog_properties(settings), location), is_writable=is_writable)


def catalog_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the warehouse settings for pyiceberg's catalog and file access."""
    storage = {k: v for k, v in settings.items() if k.startswith(("s3.", "gcs.", "adls.", "client."))}
    named = {k.removeprefix(CATALOG_SETTINGS): v for k, v in settings.items() if k.startswith(CATALOG_SETTINGS)}
    return {**storage, **named}


def open_lake_files(storage: Storage, settings: Mapping[str, str], location: str) -> FileAccess:
    """Return the access to the data files near ``location``, inside or outside the warehouse."""
    inside = StorageFiles(storage)
    if inside.holds(location):
        return inside

    return open_catalog_files(settings, location)


def open_group_files(
    storage: Storage, settings: Mapping[str, str], splits: Sequence[LakeSplit], size_bytes: int, location: str
) -> FileAccess:
    """Return the access to files that are merged. Each file is opened several times.

    Small files of a remote store are fetched concurrently. Other files are read individually, near ``location``.
    """
    if isinstance(storage, SupportsBatchReads) and size_bytes <= WINDOW_BYTES:
        return PrefetchedFiles(storage, settings, splits)
    return open_lake_files(storage, settings, location)


class PrefetchedFiles:
    """The data files of one read by location, with their sizes from the lake's metadata.

    Small files of a remote store are fetched whole, together with the next files in the order of the splits.
    Thread-safe. Holds at most two windows of files, and the files being read.
    """

    def __init__(
        self, storage: Storage, settings: Mapping[str, str], splits: Iterable[LakeSplit], *, first: int = WINDOW_FILES
    ) -> None:
        """The first window has ``first`` files. Each later window has four times as many, up to `WINDOW_FILES`."""
        self._storage = storage
        self._settings = settings
        self._inside = StorageFiles(storage)
        self._many = storage if isinstance(storage, SupportsBatchReads) else None
        self._large: dict[str, int] = {}
        self._small: dict[str, int] = {}
        if self._many is not None:
            chosen = list(splits)
            sizes = {at: size for at, size in _sizes_of(chosen) if self._inside.holds(at)}
            self._large = {at: size for at, size in sizes.items() if size > SMALL_BYTES_MAX}
            deletes = {at: _DELETES_BYTES for s in chosen for at in s.position_deletes if self._inside.holds(at)}
            self._small = {at: size for at, size in sizes.items() if size <= SMALL_BYTES_MAX} | deletes
        self._ahead = OrderedDict(self._small)
        """Small files that are not fetched yet, in the order of use."""
        self._held: OrderedDict[str, bytes | None] = OrderedDict()
        self._window = first
        self._lock = new_lock()

    def fetch_first(self) -> None:
        """Fetch the first window of small files."""
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
        return open_lake_files(self._storage, self._settings, location)

    def _read_whole(self, location: str) -> bytes | None:
        with self._lock:
            if location not in self._held:
                self._fetch(location)
            return self._held[location]

    def _fetch(self, location: str) -> None:
        """Fetch a small file with the next ones, and drop files of earlier windows."""
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


def read_offsets_of_files(
    storage: Storage,
    settings: Mapping[str, str],
    sizes: Mapping[str, int],
    writers: Collection[str],
    locations: Sequence[str],
) -> list[FileWithOffsets | None]:
    """Return the offsets of files concurrently, as `read_file_offsets` does. ``sizes`` are those in the metadata."""
    files = PrefetchedFiles(storage, settings, (LakeSplit(location, sizes[location], 0) for location in locations))
    threads = THREADS_MAX if isinstance(storage, SupportsBatchReads) else None
    return list(parallel_map(lambda at: read_file_offsets(files, at, writers), locations, threads_max=threads))


def _sizes_of(splits: Iterable[LakeSplit]) -> Iterator[tuple[str, int]]:
    """Yield the data files of splits with their sizes, except files that are read in parts."""
    for split in splits:
        if split.merge is not None:
            yield from ((file.location, file.size_bytes) for file in split.merge.files)
        elif split.row_groups is None:
            yield split.location, split.size_bytes
