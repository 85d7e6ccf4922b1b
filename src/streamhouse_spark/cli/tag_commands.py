"""``tag``, ``tags`` and ``drop-tag``: names of versions of a table. ``clone``: a version under a name of its own.
``branch``, ``publish-branch`` and ``drop-branch``: changes that nobody else sees before they are published.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.log.lifecycle.clones import version_of_clone

_DAY_MS = 24 * 3600 * 1000


@click.command(
    "tag",
    cls=Command,
    examples="""
streamhouse -w ./warehouse tag sales.orders quarter-3
streamhouse -w ./warehouse tag sales.orders before-backfill --version 41 --retain-days 30
""",
)
@click.argument("table")
@click.argument("name")
@click.option("--version", help="Commit number or another tag; the newest commit by default.")
@click.option("--retain-days", type=click.IntRange(min=1), help="Drop it after so many days; never by default.")
@click.pass_obj
def tag(session: Session, table: str, name: str, *, version: str | None, retain_days: int | None) -> None:
    """Name a version of a table, and keep what its readers need.

    VERSION AS OF and rollback take the name. Files of the log and the lake snapshot stay, whatever is merged, trimmed,
    cleaned and expired. Expiry by other engines does not know of it. `drop-tag` ends it.
    """
    parse_table_name(table).require_table("tag")
    retain_ms = None if retain_days is None else retain_days * _DAY_MS
    created = session.warehouse.table(table).create_tag(name, version, retain_ms=retain_ms)
    session.output.document(
        {"table": table, **asdict(created)},
        lambda console: console.print(f"{created.name} is commit {created.version} of {table}", markup=False),
    )


@click.command("tags", cls=Command, examples="streamhouse -w ./warehouse tags sales.orders")
@click.argument("table")
@click.pass_obj
def tags(session: Session, table: str) -> None:
    """Show the tags of a table.

    The newest commit is shown as main.
    """
    parse_table_name(table).require_table("show the tags of")
    session.output.rows(session.warehouse.table(table).inspect.refs())


@click.command("drop-tag", cls=Command, examples="streamhouse -w ./warehouse drop-tag sales.orders quarter-3")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def drop_tag(session: Session, table: str, name: str) -> None:
    """Drop a tag of a table. What only it kept is deleted by cleaning, after the grace."""
    parse_table_name(table).require_table("drop a tag of")
    session.warehouse.table(table).drop_tag(name)
    session.output.document(
        {"table": table, "dropped": name},
        lambda console: console.print(f"dropped the tag {name} of {table}", markup=False),
    )


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
@click.option("--version", help="Commit number or a tag of the source; the newest commit by default.")
@click.pass_obj
def clone(session: Session, source: str, target: str, *, version: str | None) -> None:
    """Make a table of a version of another, without copying lake files.

    Both tables live on by themselves: writes, deletes and columns of one are not seen in the other. Rows of the hot log
    are copied. The files that both read stay until the clone is dropped and cleaned, also if the source is dropped.
    """
    parse_table_name(source).require_table("clone")
    parse_table_name(target).require_table("clone to")
    with session.output.working(f"clone {source}"):
        cloned = session.warehouse.clone_table(source, target, version=version)
    began = version_of_clone(session.warehouse.table(source).refresh(), cloned.uuid)
    session.output.document(
        {"source": source, "target": target, "version": began.version, "lake_snapshot": began.lake_snapshot},
        lambda console: console.print(f"{target} is a clone of commit {began.version} of {source}", markup=False),
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
@click.argument("table")
@click.argument("name")
@click.pass_obj
def branch(session: Session, table: str, name: str) -> None:
    """Begin a branch, whose changes no reader of the table sees.

    It begins with the table's newest version, and is read and written as TABLE$branch_NAME. `publish-branch` makes its
    changes the table's, `drop-branch` loses them; `tags` shows it. Rows of the hot log are copied, and no file of the
    lake is.
    """
    parse_table_name(table).require_table("make a branch of")
    opened = session.warehouse.table(table)
    with session.output.working(f"make the branch {name} of {table}"):
        created = opened.create_branch(name)
    session.output.document(
        {"table": table, **asdict(created)},
        lambda console: console.print(
            f"{table}$branch_{created.name} begins with commit {created.version} of {table}", markup=False
        ),
    )


@click.command("publish-branch", cls=Command, examples="streamhouse -w ./warehouse publish-branch sales.orders audit")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def publish_branch(session: Session, table: str, name: str) -> None:
    """Make the changes of a branch the table's, all of them at once, and end it.

    Where the table changed since the branch began, the branch is published only if that is right behind these changes;
    else nothing is. Publishing again publishes once.
    """
    parse_table_name(table).require_table("publish a branch of")
    opened = session.warehouse.table(table)
    with session.output.working(f"publish the branch {name} of {table}"):
        done = opened.fast_forward(name)
    session.output.document(
        asdict(done),
        lambda console: console.print(
            f"commit {done.version} of {table} has the changes of its branch {done.branch}", markup=False
        ),
    )


@click.command("drop-branch", cls=Command, examples="streamhouse -w ./warehouse drop-branch sales.orders audit")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def drop_branch(session: Session, table: str, name: str) -> None:
    """End a branch of a table, and lose its changes. Its files are deleted by cleaning, after the grace."""
    parse_table_name(table).require_table("drop a branch of")
    session.warehouse.table(table).drop_branch(name)
    session.output.document(
        {"table": table, "dropped": name},
        lambda console: console.print(f"dropped the branch {name} of {table}", markup=False),
    )
