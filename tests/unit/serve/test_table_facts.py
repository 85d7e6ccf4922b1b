"""Facts about a table: rounds, readers, writers, and the query of a materialized one."""

from __future__ import annotations

import pytest

from kit.serving import http_client
from kit.tables import tier
from streamhouse_spark import StorageError, Transaction, Warehouse
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.tiering_failures import describe_failure, record_failure
from streamhouse_spark.serve import app
from streamhouse_spark.serve.acl import ANONYMOUS
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.rest_api import describe_failures, describe_table
from streamhouse_spark.table.refresh_commit import pause_refreshes


@pytest.fixture
def table(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    properties = {"bucket.key": "id", "table.log.ttl": "3d"}
    return warehouse.create_table("s.t", "id BIGINT NOT NULL, name STRING", buckets=2, properties=properties)


def test_a_new_table_has_no_rounds_or_readers(table):
    found = describe_table(table, ANONYMOUS)
    assert found["columns"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert (found["buckets"], found["properties"]["table.log.ttl"]) == (2, "3d")
    assert (found["rounds"], found["readers"], found["writers"], found["view"]) == ([], [], [], None)


def test_rounds_say_how_many_rows_each_moved(table):
    for number in (3, 5, 2):
        table.append([{"id": n, "name": "x"} for n in range(number)])
        tier(table)
    found = describe_table(table, ANONYMOUS)["rounds"]
    assert [one["rows"] for one in found] == [2, 5], "the newest first; of the oldest that is known nobody knows it"
    assert found[0]["snapshot_id"] == str(table.state.lake.snapshot_id)
    assert found[0]["recorded_at"] >= found[1]["recorded_at"]


def test_readers_and_writers_show_their_progress(table):
    table.append([{"id": n, "name": "x"} for n in range(10)])
    table.append([{"id": 1, "name": "y"}], transaction=Transaction("first", 1))
    table.append([{"id": 2, "name": "y"}], transaction=Transaction("second", 9))
    table.follow("all", start="latest")
    table.move_consumer("none", {0: 0, 1: 0})
    found = describe_table(table, ANONYMOUS)
    assert [(one["consumer"], one["lag_rows"]) for one in found["readers"]] == [("all", 0), ("none", 12)]
    assert {(one["writer"], one["version"]) for one in found["writers"]} == {("first", 1), ("second", 9)}
    assert all(one["wrote_at"].endswith("Z") for one in found["writers"])


def test_a_materialized_table_shows_its_query(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    definition = ViewDefinition("SELECT 1 AS one", "incremental", 60_000, ("one",), "natural", {})
    table = warehouse.create_table(
        "s.v", "one INT NOT NULL", primary_key=["one"], properties={VIEW: definition.to_text()}
    )
    found = describe_table(table, ANONYMOUS)
    told = {"query": "SELECT 1 AS one", "mode": "incremental", "freshness_s": 60.0, "paused": False}
    assert found["view"] == told
    pause_refreshes(table)
    assert describe_table(table, ANONYMOUS)["view"] == {**told, "paused": True}
    assert VIEW not in found["properties"]


def test_they_are_answered_over_http(table):
    table.append([{"id": 1, "name": "x"}])
    client = http_client(make_app(Warehouse(table.storage.url)))
    plain = client.get("/api/v1/tables/s.t").json()
    assert plain == describe_table(table, ANONYMOUS) | {"failed_rounds": []}
    costs = client.get("/api/v1/tables/s.t?costs=1").json()["costs"]
    assert costs["estimate"]["total_usd"] > 0
    assert costs["workload"]["commits_per_day"] > 0


def note(table, ago_ms=0):
    now_ms = table.storage.now_ms() - ago_ms
    error = StorageError("the store refused")
    failed = describe_failure("tiering", error, host="tierer-0", rows=2, now_ms=now_ms, duration_ms=1500)
    record_failure(table.storage, table.uuid, failed)


def test_failed_rounds_are_shown_until_one_succeeds(table):
    table.append([{"id": n, "name": "x"} for n in range(2)])
    note(table)
    (found,) = describe_failures(table)["failed_rounds"]
    assert (found["work"], found["error"], found["host"], found["rows"]) == ("tiering", "StorageError", "tierer-0", 2)
    assert found["text"] == "STORAGE: the store refused"
    assert found["first_at"] == found["last_at"]
    assert found["last_at"].endswith("Z")
    assert found["over"] is False
    tier(table)
    assert describe_failures(table)["failed_rounds"][0]["over"] is True


def test_the_overview_and_metrics_name_tables_whose_rounds_fail(table, monkeypatch):
    """The note is asked for where rows wait too long, and nowhere else."""
    monkeypatch.setattr(app, "REFRESH_MS", 0)
    table.append([{"id": 1, "name": "x"}])
    note(table, ago_ms=5_000)
    client = http_client(make_app(Warehouse(table.storage.url)))

    def looked():
        (one,) = client.get("/api/v1/overview").json()["tables"]
        return one["failing"], client.get("/metrics").text

    assert looked()[0] is None, "its rows may wait"
    table.alter_properties({"table.datalake.freshness": "0s"})
    failing, metrics = looked()
    assert failing == "StorageError"
    assert 'streamhouse_table_failing{table="s.t"} 1.0' in metrics
    tier(table)
    failing, metrics = looked()
    assert failing is None
    assert 'streamhouse_table_failing{table="s.t"} 0.0' in metrics
