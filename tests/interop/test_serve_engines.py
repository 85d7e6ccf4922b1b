"""Engines of others read hot rows from a server, knowing nothing of us. `make interop` runs this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interop.own_jvm import session_with_iceberg
from kit.serving import served
from kit.tables import tier
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Table, Warehouse

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark 4.1 leaves them
]


def lived(warehouse: Warehouse, *, keyed: bool) -> Table:
    """A table with cold, hot, changed and deleted rows."""
    columns, key = "id BIGINT NOT NULL, name STRING", ["id"] if keyed else []
    table = warehouse.create_table("s.t", columns, primary_key=key, buckets=2)
    write(table, range(50), "a")
    tier(table)
    write(table, range(50, 60), "b")
    table.delete([{"id": 3}, {"id": 55}]) if keyed else table.delete(where=[("id", "in", [3, 55])])
    return table


def write(table: Table, ids: range, name: str) -> None:
    rows = [{"id": i, "name": name} for i in ids]
    table.upsert(rows) if table.state.primary_key else table.append(rows)


def expected(table: Table) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"]) for row in table.to_arrow().to_pylist())


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session_with_iceberg() as session:
        yield session


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_iceberg_in_spark_reads_hot_rows_from_a_server(spark, tmp_path, keyed):
    warehouse = Warehouse(str(tmp_path / "wh"))
    table = lived(warehouse, keyed=keyed)
    with served(warehouse) as url:
        for name, more in (("fresh", {}), ("cold", {"warehouse": "lake"})):
            prefix = f"spark.sql.catalog.{name}_{keyed}"
            spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
            for key, value in {"type": "rest", "uri": f"{url}/iceberg", "cache-enabled": "false", **more}.items():
                spark.conf.set(f"{prefix}.{key}", value)
        for number in range(3):
            write(table, range(100 + number, 101 + number), "c")
            found = spark.sql(f"SELECT id, name FROM fresh_{keyed}.s.t").collect()
            assert sorted(tuple(row) for row in found) == expected(table)
        some = spark.sql(f"SELECT id FROM fresh_{keyed}.s.t WHERE id > 54 AND name = 'b'").collect()
        assert sorted(row.id for row in some) == [56, 57, 58, 59]
        assert spark.table(f"cold_{keyed}.s.t").count() == 50
        with pytest.raises(Exception, match=r"(?i)not support|read-only|forbidden"):
            spark.sql(f"INSERT INTO fresh_{keyed}.s.t VALUES (1, 'x')")
    assert expected(table) == expected(warehouse.table("s.t"))


@pytest.mark.s3
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_clickhouse_reads_hot_rows_from_a_server(s3_server: S3Server, keyed):
    import chdb

    settings = settings_for(s3_server.endpoint)
    bucket = s3_server.new_bucket()
    warehouse = Warehouse(f"s3://{bucket}/wh", settings)
    table = lived(warehouse, keyed=keyed)
    with served(warehouse) as url:
        connection = chdb.connect(":memory:")
        key, secret = settings["s3.access-key-id"], settings["s3.secret-access-key"]
        connection.query("SET allow_experimental_database_iceberg = 1")
        connection.query(
            f"CREATE DATABASE sh ENGINE = DataLakeCatalog('{url}/iceberg/v1', '{key}', '{secret}') SETTINGS "
            f"catalog_type = 'rest', warehouse = 'streamhouse', storage_endpoint = '{s3_server.endpoint}/{bucket}'"
        )
        for number in range(3):
            write(table, range(100 + number, 101 + number), "c")
            found = connection.query("SELECT id, name FROM sh.`s.t`", "ArrowTable").to_pylist()
            assert sorted((row["id"], _text(row["name"])) for row in found) == expected(table)
        connection.close()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value
