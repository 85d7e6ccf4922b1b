"""A lake in a catalog outside the warehouse, where it is rebuilt, and where the warehouse is copied or moved."""

from __future__ import annotations

import shutil

import pytest
from pyiceberg.catalog import load_catalog

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import LakeMismatchError, Warehouse, relocate


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "elsewhere")}


@pytest.fixture
def open_at(outside):
    settings = {f"lake.iceberg.catalog.{key}": value for key, value in outside.items()}
    return lambda path: Warehouse(str(path), settings)


@pytest.fixture
def table(open_at, tmp_path):
    made = open_at(tmp_path / "wh").create_table("sales.orders", "id BIGINT")
    made.append([{"id": 1}])
    tier(made)
    return made


def test_a_lake_that_is_built_anew_has_its_new_name_there(table, outside):
    catalog = load_catalog("lake", **outside)
    catalog.drop_table("sales.orders")
    report = table.retier()
    table.append([{"id": 2}])
    tier(table)
    name = f"orders_{table.uuid[:8]}_1"
    assert report.lake_location == f"lake/sales/{name.replace('_', '-')}"
    assert ids(catalog.load_table(f"sales.{name}").scan().to_arrow()) == ids(table.to_arrow()) == [1, 2]


def test_it_stays_where_it_is_when_the_warehouse_moves_and_no_copy_takes_it(table, outside, open_at, tmp_path):
    shutil.copytree(tmp_path / "wh", tmp_path / "copy")
    with pytest.raises(LakeMismatchError, match="belongs to the original table"):
        relocate(open_at(tmp_path / "copy"), copy=True)
    before = load_catalog("lake", **outside).load_table("sales.orders").metadata_location
    shutil.move(tmp_path / "wh", tmp_path / "moved")
    relocate(open_at(tmp_path / "moved"))
    there = open_at(tmp_path / "moved").table("sales.orders")
    assert ids(there.to_arrow()) == [1]
    assert load_catalog("lake", **outside).load_table("sales.orders").metadata_location == before
    there.append([{"id": 2}])
    tier(there)
    assert ids(load_catalog("lake", **outside).load_table("sales.orders").scan().to_arrow()) == [1, 2]
