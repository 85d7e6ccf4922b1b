"""System tables as Iceberg documents, read by engines that know nothing of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.sim import sim_world
from kit.iceberg_documents import rows_of
from kit.serving import http_client, served
from streamhouse_spark import InvalidOptionError, TableNotFoundError, Warehouse
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.iceberg import system_table_metadata
from streamhouse_spark.serve.iceberg.served_tables import ServedTables
from streamhouse_spark.serve.iceberg.system_table_metadata import PAUSE_MS, SYSTEM_SUFFIXES, SystemTableMetadata
from streamhouse_spark.storage.memory import MemoryStorage

GRACE_MS = 600_000


@pytest.fixture
def warehouse(clock):
    return Warehouse("wh", storage=MemoryStorage(sim_world(0, clock)), world=sim_world(1, clock))


@pytest.fixture
def table(warehouse):
    table = warehouse.create_table("s.t", "id BIGINT, day INT", partition_by=["day"], buckets=2)
    table.append([{"id": 1, "day": 1}, {"id": 2, "day": 2}])
    return table


@pytest.mark.parametrize("suffix", SYSTEM_SUFFIXES)
@pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.long)])
def test_each_of_them_is_the_table_of_its_name(warehouse, suffix, lake):
    properties = {"table.datalake.format": lake}
    table = warehouse.create_table("s.t", "id BIGINT, day INT", partition_by=["day"], buckets=2, properties=properties)
    table.append([{"id": 1, "day": 1}, {"id": 2, "day": 2}])
    document = SystemTableMetadata().latest_metadata(table, suffix)
    found = rows_of(warehouse.storage, document)
    expected = warehouse.view(f"s.t${suffix}").to_arrow().to_pylist()
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert document.version == table.state.version


def test_a_document_is_made_again_once_the_table_moved_on(warehouse, table, clock):
    documents = SystemTableMetadata(grace_ms=GRACE_MS)
    first = documents.latest_metadata(table, "history")
    assert documents.latest_metadata(table, "history") is first
    table.append([{"id": 3, "day": 1}])
    assert documents.latest_metadata(table, "history") is first, "each costs a few writes: one a second at most"
    clock.advance(PAUSE_MS)
    second = documents.latest_metadata(table, "history")
    assert len(rows_of(warehouse.storage, second)) == len(rows_of(warehouse.storage, first)) + 1
    clock.advance(GRACE_MS)
    third = documents.latest_metadata(table, "history")
    assert third.location != second.location, "the folder of the one before may be deleted"
    assert rows_of(warehouse.storage, third) == rows_of(warehouse.storage, second)


def test_their_folders_go_after_the_grace_and_the_lake_never_sees_them(warehouse, table, clock):
    documents, tables = SystemTableMetadata(grace_ms=GRACE_MS), ServedTables(warehouse, grace_ms=GRACE_MS)
    before = set(warehouse.storage.list_names("lake/s/"))
    document = documents.latest_metadata(table, "buckets")
    assert set(warehouse.storage.list_names("lake/s/")) == before
    assert tables.clean() == []
    assert rows_of(warehouse.storage, document)
    clock.advance(2 * GRACE_MS)
    assert len(tables.clean()) == 1
    assert warehouse.storage.list_names("lake/.virtual/") == []


def test_rows_have_a_bound(warehouse, table, monkeypatch):
    for number in range(5):
        table.append([{"id": number, "day": number}])
    monkeypatch.setattr(system_table_metadata, "ROWS_MAX", 3)
    newest = rows_of(warehouse.storage, SystemTableMetadata().latest_metadata(table, "history"))
    assert [row["version"] for row in newest] == [table.state.version - n for n in (2, 1, 0)]
    with pytest.raises(
        InvalidOptionError, match=r"s\.t\$segments has \d+ rows, and an Iceberg catalog shows at most 3"
    ):
        SystemTableMetadata().latest_metadata(table, "segments")


@pytest.mark.parametrize("suffix", ["changelog", "binlog", "nothing", "lake$files", "history$x", "../x"])
def test_others_are_not_there(table, suffix):
    with pytest.raises(TableNotFoundError, match=r"expected s\.t, s\.t\$lake or \$buckets"):
        SystemTableMetadata().latest_metadata(table, suffix)


def test_an_unpartitioned_table_serves_no_partitions_table(warehouse):
    with pytest.raises(TableNotFoundError, match=r"there is no s\.u\$partitions"):
        SystemTableMetadata().latest_metadata(warehouse.create_table("s.u", "id BIGINT"), "partitions")


def test_system_tables_are_served_over_iceberg_rest(warehouse, table):
    client = http_client(make_app(warehouse))
    at = "/iceberg/v1/namespaces/s/tables"
    answer = client.get(f"{at}/t$history")
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["location"].startswith("memory:") or "lake/.virtual/" in answer.text
    unchanged = client.get(f"{at}/t$history", headers={"If-None-Match": answer.headers["etag"]})
    assert unchanged.status_code == 304
    assert client.head(f"{at}/t$history").status_code == 204
    assert client.head(f"{at}/t$nothing").status_code == 404
    missing = client.get(f"{at}/t$changelog")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NoSuchTableException")
    assert "Arrow Flight" in missing.json()["error"]["message"]


def test_pyiceberg_reads_system_tables_from_a_server(tmp_path):
    from pyiceberg.catalog import load_catalog

    warehouse = Warehouse(str(tmp_path / "wh"))
    table = warehouse.create_table("s.t", "id BIGINT", buckets=2)
    table.append(pa.table({"id": [1, 2, 3]}))
    with served(warehouse) as url:
        catalog = load_catalog("sh", type="rest", uri=f"{url}/iceberg")
        found = catalog.load_table("s.t$buckets").scan(row_filter="log_end_offset > 0").to_arrow()
        assert sum(found["log_end_offset"].to_pylist()) == 3
        history = catalog.load_table(("s", "t$history")).scan().to_arrow()
        assert history["operation"].to_pylist() == warehouse.view("s.t$history").to_arrow()["operation"].to_pylist()
