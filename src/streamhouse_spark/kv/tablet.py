"""Tablet: the current rows of a bucket by key, a local cache that is rebuilt from the log and never authoritative."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.kv.apply_queue import ApplyQueue
from streamhouse_spark.kv.lmdb.environment import DamagedError, Environment, ReadTransaction, Writer
from streamhouse_spark.kv.lmdb.tablet_files import TabletFiles

ITEMS_PER_STEP: Final = 65_536
_ESTIMATE_ROWS_MIN: Final = 4096
"""Writes of more rows estimate their size first."""

_IDENTITY = b"identity"
_APPLIED = b"applied"
_BEGINS = b"begins"
_HISTORY = b"history"
_Result = TypeVar("_Result")


class TabletState(NamedTuple):
    """The changes that a tablet has applied: exactly ``[begins, applied)`` of a log with this history."""

    begins: int
    applied: int
    history: bytes | None = None
    """Identifies the log, see `streamhouse_spark.kv.tablet_lineage`; None if the tablet has no record of it."""


@dataclass(frozen=True, slots=True)
class TabletLookup:
    """Values of keys at one state of the log."""

    extent: TabletState
    values: list[bytes | None]

    @property
    def begins(self) -> int:
        return self.extent.begins

    @property
    def applied(self) -> int:
        return self.extent.applied


class Tablet:
    """The rows of a bucket after all changes ``[begins, applied)``; a new tablet is empty at offset 0.

    Safe for threads, forks and other processes of this host, all of which may apply changes. Each call names the
    expected offset and history; both are compared in the transaction that stores the rows with the new offset and
    history. Only committed changes may be applied, so a tablet is never ahead of the log. A log that was restored from
    a backup is detected by its history.

    A tablet with damaged files or another identity is recreated empty.
    """

    def __init__(self, files: TabletFiles, identity: Mapping[str, object], *, map_bytes: int | None = None) -> None:
        """Open the tablet lazily. ``identity``, JSON, describes the format of keys and values; rows of another identity
        are discarded.
        """
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
        """The last verified history and the state that it was compared with; a cache of `tablet_lineage`."""
        self._claim()

    def close(self) -> None:
        self.apply_queue.finish()
        self._environment.close()
        self._files.release()

    @property
    def applied(self) -> int:
        """Offset of the first change of the log that is not applied."""
        return self._read(_read_applied_offset)

    @property
    def begins(self) -> int:
        """Offset at which the bucket was last truncated; 0 if it never was."""
        return self._read(_read_begin)

    @property
    def extent(self) -> TabletState:
        return self._read(_read_extent)

    @property
    def num_rows(self) -> int:
        return self._read(ReadTransaction.num_rows)

    def find(self, keys: list[bytes]) -> TabletLookup:
        """Return the values of the keys, all of one state. Sorted keys are faster.

        A damaged tablet is recreated empty at 0: compare `TabletLookup.applied` with the expected offset.
        """
        return self._read(lambda reader: TabletLookup(_read_extent(reader), reader.values(keys)))

    def find_one(self, key: bytes) -> TabletLookup:
        """Return the value of one key, as `find` does."""
        return self._read(lambda reader: TabletLookup(self._cached_extent(reader), [reader.value(key)]))

    def _cached_extent(self, reader: ReadTransaction) -> TabletState:
        """Return the extent, read once per state: that saves three of four reads."""
        version, extent = self._last_extent
        if version != reader.version or extent is None:
            extent = _read_extent(reader)
            self._last_extent = reader.version, extent
        return extent

    def find_prefixes(self, prefixes: list[bytes]) -> tuple[TabletState, list[bytes], list[int]]:
        """Return the `extent`, the values of the keys that start with each prefix, and their
        counts; all of one state.
        """
        return self._read(lambda reader: (_read_extent(reader), *reader.values_of_prefixes(prefixes)))

    def scan(self, take: Callable[[list[tuple[bytes, bytes]]], None], prefix: bytes = b"") -> TabletState:
        """Pass the keys that start with ``prefix`` and their values to ``take``, in order and in steps.

        All are of one state, whose `extent` is returned. Overwritten values keep their space until the scan ends. If
        damage is found, the extent of an empty tablet is returned and everything passed to ``take`` is void: compare
        `applied` with the expected offset.
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

        **Commit point:** LMDB's own, of rows, offset and ``history`` together. Returns False if the tablet is not at
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
        """Replace all rows by ``items``, steps of ascending keys and values, after the changes ``[begins, applied)``.

        Returns False if the tablet is already that far, or its history is not ``after``. **Commit point:** LMDB's own,
        of all rows, the offset and the history. ``items`` may be called more than once; giving ``num_rows`` avoids
        that.
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
        """Delete all rows and begin at this offset, unless the tablet begins there or later, or its history is not
        ``after``.
        """

        def write(writer: Writer) -> None:
            if _read_begin(writer) < offset and _read_history(writer) == after:
                writer.clear()
                writer.put_meta(_BEGINS, b"%d" % offset)
                writer.put_meta(_APPLIED, b"%d" % offset)
                _put_history(writer, history)

        self._write(write)

    def renew(self, expected: TabletState, history: bytes) -> None:
        """Replace the history by a newer one, if the tablet still has the ``expected`` state."""

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                _put_history(writer, history)

        self._write(write)

    def forget(self, expected: TabletState) -> None:
        """Empty the tablet and its history, if it still has the ``expected`` state. Other processes
        may have it open.
        """

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                writer.clear()
                for name in (_BEGINS, _APPLIED):
                    writer.put_meta(name, b"0")
                writer.put_meta(_HISTORY, b"")

        self._write(write)

    # -- files ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Recreate the tablet empty; if its files were deleted, adopt those that other processes created since.

        Nothing is lost: the log has all rows. Raises `StorageError` if the disk is full.
        """
        self._recreate(self._generation)

    def _recreate(self, generation: int) -> None:
        """Recreate the tablet unless another thread did, detected by ``generation``."""
        with self._lock:
            if self._generation != generation:
                return
            was_deleted = self._environment.was_deleted
            self._environment.close()
            if not self._files.remove() and not was_deleted:
                raise DamagedError(f"{self._files.folder} is damaged and other processes have it open; end them")
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
        self.apply_queue.finish()  # before any lock is held: the queued work takes the same locks
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
            if self._environment.was_deleted:  # other processes do not see these writes and may have recreated it
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
    """Estimate the bytes of ``num_rows`` rows like these: 1.5 times their own, and LMDB's overhead."""
    some = range(0, len(keys), 1 + len(keys) // 1000)
    return num_rows * (16 + 3 * sum(len(keys[i]) + len(values[i]) for i in some) // (2 * len(some)))
