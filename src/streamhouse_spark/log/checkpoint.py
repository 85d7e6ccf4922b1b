"""Checkpoints, which keep opening cheap, and floors, which keep deleting safe.

A checkpoint is derived: losing all of them costs time, nothing else, as long as no floor was written. Floor ``k`` is
put-if-absent and says that records below a number are void and may be deleted after the grace; floors are found by
reading ``k + 1``, never by listing, so a process that slept through a clean-up learns of it before it trusts an
absent, or a re-opened, record number.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectExistsError, ObjectNotFoundError
from streamhouse_spark.log.actions import Payload
from streamhouse_spark.log.frame import decode_frame, encode_frame
from streamhouse_spark.log.state import TableState, state_from_json, state_to_json
from streamhouse_spark.paths import checkpoint_hint_key, checkpoint_key, checkpoints_prefix, floor_key, parse_number
from streamhouse_spark.storage import Storage


def write_checkpoint(storage: Storage, state: TableState) -> None:
    """Store the state, then point the hint at it. Each process would store the same bytes, so "exists" is success."""
    payload = Payload()
    header = state_to_json(state, payload)
    with suppress(ObjectExistsError):
        key = checkpoint_key(state.table_uuid, state.version)
        storage.put_if_absent(key, encode_frame("checkpoint", header, payload.parts))
    storage.put(checkpoint_hint_key(state.table_uuid), str(state.version).encode())


def read_checkpoint(storage: Storage, table_uuid: str, number: int) -> TableState:
    """Raises `ObjectNotFoundError`, or `CorruptDataError` where it is damaged."""
    key = checkpoint_key(table_uuid, number)
    where = f"{storage.url}/{key}"
    frame = decode_frame("checkpoint", storage.read(key), where)
    state = state_from_json(frame.header, frame.payload)
    if state.version != number or state.table_uuid != table_uuid:
        raise CorruptDataError(f"{where} is the checkpoint of another table or record; delete this file")
    return state


def newest_checkpoint(storage: Storage, table_uuid: str, *, at_least: int = 0) -> TableState | None:
    """A recent state, at record ``at_least`` or later, or None where the log has to be read from record 1.

    The hint is tried first. A damaged checkpoint is passed over, because the records say the same.
    """
    hinted = _hinted_number(storage, table_uuid)
    if hinted is not None and hinted >= at_least and (state := _usable(storage, table_uuid, hinted)) is not None:
        return state
    for number in reversed(list_checkpoints(storage, table_uuid)):
        if number >= at_least and (state := _usable(storage, table_uuid, number)) is not None:
            return state
    return None


def list_checkpoints(storage: Storage, table_uuid: str) -> list[int]:
    numbers = (parse_number(name) for name in storage.list_names(checkpoints_prefix(table_uuid)))
    return sorted(n for n in numbers if n is not None)


def _hinted_number(storage: Storage, table_uuid: str) -> int | None:
    try:
        text = storage.read(checkpoint_hint_key(table_uuid))
    except ObjectNotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) <= 20 else None


def _usable(storage: Storage, table_uuid: str, number: int) -> TableState | None:
    try:
        return read_checkpoint(storage, table_uuid, number)
    except FormatVersionError:
        raise
    except (ObjectNotFoundError, CorruptDataError):
        return None


TOMBSTONE = 10**19
"""The floor of a dropped table whose files are being deleted: every record number is void, for good."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Records below ``floor`` are void. ``time_ms`` is the store time at which that was said."""

    floor: int
    time_ms: int


def write_floor(storage: Storage, table_uuid: str, index: int, floor: int) -> None:
    """Records below ``floor`` are void from now on. Raises `ObjectExistsError` where floor ``index`` is taken."""
    header = {"table": table_uuid, "floor": floor, "time_ms": storage.now_ms()}
    storage.put_if_absent(floor_key(table_uuid, index), encode_frame("floor", header))


def read_floor(storage: Storage, table_uuid: str, index: int) -> Floor | None:
    key = floor_key(table_uuid, index)
    try:
        data = storage.read(key)
    except ObjectNotFoundError:
        return None
    frame = decode_frame("floor", data, f"{storage.url}/{key}")
    return Floor(frame.header["floor"], frame.header["time_ms"])
