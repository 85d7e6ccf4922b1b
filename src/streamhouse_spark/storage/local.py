"""Storage in a local directory.

Put-if-absent writes and syncs a temporary file, links it to the key with ``link(2)``, and syncs the directory.
``rename`` would overwrite, and readers could see a half-written file that was created in place. Temporary files have
names that start with ``.tmp-``. After a crash they remain: `list` omits them, and orphan cleaning finds them with
`list_temporary` and deletes them.

Processes of one host that are about to put an object into the same directory wait for each other on a file lock. This
only avoids lost races: with the lock, four processes append 1.5 times as much to one table. Correctness depends on
put-if-absent alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from streamhouse_spark.core.clock import Clock, World
from streamhouse_spark.core.concurrency import close_lock_file, open_lock_file
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import (
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
)
from streamhouse_spark.storage.base import Bytes, Names, ObjectInfo, Objects

_TEMPORARY = ".tmp-"
_READ_BYTES = 1 << 18
_WRITEBACK_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2


class LocalStorage:
    """Objects as files. A returned write is durable, unless ``fsync=False``, which survives only killed processes.

    ``network_fs`` is the network file system that contains the root, if any. On such a file system, hosts may see each
    other's writes late. So `check_writable` rejects it.
    """

    def __init__(
        self, root: str, *, fsync: bool = True, network_fs: str | None = None, world: World | None = None
    ) -> None:
        self._root = os.path.abspath(root)
        self._fsync = fsync
        self._network_fs = network_fs
        self._world = world or World()
        self._failed_syncs: set[str] = set()

    @property
    def url(self) -> str:
        return self._root

    def read(self, key: str) -> bytes:
        with self._translate_errors(key, "read"):
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except OSError as error:
            raise self._translate_error(error, key, "read") from error
        finally:
            os.close(fd)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._translate_errors(key, "read"), open(self._path(key), "rb", buffering=0) as file:
            return [os.pread(file.fileno(), end - start, start) for start, end in ranges]

    def size_bytes(self, key: str) -> int:
        with self._translate_errors(key, "read"):
            return os.stat(self._path(key)).st_size

    def put_if_absent(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        with self._translate_errors(key, "write"):
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
            self._sync_directory(os.path.dirname(path))

    def ensure_durable(self, key: str) -> None:
        # After a failed fsync, a later fsync may succeed although the data never reached the disk.
        if os.path.dirname(self._path(key)) in self._failed_syncs:
            raise StorageError(f"{self.url}/{key}: the directory could not be synced to disk; check the disk")
        self.size_bytes(key)
        with self._translate_errors(key, "sync"):
            self._sync_directory(os.path.dirname(self._path(key)))

    def put(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        with self._translate_errors(key, "write"):
            os.replace(self._write_temporary(path, data), path)

    @contextmanager
    def create(self, key: str) -> Iterator[_FileSink]:
        path = self._path(key)
        with self._translate_errors(key, "write"):
            temporary, fd = self._open_temporary(path)
        try:
            yield _FileSink(fd, fsync=self._fsync)
            if self._fsync:
                os.fsync(fd)
            os.link(temporary, path)
        except OSError as error:
            raise self._translate_error(error, key, "write") from error
        finally:
            os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)
        with self._translate_errors(key, "write"):
            self._sync_directory(os.path.dirname(path))

    def list(self, prefix: str) -> list[ObjectInfo]:
        return [info for info in self._walk(prefix) if not _is_temporary(info.key)]

    def list_temporary(self, prefix: str) -> Objects:
        """List the temporary files that crashed writers left behind."""
        return [info for info in self._walk(prefix) if _is_temporary(info.key)]

    def list_names(self, prefix: str) -> Names:
        try:
            with os.scandir(self._path(prefix.rstrip("/"))) as entries:
                return sorted(e.name for e in entries if not e.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._translate_error(error, prefix, "list") from error

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._translate_error(error, key, "delete") from error

    def now_ms(self) -> int:
        # File times come from the clock of this host.
        return self._world.clock.now_ms()

    def local_path(self, key: str) -> str | None:
        return self._path(key)

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        return hold_lock_file(self._path(key), self._world.clock)

    def check_writable(self) -> None:
        if self._network_fs is not None:
            raise StorageError(
                f"{self.url} lies on a network file system ({self._network_fs}), where one host cannot rely on seeing "
                "another's files; use a local disk, or object storage (s3://…), or set the warehouse setting "
                "storage.local.single-host=true if no other host ever opens this warehouse"
            )
        key = f".tmp-probe-{self._world.ids.new_uuid()}"
        try:
            os.makedirs(self._root, exist_ok=True)
            self.put_if_absent(key, b"probe")
            try:
                self.put_if_absent(key, b"again")
            except ObjectExistsError:
                return
            raise StorageError(f"{self.url}: this file system lets link(2) replace a file; use another one")
        except FileExistsError as error:
            raise StorageError(f"{self.url} is a file and not a directory; choose another path") from error
        except OSError as error:
            raise self._translate_error(error, "", "write") from error
        finally:
            with suppress(OSError):
                os.unlink(self._path(key))

    # -- internals ------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        """Return the path of a key. Raises `CorruptDataError` for a key outside the root, from a forged file."""
        if "\0" in key or (".." in key and ".." in key.split("/")):
            raise CorruptDataError(f"the key {key[:200]!r} leads out of {self._root}; restore the file that names it")
        return f"{self._root}/{key}"

    def _open_temporary(self, path: str) -> tuple[str, int]:
        directory = os.path.dirname(path)
        temporary = f"{directory}/{_TEMPORARY}{self._world.ids.new_uuid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return temporary, os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            self._make_directories(directory)
            return temporary, os.open(temporary, flags, 0o666)

    def _write_temporary(self, path: str, data: Bytes) -> str:
        temporary, fd = self._open_temporary(path)
        try:
            _write_all(fd, data)
            if self._fsync:
                os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return temporary

    def _make_directories(self, directory: str) -> None:
        """Create the directory and its missing parents durably."""
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path)
            self._sync_directory(os.path.dirname(path))

    def _sync_directory(self, directory: str) -> None:
        if not self._fsync:
            return
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError:
            self._failed_syncs.add(directory)
            raise
        finally:
            os.close(fd)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        top = prefix.rpartition("/")[0]
        for directory, _, names in os.walk(self._path(top) if top else self._root):
            relative = os.path.relpath(directory, self._root)
            base = "" if relative == "." else f"{relative}/"
            for name in names:
                key = base + name
                if not key.startswith(prefix):
                    continue
                try:
                    stat = os.stat(f"{directory}/{name}")
                except FileNotFoundError:  # deleted while listing
                    continue
                yield ObjectInfo(key, stat.st_size, stat.st_mtime_ns // 1_000_000)

    @contextmanager
    def _translate_errors(self, key: str, verb: str) -> Iterator[None]:
        """Raise the block's `OSError` as an exception of this package. ``verb`` names the failed action."""
        try:
            yield
        except OSError as error:
            raise self._translate_error(error, key, verb) from error

    def _translate_error(self, error: OSError, key: str, verb: str) -> StorageError:
        where = f"{self.url}/{key}" if key else self.url
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and verb == "read":
            return ObjectNotFoundError.of(where)
        if error.errno == errno.EEXIST:
            return ObjectExistsError(f"{where} exists")
        remedy = _REMEDIES.get(error.errno or 0, "check the disk and the directory, then retry").format(verb=verb)
        refused = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        kind = StorageRefusedError if refused else StorageError
        return kind(f"cannot {verb} {where}: {os.strerror(error.errno or 0)}; {remedy}")


_REMEDIES = {
    errno.ENOSPC: "the disk is full (or out of inodes): free space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free space, then run the same command again",
    errno.EROFS: "the file system is read-only: remount it writable or choose another warehouse",
    errno.EACCES: "permission denied: run as the warehouse's owner or grant this user {verb} access",
    errno.EPERM: "not permitted here: run as the warehouse's owner or use a file system that supports hard links",
    errno.ENOTDIR: "a file lies where a directory should be: choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}


class _FileSink:
    def __init__(self, fd: int, *, fsync: bool) -> None:
        self._fd = fd
        self._start_writeback = _writeback_starter() if fsync else None
        self._idle_bytes = 0

    def write(self, data: Bytes) -> int:
        written = _write_all(self._fd, data)
        self._idle_bytes += written
        if self._start_writeback is not None and self._idle_bytes >= _WRITEBACK_BYTES:
            self._start_writeback(self._fd)
            self._idle_bytes = 0
        return written


@functools.cache
def _writeback_starter() -> Callable[[int], object] | None:
    """Return a function that starts writing the pages of a file to disk, so that a later fsync has less to do.

    Returns None if the system has no such call; Linux has it. Only the fsync makes the file durable.
    """
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda fd: function(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def _write_all(fd: int, data: Bytes) -> int:
    view = memoryview(data).cast("B")
    size = view.nbytes
    while view.nbytes:
        view = view[os.write(fd, view) :]
    return size


def _is_temporary(key: str) -> bool:
    return key.rpartition("/")[2].startswith(_TEMPORARY)


# -- file locks --------------------------------------------------------------------------------------------------------

WAIT_MS_MAX = 50
"""A process that waited this long continues without the lock, so that a stopped process does not block others."""
POLL_MS = 0.2


@contextmanager
def hold_lock_file(path: str, clock: Clock) -> Iterator[None]:
    """Hold the lock file ``path`` in the block, after waiting for at most `WAIT_MS_MAX`.

    If the wait times out, or the file cannot be opened, the block runs without the lock.
    """
    file: int | None = None
    try:
        with suppress(OSError):  # the put in the block reports it
            file = open_lock_file(path, 0o666)
            until_ms = clock.boot_ms() + WAIT_MS_MAX
            while not _try_lock(file) and clock.boot_ms() < until_ms:
                clock.sleep_ms(POLL_MS)
        yield
    finally:
        if file is not None:
            with suppress(OSError):  # the object may be stored already
                close_lock_file(file)


@contextmanager
def try_hold_lock_file(path: str | None) -> Iterator[bool]:
    """Hold the lock file ``path`` in the block, unless another process or thread of this host holds it.

    Yields False if another holds the lock, and True otherwise, also without a path. The file is created, and removed
    afterwards. Only a hint: if the file is removed concurrently, the next caller locks a new file.
    """
    file: int | None = None
    is_alone = True
    try:
        if path is not None:
            with suppress(OSError):
                file = open_lock_file(path, 0o666)
                is_alone = _try_lock(file)
        yield is_alone
    finally:
        if file is not None and path is not None:
            if is_alone:
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                close_lock_file(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- mounts ------------------------------------------------------------------------------------------------------------

MOUNTS = "/proc/mounts"
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    type: str
    """The operating system's type name: ``ext4``, ``nfs4``, ``overlay``, …"""
    point: str


def find_mount(path: str, mounts: str = MOUNTS) -> Mount | None:
    """Return the file system that ``path`` lies on, or would; None if the operating system has no ``/proc/mounts``."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best: Mount | None = None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _OCTAL_ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):  # later mounts hide earlier ones
            best = Mount(fields[2], point)
    return best
