"""Malformed and hostile requests: each gets an error that says why, and the server continues."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kit.network import arrow_stream
from kit.raw_http import exchange
from kit.serving import served
from streamhouse_spark import Warehouse
from streamhouse_spark.serve import rest_api, row_bodies
from streamhouse_spark.serve.rest_api import tail_events
from streamhouse_spark.write.untrusted_arrow import IpcLimits

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


ROWS_PATH = "/api/v1/tables/s.t/rows"
ARROW = {"Content-Type": row_bodies.ARROW}


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("s.t", "id BIGINT, s STRING, y DATE, t TIMESTAMP, l ARRAY<INT>")
    return warehouse


def message(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


@pytest.mark.parametrize("more", ["", "?bad_rows=skip"])
def test_arrow_that_would_end_the_process(client, warehouse, more):
    offsets = pa.py_buffer(np.array([0, 90_000_000, 3], "<i4").tobytes())
    rows = pa.table({"s": pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])})
    assert "cannot read the body as" in message(
        client.post(f"{ROWS_PATH}{more}", content=arrow_stream(rows), headers=ARROW)
    )
    assert warehouse.table("s.t").state.version == 1


def test_arrow_of_more_rows_than_it_has_bytes(client, monkeypatch):
    body = arrow_stream(pa.table({"s": pa.nulls(10**9)}))
    assert "more than 4,194,304 rows" in message(client.post(ROWS_PATH, content=body, headers=ARROW))
    monkeypatch.setattr(row_bodies, "_LIMITS", IpcLimits(rows=10, bytes=1 << 20))
    body = arrow_stream(pa.table({"id": range(11)}))
    assert "more than 10 rows" in message(client.post(ROWS_PATH, content=body, headers=ARROW))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
    ],
    ids=["y", "t"],
)
def test_times_beyond_the_year_9999_come_back_in_every_form(client, warehouse, column):
    name = "y" if pa.types.is_date(column.type) else "t"
    assert client.post(ROWS_PATH, content=arrow_stream(pa.table({name: column})), headers=ARROW).status_code == 200
    for kind in (row_bodies.JSON, row_bodies.JSON_LINES, row_bodies.CSV):
        given = client.get(f"{ROWS_PATH}?limit=1&columns={name}", headers={"Accept": kind}).content
        assert client.post(ROWS_PATH, content=given, headers={"Content-Type": kind}).status_code == 200
    answer = client.get(ROWS_PATH, headers={"Accept": row_bodies.ARROW})
    found = pa.ipc.open_stream(answer.content).read_all()[name].combine_chunks()
    assert found.equals(pa.concat_arrays([column] * 4))
    tail = warehouse.table("s.t").tail("earliest", include_metadata=True, until_ms=0)
    assert "+" in next(tail_events(tail)), "a follower gets it as an event"


def test_a_bad_row_that_json_cannot_show_is_named_all_the_same(client):
    rows = pa.table({"t": pa.array([2**62], pa.int64()).cast(pa.timestamp("s", "UTC"))})
    answer = client.post(ROWS_PATH, content=arrow_stream(rows), headers=ARROW)
    assert "column 't'" in message(answer)
    assert [bad["row"] for bad in answer.json()["error"]["bad_rows"]] == [0]


def test_lists_have_no_form_in_csv(client):
    client.post(ROWS_PATH, json=[{"id": 1, "l": [1]}])
    assert "cannot be written as CSV" in message(client.get(ROWS_PATH, headers={"Accept": "text/csv"}))
    answer = client.get(f"{ROWS_PATH}?columns=id", headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.text) == (200, '"id"\n1\n')


@pytest.mark.parametrize("length", ["abc", "-5", "1,2", "9" * 5_000, "١"])
def test_lengths_that_are_none(client, length):
    headers = {"Content-Length": length.encode()}
    assert "Content-Length" in message(client.post(ROWS_PATH, content=b"[]", headers=headers))


@pytest.mark.parametrize("limit", ["-1", "1e3", "9" * 5_000, "0" * 13 + "9" * 30, "100001"])
def test_limits_that_are_none(client, limit):
    assert "limit=" in message(client.get(ROWS_PATH, params={"limit": limit}))


@pytest.mark.parametrize(
    "start",
    ["[" * 9_000, '{"version": Infinity}', '{"version": 1, "table": "x", "offsets": {"0": Infinity}, "history": null}'],
)
def test_begins_of_changes_that_are_none(client, start):
    assert client.get("/api/v1/tables/s.t/changes", params={"from": start}).status_code == 400


def test_a_body_of_unknown_length_counts_as_it_comes(client, warehouse, monkeypatch):
    monkeypatch.setattr(rest_api, "IN_FLIGHT_BYTES_MAX", 1_000)
    pieces = [b'[{"id": 1}', *[b" " * 100] * 20, b"]"]
    answer = client.post(ROWS_PATH, content=iter(pieces), headers={"Content-Type": "application/json"})
    assert "BUSY" in message(answer, 429)
    assert warehouse.table("s.t").state.version == 1
    assert (
        client.post(ROWS_PATH, content=iter(pieces[:3]), headers={"Content-Type": "application/json"}).status_code
        == 400
    )
    answer = client.post(ROWS_PATH, content=iter([*pieces[:3], b"]"]), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, "what was refused is no longer counted"


def test_a_name_that_is_no_text(client):
    answer = client.post(ROWS_PATH, content=b"id,\xff\xfe\n1,2\n", headers={"Content-Type": "text/csv"})
    assert "the name of a column is not UTF-8" in message(answer)
