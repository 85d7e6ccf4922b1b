"""Iceberg's own readers and writers over a store: its Spark runtime, and pyiceberg, with one catalog.

Files go by `S3FileIO` of Iceberg's bundle for AWS, as Iceberg's pages have it for S3. The catalog is an SQLite file of
this disk, which Iceberg's JDBC catalog and pyiceberg share: it answers at once, where a service is as far away as the
store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.runtimes import ICEBERG
from benchmarks.stores import BUCKET, KEYS, REGION, warehouse_settings

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

PACKAGES = (
    ICEBERG,
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG.rpartition(':')[2]}",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
CATALOG = "ice"
NAMESPACE = "bench"


class IcebergPeer:
    """Tables of a catalog in ``folder``, with files in the bucket of the store at ``endpoint``."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self._database = folder / "iceberg.db"
        self._endpoint = endpoint
        self._warehouse = f"s3://{BUCKET}/iceberg"
        settings = warehouse_settings(endpoint)
        self.catalog: SqlCatalog = SqlCatalog(
            CATALOG, uri=f"sqlite:///{self._database}", warehouse=self._warehouse, **settings
        )
        self.catalog.create_namespace(NAMESPACE)

    @property
    def settings(self) -> dict[str, str]:
        """What another process opens the same catalog with, by pyiceberg."""
        files = {"uri": f"sqlite:///{self._database}", "warehouse": self._warehouse}
        return files | warehouse_settings(self._endpoint)

    def configured(self, builder: SparkSession.Builder) -> SparkSession.Builder:
        """Add the catalog; the caller names `PACKAGES`. All else is as Iceberg has it: loaded tables are kept."""
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": f"jdbc:sqlite:{self._database}",
            ".jdbc-driver": "org.sqlite.JDBC",
            ".jdbc.schema-version": "V1",
            ".warehouse": self._warehouse,
            ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            ".s3.endpoint": self._endpoint,
            ".s3.path-style-access": "true",
            ".s3.access-key-id": KEYS[0],
            ".s3.secret-access-key": KEYS[1],
            ".client.region": REGION,
        }
        for key, value in settings.items():
            builder = builder.config(f"spark.sql.catalog.{CATALOG}{key}", value)
        return builder

    def register(self, name: str, metadata_location: str) -> str:
        """Let a name mean a table that is there; the name in SQL."""
        self.catalog.register_table((NAMESPACE, name), metadata_location)
        return sql_name(name)

    def create(self, name: str, schema: pa.Schema) -> None:
        self.catalog.create_table((NAMESPACE, name), schema)


def sql_name(name: str) -> str:
    return f"{CATALOG}.{NAMESPACE}.{name}"
