"""`streamhouse serve`: fresh rows in another engine, and rows over HTTP. The server is a process of its own."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb_extensions import import_extension
from pyarrow import flight

from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ours_at_least, ours_at_most, rate_figure, time_figure, timed
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.schema.json_values import json_text

_BUCKETS = {"bucket.num": "4", "bucket.key": "o_orderkey"}
_CLIENTS = 8
_BATCH_ROWS = 500
_PEER = "the lake alone"
_GET_ROWS = 100_000
_READERS = 4


def serving(bench: Bench) -> Iterator[Figure]:
    """A catalog's answer and DuckDB's query behind an append, over a lake of all orders and 10,000 hot rows; then the
    first answer with a million hot rows; then bulk reads by Arrow Flight, and rows over HTTP from eight clients.
    """
    orders = data.load(bench.data, "orders", quick=bench.quick)
    url = str(bench.scratch / "warehouse")
    warehouse = Warehouse(url)
    table = warehouse.create_table("bench.orders", orders.schema, properties=_BUCKETS)
    table.append(orders)
    tier(table)
    table.append(orders.slice(0, 10_000))
    with _server(url) as (port, flight_port):
        yield from _answers(bench, table, orders, port)
        many = warehouse.create_table("bench.many", orders.schema, properties=_BUCKETS)
        rows = orders.slice(0, 1_000_000)
        many.append(rows)
        first = {
            "ours": [timed(lambda: _loaded(port, "many"))],
            "pyarrow": [timed(lambda: _written(rows, bench.scratch))],
        }
        yield time_figure(f"serve: first answer with {rows.num_rows:,} hot rows", first, "pyarrow", ours_at_most(3_000))
        yield from _bulk(bench, table, port, flight_port)
        yield from _ingest(bench, warehouse, orders, port)


def _answers(bench: Bench, table: Table, orders: pa.Table, port: int) -> Iterator[Figure]:
    connection = _duck(port)
    _loaded(port, "orders")
    unchanged = {
        "ours": lambda: timed(lambda: _loaded(port, "orders")),
        _PEER: lambda: timed(lambda: _loaded(port, "orders$lake")),
    }
    runs = in_turns(unchanged, bench.rounds(40, 5), warm_up=3)
    yield time_figure("serve: answer for an unchanged table", runs, _PEER, ours_at_most(20))

    def fresh() -> float:
        table.append(orders.slice(0, 100))
        return timed(lambda: _asked(connection, "orders"))

    queries = {"ours": fresh, _PEER: lambda: timed(lambda: _asked(connection, '"orders$lake"'))}
    runs = in_turns(queries, bench.rounds(30, 5), warm_up=3)
    beyond_ms = 1e3 * median(a - b for a, b in zip(runs["ours"], runs[_PEER], strict=True))
    note = f"{beyond_ms:,.0f} ms beyond the lake's query"
    yield time_figure("serve: DuckDB's query behind an append of 100 rows", runs, _PEER, note=note)


def _bulk(bench: Bench, table: Table, port: int, flight_port: int) -> Iterator[Figure]:
    client = flight.connect(f"grpc://127.0.0.1:{flight_port}")
    num_rows = table.refresh().num_rows
    runs = in_turns(
        {
            "ours": lambda: timed(lambda: _flown(client, table.name, num_rows)),
            "Table.to_arrow": lambda: timed(table.to_arrow),
        },
        bench.rounds(7, 2),
        warm_up=1,
    )
    note = f"{_READERS} streams"
    yield rate_figure("serve: all rows by Arrow Flight", runs, "Table.to_arrow", num_rows, note=note)
    few = min(_GET_ROWS, num_rows)
    runs = in_turns(
        {
            "ours": lambda: timed(lambda: _flown(client, table.name, few, few)),
            "GET …/rows as Arrow": lambda: timed(lambda: _got(port, table.name, few)),
        },
        bench.rounds(15, 3),
        warm_up=1,
    )
    yield rate_figure(f"serve: {few:,} rows by Arrow Flight", runs, "GET …/rows as Arrow", few)


def _flown(client: flight.FlightClient, table: str, num_rows: int, limit: int | None = None) -> None:
    asked = {"table": table, "parts": _READERS} | ({"limit": limit} if limit is not None else {})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(asked)))
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda endpoint: client.do_get(endpoint.ticket).read_all().num_rows, info.endpoints)
        assert sum(found) == num_rows


def _got(port: int, table: str, limit: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Accept": "application/vnd.apache.arrow.stream"}
    connection.request("GET", f"/api/v1/tables/{table}/rows?limit={limit}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert pa.ipc.open_stream(answer.read()).read_all().num_rows == limit
    connection.close()


def _ingest(bench: Bench, warehouse: Warehouse, orders: pa.Table, port: int) -> Iterator[Figure]:
    batches = [orders.slice(number * _BATCH_ROWS, _BATCH_ROWS) for number in range(bench.rounds(400, 40))]
    bodies = ["\n".join(json_text(row) for row in batch.to_pylist()).encode() for batch in batches]
    num_rows = sum(batch.num_rows for batch in batches)
    sent = warehouse.create_table("bench.sent", orders.schema, properties=_BUCKETS)
    appended = warehouse.create_table("bench.appended", orders.schema, properties=_BUCKETS)
    runs = in_turns(
        {
            "ours": lambda: timed(lambda: _shared(lambda part: _posted(port, sent.name, part), bodies)),
            "append": lambda: timed(lambda: _shared(lambda part: [appended.append(rows) for rows in part], batches)),
        },
        bench.rounds(5, 1),
        warm_up=1,
    )
    assert sent.refresh().num_rows == appended.refresh().num_rows
    note = f"{num_rows / median(runs['ours']):,.0f} rows/s as JSON Lines"
    goal = ours_at_least(0.05)
    yield rate_figure(
        f"serve: {_CLIENTS} clients, {_BATCH_ROWS} rows a request", runs, "append", num_rows, goal, note=note
    )


@contextmanager
def _server(warehouse: str) -> Iterator[tuple[int, int]]:
    """Start a server; gives its ports of HTTP and of Arrow Flight."""
    command = [sys.executable, "-c", "from streamhouse_spark.cli import main; main()", "-w", warehouse, "serve"]
    process = subprocess.Popen([*command, "--port", "0", "--flight-port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+) .* grpc://127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert found is not None
        yield int(found[1]), int(found[2])
    finally:
        process.kill()
        process.wait()


def _duck(port: int) -> duckdb.DuckDBPyConnection:
    names = ("avro", "iceberg", "httpfs")
    for name in names:
        import_extension(name)
    connection = duckdb.connect()
    for name in names:
        connection.load_extension(name)
    at = f"http://127.0.0.1:{port}/iceberg"
    connection.execute(f"ATTACH '' AS sh (TYPE iceberg, ENDPOINT '{at}', AUTHORIZATION_TYPE 'none')")
    return connection


def _asked(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    connection.execute(f"SELECT count(*), sum(o_totalprice) FROM sh.bench.{table}").fetchall()


def _loaded(port: int, table: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/iceberg/v1/namespaces/bench/tables/{table}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


def _posted(port: int, table: str, bodies: list[bytes]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for body in bodies:
        headers = {"Content-Type": "application/x-ndjson"}
        connection.request("POST", f"/api/v1/tables/{table}/rows", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    connection.close()


def _shared(work: Callable[[list[Any]], object], parts: list[Any]) -> None:
    threads = [threading.Thread(target=work, args=(parts[number::_CLIENTS],)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _written(rows: pa.Table, scratch: Path) -> None:
    pq.write_table(rows, scratch / "rows.parquet", compression="zstd")
