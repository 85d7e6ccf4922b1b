"""Tiering a table: every row once, whoever crashes, races or was slow."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from interop.lake_cases import EVENTS, EVERY_TYPE, event_rows, every_type_rows, sorted_rows
from streamhouse_spark import CommitConflictError, CorruptDataError, LakeRolledBackError, StorageError
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.lake.tiering.job import TieringJob, run_task, run_tasks_in_threads, run_tasks_locally
from streamhouse_spark.lake.tiering.plan import TieringTask


def _job(table, **options) -> TieringJob:
    return TieringJob(table.log, table.open_lake(), world=table.world, **options)


def _tier(table, **options):
    return _job(table, **options).run(run_tasks_locally(table.storage, table.settings, table.world))


def _lake_rows(table) -> list[dict]:
    return sorted_rows(table.lake.to_arrow())


@pytest.fixture
def events(wh, lake_format):
    return wh.create_table(
        "sales.events",
        EVENTS.arrow,
        partition_by=["day"],
        properties={"bucket.num": "3", "bucket.key": "id", "table.datalake.format": lake_format},
    )


def test_values_of_every_type_are_tiered(wh, lake_format):
    properties = {"bucket.num": "2", "table.datalake.format": lake_format}
    table = wh.create_table("t", EVERY_TYPE.arrow, properties=properties)
    rows = every_type_rows(40)
    table.append(rows)
    report = _tier(table)
    assert (report.rows, len(report.snapshots), report.conflicts) == (40, 1, 0)
    assert _lake_rows(table) == sorted_rows(rows)
    assert table.refresh().lake.snapshot_id == report.snapshots[0]


class TestThreads:
    @pytest.fixture(autouse=True)
    def _two_cores(self, monkeypatch):
        monkeypatch.setattr("os.cpu_count", lambda: 2)

    def test_as_many_buckets_are_tiered_at_once_as_there_are_cores(self, events, monkeypatch):
        events.append(event_rows(30))
        both, running, most = threading.Barrier(2), threading.Semaphore(2), []

        def watched(storage, settings, world, task, records):
            most.append(running.acquire(blocking=False))
            if len(most) <= 2:
                both.wait(240)
            written = run_task(storage, settings, world, task, records)
            running.release()
            return written

        monkeypatch.setattr(tiering, "run_task", watched)
        report = _job(events).run(run_tasks_in_threads(events.storage, events.settings, events.world))
        assert (report.rows, len(report.snapshots), most) == (30, 1, [True] * 3)
        assert _lake_rows(events) == sorted_rows(event_rows(30))

    def test_an_error_is_the_rounds_and_the_next_round_has_the_rows(self, events, monkeypatch):
        events.append(event_rows(30))

        def failing(storage, settings, world, task, records):
            if task.bucket == 1:
                raise StorageError("the disk is full")
            return run_task(storage, settings, world, task, records)

        run = run_tasks_in_threads(events.storage, events.settings, events.world)
        with monkeypatch.context() as broken:
            broken.setattr(tiering, "run_task", failing)
            with pytest.raises(StorageError, match="the disk is full"):
                _job(events).run(run)
        assert events.refresh().lake is None
        assert _job(events).run(run).rows == 30
        assert _lake_rows(events) == sorted_rows(event_rows(30))


def test_a_round_without_rows_creates_no_lake(events):
    report = _tier(events)
    assert (report.rows, report.files, report.snapshots) == (0, 0, ())
    assert not events.open_lake().exists()
    events.append(event_rows(10))
    _tier(events)
    again = _tier(events)
    assert (again.rows, again.snapshots) == (0, ())


def test_rounds_reach_every_row_committed_before_the_call(events):
    rows = [event_rows(50, seed=i) for i in range(6)]
    for part in rows:
        events.append(part)
    report = _tier(events, bytes_per_bucket_max=1)
    assert report.rows == 300
    assert len(report.snapshots) > 1
    assert events.refresh().lake.offsets == events.refresh().ends
    assert _lake_rows(events) == sorted_rows(pa.concat_tables(rows))
    assert sorted_rows(events.to_arrow()) == _lake_rows(events)


def test_rows_that_arrive_meanwhile_stay_in_the_log(events):
    events.append(event_rows(20))
    job = _job(events)
    local = run_tasks_locally(events.storage, events.settings, events.world)

    def run(tasks):
        events.append(event_rows(5, seed=9))
        return local(tasks)

    assert job.run(run).rows == 20
    assert events.to_arrow().num_rows == 25
    assert events.lake.to_arrow().num_rows == 20


def test_tasks_can_be_shipped_as_json(events):
    rows = event_rows(30)
    events.append(rows)

    def run(tasks):
        shipped = [TieringTask.from_json(task.to_json()) for task in tasks]
        return [run_task(events.storage, events.settings, events.world, task) for task in shipped]

    assert _job(events).run(run).rows == 30
    assert _lake_rows(events) == sorted_rows(rows)


def test_a_crash_between_lake_and_log_is_repaired_by_adopting(events, monkeypatch):
    events.append(event_rows(20))
    job = _job(events)
    monkeypatch.setattr(job, "_record", lambda snapshot: (_ for _ in ()).throw(StorageError("killed")))
    with pytest.raises(StorageError):
        job.run(run_tasks_locally(events.storage, events.settings, events.world))
    assert events.refresh().lake is None
    assert events.to_arrow().num_rows == 20
    report = _tier(events)
    assert (report.rows, report.snapshots) == (0, ())
    assert events.refresh().lake.offsets == events.refresh().ends
    assert events.to_arrow().num_rows == 20


def test_a_failing_task_leaves_the_table_as_it_was(events):
    rows = event_rows(20)
    events.append(rows)

    def fail(tasks):
        run_task(events.storage, events.settings, events.world, tasks[0])
        raise StorageError("executor lost")

    with pytest.raises(StorageError, match="executor lost"):
        _job(events).run(fail)
    assert _tier(events).rows == 20
    assert _lake_rows(events) == sorted_rows(rows)


@pytest.mark.parametrize("overtaken", [1, 3])
def test_two_services_tier_each_row_once(events, other_process, overtaken):
    rows = event_rows(60)
    events.append(rows)
    other = other_process().table("sales.events")
    local = run_tasks_locally(events.storage, events.settings, events.world)
    calls = []

    def run(tasks):
        written = local(tasks)
        calls.append(tasks)
        if len(calls) <= overtaken:
            events.append(event_rows(3, seed=100 + len(calls)))
            TieringJob(other.log, other.open_lake(), bytes_per_bucket_max=1).run(local)
        return written

    report = _job(events, bytes_per_bucket_max=1).run(run)
    assert report.conflicts >= 1
    appended = 60 + 3 * min(len(calls), overtaken)
    assert events.to_arrow().num_rows == appended
    _tier(other)
    assert _lake_rows(events) == sorted_rows(events.to_arrow())
    assert events.lake.to_arrow().num_rows == appended


def test_a_round_that_begins_again_shows_one_state(events):
    """Rows were added and then others deleted while it was in vain: a lake without these has those."""
    events.append(event_rows(10))
    _tier(events)
    some = events.to_arrow()["id"].to_pylist()[:2]
    events.append(event_rows(5, seed=1))
    local, calls = run_tasks_locally(events.storage, events.settings, events.world), []

    def run(tasks):
        calls.append(tasks)
        if len(calls) == 1:
            events.append(event_rows(5, seed=2))
            assert events.delete(where=[("id", "in", some)])
            raise CommitConflictError("another tiering service committed concurrently")
        return local(tasks)

    assert len(_job(events).run(run).snapshots) == 1
    assert _lake_rows(events) == sorted_rows(events.to_arrow())


def test_a_service_that_always_loses_gives_up(events, monkeypatch):
    events.append(event_rows(5))
    lake = events.open_lake()

    def lose(*args, **kwargs):
        raise CommitConflictError("another tiering service committed concurrently")

    monkeypatch.setattr(lake, "commit", lose)
    with pytest.raises(CommitConflictError):
        TieringJob(events.log, lake, world=events.world).run(
            run_tasks_locally(events.storage, events.settings, events.world)
        )


def test_a_lake_that_went_back_stops_tiering(events, lake_format):
    events.append(event_rows(10))
    _tier(events)
    first = events.lake.newest()
    events.append(event_rows(10, seed=1))
    _tier(events)
    if lake_format == "iceberg":
        table = events.open_lake().binding.load()
        table.manage_snapshots().rollback_to_snapshot(first.id).remove_tag("__streamhouse_lake_tiering").commit()
    else:  # what Paimon's rollback does
        for key in (f"snapshot/snapshot-{first.id + 1}", "tag/tag-__streamhouse_lake_tiering"):
            events.storage.delete(f"{events.state.lake_location}/{key}")
    events.append(event_rows(10, seed=2))
    with pytest.raises(LakeRolledBackError, match="rolled back"):
        _tier(events)


def test_a_lake_table_that_vanished_stops_tiering(events):
    events.append(event_rows(10))
    _tier(events)
    for info in events.storage.list("lake/"):
        events.storage.delete(info.key)
    events.append(event_rows(10, seed=2))
    with pytest.raises(CorruptDataError, match=r"is missing, but lake snapshot .*, which the log recorded"):
        _tier(events)


def test_the_recorded_pair_never_goes_back(events, other_process):
    events.append(event_rows(10))
    slow = _job(events)
    _tier(events)
    older = events.lake.newest()
    events.append(event_rows(10, seed=1))
    _tier(other_process().table("sales.events"))
    newer = events.refresh().lake
    slow._record(older)
    assert events.refresh().lake == newer


def test_a_dropped_table_leaves_no_lake(events, wh, clock):
    events.append(event_rows(10))
    _tier(events)
    wh.drop_table("sales.events")
    for _ in range(2):  # the tombstone, and a day later the files
        clock.advance(25 * 3_600_000)
        wh.clean_dropped()
    assert not events.open_lake().exists()
    assert [info.key for info in events.storage.list("lake/") if "/metadata/" not in info.key] == []


def test_maintenance_goes_on_beside_any_lake(events, clock):
    for i in range(3):
        events.append(event_rows(10, seed=i))
        _tier(events)
    clock.advance(8 * 24 * 3_600_000)
    assert events.maintain().trimmed_to == events.state.ends
    assert events.to_arrow().num_rows == 30
