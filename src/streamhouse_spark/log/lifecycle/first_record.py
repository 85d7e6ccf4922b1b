"""The first record of a log, whose uuid no other process knows yet."""

from __future__ import annotations

from streamhouse_spark.core.paths import commit_key, manifest_key
from streamhouse_spark.log.commits.record import Record, encode_record
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.put_if_absent import ensure_stored, slot_for_bytes


def put_first_record(storage: Storage, record: Record) -> Record:
    """Store the first record of a table, and return it as it is stored. Its uuid is new, so there is no race."""
    uuid = record.table_uuid
    encoded = encode_record(record, uuid)
    if encoded.manifest is not None:
        ensure_stored(storage, manifest_key(uuid, uuid), encoded.manifest)
    slot_for_bytes(storage, commit_key(uuid, record.number), encoded.data).take(encoded.data).won()
    return encoded.stored
