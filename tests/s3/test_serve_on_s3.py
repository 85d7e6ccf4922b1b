"""A catalog's answers for a warehouse on object storage, read by a client with credentials of its own."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import load_catalog

from kit.flight_client import Client, flights
from kit.serving import served
from kit.tables import tier
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_hot_and_cold_rows_are_served_from_s3(s3_server: S3Server, keyed):
    settings = settings_for(s3_server.endpoint)
    warehouse = Warehouse(f"s3://{s3_server.new_bucket()}/team/wh", settings)
    table = warehouse.create_table("s.t", "id BIGINT NOT NULL, n INT", primary_key=["id"] if keyed else [], buckets=2)
    write = table.upsert if keyed else table.append
    write([{"id": n, "n": 0} for n in range(50)])
    tier(table)
    write([{"id": n, "n": 1} for n in range(50, 60)])
    if keyed:
        table.delete([{"id": 3}, {"id": 55}])
    else:
        table.delete(where=[("id", "in", [3, 55])])
    with served(warehouse) as url:
        own = {key: value for key, value in settings.items() if key.startswith("s3.")}
        catalog = load_catalog("sh", type="rest", uri=f"{url}/iceberg", **own)
        for number in range(3):
            write([{"id": 100 + number, "n": 2}])
            found = catalog.load_table("s.t").scan().to_arrow().to_pylist()
            expected = table.to_arrow().to_pylist()
            assert sorted((row["id"], row["n"]) for row in found) == sorted((row["id"], row["n"]) for row in expected)
    with flights(warehouse) as server:
        found = Client(server.url).read(table="s.t", parts=3)
        assert found.sort_by("id").equals(table.to_arrow().sort_by("id"))
