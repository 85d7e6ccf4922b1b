"""Status and error type of each answer of the read-only catalog, by the OpenAPI document of Iceberg's REST catalog."""

from __future__ import annotations

import json

import pytest

from kit.iceberg_documents import rows_of
from kit.serving import http_client
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.iceberg.rest import is_current
from streamhouse_spark.serve.iceberg.served_tables import ServedMetadata
from streamhouse_spark.serve.options import ServeOptions

NO_NAMESPACE, NO_TABLE, NO_VIEW = "NoSuchNamespaceException", "NoSuchTableException", "NoSuchViewException"
PAIMON = {"table.datalake.format": "paimon"}
pytestmark = pytest.mark.paimon  # one of the tables has such a lake
T = "/namespaces/s/tables"


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    for name, properties in (("tiered", {}), ("hot", {}), ("pond", PAIMON)):
        table = warehouse.create_table(f"s.{name}", "id BIGINT", properties=properties)
        table.append([{"id": 1}])
        if name != "hot":
            tier(table)
    warehouse.create_database("empty")
    return warehouse


SPEC = [
    ("GET", "/config", 200, ""),
    ("GET", "/config?warehouse=absent", 404, "NoSuchWarehouseException"),
    ("GET", "/namespaces", 200, ""),
    ("GET", "/namespaces?parent=s", 200, ""),
    ("GET", "/namespaces?parent=absent", 404, NO_NAMESPACE),
    ("GET", "/namespaces?parent=s%1Fabsent", 404, NO_NAMESPACE),
    ("GET", "/namespaces/s", 200, ""),
    ("HEAD", "/namespaces/s", 204, ""),
    ("GET", "/namespaces/absent", 404, NO_NAMESPACE),
    ("HEAD", "/namespaces/absent", 404, ""),
    ("GET", "/namespaces/a.b", 404, NO_NAMESPACE),
    ("GET", "/namespaces/s%1Fabsent", 404, NO_NAMESPACE),
    ("GET", "/namespaces/empty/tables", 200, ""),
    ("GET", "/namespaces/absent/tables", 404, NO_NAMESPACE),
    ("GET", "/namespaces/a.b/tables", 404, NO_NAMESPACE),
    ("GET", "/namespaces/s/views", 200, ""),
    ("GET", "/namespaces/absent/views", 404, NO_NAMESPACE),
    ("GET", "/namespaces/s/views/absent", 404, NO_VIEW),
    ("HEAD", "/namespaces/s/views/absent", 404, ""),
    ("GET", f"{T}/tiered", 200, ""),
    ("GET", f"{T}/tiered?snapshots=all", 200, ""),
    ("GET", f"{T}/tiered?snapshots=refs", 200, ""),
    ("GET", f"{T}/tiered?snapshots=none", 400, "BadRequestException"),
    ("GET", f"{T}/tiered?snapshots=REFS", 400, "BadRequestException"),
    ("GET", f"{T}/absent", 404, NO_TABLE),
    ("GET", "/namespaces/absent/tables/t", 404, NO_TABLE),
    ("GET", f"{T}/a.b", 404, NO_TABLE),
    ("GET", f"{T}/pond", 404, NO_TABLE),
    ("GET", f"{T}/tiered$absent", 404, NO_TABLE),
    ("POST", f"{T}/tiered/metrics", 204, ""),
    ("POST", f"{T}/absent/metrics", 404, NO_TABLE),
    ("POST", f"{T}/pond/metrics", 404, NO_TABLE),
    ("POST", f"{T}/tiered$absent/metrics", 404, NO_TABLE),
    ("POST", "/namespaces/absent/tables/t/metrics", 404, NO_TABLE),
    ("POST", "/namespaces", 403, "ForbiddenException"),
    ("GET", "/absent", 404, "NotFoundException"),
]


@pytest.mark.parametrize(("method", "path", "status", "kind"), SPEC)
def test_answers_have_the_status_and_error_type_of_the_specification(client, method, path, status, kind):
    answer = client.request(method, f"/iceberg/v1{path}", json={} if method == "POST" else None)
    assert answer.status_code == status, answer.text
    if kind:
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == (kind, status)
        assert error["message"]
    elif method == "HEAD" or status == 204:
        assert answer.content == b""


@pytest.mark.parametrize("prefix", ["/v1", "/v1/lake"])
def test_head_get_and_the_list_agree_about_every_table(client, prefix):
    listed = [one["name"] for one in client.get(f"/iceberg{prefix}{T}").json()["identifiers"]]
    assert listed == (["hot", "tiered"] if prefix == "/v1" else ["tiered"])
    for base in ("tiered", "hot", "pond", "absent"):
        for suffix in ("", "$lake", "$history", "$partitions", "$absent"):
            path = f"/iceberg{prefix}{T}/{base}{suffix}"
            got, head = client.get(path), client.head(path)
            assert (got.status_code == 200) == (head.status_code == 204), path
            assert got.status_code in (200, 404), path
            if not suffix:
                assert (got.status_code == 200) is (base in listed), path
    for path in ("/namespaces", "/namespaces/s", "/namespaces/absent", "/namespaces/s/views", "/config"):
        got, head = client.get(f"/iceberg/v1{path}"), client.head(f"/iceberg/v1{path}")
        assert got.is_success is head.is_success, path


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        ("{weak}", True), ("{strong}", True), ("*", True), (" * ", True), ('"a", {weak}', True),
        ('"a",{strong} , W/"b"', True), (", {weak},,", True), ('"a,b", {weak}', True), ("{bare}", False),
        ('"a"', False),
        ("", False), ('"a", *', False), ("{weak} {weak}", False), ("w/{strong}", False), ('"{weak}"', False),
    ],
)  # fmt: skip
def test_a_document_that_the_client_has_is_not_sent_again(client, value, is_known):
    path = f"/iceberg/v1{T}/tiered"
    etag = client.get(path).headers["etag"]
    strong = etag.removeprefix("W/")
    value = value.format(weak=etag, strong=strong, bare=strong.strip('"'))
    answer = client.get(path, headers={"If-None-Match": value})
    assert (answer.status_code, answer.headers["etag"]) == (304 if is_known else 200, etag)
    assert is_current([value], etag) is is_known
    parts = [("If-None-Match", '"a"'), ("If-None-Match", etag)]
    assert client.get(path, headers=parts).status_code == 304, "two header lines are one list"


class TestReadOnlyWarehouses:
    @pytest.fixture
    def client(self, warehouse, monkeypatch):
        def refused(*_):
            raise StorageRefusedError("s3://bucket does not let this user write")

        table = warehouse.table("s.hot")
        tier(table)
        table.append([{"id": 2}])
        for name in ("put", "put_if_absent", "create", "delete"):
            monkeypatch.setattr(type(warehouse.storage), name, refused)
        return http_client(make_app(warehouse, self.options))

    options = ServeOptions()

    def test_a_table_without_hot_rows_is_served(self, client, warehouse):
        loaded = client.get(f"/iceberg/v1{T}/tiered")
        assert loaded.status_code == 200, loaded.text
        body = loaded.json()
        document = ServedMetadata(body["metadata-location"], json.dumps(body["metadata"]), 0)
        assert rows_of(warehouse.storage, document) == [{"id": 1}]
        assert "warning" not in loaded.headers

    def test_hot_rows_are_an_error_that_names_the_lake_and_the_lake_is_served(self, client):
        answer = client.get(f"/iceberg/v1{T}/hot")
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenException")
        assert "load s.hot$lake" in answer.json()["error"]["message"]
        for path in (f"/iceberg/v1{T}/hot$lake", f"/iceberg/v1/lake{T}/hot"):
            lake = client.get(path).json()["metadata"]
            assert [one["summary"]["total-records"] for one in lake["snapshots"]] == ["1"]

    def test_the_lake_stands_in_where_the_server_is_told_so(self, client, warehouse):
        app = make_app(warehouse, ServeOptions(lake_after_s=5))
        answer = http_client(app).get(f"/iceberg/v1{T}/hot")
        assert answer.status_code == 200
        assert "the store rejects their files" in answer.headers["warning"]
