"""Names that a client may not see: over HTTP, Iceberg REST, Flight and metrics they are as if nothing had them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import flight

from kit.serving import http_client
from streamhouse_spark import Warehouse
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.serve.acl import Access, Client, digest_of, parse_pattern
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.flight.server import FlightServer
from streamhouse_spark.serve.options import ListenAddress, ServeOptions
from streamhouse_spark.table.refresh_commit import source_version

TOKEN = "token-of-the-public-client"
ACCESS = Access(
    {digest_of(TOKEN): Client("public", (parse_pattern("pub.*"), parse_pattern("gone.*")), (parse_pattern("pub.w"),))}
)
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
HIDDEN = ("hr", "salaries_2026", "payroll", "secret")
"""Parts of names that no answer may have unless its request has them."""
TABLE_PAIRS = [
    ("hr.salaries_2026", "hr.absent"),
    ("hr.salaries_2026", "nowhere.absent"),
    ("hr.salaries_2026", "pub.absent"),
    ("hr.salaries_2026", "gone.absent"),
    ("hr.salaries_2026", "pub.formerly"),
    ("hr.salaries_2026", "pub.t$branch_absent"),
    ("hr.salaries_202", "pub.salaries_2026"),
    ("salaries_2026", "absent"),
]
"""A table that is there, or nearly, and one that is not: the answers are the same but for the names."""
VIEWS = {"pub.of_hidden": "hr.salaries_2026", "pub.of_visible": "pub.t"}
"""Materialized table → its source."""
API_CALLS = {
    "describe": ("GET", "/api/v1/tables/{name}", None),
    "read": ("GET", "/api/v1/tables/{name}/rows", None),
    "read with a condition": ("GET", "/api/v1/tables/{name}/rows?where=id=1", None),
    "read changes": ("GET", "/api/v1/tables/{name}$changelog/rows", None),
    "read what is no system table": ("GET", "/api/v1/tables/{name}$nothing/rows", None),
    "look up": ("GET", "/api/v1/tables/{name}/lookup?id=1", None),
    "follow": ("GET", "/api/v1/tables/{name}/changes", None),
    "write": ("POST", "/api/v1/tables/{name}/rows", b'[{"id": 1}]'),
    "delete": ("POST", "/api/v1/tables/{name}/rows?mode=delete", b'[{"id": 1}]'),
    "dead letters": ("POST", "/api/v1/tables/pub.w/rows?bad_rows=dead-letter&dead_letters={name}", b'[{"id": "x"}]'),
}
ICEBERG_CALLS = {
    "load": "/iceberg/v1/namespaces/{database}/tables/{table}",
    "load the lake": "/iceberg/v1/lake/namespaces/{database}/tables/{table}",
    "load history": "/iceberg/v1/namespaces/{database}/tables/{table}$history",
}
DATABASE_CALLS = {
    "namespace": "/iceberg/v1/namespaces/{database}",
    "tables": "/iceberg/v1/namespaces/{database}/tables",
    "views": "/iceberg/v1/namespaces/{database}/views",
}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    warehouse = Warehouse(str(tmp_path_factory.mktemp("hidden") / "wh"))
    for name in ("pub.t", "pub.w", "pub.formerly", "hr.salaries_2026", "hr.payroll", "default.salaries_2026"):
        warehouse.create_table(name, "id BIGINT").append([{"id": 1}])
    warehouse.rename_table("pub.formerly", "hr.secret")
    for view, source in VIEWS.items():
        definition = ViewDefinition(f"SELECT id FROM {source}", "incremental", 60_000, ("id",), "natural", {})
        table = warehouse.create_table(
            view, "id BIGINT NOT NULL", primary_key=["id"], properties={VIEW: definition.to_text()}
        )
        lineage = Lineage((source_version(source, warehouse.table(source).state),))
        table.upsert([{"id": 1}], transaction=lineage.transaction(1))
    return warehouse


@pytest.fixture(scope="module")
def app(warehouse, tmp_path_factory):
    audit = AuditLog(str(tmp_path_factory.mktemp("audit") / "audit.log"), warehouse.world.clock)
    app = make_app(warehouse, ServeOptions(lambda: ACCESS, audit=audit))
    app.state.audit_path = audit._path
    yield app
    audit.close()


@pytest.fixture
def client(app):
    return http_client(app, headers=AUTHORIZED)


def described(answer, name):
    """Return status, headers and body of an answer without the name that was asked for and the request's id."""
    headers = {key: value for key, value in answer.headers.items() if key not in ("x-request-id", "content-length")}
    text = answer.text
    for part in sorted({name, *name.split("$")[:1]}, key=len, reverse=True):
        text = text.replace(part if "." in part else f"default.{part}", "NAME")
    return answer.status_code, headers, text.replace("NAME$branch_absent", "NAME")


def assert_hides(text, name):
    asked = name.lower()
    assert not [part for part in HIDDEN if part in text and part not in asked], (name, text)


@pytest.mark.parametrize("call", API_CALLS)
@pytest.mark.parametrize(("hidden", "absent"), TABLE_PAIRS)
def test_a_hidden_table_answers_as_an_absent_one(client, call, hidden, absent):
    method, path, body = API_CALLS[call]
    if "$" in path and "$" in absent:
        pytest.skip("a branch has system tables of its own")
    if call == "dead letters" and absent.startswith(("pub.", "gone.")):
        absent = "nowhere.absent"
    headers = {"Content-Type": "application/json"} if body else {}
    answers = []
    for name in (hidden, absent):
        is_of_a_readable_one = method == "POST" and call != "dead letters" and name.startswith(("pub.", "gone."))
        answer = client.request(method, path.format(name=name), content=body, headers=headers)
        assert_hides(answer.text, name)
        if is_of_a_readable_one:
            assert answer.status_code == 403, "it may read there, so it is told that it may not write"
            return
        assert answer.status_code == 404
        answers.append(described(answer, name))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("suffix", ["lineage", "options"])
def test_a_view_names_its_sources_only_to_clients_that_may_read_them(client, suffix):
    for url in ("/api/v1/tables/pub.{}${}/rows", "/iceberg/v1/namespaces/pub/tables/{}${}"):
        visible, hidden = (client.get(url.format(view, suffix)) for view in ("of_visible", "of_hidden"))
        assert visible.status_code == 200
        assert hidden.status_code == 404
        assert_hides(hidden.text, "pub.of_hidden")
    assert client.get("/api/v1/tables/pub.of_visible").json()["view"]["query"] == "SELECT id FROM pub.t"
    described_view = client.get("/api/v1/tables/pub.of_hidden")
    assert described_view.status_code == 200
    assert_hides(described_view.text, "pub.of_hidden")
    assert len(client.get("/api/v1/tables/pub.of_hidden/rows").json()) == 1


@pytest.mark.parametrize("call", ICEBERG_CALLS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("hidden", "absent"), TABLE_PAIRS[:5])
def test_a_hidden_table_answers_as_an_absent_one_over_iceberg(client, call, method, hidden, absent):
    answers = []
    for name in (hidden, absent):
        database, _, table = name.partition(".")
        answer = client.request(method, ICEBERG_CALLS[call].format(database=database, table=table))
        assert answer.status_code == 404
        assert_hides(answer.text, name)
        answers.append(described(answer, name))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("call", DATABASE_CALLS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("absent", ["nowhere", "gone"])
def test_a_hidden_database_answers_as_an_absent_one(client, call, method, absent):
    answers = []
    for name in ("hr", absent):
        answer = client.request(method, DATABASE_CALLS[call].format(database=name))
        assert answer.status_code == 404
        answers.append((answer.status_code, answer.text.replace(f"database {name}", "NAME")))
        if method == "GET":
            assert answer.json()["error"]["type"] == "NoSuchNamespaceException"
    assert answers[0] == answers[1]


def test_lists_and_metrics_have_no_hidden_name(client):
    for path in ("/", "/metrics", "/api/v1/overview", "/api/v1/tables", "/iceberg/v1/namespaces", "/iceberg/v1/config"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert not [part for part in HIDDEN if f"{part}." in answer.text or f".{part}" in answer.text], path
    assert client.get("/iceberg/v1/namespaces").json() == {"namespaces": [["pub"]]}


@pytest.mark.parametrize(("hidden", "absent"), TABLE_PAIRS[:5])
def test_a_hidden_table_answers_as_an_absent_one_over_flight(app, hidden, absent):
    server = FlightServer(app.state.shared, ListenAddress(flight_port=0))
    client = flight.connect(server.url)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    try:
        answers = []
        for name in (hidden, absent):
            command = json.dumps({"table": name}).encode()
            texts = []
            for call in (
                lambda at=command: client.get_flight_info(flight.FlightDescriptor.for_command(at), options),
                lambda at=command: client.get_schema(flight.FlightDescriptor.for_command(at), options),
                lambda at=command: client.do_get(flight.Ticket(at), options).read_all(),
            ):
                with pytest.raises(Exception, match="TABLE_NOT_FOUND") as caught:
                    call()
                assert_hides(str(caught.value), name)
                text = str(caught.value).partition("gRPC client debug context")[0].replace(name, "NAME")
                texts.append((type(caught.value), text))
            answers.append(texts)
        assert answers[0] == answers[1]
        read_lineage = [json.dumps({"table": f"pub.{view}$lineage"}).encode() for view in ("of_visible", "of_hidden")]
        assert client.do_get(flight.Ticket(read_lineage[0]), options).read_all().num_rows == 1
        with pytest.raises(Exception, match="TABLE_NOT_FOUND"):
            client.do_get(flight.Ticket(read_lineage[1]), options)
        listed = [list(client.list_flights(criteria, options)) for criteria in (b"hr", b"nowhere", b"gone")]
        assert listed == [[], [], []]
    finally:
        with suppress(flight.FlightError):
            client.close()
        server.stop(5)


def test_errors_of_a_table_that_is_seen_stay_as_they_are(client):
    answer = client.get("/iceberg/v1/namespaces/pub/tables/t$nothing")
    assert "there is no pub.t$nothing in this catalog" in answer.json()["error"]["message"]


def test_who_may_read_all_gets_suggestions(warehouse):
    message = http_client(make_app(warehouse)).get("/api/v1/tables/hr.salaries_2025").json()["error"]["message"]
    assert "did you mean hr.salaries_2026?" in message


def test_the_audit_log_tells_a_denied_table_from_an_absent_one(app, client):
    for name in ("hr.payroll", "pub.absent"):
        client.get(f"/api/v1/tables/{name}")
    lines = [json.loads(line) for line in Path(app.state.audit_path).read_text().splitlines()[-2:]]
    assert [(x["table"], x["status"], x["allowed"]) for x in lines] == [
        ("hr.payroll", 404, False),
        ("pub.absent", 404, True),
    ]
