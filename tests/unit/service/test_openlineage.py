"""OpenLineage events of tiering rounds, and the names of tables and lakes in them."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import streamhouse_spark as sh
from kit.waiting import wait_for
from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.core.warehouse_layout import dataset_name
from streamhouse_spark.lake.tiering.job import TieringReport, run_tasks_locally
from streamhouse_spark.service.openlineage import RoundEventEmitter, build_event, create_listener
from streamhouse_spark.service.tiering_service import Service, StopRequested
from streamhouse_spark.warehouse.process_cache import Connection


@pytest.fixture
def warehouse(warehouse_path):
    return sh.Warehouse(warehouse_path)


@pytest.fixture
def table(warehouse):
    table = warehouse.create_table("s.t", "id INT, name STRING", properties={"table.datalake.freshness": "1s"})
    table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    return table


def served(warehouse, listener, run_tasks=None):
    """Run a service until the listener has an end of a round; returns its events."""
    events = []

    def take(event):
        events.append(json.loads(json.dumps(event)))
        listener(event)

    run_tasks = run_tasks or run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    service = Service(run_tasks, Connection.of(warehouse.url, {}), on_lineage=take)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: any(event["eventType"] != "START" for event in events), "the end of a round")
    finally:
        service.stop()
        thread.join(240)
    return events


def test_a_round_is_a_run_from_the_table_into_its_lake(warehouse, table):
    start, end = served(warehouse, lambda _: None)[:2]
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] == str(uuid.UUID(end["run"]["runId"]))
    assert start["eventTime"] <= end["eventTime"]
    assert end["job"]["name"] == "tier s.t"
    (source,), (lake,) = end["inputs"], end["outputs"]
    assert (source["namespace"], source["name"]) == ("file", f"{warehouse.storage.url}/s.t")
    assert (lake["namespace"], lake["name"]) == ("file", f"{warehouse.storage.url}/{table.state.lake_location}")
    assert source["facets"]["schema"]["fields"][0] == {"name": "id", "type": "int32"}
    counts = lake["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["fileCount"], counts["size"] > 0) == (2, 1, True)
    assert lake["facets"]["version"]["datasetVersion"] == str(table.refresh().lake.snapshot_id)
    assert "outputFacets" not in start["outputs"][0]
    assert end["schemaURL"].endswith("/OpenLineage.json#/$defs/RunEvent")
    facets = [*source["facets"].values(), *lake["facets"].values(), counts, *end["job"]["facets"].values()]
    assert all(one["_schemaURL"].startswith("https://openlineage.io/spec/facets/") for one in facets)
    assert {one["_producer"] for one in facets} == {end["producer"]}


def test_a_round_that_fails_says_why(warehouse, table):
    def failing(_):
        raise StorageError("the store is away\nand more")

    start, end = served(warehouse, lambda _: None, failing)[:2]
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert end["run"]["facets"]["errorMessage"]["message"] == "STORAGE: the store is away and more"
    assert start["run"]["runId"] == end["run"]["runId"]


def test_a_listener_that_fails_stops_no_rows(warehouse, table, caplog):
    def failing(_):
        raise OSError("nobody listens")

    served(warehouse, failing)
    assert table.refresh().lake is not None
    assert "cannot deliver an OpenLineage event of s.t: nobody listens" in caplog.text


def report(*snapshots: int) -> TieringReport:
    return TieringReport("s.t", len(snapshots), 1, 10, snapshots, 0, 5)


def test_the_end_of_a_round(table):
    def kinds(end):
        events = []
        one = RoundEventEmitter(events.append, table, table.world)
        end(one)
        assert events == [], "it had nothing to write"
        one.emit_start()
        one.emit_start()
        end(one)
        return [event["eventType"] for event in events]

    assert kinds(lambda one: one.emit_end(report(7))) == ["START", "COMPLETE"]
    assert kinds(lambda one: one.emit_end(report())) == ["START", "ABORT"], "another service did it"
    assert kinds(lambda one: one.emit_abort()) == ["START", "ABORT"]
    assert kinds(lambda one: one.emit_failure(StorageError("away"))) == ["START", "FAIL"]


def test_a_service_that_is_stopped_gives_its_round_up(warehouse, table):
    def stopping(_):
        raise StopRequested

    events = served(warehouse, lambda _: None, stopping)
    assert [event["eventType"] for event in events[:2]] == ["START", "ABORT"]


def test_events_go_to_a_file(tmp_path, table):
    listener = create_listener(str(tmp_path / "events"))
    for number in range(2):
        listener(build_event(table, "START", str(number), 0))
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [line["run"]["runId"] for line in lines] == ["0", "1"]


def test_openlineage_events_are_posted_as_json(table):
    taken = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Authorization"], json.loads(body)["eventType"]))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Takes) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
        create_listener(url, "a-token")(build_event(table, "START", "1", 0))
        thread.join(60)
    assert taken == [("/api/v1/lineage", "Bearer a-token", "START")]


@pytest.mark.parametrize(
    ("target", "text"),
    [("kafka://broker/topic", "starts with http or https"), ("/absent/folder/events", "specify a writable file")],
)
def test_targets_that_take_no_events(target, text):
    with pytest.raises(InvalidOptionError, match=text):
        create_listener(target)


@pytest.mark.parametrize(
    ("url", "namespace", "name"),
    [
        ("s3://lakehouse/team/wh", "s3://lakehouse", "team/wh/sales.orders"),
        ("s3://lakehouse", "s3://lakehouse", "sales.orders"),
        ("gs://bucket/wh/", "gs://bucket", "wh/sales.orders"),
        ("abfss://box@account.dfs.core.windows.net/wh", "abfss://box@account.dfs.core.windows.net", "wh/sales.orders"),
        ("hdfs://names:8020/wh", "hdfs://names:8020", "wh/sales.orders"),
        ("/data/wh", "file", "/data/wh/sales.orders"),
    ],
)
def test_a_dataset_is_named_by_its_store(url, namespace, name):
    assert dataset_name(url, "sales.orders") == (namespace, name)


def test_a_lake_is_its_folder():
    assert dataset_name("s3://b/wh", "lake/sales/orders") == ("s3://b", "wh/lake/sales/orders")
