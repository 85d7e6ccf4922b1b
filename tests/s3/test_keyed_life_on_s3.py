"""The whole life of a table with a primary key on object storage: two hosts, tiering, upkeep, and the end."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa
import pytest

from kit.tables import tier
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Warehouse
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.table.system_views import open_view

pytestmark = pytest.mark.s3
PROPERTIES = {
    "table.datalake.auto-compaction": "true",
    "table.datalake.auto-expire-snapshot": "true",
}


def rows_of(found: pa.Table) -> dict[int, str]:
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


@contextmanager
def host(directory, monkeypatch):
    """A host with a cache of its own."""
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(directory))
    yield
    close_tablets()


@pytest.mark.long
def test_a_keyed_table_lives_on_s3_with_two_hosts(s3_server: S3Server, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 10)
    location, settings = f"s3://{s3_server.new_bucket()}/wh", settings_for(s3_server.endpoint)
    expected: dict[int, str] = {}
    with host(tmp_path / "one", monkeypatch):
        table = Warehouse(location, settings).create_table(
            "sales.people", "id BIGINT, text STRING", primary_key=["id"], buckets=2, properties=PROPERTIES
        )
        for i in range(8):
            changed = dict.fromkeys(range(2 * i, 2 * i + 8), f"round {i}")
            table.upsert([{"id": key, "text": text} for key, text in changed.items()])
            table.delete([i])
            expected |= changed
            del expected[i]
            if i % 2:
                tier(table)
        assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
        report = table.maintain()
        assert report.snapshots == 2
        assert report.lake.compacted.files_removed > 0
        assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
    with host(tmp_path / "two", monkeypatch):
        table = Warehouse(location, settings).table("sales.people")
        wanted = [min(expected), 0, max(expected)]
        assert table.lookup(wanted)["_found"].to_pylist() == [True, False, True]
        assert (tmp_path / "two").is_dir()
        table.upsert([{"id": max(expected), "text": "from another host"}])
        expected[max(expected)] = "from another host"
        change = open_view(table, "binlog").to_arrow().to_pylist()[-1]
        assert (change["before"]["text"], change["after"]["text"]) == ("round 7", "from another host")
        tier(table)
        assert len(table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms()).snapshots) >= 4
        assert table.lake.rewrite_manifests(dry_run=True).snapshot_id is None
        assert table.lake.remove_orphan_files() == []
        assert rows_of(table.to_arrow()) == expected == rows_of(table.lake.to_arrow())
        table.truncate()
        table.upsert([{"id": 1, "text": "again"}])
        tier(table)
        assert rows_of(table.to_arrow()) == {1: "again"} == rows_of(table.lake.to_arrow())


def test_an_iceberg_table_on_s3_is_adopted(s3_server: S3Server, own_cache):
    location, settings = f"s3://{s3_server.new_bucket()}/wh", settings_for(s3_server.endpoint)
    warehouse = Warehouse(location, settings)
    warehouse.create_database("sales")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    made = FileCatalog(warehouse.storage).create_table("sales.people", schema, properties={"format-version": "2"})
    made.append(pa.table({"id": [1, 2], "text": ["old"] * 2}, schema=schema))
    report = warehouse.adopt_table("sales.people", primary_key=["id"])
    assert report.location == f"{location}/lake/sales/people"
    table = warehouse.table("sales.people")
    table.upsert([{"id": 2, "text": "new"}])
    assert rows_of(table.to_arrow()) == {1: "old", 2: "new"}
    tier(table)
    assert rows_of(table.lake.to_arrow()) == {1: "old", 2: "new"} == rows_of(table.to_arrow())
