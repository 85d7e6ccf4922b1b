"""A real server, and engines that know nothing of us: each answer is one state of the table, and the newest."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import duckdb
import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import GreaterThan

from kit.certificates import own_certificate
from kit.duck import connect_duckdb
from kit.tables import tier
from streamhouse_spark import Warehouse


class Server:
    """`streamhouse serve` in a process of its own."""

    def __init__(self, warehouse: str, port: int = 0, *options: str) -> None:
        run = [sys.executable, "-c", "from streamhouse_spark.cli import main; main()"]
        self.process = subprocess.Popen(
            [*run, "-w", warehouse, "serve", "--port", str(port), *options], stderr=subprocess.PIPE, text=True
        )
        line = self.process.stderr.readline()
        found = re.search(r"at (https?://[\d.]+:(\d+))", line)
        assert found, line + self.process.communicate()[1]
        self.url, self.port = found[1], int(found[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(str(tmp_path / "wh"))


@pytest.fixture
def serve(warehouse, tmp_path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(port: int = 0, *options: str) -> Server:
        servers.append(Server(str(tmp_path / "wh"), port, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def duck(server: Server) -> duckdb.DuckDBPyConnection:
    connection = connect_duckdb("httpfs")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute(f"ATTACH '' AS sh (TYPE iceberg, ENDPOINT '{server.url}/iceberg', AUTHORIZATION_TYPE 'none')")
    return connection


def rows(*ids):
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([1] * len(ids), pa.int64())})


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_engines_read_the_newest_rows(warehouse, serve, keyed):
    columns = "id BIGINT NOT NULL, n BIGINT"
    table = warehouse.create_table("s.t", columns, primary_key=["id"] if keyed else [], buckets=2)
    write = table.upsert if keyed else table.append
    write(rows(*range(100)))
    tier(table)
    connection = duck(serve())
    catalog = load_catalog("sh", type="rest", uri=f"{serve().url}/iceberg")
    for number in range(100, 110):
        write(rows(number))
        expected = [(number + 1, number * (number + 1) // 2)]
        assert connection.execute("SELECT count(*), sum(id) FROM sh.s.t").fetchall() == expected
        found = catalog.load_table("s.t").scan().to_arrow()
        assert (found.num_rows, sum(found["id"].to_pylist())) == expected[0]
    if keyed:
        table.upsert(pa.table({"id": [3], "n": [7]}))
        table.delete(pa.table({"id": [4, 105]}))
    else:
        table.delete(where=[("id", "in", [4, 105])])
        table.append(pa.table({"id": [3], "n": [7]}))
    expected = sorted((row["id"], row["n"]) for row in table.to_arrow().to_pylist())
    assert sorted(connection.execute("SELECT id, n FROM sh.s.t").fetchall()) == expected
    found = catalog.load_table("s.t").scan(row_filter=GreaterThan("id", 50)).to_arrow().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == [row for row in expected if row[0] > 50]
    assert connection.execute("SELECT count(*) FROM sh.s.t a JOIN sh.s.t b USING (id)").fetchone()[0] >= len(expected)
    history = warehouse.view("s.t$history").to_arrow()
    asked = 'SELECT count(*), max(version), max("timestamp") FROM sh.s."t$history"'
    newest = history["timestamp"][-1].as_py()
    assert connection.execute(asked).fetchall() == [(history.num_rows, table.refresh().version, newest)]
    assert catalog.load_table("s.t$buckets").scan().to_arrow().num_rows == 2
    lake = catalog.load_table("s.t$lake").scan().to_arrow()
    assert lake.num_rows == 100
    with pytest.raises(Exception, match=r"(?i)not support|read-only|forbidden"):
        catalog.load_table("s.t").transaction().set_properties(a="b").commit_transaction()


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_engines_read_older_states(warehouse, serve, keyed):
    """Each snapshot of the lake by its id, while the newest one has hot rows; and the lake's by time."""
    table = warehouse.create_table("s.t", "id BIGINT NOT NULL, n BIGINT", primary_key=["id"] if keyed else [])
    write, expected = table.upsert if keyed else table.append, {}
    for number in range(3):
        write(rows(*range(10 * number, 10 * number + 10)))
        if number:
            table.delete(pa.table({"id": [number]})) if keyed else table.delete(where=[("id", "=", number)])
        tier(table)
        expected[table.refresh().lake.snapshot_id] = sorted(table.to_arrow()["id"].to_pylist())
    write(rows(100))
    server = serve()
    loaded = load_catalog("sh", type="rest", uri=f"{server.url}/iceberg").load_table("s.t")
    connection = duck(server)
    for snapshot, ids in expected.items():
        found = loaded.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist()
        assert sorted(found) == ids
        then = connection.execute(f"SELECT id FROM sh.s.t AT (VERSION => {snapshot}) ORDER BY id").fetchall()
        assert [row[0] for row in then] == ids
    newest = connection.execute("SELECT id FROM sh.s.t ORDER BY id").fetchall()
    assert [row[0] for row in newest] == sorted(table.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("num_engines", "duration_s"), [(4, 8), pytest.param(10, 600, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)])]
)
def test_every_answer_is_one_state_while_rows_stream_in(warehouse, serve, num_engines, duration_s, record_property):
    """Each append adds the ids from 0 to 9 under the next n: so a state has all ten of each n up to some."""
    table = warehouse.create_table("s.t", "id BIGINT, n BIGINT", buckets=3)
    stop, written = threading.Event(), [0]
    servers = [serve(), serve()]

    def append() -> None:
        writer = Warehouse(warehouse.url).table("s.t")
        while not stop.is_set():
            writer.append(pa.table({"id": list(range(10)), "n": [written[0]] * 10}))
            written[0] += 1
            time.sleep(0.01)

    def tier_on() -> None:
        own = Warehouse(warehouse.url).table("s.t")
        while not stop.is_set():
            tier(own)
            time.sleep(0.3)

    def read(connection: duckdb.DuckDBPyConnection) -> list[int]:
        found = []
        while not stop.is_set():
            before = written[0]
            count, most, ids = connection.execute(
                "SELECT count(*), coalesce(max(n), -1), coalesce(sum(id), 0) FROM sh.s.t"
            ).fetchone()
            assert (count, ids) == (10 * (most + 1), 45 * (most + 1)), "a torn state"
            assert most + 1 >= before, "rows that were durable before the query began are missing"
            found.append(most)
        return found

    connections = [duck(servers[number % 2]) for number in range(num_engines)]
    with ThreadPoolExecutor(num_engines + 2) as pool:
        background = [pool.submit(append), pool.submit(tier_on)]
        readers = [pool.submit(read, connection) for connection in connections]
        time.sleep(duration_s)
        stop.set()
        for reader in readers:
            found = reader.result()
            assert found == sorted(found), "an answer went back"
            assert len(found) >= 5
        record_property("answers", sum(len(reader.result()) for reader in readers))
        record_property("commits", written[0])
        for thread in background:
            thread.result()
    assert table.refresh().lake is not None


def test_rows_are_written_once_whatever_is_killed(warehouse, serve):
    """Four producers send again until they are answered, while the server is killed again and again."""
    table = warehouse.create_table("s.t", "id BIGINT, n BIGINT", buckets=2)
    server, stop, answered = serve(), threading.Event(), [0] * 4
    port = server.port

    def produce(producer: int) -> None:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            while not stop.is_set():
                number = answered[producer]
                body = [{"id": producer, "n": number}]
                counted = {"Producer-Id": f"producer-{producer}", "Producer-Sequence": str(number)}
                opaque = {"Idempotency-Key": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{producer}/{number}"))}
                headers = counted if producer % 2 else opaque
                try:
                    answer = client.post("/api/v1/tables/s.t/rows", json=body, headers=headers)
                except httpx2.TransportError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 200:
                    answered[producer] += 1
                else:
                    assert answer.status_code in (409, 503), answer.text

    def wait_for_answers() -> None:
        before, deadline = list(answered), time.monotonic() + 60
        while any(now < count + 2 for now, count in zip(answered, before, strict=True)):
            assert time.monotonic() < deadline, (before, answered)
            time.sleep(0.01)

    with ThreadPoolExecutor(4) as pool:
        producers = [pool.submit(produce, number) for number in range(4)]
        try:
            for _ in range(4):
                wait_for_answers()
                server.kill()
                server = serve(port)
            wait_for_answers()
        finally:
            stop.set()
        for producer in producers:
            producer.result()
    stored = [(row["id"], row["n"]) for row in table.to_arrow().to_pylist()]
    assert len(stored) == len(set(stored)), "a row is stored twice"
    assert set(stored) >= {(producer, n) for producer, count in enumerate(answered) for n in range(count)}


def test_other_machines_need_tls_and_a_token(warehouse, serve, tmp_path, monkeypatch):
    warehouse.create_table("s.t", "id BIGINT, n BIGINT").append(rows(1, 2))
    cert, key = own_certificate(tmp_path)
    (tmp_path / "tokens").write_text("read 0123456789abcdef\n")
    safe = ("--token-file", str(tmp_path / "tokens"), "--tls-cert", cert, "--tls-key", key)
    server = serve(0, "--host", "0.0.0.0", *safe)
    assert server.url.startswith("https://")
    url = f"https://localhost:{server.port}"
    trusted = ssl.create_default_context(cafile=cert)
    with httpx2.Client(base_url=url, verify=trusted) as client:
        assert client.get("/api/v1/tables").status_code == 401
        token = {"Authorization": "Bearer 0123456789abcdef"}
        assert client.get("/api/v1/tables", headers=token).json() == {"tables": ["s.t"]}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", cert)
    catalog = load_catalog("sh", type="rest", uri=f"{url}/iceberg", token="0123456789abcdef")
    assert catalog.load_table("s.t").scan().to_arrow().num_rows == 2
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"http://localhost:{server.port}/health")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--host", "0.0.0.0"), "--token-file or --access and --tls-cert and --tls-key is missing"),
        (("--tls-cert", "absent.pem"), "require each other"),
        (("--tls-cert", "absent.pem", "--tls-key", "absent.pem"), "cannot load the certificate"),
        (("--token-file", "absent"), "cannot be read"),
    ],
)
def test_a_server_that_is_not_safe_does_not_start(warehouse, tmp_path, options, text):
    warehouse.create_table("s.t", "id BIGINT")
    with pytest.raises(AssertionError, match=text):
        Server(str(tmp_path / "wh"), 0, *options)
