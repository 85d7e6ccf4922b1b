"""The functions to call with a Spark session. PySpark is imported when one of them is called, not before."""

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

    from streamhouse_spark.lake.model.values import CompactReport
    from streamhouse_spark.lake.tiering.job import TieringReport
    from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus
    from streamhouse_spark.views.create import MaterializedTable
    from streamhouse_spark.views.service import ViewStatus


@validate_arguments
def register(spark: SparkSession) -> SparkSession:
    """Make ``format("streamhouse")`` known to a session; returns it.

    Not needed where the package was installed before the session started: Spark then finds the data source itself.
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
    """Give a session the SQL catalog of a warehouse; returns the builder.

    ::

        spark = streamhouse_spark.configure(SparkSession.builder, warehouse=W).getOrCreate()
        spark.sql("SELECT count(*) FROM streamhouse.sales.orders")

    ``catalog`` is the catalog's name in SQL; calling this again with another one adds another warehouse. ``settings``
    are those of `Warehouse`; they become configuration of the session, so prefer the usual AWS chain for credentials.
    Jars that the builder already has stay. A session that runs already gets the jar too.

    Where the master is local, as it is where the builder has none so far, workers run the Python that calls this,
    unless ``PYSPARK_PYTHON`` or ``spark.pyspark.python`` says another. So name another master before.

    Raises `InvalidOptionError` for a name that SQL cannot use and for unknown settings.
    """
    require_part("builder", builder, "SparkSession.builder", "getOrCreate")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.catalog.session import configure_session

    return configure_session(builder, warehouse, catalog, settings or {})


@validate_arguments
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
    `Warehouse`. Safe at any time, beside other calls and services. A failing table does not stop the others: its error
    is raised once they are done.

    Raises:
        TableNotFoundError, WarehouseNotFoundError: a table or the warehouse is not there.
        InvalidOptionError: a table that was named has no lake.
        LakeMismatchError, LakeRolledBackError: another engine changed the lake table.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.tiering_job import tier_tables
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
    """Lay a table's rows in the lake out by columns, as ``table.lake.optimize`` does; tasks of Spark write the files.

    ``order_by`` is ``a, b`` or ``zorder(a, b)``, ``where`` a condition in SQL: only files that may hold its rows are
    written again. One task writes the files of one bucket and partition, a gigabyte of them at most. **Commit point:**
    the lake's, of 16 gigabytes each; a job that fails or is cancelled commits nothing of these, and its files are
    orphans for cleaning. Rows, their offsets and older snapshots stay. Works with Spark Connect.

    Raises what that raises, and `InvalidOptionError` for a condition that is not understood.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.optimize_job import optimize_table
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
    """Join a batch or a stream with the current rows of a table that has a primary key, by looking them up.

    ::

        orders = spark.readStream.format("streamhouse").option("warehouse", W).load("sales.orders")
        with_names = streamhouse_spark.lookup_join(orders, "sales.customers", on={"customer": "id"}, columns=["name"])

    Each task looks up the keys of its rows, an Arrow batch at a time, in the tablets of its host: nothing is shuffled,
    broadcast or kept as state of the query. The first task on a host reads the table's log into the local cache.

    ``on`` names the columns that must be equal: a list where they are called the same on both sides, or a mapping of
    columns of ``df`` to columns of the table. They are the whole primary key, or its first columns, where a row of
    ``df`` then comes once for each row of the table that has them. Null keys match nothing. ``columns`` are those
    to add, by default all that ``on`` does not name, each with ``prefix`` before its name. ``how`` is ``"left"``, with
    nulls where there is no row, or ``"inner"``. The order of the rows stays.

    **Freshness:** a batch gets the rows that are current when it is looked up: every write committed before, on remote
    storage as of up to a second before, or up to ``max_staleness_ms``. Two batches of one query may see different rows
    of the table, and a micro-batch that is replayed may see newer ones than at first. Where results have to follow
    changes of the table, use `delta_join`.

    ``warehouse`` is a directory or URL; without it the environment variable STREAMHOUSE_WAREHOUSE counts, else the
    session's catalog ``streamhouse``. ``settings`` are those of `Warehouse`. Works with Spark Connect.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: the table or the warehouse is not there.
        SchemaMismatchError: a column is not there, ``on`` is not how the primary key begins, or types differ.
        InvalidOptionError: the table has no primary key, names clash (set ``prefix``), or ``how`` is none.
    """
    require_part("df", df, "a DataFrame", "mapInArrow")
    require_texts("settings", settings)
    from streamhouse_spark.datasource.joins.lookup_join import join_by_lookup
    from streamhouse_spark.datasource.session_warehouse import connect_session

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
    """Keep a table equal to the join of two tables with primary keys, by a stream of the changes of both.

    ::

        query = streamhouse_spark.delta_join(
            spark, "sales.orders", "sales.payments", on="order_id", into="sales.paid_orders", checkpoint=C, warehouse=W
        )

    For each change of one side the matching rows of the other are looked up, and the joined rows are upserted into
    ``into`` or deleted from it. The query keeps no rows as its state, however large the tables are and however long ago
    the other side changed; each host keeps the rows of the three tables in its local cache.

    **What the tables need.** ``on``, a list of names or a mapping of columns of ``left`` to columns of ``right``, are
    the first columns of both primary keys, or all: that is the index that finds the other side's rows. ``into`` exists
    already, with the columns of the left key and then those of the right key that are not in ``on`` as its primary key;
    any others of its columns have the name and type of a column of ``left``, or of ``right`` with ``prefix`` before it.
    If it does not exist, the error has the statement that creates it. ``columns`` limits the written columns, and a
    column of ``into`` that it leaves out is refused: whole rows are written. ``how="left"`` also keeps rows of ``left``
    that have no partner, and needs ``on`` to be the whole primary key of ``right``.

    **Guarantees.** Rows of ``into`` are always computed from the current rows of both sides. When the stream has
    handled all changes, ``into`` is exactly the join of both tables, whatever was replayed or restarted meanwhile and
    however the sides changed at the same time; each micro-batch is stored once. In between, ``into`` may show a row of
    one side beside an older or newer one of the other. Nothing else may write into it: a second delta join is refused.

    ``trigger`` is that of Spark, such as ``{"availableNow": True}`` or ``{"processingTime": "10 seconds"}``.
    ``max_offsets_per_trigger`` limits the changes of each side in a micro-batch (PySpark 4.2 or newer). ``warehouse``
    and ``settings`` are as for `lookup_join`. Truncating or overwriting a side ends the query.

    **The logs of both sides** are kept for the query, as far as it has not handled them: it is a named consumer of each
    (``delta_join.left.…``, ``delta_join.right.…``), recorded when it begins and at most every 30 s, by its checkpoint.
    A query that does not run holds back trimming for the time to live of the log and a week; `Table.move_consumer` with
    None, or ``CALL streamhouse.system.drop_consumer``, ends that. Where a log was trimmed before the query begins, it
    begins with the rows of that side.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: a table or the warehouse is not there.
        SchemaMismatchError, InvalidOptionError: the tables cannot be joined so, or ``into`` cannot hold the join.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("settings", settings)
    if not checkpoint.strip():
        raise InvalidOptionError("checkpoint is empty, expected a directory or URL")
    if max_offsets_per_trigger is not None and max_offsets_per_trigger < 1:
        raise InvalidOptionError(f"max_offsets_per_trigger is {max_offsets_per_trigger}, expected at least 1")
    if trigger is not None and not all(isinstance(name, str) for name in trigger):
        raise InvalidOptionError(f"trigger is {quote(trigger)}, expected such as {{'availableNow': True}}")
    from streamhouse_spark.datasource.joins.delta_join import plan_delta_join, start
    from streamhouse_spark.datasource.session_warehouse import connect_session

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
    """Keep a table equal to one of another database, by a stream of its change events.

    ::

        events = spark.readStream.format("kafka").option("subscribe", "shop.public.orders").load()
        query = streamhouse_spark.cdc(events, "shop.orders", checkpoint=C, warehouse=W, times="micros")

    ``events`` is a streaming frame with the text of an event in the column ``value``, as Kafka's source gives it.
    ``into`` exists, with the source's primary key. Columns are found by name. Inserts, updates and snapshots become
    upserts, and deletes become deletes; an update that changes the key deletes the old one. A null ``value``
    (Kafka's tombstone) is passed over, and so are heartbeats and changes of schemas.

    **Order.** Of the events of a key in a micro-batch the last one counts, by the columns ``position``, ``offset`` by
    default, which is right for Kafka: all events of a key are in one of its partitions. Micro-batches come in the order
    of the source.

    **Guarantees.** Each micro-batch is one commit record of ``into``, stored once whatever is repeated. A batch with an
    event that cannot be read (no JSON, no key, a value that is none of its column's type, a null in a NOT NULL column,
    a truncation) or whose row the table refuses (a constraint, a text that is too long) is not written, and the query
    ends, unless ``dead_letter`` names a table that takes such events with the reason; it is made if it is not there. A
    column that the table lacks ends the query too, unless ``new_columns`` is ``ignore``.

    **Values.** ``times`` is the unit of timestamps that are numbers, and ``decimals`` the form of decimals, at any
    depth of the columns. Both are required for ``debezium-json`` where the table has such columns. An event that has
    its schema around it (``schemas.enable=true``) is read by that schema; ``schema`` says that all events have theirs.
    Dates are days or ``yyyy-mm-dd``, binary values base64. A value that its column would round or cut is an error.

    **Avro.** With ``debezium-avro`` the column ``value`` has bytes, in Confluent's wire format. ``registry`` is the URL
    of the registry with their schemas, and ``registry_auth`` a user with a password, or a token. The driver asks for a
    schema once, when an event has its id. Where the registry is away the query ends, after half a minute, with nothing
    of the batch written. ``avro_schema`` is the schema of events that are Avro and nothing else.

    The events are read in the JVM, by the package's jar, which the session needs (`configure`).

    ``trigger`` is that of Spark, such as ``{"availableNow": True}``. ``warehouse`` and ``settings`` are as for
    `lookup_join`.

    Raises, before anything runs:
        TableNotFoundError, WarehouseNotFoundError: the table or the warehouse is not there.
        InvalidOptionError: the table has no primary key or another merge engine than ``versioned``, or an argument is
            missing or wrong.
    """
    require_part("events", events, "a streaming DataFrame", "isStreaming")
    require_texts("settings", settings)
    if not checkpoint.strip():
        raise InvalidOptionError("checkpoint is empty, expected a directory or URL")
    if not events.isStreaming:
        raise InvalidOptionError("events is no streaming frame; read the events by spark.readStream")
    from streamhouse_spark.datasource.cdc.apply import plan_cdc, start
    from streamhouse_spark.datasource.cdc.type_conversion import ValueForms
    from streamhouse_spark.datasource.session_warehouse import connect_session

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
    """Keep a query as a table, and refresh it from what changed in its sources; returns its handle.

    ::

        view = streamhouse_spark.materialize(
            spark, "gold.revenue", "SELECT region, sum(amount) AS revenue FROM sales.orders GROUP BY region"
        )
        view.refresh()

    The table is made if it is not there, and refreshed. The query reads tables of the session's catalog
    ``streamhouse`` as ``database.table``. A `RefreshService` keeps the view no older than ``freshness``.

    **Guarantees.** A refresh is one commit of the table. It holds the rows that changed and the versions of the
    sources, which ``$lineage`` of the table shows: readers see the query's answer at one version of each source.
    A crash before the commit changes nothing, and of two refreshes at once one counts; without new rows none commits.
    Where the changes of a source do not tell all (it was truncated, restored, trimmed, or lost rows without a primary
    key), the whole query is computed once and what differs is written; the report says why. Rows pass the driver.

    **Steps.** With ``step_rows`` a refresh takes about so many rows, or changes, of its sources a commit, or more where
    no version between can be read; a crash loses one step. A view that is there keeps its number.

    **Queries:** projections, filters, inner, left, full, semi and anti joins, GROUP BY with any aggregate that does
    not depend on the order of rows, HAVING, DISTINCT, UNION, WITH and subqueries in FROM, EXISTS and IN in WHERE.
    With ``mode="full"`` the whole query, whatever it is, is computed at each refresh, and the difference written.

    The primary key is that of the query's rows if it is NOT NULL, else ``_key``, and ``_ord`` where rows may be equal.

    Raises, before anything is written:
        InvalidOptionError: a part of the query cannot be kept by changes; the text names it.
        TableExistsError: there is a table of the name that is not this view.
        TableNotFoundError, WarehouseNotFoundError: a source or the warehouse is not there.
    """
    require_part("spark", spark, "a SparkSession", "dataSource")
    require_texts("properties", properties)
    from streamhouse_spark.datasource.session_warehouse import catalog_connection
    from streamhouse_spark.views.create import create_and_refresh

    return create_and_refresh(
        spark, catalog_connection(spark), name, query, freshness, mode, properties or {}, step_rows
    )


class TieringService:
    """Keeps the lakes of a warehouse as fresh as their tables say, in micro-batches.

    A table is tiered so that no row waits longer than its ``table.datalake.freshness``; among several, the one whose
    oldest row is due first goes first, and up to four tables are worked on at once. New tables are found within
    seconds. An error of one table is logged, shown by `status` and tried again after a growing pause; the others go on.
    Each table is also maintained: every ten minutes small segments are merged, the log is trimmed and unneeded files
    are deleted. If the table's properties say so, lake files are compacted after ten rounds and old snapshots expired
    after fifty. That runs in this process, one table in a thread; its errors are shown by `status`, and tiering goes
    on.

    Several services, on one host or on many, may serve one warehouse: they divide the tables by claims, and the fenced
    lake commit keeps them right even where two work on one table.
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
        """``tables`` None serves all tables that have a lake. ``on_report`` is called in a worker thread after each
        round that moved rows, ``on_lineage`` with the events of OpenLineage of each round that writes.
        ``maintenance_ms`` is the time between two maintenances of a table.

        With ``views`` a thread of its own refreshes materialised tables, all or those among ``tables``, as
        `RefreshService` does; ``warehouse`` is then that of the session's catalog ``streamhouse``. ``on_view`` is
        called in it when a step of a refresh begins, and when it has ended.
        """
        require_part("spark", spark, "a SparkSession", "dataSource")
        require_texts("settings", settings)
        if maintenance_ms < 0:
            raise InvalidOptionError(f"maintenance_ms is {maintenance_ms}, expected at least 0")
        for name, called in {"on_report": on_report, "on_lineage": on_lineage, "on_view": on_view}.items():
            if called is not None and not callable(called):
                raise InvalidOptionError(f"{name} is {quote(called)}, expected a function")
        from streamhouse_spark.datasource.tiering_job import spark_tasks
        from streamhouse_spark.service.tiering_service import Service
        from streamhouse_spark.views.service import session_views
        from streamhouse_spark.warehouse.process_cache import Connection

        self._views = session_views(spark, warehouse, tables, on_view) if views else None
        connection = Connection.of(warehouse, settings or {})
        self._service = Service(
            spark_tasks(spark, connection),
            connection,
            tables,
            on_report=on_report,
            on_lineage=on_lineage,
            maintenance_ms=maintenance_ms,
        )

    def run(self, stop: threading.Event | None = None) -> None:
        """Serve until `stop` is called, ``stop`` is set or, in the main thread, SIGTERM comes.

        Returns when the rounds under way have ended, and the step of a refresh. Raises `TableNotFoundError` at once for
        a named table that is not there.
        """
        from streamhouse_spark.service.endpoint import export_service_metrics
        from streamhouse_spark.views.view_metrics import view_measures

        refreshing_views = nullcontext() if self._views is None else self._views.beside(stop)
        with export_service_metrics(self._service, lambda: view_measures(self.view_status())), refreshing_views:
            self._service.run(stop)

    def stop(self) -> None:
        """End `run`; from any thread. Repeating it is harmless."""
        if self._views is not None:
            self._views.stop()
        self._service.stop()

    def status(self) -> list[TableStatus]:
        """How each table stands, for a live view; from any thread."""
        return self._service.status()

    def view_status(self) -> list[ViewStatus]:
        """Return the status of each materialised table; an empty list without ``views``. From any thread."""
        return [] if self._views is None else self._views.status()

    def health(self) -> ServiceHealth:
        """Return how the service is: its last turn, whether it can list tables. From any thread, without a request."""
        return self._service.health()


class RefreshService:
    """Keeps the materialised tables of a warehouse as fresh as they say: one after the other, the longest due first.

    A view is refreshed each ``freshness``; where that takes longer, all the time. Of a refresh in steps others come
    between the steps. An error of one view is logged, shown by `status` and tried again after a growing pause. One that
    is paused is left as it is. Several services may serve one warehouse: they divide the views by claims.
    """

    @validate_arguments
    def __init__(self, spark: SparkSession, warehouse: str, views: Sequence[str] | None = None) -> None:
        """``warehouse`` is that of the session's catalog ``streamhouse``; ``views`` None serves all views of it."""
        require_part("spark", spark, "a SparkSession", "dataSource")
        from streamhouse_spark.views.service import session_views

        self._service = session_views(spark, warehouse, views)

    def run(self, stop: threading.Event | None = None) -> None:
        """Refresh until `stop` is called or ``stop`` is set. Returns when the step under way has ended."""
        from streamhouse_spark.metrics.otel import export_until_exit
        from streamhouse_spark.views.view_metrics import view_measures

        with export_until_exit(lambda: view_measures(self.status())):
            self._service.run(stop)

    def stop(self) -> None:
        """End `run`; from any thread. Repeating it is harmless."""
        self._service.stop()

    def status(self) -> list[ViewStatus]:
        """How each view stands; from any thread."""
        return self._service.status()
