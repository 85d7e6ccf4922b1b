"""``drop-partition``: removing the rows of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click

from streamhouse_spark.cli.session import Command, Session, take_values
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches
from streamhouse_spark.table.partitions import DropPartitionReport, drop_partitions


@click.command(
    "drop-partition",
    cls=Command,
    examples="""
streamhouse -w ./warehouse drop-partition sales.orders day=2026-01-31 --dry-run
streamhouse -w ./warehouse drop-partition sales.orders day=2026-01-31 country=de --yes
""",
)
@click.argument("table")
@click.argument("values", metavar="COLUMN=VALUE...", nargs=-1, required=True, callback=take_values)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.pass_obj
def drop_partition(session: Session, table: str, values: Mapping[str, str], *, yes: bool, dry_run: bool) -> None:
    """Remove the rows of all partitions with these values, after asking.

    Values are of some or all partition columns; __HIVE_DEFAULT_PARTITION__ stands for null. With a primary key the rows
    are deleted. Else the rows written before the call are tiered and go from the lake in one snapshot; older lake
    snapshots have them until they expire.
    """
    parse_table_name(table).require_table("drop partitions of")
    opened = session.warehouse.table(table)
    match = PartitionMatch.of_texts(values, opened.state.schema, opened.partition_by, opened.name)
    chosen = PartitionMatches((match,))
    what = f"partition ({match}) of {opened.name}"
    if dry_run:
        _show(session, drop_partitions(opened, chosen, dry_run=True), f"would drop {what}")
        return
    if not yes:
        found = drop_partitions(opened, chosen, dry_run=True)
        if not click.confirm(f"drop {what} with {found.rows:,} rows?", err=True):
            raise click.Abort
    _show(session, drop_partitions(opened, chosen), f"dropped {what}")


def _show(session: Session, report: DropPartitionReport, what: str) -> None:
    session.output.document(
        asdict(report), lambda c: c.print(f"{what}: {report.rows:,} rows, {report.files} lake files", markup=False)
    )
