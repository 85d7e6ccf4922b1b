"""A commit record and its file.

The record's frame holds the actions in its header and their binary parts in its payload. Where that would be more than
`RECORD_BYTES_MAX`, actions and payload go to a manifest, a file of the same form under a uuid name that is stored
first, and the record names it with length and checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import xxhash

from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError
from streamhouse_spark.log.actions import Action, Payload, action_from_json, action_to_json
from streamhouse_spark.log.frame import Frame, decode_frame, encode_frame
from streamhouse_spark.model import OffsetRange, Transaction
from streamhouse_spark.paths import commit_key, manifest_key
from streamhouse_spark.storage import Storage

RECORD_BYTES_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class Record:
    number: int
    table_uuid: str
    attempt: str
    """Names the attempt that wrote the record: who put it can tell it from another's."""
    time_ms: int
    """Store time. Tells TTL and timestamp starts, never order."""
    actions: tuple[Action, ...]
    transaction: Transaction | None = None
    manifest: str | None = None


def encode_record(record: Record, manifest_uuid: str) -> tuple[bytes, bytes | None]:
    """The record's bytes, and those of the manifest ``manifest_uuid`` where one is needed."""
    payload = Payload()
    actions = [action_to_json(a, payload) for a in record.actions]
    header: dict[str, Any] = {
        "number": record.number,
        "table": record.table_uuid,
        "attempt": record.attempt,
        "time_ms": record.time_ms,
    }
    if record.transaction is not None:
        header["transaction"] = transaction_to_json(record.transaction)
    data = encode_frame("commit", {**header, "actions": actions}, payload.data)
    if len(data) <= RECORD_BYTES_MAX:
        return data, None
    manifest = encode_frame("manifest", {"table": record.table_uuid, "actions": actions}, payload.data)
    reference = {"uuid": manifest_uuid, "bytes": len(manifest), "xxh3": xxhash.xxh3_128_hexdigest(manifest)}
    return encode_frame("commit", {**header, "manifest": reference}), manifest


def read_record(storage: Storage, table_uuid: str, number: int) -> tuple[Record, memoryview]:
    """A record and the payload that its inline segments point into.

    Raises `ObjectNotFoundError` where there is none, `CorruptDataError` where it is damaged or not this table's.
    """
    data = storage.read(commit_key(table_uuid, number))
    return decode_record(storage.url, table_uuid, number, data, storage)


def decode_record(
    url: str, table_uuid: str, number: int, data: bytes, manifest: Storage | bytes | None
) -> tuple[Record, memoryview]:
    """Decode a record's bytes; ``manifest`` is its manifest, or the storage to read it from where it names one."""
    where = f"{url}/{commit_key(table_uuid, number)}"
    frame = decode_frame("commit", data, where)
    header = frame.header
    if header["number"] != number or header["table"] != table_uuid:
        raise CorruptDataError(
            f"{where} says that it is record {header['number']} of table {header['table']}, expected record {number} "
            f"of table {table_uuid}: a file was copied or renamed; restore this file",
        )
    reference = header.get("manifest")
    body = frame
    if isinstance(manifest, bytes):
        body = decode_frame("manifest", manifest, f"the manifest of {where}")
    elif reference is not None and manifest is not None:
        body = _read_manifest(manifest, table_uuid, reference, where)
    transaction = header.get("transaction")
    record = Record(
        number=number,
        table_uuid=table_uuid,
        attempt=header["attempt"],
        time_ms=header["time_ms"],
        actions=tuple(action_from_json(a, body.payload) for a in body.header["actions"]),
        transaction=transaction_from_json(transaction) if transaction else None,
        manifest=reference["uuid"] if reference else None,
    )
    return record, body.payload


def _read_manifest(storage: Storage, table_uuid: str, reference: dict[str, Any], record_where: str) -> Frame:
    key = manifest_key(table_uuid, reference["uuid"])
    where = f"{storage.url}/{key}"
    try:
        data = storage.read(key)
    except ObjectNotFoundError as error:
        raise CorruptDataError(f"{where}, named by {record_where}, is missing; restore this file") from error
    if len(data) != reference["bytes"] or xxhash.xxh3_128_hexdigest(data) != reference["xxh3"]:
        raise CorruptDataError(f"{where} does not match the checksum in {record_where}; restore this file")
    return decode_frame("manifest", data, where)


def transaction_to_json(transaction: Transaction) -> dict[str, Any]:
    out: dict[str, Any] = {"app_id": transaction.app_id, "version": transaction.version}
    if transaction.owner is not None:
        out["owner"] = transaction.owner
    return out


def transaction_from_json(data: dict[str, Any]) -> Transaction:
    return Transaction(data["app_id"], data["version"], data.get("owner"))


def ranges_to_json(ranges: dict[int, OffsetRange]) -> dict[str, list[int]]:
    return {str(bucket): [r.start, r.end] for bucket, r in sorted(ranges.items())}


def ranges_from_json(data: dict[str, list[int]]) -> dict[int, OffsetRange]:
    return {int(bucket): OffsetRange(*bounds) for bucket, bounds in data.items()}
