"""Bytes that are no request that can be answered: each gets an answer that says so, and the server goes on."""

from __future__ import annotations

import pytest

from kit.raw_http import exchange
from kit.serving import served
from streamhouse_spark import Warehouse

LONG = b"x" * (70 << 10)
HOST = b"Host: localhost\r\nConnection: close\r\n"
ROWS = b"/api/v1/tables/s.t/rows"
POST = b"POST " + ROWS + b"?mode=append HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
CASES = {
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "PRI *": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "PRI * as HTTP/1.1": (b"PRI * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "version 3": (b"GET / HTTP/3.0\r\n" + HOST + b"\r\n", 505),
    "version 0.9": (b"GET /\r\n\r\n", 400),
    "CONNECT": (b"CONNECT evil.com:443 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "an absolute address": (b"GET http://localhost/api/v1/tables HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "an empty segment": (b"GET //evil.com/.. HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "a long condition": (b"GET " + ROWS + b"?where=" + LONG + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "a condition of a megabyte": (b"GET " + ROWS + b"?where=" + LONG * 16 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "a long header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + LONG + b"\r\n\r\n", 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 20_000 + b"\r\n", 431),
    "both lengths": (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n", 400),
    "both lengths, turned": (
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 12\r\n\r\n[]", 400),
    "a negative length": (POST + b"Content-Length: -2\r\n\r\n[]", 400),
    "a length that is none": (POST + b"Content-Length: +2\r\n\r\n[]", 400),
    "an unknown encoding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "a size of a chunk that is none": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n0\r\n\r\n", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\n folded: x\r\nHost: localhost\r\n\r\n", 400),
    "a zero in a header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: \x00\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n", 400),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    warehouse = Warehouse(str(tmp_path_factory.mktemp("http") / "wh"))
    warehouse.create_table("s.t", "id BIGINT")
    with served(warehouse) as url:
        yield url
    assert warehouse.table("s.t").state.version == 1, "nothing was written"


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_request_gets_an_answer(url, name):
    request, status = CASES[name]
    authority = url.removeprefix("http://")
    answer = exchange(authority, request)
    assert answer.status == status, answer
    if status not in (404, 405):
        assert answer.error["condition"]
        assert answer.error["message"]
    after = exchange(authority, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
    assert after.status == 200


def test_a_body_that_ended_early_is_sent_again(tmp_path, caplog):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("s.t", "id BIGINT")
    body = b'[{"id": 1}]'
    request = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with served(warehouse) as url:
        authority = url.removeprefix("http://")
        assert exchange(authority, request[:-2], patience_s=0.2).status == 0
        assert exchange(authority, request).status == 200
    assert warehouse.table("s.t").to_arrow().num_rows == 1
    assert not [record for record in caplog.records if record.exc_info], "a client that is gone is no failure"


def test_a_request_behind_one_that_is_none_is_not_answered(url):
    smuggled = b"DELETE /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = POST.replace(b"Connection: close\r\n", b"")
    request = head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    answer = exchange(url.removeprefix("http://"), request)
    assert answer.status == 400
    assert b"HTTP/1" not in answer.body
