"""Requests that pages of other sites can make a browser send, over real sockets: none writes, reads or follows."""

from __future__ import annotations

import pytest

from kit.browser import CHROMIUM, browser
from kit.raw_http import Answer, exchange
from kit.serving import served
from streamhouse_spark import InvalidOptionError, Warehouse
from streamhouse_spark.serve.acl import ALL_TABLES, Access, Client, digest_of
from streamhouse_spark.serve.options import ListenAddress, ServeOptions
from streamhouse_spark.serve.same_site import AllowedSites

ROWS = "/api/v1/tables/s.t/rows"
JSON = "Content-Type: application/json"
OPEN = AllowedSites()
PROXIED = AllowedSites.of(["Streams.Example.com"], ["https://streams.example.com:443"])
EVERY_NAME = AllowedSites.of(["*"], [])
TOKEN = "0123456789abcdef"


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("s.t", "id BIGINT", primary_key=["id"]).upsert([{"id": 1}])
    return warehouse


def send(url: str, method: str, path: str, *headers: str, body: bytes = b"") -> Answer:
    """Send a request with a Host of the server's own unless one is given."""
    authority = url.removeprefix("http://")
    named = [] if any(line.lower().startswith("host:") for line in headers) else [f"Host: {authority}"]
    lines = [f"{method} {path} HTTP/1.1", *named, *headers, f"Content-Length: {len(body)}", "Connection: close"]
    lines = [line.replace("SELF", authority) for line in lines if line != "Host: none"]
    return exchange(authority, "\r\n".join([*lines, "", ""]).encode() + body)


REFUSED = {  # what a browser sends without asking first, and under a name that resolves to this machine
    "a form without a type": (OPEN, 415, []),
    "a form": (OPEN, 415, ["Content-Type: application/x-www-form-urlencoded"]),
    "a file form": (OPEN, 415, ["Content-Type: multipart/form-data; boundary=x"]),
    "text": (OPEN, 415, ["Content-Type: text/plain;charset=UTF-8"]),
    "text with JSON behind a comma": (OPEN, 415, ["Content-Type: text/plain; x=, application/json"]),
    "JSON with text behind a comma": (OPEN, 415, ["Content-Type: application/json, text/plain"]),
    "JSON with a list as parameter": (OPEN, 415, ["Content-Type: application/json; x=, text/plain"]),
    "two types": (OPEN, 415, ["Content-Type: text/plain", JSON]),
    "two types, JSON first": (OPEN, 415, [JSON, "Content-Type: text/plain"]),
    "a type that begins like JSON": (OPEN, 415, ["Content-Type: application/jsonp"]),
    "all types": (OPEN, 415, ["Content-Type: */*"]),
    "JSON in Latin-1": (OPEN, 415, [f"{JSON}; charset=latin1"]),
    "a foreign origin": (OPEN, 403, [JSON, "Origin: http://evil.com"]),
    "an origin that is hidden": (OPEN, 403, [JSON, "Origin: null"]),
    "an empty origin": (OPEN, 403, [JSON, "Origin:"]),
    "another port of this machine": (OPEN, 403, [JSON, "Origin: http://127.0.0.1:1"]),
    "another name of this machine": (OPEN, 403, [JSON, "Origin: http://localhost"]),
    "an origin that begins like the server's": (OPEN, 403, [JSON, "Origin: http://SELF.evil.com"]),
    "the server behind a name": (OPEN, 403, [JSON, "Origin: http://evil.com@SELF"]),
    "another scheme": (OPEN, 403, [JSON, "Origin: file://SELF"]),
    "two origins": (OPEN, 403, [JSON, "Origin: http://SELF", "Origin: http://evil.com"]),
    "no origin, of another site": (OPEN, 403, [JSON, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]),
    "no origin, of another port": (OPEN, 403, [JSON, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"]),
    "a foreign host": (OPEN, 421, [JSON, "Host: evil.com"]),
    "a foreign host as its own origin": (OPEN, 421, [JSON, "Host: evil.com", "Origin: http://evil.com"]),
    "a foreign host at the port": (OPEN, 421, [JSON, "Host: evil.com:8181"]),
    "a host that begins like this machine": (OPEN, 421, [JSON, "Host: 127.0.0.1.evil.com"]),
    "a host that ends like this machine": (OPEN, 421, [JSON, "Host: evil-localhost"]),
    "a host that is a number": (OPEN, 421, [JSON, "Host: 2130706433"]),
    "a host with a path": (OPEN, 421, [JSON, "Host: localhost/health?"]),
    "an empty host": (OPEN, 421, [JSON, "Host:"]),
    "no host": (OPEN, 400, [JSON, "Host: none"]),
    "two hosts": (OPEN, 400, [JSON, "Host: localhost", "Host: evil.com"]),
    "a host that is not configured": (PROXIED, 421, [JSON, "Host: evil.com"]),
    "a name below a configured one": (PROXIED, 421, [JSON, "Host: x.streams.example.com"]),
    "an origin that is not configured": (PROXIED, 403, [JSON, "Origin: http://streams.example.com"]),
    "a foreign origin at a server of every name": (EVERY_NAME, 403, [JSON, "Origin: http://evil.com"]),
}
TAKEN = {
    "an address": (OPEN, [JSON]),
    "localhost": (OPEN, [JSON, "Host: LocalHost.:8181"]),
    "an address of version 6": (OPEN, [JSON, "Host: [::1]:8181"]),
    "an address of the network": (OPEN, [JSON, "Host: 192.0.2.7"]),
    "the own origin": (OPEN, [JSON, "Origin: http://SELF", "Sec-Fetch-Site: same-origin"]),
    "the own origin at the default port": (OPEN, [JSON, "Host: localhost:443", "Origin: https://localhost"]),
    "JSON in UTF-8": (OPEN, [f'{JSON}; Charset="UTF-8"']),
    "a configured host": (PROXIED, [JSON, "Host: streams.example.com", "Origin: https://streams.example.com"]),
    "a configured origin behind a proxy": (PROXIED, [JSON, "Origin: https://streams.example.com"]),
    "every host": (EVERY_NAME, [JSON, "Host: anything.example"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_of_other_sites_write_nothing(warehouse, name):
    sites, status, headers = REFUSED[name]
    table = warehouse.table("s.t")
    with served(warehouse, ServeOptions(sites=sites)) as url:
        for mode in ("upsert", "delete"):
            answer = send(url, "POST", f"{ROWS}?mode={mode}", *headers, body=b'[{"id": 1}]')
            assert answer.status == status, answer
            assert answer.error["message"]
    assert table.refresh().version == 2


@pytest.mark.parametrize("name", [name for name, (_, status, _) in REFUSED.items() if status != 415])
def test_requests_of_other_sites_read_nothing(warehouse, name):
    sites, status, headers = REFUSED[name]
    with served(warehouse, ServeOptions(sites=sites)) as url:
        for path in (ROWS, "/", "/metrics", "/api/v1/overview", "/iceberg/v1/namespaces", "/iceberg/v1/config", "/x"):
            answer = send(url, "GET", path, *headers)
            assert answer.status == status, (path, answer)
        health = send(url, "GET", "/health", *headers).status
        assert health == (400 if status == 400 else 200), "load balancers ask under names of their own"


@pytest.mark.parametrize("name", TAKEN)
def test_requests_of_the_own_site_are_answered(warehouse, name):
    sites, headers = TAKEN[name]
    with served(warehouse, ServeOptions(sites=sites)) as url:
        assert send(url, "POST", ROWS, *headers, body=b'[{"id": 2}]').status == 200


def test_http_of_version_1_0_needs_no_host(warehouse):
    with served(warehouse) as url:
        assert exchange(url.removeprefix("http://"), f"GET {ROWS} HTTP/1.0\r\n\r\n".encode()).status == 200


def test_a_link_of_another_site_opens_the_page(warehouse):
    with served(warehouse) as url:
        visit = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
        assert send(url, "GET", "/", *visit).status == 200


def test_a_browser_that_asks_first_is_not_allowed(warehouse):
    asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
    with served(warehouse) as url:
        for origin in ("http://evil.com", "http://SELF"):
            answer = send(url, "OPTIONS", ROWS, f"Origin: {origin}", *asks)
            assert answer.status in (403, 405)
            assert not [line for line in answer.headers if line.lower().startswith("access-control")]


def test_a_server_with_tokens_answers_to_every_name_unless_some_are_configured(warehouse):
    access = Access({digest_of(TOKEN): Client("all", writable=(ALL_TABLES,))})
    headers = [JSON, f"Authorization: Bearer {TOKEN}", "Host: warehouse.internal:8181"]
    for sites, status in ((OPEN, 200), (PROXIED, 421)):
        with served(warehouse, ServeOptions(lambda: access, sites=sites)) as url:
            assert send(url, "GET", ROWS, *headers).status == status


def test_a_host_cannot_name_a_path_that_needs_no_token(warehouse):
    access = Access({digest_of(TOKEN): Client("all", writable=(ALL_TABLES,))})
    with served(warehouse, ServeOptions(lambda: access)) as url:
        assert send(url, "GET", "/api/v1/tables", "Host: x/health?").status == 401


@pytest.mark.parametrize("text", ["http://a.example", "a.example:80", "a b", "", "*.example.com", "a..b"])
def test_hosts_that_are_none(text):
    with pytest.raises(InvalidOptionError, match="--allowed-host"):
        AllowedSites.of([text], [])


@pytest.mark.parametrize("text", ["a.example", "ftp://a.example", "https://a.example/", "https://", "null", "*"])
def test_origins_that_are_none(text):
    with pytest.raises(InvalidOptionError, match="--allowed-origin"):
        AllowedSites.of([], [text])


@pytest.mark.parametrize(("host", "names"), [("127.0.0.1", ()), ("::1", ()), ("0.0.0.0", ()), ("db1", ("db1",))])
def test_a_server_answers_to_the_names_of_its_address(host, names):
    assert ListenAddress(host).names == names


PAGE = """<script>(async () => {
  const types = [null, 'text/plain', 'text/plain; x=, application/json', 'application/json', 'text/csv'];
  for (const mode of ['no-cors', 'cors']) for (const type of types)
    for (const query of ['', '?mode=delete'])
      await fetch('URL' + query, {method: 'POST', mode, body: new Blob(['[{"id": 1}]']),
        headers: type ? {'Content-Type': type} : {}}).catch(() => 0);
  document.title = 'done';
})()</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_page_of_another_site_in_a_browser_writes_nothing(warehouse, tmp_path):
    with served(warehouse) as url, browser(tmp_path / "profile") as page:
        file = tmp_path / "page.html"
        file.write_text(PAGE.replace("URL", url + ROWS))
        page.show(file.as_uri())
        page.wait("document.title == 'done'")
    assert warehouse.table("s.t").state.version == 2
