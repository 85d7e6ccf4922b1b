"""Requests that cannot be answered as they ask: each gets a reason, and the server goes on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kit.network import arrow_stream
from streamhouse_spark import Warehouse
from streamhouse_spark.serve import rest_api, row_bodies
from streamhouse_spark.serve.rest_api import tail_events
from streamhouse_spark.write.untrusted_arrow import IpcLimits

ROWS = "/api/v1/tables/s.t/rows"
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
    assert "cannot read the body" in message(client.post(f"{ROWS}{more}", content=arrow_stream(rows), headers=ARROW))
    assert warehouse.table("s.t").state.version == 1


def test_arrow_of_more_rows_than_it_has_bytes(client, monkeypatch):
    body = arrow_stream(pa.table({"s": pa.nulls(10**9)}))
    assert "more than 4,194,304 rows" in message(client.post(ROWS, content=body, headers=ARROW))
    monkeypatch.setattr(row_bodies, "_LIMITS", IpcLimits(rows=10, bytes=1 << 20))
    body = arrow_stream(pa.table({"id": range(11)}))
    assert "more than 10 rows" in message(client.post(ROWS, content=body, headers=ARROW))


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
    assert client.post(ROWS, content=arrow_stream(pa.table({name: column})), headers=ARROW).status_code == 200
    for kind in (row_bodies.JSON, row_bodies.JSON_LINES, row_bodies.CSV):
        given = client.get(f"{ROWS}?limit=1&columns={name}", headers={"Accept": kind}).content
        assert client.post(ROWS, content=given, headers={"Content-Type": kind}).status_code == 200
    answer = client.get(ROWS, headers={"Accept": row_bodies.ARROW})
    found = pa.ipc.open_stream(answer.content).read_all()[name].combine_chunks()
    assert found.equals(pa.concat_arrays([column] * 4))
    tail = warehouse.table("s.t").tail("earliest", include_metadata=True, until_ms=0)
    assert "+" in next(tail_events(tail)), "a follower gets it as an event"


def test_a_bad_row_that_json_cannot_show_is_named_all_the_same(client):
    rows = pa.table({"t": pa.array([2**62], pa.int64()).cast(pa.timestamp("s", "UTC"))})
    answer = client.post(ROWS, content=arrow_stream(rows), headers=ARROW)
    assert "column 't'" in message(answer)
    assert [bad["row"] for bad in answer.json()["error"]["bad_rows"]] == [0]


def test_lists_have_no_form_in_csv(client):
    client.post(ROWS, json=[{"id": 1, "l": [1]}])
    assert "cannot be written as CSV" in message(client.get(ROWS, headers={"Accept": "text/csv"}))
    answer = client.get(f"{ROWS}?columns=id", headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.text) == (200, '"id"\n1\n')


@pytest.mark.parametrize("length", ["abc", "-5", "1,2", "9" * 5_000, "١"])
def test_lengths_that_are_none(client, length):
    headers = {"Content-Length": length.encode()}
    assert "Content-Length" in message(client.post(ROWS, content=b"[]", headers=headers))


@pytest.mark.parametrize("limit", ["-1", "1e3", "9" * 5_000, "0" * 13 + "9" * 30, "100001"])
def test_limits_that_are_none(client, limit):
    assert "limit=" in message(client.get(ROWS, params={"limit": limit}))


@pytest.mark.parametrize(
    "start",
    ["[" * 9_000, '{"version": Infinity}', '{"version": 1, "table": "x", "offsets": {"0": Infinity}, "history": null}'],
)
def test_begins_of_changes_that_are_none(client, start):
    assert client.get("/api/v1/tables/s.t/changes", params={"from": start}).status_code == 400


def test_a_body_of_unknown_length_counts_as_it_comes(client, warehouse, monkeypatch):
    monkeypatch.setattr(rest_api, "IN_FLIGHT_BYTES_MAX", 1_000)
    pieces = [b'[{"id": 1}', *[b" " * 100] * 20, b"]"]
    answer = client.post(ROWS, content=iter(pieces), headers={"Content-Type": "application/json"})
    assert "BUSY" in message(answer, 429)
    assert warehouse.table("s.t").state.version == 1
    assert client.post(ROWS, content=iter(pieces[:3]), headers={"Content-Type": "application/json"}).status_code == 400
    answer = client.post(ROWS, content=iter([*pieces[:3], b"]"]), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, "what was refused is no longer counted"


def test_a_name_that_is_no_text(client):
    answer = client.post(ROWS, content=b"id,\xff\xfe\n1,2\n", headers={"Content-Type": "text/csv"})
    assert "the name of a column is not UTF-8" in message(answer)
