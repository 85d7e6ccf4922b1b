"""Rounds without news on a store whose requests take long: short where nothing is new, and whole where anything is."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from faults.sim import sim_world
from kit.round_trips import Cost, RemoteStorage
from streamhouse_spark import CorruptDataError, StorageError, StreamhouseError, Table, Warehouse
from streamhouse_spark.lake.tiering.job import NO_OP_MS_MAX, TieringJob, TieringReport, run_tasks_locally

FORMATS = ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)]
SHORT = 3


@pytest.fixture(params=FORMATS)
def table(request, remote, world) -> Table:
    """A table whose rows were all tiered, in a process that has found nothing more to do."""
    properties = {"bucket.key": "id", "table.datalake.format": request.param}
    table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT", properties=properties)
    for number in range(6):
        table.append(pa.table({"id": [number]}))
        tier(table)
    tier(table)
    return table


@pytest.fixture
def other(table, memory, clock) -> Table:
    return Warehouse("wh", storage=memory, world=sim_world(7, clock)).table("t")


def tier(table: Table) -> TieringReport:
    lake = table.open_lake()
    return TieringJob(table.log, lake, world=table.world).run(
        run_tasks_locally(table.storage, table.settings, table.world)
    )


def measured(table: Table, remote: RemoteStorage) -> tuple[TieringReport, Cost]:
    with remote.measured() as cost:
        report = tier(table)
    return report, cost


def newest_object(table: Table) -> str:
    head = table.open_lake().head()
    assert head is not None
    return head.key


def test_nothing_is_new(table, remote):
    for _ in range(3):
        report, cost = measured(table, remote)
        assert (report.rows, report.snapshots) == (0, ())
        assert (cost.requests, cost.depth) == (SHORT, 1), cost


def test_rows_of_this_process_and_of_another(table, remote, other):
    table.append(pa.table({"id": [10, 11]}))
    assert measured(table, remote)[0].rows == 2
    tier(table)
    other.append(pa.table({"id": [12]}))
    assert measured(table, remote)[0].rows == 1
    assert table.to_arrow().num_rows == 9


def test_a_lake_commit_that_no_record_names_is_recorded(table, remote, other):
    """Another process compacted the lake and recorded nothing."""
    assert other.open_lake().compact().snapshot is not None
    newest = other.open_lake().newest()
    assert table.refresh().lake.snapshot_id != newest.id
    tier(table)
    assert table.state.lake.snapshot_id == newest.id
    tier(table)
    assert measured(table, remote)[1].requests == SHORT


def test_a_lost_newest_object_of_the_lake_is_named(table, memory):
    memory.delete(key := newest_object(table))
    with pytest.raises(CorruptDataError, match=f"{key} is missing"):
        tier(table)


def test_another_object_of_the_same_number_is_looked_at(table, remote, memory):
    """The lake was restored from a copy that went on otherwise."""
    key = newest_object(table)
    text = json.loads(memory.read(key))
    field = "timeMillis" if "timeMillis" in text else "last-updated-ms"
    memory.put(key, json.dumps({**text, field: text[field] + 1}).encode())
    assert measured(table, remote)[1].requests > SHORT
    tier(table)
    assert measured(table, remote)[1].requests == SHORT


def test_a_damaged_object_is_told(table, memory):
    memory.put(newest_object(table), b"{")
    with pytest.raises(StreamhouseError, match="restore it"):
        tier(table)


def test_all_is_looked_at_again_after_a_while(table, remote, clock):
    clock.advance(NO_OP_MS_MAX + 1)
    assert measured(table, remote)[1].requests > SHORT
    assert measured(table, remote)[1].requests == SHORT


def test_a_job_before_a_drop_remembers_nothing(table, remote):
    """It leaves out a check."""
    table.append(pa.table({"id": [10]}))
    tier(table)
    run = run_tasks_locally(table.storage, table.settings, table.world)
    TieringJob(table.log, table.open_lake(), world=table.world, is_before_drop=True).run(run)
    assert measured(table, remote)[1].requests > SHORT


def test_altered_columns_reach_the_lake_without_rows(table, memory, other):
    other.add_columns("more STRING")
    before = {info.key for info in memory.list("lake/")}
    tier(table)
    assert {info.key for info in memory.list("lake/")} > before


@pytest.mark.parametrize("failing", ["commits/", "lake/"])
def test_a_failing_request_changes_nothing(table, remote, memory, monkeypatch, failing):
    """The next call finds what it would have found."""
    original, stored = memory.read, {info.key for info in memory.list("")}

    def read(key: str) -> bytes:
        if failing in key:
            raise StorageError("the store is away")
        return original(key)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "read", read)
        with pytest.raises(StorageError, match="away"):
            tier(table)
    assert {info.key for info in memory.list("")} == stored
    report, cost = measured(table, remote)
    assert (report.rows, cost.requests) == (0, SHORT)
