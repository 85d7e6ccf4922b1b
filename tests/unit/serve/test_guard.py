"""What stands before each request: a client, its rights on tables, its limit, and the audit log."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from starlette.routing import Mount, Route

from faults.sim import SimClock
from kit.serving import http_client
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.serve import auth
from streamhouse_spark.serve.acl import Access, digest_of
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.auth import RateLimit
from streamhouse_spark.serve.options import ServeOptions
from unit.serve.guarded_clients import CLIENTS, NAMES, TOKENS, guarded_warehouse

ACCESS = Access(CLIENTS)


@pytest.fixture
def warehouse(tmp_path):
    return guarded_warehouse(tmp_path)


@pytest.fixture
def app(warehouse, tmp_path):
    audit = AuditLog(str(tmp_path / "audit.log"), warehouse.world.clock)
    yield make_app(warehouse, ServeOptions(lambda: ACCESS, audit=audit))
    audit.close()


def client_of(app, name):
    return http_client(app, headers={"Authorization": f"Bearer {TOKENS[name]}"} if name else {})


def requests_of(routes, prefix=""):
    """Each method and path of the application, with names of a table that is there."""
    for route in routes:
        if isinstance(route, Mount):
            yield from requests_of(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = prefix + route.path
            table = "orders" if "{namespace}" in path else "sales.orders"
            for method in sorted(route.methods):
                named = path.replace("{namespace}", "sales").replace("{table}", table)
                yield method, named.replace("{path:path}", "x")


def test_a_client_without_rights_sees_nothing_on_any_route(app):
    """A route that forgets to ask for a right fails here."""
    client, seen = client_of(app, "none"), 0
    for method, path in requests_of(app.routes):
        answer = client.request(method, path, content=b"[]")
        is_of_a_table = "orders" in path
        assert answer.status_code != 500, (method, path)
        assert not is_of_a_table or answer.status_code in (403, 404, 405), (method, path, answer.status_code)
        if not is_of_a_table and path not in ("/", "/api/v1/openapi.json"):
            assert not any(name.partition(".")[2] in answer.text for name in NAMES), (method, path)
        seen += is_of_a_table
    assert seen > 10


def test_clients_reach_only_their_tables_over_http(app):
    def allowed(name):
        client = client_of(app, name)
        found = {("write", t) for t in NAMES if client.post(f"/api/v1/tables/{t}/rows", json=[]).status_code == 200}
        return found | {("read", t) for t in NAMES if client.get(f"/api/v1/tables/{t}$history/rows").status_code == 200}

    assert allowed("none") == set()
    assert allowed("shop") == {("write", "sales.orders"), ("read", "sales.orders")}
    answer = client_of(app, "board").post("/api/v1/tables/sales.orders/rows", json=[])
    assert (answer.status_code, answer.json()["error"]["condition"]) == (403, "NOT_AUTHORIZED"), "it may read there"
    client = client_of(app, "shop")
    assert client.get("/api/v1/tables").json() == {"tables": ["sales.orders"]}
    assert [one["table"] for one in client.get("/api/v1/overview").json()["tables"]] == ["sales.orders"]
    assert client.get("/iceberg/v1/namespaces").json() == {"namespaces": [["sales"]]}
    names = client.get("/iceberg/v1/namespaces/sales/tables").json()["identifiers"]
    assert [one["name"] for one in names] == ["orders"]
    assert client.get("/iceberg/v1/namespaces/ops").status_code == 404
    loads = [client.get(f"/iceberg/v1/namespaces/{n.replace('.', '/tables/')}").status_code for n in NAMES]
    assert loads == [200, 404, 404]
    assert client.get("/iceberg/v1/lake/namespaces/sales/tables/other").status_code == 404
    text = client.get("/metrics").text
    assert 'table="sales.orders"' in text
    assert "sales.other" not in text


def test_names_are_the_same_however_they_are_written(app):
    client = client_of(app, "shop")
    for name, status in [
        ("SALES.Orders", 200),
        ("sales%2Eorders", 200),
        ("sales.orders%24lake", 200),
        ("sales.Other", 404),
    ]:
        assert client.get(f"/api/v1/tables/{name}/rows").status_code == status, name
    assert client.get("/api/v1/tables/sales.orders%2F..%2Fsales.other/rows").status_code in (400, 404)


def test_clients_with_wrong_tokens_are_slowed_down(app, monkeypatch):
    monkeypatch.setattr(auth, "_WRONG_TOKENS_PER_S", 0.01)
    assert [client_of(app, None).get("/api/v1/tables").status_code for _ in range(3)] == [401, 429, 429]
    answer = client_of(app, None).get("/iceberg/v1/namespaces")
    assert answer.json()["error"]["type"] == "TooManyRequestsException"
    assert int(answer.headers["retry-after"]) >= 1
    assert client_of(app, "shop").get("/api/v1/tables").status_code == 200, "others of the address go on"


def test_a_client_beyond_its_limit_is_throttled_alone(app):
    client = client_of(app, "board")
    statuses = [client.get("/api/v1/tables").status_code for _ in range(6)]
    assert statuses == [200, *[429] * 5]
    assert client_of(app, "shop").get("/api/v1/tables").status_code == 200


def test_a_stream_ends_with_its_token(warehouse):
    ended = replace(CLIENTS[digest_of(TOKENS["shop"])], expires_s=0.0)
    app = make_app(warehouse, ServeOptions(lambda: Access({digest_of(TOKENS["shop"]): ended})))
    answer = client_of(app, "shop").get("/api/v1/tables/sales.orders/changes?from=earliest")
    assert answer.status_code == 200
    assert "event: begin" in answer.text
    assert "event: rows" not in answer.text


def test_requests_are_audited_with_their_client(app, tmp_path):
    shop = client_of(app, "shop")
    answer = shop.post("/api/v1/tables/sales.orders/rows", json=[{"id": 7}, {"id": 8}])
    shop.get("/api/v1/tables/ops.events/rows")
    client_of(app, None).get("/api/v1/tables/ops.events/rows")
    shop.get("/health")
    text = (tmp_path / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(x["client"], x["right"], x["table"], x["rows"], x["status"], x["allowed"]) for x in lines] == [
        ("shop", "write", "sales.orders", 2, 200, True),
        ("shop", "read", "ops.events", None, 404, False),
        (None, None, None, None, 401, False),
    ]
    assert lines[0]["request"] == answer.headers["x-request-id"]
    assert lines[0]["time"].endswith("Z")
    assert "token-of" not in text
    assert (tmp_path / "audit.log").stat().st_mode & 0o077 == 0


def test_an_audit_log_that_is_moved_away_begins_anew(tmp_path):
    file = tmp_path / "audit.log"
    audit = AuditLog(str(file), SimClock())
    audit.write({"n": 1, "path": "/100%s"})
    file.rename(tmp_path / "audit.log.1")
    audit.write({"n": 2})
    audit.close()
    assert [json.loads((tmp_path / name).read_text())["n"] for name in ("audit.log.1", "audit.log")] == [1, 2]
    with pytest.raises(InvalidOptionError, match=r"--audit-log .* is not writable"):
        AuditLog(str(tmp_path / "absent" / "audit.log"), SimClock())


@pytest.mark.parametrize(("rate", "pause_ms"), list(product([0.5, 3.0, 100.0], [0, 100, 700])))
def test_no_client_gets_more_than_its_rate(rate, pause_ms):
    clock = SimClock()
    limit = RateLimit(clock)
    began_ms, passed = clock.boot_ms(), 0
    for _ in range(500):
        passed += limit.wait_s("a", rate) == 0
        clock.sleep_ms(pause_ms)
        seconds = (clock.boot_ms() - began_ms) / 1000
        assert passed <= max(1.0, 2 * rate) + rate * seconds + 1
    seconds = (clock.boot_ms() - began_ms) / 1000
    assert passed >= min(500, int(seconds / (1 / rate + pause_ms / 1000)))
    assert limit.wait_s("b", rate) == 0
    wait_s = next(filter(None, (limit.wait_s("b", rate) for _ in range(1000))))
    clock.sleep_ms(wait_s * 1000)
    assert limit.wait_s("b", rate) == 0, "after the time that it says, a request passes"
