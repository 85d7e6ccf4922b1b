"""One bucket's current rows, by key: a local copy that is built from the log, never the truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.kv.apply_queue import ApplyQueue
from streamhouse_spark.kv.lmdb.environment import DamagedError, Environment, Reader, Writer
from streamhouse_spark.kv.lmdb.tablet_files import TabletFiles

ITEMS_PER_STEP: Final = 65_536
_ESTIMATE_ROWS_MIN: Final = 4096
"""Writes of more rows than this estimate their size first."""

_IDENTITY = b"identity"
_APPLIED = b"applied"
_BEGINS = b"begins"
_HISTORY = b"history"
_Result = TypeVar("_Result")


class TabletState(NamedTuple):
    """The changes that a tablet has: exactly those of ``[begins, applied)``, of a log with this history."""

    begins: int
    applied: int
    history: bytes | None = None
    """See `streamhouse_spark.kv.tablet_lineage`, which tells the owner of the rows. None if the tablet has no record of
    it."""


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
    """The rows of a bucket after all changes of the offsets ``[begins, applied)``; empty and at 0 when it is new.

    Safe for threads, forks and other processes of this host, which may all apply changes. Each call names the offset it
    begins at and the history it found, and both are compared in the same transaction that stores the rows, the new
    offset and the new history. Only changes that are committed to the log may be applied, so a tablet is never ahead of
    it, unless the log was restored from a backup, which the history tells.

    A tablet whose files are damaged or of another identity begins anew, empty.
    """

    def __init__(self, files: TabletFiles, identity: Mapping[str, object], *, map_bytes: int | None = None) -> None:
        """Open the tablet lazily. ``identity``, JSON, describes the form of keys and values: rows stored under another
        one do not count.
        """
        self._files = files
        self.apply_queue = ApplyQueue()
        """Committed changes that this process applies soon. Each read applies them first."""
        self._lock = new_lock()
        self._generation = 0
        self._last_extent: tuple[tuple[int, int] | None, TabletState | None] = None, None
        self._identity = json.dumps(identity, sort_keys=True).encode()
        self._environment = (
            Environment(files.folder) if map_bytes is None else Environment(files.folder, map_bytes=map_bytes)
        )
        self.verified_lineage: object = None
        """The last history that was found to be right, and the state that it was compared with: a note of
        `tablet_history`."""
        self._claim()

    def close(self) -> None:
        self.apply_queue.finish()
        self._environment.close()
        self._files.release()

    @property
    def applied(self) -> int:
        """Offset of the first change of the log that the rows do not have."""
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
        return self._read(Reader.num_rows)

    def find(self, keys: list[bytes]) -> TabletLookup:
        """Return the values of the keys, all of one state. Sorted keys are found faster.

        A tablet that is found damaged is empty and at 0: compare `TabletLookup.applied` with the expected offset.
        """
        return self._read(lambda reader: TabletLookup(_read_extent(reader), reader.values(keys)))

    def find_one(self, key: bytes) -> TabletLookup:
        """Do the same as `find` for one key."""
        return self._read(lambda reader: TabletLookup(self._cached_extent(reader), [reader.value(key)]))

    def _cached_extent(self, reader: Reader) -> TabletState:
        """Return its extent, which is read once of each state: that is three of the four looks at the files."""
        version, extent = self._last_extent
        if version != reader.version or extent is None:
            extent = _read_extent(reader)
            self._last_extent = reader.version, extent
        return extent

    def find_prefixes(self, prefixes: list[bytes]) -> tuple[TabletState, list[bytes], list[int]]:
        """Return the `extent`, the values of the keys that begin with each prefix, and how many each has; all of one
        state.
        """
        return self._read(lambda reader: (_read_extent(reader), *reader.values_of_prefixes(prefixes)))

    def scan(self, take: Callable[[list[tuple[bytes, bytes]]], None], prefix: bytes = b"") -> TabletState:
        """Give ``take`` the keys that begin with ``prefix`` and their values, in order, some at a time.

        All of them are of one state; the result is its `extent`. Until the scan ends, overwritten values keep their
        space. If damage is found on the way, the result is that of an empty tablet, and everything that ``take`` got
        does not count: compare `applied` with the expected offset.
        """

        def read(reader: Reader) -> TabletState:
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
        """Store the values of the keys after the log's changes ``[start, end)``: None for a deleted key.

        **Commit point:** LMDB's own, of rows, offset and ``history`` together. Returns whether the changes were
        applied: not if the tablet is not at ``start`` or its history is not ``after``, because another thread or
        process applied some.
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

        Returns whether it did: not if the tablet is as far already, or has another history than ``after``. **Commit
        point:** LMDB's own, of all rows, the offset and the history. ``items`` may be called more than once; giving
        ``num_rows`` avoids that.
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
        """Remove all rows and begin at this offset, unless the tablet begins there or later, or changed since it was
        found.
        """

        def write(writer: Writer) -> None:
            if _read_begin(writer) < offset and _read_history(writer) == after:
                writer.clear()
                writer.put_meta(_BEGINS, b"%d" % offset)
                writer.put_meta(_APPLIED, b"%d" % offset)
                _put_history(writer, history)

        self._write(write)

    def renew(self, expected: TabletState, history: bytes) -> None:
        """Take over a newer ``history``, if the tablet is still as it was found."""

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                _put_history(writer, history)

        self._write(write)

    def forget(self, expected: TabletState) -> None:
        """Begin anew, empty and without a history, if the tablet is still as it was found. Others may have it open."""

        def write(writer: Writer) -> None:
            if _read_extent(writer) == expected:
                writer.clear()
                for name in (_BEGINS, _APPLIED):
                    writer.put_meta(name, b"0")
                writer.put_meta(_HISTORY, b"")

        self._write(write)

    # -- files ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin anew, empty; if the files were deleted, with the files that others made since.

        Nothing is lost: the log has all rows. Raises `StorageError` if the disk has no space.
        """
        self._recreate(self._generation)

    def _recreate(self, generation: int) -> None:
        """Begin anew unless another thread did, counted by ``generation``."""
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

    def _read(self, action: Callable[[Reader], _Result]) -> _Result:
        self.apply_queue.finish()  # before any lock is held: the work takes them too
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
            if self._environment.was_deleted:  # others do not see these writes, and may have begun there
                self._recreate(generation)
            else:
                self._files.stamp()


def _read_applied_offset(reader: Reader) -> int:
    return int(reader.meta(_APPLIED) or b"0")


def _read_begin(reader: Reader) -> int:
    return int(reader.meta(_BEGINS) or b"0")


def _read_history(reader: Reader) -> bytes | None:
    return reader.meta(_HISTORY) or None


def _read_extent(reader: Reader) -> TabletState:
    return TabletState(_read_begin(reader), _read_applied_offset(reader), _read_history(reader))


def _put_history(writer: Writer, history: bytes | None) -> None:
    if history is not None:
        writer.put_meta(_HISTORY, history)


def _estimate_bytes(keys: Sequence[bytes], values: Sequence[bytes], num_rows: int) -> int:
    """Estimate the bytes that ``num_rows`` rows like these take: half as much again as their own, and LMDB's
    overhead.
    """
    some = range(0, len(keys), 1 + len(keys) // 1000)
    return num_rows * (16 + 3 * sum(len(keys[i]) + len(values[i]) for i in some) // (2 * len(some)))
