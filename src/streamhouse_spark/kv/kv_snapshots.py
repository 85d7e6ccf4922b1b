"""KV snapshots on shared storage: new hosts start from them, and the log can be trimmed up to them.

A snapshot has the rows of a bucket at one offset, as segments in key order. **Commit point:** the record that names the
snapshots of all buckets of a call. Before it, their files are orphans.

The rows of an adopted lake table also become a snapshot. The snapshot follows one change, the insert of the first row,
and the same record trims this change. The bucket is then like any bucket with a trimmed log: tablets and streams start
from the snapshot, and the bucket can be truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, count_of
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.kv.lmdb.environment import DamagedError
from streamhouse_spark.kv.log_replay import KeyedLayout, belongs_to_table, catch_up
from streamhouse_spark.kv.row_codec import UnknownSchemaError
from streamhouse_spark.kv.tablet import Tablet, TabletState
from streamhouse_spark.log.actions import Action, Append, KvSnapshot, Trim
from streamhouse_spark.log.append_commit import is_retained
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_inline, stage_object
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import AutoPartition
from streamhouse_spark.storage.base import Storage

CHANGES_MIN: Final = 1 << 20
"""A new snapshot is due after this many changes, or as many as the last snapshot has rows if these are more."""
SEGMENT_BYTES: Final = 64 << 20
TRIES_MAX: Final = 3


def find_buckets_due_for_snapshot(
    state: TableState, now_ms: int, ttl_ms: int, *, lake_enabled: bool, auto_partition: AutoPartition | None = None
) -> list[int]:
    """Return the buckets that need a new snapshot, to shorten the replay of new hosts or to trim the log."""
    snapshot_offsets = {bucket: s.offset for bucket, s in state.snapshots.items()}
    # Offsets up to which the log could be trimmed if every bucket had a snapshot at its end.
    newest = {b: KvSnapshot(b, state.first_offset(b), log.end, ()) for b, log in state.buckets.items()}
    trimmed = plan_trim(
        replace(state, snapshots=newest), now_ms, ttl_ms, lake_enabled=lake_enabled, auto_partition=auto_partition
    )
    due = []
    for bucket, log in state.buckets.items():
        offset = snapshot_offsets.get(bucket, state.first_offset(bucket))
        num_rows = state.snapshots[bucket].num_rows if bucket in state.snapshots else 0
        if log.end - offset >= max(CHANGES_MIN, num_rows) or trimmed.get(bucket, 0) > offset:
            due.append(bucket)
    return due


def write_snapshots(
    log: CommitLog,
    storage: Storage,
    world: World,
    options: SegmentOptions,
    buckets: Sequence[int],
    tablet_of: Callable[[int], Tablet],
) -> int:
    """Write snapshots of the current rows of ``buckets``. Return the number of published snapshots.

    Safe to repeat and to run concurrently: a snapshot never replaces a later snapshot. Raises `CommitConflictError` if
    columns are altered repeatedly; then nothing was published.
    """
    if not buckets:
        return 0
    began_ms = storage.now_ms()
    written = _write_snapshots(log, storage, world, options, buckets, tablet_of)

    def plan(current: TableState, time_ms: int) -> Sequence[Action]:
        return [
            snapshot
            for snapshot in written
            if _is_newer(current, snapshot)
            and is_retained(current, (s.uuid for s in snapshot.segments), began_ms, time_ms)
        ]

    committed = log.commit(plan, staged_ms=began_ms)
    return sum(committed.state.snapshots.get(s.bucket) == s for s in written)


def _write_snapshots(
    log: CommitLog,
    storage: Storage,
    world: World,
    options: SegmentOptions,
    buckets: Sequence[int],
    tablet_of: Callable[[int], Tablet],
) -> list[KvSnapshot]:
    """Write the rows of the latest state to files. Retries if another process applied rows of a newer schema."""
    for _ in range(TRIES_MAX):
        state = log.refresh()
        newest = options.of_schema(state.schema_id, state.schemas)
        source = _SnapshotWriter(state, storage, world, newest, KeyedLayout.of(state))
        try:
            return [source.write_snapshot(bucket, tablet_of(bucket)) for bucket in buckets]
        except UnknownSchemaError:
            continue
    raise CommitConflictError(
        f"{state.name}: columns were altered in all {TRIES_MAX} attempts to write KV snapshots; nothing was "
        "published, run maintenance again"
    )


def _is_newer(state: TableState, snapshot: KvSnapshot) -> bool:
    current = state.snapshots.get(snapshot.bucket)
    is_newer = current is None or current.offset < snapshot.offset
    bucket = snapshot.bucket
    of_table = state.first_offset(bucket) == snapshot.begins < snapshot.offset <= state.buckets[bucket].end
    return is_newer and of_table


@dataclass(frozen=True, slots=True)
class _SnapshotWriter:
    """The state, storage and clock of the snapshots of one call."""

    state: TableState
    storage: Storage
    world: World
    options: SegmentOptions
    layout: KeyedLayout

    def write_snapshot(self, bucket: int, tablet: Tablet) -> KvSnapshot:
        """Write the bucket's rows to durable segments that no record names yet."""
        state = self.state
        for _ in range(TRIES_MAX):
            catch_up(tablet, self.layout, self.storage, state, bucket)
            snapshot, extent = self._write_segments(bucket, tablet)
            if extent.applied >= state.buckets[bucket].end and belongs_to_table(tablet, extent, self.storage, state):
                return snapshot
        raise DamagedError(
            f"the tablet of bucket {bucket} of {state.name} was found damaged {TRIES_MAX} times in a row; check the "
            "disk of this host's cache, then run maintenance again"
        )

    def _write_segments(self, bucket: int, tablet: Tablet) -> tuple[KvSnapshot, TabletState]:
        state, values = self.state, self.layout.values
        segments: list[Segment] = []
        waiting: list[pa.RecordBatch] = []

        def flush() -> None:
            rows = pa.Table.from_batches(waiting)
            waiting.clear()
            uuid = self.world.ids.new_uuid()
            staged = stage_object(self.storage, state.table_uuid, uuid, rows, bucket, self.options)
            first = segments[-1].end_offset if segments else 0
            segments.append(staged.segment.placed(first, state.version, state.time_ms))

        def take(items: list[tuple[bytes, bytes]]) -> None:
            columns, _ = values.unpack_all([value for _, value in items])
            waiting.extend(pa.Table.from_arrays(columns, schema=values.schema.arrow).to_batches())
            if sum(batch.nbytes for batch in waiting) >= SEGMENT_BYTES:
                flush()

        extent = tablet.scan(take)
        if waiting:
            flush()
        return KvSnapshot(bucket, extent.begins, extent.applied, tuple(segments)), extent


@dataclass(frozen=True, slots=True)
class BucketBootstrap:
    """The staged rows of a bucket, which no record names yet."""

    bucket: int
    first: StagedSegment
    """The insert of the first row."""
    rows: tuple[Segment, ...]


def stage_snapshot_rows(
    storage: Storage, world: World, state: TableState, options: SegmentOptions, bucket: int, rows: pa.Table
) -> BucketBootstrap:
    """Sort the bucket's rows by key in memory, and write them.

    Raises `LakeMismatchError` for a null or duplicate key.
    """
    ordered = _sort_by_key(state, rows)
    change = pa.array([int(ChangeType.INSERT)], pa.int8())
    inserted = pa.Table.from_arrays(
        [change, *ordered.slice(0, 1).columns], schema=state.written_schema(state.schema_id).arrow
    )
    segments: list[Segment] = []
    for part in arrow_rows.slice_by_size(ordered, SEGMENT_BYTES):
        staged = stage_object(storage, state.table_uuid, world.ids.new_uuid(), part, bucket, options)
        first = segments[-1].end_offset if segments else 0
        segments.append(staged.segment.placed(first, state.version, state.time_ms))
    return BucketBootstrap(bucket, stage_inline(inserted, bucket, options), tuple(segments))


def make_adopt_action(state: TableState, time_ms: int, adopted: list[BucketBootstrap]) -> tuple[Action, ...]:
    """Return the actions that add the rows to a table without changes. Each bucket then ends at offset 1."""
    placed = tuple(bucket_rows.first.segment.placed(0, state.version + 1, time_ms) for bucket_rows in adopted)
    return (
        Append(placed, tuple(bucket_rows.first.inline_rows for bucket_rows in adopted)),
        *(KvSnapshot(bucket_rows.bucket, 0, 1, bucket_rows.rows) for bucket_rows in adopted),
        Trim({bucket_rows.bucket: 1 for bucket_rows in adopted}),
    )


def _sort_by_key(state: TableState, rows: pa.Table) -> pa.Table:
    columns = [arrow_rows.combine_chunks(rows.column(state.schema.names.index(name))) for name in state.primary_key]
    names = ", ".join(state.primary_key)
    if any(column.null_count for column in columns):
        raise LakeMismatchError(
            f"cannot create {state.name}: rows have a null in the primary key ({names}); choose another key"
        )
    keys = encode_keys(columns)
    order = pc.sort_indices(keys)
    ordered = keys.take(order)
    doubled = pc.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
    if (num_doubled := pc.sum(doubled).as_py() or 0) > 0:
        place = order[pc.index(doubled, value=True).as_py()].as_py()
        example = {name: to_python(column[place]) for name, column in zip(state.primary_key, columns, strict=True)}
        raise LakeMismatchError(
            f"cannot create {state.name}: {count_of(num_doubled, 'row')} of a bucket have the primary key ({names}) of "
            f"another row, for example {example}; delete the duplicates, or choose another key"
        )
    return arrow_rows.take_rows(rows, order.to_numpy().astype(np.int64), distinct=True)
