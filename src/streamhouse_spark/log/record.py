"""Commit records and their encoding.

The frame of a record holds the actions in its header and their binary parts in its payload. If the frame exceeds
`RECORD_BYTES_MAX`, actions and payload are stored in a manifest instead: a file of the same form under a uuid name. The
manifest is stored first, and the record names it with length and checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import xxhash

from streamhouse_spark.config.table_properties import BUCKET_COUNT_MAX
from streamhouse_spark.core.clock import Author
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.types import OffsetRange, StreamBatch, Transaction
from streamhouse_spark.core.warehouse_layout import commit_key, manifest_key
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError, quote
from streamhouse_spark.log.actions import Action, Create, Payload, action_from_json, action_to_json, without_rows
from streamhouse_spark.log.framing import Frame, decode_frame, encode_frame, to_text, translate_field_errors
from streamhouse_spark.storage.base import Storage, object_exists, url_of
from streamhouse_spark.storage.prefetch import WINDOW, Prefetch

RECORD_BYTES_MAX = 256 << 10
"""Maximum bytes of the record of one attempt without a manifest. Group records have no manifest but another limit."""
_HEAD_BYTES = 512
"""Bytes that contain a record's first line, number, table and attempt."""
RECENT_BYTES_MAX = 4 << 20
RECENT_RECORDS_MAX = 256
"""Limits of `RecentRows`. Older rows are read again."""
GROUP_VERSION = 2
"""Format version of group records: an older reader would lose their transactions."""
CLOCKS_APART_MS = 10_000
"""Differences between the clocks of two writers up to which commit times do not decrease."""


def next_record_time(before_ms: int, now_ms: int) -> int:
    """Return the time of the record after a record of ``before_ms``.

    It is ``now_ms``, but ``before_ms`` if this clock is slow by at most `CLOCKS_APART_MS`. Commit times therefore do
    not decrease between hosts with synchronised clocks, and a read that starts at a commit's time skips no row. If the
    other clock was fast by more, the next record has the correct time.
    """
    return before_ms if now_ms < before_ms <= now_ms + CLOCKS_APART_MS else now_ms


class GroupMember(NamedTuple):
    """One of several attempts in a record. Its actions are the next ``num_actions`` of the record."""

    attempt: str
    num_actions: int
    transaction: Transaction | None = None


class CommitAttempt(NamedTuple):
    """One request's part of a record."""

    attempt: str
    actions: tuple[Action, ...]
    transaction: Transaction | None


@dataclass(frozen=True, slots=True)
class Record:
    number: int
    table_uuid: str
    attempt: str
    """Id of the attempt that wrote the record. The writer recognises its own record by this id."""
    time_ms: int
    """Store time, see `next_record_time`. It decides TTLs and starts by timestamp, never the order."""
    actions: tuple[Action, ...]
    transaction: Transaction | None = None
    manifest: str | None = None
    after: str | None = None
    """Attempt id of the record before, if the writer knew it. It differs in another history."""
    members: tuple[GroupMember, ...] = ()
    """The attempts that share the record, in order; empty if it has one attempt. With members, ``attempt`` is the id of
    the group, and ``transaction`` is None.
    """
    author: Author | None = None
    """The user and the engine that wrote the record, for display only; None in older records."""

    @property
    def attempts(self) -> tuple[CommitAttempt, ...]:
        """The one or more attempts in the record."""
        if not self.members:
            return (CommitAttempt(self.attempt, self.actions, self.transaction),)
        attempts, start = [], 0
        for member in self.members:
            end = start + member.num_actions
            attempts.append(CommitAttempt(member.attempt, self.actions[start:end], member.transaction))
            start = end
        return tuple(attempts)


class EncodedRecord(NamedTuple):
    data: bytes
    manifest: bytes | None
    """The bytes of the manifest, which must be stored before the record; None if the record has no manifest."""
    stored: Record
    """The record as it is read back."""


class RecordBody:
    """The encoded actions of a record that is being built. Each attempt is encoded when it is added."""

    def __init__(self) -> None:
        self.actions: tuple[Action, ...] = ()
        """The actions as they are read back."""
        self.payload = Payload()
        self._texts: list[str] = []
        self._text_bytes = 0

    @property
    def text(self) -> str:
        return f"[{','.join(self._texts)}]"

    def add(self, actions: Iterable[Action], *, bytes_max: int | None = None) -> bool:
        """Add the actions of an attempt, unless the body would exceed ``bytes_max``. Return whether they were added."""
        payload = Payload(list(self.payload.parts), self.payload.size_bytes)
        placed = tuple(without_rows(action, payload) for action in actions)
        texts = [to_text(action_to_json(action, payload)) for action in placed]
        text_bytes = self._text_bytes + sum(map(len, texts))
        if bytes_max is not None and text_bytes + payload.size_bytes > bytes_max:
            return False
        self.actions, self.payload, self._text_bytes = (*self.actions, *placed), payload, text_bytes
        self._texts += texts
        return True


def encode_record(record: Record, manifest_uuid: str, body: RecordBody | None = None) -> EncodedRecord:
    """Return the bytes to store. The caller stores a manifest under ``manifest_uuid``.

    ``body`` has the record's actions if the caller has encoded them.
    """
    if body is None:
        body = RecordBody()
        body.add(record.actions)
    header: dict[str, Any] = {
        "number": record.number,
        "table": record.table_uuid,
        "attempt": record.attempt,
        "time_ms": record.time_ms,
    }
    if record.after is not None:
        header["after"] = record.after
    if record.author is not None:
        header["by"] = list(record.author)
    if record.transaction is not None:
        header["transaction"] = transaction_to_json(record.transaction)
    version = None
    if record.members:
        header["members"] = [_member_to_json(member) for member in record.members]
        version = GROUP_VERSION
    data = encode_frame("commit", _with_actions(header, body), body.payload.parts, version=version)
    if record.members or len(data) <= RECORD_BYTES_MAX:
        return EncodedRecord(data, None, replace(record, actions=body.actions))
    manifest = encode_frame("manifest", _with_actions({"table": record.table_uuid}, body), body.payload.parts)
    reference = {"uuid": manifest_uuid, "bytes": len(manifest), "xxh3": xxhash.xxh3_128_hexdigest(manifest)}
    data = encode_frame("commit", {**header, "manifest": reference}, version=version)
    return EncodedRecord(data, manifest, replace(record, actions=body.actions, manifest=manifest_uuid))


def _with_actions(header: dict[str, Any], body: RecordBody) -> str:
    return f'{to_text(header)[:-1]},"actions":{body.text}}}'


def read_record(
    storage: Storage, table_uuid: str, number: int, prefetch: Prefetch | None = None
) -> tuple[Record, memoryview]:
    """Read a record, and the payload with its inline rows. ``prefetch`` may have prefetched the record.

    Raises `ObjectNotFoundError`, and `CorruptDataError` if the record is damaged or of another table.
    """
    key = commit_key(table_uuid, number)
    where = url_of(storage, key)
    data = storage.read(key) if prefetch is None else prefetch.read(key)
    frame = decode_frame("commit", data, where, newest=GROUP_VERSION)
    header = frame.header
    if header["number"] != number or header["table"] != table_uuid:
        raise CorruptDataError(
            f"{where} contains record {header['number']} of table {header['table']}, expected record {number} "
            f"of table {table_uuid}: a file was copied or renamed; restore this file",
        )
    reference = header.get("manifest")
    with translate_field_errors("commit", where):
        body = _read_manifest(storage, table_uuid, reference, where) if reference is not None else frame
    with translate_field_errors("commit", where):
        transaction = header.get("transaction")
        record = Record(
            number=number,
            table_uuid=table_uuid,
            attempt=header["attempt"],
            time_ms=header["time_ms"],
            actions=tuple(action_from_json(a, body.payload) for a in body.header["actions"]),
            transaction=transaction_from_json(transaction) if transaction else None,
            manifest=reference["uuid"] if reference else None,
            after=header.get("after"),
            members=tuple(_member_from_json(member) for member in header.get("members", ())),
            author=Author(*header["by"]) if "by" in header else None,
        )
    _require_valid_actions(record, where)
    _require_members(record, frame.version, where)
    return record, body.payload


class RecentRows:
    """A cache of the inline rows of the latest records, by record number.

    Each refresh fills a new cache, which is immutable once other threads see it. Records are never rewritten, so
    entries are always valid.
    """

    def __init__(self) -> None:
        self._rows: dict[int, memoryview] = {}
        self._bytes = 0

    def add(self, number: int, rows: memoryview) -> None:
        """Cache the rows of a record, and evict the oldest rows above the limits."""
        if not rows.nbytes or rows.nbytes > RECENT_BYTES_MAX or number in self._rows:
            return
        self._rows[number] = rows
        self._bytes += rows.nbytes
        while self._bytes > RECENT_BYTES_MAX or len(self._rows) > RECENT_RECORDS_MAX:
            self._bytes -= self._rows.pop(next(iter(self._rows))).nbytes

    def with_newer(self, newer: RecentRows) -> RecentRows:
        """Return a cache with these entries and those of a ``newer`` cache, within the limits."""
        if not newer._rows:
            return self
        merged = RecentRows()
        for rows in (self._rows, newer._rows):
            for number, payload in rows.items():
                merged.add(number, payload)
        return merged

    def of(self, number: int) -> memoryview | None:
        """Return the rows of a record; None if they are not cached."""
        return self._rows.get(number)


def iter_records(
    prefetch: Prefetch, table_uuid: str, number: int, rows: RecentRows | None = None, at_most: int | None = None
) -> Iterator[Record]:
    """Yield the records that start at ``number``, up to the first absent record. ``rows`` caches their inline rows.

    The first request reads one record, because usually none is new; each further request reads twice as many. After the
    records that an opener prefetched, the rest of the window is read together. With ``at_most`` only that many records
    are read, on a remote store in one round trip.
    """
    window = at_most or (WINDOW - prefetch.first if prefetch.has(commit_key(table_uuid, number)) else 1)
    end = number + at_most if at_most is not None and prefetch.is_useful else None
    while number != end:
        if not prefetch.has(commit_key(table_uuid, number)):
            prefetch.expect(commit_key(table_uuid, number + step) for step in range(window))
            window = min(2 * window + 2, WINDOW)
        try:
            record, payload = read_record(prefetch.storage, table_uuid, number, prefetch)
        except ObjectNotFoundError:
            return
        if rows is not None:
            rows.add(number, payload)
        yield record
        number += 1


def has_record(storage: Storage | Prefetch, table_uuid: str, number: int) -> bool:
    """Return whether the record exists, or existed when it was prefetched."""
    key = commit_key(table_uuid, number)
    if isinstance(storage, Prefetch):
        if storage.has(key):
            return not storage.is_known_absent(key)
        storage = storage.storage
    return object_exists(storage, key)


def starts_with_attempt(storage: Storage, table_uuid: str, number: int, attempt: str) -> bool:
    """Return whether the first bytes of a stored record show this attempt.

    Also returns False if these bytes are damaged or the header has another order; see `read_attempt`.
    """
    try:
        (head,) = storage.read_ranges(commit_key(table_uuid, number), [(0, _HEAD_BYTES)])
    except ObjectNotFoundError:
        return False
    header_start = to_text({"number": number, "table": table_uuid, "attempt": attempt})[:-1]
    return bytes(head).partition(b"\n")[2].startswith(header_start.encode())


def read_attempt(storage: Storage, table_uuid: str, number: int) -> str | None:
    """Read the attempt id of a stored record; None if the record is absent or damaged."""
    key = commit_key(table_uuid, number)
    try:
        return decode_attempt(storage.read(key), url_of(storage, key))
    except (ObjectNotFoundError, CorruptDataError):
        return None


def decode_attempt(data: bytes, where: str) -> str:
    """Return the attempt id of a record. Raises `CorruptDataError`, `FormatVersionError`."""
    return str(decode_frame("commit", data, where, newest=GROUP_VERSION).header["attempt"])


def _require_valid_actions(record: Record, where: str) -> None:
    """Raise `CorruptDataError` if a record creates a table with an invalid number of buckets.

    This check comes before the record is applied, because the state allocates an entry per bucket.
    """
    for action in record.actions:
        if isinstance(action, Create) and not (
            type(action.num_buckets) is int and 1 <= action.num_buckets <= BUCKET_COUNT_MAX
        ):
            num_buckets = quote(action.num_buckets)
            raise CorruptDataError(f"{where} creates a table with {num_buckets} buckets; restore this file")


def _read_manifest(storage: Storage, table_uuid: str, reference: dict[str, Any], record_where: str) -> Frame:
    key = manifest_key(table_uuid, reference["uuid"])
    where = url_of(storage, key)
    try:
        data = storage.read(key)
    except ObjectNotFoundError as error:
        raise CorruptDataError(f"{where}, named by {record_where}, is missing; restore this file") from error
    if len(data) != reference["bytes"] or xxhash.xxh3_128_hexdigest(data) != reference["xxh3"]:
        raise CorruptDataError(f"{where} does not match the checksum in {record_where}; restore this file")
    return decode_frame("manifest", data, where)


def _require_members(record: Record, version: int, where: str) -> None:
    """Raise `CorruptDataError` if a group record's actions are not exactly those of its members."""
    if not record.members and version < GROUP_VERSION:
        return
    shares = [member.num_actions for member in record.members]
    if version < GROUP_VERSION or sum(shares) != len(record.actions) or min(shares, default=0) < 1:
        raise CorruptDataError(
            f"{where}: found {len(record.actions)} actions in format version {version}, but its attempts have "
            f"{shares}; restore this file",
        )


def _member_to_json(member: GroupMember) -> dict[str, Any]:
    out: dict[str, Any] = {"attempt": member.attempt, "actions": member.num_actions}
    if member.transaction is not None:
        out["transaction"] = transaction_to_json(member.transaction)
    return out


def _member_from_json(data: Mapping[str, Any]) -> GroupMember:
    transaction = data.get("transaction")
    return GroupMember(data["attempt"], data["actions"], transaction_from_json(transaction) if transaction else None)


def transaction_to_json(transaction: Transaction) -> dict[str, Any]:
    out: dict[str, Any] = {"app_id": transaction.app_id, "version": transaction.version}
    if transaction.owner is not None:
        out["owner"] = transaction.owner
    if transaction.batch is not None:
        out["batch"] = batch_to_json(transaction.batch)
    return out


def transaction_from_json(data: dict[str, Any]) -> Transaction:
    batch = batch_from_json(data.get("batch"))
    return Transaction(data["app_id"], data["version"], data.get("owner"), batch)


def batch_to_json(batch: StreamBatch) -> dict[str, Any]:
    out: dict[str, Any] = {} if batch.fingerprint is None else {"fingerprint": batch.fingerprint}
    if batch.is_each_recorded:
        out["each"] = True
    return out


def batch_from_json(data: Mapping[str, Any] | None) -> StreamBatch | None:
    return None if data is None else StreamBatch(data.get("fingerprint"), data.get("each", False))


def ranges_to_json(ranges: dict[int, OffsetRange]) -> dict[str, list[int]]:
    return {str(bucket): [r.start, r.end] for bucket, r in sorted(ranges.items())}


def ranges_from_json(data: dict[str, list[int]]) -> dict[int, OffsetRange]:
    return {int(bucket): OffsetRange(*bounds) for bucket, bounds in data.items()}
