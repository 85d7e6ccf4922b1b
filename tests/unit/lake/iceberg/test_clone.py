"""Files that a lake table names outside of its folder."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.clone import find_out_of_place_location


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_database("sales")
    return warehouse


@pytest.fixture
def lake(warehouse):
    catalog = FileCatalog(warehouse.storage, world=warehouse.world)
    table = catalog.create_table("sales.orders", Schema(NestedField(1, "id", LongType())))
    table.append(pa.table({"id": [1]}))
    return table


def strays_of(warehouse, *, with_files):
    warehouse.adopt_table("sales.orders")
    return find_out_of_place_location(warehouse.table("sales.orders").open_lake().binding, with_files=with_files)


def test_a_lake_inside_its_folder_has_no_stray_file(warehouse, lake):
    assert strays_of(warehouse, with_files=True) is None


@pytest.mark.parametrize("place", ["elsewhere", "wh/lake/sales/orders_of_others"])
def test_a_data_file_outside_the_lake_folder_is_found(warehouse, lake, tmp_path, place):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [2]}), tmp_path / place / "a.parquet")
    lake.add_files([f"{tmp_path}/{place}/a.parquet"])
    warehouse.adopt_table("sales.orders")
    opened = warehouse.table("sales.orders").open_lake()
    assert find_out_of_place_location(opened.binding, with_files=True) == f"{tmp_path}/{place}/a.parquet"
    assert find_out_of_place_location(opened.binding, with_files=False) is None, "no manifest is read for this"


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_a_location_of_new_files_outside_the_lake_folder_is_found(warehouse, lake, tmp_path, name):
    with lake.transaction() as changes:
        changes.set_properties({name: f"{tmp_path}/wh/lake/sales/orders/here"})
    assert strays_of(warehouse, with_files=False) is None
    lake.refresh()
    with lake.transaction() as changes:
        changes.set_properties({name: f"{tmp_path}/wh/lake/sales"})
    opened = warehouse.table("sales.orders").open_lake()
    assert find_out_of_place_location(opened.binding, with_files=False) == f"{tmp_path}/wh/lake/sales"


def test_a_clone_until_its_files_are_its_own(warehouse, tmp_path):
    """Who may read the clone may not have a right on the table that it was made of."""
    table = warehouse.create_table("sales.source", "id BIGINT")
    table.append([{"id": 1}])
    tier(table)
    clone = warehouse.clone_table("sales.source", "sales.clone")
    found = find_out_of_place_location(clone.open_lake().binding, with_files=False)
    assert found is not None
    assert found.startswith(f"{tmp_path}/wh/lake/sales/source/")
    assert find_out_of_place_location(table.open_lake().binding, with_files=True) is None


def test_a_table_without_a_lake_has_no_stray_file(warehouse):
    warehouse.create_table("sales.new", "id BIGINT")
    assert find_out_of_place_location(warehouse.table("sales.new").open_lake().binding, with_files=True) is None
