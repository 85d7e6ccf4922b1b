"""Requests that schemathesis makes of the OpenAPI page of `serve`: each answer is one that the page describes."""

from __future__ import annotations

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from kit.serving import served
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.rest_api import openapi

pytestmark = pytest.mark.long
EXAMPLES = 30
PAGE = schemathesis.openapi.from_dict(openapi())
OPERATIONS = [f"{method.upper()} {path}" for path, found in openapi()["paths"].items() for method in found]
TABLES = ["sales.orders", "sales.users", "sales.orders$history", "absent"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    warehouse = Warehouse(str(tmp_path_factory.mktemp("wh")))
    warehouse.create_table("sales.orders", "id BIGINT, s STRING, at TIMESTAMP").append([{"id": 1, "s": "a"}])
    warehouse.create_table("sales.users", "id BIGINT NOT NULL, s STRING", primary_key=["id"]).upsert(
        [{"id": 1, "s": "a"}]
    )
    with served(warehouse) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def answer_to(client: httpx2.Client, case) -> tuple[int, str, bytes]:
    """Send a request, and read the beginning of its answer: that of a table that is followed has no end."""
    given = case.as_transport_kwargs(base_url=str(client.base_url))
    sent = {name: given[name] for name in ("headers", "params", "json", "data") if given.get(name) is not None}
    if "data" in sent:
        sent["content"] = sent.pop("data")
    with client.stream(given["method"], given["url"], **sent) as found:
        kind = found.headers.get("content-type", "")
        body = next(found.iter_bytes(), b"") if kind.startswith("text/event-stream") else found.read()
        return found.status_code, kind.partition(";")[0], body


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_answers_as_the_openapi_page_describes(server, operation, mode):
    method, _, path = operation.partition(" ")
    described = openapi()["paths"][path][method.lower()]["responses"]["200"]["content"]
    strategy = PAGE[path][method].as_strategy(schemathesis.GenerationMode[mode.upper()])

    seen = set()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(strategy, st.sampled_from([None, *TABLES]))
    def holds(case, table):
        if table is not None and "{table}" in path:
            case.path_parameters = {"table": table}
        try:
            status, kind, body = answer_to(server, case)
        except (httpx2.LocalProtocolError, httpx2.InvalidURL, UnicodeError):
            reject()  # no client can send it
        seen.add(status)
        assert status < 500, (status, body)
        if status == 200:
            assert kind in described, (kind, body[:200])
        elif status != 404 or body.startswith(b"{"):
            assert kind == "application/json", (status, kind, body)

    holds()
    if mode == "positive" and method == "GET" and not path.endswith("/lookup"):
        assert 200 in seen, "else nothing was shown"
