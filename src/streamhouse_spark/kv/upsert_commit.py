"""Commits upserts and deletes: computes the changes of stored rows and appends them to the log.

**Commit point:** the one record that adds the changes of all buckets.

* Changes of a bucket depend on its rows, so the record adds them only if the bucket still ends at the offset at which
  the rows were read. If another writer committed first, the changes of that bucket are recomputed. Blind writes, which
  read no row (``table.changelog.image`` WAL), are valid at any offset.
* Other threads wait for a commit attempt. Large writes are therefore staged before it, and the attempt only compares
  positions.
* Small writes of several threads share a record (group commit). Each write finds the rows of the earlier writes of the
  record in a `WriteOverlay`, so its changes are the same as in a separate record.
* Changes that other processes prepared, such as Spark tasks, are added on the same condition, or recomputed here.
* Each attempt checks an operation that read the table (`ReadVersion`) for conflicts, see `kv.conflict_detection`. If no
  row that it depends on changed, its changes are valid after the records committed since; otherwise it fails.
* Tablets apply changes only after the commit. After a crash between the two, the next use replays the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from streamhouse_spark.core.lazy_dataclass import replace
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.change_staging import (
    BucketPosition,
    ChangeStager,
    OverlayMissError,
    PreparedChanges,
    StagedChanges,
    StaleStateError,
    WriteOverlay,
)
from streamhouse_spark.kv.conflict_detection import ConflictChecker
from streamhouse_spark.kv.log_replay import belongs_to_table, history_of
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.actions import Action, Append
from streamhouse_spark.log.append_commit import ends_after_truncation, make_truncate_actions, offsets_of_commit
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import find_stored_transaction, require_writable
from streamhouse_spark.log.group_commit import CommitResult, DependentPlan, Plan
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

TRIES_MAX: Final = 100
PRESTAGE_TRIES_MAX: Final = 3
"""Times that a large write is staged before a commit attempt. If its buckets moved every time, the attempt stages the
write, so that it cannot starve.
"""
PRESTAGE_KEYS_MIN: Final = 4_096
PRESTAGE_BYTES_MIN: Final = 256 << 10
"""Smaller writes are staged within the commit attempt: reading their rows is fast, and their changes are inline."""
ASYNC_APPLY_MIN: Final = 256
"""Fewer changes are applied before the call returns, which is faster than waking another thread."""

logger = logging.getLogger(__name__)


def commit_upsert(
    log: CommitLog,
    stager: ChangeStager,
    batches: Mapping[int, KeyedBatch],
    *,
    prepared: Mapping[int, PreparedChanges] | None = None,
    transaction: Transaction | None = None,
    overwrite: bool = False,
    read: ReadVersion | None = None,
    extra_actions: Callable[[TableState], Sequence[Action]] = lambda _state: (),
) -> tuple[BucketOffsets, CommitResult]:
    """Commit the changes that the batches make to their buckets. Return the offsets of the changed buckets.

    ``prepared`` has changes of some buckets, each computed from the bucket's whole batch at one position, with the
    schema and properties of ``stager``. If they are still valid, neither the batch nor this host's tablet is read, so
    ``batches`` may be lazy.

    With ``overwrite`` the record first truncates the table. With ``read`` nothing is committed if a row changed on
    which the operation depends. ``extra_actions`` returns more actions for the record, given the state before it, and
    may raise to abort. The changes are durable and visible when this returns. A transaction that is already stored
    changes nothing and returns the offsets of its first commit.

    Raises:
        CommitConflictError: the schema changed, read or written rows changed, or too many races were lost; nothing
            was written.
        InvalidOptionError: the table is materialized, and only its refreshes may write to it.
        CommitStateUnknownError, StorageError, TransactionConflictError, TableNotFoundError: see `CommitLog.commit`.
    """
    require_writable(log.state, transaction)
    conflicts = None if read is None else ConflictChecker(read, stager.storage, stager.layout)
    plan = _UpsertPlan(
        log, stager, batches, prepared or {}, transaction, extra_actions, overwrite=overwrite, conflicts=conflicts
    )
    committed = plan.commit()
    offsets = offsets_of_commit(committed)
    if committed.duplicate_of is None and not plan.is_in_doubt:
        for bucket in plan.staged:
            with log_post_commit_errors(logger, f"applying bucket {bucket} on this host", committed.state.name):
                _schedule_apply(stager, bucket, plan.changes_in_record(bucket), committed.state)
    return offsets, committed


def _schedule_apply(
    stager: ChangeStager, bucket: int, staged_changes: Sequence[StagedChanges], state: TableState
) -> None:
    """Apply the committed changes of a bucket, before or after the call returns.

    Every use of the tablet in this process first applies the queued changes.
    """
    if any(s.values is None for s in staged_changes):
        return  # the next host that reads the bucket replays the log
    tablet = stager.tablet_of(bucket)

    def apply() -> None:
        with log_post_commit_errors(logger, f"applying bucket {bucket} on this host", state.name):
            _apply_changes(tablet, staged_changes, state, stager.storage)

    segments = [s.segment.segment for s in staged_changes if s.segment is not None]
    if sum(segment.num_rows for segment in segments) < ASYNC_APPLY_MIN:
        apply()
    else:
        tablet.apply_queue.add(apply, sum(segment.memory_bytes for segment in segments))


def _apply_changes(
    tablet: Tablet, staged_changes: Sequence[StagedChanges], state: TableState, storage: Storage
) -> None:
    """Apply the committed changes of a bucket to this host's tablet.

    ``staged_changes`` has the changes of this write, after the changes of earlier writes in the same record.
    """
    history = history_of(state)
    if not belongs_to_table(tablet, extent := tablet.extent, storage, state):
        return  # the next use recreates it
    first = staged_changes[0].at
    if first[0] == first[1] != extent.begins:
        tablet.truncate(first[0], after=extent.history, history=history)
        extent = extent._replace(begins=first[0], applied=first[0], history=history)
    new = list(dropwhile(lambda s: s.offsets.start < extent.applied, staged_changes))
    if new:
        values: dict[bytes, bytes | None] = {}
        for s in new:
            values.update(s.values.by_key if s.values is not None else {})
        start, end = new[0].offsets.start, new[-1].offsets.end
        tablet.apply(values, start, end, after=extent.history, history=history)


class _PrestageError(Exception):
    """Raised by a commit attempt for a large write, which must be staged before the attempt."""


class _UpsertPlan(DependentPlan):
    """The commit plan of one write, with its staged changes.

    A group commit may call the plan from another thread, but never from two threads at a time.
    """

    def __init__(
        self,
        log: CommitLog,
        stager: ChangeStager,
        batches: Mapping[int, KeyedBatch],
        prepared: Mapping[int, PreparedChanges],
        transaction: Transaction | None,
        extra_actions: Callable[[TableState], Sequence[Action]],
        *,
        overwrite: bool,
        conflicts: ConflictChecker | None,
    ) -> None:
        self._log = log
        self._stager = stager
        self._extra_actions = extra_actions
        self._batches = batches
        self._prepared = prepared
        self._transaction = transaction
        self._overwrite = overwrite
        self._conflicts = conflicts
        self._times_prestaged = 0
        self.overlay: WriteOverlay | None = None
        self.earlier: tuple[Mapping[int, StagedChanges], ...] = ()
        self._times_planned = 0
        self._shared_a_record = False
        self.staged: dict[int, StagedChanges] = {}
        """Each attempt replaces this map and never mutates it, because later plans of a record refer to it."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the committed changes may differ from the staged changes.

        An earlier attempt that timed out may have stored the write after other plans than the last attempt.
        """
        return self._shared_a_record and self._times_planned > 1

    def changes_in_record(self, bucket: int) -> list[StagedChanges]:
        """Return the changes of a bucket in the record: the changes of earlier plans, then the changes of this plan."""
        return [staged[bucket] for staged in (*self.earlier, self.staged) if bucket in staged]

    def commit(self) -> CommitResult:
        for _ in range(TRIES_MAX):
            try:
                if self._conflicts is not None or self._is_large(self._batches.keys() - self._prepared.keys()):
                    self._prestage()
                is_shared = self._conflicts is None and not self._overwrite and not self._stager.reads_whole_buckets
                return self._log.commit(
                    self, transaction=self._transaction, staged_ms=self._staged_ms, is_shared=is_shared
                )
            except _PrestageError:
                continue
            except StaleStateError:
                self._log.refresh()
        raise CommitConflictError(
            f"{self._log.state.name}: lost {TRIES_MAX} races in a row against other processes of this host; nothing "
            "was written, retry the write",
        )

    @property
    def _staged_ms(self) -> int | None:
        """Store time when staging of the oldest staged changes began; None if no changes are staged."""
        own = [changes.staged_ms for changes in self.staged.values()]
        return min([*own, *(changes.staged_ms for changes in self._prepared.values())], default=None)

    def _prestage(self) -> None:
        """Check the write and, if it is large, stage it before the attempt. Does nothing after a few tries."""
        if self._times_prestaged >= PRESTAGE_TRIES_MAX:
            return
        self._times_prestaged += 1
        state = self._log.refresh()
        if find_stored_transaction(state, self._transaction) is not None:
            return
        moved = self._find_moved_buckets(state, self._stager.storage.now_ms())
        if self._is_large(moved):
            self.staged.update(self._stager.stage(self._batches, moved, state))

    def follow(self, before: TableState, earlier: Sequence[Plan]) -> None:
        overlaid = self.overlay if self.earlier and self.overlay is not None else ()
        self.staged = {b: s for b, s in self.staged.items() if s.is_blind or b not in overlaid}
        if not earlier:
            self.overlay, self.earlier = WriteOverlay(before), ()
            return
        last = earlier[-1]
        if not isinstance(last, _UpsertPlan) or last.overlay is None:
            raise OverlayMissError
        for bucket, s in last.staged.items():
            last.overlay.add(bucket, s.offsets, s.values.by_key if s.values is not None else None)
        self.overlay, self.earlier = last.overlay, (*last.earlier, last.staged)

    def __call__(self, state: TableState, time_ms: int) -> Sequence[Action]:
        moved = self._find_moved_buckets(state, time_ms)
        if self._times_prestaged < PRESTAGE_TRIES_MAX and self._is_large(moved):
            raise _PrestageError
        self.staged.update(self._stager.stage(self._batches, moved, state, self.overlay))
        self._times_planned += 1
        self._shared_a_record = self._shared_a_record or bool(self.earlier)
        truncation = make_truncate_actions(state) if self._overwrite else ()
        return (*truncation, *self._make_append_actions(state, time_ms), *self._extra_actions(state))

    def _find_moved_buckets(self, state: TableState, time_ms: int) -> dict[int, BucketPosition]:
        """Return the buckets without staged changes for their current position. Raise if the write is impossible."""
        if state.dropped:  # also if there are no changes
            raise TableNotFoundError(f"table {state.name} ({state.table_uuid}) was dropped; nothing was written")
        if state.schema_id != self._stager.layout.schema_id:
            raise CommitConflictError(
                f"{state.name}: its columns were altered while rows were staged; nothing was written, retry the write",
            )
        if self._conflicts is not None:
            self._conflicts.check(state, self._batches)
        truncation = make_truncate_actions(state) if self._overwrite else ()
        ends, moved = ends_after_truncation(state, truncation), {}
        for bucket in self._batches:
            begins, end = state.first_offset(bucket), ends[bucket]
            at = (end if truncation else begins, end)
            staged, prepared = self.staged.get(bucket), self._prepared.get(bucket)
            if prepared is not None and prepared.is_valid_at(
                state, self._expected_position(bucket, prepared.at, at), time_ms
            ):
                self.staged[bucket] = prepared.at_position(at)
            elif staged is not None and self._is_reusable(staged, bucket, at) and staged.is_committable(state, time_ms):
                self.staged[bucket] = replace(staged, at=at)
            else:
                moved[bucket] = at
        return moved

    def _is_reusable(self, staged: StagedChanges, bucket: int, at: BucketPosition) -> bool:
        """Return whether changes that an earlier attempt staged are valid at the bucket's position."""
        is_known = staged.values is not None
        return staged.is_blind or (is_known and staged.at == self._expected_position(bucket, staged.at, at))

    def _expected_position(self, bucket: int, staged_at: BucketPosition, at: BucketPosition) -> BucketPosition:
        """Return ``staged_at`` if the rows on which the staged changes depend are unchanged; otherwise ``at``."""
        return staged_at if self._conflicts is not None and self._conflicts.is_unchanged(bucket, staged_at, at) else at

    def _is_large(self, buckets: Collection[int]) -> bool:
        """Return whether staging the changes of these buckets takes long."""
        num_keys = num_bytes = 0
        if self._stager.reads_whole_buckets and buckets:
            return True
        for bucket in buckets:
            batch = self._batches[bucket]
            num_keys += len(batch)
            num_bytes += sum(column.nbytes for column in batch.columns)
            if num_keys > PRESTAGE_KEYS_MIN or num_bytes > PRESTAGE_BYTES_MIN:
                return True
        return False

    def _make_append_actions(self, state: TableState, time_ms: int) -> Sequence[Action]:
        added = [(s.offsets.start, s.segment) for s in self.staged.values() if s.segment is not None]
        if not added and self._transaction is None:
            return ()
        rewrites = self._conflicts is not None or self._overwrite or self._stager.reads_whole_buckets
        placed = (s.segment.placed(base, state.version + 1, time_ms) for base, s in added)
        segments = tuple(replace(segment, rewrites=True) if rewrites else segment for segment in placed)
        return (Append(segments, tuple(s.inline_rows for _, s in added)),)
