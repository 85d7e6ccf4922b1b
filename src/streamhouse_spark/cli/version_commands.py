"""``history``, ``rollback``: the versions of a table, and restoring the rows of an older one."""

from __future__ import annotations

from dataclasses import asdict

import click

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.table.rollback import RollbackReport
from streamhouse_spark.table.table import Table


@click.command(
    "history",
    cls=Command,
    examples="""
streamhouse -w ./warehouse history sales.orders
streamhouse -w ./warehouse history sales.orders -n 5 --output json | jq .operation
""",
)
@click.argument("table")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 2**63 - 1), default=20, show_default=True, help="Number of commits."
)
@click.pass_obj
def history(session: Session, table: str, limit: int) -> None:
    """List the latest commits of a table, with operation and author.

    The latest comes first. Commits whose records were cleaned are no longer listed.
    """
    commits = session.warehouse.table(table).inspect.history(limit)
    session.output.rows(commits.take(list(reversed(range(commits.num_rows)))))


@click.command(
    "rollback",
    cls=Command,
    examples="""
streamhouse -w ./warehouse history sales.orders
streamhouse -w ./warehouse rollback sales.orders --to 41 --dry-run
streamhouse -w ./warehouse rollback sales.orders --to 41 --yes
""",
)
@click.argument("table")
@click.option("--to", "version", required=True, help="Commit number of the history, or a tag.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show how many rows would be removed and restored.")
@click.pass_obj
def rollback(session: Session, table: str, *, version: str, yes: bool, dry_run: bool) -> None:
    """Restore the rows of an older commit after confirmation.

    This is one new commit, so history continues and it can be rolled back as well. Columns and properties stay
    unchanged. A concurrent commit of rows ends it with a conflict. The lake follows in the next tiering round.
    """
    parse_table_name(table).require_table("roll back")
    opened = session.warehouse.table(table)
    if dry_run:
        _print_report(session, _rollback(session, opened, version, dry_run=True), "would roll")
        return
    if not yes:
        preview = _rollback(session, opened, version, dry_run=True)
        if not click.confirm(
            f"roll {opened.name} back to commit {version}: {preview.rows_deleted:,} rows go, {preview.rows_added:,} "
            "come back?",
            err=True,
        ):
            raise click.Abort
    _print_report(session, _rollback(session, opened, version, dry_run=False), "rolled")


def _rollback(session: Session, table: Table, version: str, *, dry_run: bool) -> RollbackReport:
    with session.output.working(f"{'check' if dry_run else 'roll back'} {table.name}"):
        return table.rollback_to_version(version, dry_run=dry_run)


def _print_report(session: Session, report: RollbackReport, verb: str) -> None:
    session.output.document(
        asdict(report),
        lambda console: console.print(
            f"{verb} {report.table} back to commit {report.version}: {report.rows_deleted:,} rows go, "
            f"{report.rows_added:,} come back",
            markup=False,
        ),
    )
