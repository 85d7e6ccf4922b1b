"""`TableState`, the state of a table after a commit record, and the fold of records into it. Does no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.config.table_properties import ADOPTED, NOTHING_ADOPTED, TableProperties, parse_properties
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import manifest_key, segment_key, tag_key
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.log import actions as act
from streamhouse_spark.log import transactions as writers
from streamhouse_spark.log.actions import NO_ARCHIVE, Action, Archive, KvSnapshot, SetArchive, TieredSnapshot
from streamhouse_spark.log.deletion_vectors import (
    NO_DELETIONS,
    DeleteRows,
    Deletion,
    Deletions,
    PartitionDropRows,
    count_rows,
    select_rows_from,
    unapplied_deletes,
    unapplied_file_deletes,
    union_deleted_file_rows,
    union_deleted_offsets,
)
from streamhouse_spark.log.history_index import EMPTY_INDEX, ConsumerPosition, HistoryIndex, HistoryPoint
from streamhouse_spark.log.record import CommitAttempt, Record
from streamhouse_spark.log.segment import Segment, shared_uuids
from streamhouse_spark.log.transactions import NO_REQUEST_KEYS, Past, RequestEntry, RequestKeys, TransactionEntry
from streamhouse_spark.schema.evolution import SchemaChange, append_schema_change
from streamhouse_spark.schema.partitioning import FormerPartitioning, SetPartitioning, former_partitioning
from streamhouse_spark.schema.table_schema import Column, TableSchema

LAKE_HISTORY_MAX = 100
DELETIONS_MAX: Final = 64
"""Records whose deletions a state holds separately; the deletions of older records are merged."""
PENDING_DELETIONS_MAX: Final = 256
"""As `DELETIONS_MAX`, for deletions that the lake has not applied: at least those that commit during a round."""
CHANGE_COLUMN = Column(0, "_change_type", pa.int8(), nullable=False)
"""The first column of the log of a primary-key table, before the table's own columns: the change type as a number."""


@dataclass(frozen=True, slots=True)
class TombstonedFile:
    """An entry for a condemned file: the record that condemned it, and the record's time."""

    commit: int
    time_ms: int
    orphan: bool
    """Whether no record ever named the file, so that a slow writer may try to commit it."""


@dataclass(frozen=True, slots=True)
class TaggedVersion:
    """A version with a tag."""

    version: int
    uuid: str
    """Uuid of the object that holds the version's state."""
    time_ms: int
    """Time at which the tag was created."""
    lake_snapshot: int | None = None
    until_ms: int | None = None
    """Time after which maintenance drops the tag; None for never."""


Tags = Mapping[str, TaggedVersion]


def find_tag_of_version(tags: Tags, version: int) -> TaggedVersion | None:
    """Return a tag of the version; None if the version has no tag."""
    return next((tag for tag in tags.values() if tag.version == version), None)


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last record that truncated the table: rows below ``offsets[bucket]`` no longer belong to it."""

    commit: int
    time_ms: int
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class DroppedPartitionRows:
    """The rows of dropped partitions."""

    named: Deletions = NO_DELETIONS
    """Rows of dropped partitions that the log still holds, the latest drop last."""
    accounted: int = 0
    """Number of rows missing from the recorded lake snapshot that are known to be deleted, or were named here."""
    newest: int = 0
    """Number of the last record that named rows; 0 for none."""

    def to_json(self) -> dict[str, Any]:
        named = [deletion.to_json() for deletion in self.named]
        return {"accounted": self.accounted, "newest": self.newest, "named": named}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DroppedPartitionRows:
        named = Deletions(Deletion.from_json(entry) for entry in data["named"])
        return cls(named, int(data["accounted"]), int(data["newest"]))


NO_DROPPED_ROWS: Final = DroppedPartitionRows()


@dataclass(frozen=True, slots=True)
class BucketLog:
    """The hot log of one bucket. Its segments are in order and hold exactly the offsets ``[start, end)``.

    The first segment may begin before ``start``: trimming moves the start, not the rows.
    """

    start: int = 0
    end: int = 0
    segments: tuple[Segment, ...] = ()

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.start, self.end)


@dataclass(frozen=True)
class TableState:
    table_uuid: str
    version: int
    """Number of the last folded record."""
    name: str
    """The table's name, ``<database>.<table>``. Pointers of other names to the table are void."""
    created_ms: int
    time_ms: int
    schema_id: int
    schemas: Mapping[int, TableSchema]
    partition_by: tuple[str, ...]
    num_buckets: int
    properties: Mapping[str, str]
    lake_location: str
    buckets: Mapping[int, BucketLog]
    lake: TieredSnapshot | None = None
    """The latest recorded lake snapshot since the last truncation."""
    lake_history: tuple[TieredSnapshot, ...] = ()
    """The latest recorded lake snapshots, including those from before a truncation."""
    truncation: Truncation | None = None
    transactions: Mapping[str, TransactionEntry] = field(default_factory=dict)
    past_transactions: Past = field(default_factory=dict)
    """Last versions of writers whose entries expired. They have no entry in `transactions`."""
    request_keys: RequestKeys = NO_REQUEST_KEYS
    condemned: Mapping[str, TombstonedFile] = field(default_factory=dict)
    manifests: Mapping[int, str] = field(default_factory=dict)
    """Record number → manifest, for records that may still be read."""
    consumers: Mapping[str, ConsumerPosition] = field(default_factory=dict)
    deletions: Deletions = NO_DELETIONS
    """Deleted rows of a log table that the log or the lake still holds, the latest deletion last."""
    dropped_rows: DroppedPartitionRows = NO_DROPPED_ROWS
    snapshots: Mapping[int, KvSnapshot] = field(default_factory=dict)
    """Bucket → the latest KV snapshot since the last truncation."""
    tags: Tags = field(default_factory=dict)
    """Name → version that is retained until the tag is dropped."""
    archive: Archive = NO_ARCHIVE
    """Changes that outlive the hot log, possibly with a gap before it; see `log.archive.pages.find_usable_archive`."""
    expiring: frozenset[int] = frozenset()
    """Lake snapshots that an expiry removes or has removed recently. Tags must not name them."""
    former_lakes: tuple[str, ...] = ()
    """Former locations of the lake table, before it was rebuilt. Their files are deleted with the table."""
    named: int = 1
    """Number of the last record that set the name. A rename that started before it must not commit."""
    former_uuids: tuple[str, ...] = ()
    """Uuids of the tables of which this table is a copy, the oldest first."""
    former_partitionings: tuple[FormerPartitioning, ...] = ()
    """Partition specs of rows written with older schemas, the oldest first."""
    schema_changes: tuple[SchemaChange, ...] = ()
    dropped: bool = False
    successor: str | None = None
    """Uuid of the table that replaced this table under its name."""
    buried: bool = False
    """Whether the table can no longer be undropped, because its files may be deleted."""
    anchors: HistoryIndex = EMPTY_INDEX
    """Index of this history's records."""

    @property
    def attempt(self) -> str | None:
        """Attempt id of the last record; None only if the state is a checkpoint of an older version."""
        newest = self.anchors.newest
        return newest.attempt if newest is not None else None

    @property
    def schema(self) -> TableSchema:
        return self.schemas[self.schema_id]

    @cached_property
    def parsed(self) -> TableProperties:
        """The typed `properties`. Raises `InvalidOptionError` for values of another version of this package."""
        return parse_properties(self.properties, self.schema, self.partition_by)

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns in key order; empty for a log table."""
        return tuple(self.schema.column(name).name for name in parse_names(self.properties.get("primary.key", "")))

    @cached_property
    def has_lake(self) -> bool:
        """Whether rows are or were tiered. The lake is still read after tiering was disabled."""
        return self.parsed.datalake_enabled or self.recorded_lake is not None

    @property
    def deleted(self) -> Mapping[int, OffsetSet]:
        """Bucket → offsets of rows that are stored but deleted, so that readers skip them."""
        return self.deletions.rows

    def written_schema(self, schema_id: int) -> TableSchema:
        """Return the columns of segments of a schema. Those of a primary-key table start with `CHANGE_COLUMN`."""
        schema = self.schemas[schema_id]
        return TableSchema((CHANGE_COLUMN, *schema.columns)) if self.primary_key else schema

    @property
    def ends(self) -> dict[int, int]:
        return {bucket: log.end for bucket, log in self.buckets.items()}

    @property
    def recorded_lake(self) -> TieredSnapshot | None:
        """The latest recorded lake snapshot, even if it is from before the last truncation."""
        return self.lake_history[-1] if self.lake_history else None

    @property
    def num_rows(self) -> int:
        """Rows appended since the table was created or last truncated, without rows deleted by offset or partition.

        Rows of an adopted lake are not counted, because their number is unknown.
        """
        appended = sum(log.end - self.first_offset(bucket) for bucket, log in self.buckets.items())
        applied_through, offsets = (self.lake.applied_through, self.lake.offsets) if self.lake is not None else (0, {})
        appended -= count_rows(unapplied_deletes(self.deletions, applied_through, offsets))
        if self.lake is None or ADOPTED in self.properties:
            return appended
        of_files = count_rows(union_deleted_file_rows(unapplied_file_deletes(self.deletions, applied_through)))
        return max(0, appended - of_files - self.lake.dropped_own)  # the latter may include rows of other engines

    @property
    def first_offsets(self) -> Mapping[int, int]:
        """Bucket → first offset of the table; empty if the table was never truncated."""
        return self.truncation.offsets if self.truncation else {}

    def first_offset(self, bucket: int) -> int:
        """Return the bucket's first offset since the table was created or last truncated."""
        return self.first_offsets.get(bucket, 0)

    @property
    def has_adopted_rows_alone(self) -> bool:
        """Whether the table has exactly the rows of the lake table that it adopted."""
        adopts_rows = self.properties.get(ADOPTED, NOTHING_ADOPTED) != NOTHING_ADOPTED
        return adopts_rows and self.truncation is None and self.begins_at(self.ends)

    def begins_at(self, starts: Mapping[int, int]) -> bool:
        """Return whether ``starts`` are the table's first offsets since the last truncation."""
        return all(self.first_offset(bucket) == starts.get(bucket, 0) for bucket in self.buckets)

    def lake_offset(self, bucket: int) -> int:
        """Return the offset below which the table's rows of the bucket are in the recorded lake snapshot."""
        return self.lake.offsets.get(bucket, 0) if self.lake else self.first_offset(bucket)

    def has_same_lake_files(self, snapshot_id: int | None, other_id: int | None) -> bool:
        """Return whether the files without offsets that two lake snapshots share are unchanged between the snapshots.

        A position then means the same row in both. False if a snapshot is None or not recorded.
        """
        if snapshot_id is None or other_id is None:
            return False
        if snapshot_id == other_id:
            return True
        history = self.lake_history
        places = [[i for i, s in enumerate(history) if s.snapshot_id == lake_id] for lake_id in (snapshot_id, other_id)]
        if not all(places):
            return False
        first, last = sorted((places[0][-1], places[1][-1]))
        return all(snapshot.keeps_files for snapshot in history[first + 1 : last + 1])

    @property
    def lake_is_outdated(self) -> bool:
        """Whether the lake may still hold rows from before the last truncation."""
        return self.truncation is not None and self.lake is None

    def live_segments(self) -> list[Segment]:
        """Return the segments of the log."""
        return [s for log in self.buckets.values() for s in log.segments]

    def kept_segments(self) -> list[Segment]:
        """Return the segments of the log and of KV snapshots."""
        return [*self.live_segments(), *(s for snapshot in self.snapshots.values() for s in snapshot.segments)]

    def oldest_inline_commit(self) -> int | None:
        """Return the oldest record with inline rows; None if all rows are in segment objects."""
        return min((s.commit for s in self.live_segments() if s.inline is not None), default=None)


def fold(state: TableState | None, record: Record) -> TableState:
    """Return the state after ``record``.

    Raises `CorruptDataError` for a record that cannot follow the state, for example after another attempt.
    """
    if state is None:
        state = _apply_create(record)
        parts: tuple[CommitAttempt, ...] = (CommitAttempt(record.attempt, record.actions[1:], record.transaction),)
    elif record.number != state.version + 1:
        raise CorruptDataError(f"record {record.number} cannot follow record {state.version} of {state.name}")
    else:
        state.anchors.require_followed_by(record.after, state.name, state.table_uuid)
        parts = record.attempts
    before = state
    for part in parts:
        state = with_attempt(state, part, record)
    remaining = [action for part in parts for action in part.actions]
    if any(isinstance(action, act.Replace | act.Trim | act.Truncate | act.KvSnapshot) for action in remaining):
        state = _condemn_unreferenced_objects(before, state, record)
    if record.manifest is not None:
        state = replace(state, manifests={**state.manifests, record.number: record.manifest})
    has_rows = act.moves_rows(remaining) or any(isinstance(action, PartitionDropRows) for action in remaining)
    anchors = state.anchors.with_point(HistoryPoint(record.number, record.attempt), has_rows=has_rows)
    changes = append_schema_change(
        state.schema_changes, before.schema_id, state.schema_id, record.number, record.time_ms
    )
    after = replace(state, version=record.number, time_ms=record.time_ms, anchors=anchors, schema_changes=changes)
    if "parsed" in before.__dict__ and _property_inputs(after) == _property_inputs(before):  # parsing is slow
        after.__dict__["parsed"] = before.parsed
    return after


def _property_inputs(state: TableState) -> tuple[object, ...]:
    return state.properties, state.schemas, state.schema_id, state.partition_by


def with_attempt(state: TableState, part: CommitAttempt, record: Record) -> TableState:
    """Return the state after one attempt of the ``record``, given the ``state`` after its earlier attempts.

    The version remains that of the record before.
    """
    before = state
    for action in part.actions:
        state = _apply(state, action, record)
    if part.transaction is None:
        return state
    ends = (before.ends, state.ends)
    if (key := part.transaction.request_key) is not None:
        fingerprint = part.transaction.batch.fingerprint if part.transaction.batch is not None else None
        entry = RequestEntry(fingerprint or "", record.number, record.time_ms, writers.written_ranges(ends))
        return replace(state, request_keys=state.request_keys.with_key(key, entry))
    entries = writers.with_entry(state.transactions, part.transaction, record.number, record.time_ms, ends)
    past = writers.without_past(state.past_transactions, (part.transaction.app_id,))
    return replace(state, transactions=entries, past_transactions=past)


def _apply_create(record: Record) -> TableState:
    create = record.actions[0] if record.actions else None
    if record.number != 1 or not isinstance(create, act.Create):
        raise CorruptDataError(f"record {record.number} of table {record.table_uuid} does not create a table")
    return TableState(
        table_uuid=record.table_uuid,
        version=0,
        name=create.name,
        created_ms=record.time_ms,
        time_ms=record.time_ms,
        schema_id=1,
        schemas={1: create.schema},
        partition_by=create.partition_by,
        num_buckets=create.num_buckets,
        properties=create.properties,
        lake_location=create.lake_location,
        former_uuids=create.former_uuids,
        buckets={bucket: BucketLog() for bucket in range(create.num_buckets)},
    )


def _apply(state: TableState, action: Action, record: Record) -> TableState:  # noqa: C901 - a case an action
    match action:
        case act.Append(segments):
            return replace(state, buckets=_apply_append(state, segments))
        case act.Replace():
            return _apply_compaction(state, action, record)
        case DeleteRows():
            return replace(state, deletions=_apply_delete(state, action, record))
        case act.Trim(starts):
            return _apply_trim(state, starts, record)
        case act.Truncate(offsets):
            return _apply_truncate(state, offsets, record)
        case act.TieredSnapshot():
            return _apply_tiered_snapshot(state, action)
        case PartitionDropRows():
            named = _append_deletion(state, state.dropped_rows.named, DeleteRows(action.rows), record)
            accounted = state.dropped_rows.accounted + action.count
            return replace(state, dropped_rows=DroppedPartitionRows(named, accounted, record.number))
        case act.ResetLake():
            return _apply_reset_lake(state, action, record)
        case act.SetProperties(changed, removed):
            remaining = {k: v for k, v in state.properties.items() if k not in removed}
            return replace(state, properties={**remaining, **changed})
        case act.SetSchema(schema_id, schema):
            return replace(state, schema_id=schema_id, schemas={**state.schemas, schema_id: schema})
        case SetPartitioning():
            before = former_partitioning(state.schema_id, state.partition_by, state.properties)
            changed = action.changes(state.schemas, state.schema, state.properties)
            return replace(state, former_partitionings=(*state.former_partitionings, before), **changed)
        case act.Rename(name):
            return replace(state, name=name, named=record.number)
        case act.MarkOrphans(keys, expiring):
            marked = _condemn(state, keys, record, orphan=True)
            return replace(state, condemned=marked, expiring=state.expiring if expiring is None else expiring)
        case act.ConfirmDeleted(keys):
            deleted_keys = set(keys)
            return replace(
                state,
                condemned={k: c for k, c in state.condemned.items() if k not in deleted_keys},
                manifests={
                    n: m for n, m in state.manifests.items() if manifest_key(state.table_uuid, m) not in deleted_keys
                },
            )
        case act.Drop(successor):
            return replace(state, dropped=True, successor=successor)
        case act.Undrop(name):
            if not state.dropped or state.buried:
                raise CorruptDataError(f"record {record.number} of {state.name} undrops a table that is not dropped")
            return replace(state, dropped=False, successor=None, name=name, named=record.number)
        case act.Tombstone():
            return replace(state, buried=True)
        case act.ForgetTransactions(app_ids):
            past = writers.without_past(state.past_transactions, app_ids)
            return replace(state, transactions=writers.without(state.transactions, app_ids), past_transactions=past)
        case act.ExpireTransactions(app_ids):
            past = writers.with_compacted(state.past_transactions, state.transactions, app_ids)
            return replace(state, transactions=writers.without(state.transactions, app_ids), past_transactions=past)
        case act.CommitConsumerOffset(consumer_id, offsets, history):
            other_consumers = {k: c for k, c in state.consumers.items() if k != consumer_id}
            moved = {} if offsets is None else {consumer_id: ConsumerPosition(offsets, record.time_ms, history)}
            return replace(state, consumers={**other_consumers, **moved})
        case act.KvSnapshot():
            return _apply_kv_snapshot(state, action, record)
        case act.Tag():
            until_ms = None if action.retain_ms is None else record.time_ms + action.retain_ms
            tagged = TaggedVersion(action.version, action.uuid, record.time_ms, action.lake_snapshot, until_ms)
            return replace(state, tags={**state.tags, action.name: tagged})
        case act.DropTag(names):
            freed = tuple(tag_key(state.table_uuid, state.tags[name].uuid) for name in names if name in state.tags)
            condemned = _condemn(state, freed, record, orphan=False)
            remaining_tags = {name: tag for name, tag in state.tags.items() if name not in names}
            return replace(state, tags=remaining_tags, condemned=condemned)
        case SetArchive(archive, removed_keys):
            return replace(state, archive=archive, condemned=_condemn(state, removed_keys, record, orphan=False))
        case act.Create():
            raise CorruptDataError(f"record {record.number} of {state.name} creates the table again")


def _apply_append(state: TableState, segments: tuple[Segment, ...]) -> dict[int, BucketLog]:
    buckets = dict(state.buckets)
    for segment in segments:
        log = buckets[segment.bucket]
        if segment.base_offset != log.end:
            raise CorruptDataError(
                f"record {segment.commit} of {state.name} adds offset {segment.base_offset} to bucket "
                f"{segment.bucket}, expected offset {log.end}",
            )
        buckets[segment.bucket] = BucketLog(log.start, segment.end_offset, (*log.segments, segment))
    return buckets


def _apply_compaction(state: TableState, action: act.Replace, record: Record) -> TableState:
    log = state.buckets[action.bucket]
    before = tuple(s for s in log.segments if s.end_offset <= action.start)
    inputs = tuple(s for s in log.segments if action.start <= s.base_offset and s.end_offset <= action.end)
    after = tuple(s for s in log.segments if s.base_offset >= action.end)
    if len(before) + len(inputs) + len(after) != len(log.segments) or not inputs:
        raise CorruptDataError(f"record {record.number} of {state.name} replaces segments that the log does not have")
    merged = BucketLog(log.start, log.end, (*before, *action.segments, *after))
    return replace(
        state,
        buckets={**state.buckets, action.bucket: merged},
        condemned=_condemn(state, _object_keys(state, inputs), record, orphan=False),
    )


def _apply_trim(state: TableState, starts: Mapping[int, int], record: Record) -> TableState:
    buckets = dict(state.buckets)
    removed: list[Segment] = []
    for bucket, start in starts.items():
        log = buckets[bucket]
        retained = tuple(s for s in log.segments if s.end_offset > start)
        removed.extend(s for s in log.segments if s.end_offset <= start)
        buckets[bucket] = BucketLog(max(log.start, start), log.end, retained)
    condemned = _condemn(state, _object_keys(state, tuple(removed)), record, orphan=False)
    deletions = state.deletions if state.recorded_lake is not None else _deletions_from(state.deletions, starts)
    dropped = replace(state.dropped_rows, named=_deletions_from(state.dropped_rows.named, starts))
    trimmed = replace(state, buckets=buckets, condemned=condemned, deletions=deletions, dropped_rows=dropped)
    return _drop_applied_deletes(trimmed)


def _apply_tiered_snapshot(state: TableState, snapshot: TieredSnapshot) -> TableState:
    tiered = with_latest_lake(replace(state, lake_history=(*state.lake_history, snapshot)[-LAKE_HISTORY_MAX:]))
    if not state.primary_key and state.begins_at(snapshot.starts):
        dropped, applied = count_newly_dropped(state.deletions, state.lake, snapshot)
        if 0 < dropped <= applied:  # otherwise a partition was dropped, and an action explains the rows
            accounted = state.dropped_rows.accounted + dropped
            tiered = replace(tiered, dropped_rows=replace(state.dropped_rows, accounted=accounted))
    return _drop_applied_deletes(tiered)


def count_newly_dropped(
    deletions: Sequence[Deletion], before: TieredSnapshot | None, after: TieredSnapshot
) -> tuple[int, int]:
    """Return how many more rows are missing from a lake snapshot than from the one before.

    Also returns how many deletes the snapshot newly applies: if these are fewer, a partition was dropped.
    """
    dropped_before, applied_through, offsets = (
        (before.dropped_rows, before.applied_through, before.offsets) if before is not None else (0, 0, {})
    )
    unapplied_before = unapplied_deletes(deletions, applied_through, offsets)
    unapplied = unapplied_deletes(deletions, after.applied_through, after.offsets)
    return after.dropped_rows - dropped_before, count_rows(unapplied_before) - count_rows(unapplied)


def _drop_applied_deletes(state: TableState) -> TableState:
    """Drop the deleted rows that neither the log nor the recorded lake snapshot holds."""
    if (lake := state.lake) is None or not state.deletions:
        return state
    held = {bucket: min(log.start, lake.offsets.get(bucket, 0)) for bucket, log in state.buckets.items()}
    return replace(state, deletions=_deletions_after_apply(state.deletions, lake.applied_through, held))


def _deletions_after_apply(deletions: Deletions, applied_through: int, held: Mapping[int, int]) -> Deletions:
    """Return the deletions after a lake snapshot applied those up to the record ``applied_through``.

    Applied deletes below ``held`` are dropped, because only the lake could have held the rows. So are all applied
    deletes of rows in lake files.
    """

    def after_apply(deletion: Deletion) -> Deletion:
        if deletion.commit > applied_through:
            return deletion
        rows = select_rows_from(deletion.rows, held)
        is_in_lake = deletion.is_in_lake or rows != deletion.rows or bool(deletion.files)
        return replace(deletion, rows=rows, is_in_lake=is_in_lake, files={}, snapshot_id=None)

    return Deletions(map(after_apply, deletions))


def _apply_delete(state: TableState, action: DeleteRows, record: Record) -> Deletions:
    if (place := _find_rows_not_live(state, action)) is not None:
        raise CorruptDataError(
            f"record {record.number} of {state.name} deletes rows of {place} that are not the table's"
        )
    return _append_deletion(state, state.deletions, action, record)


def _find_rows_not_live(state: TableState, action: DeleteRows) -> str | None:
    """Return a bucket or lake file of which the action deletes rows that are not live; None if all rows are live."""
    for bucket, runs in action.rows.items():
        log = state.buckets.get(bucket)
        is_held = log is not None and runs and runs.within(OffsetRange(state.first_offset(bucket), log.end)) == runs
        if not is_held or (bucket in state.deleted and state.deleted[bucket].common(runs)):
            return f"bucket {bucket}"
    lake_id = state.lake.snapshot_id if state.lake is not None else None
    deleted_file_rows = union_deleted_file_rows(state.deletions) if action.files else {}
    for name, runs in action.files.items():
        is_held = runs and state.has_same_lake_files(action.snapshot_id, lake_id)
        if not is_held or (name in deleted_file_rows and deleted_file_rows[name].common(runs)):
            return f"lake file {name}"
    return None


def _append_deletion(state: TableState, deletions: Deletions, action: DeleteRows, record: Record) -> Deletions:
    if not action.rows and not action.files:
        return deletions
    number, time_ms = record.number, record.time_ms
    deletion = Deletion(number, time_ms, dict(action.rows), number, time_ms)
    deletion = replace(deletion, files=dict(action.files), snapshot_id=action.snapshot_id)
    return deletions.with_rows(_merge_oldest_deletions(state, (*deletions, deletion)), action.rows)


def _merge_oldest_deletions(state: TableState, deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions in record order, about `DELETIONS_MAX` at most: the oldest are merged.

    No lake snapshot may have applied a part of a merged deletion, because its rows would count as deleted twice. So
    deletions are not merged across the last record that a recorded snapshot applied. Those after the latest snapshot,
    of which a round in progress may apply some, are merged only above `PENDING_DELETIONS_MAX`. Deletions of lake file
    rows stay separate, and so does the latest deletion, whose rows its writer counts.
    """
    applied = sorted(snapshot.applied_through for snapshot in state.lake_history)

    def can_merge(first: Deletion, second: Deletion) -> bool:
        if first.files or second.files or bisect_left(applied, first.commit) < bisect_left(applied, second.commit):
            return False
        is_applied = bool(applied) and second.commit <= applied[-1]
        return is_applied or not state.has_lake or len(ordered) > PENDING_DELETIONS_MAX

    ordered = sorted(deletions, key=lambda deletion: deletion.commit)
    while len(ordered) > DELETIONS_MAX:
        at = next((i for i, pair in enumerate(pairwise(ordered[:-1])) if can_merge(*pair)), None)
        if at is None:
            break
        first, second = ordered[at : at + 2]
        is_in_lake = first.is_in_lake or second.is_in_lake
        merged = replace(first, commit=second.commit, time_ms=second.time_ms, is_in_lake=is_in_lake)
        ordered[at : at + 2] = [replace(merged, rows=union_deleted_offsets((first, second)))]
    return Deletions(ordered)


def _deletions_from(deletions: Deletions, starts: Mapping[int, int]) -> Deletions:
    """Return the deletions of rows at or above ``starts``. Buckets without a start keep all rows."""
    left = (replace(deletion, rows=select_rows_from(deletion.rows, starts)) for deletion in deletions)
    return Deletions(deletion for deletion in left if deletion.rows or deletion.files or deletion.is_in_lake)


def _without_files(deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions without rows of lake files, for a table with another lake."""
    return Deletions(replace(d, files={}, snapshot_id=None, is_in_lake=True) if d.files else d for d in deletions)


def deletions_in_latest_lake(state: TableState) -> Deletions:
    """Return the deletions with their file rows as positions in the latest lake snapshot, which has the same files."""
    if (lake := state.lake) is None:
        return _without_files(state.deletions)
    return Deletions(replace(d, snapshot_id=lake.snapshot_id) if d.files else d for d in state.deletions)


def _apply_kv_snapshot(state: TableState, snapshot: KvSnapshot, record: Record) -> TableState:
    log = state.buckets[snapshot.bucket]
    if snapshot.begins != state.first_offset(snapshot.bucket) or not snapshot.begins <= snapshot.offset <= log.end:
        raise CorruptDataError(
            f"record {record.number} of {state.name} has a KV snapshot of the changes [{snapshot.begins}, "
            f"{snapshot.offset}) of bucket {snapshot.bucket}, which has the changes "
            f"[{state.first_offset(snapshot.bucket)}, {log.end})"
        )
    before = state.snapshots.get(snapshot.bucket)
    replaced_keys = _object_keys(state, before.segments) if before is not None else ()
    marked = _condemn(state, replaced_keys, record, orphan=False)
    return replace(state, snapshots={**state.snapshots, snapshot.bucket: snapshot}, condemned=marked)


def _apply_truncate(state: TableState, offsets: Mapping[int, int], record: Record) -> TableState:
    skipped = {bucket: end + 1 for bucket, end in state.ends.items()} if state.has_adopted_rows_alone else state.ends
    if offsets not in (state.ends, skipped):
        raise CorruptDataError(
            f"record {record.number} of {state.name} truncates the table at offsets {dict(offsets)}, expected its ends "
            f"{state.ends}",
        )
    if state.begins_at(offsets):
        return state  # the table has no rows, so readers need not restart
    segments = tuple(state.kept_segments())
    emptied = replace(
        state,
        buckets={bucket: BucketLog(offsets[bucket], offsets[bucket]) for bucket in state.buckets},
        condemned=_condemn(state, _object_keys(state, segments), record, orphan=False),
        truncation=Truncation(record.number, record.time_ms, dict(offsets)),
        deletions=NO_DELETIONS,
        dropped_rows=NO_DROPPED_ROWS,
        snapshots={},
        archive=NO_ARCHIVE,
    )
    return with_latest_lake(emptied)


def with_latest_lake(state: TableState) -> TableState:
    """Set `TableState.lake` to the latest recorded lake snapshot, unless it holds rows from before a truncation."""
    return replace(state, lake=next((p for p in reversed(state.lake_history) if state.begins_at(p.starts)), None))


def _apply_reset_lake(state: TableState, action: act.ResetLake, record: Record) -> TableState:
    former = (*state.former_lakes, state.lake_location)
    moved = replace(state, lake_location=action.lake_location, lake_history=(), former_lakes=former)
    moved = replace(moved, archive=NO_ARCHIVE if action.starts else state.archive, expiring=frozenset())
    if state.dropped_rows.named and state.parsed.datalake_format == "iceberg":  # otherwise the record deletes them
        deletions = _merge_oldest_deletions(moved, (*state.deletions, *state.dropped_rows.named))
        moved = replace(moved, deletions=deletions)
    moved = replace(moved, dropped_rows=NO_DROPPED_ROWS, deletions=_without_files(moved.deletions))
    if action.starts:
        begins = {bucket: action.starts.get(bucket, state.first_offset(bucket)) for bucket in state.buckets}
        deletions = _deletions_from(moved.deletions, begins)
        moved = replace(moved, truncation=Truncation(record.number, record.time_ms, begins), deletions=deletions)
    return with_latest_lake(moved)


def _object_keys(state: TableState, segments: tuple[Segment, ...]) -> tuple[str, ...]:
    """Return the keys of the objects of these segments, without shared objects."""
    return tuple(segment_key(state.table_uuid, s.uuid) for s in segments if s.uuid is not None and s.part is None)


def _condemn_unreferenced_objects(before: TableState, state: TableState, record: Record) -> TableState:
    """Condemn the shared objects of which the record removed the last segment."""
    unreferenced: set[str] = set()
    for bucket, log in before.buckets.items():
        if state.buckets[bucket] is not log:
            unreferenced |= shared_uuids(log.segments) - shared_uuids(state.buckets[bucket].segments)
    for bucket, snapshot in before.snapshots.items():
        if state.snapshots.get(bucket) is not snapshot:
            unreferenced |= shared_uuids(snapshot.segments)
    if not unreferenced:
        return state
    keys = tuple(
        segment_key(state.table_uuid, uuid) for uuid in sorted(unreferenced - shared_uuids(state.kept_segments()))
    )
    return replace(state, condemned=_condemn(state, keys, record, orphan=False))


def _condemn(state: TableState, keys: tuple[str, ...], record: Record, *, orphan: bool) -> dict[str, TombstonedFile]:
    entry = TombstonedFile(record.number, record.time_ms, orphan)
    return {**state.condemned, **{key: entry for key in keys if key not in state.condemned}}
