"""Defects that the sweeps found, each as the shortest story that shows it."""

from __future__ import annotations

import pytest

from faults import interleave as il
from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.history import SCHEMA, Batch
from faults.late_storage import LateStorage
from faults.ledger import Ledger
from faults.scenarios import HOUR_MS, LARGE, NAME, NO_LAKE, Run
from faults.sim import SimClock, SimIds
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import commit_key, manifests_prefix
from streamhouse_spark.errors import CommitStateUnknownError, CorruptDataError, StorageError, TableNotFoundError
from streamhouse_spark.log.actions import TieredSnapshot
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.commit_log import WATERMARK_CHECK_MS
from streamhouse_spark.log.compaction import plan_inline_merge, plan_small_merge
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments


def started(properties: dict[str, str] | None = None) -> Run:
    run = Run()
    run.create(properties=properties)
    run.append()
    return run


@pytest.mark.parametrize("calls_late", [1, 2, 3])
def test_a_put_that_lands_after_its_writer_gave_up_is_not_repeated(calls_late):
    run = started()
    commit_at = il.calls_of(run, lambda r: r.append()) - 1
    run.start_process(LateStorage(run.memory, commit_at, calls_late=calls_late))
    run.append()
    run.check()


def test_a_put_that_may_land_late_is_unknown_when_the_log_cannot_be_read():
    run = started()
    commit_at = il.calls_of(run, lambda r: r.append()) - 1
    plan = {commit_at: Fault.ERROR_BEFORE, commit_at + 2: Fault.ERROR_BEFORE}
    run.start_process(FaultyStorage(run.memory, plan))
    with pytest.raises(CommitStateUnknownError):
        run.append()


def test_a_slow_commit_is_unknown_when_the_floor_cannot_be_read():
    run = started()
    uuid = run.open().uuid

    def plan(_: int, method: str, key: str) -> Fault | None:
        if method == "put_if_absent" and "/commits/" in key:
            run.clock.advance(WATERMARK_CHECK_MS + 1)
        elif "/floors/" in key and run.memory.list(commit_key(uuid, 3)):
            return Fault.ERROR_BEFORE
        return None

    run.start_process(FaultyStorage(run.memory, plan))
    with pytest.raises(CommitStateUnknownError, match="attempt"):
        run.append()
    run.start_process(run.memory)
    run.append()
    run.check()


def test_a_merge_that_slept_while_its_output_was_deleted_changes_nothing():
    run = started()
    run.append(num_rows=4, row_chars=LARGE)
    run.append(num_rows=4, row_chars=LARGE)

    def plan(_: int, method: str, key: str) -> Fault | None:
        if method == "create.close":
            return None
        if method == "put_if_absent" and run.memory.list(commit_key(uuid, 5)) == [] and closed():
            il.a_day_passes_with_cleaning_alone(run)
        return None

    uuid = run.open().uuid
    before = len(run.memory.list(f"tables/{uuid}/segments/"))

    def closed() -> bool:
        return len(run.memory.list(f"tables/{uuid}/segments/")) > before

    with il.small_limits():
        run.start_process(FaultyStorage(run.memory, plan))
        assert len(plan_small_merge(run.open().refresh(), 2)) > 0
        assert compact_small_segments(run.open()) == 0
    run.check()


def test_a_floor_never_passes_inline_rows_that_were_committed_while_cleaning():
    run = started()
    with il.small_limits():
        table = run.open()
        compact_inline_rows(table)
        table.log.checkpoint(table.refresh())

        def write_meanwhile(_: int, method: str, key: str) -> None:
            if method == "list_names" and "/checkpoints/" in key and len(run.history.batches) < 5:
                for _n in range(4):
                    run.history.append(other, run.history.new_batch())
                other.log.checkpoint(other.refresh())

        other = il.rival(run)
        run.start_process(FaultyStorage(run.memory, write_meanwhile))
        cleaner = run.open()
        garbage_collection.clean(cleaner.log, cleaner.storage)
        run.clock.advance(25 * HOUR_MS)
        garbage_collection.clean(cleaner.log, cleaner.storage)
    run.check()


def test_a_cleaner_that_slept_while_another_cleaned_goes_on():
    run = started()
    with il.small_limits():
        for _ in range(4):
            run.append()
        run.open().maintain()

        def sleep(_: int, method: str, key: str) -> None:
            if method == "read" and key.endswith("/checkpoints/00000000000000000007"):
                for _n in range(3):
                    il.rival_appends(run)
                    il.rival(run).maintain()
                    run.clock.advance(25 * HOUR_MS)
                il.rival(run).maintain()

        cleaner = run.open()
        run.start_process(FaultyStorage(run.memory, sleep))
        cleaner = run.open()
        started_run = garbage_collection._start_run(
            cleaner.log, cleaner.storage, garbage_collection.GRACE_MS, dry_run=False
        )
        garbage_collection._advance_start(started_run)
    run.check()


def test_a_trimmed_table_without_a_lake_can_be_read():
    run = started({"table.log.ttl": "1h"})
    run.clock.advance(2 * HOUR_MS)
    kept = run.append()
    run.observe()
    run.open().maintain()
    assert run.open().to_arrow().column("id").to_pylist() == list(kept.ids)
    run.check()


def test_a_lake_that_was_disabled_still_limits_trimming():
    run = started()
    table = run.open()
    state = table.refresh()
    half = {bucket: log.end // 2 for bucket, log in state.buckets.items()}
    table.log.commit(lambda *_: (TieredSnapshot(1, half, state.time_ms),))
    run.append()
    state = table.refresh()
    starts = plan_trim(state, state.time_ms + 10 * HOUR_MS, HOUR_MS, lake_enabled=False)
    assert all(start <= half[bucket] for bucket, start in starts.items()), starts


def test_a_record_from_a_clock_that_ran_behind_expires_no_rows_before_it():
    run = started({"table.log.ttl": "10h"})
    run.clock.jump(-1000 * HOUR_MS)
    run.append()
    run.clock.jump(1000 * HOUR_MS)
    run.observe()
    run.open().maintain()
    assert run.open().to_arrow().num_rows == 6
    run.clock.advance(11 * HOUR_MS)
    run.append()
    run.open().maintain()
    assert run.open().to_arrow().num_rows == 3


def test_a_table_whose_first_record_needs_a_manifest_can_be_opened():
    memory = MemoryStorage()
    wide = ", ".join(f"a_column_with_a_long_name_{i} STRING COMMENT '{'x' * 100}'" for i in range(1500))
    created = Warehouse(memory.url, storage=memory).create_table(NAME, wide)
    assert memory.list(manifests_prefix(created.uuid))
    assert len(Warehouse(memory.url, storage=memory).table(NAME).schema) == 1500


@pytest.mark.parametrize("fault", [Fault.OWN_EXISTS, Fault.LOST_ACK])
def test_creating_a_table_survives_an_unclear_answer_about_its_name(fault):
    run = Run()
    run.start_process(
        FaultyStorage(run.memory, lambda _, m, k: fault if m == "put_if_absent" and "/names/" in k else None)
    )
    run.create()
    run.append()


def test_a_first_record_that_is_said_to_exist_is_ones_own():
    run = Run()
    plan = lambda _, m, k: Fault.OWN_EXISTS if m == "put_if_absent" and "/commits/" in k else None  # noqa: E731
    run.start_process(FaultyStorage(run.memory, plan))
    run.create()
    run.start_process(run.memory)
    run.append()
    run.check()


def test_a_dropped_table_stays_dropped_when_its_name_cannot_be_cleared():
    run = started()
    plan = lambda _, m, k: Fault.ERROR_BEFORE if m == "put_if_absent" and "/names/" in k else None  # noqa: E731
    run.start_process(FaultyStorage(run.memory, plan))
    assert run.warehouse.drop_table(NAME)
    run.start_process(run.memory)
    assert not run.warehouse.exists(NAME)
    assert run.create().to_arrow().num_rows == 0


def test_an_append_that_is_committed_does_not_fail_on_the_merge_behind_it():
    run = started()
    table = run.open()
    for _ in range(62):
        run.append()
    plan = lambda _, m, k: Fault.ERROR_BEFORE if m.startswith("create.") else None  # noqa: E731
    run.start_process(FaultyStorage(run.memory, plan))
    run.append()
    assert len(plan_inline_merge(table.refresh())) > 0
    run.check()


@pytest.mark.parametrize("missing", [2, 3, 4])
def test_a_missing_record_in_the_middle_of_the_log_is_an_error(missing):
    run = started()
    for _ in range(4):
        run.append()
    uuid = run.open().uuid
    run.memory.delete(commit_key(uuid, missing))
    with pytest.raises(CorruptDataError, match="missing although records follow"):
        run.start_process(run.memory).table(NAME)


def test_damage_below_the_floor_is_passed_over():
    """A manifest that was cleaned up before the record that named it, and a hint that lags behind."""
    run = started()
    table = run.open()
    table.log.checkpoint(table.refresh())
    with il.small_limits():
        run.append()
        run.append()
        compact_inline_rows(table)
        table.log.checkpoint(table.refresh())
        garbage_collection.clean(table.log, run.memory)
    run.memory.put(f"tables/{table.uuid}/checkpoints/hint", b"2")
    run.memory.put(commit_key(table.uuid, 3), b"damaged")
    run.check_opening()


def test_a_wall_clock_that_jumps_a_day_does_not_let_a_local_writer_fill_a_slot_that_cleaning_opened(tmp_path):
    clock = SimClock()
    storage = LocalStorage(str(tmp_path / "wh"), fsync=False, world=World(clock, SimIds(5)))

    def process(seed: int) -> Warehouse:
        return Warehouse(storage.url, storage=storage, world=World(clock, SimIds(seed)))

    properties = {**NO_LAKE, "bucket.key": "id"}
    writer = process(1).create_table(NAME, SCHEMA, buckets=2, properties=properties)
    sleeper = process(2).table(NAME)
    with il.small_limits():
        for number in range(1, 5):
            writer.append(Batch(number, 3).rows())
        writer.maintain()
        writer.maintain()
        clock.jump(25 * HOUR_MS)  # no time passes, but by the wall clock the grace is over
        writer.maintain()
        assert not (tmp_path / "wh" / commit_key(writer.uuid, 2)).exists()
        sleeper.append(Batch(9, 3).rows())
    ids = process(3).table(NAME).to_arrow().column("id").to_pylist()
    assert sorted(ids) == [i for n in (1, 2, 3, 4, 9) for i in Batch(n, 3).ids]


def test_storage_errors_of_a_commit_mean_that_nothing_was_added():
    run = started()
    plan = lambda _, m, k: Fault.ERROR_BEFORE if m == "put_if_absent" else None  # noqa: E731
    run.start_process(FaultyStorage(run.memory, plan))
    with pytest.raises((StorageError, CommitStateUnknownError)):
        run.append()
    run.start_process(run.memory)
    run.append()
    run.check()


def test_a_transaction_that_a_dropped_table_knows_is_not_acknowledged():
    run = started()
    batch = run.append(transaction=Transaction("app", 1))
    sleeper = il.rival(run)
    run.warehouse.drop_table(NAME)
    with pytest.raises(TableNotFoundError):
        sleeper.append(batch.rows(), transaction=batch.transaction)


def test_a_table_that_gets_its_name_and_rows_while_unnamed_ones_are_cleaned_keeps_them():
    base = Run()
    plan = lambda _, m, k: Fault.CRASH_BEFORE if m == "put_if_absent" and "/names/" in k else None  # noqa: E731
    base.start_process(FaultyStorage(base.memory, plan))
    with pytest.raises(Crash):
        base.create()
    base.clock.advance(25 * HOUR_MS)
    uuid = base.memory.list_names("tables/")[0]

    def name_it_and_append(run: Run) -> None:
        path = TablePath("sales", "orders")
        assert names.put_name_pointer(run.memory, path, names.NamePointer(0, None), uuid, World(run.clock, SimIds(9)))
        run.history.append(il.rival(run), run.history.new_batch())

    def clean(run: Run) -> None:
        run.warehouse.clean_dropped()

    survived = 0
    for at in range(il.calls_of(base, clean)):
        run, error = il.run_interleaved(base, clean, name_it_and_append, at)
        if error is None and run.history.batches:
            run.start_process(run.memory)
            run.append()
            run.check()
            survived += 1
    assert survived > 3


def test_rows_overwritten_before_their_writer_hears_of_them_are_not_missed():
    """Of the histories' own bookkeeping: both orders are right for an append and an overwrite at the same time."""
    run = started()
    uuid = run.open().uuid
    run.ledger = Ledger(run.memory, uuid)
    run.ledger.observe()
    overwritten = []

    def plan(_: int, method: str, key: str) -> None:
        if method == "put_if_absent" and "/commits/" in key:
            run.clock.advance(WATERMARK_CHECK_MS + 1)
        elif "/floors/" in key and run.memory.list(commit_key(uuid, 3)) and not overwritten:
            run.ledger.observe()
            overwritten.append(run.history.append(il.rival(run), run.history.new_batch(2, overwrites=True)))

    run.start_process(FaultyStorage(run.memory, plan))
    run.append()
    assert overwritten
    run.check()
