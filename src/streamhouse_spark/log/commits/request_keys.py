"""The idempotency keys of a table, so that a retried request is stored once.

A key is an opaque text that a client chose for one request. The commit record of the request's rows holds its digest
and the fingerprint of the request, so a key is recorded exactly if the rows are stored. Keys are retained for
`KEPT_MS`. If there are more than `KEYS_MAX`, the oldest are dropped earlier, but not before `KEPT_MIN_MS`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange

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
class _Block:
    oldest_ms: int
    newest_ms: int
    entries: Mapping[bytes, bytes]

    def can_merge(self, newer: _Block) -> bool:
        return (
            len(self.entries) <= len(newer.entries)
            and len(self.entries) + len(newer.entries) <= _BLOCK_KEYS_MAX
            and max(self.newest_ms, newer.newest_ms) - min(self.oldest_ms, newer.oldest_ms) <= _BLOCK_SPAN_MS
        )

    def merged(self, newer: _Block) -> _Block:
        oldest, newest = min(self.oldest_ms, newer.oldest_ms), max(self.newest_ms, newer.newest_ms)
        return _Block(oldest, newest, {**self.entries, **newer.entries})


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """Immutable set of keys by digest. Adding a key copies the few latest keys and shares the other blocks."""

    blocks: tuple[_Block, ...] = ()
    """Blocks by increasing time. Blocks of equal size are merged, so there are few."""

    def __len__(self) -> int:
        return sum(len(block.entries) for block in self.blocks)

    def get(self, digest: str) -> RequestEntry | None:
        key = bytes.fromhex(digest)
        data = next((block.entries[key] for block in reversed(self.blocks) if key in block.entries), None)
        return None if data is None else _entry_from_bytes(data)

    def with_key(self, digest: str, entry: RequestEntry) -> RequestKeys:
        """Return the keys with one more, and without those that have expired at its time."""
        blocks = [*self.blocks, _Block(entry.time_ms, entry.time_ms, {bytes.fromhex(digest): _entry_to_bytes(entry)})]
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
            blocks.append(_Block(oldest_ms, newest_ms, entries))
        return cls(tuple(blocks))


NO_REQUEST_KEYS: Final = RequestKeys()


def _drop_expired(blocks: list[_Block], now_ms: int) -> Iterator[_Block]:
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
