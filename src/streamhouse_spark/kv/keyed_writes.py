"""Writing by key: upserts and deletes become changes against the rows that are there, and those become log.

**Commit point:** the one record that adds the changes of all buckets. A bucket's changes are right only at the offset
that its rows were read at, so the record adds them only where the bucket still ends there; where another writer was
faster, the changes of that bucket are worked out again, within the commit's own attempt. An operation that read the
table (`ReadBase`) is not worked out again: each attempt refuses it where any bucket moved since. Tablets follow the
log: nothing is applied before it is committed, and a crash between the two is repaired by the next replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streamhouse_spark.clock import World
from streamhouse_spark.errors import CommitConflictError, StreamhouseError
from streamhouse_spark.keys.key_codec import stored_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.changes import Changes, changes_of
from streamhouse_spark.kv.environment import DamagedError
from streamhouse_spark.kv.merge import MergeEngine
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.kv.replay import KeyedLayout, catch_up
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.actions import Action, Append
from streamhouse_spark.log.commit_log import CommitLog, Committed, Plan
from streamhouse_spark.log.segment_writer import SegmentShape, StagedSegment, stage_inline, stage_object
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, truncating
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.storage import Storage

TRIES_MAX: Final = 100

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyedWriter:
    """Writes to one table with a primary key, by one of its schemas."""

    log: CommitLog
    storage: Storage
    world: World
    shape: SegmentShape
    layout: KeyedLayout
    engine: MergeEngine
    tablet_of: Callable[[int], Tablet]
    """The tablet of a bucket on this host."""
    before_images: bool = True

    def write(
        self,
        batches: Mapping[int, KeyedBatch],
        *,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        read: ReadBase | None = None,
    ) -> tuple[BucketOffsets, TableState]:
        """Commit what the batches of some buckets change; the offsets of the changes, none where nothing changes.

        With ``overwrite`` the same record first empties the table, so that the rows that the batches make of nothing
        are all there are. With ``read`` nothing is committed unless the table is, when it is committed, what was read.
        Durable and visible to everybody when this returns. With a transaction that is already stored nothing is
        changed, and the offsets of its first commit are returned.

        Raises:
            CommitConflictError: the table's schema changed meanwhile, its rows are not those that were read, or too
                many races were lost; nothing was written.
            CommitStateUnknownError, StorageError, TransactionConflictError, TableNotFoundError: as `CommitLog.commit`.
        """
        staged: dict[int, _Staged] = {}

        def plan(state: TableState, time_ms: int) -> Sequence[Action]:
            if read is not None:
                read.require(state)
            if state.schema_id != self.layout.schema_id:
                raise CommitConflictError(
                    f"{state.name}: its columns were altered while rows were written; nothing was written, write again",
                )
            emptying = truncating(state) if overwrite else ()
            for bucket, batch in batches.items():
                end = state.buckets[bucket].end
                at = (end if emptying else state.first_offset(bucket), end)
                if bucket not in staged or staged[bucket].at != at:
                    staged[bucket] = self._staged(bucket, batch, state, begins=at[0])
            return (*emptying, *self._actions(staged, state, time_ms, transaction))

        committed = self._committed(plan, transaction)
        if committed.replay_of is not None:
            return BucketOffsets(committed.replay_of.offsets), committed.state
        self._apply(staged)
        found = {bucket: s.offsets for bucket, s in staged.items()}
        return BucketOffsets({bucket: offsets for bucket, offsets in sorted(found.items()) if offsets}), committed.state

    def _committed(self, plan: Plan, transaction: Transaction | None) -> Committed:
        for _ in range(TRIES_MAX):
            try:
                return self.log.commit(plan, transaction=transaction)
            except _TabletAheadError:
                self.log.refresh()
        raise CommitConflictError(
            f"{self.log.state.name}: other processes of this host were ahead {TRIES_MAX} times in a row; nothing was "
            "written, write again",
        )

    def _staged(self, bucket: int, batch: KeyedBatch, state: TableState, *, begins: int) -> _Staged:
        """What the batch changes at the end of the bucket as this state has it, or leaves it where it begins anew."""
        base = state.buckets[bucket].end
        values = [None] * len(batch) if begins == base else self._values(bucket, batch, state)
        changes = changes_of(batch, self.engine, self.layout.values, values, before_images=self.before_images)
        return _Staged((begins, base), changes, self._segment(bucket, changes, state) if len(changes) else None)

    def _values(self, bucket: int, batch: KeyedBatch, state: TableState) -> list[bytes | None]:
        tablet = self.tablet_of(bucket)
        catch_up(tablet, self.layout, self.storage, state, bucket)
        found = tablet.find(stored_keys(batch.keys))
        if (found.begins, found.applied) != (state.first_offset(bucket), state.buckets[bucket].end):
            raise _TabletAheadError
        return found.values

    def _segment(self, bucket: int, changes: Changes, state: TableState) -> StagedSegment:
        schema = state.written_schema(self.layout.schema_id).arrow
        rows = pa.Table.from_arrays([pa.array(changes.types), *changes.columns], schema=schema)
        if rows.nbytes <= INLINE_BYTES_MAX // state.num_buckets:
            return stage_inline(rows, bucket, self.shape)
        return stage_object(self.storage, state.table_uuid, self.world.ids.new_uuid(), rows, bucket, self.shape)

    def _actions(
        self, staged: Mapping[int, _Staged], state: TableState, time_ms: int, transaction: Transaction | None
    ) -> Sequence[Action]:
        added = [(s.offsets.start, s.segment) for s in staged.values() if s.segment is not None]
        if not added and transaction is None:
            return ()
        segments = tuple(s.segment.placed(base, state.version + 1, time_ms) for base, s in added)
        return (Append(segments, tuple(s.inline_rows for _, s in added)),)

    def _apply(self, staged: Mapping[int, _Staged]) -> None:
        """The rows are stored: a local disk that fails now must not look like a failure of the write."""
        for bucket, s in staged.items():
            try:
                if s.at[0] == s.at[1]:
                    self.tablet_of(bucket).truncate(s.at[0])
                self.tablet_of(bucket).apply(s.changes.values, s.offsets.start, s.offsets.end)
            except (StreamhouseError, DamagedError) as error:
                logger.warning("bucket %d was not applied locally, the next use replays the log: %s", bucket, error)


class _TabletAheadError(Exception):
    """Another process applied changes that are newer than the state being planned on."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """Changes of a bucket, and their segment where there are any."""

    at: tuple[int, int]
    """Where the bucket began and ended when they were right."""
    changes: Changes
    segment: StagedSegment | None

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.at[1], self.at[1] + len(self.changes))
