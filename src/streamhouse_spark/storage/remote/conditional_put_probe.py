"""Verifies before the first write that a store keeps the guarantees that commits depend on.

Sequential puts cannot detect a store that checks for the object and writes it in two separate steps, because it rejects
the second put. Such a store acknowledges several concurrent puts if they overlap. Some clients can hold back the end of
their requests, so that all puts start before the first one ends. This always detects a store that checks at the start
of a request. A store that checks at the end is detected only by chance. So a passed test is no proof of atomic puts,
but strong evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol, runtime_checkable

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError, StorageRefusedError
from streamhouse_spark.storage.base import Storage

ROUNDS = 12
"""Detection depends on chance: a store with separate steps has one winner in many rounds, but rarely in all of them."""
RACERS = 8
BODY_BYTES = 400 << 10
"""Size of the object of each concurrent put. The store would complete a smaller put before the next request arrives."""
HELD_ROUNDS = 2
HELD_BYTES = 64 << 10


@runtime_checkable
class ConcurrentPutProbe(Protocol):
    """A store whose client can hold back the end of requests."""

    def put_concurrently(self, key: str, bodies: Sequence[bytes]) -> list[StorageError | None]:
        """Put all bodies under one new key, if absent, so that none ends before all have started.

        Returns None for an acknowledged put.
        """


def race_puts(storage: Storage, prefix: str) -> None:
    """Put the same new keys below ``prefix`` from several threads, and remove the objects.

    An unknown outcome of one put is no fault: the store may report it while another put is in progress. Raises
    `StorageError` if two puts of a key are acknowledged, if the stored object is not the acknowledged one, or if no put
    of a round gets a response.
    """
    held = HELD_ROUNDS if isinstance(storage, ConcurrentPutProbe) else 0
    for number in range(held + ROUNDS):
        key = f"{prefix}-{number}"
        try:
            _run_round(storage, key, is_held=number < held)
        except StorageError as error:
            try:
                storage.delete(key)
            except StorageError as second:
                error.add_note(f"the probe object remains: {second}")
            raise
        storage.delete(key)


def _run_round(storage: Storage, key: str, *, is_held: bool) -> None:
    if is_held and isinstance(storage, ConcurrentPutProbe):
        bodies = [bytes([racer]) * HELD_BYTES for racer in range(RACERS)]
        failures = storage.put_concurrently(key, bodies)
    else:
        bodies = [bytes([racer]) * BODY_BYTES for racer in range(RACERS)]
        failures = list(parallel_map(lambda body: _put(storage, key, body), bodies, threads_max=RACERS))
    winners = [body for body, failure in zip(bodies, failures, strict=True) if failure is None]
    unanswered = [failure for failure in failures if failure and not isinstance(failure, ObjectExistsError)]
    if len(unanswered) == RACERS:
        if is_held:  # the store may not support such requests; the ordinary rounds decide
            return
        raise unanswered[0]
    stored = None
    with suppress(ObjectNotFoundError):
        stored = storage.read(key)
    if len(winners) > 1 or (winners and stored != winners[0]):
        raise StorageError(
            f"{storage.url} does not support atomic conditional writes: of {RACERS} concurrent puts of one absent "
            f"object, {len(winners)} were acknowledged, so that writers would overwrite each other's commits; "
            "use a store that honours conditional writes atomically, as Amazon S3 and MinIO do"
        )


def _put(storage: Storage, key: str, body: bytes) -> StorageError | None:
    try:
        storage.put_if_absent(key, body)
    except StorageError as error:
        return error
    return None


TEMPORARY: Final = ".tmp-"
"""Objects with this name prefix are not listed."""
CLOCK_SKEW_MS_MAX: Final = 5 * 60_000


def prove_writable(storage: Storage, world: World, condition: str, *, is_trusted: bool) -> None:
    """Verify reads, put-if-absent, read-after-write and deletes with probe objects, and remove the objects.

    Concurrent puts are also verified, unless the store ``is_trusted`` to support them. ``condition`` is the store's
    mechanism for put-if-absent. Raises `StorageError` with the remedy.
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
        race_puts(storage, key)


def _probe(storage: Storage, key: str, condition: str) -> None:
    with suppress(ObjectNotFoundError):
        storage.read(key)
    with suppress(ObjectExistsError):  # the client may have resent the put; no other writer uses this name
        storage.put_if_absent(key, b"first")
    try:
        storage.put_if_absent(key, b"second")
    except ObjectExistsError:
        pass
    else:
        raise StorageError(
            f"{storage.url} ignores {condition}: a second put-if-absent replaced the first, so that two writers "
            "would overwrite each other's commits; use a store that honours conditional writes, as Amazon S3 does"
        )
    try:
        content = storage.read(key)
    except ObjectNotFoundError:
        content = b"nothing"
    if content != b"first":
        raise StorageError(
            f"{storage.url} does not return what was written: found {content[:20]!r}, expected 'first'; use a store "
            "with read-after-write consistency, without a cache in between"
        )


def require_clock(storage: Storage, world: World) -> None:
    """Raise `StorageRefusedError` before a write if this machine's clock differs too much from the store's."""
    skew_ms = world.clock.now_ms() - storage.now_ms()
    if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
        raise StorageRefusedError(
            f"cannot write to {storage.url}: this machine's clock is {abs(skew_ms) // 1000} seconds "
            f"{'ahead of' if skew_ms > 0 else 'behind'} the store's, expected at most {CLOCK_SKEW_MS_MAX // 1000}; "
            "set the clock (NTP), then retry"
        )


def is_object(key: str) -> bool:
    """Return whether the key is neither a folder marker, as consoles create, nor a probe object."""
    return key != "" and not key.endswith("/") and not key.rpartition("/")[2].startswith(TEMPORARY)
