"""Functions that take a Spark session. They import PySpark when called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from streamhouse_spark.core.argument_validation import require_part, require_texts, validate_arguments
from streamhouse_spark.errors import InvalidOptionError, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from streamhouse_spark.lake.tiering.job import TieringReport
    from streamhouse_spark.lake.types import CompactReport
    from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus
    from streamhouse_spark.views.create import MaterializedTable
    from streamhouse_spark.views.service import ViewStatus


@validate_arguments
def register(spark: SparkSession) -> SparkSession:
    """Register ``format("streamhouse")`` with a session, and return the session.

    This is not necessary if the package was installed before the session started, because then Spark finds the data
    source.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    from streamhouse_spark.datasource.source import StreamhouseDataSource

    spark.dataSource.register(StreamhouseDataSource)
    return spark


@validate_arguments
def configure(
    builder: SparkSession.Builder,
    *,
    warehouse: str,
    catalog: str = "streamhouse",
    settings: Mapping[str, str] | None = None,
) -> SparkSession.Builder:
    """Configure a session with the SQL catalog of a warehouse, and return the builder.

    ::

        spark = streamhouse_spark.configure(SparkSession.builder, warehouse=W).getOrCreate()
        spark.sql("SELECT count(*) FROM streamhouse.sales.orders")

    ``catalog`` is the catalog's name in SQL. Call this function again with another name to add another warehouse.
    ``settings`` are the settings of `Warehouse`. They become session configuration, so use the default AWS credential
    chain instead of explicit credentials if possible. Jars of the builder are kept. If a session is running, the jar is
    added to it.

    With a local master, which is the default, workers use the Python of this process, unless ``PYSPARK_PYTHON`` or
    ``spark.pyspark.python`` is set. Set a master that is not local before this call.

    Raises `InvalidOptionError` for a name that SQL cannot use and for unknown settings.
    """
    require_part("builder", builder, "SparkSession.builder", "getOrCreate")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.session import configure_session

    return configure_session(builder, warehouse, catalog, settings or {})


@validate_arguments
def tier(
    spark: SparkSession,
    warehouse: str,
    tables: Sequence[str] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
) -> dict[str, TieringReport]:
    """Move rows from the hot logs into the lakes, and return a report per table.

    When the call returns, every row that was committed before it is in the lake, in one or more lake snapshots. The
    table's freshness has no effect. ``tables`` are names; by default all tables with a lake are tiered. ``settings``
    are the settings of `Warehouse`. Safe to run concurrently with other calls and services. An error of a table is
    raised after all other tables are tiered.

    Raises:
        TableNotFoundError, WarehouseNotFoundError: a table or the warehouse does not exist.
        InvalidOptionError: a named table has no lake.
        LakeMismatchError, LakeRolledBackError: another engine changed the lake table.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.lake_jobs import tier_tables
    from streamhouse_spark.warehouse.process_cache import Connection

    return tier_tables(spark, Connection.of(warehouse, settings or {}), tables)


@partial(validate_arguments, names=("table",))
def optimize(
    spark: SparkSession,
    warehouse: str,
    table: str,
    order_by: str,
    *,
    where: str | None = None,
    dry_run: bool = False,
    settings: Mapping[str, str] | None = None,
) -> CompactReport:
    """Cluster the rows of a table's lake by columns, like ``table.lake.optimize``. Spark tasks write the files.

    ``order_by`` is ``a, b`` or ``zorder(a, b)``. ``where`` is a condition in SQL; only files that may contain matching
    rows are rewritten. A task writes the files of one bucket and partition, at most one gigabyte. Rows, their offsets
    and older snapshots are unchanged. Supports Spark Connect.

    **Commit point:** the lake's commits, of up to 16 gigabytes each. A failed or cancelled job does not make its
    current commit, and leaves orphan files.

    Raises the errors of ``table.lake.optimize``, and `InvalidOptionError` for a condition that cannot be parsed.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.lake_jobs import optimize_table
    from streamhouse_spark.warehouse.process_cache import Connection

    return optimize_table(
        spark, Connection.of(warehouse, settings or {}), table, order_by, where=where, dry_run=dry_run
    )


@partial(validate_arguments, names=("table",))
def lookup_join(
    df: DataFrame,
    table: str,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    warehouse: str | None = None,
    columns: Sequence[str] | None = None,
    how: Literal["left", "inner"] = "left",
    prefix: str = "",
    max_staleness_ms: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> DataFrame:
    """Join a batch or a stream with the current rows of a primary-key table, using lookups by key.

    ::

        orders = spark.readStream.format("streamhouse").option("warehouse", W).load("sales.orders")
        with_names = streamhouse_spark.lookup_join(orders, "sales.customers", on={"customer": "id"}, columns=["name"])

    Each task looks up the keys of its rows, one Arrow batch at a time, in the tablets of its host. The join needs no
    shuffle, broadcast or query state. The first task on a host reads the table's log into the local cache.

    ``on`` names the columns that must be equal: a list if they have the same names in ``df`` and the table, or a
    mapping of columns of ``df`` to columns of the table. They are the whole primary key, or its first columns; then a
    row of ``df`` is returned once per matching row. Null keys match no row. ``columns`` are the columns to add, by
    default all columns that are not in ``on``. Their names get the prefix ``prefix``. ``how`` is ``"left"``, with nulls
    for rows without a match, or ``"inner"``. The order of the rows is preserved.

    **Freshness:** a batch sees every write that was committed before its lookup. On remote storage, writes of the last
    second, or of the last ``max_staleness_ms``, may be missing. Two batches of a query may see different rows of the
    table, and a replayed micro-batch may see newer rows. If results must follow changes of the table, use `delta_join`.

    ``warehouse`` is a directory or URL. It defaults to the environment variable STREAMHOUSE_WAREHOUSE, then to the
    session's catalog ``streamhouse``. ``settings`` are the settings of `Warehouse`. Supports Spark Connect.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: the table or the warehouse does not exist.
        SchemaMismatchError: a column does not exist, ``on`` is not a prefix of the primary key, or types differ.
        InvalidOptionError: the table has no primary key, names clash (set ``prefix``), or ``how`` is invalid.
    """
    require_part("df", df, "a DataFrame", "mapInArrow")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.lookup_joins import join_by_lookup
    from streamhouse_spark.datasource.session import connect_session

    connection = connect_session(df.sparkSession, warehouse, settings)
    return join_by_lookup(df, connection, table, on, columns, how, prefix, max_staleness_ms)


@partial(validate_arguments, names=("left", "right", "into"))
def delta_join(
    spark: SparkSession,
    left: str,
    right: str,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    into: str,
    checkpoint: str,
    warehouse: str | None = None,
    columns: Sequence[str] | None = None,
    how: Literal["inner", "left"] = "inner",
    prefix: str = "",
    trigger: Mapping[str, Any] | None = None,
    max_offsets_per_trigger: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Keep a table equal to the join of two primary-key tables, with a stream of the changes of both tables.

    ::

        query = streamhouse_spark.delta_join(
            spark, "sales.orders", "sales.payments", on="order_id", into="sales.paid_orders", checkpoint=C, warehouse=W
        )

    For each change of one side, the query looks up the matching rows of the other side, and upserts the joined rows
    into ``into`` or deletes them. The query keeps no state, even for large tables and old matches. Each host caches the
    rows of the three tables locally.

    **Requirements.** ``on`` is a list of names, or a mapping of columns of ``left`` to columns of ``right``. The
    columns must be the first columns, or all columns, of each primary key, because the lookups use them as an index.
    ``into`` must exist; if it does not, the error contains a statement that creates it. The primary key of ``into`` has
    the columns of the left key, followed by the columns of the right key that are not in ``on``. Its other columns have
    the name and type of a column of ``left``, or of a column of ``right`` with ``prefix`` before the name. ``columns``
    limits the written columns; it must name all columns of ``into``, because whole rows are written. ``how="left"``
    also keeps rows of ``left`` without a match. It requires that ``on`` is the whole primary key of ``right``.

    **Guarantees.** Rows of ``into`` are always computed from the current rows of both sides. When the stream has
    processed all changes, ``into`` is exactly the join of both tables, regardless of replays, restarts and concurrent
    changes. Each micro-batch is stored once. Before that, ``into`` may combine a row of one side with an older or newer
    row of the other side. No other writer may write to ``into``; a second delta join is rejected.

    ``trigger`` is a trigger of Spark, such as ``{"availableNow": True}`` or ``{"processingTime": "10 seconds"}``.
    ``max_offsets_per_trigger`` limits the changes of each side per micro-batch (PySpark 4.2 or newer). For
    ``warehouse`` and ``settings`` see `lookup_join`. Truncating or overwriting a side ends the query.

    **The logs of both sides** are retained until the query has processed them. The query is a named consumer of each
    log (``delta_join.left.…``, ``delta_join.right.…``), and records its position at the start and then at most every 30
    s. A stopped query delays trimming for the log's time to live plus a week. `Table.move_consumer` with None, or
    ``CALL streamhouse.system.drop_consumer``, ends the delay. If a log was trimmed before the query starts, the query
    starts with the rows of that side.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: a table or the warehouse does not exist.
        SchemaMismatchError, InvalidOptionError: the tables cannot be joined, or ``into`` cannot store the join.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    if not checkpoint.strip():
        raise InvalidOptionError("checkpoint is empty, expected a directory or URL")
    if max_offsets_per_trigger is not None and max_offsets_per_trigger < 1:
        raise InvalidOptionError(f"max_offsets_per_trigger is {max_offsets_per_trigger}, expected at least 1")
    if trigger is not None and not all(isinstance(name, str) for name in trigger):
        raise InvalidOptionError(f"trigger is {quote(trigger)}, expected such as {{'availableNow': True}}")
    from streamhouse_spark.datasource.lookup_joins import plan_delta_join, start
    from streamhouse_spark.datasource.session import connect_session

    connection = connect_session(spark, warehouse, settings)
    plan = plan_delta_join(connection, left, right, on, into, columns, how, prefix)
    return start(spark, connection, plan, checkpoint, trigger, max_offsets_per_trigger)


@partial(validate_arguments, names=("into", "dead_letter"))
def cdc(
    events: DataFrame,
    into: str,
    *,
    checkpoint: str,
    format: Literal["debezium-json", "debezium-avro", "maxwell-json", "canal-json"] = "debezium-json",
    warehouse: str | None = None,
    value: str = "value",
    position: Sequence[str] | None = None,
    times: Literal["millis", "micros", "nanos", "schema"] | None = None,
    decimals: Literal["text", "base64", "schema"] | None = None,
    registry: str | None = None,
    registry_auth: tuple[str, str] | str | None = None,
    avro_schema: str | None = None,
    new_columns: Literal["fail", "ignore"] = "fail",
    dead_letter: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Replicate a table of another database into a table, from a stream of its change events.

    ::

        events = spark.readStream.format("kafka").option("subscribe", "shop.public.orders").load()
        query = streamhouse_spark.cdc(events, "shop.orders", checkpoint=C, warehouse=W, times="micros")

    ``events`` is a streaming DataFrame with the text of an event in the column ``value``, such as Kafka's source.
    ``into`` must exist, with the source's primary key. Columns match by name. Inserts, updates and snapshots become
    upserts, and deletes become deletes. An update that changes the key also deletes the old key. Null values (Kafka's
    tombstones), heartbeats and schema changes are skipped.

    **Order.** If a micro-batch has several events of a key, the last event wins, in the order of the columns
    ``position``. The default, ``offset``, is correct for Kafka, where all events of a key are in one partition.
    Micro-batches follow the order of the source.

    **Guarantees.** Each micro-batch is one commit record of ``into`` and is stored once. If an event cannot be read, or
    the table rejects its row, the query fails before it writes the batch. An event cannot be read if it is not valid
    JSON, is a truncation, or has no key, a value of another type, or a null in a NOT NULL column. The table rejects a
    row that violates a constraint, or whose text is too long. With ``dead_letter``, such events are written to that
    table with the reason; the table is created if it does not exist. The query also fails if an event has a column that
    the table does not have, unless ``new_columns`` is ``ignore``.

    **Values.** ``times`` is the unit of numeric timestamps, and ``decimals`` the encoding of decimals, at any nesting
    depth. They are required for ``debezium-json`` if the table has such columns. An event with an embedded schema
    (``schemas.enable=true``) is read with that schema; use ``schema`` if all events have an embedded schema. Dates are
    days or ``yyyy-mm-dd``, binary values base64. A value that does not fit its column without rounding or truncation is
    an error.

    **Avro.** With ``debezium-avro``, the column ``value`` has bytes in Confluent's wire format. ``registry`` is the URL
    of the schema registry, and ``registry_auth`` a user and password, or a token. The driver fetches each schema once,
    when an event has its id. If the registry is unavailable for half a minute, the query fails before it writes the
    batch. ``avro_schema`` is the schema of events in plain Avro.

    The package's jar parses the events in the JVM, so the session must have the jar (`configure`).

    ``trigger`` is a trigger of Spark, such as ``{"availableNow": True}``. For ``warehouse`` and ``settings`` see
    `lookup_join`.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: the table or the warehouse does not exist.
        InvalidOptionError: the table has no primary key or a merge engine other than ``versioned``, or an argument is
            missing or invalid.
    """
    require_part("events", events, "a streaming DataFrame", "isStreaming")
    require_texts("settings", settings)
    if not checkpoint.strip():
        raise InvalidOptionError("checkpoint is empty, expected a directory or URL")
    if not events.isStreaming:
        raise InvalidOptionError("events is not a streaming DataFrame; read the events with spark.readStream")
    from streamhouse_spark.datasource.cdc.apply import plan_cdc, start
    from streamhouse_spark.datasource.cdc.event_formats import ValueForms
    from streamhouse_spark.datasource.session import connect_session

    connection = connect_session(events.sparkSession, warehouse, settings)
    forms = ValueForms(times, decimals)
    plan = plan_cdc(
        connection, events, into, format, forms, value, position, new_columns, dead_letter, registry, registry_auth,
        avro_schema,
    )  # fmt: skip
    return start(plan, events, checkpoint, trigger)


@partial(validate_arguments, names=("name",))
def materialize(
    spark: SparkSession,
    name: str,
    query: str,
    *,
    freshness: str = "1min",
    mode: Literal["incremental", "full"] = "incremental",
    properties: Mapping[str, str] | None = None,
    step_rows: int | None = None,
) -> MaterializedTable:
    """Materialize a query as a table that is refreshed from changes of its sources, and return its handle.

    ::

        view = streamhouse_spark.materialize(
            spark, "gold.revenue", "SELECT region, sum(amount) AS revenue FROM sales.orders GROUP BY region"
        )
        view.refresh()

    The table is created if it does not exist, and then refreshed. The query reads tables of the session's catalog
    ``streamhouse`` as ``database.table``. A `RefreshService` refreshes the view as often as ``freshness`` requires.

    **Guarantees.** A refresh is one commit of the table, with the changed rows and the versions of the sources. So
    readers see the query's result at one version of each source, which ``$lineage`` shows. A crash before the commit
    changes nothing. If two refreshes run concurrently, one of them commits. A refresh without new rows does not commit.
    If the changes of a source are incomplete, the refresh recomputes the full query and writes the differences, and the
    report contains the reason. This happens after a source was truncated, restored or trimmed, or rows of a log table
    were deleted. The rows pass through the driver.

    **Steps.** With ``step_rows``, a refresh processes about that many rows or changes of its sources per commit, or
    more if no version in between can be read. After a crash, only one step is repeated. An existing view keeps its
    ``step_rows``.

    **Queries:** projections, filters, inner, left, full, semi and anti joins, GROUP BY with any aggregate that does not
    depend on the order of rows, HAVING, DISTINCT, UNION, WITH, subqueries in FROM, and EXISTS and IN in WHERE.
    ``mode="full"`` supports any query: each refresh recomputes the full query and writes the differences.

    The primary key of the table is the key of the query's rows if it is NOT NULL. Otherwise it is ``_key``, and also
    ``_ord`` if rows may be equal.

    Raises, before anything is written:
        InvalidOptionError: a part of the query, which the text names, cannot be maintained incrementally.
        TableExistsError: a table of that name exists and is not this view.
        TableNotFoundError, WarehouseNotFoundError: a source or the warehouse does not exist.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("properties", properties)
    from streamhouse_spark.datasource.session import connect_catalog
    from streamhouse_spark.views.create import create_view_table

    connection = connect_catalog(spark)
    view = create_view_table(spark, connection, name, query, freshness, mode, properties or {}, step_rows)
    view.refresh()
    return view


class TieringService:
    """Keeps the lakes of a warehouse as fresh as their tables require, in micro-batches.

    A table is tiered so that no row waits longer than ``table.datalake.freshness``. The table whose oldest row is due
    first is tiered first, and up to four tables are processed concurrently. New tables are discovered within seconds.
    An error of a table is logged, shown by `status` and retried with backoff, and does not affect other tables.

    The service also maintains each table. Every ten minutes it compacts small segments, trims the log and deletes
    unneeded files. If the table's properties enable it, it compacts lake files after ten rounds, and expires old
    snapshots after fifty rounds. Maintenance runs in threads of this process, concurrently with tiering, and `status`
    shows its errors.

    Several services on any hosts may serve a warehouse. They divide the tables by claims. The fenced lake commit
    guarantees correctness even if two services process one table.
    """

    @validate_arguments
    def __init__(
        self,
        spark: SparkSession,
        warehouse: str,
        tables: Sequence[str] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        on_report: Callable[[TieringReport], None] | None = None,
        on_lineage: Callable[[Mapping[str, Any]], None] | None = None,
        maintenance_ms: int = 600_000,
        views: bool = False,
        on_view: Callable[[ViewStatus], None] | None = None,
    ) -> None:
        """Create a service for ``tables``, or for all tables with a lake.

        A worker thread calls ``on_report`` after each round that moved rows, and ``on_lineage`` with the OpenLineage
        events of each round that writes. ``maintenance_ms`` is the interval between maintenance runs of a table.

        With ``views``, a separate thread refreshes materialized tables like `RefreshService`: all, or those in
        ``tables``. ``warehouse`` must then be the warehouse of the session's catalog ``streamhouse``. The thread calls
        ``on_view`` at the start and end of each refresh step.
        """
        require_part("spark", spark, "a SparkSession", "dataSource")
        require_texts("settings", settings)
        if maintenance_ms < 0:
            raise InvalidOptionError(f"maintenance_ms is {maintenance_ms}, expected at least 0")
        for name, called in {"on_report": on_report, "on_lineage": on_lineage, "on_view": on_view}.items():
            if called is not None and not callable(called):
                raise InvalidOptionError(f"{name} is {quote(called)}, expected a function")
        from streamhouse_spark.datasource.lake_jobs import make_spark_task_runner
        from streamhouse_spark.service.tiering_service import Service
        from streamhouse_spark.views.service import make_view_service
        from streamhouse_spark.warehouse.process_cache import Connection

        self._views = make_view_service(spark, warehouse, tables, on_view) if views else None
        connection = Connection.of(warehouse, settings or {})
        self._service = Service(
            make_spark_task_runner(spark, connection),
            connection,
            tables,
            on_report=on_report,
            on_lineage=on_lineage,
            maintenance_ms=maintenance_ms,
        )

    def run(self, stop: threading.Event | None = None) -> None:
        """Serve until `stop` is called, ``stop`` is set or, in the main thread, SIGTERM arrives.

        Returns after the rounds and the refresh step in progress have ended. Raises `TableNotFoundError` before the
        first round if a named table does not exist.
        """
        from streamhouse_spark.service.endpoint import export_service_metrics
        from streamhouse_spark.views.service import make_view_metrics

        refreshing_views = nullcontext() if self._views is None else self._views.run_in_background(stop)
        with export_service_metrics(self._service, lambda: make_view_metrics(self.view_status())), refreshing_views:
            self._service.run(stop)

    def stop(self) -> None:
        """End `run`. Thread-safe and idempotent."""
        if self._views is not None:
            self._views.stop()
        self._service.stop()

    def status(self) -> list[TableStatus]:
        """Return the status of each table. Thread-safe."""
        return self._service.status()

    def view_status(self) -> list[ViewStatus]:
        """Return the status of each materialized table, or an empty list without ``views``. Thread-safe."""
        return [] if self._views is None else self._views.status()

    def health(self) -> ServiceHealth:
        """Return the health of the service: its last loop iteration, and whether it can list tables. Thread-safe, does
        no I/O.
        """
        return self._service.health()


class RefreshService:
    """Keeps the materialized tables of a warehouse as fresh as they require. Refreshes one view at a time, the longest
    overdue first.

    A view is refreshed every ``freshness``, or continuously if a refresh takes longer. Between the steps of a refresh,
    other views are refreshed. An error of a view is logged, shown by `status` and retried with backoff. Paused views
    are skipped. Several services may serve a warehouse. They divide the views by claims.
    """

    @validate_arguments
    def __init__(self, spark: SparkSession, warehouse: str, views: Sequence[str] | None = None) -> None:
        """Create a service for ``views``, or for all views. ``warehouse`` must be the warehouse of the session's
        catalog ``streamhouse``.
        """
        require_part("spark", spark, "a SparkSession", "dataSource")
        from streamhouse_spark.views.service import make_view_service

        self._service = make_view_service(spark, warehouse, views)

    def run(self, stop: threading.Event | None = None) -> None:
        """Refresh until `stop` is called or ``stop`` is set. Returns after the step in progress has ended."""
        from streamhouse_spark.metrics import export_until_exit
        from streamhouse_spark.views.service import make_view_metrics

        with export_until_exit(lambda: make_view_metrics(self.status())):
            self._service.run(stop)

    def stop(self) -> None:
        """End `run`. Thread-safe and idempotent."""
        self._service.stop()

    def status(self) -> list[ViewStatus]:
        """Return the status of each view. Thread-safe."""
        return self._service.status()
