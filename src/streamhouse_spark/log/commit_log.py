"""The commit log of one table: reads its records, and commits new ones.

**Commit point.** A change is committed by put-if-absent of ``commits/<N+1>``. It is invisible before the put and fully
visible after it. Whatever the put reports, the record at N+1 is read back and its attempt id compared (see
`storage.put_if_absent`).

**Tail.** The tail is found by reading N+1, N+2, … until a record is absent, never by listing. Records below the low
watermark are void and may be deleted (see `log.low_watermark`). Records that were read starting at N+1 count only if
the low watermark is at most N+1. It must have been read after them, or at most `WATERMARK_CHECK_MS` of boot time before
them. That is far less than the grace period between a low watermark and the first deletion.

**History.** Each record names the attempt id of the record before it. If the last record of this process is missing, or
the next record does not follow it, then the log was restored from a backup. Every method then raises
`DifferentHistoryError` until the table is opened again. The last record is checked together with the low watermark, and
before each commit on a local disk.

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
from streamhouse_spark.log.checkpoint import Checkpoint, CheckpointWriter, no_checkpoint_error
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
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation, mixed_history_remedy
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, find_latest_watermark
from streamhouse_spark.log.object_existence import list_staged_uuids, must_check_stored, require_stored
from streamhouse_spark.log.record import (
    RecentRows,
    Record,
    RecordBody,
    encode_record,
    has_record,
    iter_records,
    next_record_time,
    read_attempt,
    read_record,
    starts_with_attempt,
)
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult, Slot, ensure_stored

E = TypeVar("E", bound=BaseException)
CONFLICTS_MAX = 1000
FAILURES_MAX = 5
WATERMARK_CHECK_MS = 60_000
"""Time for which a check of the low watermark, or of the last record of this process, remains valid."""


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
        """Create a log that reads storage at its first use.

        ``prefetched`` holds objects that were read together with the objects of other logs. A given ``state`` was
        stored at ``since_ms`` of boot time or later, in a log without a low watermark.
        """
        self._storage = storage
        self._prefetched = prefetched
        self._table_uuid = table_uuid
        self._world = world
        self._state = state
        self._low_watermark = 0
        self._watermark_index = 0
        self._watermark_checked_ms = since_ms
        self._checkpointing = CheckpointWriter(storage)
        self._recent_rows = self._read_rows = RecentRows()
        self._damaged_checkpoints: Sequence[StreamhouseError] = ()
        self._history_checked_ms = since_ms
        self._restored_message: str | None = None
        self._queue = CommitQueue()
        self._lock = new_lock()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Drop the requests of the parent's threads, which a forked child does not have."""
        self._queue = CommitQueue()

    @property
    def table_uuid(self) -> str:
        return self._table_uuid

    @property
    def state(self) -> TableState:
        """The latest state in memory. Reads storage only if the log was not read yet."""
        return self._state or self.refresh()

    @property
    def is_stale_history(self) -> bool:
        """Whether the log was restored from a backup. Every method of this object then raises."""
        return self._restored_message is not None

    @property
    def cached_state(self) -> TableState | None:
        """The latest state in memory; None before the log was read."""
        return self._state

    @property
    def recent_rows(self) -> RecentRows:
        """Inline rows of the latest records, cached when records are read from a remote store."""
        return self._recent_rows

    @property
    def watermark_index(self) -> int:
        """Index of the latest low watermark that was read; 0 for none."""
        return self._watermark_index

    def refresh(self) -> TableState:
        """Read the log to its tail and return the latest state.

        Raises:
            TableNotFoundError: the table has no first record.
            DifferentHistoryError: the log was restored from a backup. Permanent, because other caches of the process
                may be out of date too.
        """
        return self._refresh(must_check_history=False)

    def refresh_at_most(self, num_records: int) -> TableState:
        """Read on like `refresh`, but on a remote store only ``num_records`` records, in one round trip."""
        return self._refresh(must_check_history=False, at_most=num_records)

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
        request = PendingCommit(plan, transaction, staged_ms, self._world.ids.new_uuid(), is_shared)
        try:
            self._queue.add(request)
            result = self._wait_or_lead(request)
        finally:
            self._queue.remove(request)
        if result.wrote and result.is_first:
            self._checkpointing.store_if_due(result.state, self._watermark_index, self._low_watermark)
        return result

    def checkpoint(self, state: TableState) -> None:
        """Store a checkpoint. It is derived from records, so a failure is logged and only slows the next opener."""
        self._checkpointing.store(state, self._watermark_index, self._low_watermark)

    def relation(self, mark: HistoryPoint) -> HistoryRelation:
        """Return whether a position belongs to the history of this log.

        Sends one request if the state's index does not cover the record. Below the low watermark a slow writer may have
        put another record under a deleted number. A different attempt therefore proves nothing there.
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
        is_void = mark.number < self.refresh_low_watermark()
        return HistoryRelation.UNKNOWN if attempt is None or is_void else HistoryRelation.OTHER

    def require_history(self, marks: Iterable[HistoryPoint | None], who: str) -> None:
        """Raise `DifferentHistoryError` unless the records ``marks`` are in the history of this log.

        ``who`` names the owner of the position in the error text. No request is sent for recent records.
        """
        for mark in {mark for mark in marks if mark is not None}:
            if self.relation(mark) is HistoryRelation.OTHER:
                raise different_history_error(self.state.name, mark, who)

    def refresh_low_watermark(self) -> int:
        """Read and return the low watermark: records below it are void."""
        return self._read_low_watermark(self._world.clock.boot_ms())

    # -- committing ----------------------------------------------------------------------------------------------------

    def _wait_or_lead(self, request: PendingCommit) -> CommitResult:
        """Return the request's result, from another thread's record or after leading, with retries.

        If a leader is interrupted, the next one finds the followers' attempts in the log or writes them again.
        """
        while True:
            failures, tries = request.failures, request.tries
            if not self._queue.wait(request):
                with self._lock:
                    if not request.is_done and request.tries == tries:
                        self._lead(request)
                    if not request.is_done:
                        has_failed = request.failures > failures
                        request.error = terminal_error(request, self._storage, self._table_uuid, has_failed=has_failed)
            if request.error is not None:
                raise request.error
            if request.result is not None:
                return request.result
            if request.tries != tries:
                self._world.clock.sleep_ms(request.retry_delay_ms * self._world.ids.jitter())

    def _lead(self, leader: PendingCommit) -> None:
        """Write one record for the leader and the requests that are queued with it. The caller holds the log's lock."""
        self._queue.is_led = True
        try:
            self._queue.wait_for_followers(leader)
            with self._storage.commit_lock(f"{commits_prefix(self._table_uuid)}.lock"):
                self._write_group(leader)
        except BaseException as error:
            leader.error = error  # so that no later leader writes a failed request
            raise
        finally:
            self._queue.note_group_size()
            self._queue.is_led = False
            self._queue.wake()

    def _write_group(self, leader: PendingCommit) -> None:
        builder = self._build_on_known_state(leader) or self._build_on_latest_state(leader)
        if builder.requests:
            self._put_group(builder)

    def _build_on_known_state(self, leader: PendingCommit) -> RecordBuilder | None:
        """Build a record on the state in memory without reading the log: the put shows whether the state is the latest.

        Returns None on a local disk, where a read costs little, and if the state may be too old. Also returns None if
        only the latest state can decide the leader's request.
        """
        before, now_ms = self._state, self._world.clock.boot_ms()
        checked_ms = min(self._watermark_checked_ms, self._history_checked_ms)
        if (
            self._is_local
            or before is None
            or self._restored_message is not None
            or now_ms - checked_ms > WATERMARK_CHECK_MS
        ):
            return None
        builder = self._new_builder(before)
        for request in self._queue.eligible_for(leader):
            if (not builder.try_add(request, self._require_stored) and request is leader) or builder.is_full:
                break
        return builder if leader in builder.requests else None

    def _build_on_latest_state(self, leader: PendingCommit) -> RecordBuilder:
        """Read the log to its tail and build a record. It is empty if every request was decided without one."""
        builder = self._new_builder(self._refresh_for_commit(leader))
        for request in self._queue.eligible_for(leader):
            # Without a record only the leader is decided: the state may be older than a follower's request.
            if not self._validate(request, builder) or leader.is_done or builder.is_full:
                break
        return builder

    def _refresh_for_commit(self, request: PendingCommit) -> TableState:
        """Return the latest state. If an earlier put may still be stored, a failed read leaves its outcome unknown."""
        try:
            return self._refresh(must_check_history=self._is_local)
        except StorageError as error:
            if not may_still_be_stored(request, self._storage):
                raise
            raise CommitStateUnknownError(
                f"commit to {self._storage.url} failed, then its log could not be read: {error}; check $commits "
                "before writing the rows again",
            ) from error

    def _new_builder(self, before: TableState) -> RecordBuilder:
        number, now_ms, author = before.version + 1, self._storage.now_ms(), self._world.author
        time_ms = next_record_time(before.time_ms, now_ms)
        return RecordBuilder(
            before, Record(number, self._table_uuid, "", time_ms, (), after=before.attempt, author=author)
        )

    def _validate(self, request: PendingCommit, builder: RecordBuilder) -> bool:
        """Add the request to the record, or set its result or error. Return whether the record has room for more.

        A request that is decided by the requests before it in the record stays undecided until that record is stored.
        """
        before = builder.before
        result: CommitResult | None = None
        try:
            if request.stored_result is not None:  # a put that timed out reached the store
                result = require_durable(self._storage, self._table_uuid, request, request.stored_result)
            elif (entry := find_stored_transaction(builder.state, request.transaction)) is not None:
                result = CommitResult(before, before, entry)
            elif actions := tuple(builder.plan(request)):
                require_actions_allowed(builder.state, actions, request.transaction)
                self._require_stored(before, actions, request.staged_ms)
                return builder.add(request, actions)
            else:
                result = CommitResult(before, before)
        except Exception as error:  # noqa: BLE001 - a rejected request fails alone
            if not builder.requests:
                request.error = rejection_error(error, request, self._storage)
            return True
        if request.stored_result is not None or not builder.requests:
            request.result = result
        return True

    def _require_stored(self, before: TableState, actions: Sequence[Action], staged_ms: int) -> None:
        """Require that a restore has not removed the staged files that a record names.

        Raises `DifferentHistoryError`, `CommitConflictError`.
        """
        uuids = list_staged_uuids(actions)
        if uuids and must_check_stored(self._storage, staged_ms):
            self._require_same_history(before, is_certain=self._is_local)
            require_stored(self._storage, before, uuids)

    def _put_group(self, builder: RecordBuilder) -> None:
        """Put the record and set the result, failure or conflict of each of its requests."""
        requests = builder.requests
        record = builder.record(requests[0].attempt if len(requests) == 1 else self._world.ids.new_uuid())
        for request in requests:
            request.unanswered += 1  # not decremented if this thread is interrupted
        try:
            stored, failure = self._put_record(record, builder.body)
            is_mine = stored is not None and stored.attempt == record.attempt
            state = self._state_after_put(builder.before, stored) if stored is not None and is_mine else None
        except CommitStateUnknownError as error:
            for request in requests:
                if request.transaction is not None and self._state is None:  # the next state shows its outcome
                    self._queue.renew_attempt(request, self._world.ids.new_uuid())
                else:
                    request.error = error_for_attempt(error, record.attempt, request.attempt)
            return
        for request in requests:
            if stored is None:
                request.failures += 1
                request.rejections += isinstance(failure, StorageRefusedError)
                request.failure = failure and error_for_attempt(failure, record.attempt, request.attempt)
            elif not is_mine:
                request.conflicts, request.has_unchecked_race = request.conflicts + 1, True
                request.failure = failure and error_for_attempt(failure, record.attempt, request.attempt)
            elif state is None:  # the record is void
                self._queue.renew_attempt(request, self._world.ids.new_uuid())
            else:
                request.result = request.stored_result
            request.unanswered -= 1

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
            result = slot.read_back(error)  # an earlier put of this attempt may have been stored
        else:
            result = slot.take(encoded.data)
        require_known_outcome(record, result, self._storage.url)
        return (encoded.stored if result.failure is None else result.stored), result.failure

    def _state_after_put(self, before: TableState, stored: Record) -> TableState | None:
        """Return the state after this process's record; None if the record is void, so that nothing was written.

        There are two cases if the low watermark is above the record. Either it was raised after the put, and the record
        is in the log. Or the number was free because an earlier record had been deleted, and this record is void. Later
        records decide, not the clock.
        """
        waited_ms = self._world.clock.boot_ms() - self._watermark_checked_ms
        try:
            if waited_ms > WATERMARK_CHECK_MS or self._is_local:
                # On a local disk the read is cheap, and the grace period is measured by a clock that jumps.
                self.refresh_low_watermark()
            relation = HistoryRelation.SAME
            if self._low_watermark > stored.number:  # another thread of this process may have read it
                relation = self._relation_below_watermark(stored)
        except (StorageError, CorruptDataError) as error:
            self._state = None
            raise unknown_outcome_error(self._storage.url, stored, str(error)) from error
        if relation is HistoryRelation.SAME:
            return self._advance(before, stored)
        self._state = None
        if relation is HistoryRelation.UNKNOWN:
            raise unknown_outcome_error(self._storage.url, stored, "the records after it are deleted")
        return None

    def _relation_below_watermark(self, stored: Record) -> HistoryRelation:
        """Return the relation to the log of a record of this process below the low watermark.

        The next record names the attempt that it follows. If the next record is deleted, a checkpoint may still have
        the attempt. If neither shows it, the result is `UNKNOWN`: the grace period has passed since the put, or the
        record was void from the start. Raises `StorageError`, `CorruptDataError`.
        """
        if self._low_watermark >= DROPPED_WATERMARK:
            return HistoryRelation.OTHER
        prefetch = Prefetch(self._storage)
        try:
            following, _ = read_record(self._storage, self._table_uuid, stored.number + 1, prefetch)
        except ObjectNotFoundError:
            checkpoint, _ = load_start_state(self._storage, self._table_uuid, self._low_watermark - 1, prefetch)
            mark = HistoryPoint(stored.number, stored.attempt)
            return HistoryRelation.UNKNOWN if checkpoint is None else checkpoint.state.anchors.relation(mark)
        if following.after is None:
            return HistoryRelation.UNKNOWN
        return HistoryRelation.SAME if following.after == stored.attempt else HistoryRelation.OTHER

    def _advance(self, before: TableState, stored: Record) -> TableState:
        """Advance to the state after a record of this process.

        The results are set before the state, so that an interrupt between the two loses no result.
        """
        state = fold(before, stored)
        self._queue.set_stored_results(dict(results_of_record(before, state, stored)))
        self._state = state
        self._history_checked_ms = self._world.clock.boot_ms()
        return state

    # -- reading -------------------------------------------------------------------------------------------------------

    def _refresh(self, *, must_check_history: bool, at_most: int | None = None) -> TableState:
        """Read the log to its tail.

        If records after the state in memory were deleted, reading starts again at a checkpoint. With
        ``must_check_history`` the last record is checked even if it was checked recently.
        """
        with self._lock:
            if self._restored_message is not None:
                raise DifferentHistoryError(self._restored_message)
            for _ in range(FAILURES_MAX):
                state = self._read_to_tail(must_check_history=must_check_history, at_most=at_most)
                if state is not None:
                    return state
                if self._low_watermark >= DROPPED_WATERMARK:
                    raise TableNotFoundError(f"table {self._table_uuid} of {self._storage.url} was dropped and deleted")
                self._state = None
            raise no_checkpoint_error(self._storage, self._table_uuid, self._low_watermark, self._damaged_checkpoints)

    def _read_to_tail(self, *, must_check_history: bool, at_most: int | None) -> TableState | None:
        """Advance the state to the tail and return it; None if needed records may have been deleted."""
        is_opening = self._state is None
        prefetched = self._prefetched or PrefetchedLog(Prefetch(self._storage), self._world.clock.boot_ms())
        self._prefetched, prefetch = None, prefetched.prefetch
        start = self._state or self._load_start(prefetch)
        read_from = start.version + 1 if start is not None else 1
        own_results: dict[str, CommitResult] = {}
        damage: CorruptDataError | None = None
        state, self._read_rows = start, RecentRows()
        try:
            state = self._fold_to_tail(start, own_results, prefetch, None if is_opening else at_most)
        except CorruptDataError as error:
            damage = error
        if not is_opening and start is not None and state is start:
            # Before the low watermark is compared, because this may read it.
            self._require_same_history(start, is_certain=must_check_history or damage is not None)
        if is_opening and state is not None:
            prefetch.expect([commit_key(self._table_uuid, state.version + 2)])
        if not self._may_trust_records_from(read_from, prefetched if is_opening else None):
            return None
        if damage is not None:
            raise damage
        if state is None:
            raise TableNotFoundError(
                f"table {self._table_uuid} has no commit log under {self._storage.url}; was it deleted?",
            )
        if is_opening:
            state = self._require_no_gap(state, own_results, prefetch)
        if state is not start:
            self._history_checked_ms = self._world.clock.boot_ms()
        self._queue.mark_races_checked()
        self._queue.set_stored_results(own_results)
        self._state, self._recent_rows = state, self._recent_rows.with_newer(self._read_rows)
        return state

    def _load_start(self, prefetch: Prefetch) -> TableState | None:
        """Return the state of the latest checkpoint; None to read from the first record."""
        self._queue.fail_unresolved(self._storage.url)
        checkpoint, self._damaged_checkpoints = load_start_state(
            self._storage, self._table_uuid, self._low_watermark - 1, prefetch
        )
        return self._adopt_checkpoint(checkpoint) if checkpoint is not None else None

    def _adopt_checkpoint(self, checkpoint: Checkpoint) -> TableState:
        self._checkpointing.note_start(checkpoint)
        if checkpoint.watermark_index > self._watermark_index:
            self._watermark_index = checkpoint.watermark_index
            self._low_watermark = max(self._low_watermark, checkpoint.low_watermark)
        return checkpoint.state

    def _fold_to_tail(
        self,
        state: TableState | None,
        own_results: dict[str, CommitResult],
        prefetch: Prefetch,
        at_most: int | None = None,
    ) -> TableState | None:
        """Return the state at the tail, and add the results of this process's queued attempts to ``own_results``.

        A process that lags far behind the tail continues at a later checkpoint instead of reading every record.
        """
        previous, number = self._state, state.version + 1 if state is not None else 1
        for record in iter_records(
            prefetch, self._table_uuid, number, self._read_rows if prefetch.is_useful else None, at_most
        ):
            before, state = state, fold(state, record)
            if before is not None and any(part.attempt in self._queue for part in record.attempts):
                own_results.update(results_of_record(before, state, record))
            if previous is not None:  # the record of an own attempt is never skipped: it is the next one
                later = find_later_checkpoint(
                    prefetch, self._table_uuid, state.version - previous.version, state.version
                )
                if later is not None:
                    return self._fold_to_tail(self._adopt_checkpoint(later), own_results, prefetch)
        return state

    def _require_no_gap(
        self, state: TableState, own_results: dict[str, CommitResult], prefetch: Prefetch
    ) -> TableState:
        """Return the state at the tail. Raise `CorruptDataError` if a record is missing and later ones exist."""
        while has_record(prefetch, self._table_uuid, state.version + 2):
            tail, state = state.version, self._fold_to_tail(state, own_results, Prefetch(self._storage)) or state
            if state.version == tail:
                raise CorruptDataError(
                    f"{url_of(self._storage, commit_key(self._table_uuid, tail + 1))} is missing although records "
                    f"follow it; restore this file. {mixed_history_remedy(self._table_uuid, tail + 1)}",
                )
        return state

    def _require_same_history(self, state: TableState, *, is_certain: bool) -> None:
        """Raise `DifferentHistoryError` if the last record of this process is no longer the stored one."""
        now_ms = self._world.clock.boot_ms()
        if not is_certain and now_ms - self._history_checked_ms <= WATERMARK_CHECK_MS:
            return
        if not self._has_last_record(state):
            where = url_of(self._storage, commit_key(self._table_uuid, state.version))
            self._restored_message = (
                f"{state.name} ({state.table_uuid}): this process read record {state.version} of attempt "
                f"{state.attempt}, but {where} is another record now: the table was restored from a backup, or "
                "replaced by another copy. Nothing was written. Open the table again; restart running streams"
            )
            raise DifferentHistoryError(self._restored_message)
        self._history_checked_ms = now_ms

    def _has_last_record(self, state: TableState) -> bool:
        """Return whether the log still contains the state's last record, with the same attempt id.

        True if this cannot be determined, because the record is below the low watermark or damaged. Usually reads only
        the head of the record, because this check runs before each commit on a local disk.
        """
        newest = state.anchors.newest
        if newest is None or newest.number < self.refresh_low_watermark():
            return True
        if starts_with_attempt(self._storage, self._table_uuid, newest.number, newest.attempt):
            return True
        stored_attempt = read_attempt(self._storage, self._table_uuid, newest.number)
        if stored_attempt is not None:
            return stored_attempt == newest.attempt
        if has_record(self._storage, self._table_uuid, newest.number):
            return True  # damaged: the next reader that needs the record raises
        return newest.number < self.refresh_low_watermark()

    def _may_trust_records_from(self, read_from: int, prefetched: PrefetchedLog | None) -> bool:
        """Return whether no record with the number ``read_from`` or a later one can have been deleted.

        A prefetched low watermark remains valid as long as any other.
        """
        now_ms = self._world.clock.boot_ms()
        if prefetched is not None and now_ms - prefetched.since_ms <= WATERMARK_CHECK_MS:
            self._read_low_watermark(prefetched.since_ms, prefetched.prefetch)
        elif self._state is None or now_ms - self._watermark_checked_ms > WATERMARK_CHECK_MS:
            self.refresh_low_watermark()
        return self._low_watermark <= read_from

    def _read_low_watermark(self, checked_ms: int, prefetch: Prefetch | None = None) -> int:
        index, latest = find_latest_watermark(self._storage, self._table_uuid, self._watermark_index, prefetch=prefetch)
        if latest is not None:
            self._watermark_index, self._low_watermark = index, max(self._low_watermark, latest.number)
        self._watermark_checked_ms = checked_ms
        return self._low_watermark

    @property
    def _is_local(self) -> bool:
        """Whether the store is a local disk, where a read costs little."""
        return self._storage.local_path("") is not None


def different_history_error(table: str, mark: HistoryPoint, who: str) -> DifferentHistoryError:
    return DifferentHistoryError(
        f"{who} at record {mark.number} of attempt {mark.attempt}, which is missing from the log of {table}: the table "
        "was restored from a backup. Nothing was written; retry with the current table"
    )


def terminal_error(
    request: PendingCommit, storage: Storage, table_uuid: str, *, has_failed: bool
) -> StreamhouseError | None:
    """Return the error of a request that must not be retried; None to retry.

    The caller holds the log's lock, so that no other thread commits the request afterwards. ``has_failed`` says whether
    the last put failed.
    """
    failures, failure, url = request.failures, request.failure, storage.url
    if has_failed and request.is_rejected_by_store:
        return failure
    if failures >= FAILURES_MAX and failure is not None:
        if not may_still_be_stored(request, storage):
            return failure
        return CommitStateUnknownError(  # a request in flight may still store it
            f"commit to {url} failed {failures} times, and the record is not stored yet: {failure}; check $commits "
            "before writing the rows again",
        )
    if request.conflicts >= CONFLICTS_MAX:
        error = CommitConflictError(
            f"commit to {url}/{commits_prefix(table_uuid)} lost {request.conflicts} races in a row; nothing was "
            "written, retry, or write fewer, larger batches",
        )
        return rejection_error(error, request, storage)
    return None


def may_still_be_stored(request: PendingCommit, storage: Storage) -> bool:
    """Return whether an attempt that is not in the log may still be stored.

    An interrupted thread may store it, or a request to the store that timed out. A local disk has no requests in
    flight.
    """
    return request.unanswered > 0 or (request.may_be_in_flight and storage.local_path("") is None)


def rejection_error(error: E, request: PendingCommit, storage: Storage) -> E | CommitStateUnknownError:
    """Return the error to raise for a request that the latest state rejects with ``error``.

    A conflict promises that nothing was written. That promise cannot be made while an interrupted thread may have
    stored the attempt. Every other rejection depends on the state alone and holds for that attempt too.
    """
    if not request.unanswered or not isinstance(error, CommitConflictError):
        return error
    unknown = CommitStateUnknownError(
        f"commit to {storage.url} conflicts ({error}), and the thread that first wrote it was interrupted; search "
        f"$commits for attempt {request.attempt} before writing the rows again",
    )
    unknown.__cause__ = error
    return unknown


def require_durable(storage: Storage, table_uuid: str, request: PendingCommit, result: CommitResult) -> CommitResult:
    """Return the result of an attempt that was found in the log, after syncing its record to disk."""
    if request.unanswered:
        try:
            storage.ensure_durable(commit_key(table_uuid, result.state.version))
        except StorageError as error:
            raise not_durable_error(storage.url, result.state.version, request.attempt, error) from error
    return result


def require_known_outcome(record: Record, result: PutResult[Record], url: str) -> None:
    """Raise `CommitStateUnknownError` if the put may have stored the record, or the record may not be durable."""
    if result.outcome is PutOutcome.UNREADABLE:
        raise CommitStateUnknownError(
            f"commit of record {record.number} to {url}: the record cannot be read back ({result.read_error}); search "
            f"$commits for attempt {record.attempt} before writing the rows again",
        ) from result.read_error
    if result.outcome is PutOutcome.NOT_DURABLE:
        raise not_durable_error(url, record.number, record.attempt, result.failure) from result.read_error


def not_durable_error(url: str, number: int, attempt: str, failure: Exception | None) -> CommitStateUnknownError:
    """Return the error of a record that is visible but may be lost by a power loss."""
    return CommitStateUnknownError(
        f"record {number} of {url} is visible but may not survive a power loss ({failure}); check the disk, then "
        f"search $commits for attempt {attempt}",
    )


def unknown_outcome_error(url: str, stored: Record, reason: str) -> CommitStateUnknownError:
    """Return the error of a record below the low watermark, which may be void."""
    return CommitStateUnknownError(
        f"commit of record {stored.number} to {url} took so long that the record may be void, and the records that "
        f"show it cannot be read ({reason}); search $commits for attempt {stored.attempt}, or the table for its rows, "
        "before writing them again",
    )
