"""Iceberg's REST protocol, as its clients speak it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from kit.serving import http_client
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.options import ServeOptions

TABLES = "/iceberg/v1/namespaces/sales/tables"


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("sales.orders", "id BIGINT, name STRING").append([{"id": 1, "name": "a"}])
    return warehouse


@pytest.fixture
def client(warehouse):
    return http_client(make_app(warehouse, ServeOptions(client_config={"s3.region": "eu-west-1"})))


def tier(warehouse):
    table = warehouse.table("sales.orders")
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(run_tasks_locally(table.storage, table.settings, table.world))


def test_the_catalog_lists_namespaces_and_tables(client):
    config = client.get("/iceberg/v1/config").json()
    assert config["overrides"] == {}
    assert client.get("/iceberg/v1/config?warehouse=lake").json()["overrides"] == {"prefix": "lake"}
    assert client.get("/iceberg/v1/config?warehouse=other").status_code == 404
    assert client.get("/iceberg/v1/namespaces").json() == {"namespaces": [["sales"]]}
    assert client.get("/iceberg/v1/namespaces?parent=sales").json() == {"namespaces": []}
    assert client.get("/iceberg/v1/namespaces/sales").json()["namespace"] == ["sales"]
    assert client.head("/iceberg/v1/namespaces/sales").status_code == 204
    assert client.get("/iceberg/v1/namespaces/absent").json()["error"]["type"] == "NoSuchNamespaceException"
    assert client.get("/iceberg/v1/namespaces/absent/tables").json()["error"]["type"] == "NoSuchNamespaceException"
    assert client.get(TABLES).json()["identifiers"] == [{"namespace": ["sales"], "name": "orders"}]
    assert client.get("/iceberg/v1/namespaces/sales/views").json() == {"identifiers": []}


def test_a_table_is_loaded(client, warehouse):
    loaded = client.get(f"{TABLES}/orders")
    assert loaded.status_code == 200
    body = loaded.json()
    assert body["config"] == {"s3.region": "eu-west-1"}
    assert body["metadata"]["properties"]["streamhouse.virtual"] == "0"
    assert body["metadata-location"].endswith(".metadata.json")
    assert client.head(f"{TABLES}/orders").status_code == 204
    again = client.get(f"{TABLES}/orders", headers={"If-None-Match": loaded.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    warehouse.table("sales.orders").append([{"id": 2, "name": "b"}])
    again = client.get(f"{TABLES}/orders", headers={"If-None-Match": loaded.headers["etag"]})
    assert again.status_code == 200
    every, named = again.json(), client.get(f"{TABLES}/orders?snapshots=refs").json()
    assert len(every["metadata"]["snapshots"]) == 2
    assert [s["snapshot-id"] for s in named["metadata"]["snapshots"]] == [every["metadata"]["current-snapshot-id"]]


def test_the_lake_alone_is_served_under_two_names(client, warehouse):
    assert client.get(f"{TABLES}/orders$lake").json()["error"]["type"] == "NoSuchTableException"
    tier(warehouse)
    warehouse.table("sales.orders").append([{"id": 2, "name": "b"}])
    by_suffix = client.get(f"{TABLES}/orders$lake").json()
    assert by_suffix == client.get("/iceberg/v1/lake/namespaces/sales/tables/orders").json()
    assert by_suffix["metadata"]["snapshots"][-1]["summary"]["total-records"] == "1"
    fresh = client.get(f"{TABLES}/orders").json()
    assert fresh["metadata"]["snapshots"][-1]["summary"]["total-records"] == "2"


@pytest.mark.parametrize("name", ["absent", "orders$changelog", "Or/ders", "a.b"])
def test_other_tables_are_absent(client, name):
    answer = client.get(f"{TABLES}/{name}")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/iceberg/v1/namespaces"),
        ("POST", TABLES),
        ("POST", f"{TABLES}/orders"),
        ("DELETE", f"{TABLES}/orders"),
        ("POST", "/iceberg/v1/transactions/commit"),
    ],
)
def test_writes_are_refused_with_the_way_to_write(client, warehouse, method, path):
    version = warehouse.table("sales.orders").refresh().version
    answer = client.request(method, path, json={})
    assert answer.status_code == 403
    assert "POST /api/v1/tables" in answer.json()["error"]["message"]
    assert warehouse.table("sales.orders").refresh().version == version


@pytest.mark.parametrize("prefix", ["", "/lake"])
def test_every_endpoint_that_is_named_is_answered(client, warehouse, prefix):
    """Those that write with a refusal, which clients get only if they may send them."""
    tier(warehouse)
    named = [endpoint.split() for endpoint in client.get("/iceberg/v1/config").json()["endpoints"]]
    for method, path in named:
        place = path.replace("/{prefix}", prefix).format(namespace="sales", table="orders")
        answer = client.request(method, f"/iceberg{place}", json={})
        if method in ("GET", "HEAD") or place.endswith("/metrics"):
            assert answer.status_code in (200, 204), (method, place)
        else:
            assert answer.status_code == 403, (method, place)
            assert "this catalog is read-only" in answer.json()["error"]["message"]
    assert ["POST", "/v1/{prefix}/namespaces/{namespace}/tables/{table}"] in named
    assert ["DELETE", "/v1/{prefix}/namespaces/{namespace}/tables/{table}"] in named


def test_metrics_of_engines_are_taken(client):
    assert client.post(f"{TABLES}/orders/metrics", json={}).status_code == 204


def test_an_error_of_the_store_is_one_that_clients_try_again(client, warehouse, monkeypatch):
    from streamhouse_spark.errors import StorageError
    from streamhouse_spark.serve.iceberg.served_tables import ServedTable

    def failing(_):
        raise StorageError("the store is away")

    monkeypatch.setattr(ServedTable, "latest_metadata", failing)
    answer = client.get(f"{TABLES}/orders")
    assert answer.status_code == 503
    assert answer.json()["error"] == {
        "message": "STORAGE: the store is away",
        "type": "ServiceUnavailableException",
        "code": 503,
    }


def test_every_column_type_is_shown(client, warehouse):
    schema = pa.schema([("a", pa.decimal128(9, 2)), ("b", pa.timestamp("us", "UTC")), ("c", pa.list_(pa.string()))])
    warehouse.create_table("sales.types", schema)
    fields = client.get(f"{TABLES}/types").json()["metadata"]["schemas"][0]["fields"]
    assert json.loads(json.dumps([field["name"] for field in fields])) == ["a", "b", "c"]
