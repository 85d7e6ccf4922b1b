"""The file that LMDB maps, and its size.

Writing directly to the map (``MDB_WRITEMAP``) makes commits several times faster, because no page is copied to the
file. But writing a page without disk space kills the process, and opening the file with a smaller map truncates it for
all processes. So disk space is allocated for the whole map before it is written, and the map is as large as the file.
Both sizes change only under a lock shared by all processes.
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
"""File systems that keep the disk space allocated for a byte. Copy-on-write file systems may still be full."""
_DOUBLED_BYTES_MAX: Final = 64 << 20
_ROUND_BYTES: Final = 1 << 20


def next_map_bytes(map_bytes: int) -> int:
    """Return the size after ``map_bytes``: twice as large, or a quarter larger for a large map."""
    more = map_bytes if map_bytes < _DOUBLED_BYTES_MAX else map_bytes // 4
    return -(-(map_bytes + more) // _ROUND_BYTES) * _ROUND_BYTES


class MapFile:
    """The file ``data.mdb`` of one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.mdb"
        self._lock_path = folder / "size.lock"

    @cached_property
    def is_written_directly(self) -> bool:
        """Whether the file system can allocate disk space for each byte."""
        mount = mount_of(str(self.path))
        return mount is not None and mount.type in _ALLOCATING and hasattr(os, "posix_fallocate")

    @property
    def size_bytes(self) -> int:
        """Size of the file; 0 if it does not exist."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode; None for an absent or inaccessible file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def lock_size(self) -> Iterator[None]:
        """Lock the size: no other process opens or resizes the file in the context."""
        lock_file = open_lock_file(self._lock_path, 0o600)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            yield
        finally:
            close_lock_file(lock_file)

    def allocate(self, num_bytes: int) -> None:
        """Extend the file to ``num_bytes`` with allocated disk space. On failure it keeps its size.

        Call it under `lock_size`. Raises `OSError`.
        """
        self._allocate(self.path, num_bytes)

    def allocate_readers(self, num_bytes: int) -> None:
        """Allocate LMDB's reader table, a file that is always mapped, as `allocate` does."""
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
