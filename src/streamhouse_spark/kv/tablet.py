"""Tablet: the current rows of a bucket by key. It is a local cache that is rebuilt from the log.

A process has one tablet object per bucket, which all tables and threads share (`open_tablet`). Committed changes may
wait in the tablet's `ApplyQueue` after the writer's call returned. The next use of the tablet applies them, or waits
for the thread that applies them. If queued work is lost, because a process was killed or a disk failed, the next use
replays the log. A forked child therefore drops the queued work of its parent.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import xxhash

from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.kv.lmdb.environment import DamagedError, Environment, ReadTransaction, Writer
from streamhouse_spark.kv.lmdb.tablet_files import (
    CACHE_DIR_VARIABLE,
    TabletFiles,
    cache_bytes_max,
    cache_folder,
    evict_tablets,
)

BYTES_MAX: Final = 64 << 20
"""Maximum bytes of queued rows of all tablets in this process. Further rows are applied before the call returns."""

Work = Callable[[], None]
ITEMS_PER_STEP: Final = 65_536
_ESTIMATE_ROWS_MIN: Final = 4096
"""Writes of more rows estimate their size first."""
_IDENTITY = b"identity"
_APPLIED = b"applied"
_BEGINS = b"begins"
_HISTORY = b"history"
_Result = TypeVar("_Result")
_open: dict[Path, Tablet] = {}
_by_name: dict[tuple[str | None, str, str, int], Tablet] = {}
"""Open tablets by the parts of their names, because building a path costs more than a lookup."""
_lock = new_lock()


class ApplyQueue:
    """Queued work of one tablet, in log order. Thread-safe.

    Work must not raise. It may use the tablet, in which all earlier work is applied.
    """

    def __init__(self) -> None:
        self._work: deque[tuple[Work, int]] = deque()
        self._is_busy = False
        self._lock = new_lock()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Leave all work to the parent process."""
        self._work.clear()
        self._is_busy = False

    def add(self, work: Work, num_bytes: int) -> None:
        """Queue ``work`` for another thread. If too much is queued, this call does the work."""
        self._work.append((work, num_bytes))
        if _applier.try_enqueue(self, num_bytes):
            return
        self.finish()

    def finish(self) -> None:
        """Do all queued work that has not started, and wait for work in progress."""
        if not self._work and not self._is_busy:
            return
        with self._lock:
            if self._is_busy:
                return  # reentrant: this thread's work uses the tablet
            self._is_busy = True
            try:
                while self._work:
                    work, num_bytes = self._work.popleft()
                    try:
                        work()
                    finally:
                        _applier.note_done(num_bytes)
            finally:
                self._is_busy = False


class _Applier:
    """The thread of this process that applies the queues of all tablets."""

    def __init__(self) -> None:
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        self._lock = new_lock()
        self._tablets: queue.SimpleQueue[ApplyQueue] = queue.SimpleQueue()
        self._waiting: weakref.WeakSet[ApplyQueue] = weakref.WeakSet()
        self._num_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def try_enqueue(self, due: ApplyQueue, num_bytes: int) -> bool:
        """Count the bytes and queue the work. Return False if too much is queued or no thread can start."""
        with self._lock:
            self._num_bytes += num_bytes
            if self._num_bytes > BYTES_MAX or self._is_ending or not self._is_running():
                return False
            self._waiting.add(due)
        self._tablets.put(due)
        return True

    def note_done(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes = max(0, self._num_bytes - num_bytes)

    def end(self) -> None:
        """Apply all queues. Later work is done by the calls that add it."""
        with self._lock:
            self._is_ending = True
        self.finish()

    def finish(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for due in waiting:
            due.finish()

    def _is_running(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(self._tablets,), name="streamhouse-apply", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process is out of threads, or exiting
                return False
            self._thread = thread
            # Files of a writer that ends during a write are discarded. Children of multiprocessing do not run `atexit`.
            Finalize(None, self.end, exitpriority=50)
        return True

    @staticmethod
    def _run(tablets: queue.SimpleQueue[ApplyQueue]) -> None:
        while True:
            tablets.get().finish()


_applier = _Applier()


def finish_apply_queues() -> None:
    """Apply all queued changes of this process to their tablets, so that a benchmark includes this work."""
    _applier.finish()


class TabletState(NamedTuple):
    """The changes that a tablet has applied: exactly ``[begins, applied)`` of a log with this history."""

    begins: int
    applied: int
    history: bytes | None = None
    """The history of the log, see `kv.log_replay`; None if the tablet has no record of it."""


class TabletLookup(NamedTuple):
    """Values of keys at one state of the log."""

    extent: TabletState
    values: list[bytes | None]


class Tablet:
    """The rows of a bucket after all changes ``[begins, applied)``; a new tablet is empty at offset 0.

    Threads, forked children and other processes of this host may use a tablet and apply changes concurrently. Each
    call names the expected offset and history. The transaction that stores the rows compares both with the stored
    values. Only committed changes may be applied, so a tablet is never ahead of the log. The history shows whether the
    log was restored from a backup.

    A tablet with damaged files or another identity is recreated empty.
    """

    def __init__(self, files: TabletFiles, identity: Mapping[str, object], *, map_bytes: int | None = None) -> None:
        """Open the tablet lazily. ``identity`` (JSON) is the format of keys; rows of another format are discarded."""
        self._files = files
        self.apply_queue = ApplyQueue()
        """Committed changes that this process will apply. Each read applies them first."""
        self._lock = new_lock()
        self._generation = 0
        self._last_extent: tuple[tuple[int, int] | None, TabletState | None] = None, None
        self._identity = json.dumps(identity, sort_keys=True).encode()
        self._environment = (
            Environment(files.folder) if map_bytes is None else Environment(files.folder, map_bytes=map_bytes)
        )
        self.verified_lineage: object = None
        """The last verified history and the latest record of the state with which it was compared."""
        self._claim()

    def close(self) -> None:
        self.apply_queue.finish()
        self._environment.close()
        self._files.release()

    @property
    def extent(self) -> TabletState:
        return self._read(_read_extent)

    def find(self, keys: list[bytes]) -> TabletLookup:
        """Return the values of the keys, all of one state. Sorted keys are faster.

        A damaged tablet is recreated empty at offset 0. The caller must compare `extent.applied` with the expected
        offset.
        """
        return self._read(lambda reader: TabletLookup(_read_extent(reader), reader.values(keys)))

    def find_one(self, key: bytes) -> TabletLookup:
        """Return the value of one key, see `find`."""
        return self._read(lambda reader: TabletLookup(self._cached_extent(reader), [reader.value(key)]))

    def _cached_extent(self, reader: ReadTransaction) -> TabletState:
        """Return the extent. It is read once per state, which saves three of four reads."""
        version, extent = self._last_extent
        if version != reader.version or extent is None:
            extent = _read_extent(reader)
            self._last_extent = reader.version, extent
        return extent

    def find_prefixes(self, prefixes: list[bytes]) -> tuple[TabletState, list[bytes], list[int]]:
        """Return the `extent`, the values of the keys that start with each prefix, and their counts."""
        return self._read(lambda reader: (_read_extent(reader), *reader.values_of_prefixes(prefixes)))

    def scan(self, take: Callable[[list[tuple[bytes, bytes]]], None], prefix: bytes = b"") -> TabletState:
        """Pass the keys that start with ``prefix`` and their values to ``take``, in order and in steps.

        Returns the `extent` of the state that the scan read. Overwritten values occupy space until the scan ends. If
        the tablet is damaged, returns the extent of an empty tablet, and all that was passed to ``take`` is void. The
        caller must compare `applied` with the expected offset.
        """

        def read(reader: ReadTransaction) -> TabletState:
            first = prefix
            while items := reader.items(first, ITEMS_PER_STEP):
                inside = [item for item in items if item[0].startswith(prefix)] if prefix else items
                if inside:
                    take(inside)
                if len(inside) < ITEMS_PER_STEP:
                    break
                first = items[-1][0] + b"\x00"
            return _read_extent(reader)

        return self._read(read)

    def apply(
        self,
        changes: Mapping[bytes, bytes | None],
        start: int,
        end: int,
        *,
        after: bytes | None = None,
        history: bytes | None = None,
    ) -> bool:
        """Store the values of the keys after the log's changes ``[start, end)``; None deletes a key.

        **Commit point:** the LMDB transaction with rows, offset and ``history``. Returns False if the tablet is not at
        ``start`` with the history ``after``, because another thread or process applied changes.
        """
        keys = sorted(changes)
        deleted = [key for key in keys if changes[key] is None] if None in changes.values() else []
        written = [key for key in keys if changes[key] is not None] if deleted else keys

        def write(writer: Writer) -> bool:
            if _read_applied_offset(writer) != start or _read_history(writer) != after:
                return False
            values: list[bytes] = list(map(changes.__getitem__, written))  # type: ignore[arg-type]  # without None
            if len(written) > _ESTIMATE_ROWS_MIN:
                writer.expect(_estimate_bytes(written, values, len(written)))
            writer.put(written, values)
            writer.delete(deleted)
            writer.put_meta(_APPLIED, b"%d" % end)
            _put_history(writer, history)
            return True

        return self._write(write)

    def restore(
        self,
        items: Callable[[], Iterable[tuple[Sequence[bytes], Sequence[bytes]]]],
        begins: int,
        applied: int,
        *,
        num_rows: int = 0,
        after: bytes | None = None,
        history: bytes | None = None,
    ) -> bool:
        """Replace all rows by the rows after the changes ``[begins, applied)``.

        ``items`` returns steps of keys, in ascending order, and their values. It may be called more than once; a given
        ``num_rows`` avoids that. Returns False if the tablet has already applied as many changes, or its history is not
        ``after``. **Commit point:** the LMDB transaction with all rows, the offset and the history.
        """

        def write(writer: Writer) -> bool:
            if (
                _read_begin(writer) > begins
                or _read_applied_offset(writer) >= applied
                or _read_history(writer) != after
            ):
                return False
            writer.clear()
            for number, (keys, values) in enumerate(items()):
                if number == 0 and num_rows > _ESTIMATE_ROWS_MIN:
                    writer.expect(_estimate_bytes(keys, values, num_rows))
                writer.put(keys, values, append=True)
            writer.put_meta(_BEGINS, b"%d" % begins)
            writer.put_meta(_APPLIED, b"%d" % applied)
            _put_history(writer, history)
            return True

        return self._write(write)

    def truncate(self, offset: int, *, after: bytes | None = None, history: bytes | None = None) -> None:
        """Delete all rows and start at ``offset``, unless the tablet starts later or its history is not ``after``."""

        def write(writer: Writer) -> None:
            if _read_begin(writer) < offset and _read_history(writer) == after:
                writer.clear()
                writer.put_meta(_BEGINS, b"%d" % offset)
                writer.put_meta(_APPLIED, b"%d" % offset)
                _put_history(writer, history)

        self._write(write)

    def renew_history(self, expected: TabletState, history: bytes) -> None:
        """Replace the history by a later record, if the tablet still has the ``expected`` state."""

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                _put_history(writer, history)

        self._write(write)

    def forget(self, expected: TabletState) -> None:
        """Empty the tablet and its history, if it still has the ``expected`` state."""

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                writer.clear()
                for name in (_BEGINS, _APPLIED):
                    writer.put_meta(name, b"0")
                writer.put_meta(_HISTORY, b"")

        self._write(write)

    # -- files ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Recreate the tablet empty. If another process has recreated its files, open these.

        No row is lost, because the log has all rows. Raises `StorageError` if the disk is full.
        """
        self._recreate(self._generation)

    def _recreate(self, generation: int) -> None:
        """Recreate the tablet, unless another thread did so after ``generation`` was read."""
        with self._lock:
            if self._generation != generation:
                return
            was_deleted = self._environment.was_deleted
            self._environment.close()
            if not self._files.remove() and not was_deleted:
                raise DamagedError(
                    f"{self._files.folder} is damaged and other processes have it open; end these processes"
                )
            self._generation += 1
            self._claim()

    def _claim(self) -> None:
        self._files.claim()
        try:
            identity = self._environment.read(lambda reader: reader.meta(_IDENTITY))
            if identity is None:
                self._write(lambda writer: writer.put_meta(_IDENTITY, self._identity))
                return
        except DamagedError:
            identity = None
        if identity != self._identity:
            self.reset()

    def _read(self, action: Callable[[ReadTransaction], _Result]) -> _Result:
        self.apply_queue.finish()  # before any lock is held, because the queued work acquires locks
        generation = self._generation
        try:
            return self._environment.read(action)
        except DamagedError:
            self._recreate(generation)
            return self._environment.read(action)

    def _write(self, action: Callable[[Writer], _Result]) -> _Result:
        generation = self._generation
        try:
            return self._environment.write(action)
        finally:
            if self._environment.was_deleted:  # other processes do not see these writes
                self._recreate(generation)
            else:
                self._files.stamp()


def _read_applied_offset(reader: ReadTransaction) -> int:
    return int(reader.meta(_APPLIED) or b"0")


def _read_begin(reader: ReadTransaction) -> int:
    return int(reader.meta(_BEGINS) or b"0")


def _read_history(reader: ReadTransaction) -> bytes | None:
    return reader.meta(_HISTORY) or None


def _read_extent(reader: ReadTransaction) -> TabletState:
    return TabletState(_read_begin(reader), _read_applied_offset(reader), _read_history(reader))


def _put_history(writer: Writer, history: bytes | None) -> None:
    if history is not None:
        writer.put_meta(_HISTORY, history)


def _estimate_bytes(keys: Sequence[bytes], values: Sequence[bytes], num_rows: int) -> int:
    """Estimate the bytes of ``num_rows`` rows like these: 1.5 times the bytes of keys and values, and LMDB's
    overhead.
    """
    some = range(0, len(keys), 1 + len(keys) // 1000)
    return num_rows * (16 + 3 * sum(len(keys[i]) + len(values[i]) for i in some) // (2 * len(some)))


def open_tablet(warehouse_url: str, table_uuid: str, bucket: int, identity: Mapping[str, object]) -> Tablet:
    """Return the bucket's tablet in this host's cache, and open it if necessary. Raises `StorageError`.

    Opening a tablet evicts unused tablets if the cache is too large. The caller must check the tablet's history
    (`kv.log_replay`), because the table may have been restored since its rows were applied.
    """
    name = (os.environ.get(CACHE_DIR_VARIABLE), warehouse_url, table_uuid, bucket)
    cached = _by_name.get(name)
    if cached is not None:
        return cached
    folder = f"{table_uuid}-{xxhash.xxh3_64_hexdigest(warehouse_url.encode())}"
    files = TabletFiles(cache_folder(), folder, bucket)
    with _lock:
        opened = _open.get(files.folder)
        if opened is None:
            bytes_max = cache_bytes_max()
            opened = _open[files.folder] = Tablet(files, identity)
            evict_tablets(cache_folder(), bytes_max)
        _by_name[name] = opened
        return opened


def close_tablets() -> None:
    """Close all tablets, which must not be in use. The next use reopens them."""
    with _lock:
        _by_name.clear()
        while _open:
            _open.popitem()[1].close()
