"""Data files of a lake table, read by location without a lake library.

A *location* is the name of a file in lake metadata: an absolute path on a local disk, or a URL. Locations inside the
warehouse are accessed through its `Storage`, so these files are as durable as the log's files.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from streamhouse_spark.core.warehouse_layout import canonical_location, canonical_root, find_same_parent_directory
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.storage.base import Bytes, Sink, Storage
from streamhouse_spark.storage.prefetch import merge_ranges

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class FileAccess(Protocol):
    """Read and write access to the data files of one lake table."""

    def open_input(self, location: str) -> pa.NativeFile:
        """Open a file for random reads. Raises `ObjectNotFoundError`."""

    def create(self, location: str) -> AbstractContextManager[Sink]:
        """Write a new file, which is durable and visible when the context ends without an error."""

    def is_named(self, name: str, location: str) -> bool:
        """Return whether ``name``, from a position delete file, refers to the data file at ``location``."""


class StorageFiles:
    """Files inside a warehouse, by location."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._root = storage.url.rstrip("/") + "/"
        self._canonical_root = canonical_root(storage.url) + "/"
        self._aliases: list[str] = []
        """Other names of the root in previous locations."""

    def location_of(self, key: str) -> str:
        """Return the location of a warehouse key, as in lake metadata."""
        return self._root + key

    def holds(self, location: str) -> bool:
        return self._find_key(location) is not None

    def key_of(self, location: str) -> str:
        """Return the warehouse key of a location. Raises `LakeMismatchError` outside the warehouse."""
        key = self._find_key(location)
        if key is None or ".." in key.split("/"):
            raise LakeMismatchError(
                f"lake file {location} is outside the warehouse {self.storage.url}; "
                "move the lake table into the warehouse, or configure its catalog with lake.iceberg.catalog.* settings"
            )
        return key

    def name_of(self, location: str) -> str:
        """Return a name of a data file that survives a move of the warehouse: its key, or its location if outside."""
        key = self._find_key(location)
        return location if key is None else key

    def _find_key(self, location: str) -> str | None:
        """Return the location relative to the root, by any name of the root, or None if outside."""
        plain = canonical_location(location)
        for root in (self._canonical_root, *self._aliases):
            if plain.startswith(root):
                return plain[len(root) :]
        root_path = self.storage.local_path("") if plain.startswith("/") and "/../" not in plain else None
        alias = find_same_parent_directory(plain, root_path) if root_path is not None else None
        if alias is None:
            return None
        self._aliases.append(f"{alias}/")
        return plain[len(alias) + 1 :]

    def is_named(self, name: str, location: str) -> bool:
        """Return whether a name refers to the data file. Position deletes of a moved warehouse have the old names."""
        return name == location or name.endswith(f"/{self.key_of(location)}")

    def open_input(self, location: str) -> pa.NativeFile:
        key = self.key_of(location)
        path = self.storage.local_path(key)
        if path is None:
            return RangeFile(RangeReader(self.storage, key))
        self.storage.size_bytes(key)  # raises `ObjectNotFoundError` for a missing file
        return pa.memory_map(path)

    def open_sized(self, location: str, size_bytes: int) -> pa.NativeFile:
        """Open a remote file of known size. If it is missing, the first read fails."""
        return RangeFile(RangeReader(self.storage, self.key_of(location), size_bytes))

    def create(self, location: str) -> AbstractContextManager[Sink]:
        return self.storage.create(self.key_of(location))


class RangeReader(io.RawIOBase):
    """A seekable view of an object that reads only the requested ranges."""

    def __init__(self, storage: Storage, key: str, size_bytes: int | None = None) -> None:
        """Without ``size_bytes``, requests the size. Raises `ObjectNotFoundError`."""
        self._storage = storage
        self._key = key
        self._size_bytes = storage.size_bytes(key) if size_bytes is None else size_bytes
        self._position = 0
        self._held: list[tuple[int, int, bytes]] = []
        """Prefetched ranges in order: start, end and bytes."""

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Prefetch byte ranges concurrently, and hold them until the next call."""
        stretches_to_read = merge_ranges(ranges)
        contents = self._storage.read_ranges(self._key, stretches_to_read)
        self._held = [(start, end, data) for (start, end), data in zip(stretches_to_read, contents, strict=True)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def read(self, size: int | None = -1) -> bytes:
        end = self._size_bytes if size is None or size < 0 else min(self._size_bytes, self._position + size)
        if end <= self._position:
            return b""
        data = self._read_buffered(self._position, end)
        if data is None:
            (data,) = self._storage.read_ranges(self._key, [(self._position, end)])
        self._position += len(data)
        return data

    def _read_buffered(self, start: int, end: int) -> bytes | None:
        at = bisect_right(self._held, start, key=itemgetter(0)) - 1
        if at < 0 or end > self._held[at][1]:
            return None
        low, _, data = self._held[at]
        return data[start - low : end - low]

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class RangeFile(pa.PythonFile):  # type: ignore[misc]
    """A `RangeReader` as an Arrow file."""

    def __new__(cls, reader: RangeReader) -> Self:
        file: Self = super().__new__(cls, reader, mode="r")
        return file

    def __init__(self, reader: RangeReader) -> None:
        self.ranges = reader


@contextmanager
def open_parquet_sink(files: FileAccess, location: str) -> Iterator[CountingWriter]:
    """Open a sink for a Parquet writer. The file is visible when the context ends without an error."""
    with files.create(location) as sink:
        yield CountingWriter(sink)


class CountingWriter:
    """A `Sink` with the additional methods that Arrow requires of a Python file."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: bytearray | None = None
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Bytes) -> int:
        written = memoryview(data).nbytes
        if self._held is None:
            self._sink.write(data)
        else:
            self._held += data
        self.size_bytes += written
        return written

    @contextmanager
    def buffer_and_change(self, change: Callable[[bytes], bytes]) -> Iterator[None]:
        """Buffer the bytes written in the context, then write the result of ``change``, which has the same length."""
        self._held = bytearray()
        yield
        buffered, self._held = bytes(self._held), None
        self._sink.write(change(buffered))

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False
