"""A lake snapshot that is gone is stood in for by another, whoever reads; a chosen state is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.tables import tier
from property.stream_driver import Opened
from streamhouse_spark import SnapshotExpiredError, Table, Warehouse
from streamhouse_spark.datasource.catalog.ddl.tables import partition_values
from streamhouse_spark.datasource.read.partitions import read_plan
from streamhouse_spark.datasource.scan import scan
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.arrow_reader import make_partitions
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
from streamhouse_spark.read.snapshot_reader import plan_union

NAME = "sales.gone"
COLUMNS = ("id", "day", "n")
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=[(), ("id", "day")], ids=["log", "by key"])
def table(wh, request, lake_format) -> Table:
    """The recorded lake snapshot is gone; another holds the same rows."""
    table = wh.create_table(
        NAME, "id BIGINT NOT NULL, day INT NOT NULL, n BIGINT", partition_by=["day"], buckets=1,
        primary_key=list(request.param), properties={"table.datalake.format": lake_format},
    )  # fmt: skip
    put = table.upsert if request.param else table.append
    for n in range(7):
        put([{"id": i, "day": i % 2, "n": n} for i in range(4 * n, 4 * n + 6)])
        if n < 6:
            tier(table)
    return table


def lose_recorded_snapshot(table: Table) -> None:
    """As another engine does that compacts the lake and expires what is older."""
    recorded = table.refresh().lake.snapshot_id
    table.open_lake().compact()
    assert table.open_lake().newest().id != recorded
    lose(table, recorded)
    assert table.refresh().lake.snapshot_id == recorded


def lose(table: Table, snapshot_id: int) -> None:
    lake = table.open_lake()
    if table.properties.datalake_format == "iceberg":
        lake.binding.load().maintenance.expire_snapshots().by_id(snapshot_id).commit()
    else:
        table.storage.delete(f"{lake.location}/snapshot/snapshot-{snapshot_id}")
    with pytest.raises(SnapshotExpiredError):
        lake.snapshot(snapshot_id)


def by_task(wh: Warehouse, plan: object) -> list[dict]:
    return [row for batch in read_plan(Opened(wh), plan, ()) for row in batch.to_pylist()]


def by_sql(wh: Warehouse, **chosen: str) -> list[dict]:
    loaded = scan.load(Opened(wh), {"database": "sales", "table": "gone", **chosen})
    asked = {"snapshot": loaded["snapshot"], "columns": COLUMNS, "filters": [], "native_schemes": []}
    tasks = make_partitions(ArrowReadPlan.from_text(scan.plan(Opened(wh), asked)["read"]))
    return [row for task in tasks for row in by_task(wh, task.plan())]


def ordered(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: tuple(row.values()))


READS = {
    "python": lambda wh, t: t.to_arrow().to_pylist(),
    "head": lambda wh, t: wh.table(NAME).head(100).to_pylist(),
    "plain": lambda wh, t: by_task(wh, plan_union(t, COLUMNS)),
    "sql": lambda wh, t: by_sql(wh),
}


def test_every_reader_finds_the_same_rows(wh, table):
    expected = ordered(table.to_arrow().to_pylist())
    hot_rows = wh.view(f"{NAME}$partitions").to_arrow().select(["day", "hot_rows"])
    lose_recorded_snapshot(table)
    for name, read in READS.items():
        assert ordered(read(wh, table)) == expected, name
    assert wh.view(f"{NAME}$partitions").to_arrow().select(["day", "hot_rows"]).equals(hot_rows)
    database, name = table.name.split(".")
    assert partition_values(Opened(wh), {"database": database, "table": name}) == {"partitions": [[0], [1]]}


def test_a_chosen_version_is_the_same_rows_or_an_error(wh, table):
    version = str(table.refresh().version)
    expected = ordered(table.to_arrow().to_pylist())
    lose_recorded_snapshot(table)
    assert ordered(by_sql(wh, version=version)) == expected
    put = table.upsert if table.state.primary_key else table.append
    put([{"id": 90, "day": 0, "n": 9}])
    before = table.open_lake().newest().id
    tier(table)
    lose(table, before)
    with pytest.raises(SnapshotExpiredError):
        by_sql(wh, version=version)
    assert len(by_sql(wh)) == len(expected) + 1


def test_a_snapshot_of_the_recorded_number_is_the_recorded_one(table):
    """Paimon gives numbers again that another engine rolled back."""
    pin = take_latest_snapshot(table.refresh())
    other = replace(pin, lake=replace(pin.lake, offsets={0: 1}))
    assert plan_scan(table, pin, ScanRequest(COLUMNS)).lake is not None
    with pytest.raises(SnapshotExpiredError, match="rolled the lake back"):
        plan_scan(table, other, ScanRequest(COLUMNS))
