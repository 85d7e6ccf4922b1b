"""A race of put-if-absent that detects stores which check for the object and write it in two steps.

Sequential puts cannot detect such a store: it rejects the second one. Of racing puts it acknowledges several, if they
overlap. If the client can hold back the end of its requests, all start before the first one ends, and a store that
checks at the start of a request is always detected. One that checks at the end is detected only by chance. A race that
detects nothing then proves nothing, but makes such a store unlikely.

Proves before the first write that a store keeps the guarantees that commits depend on.
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
"""Detection is a matter of chance: a two-step store has one winner in many rounds, but rarely in all of these."""
RACERS = 8
BODY_BYTES = 400 << 10
"""Size of each racer's object: while it arrives, other requests check. Smaller ones are stored before the next request
is sent.
"""
HELD_ROUNDS = 2
HELD_BYTES = 64 << 10


@runtime_checkable
class ConcurrentPutProbe(Protocol):
    """A store whose client can hold back the end of requests."""

    def put_together(self, key: str, bodies: Sequence[bytes]) -> list[StorageError | None]:
        """Put all bodies under one new key, if absent, so that none ends before all have started.

        None stands for an acknowledged put.
        """


def race(storage: Storage, prefix: str) -> None:
    """Let threads put the same new keys below ``prefix`` concurrently, and remove what they put.

    An unknown outcome of one put is not a fault: the store may report it while another put is in progress. Raises
    `StorageError` if two puts of one key are acknowledged, if the stored object is not the acknowledged one, or if no
    put of a round gets a response.
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
        failures = storage.put_together(key, bodies)
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
            f"{storage.url} does not decide between writers: of {RACERS} concurrent puts of one object, if absent, "
            f"{len(winners)} were acknowledged, so that writers would overwrite each other's commits; "
            "use a store that honours conditional writes atomically, as Amazon S3 and MinIO do",
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
