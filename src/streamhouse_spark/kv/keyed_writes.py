"""Writing by key: upserts and deletes become changes against the rows that are there, and those become log.

**Commit point:** the one record that adds the changes of all buckets. A bucket's changes are right only at the offset
that its rows were read at, so the record adds them only where the bucket still ends there; where another writer was
faster, the changes of that bucket are worked out again, within the commit's own attempt. Changes that other processes
prepared (tasks of Spark, say) are added on the same condition, and worked out again here where it does not hold. Those
of an operation that read the table (`ReadBase`) are judged by each attempt, see `streamhouse_spark.kv.rebase`: where no
row changed that they depend on, they are right behind what was committed since, as they are; else it is a conflict.
Tablets follow the log: nothing is applied before it is committed, and a crash between the two is repaired by the next
replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeGuard

from streamhouse_spark.aftermath import after_commit
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.kv.rebase import Rebase
from streamhouse_spark.kv.staged_changes import (
    ChangeStager,
    Place,
    PreparedChanges,
    StagedChanges,
    TabletAheadError,
)
from streamhouse_spark.kv.tablet_history import belongs, history_of
from streamhouse_spark.log.actions import Action, Append
from streamhouse_spark.log.commit_log import CommitLog, Committed, Plan
from streamhouse_spark.log.staging import ends_after, truncating
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import BucketOffsets, Transaction

TRIES_MAX: Final = 100

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyedWriter:
    """Writes to one table with a primary key, by one of its schemas."""

    log: CommitLog
    stager: ChangeStager

    def write(
        self,
        batches: Mapping[int, KeyedBatch],
        *,
        prepared: Mapping[int, PreparedChanges] | None = None,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        read: ReadBase | None = None,
    ) -> tuple[BucketOffsets, TableState]:
        """Commit what the batches of some buckets change; the offsets of the changes, none where nothing changes.

        ``prepared`` has changes of buckets, which are exactly those that their batch makes at one place, by this
        writer's schema and properties. Where they fit, neither the bucket's batch is asked for, so ``batches`` may make
        what it is asked for, nor is the bucket's tablet on this host.

        With ``overwrite`` the same record first empties the table, so that the rows that the batches make of nothing
        are all there are. With ``read`` nothing is committed where a row changed that the operation depends on.
        Durable and visible to everybody when this returns. With a transaction that is already stored nothing is
        changed, and the offsets of its first commit are returned.

        Raises:
            CommitConflictError: the table's schema changed meanwhile, rows that were read or are written were changed
                by others, or too many races were lost; nothing was written.
            CommitStateUnknownError, StorageError, TransactionConflictError, TableNotFoundError: as `CommitLog.commit`.
        """
        staged: dict[int, StagedChanges] = {}
        ready = prepared or {}
        rebase = None if read is None else self._rebase(read, batches)

        def plan(state: TableState, time_ms: int) -> Sequence[Action]:
            if state.dropped:  # also where nothing would change
                raise TableNotFoundError(f"table {state.name} ({state.table_uuid}) was dropped; nothing was written")
            if state.schema_id != self.stager.layout.schema_id:
                raise CommitConflictError(
                    f"{state.name}: its columns were altered while rows were written; nothing was written, write again",
                )
            if rebase is not None:
                rebase.judge(state, batches)
            emptying = truncating(state) if overwrite else ()
            ends, moved = ends_after(state, emptying), {}
            for bucket in batches:
                begins, end = state.first_offset(bucket), ends[bucket]
                at = (end if emptying else begins, end)
                seen_from = partial(_seen_from, rebase, bucket, at)
                made = staged.get(bucket)
                if bucket in ready and ready[bucket].fits(state, seen_from(ready[bucket].at), time_ms):
                    staged[bucket] = ready[bucket].placed(at)
                elif _is_as_made(made, seen_from, state, time_ms):
                    staged[bucket] = replace(made, at=at)  # by an earlier attempt
                else:
                    moved[bucket] = at
            staged.update(self.stager.staged(batches, moved, state))
            rewrites = read is not None or overwrite
            appended = self._actions(staged, state, time_ms, transaction, rewrites=rewrites)
            return (*emptying, *appended)

        staged_ms = min((p.staged_ms for p in ready.values()), default=None)
        committed = self._committed(plan, transaction, staged_ms)
        if committed.replay_of is not None:
            return BucketOffsets(committed.replay_of.offsets), committed.state
        self._apply(staged, committed.state)
        found = {bucket: s.offsets for bucket, s in staged.items()}
        return BucketOffsets({bucket: offsets for bucket, offsets in sorted(found.items()) if offsets}), committed.state

    def _committed(self, plan: Plan, transaction: Transaction | None, staged_ms: int | None) -> Committed:
        for _ in range(TRIES_MAX):
            try:
                return self.log.commit(plan, transaction=transaction, staged_ms=staged_ms)
            except TabletAheadError:
                self.log.refresh()
        raise CommitConflictError(
            f"{self.log.state.name}: other processes of this host were ahead {TRIES_MAX} times in a row; nothing was "
            "written, write again",
        )

    def _rebase(self, read: ReadBase, batches: Mapping[int, KeyedBatch]) -> Rebase:
        """With all that was committed until now judged, while nobody waits for the commit's attempt."""
        rebase = Rebase(read, self.stager.storage, self.stager.layout)
        state = self.log.refresh()
        if not state.dropped and state.schema_id == self.stager.layout.schema_id:
            rebase.judge(state, batches)
        return rebase

    def _actions(
        self,
        staged: Mapping[int, StagedChanges],
        state: TableState,
        time_ms: int,
        transaction: Transaction | None,
        *,
        rewrites: bool,
    ) -> Sequence[Action]:
        added = [(s.offsets.start, s.segment) for s in staged.values() if s.segment is not None]
        if not added and transaction is None:
            return ()
        placed = (s.segment.placed(base, state.version + 1, time_ms) for base, s in added)
        segments = tuple(replace(segment, rewrites=True) if rewrites else segment for segment in placed)
        return (Append(segments, tuple(s.inline_rows for _, s in added)),)

    def _apply(self, staged: Mapping[int, StagedChanges], state: TableState) -> None:
        """The rows are stored: a local disk that fails now must not look like a failure of the write."""
        for bucket, s in staged.items():
            if s.values is None:
                continue  # the host that needs them next replays them: this one may never hold the bucket
            with after_commit(logger, f"applying bucket {bucket} on this host", state.name):
                tablet, history = self.stager.tablet_of(bucket), history_of(state)
                if not belongs(tablet, found := tablet.extent, self.stager.storage, state):
                    continue  # the next use begins it anew
                if s.at[0] == s.at[1] != found.begins:
                    tablet.truncate(s.at[0], after=found.history, history=history)
                    found = found._replace(history=history)
                tablet.apply(s.values, s.offsets.start, s.offsets.end, after=found.history, history=history)


def _is_as_made(
    made: StagedChanges | None, seen_from: Callable[[Place], Place], state: TableState, time_ms: int
) -> TypeGuard[StagedChanges]:
    """Whether changes that this process worked out are right where the bucket is now, and their file is there."""
    if made is None or made.values is None or made.at != seen_from(made.at):
        return False
    return made.is_kept(state, time_ms)


def _seen_from(rebase: Rebase | None, bucket: int, at: Place, made_at: Place) -> Place:
    """Where a bucket is, for changes that were made at one place: there, if what they depend on is as it was."""
    return made_at if rebase is not None and rebase.keeps(bucket, made_at, at) else at
