"""The files of tablets on the local disk, and the checks by which they are trusted.

::

    <cache>/tablets-2/<boot>/<table>/<bucket>/data.mdb   the environment (and lock.mdb, size.lock)
    <cache>/tablets-2/<boot>/<table>/<bucket>.stamp      size, time and inode of data.mdb after our last write
    <cache>/tablets-2/<boot>/<table>/<bucket>.lock       a shared lock, held by processes that have the tablet open

``<table>`` is the table's uuid and a hash of the warehouse URL, because a copied warehouse has the same uuids and both
warehouses may be in use.

The cache is ``STREAMHOUSE_CACHE_DIR``. By default it is ``streamhouse`` in the user's cache directory, or, if that is
not writable, ``streamhouse-<user>`` in the temporary directory. It never has the only copy of a row, and can be deleted
while no process uses it.

LMDB does not sync here and has no checksums. Files are therefore trusted only within the boot that wrote them, and only
if size, time and inode match the stamp. The next opener removes a file that was torn by a power loss, truncated,
replaced or modified, and a file whose writer was killed between write and stamp. Bytes that change below the file
system are not detected.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from streamhouse_spark.core.clock import Ids, SystemIds
from streamhouse_spark.core.concurrency import close_lock_file, open_lock_file, share_lock_file
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, StorageError, StreamhouseError

CACHE_DIR_VARIABLE: Final = "STREAMHOUSE_CACHE_DIR"
CACHE_BYTES_VARIABLE: Final = "STREAMHOUSE_CACHE_BYTES_MAX"
CACHE_BYTES_MAX: Final = 10 << 30
_STAMP_BYTES: Final = 128
FORMAT_VERSION: Final = 2
"""Version of keys, values and metadata. Releases with different versions use different folders."""


def cache_folder() -> Path:
    """Return the cache folder of this boot. Raises `InvalidOptionError` if no folder can be used."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    try:
        base = Path(chosen).expanduser() if chosen else _user_cache_folder() or _temporary_folder()
    except RuntimeError as error:
        raise InvalidOptionError(f"cannot find a cache folder: {error}; set {CACHE_DIR_VARIABLE}") from error
    return base / f"tablets-{FORMAT_VERSION}" / boot_id()


def cache_bytes_max() -> int:
    """Return the size limit of the cache. Raises `InvalidOptionError` for an invalid limit."""
    text = os.environ.get(CACHE_BYTES_VARIABLE)
    if text is None:
        return CACHE_BYTES_MAX
    if not text.isdecimal():
        raise InvalidOptionError(f"{CACHE_BYTES_VARIABLE} is {text!r}, expected a number of bytes")
    return int(text)


def _user_cache_folder() -> Path | None:
    """Return the folder in the user's cache directory; None if it is not writable, for example in a container."""
    try:
        if sys.platform == "darwin":
            folder = Path.home() / "Library" / "Caches" / "streamhouse"
        else:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamhouse"
        folder.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _temporary_folder() -> Path:
    """Return this user's folder in the temporary directory, in which all users may write.

    Raises `InvalidOptionError` if the folder cannot be created, or another user may write to it.
    """
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"streamhouse-{user}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise InvalidOptionError(f"cannot create the cache folder: {error}; set {CACHE_DIR_VARIABLE}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o022:
        raise InvalidOptionError(
            f"cannot use {folder} as a cache: expected a folder to which only this user may write; set "
            f"{CACHE_DIR_VARIABLE} to such a folder"
        )
    return folder


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of the host, or an id of this process if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    with suppress(OSError, subprocess.CalledProcessError):
        process = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=True, text=True
        )
        return process.stdout.strip().lower()
    return f"process-{SystemIds().new_uuid()}"


def cache_failure(folder: Path, error: Exception) -> StorageError:
    """Return the error for a failing disk below the cache, with its remedy."""
    return StorageError(
        f"the local cache in {folder} failed: {error}; check that the disk has space and that no other user uses the "
        f"folder, or set {CACHE_DIR_VARIABLE} to another folder"
    )


class TabletFiles:
    """The files of one bucket's tablet, and this process's claim on them."""

    def __init__(self, cache: Path, table_folder: str, bucket: int, ids: Ids | None = None) -> None:
        self._parent = cache / table_folder
        self._ids = ids or SystemIds()
        self._name = str(bucket)
        self._lock_file: int | None = None

    @property
    def folder(self) -> Path:
        return self._parent / self._name

    @property
    def _stamp_path(self) -> Path:
        return self._parent / f"{self._name}.stamp"

    @property
    def _lock_path(self) -> Path:
        return self._parent / f"{self._name}.lock"

    def claim(self) -> None:
        """Remove untrusted files, then prevent other processes from removing the files.

        Files that another process has open are trusted, because their first opener checked them.
        """
        if self._lock_file is not None:
            return
        with self._map_disk_errors():
            try:
                self._lock_file = self._acquire()
            except FileNotFoundError:  # another process is deleting the cache
                self._lock_file = self._acquire()

    def _acquire(self) -> int:
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = open_lock_file(self._lock_path, 0o600)
        try:
            if _try_lock_file(lock_file) and not self._is_stamped():
                self._remove()
            fcntl.flock(lock_file, fcntl.LOCK_SH)
            os.utime(lock_file)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except BaseException:
            close_lock_file(lock_file)
            raise
        share_lock_file(lock_file)
        return lock_file

    @contextmanager
    def _map_disk_errors(self) -> Iterator[None]:
        """Raise `StorageError` for errors of the local disk."""
        try:
            yield
        except OSError as error:
            raise cache_failure(self.folder, error) from error

    def release(self) -> None:
        """Allow other processes to remove the files. The environment must be closed."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def stamp(self) -> None:
        """Record the state of the data file after a write of this process.

        If the stamp cannot be stored, the next opener recreates the file.
        """
        with suppress(OSError):
            stamp_file = open_lock_file(self._stamp_path, 0o600)
            try:
                fcntl.flock(stamp_file, fcntl.LOCK_EX)  # the last process to stamp sees the file after all writes
                # The stamp has a fixed length: ext4 would immediately flush a truncated file.
                os.pwrite(stamp_file, json.dumps(self._fingerprint()).encode().ljust(_STAMP_BYTES), 0)
            finally:
                close_lock_file(stamp_file)

    def remove(self) -> bool:
        """Delete the files unless other processes have them open, and return whether they are deleted."""
        with self._map_disk_errors():
            return self._try_remove()

    def _try_remove(self) -> bool:
        self.release()
        try:
            lock_file = open_lock_file(self._lock_path, 0o600)
        except FileNotFoundError:
            return True
        try:
            if not _try_lock_file(lock_file):
                return False
            self._remove()
            return True
        finally:
            close_lock_file(lock_file)

    def _is_stamped(self) -> bool:
        try:
            stamped: object = json.loads(self._stamp_path.read_bytes())
        except (OSError, ValueError):
            return False
        return stamped is not None and stamped == self._fingerprint()

    def _fingerprint(self) -> dict[str, int] | None:
        try:
            status = (self.folder / "data.mdb").stat()
        except FileNotFoundError:
            return None
        return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns, "inode": status.st_ino}

    def _remove(self) -> None:
        """Rename the files, then delete them. A process that is killed during this leaves no partial tablet."""
        self._stamp_path.unlink(missing_ok=True)
        trash = self._parent / f"{self._name}.gone-{self._ids.new_uuid()}"
        with suppress(FileNotFoundError):
            self.folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _try_lock_file(lock_file: int) -> bool:
    """Lock the file exclusively if no other process holds the lock. Return whether it is locked."""
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# -- eviction ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CachedTablet:
    files: TabletFiles
    num_bytes: int
    used_ns: int


def list_cached_tablets(cache: Path) -> list[CachedTablet]:
    """Return the tablets in the cache of one boot, least recently used first."""
    tablets = []
    for files, lock_path in _iter_tablets(cache):
        with suppress(FileNotFoundError):
            data = (files.folder / "data.mdb").stat()
            tablets.append(CachedTablet(files, data.st_blocks * 512, lock_path.stat().st_mtime_ns))
    return sorted(tablets, key=lambda tablet: tablet.used_ns)


def evict_tablets(cache: Path, bytes_max: int) -> list[Path]:
    """Remove all tablets of other boots. Then remove closed tablets, least recently used first, down to ``bytes_max``.

    Skips files that cannot be read or removed, because other users may own or delete parts of the cache.
    """
    with suppress(OSError, StreamhouseError):
        _remove_other_boots(cache)
    removed: list[Path] = []
    with suppress(OSError, StreamhouseError):
        tablets = list_cached_tablets(cache)
        excess_bytes = sum(tablet.num_bytes for tablet in tablets) - bytes_max
        for tablet in tablets:
            if excess_bytes <= 0:
                break
            if tablet.files.remove():
                excess_bytes -= tablet.num_bytes
                removed.append(tablet.files.folder)
    return removed


def _iter_tablets(cache: Path) -> Iterator[tuple[TabletFiles, Path]]:
    for lock_path in cache.glob("*/*.lock"):
        if lock_path.stem.isdecimal():
            yield TabletFiles(cache, lock_path.parent.name, int(lock_path.stem)), lock_path


def _remove_other_boots(cache: Path) -> None:
    """Remove the tablets of other boots, and leftovers of interrupted removals. Skips folders that are in use."""
    for other in cache.parent.glob("*"):
        if other != cache and all(files.remove() for files, _ in _iter_tablets(other)):
            shutil.rmtree(other, ignore_errors=True)
    for leftover in cache.glob("*/*.gone-*"):
        shutil.rmtree(leftover, ignore_errors=True)
