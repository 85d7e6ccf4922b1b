from __future__ import annotations

import pytest

from streamhouse_spark.warehouse.process_cache import Connection
from unit.datasource.calls import Catalog


@pytest.fixture
def connection(warehouse_path: str) -> Connection:
    return Connection.of(warehouse_path, {})


@pytest.fixture
def scans(connection: Connection):
    from unit.datasource.scan.scans import Scans

    return Scans(connection)


@pytest.fixture
def catalog(connection: Connection) -> Catalog:
    """A catalog on an empty place, with the database ``sales``."""
    catalog = Catalog(connection)
    catalog.call("create_database", database="sales", properties={})
    return catalog
