"""The demo's warehouse: recreated for each run, and never in place of anything else."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Final

from streamhouse_spark.demo.flights import BUCKET_KEY, DDL, NUM_BUCKETS, PARTITION_BY, TABLE
from streamhouse_spark.errors import InvalidOptionError, WarehouseNotFoundError
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

COMMENT: Final = "made by `streamhouse demo`, which may replace it"
_OWN_NAMES: Final = frozenset({"streamhouse.json", "tables", "lake", "air"})


def new_demo_table(location: str, settings: Mapping[str, str], freshness: str) -> tuple[Warehouse, Table]:
    """Create a new warehouse with the flights table.

    A warehouse at ``location`` is removed if it contains only an earlier demo. Raises `InvalidOptionError` if it
    contains anything else.
    """
    warehouse = Warehouse(location, settings)
    _remove_earlier_demo(warehouse)
    warehouse = Warehouse(location, settings)
    table = warehouse.create_table(
        TABLE,
        DDL,
        partition_by=PARTITION_BY,
        buckets=NUM_BUCKETS,
        properties={"bucket.key": BUCKET_KEY, "table.datalake.freshness": freshness, "comment": COMMENT},
    )
    return warehouse, table


def _remove_earlier_demo(warehouse: Warehouse) -> None:
    try:
        tables = warehouse.tables()
    except WarehouseNotFoundError:
        return  # absent or not a warehouse: table creation rejects a foreign directory
    if not tables:
        return
    foreign = [name for name in tables if name != TABLE or warehouse.table(name).properties.comment != COMMENT]
    foreign += [name for name in warehouse.storage.list_names("") if name not in _OWN_NAMES]
    path = warehouse.storage.local_path("")
    if foreign or path is None:
        raise InvalidOptionError(
            f"{warehouse.url} is a warehouse with {foreign[0] if foreign else 'an earlier demo'}, which the demo does "
            "not remove; choose another --warehouse",
        )
    shutil.rmtree(path)
