"""The endpoint of a tiering service: probes, and metrics as Prometheus' own parser reads them."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

import streamhouse_spark as sh
from kit.waiting import wait_for
from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.service.endpoint import STUCK_MS, parse_address, serve_until_exit
from streamhouse_spark.service.table_discovery import TableDiscovery
from streamhouse_spark.service.tiering_service import Service, ServiceHealth, TableStatus
from streamhouse_spark.storage.request_metrics import METER, RequestCounts
from streamhouse_spark.warehouse.process_cache import Connection

LOOPBACK = ("127.0.0.1", 0)


@dataclass
class Observed:
    """A service whose health the test says."""

    known: ServiceHealth = field(default_factory=lambda: ServiceHealth(10, 2, None, stopping=False))
    tables: list[TableStatus] = field(default_factory=list)

    def status(self) -> list[TableStatus]:
        return self.tables

    def health(self) -> ServiceHealth:
        return self.known


def get(address: tuple[str, int], path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, *(s.labels[k] for k in sorted(s.labels))): s.value for family in families for s in family.samples}


@contextmanager
def running(service: Service):
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join(240)


def service_of(location, warehouse: sh.Warehouse) -> Service:
    tasks = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    return Service(tasks, Connection.of(str(location), {}))


@pytest.mark.parametrize(
    ("health", "alive", "ready", "word"),
    [
        (ServiceHealth(None, None, None, stopping=False), 200, 503, "starting"),
        (ServiceHealth(10, 0, None, stopping=False), 200, 200, "ready"),
        (ServiceHealth(10, 3, "STORAGE: it went away", stopping=False), 200, 503, "cannot list tables"),
        (ServiceHealth(10, 3, None, stopping=True), 200, 503, "stopping"),
        (ServiceHealth(STUCK_MS, 3, None, stopping=False), 503, 200, "ready"),
    ],
)
def test_probes_follow_the_health_of_the_service(health, alive, ready, word):
    with serve_until_exit(Observed(health), LOOPBACK) as address:
        assert get(address, "/livez")[0] == alive
        status, text = get(address, "/readyz?verbose")
    told = json.loads(text)
    assert (status, told["status"], told["error"], told["tables"]) == (
        ready,
        word,
        health.listing_error,
        health.tables,
    )


def test_metrics_of_a_service_that_tiers(warehouse_path):
    warehouse = sh.Warehouse(warehouse_path)
    table = warehouse.create_table("t", "id INT", properties={"table.datalake.freshness": "1s"})
    table.append([{"id": i} for i in range(3)])
    service = service_of(warehouse_path, warehouse)
    with serve_until_exit(service, LOOPBACK) as address:
        assert get(address, "/readyz")[0] == 503
        with running(service):
            wait_for(lambda: service.status() and service.status()[0].rows == 3, "a round")
            wait_for(lambda: service.status()[0].lag_rows == 0, "a look at the log behind the round")
            assert get(address, "/readyz")[0] == 200
            found = samples(get(address, "/metrics")[1])
        assert get(address, "/readyz")[0] == 503
    assert found["streamhouse_tiering_rows_total", "default.t"] == 3
    assert found["streamhouse_tiering_rounds_total", "default.t"] == 1
    assert found["streamhouse_table_lag_rows", "default.t"] == 0
    assert found["streamhouse_table_lag_seconds", "default.t"] == 0
    assert found["streamhouse_table_freshness_seconds", "default.t"] == 1
    assert found["streamhouse_service_ready",] == 1


def test_metrics_count_requests_by_store(monkeypatch):
    monkeypatch.setattr(METER, "_counts", {})
    METER.note("s3://b/wh", "tables/x", RequestCounts(gets=3, puts=2, failures=1, sent_bytes=10, received_bytes=20))
    METER.note("s3://c/wh", "tables/x", RequestCounts(gets=1))
    with serve_until_exit(Observed(), LOOPBACK) as address:
        found = samples(get(address, "/metrics")[1])
    assert [found["streamhouse_store_requests_total", kind] for kind in ("gets", "puts", "lists")] == [4, 2, 0]
    assert [found["streamhouse_store_bytes_total", direction] for direction in ("sent", "received")] == [10, 20]
    assert found["streamhouse_store_failures_total",] == 1


def test_a_service_that_cannot_list_says_so(warehouse_path, monkeypatch):
    warehouse = sh.Warehouse(warehouse_path)
    warehouse.create_table("t", "id INT")
    service = service_of(warehouse_path, warehouse)

    def fail(_: TableDiscovery):
        raise StorageError("the store went away")

    with monkeypatch.context() as patched:
        patched.setattr(TableDiscovery, "_list_pointers", fail)
        patched.setattr("streamhouse_spark.service.table_discovery.LISTING_MS", 0)
        with running(service):
            wait_for(lambda: service.health().listing_error, "the error")
            assert "went away" in str(service.health().listing_error)
            assert service.health().tables is None
            patched.undo()
            wait_for(lambda: service.health().tables == 1, "a listing that succeeds")
            assert service.health().listing_error is None


def test_names_of_tables_are_labels_whatever_they_hold():
    status = TableStatus('sales."o\\rders"\n', "failed", failures=2, error="secret text")
    with serve_until_exit(Observed(tables=[status]), LOOPBACK) as address:
        text = get(address, "/metrics")[1]
    assert samples(text)["streamhouse_tiering_failures", status.table] == 2
    assert samples(text)["streamhouse_table_doing", "failed", status.table] == 1
    assert "secret" not in text


def test_paths_and_methods_that_are_not_there():
    with serve_until_exit(Observed(), LOOPBACK) as address:
        status, text = get(address, "/metricz")
        assert (status, text) == (404, "there is no /metricz, expected /livez, /readyz, /metrics\n")
        assert get(address, "/livez", "HEAD") == (200, "")
        assert get(address, "/livez", "POST")[0] == 501


def test_an_address_that_is_taken_is_told():
    with socket.create_server(LOOPBACK) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(StorageError, match=f"^CANNOT_LISTEN: cannot listen at 127.0.0.1:{port}: "),
            serve_until_exit(Observed(), ("127.0.0.1", port)),
        ):
            pytest.fail("it listens twice")
    with serve_until_exit(Observed(), ("127.0.0.1", port)) as address:
        assert get(address, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
        ("host.name:0", ("host.name", 0)),
    ],
)
def test_listen_addresses_are_parsed(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:65536", "host:-1", "host:http", "١:٢"])
def test_addresses_that_are_none(text):
    with pytest.raises(InvalidOptionError, match="expected HOST:PORT"):
        parse_address(text)
