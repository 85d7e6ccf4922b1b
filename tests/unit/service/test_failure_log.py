"""Failed rounds of a service are noted beside their table, at a small price, and a note is never in the way."""

from __future__ import annotations

import threading

import pytest

import streamhouse_spark as sh
from faults.faulty_storage import FaultyStorage
from kit.waiting import wait_for
from streamhouse_spark import LakeMismatchError, TableNotFoundError, Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.log.tiering_failures import list_failures
from streamhouse_spark.service import tiering_service
from streamhouse_spark.service import tiering_service as failure_log
from streamhouse_spark.service.tiering_service import FailureNotes, Service, StopRequested
from streamhouse_spark.table.maintenance.log import maintain
from streamhouse_spark.warehouse.process_cache import Connection


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
    notes = FailureNotes(clock)
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
    FailureNotes(clock).record_failure(table, "maintenance", LakeMismatchError("x"), clock.boot_ms())
    newer = FailureNotes(clock)
    newer.note_success(table, "maintenance")
    assert list_failures(table.storage, table.uuid)[0].mended_ms is not None
    began = len(storage.trace)
    newer.note_success(table, "maintenance")
    assert calls(storage, began) == []


def test_of_a_table_that_is_gone_nothing_is_noted(counted, clock):
    table, _ = counted
    FailureNotes(clock).record_failure(table, "tiering", TableNotFoundError("gone"), clock.boot_ms())
    assert list_failures(table.storage, table.uuid) == ()


def test_a_round_that_ends_a_block(counted, clock):
    table, _ = counted
    with FailureNotes(clock).note_failure(table):
        pass
    assert list_failures(table.storage, table.uuid) == ()
    with pytest.raises(ZeroDivisionError), FailureNotes(clock).note_failure(table):
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
    assert not failed.is_over(table.refresh())
    tasks.error = None
    wait_for(lambda: table.refresh().lake is not None, "a round")
    wait_for(lambda: "maintenance" in {f.work for f in list_failures(table.storage, table.uuid)}, "failed upkeep")
    monkeypatch.setattr("streamhouse_spark.service.tiering_service.maintain", maintain)
    wait_for(lambda: all(f.is_over(table.refresh()) for f in list_failures(table.storage, table.uuid)), "an end")
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

    monkeypatch.setattr(failure_log, "note_failure", broken)
    monkeypatch.setattr(failure_log, "note_success", broken)
    table.append([{"id": 1}])
    wait_for(lambda: running.status() and running.status()[0].failures >= 2, "two failures")
    assert running.status()[0].error == "LAKE_MISMATCH: the lake is another one"
    tasks.error = None
    wait_for(lambda: running.status()[0].rounds == 1 and running.status()[0].doing == "waiting", "a round")
    assert running.status()[0].error is None
