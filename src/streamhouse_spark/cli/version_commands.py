"""``history``, ``rollback``, ``clone``, tags and branches: the versions of a table."""

from __future__ import annotations

from dataclasses import asdict

import click

from streamhouse_spark.cli.session import TABLE, YES, Command, Session, confirm
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import count_of
from streamhouse_spark.log.catalog.branches import base_version_of_clone
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.rollback import RollbackReport


@click.command(
    "history",
    cls=Command,
    examples="""
streamhouse -w ./warehouse history sales.orders
streamhouse -w ./warehouse history sales.orders -n 5 --output json | jq .operation
""",
)
@TABLE
@click.option(
    "-n", "--limit", type=click.IntRange(1, 2**63 - 1), default=20, show_default=True, help="Number of commits."
)
@click.pass_obj
def history(session: Session, table: str, limit: int) -> None:
    """List the latest commits of a table, with operation and author.

    The latest commit comes first. Commits whose records were deleted are not listed.
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
@TABLE
@click.option("--to", "version", required=True, help="Commit number of the history, or a tag.")
@YES
@click.option("--dry-run", is_flag=True, help="Only show how many rows would be removed and restored.")
@click.pass_obj
def rollback(session: Session, table: str, *, version: str, yes: bool, dry_run: bool) -> None:
    """Restore the rows of an older commit after confirmation.

    The rollback is a new commit, which can be rolled back as well. Columns and properties stay unchanged. A concurrent
    commit of rows is a conflict, and the command fails. The next tiering round also rolls back the lake.
    """
    opened = session.open_table(table, "roll back")
    if dry_run:
        _print_report(session, _rollback(session, opened, version, dry_run=True), "would roll")
        return
    if not yes:
        preview = _rollback(session, opened, version, dry_run=True)
        rows = f"{count_of(preview.rows_deleted, 'row')} removed, {preview.rows_added:,} restored"
        confirm(f"roll {opened.name} back to commit {version}: {rows}?", yes=yes)
    _print_report(session, _rollback(session, opened, version, dry_run=False), "rolled")


def _rollback(session: Session, table: Table, version: str, *, dry_run: bool) -> RollbackReport:
    with session.output.spinner(f"{'check' if dry_run else 'roll back'} {table.name}"):
        return table.rollback_to_version(version, dry_run=dry_run)


def _print_report(session: Session, report: RollbackReport, verb: str) -> None:
    session.output.sentence(
        asdict(report),
        f"{verb} {report.table} back to commit {report.version}: {count_of(report.rows_deleted, 'row')} removed, "
        f"{report.rows_added:,} restored",
    )


_DAY_MS = 24 * 3600 * 1000


@click.command(
    "tag",
    cls=Command,
    examples="""
streamhouse -w ./warehouse tag sales.orders quarter-3
streamhouse -w ./warehouse tag sales.orders before-backfill --version 41 --retain-days 30
""",
)
@TABLE
@click.argument("name")
@click.option("--version", help="Commit number or another tag; the latest commit by default.")
@click.option("--retain-days", type=click.IntRange(min=1), help="Drop the tag after this number of days.")
@click.pass_obj
def tag(session: Session, table: str, name: str, *, version: str | None, retain_days: int | None) -> None:
    """Name a version of a table and retain the files that its readers need.

    VERSION AS OF and rollback accept the name. The log files and the lake snapshot of the version are retained until
    `drop-tag`, except from expiry by other engines.
    """
    retain_ms = None if retain_days is None else retain_days * _DAY_MS
    created = session.open_table(table, "tag").create_tag(name, version, retain_ms=retain_ms)
    session.output.sentence(
        {"table": table, **asdict(created)}, f"{created.name} is commit {created.version} of {table}"
    )


@click.command("tags", cls=Command, examples="streamhouse -w ./warehouse tags sales.orders")
@TABLE
@click.pass_obj
def tags(session: Session, table: str) -> None:
    """Show the tags of a table.

    The latest commit is shown as main.
    """
    session.output.rows(session.open_table(table, "show the tags of").inspect.refs())


@click.command("drop-tag", cls=Command, examples="streamhouse -w ./warehouse drop-tag sales.orders quarter-3")
@TABLE
@click.argument("name")
@click.pass_obj
def drop_tag(session: Session, table: str, name: str) -> None:
    """Drop a tag of a table. Cleaning deletes the files that only it retained, after the grace period."""
    session.open_table(table, "drop a tag of").drop_tag(name)
    session.output.sentence({"table": table, "dropped": name}, f"dropped the tag {name} of {table}")


@click.command(
    "clone",
    cls=Command,
    examples="""
streamhouse -w ./warehouse clone sales.orders sales.orders_test
streamhouse -w ./warehouse clone sales.orders sales.orders_before --version 41
streamhouse -w ./warehouse clone sales.orders audit.orders_q3 --version quarter-3
""",
)
@click.argument("source")
@click.argument("target")
@click.option("--version", help="Commit number or a tag of the source; the latest commit by default.")
@click.pass_obj
def clone(session: Session, source: str, target: str, *, version: str | None) -> None:
    """Create a table from a version of another table without copying lake files.

    Afterwards the tables are independent: changes of the source do not affect the clone, nor vice versa. Rows of
    the hot log are copied. Shared lake files stay until the clone is dropped and cleaned, even if the source is
    dropped.
    """
    parse_table_name(source).require_table("clone")
    parse_table_name(target).require_table("clone to")
    with session.output.spinner(f"clone {source}"):
        cloned = session.warehouse.clone_table(source, target, version=version)
    base = base_version_of_clone(session.warehouse.table(source).refresh(), cloned.uuid)
    session.output.sentence(
        {"source": source, "target": target, "version": base.version, "lake_snapshot": base.lake_snapshot},
        f"{target} is a clone of commit {base.version} of {source}",
    )


@click.command(
    "branch",
    cls=Command,
    examples="""
streamhouse -w ./warehouse branch sales.orders audit
streamhouse -w ./warehouse append 'sales.orders$branch_audit' orders.csv
streamhouse -w ./warehouse head 'sales.orders$branch_audit'
streamhouse -w ./warehouse publish-branch sales.orders audit
""",
)
@TABLE
@click.argument("name")
@click.pass_obj
def branch(session: Session, table: str, name: str) -> None:
    """Create a branch whose changes are isolated from the table.

    The branch starts at the table's latest version. Read and write it as TABLE$branch_NAME. `publish-branch` publishes
    its changes to the table, `drop-branch` discards them, and `tags` lists branches. Rows of the hot log are copied,
    but no lake files.
    """
    opened = session.open_table(table, "create a branch of")
    with session.output.spinner(f"create branch {name} of {table}"):
        created = opened.create_branch(name)
    session.output.sentence(
        {"table": table, **asdict(created)},
        f"{table}$branch_{created.name} starts at commit {created.version} of {table}",
    )


@click.command("publish-branch", cls=Command, examples="streamhouse -w ./warehouse publish-branch sales.orders audit")
@TABLE
@click.argument("name")
@click.pass_obj
def publish_branch(session: Session, table: str, name: str) -> None:
    """Publish the changes of a branch atomically, and end the branch.

    If the table changed since the branch was created, the command fails if the changes conflict; then nothing is
    published. Idempotent.
    """
    opened = session.open_table(table, "publish a branch of")
    with session.output.spinner(f"publish branch {name} of {table}"):
        done = opened.fast_forward(name)
    session.output.sentence(
        asdict(done), f"commit {done.version} of {table} has the changes of its branch {done.branch}"
    )


@click.command("drop-branch", cls=Command, examples="streamhouse -w ./warehouse drop-branch sales.orders audit")
@TABLE
@click.argument("name")
@click.pass_obj
def drop_branch(session: Session, table: str, name: str) -> None:
    """Drop a branch of a table and discard its changes. Cleaning deletes its files after the grace period."""
    session.open_table(table, "drop a branch of").drop_branch(name)
    session.output.sentence({"table": table, "dropped": name}, f"dropped the branch {name} of {table}")
