"""Transactions of a table's writers, recorded so that no write is stored twice.

A writer that wrote within ``table.transactions.ttl`` has an entry, with the offsets of its last rows. For other writers
maintenance leaves a `CompactedTransaction` of 24 bytes: the version, and hashes of the names. Time therefore decides
only how long a full outcome can be returned, never whether a write is stored. A stream that slept for years, or a clock
that runs years ahead, still adds each version once. A writer that returns gets an entry again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import xxhash

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange, StreamBatch, Transaction
from streamhouse_spark.log.commits.record import batch_from_json, batch_to_json, ranges_from_json, ranges_to_json


@dataclass(frozen=True, slots=True)
class TransactionEntry:
    """The last version stored for an application id, and the offsets of its rows."""

    version: int
    owner: str | None
    commit: int
    offsets: Mapping[int, OffsetRange]
    batch: StreamBatch | None = None
    time_ms: int = field(default=0, compare=False)
    """Store time of that commit; later if an older version of this package did not record it."""


@dataclass(frozen=True, slots=True)
class CompactedTransaction:
    """The last version of an application id whose entry expired."""

    version: int
    owner_sum: int
    """Hash of the owner's name; 0 for none."""

    def is_of(self, owner: str | None) -> bool:
        """Return whether ``owner`` may be this writer. An unknown owner matches any."""
        return owner is None or not self.owner_sum or name_sum(owner) == self.owner_sum


Past = Mapping[int, CompactedTransaction]
"""Compacted transactions by the hash of the application id."""


def name_sum(name: str | None) -> int:
    """Return a 64-bit hash of a name, never 0; 0 for None."""
    return 0 if name is None else xxhash.xxh3_64_intdigest(name.encode()) or 1


def find_stored_version(entries: Mapping[str, TransactionEntry], past: Past, app_id: str) -> int | None:
    """Return the last version stored for an application id, however long ago; None for an unknown id."""
    entry = entries.get(app_id) or past.get(name_sum(app_id))
    return None if entry is None else entry.version


def with_past(past: Past, entries: Mapping[str, TransactionEntry], app_ids: Collection[str]) -> Past:
    """Return ``past`` with the compacted entries of ``app_ids``."""
    compacted = {name_sum(app_id): entries[app_id] for app_id in app_ids if app_id in entries}
    return {
        **past,
        **{key: CompactedTransaction(entry.version, name_sum(entry.owner)) for key, entry in compacted.items()},
    }


def without_past(past: Past, app_ids: Collection[str]) -> Past:
    removed = {name_sum(app_id) for app_id in app_ids}
    return past if removed.isdisjoint(past) else {key: entry for key, entry in past.items() if key not in removed}


def with_entry(
    entries: Mapping[str, TransactionEntry],
    transaction: Transaction,
    commit: int,
    time_ms: int,
    ends: tuple[Mapping[int, int], Mapping[int, int]],
) -> dict[str, TransactionEntry]:
    """Return the entries after a commit of the transaction; ``ends`` are the bucket ends before and after it."""
    offsets = written_ranges(ends)
    entry = TransactionEntry(transaction.version, transaction.owner, commit, offsets, transaction.batch, time_ms)
    return {**entries, transaction.app_id: entry}


def written_ranges(ends: tuple[Mapping[int, int], Mapping[int, int]]) -> dict[int, OffsetRange]:
    """Return the offsets between the ends of the buckets before and after a commit."""
    before, after = ends
    return {bucket: OffsetRange(before[bucket], end) for bucket, end in after.items() if end > before[bucket]}


def without(entries: Mapping[str, TransactionEntry], app_ids: Iterable[str]) -> dict[str, TransactionEntry]:
    removed = set(app_ids)
    return {app_id: entry for app_id, entry in entries.items() if app_id not in removed}


def entries_to_json(entries: Mapping[str, TransactionEntry], state_time_ms: int) -> dict[str, Any]:
    """Return the entries for a checkpoint's header. Times equal to the state's are omitted, as in older formats."""
    rows = [[app_id, e.version, e.owner, e.commit, ranges_to_json(dict(e.offsets))] for app_id, e in entries.items()]
    out: dict[str, Any] = {"transactions": rows}
    if times := {app_id: entry.time_ms for app_id, entry in entries.items() if entry.time_ms != state_time_ms}:
        out["transaction_times"] = times
    if batches := {app_id: batch_to_json(entry.batch) for app_id, entry in entries.items() if entry.batch}:
        out["batches"] = batches
    return out


def entries_from_json(header: Mapping[str, Any]) -> dict[str, TransactionEntry]:
    times, batches = header.get("transaction_times", {}), header.get("batches", {})
    return {
        app_id: TransactionEntry(
            version,
            owner,
            commit,
            ranges_from_json(offsets),
            batch_from_json(batches.get(app_id)),
            times.get(app_id, header["time_ms"]),
        )
        for app_id, version, owner, commit, offsets in header["transactions"]
    }


def past_to_bytes(past: Past) -> bytes:
    rows = np.zeros((len(past), 3), "<u8")
    rows[:, 0] = list(past)
    rows[:, 1] = np.array([entry.version for entry in past.values()], "<i8").view("<u8")
    rows[:, 2] = [entry.owner_sum for entry in past.values()]
    return rows.tobytes()


def past_from_bytes(data: memoryview | bytes) -> Past:
    rows: Any = np.frombuffer(data, "<u8").reshape(-1, 3)
    versions = rows[:, 1].astype("<u8").view("<i8").tolist()
    return {
        key: CompactedTransaction(version, owner)
        for key, version, owner in zip(rows[:, 0].tolist(), versions, rows[:, 2].tolist(), strict=True)
    }
