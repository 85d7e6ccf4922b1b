"""Round trips of tiering and creation on a store whose requests take long: how many, and how many in sequence."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.table.maintenance.tiering import tier_table

BUCKETS = 4


@pytest.fixture
def wh(remote, world, monkeypatch) -> Warehouse:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return Warehouse("wh", storage=remote, world=world)


def write(table: Table, number: int) -> None:
    rows = pa.table({"id": range(400), "v": [f"{number}"] * 400})
    (table.upsert if table.state.primary_key else table.append)(rows)


def tier(table: Table) -> None:
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
def test_a_round(wh, remote, lake_format, keyed, requests_max, depth_max):
    """Data files are among the requests; with a key and Iceberg, so are the files of up to five rounds before."""
    table = table_of(wh, lake_format, keyed=keyed)
    for number in range(4):
        write(table, number)
        tier(table)
    write(table, 9)
    with remote.measured() as cost:
        tier(table)
    assert cost.requests <= requests_max
    assert cost.depth <= depth_max
    with remote.measured() as cost:
        tier(table)
    assert cost.requests <= (5 if lake_format == "iceberg" else 8), "nothing was left: all is looked at once"
    assert cost.depth <= 2
    with remote.measured() as cost:
        tier(table)
    assert (cost.requests, cost.depth) == (3, 1), "and then only whether there is something new"


def test_buckets_do_not_add_up(wh, remote):
    """Rows of all buckets lie in one record, and files are written at the same time."""
    costs = []
    for buckets in (2, 16):
        table = wh.create_table(f"t{buckets}", "id BIGINT", buckets=buckets, properties={"bucket.key": "id"})
        for _ in range(2):
            table.append(pa.table({"id": range(1000)}))
            tier(table)
        table.append(pa.table({"id": range(1000)}))
        with remote.measured() as cost:
            tier(table)
        costs.append(cost)
    assert costs[1].depth <= costs[0].depth + 2
    assert costs[1].requests <= costs[0].requests + 2 * 14


@pytest.mark.parametrize(("first", "requests_max", "depth_max"), [(True, 15, 9), (False, 9, 4)])
def test_creating_a_table(wh, remote, first, requests_max, depth_max):
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
def test_maintenance(wh, remote, clock, lake_format, keyed, requests_max, depth_max):
    """Of 32 files, which become four: footers and files are read, and groups written, at the same time."""
    table = table_of(wh, lake_format, keyed=keyed)
    for number in range(8):
        write(table, number)
        tier(table)
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
            tier(table)
        with remote.measured() as cost:
            assert table.lake.optimize("v").files_removed == rounds
        depths.append(cost.depth)
    assert depths[1] <= depths[0] + 4, depths
