"""What stands before each call over Arrow Flight: a client, its rights, its limits, TLS, and the audit log."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import flight

from kit.certificates import own_certificate
from kit.flight_client import Client, command, flights, told
from kit.serving import http_client
from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.serve.acl import Access, digest_of
from streamhouse_spark.serve.acl import Client as Rights
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.flight import server as served_flight
from streamhouse_spark.serve.flight.middleware import address_of
from streamhouse_spark.serve.flight.server import FlightServer
from streamhouse_spark.serve.options import ListenAddress, ServeOptions
from unit.serve.guarded_clients import CLIENTS, TOKENS, guarded_warehouse


@pytest.fixture
def warehouse(tmp_path):
    return guarded_warehouse(tmp_path)


@pytest.fixture
def access():
    """The rights of the server, which a test may change."""
    return [Access(CLIENTS)]


@pytest.fixture
def server(warehouse, access, tmp_path):
    audit = AuditLog(str(tmp_path / "audit.log"), warehouse.world.clock)
    with flights(warehouse, ServeOptions(lambda: access[0], audit=audit)) as server:
        yield server
    audit.close()


def client_of(server, name):
    return Client(server.url, TOKENS[name] if name else None)


def calls(client, table):
    """Each method that is for a table."""
    at = command(table=table)
    yield lambda: client.flight.get_flight_info(at, client.options)
    yield lambda: client.direct(table=table)
    yield lambda: client.flight.get_flight_info(flight.FlightDescriptor.for_path(*table.split(".")), client.options)


@pytest.mark.parametrize("name", ["none", "shop"])
@pytest.mark.parametrize("table", ["sales.other", "ops.events", "ops.events$history", "sales.absent", "OPS.Events"])
def test_a_client_without_a_right_gets_no_row_schema_or_name(server, name, table):
    client = client_of(server, name)
    for call in calls(client, table):
        with pytest.raises(
            flight.FlightServerError, match=f"does not exist, or the client {name} has no right"
        ) as caught:
            call()
        assert told(caught.value) == ("TABLE_NOT_FOUND", 404)
    listed = [info.descriptor.path[0] for info in client.flight.list_flights(b"", client.options)]
    assert listed == ([b"sales.orders"] if name == "shop" else [])
    assert list(client.flight.list_flights(b"ops", client.options)) == []


@pytest.mark.parametrize("table", ["ops.events", "sales.absent"])
def test_a_schema_needs_the_right_to_read(server, table):
    """The library translates no error of Flight here: a client gets the text, and nothing of the machine."""
    for name, text in [("shop", "TABLE_NOT_FOUND: .* the client shop has no right"), (None, "NOT_AUTHENTICATED: ")]:
        client = client_of(server, name)
        with pytest.raises(pa.ArrowException, match=text) as caught:
            client.flight.get_schema(command(table=table), client.options)
        assert "/" not in str(caught.value).replace("pyarrow/_flight.pyx", "")


def test_every_flight_method_requires_a_token(server):
    """A method that forgets to ask for a client fails here."""
    client, seen = client_of(server, None), 0
    more = [
        lambda: list(client.flight.list_flights(b"", client.options)),
        lambda: list(client.flight.list_actions(client.options)),
        lambda: list(client.flight.do_action("x", client.options)),
        client.flight.do_put(flight.FlightDescriptor.for_path("x"), pa.schema([]), client.options)[0].close,
        client.flight.do_exchange(flight.FlightDescriptor.for_path("x"), client.options)[1].read_all,
    ]
    for call in [*calls(client, "sales.orders"), *more]:
        with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightUnavailableError)) as caught:
            call()
        assert told(caught.value) in [("NOT_AUTHENTICATED", 401), ("TOO_MANY_REQUESTS", 429)]
        seen += told(caught.value)[1] == 401
    assert seen >= 5
    with pytest.raises(pa.ArrowException, match=r"NOT_AUTHENTICATED|TOO_MANY_REQUESTS"):
        client.flight.get_schema(command(table="sales.orders"), client.options)
    methods = {name for name in vars(flight.FlightServerBase) if not name.startswith("_")}
    own = {name for name in vars(FlightServer) if not name.startswith("_")}
    assert methods - own == {"serve", "run", "shutdown", "wait", "port"} & methods, "a call that pyarrow answers"


@pytest.mark.parametrize("header", ["Basic eDp5", "Bearer", "Bearer ", "bearer wrong-token-of-all", ""])
def test_tokens_that_are_nobodys(server, header):
    client = Client(server.url)
    client.options = flight.FlightCallOptions(headers=[(b"authorization", header.encode())])
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightServerError)):
        client.direct(table="sales.orders")


def test_two_tokens_are_none(server):
    client = Client(server.url)
    both = [(b"authorization", f"Bearer {TOKENS[name]}".encode()) for name in ("none", "shop")]
    client.options = flight.FlightCallOptions(headers=both)
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.direct(table="sales.orders")


def test_a_ticket_gives_no_right(server, access):
    shop, board = client_of(server, "shop"), client_of(server, "board")
    offer = shop.info(table="sales.orders")
    assert shop.part(offer.endpoints[0]).num_rows == 1
    with pytest.raises(flight.FlightServerError, match="TABLE_NOT_FOUND"):
        client_of(server, "none").part(offer.endpoints[0])
    forged = {**json.loads(offer.endpoints[0].ticket.ticket), "table": "ops.events"}
    with pytest.raises(flight.FlightServerError, match="TABLE_NOT_FOUND"):
        board.direct(**forged)
    access[0] = Access({digest_of(TOKENS["shop"]): Rights("shop")})
    with pytest.raises(flight.FlightServerError, match="TABLE_NOT_FOUND"):
        shop.part(offer.endpoints[0])


def test_a_limit_counts_http_and_flight_together(warehouse):
    app = make_app(warehouse, ServeOptions(lambda: Access(CLIENTS)))
    server = FlightServer(app.state.shared, ListenAddress(flight_port=0))
    try:
        over_http = http_client(app, headers={"Authorization": f"Bearer {TOKENS['board']}"})
        assert over_http.get("/api/v1/tables").status_code == 200
        with pytest.raises(flight.FlightUnavailableError, match=r"more than 0\.01 requests/s; retry in") as caught:
            client_of(server, "board").direct(table="sales.orders")
        assert told(caught.value) == ("TOO_MANY_REQUESTS", 429)
        assert client_of(server, "shop").direct(table="sales.orders").num_rows == 1
        text = http_client(app, headers={"Authorization": f"Bearer {TOKENS['shop']}"}).get("/api/v1/overview").text
        assert "sales.orders" in text
        requests = next(m for m in app.state.shared.counts.metrics() if m.name == "streamhouse_serve_requests")
        counts = dict(requests.points)
        assert counts["DoGet", "flight", "200"] == counts["DoGet", "flight", "429"] == 1
    finally:
        server.stop(30)


def test_streams_have_a_limit_and_end_with_their_clients(warehouse, monkeypatch):
    monkeypatch.setattr(served_flight, "STREAMS_OF_CLIENT_MAX", 2)
    warehouse.table("sales.orders").append(pa.table({"id": range(3_000_000)}))
    with flights(warehouse) as server:
        client = Client(server.url)
        readers = [client.flight.do_get(flight.Ticket('{"table": "sales.orders"}')) for _ in range(2)]
        for reader in readers:
            reader.read_chunk()
        with pytest.raises(flight.FlightUnavailableError, match="this server allows") as caught:
            client.direct(table="sales.orders")
        assert told(caught.value) == ("BUSY", 503)
        for reader in readers:
            reader.cancel()
        del reader, readers
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and server._streams:
            time.sleep(0.05)
        assert client.direct(table="sales.orders").num_rows == 3_000_001


def test_a_stream_ends_with_its_token(warehouse):
    ended = replace(CLIENTS[digest_of(TOKENS["shop"])], expires_s=0.0)
    options = ServeOptions(lambda: Access({digest_of(TOKENS["shop"]): ended}))
    wrong = pytest.raises(flight.FlightUnauthenticatedError, match="the token has expired")
    with flights(warehouse, options) as server, wrong:
        client_of(server, "shop").direct(table="sales.orders")


def test_calls_over_flight_are_audited(server, tmp_path):
    shop = client_of(server, "shop")
    shop.read(table="sales.orders")
    for client, table in [(shop, "ops.events"), (client_of(server, None), "sales.orders")]:
        with pytest.raises(flight.FlightError):
            client.info(table=table)
    text = (tmp_path / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [
        (x["client"], x["method"], x["path"], x["right"], x["table"], x["status"], x["allowed"]) for x in lines
    ] == [
        ("shop", "GetFlightInfo", "flight", "read", "sales.orders", 200, True),
        ("shop", "DoGet", "flight", "read", "sales.orders", 200, True),
        ("shop", "GetFlightInfo", "flight", "read", "ops.events", 404, False),
        (None, "GetFlightInfo", "flight", None, None, 401, False),
    ]
    assert {x["address"] for x in lines} == {"127.0.0.1"}
    assert len({x["request"] for x in lines}) == 4
    assert "token-of" not in text


def test_flight_is_served_over_tls(warehouse, tmp_path):
    cert, key = own_certificate(tmp_path)
    with flights(warehouse, listening=ListenAddress("127.0.0.1", 0, 0, cert, key)) as server:
        assert server.url.startswith("grpc+tls://")
        roots = (tmp_path / "cert.pem").read_bytes()
        at = f"grpc+tls://localhost:{server.port}"
        assert Client(at, tls_root_certs=roots).read(table="sales.orders").num_rows == 1
        with pytest.raises(flight.FlightUnavailableError):
            Client(f"grpc://localhost:{server.port}").read(table="sales.orders")
        with pytest.raises(flight.FlightUnavailableError):
            Client(at).read(table="sales.orders")


def test_a_port_that_is_taken(warehouse):
    with flights(warehouse) as server, pytest.raises(InvalidOptionError, match="use another --flight-port"):
        FlightServer(make_app(warehouse).state.shared, ListenAddress(flight_port=server.port))
    with pytest.raises(InvalidOptionError, match=r"cannot listen at 203\.0\.113\.7"):
        FlightServer(make_app(warehouse).state.shared, ListenAddress("203.0.113.7", flight_port=0))


def test_a_provider_that_is_away_says_so(warehouse):
    class Away(Access):
        def client_of(self, authorization):
            raise StorageError("the provider is away", condition="IDENTITY_PROVIDER_UNAVAILABLE")

    wrong = pytest.raises(flight.FlightUnavailableError, match="the provider is away")
    with flights(warehouse, ServeOptions(Away)) as server, wrong as caught:
        client_of(server, "shop").info(table="sales.orders")
    assert told(caught.value) == ("IDENTITY_PROVIDER_UNAVAILABLE", 503)


def test_a_long_text_of_an_error_still_arrives(server):
    client = client_of(server, "shop")
    for where in ("é" * 4_000, "id = '" + "x" * 20_000, "\x00" * 3_000):
        with pytest.raises(flight.FlightServerError) as caught:
            client.info(table="sales.orders", where=where)
        assert told(caught.value) == ("INVALID_OPTION", 400), where[:10]


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:40302", "127.0.0.1"), ("ipv6:%5B::1%5D:40302", "::1"), ("ipv6:[fe80::1]:7", "fe80::1"), ("", "")],
)
def test_the_address_of_a_flight_peer_is_parsed(peer, address):
    assert address_of(peer) == address
