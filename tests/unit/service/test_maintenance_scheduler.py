"""When the service maintains a table, that nothing piles up over many rounds, and that a failure stops nothing."""

from __future__ import annotations

import threading

import pytest

import streamhouse_spark as sh
from kit.tables import TableCase, tier
from soak.lake_rounds import rounds_in_memory
from streamhouse_spark import CommitConflictError, StorageError
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.lake.types import CompactReport
from streamhouse_spark.service import tiering_service
from streamhouse_spark.service import tiering_service as tiering_upkeep
from streamhouse_spark.service.tiering_service import (
    MAINTENANCE_MS,
    ORPHANS_MS,
    MaintenanceRunner,
    MaintenanceStatus,
    Service,
)
from streamhouse_spark.warehouse.process_cache import Connection

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
