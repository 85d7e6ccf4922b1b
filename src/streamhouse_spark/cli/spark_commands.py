"""Commands for Spark: ``refresh``, ``pause`` and ``resume`` of materialized tables, ``demo``, and ``jar``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamhouse_spark.cli.session import Command, Failure, Session
from streamhouse_spark.cli.spark_session import open_spark, require_java, translate_spark_errors
from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.catalog.jar import catalog_class, jar_path, require_catalog_name
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, count_of
from streamhouse_spark.table.refresh_commit import pause_refreshes, resume_refreshes
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from streamhouse_spark.views.refresh import RefreshReport

_VIEWS: Final = click.argument("views", nargs=-1, required=True)
DEFAULT_LOCATION: Final = "demo-warehouse"
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Reduce JIT compilation, which costs more than it saves in a JVM that runs for a minute."""
_NOT_INSTALLED: Final = "the demo requires {}, which is not installed; run: pip install 'streamhouse-spark[demo]'"


@click.command(
    "refresh",
    cls=Command,
    examples="""
streamhouse -w ./warehouse refresh gold.revenue --master 'local[4]'

# several views in one Spark session; JSON for scripts
streamhouse -w s3://bucket/warehouse refresh gold.revenue gold.visitors --master 'local[*]' --output json
""",
)
@_VIEWS
@click.option("--spark", "on_spark", is_flag=True, help="Run with the master of Spark's configuration.")
@click.option("--master", metavar="URL", help="Run with this master, such as local[*].")
@click.pass_obj
def refresh(session: Session, views: Sequence[str], *, on_spark: bool, master: str | None) -> None:
    """Refresh materialized tables from their sources, on Spark.

    Refreshes the VIEWS, also paused views, one after another and completely. Their queries run on Spark, so this
    requires --master or --spark. A refresh without new source rows commits nothing. The command may be repeated, and
    may run concurrently with a service. The first error ends the command; completed refreshes stay.
    """
    if not (on_spark or master):
        raise InvalidOptionError("refresh requires Spark, which runs the queries; add --master 'local[*]', or --spark")
    names = [table.name for table in _open_views(session, views, "refresh")]
    catalog_of = session.warehouse_location, session.settings
    spark = open_spark("streamhouse refresh", master, catalog_of=catalog_of)
    try:
        from streamhouse_spark.datasource.session import connect_catalog
        from streamhouse_spark.views.refresh import Refresher

        refresh_one = Refresher(spark, connect_catalog(spark))
        for name in names:
            with session.output.spinner(f"refresh {name}"), translate_spark_errors():
                report = refresh_one(name)
            _print_refresh(session, name, report)
    finally:
        spark.stop()


@click.command(
    "pause",
    cls=Command,
    examples="""
streamhouse -w ./warehouse pause gold.revenue
streamhouse -w ./warehouse describe gold.revenue
streamhouse -w ./warehouse resume gold.revenue
""",
)
@_VIEWS
@click.pass_obj
def pause(session: Session, views: Sequence[str]) -> None:
    """Pause refreshes of materialized tables by services, until resume.

    Applies to all services on all hosts before their next step. `streamhouse refresh` also refreshes paused views. Does
    not need Spark.
    """
    _set_each(session, views, "pause", pause_refreshes)


@click.command(
    "resume",
    cls=Command,
    examples="""
streamhouse -w ./warehouse resume gold.revenue
streamhouse -w ./warehouse resume gold.revenue gold.visitors --output json
""",
)
@_VIEWS
@click.pass_obj
def resume(session: Session, views: Sequence[str]) -> None:
    """Resume refreshes of materialized tables by services.

    Within seconds, services continue from the source versions of each view. Does not need Spark.
    """
    _set_each(session, views, "resume", resume_refreshes)


def _open_views(session: Session, names: Sequence[str], verb: str) -> list[Table]:
    """Open the distinct views. Raises `InvalidOptionError` for a table that is not a view."""
    paths = dict.fromkeys(str(parse_table_name(name).require_table(verb)) for name in names)
    warehouse = session.warehouse
    tables = [warehouse.table(path) for path in paths]
    for table in tables:
        ViewDefinition.of(table.state.properties, table.name)
    return tables


def _set_each(session: Session, names: Sequence[str], verb: str, change: Callable[[Table], bool]) -> None:
    for table in _open_views(session, names, verb):
        changed, is_paused = change(table), verb == "pause"
        state = "paused" if is_paused else "refreshed by services"
        document = {"view": table.name, "paused": is_paused, "changed": changed}
        session.output.sentence(document, f"{table.name} is {state}{'' if changed else ' already'}")


def _print_refresh(session: Session, name: str, report: RefreshReport) -> None:
    fields = ("changed", "rows_written", "rows_deleted", "whole_because", "steps")
    steps = f" in {report.steps} steps" if report.steps > 1 else ""
    because = f"; the whole query was computed: {report.whole_because}" if report.whole_because else ""
    text = f"{name}: {count_of(report.rows_written, 'row')} written, {report.rows_deleted:,} deleted{steps}{because}"
    if not report.changed:
        text = f"{name} is up to date"
    session.output.sentence({"view": name, **{field: getattr(report, field) for field in fields}}, text)


@click.command(
    "demo",
    cls=Command,
    examples="""
streamhouse demo
streamhouse demo --fast
streamhouse demo --warehouse /tmp/flights --rows 50000
""",
)
@click.option("--fast", is_flag=True, help="Stream the flights within 15 seconds instead of 80.")
@click.option("--rows", type=click.IntRange(min=1), help="Number of flights; all by default.")
@click.option("--seconds", type=click.IntRange(min=1), help="Duration of the stream.")
@click.pass_obj
def demo(session: Session, *, fast: bool, rows: int | None, seconds: int | None) -> None:
    """Stream real flights into a table, tier and query them.

    The 336,776 flights that left New York in 2013 arrive as a stream, in the order of their departure. A Structured
    Streaming job writes them into air.flights, a tiering service moves them into an Iceberg table, and Spark queries
    the table meanwhile. At the end, the demo proves that every read returns every row exactly once.

    Creates the warehouse ./demo-warehouse, or that of --warehouse, and replaces only an earlier demo. Requires Java 17
    or later. Exit code 1 if a proof fails.
    """
    location = session.location or str(Path(DEFAULT_LOCATION).absolute())
    clock = SystemClock()
    started_ms = clock.boot_ms()
    require_java()
    try:
        from streamhouse_spark.demo.display import TextView
        from streamhouse_spark.demo.flights import load_flights, new_demo_table
        from streamhouse_spark.demo.run import FAST, FULL, Demo, DemoPace
    except ModuleNotFoundError as error:
        raise MissingExtraError(_NOT_INSTALLED.format(error.name)) from error
    pace = FAST if fast else FULL
    if seconds is not None:
        pace = DemoPace(seconds, pace.freshness)
    flights = load_flights(rows)
    _, table = new_demo_table(location, session.settings, pace.freshness)
    view = TextView(clock)
    view.say("starting Spark")
    with tempfile.TemporaryDirectory(prefix="streamhouse-spark-") as scratch:
        spark = open_spark("streamhouse demo", "local[2]", _spark_config(scratch), java_options=_JAVA_OPTIONS)
        try:
            proofs = Demo(spark, location, session.settings, table, flights, pace, view).run()
        finally:
            spark.stop()
    failed = [proof.claim for proof in proofs if not proof.holds]
    if failed:
        raise Failure(f"the demo failed to prove: {'; '.join(failed)}")
    _say_farewell(view, table, clock.boot_ms() - started_ms)


def _spark_config(scratch: str) -> dict[str, str]:
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        # Compiling the many small plans costs more than interpreting them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": os.path.join(scratch, "spark-warehouse"),  # noqa: PTH118 - text for Spark
        "spark.ui.enabled": "false",
    }


def _say_farewell(view: Any, table: Table, duration_ms: int) -> None:
    from streamhouse_spark.demo.display import locations, suggestions

    view.say(f"\ncompleted in {duration_ms / 1000:.0f} seconds; the files are at:")
    for name, place in locations(table).items():
        view.say(f"  {name:<11} {place}")
    view.say("\ntry next:")
    for position, (purpose, command) in enumerate(suggestions(table), start=1):
        view.say(f"\n  {position}. {purpose}\n     {command}")


@click.command(
    "jar",
    cls=Command,
    examples="""
streamhouse jar
streamhouse -w /data/warehouse jar --options
streamhouse -w s3://bucket/warehouse jar --options --catalog lakehouse
""",
)
@click.option("--options", "as_options", is_flag=True, help="Print all --jars and --conf options of the catalog.")
@click.option("--catalog", default="streamhouse", show_default=True, help="The catalog's name in SQL.")
@click.pass_obj
def jar(session: Session, *, as_options: bool, catalog: str) -> None:
    """Print the path of the SQL catalog's jar.

    With --options, print all options of a session: the jar, the catalog class, and the warehouse of --warehouse. Use
    it in $(…) after spark-sql, spark-submit or start-connect-server.sh.
    """
    require_catalog_name(catalog)
    path = jar_path()
    if not as_options:
        click.echo(str(path))
        return
    key = f"spark.sql.catalog.{catalog}"
    words = ["--jars", str(path), "--conf", f"{key}={catalog_class()}"]
    if session.location is not None:
        words += ["--conf", f"{key}.warehouse={session.location}"]
    click.echo(" ".join(words))
