"""What a user calls with a Spark session. PySpark is imported when one of these is called, not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse_spark.datasource.tiering_service import TableStatus
    from streamhouse_spark.lake.tiering import TieringReport


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("streamhouse")`` known to a session; returns it.

    Not needed where the package was installed before the session started: Spark then finds the data source itself.
    """
    from streamhouse_spark.datasource.source import StreamhouseDataSource

    spark.dataSource.register(StreamhouseDataSource)
    return spark


def configure(
    builder: SparkSession.Builder,
    *,
    warehouse: str,
    catalog: str = "streamhouse",
    settings: Mapping[str, str] | None = None,
) -> SparkSession.Builder:
    """Give a session the SQL catalog of a warehouse; returns the builder.

    ::

        spark = streamhouse_spark.configure(SparkSession.builder, warehouse=W).getOrCreate()
        spark.sql("SELECT count(*) FROM streamhouse.sales.orders")

    ``catalog`` is the catalog's name in SQL; calling this again with another one adds another warehouse. ``settings``
    are those of `Warehouse`; they become configuration of the session, so prefer the usual AWS chain for credentials.
    Jars that the builder already has stay. A session that runs already gets the jar too.

    Raises `InvalidOptionError` for a name that SQL cannot use and for unknown settings.
    """
    from streamhouse_spark.datasource.catalog.session import configured

    return configured(builder, warehouse, catalog, settings or {})


def tier(
    spark: SparkSession,
    warehouse: str,
    tables: Sequence[str] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
) -> dict[str, TieringReport]:
    """Move rows from the hot logs into the lakes; returns a report per table.

    When it returns, every row that was committed before the call is in the lake, whatever the table's freshness, in one
    or more lake snapshots. ``tables`` are names; without it, all tables that have a lake. ``settings`` are those of
    `Warehouse`. Safe at any time, beside other calls and services.

    Raises:
        TableNotFoundError, WarehouseNotFoundError: a table or the warehouse is not there.
        InvalidOptionError: a table that was named has no lake.
        LakeMismatchError, LakeRolledBackError: the lake table is not what it was left as.
    """
    from streamhouse_spark.datasource.connection import Connection
    from streamhouse_spark.datasource.tiering_job import tier_tables

    return tier_tables(spark, Connection.of(warehouse, settings or {}), tables)


class TieringService:
    """Keeps the lakes of a warehouse as fresh as their tables say, in micro-batches.

    A table is tiered so that no row waits longer than its ``table.datalake.freshness``; among several, the one whose
    oldest row is due first goes first, and up to four tables are worked on at once. New tables are found within
    seconds. An error of one table is logged, shown by `status` and tried again after a growing pause; the others go on.
    Now and then each table is also maintained: small segments are merged, the log is trimmed, what nobody needs is
    deleted, and lake files are compacted and snapshots expired where the table's properties say so.

    Several services, on one host or on many, may serve one warehouse: they divide the tables by claims, and the fenced
    lake commit keeps them right even where two work on one table.
    """

    def __init__(
        self,
        spark: SparkSession,
        warehouse: str,
        tables: Sequence[str] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        on_report: Callable[[TieringReport], None] | None = None,
        maintenance_ms: int = 600_000,
    ) -> None:
        """``tables`` None serves all tables that have a lake. ``on_report`` is called in a worker thread after each
        round that moved rows. ``maintenance_ms`` is the time between two maintenances of a table.
        """
        from streamhouse_spark.datasource.connection import Connection
        from streamhouse_spark.datasource.tiering_job import spark_tasks
        from streamhouse_spark.datasource.tiering_service import Service

        connection = Connection.of(warehouse, settings or {})
        self._service = Service(
            spark_tasks(spark, connection),
            connection,
            tables,
            on_report=on_report,
            maintenance_ms=maintenance_ms,
        )

    def run(self, stop: threading.Event | None = None) -> None:
        """Serve until `stop` is called, ``stop`` is set or, in the main thread, SIGTERM comes.

        Returns when the rounds under way have ended. Raises `TableNotFoundError` at once for a named table that is
        not there.
        """
        self._service.run(stop)

    def stop(self) -> None:
        """End `run`; from any thread. Repeating it is harmless."""
        self._service.stop()

    def status(self) -> list[TableStatus]:
        """How each table stands, for a live view; from any thread."""
        return self._service.status()
