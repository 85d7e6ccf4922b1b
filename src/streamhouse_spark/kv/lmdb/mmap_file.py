"""The file that LMDB maps, and its size.

A map that is written to directly (``MDB_WRITEMAP``) makes commits several times faster, because no page is copied to
the file. But a page without space on the disk kills the process once the disk is full, and a process that opens the
file with a smaller map truncates it under all others. So every byte of the map has its space on disk before anybody
writes to it, and the map is as large as the file: both change only under a lock of all processes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamhouse_spark.core.fork_safety import cached_property, close_lock_file, open_lock_file
from streamhouse_spark.storage.mounts import mount_of

_ALLOCATING: Final = frozenset({"ext4", "overlay", "tmpfs", "xfs"})
"""File systems that keep the disk space that was allocated for a byte. A file system that writes elsewhere each time
may be full."""
_DOUBLED_BYTES_MAX: Final = 64 << 20
_ROUND_BYTES: Final = 1 << 20


def next_map_bytes(map_bytes: int) -> int:
    """Return the size after ``map_bytes``: twice as large, or a quarter larger for a large map."""
    more = map_bytes if map_bytes < _DOUBLED_BYTES_MAX else map_bytes // 4
    return -(-(map_bytes + more) // _ROUND_BYTES) * _ROUND_BYTES


class MapFile:
    """``data.mdb`` of one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.mdb"
        self._lock_path = folder / "size.lock"

    @cached_property
    def is_written_directly(self) -> bool:
        """Whether the file system can promise disk space for each byte."""
        mount = mount_of(str(self.path))
        return mount is not None and mount.type in _ALLOCATING and hasattr(os, "posix_fallocate")

    @property
    def size_bytes(self) -> int:
        """Size of the file; 0 before it exists."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode; None for a file that is absent or cannot be looked at."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def lock_size(self) -> Iterator[None]:
        """Lock the size: nobody else opens the file or changes its size until the context ends."""
        lock_file = open_lock_file(self._lock_path, 0o600)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            yield
        finally:
            close_lock_file(lock_file)

    def allocate(self, num_bytes: int) -> None:
        """Give the file ``num_bytes`` bytes, each with its space on disk. On failure the file keeps its size.

        To be called under `lock_size`. Raises `OSError`.
        """
        self._allocate(self.path, num_bytes)

    def allocate_readers(self, num_bytes: int) -> None:
        """Do the same as `allocate` for the file in which LMDB lists its readers, and which it always maps."""
        self._allocate(self.path.with_name("lock.mdb"), num_bytes)

    def _allocate(self, path: Path, num_bytes: int) -> None:
        if not self.is_written_directly:
            return
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(file).st_size
            try:
                os.posix_fallocate(file, 0, num_bytes)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
