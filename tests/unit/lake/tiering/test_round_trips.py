"""Round trips of tiering and creation on a slow store, with and without new rows."""

from __future__ import annotations

import json
from itertools import pairwise

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from kit.round_trips import Cost, RemoteStorage
from kit.tables import tier
from streamhouse_spark import CorruptDataError, StorageError, StreamhouseError, Table, Warehouse
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY
from streamhouse_spark.lake.tiering.job import (
    NO_OP_MS_MAX,
    TieringJob,
    TieringReport,
    run_tasks_in_threads,
    run_tasks_locally,
)
from streamhouse_spark.table.maintenance.tiering import tier_table

BUCKETS = 4


@pytest.fixture
def wh(remote, world, monkeypatch) -> Warehouse:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return Warehouse("wh", storage=remote, world=world)


def write(table: Table, number: int) -> None:
    rows = pa.table({"id": range(400), "v": [f"{number}"] * 400})
    (table.upsert if table.state.primary_key else table.append)(rows)


def tier_in_threads(table: Table) -> None:
    tier_table(table, run_tasks_in_threads(table.storage, table.settings, table.world))


def table_of(wh: Warehouse, lake_format: str, *, keyed: bool) -> Table:
    properties = {"bucket.key": "id", "table.datalake.format": lake_format}
    key = {"primary_key": ["id"]} if keyed else {}
    return wh.create_table("t", "id BIGINT NOT NULL, v STRING", buckets=BUCKETS, properties=properties, **key)


@pytest.mark.parametrize(
    ("lake_format", "keyed", "requests_max", "depth_max"),
    [
        ("iceberg", False, 24, 11),
        ("iceberg", True, 67, 16),
        pytest.param("paimon", False, 34, 12, marks=pytest.mark.paimon),
        pytest.param("paimon", True, 34, 12, marks=pytest.mark.paimon),
    ],
)
def test_a_round_takes_few_round_trips(wh, remote, lake_format, keyed, requests_max, depth_max):
    """Data files are among the requests; with a key and Iceberg, so are the files of up to five rounds before."""
    table = table_of(wh, lake_format, keyed=keyed)
    for number in range(4):
        write(table, number)
        tier_in_threads(table)
    write(table, 9)
    with remote.measured() as cost:
        tier_in_threads(table)
    assert cost.requests <= requests_max
    assert cost.depth <= depth_max
    with remote.measured() as cost:
        tier_in_threads(table)
    assert cost.requests <= (5 if lake_format == "iceberg" else 8), "nothing was left: all is looked at once"
    assert cost.depth <= 2
    with remote.measured() as cost:
        tier_in_threads(table)
    assert (cost.requests, cost.depth) == (3, 1), "and then only whether there is something new"


def test_buckets_do_not_add_up(wh, remote):
    """Rows of all buckets lie in one record, and files are written at the same time."""
    costs = []
    for buckets in (2, 16):
        table = wh.create_table(f"t{buckets}", "id BIGINT", buckets=buckets, properties={"bucket.key": "id"})
        for _ in range(2):
            table.append(pa.table({"id": range(1000)}))
            tier_in_threads(table)
        table.append(pa.table({"id": range(1000)}))
        with remote.measured() as cost:
            tier_in_threads(table)
        costs.append(cost)
    assert costs[1].depth <= costs[0].depth + 2
    assert costs[1].requests <= costs[0].requests + 2 * 14


@pytest.mark.parametrize(("first", "requests_max", "depth_max"), [(True, 15, 9), (False, 9, 4)])
def test_creating_a_table_takes_few_round_trips(wh, remote, first, requests_max, depth_max):
    if not first:
        wh.create_table("before", "id BIGINT")
    with remote.measured() as cost:
        wh.create_table("t", "id BIGINT", buckets=BUCKETS)
    assert cost.requests <= requests_max, cost
    assert cost.depth <= depth_max, cost


@pytest.mark.parametrize(
    ("lake_format", "keyed", "requests_max", "depth_max"),
    [
        ("iceberg", False, 137, 25),
        ("iceberg", True, 128, 24),
        pytest.param("paimon", False, 156, 26, marks=pytest.mark.paimon),
        pytest.param("paimon", True, 124, 25, marks=pytest.mark.paimon),
    ],
)
def test_maintenance_of_many_files_takes_few_round_trips(
    wh, remote, clock, lake_format, keyed, requests_max, depth_max
):
    """Of 32 files, which become four: footers and files are read, and groups written, at the same time."""
    table = table_of(wh, lake_format, keyed=keyed)
    for number in range(8):
        write(table, number)
        tier_in_threads(table)
    rows = table.to_arrow().sort_by([("id", "ascending"), ("v", "ascending")])
    with remote.measured() as cost:
        report = table.maintain()
    if not keyed:
        assert (report.lake.compacted.files_removed, report.lake.compacted.files_added) == (32, 4)
    assert report.lake.compacted.files_added == 4
    assert cost.requests <= requests_max
    assert cost.depth <= depth_max
    assert table.to_arrow().sort_by([("id", "ascending"), ("v", "ascending")]) == rows
    clock.advance(25 * 3_600_000)
    with remote.measured() as cost:
        assert not table.maintain().lake.compacted.files_removed
    assert cost.depth <= 20, "nothing is to be joined"


def test_clustering_reads_its_files_at_the_same_time(wh, remote):
    depths = []
    for name, rounds in (("few", 2), ("many", 12)):
        table = wh.create_table(name, "id BIGINT NOT NULL, v STRING")
        for number in range(rounds):
            write(table, number)
            tier_in_threads(table)
        with remote.measured() as cost:
            assert table.lake.optimize("v").files_removed == rounds
        depths.append(cost.depth)
    assert depths[1] <= depths[0] + 4, depths


FORMATS = ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)]
SHORT = 3


@pytest.fixture(params=FORMATS)
def tiered_table(request, remote, world) -> Table:
    """A table whose rows were all tiered, in a process that has found nothing more to do."""
    properties = {"bucket.key": "id", "table.datalake.format": request.param}
    tiered_table = Warehouse("wh", storage=remote, world=world).create_table("t", "id BIGINT", properties=properties)
    for number in range(6):
        tiered_table.append(pa.table({"id": [number]}))
        run_job(tiered_table)
    run_job(tiered_table)
    return tiered_table


@pytest.fixture
def other(tiered_table, memory, clock) -> Table:
    return Warehouse("wh", storage=memory, world=sim_world(7, clock)).table("t")


def run_job(tiered_table: Table) -> TieringReport:
    lake = tiered_table.open_lake()
    return TieringJob(tiered_table.log, lake, world=tiered_table.world).run(
        run_tasks_locally(tiered_table.storage, tiered_table.settings, tiered_table.world)
    )


def measured(tiered_table: Table, remote: RemoteStorage) -> tuple[TieringReport, Cost]:
    with remote.measured() as cost:
        report = run_job(tiered_table)
    return report, cost


def newest_object(tiered_table: Table) -> str:
    head = tiered_table.open_lake().latest_version()
    assert head is not None
    return head.key


def test_a_round_without_new_rows_takes_one_round_trip(tiered_table, remote):
    for _ in range(3):
        report, cost = measured(tiered_table, remote)
        assert (report.rows, report.snapshots) == (0, ())
        assert (cost.requests, cost.depth) == (SHORT, 1), cost


def test_rows_of_this_process_and_of_another_are_tiered(tiered_table, remote, other):
    tiered_table.append(pa.table({"id": [10, 11]}))
    assert measured(tiered_table, remote)[0].rows == 2
    run_job(tiered_table)
    other.append(pa.table({"id": [12]}))
    assert measured(tiered_table, remote)[0].rows == 1
    assert tiered_table.to_arrow().num_rows == 9


def test_a_lake_commit_that_no_record_names_is_recorded(tiered_table, remote, other):
    """Another process compacted the lake and recorded nothing."""
    assert other.open_lake().compact().snapshot is not None
    newest = other.open_lake().newest()
    assert tiered_table.refresh().lake.snapshot_id != newest.id
    run_job(tiered_table)
    assert tiered_table.state.lake.snapshot_id == newest.id
    run_job(tiered_table)
    assert measured(tiered_table, remote)[1].requests == SHORT


def test_a_lost_newest_object_of_the_lake_is_named(tiered_table, memory):
    memory.delete(key := newest_object(tiered_table))
    with pytest.raises(CorruptDataError, match=f"{key} is missing"):
        run_job(tiered_table)


def test_another_object_of_the_same_number_is_looked_at(tiered_table, remote, memory):
    """The lake was restored from a copy that went on otherwise."""
    key = newest_object(tiered_table)
    text = json.loads(memory.read(key))
    field = "timeMillis" if "timeMillis" in text else "last-updated-ms"
    memory.put(key, json.dumps({**text, field: text[field] + 1}).encode())
    assert measured(tiered_table, remote)[1].requests > SHORT
    run_job(tiered_table)
    assert measured(tiered_table, remote)[1].requests == SHORT


def test_a_damaged_object_is_told(tiered_table, memory):
    memory.put(newest_object(tiered_table), b"{")
    with pytest.raises(StreamhouseError, match="restore it"):
        run_job(tiered_table)


def test_all_is_looked_at_again_after_a_while(tiered_table, remote, clock):
    clock.advance(NO_OP_MS_MAX + 1)
    assert measured(tiered_table, remote)[1].requests > SHORT
    assert measured(tiered_table, remote)[1].requests == SHORT


def test_a_job_before_a_drop_remembers_nothing(tiered_table, remote):
    """It leaves out a check."""
    tiered_table.append(pa.table({"id": [10]}))
    run_job(tiered_table)
    run = run_tasks_locally(tiered_table.storage, tiered_table.settings, tiered_table.world)
    TieringJob(tiered_table.log, tiered_table.open_lake(), world=tiered_table.world, is_before_drop=True).run(run)
    assert measured(tiered_table, remote)[1].requests > SHORT


def test_altered_columns_reach_the_lake_without_rows(tiered_table, memory, other):
    other.add_columns("more STRING")
    before = {info.key for info in memory.list("lake/")}
    run_job(tiered_table)
    assert {info.key for info in memory.list("lake/")} > before


@pytest.mark.parametrize("failing", ["commits/", "lake/"])
def test_a_failing_request_changes_nothing(tiered_table, remote, memory, monkeypatch, failing):
    """The next call finds what it would have found."""
    original, stored = memory.read, {info.key for info in memory.list("")}

    def read(key: str) -> bytes:
        if failing in key:
            raise StorageError("the store is away")
        return original(key)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "read", read)
        with pytest.raises(StorageError, match="away"):
            run_job(tiered_table)
    assert {info.key for info in memory.list("")} == stored
    report, cost = measured(tiered_table, remote)
    assert (report.rows, cost.requests) == (0, SHORT)


def round_of(table, counted: FaultyStorage, row: int) -> list[tuple[str, str]]:
    """The requests of one round that tiers one row, as the service has them: the table stays, its lake is opened."""
    (table.upsert if table.state.primary_key else table.append)([{"id": row}])
    counted.trace.clear()
    tier(table)
    return [(method, key) for _, method, key in counted.trace if method not in ("create.write", "create.close")]


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
@pytest.mark.parametrize(("lake_format", "requests_max"), [("iceberg", 60), ("paimon", 70)])
def test_a_round_costs_as_much_as_the_one_before(counted, world, own_cache, lake_format, requests_max, key):
    """All of it, the look where the warehouse is at home included, which each round's lake takes once. By key, every
    round leaves a manifest that the next ones read, until a compaction, which is due after ten rounds.
    """
    warehouse = Warehouse("wh", storage=counted, world=world)
    properties = {"table.datalake.format": lake_format}
    table = warehouse.create_table("t", "id BIGINT NOT NULL", primary_key=key, properties=properties)
    rounds = [round_of(table, counted, row) for row in range(8)]
    assert [requests.count(("read", WAREHOUSE_KEY)) for requests in rounds] == [1] * 8
    sizes = [len(requests) for requests in rounds]
    grown = [after - before for before, after in pairwise(sizes[2:])]
    assert grown == [1 if key else 0] * 5, sizes
    assert sizes[2] <= requests_max, sizes
