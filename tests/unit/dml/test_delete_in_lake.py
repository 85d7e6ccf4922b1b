"""Rows of a table with a lake and without a primary key, deleted before, while and after they are tiered."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from faults.sim import SimClock
from interop.paimon_cases import Stock
from kit.change_replay import changes
from kit.row_replacement import replace_rows
from kit.rows import ids, rows
from kit.tables import require_verified, tier, trim_tiered
from streamhouse_spark import CommitConflictError, OffsetRange, OffsetsTrimmedError, Table
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml import delete
from streamhouse_spark.dml.conflict_check import has_dropped_partitions
from streamhouse_spark.dml.delete import commit_deletion
from streamhouse_spark.lake.iceberg import compaction
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.types import CompactReport
from streamhouse_spark.log import state as state_module
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.read.offset_scan import partition_drops_as_of, plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.service.tiering_service import oldest_waiting_ms
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
by_position = pytest.mark.parametrize("lake", ["iceberg"])
"""Where files keep their deleted rows until they are compacted."""


@pytest.fixture(params=["iceberg", "paimon"])
def lake(request):
    return request.param


@pytest.fixture
def table(wh, lake):
    return new_table(wh, lake, buckets=2, partition_by=["day"])


def new_table(wh, lake, **shape):
    return wh.create_table("d.t", "id BIGINT, day INT", properties={"table.datalake.format": lake}, **shape)


def stock(table: Table) -> list[int]:
    """Read the lake as pyiceberg does, or pypaimon."""
    place = table.open_lake().binding
    if table.properties.datalake_format == "paimon":
        with tempfile.TemporaryDirectory() as folder:
            return sorted(row["id"] for row in Stock(table.storage.home, Path(folder)).read(table.name))
    catalog: Catalog = place.catalog
    return ids(catalog.load_table(place.identifier).scan().to_arrow())


def test_rows_are_deleted_before_they_are_tiered(table):
    table.append(rows(*range(10)))
    table.delete(where=[("id", "in", [1, 4])])
    tier(table)
    kept = [0, 2, 3, 5, 6, 7, 8, 9]
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == stock(table) == kept
    assert table.refresh().num_rows == len(kept)
    require_verified(table)


def test_rows_are_deleted_in_the_lake(table, other_process):
    table.append(rows(*range(10)))
    tier(table)
    table.append(rows(*range(10, 15)))
    assert table.delete(where=[("id", "in", [1, 4, 12])]) == 3
    kept = [n for n in range(15) if n not in (1, 4, 12)]
    for reader in (table, other_process().table("d.t")):
        assert ids(reader.to_arrow()) == kept
        assert ids(reader.to_arrow(filter=[("id", "<", 6)])) == [0, 2, 3, 5]
        assert ids(reader.lake.to_arrow()) == list(range(10))
        assert reader.state.num_rows == len(kept)
    report = tier(table)
    assert len(report.snapshots) == 1
    assert ids(table.to_arrow()) == stock(table) == kept
    require_verified(table)
    assert tier(table).snapshots == ()


def test_deletions_alone_are_tiered_in_one_snapshot(table):
    table.append(rows(*range(6)))
    tier(table)
    table.delete(where=[("id", "=", 2)])
    table.delete(where=[("id", "=", 3)])
    assert len(tier(table).snapshots) == 1
    assert stock(table) == [0, 1, 4, 5]
    assert tier(table).snapshots == ()
    table.delete(where=[("id", "=", 5)])  # of a file with deleted positions
    tier(table)
    assert stock(table) == ids(table.to_arrow()) == [0, 1, 4]
    require_verified(table)


def test_the_log_still_leaves_them_out_when_the_lake_does(table):
    table.append(rows(*range(6)))
    table.delete(where=[("id", "=", 2)])
    tier(table)
    found = [n for batch in table.tail("earliest", until_ms=0, poll_ms=0) for n in batch["id"].to_pylist()]
    assert sorted(found) == [0, 1, 3, 4, 5]


def test_they_are_forgotten_when_the_log_is_trimmed(table):
    table.append(rows(*range(6)))
    table.delete(where=[("id", "=", 2)])
    tier(table)
    assert table.refresh().deleted
    trim_tiered(table)
    assert table.refresh().deleted == {}
    assert ids(table.to_arrow()) == [0, 1, 3, 4, 5]
    assert table.state.num_rows == 5
    ranges = {bucket: OffsetRange(0, end) for bucket, end in table.state.ends.items() if end}
    plan = plan_ranges(table, table.state, ranges, ["id"], fail_on_data_loss=True)
    assert ids(pa.Table.from_batches(list(read_batches(table, plan)))) == [0, 1, 3, 4, 5]
    waiting = table.state
    table.delete(where=[("id", "=", 4)])
    plan = plan_ranges(table, table.refresh(), ranges, ["id"], fail_on_data_loss=True)
    assert ids(pa.Table.from_batches(list(read_batches(table, plan)))) == [0, 1, 3, 5], "the lake has 4 until a round"
    tier(table)
    plan = plan_ranges(table, waiting, ranges, ["id"], fail_on_data_loss=True)
    assert ids(pa.Table.from_batches(list(read_batches(table, plan)))) == [0, 1, 3, 4, 5], "as it was"
    later = partition_drops_as_of(table.refresh(), waiting.version)
    with pytest.raises(OffsetsTrimmedError, match="rows were deleted since"):
        plan_ranges(table, table.state, ranges, ["id"], fail_on_data_loss=True, dropped=later)


def test_deletions_are_applied_once_after_a_crash_before_the_record(table, other_process, monkeypatch):
    table.append(rows(*range(6)))
    tier(table)
    table.delete(where=[("id", "=", 2)])
    with monkeypatch.context() as patch:
        patch.setattr(TieringJob, "_record", lambda *_: None)
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        state = job._refresh_state()
        job._run_round(state, state.ends, run_tasks_locally(table.storage, table.settings, table.world), [])
    assert ids(table.to_arrow()) == stock(table) == [0, 1, 3, 4, 5]
    other = other_process().table("d.t")
    assert tier(other).snapshots == ()
    assert other.refresh().lake.applied_through > 0
    assert other.state.num_rows == 5
    require_verified(other)


def test_a_deletion_while_a_round_runs_waits_for_the_next(table, other_process):
    table.append(rows(*range(6)))
    other = other_process().table("d.t")

    def run(tasks):
        if other.refresh().deletions == ():
            other.delete(where=[("id", "=", 2)])
        return run_tasks_locally(table.storage, table.settings, table.world)(tasks)

    TieringJob(table.log, table.open_lake(), world=table.world).run(run)
    assert stock(table) == list(range(6))
    assert ids(table.to_arrow()) == [0, 1, 3, 4, 5]
    tier(table)
    assert stock(table) == [0, 1, 3, 4, 5]
    require_verified(table)


def test_reads_as_of_a_time_show_rows_until_their_deletion(table, clock: SimClock):
    def moment():
        clock.advance(1000)
        found = table.storage.now_ms()
        clock.advance(1000)
        return found

    table.append(rows(*range(6)))
    appended = moment()
    tier(table)
    tiered = moment()
    table.delete(where=[("id", "=", 2)])
    deleted = moment()
    tier(table)
    table.append(rows(6))
    after = moment()
    for _ in range(2):
        assert ids(table.to_arrow(as_of_timestamp_ms=after)) == [0, 1, 3, 4, 5, 6]
        assert ids(table.to_arrow(as_of_timestamp_ms=appended)) == [0, 1, 2, 3, 4, 5]
        assert ids(table.to_arrow(as_of_timestamp_ms=tiered)) == [0, 1, 2, 3, 4, 5]
        assert ids(table.to_arrow(as_of_timestamp_ms=deleted)) == [0, 1, 3, 4, 5]
        table.refresh()


@pytest.mark.parametrize(
    ("seed", "lake"),
    [
        *((seed, "iceberg") for seed in range(8)),
        *((seed, "paimon") for seed in range(3)),
        *(pytest.param(seed, "paimon", marks=pytest.mark.long) for seed in range(3, 16)),
    ],
)
def test_random_lives_of_a_lake_with_deletions_agree_with_a_list(wh, lake, other_process, seed, monkeypatch):
    """Appends, deletions, rounds, trimming, merging, truncations and new processes, against a list."""
    if seed % 2:
        monkeypatch.setattr(state_module, "DELETIONS_MAX", 3)
        monkeypatch.setattr(state_module, "PENDING_DELETIONS_MAX", 6)
    chance = random.Random(seed)
    partition_by = ["day"] if chance.random() < 0.5 else []
    table = new_table(wh, lake, buckets=chance.choice([1, 3]), partition_by=partition_by)
    expected: list[int] = []
    next_id = 0
    steps = ["append", "append", "delete", "delete", "delete", "merge", "truncate", "open", "tier", "tier", "trim"]
    for _ in range(30):
        match chance.choice(steps):
            case "append":
                new = list(range(next_id, next_id + chance.randrange(1, 8)))
                next_id += len(new)
                table.append(rows(*new))
                expected += new
            case "delete":
                first = chance.randrange(next_id + 1)
                last = first + chance.randrange(5)
                lost = [n for n in expected if first <= n < last]
                assert table.delete(where=[("id", ">=", first), ("id", "<", last)]) == len(lost)
                expected = [n for n in expected if n not in lost]
            case "merge":
                compact_inline_rows(table)
            case "truncate" if chance.random() < 0.3:
                table.truncate()
                expected = []
            case "open":
                table = other_process().table("d.t")
            case "tier":
                tier(table)
                assert ids(table.lake.to_arrow()) == expected
                require_verified(table)
            case "trim":
                trim_tiered(table)
        state = table.refresh()
        assert ids(table.to_arrow()) == expected
        assert as_stored(state) == as_stored(as_stored(state))
        assert state.num_rows == len(expected)


def test_a_dropped_partition_counts_them_once(table):
    table.append(rows(*range(12)))
    tier(table)
    table.delete(where=[("id", "in", [0, 3, 4])])
    report = table.drop_partition({"day": 0})
    assert report.rows == 2
    assert ids(table.to_arrow()) == stock(table) == [1, 2, 5, 7, 8, 10, 11]
    assert table.refresh().num_rows == 7
    require_verified(table)


def test_a_deletion_of_a_row_of_a_dropped_partition_does_nothing(table, other_process):
    table.append(rows(*range(6)))
    tier(table)
    read = ReadVersion.of(table.refresh())
    ((bucket, log),) = [(b, log) for b, log in table.state.buckets.items() if log.end]
    other_process().table("d.t").drop_partition({"day": 0})
    commit_deletion(table, {bucket: OffsetSet.dense(0, 1)}, read)
    assert ids(table.to_arrow()) == [1, 2, 4, 5]
    assert oldest_waiting_ms(table.refresh()) is not None
    assert tier(table).snapshots == ()
    assert oldest_waiting_ms(table.refresh()) is None, "the service would begin rounds for ever"
    assert ids(table.to_arrow()) == [1, 2, 4, 5]
    assert log.end == 6


def test_a_row_of_a_dropped_partition_is_not_replaced(table, other_process):
    table.append(rows(*range(6)))
    tier(table)

    def drop():
        other_process().table("d.t").drop_partition({"day": 0})

    with pytest.raises(CommitConflictError, match="a partition was dropped"):
        replace_rows(table, lambda row: row["id"] == 3, lambda row: {**row, "day": 5}, meanwhile=drop)
    table.delete(where=[("id", "=", 1)])
    replace_rows(table, lambda row: row["id"] == 4, lambda row: {**row, "id": 40}, meanwhile=lambda: tier(table))
    assert ids(table.to_arrow()) == [2, 5, 40]


def test_rows_are_replaced_behind_a_dropped_partition_and_an_overwrite_of_all(table):
    """The lake has nothing of the rows that came instead, and its snapshots from before tell nothing of them."""
    table.append(rows(*range(6)))
    table.drop_partition({"day": 0})
    table.overwrite(rows(0, 3, 6))
    replace_rows(table, lambda row: row["id"] == 3, lambda row: {**row, "id": 30})
    assert ids(table.to_arrow()) == [0, 6, 30]
    tier(table)
    replace_rows(table, lambda row: row["id"] == 6, lambda row: {**row, "id": 60})
    table.create_branch("fix")
    assert table.branch("fix").delete(where=[("id", "=", 0)]) == 1
    table.fast_forward("fix")
    assert ids(table.to_arrow()) == [30, 60]


def test_a_backlog_that_takes_several_rounds_has_no_dropped_partition(wh, lake):
    table = new_table(wh, lake)
    for first in (0, 3, 6):
        table.append(rows(*range(first, first + 3)))
    version = table.refresh().version
    table.delete(where=[("id", "in", [1, 4, 7])])
    read = ReadVersion.of(table.refresh())
    job = TieringJob(table.log, table.open_lake(), world=table.world, bytes_per_bucket_max=1)
    assert len(job.run(run_tasks_locally(table.storage, table.settings, table.world)).snapshots) == 3
    assert [pair.dropped_rows for pair in table.refresh().lake_history] == [1, 2, 3]
    assert not has_dropped_partitions(table.state, read)
    told = changes(table, version + 1, table.state.version)
    assert [(change["_change_type"], change["id"]) for change in told] == [("delete", n) for n in (1, 4, 7)]
    assert table.rollback_to_version(version).rows_added == 3
    assert ids(table.to_arrow()) == list(range(9))


def test_deletions_alone_are_due(table):
    table.append(rows(*range(6)))
    tier(table)
    assert oldest_waiting_ms(table.refresh()) is None
    table.delete(where=[("id", "=", 1)])
    assert oldest_waiting_ms(table.refresh()) is not None
    tier(table)
    assert oldest_waiting_ms(table.refresh()) is None


@by_position
def test_files_are_joined_beside_one_with_deleted_rows(table):
    for first in range(0, 120, 6):
        table.append(rows(*range(first, first + 6)))
        tier(table)
    table.delete(where=[("id", "=", 50)])
    tier(table)
    kept = [n for n in range(120) if n != 50]
    before = set(table.lake.files()["file_path"].to_pylist())
    report = table.open_lake().compact()
    assert report.files_removed > report.files_added
    after = set(table.lake.files()["file_path"].to_pylist())
    assert report.purged_rows == 1, "one of two rows of its file"
    assert len(before - after) == report.files_removed + 1
    assert stock(table) == sorted(table.lake.to_arrow()["id"].to_pylist()) == kept
    table.delete(where=[("id", "in", [7, 119])])
    tier(table)
    kept = [n for n in kept if n not in (7, 119)]
    assert stock(table) == sorted(table.lake.to_arrow()["id"].to_pylist()) == kept


def filled(table, num_rows=60, num_rounds=1):
    for first in range(0, num_rows, num_rows // num_rounds):
        table.append(rows(*range(first, first + num_rows // num_rounds)))
        tier(table)


def bytes_of(table, number):
    """Whether a file of the lake has a row, deleted or not."""
    files = table.lake.files().to_pylist()
    found = [pq.read_table(pa.BufferReader(table.storage.read(f["file_path"].partition("test/")[2]))) for f in files]
    return any(number in rows["id"].to_pylist() for rows in found if "id" in rows.column_names)


@by_position
def test_files_of_which_many_rows_are_deleted_are_written_again(table):
    filled(table)
    table.delete(where=[("id", "in", [0, 1, 2, 3])])
    tier(table)
    assert table.lake.compact() == CompactReport(), "4 of 60: reading them costs little more"
    table.delete(where=[("id", "in", [20, 21, 23, 24, 26])])
    tier(table)
    kept = [n for n in range(4, 60) if n not in (20, 21, 23, 24, 26)]
    shown = table.lake.compact(dry_run=True)
    report = table.lake.compact()
    assert (shown.files_removed, shown.rows, shown.purged_rows) == (report.files_removed, report.rows, 8)
    assert report.files_removed == report.files_added == 2, "partition 1 has 1 deleted row of 20"
    assert stock(table) == ids(table.lake.to_arrow()) == kept
    assert not bytes_of(table, 21)
    assert bytes_of(table, 1)
    assert table.lake.compact() == CompactReport()


@by_position
def test_purge_takes_every_deleted_row_and_places_stay_known(table):
    filled(table, num_rounds=2)
    table.delete(where=[("id", "in", [0, 1, 40])])
    tier(table)
    report = table.lake.compact(purge=True)
    assert report.purged_rows == 3
    assert not any(bytes_of(table, number) for number in (0, 1, 40))
    kept = [n for n in range(60) if n not in (0, 1, 40)]
    assert stock(table) == ids(table.lake.to_arrow()) == kept
    table.delete(where=[("id", "in", [2, 41])])
    assert ids(table.to_arrow()) == [n for n in kept if n not in (2, 41)]
    tier(table)
    assert stock(table) == ids(table.lake.to_arrow()) == [n for n in kept if n not in (2, 41)]
    assert table.lake.compact(purge=True).purged_rows == 2
    assert stock(table) == ids(table.lake.to_arrow()) == [n for n in kept if n not in (2, 41)]
    assert table.state.num_rows == len(kept) - 2
    require_verified(table)


@by_position
def test_a_file_whose_rows_are_all_deleted_goes(table):
    filled(table)
    table.delete(where=[("day", "=", 1)])
    tier(table)
    files = table.lake.files().num_rows
    report = table.lake.compact()
    assert (report.files_removed, report.files_added, report.rows, report.purged_rows) == (1, 0, 0, 20)
    assert table.lake.files().num_rows == files - 2, "the file of deleted positions went too"
    assert stock(table) == ids(table.lake.to_arrow()) == [n for n in range(60) if n % 3 != 1]
    table.append(rows(61))
    tier(table)
    assert stock(table) == ids(table.lake.to_arrow()) == [*(n for n in range(60) if n % 3 != 1), 61]


def test_older_snapshots_keep_deleted_rows_until_they_expire(table):
    filled(table)
    before = table.state.lake.snapshot_id
    table.delete(where=[("id", "=", 7)])
    tier(table)
    table.lake.compact(purge=True)
    assert 7 in ids(table.lake.to_arrow(as_of_snapshot=before))
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert before not in table.lake.snapshots()["snapshot_id"].to_pylist()
    assert stock(table) == [n for n in range(60) if n != 7]


def test_rows_are_found_although_the_snapshot_expired_before_it_was_read(wh, other_process, monkeypatch):
    table = new_table(wh, "iceberg")
    table.append(rows(*range(4)))
    tier(table)
    table.append(rows(4, 5))
    recorded, other = table.refresh().lake.snapshot_id, other_process().table("d.t")
    locate, late = delete.locate_rows, iter([True])

    def locate_late(*given):
        for _ in late:
            tier(other)
            other.open_lake().binding.load().maintenance.expire_snapshots().by_id(recorded).commit()
        return locate(*given)

    monkeypatch.setattr(delete, "locate_rows", locate_late)
    assert table.delete(where=[("id", "=", 3)]) == 1
    assert ids(table.to_arrow()) == [0, 1, 2, 4, 5]


@by_position
def test_a_deletion_that_comes_while_files_are_merged_is_a_conflict(table, monkeypatch):
    for first in range(0, 120, 6):
        table.append(rows(*range(first, first + 6)))
        tier(table)
    merge = compaction.merge_group

    def delete_meanwhile(*arguments):
        merged = merge(*arguments)
        table.delete(where=[("id", "=", 50)])
        tier(table)
        return merged

    monkeypatch.setattr(compaction, "merge_group", delete_meanwhile)
    with pytest.raises(CommitConflictError, match="rows were deleted during the compaction"):
        table.open_lake().compact()
    assert stock(table) == sorted(table.lake.to_arrow()["id"].to_pylist()) == [n for n in range(120) if n != 50]


def test_the_record_is_told(table):
    table.append(rows(1))
    table.delete(where=[("id", "=", 1)])
    assert table.inspect.commits()["actions"].to_pylist()[-1] == "delete_rows"


def test_rows_that_the_lake_deleted_are_counted_once_when_the_oldest_deletions_are_merged(wh, lake, monkeypatch):
    monkeypatch.setattr(state_module, "DELETIONS_MAX", 2)
    monkeypatch.setattr(state_module, "PENDING_DELETIONS_MAX", 2)
    table = new_table(wh, lake)
    table.append(rows(*range(10)))
    table.delete(where=[("id", "<", 2)])
    tier(table)
    for number in range(2, 6):
        assert table.delete(where=[("id", "=", number)]) == 1
        assert table.refresh().num_rows == table.to_arrow().num_rows == 9 - number
    assert len(table.state.deletions) < 5, "some are merged"
    tier(table)
    assert table.refresh().num_rows == 4
    assert ids(table) == [6, 7, 8, 9]


def test_rows_are_counted_once_if_many_are_deleted_during_a_round(wh, lake, monkeypatch):
    monkeypatch.setattr(state_module, "DELETIONS_MAX", 2)
    table = new_table(wh, lake)
    table.append(rows(*range(10)))
    table.delete(where=[("id", "<", 2)])
    run = run_tasks_locally(table.storage, table.settings, table.world)

    def run_slowly(plan):
        for number in range(2, 6):
            table.delete(where=[("id", "=", number)])
        return run(plan)

    tier_table(table, run_slowly)
    assert table.refresh().num_rows == table.to_arrow().num_rows == 4
    tier(table)
    assert table.refresh().num_rows == 4
    assert ids(table) == stock(table) == [6, 7, 8, 9]
