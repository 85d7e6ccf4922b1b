"""Clients that follow changes: small events that can be resumed at each one, and limits that hold."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice

import pyarrow as pa
import pytest

from kit.serving import served
from kit.waiting import wait_for
from streamhouse_spark import Warehouse
from streamhouse_spark.log.consumers import LogPosition
from streamhouse_spark.serve import rest_api
from streamhouse_spark.serve.acl import ALL_TABLES, Access, Client, digest_of
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.rest_api import EVENT_BYTES_MAX, EVENT_ROWS_MAX, tail_events

CHANGES = "/api/v1/tables/s.t/changes?from="
TOKENS = {"ann": "token-of-ann-in-tests", "bob": "token-of-bob-in-tests"}
ACCESS = Access({digest_of(token): Client(name, readable=(ALL_TABLES,)) for name, token in TOKENS.items()})


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(str(tmp_path / "wh"))


@pytest.fixture
def table(warehouse):
    table = warehouse.create_table("s.t", "id BIGINT, s STRING", buckets=3)
    table.append(pa.table({"id": range(5_000), "s": ["x" * 20] * 5_000}))
    table.append(pa.table({"id": range(5_000, 5_010), "s": ["y" * 50_000] * 10}))
    return table


def parsed(event):
    fields = dict(line.split(": ", 1) for line in event.strip().split("\n"))
    return LogPosition.from_json(json.loads(fields["id"])), json.loads(fields["data"])


def test_an_event_is_small_and_is_made_when_it_is_asked_for(table):
    tail = table.tail("earliest", include_metadata=True, until_ms=0)
    first = next(tail_events(tail))
    assert len(first) < 4 * EVENT_BYTES_MAX
    events = [parsed(event) for event in tail_events(table.tail("earliest", include_metadata=True, until_ms=0))]
    assert sorted(row["id"] for _, rows in events for row in rows) == list(range(5_010))
    assert max(len(rows) for _, rows in events) <= EVENT_ROWS_MAX
    assert max(len(json.dumps(rows)) for _, rows in events) < 4 * EVENT_BYTES_MAX
    assert len(events) > 10


def test_a_client_goes_on_behind_each_event(table):
    events = [parsed(event) for event in tail_events(table.tail("earliest", include_metadata=True, until_ms=0))]
    for number, (position, _) in enumerate(events):
        tail = table.tail(position, include_metadata=True, until_ms=0)
        rest = [row["id"] for event in tail_events(tail) for row in parsed(event)[1]]
        assert sorted(rest) == sorted(row["id"] for _, rows in events[number + 1 :] for row in rows)


def test_a_client_that_reads_nothing_makes_one_event(table, monkeypatch):
    made = []
    monkeypatch.setattr(rest_api, "encode_row_texts", lambda rows: made.append(rows.num_rows) or [])
    list(islice(tail_events(table.tail("earliest", include_metadata=True, until_ms=0)), 1))
    assert len(made) == 1


def follow(url, client=None, start="earliest"):
    """Open a connection that follows and reads the beginning of its answer alone; return it and the status."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    token = f"Authorization: Bearer {TOKENS[client]}\r\n" if client else ""
    connection.sendall(f"GET {CHANGES}{start} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n".encode())
    return connection, int(connection.recv(12).split()[1])


def followed_at_once(url, num, clients=(None,)):
    """Connect at the same time. Return the connections, and how many got which status."""
    with ThreadPoolExecutor(num) as pool:
        found = list(pool.map(lambda number: follow(url, clients[number % len(clients)]), range(num)))
    return [connection for connection, _ in found], sorted(status for _, status in found)


def test_the_limit_holds_for_clients_that_come_at_the_same_time(warehouse, table, monkeypatch):
    monkeypatch.setattr(rest_api, "FOLLOWERS_MAX", 4)
    with served(warehouse, ServeOptions(lambda: ACCESS)) as url, ExitStack() as stack:
        connections, statuses = followed_at_once(url, 16, ("ann", "bob"))
        assert statuses == [200] * 4 + [429] * 12
        for connection in connections:
            connection.close()

        def is_free():
            connection, status = follow(url, "ann")
            stack.enter_context(closing(connection))
            return status == 200

        wait_for(is_free, "followers that went away to be counted no longer")


@pytest.mark.parametrize("has_tokens", [True, False])
def test_one_client_keeps_no_other_out(warehouse, table, monkeypatch, has_tokens):
    monkeypatch.setattr(rest_api, "FOLLOWERS_OF_CLIENT_MAX", 3)
    options = ServeOptions(lambda: ACCESS) if has_tokens else ServeOptions()
    with served(warehouse, options) as url, ExitStack() as stack:
        connections, statuses = followed_at_once(url, 8, ("ann" if has_tokens else None,))
        for connection in connections:
            stack.enter_context(closing(connection))
        assert statuses == [200] * 3 + [429] * 5
        if has_tokens:
            connection, status = follow(url, "bob")
            stack.enter_context(closing(connection))
            assert status == 200


def test_a_follower_that_is_refused_is_not_counted(warehouse, table, monkeypatch):
    monkeypatch.setattr(rest_api, "FOLLOWERS_MAX", 2)
    with served(warehouse) as url:
        for _ in range(5):
            connection, status = follow(url, start="x")
            connection.close()
            assert status == 400
