"""Claims: hints by which services divide the work on tables. Correctness does not depend on them.

Two services may tier a table concurrently, because the lake commit is fenced. Two services may refresh a view
concurrently, because only one wins the next number. A claim only avoids wasted work. It is one object that the last
writer overwrites, and it expires by store time.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.core.warehouse_layout import refresh_claim_key, tiering_claim_key
from streamhouse_spark.errors import StorageError
from streamhouse_spark.storage.base import Storage

CLAIM_MS = 60_000
Claimed = Literal["tiering", "refresh"]
_KEYS: Final = {"tiering": tiering_claim_key, "refresh": refresh_claim_key}

logger = logging.getLogger(__name__)


def try_claim(
    storage: Storage, table_uuid: str, service_id: str, claim_ms: int = CLAIM_MS, *, work: Claimed = "tiering"
) -> bool:
    """Claim work on the table for ``claim_ms``, or renew the claim. Return False while another service holds it."""
    now_ms = storage.now_ms()
    key = _KEYS[work](table_uuid)
    try:
        held = json.loads(storage.read(key))
        owner, until_ms = str(held["service"]), int(held["until_ms"])
    except (StorageError, ValueError, KeyError, TypeError):
        owner, until_ms = service_id, 0  # absent or unreadable: no claim
    if owner != service_id and now_ms < until_ms <= now_ms + 10 * claim_ms:
        return False
    storage.put(key, json.dumps({"service": service_id, "until_ms": now_ms + claim_ms}).encode())
    return True


def release_claim(storage: Storage, table_uuid: str, service_id: str, *, work: Claimed = "tiering") -> None:
    """Delete the claim, if this service still holds it."""
    key = _KEYS[work](table_uuid)
    try:
        if json.loads(storage.read(key))["service"] == service_id:
            storage.delete(key)
    except (StorageError, ValueError, KeyError, TypeError):
        return


@contextmanager
def claim_work(storage: Storage, table_uuid: str, service_id: str, *, work: Claimed) -> Iterator[bool]:
    """Claim work on a table for the duration of the block, with renewals. Yields False while another service holds it.

    Raises `StorageError` if the claim cannot be written.
    """
    if not try_claim(storage, table_uuid, service_id, work=work):
        yield False
        return
    ended = new_event()

    def renew() -> None:
        while not ended.wait(CLAIM_MS / 3000):
            try:
                try_claim(storage, table_uuid, service_id, work=work)
            except StorageError as error:
                logger.info("cannot renew the claim on %s: %s", table_uuid, error)

    renewing = threading.Thread(target=renew, name="streamhouse-claim", daemon=True)
    renewing.start()
    try:
        yield True
    finally:
        ended.set()
        renewing.join()
        release_claim(storage, table_uuid, service_id, work=work)
