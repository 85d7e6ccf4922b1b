"""``retier``: rebuilds a lake from the log."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.table.rebuild_lake import RetierReport


@click.command(
    "retier",
    cls=Command,
    examples="""
streamhouse -w ./warehouse retier sales.orders --dry-run
streamhouse -w ./warehouse retier sales.orders
streamhouse -w ./warehouse tier --once sales.orders
""",
)
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Only show what would be tiered again, and what would be lost.")
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Lose rows that were trimmed from the log, and restore rows of dropped partitions that it still holds.",
)
@click.pass_obj
def retier(session: Session, table: str, *, dry_run: bool, allow_loss: bool) -> None:
    """Rebuild the lake of a table from its hot log at a new location.

    Use it if the lake was rolled back, damaged or deleted. Reads use the log until the next round of `streamhouse tier`
    has moved all rows. Files of the former lake stay until the table is dropped. The command fails, with the row
    counts, if some rows exist only in the lake.
    """
    opened = session.warehouse.table(table)
    with session.output.working(f"retier {opened.name}"):
        report = opened.retier(allow_loss=allow_loss, dry_run=dry_run)
    session.output.document(asdict(report), lambda console: _render(report, console))


def _render(report: RetierReport, console: Console) -> None:
    verb = "would be" if report.dry_run else "is"
    console.print(
        f"the lake of {report.table} {verb} built anew at {report.lake_location}: {report.rows:,} offsets to tier, "
        f"{report.lost_rows:,} lost; {report.former_location} is left as it is",
        markup=False,
    )
    if not report.dry_run:
        console.print(f"next: streamhouse tier --once {report.table}", markup=False)
