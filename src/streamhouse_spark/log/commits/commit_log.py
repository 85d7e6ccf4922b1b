"""The commit log of one table: its one mutable thing.

**Commit point** of every change: put-if-absent of ``commits/<N+1>``. Before it nothing is visible, after it everything
is. The record is a slot (see `storage.slots`): whatever a put reports, the record at N+1 is read back and its
attempt compared.

**The tail** is found by reading N+1, N+2, …, never by listing. Records may be deleted below a floor (see
`log.commits.checkpoint`), so what was read from N+1 on, absent or present, counts only when the newest
floor, read afterwards or less than `FLOOR_CHECK_MS` of boot time before, is at most N+1. That is far less than the
grace between a floor and the first deletion. Floors are read at opening, and again when so much time passed.

**The chain.** Each record names the attempt before it. A process whose newest record is not the one that a record
follows, or is no longer there, stands in another history than the log, which was restored under it: it reads and writes
no more (`DifferentHistoryError`), and has to open the table anew. That the record which it stands on is still there is
looked for with the floor, about once a minute, and on a local disk before each commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.forks import new_lock, renew_in_children
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.core.paths import commit_key, commits_prefix, manifest_key
from streamhouse_spark.errors import (
    CommitStateUnknownError,
    CorruptDataError,
    DifferentHistoryError,
    StorageError,
    StorageRefusedError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.log.commits import failed_commits, standing
from streamhouse_spark.log.commits import record as records
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.anchors import HistoryMark, Relation, out_of_mixed
from streamhouse_spark.log.commits.checkpoint import DROPPED_FLOOR, Checkpoint, Checkpointing, no_checkpoint
from streamhouse_spark.log.commits.floors import newest_floor
from streamhouse_spark.log.commits.group import Group, outcomes
from streamhouse_spark.log.commits.offers import shared_turn
from streamhouse_spark.log.commits.opening import Asked, begin, leap
from streamhouse_spark.log.commits.record import Body, Record, encode_record, has_record, read_record, records_from
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.log.commits.stored_objects import is_to_be_looked_for, require_stored, staged_uuids
from streamhouse_spark.log.commits.transaction_outcome import known_transaction, require_live
from streamhouse_spark.log.commits.waiting import Calls, Committed, Plan, Rivals, Waiting, told
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.read_ahead import ReadAhead
from streamhouse_spark.storage.slots import Slot, fill

FLOOR_CHECK_MS = 60_000


class CommitLog:
    """One process's view of a table's log. Safe for use by several threads; `state` never goes back."""

    def __init__(
        self,
        storage: Storage,
        table_uuid: str,
        world: World,
        *,
        asked: Asked | None = None,
        state: TableState | None = None,
        since_ms: int = 0,
    ) -> None:
        """``asked`` has what was asked for already, together with other logs. ``state`` is one that was stored, not
        before ``since_ms`` of boot time: until then the log had no floor.
        """
        self._storage = storage
        self._asked = asked
        self._table_uuid = table_uuid
        self._world = world
        self._state = state
        self._floor = 0
        self._floor_index = 0
        self._floor_checked_ms = since_ms
        self._checkpointing = Checkpointing(storage)
        self._recent = self._looked = records.RecentRows()
        self._damaged: Sequence[StreamhouseError] = ()
        self._stood_ms = since_ms
        self._rivals = Rivals()
        self._severed: str | None = None
        self._calls = Calls()
        self._lock = new_lock()
        renew_in_children(self)

    def renew_in_child(self) -> None:
        """Forget the calls of threads that a child does not have."""
        self._calls = Calls()

    @property
    def table_uuid(self) -> str:
        return self._table_uuid

    @property
    def state(self) -> TableState:
        """The newest known state; storage is asked only if none is known."""
        return self._state or self.refresh()

    @property
    def is_severed(self) -> bool:
        """Whether the log was restored under this object, which can then only be thrown away."""
        return self._severed is not None

    @property
    def known(self) -> TableState | None:
        """The newest known state; None before storage was asked."""
        return self._state

    @property
    def recent_rows(self) -> records.RecentRows:
        """The rows in the newest records that a look at a store with requests read."""
        return self._recent

    @property
    def floor_index(self) -> int:
        """Index of the newest floor that `check_floor` found; 0 for none."""
        return self._floor_index

    def refresh(self) -> TableState:
        """Read forward to the tail.

        Raises `TableNotFoundError` if the table has no first record, `DifferentHistoryError` if the log is no longer
        the one that was read before: for good, because other parts of this object may be out of date too.
        """
        return self._refreshed(stands=False)

    def look(self, at_most: int) -> TableState:
        """Read on, as `refresh` does; where requests take long for one round trip only, in which so many come."""
        return self._refreshed(stands=False, at_most=at_most)

    def _refreshed(self, *, stands: bool, at_most: int | None = None) -> TableState:
        """Read forward. With ``stands``, check in any case that the newest known record is still stored."""
        with self._lock:
            if self._severed is not None:
                raise DifferentHistoryError(self._severed)
            for _ in range(failed_commits.FAILURES_MAX):
                opening = self._state is None
                asked = self._asked or Asked(ReadAhead(self._storage), self._world.clock.boot_ms())
                self._asked, ahead = None, asked.ahead
                start = self._state or self._opened(ahead)
                read_from = start.version + 1 if start is not None else 1
                own: dict[str, Committed] = {}
                damage: CorruptDataError | None = None
                state, self._looked = start, records.RecentRows()
                try:
                    state = self._read_forward(start, own, ahead, None if opening else at_most)
                except CorruptDataError as error:
                    damage = error
                if not opening and start is not None and state is start:  # may read the floor, so before it is compared
                    self._require_standing(start, is_certain=stands or damage is not None)
                if opening and state is not None:
                    ahead.expect([commit_key(self._table_uuid, state.version + 2)])
                if self._floor_allows(read_from, asked if opening else None):
                    if damage is not None:
                        raise damage
                    if state is None:
                        raise TableNotFoundError(
                            f"table {self._table_uuid} has no commit log under {self._storage.url}; was it deleted?",
                        )
                    if opening:
                        state = self._without_hole(state, own, ahead)
                    if state is not start:
                        self._stood_ms = self._world.clock.boot_ms()
                    self._calls.landed(own)
                    self._state, self._recent = state, self._recent.before(self._looked)
                    return state
                if self._floor >= DROPPED_FLOOR:
                    raise TableNotFoundError(f"table {self._table_uuid} of {self._storage.url} was dropped and deleted")
                self._state = None  # records that we needed were deleted, or re-opened: begin at a checkpoint
            raise no_checkpoint(self._storage, self._table_uuid, self._floor, self._damaged)

    def commit(
        self,
        plan: Plan,
        *,
        transaction: Transaction | None = None,
        staged_ms: int | None = None,
        is_shared: bool = False,
    ) -> Committed:
        """Commit the actions that ``plan`` returns for the newest state, as one record.

        Durable and visible to everybody when this returns. A ``transaction`` that is already stored writes nothing and
        returns its first outcome. ``staged_ms`` is the store time at which staging of the plan's files began; by
        default it began with this call. With ``is_shared``, calls of other threads that wait at the same time may go
        into the same record; ``plan`` is then called by any of these threads.

        Raises:
            CommitConflictError: too many lost races, or staged files are gone; nothing was written, trying again is
                safe.
            CommitStateUnknownError: storage failed before it could be seen whether the record is there.
            StorageError: storage failed and the record is not there; `StorageRefusedError` where it always will.
            TransactionConflictError: the application id belongs to another query.
            DifferentHistoryError: the log, or the stream's checkpoint, was restored; nothing was written.
            TableNotFoundError: the table was dropped.
        """
        if staged_ms is None:
            staged_ms = self._storage.now_ms()
        call = Waiting(plan, transaction, staged_ms, self._world.ids.new_uuid(), is_shared)
        try:
            self._calls.add(call)
            committed = self._answer(call)
        finally:
            self._calls.remove(call)
        if committed.state is not committed.before and committed.is_first:
            self._checkpointing.store_if_due(committed.state, self._floor_index, self._floor)
        return committed

    def _answer(self, call: Waiting) -> Committed:
        """Wait for the lock, and commit for all calls that wait then, unless another has answered this one meanwhile.

        **Commit point**: `_put`. A thread that is interrupted anywhere leaves the others' calls without an answer, and
        the next one to lead answers them: from their record, if it is in the log, else by a new one.
        """
        while True:
            failures, tries = call.failures, call.tries
            if not self._calls.wait(call):
                with self._lock:
                    if not call.is_done and call.tries == tries:
                        self._lead(call)
                    if not call.is_done:
                        has_failed = call.failures > failures
                        call.error = failed_commits.given_up(
                            call, self._storage, self._table_uuid, has_failed=has_failed
                        )
            if call.error is not None:
                raise call.error
            if call.outcome is not None:
                return call.outcome
            if call.tries != tries:
                self._world.clock.sleep_ms(call.backoff_ms * self._world.ids.jitter())

    def _lead(self, leader: Waiting) -> None:
        """Put one record for the leader and those that wait with it. Called under the lock."""
        self._calls.is_led = True
        try:
            self._calls.wait_for_company(leader)  # before other processes have to wait too
            lock = f"{commits_prefix(self._table_uuid)}.lock"
            with shared_turn(self._storage, lock, self._calls, leader, self._world, self.refresh, self._stood_ms):
                self._commit_for(leader)
        except BaseException as error:
            leader.error = error  # so that nobody commits for a call that has failed
            raise
        finally:
            self._calls.note_company()
            self._calls.is_led = False
            self._calls.wake()

    def _commit_for(self, leader: Waiting) -> None:
        known, is_new = self._state, not leader.tries
        if (group := self._group_ahead(leader)) is None:
            before = self._refresh_after(leader)
            group = self._group_behind(before)
            for call in self._calls.led_by(leader):
                if not self._judge(call, group, before) or leader.is_done or group.is_full:
                    break
        if group.members:
            self._put_group(group, group.before)
        if is_new and known is not None:
            self._rivals.note(were_first=leader.conflicts > 0 or known.version < group.before.version)

    def _group_behind(self, before: TableState) -> Group:
        number, now_ms, author = before.version + 1, self._storage.now_ms(), self._world.author
        time_ms = records.time_behind(before.time_ms, now_ms)
        return Group(before, Record(number, self._table_uuid, "", time_ms, (), after=before.attempt, author=author))

    def _group_ahead(self, leader: Waiting) -> Group | None:
        """Return a group on the newest known state, whose put will tell whether that is the log's. None where a look
        costs nothing, where the state may be of long ago, or if the leader's call needs more than a put.
        """
        before, now_ms = self._state, self._world.clock.boot_ms()
        looked_ms = min(self._floor_checked_ms, self._stood_ms)
        if before is None or self._severed is not None or now_ms - looked_ms > FLOOR_CHECK_MS:
            return None
        if self._storage.local_path("") is not None or self._rivals.are_many:
            return None
        group = self._group_behind(before)
        for call in self._calls.led_by(leader):
            if (not group.joins(call, self._require_stored) and call is leader) or group.is_full:
                break
        return group if leader in group.members else None

    def _judge(self, call: Waiting, group: Group, before: TableState) -> bool:
        """Add the call to the group, or decide it. A decision that rests on others of the group waits for their
        record. Returns whether the group takes more.
        """
        outcome: Committed | None = None
        try:
            if call.landed is not None:  # a request that was given up reached the store after all
                outcome = failed_commits.require_durable(self._storage, self._table_uuid, call, call.landed)
            elif (entry := known_transaction(group.state, call.transaction)) is not None:
                outcome = Committed(before, before, entry)
            elif actions := tuple(group.planned(call)):
                require_live(group.state, actions, call.transaction)
                self._require_stored(before, actions, call.staged_ms)
                return group.add(call, actions)
            else:
                outcome = Committed(before, before)
        except Exception as error:  # noqa: BLE001 - it is the answer of this call alone
            if not group.members:
                call.error = failed_commits.refused(error, call, self._storage)
            return True
        if call.landed is not None or not group.members:
            call.outcome = outcome
        return True

    def _put_group(self, group: Group, before: TableState) -> None:
        """Put the record of the group, and give each member its own answer."""
        members = group.members
        record = group.record(members[0].attempt if len(members) == 1 else self._world.ids.new_uuid())
        for member in members:
            member.unanswered += 1
        try:
            stored, failure = self._put(record, group.body)
            is_mine = stored is not None and stored.attempt == record.attempt
            state = self._won(before, stored) if stored is not None and is_mine else None
        except CommitStateUnknownError as error:
            for member in members:
                member.error = told(error, record.attempt, member.attempt)
            return
        for member in members:
            if stored is None:
                member.failures += 1
                member.refusals += isinstance(failure, StorageRefusedError)
                member.failure = failure and told(failure, record.attempt, member.attempt)
            elif not is_mine:
                member.conflicts += 1
                member.failure = failure and told(failure, record.attempt, member.attempt)
            elif state is None:  # below a floor, so void: each is a new attempt
                self._calls.rename(member, self._world.ids.new_uuid())
            else:
                member.outcome = member.landed
            member.unanswered -= 1

    # -- reading --------------------------------------------------------------------------------------------------

    def _opened(self, ahead: ReadAhead) -> TableState | None:
        self._calls.lose_sight(self._storage.url)
        found, self._damaged = begin(self._storage, self._table_uuid, self._floor - 1, ahead)
        return self._at(found) if found is not None else None

    def _at(self, found: Checkpoint) -> TableState:
        self._checkpointing.begun_at(found)
        if found.floor_index > self._floor_index:  # its writer knew this floor: newer ones are looked for from there on
            self._floor_index, self._floor = found.floor_index, max(self._floor, found.floor)
        return found.state

    def _read_forward(
        self, state: TableState | None, own: dict[str, Committed], ahead: ReadAhead, at_most: int | None = None
    ) -> TableState | None:
        """Return the state at the tail. ``own`` gets the records of attempts that are under way in this process."""
        known, number = self._state, state.version + 1 if state is not None else 1
        for record in records_from(ahead, self._table_uuid, number, self._looked if ahead.is_useful else None, at_most):
            before, state = state, fold(state, record)
            if before is not None and any(part.attempt in self._calls for part in record.attempts):
                own.update(outcomes(before, state, record))
            if known is not None:  # an attempt of this process that landed is the first of the news
                found = leap(ahead, self._table_uuid, state.version - known.version, state.version)
                if found is not None:
                    return self._read_forward(self._at(found), own, ahead)
        return state

    def _without_hole(self, state: TableState, own: dict[str, Committed], ahead: ReadAhead) -> TableState:
        """Return the state at the tail, after checking that the tail is not a missing record with others behind it."""
        while has_record(ahead, self._table_uuid, state.version + 2):
            tail, state = state.version, self._read_forward(state, own, ReadAhead(self._storage)) or state
            if state.version == tail:
                raise CorruptDataError(
                    f"{url_of(self._storage, commit_key(self._table_uuid, tail + 1))} is missing although records "
                    f"follow it; restore this file. {out_of_mixed(self._table_uuid, tail + 1)}",
                )
        return state

    def _require_standing(self, state: TableState, *, is_certain: bool) -> None:
        """Raise `DifferentHistoryError` if the newest known record is no longer the stored one."""
        now_ms = self._world.clock.boot_ms()
        if not is_certain and now_ms - self._stood_ms <= FLOOR_CHECK_MS:
            return
        if not standing.stands(self._storage, state, self.check_floor):
            self._severed = standing.restored(self._storage, state)
            raise DifferentHistoryError(self._severed)
        self._stood_ms = now_ms

    def relation(self, mark: HistoryMark) -> Relation:
        """Return the relation of a position to this log; its record is read if the state cannot tell and the record is
        kept.
        """
        state = self.state
        if mark.number > state.version:
            state = self.refresh()
        return standing.relation(self._storage, state, mark, self.check_floor)

    def require_history(self, marks: Iterable[HistoryMark | None], who: str) -> None:
        """Check that a position, taken when the log had the records ``marks``, is of this log. Nothing is written.

        Costs no request where the records are among the newest. Raises `DifferentHistoryError`.
        """
        for mark in {mark for mark in marks if mark is not None}:
            if self.relation(mark) is Relation.OTHER:
                raise standing.other_history(self.state.name, mark, who)

    def _floor_allows(self, read_from: int, asked: Asked | None) -> bool:
        """Tell whether records from ``read_from`` on were never deleted, so that reads there are the log. Floors that
        an opener asked for count for as long as others do.
        """
        now_ms = self._world.clock.boot_ms()
        if asked is not None and now_ms - asked.since_ms <= FLOOR_CHECK_MS:
            self._check_floor(asked.since_ms, asked.ahead)
        elif self._state is None or now_ms - self._floor_checked_ms > FLOOR_CHECK_MS:
            self.check_floor()
        return self._floor <= read_from

    def check_floor(self) -> int:
        """Read the newest floor: records below it are void."""
        return self._check_floor(self._world.clock.boot_ms())

    def _check_floor(self, checked_ms: int, ahead: ReadAhead | None = None) -> int:
        index, floor = newest_floor(self._storage, self._table_uuid, self._floor_index, ahead=ahead)
        if floor is not None:
            self._floor_index, self._floor = index, max(self._floor, floor.floor)
        self._floor_checked_ms = checked_ms
        return self._floor

    # -- committing -----------------------------------------------------------------------------------------------

    def _put(self, record: Record, body: Body) -> tuple[Record | None, StorageError | None]:
        """Try to put the record. Returns the one stored under its number, if any, and the storage's error."""
        encoded = encode_record(record, manifest_uuid := self._world.ids.new_uuid(), body)
        slot = Slot(
            self._storage,
            commit_key(self._table_uuid, record.number),
            lambda: read_record(self._storage, self._table_uuid, record.number)[0],
            lambda stored: stored.attempt == record.attempt,
        )
        try:
            if encoded.manifest is not None:
                fill(self._storage, manifest_key(self._table_uuid, manifest_uuid), encoded.manifest)
        except StorageError as error:
            taken = slot.look(error)  # for an earlier request of this attempt, which may have landed meanwhile
        else:
            taken = slot.take(encoded.data)
        failed_commits.require_known(record, taken, self._storage.url)
        return (encoded.stored if taken.failure is None else taken.stored), taken.failure

    def _require_stored(self, before: TableState, actions: Sequence[Action], staged_ms: int) -> None:
        """Check once more, before a record names objects, that nobody restored the table while they were staged.

        Raises `DifferentHistoryError`, `CommitConflictError`.
        """
        uuids = staged_uuids(actions)
        if uuids and is_to_be_looked_for(self._storage, staged_ms):
            self._require_standing(before, is_certain=self._storage.local_path("") is not None)
            require_stored(self._storage, before, uuids)

    def _refresh_after(self, call: Waiting) -> TableState:
        """Return the newest state. After a failed put on a remote store, only reading the tail tells the outcome."""
        try:
            return self._refreshed(stands=self._storage.local_path("") is not None)
        except StorageError as error:
            if not failed_commits.may_land_later(call, self._storage):
                raise
            raise CommitStateUnknownError(
                f"commit to {self._storage.url} failed, then its log could not be read: {error}; look at $commits "
                "before writing the rows again",
            ) from error

    def _won(self, before: TableState, stored: Record) -> TableState | None:
        """Return the state after this process's record; None where it is void, because it lay below a floor."""
        waited_ms = self._world.clock.boot_ms() - self._floor_checked_ms
        if waited_ms > FLOOR_CHECK_MS or self._storage.local_path("") is not None:
            # On a local disk reading the floor costs next to nothing, and the grace is counted by a clock that jumps.
            try:
                self.check_floor()
            except (StorageError, CorruptDataError) as error:
                self._state = None
                raise CommitStateUnknownError(
                    f"record {stored.number} of {self._storage.url} is stored, but took so long that it may be void, "
                    f"and the floor cannot be read ({error}); look for attempt {stored.attempt} in $commits",
                ) from error
        if self._floor > stored.number:  # also where others of this process read it meanwhile
            self._state = None
            return None
        return self._stored(before, stored)

    def _stored(self, before: TableState, stored: Record) -> TableState:
        """Go on to the state after a record of this process. The outcomes come first: whoever finds the state newer
        finds them.
        """
        state = fold(before, stored)
        self._calls.landed(dict(outcomes(before, state, stored)))
        self._state = state
        self._stood_ms = self._world.clock.boot_ms()
        return state

    def checkpoint(self, state: TableState) -> None:
        """Store a checkpoint. It is derived, so a failure is logged and only costs the next opener time."""
        self._checkpointing.store(state, self._floor_index, self._floor)
