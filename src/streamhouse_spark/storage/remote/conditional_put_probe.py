"""Proves before the first write that a store keeps the guarantees that commits depend on."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError, StorageRefusedError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.remote.put_race_probe import race

TEMPORARY: Final = ".tmp-"
"""Objects with this name prefix are not listed."""
CLOCK_SKEW_MS_MAX: Final = 5 * 60_000


def prove_writable(storage: Storage, world: World, condition: str, *, is_trusted: bool) -> None:
    """Test reads, put-if-absent, read-after-write and deletes on probe objects, and remove them.

    Racing puts are tested too, unless the store ``is_trusted`` to decide between them. ``condition`` is the store's
    name for put-if-absent. Raises `StorageError` with the remedy.
    """
    key = f"{TEMPORARY}probe-{world.ids.new_uuid()}"
    try:
        _probe(storage, key, condition)
    except StorageError as error:
        try:
            storage.delete(key)
        except StorageError as second:
            error.add_note(f"the probe object remains: {second}")
        raise
    storage.delete(key)
    if not is_trusted:
        race(storage, key)


def _probe(storage: Storage, key: str, condition: str) -> None:
    with suppress(ObjectNotFoundError):
        storage.read(key)
    with suppress(ObjectExistsError):  # the client may have resent it; no other writer has this name
        storage.put_if_absent(key, b"first")
    try:
        storage.put_if_absent(key, b"second")
    except ObjectExistsError:
        pass
    else:
        raise StorageError(
            f"{storage.url} ignores {condition}: a second put-if-absent replaced the first, so that two writers "
            "would overwrite each other's commits; use a store that honours conditional writes, as Amazon S3 does",
        )
    try:
        content = storage.read(key)
    except ObjectNotFoundError:
        content = b"nothing"
    if content != b"first":
        raise StorageError(
            f"{storage.url} does not return what was written: expected 'first', found {content[:20]!r}; use a store "
            "with read-after-write consistency, without a cache before it",
        )


def require_clock(storage: Storage, world: World) -> None:
    """Raise `StorageRefusedError` if this machine's clock differs too much from the store's. Nothing is
    written then.
    """
    skew_ms = world.clock.now_ms() - storage.now_ms()
    if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
        raise StorageRefusedError(
            f"cannot write to {storage.url}: this machine's clock is {abs(skew_ms) // 1000} seconds "
            f"{'ahead of' if skew_ms > 0 else 'behind'} the store's, at most {CLOCK_SKEW_MS_MAX // 1000} are "
            "allowed; set the clock (NTP), then try again",
        )


def is_object(key: str) -> bool:
    """Return whether the key is neither a folder marker, as consoles create them, nor a probe."""
    return key != "" and not key.endswith("/") and not key.rpartition("/")[2].startswith(TEMPORARY)
