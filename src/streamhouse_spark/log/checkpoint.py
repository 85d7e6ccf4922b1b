"""Checkpoints hold the folded state of a table, so that readers skip older records. The hint names the latest one.

**Checkpoint.** A checkpoint is derived from records. Until a low watermark is written, losing all checkpoints only
costs time. A checkpoint counts only after it was read back and equals the state of its writer. A low watermark is put
only if two such checkpoints lie at or above it (`log.gc.garbage_collection`), so that readers can skip a damaged one.

**Hint.** The hint names the latest checkpoint. On stores with slow requests it also holds a later state if that is
small, so that an opener reads both with one request. That state was not read back. It justifies no low watermark, and
it counts only while its last record is in the log (`log.bootstrap`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.warehouse_layout import (
    checkpoint_hint_key,
    checkpoint_key,
    checkpoints_prefix,
    commit_key,
    parse_numbers,
    tag_key,
    watermark_key,
)
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError, StreamhouseError
from streamhouse_spark.expressions.check_constraints import has_constraints
from streamhouse_spark.expressions.generated_columns import has_generated_columns
from streamhouse_spark.log import actions as act
from streamhouse_spark.log import transactions as writers
from streamhouse_spark.log.actions import NO_ARCHIVE, Archive, Payload
from streamhouse_spark.log.deletion_vectors import Deletion, Deletions
from streamhouse_spark.log.framing import decode_frame, encode_frame, translate_field_errors
from streamhouse_spark.log.history_index import ConsumerPosition, HistoryIndex, HistoryPoint
from streamhouse_spark.log.state import (
    NO_DROPPED_ROWS,
    BucketLog,
    DroppedPartitionRows,
    TableState,
    TaggedVersion,
    TombstonedFile,
    Truncation,
    with_latest_lake,
)
from streamhouse_spark.log.transactions import RequestKeys
from streamhouse_spark.schema.evolution import SchemaChange
from streamhouse_spark.schema.partitioning import FormerPartitioning
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import WINDOW, Prefetch, SupportsBatchReads
from streamhouse_spark.storage.put_if_absent import ensure_stored


def state_to_json(state: TableState, payload: Payload) -> dict[str, Any]:
    """Return the state as the header of a checkpoint."""
    out = {
        "table": state.table_uuid,
        "version": state.version,
        "name": state.name,
        "created_ms": state.created_ms,
        "time_ms": state.time_ms,
        "schema_id": state.schema_id,
        "schemas": {str(i): s.to_json() for i, s in state.schemas.items()},
        "partition_by": list(state.partition_by),
        "num_buckets": state.num_buckets,
        "properties": dict(state.properties),
        "lake_location": state.lake_location,
        "buckets": [
            {
                "bucket": bucket,
                "range": [log.start, log.end],
                "segments": [act.segment_to_json(s, payload) for s in log.segments],
            }
            for bucket, log in state.buckets.items()
        ],
        "lake": [act.lake_to_json(pair) for pair in state.lake_history],
        **writers.entries_to_json(state.transactions, state.time_ms),
        "condemned": [[key, c.commit, c.time_ms, c.orphan] for key, c in state.condemned.items()],
        "manifests": [[number, uuid] for number, uuid in state.manifests.items()],
        "consumers": [[name, c.time_ms, act.offsets_to_json(c.offsets)] for name, c in state.consumers.items()],
        "dropped": state.dropped,
    }
    past, keys = state.past_transactions, state.request_keys
    optional = {
        "consumer_histories": {n: list(c.history) for n, c in state.consumers.items() if c.history is not None},
        "successor": state.successor,
        "buried": state.buried,
        "past_transactions": list(payload.add(writers.past_to_bytes(past))) if past else None,
        "request_keys": list(payload.add(keys.to_bytes())) if keys else None,
        "named": state.named if state.named != 1 else None,
        "anchors": state.anchors.to_json() if state.anchors.marks else None,
        "former_uuids": list(state.former_uuids),
        "former_lakes": list(state.former_lakes),
        "expiring": sorted(state.expiring),
        "former_partitionings": [entry.to_json() for entry in state.former_partitionings],
        "schema_changes": [entry.to_json() for entry in state.schema_changes],
        "snapshots": [act.snapshot_to_json(s, payload) for s in state.snapshots.values()],
        "deletions": [deletion.to_json() for deletion in state.deletions],
        "dropped_rows": state.dropped_rows.to_json() if state.dropped_rows != NO_DROPPED_ROWS else None,
        "tags": {name: asdict(tag) for name, tag in state.tags.items()},
        "archive": state.archive.to_json() if state.archive else None,
        "truncation": state.truncation
        and {**asdict(state.truncation), "offsets": act.offsets_to_json(state.truncation.offsets)},
    }
    return out | {name: value for name, value in optional.items() if value}


def _truncation_from_json(data: Mapping[str, Any] | None) -> Truncation | None:
    if data is None:
        return None
    return Truncation(data["commit"], data["time_ms"], act.offsets_from_json(data["offsets"]))


def _consumers_from_json(data: Mapping[str, Any]) -> dict[str, ConsumerPosition]:
    marks = {name: HistoryPoint.from_json(mark) for name, mark in data.get("consumer_histories", {}).items()}
    return {
        name: ConsumerPosition(act.offsets_from_json(offsets), ms, marks.get(name))
        for name, ms, offsets in data["consumers"]
    }


def state_from_json(data: Mapping[str, Any], payload: memoryview) -> TableState:
    history = tuple(act.lake_from_json(pair) for pair in data["lake"])
    buckets = {
        b["bucket"]: BucketLog(
            start=b["range"][0],
            end=b["range"][1],
            segments=tuple(act.segment_from_json(s, payload) for s in b["segments"]),
        )
        for b in data["buckets"]
    }
    state = TableState(
        table_uuid=data["table"],
        version=data["version"],
        name=data["name"],
        created_ms=data["created_ms"],
        time_ms=data["time_ms"],
        schema_id=data["schema_id"],
        schemas={int(i): TableSchema.from_json(s) for i, s in data["schemas"].items()},
        partition_by=tuple(data["partition_by"]),
        num_buckets=data["num_buckets"],
        properties=data["properties"],
        lake_location=data["lake_location"],
        buckets=buckets,
        lake_history=history,
        truncation=_truncation_from_json(data.get("truncation")),
        transactions=writers.entries_from_json(data),
        past_transactions=writers.past_from_bytes(payload[slice(*data.get("past_transactions", (0, 0)))]),
        request_keys=RequestKeys.from_bytes(payload[slice(*data.get("request_keys", (0, 0)))]),
        condemned={key: TombstonedFile(commit, ms, orphan) for key, commit, ms, orphan in data["condemned"]},
        manifests=dict(data["manifests"]),
        consumers=_consumers_from_json(data),
        snapshots={s["bucket"]: act.snapshot_from_json(s, payload) for s in data.get("snapshots", [])},
        deletions=Deletions(Deletion.from_json(entry) for entry in data.get("deletions", ())),
        dropped_rows=DroppedPartitionRows.from_json(data["dropped_rows"])
        if "dropped_rows" in data
        else NO_DROPPED_ROWS,
        tags={name: TaggedVersion(**tag) for name, tag in data.get("tags", {}).items()},
        archive=Archive.from_json(data["archive"]) if "archive" in data else NO_ARCHIVE,
        expiring=frozenset(data.get("expiring", ())),
        former_lakes=tuple(data.get("former_lakes", ())),
        schema_changes=tuple(SchemaChange.from_json(entry) for entry in data.get("schema_changes", ())),
        former_partitionings=tuple(map(FormerPartitioning.from_json, data.get("former_partitionings", ()))),
        named=data.get("named", 1),
        former_uuids=tuple(data.get("former_uuids", ())),
        dropped=data["dropped"],
        successor=data.get("successor"),
        buried=data.get("buried", False),
        anchors=HistoryIndex.from_json(data.get("anchors")),
    )
    return with_latest_lake(state)


logger = logging.getLogger(__name__)

# Formats of checkpoints. A state is stored in the oldest format that holds all of its content. Each comment says what
# would happen if a version of this package without the format read the content.
PAST_VERSION = 2  # past transactions: their writes would be stored again
PARTS_VERSION = 3
# Segments that share objects: the object would be deleted with the first segment. Also copies of tables: the former
# lake files would count as another engine's, and `drop_partition` would drop rows that were written after the call.
DELETED_VERSION = 4  # deleted rows: reads would return them
TAGS_VERSION = 5  # tags: the files that they retain would be deleted
CHECKS_VERSION = 6  # constraints: writes would store rows that violate them
GENERATED_VERSION = 7  # generated columns: writes would not compute them
FIELDS_VERSION = 8  # ids of nested fields: the fields would be resolved by name
BRANCH_VERSION = 9  # a branch: it would be deleted as a table without a name
ARCHIVE_VERSION = 10  # a change archive: its files would be deleted
PARTITIONINGS_VERSION = 11
# Former partition specs: older segments would be read with the current spec. Dropped partitions: a rebuilt lake would
# have their rows again.
SCHEMA_CHANGES_VERSION = 12  # changes of the schema: time travel would show the wrong columns
FILE_ROWS_VERSION = 13  # deleted rows of lake files: reads would return them
VARIANTS_VERSION = 14  # VARIANT columns: the type would be unknown
NEWEST_VERSION = 15  # idempotency keys: the requests would be stored again

CHECKPOINT_INTERVAL = 40
HINT_EVERY: Final = 20
"""On stores with slow requests, the process that commits a multiple of this number writes its state into the hint. That
is one put by one process, however many processes commit.
"""
HINT_FIRST: Final = 6
"""The first record whose state is written into the hint: younger tables are opened by reading from record 1."""
HINT_BYTES_MAX = 64 << 10
"""Maximum bytes of a state in the hint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    state: TableState
    watermark_index: int = 0
    """Index of the latest low watermark that the writer knew, 0 for none. Readers search for later ones from here."""
    low_watermark: int = 0
    named: int | None = None
    """For a state in the hint, the record of the latest checkpoint that the writer knew; 0 for none."""

    @property
    def stored(self) -> int:
        """The record of the latest checkpoint that has its own object."""
        return self.state.version if self.named is None else self.named


def write_checkpoint(storage: Storage, state: TableState, *, watermark_index: int = 0, low_watermark: int = 0) -> None:
    """Store the state, read it back, and only then name it in the hint.

    Every process stores the same state under this key, so an existing checkpoint with this state is a success. Raises
    `CorruptDataError` if it has another state; the hint is not set then.
    """
    data = _encode_checkpoint(state, watermark_index, low_watermark)
    key = checkpoint_key(state.table_uuid, state.version)
    ensure_stored(storage, key, data)
    stored = storage.read(key)
    if stored != data and _decode_checkpoint(
        stored, state.table_uuid, state.version, url_of(storage, key)
    ).state != as_stored(state):
        raise CorruptDataError(
            f"checkpoint {url_of(storage, key)} differs from the state of the records; delete this file"
        )
    _put_hint(storage, state, state.version, data)


def write_hint(
    storage: Storage, state: TableState, named: int, *, watermark_index: int = 0, low_watermark: int = 0
) -> None:
    """Write a hint that names the checkpoint of record ``named``, 0 for none, and may hold a later state."""
    data = _encode_checkpoint(state, watermark_index, low_watermark)
    if len(data) <= HINT_BYTES_MAX:
        _put_hint(storage, state, named, data)


def _put_hint(storage: Storage, state: TableState, named: int, data: bytes) -> None:
    # Older versions of this package treat a hint with a state as no hint, and list the checkpoints.
    is_held = isinstance(storage, SupportsBatchReads) and len(data) <= HINT_BYTES_MAX
    text = str(named).encode() + (b"\n" + data if is_held else b"")
    storage.put(checkpoint_hint_key(state.table_uuid), text)


class CheckpointWriter:
    """Stores checkpoints and hints of one log after commits. It tracks the latest checkpoint that the process knows."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._newest = 0

    def note_start(self, checkpoint: Checkpoint) -> None:
        self._newest = max(self._newest, checkpoint.stored)

    def store_if_due(self, state: TableState, watermark_index: int, low_watermark: int) -> None:
        if state.version - self._newest >= CHECKPOINT_INTERVAL:
            self.store(state, watermark_index, low_watermark)
        elif isinstance(self._storage, SupportsBatchReads) and (
            state.version % HINT_EVERY == 0 or state.version == HINT_FIRST
        ):
            with log_post_commit_errors(logger, f"hint {state.version}", state.name):
                write_hint(
                    self._storage, state, self._newest, watermark_index=watermark_index, low_watermark=low_watermark
                )

    def store(self, state: TableState, watermark_index: int, low_watermark: int) -> None:
        """Store a checkpoint. It is derived from records, so a failure is logged and only slows the next opener."""
        self._newest = state.version
        with log_post_commit_errors(logger, f"checkpoint {state.version}", state.name):
            write_checkpoint(self._storage, state, watermark_index=watermark_index, low_watermark=low_watermark)


def write_tagged(storage: Storage, state: TableState, tag_uuid: str) -> None:
    """Store the state under the uuid of a tag that a later record creates. No hint leads to it."""
    ensure_stored(storage, tag_key(state.table_uuid, tag_uuid), _encode_checkpoint(state))


def read_tagged(storage: Storage, table_uuid: str, number: int, tag_uuid: str) -> TableState:
    """Read the state of a tagged version. Raises the errors of `read_checkpoint`."""
    return read_tagged_object(storage, table_uuid, tag_key(table_uuid, tag_uuid), number)


def read_tagged_object(storage: Storage, table_uuid: str, key: str, number: int | None = None) -> TableState:
    """Read the state in the object of a tag. Raises the errors of `read_checkpoint`.

    Without ``number`` the state may be of any version.
    """
    return _decode_checkpoint(storage.read(key), table_uuid, number, url_of(storage, key)).state


def _encode_checkpoint(state: TableState, watermark_index: int = 0, low_watermark: int = 0) -> bytes:
    payload = Payload()
    header = state_to_json(state, payload)
    if watermark_index:
        header["floor"] = [watermark_index, low_watermark]
    return encode_frame("checkpoint", header, payload.parts, version=_format_version(state))


def _format_version(state: TableState) -> int | None:
    """Return the oldest format that can hold all of the state; None for the first format."""
    shares_objects = any(segment.part is not None for segment in state.kept_segments())
    contents = {
        NEWEST_VERSION: state.request_keys,
        VARIANTS_VERSION: any(schema.has_variants for schema in state.schemas.values()),
        FILE_ROWS_VERSION: any(deletion.files for deletion in state.deletions),
        SCHEMA_CHANGES_VERSION: state.schema_changes,
        PARTITIONINGS_VERSION: state.former_partitionings or state.dropped_rows.named,
        ARCHIVE_VERSION: state.archive,
        BRANCH_VERSION: BRANCH in state.properties,
        FIELDS_VERSION: any(schema.has_field_ids for schema in state.schemas.values()),
        GENERATED_VERSION: has_generated_columns(state.properties),
        CHECKS_VERSION: has_constraints(state.properties),
        TAGS_VERSION: state.tags,
        DELETED_VERSION: state.deletions,
        PARTS_VERSION: state.former_uuids or shares_objects,
        PAST_VERSION: state.past_transactions,
    }
    return next((version for version, content in contents.items() if content), None)


def as_stored(state: TableState) -> TableState:
    """Return the state as it is read back from its checkpoint, in which empty values have only one encoding."""
    return _decode_checkpoint(_encode_checkpoint(state), state.table_uuid, state.version, "").state


def read_checkpoint(storage: Storage, table_uuid: str, number: int) -> TableState:
    """Read a checkpoint. Raises `ObjectNotFoundError`, `CorruptDataError`, `FormatVersionError`."""
    return load_checkpoint(storage, table_uuid, number).state


def load_checkpoint(storage: Storage, table_uuid: str, number: int, prefetch: Prefetch | None = None) -> Checkpoint:
    key = checkpoint_key(table_uuid, number)
    return _decode_checkpoint(
        storage.read(key) if prefetch is None else prefetch.read(key), table_uuid, number, url_of(storage, key)
    )


def _decode_checkpoint(data: bytes, table_uuid: str, number: int | None, where: str) -> Checkpoint:
    frame = decode_frame("checkpoint", data, where, newest=NEWEST_VERSION)
    with translate_field_errors("checkpoint", where):
        state = state_from_json(frame.header, frame.payload)
    if number not in (None, state.version) or state.table_uuid != table_uuid:
        raise CorruptDataError(f"checkpoint {where} is of another table or record; delete this file")
    return Checkpoint(state, *frame.header.get("floor", (0, 0)))


def read_hinted_state(hint: bytes, table_uuid: str) -> Checkpoint | None:
    """Return the state in a hint; None if it has no readable state."""
    _, _, data = hint.partition(b"\n")
    if not data:
        return None
    try:
        checkpoint = _decode_checkpoint(data, table_uuid, None, f"the hint of the checkpoints of {table_uuid}")
    except (CorruptDataError, FormatVersionError) as error:
        logger.warning("a checkpoint is skipped: %s", error)
        return None
    return replace(checkpoint, named=parse_hint(hint) or 0)


def read_watermark_index(data: bytes | None) -> int:
    """Return `Checkpoint.watermark_index` of an encoded checkpoint; 0 if the checkpoint cannot be read."""
    try:
        header = decode_frame("checkpoint", data or b"", "", newest=NEWEST_VERSION).header
    except (CorruptDataError, FormatVersionError):
        return 0
    return int(header.get("floor", (0, 0))[0])


def read_latest_checkpoint(storage: Storage, table_uuid: str, *, at_least: int = 0) -> TableState | None:
    """Return the state of a recent checkpoint; see `find_checkpoint`."""
    checkpoint, _ = find_checkpoint(storage, table_uuid, at_least=at_least)
    return checkpoint.state if checkpoint is not None else None


def find_checkpoint(
    storage: Storage, table_uuid: str, *, at_least: int = 0, prefetch: Prefetch | None = None, hint: bytes | None = None
) -> tuple[Checkpoint | None, list[CorruptDataError | FormatVersionError]]:
    """Find a recent checkpoint, at record ``at_least`` or later. Also return the errors of skipped checkpoints.

    Returns None if the log must be read from record 1. The checkpoint in the hint is tried first; pass ``hint`` if the
    caller has read it. A checkpoint that is damaged, or has a newer format, is skipped and logged: the records after an
    older checkpoint lead to the same state. With ``prefetch``, the hinted checkpoint and the records after it are
    prefetched together. Without a hint the first records are prefetched. If these are all records, nothing is listed.
    """
    passed: dict[int, CorruptDataError | FormatVersionError] = {}

    def usable(number: int) -> Checkpoint | None:
        try:
            return load_checkpoint(storage, table_uuid, number, prefetch) if number not in passed else None
        except (CorruptDataError, FormatVersionError) as error:
            logger.warning("a checkpoint is skipped: %s", error)
            passed[number] = error
        except ObjectNotFoundError:
            pass
        return None

    hinted = parse_hint(read_hint(storage, table_uuid) if hint is None else hint)
    if prefetch is not None and prefetch.is_useful:
        first, remaining = keys_to_open(table_uuid, hinted, prefetch.first)
        prefetch.expect(first)
        records = [*first[1:], *remaining]
        if hinted is None and at_least <= 1 and not prefetch.is_known_absent(records[0]):
            if not prefetch.is_known_absent(first[-1]):
                prefetch.expect(remaining)
            if prefetch.is_known_absent(records[-1]) or not prefetch.has(records[-1]):
                return None, []
    if hinted is not None and hinted >= at_least and (checkpoint := usable(hinted)) is not None:
        return checkpoint, []
    for number in reversed(list_checkpoints(storage, table_uuid)):
        if number >= at_least and (checkpoint := usable(number)) is not None:
            return checkpoint, list(passed.values())
    return None, list(passed.values())


def list_checkpoints(storage: Storage, table_uuid: str) -> list[int]:
    return parse_numbers(storage.list_names(checkpoints_prefix(table_uuid)))


def keys_to_open(table_uuid: str, hinted: int | None, num_first: int) -> tuple[list[str], list[str]]:
    """Return the keys that an opener reads first, and the keys of the records that it reads if all of these exist.

    The first keys are the hinted checkpoint, or low watermark 1 without a hint, and the next ``num_first`` records.
    """
    records = [commit_key(table_uuid, (hinted or 0) + step) for step in range(1, 1 + WINDOW)]
    other = checkpoint_key(table_uuid, hinted) if hinted else watermark_key(table_uuid, 1)
    return [other, *records[:num_first]], records[num_first:]


def read_hint(storage: Storage | Prefetch, table_uuid: str) -> bytes:
    """Read the hint; empty if there is none."""
    try:
        return storage.read(checkpoint_hint_key(table_uuid))
    except ObjectNotFoundError:
        return b""


def parse_hint(hint: bytes) -> int | None:
    """Return the record number of the checkpoint that a hint names; None if it names none."""
    number, _, _ = hint.partition(b"\n")
    return int(number) or None if number.isdigit() and len(number) <= 20 else None


def no_checkpoint_error(
    storage: Storage, table_uuid: str, low_watermark: int, damaged: Sequence[StreamhouseError]
) -> StreamhouseError:
    """Return the error for a table that cannot be opened, because its records below the low watermark are deleted."""
    for error in damaged:
        if isinstance(error, FormatVersionError):
            return error
    damage = f"; of the existing ones: {damaged[0]}" if damaged else ""
    return CorruptDataError(
        f"{url_of(storage, checkpoints_prefix(table_uuid))} holds no whole checkpoint at or above record "
        f"{low_watermark}, below which records were deleted{damage}; restore one of these files",
    )
