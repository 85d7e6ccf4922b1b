"""The files of KV tablets on the local disk, and the rules for trusting them.

::

    <cache>/tablets-2/<boot>/<table>/<bucket>/data.mdb   the environment (and lock.mdb, size.lock)
    <cache>/tablets-2/<boot>/<table>/<bucket>.stamp      what data.mdb looked like after our last write
    <cache>/tablets-2/<boot>/<table>/<bucket>.lock       held shared by processes that have it open

``<table>`` is the table's uuid and a hash of the warehouse's URL: a copy of a warehouse has the same uuids, and both
may be used at once.

The cache is ``STREAMHOUSE_CACHE_DIR``, else ``streamhouse`` in the user's own cache directory, else, where that cannot
be written, ``streamhouse-<user>`` in the directory for temporary files. It is never inside a warehouse, and all of it
can be deleted while no process uses it. Nothing here is ever the only copy of a row.

LMDB neither syncs here nor has checksums, so files count only within the boot of the machine that wrote them, and only
while size, time and inode are those of the stamp. A file that was torn by a power loss, cut, replaced or written to by
somebody else is removed by its next opener, as is one whose writer was killed between writing and stamping. Bytes that
change below the file system are not noticed.
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
from streamhouse_spark.core.fork_safety import close_lock_file, open_lock_file, share_lock_file
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, StorageError, StreamhouseError

CACHE_DIR_VARIABLE: Final = "STREAMHOUSE_CACHE_DIR"
CACHE_BYTES_VARIABLE: Final = "STREAMHOUSE_CACHE_BYTES_MAX"
CACHE_BYTES_MAX: Final = 10 << 30
_STAMP_BYTES: Final = 128
FORMAT_VERSION: Final = 2
"""Version of keys, values and metadata: releases of this package with different ones do not see each other's
tablets."""


def cache_folder() -> Path:
    """Return the folder of this boot, for all tables of all warehouses. Raises `InvalidOptionError` without one."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    try:
        base = Path(chosen).expanduser() if chosen else _user_cache_folder() or _temporary_folder()
    except RuntimeError as error:
        raise InvalidOptionError(f"there is no folder for rows by key: {error}; set {CACHE_DIR_VARIABLE}") from error
    return base / f"tablets-{FORMAT_VERSION}" / boot_id()


def cache_bytes_max() -> int:
    """Return the size limit of the cache. Raises `InvalidOptionError` for a limit that is no number of bytes."""
    text = os.environ.get(CACHE_BYTES_VARIABLE)
    if text is None:
        return CACHE_BYTES_MAX
    if not text.isdecimal():
        raise InvalidOptionError(f"{CACHE_BYTES_VARIABLE} is {text!r}, expected a number of bytes")
    return int(text)


def _user_cache_folder() -> Path | None:
    """Return the folder in the user's own cache directory; None if it cannot be made, as in containers whose user has
    no home or may not write there.
    """
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
    """Return this user's folder in the directory for temporary files, where others may write too: so it has to be ours.

    Raises `InvalidOptionError` if it cannot be made, or is somebody else's.
    """
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"streamhouse-{user}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise InvalidOptionError(f"there is no folder for rows by key: {error}; set {CACHE_DIR_VARIABLE}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o022:
        raise InvalidOptionError(
            f"{folder} is not a folder that this user alone may write to, so rows by key are not kept there; set "
            f"{CACHE_DIR_VARIABLE} to a folder of your own"
        )
    return folder


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return a text that changes with each start of the machine. If there is none, return a text of this
    process alone.
    """
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
        f"the local cache in {folder} failed: {error}; check that the disk has space and that nobody else uses the "
        f"folder, or choose another by {CACHE_DIR_VARIABLE}"
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
        """Keep others from removing the files; remove the files first if they cannot be trusted.

        They are checked only while nobody else has them open: the first opener checked them.
        """
        if self._lock_file is not None:
            return
        with self._map_disk_errors():
            try:
                self._lock_file = self._acquire()
            except FileNotFoundError:  # somebody deletes the cache at this moment
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
        """Raise `StorageError` for an error of the local disk."""
        try:
            yield
        except OSError as error:
            raise cache_failure(self.folder, error) from error

    def release(self) -> None:
        """Let others remove the files. The environment must be closed."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def stamp(self) -> None:
        """Note that the data file is as this process wrote it. To be called after each write.

        If the note cannot be stored, the next opener begins the file anew.
        """
        with suppress(OSError):
            stamp_file = open_lock_file(self._stamp_path, 0o600)
            try:
                fcntl.flock(stamp_file, fcntl.LOCK_EX)  # the last process to stamp looks at the file after all writes
                # Of one length and never truncated: ext4 writes a file at once that was truncated, to be safe.
                os.pwrite(stamp_file, json.dumps(self._fingerprint()).encode().ljust(_STAMP_BYTES), 0)
            finally:
                close_lock_file(stamp_file)

    def remove(self) -> bool:
        """Delete the files if nobody else has them open. Returns whether they are gone. Raises `StorageError`."""
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
        """Rename, then delete: a process killed while deleting leaves nothing under the name."""
        self._stamp_path.unlink(missing_ok=True)
        trash = self._parent / f"{self._name}.gone-{self._ids.new_uuid()}"
        with suppress(FileNotFoundError):
            self.folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _try_lock_file(lock_file: int) -> bool:
    """Lock the descriptor exclusively, and return whether that succeeded."""
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
    """List the tablets in the cache of one boot, the longest unused first."""
    tablets = []
    for files, lock_path in _iter_tablets(cache):
        with suppress(FileNotFoundError):
            data = (files.folder / "data.mdb").stat()
            tablets.append(CachedTablet(files, data.st_blocks * 512, lock_path.stat().st_mtime_ns))
    return sorted(tablets, key=lambda tablet: tablet.used_ns)


def evict(cache: Path, bytes_max: int) -> list[Path]:
    """Remove tablets that nobody has open, the longest unused first, until the rest fits, and all tablets of other
    boots.

    Files that cannot be looked at or removed stay: others may delete, or own, a part of the cache.
    """
    with suppress(OSError, StreamhouseError):
        _remove_other_boots(cache)
    removed: list[Path] = []
    with suppress(OSError, StreamhouseError):
        tablets = list_cached_tablets(cache)
        too_many_bytes = sum(tablet.num_bytes for tablet in tablets) - bytes_max
        for tablet in tablets:
            if too_many_bytes <= 0:
                break
            if tablet.files.remove():
                too_many_bytes -= tablet.num_bytes
                removed.append(tablet.files.folder)
    return removed


def _iter_tablets(cache: Path) -> Iterator[tuple[TabletFiles, Path]]:
    for lock_path in cache.glob("*/*.lock"):
        if lock_path.stem.isdecimal():
            yield TabletFiles(cache, lock_path.parent.name, int(lock_path.stem)), lock_path


def _remove_other_boots(cache: Path) -> None:
    """Remove the tablets of other boots, and the rest of interrupted removals. A folder that another host uses is
    locked.
    """
    for other in cache.parent.glob("*"):
        if other != cache and all(files.remove() for files, _ in _iter_tablets(other)):
            shutil.rmtree(other, ignore_errors=True)
    for leftover in cache.glob("*/*.gone-*"):
        shutil.rmtree(leftover, ignore_errors=True)
