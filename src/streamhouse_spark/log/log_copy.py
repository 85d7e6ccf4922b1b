"""Copies a table's log to another uuid, so that the tables of a copied warehouse get separate identities.

Every file that contains the old uuid is rewritten with the new uuid; segments are copied byte by byte. The last record
of the old log drops and buries it, so that its writers fail. **Commit point:** that record in the old log. It is put
only if the new log holds all records before it. No reader uses the new log until a name points to it.

A log in another store than the warehouse belongs to the original warehouse and remains in use. It is only read, and the
copy's log is in the warehouse. The **commit point** is then the deletion of the copy's ``location.json``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import xxhash

from streamhouse_spark.config.table_properties import LOG_LOCATION
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import (
    checkpoint_key,
    commit_key,
    commits_prefix,
    log_location_key,
    manifest_key,
    manifests_prefix,
    may_have_external_log,
    parse_numbers,
    segments_prefix,
    table_prefix,
    tags_prefix,
)
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import COPY, Action, Drop, Tombstone
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys
from streamhouse_spark.log.checkpoint import (
    NEWEST_VERSION,
    PARTS_VERSION,
    list_checkpoints,
    read_latest_checkpoint,
    write_checkpoint,
)
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, find_latest_watermark, write_low_watermark
from streamhouse_spark.log.object_existence import list_referenced_keys, manifest_keys
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.storage.put_if_absent import ensure_stored

logger = logging.getLogger(__name__)

ROUNDS_MAX: Final = 20
PART_BYTES: Final = 16 << 20


def copy_log(storage: Storage, world: World, old_uuid: str, new_uuid: str) -> None:
    """Copy the table's log to the new uuid, and end the old log. Does not repeat finished work.

    Raises `CommitConflictError` if the table is written concurrently, `CorruptDataError` if a file is missing.
    """
    if may_have_external_log(old_uuid):
        _copy_from_outside(storage, world, old_uuid, new_uuid)
        return
    index, watermark = find_latest_watermark(storage, old_uuid)
    if watermark is not None and watermark.number >= DROPPED_WATERMARK:
        return
    log = CommitLog(storage, old_uuid, world)
    for _ in range(ROUNDS_MAX):
        state = log.refresh()
        if state.buried:
            break
        _Copy(storage, old_uuid, new_uuid).make(state)
        _end(log, state.version)
    else:
        raise CommitConflictError(
            f"cannot copy {state.name}: it was written in all {ROUNDS_MAX} attempts; stop its writers, and run "
            "relocate again"
        )
    write_low_watermark(storage, old_uuid, index + 1, DROPPED_WATERMARK)


def _copy_from_outside(storage: Storage, world: World, old_uuid: str, new_uuid: str) -> None:
    try:
        state = CommitLog(storage, old_uuid, world).refresh()
    except TableNotFoundError:
        if read_latest_checkpoint(storage, new_uuid) is None:
            raise
        return  # an earlier run finished the copy
    _Copy(storage, old_uuid, new_uuid).make(state)
    storage.delete(log_location_key(old_uuid))


def copy_version(storage: Storage, old_uuid: str, state: TableState) -> None:
    """Copy the log rows that ``state`` names from the files of the table ``old_uuid``.

    Segments are copied byte by byte. Records with rows are rewritten with the new uuid. Raises `CorruptDataError` if a
    file is missing.
    """
    copy = _Copy(storage, old_uuid, state.table_uuid)
    needed = sorted(list_referenced_keys(replace(state, table_uuid=old_uuid, tags={})))

    def of(prefix: str) -> list[str]:
        return [key for key in needed if key.startswith(prefix)]

    for _ in map_with_store_concurrency(
        storage, lambda key: copy.copy_bytes(key, is_needed=True), of(segments_prefix(old_uuid))
    ):
        pass
    for kind, prefix in (("manifest", manifests_prefix(old_uuid)), ("commit", commits_prefix(old_uuid))):
        for _ in map_with_store_concurrency(storage, partial(copy.copy_frame, kind=kind, is_needed=True), of(prefix)):
            pass


def _end(log: CommitLog, version: int) -> None:
    """End the old log, unless a record followed ``version``."""

    def plan(state: TableState, _: int) -> Sequence[Action]:
        if state.version != version or state.buried:
            return ()
        return (Tombstone(),) if state.dropped else (Drop(), Tombstone())

    log.commit(plan)


class _Copy:
    def __init__(self, storage: Storage, old_uuid: str, new_uuid: str) -> None:
        self._storage = storage
        self._old_uuid = old_uuid
        self._new_uuid = new_uuid
        self._old, self._new = table_prefix(old_uuid), table_prefix(new_uuid)

    def make(self, state: TableState) -> None:
        """Copy all files that the state names, and existing files of older states."""
        needed = list_referenced_keys(state) | ArchiveObjectKeys(self._storage)(state)
        listed = {info.key for info in self._storage.list(self._old)}
        source_keys = needed | listed
        for key in sorted(key for key in source_keys if key.startswith(segments_prefix(self._old_uuid))):
            self.copy_bytes(key, is_needed=key in needed)
        source_keys |= manifest_keys(state)
        for key in sorted(key for key in source_keys if key.startswith(manifests_prefix(self._old_uuid))):
            self.copy_frame(key, "manifest", is_needed=key in needed)
        numbers = parse_numbers(key for key in source_keys if key.startswith(commits_prefix(self._old_uuid)))
        for number in numbers[: bisect_right(numbers, state.version)]:
            key = commit_key(self._old_uuid, number)
            self.copy_frame(key, "commit", is_needed=key in needed)
        for number in list_checkpoints(self._storage, self._old_uuid):
            if number < state.version:
                self.copy_frame(checkpoint_key(self._old_uuid, number), "checkpoint", is_needed=False)
        for key in sorted(key for key in source_keys if key.startswith(tags_prefix(self._old_uuid))):
            self.copy_frame(key, "checkpoint", is_needed=key in needed)
        _, watermark = find_latest_watermark(self._storage, self._old_uuid)
        if watermark is not None and watermark.number < DROPPED_WATERMARK:
            write_low_watermark(self._storage, self._new_uuid, 1, watermark.number)
        write_checkpoint(self._storage, self._renamed(state))

    def _renamed(self, state: TableState) -> TableState:
        condemned = {self._place(key): entry for key, entry in state.condemned.items()}
        former = (*state.former_uuids, self._old_uuid)
        properties = without_log_location(state.properties)
        return replace(
            state, table_uuid=self._new_uuid, condemned=condemned, former_uuids=former, properties=properties
        )

    def _place(self, key: str) -> str:
        return self._new + key.removeprefix(self._old) if key.startswith(self._old) else key

    def copy_bytes(self, key: str, *, is_needed: bool) -> None:
        try:
            size_bytes = self._storage.size_bytes(key)
        except ObjectNotFoundError as error:
            self._missing(key, error, is_needed=is_needed)
            return
        parts = [(at, min(at + PART_BYTES, size_bytes)) for at in range(0, size_bytes, PART_BYTES)]
        with suppress(ObjectExistsError), self._storage.create(self._place(key)) as sink:
            for part in parts:
                sink.write(self._storage.read_ranges(key, [part])[0])

    def copy_frame(self, key: str, kind: str, *, is_needed: bool) -> None:
        try:
            data = self._storage.read(key)
        except ObjectNotFoundError as error:
            self._missing(key, error, is_needed=is_needed)
            return
        try:
            reframed = self._reframe(kind, data, key)
        except CorruptDataError as error:
            if kind != "checkpoint":
                raise
            logger.warning("a damaged checkpoint is not copied; the records and the latest state are: %s", error)
            return
        ensure_stored(self._storage, self._place(key), reframed)

    def _missing(self, key: str, error: ObjectNotFoundError, *, is_needed: bool) -> None:
        if is_needed:  # otherwise the listing lagged, or the file was deleted
            raise CorruptDataError(
                f"{url_of(self._storage, key)} is missing; copy the warehouse again, or clone another version"
            ) from error

    def _reframe(self, kind: str, data: bytes, key: str) -> bytes:
        version = NEWEST_VERSION if kind == "checkpoint" else None
        frame = decode_frame(kind, data, url_of(self._storage, key), newest=version)
        header: dict[str, Any] = {**frame.header, "table": self._new_uuid}
        if "actions" in header:
            header["actions"] = [self._action(action) for action in header["actions"]]
        if kind == "commit" and "manifest" in header:
            header["manifest"] = self._reference(header["manifest"])
        if kind == "checkpoint":
            header["properties"] = without_log_location(header["properties"])
            header["condemned"] = [[self._place(key), *rest] for key, *rest in header["condemned"]]
            header.pop("floor", None)  # the copy has separate low watermarks
            header["former_uuids"] = [*header.get("former_uuids", ()), self._old_uuid]
        if version is not None:
            version = max(frame.version, PARTS_VERSION)
        return encode_frame(kind, header, [bytes(frame.payload)], version=version)

    def _action(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["type"].partition("-")[0] in ("create", COPY):
            former = [*action.get("former_uuids", ()), self._old_uuid]
            kind = action["type"].replace("create", COPY)
            return {
                **action,
                "type": kind,
                "former_uuids": former,
                "properties": without_log_location(action["properties"]),
            }
        if action["type"] in ("properties", "properties-checked"):
            return {**action, "set": without_log_location(action["set"])}
        if action["type"] in ("condemn", "purge"):
            return {**action, "keys": [self._place(key) for key in action["keys"]]}
        if action["type"] == "archive":
            return {**action, "gone": [self._place(key) for key in action["gone"]]}
        return dict(action)

    def _reference(self, reference: Mapping[str, Any]) -> dict[str, Any]:
        key = manifest_key(self._new_uuid, reference["uuid"])
        try:
            data = self._storage.read(key)
        except ObjectNotFoundError:
            return dict(reference)  # maintenance deleted the manifest, and will delete the record
        return {**reference, "bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}


def without_log_location(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the copy, whose log lies in the warehouse."""
    return {name: text for name, text in properties.items() if name != LOG_LOCATION}
