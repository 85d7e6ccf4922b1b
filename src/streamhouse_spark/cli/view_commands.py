"""``refresh``, ``pause``, ``resume``: manual control of materialised tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.config.view_definition import ViewDefinition
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.refresh_commit import pause_refreshes, resume_refreshes
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from streamhouse_spark.views.refresh import RefreshReport

_VIEWS: Final = click.argument("views", nargs=-1, required=True)


@click.command(
    "refresh",
    cls=Command,
    examples="""
streamhouse -w ./warehouse refresh gold.revenue --master 'local[4]'

# several in one session of Spark; JSON for scripts
streamhouse -w s3://bucket/warehouse refresh gold.revenue gold.visitors --master 'local[*]' --output json
""",
)
@_VIEWS
@click.option("--spark", "on_spark", is_flag=True, help="Run with the master of Spark's own configuration.")
@click.option("--master", metavar="URL", help="Run with this master, such as local[*].")
@click.pass_obj
def refresh(session: Session, views: Sequence[str], *, on_spark: bool, master: str | None) -> None:
    """Refresh materialised tables from their sources, on Spark.

    Refreshes the VIEWS named, including paused ones, one after the other, each in all of its steps. Spark runs their
    queries, so this needs --master or --spark. A refresh without new source rows commits nothing: repeating it is
    harmless, and so is a concurrent service. The first error ends the command; completed refreshes stay.
    """
    if not (on_spark or master):
        raise InvalidOptionError("refresh needs Spark, which runs the queries: give --master 'local[*]', or --spark")
    names = [table.name for table in _open_views(session, views, "refresh")]
    from streamhouse_spark.cli.spark_session import open_spark, translate_spark_errors

    catalog_of = session.warehouse_location, session.settings
    spark = open_spark("streamhouse refresh", master, catalog_of=catalog_of)
    try:
        from streamhouse_spark.datasource.session_warehouse import connect_catalog
        from streamhouse_spark.views.refresh import Refresher

        refresh_one = Refresher(spark, connect_catalog(spark))
        for name in names:
            with session.output.working(f"refresh {name}"), translate_spark_errors():
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
    """Pause refreshes of materialised tables by services, until resume.

    Applies to all services on all hosts; each checks it before its next step. It is one commit per view of VIEWS, and
    none for a paused view. `streamhouse refresh` refreshes paused views too. Needs no Spark.
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
    """Resume refreshes of materialised tables by services.

    Services continue at the versions of the VIEWS, within seconds. It is one commit per view, and none for a view that
    is not paused. Needs no Spark.
    """
    _set_each(session, views, "resume", resume_refreshes)


def _open_views(session: Session, names: Sequence[str], verb: str) -> list[Table]:
    """Return the distinct tables of views.

    Raises `InvalidOptionError` for a table that is not a view, before any view is changed.
    """
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
        text = f"{table.name} is {state}{'' if changed else ' already'}"
        document = {"view": table.name, "paused": is_paused, "changed": changed}
        session.output.document(document, partial(_print, text))


def _print_refresh(session: Session, name: str, report: RefreshReport) -> None:
    document = {
        "view": name,
        "changed": report.changed,
        "rows_written": report.rows_written,
        "rows_deleted": report.rows_deleted,
        "whole_because": report.whole_because,
        "steps": report.steps,
    }
    steps = f" in {report.steps} steps" if report.steps > 1 else ""
    because = f"; the whole query was computed: {report.whole_because}" if report.whole_because else ""
    text = f"{name}: {report.rows_written:,} rows written, {report.rows_deleted:,} deleted{steps}{because}"
    if not report.changed:
        text = f"{name} has all rows of its sources"
    session.output.document(document, partial(_print, text))


def _print(text: str, console: Console) -> None:
    console.print(text, markup=False)
