"""The suite finds each planted bug within seconds, and finds nothing where none is planted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from corruption import damage
from faults import (
    deletion_plants,
    file_row_plants,
    group_plants,
    histories,
    keyed_group_plants,
    lost_row_plants,
    offer_plants,
    paimon_file_row_plants,
    real_time_plants,
    replacement_plants,
    row_level_plants,
    slot_model,
    statement_plants,
    update_plants,
)
from faults import interleave as il
from faults import scenarios as sc
from faults.faulty_storage import Fault, FaultyStorage
from faults.moved_cases import MOVED_FINDERS
from faults.plants import PLANTS
from faults.restored_lake import RESTORED_FINDERS
from faults.scenarios import Run
from faults.sleepers import check_sleepers
from faults.sweep import sweep_scenario
from faults.test_restored_writes import Staged, check_restored_before_each_call
from streamhouse_spark import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
    Transaction,
)
from streamhouse_spark.core.paths import checkpoint_hint_key, checkpoint_key, name_key, parse_table_name
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.lake.iceberg.maintenance import compaction as iceberg_maintain
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.lake.parquet.reader import has_whole_footer
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.log.commits import checkpoint
from streamhouse_spark.log.commits.actions import Trim
from streamhouse_spark.log.commits.checkpoint import list_checkpoints
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read import union_read
from streamhouse_spark.read.pin import pin_newest
from streamhouse_spark.storage.memory import MemoryStorage


def sweeping(scenario: type[sc.Scenario], *kinds: str, method: str = "put_if_absent") -> Callable[[], object]:
    return lambda: sweep_scenario(scenario(), kinds=kinds, methods=(method,))


def interleaving(work: str, between: str) -> Callable[[], object]:
    return lambda: il.check_interleavings(work, between)


def an_append_whose_outcome_stays_unknown() -> None:
    """The record is stored, the answer is lost, and so is what it is read back with; later rows follow."""
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


def a_cleaner_at_work_while_an_append_is_staged() -> None:
    """Nobody sleeps, so nobody may notice the cleaner."""

    def clean(run: Run) -> None:
        run.clock.advance(1000)
        il.rival(run).maintain()

    il.BETWEEN["cleans"] = clean
    try:
        il.check_interleavings("append objects", "cleans")
    finally:
        del il.BETWEEN["cleans"]


def a_reader_whose_segments_are_merged_and_cleaned() -> None:
    def merge_and_clean(run: Run) -> None:
        run.clock.advance(1000)
        for _ in range(4):
            il.rival_appends(run)
            il.rival(run).maintain()

    il.BETWEEN["merges and cleans"] = merge_and_clean
    try:
        il.check_interleavings("read", "merges and cleans")
    finally:
        del il.BETWEEN["merges and cleans"]


def a_held_pin_while_others_merge_and_clean() -> None:
    """Within the grace, what a reader has pinned is there, whatever others merge and clean meanwhile."""
    with il.small_limits():
        run = il.prepared_table()
        table = run.open()
        pin = pin_newest(table.refresh())
        projection = Projection.of(table.state.schema, None, None)

        def pinned() -> list[pa.Table]:
            return list(table.read_hot(pin, projection))

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
            il.cleaning.clean(table.log, run.memory)
            run.clock.advance(25 * sc.HOUR_MS)
            run.observe()
        il.cleaning.clean(run.open().log, run.memory)
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

    il.BETWEEN["appends and merges"] = append_and_merge
    try:
        il.check_interleavings("merge", "appends and merges")
    finally:
        del il.BETWEEN["appends and merges"]


def tier_a_table_twice_and_trim_it() -> None:
    run = Run()
    run.create(properties={**sc.LAKE, "table.log.ttl": "1h"})
    run.append()
    run.tier()
    run.append()
    run.clock.advance(2 * sc.HOUR_MS)
    run.append()
    run.observe()
    run.open().maintain()
    run.check()
    run.tier()
    run.append()
    run.check()


def trim_a_table_without_a_lake() -> None:
    run = Run()
    run.create(properties={"table.log.ttl": "1h"})
    run.append()
    run.clock.advance(2 * sc.HOUR_MS)
    kept = [run.append(), run.append()]
    run.observe()
    run.open().maintain()
    assert sorted(run.open().to_arrow().column("id").to_pylist()) == [i for b in kept for i in b.ids]


def append_while_tiering() -> None:
    il.check_interleavings("tier", "appends", every=5)


def truncate_and_tier() -> None:
    run = Run()
    run.create(properties=sc.LAKE)
    run.append()
    run.tier()
    run.observe()
    run.history.truncate(run.open())
    run.check()
    run.tier()
    run.check()
    assert run.open().lake.to_arrow().num_rows == 0


def a_round_whose_lake_is_no_longer_the_tables() -> None:
    """The round commits, the lake is built anew, and the tiering process dies right after it has told the log."""
    run = Run()
    run.create(properties=sc.LAKE)
    run.append()
    slow = il.rival(run)
    job = tiering.TieringJob(slow.log, slow.open_lake(), world=slow.world)
    told = job._record

    def record(snapshot: Any) -> None:
        il.rival(run).retier()
        told(snapshot)
        raise StorageError("the process dies")

    with mock.patch.object(job, "_record", record), pytest.raises(StorageError, match="dies"):
        job.run(tiering.run_tasks_locally(run.memory, {}, slow.world))
    run.check()
    run.tier()
    run.check()


def a_checkpoint_that_was_stored_wrong() -> None:
    """Whoever opens the table afterwards must not be led to it, nor records go because of it."""

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
        assert not any(info.key == key for info in run.memory.list("")), "nobody is led to a damaged checkpoint"
        assert run.open().to_arrow().num_rows


def the_newest_checkpoint_is_damaged_after_a_floor() -> None:
    """Days of writing and cleaning, with a checkpoint a day, then one flipped bit."""
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


def flipped_bits_of_a_lake_file() -> None:
    damaged = damage.Damaged(MemoryStorage())
    damage.tiered_table(damaged)
    (key,) = damaged.keys(".parquet")
    files = StorageFiles(damaged.storage)
    for what, data in damage.flips_of_tail(damaged.storage.read(key)):
        damaged.replace(key, data)
        try:
            has_whole_footer(files, files.location_of(key))
        except CorruptDataError:
            continue
        raise AssertionError(f"{what} is not found")


def a_read_while_columns_swap_their_names() -> None:
    """Another process swaps them, and another thread of this one reads the table on, behind the pin."""
    run = Run()
    table = run.warehouse.create_table("sales.pairs", "id BIGINT, a BIGINT, b BIGINT")
    table.append([{"id": 1, "a": 1, "b": 10}])
    sc.tier(table)
    table.append([{"id": 2, "a": 2, "b": 20}])
    pinned = pin_newest(table.refresh())
    run.warehouse.table("sales.pairs").alter(rename_columns={"a": "b", "b": "a"})
    table.refresh()
    rows = union_read.read_pin(table, pinned, Projection.of(pinned.state.schema, None, None)).to_pylist()
    assert rows == [{"id": 1, "a": 1, "b": 10}, {"id": 2, "a": 2, "b": 20}]


def a_column_whose_fields_swap_their_names() -> None:
    """One row is committed before, another one is staged before and committed behind it, if it can be."""
    run = Run()
    table = run.warehouse.create_table("sales.inside", "id BIGINT, s STRUCT<a: INT, b: INT>")
    table.append([{"id": 1, "s": {"a": 1, "b": 10}}])
    rows = pa.Table.from_pylist([{"id": 2, "s": {"a": 2, "b": 20}}], schema=table.schema)
    staged = table.stager().stage(rows)
    run.warehouse.table("sales.inside").alter(rename_columns={"s.a": "b", "s.b": "a"})
    with suppress(CommitConflictError):
        table.commit(staged)
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"b": 1, "a": 10}}]


def a_deletion_by_a_key_in_another_order() -> None:
    """The identities of simulated runs are the same, so each has a cache of its own."""
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, STREAMHOUSE_CACHE_DIR=cache):
        table = Run().warehouse.create_table("sales.keys", "a BIGINT, b BIGINT", primary_key=["b", "a"])
        table.upsert([{"a": 1, "b": 2}, {"a": 2, "b": 1}])
        table.delete([{"a": 1, "b": 2}])
        rows = table.to_arrow().to_pylist()
        close_tablets()
    assert rows == [{"a": 2, "b": 1}]


def a_tag_that_is_made_while_snapshots_expire() -> None:
    run = Run()
    table = run.create(properties=sc.LAKE)
    for _ in range(3):
        run.append()
        sc.tier(table)
    lake, choose = table.open_lake().place.find(), iceberg_maintain.expirable

    def then_tag(*args: Any, **kwargs: Any) -> Any:
        doomed = choose(*args, **kwargs)
        lake.manage_snapshots().create_tag(doomed[0], "audit").commit()
        return doomed

    with mock.patch.object(iceberg_maintain, "expirable", then_tag), suppress(CommitConflictError):
        table.open_lake().expire(keep_last=1, keep_ms=0)
    assert table.open_lake().snapshot_by_name("audit").offsets


def days_behind_a_round_whose_clock_was_ahead() -> None:
    run = Run()
    table = run.create(properties=sc.LAKE)
    for ahead_ms in (0, 365 * 24 * sc.HOUR_MS, 0, 0):
        run.append()
        run.clock.jump(ahead_ms)
        sc.tier(table)
        run.clock.jump(-ahead_ms)
    run.clock.advance(48 * sc.HOUR_MS)
    assert len(table.open_lake().expire(keep_last=1, keep_ms=24 * sc.HOUR_MS).snapshots) == 3


def a_bucket_that_is_trimmed_alone() -> None:
    """It shares its object with another, whose rows are read on; with these the object goes."""
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


FINDERS: dict[str, Callable[[], object]] = {
    "floor_is_not_looked_at_when_reading": a_reader_that_slept_meets_a_void_record,
    "floor_is_not_looked_at_before_acknowledging": interleaving("append inline", "sleeps for days"),
    "only_who_reads_the_floor_compares_it": interleaving("append inline", "sleeps beside a thread that looks"),
    "staged_objects_are_believed_to_be_there": a_restore_while_a_write_is_staged,
    "exists_means_that_another_won": sweeping(sc.AppendInline, "own exists"),
    "error_of_a_put_means_that_it_was_done": sweeping(sc.AppendInline, "error before"),
    "late_landing_of_an_attempt_is_not_recognised": sweeping(sc.AppendInline, "lands late"),
    "unknown_outcome_is_told_as_a_failure": an_append_whose_outcome_stays_unknown,
    "failed_append_deletes_its_segments": an_append_whose_outcome_stays_unknown,
    "base_offsets_come_from_the_state_at_staging": interleaving("append inline", "appends"),
    "condemned_segments_are_committed": interleaving("append objects", "sleeps while others clean"),
    "merged_segments_are_not_looked_up_among_the_condemned": interleaving("merge", "sleeps while others clean"),
    "changes_by_key_are_committed_however_old": lambda: check_sleepers("upserts", 2),
    "merge_does_not_look_at_its_inputs_again": a_merge_while_others_append_and_merge,
    "an_older_batch_of_a_stream_is_a_replay": histories.a_stream_with_an_older_checkpoint,
    "tablets_are_found_by_uuid_and_offset_alone": histories.sums_of_a_restored_table,
    "records_do_not_follow_an_attempt": histories.a_process_that_stands_in_the_other_history,
    "positions_are_offsets_alone": histories.a_tail_that_is_followed_on,
    "known_transactions_are_written_again": sweeping(sc.AppendTransaction, "crash after"),
    "writers_that_expire_are_forgotten": sweeping(sc.ExpireTransactions, "crash after"),
    "checkpoints_leave_out_expired_writers": sweeping(sc.ExpireTransactions, "crash after"),
    "only_the_newest_version_of_a_transaction_is_known": an_old_transaction_sent_again,
    "cleaning_does_not_wait": a_held_pin_while_others_merge_and_clean,
    "records_go_without_waiting_for_the_grace": a_reader_whose_segments_are_merged_and_cleaned,
    "floor_passes_records_with_inline_rows": days_of_writing_and_cleaning,
    "orphans_are_condemned_while_young": a_cleaner_at_work_while_an_append_is_staged,
    "trimming_does_not_wait_for_the_lake": tier_a_table_twice_and_trim_it,
    "trimming_takes_one_segment_too_many": trim_a_table_without_a_lake,
    "union_begins_one_offset_behind_the_lake": tier_a_table_twice_and_trim_it,
    "union_begins_one_offset_before_the_lakes_end": tier_a_table_twice_and_trim_it,
    "lake_commits_are_not_fenced_by_offsets": lambda: il.check_interleavings("tier", "tiers", every=3),
    "lake_snapshots_count_by_where_they_end": truncate_and_tier,
    "rounds_do_not_notice_a_truncation": lambda: il.check_interleavings("tier", "truncates and tiers", every=3),
    "lake_keeps_its_files_when_the_table_is_truncated": sweeping(sc.TierTruncated, "crash after"),
    "paimon_lake_keeps_its_files_when_the_table_is_truncated": sweeping(sc.TierTruncatedOnPaimon, "crash after"),
    "paimon_compaction_forgets_the_offsets": sweeping(sc.CompactPaimon, "crash after"),
    "paimon_expiry_deletes_the_newest_snapshots_first": sweeping(sc.CompactPaimon, "crash after", method="delete"),
    "paimon_expiry_takes_files_that_are_still_needed": sweeping(sc.CompactPaimon, "crash after"),
    "lake_is_not_emptied_without_new_rows": truncate_and_tier,
    "overwrite_takes_two_records": sweeping(sc.Overwrite, "crash after"),
    "truncation_is_planned_once": interleaving("truncate", "appends"),
    "log_records_its_own_ends_as_the_lakes_offsets": append_while_tiering,
    "log_does_not_say_what_the_lake_holds_after_a_crash": sweeping(sc.TierFirst, "crash after"),
    "checkpoint_is_written_before_the_commit": sweeping(sc.AppendObjects, "crash before"),
    "dropped_tables_take_rows": a_writer_of_a_dropped_table,
    "snapshots_of_the_former_lake_are_recorded": a_round_whose_lake_is_no_longer_the_tables,
    "checkpoints_count_unread": a_checkpoint_that_was_stored_wrong,
    "one_checkpoint_is_enough_for_a_floor": the_newest_checkpoint_is_damaged_after_a_floor,
    "listing_ends_at_a_damaged_table": a_table_beside_a_damaged_one,
    "work_behind_a_commit_fails_the_call": a_checkpoint_that_cannot_be_stored,
    **MOVED_FINDERS,
    **RESTORED_FINDERS,
    **deletion_plants.FINDERS,
    **file_row_plants.FINDERS,
    **group_plants.FINDERS,
    **keyed_group_plants.FINDERS,
    **lost_row_plants.FINDERS,
    **offer_plants.FINDERS,
    **paimon_file_row_plants.FINDERS,
    **real_time_plants.FINDERS,
    **replacement_plants.FINDERS,
    **row_level_plants.FINDERS,
    **statement_plants.FINDERS,
    **update_plants.FINDERS,
    **slot_model.FINDERS,
    "a_footer_whose_checksum_is_damaged_has_none": flipped_bits_of_a_lake_file,
    "page_indexes_are_not_checked": flipped_bits_of_a_lake_file,
    "lake_rows_are_read_by_the_newest_columns": a_read_while_columns_swap_their_names,
    "fields_inside_columns_are_matched_by_their_names": a_column_whose_fields_swap_their_names,
    "staged_rows_fit_whatever_changed_inside": a_column_whose_fields_swap_their_names,
    "keys_are_matched_by_their_places": a_deletion_by_a_key_in_another_order,
    "expiry_does_not_look_for_new_tags": a_tag_that_is_made_while_snapshots_expire,
    "times_of_lake_snapshots_are_believed": days_behind_a_round_whose_clock_was_ahead,
    "a_shared_object_goes_with_the_first_of_its_segments": a_bucket_that_is_trimmed_alone,
    "parts_are_read_from_where_the_object_begins": a_bucket_that_is_trimmed_alone,
}


def test_every_plant_has_a_finder():
    assert set(FINDERS) == set(PLANTS)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", FINDERS)
def test_the_bug_is_found(name):
    with PLANTS[name](), pytest.raises((AssertionError, StreamhouseError, pytest.fail.Exception)) as found:
        FINDERS[name]()
    print(f"{name}: {str(found.value)[:200]}")  # noqa: T201


@pytest.mark.parametrize(
    "name",
    [
        "floor_is_not_looked_at_when_reading",
        "staged_objects_are_believed_to_be_there",
        "unknown_outcome_is_told_as_a_failure",
        "only_the_newest_version_of_a_transaction_is_known",
        *replacement_plants.FINDERS,
        *file_row_plants.FINDERS,
        "cleaning_does_not_wait",
        "floor_passes_records_with_inline_rows",
        "orphans_are_condemned_while_young",
        "trimming_does_not_wait_for_the_lake",
        "trimming_takes_one_segment_too_many",
        "lake_is_not_emptied_without_new_rows",
        "dropped_tables_take_rows",
        "positions_are_offsets_alone",
        *group_plants.FINDERS,
        *keyed_group_plants.FINDERS,
        *lost_row_plants.FINDERS,
        *offer_plants.FINDERS,
        *paimon_file_row_plants.FINDERS,
        *MOVED_FINDERS,
        *RESTORED_FINDERS,
        *statement_plants.FINDERS,
        "page_indexes_are_not_checked",
        "lake_rows_are_read_by_the_newest_columns",
        "fields_inside_columns_are_matched_by_their_names",
        "keys_are_matched_by_their_places",
        "expiry_does_not_look_for_new_tags",
        "times_of_lake_snapshots_are_believed",
        "a_shared_object_goes_with_the_first_of_its_segments",
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_nothing_is_found_without_the_bug(name):
    """The other finders are parts of the sweeps, which run without bugs elsewhere."""
    FINDERS[name]()
