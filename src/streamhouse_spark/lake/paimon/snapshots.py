"""Snapshots of a Paimon table: numbered files, each created by put-if-absent and never changed.

**Commit point** of every change of the lake: put-if-absent of ``snapshot/snapshot-<N+1>``. The file is a slot (see
`storage.put_if_absent`): after any error it is read back and its commit uuid compared. Paimon's own method, an
existence check followed by a rename, lets two processes win.

**The latest** snapshot is found from the hint ``LATEST``, or from a listing, with two reads per doubling of the
distance. Other engines expire the oldest snapshots. So a number may become free again, and a delayed writer could reuse
it. A put therefore counts only if the previous snapshot still exists, or no snapshot is newer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from pypaimon.common.json_util import JSON
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from streamhouse_spark.lake.metadata_cache import LruCache
from streamhouse_spark.lake.metadata_errors import absent_snapshot_error
from streamhouse_spark.lake.snapshot_properties import COMMIT_PROPERTY, writer_time_ms
from streamhouse_spark.lake.types import COMMIT_USER
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch, map_with_store_concurrency
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult, Slot
from streamhouse_spark.storage.sequence_search import find_last_result

SNAPSHOT_PREFIX = "snapshot-"
TAG_PREFIX = "tag-"
_newest_seen: LruCache[tuple[str, str], int] = LruCache(1024)
"""The number of the latest snapshot that this process read, by table, as a guess of the hint."""


class SnapshotManager:
    """The snapshots of one table. Stateless: every call reads the storage."""

    def __init__(self, storage: Storage, table_key: str) -> None:
        self._storage = storage
        self._table_key = table_key

    def newest(self, prefetch: Prefetch | None = None) -> Snapshot | None:
        """Return the snapshot without a successor, or None before the first.

        ``prefetch`` may have prefetched the hint and the snapshots of `likely_keys`.
        """
        prefetch = prefetch or Prefetch(self._storage)
        hint = self._hint(prefetch)
        if hint:
            prefetch.expect([self.key_of(hint), self.key_of(hint + 1)])

        def find(snapshot_id: int) -> Snapshot | None:
            return self._read(self.key_of(snapshot_id), prefetch)

        is_hint_prefetched = hint is not None and prefetch.has(self.key_of(hint))
        current = find(hint) if hint else None
        if hint and current is None and is_hint_prefetched:
            current = find(hint)  # it was prefetched with the hint, and may have been stored since
        if current is None:
            current = self._newest_listed() or find(1)
        newest = None if current is None else find_last_result(find, current.id, current)
        if newest is not None:
            _newest_seen.put((self._storage.url, self._table_key), newest.id)
        return newest

    def likely_keys(self) -> list[str]:
        """Return the keys of the latest snapshot that this process read, and of the next, to prefetch with the hint."""
        last_seen = _newest_seen.get((self._storage.url, self._table_key))
        return [] if last_seen is None else [self.key_of(last_seen), self.key_of(last_seen + 1)]

    def keys_of(self, snapshot: Snapshot) -> tuple[str, str]:
        """Return the key of a snapshot, and that of the next."""
        return self.key_of(snapshot.id), self.key_of(snapshot.id + 1)

    def find(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot, or None if it does not exist. Raises `CorruptDataError`."""
        return self._read(self.key_of(snapshot_id)) if snapshot_id > 0 else None

    def require(self, snapshot_id: int, newest: Snapshot | None = None) -> Snapshot:
        """Return the snapshot, which may be ``newest`` or retained by a tag only. Raises `SnapshotExpiredError`."""
        match = newest if newest is not None and newest.id == snapshot_id else self.find(snapshot_id)
        if match is None:
            tagged = (self.snapshot_of_tag(name) for name in self.tags())
            match = next((snapshot for snapshot in tagged if snapshot and snapshot.id == snapshot_id), None)
        if match is None:
            self.require_expired(snapshot_id)
            raise absent_snapshot_error(self._table_key, snapshot_id, self.ids())
        return match

    def require_expired(self, snapshot_id: int) -> None:
        """Require that a missing snapshot is older or newer than all others, because snapshots expire oldest first.

        Raises `SnapshotExpiredError` with the missing file.
        """
        ids = self.ids()
        if ids and ids[0] < snapshot_id < ids[-1]:
            raise SnapshotExpiredError(
                f"lake file {self.key_of(snapshot_id)} is missing, but snapshots {ids[0]} and {ids[-1]} exist; "
                "restore it, or choose a later snapshot"
            )

    def first_missing(self, newest: Snapshot | None, recorded: int) -> int | None:
        """Return the number of the first lost snapshot after ``newest``.

        Returns None if none is lost, or if the lake was rolled back. A rollback deletes later snapshots and their tags:
        neither the committed snapshot ``recorded`` nor the tag of the package's latest snapshot remains.
        """
        last = 0 if newest is None else newest.id
        if recorded <= last:
            return None
        tag = self.tagged_newest()
        above = [number for number in (*self.ids(), 0 if tag is None else tag.id) if number > last]
        return last + 1 if above else None

    def newest_own(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Return the snapshot, or the nearest earlier one, that the package committed, or None."""
        while snapshot is not None and commit_of(snapshot) is None:
            snapshot = self.find(snapshot.id - 1)
        return snapshot

    def ids(self) -> list[int]:
        """Return the ascending numbers in a listing."""
        names = self._storage.list_names(f"{self._table_key}/snapshot/")
        numbers = (name.removeprefix(SNAPSHOT_PREFIX) for name in names if name.startswith(SNAPSHOT_PREFIX))
        return sorted(int(number) for number in numbers if number.isdigit())

    # -- tags -----------------------------------------------------------------------------------------------------

    def tags(self) -> list[str]:
        names = self._storage.list_names(f"{self._table_key}/tag/")
        return [name.removeprefix(TAG_PREFIX) for name in names if name.startswith(TAG_PREFIX)]

    def snapshot_of_tag(self, name: str) -> Snapshot | None:
        return self._read(self.tag_key(name))

    def tagged_newest(self) -> Snapshot | None:
        """Return the snapshot of the package's tag on its latest one, or None if the tag is absent or damaged."""
        with suppress(CorruptDataError):
            return self.snapshot_of_tag(COMMIT_USER)
        return None

    def tag_key(self, name: str) -> str:
        """Return the key of the file of a tag."""
        return f"{self._table_key}/tag/{TAG_PREFIX}{name}"

    # -- committing -----------------------------------------------------------------------------------------------

    def put(self, snapshot: Snapshot) -> bool:
        """Store the snapshot under its number. Returns False if another snapshot has that number.

        Returns True also if an earlier attempt of this commit stored it. Raises `StorageError` if nothing was stored,
        and `CommitStateUnknownError` if the outcome is unknown.
        """
        key = self.key_of(snapshot.id)
        slot = Slot(
            self._storage,
            key,
            lambda: parse_snapshot(key, self._storage.read(key)),
            lambda stored: commit_of(stored) == commit_of(snapshot),
        )
        put = slot.take(snapshot_text(snapshot))
        self._require_known_outcome(snapshot, put)
        if not put.won():
            return False
        self._require_counts(snapshot)
        _newest_seen.put((self._storage.url, self._table_key), snapshot.id)
        return True

    def require_not_replaced(self, snapshot: Snapshot) -> None:
        """Require that no other commit replaced a snapshot that was just stored, by a rename.

        Such a writer checked before the put and renamed after it. The next read detects a later rename, because the
        lake's offsets always come from its latest snapshot. Raises `CommitConflictError`.
        """
        with suppress(StorageError, CorruptDataError):
            stored = self.find(snapshot.id)
            if stored is not None and commit_of(stored) != commit_of(snapshot):
                raise CommitConflictError(
                    f"lake table {self._table_key}: another engine replaced lake snapshot {snapshot.id}, which was "
                    "just committed; retry"
                )

    def write_hints(self, snapshot: Snapshot) -> None:
        """Write the hints for other engines: the latest snapshot, and that it is needed.

        The tag and the consumer keep other engines from expiring this snapshot and later ones. If a hint is stale,
        engines retain more snapshots.
        """
        text = snapshot_text(snapshot)

        def put(hint_file: tuple[str, bytes]) -> None:
            with suppress(StorageError):
                self._storage.put(*hint_file)

        hints = [
            (self.hint_key, str(snapshot.id).encode()),
            (self.tag_key(COMMIT_USER), text),
            (self.consumer_key, consumer_text(snapshot.id)),
        ]
        for _ in map_with_store_concurrency(self._storage, put, hints):
            pass

    @property
    def consumer_key(self) -> str:
        return f"{self._table_key}/consumer/consumer-{COMMIT_USER}"

    def _require_known_outcome(self, snapshot: Snapshot, put: PutResult[Snapshot]) -> None:
        if put.outcome is PutOutcome.UNREADABLE:
            raise CommitStateUnknownError(
                f"lake table {self._table_key}: the outcome of snapshot {snapshot.id} is unknown ({put.failure}), and "
                f"reading it back failed ({put.read_error}); retry the round, which does not repeat committed work"
            ) from put.read_error
        if put.outcome is PutOutcome.NOT_DURABLE:
            raise CommitStateUnknownError(
                f"lake file {self.key_of(snapshot.id)} is visible but may not survive a power loss ({put.failure}); "
                "check the disk, then retry the round"
            ) from put.read_error

    def _require_counts(self, snapshot: Snapshot) -> None:
        """Require that no other process expired the preceding number after the commit was validated."""
        try:
            if snapshot.id == 1 or self.find(snapshot.id - 1) is not None:
                return
            newest = self.newest()
        except (StorageError, CorruptDataError) as error:
            raise CommitStateUnknownError(
                f"lake table {self._table_key}: the outcome of snapshot {snapshot.id} is unknown ({error}); retry the "
                "round, which does not repeat committed work"
            ) from error
        if newest is None or newest.id != snapshot.id:
            raise CommitStateUnknownError(
                f"lake table {self._table_key}: snapshot {snapshot.id} was stored at a number that had expired; retry "
                "the round, which does not repeat committed work"
            )

    # -- expiring -------------------------------------------------------------------------------------------------

    def expire(self, snapshot_ids: Sequence[int], first_retained: int) -> None:
        """Delete snapshots, given oldest first, and write the hint ``EARLIEST`` for other engines.

        They use the hint only if that snapshot exists, and list snapshots otherwise.
        """
        for snapshot_id in snapshot_ids:
            self._storage.delete(self.key_of(snapshot_id))
        with suppress(StorageError):
            self._storage.put(f"{self._table_key}/snapshot/EARLIEST", str(first_retained).encode())

    # -- internals ------------------------------------------------------------------------------------------------

    @property
    def hint_key(self) -> str:
        return f"{self._table_key}/snapshot/LATEST"

    def _hint(self, prefetch: Prefetch) -> int | None:
        try:
            text = prefetch.read(self.hint_key).strip()
        except ObjectNotFoundError:
            return None
        return int(text) if text.isdigit() else None

    def _newest_listed(self) -> Snapshot | None:
        for snapshot_id in reversed(self.ids()):
            snapshot = self.find(snapshot_id)
            if snapshot is not None:
                return snapshot
        return None

    def key_of(self, snapshot_id: int) -> str:
        """Return the key of the file of a snapshot."""
        return f"{self._table_key}/snapshot/{SNAPSHOT_PREFIX}{snapshot_id}"

    def _read(self, key: str, prefetch: Prefetch | None = None) -> Snapshot | None:
        try:
            data = (prefetch or self._storage).read(key)
        except ObjectNotFoundError:
            return None
        return parse_snapshot(key, data)


def parse_snapshot(key: str, data: bytes) -> Snapshot:
    """Parse the file of a snapshot. Raises `CorruptDataError`."""
    try:
        return JSON.from_json(data.decode(), Snapshot)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptDataError(
            f"cannot read lake file {key} ({type(error).__name__}: {error}); restore it, or rebuild the lake "
            "from the log (streamhouse retier)"
        ) from error


def snapshot_text(snapshot: Snapshot) -> bytes:
    """Return the content of the file of a snapshot, as the package writes it."""
    text: str = JSON.to_json(snapshot, indent=2)
    return text.encode()


def commit_of(snapshot: Snapshot) -> str | None:
    """Return the uuid of the package's commit of a snapshot, or None for another engine's snapshot."""
    properties = snapshot.properties or {}
    commit_uuid: str | None = properties.get(COMMIT_PROPERTY)
    return commit_uuid


def consumer_text(snapshot_id: int) -> bytes:
    """Return the content of the file of a Paimon consumer whose next snapshot to read is this one."""
    return json.dumps({"nextSnapshot": snapshot_id}).encode()


def own_time_ms(snapshot: Snapshot) -> int:
    """Return the time by the clock of the snapshot's writer."""
    return writer_time_ms(snapshot.time_millis, snapshot.properties or {})
