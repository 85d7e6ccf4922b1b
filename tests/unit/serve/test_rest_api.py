"""Rows over HTTP: every form, written once, read, looked up and followed."""

from __future__ import annotations

import json
from contextlib import ExitStack

import httpx2
import pyarrow as pa
import pytest

from kit.network import arrow_stream
from kit.serving import http_client, served
from kit.waiting import wait_for
from streamhouse_spark import Warehouse
from streamhouse_spark.serve import rest_api
from streamhouse_spark.serve import rest_api as followers
from streamhouse_spark.serve.acl import parse_tokens
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.app_context import OpenTables
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.server_metrics import ServerCounters

ROWS = "/api/v1/tables/sales.orders/rows"


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("sales.orders", "id BIGINT, name STRING, day DATE, price DECIMAL(9,2)")
    warehouse.create_table("sales.keyed", "id BIGINT NOT NULL, name STRING", primary_key=["id"])
    return warehouse


BODIES = {
    "application/json": b'[{"id": 1, "name": "a", "day": "2026-01-31", "price": "1.50"}, {"id": 2}]',
    "application/x-ndjson": b'{"id": 1, "name": "a", "day": "2026-01-31", "price": "1.50"}\n{"id": 2}\n',
    "text/csv": b"id,name,day,price\n1,a,2026-01-31,1.50\n2,,,\n",
}


@pytest.mark.parametrize("kind", BODIES)
def test_rows_are_written_in_every_form(client, warehouse, kind):
    answer = client.post(ROWS, content=BODIES[kind], headers={"Content-Type": f"{kind}; charset=utf-8"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"table": "sales.orders", "rows": 2, "offsets": {"0": [0, 2]}}
    found = sorted(client.get(ROWS).json(), key=lambda row: row["id"])
    assert found == [
        {"id": 1, "name": "a", "day": "2026-01-31", "price": "1.50"},
        {"id": 2, "name": None, "day": None, "price": None},
    ]


def test_rows_are_sent_and_returned_as_arrow(client):
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    kind = "application/vnd.apache.arrow.stream"
    assert client.post(ROWS, content=arrow_stream(rows), headers={"Content-Type": kind}).json()["rows"] == 2
    answer = client.get(f"{ROWS}?columns=id,name", headers={"Accept": kind})
    assert answer.headers["content-type"] == kind
    assert pa.ipc.open_stream(answer.content).read_all().sort_by("id").equals(rows)
    assert client.get(f"{ROWS}?columns=id&where=id>1", headers={"Accept": "text/csv"}).text == '"id"\n2\n'
    assert client.get(f"{ROWS}?limit=1", headers={"Accept": "application/x-ndjson"}).text.count("\n") == 1


def test_variants_are_json_over_http(client, warehouse):
    path, paimon = ROWS.replace("orders", "events"), {"table.datalake.format": "paimon"}
    warehouse.create_table("sales.events", "id BIGINT NOT NULL, v VARIANT", primary_key=["id"], properties=paimon)
    rows = [{"id": 1, "v": {"a": [1, 2.5]}}, {"id": 2, "v": "text"}, {"id": 3, "v": None}]
    assert client.post(f"{path}?mode=upsert", json=rows).status_code == 200
    assert sorted(client.get(path).json(), key=lambda row: row["id"]) == rows
    lines = client.get(path, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert sorted(map(json.loads, lines), key=lambda row: row["id"]) == rows
    answer = client.get(path, headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.json()["error"]["condition"]) == (400, "INVALID_OPTION")


def test_upserts_deletes_and_lookups(client):
    keyed = "/api/v1/tables/sales.keyed"
    assert client.post(f"{keyed}/rows", json=[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).json()["rows"] == 2
    assert client.get(f"{keyed}/lookup?id=1").json() == {"id": 1, "name": "a"}
    assert client.post(f"{keyed}/rows?mode=delete", json={"id": 1}).status_code == 200
    missing = client.get(f"{keyed}/lookup?id=1")
    assert (missing.status_code, missing.json()["error"]["condition"]) == (404, "ROW_NOT_FOUND")
    for wrong in ("", "?name=a", "?id=x", "?id=2&name=b"):
        assert client.get(f"{keyed}/lookup{wrong}").status_code == 400
    assert client.get("/api/v1/tables/sales.orders/lookup?id=1").status_code == 400
    assert [row["name"] for row in client.get(f"{keyed}/rows").json()] == ["b"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "text"),
    [
        (ROWS, b"{", {}, 400, "not JSON"),
        (ROWS, b"[1]", {}, 400, "array of objects"),
        (ROWS, b'[{"id": "x"}]', {}, 400, "id"),
        (ROWS, b'[{"absent": 1}]', {}, 400, "absent"),
        (ROWS, b"id\nx\n", {"Content-Type": "text/csv"}, 400, "csv"),
        (ROWS, b"\x00", {"Content-Type": "application/vnd.apache.arrow.stream"}, 400, "arrow"),
        (ROWS, b"x", {"Content-Type": "image/png"}, 415, "image/png"),
        (f"{ROWS}?mode=merge", b"[]", {}, 400, "append, upsert, delete"),
        (f"{ROWS}?mode=upsert", b'[{"id": 1}]', {}, 400, "primary key"),
        (f"{ROWS}?mode=upsert&columns=name", b"{}", {}, 400, "primary key"),
        (f"{ROWS}?mode=delete", b"{}", {}, 400, "primary key"),
        (f"{ROWS.replace('orders', 'keyed')}?columns=nam", b"{}", {}, 400, "did you mean name?"),
        ("/api/v1/tables/sales.absent/rows", b"[]", {}, 404, "sales.absent"),
    ],
)
def test_what_is_refused_writes_nothing(client, warehouse, path, body, headers, status, text):
    version = warehouse.table("sales.orders").refresh().version
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"} | headers)
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]
    assert warehouse.table("sales.orders").refresh().version == version


API = "/api/v1/tables/sales.keyed"


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("POST", f"{API}/rows?mod=delete", "no parameter 'mod'; did you mean mode?"),
        ("POST", f"{API}/rows?Mode=delete", "did you mean mode?"),
        ("POST", f"{API}/rows?mode=upsert&mode=delete", "'mode' occurs 2 times"),
        ("POST", f"{API}/rows?bad-rows=skip", "did you mean bad_rows?"),
        ("POST", f"{API}/rows?where=id=1", "expected mode, columns, bad_rows, dead_letters"),
        ("POST", f"{API}/rows?=", "no parameter ''"),
        ("GET", f"{API}/rows?wher=id=1", "did you mean where?"),
        ("GET", f"{API}/rows?filter=id=1", "expected where, columns, limit"),
        ("GET", f"{API}/rows?limit=1&limit=2", "'limit' occurs 2 times"),
        ("GET", f"{API}/lookup?id=1&ids=1", "did you mean id?"),
        ("GET", f"{API}/changes?form=earliest", "did you mean from?"),
        ("GET", f"{API}?cost=1", "did you mean costs?"),
        ("GET", "/api/v1/tables?database=sales", "expected none"),
        ("GET", "/api/v1/overview?table=sales.keyed", "expected none"),
    ],
)
def test_a_parameter_that_a_request_does_not_have_is_an_error(client, warehouse, method, path, text):
    version = warehouse.table("sales.keyed").state.version
    content = {"content": b'[{"id": 1}]', "headers": {"Content-Type": "application/json"}} if method == "POST" else {}
    answer = client.request(method, path, **content)
    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]
    assert warehouse.table("sales.keyed").state.version == version


@pytest.mark.parametrize("asked", ["limit=x", "limit=1000000", "where=id ~ 1", "columns=absent", "where=absent = 1"])
def test_reads_that_cannot_be(client, asked):
    assert client.get(f"{ROWS}?{asked}").status_code == 400


def test_too_large_or_too_many_bodies_are_rejected(client, warehouse, monkeypatch):
    monkeypatch.setattr(rest_api, "BODY_BYTES_MAX", 100)
    assert client.post(ROWS, content=b"x" * 101).status_code == 413
    assert client.post(ROWS, content=iter([b"x" * 60, b"x" * 60])).status_code == 413
    monkeypatch.setattr(rest_api, "IN_FLIGHT_BYTES_MAX", 10)
    answer = client.post(ROWS, json=[{"id": 1, "name": "some text"}])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert client.get(ROWS).json() == []


def test_each_token_has_its_right_over_http(warehouse, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("# tokens\nread 0123456789abcdef\n\nwrite fedcba9876543210\n")
    access = parse_tokens(str(tokens))
    client = http_client(make_app(warehouse, ServeOptions(lambda: access)))

    def status(method, path, token, **more):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return client.request(method, path, headers=headers, **more).status_code

    for path in (ROWS, "/metrics", "/api/v1/overview", "/iceberg/v1/namespaces"):
        assert [status("GET", path, token) for token in (None, "wrong", "0123456789abcdef", "fedcba9876543210")] == [
            401,
            401,
            200,
            200,
        ], path
    assert status("POST", ROWS, "0123456789abcdef", json=[{"id": 1}]) == 403
    assert status("POST", ROWS, "fedcba9876543210", json=[{"id": 1}]) == 200
    reported = "/iceberg/v1/namespaces/sales/tables/orders/metrics"
    assert [status("POST", reported, token, json={}) for token in (None, "0123456789abcdef")] == [401, 204]
    for path in ("/health", "/iceberg/v1/config", "/", "/api/v1/openapi.json"):
        assert status("GET", path, None) == 200
    assert "0123456789abcdef" not in repr(access)


def test_metrics_and_overview_count_rows_and_errors(client, warehouse):
    client.post(ROWS, json=[{"id": 1}, {"id": 2}])
    client.get("/api/v1/tables/sales.absent")
    tables = {one["table"]: one for one in client.get("/api/v1/overview").json()["tables"]}
    assert (tables["sales.orders"]["rows"], tables["sales.orders"]["lag_rows"]) == (2, 2)
    assert {tables[f"sales.{name}"]["rows_unit"] for name in ("orders", "keyed")} == {"rows", "changes"}
    text = client.get("/metrics").text
    assert 'streamhouse_serve_rows_total{mode="append",table="sales.orders"} 2.0' in text
    assert 'streamhouse_table_lag_rows{table="sales.orders"} 2.0' in text
    assert 'streamhouse_serve_requests_total{area="api",method="GET",status="404"} 1.0' in text


def test_the_description_names_every_route(client, warehouse):
    described = client.get("/api/v1/openapi.json").json()["paths"]
    paths = {route.path for route in rest_api.rest_routes(OpenTables(warehouse), ServerCounters())}
    assert set(described) == {"/api/v1/overview", *(f"/api/v1{path}" for path in paths)}


@pytest.mark.parametrize("start", ["earliest", "begin"])
def test_changes_are_followed_from_an_event_on(warehouse, start):
    """A real server: the client of the tests waits for the end of an answer, and this one has none."""
    with served(warehouse) as url:
        httpx2.post(f"{url}{ROWS}", json=[{"id": 1}])
        kept = _events(f"{url}/api/v1/tables/sales.orders/changes?from=earliest", 2)
        assert [row["id"] for row in json.loads(kept[1]["data"])] == [1]
        httpx2.post(f"{url}{ROWS}", json=[{"id": 2}])
        if start == "earliest":
            found = _events(f"{url}/api/v1/tables/sales.orders/changes?from=earliest", 3)
        else:
            found = _events(f"{url}/api/v1/tables/sales.orders/changes", 2, {"Last-Event-ID": kept[1]["id"]})
        ids = [row["id"] for event in found for row in json.loads(event["data"])]
        assert ids == ([1, 2] if start == "earliest" else [2])
        assert httpx2.get(f"{url}/api/v1/tables/sales.orders/changes?from=1").status_code == 400


def test_followers_keep_nobody_waiting(warehouse, monkeypatch):
    """As many as there are threads for all other requests, and one more than may follow."""
    monkeypatch.setattr(followers, "FOLLOWERS_MAX", 45)
    with served(warehouse) as url, ExitStack() as stack:
        path = "/api/v1/tables/sales.orders/changes"
        client = stack.enter_context(httpx2.Client(base_url=url, timeout=30, limits=httpx2.Limits(max_connections=100)))
        followed = [stack.enter_context(client.stream("GET", path)).iter_lines() for _ in range(45)]
        assert all(next(lines).startswith("id: ") for lines in followed)

        def is_full():
            with client.stream("GET", path) as answer:
                return answer.status_code == 429

        wait_for(is_full, "the last follower to hold its thread")
        assert client.post(ROWS, json=[{"id": 1}]).status_code == 200
        assert client.get(ROWS).json()[0]["id"] == 1


def _events(url, num, headers=None):
    events, event = [], {}
    with httpx2.stream("GET", url, headers=headers, timeout=30) as answer:
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                events.append(event)
                event = {}
                if len(events) == num:
                    return events
    return events
