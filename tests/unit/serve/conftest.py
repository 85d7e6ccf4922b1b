from __future__ import annotations

import pytest

from streamhouse_spark import Warehouse


@pytest.fixture
def warehouse(warehouse_path: str) -> Warehouse:
    return Warehouse(warehouse_path)


@pytest.fixture
def client(warehouse: Warehouse):
    from starlette.testclient import TestClient

    from streamhouse_spark.serve.app import make_app

    return TestClient(make_app(warehouse))
