"""``adopt``: creates a table from an existing Iceberg or Paimon table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click
from rich.console import Console

from streamhouse_spark.cli.session import Command, Session, take_names, take_pairs
from streamhouse_spark.warehouse.adoption import AdoptReport


@click.command(
    "adopt",
    cls=Command,
    examples="""
streamhouse -w ./warehouse adopt sales.orders --dry-run
streamhouse -w ./warehouse adopt sales.orders --lake legacy.orders
streamhouse -w ./warehouse adopt sales.people --primary-key id
""",
)
@click.argument("table")
@click.option("--lake", metavar="DATABASE.TABLE", help="The lake table; by default it has the table's own name.")
@click.option(
    "--primary-key",
    multiple=True,
    callback=take_names,
    metavar="COLUMNS",
    help="Create a primary-key table; rows must be unique by these columns. A Paimon table has its own key.",
)
@click.option(
    "-p", "--property", "properties", multiple=True, callback=take_pairs, metavar="KEY=VALUE", help="A table property."
)
@click.option("--dry-run", is_flag=True, help="Only check whether the table can be adopted.")
@click.pass_obj
def adopt(
    session: Session,
    table: str,
    *,
    lake: str | None,
    primary_key: list[str],
    properties: Mapping[str, str],
    dry_run: bool,
) -> None:
    """Create a table from an existing Iceberg or Paimon table, with its rows.

    The rows become the table's history and are not rewritten; new rows are tiered into the same lake table. Dropping
    the table later keeps the lake table, with all tiered rows. If both kinds of table have the name, select one with -p
    table.datalake.format=paimon.
    """
    warehouse = session.warehouse
    with session.output.working(f"adopt {lake or table}"):
        report = warehouse.adopt_table(table, lake, primary_key=primary_key, properties=properties, dry_run=dry_run)
    document = {**asdict(report), "dry_run": dry_run}
    session.output.document(document, lambda console: _render(report, console, dry_run=dry_run))


def _render(report: AdoptReport, console: Console, *, dry_run: bool) -> None:
    done = "would adopt" if dry_run else "adopted"
    console.print(
        f"{done} {report.location} as {report.table}: {report.rows:,} rows in {report.files:,} files, "
        f"columns {report.schema}",
        markup=False,
    )
