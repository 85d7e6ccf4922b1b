"""Dropping partitions: what goes, what stays, what readers, streams and later rounds make of it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.rows import ids
from kit.tables import require_verified
from streamhouse_spark import OffsetRange, Warehouse
from streamhouse_spark.errors import (
    InvalidOptionError,
    LakeRolledBackError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
)
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.kv import partition_overwrite
from streamhouse_spark.kv.tablet import Tablet, close_tablets
from streamhouse_spark.lake.tiering import record_snapshot
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.table import drop_partition as partition_life
from streamhouse_spark.table.system_views import open_view

MON, TUE = dt.date(2026, 3, 2), dt.date(2026, 3, 3)
HOUR_MS = 3_600_000


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture(params=["iceberg", "paimon"])
def table(wh, request):
    return wh.create_table(
        "sales.events",
        "id BIGINT, day DATE, land STRING",
        partition_by=["day", "land"],
        properties={
            "bucket.num": "2", "bucket.key": "id", "table.log.ttl": "1h", "table.datalake.format": request.param,
        },
    )  # fmt: skip


@pytest.fixture
def keyed(wh, own_cache):
    return wh.create_table(
        "sales.people",
        "id BIGINT, day DATE, n INT",
        primary_key=["id", "day"],
        partition_by=["day"],
        buckets=2,
        properties={"table.log.ttl": "1h"},
    )


def rows(first: int, count: int, day: dt.date | None = MON, land: str | None = "de") -> list[dict]:
    return [{"id": i, "day": day, "land": land} for i in range(first, first + count)]


def people(first: int, count: int, day: dt.date = MON) -> list[dict]:
    return [{"id": i, "day": day, "n": i} for i in range(first, first + count)]


def job(table) -> TieringJob:
    return TieringJob(table.log, table.open_lake(), world=table.world)


def tier(table):
    return job(table).run(run_tasks_locally(table.storage, table.settings, table.world))


def chosen(table, **values) -> PartitionMatches:
    state = table.refresh()
    return PartitionMatches.of([values], state.schema, state.partition_by, table.name)


# -- log tables -------------------------------------------------------------------------------------------------------


def test_rows_go_from_lake_and_log_and_others_stay(table):
    table.append(rows(0, 10))
    tier(table)
    table.append(rows(10, 10) + rows(20, 5, TUE))
    ends = table.refresh().ends
    counted = table.drop_partition({"day": MON, "land": "de"}, dry_run=True)
    assert (counted.rows, counted.dry_run, counted.snapshot_id) == (20, True, None)
    assert table.to_arrow().num_rows == 25
    report = table.drop_partition({"Day": MON, "LAND": "de"})
    assert report.rows == 20
    assert report.files >= 2
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == list(range(20, 25))
    state = table.refresh()
    assert state.lake.snapshot_id == report.snapshot_id
    assert state.lake.offsets == state.ends == ends
    assert table.drop_partition({"day": MON}) == partition_life.DropPartitionReport(0)
    require_verified(table)
    assert (table.state.lake.dropped_rows, table.open_lake().newest().dropped_rows) == (20, 20)
    for _ in ("records", "a checkpoint"):
        opened = Warehouse("wh", storage=table.storage, world=table.world).table(table.name)
        assert opened.refresh() == table.refresh()
        table.log.checkpoint(table.state)
    table.append(rows(30, 3))
    tier(table)
    assert ids(table.to_arrow()) == [*range(20, 25), *range(30, 33)]
    assert table.refresh().num_rows == 8
    require_verified(table)


def test_some_columns_drop_all_partitions_below_and_null_is_one(table):
    table.append(rows(0, 3) + rows(3, 3, MON, None) + rows(6, 3, None, "de") + rows(9, 3, TUE, None))
    assert table.drop_partition({"land": None}).rows == 6
    assert ids(table.to_arrow()) == [0, 1, 2, 6, 7, 8]
    assert table.drop_partition({"day": None}).rows == 3
    assert table.drop_partition({"day": MON}).rows == 3
    assert table.to_arrow().num_rows == 0
    require_verified(table)


def test_what_cannot_be_dropped_changes_nothing(wh, table):
    table.append(rows(0, 3))
    version = table.refresh().version
    with pytest.raises(InvalidOptionError, match="is not a partition column"):
        table.drop_partition({"id": 1})
    with pytest.raises(SchemaMismatchError, match="'day'"):
        table.drop_partition({"day": "2026-03-02"})
    bare = wh.create_table("a.bare", "id BIGINT")
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        bare.drop_partition({"id": 1})
    lonely = {"table.datalake.enabled": "false"}
    log = wh.create_table("a.log", "id BIGINT, day DATE", partition_by=["day"], properties=lonely)
    with pytest.raises(InvalidOptionError, match=r"neither a lake nor a primary key.*table\.datalake\.enabled to true"):
        log.drop_partition({"day": MON})
    assert table.refresh().version == version
    wh.drop_table("sales.events")
    with pytest.raises(TableNotFoundError):
        table.drop_partition({"day": MON})


def test_a_drop_from_an_empty_table_does_nothing(table):
    assert table.drop_partition({"day": MON}) == partition_life.DropPartitionReport(0)
    assert not table.open_lake().exists()


def test_rows_appended_since_the_call_began_stay_with_their_offsets(table):
    """A round that another service planned later puts rows from before and behind the call into one file."""
    table.append(rows(0, 10) + rows(50, 2, TUE))
    ends = table.refresh().ends
    table.append(rows(10, 10))
    tier(table)
    lake = table.open_lake()
    before = {
        b: [(o, r.to_pylist()) for o, r in lake.read_offsets(b, OffsetRange(ends[b], e))] for b, e in ends_of(table)
    }
    report = partition_life._drop_from_lake(table, ends, chosen(table, day=MON))
    assert (report.rows, report.files) == (10, 2)
    assert ids(table.to_arrow()) == [*range(10, 20), 50, 51]
    require_verified(table)
    for bucket, end in ends_of(table):
        after = [(o, r.to_pylist()) for o, r in lake.read_offsets(bucket, OffsetRange(ends[bucket], end))]
        assert [row for _, part in after for row in part] == [row for _, part in before[bucket] for row in part]
        with pytest.raises(OffsetsTrimmedError):
            list(lake.read_offsets(bucket, OffsetRange(0, end)))


def ends_of(table):
    return sorted(table.refresh().ends.items())


def test_the_hot_log_keeps_its_history_until_it_is_trimmed(table, clock):
    table.append(rows(0, 4) + rows(4, 2, TUE))
    table.drop_partition({"day": MON})
    told = sorted([*range(6), *range(4)])
    assert ids(open_view(table, "changelog").to_arrow()) == told, "four of the rows went again"
    clock.advance(2 * HOUR_MS)
    assert table.maintain().trimmed_to
    assert ids(open_view(table, "changelog").to_arrow()) == told, "a lake snapshot has them"
    table.open_lake().expire(keep_last=1, keep_ms=0)
    assert ids(open_view(table, "changelog").to_arrow()) == [], "the changes from the first commit on with all rows"
    assert ids(table.to_arrow()) == [4, 5]


def test_reads_by_offsets_have_dropped_rows_until_the_log_is_trimmed(table, clock):
    table.append(rows(0, 4) + rows(4, 2, TUE))
    table.drop_partition({"day": MON})
    state = table.refresh()
    ranges = {bucket: OffsetRange(0, end) for bucket, end in state.ends.items() if end}

    def read(state):
        plan = plan_ranges(table, state, ranges, ["id"], fail_on_data_loss=True)
        return ids(pa.Table.from_batches(list(read_batches(table, plan))))

    assert read(state) == list(range(6))
    clock.advance(2 * HOUR_MS)
    assert table.maintain().trimmed_to
    with pytest.raises(OffsetsTrimmedError):
        read(table.refresh())


def test_time_travel_still_reads_it(table, clock):
    table.append(rows(0, 4))
    tier(table)
    held, before_ms = table.refresh().lake.snapshot_id, clock.now_ms()
    clock.advance(HOUR_MS)
    table.append(rows(4, 2, TUE))
    between_ms = clock.now_ms()
    clock.advance(1000)
    report = table.drop_partition({"day": MON})
    clock.advance(1000)
    assert ids(table.lake.to_arrow(as_of_snapshot=held)) == [0, 1, 2, 3]
    assert ids(table.to_arrow(as_of_timestamp_ms=before_ms)) == [0, 1, 2, 3]
    assert ids(table.to_arrow(as_of_timestamp_ms=between_ms)) == list(range(6))
    assert ids(table.to_arrow(as_of_timestamp_ms=clock.now_ms())) == [4, 5]
    assert ids(table.lake.to_arrow(as_of_snapshot=report.snapshot_id)) == [4, 5]


def test_a_crash_before_the_log_knows_shows_the_older_state_and_is_repaired(table, monkeypatch):
    table.append(rows(0, 4))
    tier(table)
    with monkeypatch.context() as patched:
        patched.setattr(
            record_snapshot, "record_latest_snapshot", lambda *_: (_ for _ in ()).throw(StorageError("killed"))
        )
        with pytest.raises(StorageError):
            table.drop_partition({"day": MON})
    assert table.lake.to_arrow().num_rows == 0
    assert table.to_arrow().num_rows == 4, "all of it: the log's pair is the older one"
    assert tier(table).snapshots == ()
    assert table.to_arrow().num_rows == 0
    require_verified(table)


def test_a_tiering_job_that_is_slow_to_record_does_not_bring_the_rows_back(table):
    table.append(rows(0, 4))
    tier(table)
    older = table.open_lake().newest()
    report = table.drop_partition({"day": MON})
    slow = job(table)
    slow._record(older)
    assert table.refresh().lake.snapshot_id == report.snapshot_id
    table.log.commit(lambda state, _: [replace(state.lake_history[0], dropped_rows=0)])  # what was recorded before
    slow._record(table.open_lake().newest())
    assert table.refresh().lake.snapshot_id == report.snapshot_id
    assert table.to_arrow().num_rows == 0


def test_two_drops_at_once(table):
    table.append(rows(0, 4) + rows(4, 4, TUE))
    tier(table)
    ends = table.refresh().ends
    lake = table.open_lake()
    assert lake.drop_partitions(chosen(table, day=MON), below=ends).rows == 4
    assert table.drop_partition({"day": TUE}).rows == 4
    assert table.to_arrow().num_rows == 0
    require_verified(table)


def test_a_lake_that_lost_rows_is_not_dropped_from(table):
    table.append(rows(0, 4))
    tier(table)
    beyond = {bucket: end + 1 for bucket, end in table.refresh().ends.items()}
    with pytest.raises(LakeRolledBackError, match="nothing was dropped"):
        table.open_lake().drop_partitions(chosen(table, day=MON), below=beyond)
    assert table.lake.to_arrow().num_rows == 4


def test_a_truncation_after_the_drop_counts_anew(table):
    table.append(rows(0, 4) + rows(4, 2, TUE))
    table.drop_partition({"day": MON})
    table.truncate()
    table.append(rows(6, 3))
    tier(table)
    assert ids(table.to_arrow()) == [6, 7, 8]
    assert table.refresh().num_rows == 3
    require_verified(table)


def test_compaction_keeps_the_count(table, wh):
    for i in range(8):
        table.append(rows(i * 10, 10, TUE) + rows(1000 + i, 1))
        tier(table)
    table.drop_partition({"day": MON})
    assert table.open_lake().compact().files_removed > 0
    tier(table)
    require_verified(table)
    assert table.to_arrow().num_rows == 80


# -- tables with a primary key ----------------------------------------------------------------------------------------


def test_by_key_all_readers_agree(keyed):
    keyed.upsert(people(0, 8) + people(0, 4, TUE))
    tier(keyed)
    keyed.upsert(people(8, 2))
    assert keyed.drop_partition({"day": MON}, dry_run=True).rows == 10
    version = keyed.refresh().version
    report = keyed.drop_partition({"day": MON})
    assert (report.rows, report.files, report.snapshot_id) == (10, 0, None)
    assert keyed.refresh().version == version + 1, "one record"
    assert keyed.to_arrow().select(["id", "day"]).to_pylist() == [{"id": i, "day": TUE} for i in range(4)]
    found = keyed.lookup([{"id": 1, "day": MON}, {"id": 1, "day": TUE}])
    assert found["_found"].to_pylist() == [False, True]
    changes = open_view(keyed, "changelog").to_arrow().to_pylist()
    deleted = [(row["id"], row["n"]) for row in changes if row["_change_type"] == "delete"]
    assert sorted(deleted) == [(i, i) for i in range(10)], "with the rows as they were"
    assert keyed.lake.to_arrow().num_rows == 12
    tier(keyed)
    assert keyed.lake.to_arrow().num_rows == 4
    require_verified(keyed)
    assert keyed.drop_partition({"day": MON}) == partition_life.DropPartitionReport(0)
    keyed.upsert(people(1, 1))
    assert keyed.to_arrow().num_rows == 5


def test_by_key_counted_where_the_recorded_snapshot_was_expired(keyed):
    keyed.upsert(people(0, 8) + people(0, 4, TUE))
    tier(keyed)
    keyed.upsert([{**row, "n": -1} for row in people(0, 8)])
    tier(keyed)
    compacted = keyed.lake.compact().snapshot
    keyed.open_lake().expire(keep_last=1, keep_ms=0)  # as another engine does
    assert keyed.lake.snapshots()["snapshot_id"].to_pylist() == [compacted.id]
    assert keyed.refresh().lake.snapshot_id != compacted.id
    assert keyed.drop_partition({"day": MON}, dry_run=True).rows == 8


def test_a_keyed_partition_is_dropped_in_bounded_steps(keyed, own_cache, monkeypatch, clock):
    monkeypatch.setattr(partition_overwrite, "SEGMENT_BYTES", 1)
    monkeypatch.setattr("streamhouse_spark.kv.tablet.ITEMS_PER_STEP", 16)
    keyed.upsert(people(0, 100) + people(0, 10, TUE))
    clock.advance(2 * HOUR_MS)
    tier(keyed)
    assert keyed.maintain().trimmed_to
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / "new"))
    version = keyed.refresh().version
    assert keyed.drop_partition({"day": MON}).rows == 100
    state = keyed.refresh()
    assert state.version == version + 1
    assert len([s for s in state.live_segments() if s.commit == state.version]) >= 6
    assert keyed.to_arrow().num_rows == keyed.drop_partition({"day": TUE}).rows == 10
    assert keyed.to_arrow().num_rows == 0


def test_by_key_rows_of_a_faster_writer_go_too(keyed, monkeypatch):
    keyed.upsert(people(0, 20))
    rival = Warehouse("wh", storage=keyed.storage, world=keyed.world).table("sales.people")
    scanned = partition_overwrite.PartitionDeletion._stage_deletions
    writes = iter([people(5, 1), people(100, 3), people(200, 1, TUE)])

    def slow(*args):
        found = scanned(*args)
        if (batch := next(writes, None)) is not None:
            rival.upsert([{**row, "n": -1} for row in batch])
        return found

    monkeypatch.setattr(partition_overwrite.PartitionDeletion, "_stage_deletions", slow)
    assert keyed.drop_partition({"day": MON}).rows == 23
    assert keyed.to_arrow().select(["id", "day"]).to_pylist() == [{"id": 200, "day": TUE}]
    assert keyed.lookup([{"id": 5, "day": MON}])["_found"].to_pylist() == [False]


def test_by_key_where_another_process_of_this_host_is_ahead(keyed, monkeypatch):
    keyed.upsert(people(0, 20))
    rival = Warehouse("wh", storage=keyed.storage, world=keyed.world).table("sales.people")
    catch_up, late = partition_overwrite.catch_up, iter([people(5, 1), people(100, 3)])

    def overtaken(*args):
        catch_up(*args)
        if (batch := next(late, None)) is not None:
            rival.upsert([{**row, "n": -1} for row in batch])

    monkeypatch.setattr(partition_overwrite, "catch_up", overtaken)
    assert keyed.drop_partition({"day": MON}).rows == 23
    assert keyed.to_arrow().num_rows == 0
    deleted = open_view(keyed, "changelog").to_arrow().filter(pc.field("_change_type") == "delete")
    assert ids(deleted) == [*range(20), 100, 101, 102]
    assert dict(zip(deleted["id"].to_pylist(), deleted["n"].to_pylist(), strict=True))[5] == -1


def test_by_key_from_a_tablet_that_is_found_damaged_on_the_way(keyed, monkeypatch):
    keyed.upsert(people(0, 20))
    scan, damaged = Tablet.scan, iter([True, True])

    def found(self, take, prefix=b""):
        if next(damaged, False):
            self.reset()
            return self.extent
        return scan(self, take, prefix)

    monkeypatch.setattr(Tablet, "scan", found)
    assert keyed.drop_partition({"day": MON}).rows == 20
    assert keyed.to_arrow().num_rows == 0


def test_by_key_where_the_table_does_not_delete(wh, own_cache):
    for engine, behavior in (("", "disable"), ("first_row", "ignore")):
        texts = {"table.delete.behavior": behavior, **({"table.merge-engine": engine} if engine else {})}
        table = wh.create_table(
            f"a.t_{behavior}", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=texts
        )
        table.upsert([{"id": 1, "day": MON}])
        for dry_run in (False, True):
            with pytest.raises(InvalidOptionError, match=f"table.delete.behavior is {behavior}"):
                table.drop_partition({"day": MON}, dry_run=dry_run)
        assert table.to_arrow().num_rows == 1


def test_a_keyed_partition_is_dropped_without_a_lake(wh, own_cache):
    texts = {"table.datalake.enabled": "false"}
    table = wh.create_table(
        "a.t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=texts
    )
    table.upsert([{"id": 1, "day": MON}, {"id": 2, "day": TUE}])
    table.add_columns("note STRING")
    table.upsert([{"id": 3, "day": MON, "note": "x"}])
    assert table.drop_partition({"day": MON}).rows == 2
    assert table.to_arrow().to_pylist() == [{"id": 2, "day": TUE, "note": None}]


def test_a_partition_is_dropped_on_a_local_disk(tmp_path, world, own_cache):
    wh = Warehouse("wh", storage=LocalStorage(str(tmp_path / "wh"), fsync=False, world=world), world=world)
    table = wh.create_table("a.t", "id BIGINT, day DATE", partition_by=["day"])
    table.append([{"id": 1, "day": MON}, {"id": 2, "day": TUE}])
    assert table.drop_partition({"day": MON}).rows == 1
    assert ids(table.to_arrow()) == [2]
