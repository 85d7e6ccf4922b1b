"""Metrics as an OpenTelemetry SDK collects them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import streamhouse_spark as sh
from kit.serving import http_client
from streamhouse_spark import InvalidOptionError, MissingExtraError, StorageError, Warehouse
from streamhouse_spark.metrics import Metric, export_until_exit, format_prometheus, process_metrics
from streamhouse_spark.serve import app as overview
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.service.endpoint import make_service_metrics
from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus
from streamhouse_spark.views.service import ViewStatus, make_view_metrics


class Collected:
    """An SDK of the test's own: what it collects, by name and labels."""

    def __init__(self):
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def __call__(self):
        data = self._reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "streamhouse_spark"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        found[metric.name, tuple(sorted(point.attributes.items()))] = point.value
        return found


@pytest.fixture
def collected():
    found = Collected()
    yield found
    found.provider.shutdown()


def test_opentelemetry_collects_the_commits_of_a_process(collected, tmp_path):
    sh.export_metrics(collected.provider)
    sh.export_metrics(collected.provider)
    table = Warehouse(str(tmp_path)).create_table("s.t", "id BIGINT")
    before = collected()
    table.append([{"id": 1}])
    table.append([{"id": 2}])
    after = collected()
    assert after["streamhouse_commits", ()] - before["streamhouse_commits", ()] == 2
    assert after["streamhouse_commit_failures", ()] == before["streamhouse_commit_failures", ()]
    assert ("streamhouse_store_requests", (("kind", "puts"),)) in after
    assert {name for name, _ in after} == {one.name for one in process_metrics()}


def test_opentelemetry_collects_measures_of_a_service(collected):
    statuses = [TableStatus("s.t", lag_rows=3, rounds=2), TableStatus("s.u", "failed", failures=4)]
    health = ServiceHealth(1_500, 2, None, False)

    def measures():
        return make_service_metrics(statuses, health)

    with export_until_exit(measures, collected.provider):
        found = collected()
        assert found["streamhouse_service_turned_seconds", ()] == 1.5
        assert found["streamhouse_table_lag_rows", (("table", "s.t"),)] == 3
        assert found["streamhouse_tiering_rounds", (("table", "s.t"),)] == 2
        assert found["streamhouse_tiering_failures", (("table", "s.u"),)] == 4
        assert found["streamhouse_table_doing", (("doing", "failed"), ("table", "s.u"))] == 1
        assert ("streamhouse_commits", ()) in found
        statuses[0] = TableStatus("s.t", rounds=3)
        assert collected()["streamhouse_tiering_rounds", (("table", "s.t"),)] == 3
    assert not any(labels for name, labels in collected() if not name.startswith("streamhouse_store"))
    with export_until_exit(measures, collected.provider):
        assert collected()["streamhouse_tiering_rounds", (("table", "s.t"),)] == 3, "a second one after the first"


def test_opentelemetry_collects_measures_of_a_server(collected, tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "REFRESH_MS", 0)
    warehouse = Warehouse(str(tmp_path))
    warehouse.create_table("s.t", "id BIGINT").append([{"id": 1}])
    app = make_app(warehouse)
    with export_until_exit(app.state.metrics, collected.provider):
        http_client(app).post("/api/v1/tables/s.t/rows", json=[{"id": 2}])
        found = collected()
    assert found["streamhouse_table_rows", (("table", "s.t"),)] == 2
    assert found["streamhouse_serve_rows", (("mode", "append"), ("table", "s.t"))] == 1
    assert found["streamhouse_serve_requests", (("area", "api"), ("method", "POST"), ("status", "200"))] == 1


def test_names_and_numbers_are_those_of_prometheus(collected):
    measures = [
        Metric("streamhouse_a", "A.", "counter", ("kind",), [(("x",), 1.0), (("y",), 2.0)]),
        Metric("streamhouse_b_seconds", "B.", "gauge", (), [((), 0.5)]),
        Metric("streamhouse_none", "None yet.", "gauge", ("table",), []),
    ]
    with export_until_exit(lambda: measures, collected.provider):
        found = {key: value for key, value in collected().items() if key[0][:13] in ("streamhouse_a", "streamhouse_b")}
    assert found == {
        ("streamhouse_a", (("kind", "x"),)): 1.0,
        ("streamhouse_a", (("kind", "y"),)): 2.0,
        ("streamhouse_b_seconds", ()): 0.5,
    }
    text = format_prometheus(measures)[1].decode()
    assert 'streamhouse_a_total{kind="y"} 2.0' in text
    assert "streamhouse_b_seconds 0.5" in text


def test_a_source_that_fails_takes_nothing_from_the_others(collected, caplog):
    def failing():
        if caplog.text or fails:
            raise StorageError("the store is away")
        return [Metric("streamhouse_x", "X.", "gauge", (), [((), 1)])]

    fails = []
    with export_until_exit(failing, collected.provider):
        assert collected()["streamhouse_x", ()] == 1
        fails.append(True)
        found = collected()
    assert ("streamhouse_x", ()) not in found
    assert ("streamhouse_commits", ()) in found
    assert "the store is away" in caplog.text


@pytest.mark.parametrize("wrong", ["console", 4317, MeterProvider])
def test_what_is_no_provider_is_refused(wrong):
    with pytest.raises(InvalidOptionError, match="a MeterProvider of OpenTelemetry"):
        sh.export_metrics(wrong)


def test_exporting_metrics_without_the_extra_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingExtraError, match=r"streamhouse-spark\[otel\]"):
        sh.export_metrics(MeterProvider(shutdown_on_exit=False))
    with export_until_exit(list):
        pass


PROGRAM = """
import json, os, signal, sys, threading, urllib.request
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from streamhouse_spark.warehouse.warehouse import Warehouse
warehouse = Warehouse(sys.argv[1])
def report(url=None):
    urllib.request.urlopen(url) if url else None
    data = reader.get_metrics_data()
    found = sorted(m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics)
    print(json.dumps(found), flush=True)
if sys.argv[2] == "server":
    from streamhouse_spark.serve.options import ServeOptions
    from streamhouse_spark.serve.server import ListenAddress, serve
    def started(url, flight):
        threading.Timer(0.3, lambda: (report(url), os.kill(os.getpid(), signal.SIGTERM))).start()
    serve(warehouse, ServeOptions(), ListenAddress(port=0), started)
else:
    from streamhouse_spark.lake.tiering.job import run_tasks_locally
    from streamhouse_spark.service.endpoint import export_service_metrics
    from streamhouse_spark.service.tiering_service import Service
    from streamhouse_spark.warehouse.process_cache import Connection
    tasks = run_tasks_locally(warehouse.storage, {}, warehouse.world)
    service = Service(tasks, Connection.of(sys.argv[1], {}))
    threading.Timer(0.5, lambda: (report(), service.stop())).start()
    with export_service_metrics(service):
        service.run()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "name"), [("server", "streamhouse_serve_requests"), ("service", "streamhouse_tiering_rounds")]
)
def test_processes_give_them_to_the_sdk_that_they_have(tmp_path, what, name):
    warehouse = Warehouse(str(tmp_path))
    warehouse.create_table("s.t", "id BIGINT").append([{"id": 1}])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), what], capture_output=True, text=True, timeout=120, check=True
    )
    assert {"streamhouse_commits", "streamhouse_table_lag_rows", name} <= set(json.loads(ran.stdout))


def test_opentelemetry_collects_measures_of_views(collected):
    views = [ViewStatus("gold.v", 1000, 0, refreshes=2, lag_ms=1500), ViewStatus("gold.p", 1000, 0, doing="paused")]
    with export_until_exit(lambda: make_view_metrics(views), collected.provider):
        found = collected()
    of = lambda name: (("table", name),)  # noqa: E731
    assert found["streamhouse_view_refreshes", of("gold.v")] == 2
    assert found["streamhouse_view_lag_seconds", of("gold.v")] == 1.5
    assert [found["streamhouse_view_paused", of(name)] for name in ("gold.v", "gold.p")] == [0, 1]
