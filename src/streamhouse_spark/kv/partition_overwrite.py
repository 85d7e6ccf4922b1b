"""Replaces or deletes all rows of some partitions of a primary-key table, through the changelog.

**Commit point:** the one record with the changes of all buckets. The changes of a bucket cover the rows up to its end.
The record adds them only if the bucket still ends there; otherwise the bucket is scanned again. No earlier row of the
partitions remains, also no row of a concurrent writer.

An overwrite deletes the bucket's rows in the partitions and writes the new rows in one batch. A key therefore has at
most one net change, and an unchanged row has no change. A delete reads the rows from this host's tablets in steps, and
stages their deletions as segments. It holds at most one segment in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError
from streamhouse_spark.expressions.partition_filter import OverwriteFilterFactory, PartitionMatches
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.change_staging import (
    BucketPosition,
    ChangeStager,
    StagedChanges,
    StaleStateError,
    WriteOverlay,
    bucket_position,
    may_have_rows,
)
from streamhouse_spark.kv.lmdb.environment import DamagedError
from streamhouse_spark.kv.log_replay import KeyedLayout, belongs_to_table, catch_up
from streamhouse_spark.kv.row_codec import UnknownSchemaError
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.actions import Action, Append
from streamhouse_spark.log.append_commit import is_retained
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_inline, stage_object
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, inline_bytes_per_bucket
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

DAMAGED_MAX: Final = 3
SEGMENT_BYTES: Final = 64 << 20
TRIES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class PartitionOverwriteStager(ChangeStager):
    """Computes and stages the changes by which batches replace the selected rows of their buckets.

    Every bucket needs a batch, which may be empty.
    """

    choose: OverwriteFilterFactory = field(kw_only=True)
    """Selects rows by partition columns."""
    partition_by: tuple[str, ...] = field(kw_only=True)

    @property
    def reads_whole_buckets(self) -> bool:
        return True

    def stage(
        self,
        batches: Mapping[int, KeyedBatch],
        places: Mapping[int, BucketPosition],
        state: TableState,
        overlay: WriteOverlay | None = None,
    ) -> dict[int, StagedChanges]:
        staged: dict[int, StagedChanges] = {}
        for bucket, at in places.items():  # sequentially: the rows of a bucket are held in memory
            batch = self._with_deletions(bucket, batches[bucket], state, at)
            staged |= ChangeStager.stage(self, {bucket: batch}, {bucket: at}, state, overlay)
        return staged

    def _with_deletions(self, bucket: int, batch: KeyedBatch, state: TableState, at: BucketPosition) -> KeyedBatch:
        """Return the batch after deletions of all selected rows that the bucket has at a position."""
        if not may_have_rows(at):
            return batch
        scan = _scan_bucket(self.tablet_of(bucket), self.layout, self.storage, state, bucket, lambda: _KeyScan(self))
        rows = scan.rows()
        if not rows.num_rows:
            return batch
        columns: list[arrow_rows.Column] = [
            arrow_rows.combine_if_small(arrow_rows.concat_columns((old, new), new.type))
            for old, new in zip(rows.columns, batch.columns, strict=True)
        ]
        deleted = np.concatenate([np.ones(rows.num_rows, np.bool_), batch.deleted])
        return KeyedBatch.of(self.layout.keys(columns), columns, deleted)


class _KeyScan:
    """Collects the keys of the selected rows of a bucket, step by step."""

    def __init__(self, stager: PartitionOverwriteStager) -> None:
        self._stager = stager
        self._schema = stager.layout.values.schema
        self._deciding = [self._schema.column(name) for name in stager.partition_by]
        self._key = [self._schema.columns[place] for place in stager.layout.key_indexes]
        self._keys: list[pa.Table] = []

    def take(self, items: list[tuple[bytes, bytes]]) -> None:
        stored, values = [value for _, value in items], self._stager.layout.values
        partitions, _ = values.unpack_all(stored, self._deciding)
        mask = self._stager.choose(self._schema).mask(pa.table(partitions, names=[c.name for c in self._deciding]))
        chosen = np.flatnonzero(mask)
        if len(chosen):
            keys, _ = values.unpack_all([stored[place] for place in chosen.tolist()], self._key)
            self._keys.append(pa.table(keys, names=[column.name for column in self._key]))

    def rows(self) -> pa.Table:
        """Return the selected rows with nulls in all columns but the key. A deletion needs only the key."""
        empty = pa.schema([(column.name, column.type) for column in self._key]).empty_table()
        keys = pa.concat_tables([empty, *self._keys])
        key_names = set(keys.column_names)
        columns = [
            keys.column(c.name) if c.name in key_names else pa.chunked_array([pa.nulls(keys.num_rows, c.type)])
            for c in self._schema.columns
        ]
        return pa.Table.from_arrays(columns, names=list(self._schema.names))


@dataclass(frozen=True, slots=True)
class _Deletions:
    """The staged deletions of a bucket. They are valid while the bucket is at this position."""

    at: BucketPosition
    segments: tuple[StagedSegment, ...]
    staged_ms: int
    """Store time when staging began."""

    @property
    def num_rows(self) -> int:
        return sum(staged.segment.num_rows for staged in self.segments)

    def is_valid(self, state: TableState, bucket: int, time_ms: int) -> bool:
        """Return whether a record at ``time_ms`` may add the deletions; False if maintenance may have deleted them."""
        uuids = [staged.segment.uuid for staged in self.segments]
        return self.at == bucket_position(state, bucket) and is_retained(state, uuids, self.staged_ms, time_ms)


@dataclass(frozen=True, slots=True)
class PartitionDeletion:
    """Deletes the rows of some partitions of one table."""

    log: CommitLog
    storage: Storage
    world: World
    options: Callable[[TableState], SegmentOptions]
    """Returns the segment options for a state."""
    tablet_of: Callable[[int], Tablet]
    """Returns this host's tablet of a bucket."""
    partitions: PartitionMatches

    def run(self) -> int:
        """Delete the rows, durably and atomically, and return their number.

        Raises `CommitConflictError` if other writers commit faster than the rows can be scanned; then nothing was
        deleted. Also raises the errors of `CommitLog.commit`.
        """
        staged: dict[int, _Deletions] = {}
        staged_schema_id: int | None = None

        def stage(state: TableState, time_ms: int) -> None:
            nonlocal staged_schema_id
            if state.dropped:
                raise TableNotFoundError(f"table {state.name} ({state.table_uuid}) was dropped; nothing was deleted")
            if staged_schema_id != state.schema_id:
                staged.clear()
                staged_schema_id = state.schema_id
            layout = KeyedLayout.of(state)
            for bucket in state.buckets:
                if bucket not in staged or not staged[bucket].is_valid(state, bucket, time_ms):
                    staged[bucket] = self._stage_deletions(state, layout, bucket)

        def plan(state: TableState, time_ms: int) -> Sequence[Action]:
            stage(state, time_ms)
            return _make_append_actions(staged, state, time_ms)

        for _ in range(TRIES_MAX):
            try:
                # Before the commit attempt, for which other threads wait. The attempt rescans only buckets that moved.
                stage(self.log.refresh(), self.storage.now_ms())
                self.log.commit(
                    plan, staged_ms=min((deletions.staged_ms for deletions in staged.values()), default=None)
                )
            except (StaleStateError, UnknownSchemaError):
                continue
            return sum(deletions.num_rows for deletions in staged.values())
        raise CommitConflictError(
            f"{self.log.state.name}: lost {TRIES_MAX} races in a row against other processes of this host; nothing "
            "was deleted, drop the partition again"
        )

    def _stage_deletions(self, state: TableState, layout: KeyedLayout, bucket: int) -> _Deletions:
        """Stage the deletions of all rows of the partitions in the bucket at its end in ``state``."""
        at, staged_ms = bucket_position(state, bucket), self.storage.now_ms()
        if at[0] == at[1]:
            return _Deletions(at, (), staged_ms)
        scan = _scan_bucket(
            self.tablet_of(bucket),
            layout,
            self.storage,
            state,
            bucket,
            lambda: _DeletionScan(self, state, layout, bucket),
        )
        return _Deletions(at, scan.finish_staging(), staged_ms)


class _DeletionScan:
    """Scans a bucket's rows in steps and stages the deletions of the selected rows."""

    def __init__(self, delete: PartitionDeletion, state: TableState, layout: KeyedLayout, bucket: int) -> None:
        self._delete = delete
        self._state = state
        self._layout = layout
        self._bucket = bucket
        self._options = delete.options(state)
        self._schema = state.written_schema(layout.schema_id).arrow
        self._deciding = [state.schema.column(name) for name in delete.partitions.columns]
        self._waiting: list[pa.RecordBatch] = []
        self._staged: list[StagedSegment] = []

    def take(self, items: list[tuple[bytes, bytes]]) -> None:
        stored = [value for _, value in items]
        partitions, _ = self._layout.values.unpack_all(stored, self._deciding)
        names = [column.name for column in self._deciding]
        chosen = np.flatnonzero(self._delete.partitions.mask(pa.table(partitions, names=names)))
        if not len(chosen):
            return
        columns, _ = self._layout.values.unpack_all([stored[place] for place in chosen.tolist()])
        types = pa.array(np.full(len(chosen), ChangeType.DELETE, np.int8))
        self._waiting.extend(pa.Table.from_arrays([types, *columns], schema=self._schema).to_batches())
        if sum(batch.nbytes for batch in self._waiting) >= SEGMENT_BYTES:
            self._stage()

    def finish_staging(self) -> tuple[StagedSegment, ...]:
        """Return the staged deletions. A few deletions are inline in the record."""
        size_bytes = sum(batch.nbytes for batch in self._waiting)
        share_bytes = inline_bytes_per_bucket(INLINE_BYTES_MAX, self._state.num_buckets)
        if self._waiting and not self._staged and size_bytes <= share_bytes:
            return (stage_inline(pa.Table.from_batches(self._waiting), self._bucket, self._options),)
        if self._waiting:
            self._stage()
        return tuple(self._staged)

    def _stage(self) -> None:
        rows, uuid = pa.Table.from_batches(self._waiting), self._delete.world.ids.new_uuid()
        self._waiting.clear()
        storage, table_uuid = self._delete.storage, self._state.table_uuid
        self._staged.append(stage_object(storage, table_uuid, uuid, rows, self._bucket, self._options))


class _Scan(Protocol):
    def take(self, items: list[tuple[bytes, bytes]]) -> None:
        """Process some keys and values of the bucket."""


_AnyScan = TypeVar("_AnyScan", bound=_Scan)


def _scan_bucket(
    tablet: Tablet,
    layout: KeyedLayout,
    storage: Storage,
    state: TableState,
    bucket: int,
    new_scan: Callable[[], _AnyScan],
) -> _AnyScan:
    """Return a scan of all rows that the bucket has at its end in ``state``.

    Raises `StaleStateError` if another process of this host applied later changes to the tablet.
    """
    at = bucket_position(state, bucket)
    for _ in range(DAMAGED_MAX):
        catch_up(tablet, layout, storage, state, bucket)
        scan = new_scan()
        extent = tablet.scan(scan.take)
        is_of_table = belongs_to_table(tablet, extent, storage, state)
        if extent[:2] == at and is_of_table:
            return scan
        if extent.applied > at[1] and is_of_table:
            raise StaleStateError
    raise DamagedError(
        f"the tablet of bucket {bucket} of {state.name} was found damaged {DAMAGED_MAX} times in a row; nothing "
        "was changed, check the disk of this host's cache, then retry"
    )


def _make_append_actions(staged: dict[int, _Deletions], state: TableState, time_ms: int) -> Sequence[Action]:
    segments, inline = [], []
    for deletions in staged.values():
        end = deletions.at[1]
        for deletion in deletions.segments:
            placed = deletion.segment.placed(end, state.version + 1, time_ms)
            segments.append(replace(placed, rewrites=True))  # the table was read to select the deleted rows
            inline.append(deletion.inline_rows)
            end += deletion.segment.num_rows
    return (Append(tuple(segments), tuple(inline)),) if segments else ()
