"""A race of put-if-absent, which shows a store that looks whether an object is there and writes it in a second step.

Two puts in sequence cannot see such a store: it refuses the second one. Of racing puts it acknowledges several, if they
meet. Where the client can hold back the ends of its requests, all begin before the first one ends: a store that looks
when a request begins is seen for sure. One that looks at the end may be seen by chance alone: there a race that shows
nothing proves nothing, and only makes it unlikely that such a store is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from streamhouse_spark.core.concurrency import in_parallel
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Storage

ROUNDS = 12
"""A race is a matter of chance: a store that looks first has one winner in many a round, and seldom in all of these."""
RACERS = 8
BODY_BYTES = 400 << 10
"""Each racer's object: while it arrives, others look. Short ones are written before the next request is sent."""
HELD_ROUNDS = 2
HELD_BYTES = 64 << 10


@runtime_checkable
class ConcurrentPutProbe(Protocol):
    """A store whose client can hold back the ends of requests."""

    def put_together(self, key: str, bodies: Sequence[bytes]) -> list[StorageError | None]:
        """Put all bodies under one new key, if absent, so that none ends before all have begun. None stands for an
        acknowledgement.
        """


def race(storage: Storage, prefix: str) -> None:
    """Let threads put the same new keys below ``prefix`` at once, and remove what they put.

    An unclear outcome of one put is no fault of the store, which may answer so while another is under way. Raises
    `StorageError` where two puts of one key are acknowledged, where an acknowledged object is not the one that is read,
    and where no put of a round gets an answer.
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
        failures = list(in_parallel(lambda body: _put(storage, key, body), bodies, threads_max=RACERS))
    winners = [body for body, failure in zip(bodies, failures, strict=True) if failure is None]
    unanswered = [failure for failure in failures if failure and not isinstance(failure, ObjectExistsError)]
    if len(unanswered) == RACERS:
        if is_held:  # its requests are unusual, and the ordinary ones will tell
            return
        raise unanswered[0]
    stored = None
    with suppress(ObjectNotFoundError):
        stored = storage.read(key)
    if len(winners) > 1 or (winners and stored != winners[0]):
        raise StorageError(
            f"{storage.url} does not decide between writers: of {RACERS} that put one object, if it was absent, at the "
            f"same moment, {len(winners)} were told that they won, so that they would overwrite each other's commits; "
            "use a store that honours conditional writes atomically, as Amazon S3 and MinIO do",
        )


def _put(storage: Storage, key: str, body: bytes) -> StorageError | None:
    try:
        storage.put_if_absent(key, body)
    except StorageError as error:
        return error
    return None
