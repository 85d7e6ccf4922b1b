"""A dropped partition of a lake table with a primary key that was adopted: its rows go as changes of the log, so that
``CHANGES`` tells them and a rollback brings them back.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from kit.change_replay import changes, replayed, version
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.table.versioning.rollback import rollback_to_version

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
NAME = "sales.orders"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("region", pa.string(), nullable=False)])
ROWS = [{"id": number, "region": ["eu", "us"][number % 2]} for number in range(6)]


def of_iceberg(store, world, _folder: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "region", StringType(), required=True)
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    catalog = FileCatalog(store, world=world)
    made = catalog.create_table(NAME, schema, partition_spec=spec, properties={"format-version": "2"})
    made.append(pa.Table.from_pylist(ROWS, COLUMNS))


def of_paimon(store, _world, folder: Path) -> None:
    from interop.paimon_cases import Stock  # where pypaimon is left out, no case gets here

    options = {"primary_key": ["region", "id"], "partition_by": ["region"], "bucket": "1"}
    Stock(store, folder).make(NAME, COLUMNS, ROWS, **options)


@pytest.fixture(params=[pytest.param(of_iceberg, id="iceberg"), pytest.param(of_paimon, id="paimon")])
def table(request, store, world, wh, own_cache, tmp_path):
    request.param(store, world, tmp_path)
    wh.adopt_table(NAME, primary_key=["region", "id"])
    return wh.table(NAME)


def test_changes_and_a_rollback(table):
    table.upsert([{"id": 6, "region": "eu"}, {"id": 7, "region": "us"}])
    before = table.refresh().version
    assert table.drop_partition({"region": "eu"}).rows == 4
    now = table.refresh().version
    found = changes(table, before + 1, now)
    assert sorted(one["id"] for one in found if one["_change_type"] == "delete") == [0, 2, 4, 6]
    assert replayed(version(table, before), found) == version(table, now)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [1, 3, 5, 7]
    rollback_to_version(table, before)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == list(range(8))
