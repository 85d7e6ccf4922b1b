"""Planted bugs of the commit log: races, group commit, idempotent appends, cleanup, checkpoints and slots."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from faults import histories, keyed_groups
from faults import interleave as il
from faults import scenarios as sc
from faults.faulty_storage import Fault, FaultyStorage
from faults.group_appends import AppendTogether, the_same_transaction_twice
from faults.planted_bugs.planting import Patch, PlantedBug
from faults.scenarios import Run, prepared
from faults.sleepers import check_sleepers
from faults.slot_model import check_all_ways
from faults.sweep import sweep_scenario
from faults.test_restored_writes import Staged, check_restored_before_each_call
from faults.turns import in_turns
from streamhouse_spark.core.types import TablePath, Transaction
from streamhouse_spark.core.warehouse_layout import (
    checkpoint_hint_key,
    checkpoint_key,
    name_key,
    parse_table_name,
    segment_key,
)
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ObjectExistsError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.kv import change_staging, log_replay, upsert_commit
from streamhouse_spark.kv.change_staging import WriteOverlay
from streamhouse_spark.log import append_commit, checkpoint, commit_log, commit_validation, staging, transactions
from streamhouse_spark.log import commit_log as commit_errors
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log import state as state_module
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.checkpoint import list_checkpoints, write_checkpoint
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc import garbage_collection, retention
from streamhouse_spark.log.gc import garbage_collection as checkpoint_verification
from streamhouse_spark.log.group_commit import (
    CommitQueue,
    CommitResult,
    PendingCommit,
    RecordBuilder,
    results_of_record,
)
from streamhouse_spark.log.history_index import HistoryIndex
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments import multi_bucket_writer
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.read import tail
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.snapshot_reader import read_hot_rows
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult, Slot
from streamhouse_spark.write import auto_compaction
from streamhouse_spark.write import log_writer as table_append

INFINITE_MS = 10**15

# -- histories ---------------------------------------------------------------------------------------------------------


def sweeping(scenario: type[sc.Scenario], *kinds: str, method: str = "put_if_absent") -> Callable[[], object]:
    """Return a sweep over the calls of one method. The whole sweep runs elsewhere without a bug."""
    return partial(sweep_scenario, scenario(), kinds=kinds, methods=(method,))


def interleaving(work: str, between: str, every: int = 1) -> Callable[[], object]:
    """Return a check of one pair of work and rival, which runs elsewhere without a bug."""
    return partial(il.check_interleavings, work, between, every=every)


def an_append_whose_outcome_stays_unknown() -> None:
    """The record is stored, but its response and the read-back are lost; later rows follow."""
    base = Run()
    base.create()
    base.append()
    base.prepare_batch(num_rows=4, row_chars=sc.LARGE)
    commit_at = il.calls_of(base, lambda run: run.send_batch()) - 1
    run = base.copy()
    run.start_process(FaultyStorage(run.memory, {commit_at: Fault.LOST_ACK, commit_at + 1: Fault.ERROR_BEFORE}))
    try:
        run.send_batch()
    except StreamhouseError as error:
        told_unknown = isinstance(error, CommitStateUnknownError)
    run.start_process(run.memory)
    run.append()
    run.check()
    assert told_unknown


def a_checkpoint_that_cannot_be_stored() -> None:
    base = Run()
    base.create()
    run = base.copy()

    def plan(_number: int, method: str, key: str) -> Fault | None:
        return Fault.ERROR_BEFORE if method == "put_if_absent" and "/checkpoints/" in key else None

    run.start_process(FaultyStorage(run.memory, plan))
    for _ in range(checkpoint.CHECKPOINT_INTERVAL + 1):
        run.append()
    run.check()


def a_restore_while_a_write_is_staged() -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_restored_before_each_call("local", Staged, "the same", Path(folder) / "place")


def an_old_transaction_sent_again() -> None:
    run = Run()
    run.create()
    first = run.append(transaction=Transaction("app", 1))
    run.append(transaction=Transaction("app", 2))
    run.start_process(run.memory)
    run.history.append(run.open(), run.history.batches[first.number])
    run.check()


@contextmanager
def rival_work(name: str, work: Callable[[Run], None]) -> Iterator[None]:
    """Register the work of another process for `check_interleavings`."""
    with mock.patch.dict(il.BETWEEN, {name: work}):
        yield


def a_cleaner_at_work_while_an_append_is_staged() -> None:
    """No process sleeps, so none may notice the cleanup."""

    def clean(run: Run) -> None:
        run.clock.advance(1000)
        il.rival(run).maintain()

    with rival_work("cleans", clean):
        il.check_interleavings("append objects", "cleans")


def a_reader_whose_segments_are_merged_and_cleaned() -> None:
    def merge_and_clean(run: Run) -> None:
        run.clock.advance(1000)
        for _ in range(4):
            il.rival_appends(run)
            il.rival(run).maintain()

    with rival_work("merges and cleans", merge_and_clean):
        il.check_interleavings("read", "merges and cleans")


def a_held_pin_while_others_merge_and_clean() -> None:
    """Within the grace period, pinned segments exist whatever concurrent writers merge and clean."""
    with il.small_limits():
        run = il.prepared_table()
        table = run.open()
        pin = take_latest_snapshot(table.refresh())
        projection = Projection.of(table.state.schema, None, None)

        def pinned() -> list[pa.Table]:
            return list(read_hot_rows(table, pin, projection))

        before = pinned()
        assert before
        for _ in range(3):
            run.clock.advance(1000)
            il.rival(run).maintain()
        assert table.refresh().version > pin.state.version
        assert pinned() == before


def days_of_writing_and_cleaning() -> None:
    with il.small_limits():
        run = Run()
        run.create()
        for _ in range(4):
            run.append()
            table = run.open()
            table.log.checkpoint(table.refresh())
            il.garbage_collection.clean(table.log, run.memory)
            run.clock.advance(25 * sc.HOUR_MS)
            run.observe()
        il.garbage_collection.clean(run.open().log, run.memory)
    run.check()


def a_writer_of_a_dropped_table() -> None:
    run = Run()
    run.create()
    run.append()
    sleeper = il.rival(run)
    run.warehouse.drop_table(sc.NAME)
    with pytest.raises(TableNotFoundError):
        run.history.append(sleeper, run.history.new_batch())


def a_reader_that_slept_meets_a_void_record() -> None:
    with il.small_limits():
        run = il.prepared_table()
        run.prepare_batch()
        reader, writer = il.rival(run), il.rival(run)
        il.a_day_passes_with_cleaning(run)
        assert run.batch is not None
        run.history.append(writer, run.batch)
        ids = sorted(reader.to_arrow().column("id").to_pylist())
    run.check()
    assert ids == sorted(run.observe().all_ids())


def a_merge_while_others_append_and_merge() -> None:
    def append_and_merge(run: Run) -> None:
        il.rival_appends(run)
        il.rival_merges(run)

    with rival_work("appends and merges", append_and_merge):
        il.check_interleavings("merge", "appends and merges")


def trim_a_table_without_a_lake() -> None:
    run = Run()
    run.create(properties={"table.log.ttl": "1h"})
    run.append()
    run.clock.advance(2 * sc.HOUR_MS)
    kept = [run.append(), run.append()]
    run.observe()
    run.open().maintain()
    assert sorted(run.open().to_arrow().column("id").to_pylist()) == [i for b in kept for i in b.ids]


def a_checkpoint_that_was_stored_wrong() -> None:
    """No process may open the table from this checkpoint, and no record may be deleted because of it."""

    class Rotten(FaultyStorage):
        def put_if_absent(self, key: str, data: Any) -> None:
            super().put_if_absent(key, bytes(data)[:-1] + b"?" if "/checkpoints/" in key else data)

    with il.small_limits():
        run = Run()
        run.create()
        run.start_process(Rotten(run.memory))
        for _ in range(4):
            run.append()
            run.open().maintain()
            run.clock.advance(25 * sc.HOUR_MS)
        run.start_process(run.memory)
        key = checkpoint_hint_key(run.open().uuid)
        assert not any(info.key == key for info in run.memory.list("")), "the hint names a damaged checkpoint"
        assert run.open().to_arrow().num_rows


def the_newest_checkpoint_is_damaged_after_a_floor() -> None:
    """Days of writing and cleanup with one checkpoint per day, then one flipped bit."""
    with il.small_limits(), mock.patch.object(checkpoint, "CHECKPOINT_INTERVAL", 1000):
        run = Run()
        run.create()
        for _ in range(4):
            for _ in range(4):
                run.append()
            run.observe()
            run.open().maintain()
            run.clock.advance(25 * sc.HOUR_MS)
    uuid = run.open().uuid
    key = checkpoint_key(uuid, list_checkpoints(run.memory, uuid)[-1])
    whole = run.memory.read(key)
    run.memory.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    run.start_process(run.memory)
    assert run.open().to_arrow().num_rows
    run.memory.put(key, whole)
    run.check()


def a_table_beside_a_damaged_one() -> None:
    run = Run()
    run.create()
    run.append()
    other = run.warehouse.create_table("sales.whole", "id BIGINT")
    pointer = name_key(parse_table_name(sc.NAME).path, 1)
    run.memory.put(pointer, run.memory.read(pointer)[:-1])
    assert set(run.warehouse.tables()) == {sc.NAME, "sales.whole"}
    other.append([{"id": 1}])
    assert run.warehouse.drop_table("sales.whole")


def a_bucket_that_is_trimmed_alone() -> None:
    """The bucket shares its object with another bucket, and the object is deleted with the last rows of both."""
    run = Run()
    with sc.shared_by_two():
        table = run.create()
        run.append(num_rows=8, row_chars=sc.LARGE)
    assert len({s.uuid for s in table.refresh().live_segments()}) == 1
    for bucket in (0, 1):
        end = table.refresh().buckets[bucket].end
        kept = sum(log.end - log.start for b, log in table.state.buckets.items() if b > bucket)
        table.log.commit(lambda _state, _ms, starts={bucket: end}: (Trim(starts),))
        for _ in range(2):
            run.clock.advance(25 * sc.HOUR_MS)
            table.maintain()
        assert run.warehouse.table(run.name).to_arrow().num_rows == kept
    assert not run.memory.list(f"tables/{table.uuid}/segments/")


def appends_together() -> None:
    run = prepared(scenario := AppendTogether())
    scenario.work(run)
    run.check()


def group_appends_at_every_put() -> None:
    sweep_scenario(AppendTogether(), methods=("put_if_absent",))


def appends_together_after_a_pause() -> None:
    """The cached state is too old to join calls to it, so the leader reads the log first."""
    with mock.patch.object(commit_log, "WATERMARK_CHECK_MS", -1):
        appends_together()


def appends_together_and_an_interrupt() -> None:
    """The thread that commits for all is interrupted after the put, before it notes an outcome."""
    run = prepared(AppendTogether())
    table, landed, interrupts = run.open(), CommitQueue.set_stored_results, [KeyboardInterrupt()]
    batches = [run.history.new_batch(2) for _ in range(3)]

    def interrupted(calls: CommitQueue, outcomes: Mapping[str, CommitResult]) -> None:
        if outcomes and interrupts:
            raise interrupts.pop()
        landed(calls, outcomes)

    with mock.patch.object(CommitQueue, "set_stored_results", interrupted):
        answers = in_turns([lambda b=b: run.history.append(table, b) for b in batches])
    assert [type(answer) for answer in answers].count(KeyboardInterrupt) == 1
    run.check()


# -- how the bugs are planted ------------------------------------------------------------------------------------------


def won_without_stale_floors(original: Any, self: CommitLog, before: TableState, stored: Record) -> Any:
    is_stale = self._world.clock.boot_ms() - self._watermark_checked_ms > commit_log.WATERMARK_CHECK_MS
    return original() if is_stale else self._advance(before, stored)


def put_taken_for_anothers(original: Any) -> Any:
    stored, failure = original()
    if failure is not None and stored is not None:
        stored = replace(stored, attempt="another's")
    return stored, failure


def put_despite_an_error(original: Any, record: Record) -> Any:
    stored, failure = original()
    return record if stored is None else stored, failure


def checkpoint_then_put(original: Any, self: CommitLog, record: Record) -> Any:
    if self._state is not None:
        write_checkpoint(self._storage, fold(self._state, encode_record(record, record.attempt).stored))
    return original()


def commit_or_delete_segments(original: Any, log: CommitLog, staged: staging.StagedRows) -> Any:
    try:
        return original()
    except StreamhouseError:
        for piece in staged.segments:
            if piece.segment.uuid is not None:
                log._storage.delete(segment_key(staged.table_uuid, piece.segment.uuid))
        raise


def commit_at_the_ends_of_staging(original: Any, log: CommitLog) -> Any:
    ends, appending = dict(log.state.ends), append_commit.make_append_action
    with mock.patch.object(
        append_commit, "make_append_action", lambda state, staged, ms, _: appending(state, staged, ms, ends)
    ):
        return original()


def merge_without_condemned(original: Any, log: CommitLog) -> Any:
    commit = log.commit

    def without_condemned(plan: Any, **kwargs: Any) -> Any:
        return commit(lambda state, ms: plan(replace(state, condemned={}), ms), **kwargs)

    with mock.patch.object(log, "commit", without_condemned):
        return original()


def known_in_its_newest_version(original: Any, transaction: Any) -> Any:
    entry = original()
    return entry if entry is None or entry.version == transaction.version else None


def plan_trim_of_one_more_segment(original: Any, state: TableState) -> Any:
    starts = dict(original())
    for bucket, start in starts.items():
        following = [s.end_offset for s in state.buckets[bucket].segments if s.base_offset == start]
        starts[bucket] = following[0] if following else start
    return starts


def write_checkpoint_unread(storage: Storage, state: TableState, watermark_index: int, low_watermark: int) -> None:
    with suppress(ObjectExistsError):
        data = checkpoint._encode_checkpoint(state, watermark_index=watermark_index, low_watermark=low_watermark)
        storage.put_if_absent(checkpoint_key(state.table_uuid, state.version), data)
    storage.put(checkpoint_hint_key(state.table_uuid), str(state.version).encode())


def named_tables_without_errors(storage: Storage, paths: Sequence[TablePath]) -> Any:
    return ((path, found) for path in paths if (found := names.resolve(storage, path)).uuid is not None)


def object_keys_without_sharing(state: TableState, segments: Sequence[Segment]) -> Any:
    return tuple({segment_key(state.table_uuid, s.uuid): None for s in segments if s.uuid is not None})


def catch_nothing() -> AbstractContextManager[None]:
    return nullcontext()


def neighbours_outcomes(original: Any) -> Any:
    found = list(original())
    answers = [answer for _, answer in found]
    return zip((attempt for attempt, _ in found), answers[1:] + answers[:1], strict=True)


def fail_members(builder: RecordBuilder) -> None:
    for member in builder.requests:
        member.error = CommitConflictError("one attempt of the record was rejected; nothing was written")
    builder.requests.clear()


def join_or_fail_all(original: Any, self: RecordBuilder) -> bool:
    has_joined = original()
    if not has_joined:
        fail_members(self)
    return has_joined


def judge_or_fail_all(original: Any, request: PendingCommit, builder: RecordBuilder) -> bool:
    num_members, takes_more = len(builder.requests), original()
    if len(builder.requests) == num_members and not request.is_done:
        fail_members(builder)
    return takes_more


def answer_then_put_group(original: Any, builder: RecordBuilder) -> None:
    before = builder.before
    coming = replace(builder.record("f" * 32), actions=builder.body.actions)
    answers = dict(results_of_record(before, fold(before, coming), coming))
    for member in builder.requests[1:]:
        member.result = answers[member.attempt]
    original()


def store_state_then_outcomes(self: CommitLog, before: TableState, stored: Record) -> TableState:
    self._state = state = fold(before, stored)
    self._queue.set_stored_results(dict(results_of_record(before, state, stored)))
    return state


def follow_with_the_first_changes(original: Any, self: Any) -> None:
    staged = self.staged
    original()
    self.staged = staged


def look_by_the_error_alone(original: Any, self: Slot[Any], failure: StorageError) -> PutResult[Any]:
    taken = original()
    is_anothers = isinstance(failure, ObjectExistsError) and taken.outcome is PutOutcome.WON
    return PutResult(PutOutcome.LOST, taken.stored, failure) if is_anothers else taken


def look_without_unreadable(original: Any, failure: StorageError) -> PutResult[Any]:
    taken = original()
    return PutResult(PutOutcome.NOT_STORED, failure=failure) if taken.outcome is PutOutcome.UNREADABLE else taken


def look_without_unsure(original: Any, failure: StorageError) -> PutResult[Any]:
    taken = original()
    return PutResult(PutOutcome.WON, taken.stored, failure) if taken.outcome is PutOutcome.NOT_DURABLE else taken


BELIEVES_STAGED_OBJECTS = Patch(commit_log, "require_stored", lambda: None)
FORGETS_OWN_ATTEMPTS = Patch(CommitLog, "_fold_to_tail", lambda original: original(own_results={}))
RETURNS_NEIGHBOURS_OUTCOMES = Patch(commit_log, "results_of_record", neighbours_outcomes)
JUDGES_ON_THE_STATE_BEFORE = Patch(
    RecordBuilder, "state", lambda original, self: replace(original(), transactions=self.before.transactions)
)
FAILS_ALL_THAT_JOINED = Patch(RecordBuilder, "try_add", join_or_fail_all)
MISSING_SEGMENT = ".../segments/....arrow is missing although the table names it"
STORED_TWICE = "acknowledged batch ...: rows are stored {...: 2, "

LOG_BUGS = (
    # the low watermark of the log, and the outcome of a put
    PlantedBug(
        "a reader ignores the low watermark", Patch(CommitLog, "_may_trust_records_from", lambda: True)
    ).found_by(
        a_reader_that_slept_meets_a_void_record,
        "SnapshotExpiredError: .../commits/...deleted when its grace period ended",
    ),
    PlantedBug(
        "an append is acknowledged without checking the low watermark",
        Patch(CommitLog, "_state_after_put", lambda self, before, stored: self._advance(before, stored)),
    ).found_by(interleaving("append inline", "sleeps for days"), "acknowledged batch 4: rows are stored {4000: 0"),
    PlantedBug(
        "only the thread that reads the low watermark compares it",
        Patch(CommitLog, "_state_after_put", won_without_stale_floors),
    ).found_by(
        interleaving("append inline", "sleeps beside a thread that looks"),
        "acknowledged batch 4: rows are stored {4000: 0",
    ),
    PlantedBug(
        "a commit does not check that its staged objects exist", Patch(commit_log, "list_staged_uuids", lambda: ())
    ).found_by(a_restore_while_a_write_is_staged, f"CORRUPT_DATA: {MISSING_SEGMENT}"),
    PlantedBug(
        "an object that exists is taken for another writer's commit",
        Patch(CommitLog, "_put_record", put_taken_for_anothers),
        FORGETS_OWN_ATTEMPTS,
    ).found_by(sweeping(sc.AppendInline, "own exists"), STORED_TWICE),
    PlantedBug("a failed put is taken for a commit", Patch(CommitLog, "_put_record", put_despite_an_error)).found_by(
        sweeping(sc.AppendInline, "error before"), "CORRUPT_DATA: .../commits/... is missing although records follow it"
    ),
    PlantedBug("a put that arrives late is not recognized as the own attempt", FORGETS_OWN_ATTEMPTS).found_by(
        sweeping(sc.AppendInline, "lands late"), STORED_TWICE
    ),
    PlantedBug(
        "an unknown outcome is reported as a failure",
        Patch(commit_log, "CommitStateUnknownError", StorageError),
        Patch(commit_errors, "CommitStateUnknownError", StorageError),
    ).found_by(an_append_whose_outcome_stays_unknown, "refused batch 2 is stored {1} times"),
    PlantedBug(
        "a failed append deletes its segments", Patch(table_append, "commit_append", commit_or_delete_segments)
    ).found_by(an_append_whose_outcome_stays_unknown, f"CorruptDataError: {MISSING_SEGMENT}"),
    PlantedBug(
        "an append keeps the base offsets of the state at staging",
        Patch(table_append, "commit_append", commit_at_the_ends_of_staging),
    ).found_by(
        interleaving("append inline", "appends"),
        "record 6 of sales.orders adds offset 3 to bucket 0, expected offset 4",
    ),
    PlantedBug(
        "an append commits condemned segments",
        Patch(append_commit, "_require_valid", lambda: None),
        BELIEVES_STAGED_OBJECTS,
    ).found_by(interleaving("append objects", "sleeps while others clean"), f"CORRUPT_DATA: {MISSING_SEGMENT}"),
    PlantedBug(
        "compaction commits condemned segments",
        Patch(auto_compaction, "merge_runs", merge_without_condemned),
        Patch(append_commit, "STAGED_AGE_MS_MAX", INFINITE_MS),
        BELIEVES_STAGED_OBJECTS,
    ).found_by(interleaving("merge", "sleeps while others clean"), f"CORRUPT_DATA: {MISSING_SEGMENT}"),
    PlantedBug(
        "staged changes by key are committed at any age",
        Patch(change_staging, "is_retained", lambda: True),
        BELIEVES_STAGED_OBJECTS,
    ).found_by(partial(check_sleepers, "upserts", 2), f"CorruptDataError: {MISSING_SEGMENT}"),
    PlantedBug(
        "compaction does not check that its inputs are still live", Patch(merge, "_is_still_live", lambda: True)
    ).found_by(
        a_merge_while_others_append_and_merge, "record 8 of sales.orders replaces segments that the log does not have"
    ),
    PlantedBug(
        "a dropped table accepts rows",
        *(Patch(module, "require_not_dropped", lambda: None) for module in (commit_validation, append_commit)),
    ).found_by(a_writer_of_a_dropped_table, "DID NOT RAISE ...TableNotFoundError"),
    PlantedBug(
        "listing tables stops at a damaged table", Patch(names, "iter_table_names", named_tables_without_errors)
    ).found_by(
        a_table_beside_a_damaged_one, "CorruptDataError: .../names/00000001.json ... does not match its checksum"
    ),
    # idempotent appends, and tables that were restored
    PlantedBug(
        "a stored transaction is written again", Patch(commit_log, "find_stored_transaction", lambda: None)
    ).found_by(sweeping(sc.AppendTransaction, "crash after"), STORED_TWICE),
    PlantedBug(
        "a stored request is written again", Patch(commit_validation, "_find_request_outcome", lambda: None)
    ).found_by(sweeping(sc.AppendRequest, "crash after"), "DID NOT RAISE ...IdempotencyKeyReusedError"),
    PlantedBug(
        "only the newest version of a transaction is known",
        Patch(commit_log, "find_stored_transaction", known_in_its_newest_version),
    ).found_by(an_old_transaction_sent_again, "version=1, ... was then given BucketOffsets({0: [2, 4)"),
    PlantedBug("expired writers are forgotten", Patch(transactions, "with_compacted", lambda past: past)).found_by(
        sweeping(sc.ExpireTransactions, "crash after"), "version=1, ... was then given BucketOffsets({1: [7, 10)"
    ),
    PlantedBug("checkpoints omit expired writers", Patch(transactions, "past_to_bytes", lambda: b"")).found_by(
        sweeping(sc.ExpireTransactions, "crash after"), "version=1, ... was then given BucketOffsets({1: [7, 10)"
    ),
    PlantedBug(
        "an older batch of a stream is taken for a replay",
        Patch(
            commit_validation,
            "find_stored_outcome",
            lambda original, transaction: original(transaction=replace(transaction, batch=None)),
        ),
    ).found_by(histories.a_stream_with_an_older_checkpoint, "rows of another batch were dropped in silence"),
    PlantedBug(
        "a tablet matches any log with its uuid and offset", Patch(log_replay, "_is_same_history", lambda: True)
    ).found_by(histories.sums_of_a_restored_table, "'n': 303"),
    PlantedBug(
        "a record does not require its predecessor's attempt", Patch(HistoryIndex, "require_followed_by", lambda: None)
    ).found_by(histories.a_process_that_stands_in_the_other_history, "rows were added to a log that was not read"),
    PlantedBug("a position is an offset without a history", Patch(tail, "require_position", lambda: None)).found_by(
        histories.a_tail_that_is_followed_on, "a row was skipped in silence, found []"
    ),
    # cleanup, trimming, checkpoints and shared objects
    PlantedBug(
        "cleanup does not wait for the grace period",
        Patch(garbage_collection, "_delete_marked", lambda original, run: original(run=replace(run, grace_ms=0))),
    ).found_by(
        a_held_pin_while_others_merge_and_clean,
        "SnapshotExpiredError: .../segments/...deleted when its grace period ended",
    ),
    PlantedBug(
        "commit records are deleted before the grace period ends",
        Patch(
            garbage_collection,
            "_delete_records",
            lambda original, run: original(run=replace(run, grace_ms=-INFINITE_MS)),
        ),
    ).found_by(a_reader_whose_segments_are_merged_and_cleaned, "is no prefix at or above"),
    PlantedBug(
        "the low watermark passes records with inline rows", Patch(TableState, "oldest_inline_commit", lambda: None)
    ).found_by(
        days_of_writing_and_cleaning, "CorruptDataError: .../commits/... is missing although the table names it"
    ),
    PlantedBug(
        "cleanup condemns young orphan files",
        Patch(garbage_collection, "_mark_orphans", lambda original, run: original(run=replace(run, grace_ms=0))),
    ).found_by(
        a_cleaner_at_work_while_an_append_is_staged,
        "rows were staged 1000 ms ago, and maintenance may have deleted them since",
    ),
    PlantedBug(
        "trimming removes one segment too many", Patch(retention, "plan_trim", plan_trim_of_one_more_segment)
    ).found_by(trim_a_table_without_a_lake, "[3000, 3001, 3002] == [2000, 2001, "),
    PlantedBug(
        "a checkpoint is written before its commit", Patch(CommitLog, "_put_record", checkpoint_then_put)
    ).found_by(
        sweeping(sc.AppendObjects, "crash before"), "DIFFERENT_HISTORY: ...this process read record 3 of attempt"
    ),
    PlantedBug(
        "a checkpoint is trusted without reading it back",
        Patch(checkpoint, "write_checkpoint", write_checkpoint_unread),
    ).found_by(a_checkpoint_that_was_stored_wrong, "the hint names a damaged checkpoint"),
    PlantedBug(
        "the low watermark rests on one checkpoint",
        Patch(checkpoint_verification, "CHECKPOINTS_KEPT", 1),
        Patch(garbage_collection, "CHECKPOINTS_KEPT", 1),
    ).found_by(
        the_newest_checkpoint_is_damaged_after_a_floor,
        "CorruptDataError: ... holds no whole checkpoint at or above record 25",
    ),
    PlantedBug(
        "failed post-commit work fails the call", Patch(checkpoint, "log_post_commit_errors", catch_nothing)
    ).found_by(
        a_checkpoint_that_cannot_be_stored,
        "StorageError: ...injected before (..., 'put_if_absent', 'tables/.../checkpoints/",
    ),
    PlantedBug(
        "a shared object is deleted with the first of its segments",
        Patch(state_module, "_object_keys", object_keys_without_sharing),
    ).found_by(a_bucket_that_is_trimmed_alone, f"CorruptDataError: {MISSING_SEGMENT}"),
    PlantedBug(
        "each part of a shared object is read from the object's start",
        Patch(multi_bucket_writer.PackedObjectWriter, "begin_part", lambda original: 0 * original()),
    ).found_by(
        a_bucket_that_is_trimmed_alone,
        "CorruptDataError: .../segments/....arrow: bytes [0, ...) do not match their checksum",
    ),
    # group commit
    PlantedBug("an append returns its neighbour's outcome", RETURNS_NEIGHBOURS_OUTCOMES).found_by(
        appends_together, "batch 3 was given BucketOffsets(...), which hold [5001, 5000, 5002, 5003]"
    ),
    PlantedBug("a write by key returns its neighbour's outcome", RETURNS_NEIGHBOURS_OUTCOMES).found_by(
        keyed_groups.writes_together, "OffsetRange(start=8, end=10), OffsetRange(start=1, end=4)]"
    ),
    PlantedBug("appends of a group are judged on the state before the record", JUDGES_ON_THE_STATE_BEFORE).found_by(
        the_same_transaction_twice, STORED_TWICE
    ),
    PlantedBug(
        "writes by key of a group are judged on the state before the record", JUDGES_ON_THE_STATE_BEFORE
    ).found_by(keyed_groups.the_same_transaction_twice, "BucketOffsets({0: [4, 7)}), BucketOffsets({})]"),
    PlantedBug("an append that cannot join a group fails the whole group", FAILS_ALL_THAT_JOINED).found_by(
        appends_together, "one attempt of the record was rejected; nothing was written"
    ),
    PlantedBug("a write by key that cannot join a group fails the whole group", FAILS_ALL_THAT_JOINED).found_by(
        keyed_groups.a_refused_write_among_others,
        "['CommitConflictError', 'TransactionConflictError', 'BucketOffsets']",
    ),
    PlantedBug(
        "an append that the leader refuses fails the whole group", Patch(CommitLog, "_validate", judge_or_fail_all)
    ).found_by(appends_together_after_a_pause, "one attempt of the record was rejected; nothing was written"),
    PlantedBug(
        "members of a group are answered before the put", Patch(CommitLog, "_put_group", answer_then_put_group)
    ).found_by(group_appends_at_every_put, "append together: crash before ...was then given"),
    PlantedBug(
        "the log's state advances before the outcomes are noted",
        Patch(CommitLog, "_advance", store_state_then_outcomes),
    ).found_by(appends_together_and_an_interrupt, "acknowledged batch 8: rows are stored {8000: 2, 8001: 2} times"),
    PlantedBug(
        "a write by key does not see its neighbours' rows",
        Patch(WriteOverlay, "overlay_values", lambda stored_values: stored_values),
    ).found_by(
        keyed_groups.writes_together, "found ...(0, 4, 1, 1, 'first', 0), ...expected ...(0, 4, 1, 1, 'a', 2), "
    ),
    PlantedBug(
        "changes by key are kept after the neighbours changed",
        Patch(upsert_commit._UpsertPlan, "follow", follow_with_the_first_changes),
    ).found_by(
        keyed_groups.other_neighbours_behind_a_refusal,
        "found ...(0, 4, 1, 1, 'a', 2), ...expected ...(0, 4, 1, 1, 'a', 4), ",
    ),
    PlantedBug(
        "changes by key of an unknown outcome are applied",
        Patch(upsert_commit._UpsertPlan, "is_in_doubt", lambda: False),
    ).found_by(
        keyed_groups.a_record_that_lands_late,
        "found [{'id': 1, 'name': 'a', 'n': 3, ...expected [{'id': 1, 'name': 'a', 'n': 4, ",
    ),
    # conditional puts of single slots
    PlantedBug(
        "a slot that exists is taken for another writer's", Patch(Slot, "read_back", look_by_the_error_alone)
    ).found_by(partial(check_all_ways), "a rival before call None: ...PutOutcome.LOST"),
    PlantedBug(
        "a slot that cannot be read is taken for empty", Patch(Slot, "read_back", look_without_unreadable)
    ).found_by(partial(check_all_ways), "a rival before call None: ...PutOutcome.NOT_STORED"),
    PlantedBug("a slot that is visible is taken for durable", Patch(Slot, "read_back", look_without_unsure)).found_by(
        partial(check_all_ways), "not synced... a rival before call None: ...PutOutcome.WON"
    ),
)
