"""The loop of the tiering service: its status, its maintenance, and the notes of failed rounds."""

from __future__ import annotations

import copy
import shutil
import threading

import pytest

import streamhouse_spark as sh
from faults.faulty_storage import FaultyStorage
from kit.tables import TableCase, tier
from kit.waiting import wait_for
from soak.lake_rounds import rounds_in_memory
from streamhouse_spark import CommitConflictError, LakeMismatchError, StorageError, TableNotFoundError, Warehouse
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.tiering.job import TieringReport, run_tasks_locally
from streamhouse_spark.lake.types import CompactReport
from streamhouse_spark.log.tiering_failures import list_failures
from streamhouse_spark.service import tiering_service
from streamhouse_spark.service import tiering_service as failure_log
from streamhouse_spark.service import tiering_service as tiering_upkeep
from streamhouse_spark.service.tiering_service import (
    MAINTENANCE_MS,
    ORPHANS_MS,
    FailureRecorder,
    MaintenanceRunner,
    MaintenanceStatus,
    Service,
    StopRequested,
)
from streamhouse_spark.table.maintenance.log import maintain
from streamhouse_spark.warehouse.process_cache import Connection

PROPERTIES = {"table.datalake.freshness": "1s", "table.datalake.auto-compaction": "true"}


def add_again(table: sh.Table) -> None:
    """Another engine adds a copy of the lake's only file."""
    lake = table.open_lake().binding.load()
    (task,) = lake.scan().plan_files()
    theirs = copy.deepcopy(task.file)
    theirs._data[1] = task.file.file_path.rpartition("/")[0] + "/theirs.parquet"
    shutil.copy(task.file.file_path, theirs.file_path)
    with lake.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(theirs)


def test_rows_that_were_healed_are_counted(warehouse_path, monkeypatch):
    """One of them goes when its key changes, two by compaction."""
    warehouse = sh.Warehouse(warehouse_path)
    table = warehouse.create_table("t", "id INT, n INT", primary_key=["id"], buckets=1, properties=PROPERTIES)
    table.upsert([{"id": i, "n": 0} for i in range(3)])
    reports: list[TieringReport] = []
    run_tasks = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    service = Service(run_tasks, Connection.of(warehouse_path, {}), on_report=reports.append)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: reports, "a round")
        assert reports[0].healed_rows == 0
        add_again(table)
        assert table.lake.to_arrow().num_rows == 6
        monkeypatch.setattr(tiering_upkeep, "ROUNDS_TO_COMPACT", 1)
        table.upsert([{"id": 1, "n": 2}])
        wait_for(lambda: sum(s.healed_rows for s in service.status()) == 3, "healing of three rows")
    finally:
        service.stop()
        thread.join(240)
    (status,) = service.status()
    assert (status.healed_rows, status.error) == (3, None)
    assert sorted(table.lake.to_arrow()["id"].to_pylist()) == [0, 1, 2]


HOUR_MS = 3600 * 1000
AUTOMATIC = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}


@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.long
def test_over_sixty_rounds_nothing_piles_up(own_cache, is_keyed):
    """Four hours apart, so that graces of a day pass. Five hundred rounds are `make soak`."""
    rounds = rounds_in_memory(is_keyed=is_keyed, pace_ms=4 * HOUR_MS)
    rounds.maintenance.maintenance_ms = 20 * HOUR_MS
    rounds.run(40)
    before = rounds.counts()
    rounds.run(20)
    after = rounds.counts()
    rounds.require_right()
    assert after["snapshots"] <= 12
    assert after["live files"] <= 16
    assert after["live data manifests"] + after["live delete manifests"] <= 12
    assert after["metadata files"] <= 60
    assert after["records"] <= 120
    assert all(after[kind] <= 1.2 * before[kind] + 5 for kind in after), (before, after)


TABLE = TableCase("t", "id BIGINT", properties=AUTOMATIC)


def rounds_of(table, upkeep: MaintenanceRunner, num_rounds: int, asked: list) -> None:
    for i in range(num_rounds):
        table.append([{"id": i}])
        tier(table)
        upkeep.add_rounds(1)
        asked.append(upkeep.run(table, table.world.clock.boot_ms()))


def test_compaction_is_due_after_ten_rounds_and_expiry_after_fifty(table, world, monkeypatch):
    monkeypatch.setattr(tiering_upkeep, "ROUNDS_TO_EXPIRE", 20)
    upkeep, found = MaintenanceRunner(world.clock.boot_ms()), []
    rounds_of(table, upkeep, 20, found)
    assert [i + 1 for i, report in enumerate(found) if report is not None] == [10, 20]
    assert [report.compacted.files_removed for report in found if report] == [10, 11]
    assert found[-1].expired.snapshots == ()
    status = MaintenanceStatus().after(found[9]).after(found[19])
    assert (status.compactions, status.compacted_files, status.expired_snapshots) == (2, 21, 0)


def test_nothing_of_the_lake_is_asked_where_nothing_is_due(table, world, monkeypatch):
    upkeep, found = MaintenanceRunner(world.clock.boot_ms()), []
    monkeypatch.setattr(IcebergLake, "compact", lambda *_, **__: pytest.fail("asked for"))
    rounds_of(table, upkeep, 9, found)
    assert found == [None] * 9
    table.alter_properties({"table.datalake.auto-compaction": "false"})
    rounds_of(table, upkeep, 11, found)
    assert found == [None] * 20


def test_time_makes_maintenance_due_and_orphans_less_often(table, world, clock, monkeypatch):
    upkeep, looked = MaintenanceRunner(clock.boot_ms()), []
    rounds_of(table, upkeep, 1, [])
    monkeypatch.setattr(IcebergLake, "remove_orphans", lambda *_, **__: looked.append(clock.boot_ms()) or [])
    began = clock.boot_ms()
    for _ in range(int(2 * ORPHANS_MS / MAINTENANCE_MS)):
        assert not upkeep.is_due(clock.boot_ms())
        clock.advance(MAINTENANCE_MS)
        assert upkeep.is_due(clock.boot_ms())
        assert upkeep.run(table, clock.boot_ms()) is not None
    assert [at - began for at in looked] == [ORPHANS_MS, 2 * ORPHANS_MS]


def test_a_step_that_lost_a_race_leaves_the_others(table, world, clock, monkeypatch):
    upkeep = MaintenanceRunner(clock.boot_ms())
    rounds_of(table, upkeep, 12, [])
    clock.advance(25 * HOUR_MS)

    def lost(*_, **__) -> CompactReport:
        raise CommitConflictError("another engine was faster")

    monkeypatch.setattr(IcebergLake, "compact", lost)
    report = upkeep.run(table, clock.boot_ms())
    assert report.conflicts == ("COMMIT_CONFLICT: another engine was faster",)
    assert report.expired.snapshots
    assert MaintenanceStatus().after(report).conflicts == 1


def test_maintenance_that_fails_does_not_stop_tiering(warehouse_path, monkeypatch, caplog):
    warehouse = sh.Warehouse(warehouse_path)
    table = warehouse.create_table("t", "id INT", properties={**AUTOMATIC, "table.datalake.freshness": "1s"})
    monkeypatch.setattr(tiering_upkeep, "ROUNDS_TO_COMPACT", 1)
    monkeypatch.setattr(tiering_service, "POLL_MS", 20)
    broken = True
    compact = IcebergLake.compact

    def failing(self, *, dry_run: bool = False) -> CompactReport:
        if broken:
            raise StorageError("the disk is full\nand more")
        return compact(self, dry_run=dry_run)

    monkeypatch.setattr(IcebergLake, "compact", failing)
    rounds = threading.Semaphore(0)
    run_tasks = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    service = Service(run_tasks, Connection.of(warehouse_path, {}), on_report=lambda _: rounds.release())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        for i in range(3):
            table.append([{"id": i}])
            assert rounds.acquire(timeout=240)
        (status,) = service.status()
        assert status.maintenance.failures >= 2
        assert (status.maintenance.error, status.error, status.failures) == (
            "STORAGE: the disk is full and more",
            None,
            0,
        )
        broken = False
        table.append([{"id": 3}])
        assert rounds.acquire(timeout=240)
    finally:
        service.stop()
        thread.join(240)
    (status,) = service.status()
    assert (status.rounds, status.rows) == (4, 4)
    assert (status.maintenance.error, status.maintenance.failures) == (None, 0)
    assert "maintenance of default.t failed, tiering continues: STORAGE: the disk is full and more" in caplog.text
    assert table.lake.to_arrow().num_rows == 4


@pytest.fixture
def counted(memory, world):
    storage = FaultyStorage(memory)
    wh = Warehouse("wh", storage=storage, world=world)
    table = wh.create_table("s.t", "id BIGINT")
    table.append([{"id": 1}])
    return table, storage


def calls(storage, since: int) -> list[str]:
    return [method for _, method, _ in storage.trace[since:]]


def test_a_failed_round_is_one_put_and_successes_are_none_but_the_first(counted, clock):
    table, storage = counted
    notes = FailureRecorder(clock)
    began = len(storage.trace)
    notes.note_success(table, "tiering")
    assert calls(storage, began) == []
    for number in range(3):
        began_ms = clock.boot_ms()
        clock.advance(250)
        began = len(storage.trace)
        notes.record_failure(table, "tiering", LakeMismatchError("another lake"), began_ms)
        assert calls(storage, began).count("put") == 1
        assert len(calls(storage, began)) == 2
        (found,) = list_failures(table.storage, table.uuid)
        assert (found.times, found.duration_ms, found.rows) == (number + 1, 250, 1)
    began = len(storage.trace)
    notes.note_success(table, "tiering")
    assert calls(storage, began).count("put") == 1
    began = len(storage.trace)
    notes.note_success(table, "tiering")
    assert calls(storage, began) == []
    assert list_failures(table.storage, table.uuid)[0].mended_ms is not None


def test_a_new_process_ends_the_failed_maintenance_of_an_older_one(counted, clock):
    table, storage = counted
    FailureRecorder(clock).record_failure(table, "maintenance", LakeMismatchError("x"), clock.boot_ms())
    newer = FailureRecorder(clock)
    newer.note_success(table, "maintenance")
    assert list_failures(table.storage, table.uuid)[0].mended_ms is not None
    began = len(storage.trace)
    newer.note_success(table, "maintenance")
    assert calls(storage, began) == []


def test_of_a_table_that_is_gone_nothing_is_noted(counted, clock):
    table, _ = counted
    FailureRecorder(clock).record_failure(table, "tiering", TableNotFoundError("gone"), clock.boot_ms())
    assert list_failures(table.storage, table.uuid) == ()


def test_a_round_that_ends_a_block(counted, clock):
    table, _ = counted
    with FailureRecorder(clock).note_failure(table):
        pass
    assert list_failures(table.storage, table.uuid) == ()
    with pytest.raises(ZeroDivisionError), FailureRecorder(clock).note_failure(table):
        raise ZeroDivisionError
    assert list_failures(table.storage, table.uuid)[0].error == "ZeroDivisionError"


class Failing:
    """Runs tasks in this process, and fails while it is told to."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.run = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
        self.error: Exception | None = LakeMismatchError("the lake is another one")
        self.rounds = 0

    def __call__(self, tasks):
        self.rounds += 1
        if self.error is not None and tasks:
            raise self.error
        return self.run(tasks)


@pytest.fixture
def service(warehouse_path, monkeypatch):
    monkeypatch.setattr(tiering_service, "_BACKOFF_MS", 10)
    warehouse = sh.Warehouse(warehouse_path)
    table = warehouse.create_table("s.t", "id BIGINT", properties={"table.datalake.freshness": "1s"})
    tasks = Failing(warehouse)
    service = Service(tasks, Connection.of(warehouse_path, {}), maintenance_ms=50)
    thread = threading.Thread(target=service.run)
    thread.start()
    yield table, tasks, service
    service.stop()
    thread.join(240)


def test_a_service_notes_rounds_and_maintenance_that_fail_and_that_they_succeed(service, monkeypatch):
    table, tasks, running = service
    monkeypatch.setattr("streamhouse_spark.service.tiering_service.maintain", _failing)
    table.append([{"id": 1}])
    wait_for(lambda: any(one.times >= 2 for one in list_failures(table.storage, table.uuid)), "two failures")
    failed = list_failures(table.storage, table.uuid)[0]
    assert (failed.work, failed.error, failed.rows) == ("tiering", "LakeMismatchError", 1)
    assert failed.host == failure_log.host_name()
    assert not failed.is_resolved(table.refresh())
    tasks.error = None
    wait_for(lambda: table.refresh().lake is not None, "a round")
    wait_for(lambda: "maintenance" in {f.work for f in list_failures(table.storage, table.uuid)}, "failed upkeep")
    monkeypatch.setattr("streamhouse_spark.service.tiering_service.maintain", maintain)
    wait_for(lambda: all(f.is_resolved(table.refresh()) for f in list_failures(table.storage, table.uuid)), "an end")
    wait_for(lambda: running.status()[0].maintenance.error is None, "upkeep")


def _failing(*_, **__):
    raise LakeMismatchError("maintenance cannot")


def test_a_service_that_is_stopped_in_a_round_notes_no_failure(service):
    table, tasks, running = service
    tasks.error = StopRequested()
    before = tasks.rounds
    table.append([{"id": 1}])
    wait_for(lambda: tasks.rounds > before, "a round")
    running.stop()
    assert list_failures(table.storage, table.uuid) == ()


def test_a_note_that_cannot_be_written_is_not_in_the_way(service, monkeypatch):
    table, tasks, running = service

    def broken(*_, **__):
        raise OSError("no note")

    monkeypatch.setattr(failure_log, "record_failure", broken)
    monkeypatch.setattr(failure_log, "record_success", broken)
    table.append([{"id": 1}])
    wait_for(lambda: running.status() and running.status()[0].failures >= 2, "two failures")
    assert running.status()[0].error == "LAKE_MISMATCH: the lake is another one"
    tasks.error = None
    wait_for(lambda: running.status()[0].rounds == 1 and running.status()[0].doing == "waiting", "a round")
    assert running.status()[0].error is None
