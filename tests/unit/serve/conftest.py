from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse_spark import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "wh"))


@pytest.fixture
def client(warehouse: Warehouse):
    from kit.serving import http_client
    from streamhouse_spark.serve.app import make_app

    return http_client(make_app(warehouse))
