"""The commit log of one table: reads its records, and commits new ones.

**Commit point.** A change is committed by put-if-absent of ``commits/<N+1>``. It is invisible before the put and fully
visible after it. Whatever the put reports, the record at N+1 is read back and its attempt id compared (see
`storage.put_if_absent`).

**Tail.** The tail is found by reading N+1, N+2, … until a record is absent, never by listing. Records below the low
watermark, the *floor*, are void and may be deleted (see `log.checkpoint`). Records read from N+1 on count only
if the floor is at most N+1. It must have been read after them, or less than `FLOOR_CHECK_MS` of boot time before. That
is far less than the grace period between a floor and the first deletion.

**History.** Each record names the attempt id of the record before it. If the last record of this process is missing, or
the next record does not follow it, then the log was restored from a backup. Every call then raises
`DifferentHistoryError` until the table is opened again. The last record is checked together with the floor, and before
each commit on a local disk.

**Commit.** A commit takes these steps; each is one method, in this order:

1. `commit` enqueues the request. `_wait_or_lead` blocks while another thread leads.
2. `_lead` takes the lock that other processes of this host respect.
3. `_write_group` validates the queued requests: `_build_on_known_state` on the state in memory, where a read costs a
   round trip; otherwise `_build_on_latest_state` after reading to the tail.
4. `_put_group` puts one record for all validated requests and sets their results. `_put_record` is the commit point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.core.warehouse_layout import commit_key, commits_prefix, manifest_key
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    DifferentHistoryError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.bootstrap import PrefetchedLog, find_later_checkpoint, load_start_state
from streamhouse_spark.log.checkpoint import DROPPED_FLOOR, Checkpoint, Checkpointing, no_checkpoint_error
from streamhouse_spark.log.commit_validation import find_stored_transaction, require_actions_allowed
from streamhouse_spark.log.group_commit import (
    CommitQueue,
    CommitResult,
    PendingCommit,
    Plan,
    RecordBuilder,
    error_for_attempt,
    results_of_record,
)
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation, out_of_mixed
from streamhouse_spark.log.low_watermark import find_newest_floor
from streamhouse_spark.log.object_existence import list_staged_uuids, must_check_stored, require_stored
from streamhouse_spark.log.record import (
    RecentRows,
    Record,
    RecordBody,
    begins_as,
    encode_record,
    has_record,
    next_record_time,
    read_attempt,
    read_record,
    records_from,
)
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult, Slot, ensure_stored

E = TypeVar("E", bound=BaseException)
CONFLICTS_MAX = 1000
FAILURES_MAX = 5
FLOOR_CHECK_MS = 60_000
"""Time for which the floor and the last record of this process count as checked."""


class CommitLog:
    """One process's view of a table's log. Thread-safe; `state` never goes back."""

    def __init__(
        self,
        storage: Storage,
        table_uuid: str,
        world: World,
        *,
        prefetched: PrefetchedLog | None = None,
        state: TableState | None = None,
        since_ms: int = 0,
    ) -> None:
        """Open a log lazily. ``prefetched`` has objects that were read together with those of other logs. ``state`` was
        stored at ``since_ms`` of boot time or later; the log had no floor before.
        """
        self._storage = storage
        self._prefetched = prefetched
        self._table_uuid = table_uuid
        self._world = world
        self._state = state
        self._floor = 0
        self._floor_index = 0
        self._floor_checked_ms = since_ms
        self._checkpointing = Checkpointing(storage)
        self._recent_rows = self._read_rows = RecentRows()
        self._damaged_checkpoints: Sequence[StreamhouseError] = ()
        self._history_checked_ms = since_ms
        self._restored_message: str | None = None
        self._queue = CommitQueue()
        self._lock = new_lock()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Drop the requests of threads that a forked child does not have."""
        self._queue = CommitQueue()

    @property
    def table_uuid(self) -> str:
        return self._table_uuid

    @property
    def state(self) -> TableState:
        """The latest state in memory. Storage is read only if there is none."""
        return self._state or self.refresh()

    @property
    def is_stale_history(self) -> bool:
        """Whether the log was restored from a backup. The object cannot be used any more."""
        return self._restored_message is not None

    @property
    def cached_state(self) -> TableState | None:
        """The latest state in memory; None before the log was read."""
        return self._state

    @property
    def recent_rows(self) -> RecentRows:
        """Inline rows of the latest records, cached by the reads of a remote store."""
        return self._recent_rows

    @property
    def floor_index(self) -> int:
        """Index of the latest floor that was read; 0 for none."""
        return self._floor_index

    def refresh(self) -> TableState:
        """Read the log to its tail and return the latest state.

        Raises:
            TableNotFoundError: the table has no first record.
            DifferentHistoryError: the log was restored from a backup. Permanent, because other parts of this object
                may be out of date too.
        """
        return self._refresh(must_check_history=False)

    def look(self, at_most: int) -> TableState:
        """Read on like `refresh`, but on a remote store at most ``at_most`` records, in one round trip."""
        return self._refresh(must_check_history=False, at_most=at_most)

    def commit(
        self,
        plan: Plan,
        *,
        transaction: Transaction | None = None,
        staged_ms: int | None = None,
        is_shared: bool = False,
    ) -> CommitResult:
        """Commit the actions that ``plan`` returns for the latest state, as one record.

        The commit is durable and visible to every reader when this returns. A ``transaction`` that is already stored
        writes nothing and returns its first result. ``staged_ms`` is the store time at which staging of the plan's
        files started; the default is now. With ``is_shared`` the record may also hold commits of other threads, and any
        of these threads may call ``plan``.

        Raises:
            CommitConflictError: too many lost races, or staged files were deleted. Nothing was written; retry.
            CommitStateUnknownError: storage failed before the outcome could be read.
            StorageError: storage failed and the record is not stored. `StorageRefusedError` if a retry cannot succeed.
            TransactionConflictError: the application id belongs to another query.
            DifferentHistoryError: the log, or the stream's checkpoint, was restored. Nothing was written.
            TableNotFoundError: the table was dropped.
        """
        if staged_ms is None:
            staged_ms = self._storage.now_ms()
        call = PendingCommit(plan, transaction, staged_ms, self._world.ids.new_uuid(), is_shared)
        try:
            self._queue.add(call)
            committed = self._wait_or_lead(call)
        finally:
            self._queue.remove(call)
        if committed.state is not committed.before and committed.is_first:
            self._checkpointing.store_if_due(committed.state, self._floor_index, self._floor)
        return committed

    def checkpoint(self, state: TableState) -> None:
        """Store a checkpoint. It is derived from records, so a failure is logged and only slows the next opener."""
        self._checkpointing.store(state, self._floor_index, self._floor)

    def relation(self, mark: HistoryPoint) -> HistoryRelation:
        """Return whether a position belongs to the history of this log.

        Takes one request if the state's index does not cover the record. Below the floor a slow writer may have put
        another record where one was deleted, so that a different attempt proves nothing there.
        """
        state = self.state
        if mark.number > state.version:
            state = self.refresh()
        relation = state.anchors.relation(mark)
        if relation is not HistoryRelation.UNKNOWN:
            return relation
        if mark.number > state.version:
            return HistoryRelation.OTHER
        attempt = read_attempt(self._storage, self._table_uuid, mark.number)
        if attempt == mark.attempt:
            return HistoryRelation.SAME
        is_void = mark.number < self.refresh_floor()
        return HistoryRelation.UNKNOWN if attempt is None or is_void else HistoryRelation.OTHER

    def require_history(self, marks: Iterable[HistoryPoint | None], who: str) -> None:
        """Raise `DifferentHistoryError` unless the records ``marks`` are in the history of this log.

        ``who`` names the owner of the position in the error. No request is sent for recent records.
        """
        for mark in {mark for mark in marks if mark is not None}:
            if self.relation(mark) is HistoryRelation.OTHER:
                raise different_history_error(self.state.name, mark, who)

    def refresh_floor(self) -> int:
        """Read and return the floor: records below it are void."""
        return self._check_floor(self._world.clock.boot_ms())

    # -- committing ----------------------------------------------------------------------------------------------------

    def _wait_or_lead(self, call: PendingCommit) -> CommitResult:
        """Return the request's result, from another thread's record or after leading, with retries.

        If a leader is interrupted, the next one finds the followers' attempts in the log or writes them again.
        """
        while True:
            failures, tries = call.failures, call.tries
            if not self._queue.wait(call):
                with self._lock:
                    if not call.is_done and call.tries == tries:
                        self._lead(call)
                    if not call.is_done:
                        has_failed = call.failures > failures
                        call.error = terminal_error(call, self._storage, self._table_uuid, has_failed=has_failed)
            if call.error is not None:
                raise call.error
            if call.outcome is not None:
                return call.outcome
            if call.tries != tries:
                self._world.clock.sleep_ms(call.retry_delay_ms * self._world.ids.jitter())

    def _lead(self, leader: PendingCommit) -> None:
        """Write one record for the leader and the requests that are queued with it. The caller holds the log's lock."""
        self._queue.is_led = True
        try:
            self._queue.wait_for_followers(leader)
            with self._storage.commit_lock(f"{commits_prefix(self._table_uuid)}.lock"):
                self._write_group(leader)
        except BaseException as error:
            leader.error = error  # so that no other leader writes a failed request
            raise
        finally:
            self._queue.note_group_size()
            self._queue.is_led = False
            self._queue.wake()

    def _write_group(self, leader: PendingCommit) -> None:
        group = self._build_on_known_state(leader) or self._build_on_latest_state(leader)
        if group.members:
            self._put_group(group)

    def _build_on_known_state(self, leader: PendingCommit) -> RecordBuilder | None:
        """Build a record on the state in memory without reading the log: the put shows whether it is the latest.

        Returns None if a read is free, if the state may be too old, or if only the latest state can decide the leader's
        request.
        """
        before, now_ms = self._state, self._world.clock.boot_ms()
        checked_ms = min(self._floor_checked_ms, self._history_checked_ms)
        if (
            self._is_local
            or before is None
            or self._restored_message is not None
            or now_ms - checked_ms > FLOOR_CHECK_MS
        ):
            return None
        group = self._new_builder(before)
        for call in self._queue.eligible_for(leader):
            if (not group.try_add(call, self._require_stored) and call is leader) or group.is_full:
                break
        return group if leader in group.members else None

    def _build_on_latest_state(self, leader: PendingCommit) -> RecordBuilder:
        """Read the log to its tail and build a record. It is empty if every request was decided without one."""
        group = self._new_builder(self._refresh_for_commit(leader))
        for call in self._queue.eligible_for(leader):
            # Without a record only the leader is decided: the state may be from before a follower's request.
            if not self._validate(call, group) or leader.is_done or group.is_full:
                break
        return group

    def _refresh_for_commit(self, call: PendingCommit) -> TableState:
        """Return the latest state. If an earlier put may still be stored, a failed read leaves its outcome unknown."""
        try:
            return self._refresh(must_check_history=self._is_local)
        except StorageError as error:
            if not may_still_be_stored(call, self._storage):
                raise
            raise CommitStateUnknownError(
                f"commit to {self._storage.url} failed, then its log could not be read: {error}; look at $commits "
                "before writing the rows again",
            ) from error

    def _new_builder(self, before: TableState) -> RecordBuilder:
        number, now_ms, author = before.version + 1, self._storage.now_ms(), self._world.author
        time_ms = next_record_time(before.time_ms, now_ms)
        return RecordBuilder(
            before, Record(number, self._table_uuid, "", time_ms, (), after=before.attempt, author=author)
        )

    def _validate(self, call: PendingCommit, group: RecordBuilder) -> bool:
        """Add the request to the record, or set its result or error. Return whether the record has room for more.

        A request that is decided by the requests before it in the record stays undecided until that record is stored.
        """
        before = group.before
        outcome: CommitResult | None = None
        try:
            if call.landed is not None:  # a put that timed out reached the store
                outcome = require_durable(self._storage, self._table_uuid, call, call.landed)
            elif (entry := find_stored_transaction(group.state, call.transaction)) is not None:
                outcome = CommitResult(before, before, entry)
            elif actions := tuple(group.plan(call)):
                require_actions_allowed(group.state, actions, call.transaction)
                self._require_stored(before, actions, call.staged_ms)
                return group.add(call, actions)
            else:
                outcome = CommitResult(before, before)
        except Exception as error:  # noqa: BLE001 - a rejected request fails alone
            if not group.members:
                call.error = rejection_error(error, call, self._storage)
            return True
        if call.landed is not None or not group.members:
            call.outcome = outcome
        return True

    def _require_stored(self, before: TableState, actions: Sequence[Action], staged_ms: int) -> None:
        """Check that the files that a record names were not removed by a restore since they were staged.

        Raises `DifferentHistoryError`, `CommitConflictError`.
        """
        uuids = list_staged_uuids(actions)
        if uuids and must_check_stored(self._storage, staged_ms):
            self._require_same_history(before, is_certain=self._is_local)
            require_stored(self._storage, before, uuids)

    def _put_group(self, group: RecordBuilder) -> None:
        """Put the record and set the result, failure or conflict of each of its requests."""
        members = group.members
        record = group.record(members[0].attempt if len(members) == 1 else self._world.ids.new_uuid())
        for member in members:
            member.unanswered += 1  # stays so if this thread is interrupted
        try:
            stored, failure = self._put_record(record, group.body)
            is_mine = stored is not None and stored.attempt == record.attempt
            state = self._state_after_put(group.before, stored) if stored is not None and is_mine else None
        except CommitStateUnknownError as error:
            for member in members:
                if member.transaction is not None and self._state is None:  # the next state shows its outcome
                    self._queue.rename(member, self._world.ids.new_uuid())
                else:
                    member.error = error_for_attempt(error, record.attempt, member.attempt)
            return
        for member in members:
            if stored is None:
                member.failures += 1
                member.rejections += isinstance(failure, StorageRefusedError)
                member.failure = failure and error_for_attempt(failure, record.attempt, member.attempt)
            elif not is_mine:
                member.conflicts, member.has_unchecked_race = member.conflicts + 1, True
                member.failure = failure and error_for_attempt(failure, record.attempt, member.attempt)
            elif state is None:  # the record is void
                self._queue.rename(member, self._world.ids.new_uuid())
            else:
                member.outcome = member.landed
            member.unanswered -= 1

    def _put_record(self, record: Record, body: RecordBody) -> tuple[Record | None, StorageError | None]:
        """Put the record if its number is free: **the commit point**.

        Returns the record stored under the number, if any, and the error of the put.
        """
        encoded = encode_record(record, manifest_uuid := self._world.ids.new_uuid(), body)
        slot = Slot(
            self._storage,
            commit_key(self._table_uuid, record.number),
            lambda: read_record(self._storage, self._table_uuid, record.number)[0],
            lambda stored: stored.attempt == record.attempt,
        )
        try:
            if encoded.manifest is not None:
                ensure_stored(self._storage, manifest_key(self._table_uuid, manifest_uuid), encoded.manifest)
        except StorageError as error:
            result = slot.look(error)  # an earlier put of this attempt may have been stored
        else:
            result = slot.take(encoded.data)
        require_known_outcome(record, result, self._storage.url)
        return (encoded.stored if result.failure is None else result.stored), result.failure

    def _state_after_put(self, before: TableState, stored: Record) -> TableState | None:
        """Return the state after this process's record; None if the record is void, so that nothing was written.

        A floor above the record leaves two cases. It was raised after the put: the record is in the log. Or the number
        was free again because the log's record there had been deleted: this one is void. Later records decide, not the
        clock.
        """
        waited_ms = self._world.clock.boot_ms() - self._floor_checked_ms
        try:
            if waited_ms > FLOOR_CHECK_MS or self._is_local:
                # On a local disk the read is cheap, and the grace period is measured by a clock that jumps.
                self.refresh_floor()
            relation = HistoryRelation.SAME
            if self._floor > stored.number:  # another thread of this process may have read the floor
                relation = self._relation_below_floor(stored)
        except (StorageError, CorruptDataError) as error:
            self._state = None
            raise unknown_outcome_error(self._storage.url, stored, str(error)) from error
        if relation is HistoryRelation.SAME:
            return self._advance(before, stored)
        self._state = None
        if relation is HistoryRelation.UNKNOWN:
            raise unknown_outcome_error(self._storage.url, stored, "the records after it are deleted")
        return None

    def _relation_below_floor(self, stored: Record) -> HistoryRelation:
        """Return the relation to the log of a record that this process put, and that lies below the floor.

        The record after it names its attempt. If that one is deleted, a checkpoint may still have the attempt. The
        result is `UNKNOWN` if neither does: then the grace period has passed since the put, or the record was void from
        the start. Raises `StorageError`, `CorruptDataError`.
        """
        if self._floor >= DROPPED_FLOOR:
            return HistoryRelation.OTHER
        ahead = Prefetch(self._storage)
        try:
            following, _ = read_record(self._storage, self._table_uuid, stored.number + 1, ahead)
        except ObjectNotFoundError:
            checkpoint, _ = load_start_state(self._storage, self._table_uuid, self._floor - 1, ahead)
            mark = HistoryPoint(stored.number, stored.attempt)
            return HistoryRelation.UNKNOWN if checkpoint is None else checkpoint.state.anchors.relation(mark)
        if following.after is None:
            return HistoryRelation.UNKNOWN
        return HistoryRelation.SAME if following.after == stored.attempt else HistoryRelation.OTHER

    def _advance(self, before: TableState, stored: Record) -> TableState:
        """Move to the state after a record of this process. The results are set first, because an interrupted thread
        must not leave a state whose results are lost.
        """
        state = fold(before, stored)
        self._queue.landed(dict(results_of_record(before, state, stored)))
        self._state = state
        self._history_checked_ms = self._world.clock.boot_ms()
        return state

    # -- reading -------------------------------------------------------------------------------------------------------

    def _refresh(self, *, must_check_history: bool, at_most: int | None = None) -> TableState:
        """Read the log to its tail.

        The loop starts again at a checkpoint if records that the state in memory needs were deleted. With
        ``must_check_history`` the last record is checked whatever its age.
        """
        with self._lock:
            if self._restored_message is not None:
                raise DifferentHistoryError(self._restored_message)
            for _ in range(FAILURES_MAX):
                is_opening = self._state is None
                prefetched = self._prefetched or PrefetchedLog(Prefetch(self._storage), self._world.clock.boot_ms())
                self._prefetched, ahead = None, prefetched.ahead
                start = self._state or self._load_start(ahead)
                read_from = start.version + 1 if start is not None else 1
                own: dict[str, CommitResult] = {}
                damage: CorruptDataError | None = None
                state, self._read_rows = start, RecentRows()
                try:
                    state = self._fold_to_tail(start, own, ahead, None if is_opening else at_most)
                except CorruptDataError as error:
                    damage = error
                if not is_opening and start is not None and state is start:  # may read the floor, compared below
                    self._require_same_history(start, is_certain=must_check_history or damage is not None)
                if is_opening and state is not None:
                    ahead.expect([commit_key(self._table_uuid, state.version + 2)])
                if self._may_trust_records_from(read_from, prefetched if is_opening else None):
                    if damage is not None:
                        raise damage
                    if state is None:
                        raise TableNotFoundError(
                            f"table {self._table_uuid} has no commit log under {self._storage.url}; was it deleted?",
                        )
                    if is_opening:
                        state = self._require_no_gap(state, own, ahead)
                    if state is not start:
                        self._history_checked_ms = self._world.clock.boot_ms()
                    self._queue.confirm_races()
                    self._queue.landed(own)
                    self._state, self._recent_rows = state, self._recent_rows.before(self._read_rows)
                    return state
                if self._floor >= DROPPED_FLOOR:
                    raise TableNotFoundError(f"table {self._table_uuid} of {self._storage.url} was dropped and deleted")
                self._state = None  # needed records were deleted
            raise no_checkpoint_error(self._storage, self._table_uuid, self._floor, self._damaged_checkpoints)

    def _load_start(self, ahead: Prefetch) -> TableState | None:
        """Return the state of the latest checkpoint; None to read from the first record."""
        self._queue.fail_unresolved(self._storage.url)
        checkpoint, self._damaged_checkpoints = load_start_state(
            self._storage, self._table_uuid, self._floor - 1, ahead
        )
        return self._adopt_checkpoint(checkpoint) if checkpoint is not None else None

    def _adopt_checkpoint(self, checkpoint: Checkpoint) -> TableState:
        self._checkpointing.note_start(checkpoint)
        if checkpoint.floor_index > self._floor_index:
            self._floor_index, self._floor = checkpoint.floor_index, max(self._floor, checkpoint.floor)
        return checkpoint.state

    def _fold_to_tail(
        self, state: TableState | None, own: dict[str, CommitResult], ahead: Prefetch, at_most: int | None = None
    ) -> TableState | None:
        """Return the state at the tail, and add the results of this process's queued attempts to ``own``.

        A process that is far behind continues at a later checkpoint instead of reading every record.
        """
        previous, number = self._state, state.version + 1 if state is not None else 1
        for record in records_from(
            ahead, self._table_uuid, number, self._read_rows if ahead.is_useful else None, at_most
        ):
            before, state = state, fold(state, record)
            if before is not None and any(part.attempt in self._queue for part in record.attempts):
                own.update(results_of_record(before, state, record))
            if previous is not None:  # a stored attempt of this process comes first
                later = find_later_checkpoint(ahead, self._table_uuid, state.version - previous.version, state.version)
                if later is not None:
                    return self._fold_to_tail(self._adopt_checkpoint(later), own, ahead)
        return state

    def _require_no_gap(self, state: TableState, own: dict[str, CommitResult], ahead: Prefetch) -> TableState:
        """Return the state at the tail. Raise `CorruptDataError` if a record is missing and later ones exist."""
        while has_record(ahead, self._table_uuid, state.version + 2):
            tail, state = state.version, self._fold_to_tail(state, own, Prefetch(self._storage)) or state
            if state.version == tail:
                raise CorruptDataError(
                    f"{url_of(self._storage, commit_key(self._table_uuid, tail + 1))} is missing although records "
                    f"follow it; restore this file. {out_of_mixed(self._table_uuid, tail + 1)}",
                )
        return state

    def _require_same_history(self, state: TableState, *, is_certain: bool) -> None:
        """Raise `DifferentHistoryError` if the last record of this process is no longer the stored one."""
        now_ms = self._world.clock.boot_ms()
        if not is_certain and now_ms - self._history_checked_ms <= FLOOR_CHECK_MS:
            return
        if not self._has_last_record(state):
            where = url_of(self._storage, commit_key(self._table_uuid, state.version))
            self._restored_message = (
                f"{state.name} ({state.table_uuid}): this process read record {state.version} of attempt "
                f"{state.attempt}, and {where} is not that record now: the table was restored from a backup, or "
                "another copy was put in its place. Nothing was written. Open the table again; running streams must "
                "be restarted"
            )
            raise DifferentHistoryError(self._restored_message)
        self._history_checked_ms = now_ms

    def _has_last_record(self, state: TableState) -> bool:
        """Return whether the state's last record is stored under the same attempt id, or may be.

        The common case reads only the head of the record: on a local disk this check runs before each commit.
        """
        newest = state.anchors.newest
        if newest is None or newest.number < self.refresh_floor():
            return True
        if begins_as(self._storage, self._table_uuid, newest.number, newest.attempt):
            return True
        stored_attempt = read_attempt(self._storage, self._table_uuid, newest.number)
        if stored_attempt is not None:
            return stored_attempt == newest.attempt
        if has_record(self._storage, self._table_uuid, newest.number):
            return True  # damaged: the next reader that needs the record raises
        return newest.number < self.refresh_floor()

    def _may_trust_records_from(self, read_from: int, prefetched: PrefetchedLog | None) -> bool:
        """Return whether no record from ``read_from`` on can have been deleted.

        A floor that an opener prefetched is valid as long as any other.
        """
        now_ms = self._world.clock.boot_ms()
        if prefetched is not None and now_ms - prefetched.since_ms <= FLOOR_CHECK_MS:
            self._check_floor(prefetched.since_ms, prefetched.ahead)
        elif self._state is None or now_ms - self._floor_checked_ms > FLOOR_CHECK_MS:
            self.refresh_floor()
        return self._floor <= read_from

    def _check_floor(self, checked_ms: int, ahead: Prefetch | None = None) -> int:
        index, floor = find_newest_floor(self._storage, self._table_uuid, self._floor_index, ahead=ahead)
        if floor is not None:
            self._floor_index, self._floor = index, max(self._floor, floor.floor)
        self._floor_checked_ms = checked_ms
        return self._floor

    @property
    def _is_local(self) -> bool:
        """Whether the store is a local disk, where a read costs little."""
        return self._storage.local_path("") is not None


def different_history_error(table: str, mark: HistoryPoint, who: str) -> DifferentHistoryError:
    return DifferentHistoryError(
        f"{who} at record {mark.number} of attempt {mark.attempt}, which the log of {table} does not have: the table "
        "was restored from a backup. Nothing was written; run it again on the table as it is now"
    )


def terminal_error(
    call: PendingCommit, storage: Storage, table_uuid: str, *, has_failed: bool
) -> StreamhouseError | None:
    """Return the error of a request that must not be retried; None to retry.

    The caller holds the log's lock, so that no other thread commits the request afterwards. ``has_failed`` says that
    the last put was one of its failures.
    """
    failures, failure, url = call.failures, call.failure, storage.url
    if has_failed and call.is_rejected_by_store:
        return failure
    if failures >= FAILURES_MAX and failure is not None:
        if not may_still_be_stored(call, storage):
            return failure
        return CommitStateUnknownError(  # a request in flight may still store it
            f"commit to {url} failed {failures} times, and the record is not there now: {failure}; look at $commits "
            "before writing the rows again",
        )
    if call.conflicts >= CONFLICTS_MAX:
        error = CommitConflictError(
            f"commit to {url}/{commits_prefix(table_uuid)} lost {call.conflicts} races in a row; nothing was written, "
            "try again or write fewer, larger batches",
        )
        return rejection_error(error, call, storage)
    return None


def may_still_be_stored(call: PendingCommit, storage: Storage) -> bool:
    """Return whether an attempt that is not in the log may still be stored.

    A request to the store that timed out may store it, or an interrupted thread. A local disk has no requests in
    flight.
    """
    return call.unanswered > 0 or (call.may_be_in_flight and storage.local_path("") is None)


def rejection_error(error: E, call: PendingCommit, storage: Storage) -> E | CommitStateUnknownError:
    """Return the error to raise for a request that the latest state rejects with ``error``.

    A conflict promises that nothing was written. That promise cannot be made while an interrupted thread may have
    stored the attempt. Every other rejection depends on the state alone and holds for that attempt too.
    """
    if not call.unanswered or not isinstance(error, CommitConflictError):
        return error
    unknown = CommitStateUnknownError(
        f"commit to {storage.url} conflicts ({error}), and the thread that first wrote it was interrupted; look for "
        f"attempt {call.attempt} in $commits before writing the rows again",
    )
    unknown.__cause__ = error
    return unknown


def require_durable(storage: Storage, table_uuid: str, call: PendingCommit, landed: CommitResult) -> CommitResult:
    """Return the result of an attempt that was found in the log, after its record was synced to disk."""
    if call.unanswered:
        try:
            storage.ensure_durable(commit_key(table_uuid, landed.state.version))
        except StorageError as error:
            raise not_durable_error(storage.url, landed.state.version, call.attempt, error) from error
    return landed


def require_known_outcome(record: Record, result: PutResult[Record], url: str) -> None:
    """Raise `CommitStateUnknownError` if it is unknown whose record is stored, or whether it survives a power loss."""
    if result.outcome is PutOutcome.UNREADABLE:
        raise CommitStateUnknownError(
            f"commit of record {record.number} to {url}: the record cannot be read back ({result.read_error}); look "
            f"for attempt {record.attempt} in $commits before writing the rows again",
        ) from result.read_error
    if result.outcome is PutOutcome.NOT_DURABLE:
        raise not_durable_error(url, record.number, record.attempt, result.failure) from result.read_error


def not_durable_error(url: str, number: int, attempt: str, failure: Exception | None) -> CommitStateUnknownError:
    """Return the error of a record that is visible but may be lost by a power loss."""
    return CommitStateUnknownError(
        f"record {number} of {url} is visible but may not survive a power loss ({failure}); check the disk, then look "
        f"for attempt {attempt} in $commits",
    )


def unknown_outcome_error(url: str, stored: Record, reason: str) -> CommitStateUnknownError:
    """Return the error of a record that was put below a floor, so that it may not be part of the log."""
    return CommitStateUnknownError(
        f"commit of record {stored.number} to {url} took so long that its record may be void, and whether it is "
        f"cannot be read ({reason}); look for attempt {stored.attempt} in $commits, or for its rows, "
        "before writing them again",
    )
