"""``tier``: moves rows from the hot logs into the lakes, once or as a service, in this process or on Spark."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import pyarrow as pa

from streamhouse_spark.cli.maintenance_commands import select_tables
from streamhouse_spark.cli.output import Output, log_to_stderr
from streamhouse_spark.cli.session import Command, Session, fail_for
from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.errors import InvalidOptionError, count_of
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.table_batch import TableBatch

if TYPE_CHECKING:
    from streamhouse_spark.lake.tiering.job import TieringReport
    from streamhouse_spark.metrics import MetricSource
    from streamhouse_spark.service.endpoint import Address, MonitoredService
    from streamhouse_spark.service.openlineage import LineageListener
    from streamhouse_spark.views.service import ViewStatus

T = TypeVar("T")

_TIERED: Final = TableSchema.of(
    "table STRING, rows BIGINT, files BIGINT, size_bytes BIGINT, snapshots ARRAY<BIGINT>, duration_ms BIGINT, "
    "healed_rows BIGINT"
).arrow


@click.command(
    "tier",
    cls=Command,
    examples="""
# all rows written before the call are in the lake when the command returns
streamhouse -w ./warehouse tier --once
streamhouse -w ./warehouse tier --once sales.orders --output json

# a service that tiers each table as often as its table.datalake.freshness requires, until Ctrl-C
streamhouse -w ./warehouse tier

# the service in a container: probes and metrics for Prometheus at port 9464
streamhouse -w s3://bucket/warehouse tier --listen 0.0.0.0:9464

# a service that sends an OpenLineage event for each round
streamhouse -w s3://bucket/warehouse tier --lineage http://marquez:5000/api/v1/lineage

# the service on Spark, whose executors write the files
streamhouse -w s3://bucket/warehouse tier --master 'local[4]'

# also refresh materialized tables as often as their freshness requires
streamhouse -w s3://bucket/warehouse tier --master 'local[4]' --views
""",
)
@click.argument("tables", nargs=-1)
@click.option(
    "--once", is_flag=True, help="Run one round, and exit when all rows written before the call are in the lake."
)
@click.option("--spark", "on_spark", is_flag=True, help="Run on Spark with the master of Spark's configuration.")
@click.option("--master", metavar="URL", help="Run on Spark with this master, such as local[*].")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve /livez, /readyz and /metrics (Prometheus) at this address. The metrics show table names.",
)
@click.option(
    "--lineage",
    metavar="URL|FILE",
    help="Send OpenLineage events about tiering rounds to this URL, with OPENLINEAGE_API_KEY as bearer token, or file.",
)
@click.option("--views", is_flag=True, help="Also refresh materialized tables. Requires Spark.")
@click.pass_obj
def tier(
    session: Session,
    tables: Sequence[str],
    *,
    once: bool,
    on_spark: bool,
    master: str | None,
    listen: str | None,
    lineage: str | None,
    views: bool,
) -> None:
    """Move rows from the hot logs into the lakes.

    Works on the given TABLES, or else on all tables with a lake. The command may run on several hosts concurrently,
    because each round's commit is fenced. The service also maintains the tables, like `streamhouse maintain`. Runs in
    this process; use --spark or --master for large tables.

    With --views, the service also refreshes the materialized tables among them, one at a time, the longest overdue
    first. Their queries run on Spark, so this requires --spark or --master.
    """
    from streamhouse_spark.service.endpoint import parse_address
    from streamhouse_spark.service.openlineage import create_listener

    address = parse_address(listen) if listen is not None else None
    for option, is_given in (("--listen", listen is not None), ("--lineage", lineage is not None), ("--views", views)):
        if is_given and once:
            raise InvalidOptionError(
                f"found {option} and --once, and {option} requires the service; leave out --once to run the service"
            )
    if views and not (on_spark or master):
        raise InvalidOptionError("--views requires Spark, which runs the queries; add --master 'local[*]', or --spark")
    listener = create_listener(lineage, os.environ.get("OPENLINEAGE_API_KEY")) if lineage is not None else None
    chosen = _select_lake_tables(session, tables)
    if on_spark or master:
        with _open_session(session, master, has_catalog=views) as spark:
            if once:
                _tier_on_spark(session, chosen, spark)
            else:
                _serve_on_spark(session, tables, spark, address, listener, views=views)
    elif once:
        session.output.rows(_to_rows(_tier_each(session, chosen, _with_failure_note(tier_here))))
        fail_for(chosen)
    else:
        _serve_here(session, tables, address, listener)


def tier_here(table: Table) -> TieringReport:
    """Tier one table in this process."""
    from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_in_threads

    job = TieringJob(table.log, table.open_lake(), world=table.world)
    return job.run(run_tasks_in_threads(table.storage, table.settings, table.world))


def _with_failure_note(tier_one: Callable[[Table], T]) -> Callable[[Table], T]:
    """Return the function, wrapped so that it records its failures next to the table, where other tools show them."""
    from streamhouse_spark.service.tiering_service import FailureRecorder

    def work(table: Table) -> T:
        with FailureRecorder(table.world.clock).note_failure(table):
            return tier_one(table)

    return work


def _serve_here(
    session: Session, names: Sequence[str], address: Address | None, listener: LineageListener | None
) -> None:
    from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
    from streamhouse_spark.service.endpoint import export_service_metrics
    from streamhouse_spark.service.tiering_service import Service
    from streamhouse_spark.warehouse.process_cache import Connection

    warehouse, output = session.warehouse, session.output
    tasks = run_tasks_in_threads(warehouse.storage, warehouse.settings, warehouse.world)
    connection = Connection.of(session.warehouse_location, session.settings)
    report = _create_reporter(output)
    service = Service(tasks, connection, list(names) or None, on_report=report, on_lineage=listener)
    output.remark(f"tiering {warehouse.url} until Ctrl-C")
    with _handle_stop_signals() as stop, _serve_metrics(service, address), export_service_metrics(service):
        service.run(stop)


@contextmanager
def _serve_metrics(
    service: MonitoredService, address: Address | None, extra_metrics: MetricSource = tuple
) -> Iterator[None]:
    if address is None:
        yield
        return
    from streamhouse_spark.service.endpoint import serve_until_exit

    with serve_until_exit(service, address, extra_metrics) as (host, port):
        click.echo(f"listening at http://{host}:{port}/metrics", err=True)
        yield


@contextmanager
def _open_session(session: Session, master: str | None, *, has_catalog: bool) -> Iterator[Any]:
    """Open a Spark session, and stop it on exit. With the catalog, it schedules rounds and refreshes fairly."""
    from streamhouse_spark.cli.spark_session import open_spark

    if has_catalog:
        catalog_of = session.warehouse_location, session.settings
        spark = open_spark("streamhouse tier", master, {"spark.scheduler.mode": "FAIR"}, catalog_of=catalog_of)
    else:
        spark = open_spark("streamhouse tier", master)
    try:
        yield spark
    finally:
        spark.stop()


def _tier_on_spark(session: Session, chosen: TableBatch, spark: Any) -> None:
    from streamhouse_spark.spark import tier as tier_on_spark

    location, settings = session.warehouse_location, session.settings
    tier_one = lambda table: tier_on_spark(spark, location, [table.name], settings=settings)  # noqa: E731
    reports = [
        report for reports in _tier_each(session, chosen, _with_failure_note(tier_one)) for report in reports.values()
    ]
    session.output.rows(_to_rows(reports))
    fail_for(chosen)


def _serve_on_spark(
    session: Session,
    names: Sequence[str],
    spark: Any,
    address: Address | None,
    listener: LineageListener | None,
    *,
    views: bool,
) -> None:
    from streamhouse_spark.spark import TieringService
    from streamhouse_spark.views.service import make_view_metrics

    report = _create_reporter(session.output)
    with session.output.activity() if views else nullcontext(lambda _: None) as show:
        service = TieringService(
            spark,
            session.warehouse_location,
            list(names) or None,
            settings=session.settings,
            on_report=report,
            on_lineage=listener,
            views=views,
            on_view=partial(_report_view, session.output, show),
        )
        extra_metrics = lambda: make_view_metrics(service.view_status())  # noqa: E731
        with _handle_stop_signals() as stop, _serve_metrics(service, address, extra_metrics):
            service.run(stop)


def _report_view(output: Output, show: Callable[[str | None], None], view: ViewStatus) -> None:
    """Show which view is being refreshed, and print each refresh that committed."""
    step = f", step {view.steps + 1}" if view.steps else ""
    show(f"refresh {view.name}{step}" if view.doing == "refreshing" else None)
    done = view.last
    if view.doing != "waiting" or done is None or not done.changed:
        return
    document = {
        "view": view.name,
        "rows_written": done.rows_written,
        "rows_deleted": done.rows_deleted,
        "whole_because": done.whole_because,
        "duration_ms": view.last_duration_ms,
    }
    written = count_of(done.rows_written, "row")
    text = f"{view.name}: {written} written, {done.rows_deleted:,} deleted, {view.last_duration_ms} ms"
    output.document(document, lambda _: click.echo(text))


def _tier_each(session: Session, chosen: TableBatch, work: Callable[[Table], T]) -> list[T]:
    """Process the tables one after another, with a progress bar."""
    with session.output.progress("tables") as progress:
        task = progress.add_task("tier", total=len(chosen.tables))

        def tier_and_count(table: Table) -> T:
            progress.update(task, description=f"tier {table.name}")
            try:
                return work(table)
            finally:
                progress.advance(task)

        return chosen.each(tier_and_count)


def _select_lake_tables(session: Session, names: Sequence[str]) -> TableBatch:
    """Return the tables with a lake. Raises `InvalidOptionError` for a named table without one."""
    chosen = select_tables(session, names)
    for table in chosen.tables:
        if names and not table.properties.datalake_enabled:
            raise InvalidOptionError(
                f"table {table.name} has no lake; enable it with "
                f"`streamhouse alter {table.name} --set table.datalake.enabled=true`",
            )
    chosen.tables = [table for table in chosen.tables if table.properties.datalake_enabled]
    return chosen


def _to_rows(reports: Sequence[TieringReport]) -> pa.Table:
    rows = [{name: getattr(report, name) for name in _TIERED.names} for report in reports]
    return pa.Table.from_pylist(rows, schema=_TIERED)


def _create_reporter(output: Output) -> Callable[[TieringReport], None]:
    """Return a function that prints each round of a service. Failures are logged to stderr."""
    log_to_stderr()

    def report(done: TieringReport) -> None:
        if output.as_json:
            output.json_lines(_to_rows([done]))
        else:
            click.echo(
                f"{done.table}: {count_of(done.rows, 'row')} in {count_of(done.files, 'file')} into the lake, "
                f"{done.duration_ms} ms"
            )

    return report


@contextmanager
def _handle_stop_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that the work in progress is completed."""
    stop = new_event()
    previous = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
