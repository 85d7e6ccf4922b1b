"""`streamhouse serve --flight-port` as a process of its own: it starts, answers and ends as it should."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from pyarrow import flight

from kit.certificates import own_certificate
from kit.flight_client import Client
from streamhouse_spark import Warehouse


@pytest.fixture
def warehouse(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("s.t", "id BIGINT").append(pa.table({"id": range(2_000_000)}))
    return warehouse


@pytest.fixture
def serve(warehouse):
    """Start a server; returns its process and the address of Flight."""
    processes = []

    def start(*options):
        run = [sys.executable, "-c", "from streamhouse_spark.cli import main; main()", "-w", warehouse.url, "serve"]
        run += ["--port", "0", "--flight-port", "0", *options]
        process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stderr.readline()
        found = re.search(r"Arrow Flight at (grpc\S*:(\d+))\)", line)
        assert found, line + process.communicate()[1]
        return process, found[1], int(found[2])

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.long
def test_it_ends_in_time_whatever_its_clients_do(serve):
    """One client reads on, one has stopped to take rows, one has an answer only."""
    process, url, _ = serve()
    reading, stalled, idle = (Client(url) for _ in range(3))
    idle.info(table="s.t")
    held = stalled.flight.do_get(flight.Ticket('{"table": "s.t"}'), stalled.options)
    held.read_chunk()
    stream = reading.flight.do_get(flight.Ticket('{"table": "s.t"}'), reading.options)
    stream.read_chunk()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    with pytest.raises((flight.FlightUnavailableError, flight.FlightInternalError, flight.FlightCancelledError)):
        stream.read_all()
    assert process.wait(timeout=25) == 0
    assert time.monotonic() - began < 20
    with pytest.raises(flight.FlightUnavailableError):
        idle.info(table="s.t")
    assert "Traceback" not in process.stderr.read()


@pytest.mark.long
def test_other_machines_need_tls_and_a_token(serve, tmp_path):
    cert, key = own_certificate(tmp_path)
    (tmp_path / "tokens").write_text("read 0123456789abcdef\n")
    safe = ("--token-file", str(tmp_path / "tokens"), "--tls-cert", cert, "--tls-key", key)
    _, url, port = serve("--host", "0.0.0.0", *safe)
    assert url.startswith("grpc+tls://0.0.0.0:")
    roots = (tmp_path / "cert.pem").read_bytes()
    at = f"grpc+tls://localhost:{port}"
    assert Client(at, "0123456789abcdef", tls_root_certs=roots).read(table="s.t", limit=3).num_rows == 3
    with pytest.raises(flight.FlightUnauthenticatedError):
        Client(at, tls_root_certs=roots).read(table="s.t")
    with pytest.raises(AssertionError, match="--token-file or --access and --tls-cert and --tls-key is missing"):
        serve("--host", "0.0.0.0")
