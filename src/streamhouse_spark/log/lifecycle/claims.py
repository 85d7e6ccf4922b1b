"""Claims on tables to tier: hints by which several tiering services divide the tables, never needed for correctness.

Two services that tier one table at once are safe, because the lake commit is fenced; the claim only saves the work that
the fence would throw away. So a claim is one object that the last writer overwrites, and it expires by store time.
"""

from __future__ import annotations

import json

from streamhouse_spark.core.paths import tiering_claim_key
from streamhouse_spark.errors import StorageError
from streamhouse_spark.storage.base import Storage

CLAIM_MS = 60_000


def try_claim(storage: Storage, table_uuid: str, service_id: str, claim_ms: int = CLAIM_MS) -> bool:
    """Claim the table for a while, or renew one's claim. False while another service holds it."""
    now_ms = storage.now_ms()
    key = tiering_claim_key(table_uuid)
    try:
        held = json.loads(storage.read(key))
        owner, until_ms = str(held["service"]), int(held["until_ms"])
    except (StorageError, ValueError, KeyError, TypeError):
        owner, until_ms = service_id, 0  # absent or unreadable: nobody's
    if owner != service_id and now_ms < until_ms <= now_ms + 10 * claim_ms:
        return False
    storage.put(key, json.dumps({"service": service_id, "until_ms": now_ms + claim_ms}).encode())
    return True


def release_claim(storage: Storage, table_uuid: str, service_id: str) -> None:
    """Give the table back at once, if this service still holds it."""
    key = tiering_claim_key(table_uuid)
    try:
        if json.loads(storage.read(key))["service"] == service_id:
            storage.delete(key)
    except (StorageError, ValueError, KeyError, TypeError):
        return
