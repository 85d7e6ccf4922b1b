"""Scans of pins from before a partition was dropped, whose lake snapshot was expired since."""

from __future__ import annotations

import datetime as dt

import pytest

from streamhouse_spark import SnapshotExpiredError, Warehouse
from unit.datasource.scan.scans import Scans, tier

MON, TUE = dt.date(2026, 3, 2), dt.date(2026, 3, 3)


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_a_snapshot_without_the_partition_is_no_answer_to_a_chosen_version(warehouse_path, connection, lake_format):
    wh, scans = Warehouse(warehouse_path), Scans(connection)
    table = wh.create_table(
        "sales.days", "id BIGINT, day DATE", partition_by=["day"], properties={"table.datalake.format": lake_format}
    )
    table.append([{"id": 1, "day": MON}, {"id": 2, "day": TUE}])
    tier(table)
    version = table.state.version
    loaded, chosen = scans.load("sales.days"), scans.load("sales.days", version=str(version))
    assert [row["id"] for row in scans.plan(chosen).rows()] == [1, 2]
    table.drop_partition({"day": MON})
    assert [row["id"] for row in scans.plan(chosen).rows()] == [1, 2]
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert [row["id"] for row in scans.plan(loaded).rows()] == [2], "the newest state is all that can be had"
    with pytest.raises(SnapshotExpiredError):
        scans.plan(chosen)
    assert [row["id"] for row in scans.rows("sales.days")] == [2]
