"""Transactions of a table's writers, recorded so that no write is stored twice.

A writer that wrote within ``table.transactions.ttl`` has an entry with the offsets of its last rows. Maintenance
replaces the entries of other writers by a `CompactedTransaction` of 24 bytes, with the version and hashes of the names.
Time therefore only decides for how long the offsets can be returned, never whether a write is stored. Even a stream
that was suspended for years adds each version once. A compacted writer that writes again gets an entry again.

Three kinds of writers use ids or versions with a meaning: requests with an idempotency key (`RequestKeys`), refreshes
of views (`Lineage`), and real-time queries (`make_progress_id`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from typing import Any, Final

import numpy as np
import xxhash

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange, StreamBatch, Transaction
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.record import batch_from_json, batch_to_json, ranges_from_json, ranges_to_json


@dataclass(frozen=True, slots=True)
class TransactionEntry:
    """The last version stored for an application id, and the offsets of its rows."""

    version: int
    owner: str | None
    commit: int
    offsets: Mapping[int, OffsetRange]
    batch: StreamBatch | None = None
    time_ms: int = field(default=0, compare=False)
    """Store time of the commit; later if an older version of this package did not record it."""


@dataclass(frozen=True, slots=True)
class CompactedTransaction:
    """The last version of an application id whose entry expired."""

    version: int
    owner_sum: int
    """Hash of the owner's name; 0 for no owner."""

    def is_of(self, owner: str | None) -> bool:
        """Return whether ``owner`` may be this writer. An unknown owner matches any writer."""
        return owner is None or not self.owner_sum or hash_name(owner) == self.owner_sum


Past = Mapping[int, CompactedTransaction]
"""Compacted transactions by the hash of the application id."""


def hash_name(name: str | None) -> int:
    """Return a 64-bit hash of a name, never 0; 0 for None."""
    return 0 if name is None else xxhash.xxh3_64_intdigest(name.encode()) or 1


def find_stored_version(entries: Mapping[str, TransactionEntry], past: Past, app_id: str) -> int | None:
    """Return the last version stored for an application id; None for an unknown id."""
    entry = entries.get(app_id) or past.get(hash_name(app_id))
    return None if entry is None else entry.version


def with_compacted(past: Past, entries: Mapping[str, TransactionEntry], app_ids: Collection[str]) -> Past:
    """Return ``past`` with the compacted entries of ``app_ids``."""
    compacted = {hash_name(app_id): entries[app_id] for app_id in app_ids if app_id in entries}
    return {
        **past,
        **{key: CompactedTransaction(entry.version, hash_name(entry.owner)) for key, entry in compacted.items()},
    }


def without_past(past: Past, app_ids: Collection[str]) -> Past:
    removed = {hash_name(app_id) for app_id in app_ids}
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


# -- idempotency keys of requests -------------------------------------------------------------------------------------


KEPT_MS: Final = 24 * 3_600_000
KEPT_MIN_MS: Final = 3_600_000
KEYS_MAX: Final = 200_000
_BLOCK_KEYS_MAX: Final = 1 << 14
_BLOCK_SPAN_MS: Final = 3_600_000
"""Time between the oldest and the latest key of one block, so that a block expires soon after its oldest key."""
_DIGEST_BYTES: Final = 16
_HEAD: Final = struct.Struct("<16sqq")
_RANGE: Final = struct.Struct("<Iqq")
_BLOCK: Final = struct.Struct("<qqI")
_SIZED_KEY: Final = struct.Struct(f"<{_DIGEST_BYTES}sI")


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """The commit of a request, the offsets of its rows, and the fingerprint of the request, as hexadecimal text."""

    fingerprint: str
    commit: int
    time_ms: int
    offsets: Mapping[int, OffsetRange]


@dataclass(frozen=True, slots=True)
class _RequestKeyBlock:
    oldest_ms: int
    newest_ms: int
    entries: Mapping[bytes, bytes]

    def can_merge(self, newer: _RequestKeyBlock) -> bool:
        return (
            len(self.entries) <= len(newer.entries)
            and len(self.entries) + len(newer.entries) <= _BLOCK_KEYS_MAX
            and max(self.newest_ms, newer.newest_ms) - min(self.oldest_ms, newer.oldest_ms) <= _BLOCK_SPAN_MS
        )

    def merged(self, newer: _RequestKeyBlock) -> _RequestKeyBlock:
        oldest, newest = min(self.oldest_ms, newer.oldest_ms), max(self.newest_ms, newer.newest_ms)
        return _RequestKeyBlock(oldest, newest, {**self.entries, **newer.entries})


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """The idempotency keys of a table, by digest, so that a retried request is stored once. Immutable.

    A key is an opaque text that a client chose for one request. The commit record of the request's rows contains the
    digest of the key and the fingerprint of the request, so a key is recorded exactly if the rows are stored. Keys are
    retained for `KEPT_MS`. If there are more than `KEYS_MAX` keys, the oldest are dropped earlier, but not before
    `KEPT_MIN_MS`. Adding a key copies the few latest keys and shares the other blocks.
    """

    blocks: tuple[_RequestKeyBlock, ...] = ()
    """Blocks by ascending time. Blocks of equal size are merged, so that there are few."""

    def __len__(self) -> int:
        return sum(len(block.entries) for block in self.blocks)

    def get(self, digest: str) -> RequestEntry | None:
        key = bytes.fromhex(digest)
        data = next((block.entries[key] for block in reversed(self.blocks) if key in block.entries), None)
        return None if data is None else _entry_from_bytes(data)

    def with_key(self, digest: str, entry: RequestEntry) -> RequestKeys:
        """Return the keys with a new key, and without the keys that have expired at the new key's time."""
        blocks = [
            *self.blocks,
            _RequestKeyBlock(entry.time_ms, entry.time_ms, {bytes.fromhex(digest): _entry_to_bytes(entry)}),
        ]
        while len(blocks) > 1 and blocks[-2].can_merge(blocks[-1]):
            newer = blocks.pop()
            blocks.append(blocks.pop().merged(newer))
        return RequestKeys(tuple(_drop_expired(blocks, entry.time_ms)))

    def to_bytes(self) -> bytes:
        """Return the keys as stored in a checkpoint."""
        parts = []
        for block in self.blocks:
            parts.append(_BLOCK.pack(block.oldest_ms, block.newest_ms, len(block.entries)))
            for key, entry in block.entries.items():
                parts += (_SIZED_KEY.pack(key, len(entry)), entry)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: memoryview | bytes) -> RequestKeys:
        blocks, at = [], 0
        while at < len(data):
            oldest_ms, newest_ms, count = _BLOCK.unpack_from(data, at)
            at += _BLOCK.size
            entries = {}
            for _ in range(count):
                key, size = _SIZED_KEY.unpack_from(data, at)
                at += _SIZED_KEY.size
                entries[key] = bytes(data[at : at + size])
                at += size
            blocks.append(_RequestKeyBlock(oldest_ms, newest_ms, entries))
        return cls(tuple(blocks))


NO_REQUEST_KEYS: Final = RequestKeys()


def _drop_expired(blocks: list[_RequestKeyBlock], now_ms: int) -> Iterator[_RequestKeyBlock]:
    count = sum(len(block.entries) for block in blocks)
    for block in blocks:
        age_ms = now_ms - block.newest_ms
        if age_ms > KEPT_MS or (age_ms > KEPT_MIN_MS and count - len(block.entries) >= KEYS_MAX):
            count -= len(block.entries)
        else:
            yield block


def _entry_to_bytes(entry: RequestEntry) -> bytes:
    head = _HEAD.pack(bytes.fromhex(entry.fingerprint), entry.commit, entry.time_ms)
    return head + b"".join(_RANGE.pack(bucket, r.start, r.end) for bucket, r in sorted(entry.offsets.items()))


def _entry_from_bytes(data: bytes) -> RequestEntry:
    fingerprint, commit, time_ms = _HEAD.unpack_from(data)
    ranges: Any = _RANGE.iter_unpack(data[_HEAD.size :])
    offsets = {bucket: OffsetRange(start, end) for bucket, start, end in ranges}
    return RequestEntry(fingerprint.hex(), commit, time_ms, offsets)


# -- refreshes of views -----------------------------------------------------------------------------------------------


REFRESHES: Final = "streamhouse.materialize"
"""The application id of refreshes."""


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The version of a source table that a view contains."""

    name: str
    uuid: str
    version: int
    """Number of the last commit that is in the view."""
    attempt: str | None
    """Attempt id of this commit. It differs in a restored table."""
    ends: Mapping[int, int]
    """Bucket → the offset after its last row that is in the view."""
    dropped_rows: int = 0
    """Rows missing from the lake at this version because their partitions were dropped."""
    is_cut: bool = False
    """Whether the view has only the rows below ``ends`` of this version, as between the steps of a refresh."""

    def cut_text(self) -> str | None:
        """Return ``ends`` in the format of streams; None if the view has all rows of the version."""
        return json.dumps({str(bucket): end for bucket, end in sorted(self.ends.items())}) if self.is_cut else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The lineage of a view: the versions of all sources that a refresh applied, and how it computed the view.

    A refresh is a transaction of the view's table, and its lineage is the fingerprint of the transaction's batch. Rows
    and lineage are therefore committed in one record.
    """

    sources: tuple[SourceVersion, ...]
    whole_because: str | None = None
    """The reason why the query was recomputed; None if its changes were applied."""

    def transaction(self, number: int) -> Transaction:
        return Transaction(REFRESHES, number, batch=StreamBatch(self.to_text(), is_each_recorded=True))

    def to_text(self) -> str:
        fields = asdict(self)
        for source in fields["sources"]:
            if not source["is_cut"]:  # otherwise older releases reject the lineage
                del source["is_cut"]
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Lineage:
        fields = json.loads(text)
        return cls(tuple(map(_source, fields["sources"])), fields["whole_because"])


def _source(fields: Mapping[str, Any]) -> SourceVersion:
    return SourceVersion(**{**fields, "ends": {int(bucket): end for bucket, end in fields["ends"].items()}})


def lineage_of(transaction: Transaction | None) -> Lineage | None:
    """Return the lineage in a transaction; None if the transaction is not a refresh."""
    if transaction is None or transaction.app_id != REFRESHES:
        return None
    text = transaction.batch.fingerprint if transaction.batch is not None else None
    return None if text is None else Lineage.from_text(text)


# -- progress of real-time queries ------------------------------------------------------------------------------------


_PLACE: Final = re.compile(r"(.+)/[0-9a-f]{32}/[0-9]+", re.DOTALL)


def make_progress_id(app_id: str, source: str, bucket: int) -> str:
    """Return the id of the transactions that record the progress of a real-time query in a bucket of a source.

    The version of the transaction is the offset after the stored rows. Its batch names the last record of the source
    when the rows were read, so that another history of the source is detected.
    """
    return f"{app_id}/{source}/{bucket}"


def select_progress_ids(app_ids: Collection[str], progress_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ``progress_ids`` of these applications."""
    return tuple(
        progress_id for progress_id in progress_ids if (match := _PLACE.fullmatch(progress_id)) and match[1] in app_ids
    )


def make_progress_batch(record: HistoryPoint | None) -> StreamBatch | None:
    """Return the batch of a progress transaction, which names the last record of the source when rows were read."""
    return StreamBatch(f"{record.number} {record.attempt}") if record is not None else None


def source_record_of(batch: StreamBatch | None) -> HistoryPoint | None:
    """Return the record that the batch of a progress transaction names; None for an older version of this package."""
    if batch is None or batch.fingerprint is None:
        return None
    number, _, attempt = batch.fingerprint.partition(" ")
    return HistoryPoint(int(number), attempt)
