"""``drop-partition`` and ``set-partitioning``: remove partitions' rows, and change the partition fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from streamhouse_spark.cli.session import Command, Session, take_values
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches
from streamhouse_spark.schema.partition_fields import split_fields
from streamhouse_spark.table.partitions import DropPartitionReport, drop_partitions
from streamhouse_spark.table.table import Table


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
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.pass_obj
def drop_partition(session: Session, table: str, values: Mapping[str, str], *, yes: bool, dry_run: bool) -> None:
    """Remove the rows of all matching partitions after confirmation.

    Give values of some or all partition columns; __HIVE_DEFAULT_PARTITION__ stands for null. In a primary-key table the
    rows are deleted. Otherwise rows written before the call are tiered and removed from the lake in one snapshot; older
    lake snapshots contain them until they expire.
    """
    parse_table_name(table).require_table("drop partitions of")
    opened = session.warehouse.table(table)
    match = PartitionMatch.of_texts(values, opened.state.schema, opened.partition_by, opened.name)
    chosen = PartitionMatches((match,))
    subject = f"partition ({match}) of {opened.name}"
    if dry_run:
        _print_report(session, _drop_partition(session, opened, chosen, dry_run=True), f"would drop {subject}")
        return
    if not yes:
        preview = _drop_partition(session, opened, chosen, dry_run=True)
        if not click.confirm(f"drop {subject} with {preview.rows:,} rows?", err=True):
            raise click.Abort
    _print_report(session, _drop_partition(session, opened, chosen, dry_run=False), f"dropped {subject}")


def _drop_partition(session: Session, table: Table, chosen: PartitionMatches, *, dry_run: bool) -> DropPartitionReport:
    with session.output.working(f"{'check' if dry_run else 'drop'} partitions of {table.name}"):
        return drop_partitions(table, chosen, dry_run=dry_run)


@click.command(
    "set-partitioning",
    cls=Command,
    examples="""
streamhouse -w ./warehouse set-partitioning sales.orders 'hours(at)' region
streamhouse -w ./warehouse set-partitioning sales.orders --none
""",
)
@click.argument("table")
@click.argument("fields", metavar="FIELD...", nargs=-1)
@click.option("--none", "is_none", is_flag=True, help="Stop partitioning new rows.")
@click.pass_obj
def set_partitioning(session: Session, table: str, fields: Sequence[str], *, is_none: bool) -> None:
    """Change the partition fields of a table for new rows.

    Fields are columns, and transforms of columns such as 'days(at)' or 'truncate(4, name)'. Nothing is rewritten: lake
    files keep their partitions, the next tiering round writes by the new fields, and reads support both. The lake must
    be an Iceberg table.
    """
    if bool(fields) == is_none:
        raise click.UsageError("give the fields to partition by, or --none")
    parse_table_name(table).require_table("change the partitioning of")
    opened = session.warehouse.table(table)
    before = list(opened.state.parsed.partitioned_by)
    opened.set_partitioning([piece for text in fields for piece in split_fields(text)])
    now = list(opened.state.parsed.partitioned_by)
    session.output.document(
        {"table": opened.name, "partition_by": now, "former_partition_by": before},
        lambda c: c.print(f"partitioned {opened.name} by {', '.join(now) or 'nothing'}", markup=False),
    )


def _print_report(session: Session, report: DropPartitionReport, text: str) -> None:
    session.output.document(
        asdict(report), lambda c: c.print(f"{text}: {report.rows:,} rows, {report.files} lake files", markup=False)
    )
