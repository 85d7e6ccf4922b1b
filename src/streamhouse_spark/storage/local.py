"""The file system of a path, from ``/proc/mounts``.

File locks between processes of one host that are about to put an object into the same directory.

A lock only saves lost races; correctness rests on put-if-absent. A process that was stopped must not stop the others,
so each wait is bounded, and a process that waited that long continues without the lock.

Storage in a local directory.

Put-if-absent is a temporary file, fsync, ``link(2)``, fsync of the directory. ``rename`` would overwrite, and a file
created in place could be read half-written. Temporary files have names that start with ``.tmp-``. A crash leaves them
behind; `list` does not return them, and orphan cleaning deletes them (`list_temporary`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from streamhouse_spark.core.clock import World
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

MOUNTS = "/proc/mounts"
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    type: str
    """The operating system's type name: ``ext4``, ``nfs4``, ``overlay``, …"""
    point: str


def mount_of(path: str, mounts: str = MOUNTS) -> Mount | None:
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


WAIT_MS_MAX = 50
POLL_MS = 0.2


class LocalCommitLock:
    """The locks that the threads of this process hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread = threading.local()

    def __reduce__(self) -> tuple[type[LocalCommitLock], tuple[World]]:
        return LocalCommitLock, (self._world,)  # locks belong to one process

    @contextmanager
    def hold(self, path: str) -> Iterator[None]:
        """Hold the lock file ``path`` in the block, or until `release`; after ``WAIT_MS_MAX`` continue without it."""
        directory = os.path.dirname(path)
        try:
            with suppress(OSError):  # the put that follows reports it
                file = open_lock_file(path, 0o666)
                self._held.append((directory, file))
                self._wait(file)
            yield
        finally:
            self.release(directory)

    def release(self, directory: str) -> None:
        """Release this thread's locks in a directory, if it holds any: its object is visible there."""
        for entry in [entry for entry in self._held if entry[0] == directory]:
            self._held.remove(entry)
            with suppress(OSError):  # the object may be stored already
                close_lock_file(entry[1])

    @property
    def _held(self) -> list[tuple[str, int]]:
        """The directory and the file descriptor of each lock of this thread."""
        if not hasattr(self._thread, "held"):
            self._thread.held = []
        held: list[tuple[str, int]] = self._thread.held
        return held

    def _wait(self, file: int) -> None:
        clock = self._world.clock
        until_ms = clock.boot_ms() + WAIT_MS_MAX
        while not _try_lock(file) and clock.boot_ms() < until_ms:
            clock.sleep_ms(POLL_MS)


@contextmanager
def only_process(path: str | None) -> Iterator[bool]:
    """Hold the lock file ``path`` in the block, unless another process or thread of this host holds it.

    Yields whether no other holds it, as far as known; always True without a path. The file is created, and removed
    afterwards. Only a hint: if the file is removed concurrently, the next caller locks another one.
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


_TEMPORARY = ".tmp-"
_READ_BYTES = 1 << 18
_WRITEBACK_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2


class LocalStorage:
    """Durable when a write returns, unless ``fsync=False``, which survives killed processes but not a power loss.

    ``network_fs`` is the network file system that the root lies on, if any. Hosts do not see each other's writes there
    in time, so `check_writable` rejects it.
    """

    def __init__(
        self, root: str, *, fsync: bool = True, network_fs: str | None = None, world: World | None = None
    ) -> None:
        self._root = os.path.abspath(root)
        self._fsync = fsync
        self._network_fs = network_fs
        self._world = world or World()
        self._failed_syncs: set[str] = set()
        self._commit_lock = LocalCommitLock(self._world)

    @property
    def url(self) -> str:
        return self._root

    def read(self, key: str) -> bytes:
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._translate_error(error, key, "read") from error
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
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return [os.pread(file.fileno(), end - start, start) for start, end in ranges]
        except OSError as error:
            raise self._translate_error(error, key, "read") from error

    def size_bytes(self, key: str) -> int:
        try:
            return os.stat(self._path(key)).st_size
        except OSError as error:
            raise self._translate_error(error, key, "read") from error

    def put_if_absent(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        try:
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
            self._commit_lock.release(directory := os.path.dirname(path))
            self._sync_directory(directory)
        except OSError as error:
            raise self._translate_error(error, key, "write") from error

    def ensure_durable(self, key: str) -> None:
        # After a failed fsync, another one may succeed although the data never reached the disk.
        if os.path.dirname(self._path(key)) in self._failed_syncs:
            raise StorageError(f"{self.url}/{key}: the directory could not be synced to disk; check the disk")
        self.size_bytes(key)
        try:
            self._sync_directory(os.path.dirname(self._path(key)))
        except OSError as error:
            raise self._translate_error(error, key, "sync") from error

    def put(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        try:
            os.replace(self._write_temporary(path, data), path)
        except OSError as error:
            raise self._translate_error(error, key, "write") from error

    @contextmanager
    def create(self, key: str) -> Iterator[_FileSink]:
        path = self._path(key)
        try:
            temporary, fd = self._open_temporary(path)
        except OSError as error:
            raise self._translate_error(error, key, "write") from error
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
        try:
            self._sync_directory(os.path.dirname(path))
        except OSError as error:
            raise self._translate_error(error, key, "write") from error

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
        # The directory's time is the host's: file times come from the same clock.
        return self._world.clock.now_ms()

    def local_path(self, key: str) -> str | None:
        return self._path(key)

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        """Wait for other processes of this host, see `LocalCommitLock`.

        The lock is released once an object has been put next to ``key``, before it is durable: the next put syncs the
        same directory.
        """
        return self._commit_lock.hold(self._path(key))

    def check_writable(self) -> None:
        if self._network_fs is not None:
            raise StorageError(
                f"{self.url} lies on a network file system ({self._network_fs}), where one host cannot rely on seeing "
                "another's files; use a local disk, or object storage (s3://…), or set the warehouse setting "
                "storage.local.single-host=true if no other host ever opens this warehouse",
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
        """Return the path of a key. Raises `CorruptDataError` for a key outside of this folder: only damaged or forged
        files have such keys.
        """
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
        """Create the directory, and make each new level durable in its parent."""
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

    def _translate_error(self, error: OSError, key: str, doing: str) -> StorageError:
        where = f"{self.url}/{key}" if key else self.url
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and doing == "read":
            return ObjectNotFoundError.of(where)
        if error.errno == errno.EEXIST:
            return ObjectExistsError(f"{where} exists")
        remedy = _REMEDIES.get(error.errno or 0, "check the disk and the directory, then try again").format(doing=doing)
        refused = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        kind = StorageRefusedError if refused else StorageError
        return kind(f"cannot {doing} {where}: {os.strerror(error.errno or 0)}; {remedy}")


_REMEDIES = {
    errno.ENOSPC: "the disk is full (or out of inodes): free space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free space, then run the same command again",
    errno.EROFS: "the file system is read-only: remount it writable or choose another warehouse",
    errno.EACCES: "permission denied: run as the warehouse's owner or grant this user {doing} access",
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
    """Return a function that starts writing a file's pages to disk, so that the later fsync has less to do.

    None if the system has no such call (Linux has one). It guarantees nothing; the fsync does.
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
