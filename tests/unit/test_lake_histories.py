"""A log that was restored from a backup while its lake was not, and the other way round."""

from __future__ import annotations

import shutil

import pytest

from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import DifferentHistoryError, Warehouse
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot
from streamhouse_spark.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("own_cache")


def add(table, *keys):
    for key in keys:
        (table.upsert if table.state.primary_key else table.append)([{"id": key}])


def files(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def opened(tmp_path, clock):
    """The warehouse as a new process has it."""
    seeds = iter(range(100))

    def make():
        world = sim_world(next(seeds), clock)
        return Warehouse("wh", storage=LocalStorage(str(tmp_path / "wh"), fsync=False, world=world), world=world)

    return make


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("grown", [0, 2, 9])
def test_the_log_was_restored_and_its_lake_was_not(opened, tmp_path, lake_format, by_key, grown):
    options = {"primary_key": ["id"]} if by_key else {}
    properties = {"table.datalake.enabled": "true", "table.datalake.format": lake_format}
    table = opened().create_table("d.t", "id BIGINT NOT NULL", properties=properties, **options)
    add(table, 1, 2)
    tier(table)
    log = tmp_path / "wh" / "tables" / table.uuid
    shutil.copytree(log, tmp_path / "backup")
    add(table, *range(10, 15))
    tier(table)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "backup", log)
    table = opened().table("d.t")
    add(table, *range(20, 20 + grown))
    before = files(tmp_path / "wh" / "lake")
    for _ in range(2):
        with pytest.raises(DifferentHistoryError, match=r"without the lake.*streamhouse retier d.t"):
            tier(opened().table("d.t"))
    assert files(tmp_path / "wh" / "lake") == before
    with pytest.raises(DifferentHistoryError):
        fall_back_to_lake_snapshot(table)
    assert ids(opened().table("d.t")) == [1, 2, *range(20, 20 + grown)], "the recorded snapshot is still right"


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_rounds_say_which_record_they_are_of(opened, lake_format):
    properties = {"table.datalake.enabled": "true", "table.datalake.format": lake_format}
    table = opened().create_table("d.t", "id BIGINT NOT NULL", properties=properties)
    table.append([{"id": 1}])
    tier(table)
    assert table.open_lake().newest().history == table.refresh().anchors.rows
    table.append([{"id": 2}])
    tier(table)
    table.lake.compact()
    assert table.open_lake().newest().history == table.refresh().anchors.rows, "a compaction carries it on"
