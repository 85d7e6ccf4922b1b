"""LMDB environments that obey the rules of LMDB's manual. The only importer of ``lmdb``.

A process must not open an environment twice or use it across a fork, and its map cannot grow while it is read.
`Environment` enforces this for all threads of a process: it opens lazily, closes before a fork, reopens after it, and
grows as needed. Writes are not synced, and files from before a power loss are never read (`kv.lmdb.tablet_files`).

Writing directly to the map (``MDB_WRITEMAP``) makes commits several times faster, because no page is copied to the
file. But writing a page without disk space kills the process, and opening the file with a smaller map truncates it for
all processes. Disk space is therefore allocated for the whole map before it is written, and the map is as large as the
file. Both sizes change only under a lock that all processes share.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from streamhouse_spark.core.concurrency import (
    cached_property,
    close_before_fork,
    close_lock_file,
    new_condition,
    new_lock,
    open_lock_file,
)
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.kv.lmdb.tablet_files import cache_failure
from streamhouse_spark.storage.local import find_mount

_ALLOCATING: Final = frozenset({"ext4", "overlay", "tmpfs", "xfs"})
"""File systems on which allocated disk space remains available. A copy-on-write file system may still be full."""
_DOUBLED_BYTES_MAX: Final = 64 << 20
_ROUND_BYTES: Final = 1 << 20
MAP_BYTES = 1 << 18
"""Initial size of a map. It grows when it is full."""
READERS_MAX = 1024
_READER_BYTES = 64
_Result = TypeVar("_Result")
_DATABASES = (b"rows", b"meta")


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
        mount = find_mount(str(self.path))
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
        """Extend the file to ``num_bytes`` with allocated disk space. A failure does not change the size.

        The caller holds `lock_size`. Raises `OSError`.
        """
        self._allocate(self.path, num_bytes)

    def allocate_readers(self, num_bytes: int) -> None:
        """Allocate disk space for LMDB's reader table, a file that is always mapped."""
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


class DamagedError(CorruptDataError):
    """The files of an environment are damaged. They must be deleted and rebuilt."""

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        super().__init__(message, condition=condition or "CORRUPT_DATA")


class Environment:
    """Two sorted maps of bytes, ``rows`` and ``meta``, in one folder. Safe for threads, forks and other processes.

    A process must have only one object per folder, which `kv.tablet` ensures.
    """

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self._folder = folder
        self._file = MapFile(folder)
        self._map_bytes = map_bytes
        self._guard = new_lock()
        self._lock = new_condition(self._guard)
        """Condition of the guard. `_use` and `_leave` acquire only the guard, which takes a third of the time."""
        self._users = 0
        self._num_waiting = 0
        """Threads that wait until the environment is unused."""
        self._env: Any = None
        self._databases: dict[bytes, Any] = {}
        self._opened: tuple[int, int] | None = None
        self._times_opened = 0
        close_before_fork(self)

    @property
    def data_file(self) -> Path:
        return self._file.path

    @property
    def was_deleted(self) -> bool:
        """Whether the data file is missing or replaced: another process deleted the folder."""
        identity, opened = self._file.identity, self._opened
        return identity is None or (opened is not None and identity != opened)

    def close(self) -> None:
        """Close the files once they are unused. The next use reopens them."""
        with self._lock:
            self._wait_until_unused()
            self._close()
            self._opened = None

    def before_fork(self) -> None:
        """Close the files once other threads are done, and block opening until `after_fork`."""
        self._lock.acquire()
        self._wait_until_unused()
        self._close()

    def after_fork(self) -> None:
        self._lock.release()

    def read(self, action: Callable[[ReadTransaction], _Result]) -> _Result:
        """Run ``action`` in one read transaction, which reads a single state, and return its result.

        Raises `DamagedError`, and `StorageError` if the local disk fails.
        """
        import lmdb

        while True:
            env = self._use()
            try:
                with env.begin() as txn:
                    return action(ReadTransaction(txn, self._databases, self._times_opened))
            except lmdb.MapResizedError:
                pass  # another process resized the map
            except lmdb.Error as error:
                raise self._error(error) from error
            finally:
                self._leave()
            self._resize(0)

    def write(self, action: Callable[[Writer], _Result]) -> _Result:
        """Run ``action`` in one atomic write transaction and return its result. ``action`` may run more than once."""
        import lmdb

        while True:
            env = self._use()
            try:
                with env.begin(write=True) as txn:
                    return action(Writer(txn, self._databases, self._times_opened, env))
            except lmdb.MapResizedError:
                map_bytes = 0
            except lmdb.MapFullError:
                map_bytes = next_map_bytes(env.info()["map_size"])
            except _TooSmallError as error:
                map_bytes = error.map_bytes
            except lmdb.Error as error:
                raise self._error(error) from error
            finally:
                self._leave()
            self._resize(map_bytes)

    # -- opening --------------------------------------------------------------------------------------------------

    def _use(self) -> Any:
        """Return the open environment, which is not closed or resized until `_leave`."""
        with self._guard:
            env = self._env or self._open()
            self._users += 1
            return env

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            if self._num_waiting and not self._users:
                self._lock.notify_all()

    def _wait_until_unused(self) -> None:
        """Wait until no thread uses the environment. The caller holds the lock, which is released while waiting."""
        self._num_waiting += 1
        try:
            self._lock.wait_for(lambda: self._users == 0)
        finally:
            self._num_waiting -= 1

    def _open(self) -> Any:
        import lmdb

        env = None
        try:
            with self._file.lock_size():
                map_bytes = max(self._map_bytes, self._file.size_bytes)
                self._file.allocate_readers(READERS_MAX * _READER_BYTES)
                env = lmdb.open(
                    str(self._folder),
                    map_size=map_bytes,
                    max_dbs=len(_DATABASES),
                    max_readers=READERS_MAX,
                    sync=False,
                    metasync=False,
                    writemap=self._file.is_written_directly,
                    mode=0o600,
                )
                self._file.allocate(map_bytes)
                self._opened = self._file.identity
            env.reader_check()  # killed readers keep pages from being reused
            self._databases = {name: env.open_db(name) for name in _DATABASES}
        except (lmdb.Error, OSError) as error:
            if env is not None:
                env.close()
            if isinstance(error, lmdb.MapResizedError):
                return self._open()  # another process resized the map concurrently
            raise self._error(error) from error
        self._env = env
        self._times_opened += 1
        return env

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _resize(self, map_bytes: int) -> None:
        """Resize the unused map to ``map_bytes``; 0 means the size that another process set."""
        import lmdb

        with self._lock:
            self._wait_until_unused()
            env = self._env or self._open()
            if map_bytes and map_bytes <= env.info()["map_size"]:
                return  # another thread has resized the map
            try:
                with self._file.lock_size():
                    if self.was_deleted:  # otherwise disk space would be allocated for another file
                        raise FileNotFoundError(f"{self._file.path} was deleted while it was open")
                    if self._file.is_written_directly:
                        map_bytes = max(map_bytes, self._file.size_bytes)
                        self._file.allocate(map_bytes)
                    env.set_mapsize(map_bytes)
            except (lmdb.Error, OSError) as error:
                raise self._error(error) from error
            self._map_bytes = max(self._map_bytes, map_bytes)

    def _error(self, error: Exception) -> Exception:
        import lmdb

        damages = (
            lmdb.CorruptedError,
            lmdb.InvalidError,
            lmdb.PageNotFoundError,
            lmdb.PanicError,
            lmdb.VersionMismatchError,
        )
        if isinstance(error, damages):
            return DamagedError(f"{self._folder}: {error}")
        if not self._folder.is_dir():
            return DamagedError(f"{self._folder}: {error}; was the cache deleted?")
        return cache_failure(self._folder, error)


class ReadTransaction:
    def __init__(self, txn: Any, databases: Mapping[bytes, Any], times_opened: int) -> None:
        self._txn = txn
        self._rows = databases[b"rows"]
        self._meta = databases[b"meta"]
        self._times_opened = times_opened

    @property
    def version(self) -> tuple[int, int]:
        """The state that the transaction reads. Transactions of an environment with equal versions read the same data.

        Unlike a read of a value, this does not release the interpreter lock.
        """
        return self._times_opened, self._txn.id()

    def meta(self, name: bytes) -> bytes | None:
        value: bytes | None = self._txn.get(name, db=self._meta)
        return value

    def values(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, None for an absent key. Sorted keys are faster."""
        get, rows = self._txn.get, self._rows
        return [get(key, None, rows) for key in keys]

    def value(self, key: bytes) -> bytes | None:
        value: bytes | None = self._txn.get(key, None, self._rows)
        return value

    def values_of_prefixes(self, prefixes: list[bytes]) -> tuple[list[bytes], list[int]]:
        """Return the values of all keys that start with each prefix, and their counts. Sorted prefixes are faster."""
        values: list[bytes] = []
        counts: list[int] = []
        with self._txn.cursor(db=self._rows) as cursor:
            for prefix in prefixes:
                before = len(values)
                has_key = cursor.set_range(prefix)
                while has_key and cursor.key().startswith(prefix):
                    values.append(cursor.value())
                    has_key = cursor.next()
                counts.append(len(values) - before)
        return values, counts

    def items(self, first: bytes, num_items: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``num_items`` items in key order, starting at the key ``first``."""
        with self._txn.cursor(db=self._rows) as cursor:
            if not (cursor.set_range(first) if first else cursor.first()):
                return []
            return [item for item, _ in zip(cursor.iternext(), range(num_items), strict=False)]

    def num_rows(self) -> int:
        count: int = self._txn.stat(self._rows)["entries"]
        return count


class _TooSmallError(Exception):
    def __init__(self, map_bytes: int) -> None:
        self.map_bytes = map_bytes


class Writer(ReadTransaction):
    """A write transaction."""

    def __init__(self, txn: Any, databases: Mapping[bytes, Any], times_opened: int, env: Any) -> None:
        super().__init__(txn, databases, times_opened)
        self._env = env

    def expect(self, num_bytes: int) -> None:
        """Announce the approximate number of bytes that will be written, before the first write.

        If more bytes are written, the transaction is restarted with a larger map.
        """
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if used + num_bytes > info["map_size"]:
            raise _TooSmallError(max(used + num_bytes, next_map_bytes(info["map_size"])))

    def put_meta(self, name: bytes, value: bytes) -> None:
        self._txn.put(name, value, db=self._meta)

    def put(self, keys: Sequence[bytes], values: Iterable[bytes], *, append: bool = False) -> None:
        """Set the value of each key. ``append`` is faster, and requires ascending keys after all stored keys."""
        with self._txn.cursor(db=self._rows) as cursor:
            # Not a list of pairs: zip reuses one pair, which the garbage collector need not track.
            _, added = cursor.putmulti(zip(keys, values, strict=True), append=append)
        if append and added != len(keys):  # LMDB omits a key that is not after the last key
            raise DamagedError(f"only {added} of {len(keys)} keys were added: they are not in ascending order")

    def clear(self) -> None:
        self._txn.drop(self._rows, delete=False)

    def delete(self, keys: list[bytes]) -> None:
        for key in keys:
            self._txn.delete(key, db=self._rows)
